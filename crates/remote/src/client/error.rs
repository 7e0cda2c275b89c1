//! Errors of connecting to a remote agent, and reasons for losing a connection.

use std::io;
use std::time::Duration;

use narrows_base::text::one_line;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use rustls::{AlertDescription, CertificateError};

use super::ClientOptions;
use crate::server_tls::TlsError;

/// A reason why no connection was made.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error(transparent)]
    Ca(TlsError),
    #[error(transparent)]
    Own(#[from] TlsError),
    #[error("client certificates require wss:// or https://")]
    CertificateWithoutTls,
    #[error("the server requires a client certificate")]
    CertificateWanted,
    #[error("the server rejected the client certificate: {0}")]
    CertificateRefused(String),
    #[error("refusing to send the token over an unencrypted connection")]
    Exposed,
    #[error("the token contains invalid characters")]
    Token,
    /// A token was given for a line-based target, which cannot carry one.
    #[error("tokens require ws://, wss://, http:// or https://")]
    TokenNotSupported,
    #[error("cannot resolve host {0:?}: {1}")]
    Name(String, String),
    #[error("no process listens at {0}")]
    Refused(String),
    #[error("connection timed out after {0:?}")]
    Timeout(Duration),
    #[error("the server did not respond within {0:?}")]
    Unanswered(Duration),
    #[error("the server certificate is not trusted: {0}")]
    Certificate(String),
    #[error("the server certificate is for another name: {0}")]
    OtherName(String),
    #[error("the server rejected the token (401)")]
    Unauthorized,
    #[error("the server requires a token (401)")]
    TokenWanted,
    /// The server does not map the client certificate to an identity.
    #[error("the server does not accept the client certificate as authentication (401)")]
    CertificateNotAccepted,
    #[error("the server refused access (403){}", suffix(.words.as_deref()))]
    Forbidden {
        /// The response text, safe to display.
        words: Option<String>,
    },
    #[error("too many wrong tokens from this address (429)")]
    LockedOut { after: Option<Duration> },
    /// The server refused the connection with an error message, which has this text.
    #[error("the server refused the connection: {0}")]
    TurnedAway(String),
    #[error("the server responded with status {status}{}", suffix(.words.as_deref()))]
    Status {
        status: u16,
        /// The response text, safe to display.
        words: Option<String>,
        after: Option<Duration>,
    },
    /// A proxy responded instead of the server, which had responded before.
    #[error("a proxy responded with status {0} instead of the server")]
    ProxyResponse(u16),
    #[error("the server does not speak the protocol: {0}")]
    Protocol(String),
    #[error("the server does not speak TLS")]
    NotTls,
    #[error("the server does not speak HTTP")]
    NotHttp,
    #[error("the server speaks TLS")]
    Tls,
    #[error("the server speaks HTTP")]
    Http,
    /// The server repeatedly accepts connections and closes them without a response.
    #[error("the server closed the connection without responding")]
    ClosedSilently,
    /// The connection broke before the server responded.
    #[error("connection failed: {0}")]
    ConnectionCut(String),
    #[error("connection failed: {0}")]
    Io(String),
}

