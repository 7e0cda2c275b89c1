//! Keys that some agents read as `sessionId` although the bus does not.
//!
//! The bus routes by `params.sessionId`. In methods of its own, an agent may also read `session_id`, or
//! `sessionId` in `_meta`. An agent that several clients share could thereby reach sessions of other clients,
//! so the bus refuses such keys.

use narrows_acp::method;
use narrows_wire::{Code, Envelope, Kind, RpcError, View, keys, member, written_key_folds_to};

use super::Ctx;
use super::api::{CoreOutput, PoolId};
use super::batch::BatchKey;
use super::cancellation::cancelled_id;
use super::errors::misnamed;
use super::mcp_access::is_unknown;
use super::state::RequestLocation;
use super::table::ClientKey;

/// Maximum size of a message of an unknown method to a shared worker. The event loop, which all clients
/// share, reads every key of the message.
const MAX_EXTENSION_BYTES: usize = 1 << 20;

const POOL: &str = "narrows/pool";

/// The key `sessionId` without case, `_` and `-`.
const FOLDED: &str = "sessionid";

impl<O: CoreOutput> Ctx<'_, O> {
    /// Refuses a message that some JSON reader could attribute to another session or request, if the agent
    /// may serve other clients too. Returns `true` if the message was refused.
    #[inline]
    pub(super) fn refuse_ambiguous(
        &mut self,
        client: ClientKey,
        message: View<'_>,
        batch: Option<BatchKey>,
    ) -> bool {
        let envelope = message.envelope();
        let is_routed = matches!(message.kind(), Kind::Request | Kind::Notification);
        let is_suspect = is_routed && (envelope.ambiguous || has_keys_beside(envelope));
        is_suspect && self.may_share(client, message) && self.refuse_suspect(client, message, batch)
    }

    fn refuse_suspect(&mut self, client: ClientKey, message: View<'_>, batch: Option<BatchKey>) -> bool {
        if !message.envelope().ambiguous && !self.misleads_beside_params(client, message) {
            return false;
        }
        match (message.kind(), message.id()) {
            (Kind::Request, Some(id)) => {
                if !self.refuse_doubled(client, id, batch, message.tag()) {
                    self.refuse(client, id, batch, message.tag(), &misnamed());
                }
                true
            }
            (Kind::Notification, _) => {
                self.core.counters.dropped += 1;
                true
            }
            _ => false,
        }
    }

    /// Returns `true` if a message of a client may go to an agent that has sessions of other clients. The
    /// client's pool decides only if the message itself does not.
    fn may_share(&self, client: ClientKey, message: View<'_>) -> bool {
        let is_shared = |pool: &super::PoolState| pool.is_shared() && pool.is_acp();
        let Some(state) = self.core.clients.get(client) else { return false };
        // A client that has not chosen a pool may still choose any pool.
        let Some(pool) = state.pool else { return self.core.pools.iter().any(is_shared) };
        if is_shared(self.core.pool_of(self.core.current(pool))) {
            return true;
        }
        if message.pool().is_some() || meta_pool(message).is_some() {
            return self.core.pools.iter().any(is_shared);
        }
        let session = message.session().and_then(|name| {
            let child = || self.core.children.find(&name).map(|child| child.root);
            self.core.sessions.find(&name).or_else(child)
        });
        let session = session.and_then(|key| self.core.sessions.get(key)).map(|session| session.pool);
        let cancelled = cancelled_id(message).and_then(|place| message.bytes().get(place));
        let request = match cancelled.and_then(|raw| state.inflight.get(raw)) {
            Some(RequestLocation::At(worker, _)) => Some(*worker),
            _ => None,
        };
        let worker = request.or_else(|| self.home_of_server(client, message).map(|(worker, _)| worker));
        let pools = [session, worker.map(|worker| self.pool_of_worker(worker))];
        let mut pools = pools.into_iter().flatten().flat_map(|pool| [pool, self.core.current(pool)]);
        pools.any(|pool| is_shared(self.core.pool_of(pool)))
    }

    pub(super) fn refuse_long_extension(&self, pool: PoolId, message: View<'_>) -> Option<RpcError> {
        let state = self.core.pool_of(pool);
        let is_long = message.bytes().len() > MAX_EXTENSION_BYTES && state.is_shared() && state.is_acp();
        let is_extension = is_long && message.method().is_some_and(|name| is_unknown(&name));
        is_extension
            .then(|| RpcError::new(Code::MessageTooLarge, "extension method too long for a shared worker"))
    }

    /// Returns `true` if the agent is shared and could read another session from the params of a client's
    /// message than the bus does. The content of a prompt is not checked.
    pub(super) fn misleads(&self, client: ClientKey, pool: PoolId, message: View<'_>) -> bool {
        let state = self.core.pool_of(pool);
        let is_judged = state.is_shared()
            && state.is_acp()
            && !message.is_method(method::SESSION_PROMPT)
            && !message.is_method(method::INITIALIZE);
        let names_another = || match message.session() {
            Some(_) => mentions(message) != 1,
            None => names_any_session(message),
        };
        is_judged && (names_another() || self.names_foreign_session(client, pool, message))
    }

    /// Returns `true` if a client's message names, outside its params, a session that the client may not use,
    /// or if some reader could see such a name. A name that belongs to no session is a tag, which is returned
    /// with the response.
    fn misleads_beside_params(&self, client: ClientKey, message: View<'_>) -> bool {
        let envelope = message.envelope();
        if !has_keys_beside(envelope) {
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

/// Returns `true` if a message has, outside its params, keys that may name a session.
#[inline]
fn has_keys_beside(envelope: &Envelope) -> bool {
    let keys = [envelope.top_session, envelope.pool, envelope.result, envelope.error];
    envelope.has_other_members || keys.iter().any(|span| span.is_some())
}

/// Returns `true` if a message that should belong to no session has a key that some reader takes for the name
/// of one. The value `null` is not a name.
pub(super) fn names_any_session(message: View<'_>) -> bool {
    let found = mentions(message);
    if found != 1 {
        return found > 0;
    }
    let params = message.params().unwrap_or_default();
    let own = member(params, "sessionId").ok().flatten();
    own.and_then(|own| params.get(own)) != Some(b"null")
}

/// Returns the number of keys in the params that some reader takes for the name of a session.
fn mentions(message: View<'_>) -> usize {
    count_mentions(message.params().unwrap_or_default())
}

/// Returns the number of keys in a JSON text that some reader takes for the name of a session.
fn count_mentions(text: &[u8]) -> usize {
    // A key has two bytes for its quotes. After the first quote, the name begins with the letter s, in ASCII
    // or not, a separator, or an escape.
    let may_name = |key: &[u8]| {
        key.len() >= FOLDED.len() + 2 && matches!(key[1], b's' | b'S' | b'_' | b'-' | b'\\' | 0xc5)
    };
    let names = |key: &[u8]| key == b"\"sessionId\"" || written_key_folds_to(key, FOLDED, true);
    keys(text).filter(|key| may_name(key) && names(key)).count()
}

/// Returns `true` if a key equals `folded` when case, `_` and `-` are ignored. Some agents compare keys this
/// way.
pub(super) fn folds_to(key: &str, folded: &str) -> bool {
    narrows_wire::folds_to(key, folded, true)
}

pub(super) fn decoded(raw: &[u8]) -> Option<String> {
    serde_json::from_slice(raw).ok()
}

pub(super) fn meta_pool(message: View<'_>) -> Option<String> {
    let params = message.params()?;
    let meta = params.get(member(params, "_meta").ok()??)?;
    decoded(meta.get(member(meta, POOL).ok()??)?)
}
