//! From the text of a file to what a bus is told.

use std::path::Path;

use super::mistake::{Mistake, Place, Warning};
use super::notes::Notes;
use super::{Config, json, settings, stdio_bus, tree};

/// A configuration whose commands stand at these bytes.
pub(super) struct Placed {
    pub(super) config: Config,
    pub(super) commands: Vec<usize>,
}

/// A configuration, and what is known about the file it stands in.
#[derive(Clone, Debug, PartialEq)]
pub struct Inspected {
    /// What the file says.
    pub config: Config,
    /// What its owner should know.
    pub warnings: Vec<Warning>,
    /// Where the command of each pool stands.
    pub commands: Vec<Place>,
}

/// Reads the text of the file at `path`: `bus.toml`, or the JSON of stdio Bus. Relative paths in a `bus.toml` are meant
/// from where it lies, but for the program of a pool, which is meant from where it runs.
///
/// # Errors
/// With all mistakes, in the order of the file.
pub fn read(text: &str, path: &Path) -> Result<(Config, Vec<Warning>), Vec<Mistake>> {
    inspect(text, path).map(|inspected| (inspected.config, inspected.warnings))
}

/// The same, with the places that somebody who looks further into the file needs.
///
/// # Errors
/// With all mistakes, in the order of the file.
pub fn inspect(text: &str, path: &Path) -> Result<Inspected, Vec<Mistake>> {
    let file = path.display().to_string();
    let notes = Notes::new(&file, text);
    let start = text.trim_start_matches('\u{feff}').trim_start();
    // No TOML begins with a brace.
    let is_json = start.starts_with('{') || path.extension().is_some_and(|extension| extension == "json");
    let placed = if is_json {
        json::json(&notes).and_then(|node| stdio_bus::read(&notes, &node))
    } else {
        let base = path.parent().unwrap_or(Path::new(""));
        tree::toml(&notes).and_then(|node| settings::read(&notes, &node, base))
    };
    let commands = |placed: &Placed| placed.commands.iter().map(|at| notes.place(*at)).collect();
    let commands = placed.as_ref().map(commands).unwrap_or_default();
    let (placed, warnings) = notes.finish(placed)?;
    Ok(Inspected { config: placed.config, warnings, commands })
}
