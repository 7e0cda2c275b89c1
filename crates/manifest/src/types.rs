//! The manifests as plain data. All printed and checked schemas are generated from these types.
//!
//! The first line of a doc comment is shown in findings as a hint.

pub mod acp;
pub mod agent_cli;
pub mod cli;
pub mod governance;
pub mod operator;
pub mod policy;
pub mod runner;
pub mod sandbox;
pub mod storage;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// Members of a manifest that other programs define.
pub type OtherKeys = Map<String, Value>;

/// One value, or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum OneOrMany<T> {
    /// One.
    One(T),
    /// Several, each once.
    #[schemars(extend("minItems" = 1))]
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    /// Returns all values.
    pub fn as_slice(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

/// Where secrets come from, by name and never by value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Secrets {
    /// The file or name of the secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub r#ref: Option<String>,
    /// Which of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<SecretState>,
}

/// Which secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretState {
    /// The names of variables.
    #[serde(default)]
    pub env: Vec<String>,
}

/// Deserializes the value of a key that is present, so that `null` differs from a missing key.
pub(crate) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}
