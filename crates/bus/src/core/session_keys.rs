//! Keys by which some agents read what the bus reads by another.
//!
//! The bus routes by `params.sessionId`. An agent may also read `session_id`, or `sessionId` in `_meta`, in methods of its own. Where all share
//! its process, that would reach sessions of others, so such keys are refused there.

use narrows_acp::method;
use narrows_wire::{Code, Kind, RpcError, View, keys, member, written_key_folds_to};

use super::Ctx;
use super::api::{CoreOutput, PoolId};
use super::batch::BatchKey;
use super::errors::misnamed;
use super::mcp_access::is_unknown;
use super::table::ClientKey;

/// The longest message of a method that the protocol does not have, where all share the workers. All its keys are looked at, by the
/// loop that serves everybody.
const MAX_EXTENSION_BYTES: usize = 1 << 20;

/// The key in `_meta` by which a client names a pool.
const POOL: &str = "narrows/pool";

/// `sessionId` without case, `_` and `-`.
const FOLDED: &str = "sessionid";

impl<O: CoreOutput> Ctx<'_, O> {
    /// Refuses a message that has a key like `sessionId` or `requestId` beside those, where the worker has sessions of others. Returns
    /// `true` if it is refused.
    pub(super) fn refuse_ambiguous(
        &mut self,
        client: ClientKey,
        message: View<'_>,
        batch: Option<BatchKey>,
    ) -> bool {
        let is_shared = self.may_share(client);
        match (message.kind(), message.id()) {
            (Kind::Request, Some(id)) if is_shared => {
                if !self.refuse_doubled(client, id, batch, message.tag()) {
                    self.refuse(client, id, batch, message.tag(), &misnamed());
                }
                true
            }
            (Kind::Notification, _) if is_shared => {
                self.core.counters.dropped += 1;
                true
            }
            _ => false,
        }
    }

    /// Returns `true` if a client's messages may go to an agent that has sessions of others.
    fn may_share(&self, client: ClientKey) -> bool {
        let is_shared = |pool: &super::PoolState| pool.is_shared() && pool.is_acp();
        match self.core.clients.get(client).and_then(|state| state.pool) {
            Some(pool) => is_shared(self.core.pool_of(pool)),
            // It has not chosen one yet.
            None => self.core.pools.iter().any(is_shared),
        }
    }

    /// Refuses a message of a method that the protocol does not have if it is too long, where all share the workers.
    pub(super) fn refuse_long_extension(&self, pool: PoolId, message: View<'_>) -> Option<RpcError> {
        let state = self.core.pool_of(pool);
        let is_long = message.bytes().len() > MAX_EXTENSION_BYTES && state.is_shared() && state.is_acp();
        let is_extension = is_long && message.method().is_some_and(|name| is_unknown(&name));
        is_extension
            .then(|| RpcError::new(Code::MessageTooLarge, "extension method too long for a shared worker"))
    }

    /// Returns `true` if the params of a client's message could name another session to the agent than they do to the bus, and the agent
    /// has sessions of others. What stands in a prompt is content.
    pub(super) fn misleads(&self, pool: PoolId, message: View<'_>) -> bool {
        let state = self.core.pool_of(pool);
        let is_judged = state.is_shared()
            && state.is_acp()
            && !message.is_method(method::SESSION_PROMPT)
            && !message.is_method(method::INITIALIZE);
        is_judged
            && match message.session() {
                Some(_) => mentions(message) != 1,
                None => names_any_session(message),
            }
    }

    /// Returns `true` if a client's message names a session beside its params that is not the client's, or may do so to some reader, and the
    /// agent has sessions of others. A name that is nobody's is a tag, which comes back with the answer.
    pub(super) fn misleads_beside_params(&self, client: ClientKey, message: View<'_>) -> bool {
        if !self.may_share(client) {
            return false;
        }
        let envelope = message.envelope();
        let has_keys_beside = envelope.has_other_members
            || [envelope.top_session, envelope.pool, envelope.result, envelope.error]
                .iter()
                .any(|span| span.is_some());
        if !has_keys_beside {
            return false;
        }
        let (bytes, params) = (message.bytes(), envelope.params);
        let (before, behind) = match params.is_some() {
            true => (bytes.get(..params.range().start), bytes.get(params.range().end..)),
            false => (Some(bytes), None),
        };
        let beside = [before, behind].into_iter().flatten().map(count_mentions).sum::<usize>();
        match message.top_session() {
            Some(top) => beside != 1 || self.is_foreign(client, &top),
            None => beside > 0,
        }
    }
}

/// Returns `true` if a message that belongs to no session has a key that names one to some reader. `null` is no name.
pub(super) fn names_any_session(message: View<'_>) -> bool {
    let found = mentions(message);
    if found != 1 {
        return found > 0;
    }
    let params = message.params().unwrap_or_default();
    let own = member(params, "sessionId").ok().flatten();
    own.and_then(|own| params.get(own)) != Some(b"null")
}

/// How many keys in the params name a session to some reader.
fn mentions(message: View<'_>) -> usize {
    count_mentions(message.params().unwrap_or_default())
}

/// How many keys in a text name a session to some reader.
fn count_mentions(text: &[u8]) -> usize {
    // Two more for the quotes. Behind the first is the first letter, in ASCII or not, a separator, or an escape.
    let may_name = |key: &[u8]| {
        key.len() >= FOLDED.len() + 2 && matches!(key[1], b's' | b'S' | b'_' | b'-' | b'\\' | 0xc5)
    };
    let names = |key: &[u8]| key == b"\"sessionId\"" || written_key_folds_to(key, FOLDED, true);
    keys(text).filter(|key| may_name(key) && names(key)).count()
}

/// Returns `true` if a key is this one without regard to case, `_` and `-`. Some agents read JSON so.
pub(super) fn folds_to(key: &str, folded: &str) -> bool {
    narrows_wire::folds_to(key, folded, true)
}

/// The text of a key or a value that is one.
pub(super) fn decoded(raw: &[u8]) -> Option<String> {
    serde_json::from_slice(raw).ok()
}

/// Returns the pool that a message names in `params._meta["narrows/pool"]`.
pub(super) fn meta_pool(message: View<'_>) -> Option<String> {
    let params = message.params()?;
    let meta = params.get(member(params, "_meta").ok()??)?;
    decoded(meta.get(member(meta, POOL).ok()??)?)
}
