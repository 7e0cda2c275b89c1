//! Failures of `narrows serve` and `narrows approve`.

use std::io;
use std::path::Path;

use narrows_audit::{AppendError, OpenError};
use narrows_bus::config::Web;
use narrows_bus::listen::ListenError;
use narrows_govern::PathRefusal;
use narrows_link::CloseReason;
use narrows_manifest::version::VersionError;
use narrows_remote::server::BindError;
use narrows_remote::tls::TlsError;

use super::credentials::tls_hint;
use super::{ExitStatus, Failure};
use crate::terminal::line;

pub(crate) const IDENTITIES_HINT: &str =
    "it looks like this: [[identity]] who = \"user:bob\" scopes = [\"kind:read\"]";

impl Failure {
    /// A client manifest without a prompt.
    pub(crate) fn prompt_required() -> Self {
        Self::new(ExitStatus::Usage, "a manifest of the kind client needs a prompt")
            .with_hint("write it behind two hyphens: narrows serve ACP.md -- \"Hello\"")
    }

    /// A prompt for a manifest whose client sends the prompts.
    pub(crate) fn unexpected_prompt(kind: &str) -> Self {
        Self::new(
            ExitStatus::Usage,
            format!("a manifest of the kind {kind} takes no prompt: its client has it"),
        )
    }

    /// A server manifest without an operator.
    pub(crate) fn no_operator() -> Self {
        Self::new(ExitStatus::Usage, "a manifest of the kind server needs an operator")
            .with_hint("write an OPERATOR.md, and metadata.aip44.operator: ./OPERATOR.md in the ACP.md")
    }

    /// The built-in agent ended by itself.
    pub(crate) fn operator_exited() -> Self {
        Self::new(ExitStatus::Internal, "the built-in agent has ended by itself")
    }

    /// The manifest requires WebSocket, and no such listener is given.
    pub(crate) fn websocket_required() -> Self {
        Self::new(ExitStatus::Usage, "the manifest is for WebSocket only, and no --listen is").with_hint(
            "add --listen ws://127.0.0.1:8787/acp, or write transport: [stdio, websocket] in the ACP.md",
        )
    }

    /// Flags for HTTP and WebSocket without such a listener.
    pub(crate) fn no_web_listener() -> Self {
        let flags = "--tokens, --cert, --key, --client-ca, --host, --origin and --limit";
        Self::new(ExitStatus::Usage, format!("{flags} are about HTTP and WebSocket, and no --listen is"))
            .with_hint("add --listen ws://127.0.0.1:8787/acp")
    }

    /// A TLS listener without a certificate.
    pub(crate) fn certificate_missing(web: &Web) -> Self {
        Self::new(ExitStatus::Usage, line(&format!("{web} needs a certificate")))
            .with_hint("name its files: --cert cert.pem --key key.pem")
    }

    /// A certificate without a TLS listener.
    pub(crate) fn certificate_unused() -> Self {
        Self::new(ExitStatus::Usage, "--cert and --key mean something only with --listen wss:// or https://")
    }

    pub(crate) fn certificate_invalid(error: &TlsError) -> Self {
        Self::new(ExitStatus::Usage, line(&format!("the certificate cannot be used: {error}")))
            .with_hint(tls_hint(error))
    }

    /// A listener is reachable from other machines without authentication or encryption.
    pub(crate) fn unauthenticated_listener(web: &Web) -> Self {
        Self::new(ExitStatus::Usage, line(&format!("{web} can be reached from other machines")))
            .with_hint("that needs wss:// or https:// with --cert and --key, and --tokens or --client-ca")
    }

    /// A credential file is in the workspace, where the agent could read or change it.
    pub(crate) fn file_in_workspace(flag: &str, path: &Path) -> Self {
        let shown = path.display().to_string();
        Self::new(
            ExitStatus::Usage,
            line(&format!("{flag} {shown:?} lies in the workspace, where an agent could use it")),
        )
        .with_hint("keep it elsewhere")
    }

