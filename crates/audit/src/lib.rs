//! A hash-chained audit log. Every entry is on disk before it is acknowledged, and separate code verifies the
//! log.
//!
//! ```
//! use narrows_audit::{Actor, Event, Log, LogOptions, Subject, verify};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! let path = directory.path().join("audit-log.jsonl");
//! let log = Log::open(&path, LogOptions::default())?;
//! let event = Event {
//!     actor: Actor { id: "operator:notes".into(), role: Some("operator".into()) },
//!     action: "operator.invoked".into(),
//!     subject: Subject { kind: "session".into(), reference: Some("s1".into()), path: None },
//!     ..Event::default()
//! };
//! let receipt = log.append(event).wait()?; // or `.await`
//! assert_eq!(receipt.seq, 0);
//! log.close();
//!
//! let report = verify::log(&path, &verify::VerifyOptions::default())?;
//! assert_eq!((report.entries, report.hash, report.bad), (1, Some(receipt.hash), None));
//! # Ok(())
//! # }
//! ```
//!
//! These guarantees hold even if the process or the machine fails:
//! - An acknowledged event is in the log, and the chain from the first entry to it verifies.
//! - If an event could not be written, its caller gets an error, and the log is unchanged.
//! - Only unacknowledged data is ever removed, and only from the end.

mod approval;
mod base58;
mod clock;
mod disk;
mod draft;
mod entry;
mod event;
mod facts;
mod files;
mod head;
pub mod jcs;
pub mod key;
mod log;
mod read;
mod redact;
mod secret;
mod segment;
pub mod verify;

pub use approval::{Approval, ApprovalDecision, ApprovalError, ApprovalSigner};
pub use clock::{Clock, SystemClock};
pub use disk::{FileStatus, LogDirectory, LogFile, SystemDirectory};
pub use entry::{Algorithm, DOCTYPE, Entry, GENESIS, SCHEMA};
pub use event::{Actor, Event, EventError, LoggedDecision, MAX_DEPTH, PolicyRef, Subject, UnknownDecision};
pub use facts::{Fact, Facts};
pub use files::{open_lock, open_regular};
pub use head::{Head, SignedHead};
pub use jiff::Timestamp;
pub use key::{PublicKey, Signature, SigningKey};
pub use log::{Append, AppendError, CommitObserver, Log, LogOptions, OpenError, Receipt};
pub use read::{Filter, LogReader, ReadError};
pub use redact::Redaction;
pub use secret::Secret;
pub use segment::is_log_file;
