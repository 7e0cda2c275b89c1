//! The keys that `governance-revoked.json` revokes.
//!
//! Keys are compared, not texts: a key has several forms (`did:key`, its multibase part, PEM, JSON escapes),
//! and a revocation in one form revokes them all. Every string of the file is read, at any depth. A string
//! that looks like a key but cannot be parsed is an error, because otherwise its key would stay valid.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use narrows_audit::PublicKey;
use narrows_manifest::{Code, Finding, Findings, Severity};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::keys::{place_of, without_place};

const EXAMPLE: &str = "write {\"revoked\": [\"did:key:z6Mk…\"]}; keys have the same form as in the keys file";

/// Members that contain a list of keys.
const LISTS: [&str; 2] = ["revoked", "keys"];

/// Prefixes of strings that are meant as keys, in lower case. The last is an Ed25519 key in PEM without its first and
/// last line.
const BEGINNINGS: [&str; 4] = ["did:", "z6mk", "-----begin", "mcowbqydk2vwayea"];

const NOT_A_KEY: &str =
    "cannot read this revoked key: it is not an Ed25519 public key, so what it revokes is unknown";

const MAX_DEPTH: usize = 32;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RevokedKeys(HashSet<PublicKey>);

impl RevokedKeys {
    /// Parses the file at `path`, and adds an error to `findings` for each unreadable part.
    pub(super) fn parse(path: &Path, bytes: &[u8], findings: &mut Findings) -> Self {
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(_) => {
                findings.push(error(path, (1, 1), "cannot read the revoked keys: the file is not UTF-8"));
                return Self::default();
            }
        };
        let mut reader = Reader { path, text, findings, keys: HashSet::new() };
        match serde_json::from_str::<&RawValue>(text) {
            Ok(root) => reader.read_root(root),
            Err(broken) => {
                let place = (broken.line().max(1), broken.column().max(1));
                let message =
                    format!("cannot read the revoked keys: invalid JSON: {}", without_place(&broken));
                reader.findings.push(error(path, place, message));
            }
        }
        Self(reader.keys)
    }

    pub(super) fn contains(&self, key: &PublicKey) -> bool {
        self.0.contains(key)
    }

    pub(super) fn insert(&mut self, key: PublicKey) {
        self.0.insert(key);
    }
}

fn error(path: &Path, place: (usize, usize), message: impl Into<String>) -> Finding {
    Finding::new(Severity::Error, Code::Keyring, path, place, message.into()).with_hint(EXAMPLE)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A list of keys, or an object whose member names are keys.
    List,
    /// A key, or an object with a key.
    Entry,
    /// The `id` of an entry.
    Id,
    Other,
}

/// A JSON value whose parts are not parsed yet.
enum Node<'a> {
    Text(String),
    List(Vec<&'a RawValue>),
    Object(Members<'a>),
    Scalar,
}

/// The members of an object in order. Duplicates are kept, so that a later member does not hide an earlier
/// one.
struct Members<'a>(Vec<(String, &'a RawValue)>);

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    findings: &'a mut Findings,
    keys: HashSet<PublicKey>,
}

impl<'a> Reader<'a> {
    fn read_root(&mut self, root: &'a RawValue) {
        match Node::parse(root) {
            Ok(Node::List(_)) => _ = self.read(root, "", Role::List, 0),
            Ok(Node::Object(Members(members))) => {
                if !members.iter().any(|(name, _)| LISTS.contains(&name.as_str())) {
                    self.reject(root, "", "cannot read the revoked keys: missing member `revoked`");
                }
                _ = self.read(root, "", Role::Other, 0);
            }
            Ok(_) => self.reject(root, "", "cannot read the revoked keys: neither a list nor an object"),
            Err(broken) => self.reject_json(root, "", &broken),
        }
    }

