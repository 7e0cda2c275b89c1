//! The gates that are at work in this process, for whoever asks all of them something.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use narrows_base::sync::lock;
use narrows_govern::Inquiry;
use tokio::sync::mpsc;

#[derive(Debug, Default)]
struct Seats {
    next: u64,
    taken: BTreeMap<u64, mpsc::Sender<Inquiry>>,
}

/// The gates that are at work. Each clone is the same list.
#[derive(Clone, Debug, Default)]
pub(super) struct Roster(Arc<Mutex<Seats>>);

/// The place of one gate, until this is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    number: u64,
    roster: Roster,
}

impl Roster {
    fn seats(&self) -> MutexGuard<'_, Seats> {
        lock(&self.0)
    }

    /// A gate that can be asked here is at work.
    pub(super) fn enter(&self, ask: mpsc::Sender<Inquiry>) -> Seat {
        let mut seats = self.seats();
        seats.next += 1;
        let number = seats.next;
        seats.taken.insert(number, ask);
        Seat { number, roster: self.clone() }
    }

    /// Where each of them can be asked.
    pub(super) fn all(&self) -> Vec<mpsc::Sender<Inquiry>> {
        self.seats().taken.values().cloned().collect()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.roster.seats().taken.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_there_as_long_as_its_seat() {
        let roster = Roster::default();
        let (ask, _asked) = mpsc::channel(1);
        let first = roster.enter(ask.clone());
        let second = roster.enter(ask);
        assert_eq!(roster.all().len(), 2);
        drop(first);
        assert_eq!(roster.all().len(), 1);
        drop(second);
        assert!(roster.all().is_empty());
    }
}
