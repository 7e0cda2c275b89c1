//! An event as the line it will be, all but its place in the chain; made where the event comes from, so that the
//! thread that writes has little left to do.

use std::io::Write;

use ring::digest::{Context, SHA256, SHA512};
use serde_json::{Map, Value};

use crate::entry::{Algorithm, DOCTYPE, GENESIS, SCHEMA};
use crate::event::{self, Event, EventError};
use crate::jcs;
use crate::redact::Redaction;

/// The most that is added to a draft: two hashes, a number, a time and the names of these fields.
pub(crate) const PLACE: usize = 2 * 128 + 160;

/// The parts of a line between which its place in the chain goes.
#[derive(Debug)]
pub(crate) struct Draft {
    text: Vec<u8>,
    /// Where `hash` and `hashAlg` go.
    hash: usize,
    /// Where `prevHash` and `seq` go.
    prev: usize,
}

/// The place of the next line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) seq: u64,
    /// The hash of the line in front; nothing if there is none.
    pub(crate) prev: Option<String>,
}

impl Draft {
    /// Takes the secrets out of `event` and makes a line of it that has at most `limit` bytes.
    pub(crate) fn new(mut event: Event, redaction: &Redaction, limit: usize) -> Result<Self, EventError> {
        event.check()?;
        let mut metadata = Value::Object(std::mem::take(&mut event.metadata));
        event::exact("metadata", &mut metadata)?;
        if let Value::Object(members) = metadata {
            event.metadata = members;
        }
        for (field, value) in [("input", &mut event.input), ("output", &mut event.output)] {
            if let Some(value) = value {
                *value = event::object(value.take());
                event::exact(field, value)?;
            }
        }
        redaction.clean(&mut event);
        let draft = Self::of(&event);
        let bytes = draft.text.len() + PLACE;
        if bytes > limit { Err(EventError::TooLarge { bytes, limit }) } else { Ok(draft) }
    }

    fn of(event: &Event) -> Self {
        let mut out = Vec::with_capacity(512);
        let Event { actor, action, subject, input, output, policy, signatures, metadata } = event;
        member(&mut out, b"{\"$schema\":", &Value::from(SCHEMA));
        member(&mut out, b",\"action\":", &Value::from(action.as_str()));
        member(&mut out, b",\"actor\":", &object([("id", Some(&actor.id)), ("role", actor.role.as_ref())]));
        member(&mut out, b",\"doctype\":", &Value::from(DOCTYPE));
        out.push(b',');
        let hash = out.len();
        optional(&mut out, "input", input.as_ref());
        if !metadata.is_empty() {
            optional(&mut out, "metadata", Some(&Value::Object(metadata.clone())));
        }
        optional(&mut out, "output", output.as_ref());
        if let Some(policy) = policy {
            let decision = policy.decision.map(|decision| decision.name().to_owned());
            let policy = object([("ref", Some(&policy.reference)), ("decision", decision.as_ref())]);
            optional(&mut out, "policy", Some(&policy));
        }
        let prev = out.len();
        if !signatures.is_empty() {
            optional(&mut out, "signatures", Some(&Value::from(signatures.clone())));
        }
        let subject = [
            ("kind", Some(&subject.kind)),
            ("ref", subject.reference.as_ref()),
            ("path", subject.path.as_ref()),
        ];
        optional(&mut out, "subject", Some(&object(subject)));
        Self { text: out, hash, prev }
    }

    /// How long the line will be at most.
    pub(crate) fn len(&self) -> usize {
        self.text.len() + PLACE
    }

