//! The arguments of `narrows check`.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use narrows_manifest::ManifestKind;

use super::help;

/// Validate configuration files and manifests
///
/// A file is a bus.toml, the JSON configuration of stdio Bus, a manifest (ACP.md, OPERATOR.md, GOVERNANCE.md,
/// POLICY.md, SANDBOX.md, RUNNER.md or AGENT-CLI.md), or a file of tokens or identities. Nothing is started. Every
/// error is reported with its line, and then the exit code is 2.
///
/// A single manifest is checked by itself. In a directory all manifests are checked, and every ACP.md with all files
/// it refers to, including the keys of its governance: what `narrows serve` would refuse is an error. The files of
/// tokens and identities of a bus.toml are checked with it.
///
/// The programs and working directories of pools must exist. Problems that are harmless, or may not exist on another
/// machine, such as a missing program of an AGENT-CLI.md, are warnings.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::CHECK), after_long_help = help::with_codes(help::CHECK, help::CHECK_CODES))]
pub(crate) struct CheckFiles {
    /// Files, or directories of manifests
    #[arg(value_name = "FILE|DIR", required_unless_present = "print_schema")]
    pub(crate) files: Vec<PathBuf>,

    /// Treat warnings as errors
    #[arg(long)]
    pub(crate) strict: bool,

    /// Print all settings of a bus, including defaults; values of environment variables are omitted
    #[arg(long, short)]
    pub(crate) verbose: bool,

    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = CheckFormat::Text)]
    pub(crate) format: CheckFormat,

    /// Same as --format json
    #[arg(long)]
    pub(crate) json: bool,

    /// Print the JSON Schema of a kind of manifest: acp, operator, governance, policy, sandbox, runner or agent-cli
    #[arg(long, value_name = "KIND", value_parser = kind(), ignore_case = true, hide_possible_values = true, conflicts_with = "files")]
    pub(crate) print_schema: Option<ManifestKind>,
}

/// Parses a kind of manifest, by its name or file name. Completions offer only the names.
fn kind() -> impl TypedValueParser<Value = ManifestKind> {
    let files = ManifestKind::ALL.map(|kind| PossibleValue::new(kind.name()).alias(kind.file_name()));
    PossibleValuesParser::new(files).try_map(|name| name.parse::<ManifestKind>())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckFormat {
    /// Text
    Text,
    /// One JSON object per file
    Json,
}