    /// A client manifest has no listeners.
    pub(crate) fn listener_for_client() -> Self {
        Self::new(ExitStatus::Usage, "a manifest of the kind client runs one turn and listens nowhere")
    }

    /// A pool was named, and only a bus has pools.
    pub(crate) fn pool_without_bus(pool: &str) -> Self {
        Self::new(
            ExitStatus::Usage,
            line(&format!("--listen names a pool, {pool:?}, and only a bus has pools")),
        )
    }

    /// The identities file is in the workspace, where the agent could change it.
    pub(crate) fn identities_in_workspace(path: &Path) -> Self {
        let message =
            format!("{:?} lies in the workspace, where an agent could change it", path.display().to_string());
        Self::new(ExitStatus::Usage, line(&message)).with_hint("keep the file of --identities elsewhere")
    }

    pub(crate) fn serve_web_listener(error: &BindError) -> Self {
        match error {
            BindError::Address { address, error } if error.kind() == io::ErrorKind::AddrInUse => {
                Self::serve_listener(&ListenError::InUse(address.to_string()))
            }
            error => Self::web_listener(error),
        }
    }

    /// A listener for clients or approvers cannot be opened.
    pub(crate) fn serve_listener(error: &ListenError) -> Self {
        match error {
            ListenError::InUse(_) => Self::new(ExitStatus::Usage, line(&error.to_string())).with_hint(
                "another `narrows serve`, or a bus, is there already: end it, or name another place",
            ),
            error => Self::listener(error),
        }
    }

    pub(crate) fn manifest_missing(path: &Path, error: &io::Error) -> Self {
        let message = format!("there is no manifest {:?}", path.display().to_string());
        Self::new(ExitStatus::Usage, line(&message)).with_cause(error).with_hint(
            "name an ACP.md, or the directory it lies in; `narrows check --print-schema acp` prints what belongs into it",
        )
    }

    pub(crate) fn root_invalid(path: &Path) -> Self {
        let message = format!("--root: {:?} is no directory", path.display().to_string());
        Self::new(ExitStatus::Usage, line(&message))
            .with_hint("name the directory of the workspace, with the ACP.md in it")
    }

    pub(crate) fn admin_directory_missing(path: &Path) -> Self {
        let message =
            format!("the directory of --admin-socket {:?} is not there", path.display().to_string());
        Self::new(ExitStatus::Usage, line(&message))
            .with_hint("make it so that the signers can enter it: install -d -m 750 -g GROUP DIR")
    }

    /// The admin socket is in the workspace, where the agent could replace it.
    pub(crate) fn admin_socket_in_workspace(path: &Path) -> Self {
        let message = format!(
            "{:?} lies in the workspace, where an agent could replace it",
            path.display().to_string()
        );
        Self::new(ExitStatus::Usage, line(&message))
            .with_hint("put the --admin-socket elsewhere, such as below /run")
    }

    /// An admin socket for a manifest without governance: no approval will ever be pending.
    pub(crate) fn admin_socket_ungoverned() -> Self {
        Self::new(ExitStatus::Usage, "--admin-socket is for approvals, and this manifest has no governance")
            .with_hint(
                "leave it out, or write a GOVERNANCE.md and metadata.aip44.governance: ./GOVERNANCE.md",
            )
    }

    pub(crate) fn unknown_group(group: &str) -> Self {
        Self::new(
            ExitStatus::Usage,
            line(&format!("--admin-group: there is no group {group:?} in /etc/group")),
        )
        .with_hint("make one with `groupadd`, or give its number")
    }

    pub(crate) fn admin_group_unusable(path: &Path, error: &io::Error) -> Self {
        let message = format!("--admin-group cannot be let in at {:?}", path.display().to_string());
        Self::new(ExitStatus::Usage, line(&message))
            .with_cause(error)
            .with_hint("whoever serves has to be in that group, or root")
    }

