//! Tables in which a key never finds another entry than its own.
//!
//! Slots are reused, so a key contains the slot and the serial number of its entry, and each lookup compares
//! the serial number. A key that outlives its entry finds nothing, never the entry that now has the slot.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::num::NonZeroU64;

use slab::Slab;

use super::api;
use super::state::{ClientState, WorkerState};

pub(super) type ClientKey = Key<ClientState>;
pub(super) type WorkerKey = Key<WorkerState>;

pub(super) struct Key<T> {
    slot: u32,
    serial: NonZeroU64,
    entry: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
    fn order(self) -> (u32, NonZeroU64) {
        (self.slot, self.serial)
    }

    #[cfg(test)]
    pub(super) fn numbered(number: u64) -> Self {
        let serial = NonZeroU64::MIN.saturating_add(number);
        Self { slot: 0, serial, entry: PhantomData }
    }

    /// Returns the slot of the key, which is meaningful only while the entry exists.
    pub(super) fn slot(self) -> u32 {
        self.slot
    }
}

// Derived impls of these traits would also require them of `T`.
impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T> PartialEq for Key<T> {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl<T> Eq for Key<T> {}

impl<T> PartialOrd for Key<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Key<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl<T> Hash for Key<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.order().hash(state);
    }
}

impl<T> fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.slot, self.serial)
    }
}

impl From<ClientKey> for api::ClientId {
    fn from(key: ClientKey) -> Self {
        Self(key.slot)
    }
}

impl From<WorkerKey> for api::WorkerId {
    fn from(key: WorkerKey) -> Self {
        Self(key.slot)
    }
}

#[derive(Debug)]
struct Entry<T> {
    serial: NonZeroU64,
    value: T,
}

/// A table of entries. The key of a removed entry is never used again.
#[derive(Debug)]
pub(super) struct Table<T> {
    slab: Slab<Entry<T>>,
    serial: NonZeroU64,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { slab: Slab::new(), serial: NonZeroU64::MIN }
    }
}

impl<T> Table<T> {
    pub(super) fn insert(&mut self, value: T) -> Key<T> {
        self.serial = self.serial.saturating_add(1);
        let slot = self.slab.insert(Entry { serial: self.serial, value }) as u32;
        Key { slot, serial: self.serial, entry: PhantomData }
    }

    #[inline]
    pub(super) fn get(&self, key: Key<T>) -> Option<&T> {
        let entry = self.slab.get(key.slot as usize)?;
        (entry.serial == key.serial).then_some(&entry.value)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: Key<T>) -> Option<&mut T> {
        let entry = self.slab.get_mut(key.slot as usize)?;
        (entry.serial == key.serial).then_some(&mut entry.value)
    }

    pub(super) fn remove(&mut self, key: Key<T>) -> Option<T> {
        self.get(key)?;
        Some(self.slab.remove(key.slot as usize).value)
    }

    #[inline]
    pub(super) fn key_at(&self, slot: u32) -> Option<Key<T>> {
        let entry = self.slab.get(slot as usize)?;
        Some(Key { slot, serial: entry.serial, entry: PhantomData })
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.slab.retain(|_, entry| keep(&entry.value));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key<T>, &T)> {
        let key = |slot: usize, serial| Key { slot: slot as u32, serial, entry: PhantomData };
        self.slab.iter().map(move |(slot, entry)| (key(slot, entry.serial), &entry.value))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (Key<T>, &mut T)> {
        let key = |slot: usize, serial| Key { slot: slot as u32, serial, entry: PhantomData };
        self.slab.iter_mut().map(move |(slot, entry)| (key(slot, entry.serial), &mut entry.value))
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slab.iter_mut().map(|(_, entry)| &mut entry.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_does_not_find_the_next_entry_in_its_slot() {
        let mut table = Table::default();
        let first = table.insert("one");
        assert_eq!(table.get(first), Some(&"one"));
        assert_eq!(table.remove(first), Some("one"));
        let second = table.insert("two");
        assert_eq!(second.slot(), first.slot(), "the slot is used again");
        assert_ne!(second, first);
        assert_eq!(table.get(first), None);
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!((table.get(second), table.key_at(second.slot())), (Some(&"two"), Some(second)));
        assert_eq!(table.iter().collect::<Vec<_>>(), [(second, &"two")]);
    }
}
