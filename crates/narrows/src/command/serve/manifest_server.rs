//! The server of a manifest: each connection has a gate and an agent of its own; all share the log.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use narrows_agent::Settings;
use narrows_audit::Log;
use narrows_govern::{Gate, GateExit, GateRequest, IdentityMethod, Principal, SessionOwners};
use narrows_link::{Link, Sender};
use narrows_manifest::types::acp::Role;
use narrows_wire::{self as wire, Code as Problem, Frame, RpcError, message};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{OnceCell, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::agent::{AgentProcess, PreparedAgent};
use super::approval_server;
use super::bridge::{NO_GRACE, agent_name, stop_ladder};
use super::gate_registry::GateRegistry;
use super::identities::{self, Identities};
use super::manifest::LoadedManifest;
use super::memory::MemoryWriter;
use super::parent_process;
use super::proxy_chain;
use super::refusal_log::ClientRefusalLog;
use super::run_gate::{self, GateOutcome, MAX_QUEUED_REQUESTS};
use super::shutdown::Shutdown;
use super::{agent, server};
use crate::failure::{ExitStatus, Failure};

/// The method of the first line from a bus, which names the client.
const IDENTITY_METHOD: &str = "narrows/identity";

pub(super) enum AgentKind {
    Program(Box<OnceCell<PreparedAgent>>),
    Builtin(Box<Settings>),
}

pub(super) struct ManifestServer {
    pub(super) manifest: LoadedManifest,
    pub(super) log: Option<Log>,
    pub(super) data: PathBuf,
    pub(super) identities: Identities,
    pub(super) owners: Arc<dyn SessionOwners>,
    pub(super) gates: GateRegistry,
    pub(super) refusals: ClientRefusalLog,
    pub(super) agent_kind: AgentKind,
}

pub(super) struct StartedAgent {
    link: Link,
    agent: RunningAgent,
    requests: (mpsc::Sender<GateRequest>, mpsc::Receiver<GateRequest>),
}

enum RunningAgent {
    Program(Box<AgentProcess>, Sender),
    Builtin(JoinHandle<Result<(), narrows_agent::EndpointError>>, Option<Arc<MemoryWriter>>),
}

/// The support for proxy chains. A conductor supplies the agent itself. It must be the process that started
/// this one, on stdio: over a listener or a bus, a client could pose as the agent of all other clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChainSupport {
    Possible,
    Impossible,
}

impl ManifestServer {
    /// Prepares the agent, so that its errors are known before a client connects.
    pub(super) async fn prepare_agent(&self) -> Result<(), Failure> {
        if let AgentKind::Program(prepared) = &self.agent_kind {
            prepared.get_or_try_init(|| agent::prepare(&self.manifest, self.log.as_ref())).await?;
        }
        Ok(())
    }

    /// Serves a client until it disconnects, or until the identities file changes its rights.
    pub(super) async fn serve_until_revoked(
        &self,
        client: Link,
        who: Principal,
        chain: ChainSupport,
        shutdown: &Shutdown,
    ) -> Result<(), Failure> {
        let connection_shutdown = shutdown.branch();
        let revoked = async {
            self.identities.wait_for_change(&who).await;
            tracing::info!(who = who.id, "identities file changed, closing connection");
            connection_shutdown.request();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            served = self.serve(client, who.clone(), chain, &connection_shutdown) => served,
            // The forwarding never completes, so it ends with the other branch.
            () = shutdown.forward_to(&connection_shutdown) => Ok(()),
            () = revoked => Ok(()),
        }
    }

    /// Serves a client until it disconnects. A conductor supplies the agent; for any other client one is started.
    async fn serve(
        &self,
        mut client: Link,
        who: Principal,
        chain: ChainSupport,
        shutdown: &Shutdown,
    ) -> Result<(), Failure> {
        // Only with a possible conductor must the client send the first message, because that message
        // identifies a conductor.
        if self.manifest.bundle.role == Role::Bridge && chain == ChainSupport::Possible {
            let Some(in_chain) = shutdown.unless_requested(proxy_chain::is_conductor(&mut client)).await
            else {
                return Ok(());
            };
            if in_chain && self.manifest.is_sandboxed() {
                answer_not_started(client).await;
                return Err(Failure::sandboxed_in_chain());
            }
            if in_chain {
                return proxy_chain::run_in_chain(self, client, who, shutdown).await;
            }
        }
        let Some(started) = shutdown.unless_requested(self.start_agent(&who)).await else { return Ok(()) };
        match started {
            Ok(started) => self.serve_connection(started, client, who, shutdown).await,
            Err(failure) => {
                answer_not_started(client).await;
                Err(failure)
            }
        }
    }

