//! Why a remote agent could not be reached, and how one that was is lost.

use std::io;
use std::time::Duration;

use narrows_base::text::one_line;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use rustls::{AlertDescription, CertificateError};

use super::Options;
use crate::tls::TlsError;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The file of certificate authorities is of no use.
    #[error(transparent)]
    Ca(TlsError),
    /// Our own certificate or its key is of no use.
    #[error(transparent)]
    Own(#[from] TlsError),
    /// Without TLS no certificate can be shown.
    #[error("a certificate can be shown over wss and https only")]
    Certless,
    /// The server lets nobody in without a certificate.
    #[error("the server wants to see a certificate of ours")]
    CertificateWanted,
    /// The server has seen our certificate, and does not let us in.
    #[error("the server does not accept our certificate: {0}")]
    CertificateRefused(String),
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
    /// Whoever is there has taken the question and not answered it.
    #[error("whoever listens there has not answered within {0:?}")]
    Unanswered(Duration),
    /// The server is not who it should be.
    #[error("the certificate of the server is not trusted: {0}")]
    Certificate(String),
    /// The server is somebody else by its certificate.
    #[error("the certificate of the server is not for this name: {0}")]
    OtherName(String),
    /// The server wants another token.
    #[error("the server does not know our token (401)")]
    Unauthorized,
    /// The server wants a token.
    #[error("the server wants to see a token, and none was given (401)")]
    TokenWanted,
    /// The server does not know who our certificate is of.
    #[error("the server does not know us by our certificate alone (401)")]
    Nameless,
    /// The server forbids it.
    #[error("the server forbids it (403){}", behind(.words.as_deref()))]
    Forbidden {
        /// What else it says, made safe to show.
        words: Option<String>,
    },
    /// The server listens to nobody of our address for a while.
    #[error("too many wrong tokens have come from this address (429)")]
    LockedOut {
        /// How long it wants to be left alone.
        after: Option<Duration>,
    },
    /// The server takes nobody now.
    #[error("the server turns us away: {0}")]
    TurnedAway(String),
    /// The server answers something else.
    #[error("the server answers {status}{}", behind(.words.as_deref()))]
    Status {
        /// The status.
        status: u16,
        /// What else it says, made safe to show.
        words: Option<String>,
        /// How long it wants to be left alone.
        after: Option<Duration>,
    },
    /// What stands between us and a server that was there before answers in its place.
    #[error("something on the way to the server answers {0} in its place")]
    Between(u16),
    /// Whoever is there does not speak the protocol.
    #[error("whoever listens there does not speak the protocol: {0}")]
    Protocol(String),
    /// Whoever is there does not speak TLS, which was asked for.
    #[error("whoever listens there does not speak TLS")]
    NotTls,
    /// Whoever is there does not speak HTTP, which was asked for.
    #[error("whoever listens there does not speak HTTP")]
    NotHttp,
    /// Whoever is there speaks TLS, which was not asked for.
    #[error("whoever listens there speaks TLS")]
    Tls,
    /// Whoever is there speaks HTTP, and lines were sent.
    #[error("whoever listens there speaks HTTP")]
    Http,
    /// Whoever is there takes what is said and hangs up, again and again.
    #[error("whoever listens there hangs up without a word")]
    Mute,
    /// It broke after it had come about, before the server answered.
    #[error("the connection failed: {0}")]
    Cut(String),
    /// Anything else.
    #[error("the connection failed: {0}")]
    Io(String),
}

