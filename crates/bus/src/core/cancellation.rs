//! The position of the id in a message that cancels a request: `params.requestId` in ACP and MCP, `params.id`
//! in LSP.
//!
//! The bus gives requests new ids in both directions, so it also replaces the id in a cancellation.
//! Unchanged, the id would be the id of another request, possibly of another client.

use std::ops::Range;

use narrows_acp::method::CANCEL_REQUEST;
use narrows_wire::{Part, View, keys, member, written_key_folds_to};

use super::Ctx;
use super::api::{CoreOutput, LogEvent};
use super::from_client::MCP_CANCELLED;
use super::progress::with_range_replaced;
use super::request_id::Digits;
use super::table::WorkerKey;

/// The cancellation method of LSP and of most JSON-RPC libraries.
pub(super) const LSP_CANCEL: &str = "$/cancelRequest";

pub(super) fn cancels_request(method: &str) -> bool {
    matches!(method, CANCEL_REQUEST | MCP_CANCELLED | LSP_CANCEL)
}

/// Returns the range, within the line, of the id of the request that a message cancels.
pub(super) fn cancelled_id(message: View<'_>) -> Option<Range<usize>> {
    if !message.is_method(LSP_CANCEL) {
        return message.part_range(Part::RequestId);
    }
    let id = member(message.params()?, "id").ok()??;
    let start = message.envelope().params.range().start;
    Some(start + id.start..start + id.end)
}

/// Returns `true` if every JSON reader finds the same request id in a cancellation. With two ids, an agent of
/// several clients could cancel the other request.
pub(super) fn names_one_request(message: View<'_>) -> bool {
    let params = message.params().unwrap_or_default();
    let names = |key: &&[u8]| ["id", "requestid"].iter().any(|name| written_key_folds_to(key, name, true));
    keys(params).filter(names).count() == 1
}

impl<O: CoreOutput> Ctx<'_, O> {
    /// Forwards a worker's LSP cancellation of its own request to the client, with the id that the client
    /// knows.
    pub(super) fn forward_lsp_cancel(&mut self, worker: WorkerKey, message: View<'_>) {
        let place = cancelled_id(message).filter(|_| message.session().is_none());
        let raw = place.as_ref().and_then(|place| message.bytes().get(place.clone()));
        let asked = raw.and_then(|raw| self.core.workers.get(worker)?.asking.get(raw).copied());
        let (Some(place), Some(raw), Some((client, number))) = (place, raw, asked) else {
            self.core.counters.dropped += 1;
            self.log(LogEvent::Dropped {
                worker: worker.into(),
                why: "cancels a request that is not pending",
            });
            return;
        };
        let line = with_range_replaced(message.bytes(), place, Digits::new(number).as_bytes());
        self.forward_to_client(worker, client, None, View::parse(&line), None);
        self.withdraw_shared(worker, raw);
    }
}
