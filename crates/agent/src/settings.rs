//! Settings of the agent, its endpoints and its limits.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use narrows_mcp::Confinement;
use narrows_model::{Effort, Endpoint};
use narrows_process::Environment;

use crate::gate::{AllowAll, ToolGate};
use crate::memory::{Memory, NoMemory};

/// Settings of the agent.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Model endpoints, the default first. If empty, the answer to a prompt explains how to configure one.
    pub routes: Vec<ModelRoute>,
    pub system: Option<String>,
    /// Format of endpoint failures in version 1.
    pub errors: FailureFormat,
    /// Directory for stored sessions. `None` keeps sessions only until the process ends.
    pub data_dir: Option<PathBuf>,
    /// Environment of the MCP servers that the agent starts.
    pub server_env: Environment,
    /// `true` to start the MCP servers that a client names. Servers that run in the client are always used.
    pub accepts_servers: bool,
    /// Sandbox of the MCP servers that the agent starts. `None` runs the servers unconfined.
    pub server_confinement: Option<Confinement>,
    pub limits: Limits,
    /// Gate that checks each tool call before it is announced or run.
    pub gate: Arc<dyn ToolGate>,
    pub memory: Arc<dyn Memory>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            routes: Vec::new(),
            system: None,
            errors: FailureFormat::default(),
            data_dir: None,
            server_env: Environment::empty(),
            accepts_servers: true,
            server_confinement: None,
            limits: Limits::default(),
            gate: Arc::new(AllowAll),
            memory: Arc::new(NoMemory),
        }
    }
}

/// An endpoint, and the defaults for its requests.
#[derive(Clone, Debug)]
pub struct ModelRoute {
    pub endpoint: Endpoint,
    pub model: String,
    pub max_tokens: Option<u64>,
    pub temperature: Option<f64>,
    pub effort: Option<Effort>,
}

/// Format of endpoint failures in version 1. Protocol errors are always JSON-RPC errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailureFormat {
    /// A text in place of the model's answer, which every client shows. A mark in `_meta` tells programs that
    /// the text reports a failure.
    #[default]
    Text,
    /// A JSON-RPC error as the response to the prompt.
    Rpc,
}

/// Limits of turns and sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub requests_per_turn: u32,
    /// Timeout of a tool call. The wait for the user's permission does not count.
    pub tool_timeout: Duration,
    /// Time for an MCP server to start. After this time, a turn continues without the server.
    pub server_start_timeout: Duration,
    pub answer_bytes: usize,
    /// Maximum number of bytes per turn: answers, tool results, and their displayed content.
    pub turn_bytes: usize,
    pub session_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            requests_per_turn: 50,
            tool_timeout: Duration::from_secs(600),
            server_start_timeout: Duration::from_secs(10),
            answer_bytes: 16 << 20,
            turn_bytes: 64 << 20,
            session_bytes: 256 << 20,
        }
    }
}