impl DialError {
    /// Returns `true` if retrying is useless.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Ca(_)
            | Self::Own(_)
            | Self::CertificateWithoutTls
            | Self::CertificateWanted
            | Self::CertificateRefused(_)
            | Self::Exposed
            | Self::Token
            | Self::TokenNotSupported
            | Self::Certificate(_)
            | Self::OtherName(_)
            | Self::Unauthorized
            | Self::TokenWanted
            | Self::CertificateNotAccepted
            | Self::Tls
            | Self::Http
            | Self::Forbidden { .. } => true,
            // Proxies respond with these statuses while the server restarts.
            Self::Status { status, .. } => !matches!(status, 408 | 425 | 429 | 500..=599),
            Self::Name(..)
            | Self::Refused(_)
            | Self::Timeout(_)
            | Self::Unanswered(_)
            | Self::LockedOut { .. }
            | Self::ProxyResponse(_)
            | Self::Protocol(_)
            | Self::NotTls
            | Self::NotHttp
            | Self::ClosedSilently
            | Self::TurnedAway(_)
            | Self::ConnectionCut(_)
            | Self::Io(_) => false,
        }
    }

    /// Returns `true` if the error is final even while reconnecting: a proxy may respond with anything for a while, but
    /// only the server authenticates clients.
    pub(super) fn is_final_for_reconnect(&self) -> bool {
        self.is_final() && !matches!(self, Self::Status { .. } | Self::Tls | Self::Http)
    }

    /// Makes a 401 more precise: the new error depends on the credentials that were sent.
    pub(super) fn with_credentials(self, options: &ClientOptions) -> Self {
        match self {
            Self::Unauthorized if options.token.is_some() => Self::Unauthorized,
            Self::Unauthorized if options.client_certificate.is_some() => Self::CertificateNotAccepted,
            Self::Unauthorized => Self::TokenWanted,
            error => error,
        }
    }

    /// Detects another protocol from the first bytes of a line-based connection.
    pub(super) fn from_first_bytes(bytes: &[u8]) -> Option<Self> {
        // The first bytes of a TLS 1.x alert. A TLS server sends an alert to a client that does not speak
        // TLS.
        const ALERT: [u8; 2] = [0x15, 0x03];
        match bytes {
            _ if bytes.starts_with(&ALERT) => Some(Self::Tls),
            _ if bytes.starts_with(b"HTTP/") => Some(Self::Http),
            _ => None,
        }
    }

    /// Returns the delay that the server requested with `Retry-After`.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { after, .. } | Self::LockedOut { after } => *after,
            _ => None,
        }
    }

    pub(super) fn from_status(status: u16, headers: &HeaderMap, body: &[u8]) -> Self {
        match status {
            401 => Self::Unauthorized,
            403 => Self::Forbidden { words: body_text(body) },
            // This body shows that the 429 comes from a lockout of this project's server. Other servers use
            // 429 for other reasons.
            429 if body.trim_ascii() == b"too many failures" => {
                Self::LockedOut { after: retry_after_header(headers) }
            }
            status => Self::Status { status, words: body_text(body), after: retry_after_header(headers) },
        }
    }

    pub(super) fn from_io(error: &io::Error, place: &str) -> Self {
        if let Some(inner) = error.get_ref() {
            if let Some(rustls::Error::InvalidCertificate(why)) = inner.downcast_ref() {
                return match describe_names(why) {
                    Some(names) => Self::OtherName(names),
                    None => Self::Certificate(describe_untrusted(why)),
                };
            }
            if let Some(rustls::Error::InvalidMessage(_)) = inner.downcast_ref() {
                return Self::NotTls;
            }
            // Libraries may wrap an I/O error in another.
            if let Some(inner) = inner.downcast_ref::<io::Error>() {
                return Self::from_io(inner, place);
            }
        }
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused(place.to_owned()),
            io::ErrorKind::NotFound => Self::Refused(format!("{place}: no such file")),
            _ => {
                let words = error.to_string();
                let other =
                    |words| if is_cut(error.kind()) { Self::ConnectionCut(words) } else { Self::Io(words) };
                Self::from_alert_text(&words).unwrap_or_else(|| other(words))
            }
        }
    }

    /// Finds a TLS alert about the client certificate in an error text. An HTTP/2 error keeps only the text
    /// of the alert.
    pub(super) fn from_alert_text(words: &str) -> Option<Self> {
        let is_it =
            |alert: AlertDescription| words.contains(&rustls::Error::AlertReceived(alert).to_string());
        let (_, why) = ALERTS.into_iter().find(|(alert, _)| is_it(*alert))?;
        Some(why.map_or(Self::CertificateWanted, |why| Self::CertificateRefused(why.to_owned())))
    }
}

fn is_cut(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(kind, UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe)
}

/// Returns the names in a certificate and the expected name, if the certificate is rejected for its names.
fn describe_names(why: &CertificateError) -> Option<String> {
    match why {
        CertificateError::NotValidForName => Some("found other names".to_owned()),
        CertificateError::NotValidForNameContext { expected, presented } => {
            let presented: Vec<&str> = presented.iter().map(|name| bare_name(name)).collect();
            let expected = expected.to_str();
            Some(match presented.is_empty() {
                true => format!("found no name, expected {expected}"),
                false => format!("found {}, expected {expected}", presented.join(", ")),
            })
        }
        _ => None,
    }
}

/// Extracts the name from the library's notation, such as `DnsName("bus.example")`.
fn bare_name(name: &str) -> &str {
    name.split_once('(')
        .and_then(|(_, rest)| rest.strip_suffix(')'))
        .map_or(name, |bare| bare.trim_matches('"'))
}

fn describe_untrusted(why: &CertificateError) -> String {
    let words = match why {
        CertificateError::UnknownIssuer => "unknown issuer",
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "certificate expired",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "certificate not valid yet"
        }
        CertificateError::Revoked => "certificate revoked",
        CertificateError::BadSignature => "invalid signature",
        CertificateError::BadEncoding => "certificate unreadable",
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "not a server certificate"
        }
        why => return why.to_string(),
    };
    words.to_owned()
}

/// TLS alerts about client certificates with a text for each. `None` means that the client sent no
/// certificate.
const ALERTS: [(AlertDescription, Option<&str>); 9] = [
    (AlertDescription::CertificateRequired, None),
    (AlertDescription::NoCertificate, None),
    (AlertDescription::UnknownCA, Some("unknown issuer")),
    (AlertDescription::CertificateExpired, Some("certificate expired")),
    (AlertDescription::CertificateRevoked, Some("certificate revoked")),
    (AlertDescription::BadCertificate, Some("invalid certificate")),
    (AlertDescription::UnsupportedCertificate, Some("unsupported certificate type")),
    (AlertDescription::CertificateUnknown, Some("no reason given")),
    (AlertDescription::AccessDenied, Some("access denied")),
];

