//! Outgoing lines of one direction, in order. A line is released once the audit event that the line depends
//! on is durable.

use std::collections::VecDeque;

use bytes::Bytes;

use super::api::AuditSeq;
use super::session_open::{audit_unavailable, outcome_unrecorded};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GateDirection {
    ToClient,
    ToAgent,
}

/// What happens instead of sending a line, if the audit event that the line depends on could not be recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum OnAuditFailure {
    #[default]
    Drop,
    SendInstead(GateDirection, Bytes),
    /// Answers the client request with this id, which was never sent to the agent.
    FailClientRequest(Bytes, Box<[u8]>),
    HaltTurn(Box<str>),
    FailAndHalt(Bytes, Box<str>),
    /// Answers the agent request with this id, which was never sent to the client.
    FailAgentRequest(Bytes, Box<[u8]>),
}

impl OnAuditFailure {
    /// Answers the agent request `id` with an error, and stops the turn of `session`. The request had no
    /// effect.
    pub(super) fn fail_unrecorded(id: &[u8], session: &str) -> Self {
        Self::FailAndHalt(audit_unavailable(id), session.into())
    }

    /// Answers the agent request `id` with the error that its outcome is not recorded, and stops the turn of
    /// `session`.
    pub(super) fn fail_outcome(id: &[u8], session: &str) -> Self {
        Self::FailAndHalt(outcome_unrecorded(id), session.into())
    }
}

#[derive(Debug)]
struct Entry {
    after: Option<AuditSeq>,
    line: Bytes,
    on_failure: OnAuditFailure,
}

/// Outgoing lines that wait for audit events, in order.
#[derive(Debug, Default)]
pub(super) struct OrderedOutbox {
    waiting: VecDeque<Entry>,
    /// Number of the last audit event up to which all events are recorded.
    recorded: Option<AuditSeq>,
}

impl OrderedOutbox {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn push(&mut self, line: Bytes, after: Option<AuditSeq>, on_failure: OnAuditFailure) {
        self.waiting.push_back(Entry { after, line, on_failure });
    }

    /// Releases all lines that depend on audit events up to `seq`.
    pub(super) fn release_until(&mut self, seq: AuditSeq) {
        self.recorded = self.recorded.max(Some(seq));
    }

    /// Removes the lines that depend on `seq` or a later event, because `seq` could not be recorded. Returns
    /// what to do instead of sending each removed line.
    pub(super) fn fail_from(&mut self, seq: AuditSeq) -> Vec<OnAuditFailure> {
        let (failed, rest): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|entry| entry.after >= Some(seq));
        self.waiting = rest;
        failed.into_iter().map(|entry| entry.on_failure).collect()
    }

    /// Returns the next line that may be sent, and what to do if sending it depends on a failed event.
    pub(super) fn pop(&mut self) -> Option<(Bytes, OnAuditFailure)> {
        if self.waiting.front()?.after > self.recorded {
            return None;
        }
        self.waiting.pop_front().map(|entry| (entry.line, entry.on_failure))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pop_line(outbox: &mut OrderedOutbox) -> Option<Bytes> {
        outbox.pop().map(|(line, _)| line)
    }

    #[test]
    fn lines_keep_their_order_and_wait_for_their_events() {
        let mut outbox = OrderedOutbox::default();
        outbox.push("a".into(), Some(AuditSeq(1)), OnAuditFailure::Drop);
        outbox.push("b".into(), None, OnAuditFailure::Drop);
        outbox.push("c".into(), Some(AuditSeq(2)), OnAuditFailure::HaltTurn("s".into()));
        outbox.push("d".into(), Some(AuditSeq(2)), OnAuditFailure::Drop);
        outbox.push("e".into(), None, OnAuditFailure::Drop);
        assert_eq!(outbox.pop(), None);
        outbox.release_until(AuditSeq(1));
        assert_eq!(
            [pop_line(&mut outbox), pop_line(&mut outbox), pop_line(&mut outbox)],
            [Some("a".into()), Some("b".into()), None]
        );
        assert_eq!(
            outbox.fail_from(AuditSeq(2)),
            [OnAuditFailure::HaltTurn("s".into()), OnAuditFailure::Drop]
        );
        assert_eq!([pop_line(&mut outbox), pop_line(&mut outbox)], [Some("e".into()), None]);
        assert!(outbox.is_empty());
    }

    #[test]
    fn a_line_that_depends_on_a_failed_event_is_not_sent() {
        let mut outbox = OrderedOutbox::default();
        outbox.push("a".into(), Some(AuditSeq(2)), OnAuditFailure::Drop);
        assert_eq!(outbox.fail_from(AuditSeq(1)).len(), 1);
        outbox.release_until(AuditSeq(2));
        assert_eq!(outbox.pop(), None);
    }
}
