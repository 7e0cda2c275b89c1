//! Runs a gate between two links, until one of them ends or a shutdown is requested.
//!
//! Each gate has its own thread, so that a peer that keeps its gate busy delays neither other connections nor
//! signals, which share the thread of the runtime.

use std::convert::Infallible;
use std::io::Read;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use narrows_audit::Log;
use narrows_govern::{
    AuditLogBudget, Gate, GateConfig, GateExit, GateRequest, GateStart, Principal, SystemPathResolver,
    bundle_policy,
};
use narrows_link::{Link, Sender};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::audit_log;
use super::manifest::LoadedManifest;
use super::shutdown::Shutdown;
use crate::failure::Failure;

pub(super) const MAX_QUEUED_REQUESTS: usize = 16;

/// The time for a disconnected client to read its last responses, as long as it keeps reading.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The time without progress after which the client counts as gone.
const DRAIN_STALL_TIMEOUT: Duration = Duration::from_millis(200);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum GateOutcome {
    Ended(GateExit),
    Shutdown,
}

pub(super) fn build(manifest: &LoadedManifest, who: Principal) -> Result<Gate, Failure> {
    let (roots, read_only) = manifest.roots();
    let sealed = manifest.protected_paths();
    let (patience, notice) = (manifest.patience, manifest.notice.clone());
    let mandate = GateConfig {
        timeouts: patience,
        notice,
        read_only,
        protected: sealed,
        log: audit_log::path(manifest)?,
        ..GateConfig::from_bundle(&manifest.bundle, roots)
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let nonce = nonce().map_err(|error| Failure::setup("obtain random numbers", &error))?;
    let setting = GateStart { started_at: now.as_secs(), nonce };
    let gate =
        Gate::new(mandate, who, bundle_policy(&manifest.bundle), Box::new(SystemPathResolver), setting);
    // The budgets count all usage in the log: of other gates, and from before the start of this gate.
    Ok(match audit_log::path(manifest)? {
        Some(path) => gate.with_budget_source(Box::new(AuditLogBudget::new(path, now.as_secs()))),
        None => gate,
    })
}

fn nonce() -> std::io::Result<String> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Runs the gate. The log is complete when this returns, unless a second signal forced the exit.
pub(super) async fn run(
    gate: Gate,
    client: Link,
    agent: Link,
    log: Option<Log>,
    (ask, asked): (mpsc::Sender<GateRequest>, mpsc::Receiver<GateRequest>),
    shutdown: &Shutdown,
) -> Result<GateOutcome, Failure> {
    let running = on_thread(narrows_govern::run_gate(gate, client, agent, log, asked))?;
    tokio::pin!(running);
    tokio::select! {
        biased;
        ended = &mut running => return Ok(GateOutcome::Ended(ended)),
        () = shutdown.requested() => {}
    }
    let over = async { tokio::join!(&mut running, ask.send(GateRequest::Stop)) };
    tokio::select! {
        biased;
        // A second signal forces the exit.
        () = shutdown.forced() => {}
        _ = over => {}
    }
    Ok(GateOutcome::Shutdown)
}

/// Runs a gate on a new thread, which ends with the gate or once the returned future is dropped.
pub(super) fn on_thread(
    gate: impl Future<Output = GateExit> + Send + 'static,
) -> Result<impl Future<Output = GateExit>, Failure> {
    let runtime = Handle::current();
    let (keep, dropped) = oneshot::channel::<Infallible>();
    let (sender, ended) = oneshot::channel();
    let work = async move {
        tokio::select! {
            biased;
            // This branch is polled first: once the runtime is gone, the timers of the gate would panic.
            _ = dropped => None,
            ended = gate => Some(ended),
        }
    };
    let run = move || {
        let outcome = runtime.block_on(work);
        outcome.map(|ended| sender.send(ended))
    };
    let thread = std::thread::Builder::new().name("gate".to_owned()).spawn(run);
    let thread = thread.map_err(|error| Failure::setup("start a thread", &error))?;
    Ok(async move {
        let _keep = keep;
        match ended.await {
            Ok(ended) => ended,
            Err(_) => match thread.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(_) => GateExit::Stopped,
            },
        }
    })
}

/// Waits until a client that may still read has read everything.
pub(super) async fn drain_output(output: &Sender) {
    let all_written = async {
        tokio::select! {
            biased;
            () = output.written() => {}
            () = output.standstill(DRAIN_STALL_TIMEOUT) => tracing::warn!("client stopped reading, last messages lost"),
        }
    };
    let _ = timeout(DRAIN_TIMEOUT, all_written).await;
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[tokio::test]
    async fn a_gate_that_works_for_long_does_not_block_others() {
        let (release, released) = sync_channel(1);
        let gate = async move {
            released.recv().expect("it is released");
            GateExit::ClientClosed
        };
        let running = on_thread(gate).expect("a thread");
        tokio::task::yield_now().await;
        release.send(()).expect("the receiver waits");
        assert_eq!(running.await, GateExit::ClientClosed);
    }

    #[tokio::test]
    async fn a_gate_ends_with_the_connection() {
        let (alive, gone) = oneshot::channel::<()>();
        let gate = async move {
            let _alive = alive;
            std::future::pending().await
        };
        drop(on_thread(gate).expect("a thread"));
        assert!(gone.await.is_err());
    }
}
