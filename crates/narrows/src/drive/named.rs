//! Agents that have names in `narrows.toml`.

use std::path::Path;

use crate::cli::value;
use crate::config::{self, AgentEntry, Variables};
use crate::failure::Failure;
use crate::nearest::nearest;

/// The agents of the configuration.
pub(crate) fn agents(config: Option<&Path>) -> Result<Vec<AgentEntry>, Failure> {
    let loaded = config::load(config, &Variables::of_process())?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    Ok(loaded.file.map(|file| file.agents).unwrap_or_default())
}

/// The agent that is meant by `wanted`: one that has this name, or a program and its arguments.
pub(super) fn find(wanted: &str, config: Option<&Path>) -> Result<AgentEntry, Failure> {
    let known = agents(config)?;
    if let Some(entry) = known.iter().find(|entry| entry.name == wanted) {
        return Ok(entry.clone());
    }
    let command = value::agent(wanted).map_err(|reason| Failure::bad_agent(wanted, reason))?;
    let name = command.program.clone();
    if let Some(near) = nearest(wanted, known.iter().map(|entry| entry.name.as_str())) {
        tracing::info!("narrows.toml has no agent {wanted:?}, but {near:?}");
    }
    let command = std::iter::once(command.program).chain(command.args).collect();
    Ok(AgentEntry { name, command, ..AgentEntry::default() })
}
