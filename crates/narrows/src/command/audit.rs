//! `narrows audit`: shows, verifies and signs audit logs.

mod head;
mod show;
mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cli::{Audit, AuditCommand};
use crate::failure::Failure;

/// The name of the current file in the directory of a log.
const LOG_FILE_NAME: &str = "audit-log.jsonl";

pub(super) fn execute(args: &Audit) -> Result<ExitCode, Failure> {
    match &args.command {
        AuditCommand::Verify(args) => verify::execute(args),
        AuditCommand::Show(args) => show::execute(args),
        AuditCommand::Head(args) => head::execute(args),
        AuditCommand::Keygen(args) => head::keygen(args),
    }
}

fn file(log: &Path) -> PathBuf {
    if log.is_dir() { log.join(LOG_FILE_NAME) } else { log.to_owned() }
}

fn count_of(count: u64, one: &str, more: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {more}") }
}
