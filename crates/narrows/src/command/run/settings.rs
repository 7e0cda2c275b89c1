//! What `narrows run` needs to know, made from its arguments, its environment and its stdin.

use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use narrows_acp::Version;
use narrows_process::{AllowList, Environment, Spec};

use super::builtin::{self, Builtin, Given};
use crate::cli::{AgentCommand, ModelArgs, Run, Variable};
use crate::drive::Launch;
use crate::environment;
use crate::failure::Failure;

/// The longest prompt.
const MOST_PROMPT: u64 = 16 << 20;

/// What a turn needs.
pub(super) struct Settings {
    pub(super) launch: Launch,
    /// It is the built-in demo model, because nothing else is configured.
    pub(super) demo: bool,
    pub(super) prompt: String,
    /// Absolute.
    pub(super) cwd: PathBuf,
    /// The version to offer.
    pub(super) version: Version,
    pub(super) initialize_limit: Duration,
    pub(super) session_limit: Duration,
    pub(super) turn_limit: Option<Duration>,
    pub(super) cancel_grace: Duration,
}

impl Settings {
    /// Reads what is to be read. Nothing is started yet.
    pub(super) fn from_args(args: Run) -> Result<Self, Failure> {
        let cwd = working_directory(args.cwd.as_deref().unwrap_or(Path::new(".")))?;
        let given = Given { set: &args.env, pass: &args.pass_env };
        let Builtin { launch, demo } = match args.agent {
            Some(agent) => {
                if args.model != ModelArgs::default() {
                    return Err(Failure::model_of_another(&args.model));
                }
                let launch = launch(agent, &cwd, agent_environment(&args.env, &args.pass_env)?)?;
                Builtin { launch, demo: false }
            }
            None => builtin::prepare(&args.model, &given, &cwd, args.output)?,
        };
        Ok(Self {
            launch,
            demo,
            prompt: prompt(args.prompt)?,
            cwd,
            version: args.protocol.into(),
            initialize_limit: args.initialize_timeout,
            session_limit: args.session_timeout,
            turn_limit: args.timeout,
            cancel_grace: args.cancel_grace,
        })
    }
}

/// The directory as the protocol wants it: absolute, and text.
fn working_directory(directory: &Path) -> Result<PathBuf, Failure> {
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

/// What the agent sees of our environment.
fn agent_environment(set: &[Variable], pass: &[String]) -> Result<Environment, Failure> {
    let allowed = AllowList::default().and(pass);
    let mut env = Environment::filtered(environment::variables(), &allowed);
    set_variables(&mut env, set)?;
    Ok(env)
}

/// Adds what the agent is handed by name.
pub(super) fn set_variables(env: &mut Environment, set: &[Variable]) -> Result<(), Failure> {
    for Variable { name, value } in set {
        let value = value.clone().or_else(|| environment::named(name));
        let value = value.ok_or_else(|| Failure::unset_variable(&name.to_string_lossy()))?;
        env.set(name, value);
    }
    Ok(())
}

fn launch(agent: AgentCommand, cwd: &Path, env: Environment) -> Result<Launch, Failure> {
    let AgentCommand { program, args } = agent;
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
    spec.args = args.into_iter().map(Into::into).collect();
    spec.cwd = Some(cwd.to_owned());
    spec.env = env;
    Ok(Launch { program, spec })
}

/// The prompt, from the arguments or from stdin.
fn prompt(argument: Option<String>) -> Result<String, Failure> {
    let prompt = match argument {
        Some(prompt) if prompt != "-" => prompt,
        None if io::stdin().is_terminal() => return Err(Failure::no_prompt()),
        _ => read_stdin().map_err(|error| Failure::prompt(&error))?,
    };
    if prompt.trim().is_empty() { Err(Failure::no_prompt()) } else { Ok(prompt) }
}

fn read_stdin() -> io::Result<String> {
    let mut prompt = Vec::new();
    io::stdin().lock().take(MOST_PROMPT + 1).read_to_end(&mut prompt)?;
    if prompt.len() as u64 > MOST_PROMPT {
        let limit = format!("it is longer than {} MiB", MOST_PROMPT >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, limit));
    }
    String::from_utf8(prompt).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}
