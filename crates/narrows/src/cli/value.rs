//! Parsers for values of arguments.

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use narrows_model::{Effort, Provider};
use narrows_policy::Access;

use crate::config::{Header, Proxy};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentCommand {
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
}

/// Splits a command like a shell, without running one.
pub(crate) fn agent(text: &str) -> Result<AgentCommand, &'static str> {
    let mut words = shlex::split(text).ok_or("missing closing quote")?.into_iter();
    let program = words.next().filter(|program| !program.is_empty()).ok_or("missing program")?;
    Ok(AgentCommand { program, args: words.collect() })
}

/// Returns the URL that is probably meant by `host:port`.
pub(crate) fn bare_address(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    let is_host =
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-[]:".contains(&byte));
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    let is_one = host.starts_with('[') == host.ends_with(']') && host.contains(':') == host.starts_with('[');
    (is_host && is_port && is_one).then(|| format!("tcp://{text}"))
}

pub(crate) fn access() -> impl TypedValueParser<Value = Access> {
    let names = [Access::Low, Access::Medium, Access::High].map(Access::name);
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Access>())
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Variable {
    pub(crate) name: OsString,
    /// `None` takes the value from the current environment.
    pub(crate) value: Option<OsString>,
}

impl std::fmt::Debug for Variable {
    /// Shows only the name of the variable, because the value may be a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.name.fmt(f)
    }
}

/// Reads `NAME` or `NAME=VALUE`.
pub(crate) fn variable(text: &str) -> Result<Variable, &'static str> {
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
    if name.is_empty() {
        return Err("the name of the environment variable is empty");
    }
    Ok(Variable { name: name.into(), value: value.map(Into::into) })
}

/// Parses a name, or a prefix followed by `*`.
pub(crate) fn pattern(text: &str) -> Result<String, &'static str> {
    let name = text.strip_suffix('*').unwrap_or(text);
    if name.contains('*') {
        return Err("`*` is only allowed at the end");
    }
    if text.is_empty() || name.contains('=') {
        return Err("invalid name of an environment variable");
    }
    Ok(text.to_owned())
}

pub(crate) fn variable_name(text: &str) -> Result<String, &'static str> {
    if text.is_empty() || text.contains(['=', '\0', ' ', '$']) {
        return Err("invalid name of an environment variable");
    }
    Ok(text.to_owned())
}

pub(crate) fn model(text: &str) -> Result<String, &'static str> {
    // Clients never send the id `default`, so a user could not select this model again.
    if text.trim() == "default" {
        return Err(
            "`default` is reserved: clients send it if no model is chosen; use the id of a model of the \
                    endpoint",
        );
    }
    Ok(text.to_owned())
}

pub(crate) fn tokens(text: &str) -> Result<u64, &'static str> {
    text.trim().parse().ok().filter(|number| *number > 0).ok_or("must be a whole number above 0")
}

pub(crate) fn temperature(text: &str) -> Result<f64, &'static str> {
    let number = text.trim().parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or("must be a number, 0 or above")
}

/// Parses `NAME: VALUE`.
pub(crate) fn header(text: &str) -> Result<Header, &'static str> {
    let (name, value) = text.split_once(':').ok_or("must be a name, a colon and a value: `X-Team: blue`")?;
    let name = name.trim();
    if name.is_empty() {
        return Err("the name of the header is empty");
    }
    Ok(Header { name: name.to_owned(), value: value.trim().to_owned().into() })
}

/// Parses `NAME=VALUE`.
pub(crate) fn query(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) =
        text.split_once('=').ok_or("must be a name, `=` and a value: `api-version=2024-10-21`")?;
    if name.is_empty() {
        return Err("the name of the parameter is empty");
    }
    Ok((name.to_owned(), value.to_owned()))
}

pub(crate) fn provider() -> impl TypedValueParser<Value = Provider> {
    PossibleValuesParser::new(providers())
        .try_map(|name| Provider::from_name(&name).ok_or("unknown provider"))
}

pub(crate) fn providers() -> Vec<&'static str> {
    Provider::all().map(Provider::name).collect()
}

pub(crate) fn effort() -> impl TypedValueParser<Value = Effort> {
    PossibleValuesParser::new(efforts()).try_map(|name| Effort::from_name(&name).ok_or("unknown effort"))
}

pub(crate) fn efforts() -> Vec<&'static str> {
    Effort::ALL.into_iter().map(Effort::name).collect()
}

/// Parses a proxy, or `none`.
#[expect(clippy::unnecessary_wraps, reason = "clap requires a result")]
pub(crate) fn proxy(text: &str) -> Result<Proxy, std::convert::Infallible> {
    Ok(Proxy::from(text.to_owned()))
}

/// Parses a duration that may be 0.
pub(crate) fn pace(text: &str) -> Result<Duration, &'static str> {
    if text.trim_end_matches(char::is_alphabetic) == "0" { Ok(Duration::ZERO) } else { duration(text) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    pub(crate) name: &'static str,
    pub(crate) time: Duration,
}

