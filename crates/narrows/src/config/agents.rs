//! `[agents.NAME]` in `narrows.toml`: agents that can be called by a name.

use std::path::PathBuf;
use std::time::Duration;

use narrows_client::{CommandRunner, Counted};
use narrows_policy::Access;

use super::error::{ConfigError, Origin};
use super::file::Paths;
use super::read::{Node, Read};
use crate::cli::{Protocol, value};

/// What may stand in `[agents.NAME]`.
const AGENT: &[&str] = &[
    "command",
    "env",
    "clean-env",
    "pass-env",
    "pass_env",
    "access",
    "commands-run-by",
    "policy",
    "model",
    "mode",
    "mcp",
    "protocol",
    "usage",
    "initialize-timeout",
    "session-timeout",
    "cancel-grace",
    "silence-timeout",
];

/// What the built-in agent is called where agents are called by name.
pub(crate) const BUILT_IN: &str = "built-in";

/// Agents of a file that cannot be used, by their names, and why.
pub(crate) type WrongAgents = Vec<(String, ConfigError)>;

/// An agent of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AgentEntry {
    /// Its name.
    pub(crate) name: String,
    /// Where it stands.
    pub(crate) origin: Option<Origin>,
    /// The program and its arguments; never empty.
    pub(crate) command: Vec<String>,
    /// Variables it gets.
    pub(crate) env: Vec<(String, String)>,
    /// Whether it gets the ordinary variables only.
    pub(crate) clean_env: bool,
    /// What else it gets then.
    pub(crate) pass_env: Vec<String>,
    /// What it may do unasked.
    pub(crate) access: Option<Access>,
    /// The program that runs the commands it asks permission for.
    pub(crate) commands_run_by: CommandRunner,
    /// The file of its rules.
    pub(crate) policy: Option<PathBuf>,
    /// The model of its sessions.
    pub(crate) model: Option<String>,
    /// Their mode.
    pub(crate) mode: Option<String>,
    /// The file of its MCP servers.
    pub(crate) mcp: Option<PathBuf>,
    /// The version to offer.
    pub(crate) protocol: Option<Protocol>,
    /// What the usage it tells is the sum of.
    pub(crate) counted: Counted,
    /// How long it may take to answer the first message.
    pub(crate) initialize_timeout: Option<Duration>,
    /// How long it may take to open a session.
    pub(crate) session_timeout: Option<Duration>,
    /// How long a cancelled turn may take to end.
    pub(crate) cancel_grace: Option<Duration>,
    /// How long it may say nothing at all.
    pub(crate) silence_timeout: Option<Duration>,
}

/// Reads one of them.
pub(super) fn agent((name, node): (&str, Node<'_>), paths: Paths<'_>) -> Read<AgentEntry> {
    if name == BUILT_IN {
        return Err(node.fail("is a name that is taken").hint("it is the agent of this program"));
    }
    let missing = node.fail("has no `command`").hint("such as command = [\"opencode\", \"acp\"]");
    let table = node.table()?;
    table.only(AGENT)?;
    let Some(command) = table.get("command") else { return Err(missing) };
    if let (Some(_), Some(second)) = (table.get("pass-env"), table.get("pass_env")) {
        return Err(second.fail("is there already, as `pass-env`"));
    }
    let patterns = |node: Node<'_>| node.list(|entry| entry.parsed(value::pattern));
    let pass_env = table.read("pass-env", patterns)?.or(table.read("pass_env", patterns)?);
    Ok(AgentEntry {
        name: name.to_owned(),
        origin: Some(table.origin()),
        command: command_of(command)?,
        env: table.read("env", environment)?.unwrap_or_default(),
        clean_env: table.read("clean-env", Node::flag)?.unwrap_or(pass_env.is_some()),
        pass_env: pass_env.unwrap_or_default(),
        access: table
            .read("access", |node| node.one_of(|name| name.parse().ok(), &["low", "medium", "high"]))?,
        commands_run_by: table
            .read("commands-run-by", |node| node.one_of(command_runner, &["agent", "client"]))?
            .unwrap_or_default(),
        policy: table.read("policy", |node| paths.read(node))?,
        model: table.read("model", Node::string)?,
        mode: table.read("mode", Node::string)?,
        mcp: table.read("mcp", |node| paths.read(node))?,
        protocol: table.read("protocol", |node| {
            let unknown = node.fail("is 1 or 2, without quotes");
            match node.count().map_err(|_| unknown.clone())? {
                1 => Ok(Protocol::One),
                2 => Ok(Protocol::Two),
                _ => Err(unknown),
            }
        })?,
        counted: table.read("usage", |node| node.one_of(counted, &["session", "turn"]))?.unwrap_or_default(),
        initialize_timeout: table.read("initialize-timeout", Node::duration)?,
        session_timeout: table.read("session-timeout", Node::duration)?,
        cancel_grace: table.read("cancel-grace", Node::duration)?,
        silence_timeout: table.read("silence-timeout", |node| node.parsed(value::pace))?,
    })
}

fn command_runner(name: &str) -> Option<CommandRunner> {
    match name {
        "agent" => Some(CommandRunner::Agent),
        "client" => Some(CommandRunner::Client),
        _ => None,
    }
}

fn counted(name: &str) -> Option<Counted> {
    match name {
        "session" => Some(Counted::Session),
        "turn" => Some(Counted::Turn),
        _ => None,
    }
}

/// Variables, by names that variables can have.
fn environment(node: Node<'_>) -> Read<Vec<(String, String)>> {
    let impossible = node.fail("has a name that no variable can have");
    let variables = node.texts()?;
    let is_possible = |name: &str| !name.is_empty() && !name.contains(['=', '\0']);
    if variables.iter().all(|(name, _)| is_possible(name)) { Ok(variables) } else { Err(impossible) }
}

/// A command: a list of words, or one text in the quotes of a shell.
fn command_of(node: Node<'_>) -> Read<Vec<String>> {
    let empty = node.fail("names no program");
    let remote = node.fail("is a URL, and must be a program and its arguments");
    let words = if node.is_list() {
        // An argument may be empty, which a setting may not.
        node.list(|word| word.parsed(|word| Ok(word.to_owned())))?
    } else {
        let command = node.parsed(value::agent)?;
        std::iter::once(command.program).chain(command.args).collect()
    };
    match words.first() {
        Some(url) if is_url(url) => Err(remote.hint(format!(
            "write command = [\"narrows\", \"connect\", {url:?}], or use the URL in place of a name: --agent {url}"
        ))),
        Some(program) if !program.is_empty() => Ok(words),
        _ => Err(empty),
    }
}

/// Returns `true` if this is the address of a remote agent, as `--agent` takes it.
fn is_url(word: &str) -> bool {
    ["ws://", "wss://", "http://", "https://", "tcp://", "unix:"]
        .iter()
        .any(|scheme| word.starts_with(scheme))
}

#[cfg(test)]
#[path = "agents_tests.rs"]
mod tests;
