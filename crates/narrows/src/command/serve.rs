//! `narrows serve`: an agent behind a gate, as a manifest says.

mod agent;
pub(super) mod approve;
mod bridge;
mod case;
mod charge;
mod client;
mod door;
mod keys;
mod ledger;
mod person;
mod persona;
mod pins;
mod proxy;
mod self_test;
mod server;
mod stand;
mod version;

use std::path::PathBuf;
use std::process::ExitCode;

use narrows_audit::Log;
use narrows_govern::Principal;
use narrows_manifest::types::acp::Kind;

use crate::cli::{ModelArgs, Serve};
use crate::config::{self, Variables};
use crate::environment;
use crate::failure::{Code, Failure};
use charge::Charge;
use pins::Book;

/// What is served, and all that was made ready for it.
struct Post {
    charge: Charge,
    log: Option<Log>,
    who: Principal,
}

/// Serves until the client or the agent has gone.
pub(super) fn execute(args: &Serve) -> Result<ExitCode, Failure> {
    if args.self_test {
        return self_test::execute(args);
    }
    let Some(charge) = Charge::load(args)? else { return Ok(Code::Usage.exit()) };
    match (charge.bundle.role, args.prompt.is_empty()) {
        (Kind::Client, true) if !args.approve => return Err(Failure::unprompted()),
        (Kind::Bridge | Kind::Server, false) => return Err(Failure::prompt_for(charge.bundle.role.name())),
        _ => {}
    }
    let data = data_dir(args)?;
    let book = Book::open(&data, &charge)?;
    if !args.approve {
        book.admit()?;
    }
    let who = person::principal(charge.bundle.governance.as_ref());
    let log = ledger::open(&charge)?;
    let id = &charge.bundle.acp.front.id;
    if args.approve {
        book.approve(log.as_ref(), &who.id, id)?;
        return Ok(Code::Success.exit());
    }
    book.pin(log.as_ref(), &who.id, id)?;
    let post = Post { charge, log, who };
    match post.charge.bundle.role {
        // An operator may have an agent that plays it.
        Kind::Server if post.charge.bundle.agent.is_none() => server::serve(post, args),
        Kind::Bridge | Kind::Server => {
            no_model(args)?;
            bridge::serve(post)
        }
        Kind::Client => {
            no_model(args)?;
            client::run(post, &args.prompt)
        }
    }
}

/// Another agent has its own model.
fn no_model(args: &Serve) -> Result<(), Failure> {
    let about_it = ModelArgs { config: None, ..args.model.clone() };
    if about_it == ModelArgs::default() { Ok(()) } else { Err(Failure::model_of_another(&about_it)) }
}

/// Where pins are kept: with the sessions, whether those are kept or not.
fn data_dir(args: &Serve) -> Result<PathBuf, Failure> {
    let variables = Variables::of_process();
    let named = args.data_dir.clone().or_else(|| variables.get(environment::DATA_DIR).map(PathBuf::from));
    let of_file = || -> Result<Option<PathBuf>, Failure> {
        Ok(config::load(args.model.config.as_deref(), &variables)?.file.and_then(|file| file.data_dir))
    };
    let found = match named {
        Some(named) => Some(named),
        None => of_file()?.or_else(|| config::data_dir(&variables)),
    };
    let found = found.ok_or_else(Failure::no_data_dir)?;
    std::path::absolute(found).map_err(|error| Failure::setup("find the current directory", &error))
}
