//! What is promised of a session on which several clients are, in plain lists.

use std::collections::VecDeque;

use serde_json::Value;

/// A session, who is on it, and what is known of it.
#[derive(Debug, Default)]
pub(super) struct Session {
    pub(super) identity: usize,
    /// Who controls it.
    pub(super) owner: Option<u32>,
    /// Who watches, in the order in which they came.
    pub(super) observers: Vec<u32>,
    /// The turn that goes on: what the worker was asked with, and who waits for its end under which id.
    pub(super) turn: Option<(Value, Option<(u32, Value)>)>,
    /// What the worker itself remembers of it.
    pub(super) history: Vec<Value>,
    /// What is kept for those who come later, and how long it was.
    pub(super) ring: VecDeque<(Value, usize)>,
    /// What was said first is no longer kept.
    pub(super) gone: bool,
}

impl Session {
    /// Everybody who hears what is said.
    pub(super) fn all(&self) -> Vec<u32> {
        self.owner.into_iter().chain(self.observers.iter().copied()).collect()
    }

    /// Keeps what was said, as much as may be.
    pub(super) fn keep(&mut self, line: Value, length: usize, limit: usize) {
        self.ring.push_back((line, length));
        while self.ring.iter().map(|(_, length)| length).sum::<usize>() > limit {
            self.ring.pop_front();
            self.gone = true;
        }
    }

    /// Who watches controls it from now on, and who did watches.
    pub(super) fn swap(&mut self, client: u32) {
        self.observers.retain(|observer| *observer != client);
        self.observers.extend(self.owner.replace(client));
    }

    /// A client is no longer there. Whoever has watched longest controls it then.
    pub(super) fn leave(&mut self, client: u32) {
        if self.owner == Some(client) {
            self.owner = None;
            if let Some(next) = self.observers.first().copied() {
                self.observers.remove(0);
                self.owner = Some(next);
            }
        }
        self.observers.retain(|observer| *observer != client);
        if let Some((_, asker)) = &mut self.turn {
            *asker = asker.take().filter(|(by, _)| *by != client);
        }
    }
}

/// Something that the worker has asked.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) session: String,
    /// All are asked, and not only the one who controls the session.
    pub(super) for_all: bool,
    /// Who was asked, under which id.
    pub(super) takers: Vec<(u32, Value)>,
}
