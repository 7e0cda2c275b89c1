//! Holds a client's output until the owner of its new session is on disk.

use crate::core::ClientId;
use crate::owner_store::{OwnerEntry, OwnerStoreEvent, OwnerWriter};

use super::connections::Connections;
use super::{About, Driver, PollToken, Router};

/// What waits to be written down, and who waits for that.
#[derive(Debug, Default)]
pub(super) struct OwnerBarrier {
    /// Whether anything is written down at all.
    pub(super) on: bool,
    /// The number of the last entry.
    pub(super) last: u64,
    /// Entries that are not under way yet.
    pub(super) entries: Vec<(u64, OwnerEntry)>,
    /// The clients that wait, and for which entry.
    pub(super) clients: Vec<(u64, u32)>,
}

impl Connections {
    /// Has an entry about the owner of a session written, and lets a client wait for it.
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

    /// Lets those go on who wait for an entry up to this.
    pub(super) fn release(&mut self, number: u64) {
        let (free, held): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.holding.clients).into_iter().partition(|(entry, _)| *entry <= number);
        self.holding.clients = held;
        for (entry, slot) in free {
            // Whoever waits for another since, or has its slot now, waits on.
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
    /// Sends what is to be written down on its way.
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

    /// Goes on with whom it was written down for.
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
