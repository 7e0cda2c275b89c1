//! Remote agents.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use narrows_base::sync::lock;
use narrows_link::Link;
use narrows_remote::client::{
    self, ClientCertificateFiles, Connected, ConnectionLost, ConnectionOutcome, ConnectionState, DialError,
    Secret, Target,
};
use tokio::time::timeout;

use crate::cli::{NamedBy, RemoteArgs};
use crate::config::Variables;
use crate::environment;
use crate::failure::Failure;

const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

const MAX_MESSAGE_BYTES: usize = 16 << 20;

const MAX_TOKEN_FILE_BYTES: usize = 4096;

#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) target: Target,
    args: RemoteArgs,
    options: client::ClientOptions,
    /// The outcome of the connection. `None` before the agent is connected.
    outcome: Mutex<Option<ConnectionOutcome>>,
}

impl Remote {
    /// Creates the agent at `target`. Environment variables replace absent flags.
    pub(crate) fn from_flags(target: Target, flags: &RemoteArgs) -> Result<Self, Failure> {
        let variables = RemoteArgs::from_variables(&Variables::of_process(), &target);
        Self::new(target, &flags.clone().or(variables))
    }

    pub(crate) fn new(target: Target, args: &RemoteArgs) -> Result<Self, Failure> {
        let defaults = client::ClientOptions::default();
        let options = client::ClientOptions {
            token: args.token_file.as_deref().map(|path| read_token(path, args.token_by)).transpose()?,
            ca: args.ca.clone(),
            client_certificate: client_certificate(args)?,
            grace_period: args.grace.unwrap_or(defaults.grace_period),
            ..defaults
        };
        Ok(Self { target, args: args.clone(), options, outcome: Mutex::new(None) })
    }

    /// Returns the shell command that sends the agent a prompt.
    pub(crate) fn shell_command(&self) -> String {
        let RemoteArgs { token_file, token_by: _, ca, cert, key, grace } = &self.args;
        let files = [("--token-file", token_file), ("--ca", ca), ("--cert", cert), ("--key", key)];
        let mut words = ["narrows", "run", "--agent"].map(str::to_owned).to_vec();
        words.push(self.target.to_string());
        for (flag, path) in files {
            words.extend(path.iter().flat_map(|path| [flag.to_owned(), path.display().to_string()]));
        }
        words.extend(
            grace.iter().flat_map(|grace| ["--grace".to_owned(), format!("{}ms", grace.as_millis())]),
        );
        words.push("Hello".to_owned());
        shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" "))
    }

    pub(crate) async fn connect(&self) -> Result<Link, Failure> {
        self.dial().await.map_err(|error| self.unreachable(&error))
    }

    pub(crate) fn unreachable(&self, error: &DialError) -> Failure {
        Failure::remote_unreachable(&self.target, self.options.token.is_some(), error)
    }

    /// Connects. The caller may turn the error into a failure with [`Self::unreachable`].
    pub(crate) async fn dial(&self) -> Result<Link, DialError> {
        let Connected { link, outcome } = client::connect(&self.target, self.options.clone()).await?;
        *lock(&self.outcome) = Some(outcome);
        Ok(link)
    }

    /// Returns the state of the connection, or `None` before the agent is connected.
    pub(super) fn state(&self) -> Option<ConnectionState> {
        lock(&self.outcome).as_ref().map(ConnectionOutcome::state)
    }

    /// Waits until the connection is closed. Fails if it was lost before.
    pub(crate) async fn finish(&self) -> Result<(), Failure> {
        let has_token = self.options.token.is_some();
        self.wait_closed()
            .await
            .map_err(|lost| Failure::remote_connection_lost(&self.target, has_token, &lost))
    }

    async fn wait_closed(&self) -> Result<(), ConnectionLost> {
        let outcome = lock(&self.outcome).take();
        let Some(outcome) = outcome else { return Ok(()) };
        timeout(CLOSE_TIMEOUT, outcome.wait()).await.unwrap_or(Ok(()))
    }

    /// Returns the options for the link to a local client of the agent.
    pub(crate) fn local_link_options() -> narrows_link::Options {
        narrows_link::Options { max_line: MAX_MESSAGE_BYTES, ..narrows_link::Options::default() }
    }
}

impl RemoteArgs {
    /// Returns the flags that environment variables set. If the variables are for another agent than
    /// `target`, returns no flags.
    pub(crate) fn from_variables(variables: &Variables, target: &Target) -> Self {
        let meant =
            variables.get(environment::CONNECT).map(|said| said.to_str().and_then(|said| said.parse().ok()));
        if meant.is_some_and(|meant| meant.as_ref() != Some(target)) {
            // Credentials of one agent are not sent to another.
            return Self::default();
        }
        let path = |name, is_shown: bool| variables.get(name).filter(|_| is_shown).map(PathBuf::from);
        Self {
            token_file: path(environment::TOKEN_FILE, !matches!(target, Target::Lines(_))),
            token_by: NamedBy::Variable,
            cert: path(environment::CERT_FILE, target.speaks_tls()),
            key: path(environment::KEY_FILE, target.speaks_tls()),
            ..Self::default()
        }
    }

    /// Fills absent flags from `others`.
    pub(crate) fn or(self, others: Self) -> Self {
        let Self { token_file, token_by, ca, cert, key, grace } = self;
        let (token_file, token_by) =
            if token_file.is_some() { (token_file, token_by) } else { (others.token_file, others.token_by) };
        // Certificate and key are taken from the same source.
        let (cert, key) =
            if (&cert, &key) == (&None, &None) { (others.cert, others.key) } else { (cert, key) };
        Self { token_file, token_by, ca: ca.or(others.ca), cert, key, grace: grace.or(others.grace) }
    }
}

