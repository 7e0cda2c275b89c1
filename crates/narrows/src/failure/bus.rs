//! Failures of `narrows bus` and `narrows bus status`.

use std::path::{Path, PathBuf};

use narrows_base::suggest::nearest;
use narrows_bus::admin::AskError;
use narrows_bus::config::{Door, Listen, Web};
use narrows_bus::{ListenError, OwnersError, StartError};
use narrows_process::SpawnError;
use narrows_remote::server::BindError;
use narrows_remote::tokens::TokenError;

use super::credentials::{listener_hint, token_hint};
use super::{ExitStatus, Failure};
use crate::terminal::line;

impl Failure {
    pub(crate) fn no_listener() -> Self {
        Self::new(ExitStatus::Usage, "nobody can come in: nothing says where to listen")
            .with_hint("say where: --listen tcp://127.0.0.1:9000, --listen unix:/PATH or --stdio")
    }

    /// Neither a configuration file nor a command is given.
    pub(crate) fn no_pool() -> Self {
        Self::new(ExitStatus::Usage, "nothing says which agents to start").with_hint(
            "put an agent behind everything else: `-- narrows acp`; or name a file: --config bus.toml",
        )
    }

    /// Words precede `--`, or `--` is missing.
    pub(crate) fn unexpected_words(words: &[String]) -> Self {
        let first = words.first().map_or("", String::as_str);
        let failure =
            Self::new(ExitStatus::Usage, line(&format!("{first:?} stands where no agent is looked for")));
        match nearest(first, ["status"]) {
            Some(near) => failure.with_hint(format!("did you mean `narrows bus {near}`?")),
            None => failure.with_hint(line(&format!(
                "an agent and its arguments stand behind `--`: -- {}",
                words.join(" ")
            ))),
        }
    }

    pub(crate) fn token_file_invalid(file: &Path, error: &TokenError) -> Self {
        let failure = Self::new(ExitStatus::Usage, line(&error.to_string()));
        let file = file.display();
        match error {
            TokenError::Exposed(_) => failure.with_hint(token_hint(error)),
            TokenError::Absent(_) => {
                failure.with_hint(line(&format!("`narrows token list --file {file}` shows which there are")))
            }
            TokenError::Name(_) => {
                failure.with_hint("a name has letters, digits, `.`, `_`, `-`, `@` and `+`, and at most 64 of them")
            }
            TokenError::Taken(name) => failure
                .with_hint("it still holds, and none was made; a token is shown once, and cannot be shown again")
                .with_hint(line(&format!(
                    "for another machine take another name; if it is lost or known to others, `narrows token revoke {name} --file {file}` first: \
                     sessions belong to the name, and the next token of it sees them"
                ))),
            _ => failure,
        }
    }

