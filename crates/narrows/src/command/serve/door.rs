//! The admin socket of a gate: where those come in who approve from elsewhere.

use std::fs::{DirBuilder, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use narrows_audit::{Approval, ApprovalDecision, Timestamp};
use narrows_bus::listen::Listener;
use narrows_govern::{Ballot, Inquiry, VoteSignature};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::case::{Answer, Ask, Case, LONGEST, Listed};
use super::charge::Charge;
use super::live_keys::{CountedKey, LiveKeys};
use super::roster::Roster;
use super::sockets;
use super::visitors::{HasAsked, Visitors};
use crate::config::{Variables, runtime_dir};
use crate::failure::Failure;

/// How long a request may take to arrive, and its answer to be read.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How long nobody is let in after the system had no room for one.
const REST: Duration = Duration::from_millis(200);

/// The directory of signatures, in that of the governance.
const SIGNATURES: &str = "signatures";

/// An open door. It closes when this is dropped.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) path: PathBuf,
    task: JoinHandle<()>,
    /// Its file goes with this, if it is where somebody has named it.
    named: Option<Listener>,
}

impl Drop for Door {
    fn drop(&mut self) {
        self.task.abort();
        if self.named.is_none() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Who decides whether a signature counts.
struct Porter {
    gates: Roster,
    keys: Arc<LiveKeys>,
    approvers: Vec<narrows_manifest::types::governance::Approver>,
    root: PathBuf,
    /// Where signatures are kept, from the root on.
    signatures: PathBuf,
}

/// Opens the door of gates that can be asked this way. `None`: nothing is governed, or there is no place for it.
pub(super) fn open(charge: &Charge, gates: Roster) -> Result<Option<Door>, Failure> {
    let Some(governance) = &charge.bundle.governance else { return Ok(None) };
    let keys = Arc::new(LiveKeys::new(charge.root.clone(), charge.keys.clone()));
    let porter = Porter {
        gates,
        keys,
        approvers: governance.config.approvers.clone(),
        root: charge.root.clone(),
        signatures: governance.scope.join(SIGNATURES),
    };
    if let Some(admin) = &charge.admin {
        let (listener, file) = admin.open()?;
        let task = tokio::spawn(welcome(listener, Arc::new(porter), admin.is_shared()));
        return Ok(Some(Door { path: admin.path().to_owned(), task, named: Some(file) }));
    }
    let Some(directory) = runtime_dir(&Variables::of_process()) else {
        tracing::warn!(
            "nobody can approve from elsewhere: neither XDG_RUNTIME_DIR nor HOME says where a socket could be"
        );
        return Ok(None);
    };
    let path = sockets::path_of(&directory, std::process::id());
    match bind(&directory, &path) {
        Ok(listener) => {
            let task = tokio::spawn(welcome(listener, Arc::new(porter), false));
            Ok(Some(Door { path, task, named: None }))
        }
        Err(error) => {
            tracing::warn!(%error, "nobody can approve from elsewhere: the admin socket cannot be opened");
            Ok(None)
        }
    }
}

/// A socket for its owner only, in a directory for its owner only.
fn bind(directory: &Path, path: &Path) -> io::Result<UnixListener> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    if directory.metadata()?.permissions().mode() & 0o077 != 0 {
        std::fs::set_permissions(directory, Permissions::from_mode(0o700))?;
    }
    let _lock = sockets::lock(directory)?;
    sockets::sweep(directory);
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        // One of a process that had our number.
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Lets in whoever may come: the owner of the socket, or where it is shared, whoever its file lets.
async fn welcome(listener: UnixListener, porter: Arc<Porter>, is_shared: bool) {
    let mut visitors = Visitors::default();
    loop {
        // Accepted at once, so that nobody waits behind connections on which nothing is asked.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(REST).await;
            continue;
        };
        let ours = rustix::process::geteuid().as_raw();
        let Ok(user) = stream.peer_cred().map(|peer| peer.uid()) else { continue };
        if !(is_shared || user == ours || user == 0) || !visitors.make_room(user) {
            continue;
        }
        let has_asked = HasAsked::default();
        let (porter, asks) = (Arc::clone(&porter), Arc::clone(&has_asked));
        let visit = tokio::spawn(async move {
            let _ = porter.attend(stream, &asks).await;
        });
        visitors.add(user, has_asked, visit.abort_handle());
    }
}

impl Porter {
    async fn attend(&self, stream: UnixStream, has_asked: &AtomicBool) -> io::Result<()> {
        let (input, mut output) = stream.into_split();
        let mut line = String::new();
        timeout(REQUEST_TIMEOUT, BufReader::new(input.take(LONGEST)).read_line(&mut line)).await??;
        has_asked.store(true, Ordering::Relaxed);
        let answer = timeout(REQUEST_TIMEOUT, self.answer(&line)).await?;
        let mut text = serde_json::to_vec(&answer)?;
        text.push(b'\n');
        timeout(REQUEST_TIMEOUT, output.write_all(&text)).await??;
        output.shutdown().await
    }

