//! Keys by which some agents read what the bus reads by another.
//!
//! The bus routes by `params.sessionId`. An agent may also read `session_id`, or `sessionId` in `_meta`, in methods of its own. Where all share
//! its process, that would reach sessions of others, so such keys are refused there.

use narrows_wire::{Kind, View, keys};
use serde_json::Value;

use super::Pass;
use super::api::{Outlet, PoolId};
use super::batch::BatchKey;
use super::mcp_access::is_unknown;
use super::route::misnamed;
use super::table::Client;

/// `sessionId` without case, `_` and `-`.
const FOLDED: &str = "sessionid";

impl<O: Outlet> Pass<'_, O> {
    /// Refuses a message that has a key like `sessionId` or `requestId` beside those, where the worker has sessions of others. Returns
    /// `true` if it is refused.
    pub(super) fn refuse_ambiguous(
        &mut self,
        client: Client,
        message: View<'_>,
        batch: Option<BatchKey>,
    ) -> bool {
        let pool = self.core.client(client).and_then(|state| state.pool);
        let is_shared = pool.is_some_and(|pool| {
            let pool = self.core.pool_of(pool);
            pool.is_shared() && pool.is_acp()
        });
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

    /// Returns `true` if a client's message of an extension could name another session to the agent than it does to the bus, and the agent
    /// has sessions of others.
    pub(super) fn misleads(&self, pool: PoolId, message: View<'_>) -> bool {
        let state = self.core.pool_of(pool);
        let is_judged =
            state.is_shared() && state.is_acp() && message.method().is_some_and(|name| is_unknown(&name));
        is_judged && mentions(message) != usize::from(message.session().is_some())
    }
}

/// Returns `true` if a message that belongs to no session has a key that names one to some reader. `null` is no name.
pub(super) fn names_any_session(message: View<'_>) -> bool {
    let found = mentions(message);
    if found != 1 {
        return found > 0;
    }
    let params = message.params().and_then(|params| serde_json::from_slice::<Value>(params).ok());
    !params.is_some_and(|params| params.get("sessionId").is_some_and(Value::is_null))
}

/// How many keys in the params name a session to some reader.
fn mentions(message: View<'_>) -> usize {
    // Two more for the quotes.
    let long = |key: &&[u8]| key.len() >= FOLDED.len() + 2;
    let params = message.params().unwrap_or_default();
    keys(params).filter(long).filter_map(decoded).filter(|key| folds_to(key, FOLDED)).count()
}

/// Returns `true` if a key is this one without regard to case, `_` and `-`. Some agents read JSON so.
pub(super) fn folds_to(key: &str, folded: &str) -> bool {
    narrows_wire::folds_to(key, folded, true)
}

/// The text of a key or a value that is one.
pub(super) fn decoded(raw: &[u8]) -> Option<String> {
    serde_json::from_slice(raw).ok()
}