/// Parses `Retry-After`, if it is a number of seconds. The date form is ignored.
fn retry_after_header(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

const MAX_SHOWN_CHARS: usize = 200;

fn suffix(words: Option<&str>) -> String {
    words.map(|words| format!(": {words}")).unwrap_or_default()
}

fn body_text(body: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(body.get(..MAX_SHOWN_CHARS * 4).unwrap_or(body));
    let words = one_line(&text, MAX_SHOWN_CHARS);
    // An HTML page is meant for browsers and is not shown in an error.
    (!words.is_empty() && !words.starts_with('<')).then_some(words)
}

/// A reason why a connection is lost for good.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionLost {
    #[error("the server cannot resume the connection: {0}")]
    Plain(String),
    #[error("no reconnection within {} s", .grace.as_secs())]
    Grace {
        grace: Duration,
        #[source]
        last: DialError,
    },
    #[error("the server no longer knows the connection")]
    Forgotten,
    /// Some messages were lost on the way, and the end that sent them no longer keeps them.
    #[error("undelivered messages are no longer kept")]
    Gap,
    #[error("another client has taken over the connection")]
    Fenced,
    #[error("a message is too long: {0}")]
    TooLong(String),
    #[error("cannot connect")]
    Dial(#[from] DialError),
    #[error("cannot reconnect")]
    Shut(#[source] DialError),
    #[error("the server refused to continue: {0}")]
    Refused(String),
}

impl ConnectionLost {
    /// Returns `true` if another attempt to reconnect would fail the same way.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Dial(error) | Self::Shut(error) if error.is_final())
    }

    /// Converts a connect error into the reason for the loss of an established connection.
    pub(super) fn into_reconnect_error(self) -> Self {
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
    fn a_status_is_final_or_retryable() {
        for (status, is_final) in
            [(401, true), (403, true), (404, true), (429, false), (502, false), (503, false)]
        {
            assert_eq!(from_status(status, b"").is_final(), is_final, "{status}");
        }
        assert_eq!(
            from_status(404, b"no\n\x1b[1msuch").to_string(),
            "the server responded with status 404: no \\u{1b}[1msuch"
        );
        assert_eq!(from_status(404, b"<html>").to_string(), "the server responded with status 404");
        assert_eq!(from_status(403, b"not you\n").to_string(), "the server refused access (403): not you");
        assert_eq!(
            from_status(403, &[b'x'; 9000]).to_string().len(),
            "the server refused access (403): …".len() + MAX_SHOWN_CHARS
        );
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, 7.into());
        let locked = DialError::from_status(429, &headers, b"too many failures\n");
        assert!(matches!(locked, DialError::LockedOut { .. }) && !locked.is_final(), "{locked:?}");
        assert_eq!(locked.retry_after(), Some(Duration::from_secs(7)));
    }

    fn from_status(status: u16, body: &[u8]) -> DialError {
        DialError::from_status(status, &HeaderMap::new(), body)
    }

    #[test]
    fn alerts_about_the_client_certificate_are_recognized() {
        let convert = |error: rustls::Error| DialError::from_io(&io::Error::other(error), "x");
        for (alert, why) in ALERTS {
            let found = convert(rustls::Error::AlertReceived(alert));
            match why {
                None => assert!(matches!(found, DialError::CertificateWanted), "{found:?}"),
                Some(why) => assert!(found.to_string().ends_with(why) && found.is_final(), "{found:?}"),
            }
        }
        let other = convert(rustls::Error::AlertReceived(AlertDescription::InternalError));
        assert!(matches!(other, DialError::Io(_)) && !other.is_final(), "{other:?}");
    }

    #[test]
    fn errors_of_the_server_certificate_are_described() {
        let convert = |why| {
            DialError::from_io(&io::Error::other(rustls::Error::InvalidCertificate(why)), "x").to_string()
        };
        assert_eq!(
            convert(CertificateError::UnknownIssuer),
            "the server certificate is not trusted: unknown issuer"
        );
        let presented = ["DnsName(\"bus.example\")", "IpAddress(127.0.0.1)"].map(str::to_owned).to_vec();
        let expected = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        assert_eq!(
            convert(CertificateError::NotValidForNameContext { expected: expected.clone(), presented }),
            "the server certificate is for another name: found bus.example, 127.0.0.1, expected localhost"
        );
        let none = convert(CertificateError::NotValidForNameContext { expected, presented: Vec::new() });
        assert!(none.ends_with("found no name, expected localhost"), "{none}");
    }

    #[test]
    fn retry_after_is_read_as_seconds() {
        let check = |value: &'static str, expected: Option<u64>| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, value.parse().unwrap())]);
            let found = DialError::from_status(429, &headers, b"").retry_after();
            assert_eq!(found, expected.map(Duration::from_secs), "{value}");
        };
        check("7", Some(7));
        check(" 0 ", Some(0));
        for none in ["", "-1", "1.5", "Wed, 21 Oct 2026 07:28:00 GMT", "99999999999999999999999"] {
            check(none, None);
        }
        assert_eq!(from_status(403, b"").retry_after(), None);
    }
}
