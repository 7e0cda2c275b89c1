//! Reads the members that a gate in front of the agent adds in `_meta.aip44`.

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(borrow)]
    aip44: Option<&'a RawValue>,
}

/// Returns the gate's part of a `_meta` if it contains `key`. The text is searched before it is parsed,
/// because every message that passes a gate has such a part.
fn gate_member<'a>(meta: Option<&'a RawValue>, key: &str) -> Option<&'a RawValue> {
    let meta = meta.filter(|meta| meta.get().contains(key))?;
    serde_json::from_str::<Meta<'_>>(meta.get()).ok()?.aip44
}

pub(super) fn approval(meta: Option<&RawValue>) -> Option<&RawValue> {
    #[derive(Deserialize)]
    struct Approval {
        #[expect(dead_code, reason = "reading it is the check")]
        approval: String,
    }
    gate_member(meta, "\"approval\"").filter(|told| serde_json::from_str::<Approval>(told.get()).is_ok())
}

/// Returns the reason for which the gate has stopped the turn.
pub(super) fn interrupted(meta: Option<&RawValue>) -> Option<String> {
    #[derive(Deserialize)]
    struct Interrupted {
        interrupted: String,
    }
    let told = gate_member(meta, "\"interrupted\"")?;
    serde_json::from_str::<Interrupted>(told.get()).ok().map(|told| told.interrupted)
}
