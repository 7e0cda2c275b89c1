//! `narrows token`: made, listed and revoked.

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
            let token = tokens::add(&args.file, &args.name, scopes, SystemTime::now())
                .map_err(|error| Failure::tokens(&error))?;
            output::print(format!("{token}\n").as_bytes())?;
        }
        TokenCommand::List(args) => list(args)?,
        TokenCommand::Revoke(args) => {
            tokens::remove(&args.file, &args.name).map_err(|error| Failure::tokens(&error))?;
        }
    }
    Ok(Code::Success.exit())
}

fn list(args: &TokenList) -> Result<(), Failure> {
    let known = Tokens::read(&args.file).map_err(|error| Failure::tokens(&error))?;
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