    pub(crate) fn session_owners_unreadable(error: &io::Error) -> Self {
        Self::new(ExitStatus::Internal, "whose the sessions are cannot be read").with_cause(error)
    }

    /// `--for-bus` without a bus: the first line does not identify a client.
    pub(crate) fn not_started_by_bus() -> Self {
        Self::new(ExitStatus::Usage, "--for-bus is for a bus, which says first who its client is")
    }

    /// A governed manifest without an audit log.
    pub(crate) fn audit_log_required() -> Self {
        Self::new(ExitStatus::Usage, "a governed manifest is not served without an audit log")
            .with_hint("take metadata.aip44.audit.kind: off out of the ACP.md")
    }

    /// The audit log would be outside of the workspace.
    pub(crate) fn audit_log_outside_workspace(path: &Path, outside: &PathRefusal) -> Self {
        Self::new(
            ExitStatus::Usage,
            line(&format!("the audit log {:?} cannot be used", path.display().to_string())),
        )
        .with_cause(outside)
        .with_hint("a log lies in the workspace, and no link leads out of it")
    }

    pub(crate) fn audit_log_unopened(path: &Path, error: &OpenError) -> Self {
        let message =
            format!("nothing is served, because {:?} cannot be written", path.display().to_string());
        let failure = Self::new(ExitStatus::Internal, line(&message)).with_cause(error);
        match error {
            OpenError::Damaged(_) => failure.with_hint(line(&format!(
                "see what is wrong with it: narrows audit verify {}",
                path.display()
            ))),
            OpenError::Io(_) | OpenError::Locked => failure,
        }
    }

    pub(crate) fn audit_append_failed(error: &AppendError) -> Self {
        Self::new(ExitStatus::Internal, "nothing is served, because it cannot be recorded").with_cause(error)
    }

    pub(crate) fn no_data_dir() -> Self {
        Self::new(
            ExitStatus::Usage,
            "there is no place to keep what is trusted: neither XDG_DATA_HOME nor HOME says one",
        )
        .with_hint("name one: --data-dir DIR")
    }

    /// The manifest differs from its pinned version.
    pub(crate) fn manifest_changed(manifest: &Path, files: &[String]) -> Self {
        let message = format!("{} is not what was trusted: {}", manifest.display(), files.join(", "));
        let command = format!("narrows serve --approve {}", manifest.display());
        Self::new(ExitStatus::Usage, line(&message))
            .with_hint(line(&format!("look at what has changed, then: {command}")))
    }

    pub(crate) fn pins_unwritable(path: &Path, error: &io::Error) -> Self {
        let message = format!("what is trusted cannot be kept in {:?}", path.display().to_string());
        Self::new(ExitStatus::Internal, line(&message)).with_cause(error)
    }

    /// A memory file is corrupt or unreadable.
    pub(crate) fn memory_invalid(path: &Path, error: &dyn std::error::Error) -> Self {
        let message = format!("memory-poisoned: {:?} cannot be trusted", path.display().to_string());
        Self::new(ExitStatus::Usage, line(&message)).with_cause(error).with_hint(
            "the log has the digest of what was written, as memory.persisted; move the file away to begin anew",
        )
    }

    pub(crate) fn memory_unwritable(path: &Path, error: &dyn std::error::Error) -> Self {
        let message =
            format!("what the operator is to remember cannot be kept in {:?}", path.display().to_string());
        Self::new(ExitStatus::Internal, line(&message))
            .with_cause(error)
            .with_hint("the turns themselves are kept in their sessions")
    }

    pub(crate) fn external_memory_missing() -> Self {
        Self::new(ExitStatus::Usage, "memory.kind external needs memory.external.uri")
            .with_hint("write external: {uri: ./memory}, or kind: operator-context")
    }

