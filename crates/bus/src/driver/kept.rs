//! Clients that are told nothing until it is written down whose their sessions are.

use crate::owners::{Entry, Ledger, Told};

use super::{About, Brain, Driver};

/// What waits to be written down, and who waits for that.
#[derive(Debug, Default)]
pub(super) struct Holding {
    /// Whether anything is written down at all.
    pub(super) on: bool,
    /// The number of the last entry.
    pub(super) last: u64,
    /// Entries that are not under way yet.
    pub(super) entries: Vec<(u64, Entry)>,
    /// The clients that wait, and for which entry.
    pub(super) clients: Vec<(u64, u32)>,
}

impl<B: Brain> Driver<B> {
    /// Sends what is to be written down on its way.
    #[inline]
    pub(super) fn send_entries(&mut self) {
        if self.ports.holding.entries.is_empty() {
            return;
        }
        let entries = std::mem::take(&mut self.ports.holding.entries);
        if let Some(ledger) = &mut self.ledger {
            entries.into_iter().for_each(|(number, entry)| ledger.put(number, entry));
        }
    }

    /// Goes on with whom it was written down for.
    pub(super) fn take_kept(&mut self) {
        let Some(told) = self.ledger.as_mut().map(Ledger::told) else { return };
        let Some(told) = told else {
            tracing::error!("nobody writes down any more whose sessions are");
            self.ledger = None;
            self.ports.holding.on = false;
            self.ports.release(u64::MAX);
            return;
        };
        for told in told {
            match told {
                Told::Kept(number) => self.ports.release(number),
                Told::Forgotten(sessions) => {
                    self.ask(About::All, |brain, _| {
                        sessions.iter().for_each(|session| brain.forget_owner(session));
                    });
                }
            }
        }
    }
}
