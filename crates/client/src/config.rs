//! What a session is opened with.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use narrows_policy::Policy;
use narrows_process::Environment;

use crate::mcp::ServerConfig;
use crate::permission_request::PermissionHandler;

/// How a session works: where, with what, and what it may do.
#[derive(Clone)]
pub struct SessionConfig {
    /// The directory it works in; absolute.
    pub cwd: PathBuf,
    /// Further directories it may use.
    pub additional_dirs: Vec<PathBuf>,
    /// The model, by id or name; the agent's own if `None`.
    pub model: Option<String>,
    /// Whether a model that cannot be had is an error.
    pub require_model: bool,
    /// The mode, by id or name.
    pub mode: Option<String>,
    /// Whether low access chooses a mode in which the agent only reads, if `mode` names none.
    pub restrict_mode: bool,
    /// How much the model is to think: `none`, `low`, `medium`, `high` or `xhigh`.
    pub reasoning_effort: Option<String>,
    /// What the agent may do.
    pub policy: Arc<Policy>,
    /// Who decides what the policy leaves open; without anybody it is refused.
    pub on_permission: Option<Arc<dyn PermissionHandler>>,
    /// MCP servers for the agent.
    pub mcp_servers: Vec<ServerConfig>,
    /// The environment of commands that the agent runs here.
    pub environment: Environment,
    /// Files of settings that git reads in every repository, beside those in the home directory of the policy. The hooks that
    /// they name are protected.
    pub git_settings: Vec<PathBuf>,
    /// Whether the past of a session that is gone on with is wanted as events, where the agent can tell it.
    pub replay: bool,
    /// Whether events have the agent's own message with them.
    pub raw: bool,
    /// Whether commands run in a sandbox if this machine has one.
    pub sandbox: bool,
    /// Whether its directories are on another machine: then none of this one belongs to it.
    pub elsewhere: bool,
    /// Whether to log in by variables that are set, if the agent requires a login.
    pub log_in: bool,
}

impl SessionConfig {
    /// Creates the settings of a session in `cwd` under `policy`, with the agent's default model and no permission handler.
    #[must_use]
    pub fn new(cwd: PathBuf, policy: Arc<Policy>) -> Self {
        Self {
            cwd,
            additional_dirs: Vec::new(),
            model: None,
            require_model: false,
            mode: None,
            restrict_mode: true,
            reasoning_effort: None,
            policy,
            on_permission: None,
            mcp_servers: Vec::new(),
            environment: Environment::empty(),
            git_settings: Vec::new(),
            replay: false,
            raw: false,
            sandbox: true,
            elsewhere: false,
            log_in: true,
        }
    }

    /// Where files may be touched.
    pub(crate) fn roots(&self) -> Vec<PathBuf> {
        let all = std::iter::once(&self.cwd).chain(&self.additional_dirs);
        all.filter(|_| !self.elsewhere).cloned().collect()
    }
}

impl fmt::Debug for SessionConfig {
    /// Without the environment, which may hold keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionConfig")
            .field("cwd", &self.cwd)
            .field("additional_dirs", &self.additional_dirs)
            .field("model", &self.model)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}
