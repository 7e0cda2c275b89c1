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
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout, timeout_at};

use super::approval_connections::{ApprovalConnections, HasAsked};
use super::approval_protocol::{
    MAX_REQUEST_BYTES, PendingAction, PendingList, SocketRequest, SocketResponse,
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

/// The delay after a failed accept, such as one for lack of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);

/// An open admin socket. Closes when dropped.
#[derive(Debug)]
pub(super) struct AdminSocket {
    pub(super) path: PathBuf,
    task: JoinHandle<()>,
    /// Removes the socket file when dropped. `None` for a socket in the runtime directory.
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
    /// The directory of stored signatures, relative to the workspace root.
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

/// Binds a socket in `directory`. Only the owner can access the directory and the socket.
fn bind(directory: &Path, path: &Path) -> io::Result<UnixListener> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    if directory.metadata()?.permissions().mode() & 0o077 != 0 {
        std::fs::set_permissions(directory, Permissions::from_mode(0o700))?;
    }
    let _lock = socket_files::lock(directory)?;
    socket_files::sweep(directory);
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        // A killed process with the same pid may have left the file.
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Accepts connections of the owner and of root. On a shared socket, the mode of the socket file decides
/// instead who may connect.
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
        // Long answers must not delay the connections of the runtime.
        let mut text = spawn_blocking(move || serde_json::to_vec(&answer)).await??;
        text.push(b'\n');
        timeout(REQUEST_TIMEOUT, output.write_all(&text)).await??;
        output.shutdown().await
    }

    async fn respond(&self, line: &str) -> SocketResponse {
        match serde_json::from_str::<SocketRequest>(line) {
            Ok(SocketRequest::List) => {
                let of_gates = self.ask_gates(GateRequest::SummarizeApprovals).await;
                SocketResponse::Open(PendingList::new(of_gates.into_iter().map(|(_, open)| open).collect()))
            }
            Ok(SocketRequest::Show(id)) => {
                let found = self.pending_action(&id).await;
                SocketResponse::Whole(found.map(|(_, action)| Box::new(action)))
            }
            Ok(SocketRequest::Approval(approval)) => match self.count_approval(&approval).await {
                Ok(()) => SocketResponse::Counted,
                Err(why) => SocketResponse::Refused(why),
            },
            Err(error) => SocketResponse::Refused(format!("invalid request: {error}")),
        }
    }

    /// Asks all gates at once and returns the answers. A gate that has just ended has none, and a busy one must
    /// not delay those of others for long.
    async fn ask_gates<T>(
        &self,
        request: impl Fn(oneshot::Sender<T>) -> GateRequest,
    ) -> Vec<(mpsc::Sender<GateRequest>, T)> {
        let mut asked = Vec::new();
        for gate in self.gates.senders() {
            let (answer, answered) = oneshot::channel();
            // A full queue means that the gate has not processed earlier requests, so it is skipped.
            if gate.try_send(request(answer)).is_ok() {
                asked.push((gate, answered));
            }
        }
        let deadline = Instant::now() + GATE_TIMEOUT;
        let mut answers = Vec::new();
        for (gate, answered) in asked {
            if let Ok(Ok(answer)) = timeout_at(deadline, answered).await {
                answers.push((gate, answer));
            }
        }
        answers
    }

    /// Returns the pending action with this id, and its gate. No list is made, so that the number of actions
    /// of others does not matter.
    async fn pending_action(&self, id: &str) -> Option<(mpsc::Sender<GateRequest>, PendingAction)> {
        let answers = self.ask_gates(|answer| GateRequest::ShowApproval(id.to_owned(), answer)).await;
        let (gate, action) = answers.into_iter().find_map(|(gate, action)| Some((gate, action?)))?;
        Some((gate, PendingAction::from(action)))
    }

    /// Counts an approval. The error is the reason why it does not count.
    async fn count_approval(&self, approval: &Approval) -> Result<(), String> {
        let keys = self.keys.current().map_err(|error| error.to_string())?;
        let signature = approval.signature.as_ref().ok_or("not signed")?;
        let key = signature.public_key_ref;
        approval.verify(&key).map_err(|error| error.to_string())?;
        let now = Timestamp::now();
        let signer = keys.holder(&key, now, &self.approvers).map_err(|rejection| rejection.to_string())?;
        let unknown = "no pending approval matches the signature";
        let (id, _) = approval.artifact.split_once('#').ok_or(unknown)?;
        let (gate, action) = self.pending_action(id).await.ok_or(unknown)?;
        let id = action.id.clone();
        // The digest of a large action takes a while.
        let artifact = spawn_blocking(move || action.signed_artifact()).await;
        if !artifact.is_ok_and(|artifact| artifact.is_ok_and(|artifact| artifact == approval.artifact)) {
            return Err(unknown.to_owned());
        }
        let approves = match approval.decision {
            ApprovalDecision::Approve => true,
            ApprovalDecision::Reject => false,
            ApprovalDecision::Abstain => return Err("an abstention has no effect".to_owned()),
        };
        let file = self
            .store_signature(&id, approval)
            .map_err(|error| format!("cannot store the signature: {error}"))?;
        let validity = Arc::new(CountedKey { keys: Arc::clone(&self.keys), key, counted_at: now });
        let ballot = ApprovalVote {
            id,
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
        assert_eq!(answer, "{\"open\":{\"actions\":[],\"omitted\":0}}\n");
        task.abort();
    }
}
