//! An event as a line of the log, still without its position in the chain. The calling thread creates the
//! line, to leave little work to the writer thread.

use std::io::Write;

use ring::digest::Context;
use serde_json::Value;

use crate::entry::{Algorithm, DOCTYPE, GENESIS, SCHEMA};
use crate::event::{self, Event, EventError, LoggedDecision};
use crate::jcs;
use crate::redact::Redaction;

/// Maximum length of the members that complete a line: two hashes, a number, a time and their keys.
pub(crate) const MAX_POSITION_BYTES: usize = 2 * 128 + 160;

/// Initial capacity of a line's buffer. Most lines are shorter, and the allocator finds memory of this size
/// quickly.
const TYPICAL_LINE_BYTES: usize = 1000;

/// A line without its position in the chain, and the offsets at which the position is inserted.
#[derive(Debug)]
pub(crate) struct Draft {
    text: Vec<u8>,
    /// Offset at which `hash` and `hashAlg` are inserted.
    hash: usize,
    /// Offset at which `prevHash` and `seq` are inserted.
    prev: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogPosition {
    pub(crate) seq: u64,
    /// Hash of the previous line. `None` for the first line of the log.
    pub(crate) prev: Option<String>,
}

impl Draft {
    /// Redacts `event` and formats it as a line of at most `limit` bytes. An input or output that does not
    /// fit is replaced by its length.
    pub(crate) fn new(event: Event, redaction: &Redaction, limit: usize) -> Result<Self, EventError> {
        Self::with_buffer(Vec::new(), event, redaction, limit)
    }

    /// Like [`Draft::new`], but reuses the memory of `buffer`.
    pub(crate) fn with_buffer(
        buffer: Vec<u8>,
        mut event: Event,
        redaction: &Redaction,
        limit: usize,
    ) -> Result<Self, EventError> {
        event.check()?;
        for value in [&mut event.input, &mut event.output].into_iter().flatten() {
            *value = event::into_object(value.take());
            event::make_exact(value);
        }
        let before = (event.input.clone(), event.output.clone());
        redaction.clean_values(&mut event);
        let pairs = [(before.0.as_ref(), event.input.as_ref()), (before.1.as_ref(), event.output.as_ref())];
        if let Some(removed) = redaction.with_removed(pairs) {
            removed.clean_peer_texts(&mut event);
        }
        let is_alone = event.metadata.is_empty() && redaction.leaves(&event.facts);
        if !event.facts.is_empty() && !is_alone {
            event.facts.add_to(&mut event.metadata);
        }
        let mut metadata = Value::Object(std::mem::take(&mut event.metadata));
        event::make_exact(&mut metadata);
        if let Value::Object(members) = metadata {
            event.metadata = members;
        }
        redaction.clean_texts(&mut event);
        let mut draft = Self::from_event(&event, buffer)?;
        // A decision must not be left out because of its input or output. The marks of removed secrets can
        // make a value many times longer.
        while draft.len() > limit && event::truncate_value(&mut event) {
            draft = Self::from_event(&event, draft.into_buffer())?;
        }
        let bytes = draft.len();
        if bytes > limit { Err(EventError::TooLarge { bytes, limit }) } else { Ok(draft) }
    }

    fn from_event(event: &Event, mut out: Vec<u8>) -> Result<Self, EventError> {
        out.clear();
        out.reserve(TYPICAL_LINE_BYTES);
        let Event { actor, action, subject, input, output, policy, signatures, facts, metadata } = event;
        write_texts(&mut out, b"{", &[("$schema", Some(SCHEMA)), ("action", Some(action))]);
        out.extend_from_slice(b",\"actor\":");
        write_texts(&mut out, b"{", &[("id", Some(&actor.id)), ("role", actor.role.as_deref())]);
        out.extend_from_slice(b"}");
        write_texts(&mut out, b",", &[("doctype", Some(DOCTYPE))]);
        out.push(b',');
        let hash = out.len();
        // A partial line would be worse than an error. Values that are nested too deeply were already
        // replaced by a mark, but this function does not rely on that.
        let deep = |field: &'static str| move |jcs::TooDeep| EventError::TooDeep(field);
        if let Some(input) = input {
            out.extend_from_slice(b"\"input\":");
            jcs::write(input, &mut out).map_err(deep("input"))?;
            out.push(b',');
        }
        if !facts.is_empty() {
            out.extend_from_slice(b"\"metadata\":{\"aip44\":");
            facts.write(&mut out).map_err(deep("metadata"))?;
            out.extend_from_slice(b"},");
        } else if !metadata.is_empty() {
            out.extend_from_slice(b"\"metadata\":");
            jcs::write_object(metadata, &mut out).map_err(deep("metadata"))?;
            out.push(b',');
        }
        if let Some(output) = output {
            out.extend_from_slice(b"\"output\":");
            jcs::write(output, &mut out).map_err(deep("output"))?;
            out.push(b',');
        }
        if let Some(policy) = policy {
            out.extend_from_slice(b"\"policy\":");
            let decision = policy.decision.map(LoggedDecision::name);
            write_texts(&mut out, b"{", &[("decision", decision), ("ref", Some(&policy.reference))]);
            out.extend_from_slice(b"},");
        }
        let prev = out.len();
        if !signatures.is_empty() {
            out.extend_from_slice(b"\"signatures\":");
            jcs::write(&Value::from(signatures.clone()), &mut out).map_err(deep("signatures"))?;
            out.push(b',');
        }
        out.extend_from_slice(b"\"subject\":");
        let (reference, path) = (subject.reference.as_deref(), subject.path.as_deref());
        write_texts(&mut out, b"{", &[("kind", Some(&subject.kind)), ("path", path), ("ref", reference)]);
        out.extend_from_slice(b"},");
        Ok(Self { text: out, hash, prev })
    }

