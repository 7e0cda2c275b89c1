//! The requests that a worker has not answered, and the number of those that open sessions.
//!
//! Clients determine the number of requests, so no code that runs for one message iterates over all requests.

use std::ops::Deref;

use rustc_hash::FxHashMap;

use super::identity::Identity;
use super::session::SessionKey;
use super::state::{InternalRequest, Pending, RequestOrigin};

/// The unanswered requests of one worker, by the ids that the bus gave them.
#[derive(Debug, Default)]
pub(super) struct PendingTable {
    table: FxHashMap<u64, Pending>,
    /// Number of unanswered requests that open a session, new or stored.
    openings: usize,
    creations: FxHashMap<Identity, Creations>,
    /// Number of requests of the bus that restore a session, per session.
    restores: FxHashMap<SessionKey, usize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Creations {
    all: usize,
    /// Number of requests whose clients have already got a timeout error.
    overdue: usize,
}

impl Deref for PendingTable {
    type Target = FxHashMap<u64, Pending>;

    fn deref(&self) -> &Self::Target {
        &self.table
    }
}

impl PendingTable {
    pub(super) fn insert(&mut self, number: u64, pending: Pending) {
        if let Some(opening) = &pending.opening {
            self.openings += 1;
            if pending.what.creates() {
                self.creations.entry(opening.identity).or_default().all += 1;
            }
        }
        if let RequestOrigin::Internal(InternalRequest::Restore(key)) = pending.asker {
            *self.restores.entry(key).or_default() += 1;
        }
        self.table.insert(number, pending);
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Pending> {
        let pending = self.table.remove(&number)?;
        self.uncount(&pending);
        Some(pending)
    }

    /// Removes the requests that begin at or after the offset `start`, and returns them in the order in which
    /// they were sent. The offset counts all bytes that were ever queued for the worker.
    pub(super) fn remove_from(&mut self, start: u64) -> Vec<(u64, Pending)> {
        let mut removed: Vec<_> = self.table.extract_if(|_, pending| pending.start >= start).collect();
        removed.sort_unstable_by_key(|(number, _)| *number);
        for (_, pending) in &removed {
            self.uncount(pending);
        }
        removed
    }

    /// Returns an unanswered request, so that the caller can change it. The caller must not change the fields
    /// that are counted.
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Pending> {
        self.table.get_mut(&number)
    }

    /// Returns all unanswered requests, so that the caller can change them. The caller must not change the
    /// fields that are counted.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Pending> {
        self.table.values_mut()
    }

    /// Marks a request that creates a session as overdue. Returns `None` if there is no request with this
    /// number.
    pub(super) fn set_overdue(&mut self, number: u64) -> Option<&mut Pending> {
        let pending = self.table.get_mut(&number).filter(|pending| pending.what.creates())?;
        if let Some(opening) = &mut pending.opening
            && !std::mem::replace(&mut opening.is_overdue, true)
            && let Some(counts) = self.creations.get_mut(&opening.identity)
        {
            counts.overdue += 1;
        }
        Some(pending)
    }

    /// Returns `true` if any unanswered request opens a session, new or stored.
    pub(super) fn opens(&self) -> bool {
        self.openings > 0
    }

    pub(super) fn creating(&self) -> usize {
        self.creations.values().map(|counts| counts.all).sum()
    }

    pub(super) fn creates(&self) -> bool {
        !self.creations.is_empty()
    }

    pub(super) fn creating_for(&self, identity: Identity) -> usize {
        self.creations.get(&identity).map_or(0, |counts| counts.all)
    }

    /// Returns `true` if any unanswered request creates a session of another identity and is not overdue.
    pub(super) fn creates_for_others(&self, identity: Identity) -> bool {
        self.creations.iter().any(|(other, counts)| *other != identity && counts.all > counts.overdue)
    }

    /// Returns `true` if a request restores this session.
    pub(super) fn restores(&self, key: SessionKey) -> bool {
        self.restores.contains_key(&key)
    }

    fn uncount(&mut self, pending: &Pending) {
        if let RequestOrigin::Internal(InternalRequest::Restore(key)) = pending.asker
            && let Some(count) = self.restores.get_mut(&key)
        {
            *count -= 1;
            if *count == 0 {
                self.restores.remove(&key);
            }
        }
        let Some(opening) = &pending.opening else { return };
        self.openings -= 1;
        if pending.what.creates()
            && let Some(counts) = self.creations.get_mut(&opening.identity)
        {
            counts.all -= 1;
            counts.overdue -= usize::from(opening.is_overdue);
            if counts.all == 0 {
                self.creations.remove(&opening.identity);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::identity::Identities;
    use super::super::memory::Memory;
    use super::super::state::{Opening, RequestKind, RequestOrigin};
    use super::*;

    fn pending(memory: &mut Memory, identity: Identity, what: RequestKind, start: u64) -> Pending {
        let opening = (what.creates() || what.reopens()).then(|| {
            Box::new(Opening {
                line: Box::default(),
                identity,
                tried: Vec::new(),
                is_repeat: false,
                is_overdue: false,
                servers: Default::default(),
                charge: memory.charge(identity, 0),
            })
        });
        Pending {
            asker: RequestOrigin::Gone,
            what,
            session: None,
            session_removals: 0,
            start,
            tag: None,
            progress: None,
            opening,
            charge: None,
        }
    }

    #[test]
    fn counts_match_the_requests_in_the_table() {
        let mut memory = Memory::default();
        let mut identities = Identities::default();
        let (one, two) = (identities.number("one"), identities.number("two"));
        let mut table = PendingTable::default();
        let kinds = [RequestKind::New, RequestKind::Load, RequestKind::Fork, RequestKind::Prompt];
        for (number, what) in (0..).zip(kinds) {
            table.insert(number, pending(&mut memory, one, what, number * 10));
        }
        table.insert(9, pending(&mut memory, two, RequestKind::New, 90));
        assert_eq!((table.creating(), table.creating_for(one), table.creating_for(two)), (3, 2, 1));
        assert!(table.opens() && table.creates_for_others(one) && table.creates_for_others(two));
        assert!(table.set_overdue(1).is_none(), "the request creates no session");
        assert!(table.set_overdue(9).is_some() && table.set_overdue(9).is_some());
        assert!(!table.creates_for_others(one) && table.creates_for_others(two));
        assert!(table.remove(9).is_some() && table.remove(9).is_none());
        let rest: Vec<u64> = table.remove_from(10).into_iter().map(|(number, _)| number).collect();
        assert_eq!(rest, [1, 2, 3]);
        assert!(table.creates() && table.opens() && !table.creates_for_others(one));
        assert_eq!(table.remove_from(0).len(), 1);
        assert!(!table.creates() && !table.opens() && table.is_empty());
    }
}
