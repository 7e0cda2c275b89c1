//! `narrows fake-agent`: the scripted agent on our own stdin and stdout.

use std::fmt::Write;
use std::io::IsTerminal;
use std::process::ExitCode;

use narrows_fake::{Ended, Script};
use narrows_link::CloseReason;

use crate::cli::FakeAgent;
use crate::failure::{Code, Failure};
use crate::{logging, output};

/// Plays a script, or tells about the built-in ones.
pub(super) fn execute(args: &FakeAgent) -> Result<ExitCode, Failure> {
    match (&args.script, &args.print) {
        (Some(script), _) => {
            let read = read(script)?;
            if std::io::stdin().is_terminal() {
                output::complain(&super::by_hand("it"));
            }
            play(read)
        }
        (None, Some(name)) => {
            let source = Script::builtin_source(name).ok_or_else(|| Failure::no_builtin(name))?;
            output::print(source.as_bytes())?;
            Ok(Code::Success.exit())
        }
        (None, None) => {
            output::print(list().as_bytes())?;
            Ok(Code::Success.exit())
        }
    }
}

/// The script of this name, or in this file. A built-in script wins: `./hello` is always the file.
fn read(script: &str) -> Result<Script, Failure> {
    if let Some(builtin) = Script::builtin(script) {
        return Ok(builtin);
    }
    let source =
        std::fs::read_to_string(script).map_err(|error| Failure::unreadable_script(script, &error))?;
    Script::parse(&source).map_err(|error| Failure::bad_script(script, &error))
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

fn play(script: Script) -> Result<ExitCode, Failure> {
    let ended = super::block_on(async {
        // What a script writes past the protocol goes to the real stdout, which is taken away from everybody else.
        let raw = output::stdout().map_err(|error| Failure::setup("use stdout", &error))?;
        let link = narrows_link::stdio::take(&narrows_link::Options::default())
            .map_err(|error| Failure::setup("take stdin and stdout", &error))?;
        let (peer, inbox) = narrows_rpc::start(link, narrows_fake::options());
        let ended = narrows_fake::run(peer.clone(), inbox, Box::new(raw), script).await;
        if ended == Ended::PeerLeft {
            let reason = peer.closed().await;
            // A client that has nothing more to ask may still read what it was answered.
            peer.finish().await;
            if !matches!(reason, CloseReason::Eof | CloseReason::NotReading) {
                return Err(Failure::client_lost(&reason));
            }
        }
        Ok(ended)
    })??;
    match ended {
        Ended::PeerLeft => Ok(Code::Success.exit()),
        Ended::Exit(code) => Ok(ExitCode::from(code)),
        Ended::Abort => {
            logging::finish();
            std::process::abort()
        }
    }
}
