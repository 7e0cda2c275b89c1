//! Selects an agent and the settings of a session from arguments and configuration.

mod builtin;
mod environment;
mod named;
mod policy;
mod remote;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use narrows_acp::Version;
use narrows_agent::ModelRoute;
use narrows_client::{Agent, Offer, PermissionHandler, Runtime, ServerConfig, SessionConfig};
use narrows_policy::Access;
use narrows_process::{AllowList, Spec};
use narrows_remote::client::Target;

use crate::cli::{AgentArgs, ModelArgs, Output, SessionArgs};
use crate::config::{AgentEntry, BUILT_IN, Origin, Variables};
use crate::failure::Failure;
use crate::output;
use crate::reconnect_notice::ReconnectNotice;

pub(crate) use builtin::print_demo_notice;
pub(crate) use named::agents;
pub(crate) use policy::combine;
pub(crate) use remote::Remote;

#[derive(Debug)]
pub(crate) struct SelectedAgent {
    pub(crate) agent: Agent,
    /// `true` if the demo model is used, because nothing else is configured.
    pub(crate) demo: bool,
    /// The working directory, as an absolute path.
    pub(crate) cwd: PathBuf,
    model: Option<String>,
    route: Option<Box<ModelRoute>>,
    /// `true` with `--require-model`: the start fails if the endpoint does not list the model.
    requires_model: bool,
    defaults: AgentDefaults,
    remote: Option<Remote>,
}

#[derive(Clone, Debug, Default)]
struct AgentDefaults {
    origin: Option<Origin>,
    access: Option<Access>,
    policy: Option<PathBuf>,
    mode: Option<String>,
    mcp: Option<PathBuf>,
}

