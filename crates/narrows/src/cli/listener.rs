//! The arguments for HTTP and WebSocket listeners without a configuration file.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use narrows_base::units::parse_size;
use narrows_bus::config::{BusLimits, host, origin};

use super::value::duration;

/// Authentication and limits of HTTP and WebSocket clients.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "HTTP and WebSocket")]
pub(crate) struct ListenerArgs {
    /// Accept clients that present a token from this file
    ///
    /// `narrows token new NAME --file FILE` creates a token. The scopes of a token limit the tools that its client
    /// may use. The file is reloaded when it changes.
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,

    /// Certificate for wss:// and https://, in PEM format
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,

    /// Private key of the certificate
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,

    /// Accept clients with a certificate of these CAs; with --tokens, a token is required as well
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) client_ca: Option<PathBuf>,

    /// Host name that clients may use, besides localhost and the listen address; may be repeated
    #[arg(long = "host", value_name = "NAME", value_parser = host)]
    pub(crate) hosts: Vec<String>,

    /// Origin of a web page that may connect, such as `https://app.example`; may be repeated [default: none]
    #[arg(long = "origin", value_name = "ORIGIN", value_parser = origin)]
    pub(crate) origins: Vec<String>,

    /// Limit, such as idle_timeout=30s; may be repeated [defaults: header_timeout=10s idle_timeout=45s
    /// replay_time=300s replay_bytes=4MiB max_connections_per_identity=1000 max_rate_per_identity=100000]
    #[arg(long = "limit", value_name = "NAME=VALUE", value_parser = limit)]
    pub(crate) limits: Vec<Limit>,
}

impl ListenerArgs {
    /// Returns the default limits of a bus, overridden by the `--limit` arguments.
    pub(crate) fn limits(&self) -> BusLimits {
        let mut limits = BusLimits::default();
        self.limits.iter().for_each(|limit| limit.set(&mut limits));
        limits
    }
}

/// A limit, by its name in the configuration of a bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    HeaderTimeout(Duration),
    IdleTimeout(Duration),
    ReplayTime(Duration),
    ReplayBytes(usize),
    Connections(usize),
    Rate(u64),
}

const LIMIT_NAMES: [&str; 6] = [
    "header_timeout",
    "idle_timeout",
    "replay_time",
    "replay_bytes",
    "max_connections_per_identity",
    "max_rate_per_identity",
];

impl Limit {
    fn set(self, limits: &mut BusLimits) {
        match self {
            Self::HeaderTimeout(time) => limits.header_timeout = time,
            Self::IdleTimeout(time) => limits.idle_timeout = time,
            Self::ReplayTime(time) => limits.replay_time = time,
            Self::ReplayBytes(bytes) => limits.replay_bytes = bytes,
            Self::Connections(count) => limits.max_connections_per_identity = count,
            Self::Rate(rate) => limits.max_rate_per_identity = rate,
        }
    }
}

/// Parses `NAME=VALUE`.
fn limit(text: &str) -> Result<Limit, String> {
    let (name, value) =
        text.split_once('=').ok_or("must be a name and a value, such as `idle_timeout=30s`")?;
    let bytes = |text: &str| {
        let bytes = parse_size(text)?;
        let fits = usize::try_from(bytes).ok().filter(|bytes| (1 << 20..=1 << 30).contains(bytes));
        fits.ok_or("must be from 1MiB to 1GiB")
    };
    let count = |text: &str| {
        let number = text.parse().ok().filter(|number| (1..=1_000_000).contains(number));
        number.ok_or("must be a whole number from 1 to 1000000")
    };
    let rate = |text: &str| text.parse().map_err(|_| "must be a whole number; 0 means no limit");
    Ok(match name {
        "header_timeout" => Limit::HeaderTimeout(duration(value)?),
        "idle_timeout" => Limit::IdleTimeout(duration(value)?),
        "replay_time" => Limit::ReplayTime(duration(value)?),
        "replay_bytes" => Limit::ReplayBytes(bytes(value)?),
        "max_connections_per_identity" => Limit::Connections(count(value)?),
        "max_rate_per_identity" => Limit::Rate(rate(value)?),
        _ => return Err(format!("unknown name; valid names are {}", LIMIT_NAMES.join(", "))),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with(limit: Limit) -> BusLimits {
        ListenerArgs { limits: vec![limit], ..ListenerArgs::default() }.limits()
    }

    #[test]
    fn limits_equal_those_of_a_bus() {
        let check = |text: &str, expected: Result<BusLimits, &str>| match (limit(text), expected) {
            (Ok(limit), Ok(expected)) => assert_eq!(with(limit), expected, "{text}"),
            (Err(error), Err(words)) => assert!(error.contains(words), "{text}: {error}"),
            (found, _) => panic!("{text}: {found:?}"),
        };
        let usual = BusLimits::default;
        let second = Duration::from_secs(1);
        check("header_timeout=1s", Ok(BusLimits { header_timeout: second, ..usual() }));
        check("idle_timeout=1s", Ok(BusLimits { idle_timeout: second, ..usual() }));
        check("replay_time=1s", Ok(BusLimits { replay_time: second, ..usual() }));
        check("replay_bytes=1MiB", Ok(BusLimits { replay_bytes: 1 << 20, ..usual() }));
        check("max_connections_per_identity=2", Ok(BusLimits { max_connections_per_identity: 2, ..usual() }));
        check("max_rate_per_identity=0", Ok(BusLimits { max_rate_per_identity: 0, ..usual() }));
        check("idle_timeout", Err("a name and a value"));
        check("idle_timeout=0", Err("more than 0"));
        check("replay_bytes=1", Err("from 1MiB"));
        check("max_connections_per_identity=0", Err("from 1"));
        check("max_rate_per_identity=-1", Err("whole number"));
        check("memory=1", Err("valid names are header_timeout"));
    }

    #[test]
    fn the_help_lists_the_default_limits() {
        let help = ListenerArgs::augment_args(clap::Command::new("x")).render_long_help().to_string();
        let (_, rest) = help.split_once("[defaults:").expect("the help lists the defaults");
        let (told, _) = rest.split_once(']').expect("the processes end");
        let told: Vec<&str> = told.split_whitespace().collect();
        let names: Vec<&str> = told.iter().filter_map(|word| Some(word.split_once('=')?.0)).collect();
        assert_eq!(names, LIMIT_NAMES);
        for word in told {
            assert_eq!(with(limit(word).expect(word)), BusLimits::default(), "{word}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(text in "\\PC{0,20}", name in 0..LIMIT_NAMES.len()) {
            let _ = limit(&text);
            let _ = limit(&format!("{}={text}", LIMIT_NAMES[name]));
        }
    }
}
