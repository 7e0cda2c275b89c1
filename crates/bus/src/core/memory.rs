//! Memory held for clients: messages that wait for a worker or that it does not read, and copies kept until a
//! response arrives.
//!
//! Bytes are charged to the identity that caused them until they are dropped. A message that would exceed the
//! limit of its identity or of all identities is refused. So no identity can use the share of others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use narrows_acp::method::{CANCEL_REQUEST, SESSION_CANCEL, SESSION_CLOSE};
use narrows_wire::{Code, Fault, Kind, RpcError, View, message};
use rustc_hash::FxHashMap;
use serde_json::json;

use super::Ctx;
use super::api::CoreOutput;
use super::cancellation::LSP_CANCEL;
use super::from_client::MCP_CANCELLED;
use super::identity::Identity;
use super::table::ClientKey;

/// Maximum size of a message that may use the reserve. Only messages that answer, cancel or close something
/// use the reserve, because they free memory.
const MAX_ENDING_BYTES: usize = 4 << 10;
/// A memory limit divided by this number is added to the limit for messages that answer, cancel or close
/// something.
const RESERVE_DIVISOR: usize = 8;
/// After all identities together have reached their limit, an identity may hold its own limit divided by this
/// number.
const SHORT_SHARE_DIVISOR: usize = 16;
/// Estimated bytes that the tables use for one pending request, without its texts.
pub(super) const PENDING_BYTES: usize = 512;
/// Estimated bytes that the tables use for one queued line, without its text.
pub(super) const LINE_BYTES: usize = 256;
/// Estimated bytes that the tables use for one request of a worker that no client has answered, without its
/// id.
pub(super) const ASKED_BYTES: usize = 256;
pub(super) const RETRY_MS: u64 = 1_000;

/// Counters of the bytes held for clients: of all identities together, and of each identity.
#[derive(Debug, Default)]
pub(super) struct Memory {
    all: Arc<AtomicUsize>,
    each: FxHashMap<Identity, Arc<Account>>,
}

/// The counter of the bytes held for one identity, and the common counter of all identities.
#[derive(Debug)]
pub(super) struct Account {
    one: AtomicUsize,
    all: Arc<AtomicUsize>,
}

/// A number of bytes that count as held for an identity. Dropping the value subtracts them.
#[derive(Debug)]
pub(super) struct Charge {
    bytes: usize,
    account: Arc<Account>,
}

impl Memory {
    pub(super) fn account(&mut self, identity: Identity) -> Arc<Account> {
        let new = || Arc::new(Account { one: AtomicUsize::new(0), all: Arc::clone(&self.all) });
        Arc::clone(self.each.entry(identity).or_insert_with(new))
    }

    pub(super) fn charge(&mut self, identity: Identity, bytes: usize) -> Charge {
        self.account(identity).charge(bytes)
    }

    pub(super) fn held(&self, identity: Identity) -> (usize, usize) {
        let one = self.each.get(&identity).map_or(0, |account| account.one.load(Ordering::Relaxed));
        (self.all.load(Ordering::Relaxed), one)
    }
}

impl Account {
    pub(super) fn charge(self: &Arc<Self>, bytes: usize) -> Charge {
        let mut charge = Charge { bytes: 0, account: Arc::clone(self) };
        charge.set(bytes);
        charge
    }

    /// Returns the bytes held for all identities together, and the bytes held for the identity of this
    /// account.
    fn held(&self) -> (usize, usize) {
        (self.all.load(Ordering::Relaxed), self.one.load(Ordering::Relaxed))
    }
}

