//! `narrows serve`: serves a governed agent described by a manifest.

mod agent;
mod approval_connections;
mod approval_protocol;
mod approval_server;
mod approval_socket;
mod approval_text;
pub(super) mod approve;
mod audit_log;
mod bridge;
mod client;
mod egress;
mod gate_registry;
pub(super) mod identities;
mod keys;
mod listen;
mod listen_addrs;
mod live_keys;
mod manifest;
mod manifest_server;
mod mcp_servers;
mod memory;
mod os_users;
mod owners;
mod parent_process;
pub(super) mod preflight;
mod proxy_chain;
mod refusal_log;
mod revoked_keys;
mod run_gate;
mod sandbox;
mod sandbox_bounds;
mod scripts;
mod self_test;
mod server;
mod setup_steps;
mod shutdown;
mod slots;
mod socket_files;
mod system_prompt;
mod trust;
mod unavailable_tools;
mod version_check;
mod version_managers;
mod web;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use narrows_audit::Log;
use narrows_bus::config::BusLimits;
use narrows_govern::Principal;
use narrows_manifest::types::acp::Role;
use tokio::sync::OnceCell;

use crate::cli::{ModelArgs, Output, Serve};
use crate::config::{self, Variables};
use crate::environment;
use crate::failure::{ExitStatus, Failure};
use crate::output;
use crate::permission_prompt;
use gate_registry::GateRegistry;
use identities::Identities;
use manifest::LoadedManifest;
use manifest_server::{AgentKind, ManifestServer};
use memory::MemoryWriter;
use owners::SessionOwnerFile;
use refusal_log::ClientRefusalLog;
use shutdown::Shutdown;
use trust::TrustStore;

struct ClientRun {
    manifest: LoadedManifest,
    log: Option<Log>,
    who: Principal,
}

/// Serves until the client disconnects or the agent exits; with listeners, until a signal asks to stop.
pub(super) fn execute(args: &Serve) -> Result<ExitCode, Failure> {
    if args.self_test {
        return self_test::execute(args);
    }
    let Some(mut manifest) = LoadedManifest::load(args)? else { return Ok(ExitStatus::Usage.exit_code()) };
    let role = manifest.bundle.role;
    match (role, args.prompt.is_empty()) {
        (Role::Client, true) if !args.approve => return Err(Failure::prompt_required()),
        (Role::Bridge | Role::Server, false) => return Err(Failure::unexpected_prompt(role.name())),
        _ => {}
    }
    let listeners = listen_addrs::resolve(&manifest, args)?;
    let identities = Identities::load(args.identities.as_deref(), &manifest)?;
    let data = data_dir(args)?;
    let trust = TrustStore::open(&data, &manifest)?;
    // If stdin does not carry the protocol, the gate can ask a user there.
    let is_free = role == Role::Client || !listeners.is_empty();
    let is_approved_now =
        !args.approve && is_free && permission_prompt::is_possible(Output::Text) && trust.ask_consent();
    if !args.approve && !is_approved_now {
        trust.require_trusted()?;
    }
    let who = identities.launcher();
    let log = audit_log::open(&manifest)?;
    let id = &manifest.bundle.acp.front.id;
    if args.approve {
        trust.approve(log.as_ref(), &who.id, id)?;
        return Ok(ExitStatus::Success.exit_code());
    }
    if is_approved_now {
        trust.approve(log.as_ref(), &who.id, id)?;
    } else {
        let notice = trust.pin_new(log.as_ref(), &who.id, id)?;
        // Only the user who started this process gets the notice in the protocol. A single turn prints the
        // notice itself, and the user of a network client did not start this process.
        manifest.notice = notice.filter(|_| role != Role::Client && listeners.is_empty());
    }
    let _presence = audit_log::announce(&manifest, log.as_ref())?;
    // The built-in agent runs the operator only if the manifest names no other agent.
    let is_builtin = role == Role::Server && manifest.bundle.agent.is_none();
    if !is_builtin {
        reject_model_flags(args)?;
    }
    if role == Role::Client {
        return client::run(ClientRun { manifest, log, who }, &args.prompt);
    }
    if is_builtin {
        // The memory is opened here, so that a corrupt one is reported before a client connects.
        MemoryWriter::open(&manifest, &data, log.as_ref(), &who.id)?;
    }
    let settings = if is_builtin { Some(server::settings(&manifest, args)?) } else { None };
    let owners = SessionOwnerFile::open(&data, &manifest.root.join(&manifest.bundle.acp.path));
    let owners = Arc::new(owners.map_err(|error| Failure::session_owners_unreadable(&error))?);
    if listeners.is_empty() && !args.for_bus && std::io::stdin().is_terminal() {
        output::write_stderr(&super::manual_start_hint("the agent"));
    }
    super::block_on(async {
        let shutdown =
            Shutdown::on_signals().map_err(|error| Failure::setup("listen for signals", &error))?;
        let agent_kind = match settings {
            Some(settings) => {
                AgentKind::Builtin(Box::new(mcp_servers::confined(&manifest, log.as_ref(), settings).await?))
            }
            None => AgentKind::Program(Box::new(OnceCell::new())),
        };
        let (gates, refusals) = (GateRegistry::default(), ClientRefusalLog::default());
        let server = ManifestServer { manifest, log, data, identities, owners, gates, refusals, agent_kind };
        let limits = BusLimits { max_connections: args.max_connections as usize, ..args.web.limits() };
        match listeners.is_empty() {
            true => manifest_server::serve_stdio(server, args.for_bus, shutdown).await,
            false => listen::serve(server, &listeners, &limits, shutdown).await,
        }
    })?
}

/// Fails if model flags are given for an external agent, which chooses its model itself.
fn reject_model_flags(args: &Serve) -> Result<(), Failure> {
    let about_it = ModelArgs { config: None, ..args.model.clone() };
    if about_it == ModelArgs::default() {
        Ok(())
    } else {
        Err(Failure::model_flags_for_other_agent(&about_it))
    }
}

/// Returns the data directory for pins, which is also that for sessions, even if no sessions are stored.
fn data_dir(args: &Serve) -> Result<PathBuf, Failure> {
    let variables = Variables::of_process();
    let named = args.data_dir.clone().or_else(|| variables.get(environment::DATA_DIR).map(PathBuf::from));
    let in_file = || -> Result<Option<PathBuf>, Failure> {
        Ok(config::load(args.model.config.as_deref(), &variables)?.file.and_then(|file| file.data_dir))
    };
    let found = match named {
        Some(named) => Some(named),
        None => in_file()?.or_else(|| config::data_dir(&variables)),
    };
    let found = found.ok_or_else(Failure::no_data_dir)?;
    std::path::absolute(found).map_err(|error| Failure::setup("find the current directory", &error))
}
