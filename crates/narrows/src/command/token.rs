//! `narrows token`: creates, lists and revokes tokens.

use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use narrows_remote::identity::Identity;
use narrows_remote::tokens::{self, Tokens};
use serde_json::json;

use super::format_columns;
use crate::cli::{Token, TokenCommand, TokenList, TokenNew, TokenRevoke};
use crate::failure::{ExitStatus, Failure};
use crate::output;
use crate::terminal::line;

pub(super) fn execute(args: &Token) -> Result<ExitCode, Failure> {
    match &args.command {
        TokenCommand::New(args) => create(args)?,
        TokenCommand::List(args) => list(args)?,
        TokenCommand::Revoke(args) => revoke(args)?,
    }
    Ok(ExitStatus::Success.exit_code())
}

fn create(args: &TokenNew) -> Result<(), Failure> {
    let TokenNew { name, scope, pool, file, out, json } = args;
    let scopes = (!scope.is_empty()).then_some(&scope[..]);
    let pools = (!pool.is_empty()).then_some(&pool[..]);
    let make = || {
        let made = tokens::add_for_pools(file, name, scopes, pools, SystemTime::now());
        made.map_err(|error| Failure::token_file_invalid(file, &error))
    };
    let mut object = json!({"name": name, "scopes": scopes, "pools": pools});
    match out {
        None => {
            let token = make()?;
            object["token"] = json!(token);
            if !json {
                return output::print(format!("{token}\n").as_bytes());
            }
        }
        Some(out) => {
            write(out, make, &|| tokens::remove(file, name).is_ok())?;
            object["out"] = json!(out.display().to_string());
            if !json {
                output::write_stderr(&format!(
                    "{}\n",
                    line(&format!("token of {name} written to {}", out.display()))
                ));
            }
        }
    }
    if *json { output::print_json(object) } else { Ok(()) }
}

fn revoke(args: &TokenRevoke) -> Result<(), Failure> {
    let TokenRevoke { name, file, json } = args;
    tokens::remove(file, name).map_err(|error| Failure::token_file_invalid(file, &error))?;
    if *json {
        return output::print_json(json!({ "name": name, "file": file }));
    }
    let mut told = format!("token of {name} revoked; its connections are closed within seconds");
    if Tokens::read(file).is_ok_and(|left| left.identities().next().is_none()) {
        told.push_str(&format!("; no tokens left in {}", file.display()));
    }
    output::write_stderr(&format!("{}\n", line(&told)));
    Ok(())
}

/// Writes the result of `make` to a new private file. The file is created before `make` is called. If writing
/// fails, `undo` is called.
fn write(
    out: &Path,
    make: impl FnOnce() -> Result<String, Failure>,
    undo: &dyn Fn() -> bool,
) -> Result<(), Failure> {
    let failed = |error: &std::io::Error| Failure::token_file_unwritable(out, error);
    let directory = out.parent().filter(|directory| !directory.as_os_str().is_empty());
    if let Some(directory) = directory {
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(|error| failed(&error))?;
    }
    let mut options = File::options();
    let mut file =
        options.write(true).create_new(true).mode(0o600).open(out).map_err(|error| failed(&error))?;
    let written = make().and_then(|token| {
        let written = file.write_all(format!("{token}\n").as_bytes()).and_then(|()| file.sync_all());
        written.map_err(|error| {
            // The token was not shown to any user, and must not stay valid.
            undo();
            failed(&error)
        })
    });
    if written.is_err() {
        // This call created the file, and without the whole token the file is useless.
        let _ = std::fs::remove_file(out);
    }
    written
}

fn list(args: &TokenList) -> Result<(), Failure> {
    let known = Tokens::read(&args.file).map_err(|error| Failure::token_file_invalid(&args.file, &error))?;
    let text = if args.json {
        let object = |(who, created): (&Identity, _)| json!({"name": who.name, "scopes": who.scopes, "pools": who.pools, "created": created});
        let all: Vec<_> = known.listed().map(object).collect();
        format!("{}\n", json!(all))
    } else {
        let listed =
            |list: Option<&Vec<String>>, all: &str| list.map_or(all.to_owned(), |list| list.join(" "));
        let row = |(who, created): (&Identity, Option<&str>)| {
            [
                line(&who.name),
                line(&listed(who.scopes.as_ref(), "everything")),
                line(&listed(who.pools.as_ref(), "all")),
                line(created.unwrap_or("-")),
            ]
        };
        let rows: Vec<_> = known.listed().map(row).collect();
        format_columns(["NAME", "SCOPES", "POOLS", "CREATED"], &rows)
    };
    output::print(text.as_bytes())
}
