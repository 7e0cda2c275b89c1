//! Writes `_meta.aip44` into messages of the gate, and removes it from messages of the peers.

use std::ops::Range;
use std::sync::LazyLock;

use narrows_wire::{View, member};
use serde_json::{Value, json};

use crate::config::GateConfig;
use crate::identity::Principal;

const KEY: &str = "aip44";
const META: &str = "_meta";
/// Member of `_meta.aip44` in a message that is replayed history.
const REPLAY: &str = "replay";

/// The value of `_meta.aip44`, serialized in all forms that are inserted into messages.
#[derive(Clone, Debug)]
pub(crate) struct MetaMark {
    plain: MarkText,
    replayed: MarkText,
}

#[derive(Clone, Debug)]
struct MarkText {
    key: &'static str,
    /// `{…}`
    value: Vec<u8>,
    /// `"aip44":{…}`
    member: Vec<u8>,
    /// `{"aip44":{…}}`
    object: Vec<u8>,
    /// `"_meta":{"aip44":{…}}`
    whole: Vec<u8>,
}

impl MarkText {
    fn new(key: &'static str, value: &Value) -> Self {
        let value = value.to_string().into_bytes();
        let member = [format!("\"{key}\":").as_bytes(), &value].concat();
        let object = [b"{".as_slice(), &member, b"}"].concat();
        let whole = [b"\"_meta\":".as_slice(), &object].concat();
        Self { key, value, member, object, whole }
    }
}

/// `_meta.narrows` of a request: the client must refuse a path that leads through symbolic links.
static NO_LINKS: LazyLock<MarkText> = LazyLock::new(|| MarkText::new("narrows", &json!({"noLinks": true})));

/// A message in four parts: the part before the inserted `_meta` member, the member, a comma if needed, and
/// the rest.
pub(crate) type MarkedParts<'a> = [&'a [u8]; 4];

impl MetaMark {
    pub(crate) fn new(config: &GateConfig) -> Self {
        let mut value = mark_fields(config);
        let plain = MarkText::new(KEY, &value);
        value[REPLAY] = json!(true);
        Self { plain, replayed: MarkText::new(KEY, &value) }
    }

    /// Sets `_meta.aip44` in the params or the result of a message. Other messages stay unchanged. Returns
    /// `None` if two readers may read the message differently.
    pub(crate) fn insert<'a>(&'a self, message: View<'a>) -> Option<MarkedParts<'a>> {
        insert_mark(message, &self.plain)
    }

    /// Sets `_meta.aip44` in a message that is replayed history, and marks it as history.
    pub(crate) fn insert_replayed<'a>(&'a self, message: View<'a>) -> Option<MarkedParts<'a>> {
        insert_mark(message, &self.replayed)
    }
}

/// Adds the demand to a file request that the client must not follow links. The requested path has no links,
/// so a link that appears later would lead to another file. Returns `None` if the message is ambiguous.
pub(crate) fn refuse_links(message: View<'_>) -> Option<Vec<u8>> {
    insert_mark(message, &NO_LINKS).map(|marked| marked.concat())
}

fn insert_mark<'a>(message: View<'a>, words: &'a MarkText) -> Option<MarkedParts<'a>> {
    let bytes = message.bytes();
    let Some((start, text)) = params_or_result(message) else { return Some([bytes, b"", b"", b""]) };
    let replaced = |place: Range<usize>, by: &'a [u8]| [&bytes[..place.start], by, b"", &bytes[place.end..]];
    let Some(meta) = member(text, META).ok()? else {
        return Some(insert_at(bytes, start + 1, &words.whole));
    };
    let (inner, at) = (&text[meta.clone()], start + meta.start);
    if inner.first() != Some(&b'{') {
        return Some(replaced(at..at + inner.len(), &words.object));
    }
    Some(match member(inner, words.key).ok()? {
        None => insert_at(bytes, at + 1, &words.member),
        Some(mark) => replaced(at + mark.start..at + mark.end, &words.value),
    })
}

/// A message of a peer after `_meta.aip44` was removed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StrippedMark {
    Unmarked,
    Line(Vec<u8>),
    /// Two readers may read the message differently, so the message was not changed.
    Ambiguous,
}

