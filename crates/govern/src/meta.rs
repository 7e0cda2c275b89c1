//! `_meta.aip44` on what passes, beside what others have put there.

use std::ops::Range;

use narrows_wire::{View, member};
use serde_json::{Value, json};

use crate::identity::Principal;
use crate::mandate::Mandate;

/// The member of `_meta` that is ours.
const KEY: &str = "aip44";
/// The member of that which tells history from what happens now.
const REPLAY: &str = "replay";

/// What is put into `_meta`, ready to be written.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    plain: Words,
    /// The same for what is history.
    replayed: Words,
}

#[derive(Clone, Debug)]
struct Words {
    /// `{…}`
    value: Vec<u8>,
    /// `"aip44":{…}`
    member: Vec<u8>,
    /// `{"aip44":{…}}`
    object: Vec<u8>,
    /// `"_meta":{"aip44":{…}}`
    whole: Vec<u8>,
}

impl Words {
    fn new(value: &Value) -> Self {
        let value = value.to_string().into_bytes();
        let member = [format!("\"{KEY}\":").as_bytes(), &value].concat();
        let object = [b"{".as_slice(), &member, b"}"].concat();
        let whole = [b"\"_meta\":".as_slice(), &object].concat();
        Self { value, member, object, whole }
    }
}

/// A line in parts: up to where something is put in, what is put in, and the rest.
pub(crate) type Marked<'a> = [&'a [u8]; 4];

impl Mark {
    pub(crate) fn new(mandate: &Mandate) -> Self {
        let mut value = about(mandate);
        let plain = Words::new(&value);
        value[REPLAY] = json!(true);
        Self { plain, replayed: Words::new(&value) }
    }

    /// A message with the mark in the object that is its params or its result. As it is if there is no such object, or
    /// somebody has marked it already, or it cannot be read unambiguously.
    pub(crate) fn put<'a>(&'a self, message: View<'a>) -> Marked<'a> {
        let bytes = message.bytes();
        let as_it_is: Marked<'a> = [bytes, b"", b"", b""];
        let Some((start, text)) = holder(message) else { return as_it_is };
        match member(text, "_meta") {
            Err(_) => as_it_is,
            Ok(None) => insert(bytes, start + 1, &self.plain.whole),
            Ok(Some(meta)) => {
                let inner = &text[meta.clone()];
                let at = start + meta.start;
                match (inner.first(), member(inner, KEY)) {
                    (Some(b'{'), Ok(None)) => insert(bytes, at + 1, &self.plain.member),
                    _ => as_it_is,
                }
            }
        }
    }

    /// A message that is history with a mark that says so, whatever it said of itself. `None` if there is no place for one.
    pub(crate) fn put_replayed<'a>(&'a self, message: View<'a>) -> Option<Marked<'a>> {
        let bytes = message.bytes();
        let (start, text) = holder(message)?;
        let replaced =
            |place: Range<usize>, by: &'a [u8]| [&bytes[..place.start], by, b"", &bytes[place.end..]];
        let Some(meta) = member(text, "_meta").ok()? else {
            return Some(insert(bytes, start + 1, &self.replayed.whole));
        };
        let (inner, at) = (&text[meta.clone()], start + meta.start);
        if inner.first() != Some(&b'{') {
            return Some(replaced(at..at + inner.len(), &self.replayed.object));
        }
        let Some(mark) = member(inner, KEY).ok()? else {
            return Some(insert(bytes, at + 1, &self.replayed.member));
        };
        let (inner, at) = (&inner[mark.clone()], at + mark.start);
        if inner.first() != Some(&b'{') {
            return Some(replaced(at..at + inner.len(), &self.replayed.value));
        }
        Some(match member(inner, REPLAY).ok()? {
            None => insert(bytes, at + 1, b"\"replay\":true"),
            Some(said) => replaced(at + said.start..at + said.end, b"true"),
        })
    }
}

/// The object that is a message's params or its result, and where it begins.
fn holder(message: View<'_>) -> Option<(usize, &[u8])> {
    let envelope = message.envelope();
    let span = if envelope.params.is_some() { envelope.params } else { envelope.result };
    let text = span.of(message.bytes())?;
    (text.first() == Some(&b'{')).then(|| (span.range().start, text))
}

fn about(mandate: &Mandate) -> Value {
    json!({"operator": mandate.operator, "tier": mandate.tier, "acp_rev": mandate.revision})
}

/// Marks the answer to `initialize`, which also tells the client who we take it for.
pub(crate) fn introduce(result: &mut Value, mandate: &Mandate, who: &Principal) {
    let mut mark = about(mandate);
    mark["identity"] = json!(who.id);
    mark["identity_method"] = json!(who.method.name());
    let meta = result.as_object_mut().map(|result| result.entry("_meta").or_insert_with(|| json!({})));
    if let Some(meta) = meta.and_then(Value::as_object_mut) {
        meta.entry(KEY).or_insert(mark);
    }
}

