//! The `narrows` binary: arguments, commands, exit codes and messages.

mod agent_source;
mod cli;
mod command;
mod config;
mod environment;
mod error_report;
mod failure;
mod interrupt;
mod local_models;
mod logging;
mod output;
mod output_thread;
mod permission_prompt;
mod permission_queue;
mod reconnect_notice;
mod relative_time;
mod render;
mod terminal;
mod text_input;

use std::process::ExitCode;

use crate::error_report::ErrorFormat;

fn main() -> ExitCode {
    // If the system limits the size of files, a write then fails with an error, and does not end a gate or a
    // bus.
    narrows_process::ignore_file_size_signal();
    let words: Vec<_> = std::env::args_os().collect();
    let cli = match cli::Cli::parse_args(words.clone()) {
        Ok(cli) => cli,
        Err(answer) => return output::print_clap(&answer, ErrorFormat::from_words(&words)),
    };
    let errors = ErrorFormat::for_command(&cli.command);
    match command::execute(cli) {
        Ok(code) => code,
        Err(failure) => {
            if let Some(errors) = errors.filter(|_| !failure.is_reported()) {
                errors.print(&failure);
            }
            failure.report()
        }
    }
}
