//! `narrows check`: whether files can be used.

use std::path::PathBuf;

use clap::Args;

use super::help;

/// Say whether configurations can be used, and what is wrong with them
///
/// A file is a bus.toml, or the JSON configuration of stdio Bus. Every mistake is told with its line; then the exit code
/// is 2. The programs of its pools must be there, and so must the directories in which they run. What can be lived with,
/// or may be otherwise on another machine, is a warning. Nothing is started.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::CHECK))]
pub(crate) struct CheckFiles {
    /// The files
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// Print every setting, defaults included; the values of variables are left out
    #[arg(long, short)]
    pub(crate) verbose: bool,

    /// Print a JSON object for each file
    #[arg(long)]
    pub(crate) json: bool,
}
