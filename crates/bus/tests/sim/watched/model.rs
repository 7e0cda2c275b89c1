//! A model of a session with several clients, in plain lists.

use std::collections::VecDeque;

use serde_json::Value;

#[derive(Debug, Default)]
pub(super) struct Session {
    pub(super) identity: usize,
    pub(super) owner: Option<u32>,
    /// The observers, in the order in which they joined.
    pub(super) observers: Vec<u32>,
    /// The running turn: the worker's request, and the client that waits for its end, with the client's id.
    pub(super) turn: Option<(Value, Option<(u32, Value)>)>,
    /// The history that the worker has stored.
    pub(super) history: Vec<Value>,
    /// The updates kept for later observers, with their lengths.
    pub(super) ring: VecDeque<(Value, usize)>,
    /// `true` if the first updates are no longer kept.
    pub(super) gone: bool,
}

impl Session {
    pub(super) fn all(&self) -> Vec<u32> {
        self.owner.into_iter().chain(self.observers.iter().copied()).collect()
    }

    pub(super) fn keep(&mut self, line: Value, length: usize, limit: usize) {
        self.ring.push_back((line, length));
        while self.ring.iter().map(|(_, length)| length).sum::<usize>() > limit {
            self.ring.pop_front();
            self.gone = true;
        }
    }

    pub(super) fn swap(&mut self, client: u32) {
        self.observers.retain(|observer| *observer != client);
        self.observers.extend(self.owner.replace(client));
    }

    /// Removes a client. The oldest observer becomes the controller.
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

#[derive(Debug)]
pub(super) struct Ask {
    pub(super) session: String,
    /// `true` if all clients are asked, not only the controller.
    pub(super) for_all: bool,
    /// The clients that are asked, each with its id of the request.
    pub(super) takers: Vec<(u32, Value)>,
}
