//! `narrows fake-agent`: runs a scripted agent on stdio.

use std::fmt::Write;
use std::io::IsTerminal;
use std::process::ExitCode;

use narrows_fake::{Ended, Script};
use narrows_link::CloseReason;
use serde_json::{Value, json};

use crate::cli::FakeAgent;
use crate::failure::{ExitStatus, Failure};
use crate::{logging, output};

pub(super) fn execute(args: &FakeAgent) -> Result<ExitCode, Failure> {
    match (&args.script, &args.print) {
        (Some(script), _) => {
            let read = load_script(script)?;
            if std::io::stdin().is_terminal() {
                output::write_stderr(&super::manual_start_hint("this agent"));
            }
            run(read)
        }
        (None, Some(name)) => {
            let source = Script::builtin_source(name).ok_or_else(|| Failure::unknown_builtin_script(name))?;
            output::print(source.as_bytes())?;
            Ok(ExitStatus::Success.exit_code())
        }
        (None, None) => {
            match args.json {
                true => output::print_json(list_json())?,
                false => output::print(list().as_bytes())?,
            }
            Ok(ExitStatus::Success.exit_code())
        }
    }
}

/// Loads a built-in script or a file. Built-in names win: `./hello` is always the file.
fn load_script(script: &str) -> Result<Script, Failure> {
    if let Some(builtin) = Script::builtin(script) {
        return Ok(builtin);
    }
    let source =
        std::fs::read_to_string(script).map_err(|error| Failure::script_unreadable(script, &error))?;
    Script::parse(&source).map_err(|error| Failure::script_invalid(script, &error))
}

fn list_json() -> Value {
    let row = |(name, about): &(_, _)| json!({ "name": name, "description": about });
    json!({ "scripts": Script::builtins().iter().map(row).collect::<Vec<_>>() })
}

fn list() -> String {
    let builtins = Script::builtins();
    let width = builtins.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut list = String::new();
    for (name, about) in builtins {
        _ = writeln!(list, "{name:width$}  {about}");
    }
    list
}

fn run(script: Script) -> Result<ExitCode, Failure> {
    let ended = super::block_on(async {
        // Raw output of a script goes to the real stdout, which nothing else may use.
        let raw = output::stdout().map_err(|error| Failure::setup("use stdout", &error))?;
        let link = narrows_link::stdio::take(&narrows_link::Options::default())
            .map_err(|error| Failure::setup("open stdin and stdout", &error))?;
        let (peer, inbox) = narrows_rpc::start(link, narrows_fake::options());
        let ended = narrows_fake::run(peer.clone(), inbox, Box::new(raw), script).await;
        if ended == Ended::PeerLeft {
            let reason = peer.closed().await;
            // A client that closed its output may still read the last messages.
            peer.finish().await;
            if !matches!(reason, CloseReason::Eof | CloseReason::NotReading) {
                return Err(Failure::client_connection_lost(&reason));
            }
        }
        Ok(ended)
    })??;
    match ended {
        Ended::PeerLeft => Ok(ExitStatus::Success.exit_code()),
        Ended::Exit(code) => Ok(ExitCode::from(code)),
        Ended::Abort => {
            logging::finish();
            std::process::abort()
        }
    }
}
