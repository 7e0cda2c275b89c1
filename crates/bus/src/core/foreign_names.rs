//! Session ids in the params of extension methods.
//!
//! Only the agent knows the meaning of a method that the protocol does not define. Any text in its params may
//! be a session id, whatever its key. In a shared worker, a message with the id of another identity's session
//! is refused.

use std::cell::Cell;
use std::fmt;

use narrows_wire::View;
use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};

use super::Ctx;
use super::api::{CoreOutput, PoolId};
use super::mcp_access::is_unknown;
use super::session::SessionKey;
use super::table::{ClientKey, WorkerKey};

/// Maximum number of lookups of texts of one message. They run on the event loop, which all clients share.
const MAX_LOOKUPS: usize = 1 << 19;

impl<O: CoreOutput> Ctx<'_, O> {
    /// Returns `true` if a text in the params of an extension method is the id of another identity's session
    /// or child session, as clients or as agents of the pool call it. Also returns `true` for params that
    /// cannot be read or have too many texts.
    pub(super) fn names_foreign_session(&self, client: ClientKey, pool: PoolId, message: View<'_>) -> bool {
        let Some(params) = message.params().filter(|_| self.core.owners.are_kept()) else { return false };
        let Some(identity) = self.core.clients.get(client).map(|state| state.identity) else { return false };
        if !message.method().is_some_and(|name| is_unknown(&name)) {
            return false;
        }
        let pool = self.core.current(pool);
        let workers = self.core.workers.iter().filter(|(_, state)| self.core.current(state.pool) == pool);
        // Workers that call some session by another name than clients do. Most workers do not.
        let renaming: Vec<WorkerKey> = workers
            .filter(|(_, state)| !(state.aliases.is_empty() && state.children.is_empty()))
            .map(|(worker, _)| worker)
            .collect();
        let is_anothers =
            |key: SessionKey| self.core.sessions.get(key).is_some_and(|session| session.identity != identity);
        // The name of the message's own session is permitted, unless the worker uses another name for that
        // session: the text is not replaced everywhere, and to the worker it may be the name of another
        // session.
        let named = message.session();
        let is_renamed = |key| {
            let session = self.core.sessions.get(key);
            session.is_some_and(|session| session.identity == identity && session.agent_name_json.is_some())
        };
        let named = named.as_deref().filter(|name| !self.core.sessions.find(name).is_some_and(is_renamed));
        let lookups = Cell::new(0);
        let is_foreign = |text: &str| {
            if Some(text) == named {
                return false;
            }
            lookups.set(lookups.get() + 1 + renaming.len());
            let open = self.core.sessions.find(text);
            let open = open.or_else(|| self.core.children.find(text).map(|child| child.root));
            let renamed = |worker: &WorkerKey| {
                let alias = self.core.workers.get(*worker).and_then(|state| state.aliases.get(text).copied());
                alias.or_else(|| self.root_of(*worker, text)).is_some_and(is_anothers)
            };
            lookups.get() > MAX_LOOKUPS
                || open.map_or_else(|| self.core.owners.is_anothers(text, identity), is_anothers)
                || self.is_anothers_within(identity, pool, text)
                || renaming.iter().any(renamed)
        };
        let mut json = serde_json::Deserializer::from_slice(params);
        Texts(&is_foreign).deserialize(&mut json).is_err()
    }
}

/// A JSON reader that fails at the first text, key or value, for which the predicate returns `true`.
struct Texts<'f, F>(&'f F);

// Derived impls of `Clone` and `Copy` would require `F: Clone` and `F: Copy`.
impl<F> Clone for Texts<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for Texts<'_, F> {}

impl<'de, F: Fn(&str) -> bool> DeserializeSeed<'de> for Texts<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, F: Fn(&str) -> bool> Visitor<'de> for Texts<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        if (self.0)(text) { Err(E::custom("found")) } else { Ok(()) }
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while entries.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while members.next_key_seed(self)?.is_some() {
            members.next_value_seed(self)?;
        }
        Ok(())
    }
}