    pub(crate) fn len(&self) -> usize {
        self.text.len() + MAX_POSITION_BYTES
    }

    /// Appends the complete line to `out`. Returns the hash of the line.
    pub(crate) fn write_line(
        &self,
        position: &LogPosition,
        ts: &str,
        algorithm: Algorithm,
        out: &mut Vec<u8>,
    ) -> String {
        let start = out.len();
        out.extend_from_slice(&self.text[..self.hash]);
        // The hash covers the line without its member `hash`, so that member is inserted afterwards.
        out.extend_from_slice(b"\"hash\":\"");
        let gap = out.len();
        out.resize(gap + 2 * algorithm.digest().output_len(), b'0');
        let behind = out.len() + b"\",".len();
        out.extend_from_slice(b"\",\"hashAlg\":\"");
        out.extend_from_slice(algorithm.name().as_bytes());
        out.extend_from_slice(b"\",");
        out.extend_from_slice(&self.text[self.hash..self.prev]);
        out.extend_from_slice(b"\"prevHash\":\"");
        out.extend_from_slice(position.prev.as_deref().unwrap_or(GENESIS).as_bytes());
        // Writing to a vector does not fail.
        let _ = write!(out, "\",\"seq\":{},", position.seq);
        out.extend_from_slice(&self.text[self.prev..]);
        out.extend_from_slice(b"\"ts\":\"");
        out.extend_from_slice(ts.as_bytes());
        out.extend_from_slice(b"\"}");

        let mut digest = Context::new(algorithm.digest());
        digest.update(&out[start..start + self.hash]);
        digest.update(&out[behind..]);
        let hash = hex(digest.finish().as_ref());
        out[gap..gap + hash.len()].copy_from_slice(hash.as_bytes());
        out.push(b'\n');
        hash
    }