/// Returns the name of the first flag in `args` that applies only to remote agents.
pub(super) fn first_flag(args: &RemoteArgs) -> Option<&'static str> {
    let RemoteArgs { token_file, token_by: _, ca, cert, key, grace } = args;
    let given = [
        ("--token-file", token_file.is_some()),
        ("--ca", ca.is_some()),
        ("--cert", cert.is_some()),
        ("--key", key.is_some()),
        ("--grace", grace.is_some()),
    ];
    given.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
}

/// Returns the client certificate. Fails if the certificate or its key is missing: unlike flags, variables
/// and settings can name one without the other.
fn client_certificate(args: &RemoteArgs) -> Result<Option<ClientCertificateFiles>, Failure> {
    match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => Ok(Some(ClientCertificateFiles { cert: cert.clone(), key: key.clone() })),
        (None, None) => Ok(None),
        (Some(cert), None) => Err(Failure::incomplete_key_pair("certificate", cert, "its private key")),
        (None, Some(key)) => Err(Failure::incomplete_key_pair("private key", key, "its certificate")),
    }
}

fn read_token(path: &Path, by: NamedBy) -> Result<Secret, Failure> {
    let by = match by {
        NamedBy::Flag => "--token-file",
        NamedBy::Variable => environment::TOKEN_FILE,
        NamedBy::Setting => "`token_file` in [acp]",
    };
    let text = std::fs::read_to_string(path).map_err(|error| Failure::file_unreadable(by, path, &error))?;
    let token = text.trim();
    if token.is_empty() || token.len() > MAX_TOKEN_FILE_BYTES || token.contains(char::is_whitespace) {
        return Err(Failure::token_missing(by, path));
    }
    Ok(Secret::from(token.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_file_has_one_word() {
        let place = tempfile::tempdir().unwrap();
        for (text, is_token) in [("abc\n", true), (" abc ", true), ("", false), ("\n", false), ("a b", false)]
        {
            let path = place.path().join("token");
            std::fs::write(&path, text).unwrap();
            assert_eq!(read_token(&path, NamedBy::Flag).is_ok(), is_token, "{text:?}");
        }
        let told = |by| read_token(&place.path().join("none"), by).unwrap_err().message();
        assert!(told(NamedBy::Flag).starts_with("--token-file: "));
        assert!(told(NamedBy::Variable).starts_with("NARROWS_TOKEN_FILE: "));
        assert!(told(NamedBy::Setting).starts_with("`token_file` in [acp]: "));
    }

    #[test]
    fn the_shell_command_has_every_connection_flag() {
        let place = tempfile::tempdir().unwrap();
        let token = place.path().join("my token");
        std::fs::write(&token, "abc").unwrap();
        let args = RemoteArgs {
            token_file: Some(token.clone()),
            ca: Some("ca.pem".into()),
            cert: Some("it's.pem".into()),
            key: Some("key".into()),
            grace: Some(Duration::from_secs(60)),
            ..RemoteArgs::default()
        };
        let remote = Remote::new("wss://bus.example/acp".parse().unwrap(), &args).unwrap();
        let words = shlex::split(&remote.shell_command()).unwrap();
        let token = token.display().to_string();
        let expected =
            ["narrows", "run", "--agent", "wss://bus.example/acp", "--token-file", &token, "--ca", "ca.pem"];
        assert_eq!(words[..8], expected);
        assert_eq!(words[8..], ["--cert", "it's.pem", "--key", "key", "--grace", "60000ms", "Hello"]);
        let plain = Remote::new("ws://127.0.0.1:1/acp".parse().unwrap(), &RemoteArgs::default()).unwrap();
        assert_eq!(plain.shell_command(), "narrows run --agent ws://127.0.0.1:1/acp Hello");
    }

    #[test]
    fn variables_apply_where_flags_are_absent() {
        let all: [(&str, &str); 3] =
            [("NARROWS_TOKEN_FILE", "t"), ("NARROWS_CERT_FILE", "c"), ("NARROWS_KEY_FILE", "k")];
        let said = |more: &[(&str, &str)], url: &str| {
            let pairs = all.iter().chain(more);
            let variables = pairs.map(|(name, value)| ((*name).into(), (*value).into())).collect();
            let RemoteArgs { token_file, cert, key, .. } =
                RemoteArgs::from_variables(&variables, &url.parse().unwrap());
            [token_file, cert, key].map(|path| path.is_some())
        };
        assert_eq!(said(&[], "wss://bus.example/acp"), [true; 3]);
        assert_eq!(said(&[], "ws://127.0.0.1:1/acp"), [true, false, false]);
        assert_eq!(said(&[], "unix:/run/bus"), [false; 3]);
        let meant = [("NARROWS_CONNECT", "wss://bus.example/acp")];
        assert_eq!(said(&meant, "wss://bus.example/acp"), [true; 3]);
        assert_eq!(said(&meant, "wss://other.example/acp"), [false; 3]);

        let variables = RemoteArgs {
            token_file: Some("t".into()),
            token_by: NamedBy::Variable,
            cert: Some("c".into()),
            key: Some("k".into()),
            ..RemoteArgs::default()
        };
        assert_eq!(RemoteArgs::default().or(variables.clone()), variables);
        let flags = RemoteArgs {
            token_file: Some("other".into()),
            cert: Some("other".into()),
            key: Some("other".into()),
            ..RemoteArgs::default()
        };
        assert_eq!(flags.clone().or(variables), flags);
    }
}
