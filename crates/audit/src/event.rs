//! An event to log, and the limits of its fields.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::facts::Facts;
use crate::jcs;
use crate::secret::{self, reason};

pub const MAX_DEPTH: usize = 128;

/// Maximum nesting depth of `input`, `output` and `metadata`. Many JSON readers stop at 127 levels. The line
/// is one level, and the mark of a removed value is another.
const MAX_VALUE_DEPTH: usize = 125;

/// The largest integer that all JSON readers represent exactly.
const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// An event to log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Event {
    pub actor: Actor,
    /// Name of the event: lower-case words with dots between them, such as `tool.call`.
    pub action: String,
    pub subject: Subject,
    /// Input of the action. A value that is not an object is logged as `{"value": …}`.
    pub input: Option<Value>,
    /// Output of the action. A value that is not an object is logged as `{"value": …}`.
    pub output: Option<Value>,
    pub policy: Option<PolicyRef>,
    /// Paths of signature files that the event relies on.
    pub signatures: Vec<String>,
    /// Facts from a gate, logged in `metadata.aip44`. A fact replaces a member with the same name.
    pub facts: Facts,
    pub metadata: Map<String, Value>,
}

/// The actor of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// Id of the actor, such as `operator:notes`. At most 256 characters.
    pub id: String,
    /// Role of the actor, such as `operator`. At most 64 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

/// The subject of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// Kind of the subject, such as `tool` or `session`. At most 32 characters.
    pub kind: String,
    /// Id of the subject. At most 256 characters.
    #[serde(rename = "ref", default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Path of the subject. At most 1,024 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// The policy that decided, and its decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRef {
    /// Name of the policy: 2 to 64 lower-case letters, digits and hyphens.
    #[serde(rename = "ref")]
    pub reference: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<LoggedDecision>,
}

/// A decision of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoggedDecision {
    Allow,
    Deny,
    /// The action needs a signed approval.
    RequireApproval,
    Escalate,
}

impl LoggedDecision {
    pub const ALL: [Self; 4] = [Self::Allow, Self::Deny, Self::RequireApproval, Self::Escalate];

    /// Returns the name of the decision, as entries contain it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::RequireApproval => "require-approval",
            Self::Escalate => "escalate",
        }
    }
}

impl fmt::Display for LoggedDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for LoggedDecision {
    type Err = UnknownDecision;

    fn from_str(name: &str) -> Result<Self, UnknownDecision> {
        Self::ALL.into_iter().find(|decision| decision.name() == name).ok_or(UnknownDecision)
    }
}

/// Error: no decision has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the decision is not one of allow, deny, require-approval, escalate")]
pub struct UnknownDecision;