impl Charge {
    pub(super) fn set(&mut self, bytes: usize) {
        // The difference may wrap around below zero, so that one addition serves for growth and shrinking.
        let change = bytes.wrapping_sub(self.bytes);
        for held in [&*self.account.all, &self.account.one] {
            // Only one thread uses the charges, so a plain load and store is enough. An atomic addition would
            // cost 20 times as much.
            held.store(held.load(Ordering::Relaxed).wrapping_add(change), Ordering::Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl super::Core {
    pub(super) fn charge(&mut self, client: ClientKey, bytes: usize) -> Charge {
        match self.clients.get(client) {
            Some(state) => state.account.charge(bytes),
            None => self.memory.charge(Identity::ANYONE, bytes),
        }
    }

    pub(super) fn charge_line(&mut self, client: ClientKey, line: &[u8]) -> Charge {
        self.charge(client, line.len() + LINE_BYTES)
    }

    /// Returns `true` if a short message exceeds the memory limits. Messages that end something may use the
    /// reserve. An identity that holds little may always send short messages, however much others hold.
    fn is_short_too_much(&self, identity: Identity, bytes: usize, ends: bool) -> bool {
        self.is_beyond_reserve(self.memory.held(identity), bytes, ends)
    }

    /// Returns `true` if so many requests already wait for answers of a client's identity that the client
    /// must get no further one.
    pub(super) fn is_asked_too_much(&self, client: ClientKey, bytes: usize) -> bool {
        let state = self.clients.get(client);
        state.is_some_and(|state| self.is_beyond_reserve(state.account.held(), bytes, true))
    }

    fn is_beyond_reserve(&self, (all, one): (usize, usize), bytes: usize, ends: bool) -> bool {
        let (most, most_of_one) = self.limits.held();
        let reserve = |most: usize| if ends { most / RESERVE_DIVISOR } else { 0 };
        let exceeds = |held: usize, most: usize| held > 0 && held + bytes > most + reserve(most);
        exceeds(one, most_of_one) || exceeds(all, most) && one > most_of_one / SHORT_SHARE_DIVISOR
    }

    /// Returns `true` if `bytes` more bytes exceed the memory limits. An identity that holds nothing may send
    /// one message of any size.
    pub(super) fn is_too_much(&self, identity: Identity, bytes: usize) -> bool {
        let (most, most_of_one) = self.limits.held();
        let (all, one) = self.memory.held(identity);
        let exceeds = |held: usize, most: usize| held > 0 && held + bytes > most;
        exceeds(one, most_of_one) || exceeds(all, most)
    }
}

/// Returns the error for a message that is refused while it is incomplete, because too much incomplete input
/// is buffered. The client may send the message again.
pub(crate) fn unfinished_error() -> RpcError {
    let error = RpcError::new(Code::Backpressure, "too many bytes of incomplete messages");
    error.with("retryAfterMs", json!(RETRY_MS))
}

impl<O: CoreOutput> Ctx<'_, O> {
    /// Refuses an incomplete message of a client that begins with `message`. If the message is a response,
    /// the worker that waits for it gets an error.
    pub(super) fn refuse_unfinished(&mut self, client: ClientKey, message: View<'_>) {
        if self.core.client(client).is_none_or(|state| state.closing) {
            return;
        }
        self.core.counters.from_clients += 1;
        self.count_messages(client, 1);
        let error = unfinished_error();
        if message.kind() == Kind::Invalid(Fault::LongResponse) {
            self.fail_response(client, message, &error);
        } else {
            self.write_client(client, &[&message::error(message.id().unwrap_or(b"null"), &error)]);
        }
    }

    /// Refuses a message that exceeds the memory limits. Returns `true` if the message was refused.
    pub(super) fn refuse_too_much(&mut self, client: ClientKey, message: View<'_>) -> bool {
        let length = message.bytes().len();
        let Some(identity) = self.core.client(client).map(|state| state.identity) else { return false };
        if !self.core.is_too_much(identity, length)
            || length <= MAX_ENDING_BYTES
                && !self.core.is_short_too_much(identity, length, ends_something(message))
        {
            return false;
        }
        let error = RpcError::new(Code::Backpressure, "queue limit of this identity reached");
        let error = error.with("retryAfterMs", json!(RETRY_MS));
        match (message.kind(), message.id()) {
            (Kind::Request, Some(id)) => {
                if !self.refuse_doubled(client, id, None, message.tag()) {
                    self.refuse(client, id, None, message.tag(), &error);
                }
            }
            (Kind::Batch, _) => self.refuse_batch(client, message, &error),
            (Kind::Response, _) => self.fail_response(client, message, &error),
            (Kind::Invalid(_), _) => return false,
            _ => self.core.counters.dropped += 1,
        }
        true
    }
}

fn ends_something(message: View<'_>) -> bool {
    const ENDING: [&str; 5] = [CANCEL_REQUEST, MCP_CANCELLED, LSP_CANCEL, SESSION_CANCEL, SESSION_CLOSE];
    match message.kind() {
        Kind::Response | Kind::Invalid(_) => true,
        Kind::Batch => false,
        Kind::Request | Kind::Notification => ENDING.iter().any(|method| message.is_method(method)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_charge_is_released() {
        let mut memory = Memory::default();
        let mut one = memory.charge(Identity::ANYONE, 7);
        let two = memory.charge(Identity::ANYONE, 5);
        assert_eq!(memory.held(Identity::ANYONE), (12, 12));
        one.set(3);
        drop(two);
        assert_eq!(memory.held(Identity::ANYONE), (3, 3));
        drop(one);
        assert_eq!(memory.held(Identity::ANYONE), (0, 0));
    }
}