impl AgentDefaults {
    /// Returns the setting that named a file, for error messages: `flag` if `given`, otherwise `key` of
    /// narrows.toml.
    fn named_by(&self, given: bool, flag: &str, key: &str) -> String {
        match &self.origin {
            Some(origin) if !given => format!("{origin}: `{key}`"),
            _ => flag.to_owned(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SessionStart {
    New,
    Resume(String),
    Fork(String),
    Continue,
}

#[derive(Debug)]
pub(crate) struct SessionRequest {
    pub(crate) config: SessionConfig,
    pub(crate) offer: Offer,
    pub(crate) start: SessionStart,
}

impl SelectedAgent {
    pub(crate) fn from_agent(agent: Agent, cwd: PathBuf) -> Self {
        Self {
            agent,
            demo: false,
            cwd,
            model: None,
            route: None,
            requires_model: false,
            defaults: AgentDefaults::default(),
            remote: None,
        }
    }

    pub(crate) async fn start(&self, offer: Offer) -> Result<Runtime, Failure> {
        if let Some(route) = self.route.as_ref().filter(|_| self.requires_model) {
            builtin::require_model(route).await?;
        }
        match &self.remote {
            None => Ok(Runtime::start(self.agent.clone(), offer).await?),
            Some(remote) => {
                let link = remote.connect().await?;
                match Runtime::connect(self.agent.clone(), link, offer).await {
                    Ok(runtime) => Ok(runtime),
                    Err(error) => {
                        // Over HTTP a refused or failed connection is reported only when the connection ends.
                        remote.finish().await?;
                        Err(error.into())
                    }
                }
            }
        }
    }

    pub(crate) fn reconnect_notice(&self) -> ReconnectNotice {
        ReconnectNotice::new(self.remote.as_ref().and_then(Remote::state))
    }

    /// Closes the connection to a remote agent. Returns the failure if the connection was lost.
    pub(crate) async fn finish(&self) -> Option<Failure> {
        let lost = self.remote.as_ref()?.finish().await.err()?;
        tracing::debug!(why = lost.message(), "connection to the agent ended");
        Some(lost)
    }
}

pub(crate) fn select(args: &AgentArgs, output: Output) -> Result<SelectedAgent, Failure> {
    if let Some(wanted) = args.agent.as_deref().filter(|wanted| Target::looks_like(wanted)) {
        let mut selected = select_remote(wanted, args)?;
        set_deadlines(&mut selected, args);
        return Ok(selected);
    }
    if let Some(flag) = remote::first_flag(&args.remote) {
        return Err(Failure::remote_only_flag(flag, args.agent.as_deref().unwrap_or(BUILT_IN)));
    }
    let cwd = absolute_dir(args.cwd.as_deref().unwrap_or(Path::new(".")))?;
    let mut selected = match &args.agent {
        None => builtin::prepare(args, cwd, output)?,
        Some(wanted) if wanted == BUILT_IN => builtin::prepare(args, cwd, output)?,
        Some(wanted) => {
            // `--model` applies to any session. All other model flags are for the built-in agent only.
            let others = ModelArgs { model: None, config: None, ..args.model.clone() };
            if others != ModelArgs::default() {
                return Err(Failure::model_flags_for_other_agent(&others));
            }
            let (entry, known) = named::find(wanted, args.model.config.as_deref())?;
            let selected = from_command(&entry, args, cwd)?;
            if entry.origin.is_none() && !known.is_empty() {
                named::warn_unknown_name(wanted, &known, &selected.agent.spec)?;
            }
            selected
        }
    };
    set_deadlines(&mut selected, args);
    Ok(selected)
}

fn select_remote(wanted: &str, args: &AgentArgs) -> Result<SelectedAgent, Failure> {
    let target = wanted.parse().map_err(|error| Failure::agent_url_invalid(wanted, &error))?;
    let others = ModelArgs { model: None, config: None, ..args.model.clone() };
    if others != ModelArgs::default() {
        return Err(Failure::model_flags_for_other_agent(&others));
    }
    let about_process = [
        ("--env", !args.env.is_empty()),
        ("--clean-env", args.clean_env),
        ("--pass-env", !args.pass_env.is_empty()),
    ];
    if let Some((flag, _)) = about_process.iter().find(|(_, given)| *given) {
        return Err(Failure::local_only_flag(flag, &target));
    }
    // A path that does not exist on this machine is taken as a path on the host of the remote agent.
    let wished = args.cwd.as_deref().unwrap_or(Path::new("."));
    let cwd = match absolute_dir(wished) {
        Ok(cwd) => cwd,
        Err(_) if wished.is_absolute() && wished.to_str().is_some() => wished.to_owned(),
        Err(_) => return Err(Failure::relative_remote_directory(wished)),
    };
    let agent = Agent::new(target.to_string(), Spec::new(""));
    let remote = Some(Remote::from_flags(target, &args.remote)?);
    Ok(SelectedAgent { model: args.model.model.clone(), remote, ..SelectedAgent::from_agent(agent, cwd) })
}

fn set_deadlines(selected: &mut SelectedAgent, args: &AgentArgs) {
    let deadlines = &mut selected.agent.deadlines;
    let set = |deadline: &mut std::time::Duration, given: Option<std::time::Duration>| {
        if let Some(given) = given {
            *deadline = given;
        }
    };
    set(&mut deadlines.initialize, args.initialize_timeout);
    set(&mut deadlines.open, args.session_timeout);
    set(&mut deadlines.resume, args.session_timeout);
    set(&mut deadlines.cancel, args.cancel_grace);
    set(&mut deadlines.cancel_late, args.cancel_grace);
    set(&mut deadlines.silence, args.silence_timeout);
    if let Some(protocol) = args.protocol {
        selected.agent.protocol = protocol.into();
    }
}

pub(crate) fn from_command(
    entry: &AgentEntry,
    args: &AgentArgs,
    cwd: PathBuf,
) -> Result<SelectedAgent, Failure> {
    let [program, arguments @ ..] = entry.command.as_slice() else {
        return Err(Failure::setup("start an agent without a command", &io::ErrorKind::InvalidInput.into()));
    };
    let path = match program.as_str() {
        // The name `narrows` stands for this executable, even if it is not in PATH.
        "narrows" => std::env::current_exe().map_err(|error| Failure::setup("find this program", &error))?,
        // A relative program path starts from the user's directory, not from the working directory of the
        // agent.
        path if path.contains('/') => {
            std::path::absolute(path).map_err(|error| Failure::setup("find the current directory", &error))?
        }
        name => PathBuf::from(name),
    };
    let mut spec = Spec::new(path);
    spec.args = arguments.iter().map(Into::into).collect();
    spec.cwd = Some(cwd.clone());
    spec.env = environment::build(args, Some(entry), &[])?;
    let mut agent = Agent::new(&entry.name, spec);
    agent.usage_scope = entry.usage_scope;
    agent.commands_run_by = entry.commands_run_by;
    agent.protocol = entry.protocol.map_or(Version::V1, Into::into);
    let deadlines = &mut agent.deadlines;
    deadlines.initialize = entry.initialize_timeout.unwrap_or(deadlines.initialize);
    deadlines.open = entry.session_timeout.unwrap_or(deadlines.open);
    deadlines.resume = entry.session_timeout.unwrap_or(deadlines.resume);
    deadlines.cancel = entry.cancel_grace.unwrap_or(deadlines.cancel);
    deadlines.cancel_late = entry.cancel_grace.unwrap_or(deadlines.cancel_late);
    deadlines.silence = entry.silence_timeout.unwrap_or(deadlines.silence);
    let defaults = AgentDefaults {
        origin: entry.origin.clone(),
        access: entry.access,
        policy: entry.policy.clone(),
        mode: entry.mode.clone(),
        mcp: entry.mcp.clone(),
    };
    let model = args.model.model.clone().or_else(|| entry.model.clone());
    Ok(SelectedAgent { model, defaults, ..SelectedAgent::from_agent(agent, cwd) })
}

/// Builds the session settings. `asks` handles requests that rules do not decide.
pub(crate) fn session_request(
    args: &SessionArgs,
    selected: &mut SelectedAgent,
    asks: Option<Arc<dyn PermissionHandler>>,
) -> Result<SessionRequest, Failure> {
    let defaults = &selected.defaults;
    let policy = policy::policy(args, defaults)?;
    let can = policy.offers();
    // Capabilities that the policy would always deny are not offered to the agent.
    let mut offer = Offer { read_files: can.read, write_files: can.write, run_commands: can.execute };
    let is_remote = selected.remote.is_some() && !selected.cwd.is_dir();
    if is_remote {
        // Local files and commands cannot be offered to a remote agent.
        offer = Offer::default();
    }
    if let Some(limit) = args.permission_timeout {
        selected.agent.deadlines.permission = limit;
    }
    let mut config = SessionConfig::new(selected.cwd.clone(), Arc::new(policy));
    config.is_remote = is_remote;
    config.additional_dirs = args.add_dir.iter().map(|dir| absolute_dir(dir)).collect::<Result<_, _>>()?;
    config.model.clone_from(&selected.model);
    config.require_model = args.require_model;
    selected.requires_model = args.require_model;
    config.mode = args.mode.clone().or_else(|| defaults.mode.clone());
    config.on_permission = asks;
    let mcp = args.mcp.as_deref().or(defaults.mcp.as_deref());
    let by = defaults.named_by(args.mcp.is_some(), "--mcp", "mcp");
    config.mcp_servers = mcp.map(|path| read_mcp_servers(path, &by)).transpose()?.unwrap_or_default();
    config.environment =
        narrows_process::Environment::filtered(crate::environment::variables(), &AllowList::default());
    config.git_settings = crate::environment::git_settings();
    config.sandbox = !args.no_sandbox;
    let start = match (&args.resume, &args.fork, args.r#continue) {
        (Some(id), ..) => SessionStart::Resume(id.clone()),
        (_, Some(id), _) => SessionStart::Fork(id.clone()),
        (.., true) => SessionStart::Continue,
        _ => SessionStart::New,
    };
    Ok(SessionRequest { config, offer, start })
}

/// Returns the directory as an absolute path in UTF-8, as the protocol requires.
pub(crate) fn absolute_dir(directory: &Path) -> Result<PathBuf, Failure> {
    let usable = directory.canonicalize().and_then(|absolute| {
        if !absolute.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        if absolute.to_str().is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidFilename, "the path is not UTF-8"));
        }
        Ok(absolute)
    });
    usable.map_err(|error| Failure::cwd_unusable(directory, &error))
}

fn read_mcp_servers(path: &Path, by: &str) -> Result<Vec<ServerConfig>, Failure> {
    let text =
        crate::text_input::read_file(path).map_err(|error| Failure::file_unreadable(by, path, &error))?;
    let servers = ServerConfig::read(&text).map_err(|error| Failure::file_invalid(path, &error))?;
    if servers.is_empty() {
        output::write_stderr(&format!("{by}: {} has no enabled MCP server\n", path.display()));
    }
    Ok(servers)
}

/// Returns the variables that an agent with this environment sees.
fn visible_variables(env: &narrows_process::Environment) -> Variables {
    env.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
