//! `narrows audit`: what was decided, and whether the record of it is whole.

mod head;
mod show;
mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cli::{Audit, AuditCommand};
use crate::failure::Failure;

/// What the file of a log is called that grows, if only its directory is named.
const NAME: &str = "audit-log.jsonl";

/// Does what was asked for.
pub(super) fn execute(args: &Audit) -> Result<ExitCode, Failure> {
    match &args.command {
        AuditCommand::Verify(args) => verify::execute(args),
        AuditCommand::Show(args) => show::execute(args),
        AuditCommand::Head(args) => head::execute(args),
        AuditCommand::Keygen(args) => head::keygen(args),
    }
}

/// The file of a log that grows.
fn file(log: &Path) -> PathBuf {
    if log.is_dir() { log.join(NAME) } else { log.to_owned() }
}

/// `1 entry`, or as many as there are.
fn many(count: u64, one: &str, more: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {more}") }
}
