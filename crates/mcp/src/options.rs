//! Limits, and what a server gets to see.

use std::path::PathBuf;
use std::time::Duration;

use narrows_process::{Environment, Ladder};

use crate::Confinement;

/// How the servers of a session are started and how much they may take.
#[derive(Debug, Clone)]
pub struct Options {
    /// The working directory of stdio servers.
    pub cwd: PathBuf,
    /// The environment of stdio servers, to which each descriptor adds. Its proxy variables hold for HTTP servers.
    pub env: Environment,
    /// What stdio servers run in; `None` lets them do what we may.
    pub confinement: Option<Confinement>,
    /// How long a server may take from its start to its list of tools.
    pub start_limit: Duration,
    /// How long a call may take.
    pub call_limit: Duration,
    /// How many bytes of text of one result are kept.
    pub max_result: usize,
    /// How many tools of one server are kept.
    pub max_tools: usize,
    /// How patiently a stdio server is ended.
    pub ladder: Ladder,
    /// Who we say we are.
    pub client_name: String,
    /// Which version of it.
    pub client_version: String,
}

impl Options {
    /// Ten seconds to start, ten minutes per call, 1 MiB of text per result, 512 tools per server, and two seconds
    /// to end.
    #[must_use]
    pub fn new(cwd: impl Into<PathBuf>, env: Environment) -> Self {
        Self {
            cwd: cwd.into(),
            env,
            confinement: None,
            start_limit: Duration::from_secs(10),
            call_limit: Duration::from_secs(600),
            max_result: 1 << 20,
            max_tools: 512,
            ladder: Ladder { eof_grace: Duration::from_millis(500), term_grace: Duration::from_millis(1500) },
            client_name: "narrows".to_owned(),
            client_version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}
