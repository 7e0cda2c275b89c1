//! The patterns and fields that the schema of AIP-7 requires of an entry, except for its position in the
//! chain.
//!
//! Lengths of most texts are not checked: the mark that replaces a secret may be longer than the secret.

use super::canonical::{self, Member};

enum Rule {
    Filled,
    Text,
    Slug,
    Decision,
}

enum Need {
    Required,
    Optional,
}

type Shape = &'static [(&'static [u8], Need, Rule)];

const ACTOR: Shape = &[(b"id", Need::Required, Rule::Filled), (b"role", Need::Optional, Rule::Text)];
const SUBJECT: Shape = &[
    (b"kind", Need::Required, Rule::Text),
    (b"path", Need::Optional, Rule::Text),
    (b"ref", Need::Optional, Rule::Text),
];
const POLICY: Shape = &[(b"decision", Need::Optional, Rule::Decision), (b"ref", Need::Required, Rule::Slug)];

/// Maximum length of an action. An action is never replaced by a mark.
const MAX_ACTION_BYTES: usize = 128;

/// Returns `true` if a field of an entry matches the schema. The field must already be canonical.
pub(super) fn is_valid_field(name: &[u8], value: &[u8]) -> bool {
    match name {
        b"action" => is_action(inner(value)),
        b"actor" => fits(value, ACTOR),
        b"subject" => fits(value, SUBJECT),
        b"policy" => fits(value, POLICY),
        b"signatures" => are_texts(value),
        _ => true,
    }
}

fn inner(text: &[u8]) -> &[u8] {
    text.get(1..text.len().saturating_sub(1)).unwrap_or_default()
}

fn is_action(action: &[u8]) -> bool {
    let is_letter = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let [first, middle @ .., last] = action else { return false };
    action.len() <= MAX_ACTION_BYTES
        && first.is_ascii_lowercase()
        && is_letter(last)
        && middle.iter().all(|byte| is_letter(byte) || matches!(byte, b'.' | b'_' | b'-'))
}

/// Returns `true` if the name matches `^[a-z][a-z0-9-]*[a-z0-9]$` and has 2 to 64 characters.
fn is_slug(slug: &[u8]) -> bool {
    is_action(slug) && slug.len() <= 64 && !slug.iter().any(|byte| matches!(byte, b'.' | b'_'))
}

/// Returns `true` if an object has all required members of `shape`, and no unknown ones.
fn fits(object: &[u8], shape: Shape) -> bool {
    let mut members: Vec<Member> = Vec::new();
    if canonical::read(object, &mut members).is_err() {
        return false;
    }
    let find = |name: &[u8]| members.iter().find(|member| &object[member.key.clone()] == name);
    let is_known = |member: &Member| shape.iter().any(|(name, ..)| *name == &object[member.key.clone()]);
    members.iter().all(is_known)
        && shape.iter().all(|(name, need, rule)| match find(name) {
            Some(member) => follows(&object[member.value.clone()], rule),
            None => matches!(need, Need::Optional),
        })
}

fn follows(value: &[u8], rule: &Rule) -> bool {
    let text = inner(value);
    value.first() == Some(&b'"')
        && match rule {
            Rule::Text => true,
            Rule::Filled => !text.is_empty(),
            Rule::Slug => is_slug(text),
            Rule::Decision => matches!(text, b"allow" | b"deny" | b"require-approval" | b"escalate"),
        }
}

/// Returns `true` if a list contains only texts. In canonical form, each item begins directly after the
/// bracket or a comma.
fn are_texts(list: &[u8]) -> bool {
    let (mut is_begin, mut is_open, mut is_escaped) = (true, false, false);
    for byte in inner(list) {
        match (is_open, byte) {
            (true, _) if is_escaped => is_escaped = false,
            (true, b'\\') => is_escaped = true,
            (true, b'"') => is_open = false,
            (true, _) => {}
            (false, b'"') if is_begin => (is_open, is_begin) = (true, false),
            (false, b',') if !is_begin => is_begin = true,
            (false, _) => return false,
        }
    }
    !is_open
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_follow_the_schema() {
        for (name, value, expected) in [
            ("action", r#""tool.call""#, true),
            ("action", r#""a1""#, true),
            ("action", r#""TOOL CALL""#, false),
            ("action", r#""tool.""#, false),
            ("action", r#"".call""#, false),
            ("action", r#""1a""#, false),
            ("action", r#""a""#, false),
            ("action", r#""""#, false),
            ("action", r#""tool\ncall""#, false),
            ("actor", r#"{"id":"x"}"#, true),
            ("actor", r#"{"id":"x","role":""}"#, true),
            ("actor", r#"{"id":""}"#, false),
            ("actor", r#"{"role":"x"}"#, false),
            ("actor", r#"{"id":1}"#, false),
            ("actor", r#"{"id":"x","name":"y"}"#, false),
            ("subject", r#"{"kind":"tool","path":"/a","ref":"b"}"#, true),
            ("subject", r#"{"ref":"b"}"#, false),
            ("subject", r#"{"kind":{}}"#, false),
            ("policy", r#"{"decision":"allow","ref":"finance-write"}"#, true),
            ("policy", r#"{"ref":"a1"}"#, true),
            ("policy", r#"{"decision":"maybe","ref":"a1"}"#, false),
            ("policy", r#"{"ref":"Finance"}"#, false),
            ("policy", r#"{"ref":"a.b"}"#, false),
            ("policy", r#"{}"#, false),
            ("signatures", r#"[]"#, true),
            ("signatures", r#"["a","b\"c,","\\"]"#, true),
            ("signatures", r#"["a",1]"#, false),
            ("signatures", r#"[{}]"#, false),
            ("signatures", r#"[["a"]]"#, false),
            ("input", r#"{"a":1}"#, true),
        ] {
            assert_eq!(is_valid_field(name.as_bytes(), value.as_bytes()), expected, "{name} {value}");
        }
    }
}