/// Parses `NAME=TIME`.
pub(crate) fn deadline(text: &str) -> Result<Deadline, String> {
    let (name, time) = text.split_once('=').ok_or("must be a name and a duration, such as `silence=20m`")?;
    let known = narrows_govern::GateTimeouts::NAMES;
    let Some(name) = known.into_iter().find(|known| *known == name) else {
        return Err(format!("unknown name; valid names are {}", known.join(", ")));
    };
    Ok(Deadline { name, time: duration(time)? })
}

/// Parses a duration above 0: a number, optionally with a fraction, and `ms`, `s`, `m` or `h`. Without a unit it is
/// in seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, &'static str> {
    let duration = narrows_base::units::parse_duration(text)?;
    if duration.is_zero() { Err("the duration must be more than 0") } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_named_default_is_rejected() {
        for (text, is_model) in [
            ("gpt-4o", true),
            ("default-1", true),
            ("Default", true),
            ("default", false),
            (" default ", false),
        ] {
            assert_eq!(model(text).ok().as_deref(), is_model.then_some(text), "{text}");
        }
    }

    #[test]
    fn a_bare_host_and_port_become_a_url() {
        for (text, is_one) in [
            ("127.0.0.1:9000", true),
            ("localhost:1", true),
            ("[::1]:9000", true),
            ("::1:9000", false),
            ("tcp://127.0.0.1:9000", false),
            ("unix:/s", false),
            ("agent", false),
            (":9000", false),
            ("host:", false),
            ("host:70000", false),
            ("my agent:1", false),
        ] {
            assert_eq!(bare_address(text), is_one.then(|| format!("tcp://{text}")), "{text}");
        }
    }

    #[test]
    fn deadlines_are_parsed_by_name() {
        let check = |text: &str, expected: Option<(&str, u64)>| {
            let found = deadline(text).ok().map(|it| (it.name, it.time));
            assert_eq!(found, expected.map(|(name, secs)| (name, Duration::from_secs(secs))), "{text}");
        };
        check("silence=20m", Some(("silence", 1200)));
        check("new=7", Some(("new", 7)));
        check("new", None);
        check("old=7", None);
        check("new=0", None);
        check("new=", None);
    }

    #[test]
    fn commands_are_split_without_a_shell() {
        #[track_caller]
        fn check(text: &str, expected: Option<&[&str]>) {
            let words = agent(text).ok().map(|AgentCommand { program, args }| {
                std::iter::once(program).chain(args).collect::<Vec<_>>()
            });
            assert_eq!(
                words.as_deref(),
                expected
                    .map(|words| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
                    .as_deref(),
                "{text}"
            );
        }
        check("a", Some(&["a"]));
        check(r#"a "b c" 'd e' f\ g"#, Some(&["a", "b c", "d e", "f g"]));
        check("a $HOME; rm *", Some(&["a", "$HOME;", "rm", "*"]));
        check("", None);
        check("'' b", None);
        check("a 'b", None);
    }

    #[test]
    fn durations_have_units() {
        #[track_caller]
        fn check(text: &str, expected: Option<u64>) {
            assert_eq!(duration(text).ok(), expected.map(Duration::from_millis), "{text}");
        }
        check("250ms", Some(250));
        check("7", Some(7000));
        check("90s", Some(90_000));
        check("2m", Some(120_000));
        check("1h", Some(3_600_000));
        check("1.5s", Some(1500));
        check("0.5m", Some(30_000));
        for text in
            ["", "s", "0", "0s", "1d", "-1s", "1.5.0s", ".", "99999999999999999999s", "9999999999999999999h"]
        {
            check(text, None);
        }
    }

    #[test]
    fn headers_and_parameters() {
        let read = |text| header(text).ok().map(|header| (header.name, header.value.reveal().to_owned()));
        let pair = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        assert_eq!(read("X-A: b: c"), pair("X-A", "b: c"));
        assert_eq!(read(" X-A :"), pair("X-A", ""));
        assert_eq!(read("X-A"), None);
        assert_eq!(read(": b"), None);
        assert_eq!(query("a=b=c").ok(), pair("a", "b=c"));
        assert_eq!(query("a=").ok(), pair("a", ""));
        assert_eq!(query("a").ok(), None);
        assert_eq!(query("=a").ok(), None);
        assert_eq!(pace("0"), Ok(Duration::ZERO));
        assert_eq!(pace("0ms"), Ok(Duration::ZERO));
        assert_eq!(pace("30ms"), Ok(Duration::from_millis(30)));
        assert!(pace("fast").is_err());
    }

    #[test]
    fn variables_and_patterns() {
        let name = |text| variable(text).map(|variable| (variable.name, variable.value)).ok();
        assert_eq!(name("A"), Some(("A".into(), None)));
        assert_eq!(name("A=b=c"), Some(("A".into(), Some("b=c".into()))));
        assert_eq!(name("A="), Some(("A".into(), Some("".into()))));
        assert_eq!(name("=b"), None);
        assert_eq!(format!("{:?}", variable("KEY=hunter2").unwrap()), "\"KEY\"");
        for (text, good) in
            [("A", true), ("A_*", true), ("*", true), ("", false), ("A*B", false), ("A=b", false)]
        {
            assert_eq!(pattern(text).is_ok(), good, "{text}");
        }
    }
}