impl DialError {
    /// Whether trying again is of no use.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Ca(_)
            | Self::Own(_)
            | Self::Certless
            | Self::CertificateWanted
            | Self::CertificateRefused(_)
            | Self::Exposed
            | Self::Token
            | Self::Tokenless
            | Self::Certificate(_)
            | Self::OtherName(_)
            | Self::Unauthorized
            | Self::TokenWanted
            | Self::Nameless
            | Self::Tls
            | Self::Http
            | Self::Forbidden { .. } => true,
            // Whatever stands before a server that starts anew says so by these.
            Self::Status { status, .. } => !matches!(status, 408 | 425 | 429 | 500..=599),
            Self::Name(..)
            | Self::Refused(_)
            | Self::Timeout(_)
            | Self::Unanswered(_)
            | Self::LockedOut { .. }
            | Self::Between(_)
            | Self::Protocol(_)
            | Self::NotTls
            | Self::NotHttp
            | Self::Mute
            | Self::TurnedAway(_)
            | Self::Cut(_)
            | Self::Io(_) => false,
        }
    }

    /// Whether that is so even where there is a connection to be had again: what stands on the way may say anything for a while, but
    /// who is let in nobody else knows.
    pub(super) fn is_shut(&self) -> bool {
        self.is_final() && !matches!(self, Self::Status { .. } | Self::Tls | Self::Http)
    }

    /// The same as it is for who has shown a token, a certificate, or neither.
    pub(super) fn of_shown(self, options: &Options) -> Self {
        match self {
            Self::Unauthorized if options.token.is_some() => Self::Unauthorized,
            Self::Unauthorized if options.own.is_some() => Self::Nameless,
            Self::Unauthorized => Self::TokenWanted,
            error => error,
        }
    }

    /// What the first bytes from where lines were sent say of who is there, if it is somebody else.
    pub(super) fn of_first(bytes: &[u8]) -> Option<Self> {
        // An alert of TLS 1.x: what was said to it was no hello.
        const ALERT: [u8; 2] = [0x15, 0x03];
        match bytes {
            _ if bytes.starts_with(&ALERT) => Some(Self::Tls),
            _ if bytes.starts_with(b"HTTP/") => Some(Self::Http),
            _ => None,
        }
    }

    /// How long the server wants to be left alone.
    #[must_use]
    pub fn after(&self) -> Option<Duration> {
        match self {
            Self::Status { after, .. } | Self::LockedOut { after } => *after,
            _ => None,
        }
    }

    /// What a status means that is not the one hoped for.
    pub(super) fn of_status(status: u16, headers: &HeaderMap, body: &[u8]) -> Self {
        match status {
            401 => Self::Unauthorized,
            403 => Self::Forbidden { words: words(body) },
            // What `narrows` itself says then; others have other reasons for it.
            429 if body.trim_ascii() == b"too many failures" => Self::LockedOut { after: after(headers) },
            status => Self::Status { status, words: words(body), after: after(headers) },
        }
    }

    /// What the system said when a socket was opened or used, at `place`.
    pub(super) fn of_io(error: &io::Error, place: &str) -> Self {
        if let Some(inner) = error.get_ref() {
            if let Some(rustls::Error::InvalidCertificate(why)) = inner.downcast_ref() {
                return match other_name(why) {
                    Some(names) => Self::OtherName(names),
                    None => Self::Certificate(distrust(why)),
                };
            }
            if let Some(rustls::Error::InvalidMessage(_)) = inner.downcast_ref() {
                return Self::NotTls;
            }
            // Whoever passes an error on may have wrapped it.
            if let Some(inner) = inner.downcast_ref::<io::Error>() {
                return Self::of_io(inner, place);
            }
        }
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused(place.to_owned()),
            io::ErrorKind::NotFound => Self::Refused(format!("{place}: there is no such file")),
            _ => {
                let words = error.to_string();
                let other = |words| if is_cut(error.kind()) { Self::Cut(words) } else { Self::Io(words) };
                Self::of_alert(&words).unwrap_or_else(|| other(words))
            }
        }
    }

    /// What a server says about our certificate, if that is in the words of an error: HTTP/2 keeps nothing else of it.
    pub(super) fn of_alert(words: &str) -> Option<Self> {
        let is_it =
            |alert: AlertDescription| words.contains(&rustls::Error::AlertReceived(alert).to_string());
        let (_, why) = ALERTS.into_iter().find(|(alert, _)| is_it(*alert))?;
        Some(why.map_or(Self::CertificateWanted, |why| Self::CertificateRefused(why.to_owned())))
    }
}