    pub(crate) fn external_memory_invalid(uri: &str) -> Self {
        Self::new(
            ExitStatus::Usage,
            line(&format!("unmet-capability: memory.external {uri:?} is no directory")),
        )
        .with_hint(
            "only directories can be memories: uri: ./memory or file:///path, and a plain word as namespace",
        )
    }

    /// The admin socket of a gate does not answer.
    pub(crate) fn gate_unreachable(socket: &Path, error: &io::Error) -> Self {
        let message = format!("nobody who serves answers at {:?}", socket.display().to_string());
        let failure = Self::new(ExitStatus::Start, line(&message)).with_cause(error);
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => failure
                .with_hint("`narrows serve --listen` says where approvals come in; without --socket all that you serve are asked"),
            io::ErrorKind::PermissionDenied => failure
                .with_hint("it is another user's: they let a group in with --admin-socket PATH --admin-group GROUP"),
            _ => failure,
        }
    }

    pub(crate) fn no_runtime_dir() -> Self {
        Self::new(ExitStatus::Usage, "neither XDG_RUNTIME_DIR nor HOME says where the sockets are")
            .with_hint("name one: --socket PATH")
    }

    pub(crate) fn no_pending_approval(id: &str) -> Self {
        Self::new(ExitStatus::Usage, line(&format!("nothing called {id:?} waits for an approval")))
            .with_hint("see what does: narrows approve --list")
    }

    pub(crate) fn approval_not_counted(why: &str) -> Self {
        Self::new(ExitStatus::Denied, line(&format!("it does not count: {why}")))
    }

    pub(crate) fn no_served_agent() -> Self {
        Self::new(ExitStatus::Usage, "there is no agent to be served")
            .with_hint("put an AGENT-CLI.md beside the ACP.md, or name one in the operator's runtime.ref")
    }

    pub(crate) fn version_check_invalid(command: &str) -> Self {
        Self::new(ExitStatus::Usage, line(&format!("version_check.cmd is no command: {command:?}")))
    }

    pub(crate) fn version_check_timeout(command: &str, millis: u64) -> Self {
        Self::new(
            ExitStatus::Timeout,
            line(&format!("{command:?} did not print a version within {millis} ms")),
        )
    }

    /// The installed agent has a version outside of the range in its manifest.
    pub(crate) fn agent_version_mismatch(agent: &str, command: &str, error: &VersionError) -> Self {
        Self::new(
            ExitStatus::Start,
            line(&format!("the agent {agent:?} is not started: {command:?} tells against it")),
        )
        .with_cause(error)
        .with_hint("install a version that its AGENT-CLI.md names in version_check.range")
    }

    pub(crate) fn agent_exited(agent: &str, reason: &CloseReason) -> Self {
        let mut failure =
            Self::new(ExitStatus::Agent, line(&format!("the agent {agent:?} has gone"))).with_cause(reason);
        if let CloseReason::Exited { stderr, .. } = reason {
            failure.stderr.clone_from(stderr);
        }
        failure
    }

    /// A sandboxed agent exited; it may lack a file that is not mounted.
    pub(crate) fn sandboxed_agent_exited(agent: &str, reason: &CloseReason) -> Self {
        Self::agent_exited(agent, reason).with_hint(
            "if it has missed a file: its sandbox shows the system, what is mounted, and the program itself; mount the rest",
        )
    }

    /// The gate ended the agent.
    pub(crate) fn agent_ended(agent: &str, why: &str) -> Self {
        Self::new(ExitStatus::Agent, line(&format!("the agent {agent:?} was ended: {why}")))
            .with_hint("what it did is in the audit log: narrows audit show")
    }

    /// The agent of a proxy chain cannot be ended, so the bridge leaves the chain.
    pub(crate) fn chain_closed(why: &str) -> Self {
        Self::new(ExitStatus::Agent, line(&format!("the chain is left because of the agent behind: {why}")))
            .with_hint("what it did is in the audit log: narrows audit show")
    }
}
