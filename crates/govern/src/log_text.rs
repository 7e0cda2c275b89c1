//! Texts of a peer in audit entries: bounded in length, and names that stay distinguishable.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use narrows_audit::Fact;

use crate::audit_events::{is_secret_text, secret_safe_digest};

/// Bound for a text in an entry. An entry must not become too long for the log because of its texts.
const MAX_TEXT_BYTES: usize = 4096;

/// Key of the tags of this process. A tag does not allow to verify guesses of its text.
static TAG_KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Returns a fact that the gate knows. No secret of the input is searched for in it.
pub(crate) fn gate_fact(text: &str) -> Fact {
    shorten(text).into()
}

/// Returns a fact that contains texts of the peer, such as its command.
pub(crate) fn peer_fact(text: &str) -> Fact {
    Fact::peer(shorten(text))
}

/// Returns a fact with the name of a tool. A name with white space may be a copy of the input.
pub(crate) fn tool_fact(name: &str) -> Fact {
    if name.contains(char::is_whitespace) { peer_fact(name) } else { gate_fact(name) }
}

/// Returns the name of a session or call, which a peer chose. The log removes names that look like a secret,
/// and the entries of two sessions or calls could then not be told apart. So such a name is replaced by a
/// tag, which is the same for equal names until the process ends.
pub(crate) fn identifier(name: &str) -> String {
    let shown = shorten(name);
    if is_secret_text(&shown) { format!("redacted-{}", tag(name)) } else { shown }
}

/// Returns the text, or its length, its digest and its beginning if it is too long for an entry.
pub(crate) fn shorten(text: &str) -> String {
    if text.len() <= MAX_TEXT_BYTES {
        return text.to_owned();
    }
    let digest = match secret_safe_digest(text.as_bytes()) {
        Some(digest) => format!("SHA-256 {digest}"),
        None => format!("tag {}", tag(text)),
    };
    let end = (0..=MAX_TEXT_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("({} bytes, {digest}) {}", text.len(), &text[..end])
}

fn tag(text: &str) -> String {
    format!("{:016x}", TAG_KEY.hash_one(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_unchanged() {
        for name in ["", "s", "sess_1", "550e8400-e29b-41d4-a716-446655440000", &"é".repeat(2048)] {
            assert_eq!(identifier(name), name);
        }
    }

    #[test]
    fn names_that_look_like_secrets_stay_distinguishable() {
        let names = ["a", "b"].map(|end| format!("ghp_0123456789abcdefghijklmnopqrstuvwxyzA{end}"));
        let [one, other] = names.each_ref().map(|name| identifier(name));
        assert_ne!(one, other);
        assert_eq!(identifier(&names[0]), one);
        assert!(one.starts_with("redacted-") && !is_secret_text(&one), "{one}");
    }

    #[test]
    fn long_texts_are_bounded_and_distinguishable() {
        for text in
            ["x".repeat(1 << 20), "é".repeat(4000), "password=hunter22 ".repeat(1000), "\0".repeat(5000)]
        {
            let (one, other) = (shorten(&text), shorten(&format!("{text}é")));
            assert_ne!(one, other);
            assert!(one.len() < MAX_TEXT_BYTES + 200 && one.contains(&format!("({} bytes, ", text.len())));
            let (one, other) = (identifier(&text), identifier(&format!("{text}é")));
            assert_ne!(one, other);
            assert!(!is_secret_text(&one), "{one}");
        }
    }
}
