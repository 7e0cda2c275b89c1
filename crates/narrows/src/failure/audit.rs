//! Failures of audit logs, heads and keys.

use std::io;
use std::path::Path;

use narrows_audit::key::{KeyError, KeyFileError, SignatureError};
use narrows_audit::verify::{BadLine, Report, VerifyProblem};
use narrows_audit::{PublicKey, ReadError};

use super::{ExitStatus, Failure};
use crate::terminal::line;

impl Failure {
    pub(crate) fn audit_log_unreadable(path: &Path, error: &io::Error) -> Self {
        let failure = Self::file_unreadable("the audit log", path, error);
        match error.kind() {
            io::ErrorKind::NotFound => failure.with_hint(
                "use the current file of the log, such as audit/audit-log.jsonl, or its directory",
            ),
            _ => failure,
        }
    }

    pub(crate) fn audit_entry_unreadable(error: &ReadError) -> Self {
        let failure = Self::new(ExitStatus::Agent, line(&error.to_string()));
        match error {
            ReadError::Io { .. } => failure,
            ReadError::Line { .. } => failure.with_hint("run `narrows audit verify` for details"),
        }
    }

    pub(crate) fn not_an_audit_log(path: &Path) -> Self {
        Self::new(ExitStatus::Agent, format!("{path:?} is not an audit log: its first line is not an entry"))
            .with_hint("use the current file of the log, such as audit/audit-log.jsonl, or its directory")
    }

    pub(crate) fn audit_log_invalid(path: &Path, report: &Report, bad: &BadLine) -> Self {
        let BadLine { segment, line: number, seq, why, detail, .. } = bad;
        let file = path.with_file_name(segment).display().to_string();
        let place = if *number == 0 { file } else { format!("{file}:{number}: entry {seq}") };
        let failure = Self::new(ExitStatus::Agent, line(&format!("{place}: {why}: {detail}")));
        let failure = match report.entries {
            0 => failure,
            _ if *number == 0 => failure,
            1 => failure.with_hint("entry 0 is valid"),
            entries => failure.with_hint(format!("entries 0 to {} are valid", entries - 1)),
        };
        match why {
            VerifyProblem::TornTail => failure.with_hint(
                "a crash left this entry incomplete, and it was never acknowledged; the next writer removes it and \
                 records that",
            ),
            VerifyProblem::NotCanonical => failure.with_hint("if another program wrote the log, add --any-form"),
            VerifyProblem::Truncated => failure.with_hint("the chain is unbroken, but the log is an older copy, or entries at \
                                                 its end were removed"),
            VerifyProblem::Rewritten => failure.with_hint("the chain is unbroken, but this is another log, or the log was rewritten"),
            VerifyProblem::Tampered | VerifyProblem::Gap | VerifyProblem::Clock => failure.with_hint(
                "move the changed log to another directory and keep it: no gate will write to it; `narrows audit \
                 show` prints entry numbers",
            ),
            VerifyProblem::Broken if detail.contains("keyed hashes") => failure.with_hint("verify the log with its secret: --legacy-secret FILE"),
            _ => failure,
        }
    }

    pub(crate) fn audit_log_empty(path: &Path) -> Self {
        Self::new(ExitStatus::Usage, format!("{path:?} has no entries to sign"))
    }

    pub(crate) fn audit_head_invalid(path: &Path, error: &serde_json::Error) -> Self {
        Self::new(
            ExitStatus::Usage,
            format!("--against: {path:?} is not a head: {}", line(&error.to_string())),
        )
        .with_hint("create one with `narrows audit head LOG --key FILE`")
    }

    pub(crate) fn audit_head_signature(path: &Path, signer: &PublicKey, error: SignatureError) -> Self {
        let failure = Self::new(ExitStatus::Agent, format!("--against: invalid signature of {path:?}"))
            .with_cause(&error);
        match error {
            SignatureError::OtherKey => failure.with_hint(format!("the head was signed by {signer}")),
            SignatureError::Wrong => failure.with_hint("the head was changed after it was signed"),
        }
    }

    pub(crate) fn key_file(what: &str, path: &Path, error: &KeyFileError) -> Self {
        let failure = Self::new(ExitStatus::Usage, format!("{what}: cannot use {path:?}")).with_cause(error);
        let private = path.extension().filter(|end| *end == "pub").map(|_| path.with_extension(""));
        if let Some(private) = private.filter(|_| what == "--key") {
            return Self::new(
                ExitStatus::Usage,
                format!("--key: {path:?} is a public key, and signing needs a private key"),
            )
            .with_hint(line(&format!("use the file without .pub: --key {}", private.display())));
        }
        match error {
            KeyFileError::Io(error) if error.kind() == io::ErrorKind::NotFound => match what {
                "the key" => failure.with_hint("create the directory of the file"),
                _ => failure.with_hint("create a key with `narrows audit keygen FILE`"),
            },
            KeyFileError::Exposed { .. } => failure.with_hint(format!("chmod 600 {}", path.display())),
            KeyFileError::Io(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                failure.with_hint("use another file; existing keys are never overwritten")
            }
            KeyFileError::Key(_) => failure.with_hint("create one with `narrows audit keygen FILE`"),
            KeyFileError::Io(_) => failure,
        }
    }

    pub(crate) fn key_generation(error: KeyError) -> Self {
        Self::new(ExitStatus::Internal, "cannot create a key").with_cause(&error)
    }
}
