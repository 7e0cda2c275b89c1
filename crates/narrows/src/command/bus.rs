//! `narrows bus`: runs a bus, and shows its status.

mod admin_socket;
mod http_server;
mod report;
mod serve;
mod settings;
mod status;
mod table_fit;

use std::process::ExitCode;

use crate::cli::{Bus, BusCommand};
use crate::failure::Failure;

pub(super) fn execute(args: &Bus) -> Result<ExitCode, Failure> {
    match &args.subcommand {
        Some(BusCommand::Status(args)) => status::show(args),
        None => serve::run(args),
    }
}