/// Whether the system says so only of connections that have come about.
fn is_cut(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(kind, UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe)
}

/// The names that a certificate is for, if it is for others than the one that was meant.
fn other_name(why: &CertificateError) -> Option<String> {
    match why {
        CertificateError::NotValidForName => Some("it is for others".to_owned()),
        CertificateError::NotValidForNameContext { expected, presented } => {
            let presented: Vec<&str> = presented.iter().map(|name| bare_name(name)).collect();
            let expected = expected.to_str();
            Some(match presented.is_empty() {
                true => format!("it is for no name at all, and not for {expected}"),
                false => format!("it is for {}, and not for {expected}", presented.join(", ")),
            })
        }
        _ => None,
    }
}

/// `DnsName("bus.example")` is how the library names a name.
fn bare_name(name: &str) -> &str {
    name.split_once('(')
        .and_then(|(_, rest)| rest.strip_suffix(')'))
        .map_or(name, |bare| bare.trim_matches('"'))
}

/// Why a certificate is not trusted.
fn distrust(why: &CertificateError) -> String {
    let words = match why {
        CertificateError::UnknownIssuer => "it is signed by nobody we know",
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "it is out of date",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => "it is not valid yet",
        CertificateError::Revoked => "it was revoked",
        CertificateError::BadSignature => "its signature is wrong",
        CertificateError::BadEncoding => "it cannot be read",
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "it is made for something else than a server"
        }
        why => return why.to_string(),
    };
    words.to_owned()
}

/// What is said of certificates in TLS, and what it means; nothing if there was none.
const ALERTS: [(AlertDescription, Option<&str>); 9] = [
    (AlertDescription::CertificateRequired, None),
    (AlertDescription::NoCertificate, None),
    (AlertDescription::UnknownCA, Some("it does not know the authority that has made it")),
    (AlertDescription::CertificateExpired, Some("it is out of date")),
    (AlertDescription::CertificateRevoked, Some("it was revoked")),
    (AlertDescription::BadCertificate, Some("it is not a good one")),
    (AlertDescription::UnsupportedCertificate, Some("it is of a kind that it does not know")),
    (AlertDescription::CertificateUnknown, Some("it has no use for it")),
    (AlertDescription::AccessDenied, Some("it lets nobody in with it")),
];

/// What `Retry-After` says, if it is a number of seconds. Servers that name a day are asked as often as if they had not.
fn after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// How many characters of what a server says are shown.
const MAX_SHOWN_CHARS: usize = 200;

/// The words behind what is said without them.
fn behind(words: Option<&str>) -> String {
    words.map(|words| format!(": {words}")).unwrap_or_default()
}

/// What a server says beside its status, in one line.
fn words(body: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(body.get(..MAX_SHOWN_CHARS * 4).unwrap_or(body));
    let words = one_line(&text, MAX_SHOWN_CHARS);
    // Pages are for browsers.
    (!words.is_empty() && !words.starts_with('<')).then_some(words)
}

