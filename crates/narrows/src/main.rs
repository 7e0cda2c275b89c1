//! The `narrows` binary: arguments, exit codes, words for people.

mod cli;
mod command;
mod drive;
mod environment;
mod failure;
mod interrupt;
mod logging;
mod nearest;
mod output;
mod present;
mod screen;
mod terminal;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(answer) => return output::clap_says(&answer),
    };
    match command::execute(cli) {
        Ok(code) => code,
        Err(failure) => failure.tell(),
    }
}
