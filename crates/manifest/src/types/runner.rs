//! RUNNER.md: the process that runs an agent or a tool, and its limits.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The front matter of a RUNNER.md, or a map inside another manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Runner {
    /// Engine: process, sandbox or in-process.
    #[serde(default)]
    pub engine: Engine,
    /// Image of a sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub image: Option<String>,
    /// Dependencies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs: Option<Needs>,
    /// Resource limits.
    #[serde(default)]
    pub limits: Limits,
}

/// Engine of a runner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// A separate process.
    #[default]
    Subprocess,
    /// A sandbox.
    Sandbox,
    /// The host process.
    InProcess,
}

/// Dependencies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Needs {
    /// Language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<Language>,
    /// System packages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(min = 1)))]
    pub native: Vec<String>,
    /// npm packages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(min = 1), regex(pattern = r"^@?[^@]+@?[^\n\r\u{2028}\u{2029}]*$")))]
    pub npm: Vec<String>,
    /// pip packages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(min = 1)))]
    pub pip: Vec<String>,
}

/// A language.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// JavaScript.
    Node,
    /// Python.
    Python,
    /// Several languages.
    Multi,
}

/// Resource limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Memory in MiB, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub memory_mb: Option<u64>,
    /// Run time in milliseconds, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub timeout_ms: Option<u64>,
    /// Processor time in milliseconds, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub cpu_ms: Option<u64>,
}
