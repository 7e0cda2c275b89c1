//! Builds the command line and environment of an agent from its manifest and from the settings of the
//! operator.

use std::collections::BTreeMap;

use narrows_base::text::quoted;
use serde_json::Value;
use thiserror::Error;

use crate::types::agent_cli::{AgentCli, AgentOption, ChoiceType, ContinuationMode, Protocol};
use crate::types::cli::VersionCheck;
use crate::types::operator::RuntimeConfig;

/// A program with its arguments and environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    pub program: String,
    /// Arguments. They are passed to the program without a shell.
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// How the agent learns earlier turns of a session.
    pub continuation: Option<ContinuationMode>,
}

/// The reason why an agent cannot be started with these settings.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LaunchError {
    /// The agent speaks MCP instead of ACP.
    #[error("the agent speaks MCP, which cannot be driven over ACP")]
    Mcp,
    /// The agent speaks a proprietary protocol, which needs this adapter.
    #[error("the agent needs the adapter `{0}`, which is not supported")]
    Proprietary(String),
    #[error("unknown mode `{name}`; modes are: {known}")]
    UnknownMode { name: String, known: String },
    #[error("unknown option `{name}`; options are: {known}")]
    UnknownOption { name: String, known: String },
    #[error("invalid value for option `{name}`: {why}")]
    Value { name: String, why: String },
    #[error("the agent does not support this continuation; it supports: {known}")]
    UnknownContinuation { known: String },
}

impl LaunchError {
    /// Returns the code of the error, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Mcp => crate::Code::ProtocolMcp.name(),
            Self::Proprietary(_) => crate::Code::ProtocolProprietary.name(),
            Self::UnknownMode { .. }
            | Self::UnknownOption { .. }
            | Self::Value { .. }
            | Self::UnknownContinuation { .. } => crate::Code::Config.name(),
        }
    }
}

impl Launch {
    /// Builds the command line: the agent's own arguments, then those of the mode, then those of the options.
    /// Options are in the order in which the agent's manifest declares them.
    pub fn new(cli: &AgentCli, config: &RuntimeConfig) -> Result<Self, LaunchError> {
        match cli.protocol {
            Protocol::Acp => {}
            Protocol::Mcp => return Err(LaunchError::Mcp),
            Protocol::Proprietary => {
                return Err(LaunchError::Proprietary(quoted(cli.adapter.as_deref().unwrap_or_default(), 80)));
            }
        }
        let mut launch = Self {
            program: cli.bin.clone(),
            args: cli.bin_args.clone(),
            env: BTreeMap::new(),
            continuation: continuation(cli, config)?,
        };
        if let Some(name) = &config.mode {
            let known = || cli.modes.iter().map(|mode| mode.id.as_str());
            let mode = cli.modes.iter().find(|mode| mode.id == *name);
            let mode = mode
                .ok_or_else(|| LaunchError::UnknownMode { name: quoted(name, 80), known: list(known()) })?;
            launch.args.extend(mode.bin_args_append.iter().cloned());
            launch.env.extend(mode.env.clone());
        }
        let known = || cli.options.iter().map(|option| option.id.as_str());
        if let Some(name) = config.options.keys().find(|name| !known().any(|known| known == name.as_str())) {
            return Err(LaunchError::UnknownOption { name: quoted(name, 80), known: list(known()) });
        }
        for option in &cli.options {
            launch.set(option, config.options.get(&option.id))?;
        }
        Ok(launch)
    }

    fn set(&mut self, option: &AgentOption, given: Option<&Value>) -> Result<(), LaunchError> {
        let Some(value) = given.or(option.default.as_ref()) else { return Ok(()) };
        let text =
            accepts(option, value).map_err(|why| LaunchError::Value { name: option.id.clone(), why })?;
        if *value == Value::Bool(true) {
            self.args.extend(option.bin_args_append_when_true.iter().cloned());
        }
        // An option that has its default value adds no argument.
        if given.is_some() && given != option.default.as_ref() && *value != Value::Bool(false) {
            let filled = |template: &String| template.replace("{value}", &text);
            self.args.extend(option.bin_args_template.iter().map(filled));
            self.env.extend(option.env.iter().map(|(name, template)| (name.clone(), filled(template))));
        }
        Ok(())
    }
}

impl VersionCheck {
    /// Returns the command that prints the version, split into words. Returns `None` if it is invalid.
    pub fn argv(&self) -> Option<Vec<String>> {
        split_words(&self.cmd)
    }
}

pub(crate) fn split_words(command: &str) -> Option<Vec<String>> {
    shlex::split(command).filter(|words| words.first().is_some_and(|program| !program.is_empty()))
}

/// Returns the value of an option as text.
///
/// # Errors
///
/// The reason why the option does not accept the value.
pub(crate) fn accepts(option: &AgentOption, value: &Value) -> Result<String, String> {
    let text = match (option.r#type, value) {
        (ChoiceType::Boolean, Value::Bool(value)) => value.to_string(),
        (ChoiceType::Integer, Value::Number(number)) => {
            let value = number.as_i64().ok_or("expected an integer")?;
            let least = option.min.unwrap_or(i64::MIN);
            let most = option.max.unwrap_or(i64::MAX);
            if value < least || value > most {
                return Err(format!("{value} is not between {least} and {most}"));
            }
            value.to_string()
        }
        (ChoiceType::String, Value::String(text)) => text.clone(),
        (ChoiceType::Enum, Value::String(text)) => {
            let known = option.r#enum.as_deref().unwrap_or_default();
            if !known.contains(text) {
                let known = list(known.iter().map(String::as_str));
                return Err(format!("`{}` is not one of {known}", quoted(text, 80)));
            }
            text.clone()
        }
        (ChoiceType::Boolean, _) => return Err("expected true or false".into()),
        (ChoiceType::Integer, _) => return Err("expected an integer".into()),
        (ChoiceType::String | ChoiceType::Enum, _) => return Err("expected a string".into()),
    };
    if text.contains('\0') { Err("an argument cannot contain a NUL character".into()) } else { Ok(text) }
}

