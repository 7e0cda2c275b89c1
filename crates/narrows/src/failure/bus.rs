//! Failures of `narrows bus` and `narrows bus status`.

use std::path::{Path, PathBuf};

use narrows_base::suggest::nearest;
use narrows_bus::admin::AskError;
use narrows_bus::config::{ListenAddr, ListenerSettings, Web};
use narrows_bus::{ListenError, OwnersError, StartError};
use narrows_process::SpawnError;
use narrows_remote::server::BindError;
use narrows_remote::tokens::TokenError;

use super::credentials::{listener_hint, token_hint};
use super::{ExitStatus, Failure};
use crate::terminal::line;

impl Failure {
    pub(crate) fn no_listener() -> Self {
        Self::new(ExitStatus::Usage, "no listener configured")
            .with_hint("add --listen tcp://127.0.0.1:9000, --listen unix:/PATH or --stdio")
    }

    pub(crate) fn no_pool() -> Self {
        Self::new(ExitStatus::Usage, "no agent configured").with_hint(
            "add an agent after the options: `-- narrows acp`; or a configuration file: --config bus.toml",
        )
    }

    /// Reports words before `--`, or a missing `--`.
    pub(crate) fn unexpected_words(words: &[String]) -> Self {
        let first = words.first().map_or("", String::as_str);
        let failure =
            Self::new(ExitStatus::Usage, line(&format!("unexpected argument {first:?} before `--`")));
        match nearest(first, ["status"]) {
            Some(near) => failure.with_hint(format!("did you mean `narrows bus {near}`?")),
            None => failure
                .with_hint(line(&format!("put the command of the agent after `--`: -- {}", words.join(" ")))),
        }
    }

    pub(crate) fn token_file_invalid(file: &Path, error: &TokenError) -> Self {
        let failure = Self::new(ExitStatus::Usage, line(&error.to_string()));
        let file = file.display();
        match error {
            TokenError::Exposed(_) => failure.with_hint(token_hint(error)),
            TokenError::Absent(_) => {
                failure.with_hint(line(&format!("list the tokens: `narrows token list --file {file}`")))
            }
            TokenError::Name(_) => {
                failure.with_hint("use letters, digits, `.`, `_`, `-`, `@` and `+`, at most 64")
            }
            TokenError::Taken(name) => failure
                .with_hint("the existing token stays valid, and no new one was created; a token is only shown when \
                            it is created")
                .with_hint(line(&format!(
                    "use another name for another machine; to replace a lost token, run `narrows token revoke \
                     {name} --file {file}` first: the next token of this name has access to its sessions"
                ))),
            _ => failure,
        }
    }

    pub(crate) fn token_file_unwritable(path: &Path, error: &std::io::Error) -> Self {
        let failure =
            Self::new(ExitStatus::Usage, line(&format!("--out: cannot write {path:?}"))).with_cause(error);
        match error.kind() {
            std::io::ErrorKind::AlreadyExists => failure.with_hint(
                "use another file; existing files are never overwritten, and no token was created",
            ),
            _ => failure.with_hint("no token was created"),
        }
    }

    pub(crate) fn web_address_unresolved(web: &Web, error: &std::io::Error) -> Self {
        Self::new(ExitStatus::Usage, line(&format!("{web} is not an address of this machine: {error}")))
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

    pub(crate) fn duplicate_listener(one: &ListenAddr, other: &ListenAddr) -> Self {
        let failure = Self::new(ExitStatus::Usage, line(&format!("duplicate listener {one}")));
        match one.conflict_hint(other) {
            Some(hint) => failure.with_hint(hint),
            None => failure.with_hint(line(&format!("remove this listener or {other}"))),
        }
    }

    pub(crate) fn unknown_pool<'a>(
        listen: &ListenerSettings,
        names: impl Iterator<Item = &'a str> + Clone,
    ) -> Self {
        let wanted = listen.pool.as_deref().unwrap_or_default();
        let failure =
            Self::new(ExitStatus::Usage, line(&format!("{}: unknown pool {wanted:?}", listen.addr)));
        match nearest(wanted, names.clone()) {
            Some(near) => failure.with_hint(format!("did you mean {near:?}?")),
            None => {
                let names: Vec<&str> = names.collect();
                failure.with_hint(format!("configured: {}", names.join(", ")))
            }
        }
    }

