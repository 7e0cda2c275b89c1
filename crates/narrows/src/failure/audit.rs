//! Failures of audit logs, heads and keys.

use std::io;
use std::path::Path;

use narrows_audit::key::{KeyError, KeyFileError, SignatureError};
use narrows_audit::verify::{Bad, Report, Why};
use narrows_audit::{PublicKey, ReadError};

use super::{ExitStatus, Failure};
use crate::terminal::line;

impl Failure {
    pub(crate) fn audit_log_unreadable(path: &Path, error: &io::Error) -> Self {
        let failure = Self::file_unreadable("the audit log", path, error);
        match error.kind() {
            io::ErrorKind::NotFound => {
                failure.with_hint("name the file that grows, such as audit/audit-log.jsonl, or its directory")
            }
            _ => failure,
        }
    }

    pub(crate) fn audit_entry_unreadable(error: &ReadError) -> Self {
        let failure = Self::new(ExitStatus::Agent, line(&error.to_string()));
        match error {
            ReadError::Io { .. } => failure,
            ReadError::Line { .. } => {
                failure.with_hint("`narrows audit verify` says what is wrong with the log")
            }
        }
    }

    pub(crate) fn not_an_audit_log(path: &Path) -> Self {
        Self::new(ExitStatus::Agent, format!("{path:?} is no audit log: its first line is no entry of one"))
            .with_hint("name the file that grows, such as audit/audit-log.jsonl, or its directory")
    }

    /// A log does not verify.
    pub(crate) fn audit_log_invalid(path: &Path, report: &Report, bad: &Bad) -> Self {
        let Bad { segment, line: number, seq, why, detail, .. } = bad;
        let file = path.with_file_name(segment).display().to_string();
        let place = if *number == 0 { file } else { format!("{file}:{number}: entry {seq}") };
        let failure = Self::new(ExitStatus::Agent, line(&format!("{place}: {why}: {detail}")));
        let failure = match report.entries {
            0 => failure,
            _ if *number == 0 => failure,
            1 => failure.with_hint("entry 0, in front of it, is as it was written"),
            entries => failure.with_hint(format!(
                "the {entries} entries in front of it, 0 to {}, are as they were written",
                entries - 1
            )),
        };
        match why {
            Why::TornTail => failure.with_hint(
                "this is what a crash leaves of a line that was never acknowledged; whoever writes to the log next \
                 cuts it off, and notes that",
            ),
            Why::NotCanonical => failure.with_hint("a log of another program may be in another form: --any-form"),
            Why::Truncated => failure.with_hint("its chain is unbroken; this is an older copy, or its end was taken away"),
            Why::Rewritten => failure.with_hint("its chain is unbroken; this is another log, or it was written anew"),
            Why::Tampered | Why::Gap | Why::Clock => failure.with_hint(
                "`narrows audit show` prints the number of each entry; move the changed log away and keep it: no gate writes to it again",
            ),
            Why::Broken if detail.contains("keyed hashes") => failure.with_hint("whoever has the secret can verify it: --legacy-secret FILE"),
            _ => failure,
        }
    }

    /// There is no entry to sign.
    pub(crate) fn audit_log_empty(path: &Path) -> Self {
        Self::new(ExitStatus::Usage, format!("there is no entry in {path:?}, and so nothing to sign"))
    }

    pub(crate) fn audit_head_invalid(path: &Path, error: &serde_json::Error) -> Self {
        Self::new(ExitStatus::Usage, format!("--against: {path:?} is no head: {}", line(&error.to_string())))
            .with_hint("`narrows audit head LOG --key FILE` prints one")
    }

    /// The signature of a head is invalid.
    pub(crate) fn audit_head_signature(path: &Path, signer: &PublicKey, error: SignatureError) -> Self {
        let failure =
            Self::new(ExitStatus::Agent, format!("--against: {path:?} does not count")).with_cause(&error);
        match error {
            SignatureError::OtherKey => failure.with_hint(format!("it was signed with {signer}")),
            SignatureError::Wrong => failure.with_hint("it was changed after it was signed"),
        }
    }

    pub(crate) fn key_file(what: &str, path: &Path, error: &KeyFileError) -> Self {
        let failure =
            Self::new(ExitStatus::Usage, format!("{what}: {path:?} cannot be used")).with_cause(error);
        let private = path.extension().filter(|end| *end == "pub").map(|_| path.with_extension(""));
        if let Some(private) = private.filter(|_| what == "--key") {
            return Self::new(
                ExitStatus::Usage,
                format!("--key: {path:?} is a public key, and only a private one signs"),
            )
            .with_hint(line(&format!(
                "the private key is in the file without .pub: --key {}",
                private.display()
            )));
        }
        match error {
            KeyFileError::Io(error) if error.kind() == io::ErrorKind::NotFound => match what {
                "the key" => failure.with_hint("the directory of the file has to be there"),
                _ => failure.with_hint("there is no such file; `narrows audit keygen FILE` makes a key"),
            },
            KeyFileError::Exposed { .. } => failure.with_hint(format!("chmod 600 {}", path.display())),
            KeyFileError::Io(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                failure.with_hint("a key is never written over; name another file")
            }
            KeyFileError::Key(_) => failure.with_hint("`narrows audit keygen FILE` makes one"),
            KeyFileError::Io(_) => failure,
        }
    }

    pub(crate) fn key_generation(error: KeyError) -> Self {
        Self::new(ExitStatus::Internal, "no key can be made").with_cause(&error)
    }
}
