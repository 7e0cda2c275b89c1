//! The arguments of `narrows serve` and `narrows approve`.

use std::path::PathBuf;

use clap::Args;
use narrows_bus::config::Listen;

use super::value::{Deadline, deadline};
use super::{CheckFormat, ModelArgs, WebArgs, help};

/// Serve an agent behind a gate, as a manifest says
///
/// The manifest is an ACP.md with the OPERATOR.md, GOVERNANCE.md, policies and AGENT-CLI.md that it leads to. Of the kind
/// `bridge` it starts the agent of its AGENT-CLI.md and speaks for it on stdin and stdout, as editors expect it. Of the kind
/// `server` the agent that is built in plays the operator, with the model that narrows.toml, the OPENAI_ variables or the
/// flags below name. Of the kind `client` one turn is run with the agent of its AGENT-CLI.md, and its answer printed.
///
/// Every call of a tool is decided by the policies before it is shown or run, and every decision is in the audit log
/// before it takes effect. Where nothing can be recorded nothing is done. `narrows audit verify` proves the log.
///
/// The first start trusts the manifest and every file it leads to. If one of them changes after that nothing is served
/// until --approve trusts it anew, or somebody at the terminal says yes.
///
/// With --listen any number of clients connect, and each has a gate, an agent and sessions of its own; all are in one log. Who a
/// client is the system tells: on stdin and stdout the user who has started this, on sockets of this machine the user at the other
/// end. Over HTTP and WebSocket a token or a certificate can say it instead, and has to where other machines come in. A client sees
/// its own sessions only. Without --identities, --tokens and --client-ca nobody else than the user as whom this runs is let in.
#[derive(Args, Debug)]
#[command(
    after_help = help::examples(help::SERVE),
    after_long_help = help::settings_with_codes(help::SERVE, help::SERVE_CODES)
)]
pub(crate) struct Serve {
    /// The ACP.md, or the directory it lies in
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,

    /// The workspace: nothing outside is read, and no session may work outside [default: where the ACP.md lies]
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,

    /// Where clients come in: ws://127.0.0.1:8787/acp, wss://, http://, https://, tcp://127.0.0.1:9000, unix:PATH or stdio:
    /// [default: stdio:, or ws://127.0.0.1:8787/acp if the manifest is for WebSocket only]
    ///
    /// Can be given several times. ws:// and http:// are the same, and so are wss:// and https://. A client that ends its input and
    /// still reads is answered what it has asked, for as long as --deadline close says. SIGTERM, SIGHUP and Ctrl-C end it: whoever is
    /// connected is hung up on, and their agents end.
    #[arg(long, value_name = "URL", value_parser = super::bus::parse_listener, conflicts_with_all = ["approve", "for_bus"])]
    pub(crate) listen: Vec<Listen>,

    /// How many clients there may be at once
    ///
    /// Where several identities may connect, one of them has at most three quarters of these. Connections that are kept for clients that
    /// may come back are closed for others if there is no room.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000), requires = "listen")]
    pub(crate) max_connections: u32,

    /// Who else may come in, and which tools they may cause to be used
    ///
    /// A TOML file outside of the workspace: `[[identity]]`, who = "user:bob", "uid:1001", "token:NAME", "cert:NAME", "bus:token:NAME" or "tcp:loopback", and if they may
    /// not cause everything that the operator may do, scopes = ["read_file", "notes/*", "kind:read"].
    #[arg(long, value_name = "FILE")]
    pub(crate) identities: Option<PathBuf>,

    /// Where signers come in who approve from elsewhere [default: a socket in your runtime directory]
    ///
    /// A path at which nothing is yet. `narrows approve --socket PATH` finds it there.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["approve", "for_bus", "self_test"])]
    pub(crate) admin_socket: Option<PathBuf>,

    /// Let the users of this group reach the admin socket, to see what waits and to sign for it
    ///
    /// A name or a number. What they sign counts as any other signature does: by the keys of the governance.
    #[arg(long, value_name = "GROUP", requires = "admin_socket")]
    pub(crate) admin_group: Option<String>,

