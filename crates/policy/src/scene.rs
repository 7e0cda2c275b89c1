//! Where a request is judged: what lies around it and was not said by the agent.

use std::path::PathBuf;

use serde::Serialize;

/// What a sandbox enforces for commands. What it does not enforce is `false`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Confined {
    /// Files outside the roots cannot be changed.
    pub files: bool,
    /// The network cannot be reached.
    pub network: bool,
    /// What is protected in the roots ([`Policy::protects`](crate::Policy::protects)) cannot be changed, or nothing is.
    pub protected: bool,
}

/// The surroundings of one request. Nothing in it comes from the agent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scene<'a> {
    /// The directories of the session, absolute. The first is where relative paths start.
    pub roots: &'a [PathBuf],
    /// What holds the command back, if it is run.
    pub confined: Confined,
    /// Whether the turn is being cancelled.
    pub cancelling: bool,
    /// Why governance refuses, if it does.
    pub refused: Option<&'a str>,
}
