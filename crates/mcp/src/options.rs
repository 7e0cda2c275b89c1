//! Options of MCP servers: limits, environment, sandbox.

use std::path::PathBuf;
use std::time::Duration;

use narrows_process::{Environment, Ladder};

use crate::Confinement;

/// Start options and limits of a session's servers.
#[derive(Debug, Clone)]
pub struct Options {
    pub cwd: PathBuf,
    /// Environment of stdio servers. Each server's own variables are added. The proxy variables apply to HTTP
    /// servers.
    pub env: Environment,
    /// Sandbox of stdio servers; `None` runs them unconfined.
    pub confinement: Option<Confinement>,
    /// Time from starting a server until its tools must be listed.
    pub start_timeout: Duration,
    /// Time after which a call is cancelled.
    pub call_timeout: Duration,
    pub max_result_bytes: usize,
    pub max_tools: usize,
    pub ladder: Ladder,
    pub client_name: String,
    pub client_version: String,
}

impl Options {
    /// Returns the defaults: ten seconds to start, ten minutes per call, 1 MiB of text per result, 512 tools
    /// per server, and two seconds to end.
    #[must_use]
    pub fn new(cwd: impl Into<PathBuf>, env: Environment) -> Self {
        Self {
            cwd: cwd.into(),
            env,
            confinement: None,
            start_timeout: Duration::from_secs(10),
            call_timeout: Duration::from_secs(600),
            max_result_bytes: 1 << 20,
            max_tools: 512,
            ladder: Ladder { eof_grace: Duration::from_millis(500), term_grace: Duration::from_millis(1500) },
            client_name: "narrows".to_owned(),
            client_version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}