    async fn start_agent(&self, who: &Principal) -> Result<StartedAgent, Failure> {
        self.check_scripts().await?;
        let requests = mpsc::channel(MAX_QUEUED_REQUESTS);
        let (link, agent) = match &self.agent_kind {
            AgentKind::Program(prepared) => {
                let log = self.log.as_ref();
                let prepared = prepared.get_or_try_init(|| agent::prepare(&self.manifest, log)).await?;
                let options = narrows_link::Options::default();
                let (link, process) = prepared.start(&self.manifest, &options, log, who).await?;
                let input = link.sender.clone();
                (link, RunningAgent::Program(Box::new(process), input))
            }
            AgentKind::Builtin(settings) => {
                let memory_writer =
                    MemoryWriter::open(&self.manifest, &self.data, self.log.as_ref(), &who.id)?;
                let (link, task) = server::start(settings, requests.0.clone(), memory_writer.clone());
                (link, RunningAgent::Builtin(task, memory_writer))
            }
        };
        Ok(StartedAgent { link, agent, requests })
    }

    /// Checks that no earlier agent changed a script.
    async fn check_scripts(&self) -> Result<(), Failure> {
        let Err(failure) = self.manifest.check_scripts() else { return Ok(()) };
        let about = json!({"kind": "refusal", "code": "pin_changed", "reason": failure.message()});
        let id = agent_name(&self.manifest);
        agent::record(&self.manifest, self.log.as_ref(), "agent.refused", &id, about).await?;
        Err(failure)
    }

    async fn serve_connection(
        &self,
        started: StartedAgent,
        client: Link,
        who: Principal,
        shutdown: &Shutdown,
    ) -> Result<(), Failure> {
        let StartedAgent { link, agent, requests } = started;
        let gate = self.build_gate(who)?;
        let output = client.sender.clone();
        let registration = self.gates.register(requests.0.clone());
        let outcome = run_gate::run(gate, client, link, self.log.clone(), requests, shutdown).await;
        drop(registration);
        run_gate::drain_output(&output).await;
        self.end_agent(agent, outcome?, shutdown).await
    }

    pub(super) fn build_gate(&self, who: Principal) -> Result<Gate, Failure> {
        Ok(run_gate::build(&self.manifest, who)?.with_owners(Arc::clone(&self.owners)))
    }

    async fn end_agent(
        &self,
        agent: RunningAgent,
        outcome: GateOutcome,
        shutdown: &Shutdown,
    ) -> Result<(), Failure> {
        let name = match agent {
            RunningAgent::Program(process, input) => {
                let reason = input.reason();
                let ended = match &outcome {
                    GateOutcome::Ended(ended) => Some(ended),
                    GateOutcome::Shutdown => None,
                };
                let ladder = match shutdown.is_forced() {
                    true => NO_GRACE,
                    false => stop_ladder(ended, &self.manifest.patience),
                };
                let is_confined = process.spec.sandbox.is_some();
                let overdue = process.stop(ladder).await.overdue;
                let name = agent_name(&self.manifest);
                if outcome == GateOutcome::Ended(GateExit::AgentLost) && overdue {
                    return Err(Failure::lifetime_exceeded(&name));
                }
                if outcome == GateOutcome::Ended(GateExit::AgentLost) {
                    return Err(match is_confined {
                        true => Failure::sandboxed_agent_exited(&name, &reason),
                        false => Failure::agent_exited(&name, &reason),
                    });
                }
                name
            }
            RunningAgent::Builtin(task, memory_writer) => {
                // The agent ends because the gate has closed its link. Its memory must be stored before this
                // returns.
                let result = task.await;
                let kept = match memory_writer {
                    Some(memory_writer) => memory_writer.finish().await,
                    None => Ok(()),
                };
                if let Ok(Err(error)) = result {
                    return Err(Failure::endpoint_settings(&error));
                }
                kept?;
                if outcome == GateOutcome::Ended(GateExit::AgentLost) {
                    return Err(Failure::operator_exited());
                }
                "narrows acp".to_owned()
            }
        };
        match outcome {
            GateOutcome::Ended(GateExit::AgentViolation(why) | GateExit::AgentUnresponsive(why)) => {
                Err(Failure::agent_ended(&name, &why))
            }
            GateOutcome::Ended(_) | GateOutcome::Shutdown => Ok(()),
        }
    }

    /// Records the refusal, and explains to the client how to authenticate.
    pub(super) async fn serve_unauthenticated(&self, who: &Principal, client: Link, shutdown: &Shutdown) {
        self.refusals.record(&self.manifest, self.log.as_ref(), who).await;
        identities::serve_unauthenticated(who, client, shutdown.requested()).await;
    }

