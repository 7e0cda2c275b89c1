//! Reads a configuration file into a [`Config`] and findings.

use std::path::{Path, PathBuf};

use narrows_config::{Finding, Findings, Node, PathBase, SourcePos};

use super::machine::{Machine, PoolPositions};
use super::{Config, settings, stdio_bus};

pub(super) struct ParsedConfig {
    pub(super) config: Config,
    pub(super) positions: Vec<PoolPositions>,
    pub(super) sockets: Vec<(PathBuf, usize)>,
    pub(super) files: Vec<RequiredFile>,
}

pub(super) struct RequiredFile {
    pub(super) path: PathBuf,
    pub(super) at: usize,
    pub(super) hint: &'static str,
}

/// A configuration and all its findings.
#[derive(Clone, Debug, PartialEq)]
pub struct InspectedConfig {
    pub config: Option<Config>,
    pub errors: Vec<Finding>,
    pub warnings: Vec<Finding>,
    /// The files that the bus reads, each with the position in the configuration that names it.
    pub files: Vec<(PathBuf, SourcePos)>,
    /// The name of each pool and the position of its command.
    pub commands: Vec<(String, SourcePos)>,
}

/// Reads the text of the file at `path`, a `bus.toml` or the JSON of stdio Bus. Returns the configuration and
/// the warnings.
///
/// Relative paths in a `bus.toml` start from its directory, but the program of a pool starts from its `cwd`.
/// `~` is `home`.
///
/// # Errors
/// All errors, in the order of the file.
pub fn read(text: &str, path: &Path, home: Option<&Path>) -> Result<(Config, Vec<Finding>), Vec<Finding>> {
    let InspectedConfig { config, errors, warnings, .. } = inspect(text, path, home, None);
    config.map(|config| (config, warnings)).ok_or(errors)
}

/// Reads a configuration as [`read`] does and returns all findings. With `machine`, the configuration is also
/// checked against that machine.
pub fn inspect(
    text: &str,
    path: &Path,
    home: Option<&Path>,
    machine: Option<Machine<'_>>,
) -> InspectedConfig {
    let file = path.display().to_string();
    let findings = Findings::new(&file, text);
    let start = text.trim_start_matches('\u{feff}').trim_start();
    // A TOML file cannot begin with a brace.
    let is_json = start.starts_with('{') || path.extension().is_some_and(|extension| extension == "json");
    let parsed = if is_json {
        Node::from_json(&findings).and_then(|node| stdio_bus::read(&findings, &node))
    } else {
        let path_base = PathBase { base: path.parent().unwrap_or(Path::new("")), home };
        Node::from_toml(&findings).and_then(|node| settings::read(&findings, &node, path_base))
    };
    if let (Some(parsed), Some(machine)) = (&parsed, machine) {
        machine.check(&findings, parsed);
    }
    let named = parsed.iter().flat_map(|parsed| &parsed.files);
    let files = named.map(|file| (file.path.clone(), findings.pos(file.at))).collect();
    let pools = parsed.iter().flat_map(|parsed| parsed.config.pools.iter().zip(&parsed.positions));
    let commands =
        pools.map(|(pool, positions)| (pool.name.clone(), findings.pos(positions.command))).collect();
    let (errors, warnings) = findings.into_errors_and_warnings();
    let config = parsed.map(|parsed| parsed.config).filter(|_| errors.is_empty());
    InspectedConfig { config, errors, warnings, files, commands }
}
