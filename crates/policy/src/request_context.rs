//! The trusted context in which a request is judged.

use std::path::PathBuf;

use serde::{Serialize, Serializer};

/// Restrictions that a sandbox enforces on commands. `false` means that it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Confined {
    /// Files outside the roots cannot be changed.
    pub files: bool,
    /// The network cannot be reached.
    pub network: bool,
    /// Protection of the protected paths in the roots ([`Policy::protects`](crate::Policy::protects)).
    #[serde(serialize_with = "is_kept")]
    pub protected: Protection,
}

/// Protection of the protected files in the roots by a sandbox, or the reason why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protection {
    /// Protected files cannot be changed, or there are none.
    Kept,
    /// The sandbox of this machine cannot protect files in a root.
    #[default]
    Unsupported,
    /// Some protected files are unknown, because the search for them was incomplete.
    NotSearched,
    /// A protected file has a second hard link, through which it can be changed.
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
    pub confined: Confined,
    pub cancelling: bool,
    /// Reason of a denial by the governance.
    pub refused: Option<&'a str>,
}
