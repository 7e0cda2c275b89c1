//! Assembles tool calls from their deltas.
//!
//! A delta belongs to the call with the same index. A delta without an index belongs to the call with the
//! same id. A delta without both belongs to the last call at its position in the list. A new id at a known
//! index begins another call.

use narrows_base::json::{MAX_PEER_VALUES, count_values};
use serde::de::IgnoredAny;
use serde_json::Value;

use super::shape::{CallDelta, Function, Index, LenientText};
use crate::chat::Call;

const MAX_CALLS: usize = 1024;

/// Maximum number of bytes kept of arguments that are not a JSON object. The rest shows the model its
/// mistake, but is sent with every later request and stored with the session.
const MAX_UNUSABLE_BYTES: usize = 4 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {MAX_CALLS} tool calls in one answer")]
pub(super) struct TooMany;

/// Kind of end of an answer, as far as tool calls are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The answer is complete, and so are all calls.
    Whole,
    /// A limit cut off the answer, perhaps within a tool call.
    Cut,
    Refused,
}

#[derive(Debug, Default)]
pub(super) struct Calls {
    drafts: Vec<Draft>,
    /// Number of JSON values in `extra` fields. Once it exceeds [`MAX_PEER_VALUES`], further fields are
    /// dropped.
    extra_values: usize,
}

#[derive(Debug)]
struct Draft {
    index: Option<u64>,
    /// Position of the call in the list of the chunk in which the call began.
    place: usize,
    call: Call,
}

impl Calls {
    pub(super) fn is_empty(&self) -> bool {
        self.drafts.is_empty()
    }

    /// Adds one entry of a chunk's list of calls. Returns the tool's name when it first appears.
    pub(super) fn add_delta(
        &mut self,
        place: usize,
        delta: CallDelta<'_>,
    ) -> Result<Option<String>, TooMany> {
        let CallDelta { index: Index(index), id: LenientText(id), function, extra } = delta;
        let Function { name, arguments } = function.unwrap_or_default();
        let (name, arguments) = (&*name.0, &*arguments.0);
        let found = self.find(index, &id, place);
        let found = found.filter(|found| !self.drafts[*found].call.is_before(&id, name, arguments));
        let number = match found {
            Some(number) => number,
            None if self.drafts.len() == MAX_CALLS => return Err(TooMany),
            None => {
                self.drafts.push(Draft { index, place, call: Call::default() });
                self.drafts.len() - 1
            }
        };
        let call = &mut self.drafts[number].call;
        if call.id.is_empty() {
            call.id.push_str(&id);
        }
        // Some servers repeat the whole call at the end, so repeated arguments are not appended.
        if !(call.arguments == arguments && is_object(arguments)) {
            call.arguments.push_str(arguments);
        }
        if !extra.is_empty() {
            let count = |value: &Value| count_values(value.to_string().as_bytes(), MAX_PEER_VALUES);
            self.extra_values += extra.values().map(count).sum::<usize>();
            if self.extra_values <= MAX_PEER_VALUES {
                call.extra.extend(extra);
            }
        }
        let is_first = call.name.is_empty() && !name.is_empty();
        // Some servers repeat the tool's name in every delta, and others extend it.
        if name.len() > call.name.len() && name.starts_with(&*call.name) {
            name.clone_into(&mut call.name);
        }
        Ok(is_first.then(|| name.to_owned()))
    }

    /// Returns the complete calls, and then the broken calls, which must not be run.
    pub(super) fn finish(mut self, end: End) -> (Vec<Call>, Vec<Call>) {
        if self.drafts.iter().all(|draft| draft.index.is_some()) {
            self.drafts.sort_by_key(|draft| draft.index);
        }
        let (mut whole, mut broken): (Vec<Call>, Vec<Call>) = (Vec::new(), Vec::new());
        let last = self.drafts.len().saturating_sub(1);
        for (number, Draft { mut call, .. }) in self.drafts.into_iter().enumerate() {
            let is_blank = call.arguments.trim().is_empty();
            if call.name.is_empty() && is_blank {
                tracing::debug!("tool call without name and arguments");
                continue;
            }
            let is_cut = match end {
                End::Whole => false,
                End::Cut if is_blank => number == last,
                End::Cut => !is_json(&call.arguments),
                End::Refused => true,
            };
            if call.arguments.len() > MAX_UNUSABLE_BYTES && !is_object(&call.arguments) {
                shorten(&mut call.arguments);
            }
            if is_blank && !is_cut {
                "{}".clone_into(&mut call.arguments);
            }
            // A tool result refers to its call by the id, so every call needs a unique id.
            if call.id.is_empty() || whole.iter().chain(&broken).any(|other| other.id == call.id) {
                call.id = format!("call_{:016x}", fastrand::u64(..));
            }
            if is_cut || call.name.is_empty() { broken.push(call) } else { whole.push(call) }
        }
        (whole, broken)
    }

