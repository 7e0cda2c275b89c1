//! The `narrows` binary: arguments, exit codes, words for people.

mod age;
mod ask;
mod cli;
mod command;
mod config;
mod desk;
mod drive;
mod environment;
mod error_report;
mod failure;
mod interrupt;
mod local;
mod logging;
mod output;
mod present;
mod screen;
mod terminal;
mod text_input;
mod tidings;

use std::process::ExitCode;

use crate::error_report::ErrorFormat;

fn main() -> ExitCode {
    // Whoever limits the size of our files gets errors, and does not end a gate or a bus.
    narrows_process::ignore_file_size_signal();
    let words: Vec<_> = std::env::args_os().collect();
    let cli = match cli::Cli::read(words.clone()) {
        Ok(cli) => cli,
        Err(answer) => return output::clap_says(&answer, ErrorFormat::of_words(&words)),
    };
    let errors = ErrorFormat::of(&cli.command);
    match command::execute(cli) {
        Ok(code) => code,
        Err(failure) => {
            if let Some(errors) = errors.filter(|_| !failure.is_reported()) {
                errors.print(&failure);
            }
            failure.tell()
        }
    }
}
