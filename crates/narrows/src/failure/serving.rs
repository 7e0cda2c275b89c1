//! What to say when a manifest cannot be served, or what it serves goes wrong.

use std::io;
use std::path::Path;

use narrows_audit::{AppendError, OpenError};
use narrows_bus::config::Web;
use narrows_bus::listen::ListenError;
use narrows_govern::Outside;
use narrows_link::CloseReason;
use narrows_manifest::version::VersionError;
use narrows_remote::server::BindError;
use narrows_remote::tls::TlsError;

use super::papers::about_tls;
use super::{Code, Failure};
use crate::terminal::line;

/// What a file of identities looks like.
pub(crate) const IDENTITIES: &str =
    "it looks like this: [[identity]] who = \"user:bob\" scopes = [\"kind:read\"]";

impl Failure {
    /// There is nothing to say to an agent.
    pub(crate) fn unprompted() -> Self {
        Self::new(Code::Usage, "a manifest of the kind client needs a prompt")
            .hint("write it behind two hyphens: narrows serve ACP.md -- \"Hello\"")
    }

    /// A prompt is given to what is asked by its client.
    pub(crate) fn prompt_for(kind: &str) -> Self {
        Self::new(Code::Usage, format!("a manifest of the kind {kind} takes no prompt: its client has it"))
    }

    /// A server has nobody to be.
    pub(crate) fn no_operator() -> Self {
        Self::new(Code::Usage, "a manifest of the kind server needs an operator")
            .hint("write an OPERATOR.md, and metadata.aip44.operator: ./OPERATOR.md in the ACP.md")
    }

    /// The built-in agent has ended by itself.
    pub(crate) fn operator_gone() -> Self {
        Self::new(Code::Internal, "the built-in agent has ended by itself")
    }

    /// A manifest wants a transport that nobody has asked for.
    pub(crate) fn websocket_only() -> Self {
        Self::new(Code::Usage, "the manifest is for WebSocket only, and no --listen is").hint(
            "add --listen ws://127.0.0.1:8787/acp, or write transport: [stdio, websocket] in the ACP.md",
        )
    }

    /// What is said about HTTP and WebSocket is of no use.
    pub(crate) fn no_web_place() -> Self {
        let flags = "--tokens, --cert, --key, --client-ca, --host, --origin and --limit";
        Self::new(Code::Usage, format!("{flags} are about HTTP and WebSocket, and no --listen is"))
            .hint("add --listen ws://127.0.0.1:8787/acp")
    }

    /// A place is to be safe, and nothing says how.
    pub(crate) fn no_certificate(web: &Web) -> Self {
        Self::new(Code::Usage, line(&format!("{web} needs a certificate")))
            .hint("name its files: --cert cert.pem --key key.pem")
    }

    /// A certificate is of no use where nothing is secret.
    pub(crate) fn certificate_for_nothing() -> Self {
        Self::new(Code::Usage, "--cert and --key mean something only with --listen wss:// or https://")
    }

    /// There is no TLS with these files.
    pub(crate) fn certificate(error: &TlsError) -> Self {
        Self::new(Code::Usage, line(&format!("the certificate cannot be used: {error}")))
            .hint(about_tls(error))
    }

    /// Others than this machine could come in without a proof, or be listened to.
    pub(crate) fn unguarded(web: &Web) -> Self {
        Self::new(Code::Usage, line(&format!("{web} can be reached from other machines")))
            .hint("that needs wss:// or https:// with --cert and --key, and --tokens or --client-ca")
    }

    /// The agent could say who may come in, or read what must stay secret.
    pub(crate) fn inside(flag: &str, path: &Path) -> Self {
        let shown = path.display().to_string();
        Self::new(
            Code::Usage,
            line(&format!("{flag} {shown:?} lies in the workspace, where an agent could use it")),
        )
        .hint("keep it elsewhere")
    }

    /// Nobody comes in where one turn is run.
    pub(crate) fn nobody_comes_in() -> Self {
        Self::new(Code::Usage, "a manifest of the kind client runs one turn and listens nowhere")
    }

    /// There are no pools to choose from.
    pub(crate) fn pool_of_nobody(pool: &str) -> Self {
        Self::new(Code::Usage, line(&format!("--listen names a pool, {pool:?}, and only a bus has pools")))
    }

    /// The agent could say who may come in.
    pub(crate) fn identities_inside(path: &Path) -> Self {
        let message =
            format!("{:?} lies in the workspace, where an agent could change it", path.display().to_string());
        Self::new(Code::Usage, line(&message)).hint("keep the file of --identities elsewhere")
    }

    /// It cannot be read who may come in.
    pub(crate) fn bad_identities(path: &Path, error: &dyn std::error::Error) -> Self {
        Self::new(Code::Usage, line(&format!("{}:{error}", path.display()))).hint(IDENTITIES)
    }

    /// The same of a place for HTTP and WebSocket.
    pub(crate) fn serve_front(error: &BindError) -> Self {
        match error {
            BindError::Address { address, error } if error.kind() == io::ErrorKind::AddrInUse => {
                Self::serve_door(&ListenError::InUse(address.to_string()))
            }
            error => Self::front(error),
        }
    }

