//! `narrows agents`: lists the agents of narrows.toml, or probes one.

mod capabilities;
mod list;
mod probe;
mod report;

use std::process::ExitCode;

use crate::cli::{Agents, AgentsCommand};
use crate::failure::Failure;

pub(super) fn execute(args: &Agents) -> Result<ExitCode, Failure> {
    match (&args.command, &args.probe) {
        (Some(AgentsCommand::List(args)), _) => list::execute(args),
        (None, Some(wanted)) => probe::execute(args, wanted),
        (None, None) => list::execute(&args.list),
    }
}
