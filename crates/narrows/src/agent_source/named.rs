//! Agents with names in `narrows.toml`.

use std::path::Path;

use narrows_process::{SpawnError, Spec};

use crate::cli::value;
use crate::config::{self, AgentEntry, InvalidAgents, Variables};
use crate::failure::Failure;
use crate::output;
use crate::terminal::line;

/// Returns the configured agents, and the invalid ones.
pub(crate) fn agents(config: Option<&Path>) -> Result<(Vec<AgentEntry>, InvalidAgents), Failure> {
    let loaded = config::load(config, &Variables::of_process())?;
    for warning in &loaded.warnings {
        output::warn(warning);
    }
    Ok(loaded.file.map(|file| (file.agents, file.invalid_agents)).unwrap_or_default())
}

/// Finds an agent by name, or takes `wanted` as a program with arguments. Also returns the known names.
pub(super) fn find(wanted: &str, config: Option<&Path>) -> Result<(AgentEntry, Vec<String>), Failure> {
    let (known, wrong) = agents(config)?;
    if let Some((_, error)) = wrong.into_iter().find(|(name, _)| name == wanted) {
        return Err(error.into());
    }
    let names = known.iter().map(|entry| entry.name.clone()).collect();
    if let Some(entry) = known.into_iter().find(|entry| entry.name == wanted) {
        return Ok((entry, names));
    }
    let command = value::agent(wanted).map_err(|reason| Failure::agent_invalid(wanted, reason))?;
    let name = command.program.clone();
    let command = std::iter::once(command.program).chain(command.args).collect();
    Ok((AgentEntry { name, command, ..AgentEntry::default() }, names))
}

/// Warns that `wanted` is not a known name and is started as a program. Fails if there is no such program. No
/// warning is needed for a value with a path or arguments, which is clearly a program.
pub(super) fn warn_unknown_name(wanted: &str, known: &[String], spec: &Spec) -> Result<(), Failure> {
    let is_program = !spec.args.is_empty() || spec.program.to_string_lossy().contains('/');
    if is_program {
        return Ok(());
    }
    match narrows_process::find(spec) {
        Ok(path) => {
            let (wanted, path) = (line(wanted), path.display());
            output::write_stderr(&format!(
                "{wanted:?} is not an agent in narrows.toml, running the program {path}\n"
            ));
            Ok(())
        }
        Err(SpawnError::NotFound { searched: Some(_), .. }) => Err(Failure::unknown_agent(wanted, known)),
        // Other errors are reported when the program is started.
        Err(_) => Ok(()),
    }
}
