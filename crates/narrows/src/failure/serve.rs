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
use narrows_remote::server_tls::TlsError;

use super::credentials::tls_hint;
use super::{ExitStatus, Failure};
use crate::terminal::line;

pub(crate) const IDENTITIES_HINT: &str =
    "use this form: [[identity]] who = \"user:bob\" scopes = [\"kind:read\"]";

impl Failure {
    pub(crate) fn prompt_required() -> Self {
        Self::new(ExitStatus::Usage, "a manifest of kind client needs a prompt")
            .with_hint("pass the prompt after `--`: narrows serve ACP.md -- \"Hello\"")
    }

    /// Reports a prompt for a manifest whose client sends the prompts.
    pub(crate) fn unexpected_prompt(kind: &str) -> Self {
        Self::new(
            ExitStatus::Usage,
            format!("a manifest of kind {kind} takes no prompt; its clients send prompts"),
        )
    }

    pub(crate) fn no_operator() -> Self {
        Self::new(ExitStatus::Usage, "a manifest of kind server needs an operator")
            .with_hint("add an OPERATOR.md, and metadata.aip44.operator: ./OPERATOR.md to the ACP.md")
    }

    pub(crate) fn operator_exited() -> Self {
        Self::new(ExitStatus::Internal, "the built-in agent stopped unexpectedly")
    }

    pub(crate) fn websocket_required() -> Self {
        Self::new(ExitStatus::Usage, "the manifest requires WebSocket")
            .with_hint("add --listen ws://127.0.0.1:8787/acp, or transport: [stdio, websocket] to the ACP.md")
    }

    pub(crate) fn no_web_listener() -> Self {
        let flags = "--tokens, --cert, --key, --client-ca, --host, --origin and --limit";
        Self::new(ExitStatus::Usage, format!("{flags} need an HTTP or WebSocket listener"))
            .with_hint("add --listen ws://127.0.0.1:8787/acp")
    }

    pub(crate) fn certificate_missing(web: &Web) -> Self {
        Self::new(ExitStatus::Usage, line(&format!("{web} needs a certificate")))
            .with_hint("add --cert cert.pem --key key.pem")
    }

    pub(crate) fn certificate_unused() -> Self {
        Self::new(ExitStatus::Usage, "--cert and --key need --listen wss:// or https://")
    }

    pub(crate) fn certificate_invalid(error: &TlsError) -> Self {
        Self::new(ExitStatus::Usage, line(&format!("cannot use the certificate: {error}")))
            .with_hint(tls_hint(error))
    }

    pub(crate) fn unauthenticated_listener(web: &Web) -> Self {
        Self::new(ExitStatus::Usage, line(&format!("{web} is reachable from other machines")))
            .with_hint("use wss:// or https:// with --cert and --key, and --tokens or --client-ca")
    }

    /// Reports a credential file in the workspace, where the agent could read or change it.
    pub(crate) fn file_in_workspace(flag: &str, path: &Path) -> Self {
        let shown = path.display().to_string();
        Self::new(
            ExitStatus::Usage,
            line(&format!("{flag} {shown:?} is in the workspace, where an agent could use it")),
        )
        .with_hint("move the file out of the workspace")
    }

    pub(crate) fn listener_for_client() -> Self {
        Self::new(ExitStatus::Usage, "a manifest of kind client runs one turn and has no listeners")
    }

    pub(crate) fn pool_without_bus(pool: &str) -> Self {
        Self::new(ExitStatus::Usage, line(&format!("--listen names pool {pool:?}, but only a bus has pools")))
    }

    /// Reports an identities file in the workspace, where the agent could change it.
    pub(crate) fn identities_in_workspace(path: &Path) -> Self {
        let message =
            format!("{:?} is in the workspace, where an agent could change it", path.display().to_string());
        Self::new(ExitStatus::Usage, line(&message))
            .with_hint("move the --identities file out of the workspace")
    }

    pub(crate) fn serve_web_listener(error: &BindError) -> Self {
        match error {
            BindError::Address { address, error } if error.kind() == io::ErrorKind::AddrInUse => {
                Self::serve_listener(&ListenError::InUse(address.to_string()))
            }
            error => Self::web_listener(error),
        }
    }

    pub(crate) fn serve_listener(error: &ListenError) -> Self {
        match error {
            ListenError::InUse(_) => Self::new(ExitStatus::Usage, line(&error.to_string()))
                .with_hint("stop the other `narrows serve` or bus, or use another address"),
            error => Self::listener(error),
        }
    }

    pub(crate) fn manifest_missing(path: &Path, error: &io::Error) -> Self {
        let message = format!("no manifest at {:?}", path.display().to_string());
        Self::new(ExitStatus::Usage, line(&message)).with_cause(error).with_hint(
            "use an ACP.md, or its directory; `narrows check --print-schema acp` prints its schema",
        )
    }