    pub(crate) fn token_file_unwritable(path: &Path, error: &std::io::Error) -> Self {
        let failure = Self::new(ExitStatus::Usage, line(&format!("--out: {path:?} cannot be written")))
            .with_cause(error);
        match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                failure.with_hint("nothing is written over, and no token was made; name another file")
            }
            _ => failure.with_hint("no token was made"),
        }
    }

    pub(crate) fn web_address_unresolved(web: &Web, error: &std::io::Error) -> Self {
        Self::new(ExitStatus::Usage, line(&format!("{web} is no address of this machine: {error}")))
    }

    pub(crate) fn web_listener(error: &BindError) -> Self {
        match error {
            BindError::Address { address, error } if error.kind() == std::io::ErrorKind::AddrInUse => {
                Self::listener(&ListenError::InUse(address.to_string()))
            }
            BindError::File(error) => Self::new(ExitStatus::Usage, line(&format!("cannot listen: {error}")))
                .with_hint(listener_hint(error)),
            _ => Self::new(ExitStatus::Usage, line(&format!("cannot listen: {error}"))),
        }
    }

    pub(crate) fn duplicate_listener(one: &Door, other: &Door) -> Self {
        let failure =
            Self::new(ExitStatus::Usage, line(&format!("{one} is already used by another listener")));
        match one.instead(other) {
            Some(hint) => failure.with_hint(hint),
            None => failure.with_hint(line(&format!("leave one of them out; the other is {other}"))),
        }
    }

    /// A listener names an unknown pool.
    pub(crate) fn unknown_pool<'a>(listen: &Listen, names: impl Iterator<Item = &'a str> + Clone) -> Self {
        let wanted = listen.pool.as_deref().unwrap_or_default();
        let failure =
            Self::new(ExitStatus::Usage, line(&format!("{}: there is no pool {wanted:?}", listen.at)));
        match nearest(wanted, names.clone()) {
            Some(near) => failure.with_hint(format!("did you mean {near:?}?")),
            None => {
                let names: Vec<&str> = names.collect();
                failure.with_hint(format!("there is {}", names.join(", ")))
            }
        }
    }

    /// The manifest of a pool cannot be served.
    pub(crate) fn unservable_manifest(manifest: &Path, first: &narrows_manifest::Finding) -> Self {
        let narrows_manifest::Finding { file, line: row, column, message, .. } = first;
        let what = format!("{}:{row}:{column}: {message}", file.display());
        Self::new(
            ExitStatus::Usage,
            line(&format!("the manifest {} cannot be served: {what}", manifest.display())),
        )
        .with_hint(line(&format!("see all that is wrong with it: narrows check {}", manifest.display())))
    }

    pub(crate) fn listener(error: &ListenError) -> Self {
        let failure = Self::new(ExitStatus::Usage, line(&error.to_string()));
        match error {
            ListenError::InUse(_) => failure.with_hint("perhaps a bus runs already: narrows bus status"),
            ListenError::NotASocket(_) => failure.with_hint("use another path, or remove that file"),
            ListenError::NotLoopback(_) => {
                failure.with_hint("whoever connects may use the agents, so only this machine can; others need https:// or wss:// with `auth`")
            }
            _ => failure,
        }
    }

    /// A bus cannot be started or reloaded. `place` is the position of the affected pool's command in the file.
    pub(crate) fn bus_start(error: &StartError, place: Option<&str>) -> Self {
        match error {
            StartError::Listen(error) => Self::listener(error),
            StartError::Program { pool, source } => {
                let place = place.map(|place| format!("{}: ", line(place))).unwrap_or_default();
                let failure = Self::new(
                    ExitStatus::Start,
                    format!("{place}the agents of pool {pool:?} cannot be started"),
                );
                match source {
                    SpawnError::NotFound { program, .. } if program.to_string_lossy().contains(' ') => failure
                        .with_cause(source)
                        .with_hint("no shell takes it apart: write it as words, `-- narrows acp` or command = [\"narrows\", \"acp\"]"),
                    SpawnError::NotFound { .. } => failure
                        .with_cause(source)
                        .with_hint("install it, or give the path to it; `narrows check` looks for all of them"),
                    _ => failure.with_cause(source),
                }
            }
            StartError::Unlimited { .. } => Self::new(ExitStatus::Usage, line(&error.to_string()))
                .with_hint("leave `memory` and `pids` of the pool out, or limit the whole bus from outside"),
            StartError::Descriptors { .. } => Self::new(ExitStatus::Usage, line(&error.to_string()))
                .with_hint("lower `instances`, or raise the limit: `ulimit -H -n` shows it"),
            StartError::Owners(OwnersError::InUse(_)) => {
                Self::new(ExitStatus::Usage, line(&error.to_string())).with_hint(
                    "one bus of a user asks clients who they are; another needs an XDG_DATA_HOME of its own",
                )
            }
            StartError::Owners(_) => Self::new(ExitStatus::Usage, line(&error.to_string())),
            StartError::NoPlace => Self::new(ExitStatus::Usage, line(&error.to_string()))
                .with_hint("neither XDG_DATA_HOME nor HOME says where your data is"),
            StartError::Io(_) => Self::new(ExitStatus::Internal, line(&error.to_string())),
        }
    }

    /// The bus ended unexpectedly.
    pub(crate) fn bus_failed(reason: &str) -> Self {
        Self::new(ExitStatus::Internal, format!("the bus has failed: {}", line(reason)))
    }

    pub(crate) fn no_bus(directory: Option<&Path>) -> Self {
        let message = match directory {
            Some(directory) => format!("no bus runs: nobody listens in {}", directory.display()),
            None => "no bus is found: neither XDG_RUNTIME_DIR nor HOME says where to look".to_owned(),
        };
        Self::new(ExitStatus::Agent, line(&message))
            .with_hint("start one with `narrows bus`, or say where its admin socket is: --socket PATH")
    }

    pub(crate) fn several_buses(sockets: &[PathBuf]) -> Self {
        let failure = Self::new(ExitStatus::Usage, "several buses run");
        sockets.iter().fold(failure, |failure, path| {
            failure.with_hint(line(&format!("narrows bus status --socket {}", path.display())))
        })
    }

    /// The admin API does not answer.
    pub(crate) fn bus_status(socket: &Path, error: &AskError) -> Self {
        let failure = Self::new(ExitStatus::Agent, line(&format!("{}: {error}", socket.display())));
        match error {
            AskError::Nobody(_) => {
                failure.with_hint("start one with `narrows bus`, which says where its socket is")
            }
            AskError::Clients => failure.with_hint(
                "the bus says where operators come in when it starts; without --socket it is looked for",
            ),
            AskError::Late(_) => failure.with_hint("its process may be stopped, or the machine too busy"),
            _ => failure,
        }
    }
}