/// Removes `_meta.aip44` from a message of a peer, because only the gate may set it.
pub(crate) fn strip_mark(message: View<'_>) -> StrippedMark {
    let Some((start, text)) = params_or_result(message) else { return StrippedMark::Unmarked };
    let meta = match member(text, META) {
        Ok(Some(meta)) => meta,
        Ok(None) => return StrippedMark::Unmarked,
        Err(_) => return StrippedMark::Ambiguous,
    };
    let inner = &text[meta.clone()];
    let mark = match member(inner, KEY) {
        Ok(Some(mark)) => mark,
        Ok(None) => return StrippedMark::Unmarked,
        Err(_) => return StrippedMark::Ambiguous,
    };
    let cut = member_with_comma(inner, mark);
    let (bytes, at) = (message.bytes(), start + meta.start);
    StrippedMark::Line([&bytes[..at + cut.start], &bytes[at + cut.end..]].concat())
}

/// Returns the range of a member whose value has the range `value`: with its key, and with one adjacent
/// comma.
fn member_with_comma(object: &[u8], value: Range<usize>) -> Range<usize> {
    let is_quote = |byte: &u8| *byte == b'"';
    // The key contains no quotes, so the last two quotes before the value enclose the key.
    let end = object[..value.start].iter().rposition(is_quote).unwrap_or(0);
    let key = object[..end].iter().rposition(is_quote).unwrap_or(0);
    let is_ink = |byte: &u8| !byte.is_ascii_whitespace();
    let next = object[value.end..].iter().position(is_ink).map(|skip| value.end + skip);
    if let Some(comma) = next.filter(|next| object[*next] == b',') {
        return key..comma + 1;
    }
    match object[..key].iter().rposition(is_ink) {
        Some(comma) if object[comma] == b',' => comma..value.end,
        _ => key..value.end,
    }
}

fn params_or_result(message: View<'_>) -> Option<(usize, &[u8])> {
    let envelope = message.envelope();
    let span = if envelope.params.is_some() { envelope.params } else { envelope.result };
    let text = span.slice(message.bytes())?;
    (text.first() == Some(&b'{')).then(|| (span.range().start, text))
}

fn mark_fields(config: &GateConfig) -> Value {
    json!({"operator": config.operator, "tier": config.tier, "acp_rev": config.revision})
}

pub(crate) fn mark_with(config: &GateConfig, more: Value) -> Value {
    let mut mark = mark_fields(config);
    if let (Some(mark), Value::Object(more)) = (mark.as_object_mut(), more) {
        mark.extend(more);
    }
    mark
}

/// Sets `_meta.aip44` in the answer to `initialize`. There it also tells the client its identity.
pub(crate) fn mark_initialize_answer(result: &mut Value, config: &GateConfig, principal: &Principal) {
    let mut mark = mark_fields(config);
    mark["identity"] = json!(principal.id);
    mark["identity_method"] = json!(principal.method.name());
    if let Some(notice) = &config.notice {
        mark["notice"] = json!(notice);
    }
    let Some(result) = result.as_object_mut() else { return };
    let meta = result.entry(META).or_insert_with(|| json!({}));
    match meta.as_object_mut() {
        Some(meta) => {
            meta.insert(KEY.to_owned(), mark);
        }
        None => *meta = json!({KEY: mark}),
    }
}

