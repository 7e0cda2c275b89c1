//! An entry of the log as read from disk: an event and its position in the chain.

use ring::digest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::event::{Actor, LoggedDecision, PolicyRef, Subject};

pub const SCHEMA: &str = "agentgovernance/v1";
pub const DOCTYPE: &str = "audit-event";
pub const GENESIS: &str = "GENESIS";

/// An entry as it is in the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Name of the schema, always [`SCHEMA`].
    #[serde(rename = "$schema")]
    pub schema: String,
    /// Type of the document, always [`DOCTYPE`].
    pub doctype: String,
    /// Number of the entry. The first is 0, and there are no gaps.
    pub seq: u64,
    /// Time of writing, in UTC. Never earlier than the time of the previous entry, even if the clock was set
    /// back.
    pub ts: String,
    pub actor: Actor,
    pub action: String,
    pub subject: Subject,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyRef>,
    /// Paths of signature files that the event relies on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<String>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// Hash of the previous entry, or [`GENESIS`] in the first entry.
    pub prev_hash: String,
    /// Hash of the entry without this field.
    pub hash: String,
    #[serde(default)]
    pub hash_alg: Algorithm,
}

/// Hash algorithm of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    #[default]
    Sha256,
    Sha512,
}

impl Algorithm {
    /// Returns the name of the algorithm, as entries contain it.
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
    /// Returns the member of `metadata.aip44` with this name.
    pub fn aip44(&self, key: &str) -> Option<&Value> {
        self.metadata.get("aip44")?.get(key)
    }

    /// Returns the id of the event's session.
    pub fn session(&self) -> Option<&str> {
        self.text_member("session", "session")
    }

    /// Returns the name of the event's tool.
    pub fn tool(&self) -> Option<&str> {
        self.text_member("tool", "tool")
    }

    /// Returns the decision of the policy.
    pub fn decision(&self) -> Option<LoggedDecision> {
        self.policy.as_ref().and_then(|policy| policy.decision)
    }

    /// Returns this text member of `metadata.aip44`. If the member is missing, returns the subject of the
    /// event if the subject is of this kind.
    fn text_member(&self, key: &str, kind: &str) -> Option<&str> {
        let subject = || self.subject.reference.as_deref().filter(|_| self.subject.kind == kind);
        self.aip44(key).and_then(Value::as_str).or_else(subject)
    }
}