    pub(crate) fn unservable_manifest(manifest: &Path, first: &narrows_manifest::Finding) -> Self {
        let narrows_manifest::Finding { file, line: row, column, message, .. } = first;
        let what = format!("{}:{row}:{column}: {message}", file.display());
        Self::new(
            ExitStatus::Usage,
            line(&format!("cannot serve the manifest {}: {what}", manifest.display())),
        )
        .with_hint(line(&format!("list all errors: narrows check {}", manifest.display())))
    }

    pub(crate) fn listener(error: &ListenError) -> Self {
        let failure = Self::new(ExitStatus::Usage, line(&error.to_string()));
        match error {
            ListenError::InUse(_) => failure.with_hint("check if another bus is running: narrows bus status"),
            ListenError::NotASocket(_) => failure.with_hint("use another path, or remove the file"),
            ListenError::Locked(_) => failure.with_hint("use a directory that only you can read"),
            ListenError::NotLoopback(_) => failure.with_hint(
                "listen on this machine only, as every client may use the agents; other machines \
                                   need https:// or wss:// with `auth`",
            ),
            _ => failure,
        }
    }

    /// Returns the failure to start or reload a bus. `place` is the position of the affected pool's command
    /// in the file.
    pub(crate) fn bus_start(error: &StartError, place: Option<&str>) -> Self {
        match error {
            StartError::Listen(error) => Self::listener(error),
            StartError::Program { pool, source } => {
                let place = place.map(|place| format!("{}: ", line(place))).unwrap_or_default();
                let failure =
                    Self::new(ExitStatus::Start, format!("{place}cannot start the agents of pool {pool:?}"));
                match source {
                    SpawnError::NotFound { program, .. } if program.to_string_lossy().contains(' ') => {
                        failure.with_cause(source).with_hint(
                            "write the command as separate words, as no shell splits it: `-- narrows acp` or \
                                    command = [\"narrows\", \"acp\"]",
                        )
                    }
                    SpawnError::NotFound { .. } => failure.with_cause(source).with_hint(
                        "install the program, or use its path; `narrows check` finds all missing programs",
                    ),
                    _ => failure.with_cause(source),
                }
            }
            StartError::UnenforceableLimit { .. } => Self::new(ExitStatus::Usage, line(&error.to_string()))
                .with_hint("remove `memory` and `pids` of the pool, or limit the whole bus from outside"),
            StartError::Descriptors { .. } => Self::new(ExitStatus::Usage, line(&error.to_string()))
                .with_hint("lower `instances`, or raise the limit that `ulimit -H -n` shows"),
            StartError::Owners(OwnersError::InUse(_)) => Self::new(
                ExitStatus::Usage,
                line(&error.to_string()),
            )
            .with_hint(
                "set XDG_DATA_HOME to another directory: buses that authenticate clients cannot share one",
            ),
            StartError::Owners(_) => Self::new(ExitStatus::Usage, line(&error.to_string())),
            StartError::MissingOwnersFile => {
                Self::new(ExitStatus::Usage, line(&error.to_string())).with_hint("set XDG_DATA_HOME or HOME")
            }
            StartError::Io(_) => Self::new(ExitStatus::Internal, line(&error.to_string())),
        }
    }

    pub(crate) fn bus_failed(reason: &str) -> Self {
        Self::new(ExitStatus::Internal, format!("the bus failed: {}", line(reason)))
    }

    pub(crate) fn no_bus(directory: Option<&Path>) -> Self {
        let message = match directory {
            Some(directory) => {
                format!("no bus is running: no admin socket in {} accepts connections", directory.display())
            }
            None => "no bus found: neither XDG_RUNTIME_DIR nor HOME is set".to_owned(),
        };
        Self::new(ExitStatus::Agent, line(&message))
            .with_hint("start a bus with `narrows bus`, or set its admin socket: --socket PATH")
    }

    pub(crate) fn several_buses(sockets: &[PathBuf]) -> Self {
        let failure = Self::new(ExitStatus::Usage, "several buses are running");
        sockets.iter().fold(failure, |failure, path| {
            failure.with_hint(line(&format!("narrows bus status --socket {}", path.display())))
        })
    }

    pub(crate) fn bus_status(socket: &Path, error: &AskError) -> Self {
        let failure = Self::new(ExitStatus::Agent, line(&format!("{}: {error}", socket.display())));
        match error {
            AskError::NotListening(_) => {
                failure.with_hint("start a bus with `narrows bus`, which prints its admin socket")
            }
            AskError::ClientSocket => {
                failure.with_hint("use the admin socket that the bus prints when it starts, or omit --socket")
            }
            AskError::Timeout(_) => {
                failure.with_hint("check if the process of the bus is stopped, or the machine overloaded")
            }
            _ => failure,
        }
    }
}
