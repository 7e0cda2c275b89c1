//! One line of the log, as it is read: the event, and its place in the chain.

use ring::digest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::event::{Actor, Decision, PolicyRef, Subject};

/// What `$schema` of every line is.
pub const SCHEMA: &str = "agentgovernance/v1";
/// What `doctype` of every line is.
pub const DOCTYPE: &str = "audit-event";
/// The `prevHash` of the first line.
pub const GENESIS: &str = "GENESIS";

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Always [`SCHEMA`].
    #[serde(rename = "$schema")]
    pub schema: String,
    /// Always [`DOCTYPE`].
    pub doctype: String,
    /// Its number; the first is 0, and none is left out.
    pub seq: u64,
    /// When it was written, in UTC. Never before the entry in front of it, whatever the clock did.
    pub ts: String,
    /// Who acted.
    pub actor: Actor,
    /// What was done, such as `tool.call`.
    pub action: String,
    /// To what.
    pub subject: Subject,
    /// With what.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Map<String, Value>>,
    /// What came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Map<String, Value>>,
    /// Which rule decided, and how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyRef>,
    /// The files of the signatures it rests on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<String>,
    /// Whatever else is known.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// The hash of the entry in front, or [`GENESIS`].
    pub prev_hash: String,
    /// The hash of this one without this field.
    pub hash: String,
    /// How it was made.
    #[serde(default)]
    pub hash_alg: Algorithm,
}

/// How entries are hashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// SHA-256.
    #[default]
    Sha256,
    /// SHA-512.
    Sha512,
}

impl Algorithm {
    /// Its name in the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    pub(crate) fn digest(self) -> &'static digest::Algorithm {
        match self {
            Self::Sha256 => &digest::SHA256,
            Self::Sha512 => &digest::SHA512,
        }
    }
}

impl Entry {
    /// What is said about it under `metadata.aip44`.
    pub fn aip44(&self, key: &str) -> Option<&Value> {
        self.metadata.get("aip44")?.get(key)
    }

    /// The session it belongs to.
    pub fn session(&self) -> Option<&str> {
        self.text_member("session", "session")
    }

    /// The tool it is about.
    pub fn tool(&self) -> Option<&str> {
        self.text_member("tool", "tool")
    }

    /// How it was decided.
    pub fn decision(&self) -> Option<Decision> {
        self.policy.as_ref().and_then(|policy| policy.decision)
    }

    /// What the metadata say, or else the subject if it is of this kind.
    fn text_member(&self, key: &str, kind: &str) -> Option<&str> {
        let subject = || self.subject.reference.as_deref().filter(|_| self.subject.kind == kind);
        self.aip44(key).and_then(Value::as_str).or_else(subject)
    }
}
