//! The trusted context in which a request is judged.

use std::path::PathBuf;

use serde::{Serialize, Serializer};

/// Restrictions that a sandbox enforces for commands; `false` if it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Confined {
    /// Files outside the roots cannot be changed.
    pub files: bool,
    /// The network cannot be reached.
    pub network: bool,
    /// Whether protected paths in the roots ([`Policy::protects`](crate::Policy::protects)) can be changed.
    #[serde(serialize_with = "is_kept")]
    pub protected: Protection,
}

/// Whether a sandbox protects the protected files in the roots, and if not, why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protection {
    /// They cannot be changed, or there are none.
    Kept,
    /// The sandbox of this machine cannot protect files in a root.
    #[default]
    Unsupported,
    /// Some are unknown, because the search for them was incomplete.
    NotSearched,
    /// One of them has a second hard link, through which it can be changed.
    HardLinked,
}

fn is_kept<S: Serializer>(protection: &Protection, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(*protection == Protection::Kept)
}

/// Context of one request. Nothing in it comes from the agent.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestContext<'a> {
    /// Absolute directories of the session. Relative paths start in the first.
    pub roots: &'a [PathBuf],
    /// Restrictions of the command, if it is run.
    pub confined: Confined,
    /// `true` if the turn is being cancelled.
    pub cancelling: bool,
    /// Reason of a denial by governance.
    pub refused: Option<&'a str>,
}
