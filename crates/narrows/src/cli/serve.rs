//! The arguments of `narrows serve` and `narrows approve`.

use std::path::PathBuf;

use clap::Args;
use narrows_bus::config::ListenerSettings;

use super::value::{Deadline, deadline};
use super::{CheckFormat, ListenerArgs, ModelArgs, help};

/// Serve a governed agent described by a manifest
///
/// The manifest is an ACP.md with the files it refers to: OPERATOR.md, GOVERNANCE.md, policies and AGENT-CLI.md. A
/// manifest of kind `bridge` runs the agent of its AGENT-CLI.md on stdio, as editors expect it. With kind `server`
/// the built-in agent plays the operator; its model comes from the options below, the OPENAI_ environment variables
/// or narrows.toml. With kind `client` one turn runs with the agent of its AGENT-CLI.md, and the answer is printed.
///
/// Policies decide every tool call before it is shown or run, and every decision is in the audit log before it takes
/// effect. If it cannot be recorded, the action is refused. `narrows audit verify` checks the log.
///
/// The first start trusts the manifest and every file it refers to. If one of them changes later, nothing is served
/// until the change is approved, with --approve or at the terminal.
///
/// With --listen many clients can connect. Each has its own gate, agent and sessions; all share one audit log. A
/// client on stdio is the user who started this command, and a client on a local socket is the user at its other end.
/// Over HTTP and WebSocket, a token or a certificate can identify the client, and must if the listener is reachable
/// from other machines. A client sees only its own sessions. Without --identities, --tokens and --client-ca, only the
/// user of this process is admitted.
#[derive(Args, Debug)]
#[command(
    after_help = help::examples(help::SERVE),
    after_long_help = help::settings_with_codes(help::SERVE, help::SERVE_CODES)
)]
pub(crate) struct Serve {
    /// ACP.md, or its directory
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,

    /// Workspace: sessions and all files must be inside [default: directory of the ACP.md]
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,

    /// Address to listen on: ws://127.0.0.1:8787/acp, wss://, http://, https://, tcp://127.0.0.1:9000, unix:PATH or
    /// stdio: [default: stdio:, or ws://127.0.0.1:8787/acp if the manifest requires WebSocket]
    ///
    /// May be repeated. ws:// and http:// are the same, and so are wss:// and https://. After a client has closed its
    /// input, its requests are still answered for the time of --deadline close. SIGTERM, SIGHUP and Ctrl-C close all
    /// connections and stop their agents.
    #[arg(long, value_name = "URL", value_parser = super::bus::parse_listener, conflicts_with_all = ["approve", "for_bus"])]
    pub(crate) listen: Vec<ListenerSettings>,

    /// Maximum number of clients
    ///
    /// If several identities may connect, one identity gets at most three quarters of the slots. If all slots are
    /// taken, detached resumable connections are closed to make room.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000), requires = "listen")]
    pub(crate) max_connections: u32,

    /// TOML file with the identities of other clients, and the tools they may use
    ///
    /// The file must be outside of the workspace. Each `[[identity]]` has who = "user:bob", "uid:1001", "token:NAME",
    /// "cert:NAME", "bus:token:NAME" or "tcp:loopback". To limit the tools, it also has scopes = ["read_file",
    /// "notes/*", "kind:read"].
    #[arg(long, value_name = "FILE")]
    pub(crate) identities: Option<PathBuf>,

    /// Socket for approvals from other processes [default: a socket in your runtime directory]
    ///
    /// PATH must not exist. `narrows approve --socket PATH` connects to it.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["approve", "for_bus", "self_test"])]
    pub(crate) admin_socket: Option<PathBuf>,

    /// Group that may connect to the admin socket, to list pending approvals and sign them
    ///
    /// A name or a number. Members still need a key of the governance to approve.
    #[arg(long, value_name = "GROUP", requires = "admin_socket")]
    pub(crate) admin_group: Option<String>,

    /// Used by a bus, which names the client first
    #[arg(long, hide = true)]
    pub(crate) for_bus: bool,