/// `what` behind the bracket that ends at `at`, with a comma if something follows.
fn insert<'a>(bytes: &'a [u8], at: usize, what: &'a [u8]) -> Marked<'a> {
    let next = bytes[at..].iter().find(|byte| !byte.is_ascii_whitespace());
    let comma: &[u8] = if next == Some(&b'}') { b"" } else { b"," };
    [&bytes[..at], what, comma, &bytes[at..]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: Option<&str>) {
        let mandate = Mandate { operator: "o".into(), tier: "basic".into(), ..Mandate::default() };
        let mark = Mark::new(&mandate);
        let written = String::from_utf8(mark.put(View::parse(line.as_bytes())).concat()).unwrap();
        let value: Value = serde_json::from_str(&written).unwrap();
        match expected {
            None => assert_eq!(written, line),
            Some(place) => {
                assert_eq!(value.pointer(place).unwrap()["operator"], "o", "{written}");
                let mut without = value.clone();
                let (parent, _) = place.rsplit_once('/').unwrap();
                without.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(KEY);
                let before: Value = serde_json::from_str(line).unwrap();
                let had_meta = before.pointer(parent).is_some();
                if !had_meta {
                    let (holder, _) = parent.rsplit_once('/').unwrap();
                    without.pointer_mut(holder).unwrap().as_object_mut().unwrap().remove("_meta");
                }
                assert_eq!(without, before);
            }
        }
    }

    #[test]
    fn the_mark_stands_beside_what_others_say() {
        check(r#"{"jsonrpc":"2.0","method":"m","params":{"a":1}}"#, Some("/params/_meta/aip44"));
        check(r#"{"jsonrpc":"2.0","method":"m","params":{ }}"#, Some("/params/_meta/aip44"));
        check(
            r#"{"jsonrpc":"2.0","method":"m","params":{"_meta" : {"x":{"aip44":1}},"a":[]}}"#,
            Some("/params/_meta/aip44"),
        );
        check(
            r#"{"jsonrpc":"2.0","method":"m","params":{"a":{"_meta":{}},"_meta":{}}}"#,
            Some("/params/_meta/aip44"),
        );
        check(r#"{"jsonrpc":"2.0","id":1,"result":{"b":{}}}"#, Some("/result/_meta/aip44"));
    }

    #[test]
    fn an_answer_tells_the_client_who_it_is_taken_for() {
        let who = Principal { id: "user:ada".into(), ..Principal::default() };
        let check = |mut result: Value, expected: &str| {
            introduce(&mut result, &Mandate::default(), &who);
            assert_eq!(result["_meta"][KEY]["identity"], expected, "{result}");
        };
        check(json!({"a": 1}), "user:ada");
        check(json!({"_meta": {"x": 1}}), "user:ada");
        check(json!({"_meta": {"aip44": {"identity": "theirs"}}}), "theirs");
    }

    #[test]
    fn what_has_no_place_for_it_passes_as_it_is() {
        check(r#"{"jsonrpc":"2.0","method":"m"}"#, None);
        check(r#"{"jsonrpc":"2.0","method":"m","params":[1]}"#, None);
        check(r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":null}}"#, None);
        check(r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":{"aip44":7}}}"#, None);
        check(r#"{"jsonrpc":"2.0","id":1,"result":null}"#, None);
        check(r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}"#, None);
    }

    #[test]
    fn history_says_so_whatever_it_said_of_itself() {
        let mark = Mark::new(&Mandate { operator: "o".into(), ..Mandate::default() });
        let check = |params: &str, operator: Option<&str>| {
            let line = format!(r#"{{"jsonrpc":"2.0","method":"m","params":{params}}}"#);
            let marked = mark.put_replayed(View::parse(line.as_bytes())).map(|parts| parts.concat());
            let value = marked.map(|line| serde_json::from_slice::<Value>(&line).unwrap());
            let said = value.as_ref().map(|value| &value["params"]["_meta"][KEY]);
            assert_eq!(said.map(|said| &said[REPLAY]), operator.map(|_| &Value::Bool(true)), "{params}");
            assert_eq!(said.map(|said| said["operator"].as_str().unwrap_or_default()), operator, "{params}");
        };
        check(r#"{"a":1}"#, Some("o"));
        check("{}", Some("o"));
        check(r#"{"_meta":null}"#, Some("o"));
        check(r#"{"_meta":{}}"#, Some("o"));
        check(r#"{"_meta":{"x":1}}"#, Some("o"));
        check(r#"{"_meta":{"aip44":7}}"#, Some("o"));
        check(r#"{"_meta":{"aip44":{"operator":"other"}}}"#, Some("other"));
        check(r#"{"_meta":{"aip44":{"operator":"other","replay":false}}}"#, Some("other"));
        check(r#"{"_meta":{"aip44":{"replay":true,"replay":false}}}"#, None);
        check(r#"{"_meta":{},"_meta":{}}"#, None);
        check("[]", None);
    }
}
