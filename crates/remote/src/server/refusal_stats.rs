//! Counts of refusals by reason.

use std::sync::atomic::{AtomicU64, Ordering};

use hyper::StatusCode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Host,
    Origin,
    /// The client is not authenticated: wrong or missing token, or no certificate.
    Token,
    /// The user that owns the peer socket is another one, or unknown.
    User,
    AuthRateLimit,
    Rate,
    /// A limit on connections, sockets, requests or memory is reached.
    Limit,
    /// An unused socket was closed to make room.
    Crowd,
    Tls,
    /// The request head is invalid or was not received in time.
    Headers,
    Path,
    /// The body is too long, is not JSON, or was not received in time.
    Body,
    Request,
    Frame,
    Resume,
    Agent,
}

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
    /// Returns the reason for a status of an authorized request; `None` if it is not a refusal.
    pub(super) fn from_status(status: StatusCode) -> Option<Self> {
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

#[derive(Debug, Default)]
pub(super) struct RefusalStats([AtomicU64; REASONS.len()]);

impl RefusalStats {
    pub(super) fn add(&self, reason: Reason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

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
    fn every_reason_has_its_own_counter_and_name() {
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
    fn a_status_maps_to_a_reason() {
        let check = |status: u16, expected: Option<Reason>| {
            assert_eq!(Reason::from_status(StatusCode::from_u16(status).unwrap()), expected, "{status}");
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
