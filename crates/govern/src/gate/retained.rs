//! Bounds the memory of one gate's tables. Every table charges [`RetainedBytes`] for each entry. The charge
//! is part of the entry, so dropping the entry always releases the charge.
//!
//! If the budget is exceeded, finished calls are forgotten. If that is not enough, further entries are
//! refused. If the agent reports a forgotten call again, the call is decided again, so forgetting never
//! allows a call.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::collections::hash_map::Drain;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::api::GateOutput;
use super::{Gate, GateCtx};

/// Byte budget of one gate. A call retains its input once, and up to three times while it waits for an
/// approval.
const MAX_RETAINED_BYTES: usize = 128 << 20;

/// Estimated memory of a table entry beside its key and its value.
const ENTRY_BYTES: usize = 64;

/// Reason for stopping a turn: its calls exceed the byte budget.
pub(super) const NO_ROOM: &str = "its open tool calls take too much memory";

const TOO_MUCH: &str = "too_much_retained";

/// The byte budget of one gate. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct RetainedBytes {
    used: Arc<AtomicUsize>,
    max: usize,
}

impl Default for RetainedBytes {
    fn default() -> Self {
        Self::new(MAX_RETAINED_BYTES)
    }
}

impl RetainedBytes {
    pub(crate) fn new(max: usize) -> Self {
        Self { used: Arc::default(), max }
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn has_room_for(&self, bytes: usize) -> bool {
        self.used().saturating_add(bytes) <= self.max
    }

    /// Charges `bytes`, even beyond the budget.
    pub(crate) fn charge(&self, bytes: usize) -> ByteCharge {
        let mut charge = ByteCharge { bytes: 0, budget: Some(self.clone()) };
        charge.resize(bytes);
        charge
    }
}

#[derive(Debug, Default)]
pub(crate) struct ByteCharge {
    bytes: usize,
    budget: Option<RetainedBytes>,
}

impl ByteCharge {
    pub(crate) fn resize(&mut self, bytes: usize) {
        let Some(budget) = &self.budget else { return };
        budget.used.fetch_add(bytes, Ordering::Relaxed);
        budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for ByteCharge {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[derive(Debug)]
pub(super) struct ChargedMap<K, V> {
    entries: HashMap<K, (V, ByteCharge)>,
}

impl<K, V> Default for ChargedMap<K, V> {
    fn default() -> Self {
        Self { entries: HashMap::new() }
    }
}

impl<K: Eq + Hash, V> ChargedMap<K, V> {
    pub(super) fn insert(&mut self, budget: &RetainedBytes, key: K, value: V, bytes: usize) {
        self.entries.insert(key, (value, budget.charge(bytes + ENTRY_BYTES)));
    }

    pub(super) fn resize<Q: Eq + Hash + ?Sized>(&mut self, key: &Q, bytes: usize)
    where
        K: Borrow<Q>,
    {
        if let Some((_, charge)) = self.entries.get_mut(key) {
            charge.resize(bytes + ENTRY_BYTES);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn contains_key<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.entries.contains_key(key)
    }

    pub(super) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.entries.get(key).map(|(value, _)| value)
    }

    pub(super) fn get_mut<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.entries.get_mut(key).map(|(value, _)| value)
    }

    pub(super) fn remove<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.remove_charged(key).map(|(value, _)| value)
    }

    /// Removes an entry and returns it with its charge, to move both to another table.
    pub(super) fn remove_charged<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<(V, ByteCharge)>
    where
        K: Borrow<Q>,
    {
        self.entries.remove(key)
    }

    pub(super) fn retain(&mut self, mut keeps: impl FnMut(&K, &V) -> bool) {
        self.entries.retain(|key, (value, _)| keeps(key, value));
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.values().map(|(value, _)| value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, (value, _))| (key, value))
    }

    pub(super) fn drain(&mut self) -> DrainValues<'_, K, V> {
        DrainValues { entries: self.entries.drain() }
    }
}

#[derive(Debug)]
pub(super) struct DrainValues<'a, K, V> {
    entries: Drain<'a, K, (V, ByteCharge)>,
}

