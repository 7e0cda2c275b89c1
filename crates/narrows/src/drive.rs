//! From arguments and configuration to an agent that can be driven, and a session with it.

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
use narrows_client::{Agent, Decide, Offer, Runtime, ServerConfig, SessionConfig};
use narrows_policy::Access;
use narrows_process::{AllowList, Spec};
use narrows_remote::client::Target;

use crate::cli::{AgentArgs, ModelArgs, Output, SessionArgs};
use crate::config::{AgentEntry, BUILT_IN, Origin, Variables};
use crate::failure::Failure;
use crate::output;
use crate::tidings::Tidings;

pub(crate) use builtin::introduce_demo;
pub(crate) use named::agents;
pub(crate) use policy::combined;
pub(crate) use remote::Remote;

/// An agent to be driven.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) agent: Agent,
    /// It is the built-in demo model, because nothing else is configured.
    pub(crate) demo: bool,
    /// Where it works: absolute.
    pub(crate) cwd: PathBuf,
    /// The model that its session is to use.
    model: Option<String>,
    /// The endpoint and the model of the built-in agent.
    route: Option<Box<ModelRoute>>,
    /// Whether that model must be one that the endpoint lists.
    requires_model: bool,
    /// What else narrows.toml says about its sessions.
    usual: Usual,
    /// Where it is, if it is not started here.
    remote: Option<Remote>,
}

/// What narrows.toml says about the sessions of an agent; a flag wins over each.
#[derive(Clone, Debug, Default)]
struct Usual {
    /// Where it says so.
    origin: Option<Origin>,
    access: Option<Access>,
    policy: Option<PathBuf>,
    mode: Option<String>,
    mcp: Option<PathBuf>,
}

impl Usual {
    /// Who names a file: the flag if it was `given`, and else the `key` of narrows.toml.
    fn named_by(&self, given: bool, flag: &str, key: &str) -> String {
        match &self.origin {
            Some(origin) if !given => format!("{origin}: `{key}`"),
            _ => flag.to_owned(),
        }
    }
}

/// Where a session begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    New,
    Resume(String),
    Fork(String),
    /// With the last one in this directory.
    Continue,
}

/// What is wanted of a session.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) config: SessionConfig,
    pub(crate) offer: Offer,
    pub(crate) start: Start,
}

impl Chosen {
    /// One that is known already.
    pub(crate) fn of(agent: Agent, cwd: PathBuf) -> Self {
        Self {
            agent,
            demo: false,
            cwd,
            model: None,
            route: None,
            requires_model: false,
            usual: Usual::default(),
            remote: None,
        }
    }

    /// Starts it, or connects to it where it is.
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
                        // Over HTTP it shows only now that nobody is there, or nobody that lets us in.
                        remote.finish().await?;
                        Err(error.into())
                    }
                }
            }
        }
    }

    /// What there is to tell of the connection, once it is started.
    pub(crate) fn tidings(&self) -> Tidings {
        Tidings::of(self.remote.as_ref().and_then(Remote::standing))
    }

    /// Waits until a remote agent was told that we go. Tells how the connection was lost, if it was before that.
    pub(crate) async fn finish(&self) -> Option<Failure> {
        let lost = self.remote.as_ref()?.finish().await.err()?;
        tracing::debug!(why = lost.message(), "the connection to the agent ended");
        Some(lost)
    }
}

