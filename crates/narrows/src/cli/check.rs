//! `narrows check`: whether files can be used.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use narrows_manifest::Kind;

use super::help;

/// Say whether files can be used, and what is wrong with them
///
/// A file is a bus.toml, the JSON configuration of stdio Bus, or a manifest: ACP.md, OPERATOR.md, GOVERNANCE.md, POLICY.md,
/// SANDBOX.md, RUNNER.md or AGENT-CLI.md. Every mistake is told with its line; then the exit code is 2. A manifest is looked
/// at by itself; of a directory all manifests are, and every ACP.md is followed to what it leads to, the keys of its
/// governance included: what `narrows serve` would not serve is a mistake here. Files of tokens and of identities are
/// looked at by themselves, or with the bus.toml that names them. The programs of pools
/// must be there, and so must the directories in which they run. What can be lived with, or may be otherwise on another
/// machine, such as the program of an AGENT-CLI.md, is a warning. Nothing is started.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::CHECK), after_long_help = help::with_codes(help::CHECK, help::CHECK_CODES))]
pub(crate) struct CheckFiles {
    /// The files, or directories of manifests
    #[arg(value_name = "FILE|DIR", required_unless_present = "print_schema")]
    pub(crate) files: Vec<PathBuf>,

    /// Count warnings as mistakes
    #[arg(long)]
    pub(crate) strict: bool,

    /// Print every setting of a bus, defaults included; the values of variables are left out
    #[arg(long, short)]
    pub(crate) verbose: bool,

    /// How to say it
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = CheckFormat::Text)]
    pub(crate) format: CheckFormat,

    /// The same as --format json
    #[arg(long)]
    pub(crate) json: bool,

    /// Print the JSON schema of a kind of manifest: acp, operator, governance, policy, sandbox, runner or agent-cli
    #[arg(long, value_name = "KIND", value_parser = kind(), ignore_case = true, hide_possible_values = true, conflicts_with = "files")]
    pub(crate) print_schema: Option<Kind>,
}

/// A kind of manifest, by its name or that of its files. Only the names are offered by completions.
fn kind() -> impl TypedValueParser<Value = Kind> {
    let files = Kind::ALL.map(|kind| PossibleValue::new(kind.name()).alias(kind.file_name()));
    PossibleValuesParser::new(files).try_map(|name| name.parse::<Kind>())
}

/// How `narrows check` says what it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckFormat {
    /// Sentences for people
    Text,
    /// A JSON object for each file
    Json,
}
