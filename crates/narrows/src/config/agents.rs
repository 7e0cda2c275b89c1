//! Reads `[agents.NAME]` of `narrows.toml`: named agents.

use std::path::PathBuf;
use std::time::Duration;

use narrows_client::{CommandRunner, UsageScope};
use narrows_config::{PathBase, SettingValue, ValueKind};
use narrows_policy::Access;

use super::error::{ConfigError, Origin};
use super::file::{string, texts};
use crate::cli::{Protocol, value};

const AGENT_KEYS: &[&str] = &[
    "command",
    "env",
    "clean_env",
    "pass_env",
    "access",
    "commands_run_by",
    "policy",
    "model",
    "mode",
    "mcp",
    "protocol",
    "usage",
    "initialize_timeout",
    "session_timeout",
    "cancel_grace",
    "silence_timeout",
];

pub(crate) const BUILT_IN: &str = "built-in";

pub(crate) type InvalidAgents = Vec<(String, ConfigError)>;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AgentEntry {
    pub(crate) name: String,
    pub(crate) origin: Option<Origin>,
    /// The program and its arguments; never empty.
    pub(crate) command: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) clean_env: bool,
    /// Patterns of the variables that the agent inherits if `clean_env` is set.
    pub(crate) pass_env: Vec<String>,
    pub(crate) access: Option<Access>,
    /// The program that runs the commands for which the agent asks permission.
    pub(crate) commands_run_by: CommandRunner,
    pub(crate) policy: Option<PathBuf>,
    pub(crate) model: Option<String>,
    pub(crate) mode: Option<String>,
    pub(crate) mcp: Option<PathBuf>,
    pub(crate) protocol: Option<Protocol>,
    pub(crate) usage_scope: UsageScope,
    pub(crate) initialize_timeout: Option<Duration>,
    pub(crate) session_timeout: Option<Duration>,
    pub(crate) cancel_grace: Option<Duration>,
    /// Time without output after which the turn is canceled; zero is no limit.
    pub(crate) silence_timeout: Option<Duration>,
}

pub(super) fn agent((name, node): (&str, SettingValue<'_>), path_base: PathBase<'_>) -> Option<AgentEntry> {
    if name == BUILT_IN {
        node.error_with_name("is a reserved name", Some("`built-in` is the built-in agent".to_owned()));
    }
    let table = node.table()?;
    table.only(AGENT_KEYS, &[]);
    let Some(command) = table.get("command") else {
        node.error_with_name("has no `command`", Some("write command = [\"opencode\", \"acp\"]".to_owned()));
        return None;
    };
    let patterns =
        |node: SettingValue<'_>| node.list("")?.map(|entry| entry.parsed(value::pattern)).collect();
    let pass_env: Option<Vec<_>> = table.read("pass_env", patterns);
    Some(AgentEntry {
        name: name.to_owned(),
        origin: Some(Origin::of_item(node)),
        command: command_of(command)?,
        env: table.read("env", environment).unwrap_or_default(),
        clean_env: table.read("clean_env", SettingValue::flag).unwrap_or(pass_env.is_some()),
        pass_env: pass_env.unwrap_or_default(),
        access: table.read("access", |node| node.named(|name| name.parse().ok(), &["low", "medium", "high"])),
        commands_run_by: table
            .read("commands_run_by", |node| node.named(command_runner, &["agent", "client"]))
            .unwrap_or_default(),
        policy: table.read("policy", |item| item.path(path_base)),
        model: table.read("model", string),
        mode: table.read("mode", string),
        mcp: table.read("mcp", |item| item.path(path_base)),
        protocol: table.read("protocol", |node| {
            match node.node.kind {
                ValueKind::Integer(1) => return Some(Protocol::One),
                ValueKind::Integer(2) => return Some(Protocol::Two),
                _ => node.error_with_name("must be 1 or 2, without quotes", None),
            }
            None
        }),
        usage_scope: table
            .read("usage", |node| node.named(usage_scope, &["session", "turn"]))
            .unwrap_or_default(),
        initialize_timeout: table.read("initialize_timeout", SettingValue::positive_duration),
        session_timeout: table.read("session_timeout", SettingValue::positive_duration),
        cancel_grace: table.read("cancel_grace", SettingValue::positive_duration),
        silence_timeout: table.read("silence_timeout", SettingValue::duration),
    })
}

fn command_runner(name: &str) -> Option<CommandRunner> {
    match name {
        "agent" => Some(CommandRunner::Agent),
        "client" => Some(CommandRunner::Client),
        _ => None,
    }
}

fn usage_scope(name: &str) -> Option<UsageScope> {
    match name {
        "session" => Some(UsageScope::Session),
        "turn" => Some(UsageScope::Turn),
        _ => None,
    }
}

/// Reads variables and checks their names.
fn environment(node: SettingValue<'_>) -> Option<Vec<(String, String)>> {
    let variables = texts(node)?;
    if variables.iter().any(|(name, _)| name.is_empty() || name.contains(['=', '\0'])) {
        node.error_with_name("has an invalid variable name", None);
    }
    Some(variables)
}

fn command_of(node: SettingValue<'_>) -> Option<Vec<String>> {
    let words = node.command()?;
    let url = &words[0];
    if is_url(url) {
        let hint =
            format!("write command = [\"narrows\", \"connect\", {url:?}], or pass the URL: --agent {url}");
        node.error_with_name("is a URL, but must be a program and its arguments", Some(hint));
        return None;
    }
    Some(words)
}

/// Returns `true` if this is the address of a remote agent, as `--agent` accepts it.
fn is_url(word: &str) -> bool {
    ["ws://", "wss://", "http://", "https://", "tcp://", "unix:"]
        .iter()
        .any(|scheme| word.starts_with(scheme))
}

#[cfg(test)]
#[path = "agents_tests.rs"]
mod tests;
