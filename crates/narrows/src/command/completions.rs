//! `narrows completions`: what a shell needs to complete our arguments.

use std::process::ExitCode;

use clap::CommandFactory;

use crate::cli::{Cli, Completions};
use crate::failure::{Code, Failure};
use crate::output;

/// Prints the script.
pub(super) fn execute(completions: &Completions) -> Result<ExitCode, Failure> {
    // In memory first: the generator panics when it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut Cli::command(), "narrows", &mut script);
    output::print(&script)?;
    Ok(Code::Success.exit())
}
