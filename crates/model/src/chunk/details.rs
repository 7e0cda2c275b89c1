//! Assembles `reasoning_details`, which OpenRouter requires unchanged in the next request.

use narrows_base::json::{MAX_PEER_VALUES, count_values};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Text fields of an entry that arrive in pieces.
const GROWING: [&str; 2] = ["text", "summary"];

/// Fields that identify an entry of `reasoning_details`.
const IDENTITY: [&str; 3] = ["type", "index", "id"];

/// The entries that have arrived. If they exceed [`MAX_PEER_VALUES`] JSON values, all are dropped.
#[derive(Debug, Default)]
pub(super) struct Details {
    entries: Vec<Value>,
    values: usize,
}

impl Details {
    /// Adds the entries of one chunk. An entry that continues the last one is merged into it.
    pub(super) fn add_chunk(&mut self, raw: &RawValue) {
        if self.is_overfull() {
            return;
        }
        let chunk_values = count_values(raw.get().as_bytes(), MAX_PEER_VALUES);
        if chunk_values > MAX_PEER_VALUES {
            self.values = chunk_values;
        } else if let Ok(entries) = serde_json::from_str::<Vec<Value>>(raw.get()) {
            entries.into_iter().for_each(|entry| self.add(entry));
        } else {
            tracing::debug!("reasoning details ignored: not a list");
        }
        if self.is_overfull() {
            tracing::warn!("reasoning details ignored: too many values");
            self.entries = Vec::new();
        }
    }

    fn add(&mut self, entry: Value) {
        let count = |value: &Value| count_values(value.to_string().as_bytes(), MAX_PEER_VALUES);
        match (self.entries.last_mut(), entry) {
            (Some(Value::Object(last)), Value::Object(entry)) if continues(last, &entry) => {
                // Text that is appended to an existing field does not count as a new value.
                let others =
                    entry.iter().filter(|(name, value)| !value.is_string() || !last.contains_key(*name));
                self.values += others.map(|(_, value)| count(value)).sum::<usize>();
                grow(last, entry);
            }
            (_, entry) => {
                self.values += count(&entry);
                self.entries.push(entry);
            }
        }
    }

    fn is_overfull(&self) -> bool {
        self.values > MAX_PEER_VALUES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn into_value(self) -> Option<Value> {
        (!self.entries.is_empty()).then_some(Value::Array(self.entries))
    }
}

/// Returns `true` if `entry` continues `last`. Only texts arrive in pieces; encrypted data arrives as a
/// whole.
fn continues(last: &Map<String, Value>, entry: &Map<String, Value>) -> bool {
    let present =
        |entry: &Map<String, Value>, name: &str| entry.get(name).is_some_and(|value| !value.is_null());
    // A signature belongs to the last piece of an entry, with or without text.
    let is_piece = GROWING.iter().any(|name| present(entry, name)) || present(entry, "signature");
    let is_open = GROWING.iter().any(|name| present(last, name)) && !present(last, "signature");
    let is_same = IDENTITY.iter().all(|name| match (last.get(*name), entry.get(*name)) {
        (Some(first), Some(second)) => first == second || first.is_null() || second.is_null(),
        // A continuing entry may omit its index and id, but not its type.
        _ => *name != "type",
    });
    is_piece && is_open && is_same
}

fn grow(last: &mut Map<String, Value>, entry: Map<String, Value>) {
    for (name, value) in entry {
        match (last.get_mut(&name), value) {
            (_, Value::Null) => {}
            (Some(Value::String(text)), Value::String(more)) if GROWING.contains(&&*name) => {
                text.push_str(&more);
            }
            (_, value) => {
                last.insert(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn joined(chunks: &[Value]) -> Option<Value> {
        let mut details = Details::default();
        for chunk in chunks {
            details.add_chunk(&serde_json::value::to_raw_value(chunk).expect("JSON"));
        }
        details.into_value()
    }

    #[track_caller]
    fn check(chunks: &[Value], expected: &Value) {
        assert_eq!(joined(chunks), Some(expected.clone()));
    }

    #[test]
    fn too_many_values_are_dropped() {
        let many = |count: usize| json!([{"type": "x", "data": vec![0; count]}]);
        assert!(joined(&[many(MAX_PEER_VALUES - 10)]).is_some());
        assert_eq!(joined(&[many(MAX_PEER_VALUES)]), None);
        let half = many(MAX_PEER_VALUES / 2);
        assert_eq!(joined(&[half.clone(), half, json!([{"type": "y"}])]), None);
        // All pieces of one text count as one value.
        let piece = json!([{"type": "reasoning.text", "text": "a", "index": 0}]);
        let chunks = vec![piece; MAX_PEER_VALUES / 2];
        assert!(joined(&chunks).is_some());
    }

    #[test]
    fn pieces_of_a_text_are_joined() {
        check(
            &[
                json!([{"type": "reasoning.text", "text": "a", "index": 0, "format": "f", "signature": null}]),
                json!([{"type": "reasoning.text", "text": "b", "index": 0}]),
                json!([{"type": "reasoning.text", "text": "", "index": 0, "signature": "s"}]),
                json!([{"type": "reasoning.text", "text": "c", "index": 0}]),
                json!([{"type": "reasoning.text", "text": "d", "index": 1}]),
            ],
            &json!([
                {"type": "reasoning.text", "text": "ab", "index": 0, "format": "f", "signature": "s"},
                {"type": "reasoning.text", "text": "c", "index": 0},
                {"type": "reasoning.text", "text": "d", "index": 1},
            ]),
        );
        check(
            &[
                json!([{"type": "reasoning.text", "text": "a"}]),
                json!([{"type": "reasoning.text", "signature": "s"}]),
            ],
            &json!([{"type": "reasoning.text", "text": "a", "signature": "s"}]),
        );
    }

    #[test]
    fn other_entries_are_not_joined() {
        let encrypted = json!({"type": "reasoning.encrypted", "data": "x", "id": "1", "index": 0});
        check(&[json!([encrypted]), json!([encrypted])], &json!([encrypted, encrypted]));
        let text = json!({"type": "reasoning.text", "text": "a"});
        let summary = json!({"type": "reasoning.summary", "summary": "b"});
        check(&[json!([text, summary, encrypted, 7])], &json!([text, summary, encrypted, 7]));
        assert_eq!(joined(&[json!([]), json!({"a": 1}), json!("x")]), None);
    }

    proptest! {
        #[test]
        fn a_text_is_joined_for_any_split(pieces in proptest::collection::vec(".{0,8}", 1..10)) {
            let chunks: Vec<Value> = pieces
                .iter()
                .map(|piece| json!([{"type": "reasoning.text", "text": piece, "index": 0}]))
                .collect();
            let expected = json!([{"type": "reasoning.text", "text": pieces.concat(), "index": 0}]);
            prop_assert_eq!(joined(&chunks), Some(expected));
        }
    }
}
