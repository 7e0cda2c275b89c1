//! Agents that are somewhere else.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use narrows_link::Link;
use narrows_remote::client::{self, Connected, DialError, Lost, Outcome, OwnFiles, Secret, Standing, Target};
use tokio::time::timeout;

use crate::cli::RemoteArgs;
use crate::failure::Failure;

/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(5);

/// The longest message that is carried. A bus may take longer ones of others.
const LONGEST: usize = 16 << 20;

/// The longest file in which a token is looked for.
const LONGEST_TOKEN: usize = 4096;

/// A remote agent.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) target: Target,
    options: client::Options,
    /// What comes of the connection, once there is one.
    outcome: Mutex<Option<Outcome>>,
}

impl Remote {
    /// The one at `target`; its token is read at once.
    pub(crate) fn new(target: Target, args: &RemoteArgs) -> Result<Self, Failure> {
        let usual = client::Options::default();
        let options = client::Options {
            token: args.token_file.as_deref().map(token).transpose()?,
            ca: args.ca.clone(),
            own: own(args)?,
            grace: args.grace.unwrap_or(usual.grace),
            ..usual
        };
        Ok(Self { target, options, outcome: Mutex::new(None) })
    }

    /// A link to it.
    pub(crate) async fn connect(&self) -> Result<Link, Failure> {
        self.dial().await.map_err(|error| self.unreachable(&error))
    }

    /// What to say when there is no link to it.
    pub(crate) fn unreachable(&self, error: &DialError) -> Failure {
        Failure::unreachable(&self.target, self.options.token.is_some(), error)
    }

    /// A link to it, for whoever wants to know why there is none.
    pub(crate) async fn dial(&self) -> Result<Link, DialError> {
        let Connected { link, outcome } = client::connect(&self.target, self.options.clone()).await?;
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        Ok(link)
    }

    /// Whether the connection stands, once there is one.
    pub(super) fn standing(&self) -> Option<Standing> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Outcome::standing)
    }

    /// Waits until it was told that we go; fails if the connection was lost before.
    pub(crate) async fn finish(&self) -> Result<(), Failure> {
        let has_token = self.options.token.is_some();
        self.ended().await.map_err(|lost| Failure::cut_off(&self.target, has_token, &lost))
    }

    /// The same of one that has answered us before.
    pub(super) async fn finish_later(&self) -> Result<(), Failure> {
        let has_token = self.options.token.is_some();
        self.ended().await.map_err(|lost| Failure::cut_off_later(&self.target, has_token, &lost))
    }

    async fn ended(&self) -> Result<(), Lost> {
        let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(outcome) = outcome else { return Ok(()) };
        timeout(GOODBYE, outcome.wait()).await.unwrap_or(Ok(()))
    }

    /// What a link from whoever talks to it may hold.
    pub(crate) fn local_link() -> narrows_link::Options {
        narrows_link::Options { max_line: LONGEST, ..narrows_link::Options::default() }
    }
}

/// The first of these flags that is given.
pub(super) fn flag(args: &RemoteArgs) -> Option<&'static str> {
    let RemoteArgs { token_file, ca, cert, key, grace } = args;
    let given = [
        ("--token-file", token_file.is_some()),
        ("--ca", ca.is_some()),
        ("--cert", cert.is_some()),
        ("--key", key.is_some()),
        ("--grace", grace.is_some()),
    ];
    given.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
}

/// The certificate that shows who we are. Not every place where it can stand sees to it that its key does too.
fn own(args: &RemoteArgs) -> Result<Option<OwnFiles>, Failure> {
    match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => Ok(Some(OwnFiles { cert: cert.clone(), key: key.clone() })),
        (None, None) => Ok(None),
        (Some(cert), None) => Err(Failure::half_pair("certificate", cert, "its private key")),
        (None, Some(key)) => Err(Failure::half_pair("private key", key, "its certificate")),
    }
}

/// The token in the file at `path`.
fn token(path: &Path) -> Result<Secret, Failure> {
    let text =
        std::fs::read_to_string(path).map_err(|error| Failure::unreadable("--token-file", path, &error))?;
    let token = text.trim();
    if token.is_empty() || token.len() > LONGEST_TOKEN || token.contains(char::is_whitespace) {
        return Err(Failure::no_token(path));
    }
    Ok(Secret::from(token.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_word() {
        let place = tempfile::tempdir().unwrap();
        for (text, is_token) in [("abc\n", true), (" abc ", true), ("", false), ("\n", false), ("a b", false)]
        {
            let path = place.path().join("token");
            std::fs::write(&path, text).unwrap();
            assert_eq!(token(&path).is_ok(), is_token, "{text:?}");
        }
        assert!(token(&place.path().join("none")).is_err());
    }
}