    pub(crate) fn root_invalid(path: &Path) -> Self {
        let message = format!("--root: {:?} is not a directory", path.display().to_string());
        Self::new(ExitStatus::Usage, line(&message))
            .with_hint("use the directory of the workspace, which contains the ACP.md")
    }

    pub(crate) fn admin_directory_missing(path: &Path) -> Self {
        let message = format!("--admin-socket: missing directory of {:?}", path.display().to_string());
        Self::new(ExitStatus::Usage, line(&message))
            .with_hint("create the directory, accessible to the signers: install -d -m 750 -g GROUP DIR")
    }

    /// Reports an admin socket in the workspace, where the agent could replace it.
    pub(crate) fn admin_socket_in_workspace(path: &Path) -> Self {
        let message =
            format!("{:?} is in the workspace, where an agent could replace it", path.display().to_string());
        Self::new(ExitStatus::Usage, line(&message))
            .with_hint("use a path outside of the workspace for --admin-socket, such as below /run")
    }

    /// Reports an admin socket for a manifest without governance, which never has pending approvals.
    pub(crate) fn admin_socket_ungoverned() -> Self {
        Self::new(ExitStatus::Usage, "--admin-socket is for approvals, but the manifest has no governance")
            .with_hint(
                "remove --admin-socket, or create a GOVERNANCE.md and add metadata.aip44.governance: ./GOVERNANCE.md \
                 to the ACP.md",
            )
    }

    pub(crate) fn unknown_group(group: &str) -> Self {
        Self::new(ExitStatus::Usage, line(&format!("--admin-group: no group {group:?} in /etc/group")))
            .with_hint("create the group with `groupadd`, or use the number of a group")
    }

    pub(crate) fn admin_group_unusable(path: &Path, error: &io::Error) -> Self {
        let message =
            format!("--admin-group: cannot give the group access to {:?}", path.display().to_string());
        Self::new(ExitStatus::Usage, line(&message))
            .with_cause(error)
            .with_hint("run `narrows serve` as root, or as a member of that group")
    }

    pub(crate) fn session_owners_unreadable(error: &io::Error) -> Self {
        Self::new(ExitStatus::Internal, "cannot read the session owners").with_cause(error)
    }

    /// Reports `--for-bus` without a bus: the first line does not identify a client.
    pub(crate) fn not_started_by_bus() -> Self {
        Self::new(ExitStatus::Usage, "--for-bus needs a bus, which names the client first")
    }

    pub(crate) fn audit_log_required() -> Self {
        Self::new(ExitStatus::Usage, "a governed manifest needs an audit log")
            .with_hint("remove metadata.aip44.audit.kind: off from the ACP.md")
    }

    pub(crate) fn audit_log_outside_workspace(path: &Path, outside: &PathRefusal) -> Self {
        Self::new(
            ExitStatus::Usage,
            line(&format!("cannot use the audit log {:?}", path.display().to_string())),
        )
        .with_cause(outside)
        .with_hint("use a path in the workspace, without links that lead out of it")
    }

    pub(crate) fn audit_log_unopened(path: &Path, error: &OpenError) -> Self {
        let message = format!("not serving: cannot write the audit log {:?}", path.display().to_string());
        let failure = Self::new(ExitStatus::Internal, line(&message)).with_cause(error);
        match error {
            OpenError::Damaged(_) => failure.with_hint(line(&format!(
                "see what is wrong with the log: narrows audit verify {}",
                path.display()
            ))),
            OpenError::Io(_) | OpenError::Locked => failure,
        }
    }

    pub(crate) fn audit_append_failed(error: &AppendError) -> Self {
        Self::new(ExitStatus::Internal, "not serving: cannot write to the audit log").with_cause(error)
    }

    pub(crate) fn no_data_dir() -> Self {
        Self::new(
            ExitStatus::Usage,
            "no directory for trusted digests: neither XDG_DATA_HOME nor HOME is set",
        )
        .with_hint("add --data-dir DIR")
    }

    pub(crate) fn manifest_changed(manifest: &Path, files: &[String]) -> Self {
        let message = format!("{} has untrusted changes: {}", manifest.display(), files.join(", "));
        let command = format!("narrows serve --approve {}", manifest.display());
        Self::new(ExitStatus::Usage, line(&message))
            .with_hint(line(&format!("check the changes, then run: {command}")))
    }

    pub(crate) fn pins_unwritable(path: &Path, error: &io::Error) -> Self {
        let message = format!("cannot store the trusted digests in {:?}", path.display().to_string());
        Self::new(ExitStatus::Internal, line(&message)).with_cause(error)
    }