/// Inserts `what` at the beginning of an object, after the brace that ends at `at`. Adds a comma if another
/// member follows.
fn insert_at<'a>(bytes: &'a [u8], at: usize, what: &'a [u8]) -> MarkedParts<'a> {
    let next = bytes[at..].iter().find(|byte| !byte.is_ascii_whitespace());
    let comma: &[u8] = if next == Some(&b'}') { b"" } else { b"," };
    [&bytes[..at], what, comma, &bytes[at..]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: Option<&str>) {
        let config = GateConfig { operator: "o".into(), tier: "basic".into(), ..GateConfig::default() };
        let mark = MetaMark::new(&config);
        let written = String::from_utf8(mark.insert(View::parse(line.as_bytes())).unwrap().concat()).unwrap();
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
    fn the_mark_is_added_beside_other_members() {
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
    fn the_initialize_answer_names_the_identity() {
        let principal = Principal { id: "user:ada".into(), ..Principal::default() };
        let check = |mut result: Value, expected: &str| {
            mark_initialize_answer(&mut result, &GateConfig::default(), &principal);
            assert_eq!(result["_meta"][KEY]["identity"], expected, "{result}");
        };
        check(json!({"a": 1}), "user:ada");
        check(json!({"_meta": {"x": 1}}), "user:ada");
        check(json!({"_meta": {"aip44": {"identity": "theirs", "tier": "sandboxed"}}}), "user:ada");
        check(json!({"_meta": 7}), "user:ada");
    }

    #[test]
    fn messages_without_params_or_result_stay_unchanged() {
        check(r#"{"jsonrpc":"2.0","method":"m"}"#, None);
        check(r#"{"jsonrpc":"2.0","method":"m","params":[1]}"#, None);
        check(r#"{"jsonrpc":"2.0","id":1,"result":null}"#, None);
        check(r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}"#, None);
    }

    #[test]
    fn replayed_messages_are_marked_as_history() {
        let mark = MetaMark::new(&GateConfig { operator: "o".into(), ..GateConfig::default() });
        let check = |params: &str, operator: Option<&str>| {
            let line = format!(r#"{{"jsonrpc":"2.0","method":"m","params":{params}}}"#);
            let marked = mark.insert_replayed(View::parse(line.as_bytes())).map(|parts| parts.concat());
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
        check(r#"{"_meta":{"aip44":{"operator":"other"}}}"#, Some("o"));
        check(r#"{"_meta":{"aip44":{"operator":"other","replay":false}}}"#, Some("o"));
        check(r#"{"_meta":{"aip44":{"replay":true,"replay":false}}}"#, Some("o"));
        check(r#"{"_meta":{"aip44":1,"aip\u00344":2}}"#, None);
        check(r#"{"_meta":{},"_meta":{}}"#, None);
    }

    #[test]
    fn a_present_mark_is_replaced() {
        let mark = MetaMark::new(&GateConfig { operator: "o".into(), ..GateConfig::default() });
        let check = |params: &str, puts: bool| {
            let line = format!(r#"{{"jsonrpc":"2.0","method":"m","params":{params}}}"#);
            let marked = mark.insert(View::parse(line.as_bytes())).map(|parts| parts.concat());
            let value = marked.map(|line| serde_json::from_slice::<Value>(&line).unwrap());
            let said = value.map(|value| value["params"]["_meta"][KEY]["operator"].clone());
            assert_eq!(said, puts.then(|| json!("o")), "{params}");
        };
        check(r#"{"_meta":null}"#, true);
        check(r#"{"_meta":{"aip44":7}}"#, true);
        check(r#"{"_meta":{"aip44":{"operator":"p","tier":"sandboxed"},"x":1}}"#, true);
        check(r#"{"_meta":{"aip\u00344":{"operator":"p"}}}"#, true);
        check(r#"{"_meta":{"aip44":{}},"_meta":{}}"#, false);
        check(r#"{"_meta":{"aip44":{},"aip44":{}}}"#, false);
    }

    #[test]
    fn only_the_foreign_mark_is_removed() {
        let check = |params: &str, expected: Option<&str>| {
            let line = |params: &str| format!(r#"{{"jsonrpc":"2.0","method":"m","params":{params}}}"#);
            let text = line(params);
            let expected = match expected {
                None => StrippedMark::Ambiguous,
                Some(same) if same == params => StrippedMark::Unmarked,
                Some(other) => StrippedMark::Line(line(other).into_bytes()),
            };
            assert_eq!(strip_mark(View::parse(text.as_bytes())), expected, "{params}");
        };
        check(r#"{"a":1}"#, Some(r#"{"a":1}"#));
        check(r#"{"_meta":{"x":{"aip44":1}}}"#, Some(r#"{"_meta":{"x":{"aip44":1}}}"#));
        check(r#"{"_meta":{"aip44":{"a":"}"}}}"#, Some(r#"{"_meta":{}}"#));
        check(r#"{"_meta":{"aip44" : 1 , "x":2}}"#, Some(r#"{"_meta":{ "x":2}}"#));
        check(r#"{"_meta":{"x":2 , "aip\u00344":"\"" }}"#, Some(r#"{"_meta":{"x":2  }}"#));
        check(r#"{"_meta":{"x":2,"aip44":[1],"y":3}}"#, Some(r#"{"_meta":{"x":2,"y":3}}"#));
        check(r#"{"_meta":null}"#, Some(r#"{"_meta":null}"#));
        check(r#"{"_meta":{},"_meta":{}}"#, None);
        check(r#"{"_meta":{"aip44":1,"aip44":2}}"#, None);
    }
}
