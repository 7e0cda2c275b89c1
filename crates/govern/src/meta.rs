//! `_meta.aip44` on what passes, beside what others have put there.

use narrows_wire::{View, member};
use serde_json::json;

use crate::mandate::Mandate;

/// The member of `_meta` that is ours.
const KEY: &str = "aip44";

/// What is put into `_meta`, ready to be written.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    /// `"aip44":{…}`
    member: Vec<u8>,
    /// `"_meta":{"aip44":{…}}`
    whole: Vec<u8>,
}

/// A line in three parts: up to where something is put in, what is put in, and the rest.
pub(crate) type Marked<'a> = [&'a [u8]; 4];

impl Mark {
    pub(crate) fn new(mandate: &Mandate) -> Self {
        let value = json!({"operator": mandate.operator, "tier": mandate.tier, "acp_rev": mandate.revision});
        let member = format!("\"{KEY}\":{value}").into_bytes();
        let whole = [b"\"_meta\":{".as_slice(), &member, b"}"].concat();
        Self { member, whole }
    }

    /// A message with the mark in the object that is its params or its result. As it is if there is no such object, or
    /// somebody has marked it already, or it cannot be read unambiguously.
    pub(crate) fn put<'a>(&'a self, message: View<'a>) -> Marked<'a> {
        let bytes = message.bytes();
        let as_it_is: Marked<'a> = [bytes, b"", b"", b""];
        let envelope = message.envelope();
        let span = if envelope.params.is_some() { envelope.params } else { envelope.result };
        if !span.is_some() {
            return as_it_is;
        }
        let start = span.range().start;
        let text = &bytes[span.range()];
        if text.first() != Some(&b'{') {
            return as_it_is;
        }
        match member(text, "_meta") {
            Err(_) => as_it_is,
            Ok(None) => insert(bytes, start + 1, &self.whole),
            Ok(Some(meta)) => {
                let inner = &text[meta.clone()];
                let at = start + meta.start;
                match (inner.first(), member(inner, KEY)) {
                    (Some(b'{'), Ok(None)) => insert(bytes, at + 1, &self.member),
                    _ => as_it_is,
                }
            }
        }
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
    use serde_json::Value;

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
    fn what_has_no_place_for_it_passes_as_it_is() {
        check(r#"{"jsonrpc":"2.0","method":"m"}"#, None);
        check(r#"{"jsonrpc":"2.0","method":"m","params":[1]}"#, None);
        check(r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":null}}"#, None);
        check(r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":{"aip44":7}}}"#, None);
        check(r#"{"jsonrpc":"2.0","id":1,"result":null}"#, None);
        check(r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}"#, None);
    }
}