    /// Reads a JSON value with all its parts. Returns `true` if the value has a key, or an error was
    /// reported.
    fn read(&mut self, raw: &'a RawValue, at: &str, role: Role, depth: usize) -> bool {
        if depth > MAX_DEPTH {
            self.reject(raw, at, "cannot read the revoked keys: nested too deeply");
            return true;
        }
        let node = match Node::parse(raw) {
            Ok(node) => node,
            Err(broken) => {
                self.reject_json(raw, at, &broken);
                return true;
            }
        };
        match node {
            Node::Text(text) if role != Role::List => self.read_text(&text, raw, at, role != Role::Other),
            Node::List(items) if role != Role::Id => {
                let role = if role == Role::List { Role::Entry } else { Role::Other };
                let mut has_key = false;
                for (number, item) in items.into_iter().enumerate() {
                    let at = format!("{at}[{number}]");
                    let is_read = self.read(item, &at, role, depth + 1);
                    if role == Role::Entry && !is_read {
                        self.reject(item, &at, "this entry of the revoked keys has no key");
                    }
                    has_key |= is_read;
                }
                has_key
            }
            Node::Object(Members(members)) if role != Role::Id => {
                let mut has_key = false;
                for (name, value) in members {
                    let at = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                    let inner = match role {
                        Role::Entry if name == "id" => Role::Id,
                        Role::Other if depth == 0 && LISTS.contains(&name.as_str()) => Role::List,
                        _ => Role::Other,
                    };
                    has_key |= self.read_text(&name, value, &at, role == Role::List);
                    has_key |= self.read(value, &at, inner, depth + 1);
                }
                has_key
            }
            _ if role == Role::List => {
                self.reject(raw, at, "cannot read the revoked keys: this is not a list");
                true
            }
            _ if role == Role::Id => {
                self.reject(raw, at, NOT_A_KEY);
                true
            }
            _ => false,
        }
    }

    /// Reads a string or a member name. Returns `true` if the text is a key, or an error was reported.
    fn read_text(&mut self, text: &str, raw: &RawValue, at: &str, is_id: bool) -> bool {
        if let Some(key) = read_key(text) {
            self.keys.insert(key);
            return true;
        }
        let is_meant = is_id || is_meant_as_key(text);
        if is_meant {
            self.reject(raw, at, NOT_A_KEY);
        }
        is_meant
    }

    fn reject_json(&mut self, raw: &RawValue, at: &str, broken: &serde_json::Error) {
        let message = format!("cannot read the revoked keys: invalid JSON: {}", without_place(broken));
        self.reject(raw, at, &message);
    }

    fn reject(&mut self, raw: &RawValue, at: &str, message: &str) {
        self.findings.push(error(self.path, place_of(self.text, raw), message).with_key(at));
    }
}

impl<'a> Node<'a> {
    fn parse(raw: &'a RawValue) -> serde_json::Result<Self> {
        let text = raw.get();
        match text.as_bytes().first() {
            Some(b'"') => serde_json::from_str(text).map(Self::Text),
            Some(b'[') => serde_json::from_str(text).map(Self::List),
            Some(b'{') => serde_json::from_str(text).map(Self::Object),
            _ => Ok(Self::Scalar),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }

        deserializer.deserialize_map(Collect).map(Self)
    }
}

/// Parses a key: a `did:key` with or without a fragment, its multibase part alone, or PEM.
pub(super) fn read_key(text: &str) -> Option<PublicKey> {
    let text = text.trim();
    if text.starts_with('z') {
        return format!("did:key:{text}").parse().ok();
    }
    let text = match text.split_once('#') {
        Some((did, _)) if did.starts_with("did:") => did,
        _ => text,
    };
    text.parse().ok()
}

