//! RUNNER.md: the process around something that runs, and its limits.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The front matter of a RUNNER.md, or the same inside another manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Runner {
    /// Where it runs.
    #[serde(default)]
    pub engine: Engine,
    /// The image of a sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub image: Option<String>,
    /// What has to be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs: Option<Needs>,
    /// What it may use up.
    #[serde(default)]
    pub limits: Limits,
}

/// Where something runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// In a process of its own.
    #[default]
    Subprocess,
    /// In a sandbox.
    Sandbox,
    /// In ours.
    InProcess,
}

/// What has to be there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Needs {
    /// The language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<Language>,
    /// Packages of the system.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(min = 1)))]
    pub native: Vec<String>,
    /// Packages of npm.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(min = 1), regex(pattern = r"^@?[^@]+@?[^\n\r\u{2028}\u{2029}]*$")))]
    pub npm: Vec<String>,
    /// Packages of pip.
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
    /// More than one.
    Multi,
}

/// What something may use up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Memory in MiB, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub memory_mb: Option<u64>,
    /// Time in milliseconds, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub timeout_ms: Option<u64>,
    /// Time of the processor in milliseconds, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub cpu_ms: Option<u64>,
}
