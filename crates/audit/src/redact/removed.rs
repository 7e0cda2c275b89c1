//! Removes the secrets of an event's input and output from texts that were made of them.
//!
//! The peer chooses the input and so decides what is a secret in it. So these secrets are searched for only
//! in texts that the peer wrote. In the facts of the gate, such as an identity, a peer could otherwise erase
//! whatever it names as its password.

use serde_json::Value;

use super::{PLACEHOLDER, Redaction, is_mark, member, token_patterns};
use crate::event::Event;
use crate::facts::AIP44;
use crate::secret::Secret;

/// Bound for the secrets of one value that are searched for in other texts.
const MAX_REMOVED_TEXTS: usize = 64;

impl Redaction {
    /// Returns the same rules, extended by the secrets that were removed from the values of an event. Another
    /// text made of such a value may lack its quotes and names, so it cannot be recognized by them. Returns
    /// `None` if nothing was removed.
    pub(crate) fn with_removed(&self, pairs: [(Option<&Value>, Option<&Value>); 2]) -> Option<Self> {
        let mut removed = Vec::new();
        for (before, after) in pairs {
            if let (Some(before), Some(after)) = (before, after) {
                collect_removed(before, after, &mut removed);
            }
        }
        removed.sort_unstable();
        removed.dedup();
        let secrets = removed
            .into_iter()
            .filter(|text| token_patterns::can_be_value(text.as_bytes(), token_patterns::MIN_OPTION_BYTES));
        let secrets: Vec<Secret> = secrets.take(MAX_REMOVED_TEXTS).map(Secret::new).collect();
        (!secrets.is_empty()).then(|| secrets.into_iter().fold(self.clone(), Self::known))
    }

    /// Redacts the texts of an event that its peer wrote.
    pub(crate) fn clean_peer_texts(&self, event: &mut Event) {
        let reference = event.subject.reference.as_mut().filter(|text| !is_identifier(text));
        for text in reference.into_iter().chain(&mut event.subject.path) {
            if let Some(hidden) = self.hide(text) {
                *text = hidden.text;
            }
        }
        event.facts.peer_values().for_each(|value| self.texts_only(value));
        let beside = event.metadata.iter_mut().filter(|(key, _)| *key != AIP44);
        beside.for_each(|(_, value)| self.texts_only(value));
    }

    /// Redacts the texts of a value, but not its names, which a program chose.
    fn texts_only(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Some(hidden) = self.hide(text) {
                    *value = hidden.value();
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.texts_only(item)),
            Value::Object(members) if is_mark(members) => {}
            Value::Object(members) => members.values_mut().for_each(|member| self.texts_only(member)),
            _ => {}
        }
    }
}

/// Returns `true` for a name, which is not made of an input: a text without white space.
fn is_identifier(text: &str) -> bool {
    !text.contains(char::is_whitespace)
}

/// Collects the texts of a value that are missing in its redacted form.
fn collect_removed<'a>(before: &'a Value, after: &Value, removed: &mut Vec<&'a str>) {
    match (before, after) {
        (Value::String(text), Value::Object(mark)) => {
            let shown = member(mark, "text").and_then(Value::as_str).unwrap_or(PLACEHOLDER);
            collect_gaps(text, shown, removed);
        }
        (Value::Array(before), Value::Array(after)) => {
            before.iter().zip(after).for_each(|(before, after)| collect_removed(before, after, removed));
        }
        (before, Value::Object(after)) if is_mark(after) => collect_texts(before, removed),
        (Value::Object(before), Value::Object(after)) => {
            for (key, value) in before {
                if let Some(after) = after.get(key) {
                    collect_removed(value, after, removed);
                }
            }
        }
        _ => {}
    }
}

/// Collects the removed parts of a text: those between the parts that are still shown.
fn collect_gaps<'a>(text: &'a str, shown: &str, gaps: &mut Vec<&'a str>) {
    let mut parts = shown.split(PLACEHOLDER);
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return };
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        let length = match parts.peek() {
            Some(_) => rest.find(part),
            None => rest.strip_suffix(part).map(str::len),
        };
        let Some((gap, more)) = length.map(|length| rest.split_at(length)) else { return };
        gaps.extend(Some(gap.trim()).filter(|gap| !gap.contains(PLACEHOLDER)));
        rest = more.get(part.len()..).unwrap_or_default();
    }
}

fn collect_texts<'a>(value: &'a Value, texts: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => texts.push(text),
        Value::Array(items) => items.iter().for_each(|item| collect_texts(item, texts)),
        Value::Object(members) => members.values().for_each(|member| collect_texts(member, texts)),
        _ => {}
    }
}