/// Why a connection is lost for good.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionLost {
    /// The server cannot take a connection up again.
    #[error("the server cannot take it up again: {0}")]
    Plain(String),
    /// It was tried for as long as it was to be tried.
    #[error("it could not be had again within {} s", .grace.as_secs())]
    Grace {
        /// How long.
        grace: Duration,
        /// Why not, the last time.
        #[source]
        last: DialError,
    },
    /// The server knows nothing of it: it has started anew, or it was away for too long.
    #[error("the server no longer knows it")]
    Forgotten,
    /// Something was sent that neither arrived nor is still there.
    #[error("something was sent on it that is no longer kept")]
    Gap,
    /// Somebody else goes on with it.
    #[error("another one has taken over")]
    Fenced,
    /// One message is longer than one side allows.
    #[error("a message is too long: {0}")]
    TooLong(String),
    /// There never was one.
    #[error("there is no connection")]
    Dial(#[from] DialError),
    /// There was one, and another attempt is of no use.
    #[error("it cannot be had again")]
    Shut(#[source] DialError),
    /// The server refuses in its own words.
    #[error("the server refuses to go on: {0}")]
    Refused(String),
}

impl ConnectionLost {
    /// Whether the same would come of another attempt.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Dial(error) | Self::Shut(error) if error.is_final())
    }

    /// The same where there was a connection before.
    pub(super) fn later(self) -> Self {
        match self {
            Self::Dial(error) => Self::Shut(error),
            lost => lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_final_or_worth_another_try() {
        for (status, is_final) in
            [(401, true), (403, true), (404, true), (429, false), (502, false), (503, false)]
        {
            assert_eq!(of_status(status, b"").is_final(), is_final, "{status}");
        }
        assert_eq!(
            of_status(404, b"no\n\x1b[1msuch").to_string(),
            "the server answers 404: no \\u{1b}[1msuch"
        );
        assert_eq!(of_status(404, b"<html>").to_string(), "the server answers 404");
        assert_eq!(of_status(403, b"not you\n").to_string(), "the server forbids it (403): not you");
        assert_eq!(
            of_status(403, &[b'x'; 9000]).to_string().len(),
            "the server forbids it (403): …".len() + MAX_SHOWN_CHARS
        );
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, 7.into());
        let locked = DialError::of_status(429, &headers, b"too many failures\n");
        assert!(matches!(locked, DialError::LockedOut { .. }) && !locked.is_final(), "{locked:?}");
        assert_eq!(locked.after(), Some(Duration::from_secs(7)));
    }

    fn of_status(status: u16, body: &[u8]) -> DialError {
        DialError::of_status(status, &HeaderMap::new(), body)
    }

    #[test]
    fn what_is_said_of_our_certificate_is_understood() {
        let of = |error: rustls::Error| DialError::of_io(&io::Error::other(error), "x");
        for (alert, why) in ALERTS {
            let found = of(rustls::Error::AlertReceived(alert));
            match why {
                None => assert!(matches!(found, DialError::CertificateWanted), "{found:?}"),
                Some(why) => assert!(found.to_string().ends_with(why) && found.is_final(), "{found:?}"),
            }
        }
        let other = of(rustls::Error::AlertReceived(AlertDescription::InternalError));
        assert!(matches!(other, DialError::Io(_)) && !other.is_final(), "{other:?}");
    }

    #[test]
    fn what_is_wrong_with_the_certificate_of_the_server_has_words() {
        let of = |why| {
            DialError::of_io(&io::Error::other(rustls::Error::InvalidCertificate(why)), "x").to_string()
        };
        assert_eq!(
            of(CertificateError::UnknownIssuer),
            "the certificate of the server is not trusted: it is signed by nobody we know"
        );
        let presented = ["DnsName(\"bus.example\")", "IpAddress(127.0.0.1)"].map(str::to_owned).to_vec();
        let expected = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        assert_eq!(
            of(CertificateError::NotValidForNameContext { expected: expected.clone(), presented }),
            "the certificate of the server is not for this name: it is for bus.example, 127.0.0.1, and not for localhost"
        );
        let none = of(CertificateError::NotValidForNameContext { expected, presented: Vec::new() });
        assert!(none.ends_with("it is for no name at all, and not for localhost"), "{none}");
    }

    #[test]
    fn how_long_to_wait_is_a_number_of_seconds() {
        let check = |said: &'static str, expected: Option<u64>| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, said.parse().unwrap())]);
            let found = DialError::of_status(429, &headers, b"").after();
            assert_eq!(found, expected.map(Duration::from_secs), "{said}");
        };
        check("7", Some(7));
        check(" 0 ", Some(0));
        for none in ["", "-1", "1.5", "Wed, 21 Oct 2026 07:28:00 GMT", "99999999999999999999999"] {
            check(none, None);
        }
        assert_eq!(of_status(403, b"").after(), None);
    }
}
