//! `narrows bus status`: a bus that runs, as a table or as JSON.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use narrows_bus::admin;

use super::doors;
use super::fit::{fit, terminal};
use super::state::State;
use crate::cli::BusStatus;
use crate::config::{Variables, runtime_dir};
use crate::failure::{Code, Failure};
use crate::output;

/// Shows it, once or again and again.
pub(super) fn show(args: &BusStatus) -> Result<ExitCode, Failure> {
    let socket = match &args.socket {
        Some(socket) => socket.clone(),
        None => find()?,
    };
    let ask = || admin::ask(&socket, "/status").map_err(|error| Failure::bus_asked(&socket, &error));
    let mut before: Option<State> = None;
    loop {
        let answer = ask()?;
        if args.json {
            output::print_json(answer.trim_end())?;
        } else {
            let state = State::read(&answer)
                .ok_or_else(|| Failure::bus_asked(&socket, &admin::AskError::Stranger))?;
            let table = state.table(before.as_ref());
            let text = match args.watch {
                // The cursor goes home, and what was there before is cleared.
                Some(_) if std::io::stdout().is_terminal() => {
                    let fitted = terminal().map_or_else(|| table.clone(), |size| fit(&table, size));
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
            None => return Ok(Code::Success.exit()),
        }
    }
}

/// The socket of the one that runs.
fn find() -> Result<PathBuf, Failure> {
    let directory = runtime_dir(&Variables::of_process()).ok_or_else(|| Failure::no_bus(None))?;
    let mut found = doors::live(&directory).map_err(|error| Failure::setup("look for a bus", &error))?;
    match found.len() {
        0 => Err(Failure::no_bus(Some(&directory))),
        1 => Ok(found.remove(0)),
        _ => Err(Failure::several_buses(&found)),
    }
}
