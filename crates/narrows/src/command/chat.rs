//! `narrows chat`: one conversation with an agent, as many turns as its user likes.

use std::process::ExitCode;

use crate::cli::Chat;
use crate::failure::{Code, Failure};

/// Talks until its user leaves.
pub(super) fn execute(args: Chat) -> Result<ExitCode, Failure> {
    drop(args);
    Err(Failure::new(Code::Internal, "there is no chat yet"))
}
