//! Reads, checks and resolves ACP.md and the files it refers to.
//!
//! [`check`] checks one file by itself. Each [`Finding`] has a position, a message and a hint. [`read`] also
//! returns the content as plain data of [`types`]. [`schema`] returns the schemas, which are generated from
//! those types. [`check_directory`] checks all files of a directory, and the files that each ACP.md refers
//! to.
//!
//! [`load`] reads an ACP.md with its operator, its governance and all that the governance inherits, policies,
//! sandbox, runner, agent and skills. The resulting [`Bundle`] contains the data to run the manifest, the
//! [`GovernanceRuleset`](narrows_policy::GovernanceRuleset) that decides, and the digest of every file that
//! was read.
//!
//! This crate runs no program and does not use the network.
//!
//! ```
//! use std::path::Path;
//!
//! use narrows_manifest::{AuditTarget, Code, ManifestKind, MemoryFiles, check, resolve};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let acp = "---\nname: notes\nid: notes\ndescription: Keeps notes.\nversion: 1.0.0\nkind: server\ntransport: stdio\n\
//!     metadata:\n  aip44:\n    acp_rev: \"272bf79\"\n    tier: basic\n    operator: ./OPERATOR.md\n---\n";
//! let operator = "---\nname: Notes\nid: notes\npersona_summary: Keeps notes.\nversion: 1.0.0\n\
//!     profile: {role: Keep notes., voice: Short., boundaries: []}\ntools: [append-to-notes]\n---\n";
//!
//! // From disk: `load(Path::new("notes/ACP.md"), None)`.
//! let files = MemoryFiles::default().with("notes/ACP.md", acp).with("notes/OPERATOR.md", operator);
//! let bundle = resolve(&files, Path::new("notes/ACP.md"))?;
//! assert!(bundle.tools.has(None, "append-to-notes") && !bundle.tools.has(None, "remove-notes"));
//! assert!(!bundle.capabilities.terminal);
//! assert_eq!((bundle.protocol_version, &bundle.audit), (Some(1), &AuditTarget::Off));
//! assert_eq!(bundle.pins.len(), 2);
//!
//! // A finding has a position and a hint.
//! let findings = check(ManifestKind::Acp, Path::new("notes/ACP.md"), acp.replace("\"272bf79\"", "1234567").as_bytes());
//! let finding = findings.iter().find(|finding| finding.code == Code::QuoteIt).expect("it is found");
//! assert_eq!((finding.line, finding.key.as_str()), (10, "metadata.aip44.acp_rev"));
//! assert!(finding.hint.is_some());
//! # Ok(())
//! # }
//! ```

mod argv;
mod capabilities;
mod code;
mod document;
mod files;
mod finding;
mod kind;
mod lint;
mod resolve;
mod revision;
mod schema;
mod survey;
pub mod types;
pub mod version;
mod yaml;

pub use argv::{Launch, LaunchError};
pub use capabilities::Capabilities;
pub use code::Code;
pub use document::{
    Document, FrontMatter, MAX_MANIFEST_BYTES, ReadResult, check, check_for_serving, front_matter, read,
};
pub use files::{Files, FilesError, MemoryFiles, Workspace};
pub use finding::{Finding, Findings, Severity};
pub use kind::{ManifestKind, UnknownKind};
pub use lint::is_listable;
pub use resolve::{
    Agent, AuditTarget, BoundPolicy, Bundle, EffectiveGovernance, Loaded, McpBinding, Pin, PlannedMount,
    RunnerPlan, SandboxPlan, Skill, ToolSet, load, resolve,
};
pub use revision::protocol_version;
pub use schema::schema;
pub use survey::{CheckedFile, check_directory};