    /// Returns the buffer, so that another draft can reuse its memory.
    pub(crate) fn into_buffer(self) -> Vec<u8> {
        self.text
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Writes the members of a list that have a text, in the given order.
fn write_texts(out: &mut Vec<u8>, before: &[u8], members: &[(&str, Option<&str>)]) {
    let mut before = before;
    for (key, text) in members {
        if let Some(text) = text {
            out.extend_from_slice(before);
            jcs::write_text(key, out);
            out.push(b':');
            jcs::write_text(text, out);
            before = b",";
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::entry::Entry;
    use crate::event::{Actor, PolicyRef, Subject};
    use crate::facts::Facts;
    use crate::verify;

    fn full() -> Event {
        Event {
            actor: Actor { id: "operator:notes".into(), role: Some("operator".into()) },
            action: "tool.call".into(),
            subject: Subject {
                kind: "tool".into(),
                reference: Some("append".into()),
                path: Some("/a".into()),
            },
            input: Some(json!({"z": 1, "a": "café\n"})),
            output: Some(json!("done")),
            policy: Some(PolicyRef { reference: "note-sync".into(), decision: Some(LoggedDecision::Allow) }),
            signatures: vec!["signatures/1.signature.json".into()],
            facts: Facts::new(),
            metadata: json!({"aip44": {"session": "s"}}).as_object().cloned().expect("an object"),
        }
    }

    #[track_caller]
    fn check(event: &Event, algorithm: Algorithm) {
        let buffer = b"{}".to_vec();
        let draft =
            Draft::with_buffer(buffer, event.clone(), &Redaction::default(), 1 << 20).expect("a draft");
        let position = LogPosition { seq: 7, prev: Some("ab".repeat(32)) };
        let mut line = Vec::new();
        let hash = draft.write_line(&position, "2026-11-15T18:00:00.000Z", algorithm, &mut line);
        assert!(line.len() <= draft.len(), "{} > {}", line.len(), draft.len());
        let text = line.strip_suffix(b"\n").expect("a line");
        // Inserting the position must lead to the same line as serializing the complete object.
        let mut value: Value = serde_json::from_slice(text).expect("JSON");
        assert_eq!(jcs::to_vec(&value).as_deref(), Ok(text), "{}", text.escape_ascii());
        assert_eq!(value.as_object_mut().and_then(|line| line.remove("hash")), Some(json!(hash)));
        let mut digest = Context::new(algorithm.digest());
        digest.update(&jcs::to_vec(&value).expect("shallow"));
        assert_eq!(hex(digest.finish().as_ref()), hash);

        let entry: Entry = serde_json::from_slice(text).expect("an entry");
        assert_eq!((entry.seq, &entry.hash, entry.hash_alg), (7, &hash, algorithm));
        assert_eq!(entry.output.map(Value::Object), event.output.clone().map(event::into_object));
    }

    #[test]
    fn a_line_is_canonical_and_hashed() {
        check(&full(), Algorithm::Sha256);
        check(&full(), Algorithm::Sha512);
        let least = Event {
            input: None,
            output: None,
            policy: None,
            signatures: vec![],
            metadata: serde_json::Map::new(),
            ..full()
        };
        check(&least, Algorithm::Sha256);
    }

    proptest::proptest! {
        /// At any nesting depth of a value, the line verifies. A value that is nested too deeply is replaced
        /// by a mark.
        #[test]
        fn a_value_of_any_depth_becomes_a_line_that_verifies(
            levels in 115_usize..140,
            shapes in proptest::collection::vec(0_u8..3, 140),
            core in proptest::sample::select(vec![
                json!("plain"), json!("Bearer abcdefghijklmnop"), json!({"password": "hunter2"}), json!([]), json!(7),
                json!({"password": {"a": ["b"]}, "sha256": "ab"}), json!({"token=abcdefgh12": [1]}),
            ]),
            place in 0_u8..4,
        ) {
            let value = shapes.iter().take(levels).fold(core, |inner, shape| match shape {
                0 => json!([inner]),
                1 => json!({"a": inner, "sha256": "ab"}),
                _ => json!(["Basic abcdefghijklmnop", inner]),
            });
            let mut event = Event { input: None, output: None, metadata: serde_json::Map::new(), ..full() };
            match place {
                0 => event.input = Some(value),
                1 => event.output = Some(json!({"error": value})),
                2 => event.facts.insert("deep", value),
                _ => event.metadata = [("deep".to_owned(), value)].into_iter().collect(),
            }
            let mut line = Vec::new();
            let draft = Draft::new(event, &Redaction::default(), 1 << 20).expect("a draft");
            draft.write_line(&LogPosition::default(), "2026-11-15T18:00:00.000Z", Algorithm::Sha256, &mut line);
            let text = line.strip_suffix(b"\n").expect("a line");
            let read: Value = serde_json::from_slice(text).expect("JSON that every reader reads");
            let canonical = jcs::to_vec(&read).expect("shallow");
            proptest::prop_assert_eq!(canonical.as_slice(), text);
            let report = verify::bytes(&line, &verify::VerifyOptions::default());
            proptest::prop_assert_eq!((report.entries, report.bad), (1, None));
            let told = String::from_utf8_lossy(text);
            proptest::prop_assert!(!told.contains("abcdefghijklmnop") && !told.contains("hunter2"));
            if levels > 126 {
                proptest::prop_assert!(told.contains("nested too deeply"));
            }
        }
    }

    #[test]
    fn a_long_event_is_refused() {
        let metadata = json!({"text": "x".repeat(2000)}).as_object().cloned().expect("an object");
        let error =
            Draft::new(Event { metadata, ..full() }, &Redaction::default(), 1024).expect_err("too long");
        assert!(matches!(error, EventError::TooLarge { limit: 1024, .. }), "{error}");
    }

    #[track_caller]
    fn check_truncated(input: Value, output: Value, expected: [Option<&str>; 2]) {
        let event = Event { input: Some(input), output: Some(output), ..full() };
        let draft = Draft::new(event, &Redaction::default(), 4 << 10).expect("a draft");
        let mut line = Vec::new();
        draft.write_line(&LogPosition::default(), "2026-11-15T18:00:00.000Z", Algorithm::Sha256, &mut line);
        let entry: Entry = serde_json::from_slice(&line).expect("an entry");
        let found =
            [entry.input, entry.output].map(|value| value.map(|value| Value::Object(value).to_string()));
        assert_eq!(found.each_ref().map(Option::as_deref), expected);
    }

    #[test]
    fn an_input_that_does_not_fit_is_replaced_by_its_length() {
        let long = json!({"text": "x".repeat(5000)});
        let gone = Some(r#"{"$truncated":true,"bytes":5011}"#);
        let short = json!({"a": 1});
        check_truncated(long.clone(), short.clone(), [gone, Some(r#"{"a":1}"#)]);
        check_truncated(short.clone(), long.clone(), [Some(r#"{"a":1}"#), gone]);
        check_truncated(long.clone(), long, [gone, gone]);
        // Each number becomes a mark.
        let grows = json!({"kind": "Secret", "data": vec![1; 1000]});
        check_truncated(grows, short, [Some(r#"{"$truncated":true,"bytes":50026}"#), Some(r#"{"a":1}"#)]);
    }
}
