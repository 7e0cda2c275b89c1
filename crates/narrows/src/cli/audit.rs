//! The arguments of `narrows audit`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use narrows_audit::LoggedDecision;

use super::help;

/// Verify and read the audit log
///
/// Every entry contains a hash of the entry before it, so that no entry can be changed, removed or inserted
/// unnoticed. The chain alone does not show that entries are missing at the end, or that the whole log was rewritten.
/// To detect that, compare the log with a head that was signed earlier and is stored elsewhere.
#[derive(Args, Debug)]
#[command(
    after_help = help::examples(help::AUDIT),
    after_long_help = help::short_reference(help::AUDIT, help::AUDIT_CODES, help::AUDIT_VARIABLES)
)]
pub(crate) struct Audit {
    #[command(subcommand)]
    pub(crate) command: AuditCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    Verify(AuditVerify),
    Show(AuditShow),
    Head(AuditHead),
    Keygen(AuditKeygen),
}

/// Verify the hash chain and report the first invalid entry
///
/// LOG is the current file of the log, or its directory; sealed segments beside it are included. An invalid entry is
/// reported with its file, its line (from 1) and its sequence number (from 0, over all files), as `narrows audit
/// show` prints it.
#[derive(Args, Debug)]
#[command(
    after_help = help::examples(help::AUDIT_VERIFY),
    after_long_help = help::short_reference(help::AUDIT_VERIFY, help::AUDIT_CODES, help::AUDIT_VARIABLES)
)]
pub(crate) struct AuditVerify {
    /// Audit log
    #[arg(value_name = "LOG")]
    pub(crate) path: PathBuf,

    /// Head that the log must contain, as printed by `narrows audit head`
    #[arg(long, value_name = "HEAD")]
    pub(crate) against: Option<PathBuf>,

    /// Required signer of the head: a `did:key`, or the file of a public key [default: any, which proves only that
    /// the head was not changed since]
    #[arg(long, value_name = "KEY", requires = "against")]
    pub(crate) signer: Option<String>,

    /// Secret of a log in the older format, which is chained by keyed hashes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["against", "any_form"])]
    pub(crate) legacy_secret: Option<PathBuf>,

    /// Accept lines that are not in the canonical form, as other programs write them
    #[arg(long)]
    pub(crate) any_form: bool,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print the entries of an audit log
///
/// This command does not verify the log; use `narrows audit verify`. A line has the sequence number, the time, the
/// event, its subject and actor, the decision and its policy, the file, command or URL, the approver or the reason of
/// a denial, the identity, and the session. Filters combine: an entry must match all of them.
#[derive(Args, Debug)]
#[command(
    after_help = help::examples(help::AUDIT_SHOW),
    after_long_help = help::short_reference(help::AUDIT_SHOW, help::AUDIT_READ_CODES, help::AUDIT_VARIABLES)
)]
pub(crate) struct AuditShow {
    /// Audit log
    #[arg(value_name = "LOG")]
    pub(crate) path: PathBuf,

    /// Only entries of this session, by its full id
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,

    /// Only entries of this tool, by its name in the log: `Bash`, `kind:edit`, `SERVER/TOOL`
    #[arg(long, value_name = "NAME")]
    pub(crate) tool: Option<String>,

    /// Only entries with this decision
    #[arg(long, value_name = "DECISION", value_parser = decisions())]
    pub(crate) decision: Option<LoggedDecision>,

    /// Keep printing new entries, until Ctrl-C
    #[arg(long)]
    pub(crate) follow: bool,

    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = AuditFormat::Text)]
    pub(crate) format: AuditFormat,

    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AuditFormat {
    /// One line of text per entry
    Text,
    /// The entries, one JSON object per line
    Json,
    /// Tool calls only, each as an object with the seven fields of AIP-44
    Aip44,
}

/// Sign the current head of an audit log
///
/// Prints a JSON object. Store it where no one who can write the log can change it. `narrows audit verify --against`
/// compares a log with it.
#[derive(Args, Debug)]
#[command(
    after_help = help::examples(help::AUDIT_HEAD),
    after_long_help = help::short_reference(help::AUDIT_HEAD, help::AUDIT_HEAD_CODES, help::AUDIT_VARIABLES)
)]
pub(crate) struct AuditHead {
    /// Audit log
    #[arg(value_name = "LOG")]
    pub(crate) path: PathBuf,

    /// Private key, as written by `narrows audit keygen` (not the file that ends with .pub)
    #[arg(long, value_name = "FILE")]
    pub(crate) key: PathBuf,
}

/// Create a key pair to sign heads and approvals
///
/// Writes the private key to FILE, readable only by you, and the public key to FILE.pub. Prints the public key.
#[derive(Args, Debug)]
#[command(
    after_help = help::examples(help::AUDIT_KEYGEN),
    after_long_help = help::short_reference(help::AUDIT_KEYGEN, help::AUDIT_KEYGEN_CODES, help::AUDIT_VARIABLES)
)]
pub(crate) struct AuditKeygen {
    /// File for the private key, which must not exist
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

fn decisions() -> impl TypedValueParser<Value = LoggedDecision> {
    // Invalid values are refused before.
    PossibleValuesParser::new(LoggedDecision::ALL.map(LoggedDecision::name))
        .map(|name| name.parse().unwrap_or(LoggedDecision::Deny))
}
