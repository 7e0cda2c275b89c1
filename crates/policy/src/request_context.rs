//! The trusted context in which a request is judged.

use std::path::PathBuf;

use serde::{Serialize, Serializer};

/// Restrictions that a sandbox enforces on commands. `false` means that the sandbox does not enforce the
/// restriction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Confined {
    /// Commands cannot change files outside of the roots.
    pub files: bool,
    /// Commands cannot reach the network.
    pub network: bool,
    /// How the sandbox protects the protected paths in the roots
    /// ([`Policy::protects`](crate::Policy::protects)).
    #[serde(serialize_with = "is_kept")]
    pub protected: Protection,
}

/// How a sandbox protects the protected files in the roots, or why it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protection {
    /// Commands cannot change protected files, or the roots contain none.
    Kept,
    /// On this machine, a sandbox cannot protect files in a root.
    #[default]
    Unsupported,
    /// The search for protected files was not complete, so some of them may be unprotected.
    NotSearched,
    /// A protected file has another hard link, through which commands can change the file.
    HardLinked,
}

fn is_kept<S: Serializer>(protection: &Protection, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(*protection == Protection::Kept)
}

/// Trusted facts about a request. Nothing in it comes from the agent.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestContext<'a> {
    /// Directories of the session, as absolute paths. Relative paths start in the first one.
    pub roots: &'a [PathBuf],
    pub confined: Confined,
    pub cancelling: bool,
    /// Reason for which the governance denies the request. `None` if it does not.
    pub refused: Option<&'a str>,
}