    async fn answer(&self, line: &str) -> Answer {
        match serde_json::from_str::<Ask>(line) {
            Ok(Ask::List) => {
                Answer::Open(self.waiting().await.iter().map(|(_, case)| Listed::from(case)).collect())
            }
            Ok(Ask::Show(id)) => {
                let found = self.waiting().await.into_iter().find(|(_, case)| case.id == id);
                Answer::Whole(found.map(|(_, case)| Box::new(case)))
            }
            Ok(Ask::Approval(approval)) => match self.count(&approval).await {
                Ok(()) => Answer::Counted,
                Err(why) => Answer::Refused(why),
            },
            Err(error) => Answer::Refused(format!("this is no question: {error}")),
        }
    }

    /// What waits for an approval, and at which gate.
    async fn waiting(&self) -> Vec<(mpsc::Sender<Inquiry>, Case)> {
        let mut waiting = Vec::new();
        for gate in self.gates.all() {
            let (answer, open) = oneshot::channel();
            // One that has just gone has nothing that waits.
            let _ = gate.send(Inquiry::Open(answer)).await;
            let open = open.await.unwrap_or_default();
            waiting.extend(open.into_iter().map(|open| (gate.clone(), Case::from(open))));
        }
        waiting
    }

    /// Counts an approval, or says why it does not count.
    async fn count(&self, approval: &Approval) -> Result<(), String> {
        let keys = self.keys.current().map_err(|error| error.to_string())?;
        let signature = approval.signature.as_ref().ok_or("it is not signed")?;
        let key = signature.public_key_ref;
        approval.verify(&key).map_err(|error| error.to_string())?;
        let now = Timestamp::now();
        let signer = keys.holder(&key, now, &self.approvers).map_err(|stranger| stranger.to_string())?;
        let waiting = self.waiting().await;
        let is_meant = |case: &Case| case.artifact().is_ok_and(|artifact| artifact == approval.artifact);
        let found = waiting.iter().find(|(_, case)| is_meant(case));
        let (gate, case) = found.ok_or("nothing that was signed waits for an approval")?;
        let approves = match approval.decision {
            ApprovalDecision::Approve => true,
            ApprovalDecision::Reject => false,
            ApprovalDecision::Abstain => return Err("an abstention changes nothing".to_owned()),
        };
        let file = self
            .keep(&case.id, approval)
            .map_err(|error| format!("the signature cannot be kept: {error}"))?;
        let validity = Arc::new(CountedKey { keys: Arc::clone(&self.keys), key, counted_at: now });
        let ballot = Ballot {
            id: case.id.clone(),
            signer,
            approves,
            reason: approval.reason.clone(),
            signature: Some(VoteSignature { file: file.display().to_string(), validity }),
        };
        let (answer, counted) = oneshot::channel();
        let _ = gate.send(Inquiry::Ballot(ballot, answer)).await;
        let counted = match counted.await {
            Ok(counted) => counted.map_err(|error| error.to_string()),
            Err(_) => Err("nothing is served any more".to_owned()),
        };
        if counted.is_err() {
            // It counts for nothing.
            let _ = std::fs::remove_file(self.root.join(&file));
        }
        counted
    }

    /// Keeps a signature beside the governance. Its path from the root on.
    fn keep(&self, id: &str, approval: &Approval) -> io::Result<PathBuf> {
        let directory = self.root.join(&self.signatures);
        let outside = |error| io::Error::new(io::ErrorKind::PermissionDenied, error);
        let real = narrows_govern::admit(&directory, std::slice::from_ref(&self.root), &narrows_govern::Disk)
            .map_err(outside)?;
        DirBuilder::new().recursive(true).mode(0o700).create(&real)?;
        let file = tempfile::Builder::new()
            .prefix(&format!("{id}-"))
            .suffix(".signature.json")
            .tempfile_in(&real)?;
        serde_json::to_writer_pretty(file.as_file(), approval)?;
        file.as_file().write_all(b"\n")?;
        file.as_file().sync_all()?;
        let (_, path) = file.keep()?;
        Ok(self.signatures.join(path.file_name().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::KeyFiles;
    use super::*;

    #[tokio::test]
    async fn silent_connections_keep_nobody_out() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("admin.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        let porter = Porter {
            gates: Roster::default(),
            keys: Arc::new(LiveKeys::new(directory.path().to_owned(), KeyFiles::default())),
            approvers: Vec::new(),
            root: directory.path().to_owned(),
            signatures: SIGNATURES.into(),
        };
        let task = tokio::spawn(welcome(listener, Arc::new(porter), false));
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(UnixStream::connect(&path).await.expect("let in"));
        }
        let mut asking = UnixStream::connect(&path).await.expect("let in");
        asking.write_all(b"\"list\"\n").await.expect("asked");
        let mut answer = String::new();
        asking.read_to_string(&mut answer).await.expect("answered");
        assert_eq!(answer, "{\"open\":[]}\n");
        task.abort();
    }
}
