//! One way through the gate: lines in order, each once what it follows from is recorded.

use std::collections::VecDeque;

use bytes::Bytes;

use super::api::Ticket;
use super::session_open::{unrecorded, unrecorded_outcome};

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    ToClient,
    ToAgent,
}

/// What is done instead of sending a line, if what it follows from could not be recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Otherwise {
    #[default]
    Nothing,
    /// Say this.
    Say(Way, Bytes),
    /// Say this to the client: its request never reached the agent.
    Unbegun(Bytes, Box<[u8]>),
    /// End the turn of this session.
    Halt(Box<str>),
    /// Tell the agent that asked, and end the turn of this session.
    Fail(Bytes, Box<str>),
    /// Say this to the agent: its request, of this id, never reached the client.
    Unserved(Bytes, Box<[u8]>),
}

impl Otherwise {
    /// Tells the agent that its request `id` came to nothing, and ends the turn of `session`.
    pub(super) fn fail(id: &[u8], session: &str) -> Self {
        Self::Fail(unrecorded(id), session.into())
    }

    /// Tells the agent that the outcome of its request `id` is not recorded, and ends the turn of `session`.
    pub(super) fn fail_outcome(id: &[u8], session: &str) -> Self {
        Self::Fail(unrecorded_outcome(id), session.into())
    }
}

#[derive(Debug)]
struct Entry {
    after: Option<Ticket>,
    line: Bytes,
    otherwise: Otherwise,
}

/// Lines that wait.
#[derive(Debug, Default)]
pub(super) struct Lane {
    waiting: VecDeque<Entry>,
    /// Up to here everything was recorded.
    recorded: Option<Ticket>,
}

impl Lane {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn push(&mut self, line: Bytes, after: Option<Ticket>, otherwise: Otherwise) {
        self.waiting.push_back(Entry { after, line, otherwise });
    }

    /// Everything up to this was recorded.
    pub(super) fn recorded(&mut self, ticket: Ticket) {
        self.recorded = self.recorded.max(Some(ticket));
    }

    /// This could not be recorded: whatever waits for it, or for more than it, is taken out, and what is to be done instead
    /// is returned.
    pub(super) fn unrecorded(&mut self, ticket: Ticket) -> Vec<Otherwise> {
        let (failed, rest): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|entry| entry.after >= Some(ticket));
        self.waiting = rest;
        failed.into_iter().map(|entry| entry.otherwise).collect()
    }

    /// The next line whose time has come, and what would have been done instead.
    pub(super) fn pop(&mut self) -> Option<(Bytes, Otherwise)> {
        if self.waiting.front()?.after > self.recorded {
            return None;
        }
        self.waiting.pop_front().map(|entry| (entry.line, entry.otherwise))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(lane: &mut Lane) -> Option<Bytes> {
        lane.pop().map(|(line, _)| line)
    }

    #[test]
    fn lines_keep_their_order_and_wait_for_what_they_follow_from() {
        let mut lane = Lane::default();
        lane.push("a".into(), Some(Ticket(1)), Otherwise::Nothing);
        lane.push("b".into(), None, Otherwise::Nothing);
        lane.push("c".into(), Some(Ticket(2)), Otherwise::Halt("s".into()));
        lane.push("d".into(), Some(Ticket(2)), Otherwise::Nothing);
        lane.push("e".into(), None, Otherwise::Nothing);
        assert_eq!(lane.pop(), None);
        lane.recorded(Ticket(1));
        assert_eq!(
            [next(&mut lane), next(&mut lane), next(&mut lane)],
            [Some("a".into()), Some("b".into()), None]
        );
        assert_eq!(lane.unrecorded(Ticket(2)), [Otherwise::Halt("s".into()), Otherwise::Nothing]);
        assert_eq!([next(&mut lane), next(&mut lane)], [Some("e".into()), None]);
        assert!(lane.is_empty());
    }

    #[test]
    fn what_follows_from_more_than_was_recorded_is_not_sent() {
        let mut lane = Lane::default();
        lane.push("a".into(), Some(Ticket(2)), Otherwise::Nothing);
        assert_eq!(lane.unrecorded(Ticket(1)).len(), 1);
        lane.recorded(Ticket(2));
        assert_eq!(lane.pop(), None);
    }
}