    /// Trust the manifest as it is now, after a change, and exit
    #[arg(long)]
    pub(crate) approve: bool,

    /// Test the manifest against the thirty points of AIP-44 and exit
    ///
    /// A scripted client talks through the gate to a scripted agent, and the agent of the manifest is initialized.
    /// The log, the trusted files and the files of the workspace are not changed. The exit code is 1 if a point
    /// fails.
    #[arg(long, conflicts_with_all = ["approve", "prompt"])]
    pub(crate) self_test: bool,

    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = CheckFormat::Text, requires = "self_test")]
    pub(crate) format: CheckFormat,

    /// The same as --format json
    #[arg(long, conflicts_with = "format", requires = "self_test")]
    pub(crate) json: bool,

    /// Directory for trusted digests and the sessions of the built-in agent [default: narrows in your data directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,

    /// Time limit, such as silence=20m: a number and ms, s, m or h; seconds without a unit; may be repeated;
    /// overrides `[deadlines]` in narrows.toml [defaults: initialize=30s authenticate=5m new=60s load=2m set=10s
    /// other=2m silence=10m cancel=10s close=5s terminate=5s write=10s permission=5m service=10m]
    #[arg(long = "deadline", value_name = "NAME=TIME", value_parser = deadline)]
    pub(crate) deadlines: Vec<Deadline>,

    /// Prompt of the single turn of a manifest of kind `client`
    #[arg(value_name = "PROMPT", last = true)]
    pub(crate) prompt: Vec<String>,

    #[command(flatten)]
    pub(crate) web: ListenerArgs,

    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// Approve or reject a pending action of a governed agent
///
/// This is for actions that, by policy, only signers may approve. The decision is signed with a key from `narrows
/// audit keygen`. The signature covers the tool and its exact input. It counts if the key is in the keyring of the
/// governance.
#[derive(Args, Debug)]
#[command(
    after_help = help::examples(help::APPROVE),
    after_long_help = help::short_reference(help::APPROVE, help::APPROVE_CODES, help::APPROVE_VARIABLES)
)]
pub(crate) struct Approve {
    /// Pending action, as shown by --list
    #[arg(value_name = "ID", required_unless_present = "list")]
    pub(crate) id: Option<String>,

    /// List pending actions, one per line; long inputs are shortened
    #[arg(long, conflicts_with_all = ["id", "reject", "key", "show"])]
    pub(crate) list: bool,

    /// Show all details of a pending action: the input, what the agent displays, and its approvers
    #[arg(long, conflicts_with_all = ["reject", "key"])]
    pub(crate) show: bool,

    /// Reject the action, with a reason
    #[arg(long, value_name = "WHY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) reject: Option<String>,

    /// Private key to sign with
    #[arg(long, value_name = "FILE", required_unless_present_any = ["list", "show"])]
    pub(crate) key: Option<PathBuf>,

    /// Admin socket of the serving process [default: those of all your processes]
    ///
    /// To approve an action of another user's `narrows serve`, use the path of its --admin-socket.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// With --list or --show, print a JSON object
    #[arg(long, conflicts_with_all = ["reject", "key"])]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use narrows_govern::GateTimeouts;

    use super::*;

    #[test]
    fn the_help_lists_the_default_deadlines() {
        let help = Serve::augment_args(clap::Command::new("serve")).render_long_help().to_string();
        let (_, rest) = help.split_once("[defaults:").expect("the help lists the defaults");
        let (told, _) = rest.split_once(']').expect("the processes end");
        let mut patience = GateTimeouts::default();
        let told: Vec<Deadline> = told.split_whitespace().map(|word| deadline(word).expect(word)).collect();
        assert_eq!(told.iter().map(|it| it.name).collect::<Vec<_>>(), GateTimeouts::NAMES);
        for Deadline { name, time } in told {
            assert_eq!(patience.by_name_mut(name).copied(), Some(time), "{name}");
        }
    }
}
