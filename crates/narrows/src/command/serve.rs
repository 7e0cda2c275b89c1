//! `narrows serve`: an agent behind a gate, as a manifest says.

mod admin;
mod agent;
pub(super) mod approve;
mod bounds;
mod bridge;
mod cage;
mod case;
mod charge;
mod client;
mod door;
pub(super) mod guests;
mod host;
mod keys;
mod leaving;
mod ledger;
mod listen;
mod live_keys;
mod memory;
mod owners;
mod peer;
mod person;
mod persona;
mod pins;
mod places;
pub(super) mod preflight;
mod proxy;
mod refusals;
mod revoked;
mod roster;
mod scripts;
mod self_test;
mod server;
mod servers;
mod setup;
mod sheet;
mod shim;
mod slots;
mod sockets;
mod stand;
mod toolless;
mod version;
mod visitors;
mod wayout;
mod web;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use narrows_audit::Log;
use narrows_bus::config::Limits;
use narrows_govern::Principal;
use narrows_manifest::types::acp::Kind;
use tokio::sync::OnceCell;

use crate::ask;
use crate::cli::{ModelArgs, Output, Serve};
use crate::config::{self, Variables};
use crate::environment;
use crate::failure::{Code, Failure};
use crate::output;
use charge::Charge;
use guests::Guests;
use host::{Cast, Host};
use leaving::Leaving;
use memory::Keeper;
use owners::Index;
use pins::Book;
use refusals::Refusals;
use roster::Roster;

/// What one turn is run with, and all that was made ready for it.
struct Post {
    charge: Charge,
    log: Option<Log>,
    who: Principal,
}

/// Serves until the client or the agent has gone, or with places to listen, until somebody wants it to stop.
pub(super) fn execute(args: &Serve) -> Result<ExitCode, Failure> {
    if args.self_test {
        return self_test::execute(args);
    }
    let Some(mut charge) = Charge::load(args)? else { return Ok(Code::Usage.exit()) };
    let role = charge.bundle.role;
    match (role, args.prompt.is_empty()) {
        (Kind::Client, true) if !args.approve => return Err(Failure::unprompted()),
        (Kind::Bridge | Kind::Server, false) => return Err(Failure::prompt_for(role.name())),
        _ => {}
    }
    let places = places::of(&charge, args)?;
    let guests = Guests::load(args.identities.as_deref(), &charge)?;
    let data = data_dir(args)?;
    let book = Book::open(&data, &charge)?;
    // Where the protocol is not on stdin somebody may be there to ask.
    let is_free = role == Kind::Client || !places.is_empty();
    let consents = !args.approve && is_free && ask::is_possible(Output::Text) && book.consents();
    if !args.approve && !consents {
        book.admit()?;
    }
    let who = guests.starter();
    let log = ledger::open(&charge)?;
    let id = &charge.bundle.acp.front.id;
    if args.approve {
        book.approve(log.as_ref(), &who.id, id)?;
        return Ok(Code::Success.exit());
    }
    if consents {
        book.approve(log.as_ref(), &who.id, id)?;
    } else {
        let told = book.pin(log.as_ref(), &who.id, id)?;
        // Of one turn everything is told here, and who comes over a network is not who started this.
        charge.notice = told.filter(|_| role != Kind::Client && places.is_empty());
    }
    // Held until this process ends.
    let _presence = ledger::announce(&charge, log.as_ref())?;
    // An operator may have an agent that plays it.
    let is_builtin = role == Kind::Server && charge.bundle.agent.is_none();
    if !is_builtin {
        no_model(args)?;
    }
    if role == Kind::Client {
        return client::run(Post { charge, log, who }, &args.prompt);
    }
    if is_builtin {
        // What cannot be trusted is told before anybody comes.
        Keeper::of(&charge, &data, log.as_ref(), &who.id)?;
    }
    let settings = if is_builtin { Some(server::settings(&charge, args)?) } else { None };
    let owners = Index::open(&data, &charge.root.join(&charge.bundle.acp.path));
    let owners = Arc::new(owners.map_err(|error| Failure::no_owners(&error))?);
    if places.is_empty() && !args.for_bus && std::io::stdin().is_terminal() {
        output::complain(&super::by_hand("the agent"));
    }
    super::block_on(async {
        let leaving = Leaving::on_signals().map_err(|error| Failure::setup("get ready", &error))?;
        let cast = match settings {
            Some(settings) => {
                Cast::Builtin(Box::new(servers::confined(&charge, log.as_ref(), settings).await?))
            }
            None => Cast::Program(Box::new(OnceCell::new())),
        };
        let (roster, refusals) = (Roster::default(), Refusals::default());
        let host = Host { charge, log, data, guests, owners, roster, refusals, cast };
        let limits = Limits { max_connections: args.max_connections as usize, ..args.web.limits() };
        match places.is_empty() {
            true => host::on_stdio(host, args.for_bus, leaving).await,
            false => listen::serve(host, &places, &limits, leaving).await,
        }
    })?
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
