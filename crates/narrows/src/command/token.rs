//! `narrows token`: made, listed and revoked.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use narrows_remote::tokens::{self, Tokens};
use serde_json::json;

use super::columns;
use crate::cli::{Token, TokenCommand, TokenList};
use crate::failure::{Code, Failure};
use crate::output;
use crate::terminal::line;

/// Does what was asked for.
pub(super) fn execute(args: &Token) -> Result<ExitCode, Failure> {
    match &args.command {
        TokenCommand::New(args) => {
            let scopes = (!args.scope.is_empty()).then_some(&args.scope[..]);
            let make = || {
                tokens::add(&args.file, &args.name, scopes, SystemTime::now())
                    .map_err(|error| Failure::tokens(&args.file, &error))
            };
            match &args.out {
                None => output::print(format!("{}\n", make()?).as_bytes())?,
                Some(out) => write(out, make, &|| tokens::remove(&args.file, &args.name).is_ok())?,
            }
        }
        TokenCommand::List(args) => list(args)?,
        TokenCommand::Revoke(args) => {
            tokens::remove(&args.file, &args.name).map_err(|error| Failure::tokens(&args.file, &error))?;
        }
    }
    Ok(Code::Success.exit())
}

/// Writes what is made to a new file of ours alone, which is there before anything is made. What cannot be written is taken back.
fn write(
    out: &Path,
    make: impl FnOnce() -> Result<String, Failure>,
    take_back: &dyn Fn() -> bool,
) -> Result<(), Failure> {
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(out)
        .map_err(|error| Failure::token_file(out, &error))?;
    let written = make().and_then(|token| {
        let written = file.write_all(format!("{token}\n").as_bytes()).and_then(|()| file.sync_all());
        written.map_err(|error| {
            // Nobody has it, so nobody is to be let in by it.
            take_back();
            Failure::token_file(out, &error)
        })
    });
    if written.is_err() {
        // It is ours, and of no use to anybody.
        let _ = std::fs::remove_file(out);
    }
    written
}

fn list(args: &TokenList) -> Result<(), Failure> {
    let known = Tokens::read(&args.file).map_err(|error| Failure::tokens(&args.file, &error))?;
    let text = if args.json {
        let all: Vec<_> =
            known.identities().map(|who| json!({"name": who.name, "scopes": who.scopes})).collect();
        format!("{}\n", json!(all))
    } else {
        let row = |scopes: Option<&Vec<String>>| scopes.map_or("everything".to_owned(), |all| all.join(" "));
        let rows: Vec<_> =
            known.identities().map(|who| [line(&who.name), line(&row(who.scopes.as_ref()))]).collect();
        columns(["NAME", "SCOPES"], &rows)
    };
    output::print(text.as_bytes())
}
