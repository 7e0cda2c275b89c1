//! What a gate in front of the agent says of its own, in `_meta.aip44`: nothing of it is the agent's.

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(borrow)]
    aip44: Option<&'a RawValue>,
}

/// Our member of a `_meta` that has `key` in it. A glance first, because whatever comes through a gate has a mark.
fn gate_member<'a>(meta: Option<&'a RawValue>, key: &str) -> Option<&'a RawValue> {
    let meta = meta.filter(|meta| meta.get().contains(key))?;
    serde_json::from_str::<Meta<'_>>(meta.get()).ok()?.aip44
}

/// What it says of an approval.
pub(super) fn approval(meta: Option<&RawValue>) -> Option<&RawValue> {
    #[derive(Deserialize)]
    struct Approval {
        #[expect(dead_code, reason = "reading it is the check")]
        approval: String,
    }
    gate_member(meta, "\"approval\"").filter(|told| serde_json::from_str::<Approval>(told.get()).is_ok())
}

/// Why it has stopped the turn.
pub(super) fn interrupted(meta: Option<&RawValue>) -> Option<String> {
    #[derive(Deserialize)]
    struct Interrupted {
        interrupted: String,
    }
    let told = gate_member(meta, "\"interrupted\"")?;
    serde_json::from_str::<Interrupted>(told.get()).ok().map(|told| told.interrupted)
}