    pub(crate) fn memory_invalid(path: &Path, error: &dyn std::error::Error) -> Self {
        let message = format!("memory-poisoned: {:?} is not as it was written", path.display().to_string());
        Self::new(ExitStatus::Usage, line(&message)).with_cause(error).with_hint(
            "move the file away to start an empty memory; the audit log has the digests of the memory as \
             memory.persisted",
        )
    }

    pub(crate) fn memory_unwritable(path: &Path, error: &dyn std::error::Error) -> Self {
        let message = format!("cannot store the operator's memory in {:?}", path.display().to_string());
        Self::new(ExitStatus::Internal, line(&message))
            .with_cause(error)
            .with_hint("the turns are still stored in their sessions")
    }

    pub(crate) fn external_memory_missing() -> Self {
        Self::new(ExitStatus::Usage, "memory.kind external needs memory.external.uri")
            .with_hint("use external: {uri: ./memory}, or kind: operator-context")
    }

    pub(crate) fn external_memory_invalid(uri: &str) -> Self {
        Self::new(
            ExitStatus::Usage,
            line(&format!("unmet-capability: memory.external {uri:?} is not a directory")),
        )
        .with_hint("use a directory, as uri: ./memory or file:///path, and a plain word as namespace")
    }

    pub(crate) fn gate_unreachable(socket: &Path, error: &io::Error) -> Self {
        let message = format!("no server answers on {:?}", socket.display().to_string());
        let failure = Self::new(ExitStatus::Start, line(&message)).with_cause(error);
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => failure.with_hint(
                "use the socket that `narrows serve --listen` prints for approvals; omit --socket to use \
                            all your servers",
            ),
            io::ErrorKind::PermissionDenied => failure.with_hint(
                "ask the other user to give your group access with --admin-socket PATH --admin-group GROUP",
            ),
            _ => failure,
        }
    }

    pub(crate) fn no_runtime_dir() -> Self {
        Self::new(ExitStatus::Usage, "no directory of sockets: neither XDG_RUNTIME_DIR nor HOME is set")
            .with_hint("add --socket PATH")
    }

    pub(crate) fn no_pending_approval(id: &str) -> Self {
        Self::new(ExitStatus::Usage, line(&format!("no pending approval {id:?}")))
            .with_hint("list pending approvals: narrows approve --list")
    }

    pub(crate) fn approval_not_counted(why: &str) -> Self {
        Self::new(ExitStatus::Denied, line(&format!("not accepted: {why}")))
    }

    pub(crate) fn no_served_agent() -> Self {
        Self::new(ExitStatus::Usage, "the manifest has no agent")
            .with_hint("put an AGENT-CLI.md next to the ACP.md, or name one in runtime.ref of the operator")
    }

    pub(crate) fn version_check_invalid(command: &str) -> Self {
        Self::new(ExitStatus::Usage, line(&format!("version_check.cmd is not a command: {command:?}")))
    }

    pub(crate) fn version_check_timeout(command: &str, millis: u64) -> Self {
        Self::new(
            ExitStatus::Timeout,
            line(&format!("{command:?} did not print a version within {millis} ms")),
        )
    }

    pub(crate) fn agent_version_mismatch(agent: &str, command: &str, error: &VersionError) -> Self {
        Self::new(
            ExitStatus::Start,
            line(&format!("not starting the agent {agent:?}: version check {command:?} failed")),
        )
        .with_cause(error)
        .with_hint("install a version in version_check.range of its AGENT-CLI.md")
    }

    pub(crate) fn agent_exited(agent: &str, reason: &CloseReason) -> Self {
        let mut failure =
            Self::new(ExitStatus::Agent, line(&format!("the agent {agent:?} exited"))).with_cause(reason);
        if let CloseReason::Exited { stderr, .. } = reason {
            failure.stderr.clone_from(stderr);
        }
        failure
    }

    /// Reports that a sandboxed agent exited. It may lack a file that is not mounted.
    pub(crate) fn sandboxed_agent_exited(agent: &str, reason: &CloseReason) -> Self {
        Self::agent_exited(agent, reason).with_hint(
            "mount missing files: the sandbox contains the system, the mounts, and the program itself",
        )
    }

    pub(crate) fn agent_ended(agent: &str, why: &str) -> Self {
        Self::new(ExitStatus::Agent, line(&format!("the agent {agent:?} was stopped: {why}")))
            .with_hint("see what the agent did in the audit log: narrows audit show")
    }

    pub(crate) fn chain_closed(why: &str) -> Self {
        Self::new(ExitStatus::Agent, line(&format!("left the proxy chain because of the agent: {why}")))
            .with_hint("see what the agent did in the audit log: narrows audit show")
    }
}