    fn find(&self, index: Option<u64>, id: &str, place: usize) -> Option<usize> {
        // The search starts at the end, because most deltas belong to the last call.
        self.drafts.iter().rposition(|draft| match index {
            Some(_) => draft.index == index,
            None if !id.is_empty() => draft.call.id == id,
            None => draft.place == place,
        })
    }
}

impl Call {
    /// Returns `true` if a delta with these fields does not continue this call, but begins another one.
    fn is_before(&self, id: &str, name: &str, arguments: &str) -> bool {
        if !id.is_empty() && !self.id.is_empty() {
            return id != self.id;
        }
        if name.is_empty() || self.name.is_empty() {
            return false;
        }
        // Without ids, a different tool name begins another call, and so do new arguments after complete
        // ones.
        !name.starts_with(&*self.name)
            || (is_object(&self.arguments) && arguments.trim_start().starts_with('{'))
    }
}

/// Returns `true` if `text` is a complete JSON object. Checks the first and last byte before parsing.
fn is_object(text: &str) -> bool {
    let text = text.trim();
    text.starts_with('{') && text.ends_with('}') && is_json(text)
}

/// Cuts arguments that are not a JSON object. The appended note keeps the arguments invalid as JSON.
fn shorten(arguments: &mut String) {
    let is_boundary = |at: &usize| arguments.is_char_boundary(*at);
    let kept = (0..=MAX_UNUSABLE_BYTES).rev().find(is_boundary).unwrap_or_default();
    let rest = arguments.len() - kept;
    arguments.truncate(kept);
    arguments.push_str(&format!("… ({rest} more bytes)"));
    arguments.shrink_to_fit();
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// Feeds the lists of deltas in `chunks`. Returns the complete calls, the broken calls, and the reported
    /// names.
    fn assemble(chunks: &[Value], end: End) -> (Vec<Call>, Vec<Call>, Vec<String>) {
        let mut calls = Calls::default();
        let mut told = Vec::new();
        for chunk in chunks {
            let text = chunk.to_string();
            let entries: Vec<CallDelta<'_>> = serde_json::from_str(&text).expect("entries");
            for (place, entry) in entries.into_iter().enumerate() {
                told.extend(calls.add_delta(place, entry).expect("few calls"));
            }
        }
        let (whole, broken) = calls.finish(end);
        (whole, broken, told)
    }

    fn triples(calls: &[Call]) -> Vec<(&str, &str, &str)> {
        calls.iter().map(|call| (&*call.id, &*call.name, &*call.arguments)).collect()
    }

    #[track_caller]
    fn check(chunks: &[Value], expected: &[(&str, &str, &str)]) {
        let (whole, broken, told) = assemble(chunks, End::Whole);
        assert_eq!(triples(&whole), expected);
        assert_eq!(broken, []);
        let mut names: Vec<&str> = expected.iter().map(|(_, name, _)| *name).collect();
        let mut told: Vec<&str> = told.iter().map(|name| &**name).collect();
        names.sort_unstable();
        told.sort_unstable();
        assert_eq!(told, names, "each name is reported once");
    }

    #[test]
    fn pieces_are_joined_by_index() {
        check(
            &[
                json!([{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]),
                json!([{"index": 0, "function": {"arguments": "{\"x\""}}]),
                json!([{"index": 1, "id": "b", "function": {"name": "g", "arguments": "{"}}]),
                json!([{"index": 0, "function": {"arguments": ":1}"}}, {"index": 1, "function": {"arguments": "}"}}]),
            ],
            &[("a", "f", "{\"x\":1}"), ("b", "g", "{}")],
        );
        // The server repeats the whole call in every delta.
        check(
            &[
                json!([{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}]),
                json!([{"index": 0, "id": "a", "function": {"name": "f", "arguments": "}"}}]),
            ],
            &[("a", "f", "{}")],
        );
        // The id of the call arrives late, and its name grows.
        check(
            &[
                json!([{"index": 0, "id": null, "function": {"name": "f"}}]),
                json!([{"index": 0, "id": "a", "function": {"name": "", "arguments": "{}"}}]),
            ],
            &[("a", "f", "{}")],
        );
    }

    #[test]
    fn calls_are_in_the_order_of_their_indexes() {
        check(
            &[
                json!([{"index": 2, "id": "c", "function": {"name": "h", "arguments": "{}"}}]),
                json!([{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]),
                json!([{"index": 18_446_744_073_709_551_615u64, "id": "z", "function": {"name": "z", "arguments": "{}"}}]),
            ],
            &[("a", "f", "{}"), ("c", "h", "{}"), ("z", "z", "{}")],
        );
    }

    #[test]
    fn a_new_id_at_a_used_index_is_a_new_call() {
        check(
            &[
                json!([{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{\"x\":1}"}}]),
                json!([{"index": 0, "id": "b", "function": {"name": "f", "arguments": "{\"x\""}}]),
                json!([{"index": 0, "id": "", "function": {"arguments": ":2}"}}]),
            ],
            &[("a", "f", "{\"x\":1}"), ("b", "f", "{\"x\":2}")],
        );
    }

    #[test]
    fn without_an_index_the_id_and_then_the_position_decides() {
        check(
            &[
                json!([{"id": "a", "function": {"name": "f", "arguments": "{\"x\""}}]),
                json!([{"function": {"arguments": ":1}"}}]),
                json!([{"id": "b", "function": {"name": "f", "arguments": "{\"x\""}}]),
                json!([{"function": {"arguments": ":2}"}}]),
                json!([{"id": "a", "function": {"arguments": " "}}]),
            ],
            &[("a", "f", "{\"x\":1} "), ("b", "f", "{\"x\":2}")],
        );
        let (whole, _, _) = assemble(
            &[
                json!([{"function": {"name": "f", "arguments": "{\"x\":1}"}}, {"function": {"name": "g", "arguments": "{"}}]),
                json!([{}, {"function": {"arguments": "}"}}]),
                json!([{"function": {"name": "f", "arguments": "{\"x\":1}"}}]),
                json!([{"function": {"name": "h", "arguments": {"y": 2}}}]),
            ],
            End::Whole,
        );
        let calls: Vec<(&str, &str)> = whole.iter().map(|call| (&*call.name, &*call.arguments)).collect();
        assert_eq!(calls, [("f", "{\"x\":1}"), ("g", "{}"), ("f", "{\"x\":1}"), ("h", "{\"y\":2}")]);
    }

    #[test]
    fn a_repeated_whole_call_counts_once() {
        let entry = json!([{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{\"x\":1}"}}]);
        check(&[entry.clone(), entry], &[("a", "f", "{\"x\":1}")]);
    }

    #[test]
    fn every_call_has_an_id_of_its_own_and_arguments() {
        let (whole, broken, _) = assemble(
            &[
                json!([{"index": 0, "id": "", "function": {"name": "f", "arguments": ""}}]),
                json!([{"index": 1, "id": "a", "function": {"name": "g", "arguments": " "}}]),
                json!([{"index": 2, "id": "a", "function": {"name": "h"}}, {"index": 3, "id": "ghost"}]),
                json!([{"index": 4, "id": "nameless", "function": {"arguments": "{}"}}]),
            ],
            End::Whole,
        );
        let names: Vec<(&str, &str)> = whole.iter().map(|call| (&*call.name, &*call.arguments)).collect();
        assert_eq!(names, [("f", "{}"), ("g", "{}"), ("h", "{}")]);
        assert!(whole[0].id.starts_with("call_") && whole[0].id.len() == 21);
        assert_eq!(whole[1].id, "a");
        assert!(whole[2].id.starts_with("call_"));
        assert_eq!(triples(&broken), [("nameless", "", "{}")]);
    }

    #[test]
    fn unknown_fields_are_kept() {
        let (whole, _, _) = assemble(
            &[
                json!([{"index": 0, "id": "a", "function": {"name": "f"}, "extra_content": {"google": {"thought_signature": "s"}}}]),
                json!([{"index": 0, "other": 1, "extra_content": null}]),
            ],
            End::Whole,
        );
        let expected = json!({"extra_content": {"google": {"thought_signature": "s"}}, "other": 1});
        assert_eq!(Value::Object(whole[0].extra.clone()), expected);
    }

    #[test]
    fn a_call_that_was_cut_off_does_not_run() {
        let chunks = |last: &str| {
            [
                json!([{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]),
                json!([{"index": 1, "id": "b", "function": {"name": "g", "arguments": last}}]),
            ]
        };
        let check = |last: &str, end: End, whole: &[&str], broken: &[&str]| {
            let (found_whole, found_broken, _) = assemble(&chunks(last), end);
            let ids = |calls: &[Call]| calls.iter().map(|call| call.id.clone()).collect::<Vec<_>>();
            assert_eq!(
                (ids(&found_whole), ids(&found_broken)),
                (
                    whole.iter().map(|id| (*id).to_owned()).collect(),
                    broken.iter().map(|id| (*id).to_owned()).collect(),
                ),
                "{last} {end:?}"
            );
        };
        check("{\"x\":", End::Cut, &["a"], &["b"]);
        check("", End::Cut, &["a"], &["b"]);
        check("{\"x\":1}", End::Cut, &["a", "b"], &[]);
        // If the answer is complete, the model gets an error about the invalid JSON.
        check("{\"x\":", End::Whole, &["a", "b"], &[]);
        check("{\"x\":1}", End::Refused, &[], &["a", "b"]);
    }

    #[test]
    fn the_number_of_calls_is_limited() {
        let mut calls = Calls::default();
        for number in 0..=MAX_CALLS {
            let text = format!(r#"{{"id":"{number}"}}"#);
            let taken = calls.add_delta(0, serde_json::from_str(&text).expect("an entry"));
            assert_eq!(taken.is_err(), number == MAX_CALLS);
        }
    }

    proptest! {
        #[test]
        fn arguments_are_joined_for_any_split(
            calls in proptest::collection::vec(("[a-z_]{1,12}", ".{0,40}", any::<bool>()), 1..5),
            size in 1..7usize,
            order in any::<u64>(),
        ) {
            // Deltas of different calls are interleaved. Deltas of one call stay in order.
            let mut queues: Vec<Vec<Value>> = calls.iter().enumerate().map(|(index, (name, text, repeats))| {
                let arguments = json!({"text": text}).to_string();
                let letters: Vec<char> = arguments.chars().collect();
                let mut pieces: Vec<Value> = letters.chunks(size).map(|piece| {
                    let piece: String = piece.iter().collect();
                    match repeats {
                        true => json!({"index": index, "id": format!("id{index}"), "function": {"name": name, "arguments": piece}}),
                        false => json!({"index": index, "function": {"arguments": piece}}),
                    }
                }).collect();
                pieces.insert(0, json!({"index": index, "id": format!("id{index}"), "function": {"name": name}}));
                pieces.reverse();
                pieces
            }).collect();
            let mut random = fastrand::Rng::with_seed(order);
            let mut chunks = Vec::new();
            while queues.iter().any(|queue| !queue.is_empty()) {
                let chunk: Vec<Value> =
                    queues.iter_mut().filter(|_| random.bool()).filter_map(Vec::pop).collect();
                chunks.push(Value::Array(chunk));
            }
            let (whole, broken, _) = assemble(&chunks, End::Whole);
            prop_assert_eq!(broken, []);
            prop_assert_eq!(whole.len(), calls.len());
            for (index, (call, (name, text, _))) in whole.iter().zip(&calls).enumerate() {
                prop_assert_eq!(&call.id, &format!("id{index}"));
                prop_assert_eq!(&call.name, name);
                prop_assert_eq!(&call.arguments, &json!({"text": text}).to_string());
            }
        }
    }

    /// Invalid arguments are sent with every later request of the turn, so they must stay short.
    #[test]
    fn arguments_that_are_not_an_object_are_cut() {
        let call = |arguments: &str| json!([{"id": "a", "function": {"name": "f", "arguments": arguments}}]);
        let deep = "[".repeat(1_000_000);
        let list = format!("[{}]", "1,".repeat(10_000) + "1");
        let too_deep = format!("{}{}", r#"{"a":"#.repeat(5000), "}".repeat(5000));
        let odd = format!("{{{}}}", "é".repeat(5000));
        for written in [&deep, &list, &too_deep, &odd] {
            for end in [End::Whole, End::Cut] {
                let (whole, broken, _) = assemble(&[call(written)], end);
                let [call] = &*[whole, broken].concat() else { panic!("one call") };
                assert!(call.arguments.len() < MAX_UNUSABLE_BYTES + 100, "{}", call.arguments.len());
                assert!(call.arguments.ends_with(" more bytes)") && !is_json(&call.arguments));
                assert_eq!(call.arguments.get(..100), written.get(..100));
            }
        }
        let long = format!(r#"{{"content":"{}"}}"#, "x".repeat(1_000_000));
        assert_eq!(assemble(&[call(&long)], End::Whole).0[0].arguments, long);
    }
}
