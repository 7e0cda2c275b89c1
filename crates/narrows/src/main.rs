//! The `narrows` binary: arguments, exit codes, words for people.

mod age;
mod ask;
mod cli;
mod command;
mod config;
mod desk;
mod drive;
mod environment;
mod failure;
mod interrupt;
mod local;
mod logging;
mod nearest;
mod output;
mod present;
mod screen;
mod terminal;
mod tidings;

use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match cli::Cli::read(std::env::args_os().collect()) {
        Ok(cli) => cli,
        Err(answer) => return output::clap_says(&answer),
    };
    match command::execute(cli) {
        Ok(code) => code,
        Err(failure) => failure.tell(),
    }
}
