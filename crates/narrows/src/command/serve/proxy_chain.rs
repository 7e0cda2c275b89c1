//! A bridge in a proxy chain: a conductor started it, and the agent is its successor in the chain.

use narrows_govern::{GateExit, Principal, is_for_proxy, split_proxy_link};
use narrows_link::{Link, Options};
use tokio::sync::mpsc;

use super::manifest_server::ManifestServer;
use super::run_gate::{self, GateOutcome, MAX_QUEUED_REQUESTS};
use super::shutdown::Shutdown;
use crate::failure::Failure;

/// Returns `true` if the peer is a conductor. Only its first message shows that.
pub(super) async fn is_conductor(client: &mut Link) -> bool {
    client.receiver.peek().await.is_some_and(is_for_proxy)
}

pub(super) async fn run_in_chain(
    server: &ManifestServer,
    conductor: Link,
    who: Principal,
    shutdown: &Shutdown,
) -> Result<(), Failure> {
    let output = conductor.sender.clone();
    let gate = server.build_gate(who)?;
    let requests = mpsc::channel(MAX_QUEUED_REQUESTS);
    let registration = server.gates.register(requests.0.clone());
    let (predecessor, successor) = split_proxy_link(conductor, &Options::default());
    let outcome = run_gate::run(gate, predecessor, successor, server.log.clone(), requests, shutdown).await;
    drop(registration);
    run_gate::drain_output(&output).await;
    match outcome? {
        GateOutcome::Ended(GateExit::AgentViolation(why) | GateExit::AgentUnresponsive(why)) => {
            Err(Failure::chain_closed(&why))
        }
        GateOutcome::Ended(_) | GateOutcome::Shutdown => Ok(()),
    }
}
