//! `narrows bus`: many clients and many agents, and how they are.

mod doors;
mod fit;
mod front;
mod serve;
mod settings;
mod state;
mod status;

use std::process::ExitCode;

use crate::cli::{Bus, BusCommand};
use crate::failure::Failure;

/// Runs a bus, or shows one that runs.
pub(super) fn execute(args: &Bus) -> Result<ExitCode, Failure> {
    match &args.subcommand {
        Some(BusCommand::Status(args)) => status::show(args),
        None => serve::run(args),
    }
}
