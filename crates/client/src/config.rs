//! Settings of a new session.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use narrows_policy::Policy;
use narrows_process::Environment;

use crate::mcp::ServerConfig;
use crate::permission_request::PermissionHandler;

/// Settings of a session: directories, model, mode, policy and services.
#[derive(Clone)]
pub struct SessionConfig {
    pub cwd: PathBuf,
    pub additional_dirs: Vec<PathBuf>,
    /// Model by id or name; `None` for the agent's default.
    pub model: Option<String>,
    /// `true` if an unavailable model is an error; if `false`, an unavailable model is only reported.
    pub require_model: bool,
    /// Mode by id or name.
    pub mode: Option<String>,
    /// `true` if a read-only mode of the agent is selected for low access, unless `mode` is set.
    pub restrict_mode: bool,
    /// Reasoning effort: `none`, `low`, `medium`, `high` or `xhigh`.
    pub reasoning_effort: Option<String>,
    pub policy: Arc<Policy>,
    /// Handler for actions that need a person's decision. `None` denies them.
    pub on_permission: Option<Arc<dyn PermissionHandler>>,
    pub mcp_servers: Vec<ServerConfig>,
    pub environment: Environment,
    /// Git configuration files that apply to every repository, in addition to those in the home directory of
    /// the policy. The hooks that these files name are protected.
    pub git_settings: Vec<PathBuf>,
    /// `true` if the history of a resumed session is replayed as events. Has no effect if the agent does not
    /// support it.
    pub replay: bool,
    pub raw: bool,
    /// `true` to run commands in a sandbox, if this machine supports one.
    pub sandbox: bool,
    /// `true` if the session's directories are on another machine, so that this machine has none of its
    /// files.
    pub is_remote: bool,
    /// `true` to log in without the user, if the agent requires a login and the variables of a login method
    /// are set.
    pub log_in: bool,
}

impl SessionConfig {
    /// Creates the settings of a session in `cwd` under `policy`, with the agent's default model and without
    /// a permission handler.
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
            is_remote: false,
            log_in: true,
        }
    }

    pub(crate) fn roots(&self) -> Vec<PathBuf> {
        let all = std::iter::once(&self.cwd).chain(&self.additional_dirs);
        all.filter(|_| !self.is_remote).cloned().collect()
    }
}

impl fmt::Debug for SessionConfig {
    /// The environment is omitted, because it may contain keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionConfig")
            .field("cwd", &self.cwd)
            .field("additional_dirs", &self.additional_dirs)
            .field("model", &self.model)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}