impl<K, V> Iterator for DrainValues<'_, K, V> {
    type Item = (K, V);

    fn next(&mut self) -> Option<Self::Item> {
        self.entries.next().map(|(key, (value, _))| (key, value))
    }
}

/// Estimates the memory of a JSON value. In memory, a one-digit number takes far more bytes than on the wire.
pub(crate) fn value_bytes(value: &Value) -> usize {
    let inside = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(value_bytes).sum(),
        Value::Object(members) => {
            members.iter().map(|(key, member)| ENTRY_BYTES + key.len() + value_bytes(member)).sum()
        }
    };
    size_of::<Value>() + inside
}

impl Gate {
    /// Returns the byte budget of the gate's tables, which other state of the connection shares.
    pub(crate) fn retained(&self) -> RetainedBytes {
        self.retained.clone()
    }

    /// Returns `true` if the byte budget has room for `bytes`. Forgets finished calls and closed sessions if
    /// necessary.
    pub(super) fn make_room(&mut self, bytes: usize) -> bool {
        if self.retained.has_room_for(bytes) {
            return true;
        }
        for session in self.sessions.values_mut() {
            session.forget_calls_over();
        }
        while !self.retained.has_room_for(bytes) && self.closed_sessions.pop_front().is_some() {}
        self.retained.has_room_for(bytes)
    }

    /// Charges the byte budget for a session's name, directories and MCP servers.
    pub(super) fn charge_session(&mut self, name: &str) {
        let budget = &self.retained;
        if let Some(session) = self.sessions.get_mut(name) {
            session.charge = budget.charge(name.len() + ENTRY_BYTES + session.retained_bytes());
        }
    }
}

impl<O: GateOutput> GateCtx<'_, O> {
    /// Returns `true` if the byte budget has room for `bytes`. Records a refusal if it has not.
    pub(super) fn has_room_for(&mut self, session: &str, bytes: usize) -> bool {
        let has_room = self.gate.make_room(bytes);
        if !has_room {
            let event = self.parties(session).refused("request.refused", TOO_MUCH, json!({"bytes": bytes}));
            self.record(event);
        }
        has_room
    }

    /// Returns `true` if the session may have another call, and the byte budget has room for `bytes` of a
    /// call with this key.
    pub(super) fn has_room_for_call(&mut self, session: &str, key: &str, bytes: usize) -> bool {
        let has_entry = self.session(session).is_some_and(|session| session.has_room_for(key));
        has_entry && self.has_room_for(session, bytes + key.len() + ENTRY_BYTES)
    }

    pub(super) fn charge_call(&mut self, session: &str, key: &str) {
        let Some(session) = self.gate.sessions.get_mut(session) else { return };
        let Some(bytes) = session.calls.get(key).map(|record| record.retained_bytes()) else { return };
        session.calls.resize(key, key.len() + bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_charged_until_it_is_dropped() {
        let budget = RetainedBytes::new(1_000);
        let mut map: ChargedMap<&str, u8> = ChargedMap::default();
        map.insert(&budget, "a", 1, 100);
        map.insert(&budget, "b", 2, 200);
        map.insert(&budget, "a", 3, 50);
        assert_eq!(budget.used(), 250 + 2 * ENTRY_BYTES, "a replaced entry is released");
        map.resize("b", 700);
        assert!(!budget.has_room_for(200) && budget.has_room_for(100));
        let kept = map.remove_charged("b");
        assert_eq!(budget.used(), 750 + 2 * ENTRY_BYTES, "the charge moves with the entry");
        drop(kept);
        map.retain(|_, _| false);
        assert_eq!(budget.used(), 0);
        map.insert(&budget, "c", 4, 10);
        assert_eq!(map.drain().next(), Some(("c", 4)));
        assert_eq!(budget.used(), 0);
        map.insert(&budget, "d", 5, 10);
        drop(map);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn small_values_are_charged_for_the_memory_that_they_take() {
        let many = json!(vec![0; 1_000]);
        assert!(value_bytes(&many) >= 1_000 * size_of::<Value>());
        assert!(value_bytes(&json!({"a": "x".repeat(500)})) >= 501);
    }
}
