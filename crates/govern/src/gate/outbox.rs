//! One way through the gate: lines in order, each once what it follows from is recorded.

use std::collections::VecDeque;

use bytes::Bytes;

use super::api::AuditSeq;
use super::session_open::{audit_unavailable, outcome_unrecorded};

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GateDirection {
    ToClient,
    ToAgent,
}

/// What is done instead of sending a line, if what it follows from could not be recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum OnAuditFailure {
    #[default]
    Drop,
    /// Say this.
    SendInstead(GateDirection, Bytes),
    /// Say this to the client: its request never reached the agent.
    FailClientRequest(Bytes, Box<[u8]>),
    /// End the turn of this session.
    HaltTurn(Box<str>),
    /// Tell the agent that asked, and end the turn of this session.
    FailAndHalt(Bytes, Box<str>),
    /// Say this to the agent: its request, of this id, never reached the client.
    FailAgentRequest(Bytes, Box<[u8]>),
}

impl OnAuditFailure {
    /// Tells the agent that its request `id` came to nothing, and ends the turn of `session`.
    pub(super) fn fail_unrecorded(id: &[u8], session: &str) -> Self {
        Self::FailAndHalt(audit_unavailable(id), session.into())
    }

    /// Tells the agent that the outcome of its request `id` is not recorded, and ends the turn of `session`.
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

/// Lines that wait.
#[derive(Debug, Default)]
pub(super) struct OrderedOutbox {
    waiting: VecDeque<Entry>,
    /// Up to here everything was recorded.
    recorded: Option<AuditSeq>,
}

impl OrderedOutbox {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn push(&mut self, line: Bytes, after: Option<AuditSeq>, on_failure: OnAuditFailure) {
        self.waiting.push_back(Entry { after, line, on_failure });
    }

    /// Everything up to this was recorded.
    pub(super) fn release_until(&mut self, seq: AuditSeq) {
        self.recorded = self.recorded.max(Some(seq));
    }

    /// This could not be recorded: whatever waits for it, or for more than it, is taken out, and what is to be done instead
    /// is returned.
    pub(super) fn fail_from(&mut self, seq: AuditSeq) -> Vec<OnAuditFailure> {
        let (failed, rest): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|entry| entry.after >= Some(seq));
        self.waiting = rest;
        failed.into_iter().map(|entry| entry.on_failure).collect()
    }

    /// The next line whose time has come, and what would have been done instead.
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
    fn lines_keep_their_order_and_wait_for_what_they_follow_from() {
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
    fn what_follows_from_more_than_was_recorded_is_not_sent() {
        let mut outbox = OrderedOutbox::default();
        outbox.push("a".into(), Some(AuditSeq(2)), OnAuditFailure::Drop);
        assert_eq!(outbox.fail_from(AuditSeq(1)).len(), 1);
        outbox.release_until(AuditSeq(2));
        assert_eq!(outbox.pop(), None);
    }
}
