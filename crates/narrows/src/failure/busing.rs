//! What to say when a bus cannot be started or asked.

use std::path::{Path, PathBuf};

use narrows_base::suggest::nearest;
use narrows_bus::admin::AskError;
use narrows_bus::config::Place;
use narrows_bus::config::{Door, Listen, Web};
use narrows_bus::{ListenError, OwnersError, StartError};
use narrows_process::SpawnError;
use narrows_remote::server::BindError;
use narrows_remote::tokens::TokenError;

use super::papers::{about_listener, about_tokens};
use super::{Code, Failure};
use crate::terminal::line;

impl Failure {
    /// Nobody could come in.
    pub(crate) fn nowhere_to_listen() -> Self {
        Self::new(Code::Usage, "nobody can come in: nothing says where to listen")
            .hint("say where: --listen tcp://127.0.0.1:9000, --listen unix:/PATH or --stdio")
    }

    /// There is neither a file nor a command.
    pub(crate) fn nothing_to_serve() -> Self {
        Self::new(Code::Usage, "nothing says which agents to start")
            .hint("put an agent behind everything else: `-- narrows acp`; or name a file: --config bus.toml")
    }

    /// Words stand before `--`, or there is none.
    pub(crate) fn stray_words(words: &[String]) -> Self {
        let first = words.first().map_or("", String::as_str);
        let failure = Self::new(Code::Usage, line(&format!("{first:?} stands where no agent is looked for")));
        match nearest(first, ["status"]) {
            Some(near) => failure.hint(format!("did you mean `narrows bus {near}`?")),
            None => failure
                .hint(line(&format!("an agent and its arguments stand behind `--`: -- {}", words.join(" ")))),
        }
    }

    /// A file of tokens cannot be used.
    pub(crate) fn tokens(file: &Path, error: &TokenError) -> Self {
        let failure = Self::new(Code::Usage, line(&error.to_string()));
        let file = file.display();
        match error {
            TokenError::Exposed(_) => failure.hint(about_tokens(error)),
            TokenError::Absent(_) => {
                failure.hint(line(&format!("`narrows token list --file {file}` shows which there are")))
            }
            TokenError::Name(_) => {
                failure.hint("a name has letters, digits, `.`, `_`, `-`, `@` and `+`, and at most 64 of them")
            }
            TokenError::Taken(name) => failure
                .hint("it still holds, and none was made; a token is shown once, and cannot be shown again")
                .hint(line(&format!(
                    "for another machine take another name; if it is lost or known to others, `narrows token revoke {name} --file {file}` first: \
                     sessions belong to the name, and the next token of it sees them"
                ))),
            _ => failure,
        }
    }