    /// Puts the line behind `out`, and returns its hash.
    pub(crate) fn put(&self, place: &Place, ts: &str, algorithm: Algorithm, out: &mut Vec<u8>) -> String {
        let start = out.len();
        out.extend_from_slice(&self.text[..self.hash]);
        let gap = out.len();
        out.extend_from_slice(b"\"hashAlg\":\"");
        out.extend_from_slice(algorithm.name().as_bytes());
        out.extend_from_slice(b"\",");
        out.extend_from_slice(&self.text[self.hash..self.prev]);
        out.extend_from_slice(b"\"prevHash\":\"");
        out.extend_from_slice(place.prev.as_deref().unwrap_or(GENESIS).as_bytes());
        // Writing to a vector does not fail.
        let _ = write!(out, "\",\"seq\":{},", place.seq);
        out.extend_from_slice(&self.text[self.prev..]);
        let _ = write!(out, "\"ts\":\"{ts}\"}}");

        let mut digest = Context::new(match algorithm {
            Algorithm::Sha256 => &SHA256,
            Algorithm::Sha512 => &SHA512,
        });
        digest.update(&out[start..]);
        let hash = hex(digest.finish().as_ref());
        let field = ["\"hash\":\"", &hash, "\","].concat();
        out.splice(gap..gap, field.bytes());
        out.push(b'\n');
        hash
    }
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn object<const N: usize>(members: [(&str, Option<&String>); N]) -> Value {
    let members =
        members.into_iter().filter_map(|(key, text)| Some((key.to_owned(), Value::from(text?.as_str()))));
    Value::Object(members.collect::<Map<_, _>>())
}

fn optional(out: &mut Vec<u8>, key: &str, value: Option<&Value>) {
    if let Some(value) = value {
        jcs::write_text(key, out);
        member(out, b":", value);
        out.push(b',');
    }
}

fn member(out: &mut Vec<u8>, key: &[u8], value: &Value) {
    out.extend_from_slice(key);
    // What is nested too deeply has been refused before.
    let _ = jcs::write(value, out);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::entry::Entry;
    use crate::event::{Actor, Decision, PolicyRef, Subject};

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
            policy: Some(PolicyRef { reference: "note-sync".into(), decision: Some(Decision::Allow) }),
            signatures: vec!["signatures/1.signature.json".into()],
            metadata: json!({"aip44": {"session": "s"}}).as_object().cloned().expect("an object"),
        }
    }

    #[track_caller]
    fn check(event: &Event, algorithm: Algorithm) {
        let draft = Draft::new(event.clone(), &Redaction::default(), 1 << 20).expect("a draft");
        let place = Place { seq: 7, prev: Some("ab".repeat(32)) };
        let mut line = Vec::new();
        let hash = draft.put(&place, "2026-11-15T18:00:00.000Z", algorithm, &mut line);
        assert!(line.len() <= draft.len(), "{} > {}", line.len(), draft.len());
        let text = line.strip_suffix(b"\n").expect("a line");
        // The same by way of the plain writer.
        let mut value: Value = serde_json::from_slice(text).expect("JSON");
        assert_eq!(jcs::to_vec(&value).as_deref(), Ok(text), "{}", text.escape_ascii());
        assert_eq!(value.as_object_mut().and_then(|line| line.remove("hash")), Some(json!(hash)));
        let mut digest = Context::new(if algorithm == Algorithm::Sha256 { &SHA256 } else { &SHA512 });
        digest.update(&jcs::to_vec(&value).expect("shallow"));
        assert_eq!(hex(digest.finish().as_ref()), hash);

        let entry: Entry = serde_json::from_slice(text).expect("an entry");
        assert_eq!((entry.seq, &entry.hash, entry.hash_alg), (7, &hash, algorithm));
        assert_eq!(entry.output.map(Value::Object), event.output.clone().map(event::object));
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
            metadata: Map::new(),
            ..full()
        };
        check(&least, Algorithm::Sha256);
    }

    #[test]
    fn a_long_event_is_refused() {
        let event = Event { input: Some(json!({"text": "x".repeat(2000)})), ..full() };
        let error = Draft::new(event, &Redaction::default(), 1024).expect_err("too long");
        assert!(matches!(error, EventError::TooLarge { limit: 1024, .. }), "{error}");
    }
}
