//! Counts of refusals by reason.

use std::sync::atomic::{AtomicU64, Ordering};

use hyper::StatusCode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusalReason {
    Host,
    Origin,
    /// The client is not authenticated: wrong or missing token, or no certificate.
    Token,
    /// The peer socket belongs to another user, or its user is unknown.
    User,
    AuthRateLimit,
    Rate,
    /// A limit on connections, sockets, requests or memory is reached.
    Limit,
    /// An unused socket was closed to make room.
    Evicted,
    Tls,
    /// The request head is invalid or was not received in time.
    Headers,
    Path,
    /// The body is too long, is not JSON, or was not received in time.
    Body,
    Request,
    WebSocketViolation,
    Resume,
    Backend,
}

const REASONS: [(RefusalReason, &str); 16] = [
    (RefusalReason::Host, "host"),
    (RefusalReason::Origin, "origin"),
    (RefusalReason::Token, "token"),
    (RefusalReason::User, "user"),
    (RefusalReason::AuthRateLimit, "lockout"),
    (RefusalReason::Rate, "rate"),
    (RefusalReason::Limit, "limit"),
    (RefusalReason::Evicted, "crowd"),
    (RefusalReason::Tls, "tls"),
    (RefusalReason::Headers, "headers"),
    (RefusalReason::Path, "path"),
    (RefusalReason::Body, "body"),
    (RefusalReason::Request, "request"),
    (RefusalReason::WebSocketViolation, "frame"),
    (RefusalReason::Resume, "resume"),
    (RefusalReason::Backend, "agent"),
];

impl RefusalReason {
    /// Returns the reason that a status of an authorized request stands for, or `None` if the status is no
    /// refusal.
    pub(super) fn from_status(status: StatusCode) -> Option<Self> {
        Some(match status {
            _ if !status.is_client_error() && !status.is_server_error() => return None,
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Self::Path,
            StatusCode::REQUEST_TIMEOUT
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNSUPPORTED_MEDIA_TYPE => Self::Body,
            StatusCode::TOO_MANY_REQUESTS => Self::Limit,
            _ if status.is_server_error() => Self::Backend,
            _ => Self::Request,
        })
    }
}

#[derive(Debug, Default)]
pub(super) struct RefusalStats([AtomicU64; REASONS.len()]);

impl RefusalStats {
    pub(super) fn add(&self, reason: RefusalReason) {
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
        let check = |status: u16, expected: Option<RefusalReason>| {
            assert_eq!(
                RefusalReason::from_status(StatusCode::from_u16(status).unwrap()),
                expected,
                "{status}"
            );
        };
        for fine in [101, 200, 202, 204] {
            check(fine, None);
        }
        check(400, Some(RefusalReason::Request));
        check(404, Some(RefusalReason::Path));
        check(405, Some(RefusalReason::Path));
        check(406, Some(RefusalReason::Request));
        check(408, Some(RefusalReason::Body));
        check(409, Some(RefusalReason::Request));
        check(413, Some(RefusalReason::Body));
        check(415, Some(RefusalReason::Body));
        check(429, Some(RefusalReason::Limit));
        check(503, Some(RefusalReason::Backend));
    }
}
