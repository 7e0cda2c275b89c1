//! From the text of a file to what a bus is told.

use std::path::{Path, PathBuf};

use narrows_config::{Finding, Findings, Node, Paths, SourcePos};

use super::here::{Here, Spots};
use super::{Config, settings, stdio_bus};

/// A configuration, and where settings stand that depend on the machine.
pub(super) struct Placed {
    pub(super) config: Config,
    pub(super) spots: Vec<Spots>,
    /// The paths of unix sockets, and the bytes where they stand.
    pub(super) sockets: Vec<(PathBuf, usize)>,
    /// Files that must be there.
    pub(super) files: Vec<Needed>,
}

/// A file that must be there.
pub(super) struct Needed {
    pub(super) path: PathBuf,
    /// The byte where it is named.
    pub(super) at: usize,
    /// What to do if it is not there.
    pub(super) hint: &'static str,
}

/// All that can be said about a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Inspected {
    /// What the file says, unless there are mistakes.
    pub config: Option<Config>,
    /// What must be put right, in the order of the file.
    pub mistakes: Vec<Finding>,
    /// What its owner should know, in the order of the file.
    pub warnings: Vec<Finding>,
    /// The files that a bus with it reads, and where they are named.
    pub files: Vec<(PathBuf, SourcePos)>,
    /// Where the command of each pool stands, by the name of the pool.
    pub commands: Vec<(String, SourcePos)>,
}

/// Reads the text of the file at `path`: `bus.toml`, or the JSON of stdio Bus. Relative paths in a `bus.toml` start from
/// its directory, except for the program of a pool, which is resolved where it runs. `~` is `home`.
///
/// # Errors
/// With all errors, in the order of the file.
pub fn read(text: &str, path: &Path, home: Option<&Path>) -> Result<(Config, Vec<Finding>), Vec<Finding>> {
    let Inspected { config, mistakes, warnings, .. } = inspect(text, path, home, None);
    config.map(|config| (config, warnings)).ok_or(mistakes)
}

/// Reads the file as [`read`] does and returns all findings, also about what is missing `here`.
pub fn inspect(text: &str, path: &Path, home: Option<&Path>, here: Option<Here<'_>>) -> Inspected {
    let file = path.display().to_string();
    let findings = Findings::new(&file, text);
    let start = text.trim_start_matches('\u{feff}').trim_start();
    // No TOML begins with a brace.
    let is_json = start.starts_with('{') || path.extension().is_some_and(|extension| extension == "json");
    let placed = if is_json {
        Node::from_json(&findings).and_then(|node| stdio_bus::read(&findings, &node))
    } else {
        let paths = Paths { base: path.parent().unwrap_or(Path::new("")), home };
        Node::from_toml(&findings).and_then(|node| settings::read(&findings, &node, paths))
    };
    if let (Some(placed), Some(here)) = (&placed, here) {
        here.look(&findings, placed);
    }
    let named = placed.iter().flat_map(|placed| &placed.files);
    let files = named.map(|file| (file.path.clone(), findings.pos(file.at))).collect();
    let pools = placed.iter().flat_map(|placed| placed.config.pools.iter().zip(&placed.spots));
    let commands = pools.map(|(pool, spots)| (pool.name.clone(), findings.pos(spots.command))).collect();
    let (mistakes, warnings) = findings.into_errors_and_warnings();
    let config = placed.map(|placed| placed.config).filter(|_| mistakes.is_empty());
    Inspected { config, mistakes, warnings, files, commands }
}
