//! Settings of the agent.

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
    /// Model endpoints; the first is the default. If empty, a prompt is answered with how to configure one.
    pub routes: Vec<ModelRoute>,
    /// System prompt of every conversation.
    pub system: Option<String>,
    /// Format of endpoint failures in version 1.
    pub errors: FailureFormat,
    /// Directory of the stored sessions; without it sessions live as long as the process.
    pub data_dir: Option<PathBuf>,
    /// Environment of the MCP servers that the agent starts.
    pub server_env: Environment,
    /// `true` if MCP servers that a client names are started. Those that run in the client are always used.
    pub accepts_servers: bool,
    /// Sandbox of these servers; `None` runs them unconfined.
    pub server_confinement: Option<Confinement>,
    /// Limits of turns and sessions.
    pub limits: Limits,
    /// Checks every tool call before it is announced or run.
    pub gate: Arc<dyn ToolGate>,
    /// Memory beyond one session.
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

/// An endpoint and how it is used.
#[derive(Clone, Debug)]
pub struct ModelRoute {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Default model.
    pub model: String,
    /// Most tokens per answer.
    pub max_tokens: Option<u64>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Default thinking effort.
    pub effort: Option<Effort>,
}

/// Format of endpoint failures in version 1. Protocol errors are always JSON-RPC errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailureFormat {
    /// Text of the agent, so that every client shows it, marked in `_meta` so that no program takes it for an answer.
    #[default]
    Text,
    /// A JSON-RPC error in response to the prompt.
    Rpc,
}

/// Limits of turns and sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most model requests per turn.
    pub requests_per_turn: u32,
    /// Longest time of a tool call, without the time that its permission takes.
    pub tool_timeout: Duration,
    /// Time for an MCP server to start before a turn goes on without it.
    pub server_start_timeout: Duration,
    /// Most bytes per answer of the model.
    pub answer_bytes: usize,
    /// Most bytes per turn: answers, tool results, and what is shown of them.
    pub turn_bytes: usize,
    /// Most bytes of a stored session.
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