fn is_meant_as_key(text: &str) -> bool {
    let text = text.trim_start();
    let has = |beginning: &&str| {
        text.get(..beginning.len()).is_some_and(|first| first.eq_ignore_ascii_case(beginning))
    };
    BEGINNINGS.iter().any(has)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// The public key of the first test vector in RFC 8032.
    const DID: &str = "did:key:z6MktwupdmLXVVqTzCw4i46r4uGyosGXRnR3XjN4Zq7oMMsw";
    const SPKI: &str = "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
    const OTHER: &str = "did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp";

    fn read(text: &str) -> (RevokedKeys, Vec<String>) {
        let mut findings = Findings::default();
        let keys = RevokedKeys::parse(Path::new("r.json"), text.as_bytes(), &mut findings);
        (keys, findings.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_key_is_revoked_in_every_form() {
        let pem = format!("-----BEGIN PUBLIC KEY-----\n{SPKI}\n-----END PUBLIC KEY-----\n");
        let multibase = DID.strip_prefix("did:key:").expect("a did");
        let escaped = DID.replacen(":z", ":\\u007a", 1);
        for text in [
            json!([DID]).to_string(),
            json!({"revoked": [DID]}).to_string(),
            json!({"keys": [{"id": DID, "subject": {"id": "ada"}}]}).to_string(),
            json!({"revoked": [{"id": pem, "reason": "lost"}]}).to_string(),
            json!({"revoked": [pem]}).to_string(),
            json!({"revoked": [pem.replace('\n', "\r\n")]}).to_string(),
            json!({"revoked": [pem.trim()]}).to_string(),
            json!({"revoked": [SPKI]}).to_string(),
            json!({"revoked": [multibase]}).to_string(),
            json!({"revoked": [format!(" {DID}#{multibase}\n")]}).to_string(),
            json!({"revoked": [{"key": {"of": [{"ada": DID}]}}]}).to_string(),
            json!({"revoked": {DID: "2026-11-18T00:00:00Z"}}).to_string(),
            json!({"revoked": [], "before": {"a": [[{DID: 1}]]}}).to_string(),
            format!("{{\"revoked\": [\"{escaped}\"]}}"),
            // The last of two members with the same name does not hide the first.
            format!("{{\"revoked\": [\"{DID}\"], \"revoked\": []}}"),
            format!("[{{\"id\": \"{DID}\", \"id\": \"{OTHER}\"}}]"),
        ] {
            let (keys, told) = read(&text);
            assert!(told.is_empty(), "{text}: {told:?}");
            assert!(keys.contains(&DID.parse().expect("a key")), "{text}");
        }
        for text in ["[]", "{\"revoked\": []}", "{\"revoked\": {}, \"note\": \"none\"}"] {
            assert_eq!(read(text), (RevokedKeys::default(), Vec::new()), "{text}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_an_error() {
        for (text, expected) in [
            ("", "r.json:1:1: error[keyring]: cannot read the revoked keys: invalid JSON: EOF"),
            (
                "{\"revoked\": [\n",
                "r.json:2:1: error[keyring]: cannot read the revoked keys: invalid JSON: EOF",
            ),
            ("[] []", "invalid JSON: trailing characters"),
            ("[\"\\ud800\"]", "[0]: cannot read the revoked keys: invalid JSON"),
            ("7", "neither a list nor an object"),
            ("null", "neither a list nor an object"),
            ("{}", "missing member `revoked`; write {\"revoked\""),
            ("{\"Revoked\": []}", "missing member `revoked`"),
            ("{\"revoked\": null}", "revoked: cannot read the revoked keys: this is not a list"),
            ("{\"revoked\": \"x\"}", "revoked: cannot read the revoked keys: this is not a list"),
            ("[\n  \"ada\"]", "r.json:2:3: error[keyring]: [0]: cannot read this revoked key"),
            ("[\"did:key:z6Mk\"]", "[0]: cannot read this revoked key"),
            ("[\"did:web:a\"]", "[0]: cannot read this revoked key"),
            ("[{\"id\": \"ada\"}]", "[0].id: cannot read this revoked key"),
            ("[{\"id\": [1]}]", "[0].id: cannot read this revoked key"),
            ("[{\"subject\": {\"id\": \"ada\"}}]", "[0]: this entry of the revoked keys has no key"),
            ("[null]", "[0]: this entry of the revoked keys has no key"),
            ("[[]]", "[0]: this entry of the revoked keys has no key"),
            ("{\"revoked\": {\"ada\": 1}}", "revoked.ada: cannot read this revoked key"),
            ("{\"revoked\": [], \"x\": [\"Z6MK\"]}", "x[0]: cannot read this revoked key"),
            ("{\"revoked\": [], \"x\": {\"-----BEGIN\": 1}}", "x.-----BEGIN: cannot read this revoked key"),
            ("{\"revoked\": [], \"x\": \" DID:key:\"}", "x: cannot read this revoked key"),
        ] {
            let (_, told) = read(text);
            assert_eq!(told.len(), 1, "{text}: {told:?}");
            assert!(told[0].contains(expected), "{text}: {told:?}");
        }
        let mut findings = Findings::default();
        RevokedKeys::parse(Path::new("r.json"), b"[\"\xff\"]", &mut findings);
        assert!(findings.has_errors());
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(read(&deep).1[0].contains("nested too deeply"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "[{}\\[\\]\",:a-z#]{0,60}") {
            read(&text);
        }
    }
}