    /// A place where clients or signers are to come in cannot be had.
    pub(crate) fn serve_door(error: &ListenError) -> Self {
        match error {
            ListenError::InUse(_) => Self::new(Code::Usage, line(&error.to_string()))
                .hint("another `narrows serve`, or a bus, is there already: end it, or name another place"),
            error => Self::door(error),
        }
    }

    /// There is no manifest.
    pub(crate) fn no_manifest(path: &Path, error: &io::Error) -> Self {
        let message = format!("there is no manifest {:?}", path.display().to_string());
        Self::new(Code::Usage, line(&message)).because(error).hint(
            "name an ACP.md, or the directory it lies in; `narrows check --print-schema acp` prints what belongs into it",
        )
    }

    /// There is no workspace.
    pub(crate) fn no_root(path: &Path) -> Self {
        let message = format!("--root: {:?} is no directory", path.display().to_string());
        Self::new(Code::Usage, line(&message))
            .hint("name the directory of the workspace, with the ACP.md in it")
    }

    /// There is no place for where signers come in.
    pub(crate) fn admin_nowhere(path: &Path) -> Self {
        let message =
            format!("the directory of --admin-socket {:?} is not there", path.display().to_string());
        Self::new(Code::Usage, line(&message))
            .hint("make it so that the signers can enter it: install -d -m 750 -g GROUP DIR")
    }

    /// The agent could reach where signers come in.
    pub(crate) fn admin_inside(path: &Path) -> Self {
        let message = format!(
            "{:?} lies in the workspace, where an agent could replace it",
            path.display().to_string()
        );
        Self::new(Code::Usage, line(&message)).hint("put the --admin-socket elsewhere, such as below /run")
    }

    /// Nothing will ever wait for an approval.
    pub(crate) fn nothing_governed() -> Self {
        Self::new(Code::Usage, "--admin-socket is for approvals, and this manifest has no governance")
            .hint("leave it out, or write a GOVERNANCE.md and metadata.aip44.governance: ./GOVERNANCE.md")
    }

    /// There is no group of this name.
    pub(crate) fn no_group(group: &str) -> Self {
        Self::new(Code::Usage, line(&format!("--admin-group: there is no group {group:?} in /etc/group")))
            .hint("make one with `groupadd`, or give its number")
    }

    /// A group cannot be let in.
    pub(crate) fn admin_group(path: &Path, error: &io::Error) -> Self {
        let message = format!("--admin-group cannot be let in at {:?}", path.display().to_string());
        Self::new(Code::Usage, line(&message))
            .because(error)
            .hint("whoever serves has to be in that group, or root")
    }

    /// Nobody knows whose sessions are.
    pub(crate) fn no_owners(error: &io::Error) -> Self {
        Self::new(Code::Internal, "whose the sessions are cannot be read").because(error)
    }

    /// Somebody else than a bus has started us as a bus does.
    pub(crate) fn no_bus_before() -> Self {
        Self::new(Code::Usage, "--for-bus is for a bus, which says first who its client is")
    }

    /// Something that is governed would be recorded nowhere.
    pub(crate) fn unaudited() -> Self {
        Self::new(Code::Usage, "a governed manifest is not served without an audit log")
            .hint("take metadata.aip44.audit.kind: off out of the ACP.md")
    }

    /// The log would not be in the workspace.
    pub(crate) fn stray_log(path: &Path, outside: &Outside) -> Self {
        Self::new(
            Code::Usage,
            line(&format!("the audit log {:?} cannot be used", path.display().to_string())),
        )
        .because(outside)
        .hint("a log lies in the workspace, and no link leads out of it")
    }

    /// The log cannot be opened.
    pub(crate) fn unopened_log(path: &Path, error: &OpenError) -> Self {
        let message =
            format!("nothing is served, because {:?} cannot be written", path.display().to_string());
        let failure = Self::new(Code::Internal, line(&message)).because(error);
        match error {
            OpenError::Damaged(_) => failure
                .hint(line(&format!("see what is wrong with it: narrows audit verify {}", path.display()))),
            OpenError::Io(_) | OpenError::Locked => failure,
        }
    }

    /// Something could not be recorded, and so is not done.
    pub(crate) fn unrecorded(error: &AppendError) -> Self {
        Self::new(Code::Internal, "nothing is served, because it cannot be recorded").because(error)
    }

    /// There is no place to keep what is trusted.
    pub(crate) fn no_data_dir() -> Self {
        Self::new(
            Code::Usage,
            "there is no place to keep what is trusted: neither XDG_DATA_HOME nor HOME says one",
        )
        .hint("name one: --data-dir DIR")
    }

    /// A manifest is not what was trusted.
    pub(crate) fn changed(manifest: &Path, files: &[String]) -> Self {
        let message = format!("{} is not what was trusted: {}", manifest.display(), files.join(", "));
        let command = format!("narrows serve --approve {}", manifest.display());
        Self::new(Code::Usage, line(&message))
            .hint(line(&format!("look at what has changed, then: {command}")))
    }

