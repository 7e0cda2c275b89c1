//! Where a request is judged: what lies around it and was not said by the agent.

use std::path::PathBuf;

use serde::{Serialize, Serializer};

/// What a sandbox enforces for commands. What it does not enforce is `false`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Confined {
    /// Files outside the roots cannot be changed.
    pub files: bool,
    /// The network cannot be reached.
    pub network: bool,
    /// Whether what is protected in the roots ([`Policy::protects`](crate::Policy::protects)) can be changed.
    #[serde(serialize_with = "is_kept")]
    pub protected: Protection,
}

/// Whether a sandbox keeps protected files in the roots as they are, and if not, why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protection {
    /// They cannot be changed, or there are none.
    Kept,
    /// The sandbox of this machine cannot keep files in a root.
    #[default]
    Unsupported,
    /// Not all of them are known: the search for them was incomplete.
    NotSearched,
    /// One of them has a second hard link, over which it can be changed.
    HardLinked,
}

fn is_kept<S: Serializer>(protection: &Protection, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(*protection == Protection::Kept)
}

/// The surroundings of one request. Nothing in it comes from the agent.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestContext<'a> {
    /// The directories of the session, absolute. The first is where relative paths start.
    pub roots: &'a [PathBuf],
    /// What holds the command back, if it is run.
    pub confined: Confined,
    /// Whether the turn is being cancelled.
    pub cancelling: bool,
    /// Why governance refuses, if it does.
    pub refused: Option<&'a str>,
}
