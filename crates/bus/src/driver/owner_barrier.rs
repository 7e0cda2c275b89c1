//! Holds a client's output until the owner of its new session is on disk.

use crate::core::ClientId;
use crate::owner_store::{OwnerEntry, OwnerStoreEvent, OwnerWriter};

use super::connections::Connections;
use super::{About, Driver, PollToken, Router};

/// Entries about session owners that are not on disk, and the clients that wait for them.
#[derive(Debug, Default)]
pub(super) struct OwnerBarrier {
    /// `true` if owners are recorded.
    pub(super) on: bool,
    /// The number of the last entry.
    pub(super) last: u64,
    /// Entries that were not sent to the writer yet.
    pub(super) entries: Vec<(u64, OwnerEntry)>,
    /// Waiting clients, each with the entry it waits for.
    pub(super) clients: Vec<(u64, u32)>,
}

impl Connections {
    /// Queues an entry about a session owner, and holds a client's output until it is on disk.
    pub(super) fn add_entry(&mut self, entry: OwnerEntry, client: Option<ClientId>) {
        if !self.holding.on {
            return;
        }
        self.holding.last += 1;
        let number = self.holding.last;
        self.holding.entries.push((number, entry));
        if let Some(client) = client
            && let Some(conn) = self.client(client.0)
        {
            conn.outflow.held = Some(number);
            self.holding.clients.push((number, client.0));
        }
    }

    /// Releases the clients that wait for an entry up to this number.
    pub(super) fn release(&mut self, number: u64) {
        let (free, held): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.holding.clients).into_iter().partition(|(entry, _)| *entry <= number);
        self.holding.clients = held;
        for (entry, slot) in free {
            // A client that waits for a later entry, or another client in its slot, keeps waiting.
            let Some(Some(conn)) = self.clients.get_mut(slot as usize) else { continue };
            if conn.outflow.held == Some(entry) {
                conn.outflow.held = None;
                if conn.outflow.outbox.waiting() > 0 && !conn.outflow.dirty {
                    conn.outflow.dirty = true;
                    self.dirty.push(PollToken::Client(slot));
                }
            }
        }
    }
}

impl<B: Router> Driver<B> {
    /// Sends the queued entries to the writer.
    #[inline]
    pub(super) fn send_entries(&mut self) {
        if self.ports.holding.entries.is_empty() {
            return;
        }
        let entries = std::mem::take(&mut self.ports.holding.entries);
        if let Some(ledger) = &mut self.ledger {
            entries.into_iter().for_each(|(number, entry)| ledger.put(number, entry));
            let is_behind = ledger.is_behind();
            self.check_owner_backlog(is_behind);
        }
    }

    /// Handles the events of the writer.
    pub(super) fn take_kept(&mut self) {
        let Some(told) = self.ledger.as_mut().map(OwnerWriter::take_events) else { return };
        let Some(told) = told else {
            tracing::error!("nobody writes down any more whose sessions are");
            self.ledger = None;
            self.ports.holding.on = false;
            self.ports.release(u64::MAX);
            return;
        };
        let is_behind = self.ledger.as_ref().is_some_and(OwnerWriter::is_behind);
        self.check_owner_backlog(is_behind);
        for told in told {
            match told {
                OwnerStoreEvent::Kept(number) => self.ports.release(number),
                OwnerStoreEvent::Forgotten(sessions) => {
                    self.ask(About::All, |brain, _| {
                        sessions.iter().for_each(|session| brain.forget_owner(session));
                    });
                }
            }
        }
    }
}