    /// What is trusted cannot be kept.
    pub(crate) fn unpinned(path: &Path, error: &io::Error) -> Self {
        let message = format!("what is trusted cannot be kept in {:?}", path.display().to_string());
        Self::new(Code::Internal, line(&message)).because(error)
    }

    /// What an operator remembers is not what was written, or cannot be read.
    pub(crate) fn unsound_memory(path: &Path, error: &dyn std::error::Error) -> Self {
        let message = format!("memory-poisoned: {:?} cannot be trusted", path.display().to_string());
        Self::new(Code::Usage, line(&message)).because(error).hint(
            "the log has the digest of what was written, as memory.persisted; move the file away to begin anew",
        )
    }

    /// What an operator is to remember is lost.
    pub(crate) fn unkept_memory(path: &Path, error: &dyn std::error::Error) -> Self {
        let message =
            format!("what the operator is to remember cannot be kept in {:?}", path.display().to_string());
        Self::new(Code::Internal, line(&message))
            .because(error)
            .hint("the turns themselves are kept in their sessions")
    }

    /// A store outside is not named.
    pub(crate) fn no_external_memory() -> Self {
        Self::new(Code::Usage, "memory.kind external needs memory.external.uri")
            .hint("write external: {uri: ./memory}, or kind: operator-context")
    }

    /// A store outside is none that can be used.
    pub(crate) fn external_memory(uri: &str) -> Self {
        Self::new(Code::Usage, line(&format!("unmet-capability: memory.external {uri:?} is no directory")))
            .hint("only directories can be memories: uri: ./memory or file:///path, and a plain word as namespace")
    }

    /// A gate cannot be asked.
    pub(crate) fn no_gate(socket: &Path, error: &io::Error) -> Self {
        let message = format!("nobody who serves answers at {:?}", socket.display().to_string());
        let failure = Self::new(Code::Start, line(&message)).because(error);
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => failure
                .hint("`narrows serve --listen` says where approvals come in; without --socket all that you serve are asked"),
            io::ErrorKind::PermissionDenied => failure
                .hint("it is another user's: they let a group in with --admin-socket PATH --admin-group GROUP"),
            _ => failure,
        }
    }

    /// Nobody knows where gates are.
    pub(crate) fn no_runtime_dir() -> Self {
        Self::new(Code::Usage, "neither XDG_RUNTIME_DIR nor HOME says where the sockets are")
            .hint("name one: --socket PATH")
    }

    /// There is nothing of this name to approve.
    pub(crate) fn nothing_waits(id: &str) -> Self {
        Self::new(Code::Usage, line(&format!("nothing called {id:?} waits for an approval")))
            .hint("see what does: narrows approve --list")
    }

    /// Somebody's word does not count.
    pub(crate) fn not_approved(why: &str) -> Self {
        Self::new(Code::Denied, line(&format!("it does not count: {why}")))
    }

    /// A manifest that needs an agent has none.
    pub(crate) fn no_agent() -> Self {
        Self::new(Code::Usage, "there is no agent to be served")
            .hint("put an AGENT-CLI.md beside the ACP.md, or name one in the operator's runtime.ref")
    }

    /// The command that prints a version is none.
    pub(crate) fn unreadable_check(command: &str) -> Self {
        Self::new(Code::Usage, line(&format!("version_check.cmd is no command: {command:?}")))
    }

    /// The command that prints a version does not end.
    pub(crate) fn silent_check(command: &str, millis: u64) -> Self {
        Self::new(Code::Timeout, line(&format!("{command:?} did not print a version within {millis} ms")))
    }

    /// The agent that is installed is not one that the manifest is about.
    pub(crate) fn unfit_version(agent: &str, command: &str, error: &VersionError) -> Self {
        Self::new(
            Code::Start,
            line(&format!("the agent {agent:?} is not started: {command:?} tells against it")),
        )
        .because(error)
        .hint("install a version that its AGENT-CLI.md names in version_check.range")
    }

    /// The agent has gone by itself.
    pub(crate) fn agent_gone(agent: &str, reason: &CloseReason) -> Self {
        let mut failure =
            Self::new(Code::Agent, line(&format!("the agent {agent:?} has gone"))).because(reason);
        if let CloseReason::Exited { stderr, .. } = reason {
            failure.stderr.clone_from(stderr);
        }
        failure
    }

    /// The same of an agent in a sandbox, which may have missed something there.
    pub(crate) fn confined_agent_gone(agent: &str, reason: &CloseReason) -> Self {
        Self::agent_gone(agent, reason).hint(
            "if it has missed a file: its sandbox shows the system, what is mounted, and the program itself; mount the rest",
        )
    }

    /// The agent had to be ended.
    pub(crate) fn unruly(agent: &str, why: &str) -> Self {
        Self::new(Code::Agent, line(&format!("the agent {agent:?} was ended: {why}")))
            .hint("what it did is in the audit log: narrows audit show")
    }

    /// Whoever is the agent in a chain cannot be ended, so there is no chain with us in it.
    pub(crate) fn chain_left(why: &str) -> Self {
        Self::new(Code::Agent, line(&format!("the chain is left because of the agent behind: {why}")))
            .hint("what it did is in the audit log: narrows audit show")
    }
}