    /// Started by a bus, which says first who the client is
    #[arg(long, hide = true)]
    pub(crate) for_bus: bool,

    /// Trust the manifest as it is now, after it has changed, and serve nothing
    #[arg(long)]
    pub(crate) approve: bool,

    /// Try the manifest out against the thirty points of AIP-44, tell what was seen, and serve nothing
    ///
    /// A scripted client talks through its gate to a scripted agent, and the agent of the manifest introduces itself. Neither
    /// the log, nor what is trusted, nor a file of the workspace is changed. The exit code is 1 if a point fails.
    #[arg(long, conflicts_with_all = ["approve", "prompt"])]
    pub(crate) self_test: bool,

    /// How to tell it
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = CheckFormat::Text, requires = "self_test")]
    pub(crate) format: CheckFormat,

    /// The same as --format json
    #[arg(long, conflicts_with = "format", requires = "self_test")]
    pub(crate) json: bool,

    /// Where it is kept what is trusted, and the sessions of the built-in agent [default: narrows in your data directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,

    /// How long something may take, such as silence=20m: a number and ms, s, m or h, and without a unit seconds; may be
    /// repeated, and wins over `[deadlines]` in narrows.toml
    /// [defaults: initialize=30s authenticate=5m new=60s load=2m set=10s other=2m silence=10m cancel=10s close=5s
    /// terminate=5s write=10s permission=5m service=10m]
    #[arg(long = "deadline", value_name = "NAME=TIME", value_parser = deadline)]
    pub(crate) deadlines: Vec<Deadline>,

    /// For a manifest of the kind `client`: the prompt of its one turn
    #[arg(value_name = "PROMPT", last = true)]
    pub(crate) prompt: Vec<String>,

    #[command(flatten)]
    pub(crate) web: WebArgs,

    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// Approve what a served agent wants to do, or reject it
///
/// For calls that a policy lets nobody but its signers approve. The word is signed with a key that `narrows audit keygen`
/// made, over exactly the tool and what it is called with, and counts if the governance names the key in its keyring.
#[derive(Args, Debug)]
#[command(
    after_help = help::examples(help::APPROVE),
    after_long_help = help::short_reference(help::APPROVE, help::APPROVE_CODES, help::APPROVE_VARIABLES)
)]
pub(crate) struct Approve {
    /// What waits, as --list tells it
    #[arg(value_name = "ID", required_unless_present = "list")]
    pub(crate) id: Option<String>,

    /// Tell what waits for an approval, a line each; of a long input how it begins
    #[arg(long, conflicts_with_all = ["id", "reject", "key", "show"])]
    pub(crate) list: bool,

    /// Show all of what waits under ID: the whole input, what the agent shows of it, who has to approve and who has
    #[arg(long, conflicts_with_all = ["reject", "key"])]
    pub(crate) show: bool,

    /// Reject it, and say why
    #[arg(long, value_name = "WHY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) reject: Option<String>,

    /// The private key to sign with
    #[arg(long, value_name = "FILE", required_unless_present_any = ["list", "show"])]
    pub(crate) key: Option<PathBuf>,

    /// The admin socket of the serving process [default: those of all that you run]
    ///
    /// To approve what another user serves, name the --admin-socket of their `narrows serve`.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// With --list or --show, print a JSON object
    #[arg(long, conflicts_with_all = ["reject", "key"])]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use narrows_govern::Patience;

    use super::*;

    #[test]
    fn the_help_lists_the_default_deadlines() {
        let help = Serve::augment_args(clap::Command::new("serve")).render_long_help().to_string();
        let (_, rest) = help.split_once("[defaults:").expect("they are told");
        let (told, _) = rest.split_once(']').expect("they end");
        let mut patience = Patience::default();
        let told: Vec<Deadline> = told.split_whitespace().map(|word| deadline(word).expect(word)).collect();
        assert_eq!(told.iter().map(|it| it.name).collect::<Vec<_>>(), Patience::NAMES);
        for Deadline { name, time } in told {
            assert_eq!(patience.named(name).copied(), Some(time), "{name}");
        }
    }
}
