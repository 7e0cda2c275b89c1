//! Holds a client's output until the owner of its new session is on disk.

use crate::core::ClientId;
use crate::owner_store::{OwnerEntry, OwnerStoreEvent, OwnerWriter};

use super::connections::Connections;
use super::{About, Driver, PollToken, Router};

/// Entries about session owners that are not on disk yet, and the clients whose output waits for them.
#[derive(Debug, Default)]
pub(super) struct OwnerBarrier {
    pub(super) on: bool,
    pub(super) last: u64,
    /// Entries that were not sent to the writer thread yet, with their numbers.
    pub(super) entries: Vec<(u64, OwnerEntry)>,
    /// Slots of waiting clients, each with the number of the entry for which it waits.
    pub(super) clients: Vec<(u64, u32)>,
}

impl Connections {
    /// Queues an entry about a session owner, and holds a client's output until the entry is on disk.
    pub(super) fn add_entry(&mut self, entry: OwnerEntry, client: Option<ClientId>) {
        if !self.barrier.on {
            return;
        }
        self.barrier.last += 1;
        let number = self.barrier.last;
        self.barrier.entries.push((number, entry));
        if let Some(client) = client
            && let Some(conn) = self.client(client.0)
        {
            conn.outflow.held = Some(number);
            self.barrier.clients.push((number, client.0));
        }
    }

    /// Releases the output of clients that wait for an entry up to this number.
    pub(super) fn release(&mut self, number: u64) {
        let (free, held): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.barrier.clients).into_iter().partition(|(entry, _)| *entry <= number);
        self.barrier.clients = held;
        for (entry, slot) in free {
            // Output stays held if the client now waits for a later entry, or another client has the slot.
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
    #[inline]
    pub(super) fn send_entries(&mut self) {
        if self.conns.barrier.entries.is_empty() {
            return;
        }
        let entries = std::mem::take(&mut self.conns.barrier.entries);
        if let Some(owner_writer) = &mut self.owner_writer {
            entries.into_iter().for_each(|(number, entry)| owner_writer.put(number, entry));
            let is_behind = owner_writer.is_behind();
            self.check_owner_backlog(is_behind);
        }
    }

    pub(super) fn handle_owner_events(&mut self) {
        let Some(events) = self.owner_writer.as_mut().map(OwnerWriter::take_events) else { return };
        let Some(events) = events else {
            tracing::error!("session owner writer stopped");
            self.owner_writer = None;
            self.conns.barrier.on = false;
            self.conns.release(u64::MAX);
            return;
        };
        let is_behind = self.owner_writer.as_ref().is_some_and(OwnerWriter::is_behind);
        self.check_owner_backlog(is_behind);
        for event in events {
            match event {
                OwnerStoreEvent::Kept(number) => self.conns.release(number),
                OwnerStoreEvent::Forgotten(sessions) => {
                    self.call_router(About::All, |router, _| {
                        sessions.iter().for_each(|session| router.forget_owner(session));
                    });
                }
            }
        }
    }
}
