//! The admin socket of the gates of a process: accepts connections and counts signed approvals.

use std::fs::{DirBuilder, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use narrows_audit::{Approval, ApprovalDecision, Timestamp};
use narrows_bus::listen::Listener;
use narrows_govern::{ApprovalVote, GateRequest, VoteSignature};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::approval_connections::{ApprovalConnections, HasAsked};
use super::approval_protocol::{
    MAX_REQUEST_BYTES, PendingAction, PendingActionSummary, SocketRequest, SocketResponse,
};
use super::gate_registry::GateRegistry;
use super::live_keys::{CountedKey, LiveKeys};
use super::manifest::{LoadedManifest, SIGNATURES_DIR};
use super::socket_files;
use crate::config::{Variables, runtime_dir};
use crate::failure::Failure;

/// The time for a request to arrive, and for its response to be read.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Total time for all gates to list their pending actions.
const GATE_TIMEOUT: Duration = Duration::from_secs(2);

/// The delay after a failed accept, such as for a lack of descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);

/// An open admin socket. Closes when dropped.
#[derive(Debug)]
pub(super) struct AdminSocket {
    pub(super) path: PathBuf,
    task: JoinHandle<()>,
    /// Removes the file when dropped. `None` if the socket is in the runtime directory.
    named: Option<Listener>,
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        self.task.abort();
        if self.named.is_none() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

struct ApprovalService {
    gates: GateRegistry,
    keys: Arc<LiveKeys>,
    approvers: Vec<narrows_manifest::types::governance::Approver>,
    root: PathBuf,
    /// Relative to the root.
    signatures: PathBuf,
}

/// Opens the admin socket. Returns `None` if nothing is governed, or the socket cannot be opened.
pub(super) fn open(manifest: &LoadedManifest, gates: GateRegistry) -> Result<Option<AdminSocket>, Failure> {
    let Some(governance) = &manifest.bundle.governance else { return Ok(None) };
    let keys = Arc::new(LiveKeys::new(manifest.root.clone(), manifest.keys.clone()));
    let service = ApprovalService {
        gates,
        keys,
        approvers: governance.config.approvers.clone(),
        root: manifest.root.clone(),
        signatures: governance.scope.join(SIGNATURES_DIR),
    };
    if let Some(admin) = &manifest.admin {
        let (listener, file) = admin.open()?;
        let task = tokio::spawn(accept_connections(listener, Arc::new(service), admin.is_shared()));
        return Ok(Some(AdminSocket { path: admin.path().to_owned(), task, named: Some(file) }));
    }
    let Some(directory) = runtime_dir(&Variables::of_process()) else {
        tracing::warn!("no socket for approvals: neither XDG_RUNTIME_DIR nor HOME is set");
        return Ok(None);
    };
    let path = socket_files::socket_path(&directory, std::process::id());
    match bind(&directory, &path) {
        Ok(listener) => {
            let task = tokio::spawn(accept_connections(listener, Arc::new(service), false));
            Ok(Some(AdminSocket { path, task, named: None }))
        }
        Err(error) => {
            tracing::warn!(%error, "cannot open the socket for approvals");
            Ok(None)
        }
    }
}

/// Binds a socket in a directory, both for their owner only.
fn bind(directory: &Path, path: &Path) -> io::Result<UnixListener> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    if directory.metadata()?.permissions().mode() & 0o077 != 0 {
        std::fs::set_permissions(directory, Permissions::from_mode(0o700))?;
    }
    let _lock = socket_files::lock(directory)?;
    socket_files::sweep(directory);
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        // A killed process with our pid may have left the file.
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Accepts connections of the owner and of root; a shared socket leaves the choice to the mode of its file.
async fn accept_connections(listener: UnixListener, service: Arc<ApprovalService>, is_shared: bool) {
    let mut connections = ApprovalConnections::default();
    loop {
        // Each connection gets a task of its own, so that an idle one does not block others.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        let ours = rustix::process::geteuid().as_raw();
        let Ok(user) = stream.peer_cred().map(|peer| peer.uid()) else { continue };
        if !(is_shared || user == ours || user == 0) || !connections.make_room(user) {
            continue;
        }
        let has_asked = HasAsked::default();
        let (service, asks) = (Arc::clone(&service), Arc::clone(&has_asked));
        let task = tokio::spawn(async move {
            let _ = service.serve_connection(stream, &asks).await;
        });
        connections.add(user, has_asked, task.abort_handle());
    }
}

impl ApprovalService {
    async fn serve_connection(&self, stream: UnixStream, has_asked: &AtomicBool) -> io::Result<()> {
        let (input, mut output) = stream.into_split();
        let mut line = String::new();
        timeout(REQUEST_TIMEOUT, BufReader::new(input.take(MAX_REQUEST_BYTES)).read_line(&mut line))
            .await??;
        has_asked.store(true, Ordering::Relaxed);
        let answer = timeout(REQUEST_TIMEOUT, self.respond(&line)).await?;
        let mut text = serde_json::to_vec(&answer)?;
        text.push(b'\n');
        timeout(REQUEST_TIMEOUT, output.write_all(&text)).await??;
        output.shutdown().await
    }

    async fn respond(&self, line: &str) -> SocketResponse {
        match serde_json::from_str::<SocketRequest>(line) {
            Ok(SocketRequest::List) => SocketResponse::Open(
                self.pending_actions()
                    .await
                    .iter()
                    .map(|(_, action)| PendingActionSummary::from(action))
                    .collect(),
            ),
            Ok(SocketRequest::Show(id)) => {
                let found = self.pending_actions().await.into_iter().find(|(_, action)| action.id == id);
                SocketResponse::Whole(found.map(|(_, action)| Box::new(action)))
            }
            Ok(SocketRequest::Approval(approval)) => match self.count_approval(&approval).await {
                Ok(()) => SocketResponse::Counted,
                Err(why) => SocketResponse::Refused(why),
            },
            Err(error) => SocketResponse::Refused(format!("invalid request: {error}")),
        }
    }

    async fn pending_actions(&self) -> Vec<(mpsc::Sender<GateRequest>, PendingAction)> {
        let mut waiting = Vec::new();
        let mut asked = Vec::new();
        for gate in self.gates.senders() {
            let (answer, open) = oneshot::channel();
            // A full queue means that the gate has not processed earlier requests, so it is skipped.
            if gate.try_send(GateRequest::ListApprovals(answer)).is_ok() {
                asked.push((gate, open));
            }
        }
        let deadline = Instant::now() + GATE_TIMEOUT;
        for (gate, open) in asked {
            // A gate that has just ended has no pending actions, and a busy one must not hide those of
            // others.
            let open = timeout_at(deadline, open).await.ok().and_then(Result::ok).unwrap_or_default();
            waiting.extend(open.into_iter().map(|open| (gate.clone(), PendingAction::from(open))));
        }
        waiting
    }

    /// Counts an approval. The error is the reason why it does not count.
    async fn count_approval(&self, approval: &Approval) -> Result<(), String> {
        let keys = self.keys.current().map_err(|error| error.to_string())?;
        let signature = approval.signature.as_ref().ok_or("not signed")?;
        let key = signature.public_key_ref;
        approval.verify(&key).map_err(|error| error.to_string())?;
        let now = Timestamp::now();
        let signer = keys.holder(&key, now, &self.approvers).map_err(|rejection| rejection.to_string())?;
        let waiting = self.pending_actions().await;
        let is_meant = |action: &PendingAction| {
            action.signed_artifact().is_ok_and(|artifact| artifact == approval.artifact)
        };
        let found = waiting.iter().find(|(_, action)| is_meant(action));
        let (gate, action) = found.ok_or("no pending approval matches the signature")?;
        let approves = match approval.decision {
            ApprovalDecision::Approve => true,
            ApprovalDecision::Reject => false,
            ApprovalDecision::Abstain => return Err("an abstention has no effect".to_owned()),
        };
        let file = self
            .store_signature(&action.id, approval)
            .map_err(|error| format!("cannot store the signature: {error}"))?;
        let validity = Arc::new(CountedKey { keys: Arc::clone(&self.keys), key, counted_at: now });
        let ballot = ApprovalVote {
            id: action.id.clone(),
            signer,
            approves,
            reason: approval.reason.clone(),
            signature: Some(VoteSignature { file: file.display().to_string(), validity }),
        };
        let (answer, counted) = oneshot::channel();
        let _ = gate.send(GateRequest::Vote(ballot, answer)).await;
        let counted = match counted.await {
            Ok(counted) => counted.map_err(|error| error.to_string()),
            Err(_) => Err("the server has stopped".to_owned()),
        };
        if counted.is_err() {
            // Removes the file of a signature that does not count.
            let _ = std::fs::remove_file(self.root.join(&file));
        }
        counted
    }

    /// Stores a signature in the directory of the governance and returns its path relative to the root.
    fn store_signature(&self, id: &str, approval: &Approval) -> io::Result<PathBuf> {
        let directory = self.root.join(&self.signatures);
        let outside = |error| io::Error::new(io::ErrorKind::PermissionDenied, error);
        let real = narrows_govern::resolve_in_roots(
            &directory,
            std::slice::from_ref(&self.root),
            &narrows_govern::SystemPathResolver,
        )
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
    async fn silent_connections_do_not_block_others() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("admin.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        let service = ApprovalService {
            gates: GateRegistry::default(),
            keys: Arc::new(LiveKeys::new(directory.path().to_owned(), KeyFiles::default())),
            approvers: Vec::new(),
            root: directory.path().to_owned(),
            signatures: SIGNATURES_DIR.into(),
        };
        let task = tokio::spawn(accept_connections(listener, Arc::new(service), false));
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(UnixStream::connect(&path).await.expect("the connection is accepted"));
        }
        let mut asking = UnixStream::connect(&path).await.expect("the connection is accepted");
        asking.write_all(b"\"list\"\n").await.expect("asked");
        let mut answer = String::new();
        asking.read_to_string(&mut answer).await.expect("answered");
        assert_eq!(answer, "{\"open\":[]}\n");
        task.abort();
    }
}
