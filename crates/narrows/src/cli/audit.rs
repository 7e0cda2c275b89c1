//! `narrows audit`: what was decided, and whether the record of it is whole.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use narrows_audit::Decision;

use super::help;

/// Verify and read the log of what was decided
///
/// Every line of an audit log contains a hash of the line in front of it, so none can be changed, taken out or put in
/// without the rest showing it. What a chain cannot show, that its end is missing or that all of it was written anew,
/// shows when it is compared with a head that was signed earlier and kept elsewhere.
#[derive(Args, Debug)]
#[command(
    after_help = help::examples(help::AUDIT),
    after_long_help = help::short_reference(help::AUDIT, help::AUDIT_CODES, help::AUDIT_VARIABLES)
)]
pub(crate) struct Audit {
    #[command(subcommand)]
    pub(crate) command: AuditCommand,
}

/// What to do with a log.
#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    Verify(AuditVerify),
    Show(AuditShow),
    Head(AuditHead),
    Keygen(AuditKeygen),
}

/// Say whether a log is what was written, or name the first bad line and why
///
/// LOG is the file that grows, or its directory; the sealed files beside it belong to it. A bad line is named by its file, its line
/// there (from 1) and the number of its entry (from 0, over all files), which is the number that `narrows audit show` prints.
#[derive(Args, Debug)]
#[command(
    after_help = help::examples(help::AUDIT_VERIFY),
    after_long_help = help::short_reference(help::AUDIT_VERIFY, help::AUDIT_CODES, help::AUDIT_VARIABLES)
)]
pub(crate) struct AuditVerify {
    /// The log
    #[arg(value_name = "LOG")]
    pub(crate) path: PathBuf,

    /// A head that the log must contain, as `narrows audit head` printed it
    #[arg(long, value_name = "HEAD")]
    pub(crate) against: Option<PathBuf>,

    /// Who must have signed the head: a `did:key`, or the file of a public key [default: anybody, which proves only that the head was not changed since]
    #[arg(long, value_name = "KEY", requires = "against")]
    pub(crate) signer: Option<String>,

    /// The file with the secret of a log in the older form, which is chained by keyed hashes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["against", "any_form"])]
    pub(crate) legacy_secret: Option<PathBuf>,

    /// Accept lines that are not in the canonical form, as other programs write them
    #[arg(long)]
    pub(crate) any_form: bool,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print the entries of a log
///
/// It prints what it finds; whether that is what was written, `narrows audit verify` says. A line has the number of the
/// entry, the time, what happened, to what, by whom, the decision and the policy behind it, the file, command or address it
/// was about, who approved it or why it was refused, for whom it was done, the reason, and the session. Filters add up: with
/// two of them both have to fit.
#[derive(Args, Debug)]
#[command(
    after_help = help::examples(help::AUDIT_SHOW),
    after_long_help = help::short_reference(help::AUDIT_SHOW, help::AUDIT_READ_CODES, help::AUDIT_VARIABLES)
)]
pub(crate) struct AuditShow {
    /// The log
    #[arg(value_name = "LOG")]
    pub(crate) path: PathBuf,

    /// Only those of this session, by its whole id
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,

    /// Only those about this tool, by its name as the log has it: `Bash`, `kind:edit`, `SERVER/TOOL`
    #[arg(long, value_name = "NAME")]
    pub(crate) tool: Option<String>,

    /// Only those that were decided like this; entries in which nothing was decided are left out
    #[arg(long, value_name = "DECISION", value_parser = decisions())]
    pub(crate) decision: Option<Decision>,

    /// Go on with what is added, until Ctrl-C
    #[arg(long)]
    pub(crate) follow: bool,

    /// How to print them
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = AuditFormat::Text)]
    pub(crate) format: AuditFormat,

    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    pub(crate) json: bool,
}

/// How entries are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AuditFormat {
    /// A line for people
    Text,
    /// The entry, one JSON object per line
    Json,
    /// Calls of tools only, each as the object of seven fields that AIP-44 shows
    Aip44,
}

/// Sign what a log contains now, to be kept elsewhere
///
/// Prints a JSON object. Keep it where whoever can write the log cannot; `narrows audit verify --against` compares.
#[derive(Args, Debug)]
#[command(
    after_help = help::examples(help::AUDIT_HEAD),
    after_long_help = help::short_reference(help::AUDIT_HEAD, help::AUDIT_HEAD_CODES, help::AUDIT_VARIABLES)
)]
pub(crate) struct AuditHead {
    /// The log
    #[arg(value_name = "LOG")]
    pub(crate) path: PathBuf,

    /// The private key, as `narrows audit keygen` wrote it; not the one that ends with .pub
    #[arg(long, value_name = "FILE")]
    pub(crate) key: PathBuf,
}

/// Make a key to sign heads and approvals with
///
/// Writes the private key to FILE, readable by nobody else, and the public one to FILE.pub; prints the public one.
#[derive(Args, Debug)]
#[command(
    after_help = help::examples(help::AUDIT_KEYGEN),
    after_long_help = help::short_reference(help::AUDIT_KEYGEN, help::AUDIT_KEYGEN_CODES, help::AUDIT_VARIABLES)
)]
pub(crate) struct AuditKeygen {
    /// The file of the private key, which must not exist
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

fn decisions() -> impl TypedValueParser<Value = Decision> {
    // What is none of them has been refused by then.
    PossibleValuesParser::new(Decision::ALL.map(Decision::name))
        .map(|name| name.parse().unwrap_or(Decision::Deny))
}
