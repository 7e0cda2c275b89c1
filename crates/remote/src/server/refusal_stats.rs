//! How often somebody was refused, and why.

use std::sync::atomic::{AtomicU64, Ordering};

use hyper::StatusCode;

/// Why somebody was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// Another host was meant.
    Host,
    /// The page is not of an origin that is allowed.
    Origin,
    /// Nobody who is known: no token or a wrong one, no certificate.
    Token,
    /// Another user of this machine, or one that the system does not tell.
    User,
    /// Too many wrong tokens came from there.
    AuthRateLimit,
    /// Too many requests a second.
    Rate,
    /// Too many connections, or too much at once.
    Limit,
    /// Nobody who is known had asked for anything on a socket whose place was needed.
    Crowd,
    /// No TLS came about.
    Tls,
    /// The head of a request is none, or did not come.
    Headers,
    /// There is no such path, method or connection.
    Path,
    /// The body is too long, is no JSON, or did not come.
    Body,
    /// The request is not what it should be.
    Request,
    /// What came over a WebSocket is none of its messages.
    Frame,
    /// A connection cannot be taken up again.
    Resume,
    /// No agent can be had.
    Agent,
}

/// All of them, and how people call them.
const REASONS: [(Reason, &str); 16] = [
    (Reason::Host, "host"),
    (Reason::Origin, "origin"),
    (Reason::Token, "token"),
    (Reason::User, "user"),
    (Reason::AuthRateLimit, "lockout"),
    (Reason::Rate, "rate"),
    (Reason::Limit, "limit"),
    (Reason::Crowd, "crowd"),
    (Reason::Tls, "tls"),
    (Reason::Headers, "headers"),
    (Reason::Path, "path"),
    (Reason::Body, "body"),
    (Reason::Request, "request"),
    (Reason::Frame, "frame"),
    (Reason::Resume, "resume"),
    (Reason::Agent, "agent"),
];

impl Reason {
    /// What a status says to somebody who may ask; `None` if that is no refusal.
    pub(super) fn of(status: StatusCode) -> Option<Self> {
        Some(match status {
            _ if !status.is_client_error() && !status.is_server_error() => return None,
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Self::Path,
            StatusCode::REQUEST_TIMEOUT
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNSUPPORTED_MEDIA_TYPE => Self::Body,
            StatusCode::TOO_MANY_REQUESTS => Self::Limit,
            _ if status.is_server_error() => Self::Agent,
            _ => Self::Request,
        })
    }
}

/// How often, by the reason.
#[derive(Debug, Default)]
pub(super) struct RefusalStats([AtomicU64; REASONS.len()]);

impl RefusalStats {
    /// Somebody was refused once more.
    pub(super) fn add(&self, reason: Reason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// All reasons, in an order that stays.
    pub(super) fn all(&self) -> Vec<(&'static str, u64)> {
        REASONS
            .iter()
            .map(|(reason, name)| (*name, self.0[*reason as usize].load(Ordering::Relaxed)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_place_and_name() {
        let refusals = RefusalStats::default();
        for (number, (reason, _)) in REASONS.iter().enumerate() {
            assert_eq!(*reason as usize, number);
            (0..=number).for_each(|_| refusals.add(*reason));
        }
        let all = refusals.all();
        assert!(all.iter().enumerate().all(|(number, (_, count))| *count == number as u64 + 1), "{all:?}");
        let mut names: Vec<&str> = all.into_iter().map(|(name, _)| name).collect();
        names.dedup();
        assert_eq!(names.len(), REASONS.len());
    }

    #[test]
    fn what_a_status_says() {
        let check = |status: u16, expected: Option<Reason>| {
            assert_eq!(Reason::of(StatusCode::from_u16(status).unwrap()), expected, "{status}");
        };
        for fine in [101, 200, 202, 204] {
            check(fine, None);
        }
        check(400, Some(Reason::Request));
        check(404, Some(Reason::Path));
        check(405, Some(Reason::Path));
        check(406, Some(Reason::Request));
        check(408, Some(Reason::Body));
        check(409, Some(Reason::Request));
        check(413, Some(Reason::Body));
        check(415, Some(Reason::Body));
        check(429, Some(Reason::Limit));
        check(503, Some(Reason::Agent));
    }
}
