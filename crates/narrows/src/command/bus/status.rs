//! `narrows bus status`: shows a running bus as a table or as JSON.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use narrows_bus::admin;

use super::admin_socket;
use super::report::StatusReport;
use super::table_fit::{fit_to_terminal, terminal_size};
use crate::cli::BusStatus;
use crate::config::{Variables, runtime_dir};
use crate::failure::{ExitStatus, Failure};
use crate::output;

pub(super) fn show(args: &BusStatus) -> Result<ExitCode, Failure> {
    let socket = match &args.socket {
        Some(socket) => socket.clone(),
        None => find()?,
    };
    let ask = || admin::ask(&socket, "/status").map_err(|error| Failure::bus_status(&socket, &error));
    let mut before: Option<StatusReport> = None;
    loop {
        let answer = ask()?;
        if args.json {
            output::print_json(answer.trim_end())?;
        } else {
            let state = StatusReport::read(&answer)
                .ok_or_else(|| Failure::bus_status(&socket, &admin::AskError::NotABus))?;
            let table = state.table(before.as_ref());
            let text = match args.watch {
                // Moves the cursor to the top and clears the previous table.
                Some(_) if std::io::stdout().is_terminal() => {
                    let fitted =
                        terminal_size().map_or_else(|| table.clone(), |size| fit_to_terminal(&table, size));
                    format!("\u{1b}[H\u{1b}[J{fitted}")
                }
                Some(_) if before.is_some() => format!("\n{table}"),
                _ => table,
            };
            output::print(text.as_bytes())?;
            before = Some(state);
        }
        match args.watch {
            Some(pause) => std::thread::sleep(pause),
            None => return Ok(ExitStatus::Success.exit_code()),
        }
    }
}

fn find() -> Result<PathBuf, Failure> {
    let directory = runtime_dir(&Variables::of_process()).ok_or_else(|| Failure::no_bus(None))?;
    let mut found =
        admin_socket::running(&directory).map_err(|error| Failure::setup("find a running bus", &error))?;
    match found.len() {
        0 => Err(Failure::no_bus(Some(&directory))),
        1 => Ok(found.remove(0)),
        _ => Err(Failure::several_buses(&found)),
    }
}