/// The agent that the arguments mean. `output` is how its answer will be shown.
pub(crate) fn choose(args: &AgentArgs, output: Output) -> Result<Chosen, Failure> {
    if let Some(wanted) = args.agent.as_deref().filter(|wanted| Target::looks_like(wanted)) {
        let mut chosen = elsewhere(wanted, args)?;
        set_deadlines(&mut chosen, args);
        return Ok(chosen);
    }
    if let Some(flag) = remote::flag(&args.remote) {
        return Err(Failure::not_remote(flag, args.agent.as_deref().unwrap_or(BUILT_IN)));
    }
    let cwd = directory(args.cwd.as_deref().unwrap_or(Path::new(".")))?;
    let mut chosen = match &args.agent {
        None => builtin::prepare(args, cwd, output)?,
        Some(wanted) if wanted == BUILT_IN => builtin::prepare(args, cwd, output)?,
        Some(wanted) => {
            // The model is the session's business; all else is about the built-in agent.
            let others = ModelArgs { model: None, config: None, ..args.model.clone() };
            if others != ModelArgs::default() {
                return Err(Failure::model_of_another(&others));
            }
            let (entry, known) = named::find(wanted, args.model.config.as_deref())?;
            let chosen = started_by(&entry, args, cwd)?;
            if entry.origin.is_none() && !known.is_empty() {
                named::explain(wanted, &known, &chosen.agent.spec)?;
            }
            chosen
        }
    };
    set_deadlines(&mut chosen, args);
    Ok(chosen)
}

/// An agent that is somewhere else.
fn elsewhere(wanted: &str, args: &AgentArgs) -> Result<Chosen, Failure> {
    let target = wanted.parse().map_err(|error| Failure::bad_url(wanted, &error))?;
    let others = ModelArgs { model: None, config: None, ..args.model.clone() };
    if others != ModelArgs::default() {
        return Err(Failure::model_of_another(&others));
    }
    let about_process = [
        ("--env", !args.env.is_empty()),
        ("--clean-env", args.clean_env),
        ("--pass-env", !args.pass_env.is_empty()),
    ];
    if let Some((flag, _)) = about_process.iter().find(|(_, given)| *given) {
        return Err(Failure::not_local(flag, &target));
    }
    // Its directories are its own: one that is not here is believed to be there.
    let wished = args.cwd.as_deref().unwrap_or(Path::new("."));
    let cwd = match directory(wished) {
        Ok(cwd) => cwd,
        Err(_) if wished.is_absolute() && wished.to_str().is_some() => wished.to_owned(),
        Err(_) => return Err(Failure::relative(wished)),
    };
    let agent = Agent::new(target.to_string(), Spec::new(""));
    let remote = Some(Remote::of_flags(target, &args.remote)?);
    Ok(Chosen { model: args.model.model.clone(), remote, ..Chosen::of(agent, cwd) })
}

fn set_deadlines(chosen: &mut Chosen, args: &AgentArgs) {
    let deadlines = &mut chosen.agent.deadlines;
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
        chosen.agent.protocol = protocol.into();
    }
}

/// An agent that is started by a command.
pub(crate) fn started_by(entry: &AgentEntry, args: &AgentArgs, cwd: PathBuf) -> Result<Chosen, Failure> {
    let [program, arguments @ ..] = entry.command.as_slice() else {
        return Err(Failure::setup("start an agent without a command", &io::ErrorKind::InvalidInput.into()));
    };
    let path = match program.as_str() {
        // Ourselves, installed or not.
        "narrows" => std::env::current_exe().map_err(|error| Failure::setup("find this program", &error))?,
        // A path is meant from where the user is, not from where the agent is to work.
        path if path.contains('/') => {
            std::path::absolute(path).map_err(|error| Failure::setup("find the current directory", &error))?
        }
        name => PathBuf::from(name),
    };
    let mut spec = Spec::new(path);
    spec.args = arguments.iter().map(Into::into).collect();
    spec.cwd = Some(cwd.clone());
    spec.env = environment::of(args, Some(entry), &[])?;
    let mut agent = Agent::new(&entry.name, spec);
    agent.counted = entry.counted;
    agent.commands_run_by = entry.commands_run_by;
    agent.protocol = entry.protocol.map_or(Version::V1, Into::into);
    let deadlines = &mut agent.deadlines;
    deadlines.initialize = entry.initialize_timeout.unwrap_or(deadlines.initialize);
    deadlines.open = entry.session_timeout.unwrap_or(deadlines.open);
    deadlines.resume = entry.session_timeout.unwrap_or(deadlines.resume);
    deadlines.cancel = entry.cancel_grace.unwrap_or(deadlines.cancel);
    deadlines.cancel_late = entry.cancel_grace.unwrap_or(deadlines.cancel_late);
    deadlines.silence = entry.silence_timeout.unwrap_or(deadlines.silence);
    let usual = Usual {
        origin: entry.origin.clone(),
        access: entry.access,
        policy: entry.policy.clone(),
        mode: entry.mode.clone(),
        mcp: entry.mcp.clone(),
    };
    let model = args.model.model.clone().or_else(|| entry.model.clone());
    Ok(Chosen { model, usual, ..Chosen::of(agent, cwd) })
}