    pub(super) async fn close(&self) {
        self.refusals.finish(self.log.as_ref()).await;
        if let Some(log) = self.log.clone() {
            log.close();
        }
    }
}

/// Serves one client on stdin and stdout. Behind a bus the first line identifies the client; otherwise it is the user
/// who started this process.
pub(super) async fn serve_stdio(
    server: ManifestServer,
    for_bus: bool,
    shutdown: Shutdown,
) -> Result<ExitCode, Failure> {
    let served = serve_one_client(&server, for_bus, &shutdown).await;
    server.close().await;
    served?;
    if shutdown.is_requested() { Err(shutdown.failure()) } else { Ok(ExitStatus::Success.exit_code()) }
}

async fn serve_one_client(
    server: &ManifestServer,
    for_bus: bool,
    shutdown: &Shutdown,
) -> Result<(), Failure> {
    let parent_identity = (!for_bus)
        .then(|| server.identities.admit(Some(parent_process::parent_user()), IdentityMethod::Process));
    // Behind a bus, the limits for unauthenticated clients are not needed: the bus reads what its clients
    // send, and writes whole messages.
    let options = match &parent_identity {
        Some(Err(_)) => identities::UNAUTHENTICATED_OPTIONS,
        Some(Ok(_)) | None => narrows_link::Options::default(),
    };
    let mut client = narrows_link::stdio::take(&options)
        .map_err(|error| Failure::setup("open stdin and stdout", &error))?;
    let approvals = approval_server::open(&server.manifest, server.gates.clone())?;
    let admitted = match parent_identity {
        Some(admitted) => admitted,
        None => {
            let Some(Some(first)) = shutdown.unless_requested(client.receiver.recv()).await else {
                return Ok(());
            };
            let BusClient { identity, scopes } =
                parse_bus_client(&first).ok_or_else(Failure::not_started_by_bus)?;
            server.identities.admit_by_bus(&identity, scopes)
        }
    };
    let served = match admitted {
        Ok(who) => {
            let chain = if for_bus { ChainSupport::Impossible } else { ChainSupport::Possible };
            server.serve_until_revoked(client, who, chain, shutdown).await
        }
        Err(who) => {
            server.serve_unauthenticated(&who, client, shutdown).await;
            Ok(())
        }
    };
    drop(approvals);
    served
}

/// Answers pending requests of a client whose agent could not be started.
async fn answer_not_started(mut client: Link) {
    let error = RpcError::new(Problem::Internal, "agent not started");
    // Requests that arrive later get no response.
    while let Ok(Some(frame)) = timeout(Duration::ZERO, client.receiver.recv()).await {
        if let Some(id) = frame.id().filter(|_| frame.kind() == wire::Kind::Request) {
            let _ = client.sender.push(message::error(id, &error));
        }
    }
    client.sender.close();
    run_gate::drain_output(&client.sender).await;
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct BusClient {
    identity: String,
    #[serde(default)]
    scopes: Option<Vec<String>>,
}

fn parse_bus_client(first: &Frame) -> Option<BusClient> {
    let is_it = first.method().is_some_and(|method| method == IDENTITY_METHOD) && first.id().is_none();
    serde_json::from_slice(first.params().filter(|_| is_it)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_identity_line_of_a_bus_names_the_client() {
        let check = |line: &str, expected: Option<&str>| {
            let frame = Frame::parse(line.to_owned().into());
            let told = parse_bus_client(&frame).map(|told| format!("{} {:?}", told.identity, told.scopes));
            assert_eq!(told.as_deref(), expected, "{line}");
        };
        check(
            r#"{"jsonrpc":"2.0","method":"narrows/identity","params":{"identity":"uid:7"}}"#,
            Some("uid:7 None"),
        );
        check(
            r#"{"jsonrpc":"2.0","method":"narrows/identity","params":{"identity":"a","scopes":["b"]}}"#,
            Some("a Some([\"b\"])"),
        );
        check(
            r#"{"jsonrpc":"2.0","method":"narrows/identity","params":{"identity":"a","scopes":"b"}}"#,
            None,
        );
        check(r#"{"jsonrpc":"2.0","method":"narrows/identity","params":{"identity":7}}"#, None);
        check(r#"{"jsonrpc":"2.0","method":"narrows/identity","params":{"identity":"a","x":1}}"#, None);
        check(r#"{"jsonrpc":"2.0","id":1,"method":"narrows/identity","params":{"identity":"a"}}"#, None);
        check(r#"{"jsonrpc":"2.0","method":"narrows/identity"}"#, None);
        check(r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"identity":"a"}}"#, None);
        check("{", None);
    }
}
