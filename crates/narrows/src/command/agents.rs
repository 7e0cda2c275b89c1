//! `narrows agents`: lists the agents of narrows.toml, or probes one.

mod capabilities;
mod list;
mod probe;
mod report;

use std::process::ExitCode;

use crate::cli::Agents;
use crate::failure::Failure;

pub(super) fn execute(args: &Agents) -> Result<ExitCode, Failure> {
    match &args.probe {
        Some(wanted) => probe::execute(args, wanted),
        None => list::execute(args),
    }
}