    /// A token cannot be written to a file.
    pub(crate) fn token_file(path: &Path, error: &std::io::Error) -> Self {
        let failure =
            Self::new(Code::Usage, line(&format!("--out: {path:?} cannot be written"))).because(error);
        match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                failure.hint("nothing is written over, and no token was made; name another file")
            }
            _ => failure.hint("no token was made"),
        }
    }

    /// A door of the network leads nowhere.
    pub(crate) fn web_address(web: &Web, error: &std::io::Error) -> Self {
        Self::new(Code::Usage, line(&format!("{web} is no address of this machine: {error}")))
    }

    /// A door of the network cannot be opened.
    pub(crate) fn front(error: &BindError) -> Self {
        match error {
            BindError::Address { address, error } if error.kind() == std::io::ErrorKind::AddrInUse => {
                Self::door(&ListenError::InUse(address.to_string()))
            }
            BindError::File(error) => {
                Self::new(Code::Usage, line(&format!("cannot listen: {error}"))).hint(about_listener(error))
            }
            _ => Self::new(Code::Usage, line(&format!("cannot listen: {error}"))),
        }
    }

    /// Two places of which only one can be had.
    pub(crate) fn listened_twice(one: &Door, other: &Door) -> Self {
        let failure = Self::new(Code::Usage, line(&format!("{one} is listened on already")));
        match one.instead(other) {
            Some(hint) => failure.hint(hint),
            None => failure.hint(line(&format!("leave one of them out; the other is {other}"))),
        }
    }

    /// Whoever comes in somewhere is to be served by nobody.
    pub(crate) fn unknown_pool<'a>(listen: &Listen, names: impl Iterator<Item = &'a str> + Clone) -> Self {
        let wanted = listen.pool.as_deref().unwrap_or_default();
        let failure = Self::new(Code::Usage, line(&format!("{}: there is no pool {wanted:?}", listen.at)));
        match nearest(wanted, names.clone()) {
            Some(near) => failure.hint(format!("did you mean {near:?}?")),
            None => {
                let names: Vec<&str> = names.collect();
                failure.hint(format!("there is {}", names.join(", ")))
            }
        }
    }

    /// The workers of a pool would serve nothing.
    pub(crate) fn unserved_manifest(manifest: &Path, first: &narrows_manifest::Finding) -> Self {
        let narrows_manifest::Finding { file, line: row, column, message, .. } = first;
        let what = format!("{}:{row}:{column}: {message}", file.display());
        Self::new(Code::Usage, line(&format!("the manifest {} cannot be served: {what}", manifest.display())))
            .hint(line(&format!("see all that is wrong with it: narrows check {}", manifest.display())))
    }

    /// A door cannot be opened.
    pub(crate) fn door(error: &ListenError) -> Self {
        let failure = Self::new(Code::Usage, line(&error.to_string()));
        match error {
            ListenError::InUse(_) => failure.hint("perhaps a bus runs already: narrows bus status"),
            ListenError::NotASocket(_) => failure.hint("name another path, or remove that file yourself"),
            ListenError::NotLoopback(_) => {
                failure.hint("whoever connects may use the agents, so only this machine can; others need https:// or wss:// with `auth`")
            }
            _ => failure,
        }
    }

    /// A bus cannot be started, or not be changed. `place` is where the command of the pool stands that this is about, if it is in a file.
    pub(crate) fn bus(error: &StartError, place: Option<&Place>) -> Self {
        match error {
            StartError::Listen(error) => Self::door(error),
            StartError::Program { pool, source } => {
                let place = place.map(|place| format!("{}: ", line(&place.to_string()))).unwrap_or_default();
                let failure =
                    Self::new(Code::Start, format!("{place}the agents of pool {pool:?} cannot be started"));
                match source {
                    SpawnError::NotFound { program, .. } if program.to_string_lossy().contains(' ') => failure
                        .because(source)
                        .hint("no shell takes it apart: write it as words, `-- narrows acp` or command = [\"narrows\", \"acp\"]"),
                    SpawnError::NotFound { .. } => failure
                        .because(source)
                        .hint("install it, or give the path to it; `narrows check` looks for all of them"),
                    _ => failure.because(source),
                }
            }
            StartError::Unlimited { .. } => Self::new(Code::Usage, line(&error.to_string()))
                .hint("leave `memory` and `pids` of the pool out, or limit the whole bus from outside"),
            StartError::Descriptors { .. } => Self::new(Code::Usage, line(&error.to_string()))
                .hint("lower `instances`, or raise the limit: `ulimit -H -n` shows it"),
            StartError::Owners(OwnersError::InUse(_)) => Self::new(Code::Usage, line(&error.to_string()))
                .hint(
                    "one bus of a user asks clients who they are; another needs an XDG_DATA_HOME of its own",
                ),
            StartError::Owners(_) => Self::new(Code::Usage, line(&error.to_string())),
            StartError::NoPlace => Self::new(Code::Usage, line(&error.to_string()))
                .hint("neither XDG_DATA_HOME nor HOME says where your data is"),
            StartError::Io(_) => Self::new(Code::Internal, line(&error.to_string())),
        }
    }

    /// A bus has ended, and not because it was told to.
    pub(crate) fn bus_failed(reason: &str) -> Self {
        Self::new(Code::Internal, format!("the bus has failed: {}", line(reason)))
    }

    /// There is no bus to be asked.
    pub(crate) fn no_bus(directory: Option<&Path>) -> Self {
        let message = match directory {
            Some(directory) => format!("no bus runs: nobody listens in {}", directory.display()),
            None => "no bus is found: neither XDG_RUNTIME_DIR nor HOME says where to look".to_owned(),
        };
        Self::new(Code::Agent, line(&message))
            .hint("start one with `narrows bus`, or say where its admin socket is: --socket PATH")
    }

    /// There are several.
    pub(crate) fn several_buses(sockets: &[PathBuf]) -> Self {
        let failure = Self::new(Code::Usage, "several buses run");
        sockets.iter().fold(failure, |failure, path| {
            failure.hint(line(&format!("narrows bus status --socket {}", path.display())))
        })
    }

    /// A bus does not say how it is.
    pub(crate) fn bus_asked(socket: &Path, error: &AskError) -> Self {
        let failure = Self::new(Code::Agent, line(&format!("{}: {error}", socket.display())));
        match error {
            AskError::Nobody(_) => {
                failure.hint("start one with `narrows bus`, which says where its socket is")
            }
            AskError::Clients => failure.hint(
                "the bus says where operators come in when it starts; without --socket it is looked for",
            ),
            AskError::Late(_) => failure.hint("its process may be stopped, or the machine too busy"),
            _ => failure,
        }
    }
}