/// What the arguments want of a session with `chosen`. `asks` answers what the rules leave open.
pub(crate) fn want(
    args: &SessionArgs,
    chosen: &mut Chosen,
    asks: Option<Arc<dyn Decide>>,
) -> Result<Wanted, Failure> {
    let usual = &chosen.usual;
    let policy = policy::policy(args, usual)?;
    let can = policy.offers();
    // What would only ever be refused is not offered.
    let mut offer = Offer { read_files: can.read, write_files: can.write, run_commands: can.execute };
    let elsewhere = chosen.remote.is_some() && !chosen.cwd.is_dir();
    if elsewhere {
        // What is not here cannot be offered.
        offer = Offer::default();
    }
    if let Some(limit) = args.permission_timeout {
        chosen.agent.deadlines.permission = limit;
    }
    let mut config = SessionConfig::new(chosen.cwd.clone(), Arc::new(policy));
    config.elsewhere = elsewhere;
    config.additional_dirs = args.add_dir.iter().map(|dir| directory(dir)).collect::<Result<_, _>>()?;
    config.model.clone_from(&chosen.model);
    config.require_model = args.require_model;
    chosen.requires_model = args.require_model;
    config.mode = args.mode.clone().or_else(|| usual.mode.clone());
    config.on_permission = asks;
    let mcp = args.mcp.as_deref().or(usual.mcp.as_deref());
    let by = usual.named_by(args.mcp.is_some(), "--mcp", "mcp");
    config.mcp_servers = mcp.map(|path| servers(path, &by)).transpose()?.unwrap_or_default();
    config.environment =
        narrows_process::Environment::filtered(crate::environment::variables(), &AllowList::default());
    config.git_settings = crate::environment::git_settings();
    config.sandbox = !args.no_sandbox;
    let start = match (&args.resume, &args.fork, args.r#continue) {
        (Some(id), ..) => Start::Resume(id.clone()),
        (_, Some(id), _) => Start::Fork(id.clone()),
        (.., true) => Start::Continue,
        _ => Start::New,
    };
    Ok(Wanted { config, offer, start })
}

/// The directory as the protocol wants it: absolute, and text.
pub(crate) fn directory(directory: &Path) -> Result<PathBuf, Failure> {
    let usable = directory.canonicalize().and_then(|absolute| {
        if !absolute.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        if absolute.to_str().is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidFilename, "its name is not UTF-8"));
        }
        Ok(absolute)
    });
    usable.map_err(|error| Failure::cwd(directory, &error))
}

/// The MCP servers of a file.
fn servers(path: &Path, by: &str) -> Result<Vec<ServerConfig>, Failure> {
    let text = crate::text_input::read_file(path).map_err(|error| Failure::unreadable(by, path, &error))?;
    let servers = ServerConfig::read(&text).map_err(|error| Failure::bad_file(path, &error))?;
    if servers.is_empty() {
        output::complain(&format!("{by}: {} has no server in it that is switched on\n", path.display()));
    }
    Ok(servers)
}

/// The variables as an agent with this environment will see them.
fn seen(env: &narrows_process::Environment) -> Variables {
    env.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
