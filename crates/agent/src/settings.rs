//! What the agent is told when it starts.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use narrows_mcp::Confinement;
use narrows_model::{Effort, Endpoint};
use narrows_process::Environment;

use crate::gate::{Open, ToolGate};
use crate::memory::{Forgetful, Memory};

/// Everything the agent is told when it starts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where models are; the first is the default. Empty: nothing is configured, and a prompt is answered with how to.
    pub routes: Vec<Route>,
    /// What every conversation begins with.
    pub system: Option<String>,
    /// How failures of an endpoint are told in version 1.
    pub errors: Errors,
    /// Where sessions are kept; without it they live as long as the process.
    pub data_dir: Option<PathBuf>,
    /// What the MCP servers that the agent starts see of the environment.
    pub server_env: Environment,
    /// Whether the servers that a client names are started. Those that run in the client are always used.
    pub accepts_servers: bool,
    /// What these run in, if not in whatever we do.
    pub server_confinement: Option<Confinement>,
    /// Its patience.
    pub limits: Limits,
    /// Who is asked before a tool is announced or run.
    pub gate: Arc<dyn ToolGate>,
    /// What outlives its sessions.
    pub memory: Arc<dyn Memory>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            routes: Vec::new(),
            system: None,
            errors: Errors::default(),
            data_dir: None,
            server_env: Environment::empty(),
            accepts_servers: true,
            server_confinement: None,
            limits: Limits::default(),
            gate: Arc::new(Open),
            memory: Arc::new(Forgetful),
        }
    }
}

/// One endpoint and how it is used.
#[derive(Clone, Debug)]
pub struct Route {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The model that is used unless another is chosen.
    pub model: String,
    /// How long an answer may be.
    pub max_tokens: Option<u64>,
    /// How adventurous it may be.
    pub temperature: Option<f64>,
    /// How much the model is to think, unless something else is chosen.
    pub effort: Option<Effort>,
}

/// How failures of an endpoint are told in version 1. Failures of the protocol are JSON-RPC errors in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Errors {
    /// As text of the agent, so that every client shows it, and in `_meta` so that no program takes it for an answer.
    #[default]
    Text,
    /// As a JSON-RPC error in answer to the prompt.
    Rpc,
}

/// How patient the agent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many requests one turn may make of the model.
    pub requests_per_turn: u32,
    /// How long one call of a tool may take, the time its permission is waited for not included.
    pub tool: Duration,
    /// How long an MCP server may take to be ready before a turn goes on without it.
    pub server_start: Duration,
    /// How many bytes one answer of the model may have.
    pub answer_bytes: usize,
    /// How many bytes one turn may have: answers, results of tools, and what is shown of them.
    pub turn_bytes: usize,
    /// How many bytes a session may have, as it is stored.
    pub session_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            requests_per_turn: 50,
            tool: Duration::from_secs(600),
            server_start: Duration::from_secs(10),
            answer_bytes: 16 << 20,
            turn_bytes: 64 << 20,
            session_bytes: 256 << 20,
        }
    }
}
