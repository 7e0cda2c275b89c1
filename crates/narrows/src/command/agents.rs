//! `narrows agents`: the agents of narrows.toml, and what one of them can do.

mod can;
mod list;
mod probe;
mod report;

use std::process::ExitCode;

use crate::cli::Agents;
use crate::failure::Failure;

/// Lists the agents, or asks one of them.
pub(super) fn execute(args: &Agents) -> Result<ExitCode, Failure> {
    match &args.probe {
        Some(wanted) => probe::execute(args, wanted),
        None => list::execute(args),
    }
}