/// The reason why an event cannot be logged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    #[error("`{0}` is empty")]
    Empty(&'static str),
    #[error("`{field}` has {length} characters, at most {limit} are allowed")]
    TooLong { field: &'static str, length: usize, limit: usize },
    #[error("`{field}` must be {wanted}")]
    Malformed { field: &'static str, wanted: &'static str },
    #[error("`{0}` is nested more than {MAX_DEPTH} levels deep")]
    TooDeep(&'static str),
    #[error("the event takes {bytes} bytes, at most {limit} are allowed")]
    TooLarge { bytes: usize, limit: usize },
}

impl Event {
    /// Checks that the event meets the limits of the format.
    pub fn check(&self) -> Result<(), EventError> {
        check_length("actor.id", &self.actor.id, 256)?;
        check_filled("actor.id", &self.actor.id)?;
        check_length("actor.role", self.actor.role.as_deref().unwrap_or_default(), 64)?;
        check_length("action", &self.action, 128)?;
        if !is_action(&self.action) {
            let wanted = "words in lower case with dots between them, such as `tool.call`";
            return Err(EventError::Malformed { field: "action", wanted });
        }
        check_length("subject.kind", &self.subject.kind, 32)?;
        check_filled("subject.kind", &self.subject.kind)?;
        check_length("subject.ref", self.subject.reference.as_deref().unwrap_or_default(), 256)?;
        check_length("subject.path", self.subject.path.as_deref().unwrap_or_default(), 1024)?;
        if let Some(policy) = &self.policy
            && !is_slug(&policy.reference)
        {
            let wanted = "2 to 64 letters in lower case, digits and hyphens, such as `finance-write`";
            return Err(EventError::Malformed { field: "policy.ref", wanted });
        }
        self.signatures.iter().try_for_each(|path| check_length("signatures", path, 1024))
    }
}

/// Returns an object unchanged, and any other value as the only member of an object.
pub(crate) fn into_object(value: Value) -> Value {
    if value.is_object() { value } else { json!({"value": value}) }
}

/// Replaces the longer of input and output by its length. Returns `false` if that would not make the event
/// shorter.
pub(crate) fn truncate_value(event: &mut Event) -> bool {
    // A value that is nested too deeply was already replaced.
    let length = |value: &Value| jcs::to_vec(value).map_or(0, |text| text.len());
    let values = [&mut event.input, &mut event.output].into_iter().flatten();
    let Some((bytes, value)) = values.map(|value| (length(value), value)).max_by_key(|(bytes, _)| *bytes)
    else {
        return false;
    };
    let truncated = json!({"$truncated": true, "bytes": bytes});
    let is_shorter = length(&truncated) < bytes;
    if is_shorter {
        *value = truncated;
    }
    is_shorter
}

/// Changes a value so that every reader sees the same value. Integers that some readers round become texts,
/// because a wrong digit in an amount or id would be a false record. A value that is nested too deeply is
/// replaced by a mark, so that a peer cannot keep a call out of the log by deep nesting. The result leaves
/// room for one more level.
pub(crate) fn make_exact(value: &mut Value) {
    normalize(value, 0);
}

fn normalize(value: &mut Value, depth: usize) {
    match value {
        Value::Array(_) | Value::Object(_) if depth == MAX_VALUE_DEPTH => {
            *value = secret::mark(reason::DEPTH);
        }
        Value::Array(items) => items.iter_mut().for_each(|item| normalize(item, depth + 1)),
        Value::Object(members) => members.values_mut().for_each(|member| normalize(member, depth + 1)),
        Value::Number(number) => {
            let large = number.as_u64().is_some_and(|number| number > MAX_SAFE_INTEGER)
                || number.as_i64().is_some_and(|number| number.unsigned_abs() > MAX_SAFE_INTEGER);
            if large {
                *value = Value::String(number.to_string());
            }
        }
        _ => {}
    }
}

fn check_length(field: &'static str, text: &str, limit: usize) -> Result<(), EventError> {
    // The number of bytes is an upper bound of the number of characters, and is known without counting.
    if text.len() <= limit {
        return Ok(());
    }
    match text.chars().count() {
        length if length > limit => Err(EventError::TooLong { field, length, limit }),
        _ => Ok(()),
    }
}

fn check_filled(field: &'static str, text: &str) -> Result<(), EventError> {
    if text.is_empty() { Err(EventError::Empty(field)) } else { Ok(()) }
}

fn is_action(action: &str) -> bool {
    let ends = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    match action.as_bytes() {
        [first, middle @ .., last] => {
            first.is_ascii_lowercase()
                && ends(last)
                && middle.iter().all(|byte| ends(byte) || matches!(byte, b'.' | b'_' | b'-'))
        }
        _ => false,
    }
}

fn is_slug(text: &str) -> bool {
    (2..=64).contains(&text.len())
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && !text.ends_with('-')
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        Event {
            actor: Actor { id: "operator:notes".into(), role: Some("operator".into()) },
            action: "tool.call".into(),
            subject: Subject { kind: "tool".into(), reference: Some("append".into()), path: None },
            ..Event::default()
        }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Event), expected: &str) {
        let mut event = event();
        change(&mut event);
        let told = event.check().err().map_or(String::new(), |error| error.to_string());
        assert_eq!(told, expected);
    }

    #[test]
    fn events_beyond_a_limit_are_refused() {
        check(|_| (), "");
        check(|event| event.actor.id = "é".repeat(256), "");
        let long = "`actor.id` has 257 characters, at most 256 are allowed";
        check(|event| event.actor.id = "é".repeat(257), long);
        check(|event| event.actor.id.clear(), "`actor.id` is empty");
        let long = "`actor.role` has 65 characters, at most 64 are allowed";
        check(|event| event.actor.role = Some("r".repeat(65)), long);
        let long = "`action` has 129 characters, at most 128 are allowed";
        check(|event| event.action = "a".repeat(129), long);
        check(|event| event.subject.kind.clear(), "`subject.kind` is empty");
        let long = "`subject.kind` has 33 characters, at most 32 are allowed";
        check(|event| event.subject.kind = "k".repeat(33), long);
        let long = "`subject.ref` has 257 characters, at most 256 are allowed";
        check(|event| event.subject.reference = Some("r".repeat(257)), long);
        let long = "`subject.path` has 1025 characters, at most 1024 are allowed";
        check(|event| event.subject.path = Some("p".repeat(1025)), long);
        let long = "`signatures` has 1025 characters, at most 1024 are allowed";
        check(|event| event.signatures = vec!["p".repeat(1025)], long);
    }

    #[test]
    fn actions_and_policies_must_match_the_schema() {
        let wrong = "`action` must be words in lower case with dots between them, such as `tool.call`";
        for action in ["", "a", "Tool.call", "tool.", ".tool", "1tool", "tool call", "tool\u{e9}"] {
            check(|event| event.action = action.into(), wrong);
        }
        for action in ["ab", "a1", "tool.call", "a.b_c-d.e9"] {
            check(|event| event.action = action.into(), "");
        }
        let policy = |reference: &str| Some(PolicyRef { reference: reference.into(), decision: None });
        let wrong =
            "`policy.ref` must be 2 to 64 letters in lower case, digits and hyphens, such as `finance-write`";
        for reference in ["", "a", "A-b", "a-", "-a", "1a", "a_b", &"a".repeat(65)] {
            check(|event| event.policy = policy(reference), wrong);
        }
        check(|event| event.policy = policy("finance-write-2"), "");
    }

    #[test]
    fn other_values_are_wrapped_in_an_object() {
        assert_eq!(into_object(json!({"a": 1})), json!({"a": 1}));
        assert_eq!(into_object(json!([1])), json!({"value": [1]}));
        assert_eq!(into_object(json!(null)), json!({"value": null}));
    }

    #[test]
    fn integers_that_readers_would_round_become_texts() {
        let mut value =
            json!({"a": 9_007_199_254_740_991_u64, "b": [9_007_199_254_740_993_u64, i64::MIN, 1.5]});
        make_exact(&mut value);
        let expected = json!({
            "a": 9_007_199_254_740_991_u64,
            "b": ["9007199254740993", "-9223372036854775808", 1.5],
        });
        assert_eq!(value, expected);
    }

    #[test]
    fn depth_is_limited() {
        let nested = |levels: usize| (1..levels).fold(json!([]), |inner, _| json!([inner]));
        let check = |levels: usize, whole: bool| {
            let mut value = nested(levels);
            make_exact(&mut value);
            assert_eq!(value == nested(levels), whole, "{levels}");
            let place = "/0".repeat(MAX_VALUE_DEPTH);
            let mark = (!whole).then(|| secret::mark(reason::DEPTH));
            assert_eq!(value.pointer(&place), mark.as_ref(), "{levels}");
        };
        check(MAX_VALUE_DEPTH, true);
        check(MAX_VALUE_DEPTH + 1, false);
        check(4 * MAX_VALUE_DEPTH, false);
    }

    #[test]
    fn decisions_are_found_by_name() {
        for decision in LoggedDecision::ALL {
            assert_eq!(decision.name().parse(), Ok(decision));
            assert_eq!(json!(decision), json!(decision.name()));
        }
        assert_eq!("approve".parse::<LoggedDecision>(), Err(UnknownDecision));
    }
}
