//! What a message is, found with `serde_json` and without a thought for speed.

use std::fmt;

use narrows_wire::{Envelope, Fault, Kind, Span};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Keys that decide where a message goes.
const KEYS: [&[u8]; 8] =
    [b"jsonrpc", b"id", b"method", b"params", b"result", b"error", b"sessionId", b"pool"];

/// The kind and the fields of a message.
pub(crate) struct Model<'a> {
    pub(crate) kind: Kind,
    top: Members<'a>,
    params: Members<'a>,
    result: Members<'a>,
}

impl<'a> Model<'a> {
    /// Of a text that is JSON.
    pub(crate) fn of(text: &'a str) -> Self {
        let top = Members::of(text);
        let inner = |key| top.get(key).map(Members::of).unwrap_or_default();
        let (params, result) = (inner(b"params"), inner(b"result"));
        let kind = match text.trim_start().as_bytes().first() {
            Some(b'{') if repeated(&top, &params, &result) => Kind::Invalid(Fault::RepeatedKey),
            Some(b'{') => judge(&top).unwrap_or_else(Kind::Invalid),
            Some(b'[') => Kind::Batch,
            _ => Kind::Invalid(Fault::NotAMessage),
        };
        Self { kind, top, params, result }
    }

    /// Panics if the scan found something else.
    pub(crate) fn check(&self, text: &str, kind: Kind, envelope: &Envelope) {
        assert_eq!(kind, self.kind, "{text:?}");
        if kind == Kind::Invalid(Fault::RepeatedKey) {
            return;
        }
        let Envelope {
            version,
            id,
            method,
            params,
            result,
            error,
            session,
            request_id,
            top_session,
            pool,
            ambiguous,
            has_other_members,
        } = *envelope;
        let is_other = |key: &Key| !KEYS.contains(&&*key.0);
        assert_eq!(has_other_members, self.top.0.iter().any(|(key, _)| is_other(key)), "{text:?}");
        let mut all = [&self.top, &self.params, &self.result].into_iter().flat_map(|members| &members.0);
        assert_eq!(ambiguous, all.any(|(key, _)| key.resembles_a_routing_key()), "{text:?}");
        let top = [version, id, method, params, result, error, top_session, pool];
        for (key, span) in KEYS.into_iter().zip(top) {
            same_place(text, span, self.top.get(key));
        }
        let model_session = self.params.get(b"sessionId").or(self.result.get(b"sessionId"));
        same_place(text, session, model_session);
        same_place(text, request_id, self.params.get(b"requestId"));
    }
}

/// The span is the very stretch of the text that serde_json borrowed.
fn same_place(text: &str, span: Span, expected: Option<&str>) {
    let found = span.slice(text.as_bytes());
    let place = |bytes: &[u8]| (bytes.as_ptr() as usize - text.as_ptr() as usize, bytes.len());
    assert_eq!(found.map(place), expected.map(|raw| place(raw.as_bytes())), "{text:?}");
}

fn repeated(top: &Members<'_>, params: &Members<'_>, result: &Members<'_>) -> bool {
    KEYS.into_iter().any(|key| top.count(key) > 1)
        || top.0.iter().any(|(key, _)| key.resembles_a_key_of_a_message())
        || params.count(b"sessionId") + result.count(b"sessionId") > 1
        || params.count(b"requestId") > 1
}

fn judge(top: &Members<'_>) -> Result<Kind, Fault> {
    let version = top.get(b"jsonrpc") == Some("\"2.0\"");
    let answers = top.get(b"result").or(top.get(b"error")).is_some();
    let id = top.get(b"id");
    let good_id = id.is_some_and(|id| {
        id.len() <= 4096
            && id.starts_with(|first: char| first == '"' || first == '-' || first.is_ascii_digit())
    });
    let Some(method) = top.get(b"method") else {
        return match (answers, version) {
            (true, true) if good_id || id == Some("null") => Ok(Kind::Response),
            (true, _) => Err(Fault::BadResponse),
            (false, true) => Err(Fault::NoMethod),
            (false, false) => Err(Fault::Version),
        };
    };
    if !version {
        Err(Fault::Version)
    } else if serde_json::from_str::<String>(method).is_err() {
        Err(Fault::BadMethod)
    } else if answers {
        Err(Fault::Mixed)
    } else if id.is_none() {
        Ok(Kind::Notification)
    } else if !good_id {
        Err(Fault::BadId)
    } else if top.get(b"params").is_some_and(|raw| !raw.starts_with(['{', '[']) && raw != "null") {
        Err(Fault::BadParams)
    } else {
        Ok(Kind::Request)
    }
}

/// The members of an object in order, keys without escapes, values as they stand. Empty for anything else.
#[derive(Default)]
struct Members<'a>(Vec<(Key, &'a RawValue)>);

impl<'a> Members<'a> {
    fn of(raw: &'a str) -> Self {
        if raw.trim_start().starts_with('{') {
            serde_json::from_str(raw).expect("JSON")
        } else {
            Self::default()
        }
    }

    fn get(&self, key: &[u8]) -> Option<&'a str> {
        self.0.iter().find(|(name, _)| name.0 == key).map(|(_, raw)| raw.get())
    }

    fn count(&self, key: &[u8]) -> usize {
        self.0.iter().filter(|(name, _)| name.0 == key).count()
    }
}

impl<'a> Deserialize<'a> for Members<'a> {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'a> Visitor<'a> for Collect {
            type Value = Members<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Collect)
    }
}

/// A key as bytes, since half of a surrogate pair is a valid key and yet no text.
struct Key(Vec<u8>);

impl<'a> Deserialize<'a> for Key {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        struct Copy;

        impl Visitor<'_> for Copy {
            type Value = Key;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_bytes<E>(self, key: &[u8]) -> Result<Key, E> {
                Ok(Key(key.to_vec()))
            }
        }

        deserializer.deserialize_bytes(Copy)
    }
}

impl Key {
    /// In lower case; keys that are not text have none.
    fn folded(&self) -> String {
        let text = std::str::from_utf8(&self.0).unwrap_or_default();
        text.to_lowercase().replace('\u{17f}', "s")
    }

    fn resembles_a_key_of_a_message(&self) -> bool {
        // `sessionId` and `pool` are the last two.
        KEYS[..6].iter().any(|key| *self.0 != **key && self.folded().as_bytes() == *key)
    }

    fn resembles_a_routing_key(&self) -> bool {
        let is_exact = matches!(&*self.0, b"sessionId" | b"requestId");
        !is_exact && matches!(&*self.folded().replace(['_', '-'], ""), "sessionid" | "requestid")
    }
}
