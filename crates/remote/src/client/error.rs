//! Why a remote agent could not be reached, and how one that was is lost.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The file of certificate authorities is of no use.
    #[error("the certificate authorities in {path:?} cannot be used: {why}")]
    Ca {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Our token would be seen by everybody on the way.
    #[error("the token would go over the network in clear")]
    Exposed,
    /// The token cannot be sent.
    #[error("the token has characters in it that no token has")]
    Token,
    /// Lines have no place for a token.
    #[error("a token can be shown over ws, wss, http and https only")]
    Tokenless,
    /// There is no such host.
    #[error("the name {0:?} is not known: {1}")]
    Name(String, String),
    /// Nobody listens there.
    #[error("nobody listens at {0}")]
    Refused(String),
    /// It took too long.
    #[error("no connection within {0:?}")]
    Timeout(Duration),
    /// The server is not who it should be.
    #[error("the certificate of the server is not trusted: {0}")]
    Certificate(String),
    /// The server wants another token, or one at all.
    #[error("the server does not know our token (401)")]
    Unauthorized,
    /// The server forbids it.
    #[error("the server forbids it (403)")]
    Forbidden,
    /// The server answers something else.
    #[error("the server answers {status}{}", .words.as_ref().map(|words| format!(": {words}")).unwrap_or_default())]
    Status {
        /// The status.
        status: u16,
        /// What else it says, made safe to show.
        words: Option<String>,
    },
    /// Whoever is there does not speak the protocol.
    #[error("whoever listens there does not speak the protocol: {0}")]
    Protocol(String),
    /// Anything else.
    #[error("the connection failed: {0}")]
    Io(String),
}

impl DialError {
    /// Whether trying again is of no use.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Ca { .. }
            | Self::Exposed
            | Self::Token
            | Self::Tokenless
            | Self::Certificate(_)
            | Self::Unauthorized
            | Self::Forbidden => true,
            // Whatever stands before a server that starts anew says so by these.
            Self::Status { status, .. } => !matches!(status, 408 | 425 | 429 | 500..=599),
            Self::Name(..) | Self::Refused(_) | Self::Timeout(_) | Self::Protocol(_) | Self::Io(_) => false,
        }
    }

    /// What a status means that is not the one hoped for.
    pub(super) fn of_status(status: u16, body: &[u8]) -> Self {
        match status {
            401 => Self::Unauthorized,
            403 => Self::Forbidden,
            status => Self::Status { status, words: words(body) },
        }
    }

    /// What the system said when a socket was opened or used, at `place`.
    pub(super) fn of_io(error: &io::Error, place: &str) -> Self {
        if let Some(inner) = error.get_ref() {
            if let Some(rustls::Error::InvalidCertificate(why)) = inner.downcast_ref() {
                return Self::Certificate(why.to_string());
            }
            // Whoever passes an error on may have wrapped it.
            if let Some(inner) = inner.downcast_ref::<io::Error>() {
                return Self::of_io(inner, place);
            }
        }
        match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Self::Refused(place.to_owned()),
            _ => Self::Io(error.to_string()),
        }
    }
}

/// How many characters of what a server says are shown.
const WORDS: usize = 200;

/// What a server says beside its status, in one line.
fn words(body: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(body.get(..WORDS * 4).unwrap_or(body));
    let words: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(WORDS).collect();
    let words = words.trim();
    // Pages are for browsers.
    (!words.is_empty() && !words.starts_with('<')).then(|| words.to_owned())
}

/// How a connection was lost for good.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// The server cannot take a connection up again.
    #[error("the connection is lost, and the server cannot take it up again: {0}")]
    Plain(String),
    /// It was tried for as long as it was to be tried.
    #[error("the connection is lost, and could not be had again within {} s", .grace.as_secs())]
    Grace {
        /// How long.
        grace: Duration,
        /// Why not, the last time.
        #[source]
        last: DialError,
    },
    /// The server knows nothing of it: it has started anew, or it was away for too long.
    #[error("the connection is lost: the server no longer knows it")]
    Forgotten,
    /// Something was sent that neither arrived nor is still there.
    #[error("the connection is lost: something was sent on it that is no longer kept")]
    Gap,
    /// Somebody else goes on with it.
    #[error("the connection is lost: another one has taken over")]
    Fenced,
    /// One message is longer than one side allows.
    #[error("the connection is lost: a message is too long: {0}")]
    TooLong(String),
    /// The server lets us in no more, or never did.
    #[error("there is no connection")]
    Dial(#[from] DialError),
    /// The server refuses in its own words.
    #[error("the connection is lost: the server refuses to go on: {0}")]
    Refused(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_final_or_worth_another_try() {
        for (status, is_final) in
            [(401, true), (403, true), (404, true), (429, false), (502, false), (503, false)]
        {
            assert_eq!(DialError::of_status(status, b"").is_final(), is_final, "{status}");
        }
        assert_eq!(
            DialError::of_status(404, b"no\n\x1b[1msuch").to_string(),
            "the server answers 404: no  [1msuch"
        );
        assert_eq!(DialError::of_status(404, b"<html>").to_string(), "the server answers 404");
    }
}
