//! Recognizes chunks that differ from the previous chunk only in their text, without parsing them.
//!
//! Most chunks are of this kind: about 150 bytes of JSON repeat for four letters of text. If the bytes before
//! and after one string match, only that string can differ.

use std::borrow::Cow;

use super::shape::{Choice, Choices, Chunk, Content, Delta};

/// The bytes before and after the text in a chunk that contains only text.
#[derive(Debug, Default)]
pub(super) struct ChunkCache {
    start: Vec<u8>,
    end: Vec<u8>,
}

impl ChunkCache {
    /// Stores the bytes before and after the text of `chunk`, which was parsed from `data`.
    pub(super) fn learn(&mut self, chunk: &Chunk<'_>, data: &str) {
        let Some(text) = only_text(chunk) else { return };
        let Some(at) = (text.as_ptr() as usize).checked_sub(data.as_ptr() as usize) else { return };
        if let (Some(start), Some(end)) = (data.get(..at), data.get(at + text.len()..)) {
            self.start.clear();
            self.start.extend_from_slice(start.as_bytes());
            self.end.clear();
            self.end.extend_from_slice(end.as_bytes());
        }
    }

    /// Returns the text in `data` if the bytes before and after it equal the stored ones.
    pub(super) fn text<'a>(&self, data: &'a [u8]) -> Option<Cow<'a, str>> {
        if self.start.is_empty() {
            return None;
        }
        let text = data.strip_prefix(self.start.as_slice())?.strip_suffix(self.end.as_slice())?;
        let is_plain = |byte: &u8| *byte >= b' ' && *byte != b'"' && *byte != b'\\';
        if text.is_empty() {
            return None;
        }
        if text.iter().all(is_plain) {
            return std::str::from_utf8(text).ok().map(Cow::Borrowed);
        }
        // If the rest is no plain string (escapes, line ends, or several strings), the parser decides.
        let quoted = data.get(self.start.len() - 1..data.len() - self.end.len() + 1)?;
        serde_json::from_slice::<String>(quoted).ok().map(Cow::Owned)
    }
}

/// Returns the text of a chunk that contains only text, if it is borrowed from the chunk's bytes.
fn only_text<'a>(chunk: &Chunk<'a>) -> Option<&'a str> {
    match chunk_text(chunk)? {
        Cow::Borrowed(text) => Some(text),
        Cow::Owned(_) => None,
    }
}

/// Returns the text of a chunk that contains nothing else.
fn chunk_text<'a, 'c>(chunk: &'c Chunk<'a>) -> Option<&'c Cow<'a, str>> {
    let Chunk { choices: Some(Choices(Some(choice))), error: None, usage: None, x_groq: None } = chunk else {
        return None;
    };
    let Choice { index: _, delta: Some(delta), message: None, finish_reason: None, error: None, text } =
        choice
    else {
        return None;
    };
    let Delta {
        content: Content { text: content, thought },
        reasoning_content,
        reasoning,
        refusal,
        reasoning_details: None,
        extra_content: None,
        tool_calls: None,
        function_call: None,
    } = &**delta
    else {
        return None;
    };
    let others = [&text.0, &reasoning_content.0, &reasoning.0, &refusal.0];
    let says_more = !thought.is_empty() || others.iter().any(|other| !other.is_empty());
    (!content.is_empty() && !says_more).then_some(content)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Returns the text that the cache finds in `second` after it has learned from `first`.
    fn found<'a>(first: &str, second: &'a str) -> Option<Cow<'a, str>> {
        let mut cache = ChunkCache::default();
        cache.learn(&serde_json::from_str(first).expect("a chunk"), first);
        cache.text(second.as_bytes())
    }

    #[test]
    fn a_chunk_like_the_previous_one_is_recognized() {
        let chunk = |text: &str| {
            json!({"id": "x", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": null}]})
                .to_string()
        };
        for (first, second, expected) in [
            (chunk("Hello"), chunk(" world"), Some(" world")),
            (chunk("a"), chunk("é 漢"), Some("é 漢")),
            (chunk("Hello"), chunk("\"quoted\""), Some("\"quoted\"")),
            (chunk("Hello"), chunk("\\line\n"), Some("\\line\n")),
            (chunk("Hello"), chunk("a\",\"role\":\"b").replace('\\', ""), None),
            (chunk("Hello"), chunk("a").replace("\"a\"", "\"\\ud800\""), None),
            (chunk("Hello"), chunk(""), None),
            (chunk("\n"), chunk("x"), None),
            (chunk(""), chunk("x"), None),
            (chunk("a"), chunk("b").replace("\"x\"", "\"y\""), None),
            (chunk("a"), chunk("b").replace("null", "\"stop\""), None),
            (chunk("a").replace("null", "\"stop\""), chunk("b").replace("null", "\"stop\""), None),
            (
                r#"{"usage":{"total_tokens":1},"choices":[{"delta":{"content":"a"}}]}"#.to_owned(),
                chunk("b"),
                None,
            ),
        ] {
            assert_eq!(found(&first, &second).as_deref(), expected, "{first} {second}");
        }
    }

    #[test]
    fn chunks_with_more_than_text_are_not_recognized() {
        for more in [
            r#""reasoning":"b""#,
            r#""reasoning_content":"b""#,
            r#""refusal":"b""#,
            r#""reasoning_details":[]"#,
            r#""extra_content":{}"#,
            r#""tool_calls":[{"index":0}]"#,
            r#""function_call":{"name":"b"}"#,
        ] {
            let chunk = format!(r#"{{"choices":[{{"delta":{{"content":"a",{more}}}}}]}}"#);
            assert_eq!(found(&chunk, &chunk), None, "{chunk}");
        }
    }

    proptest! {
        /// The cache finds the same text as the parser.
        #[test]
        fn the_cache_finds_the_same_text_as_the_parser(first in "[a-z\"\\\\ é]{1,6}", second in "\\PC{0,8}|[\"\\\\{}:,a]{0,8}", raw in any::<bool>()) {
            let chunk = |text: &str| format!(r#"{{"choices":[{{"delta":{{"content":{text}}}}}]}}"#);
            let written = |text: &str| json!(text).to_string();
            let second = if raw { format!("\"{second}\"") } else { written(&second) };
            let second = chunk(&second);
            if let Some(found) = found(&chunk(&written(&first)), &second) {
                let read: Chunk<'_> = serde_json::from_str(&second).expect("what is found is a chunk");
                prop_assert_eq!(chunk_text(&read), Some(&found));
            }
        }
    }
}
