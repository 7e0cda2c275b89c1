//! What to say when an audit log is not what it should be.

use std::io;
use std::path::Path;

use narrows_audit::key::{KeyError, KeyFileError, SignatureError};
use narrows_audit::verify::{Bad, Report, Why};
use narrows_audit::{PublicKey, ReadError};

use super::{Code, Failure};
use crate::terminal::line;

impl Failure {
    /// A log cannot be read.
    pub(crate) fn audit_log(path: &Path, error: &io::Error) -> Self {
        let failure = Self::unreadable("the audit log", path, error);
        match error.kind() {
            io::ErrorKind::NotFound => {
                failure.hint("name the file that grows, such as audit/audit-log.jsonl, or its directory")
            }
            _ => failure,
        }
    }

    /// A line of a log cannot be read.
    pub(crate) fn audit_entry(error: &ReadError) -> Self {
        let failure = Self::new(Code::Agent, line(&error.to_string()));
        match error {
            ReadError::Io { .. } => failure,
            ReadError::Line { .. } => failure.hint("`narrows audit verify` says what is wrong with the log"),
        }
    }

    /// A file is something else than a log.
    pub(crate) fn no_log(path: &Path) -> Self {
        Self::new(Code::Agent, format!("{path:?} is no audit log: its first line is no entry of one"))
            .hint("name the file that grows, such as audit/audit-log.jsonl, or its directory")
    }

    /// A log is not what was written.
    pub(crate) fn bad_log(path: &Path, report: &Report, bad: &Bad) -> Self {
        let Bad { segment, line: number, seq, why, detail, .. } = bad;
        let file = path.with_file_name(segment).display().to_string();
        let place = if *number == 0 { file } else { format!("{file}:{number}: entry {seq}") };
        let failure = Self::new(Code::Agent, line(&format!("{place}: {why}: {detail}")));
        let failure = match report.entries {
            0 => failure,
            _ if *number == 0 => failure,
            1 => failure.hint("entry 0, in front of it, is as it was written"),
            entries => failure.hint(format!(
                "the {entries} entries in front of it, 0 to {}, are as they were written",
                entries - 1
            )),
        };
        match why {
            Why::TornTail => failure.hint(
                "this is what a crash leaves of a line that was never acknowledged; whoever writes to the log next \
                 cuts it off, and notes that",
            ),
            Why::NotCanonical => failure.hint("a log of another program may be in another form: --any-form"),
            Why::Truncated => failure.hint("its chain is unbroken; this is an older copy, or its end was taken away"),
            Why::Rewritten => failure.hint("its chain is unbroken; this is another log, or it was written anew"),
            Why::Tampered | Why::Gap | Why::Clock => failure.hint(
                "`narrows audit show` prints the number of each entry; move the changed log away and keep it: no gate writes to it again",
            ),
            Why::Broken if detail.contains("keyed hashes") => failure.hint("whoever has the secret can verify it: --legacy-secret FILE"),
            _ => failure,
        }
    }

    /// There is nothing to sign.
    pub(crate) fn empty_log(path: &Path) -> Self {
        Self::new(Code::Usage, format!("there is no entry in {path:?}, and so nothing to sign"))
    }

    /// A file is no head.
    pub(crate) fn bad_head(path: &Path, error: &serde_json::Error) -> Self {
        Self::new(Code::Usage, format!("--against: {path:?} is no head: {}", line(&error.to_string())))
            .hint("`narrows audit head LOG --key FILE` prints one")
    }

    /// A head is not signed as it should be.
    pub(crate) fn unsigned_head(path: &Path, signer: &PublicKey, error: SignatureError) -> Self {
        let failure = Self::new(Code::Agent, format!("--against: {path:?} does not count")).because(&error);
        match error {
            SignatureError::OtherKey => failure.hint(format!("it was signed with {signer}")),
            SignatureError::Wrong => failure.hint("it was changed after it was signed"),
        }
    }

    /// The file of a key cannot be used.
    pub(crate) fn key_file(what: &str, path: &Path, error: &KeyFileError) -> Self {
        let failure = Self::new(Code::Usage, format!("{what}: {path:?} cannot be used")).because(error);
        let private = path.extension().filter(|end| *end == "pub").map(|_| path.with_extension(""));
        if let Some(private) = private.filter(|_| what == "--key") {
            return Self::new(
                Code::Usage,
                format!("--key: {path:?} is a public key, and only a private one signs"),
            )
            .hint(line(&format!(
                "the private key is in the file without .pub: --key {}",
                private.display()
            )));
        }
        match error {
            KeyFileError::Io(error) if error.kind() == io::ErrorKind::NotFound => match what {
                "the key" => failure.hint("the directory of the file has to be there"),
                _ => failure.hint("there is no such file; `narrows audit keygen FILE` makes a key"),
            },
            KeyFileError::Exposed { .. } => failure.hint(format!("chmod 600 {}", path.display())),
            KeyFileError::Io(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                failure.hint("a key is never written over; name another file")
            }
            KeyFileError::Key(_) => failure.hint("`narrows audit keygen FILE` makes one"),
            KeyFileError::Io(_) => failure,
        }
    }

    /// No key can be made.
    pub(crate) fn no_key(error: KeyError) -> Self {
        Self::new(Code::Internal, "no key can be made").because(&error)
    }
}
