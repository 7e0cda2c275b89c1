//! A gate between two links, until one end has gone or somebody wants us to stop.

use std::io::Read;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use narrows_audit::Log;
use narrows_govern::{Disk, Ended, Gate, Inquiry, LogTill, Mandate, Principal, Setting, policy_of};
use narrows_link::{Link, Sender};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::charge::Charge;
use super::leaving::Leaving;
use super::ledger;
use crate::failure::Failure;

/// How many questions may wait for the gate.
pub(super) const QUESTIONS: usize = 16;

/// How long a client that has gone may take to read what it was answered, as long as it reads.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long it may read nothing before it counts as gone.
const STANDSTILL: Duration = Duration::from_millis(200);

/// How it ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// By itself.
    Ended(Ended),
    /// Somebody wanted us to stop.
    Left,
}

/// The gate that a manifest asks for.
pub(super) fn gate(charge: &Charge, who: Principal) -> Result<Gate, Failure> {
    let (roots, read_only) = charge.roots();
    let sealed = charge.sealed();
    let (patience, notice) = (charge.patience, charge.notice.clone());
    let mandate = Mandate { patience, notice, read_only, sealed, ..Mandate::of(&charge.bundle, roots) };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let nonce = nonce().map_err(|error| Failure::setup("get random numbers", &error))?;
    let setting = Setting { began: now.as_secs(), nonce };
    let gate = Gate::new(mandate, who, policy_of(&charge.bundle), Box::new(Disk), setting);
    // What others with this log have spent of its budgets, and we before we were started, is spent.
    Ok(match ledger::path(charge)? {
        Some(path) => gate.with_till(Box::new(LogTill::new(path, now.as_secs()))),
        None => gate,
    })
}

/// A word that nobody can guess.
fn nonce() -> std::io::Result<String> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Stands until it is over. What was to be recorded is when this returns, unless somebody has asked twice.
pub(super) async fn stand(
    gate: Gate,
    client: Link,
    agent: Link,
    log: Option<Log>,
    (ask, asked): (mpsc::Sender<Inquiry>, mpsc::Receiver<Inquiry>),
    leaving: &Leaving,
) -> Outcome {
    let standing = narrows_govern::stand(gate, client, agent, log, asked);
    tokio::pin!(standing);
    tokio::select! {
        biased;
        ended = &mut standing => return Outcome::Ended(ended),
        () = leaving.wanted() => {}
    }
    let over = async { tokio::join!(&mut standing, ask.send(Inquiry::End)) };
    tokio::select! {
        biased;
        // A second signal means at once.
        () = leaving.urgent() => {}
        _ = over => {}
    }
    Outcome::Left
}

/// Waits until a client that may still read has read everything.
pub(super) async fn drain(output: &Sender) {
    let all_written = async {
        tokio::select! {
            biased;
            () = output.written() => {}
            () = output.standstill(STANDSTILL) => tracing::warn!("the client no longer reads; the last it was told is lost"),
        }
    };
    let _ = timeout(PATIENCE, all_written).await;
}