fn continuation(cli: &AgentCli, config: &RuntimeConfig) -> Result<Option<ContinuationMode>, LaunchError> {
    let declared = cli.continuation.as_ref();
    let Some(wished) = config.continuation.or(declared.map(|declared| declared.default)) else {
        return Ok(None);
    };
    let supported = declared.map(|declared| declared.supported.as_slice()).unwrap_or_default();
    if supported.contains(&wished) {
        return Ok(Some(wished));
    }
    let known: Vec<String> = supported.iter().map(|known| known.name().to_owned()).collect();
    Err(LaunchError::UnknownContinuation { known: list(known.iter().map(String::as_str)) })
}

impl ContinuationMode {
    /// Returns the name in a manifest.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::PinnedSession => "pinned-session",
            Self::Transcript => "transcript",
            Self::NativeResume => "native-resume",
        }
    }
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cli(more: &Value) -> AgentCli {
        let mut value = json!({
            "name": "a", "id": "aa", "description": "d", "version": "1.0.0", "bin": "agent", "bin_args": ["acp"],
            "install": [{"method": "npm", "package": "a"}], "sandbox": "./SANDBOX.md", "protocol": "acp", "acp": "x",
            "version_check": {"cmd": "agent 'a b'", "parse": "(.*)", "range": "*"},
            "modes": [{"id": "plan", "bin_args_append": ["--plan"], "env": {"MODE": "plan"}}],
            "options": [
                {"id": "model", "type": "enum", "enum": ["a", "b"], "default": "a", "bin_args_template": ["--model", "{value}"]},
                {"id": "turns", "type": "integer", "min": 1, "max": 9, "bin_args_template": ["--turns={value}"]},
                {"id": "auto", "type": "boolean", "bin_args_append_when_true": ["--auto"]},
                {"id": "tag", "type": "string", "env": {"TAG": "<{value}>"}},
            ],
            "continuation": {"default": "transcript", "supported": ["transcript", "none"]},
        });
        value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(value).unwrap()
    }

    #[track_caller]
    fn check(config: Value, expected: &[&str]) {
        let config = serde_json::from_value(config).unwrap();
        assert_eq!(Launch::new(&cli(&json!({})), &config).unwrap().args, expected);
    }

    #[track_caller]
    fn refused(config: Value, expected: &str) {
        let config = serde_json::from_value(config).unwrap();
        let error = Launch::new(&cli(&json!({})), &config).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.code()), (expected, "agent-cli-config"));
    }

    #[test]
    fn arguments_come_in_the_order_of_the_declaration() {
        check(json!({}), &["acp"]);
        check(
            json!({"mode": "plan", "options": {"auto": true, "turns": 3, "model": "b"}}),
            &["acp", "--plan", "--model", "b", "--turns=3", "--auto"],
        );
        check(json!({"options": {"model": "a", "auto": false}}), &["acp"]);
    }

    #[test]
    fn variables_come_from_modes_and_options() {
        let config = serde_json::from_value(json!({"mode": "plan", "options": {"tag": "x"}})).unwrap();
        let launch = Launch::new(&cli(&json!({})), &config).unwrap();
        let env: Vec<(&str, &str)> =
            launch.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(env, [("MODE", "plan"), ("TAG", "<x>")]);
        assert_eq!(launch.continuation, Some(ContinuationMode::Transcript));
    }

    #[test]
    fn what_is_not_declared_is_refused() {
        refused(json!({"mode": "act"}), "unknown mode `act`; modes are: plan");
        refused(json!({"options": {"x": 1}}), "unknown option `x`; options are: model, turns, auto, tag");
        refused(
            json!({"options": {"model": "c"}}),
            "invalid value for option `model`: `c` is not one of a, b",
        );
        refused(
            json!({"options": {"turns": 10}}),
            "invalid value for option `turns`: 10 is not between 1 and 9",
        );
        refused(json!({"options": {"turns": "3"}}), "invalid value for option `turns`: expected an integer");
        refused(
            json!({"options": {"auto": "yes"}}),
            "invalid value for option `auto`: expected true or false",
        );
        refused(
            json!({"options": {"tag": "a\u{0}"}}),
            "invalid value for option `tag`: an argument cannot contain a NUL character",
        );
        refused(
            json!({"continuation": "native-resume"}),
            "the agent does not support this continuation; it supports: transcript, none",
        );
    }

    #[test]
    fn unsupported_protocols_have_their_own_errors() {
        let mcp = cli(&json!({"protocol": "mcp", "mcp": {"transport": "stdio"}}));
        assert_eq!(
            Launch::new(&mcp, &RuntimeConfig::default()).unwrap_err().code(),
            "agent_cli_protocol_mcp"
        );
        let other = cli(&json!({"protocol": "proprietary", "adapter": "@a/b"}));
        let error = Launch::new(&other, &RuntimeConfig::default()).unwrap_err();
        assert_eq!(error.code(), "agent_cli_protocol_proprietary");
    }

    #[test]
    fn a_command_is_split_into_words() {
        assert_eq!(cli(&json!({})).version_check.argv().unwrap(), ["agent", "a b"]);
        for wrong in ["", " ", "'", "''"] {
            assert_eq!(split_words(wrong), None, "{wrong:?}");
        }
    }
}
