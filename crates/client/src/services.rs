//! What the agent gets of this machine, each thing after it was decided about: files and commands.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use narrows_acp::method::{FS_READ_TEXT_FILE, FS_WRITE_TEXT_FILE, TERMINAL_CREATE};
use narrows_policy::{Action, Command, Kind};
use narrows_process::Environment;
use narrows_wire::{Code, RpcError};
use serde_json::json;
use tokio::time::timeout;

use crate::authority::{About, Authority, Denied};
use crate::host::confinement::Confinement;
use crate::host::files::{FileError, FileErrorKind, Files, Found};
use crate::host::terminal::{Create, Terminals};
use crate::mcp::{CommandService, FileService, Gate, Pending, Ran, Refusal, Run, ServiceError};

/// How often a file is looked for that is replaced just then.
const TRIES: usize = 8;

/// How much of the output of a command is kept if the agent does not say.
const OUTPUT: usize = 1 << 20;

/// Names of variables that an agent must not set: they run code of their own in whatever is started.
const HARMFUL: [&str; 8] =
    ["LD_", "DYLD_", "GIT_", "BASH_ENV", "ENV", "PYTHONSTARTUP", "NODE_OPTIONS", "PERL5OPT"];

/// The files and commands of one session.
pub(crate) struct Services {
    pub(crate) authority: Arc<Authority>,
    pub(crate) files: Files,
    pub(crate) terminals: Terminals,
    pub(crate) environment: Environment,
    /// What commands run in.
    pub(crate) confinement: Confinement,
    pub(crate) cwd: PathBuf,
}

/// Why a service was not rendered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unserved {
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{0}")]
    Terminal(String),
    #[error("{0}")]
    Invalid(String),
}

impl Unserved {
    /// What the agent is told.
    pub(crate) fn to_rpc(&self) -> RpcError {
        match self {
            Self::Denied(denied) => RpcError::new(Code::PolicyDenied, denied.to_string()),
            Self::File(error) => error.to_rpc(),
            Self::Terminal(reason) => RpcError::new(Code::Internal, reason.clone()),
            Self::Invalid(reason) => RpcError::new(Code::InvalidParams, reason.clone()),
        }
    }
}

/// A command that the agent wants to run.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) output_limit: Option<usize>,
}

impl Services {
    /// The text of a file.
    pub(crate) async fn read(
        self: &Arc<Self>,
        path: PathBuf,
        line: Option<u32>,
        limit: Option<u32>,
    ) -> Result<String, Unserved> {
        let about = |found: &Path| About {
            method: FS_READ_TEXT_FILE,
            title: format!("Read {}", path.display()),
            kind: "read",
            input: json!({"path": path}),
            paths: vec![found.to_owned()],
            ..About::default()
        };
        self.with(Kind::Read, &path, about, move |found| found.read(line, limit)).await
    }

    /// Replaces a file, or makes it.
    pub(crate) async fn write(self: &Arc<Self>, path: PathBuf, text: String) -> Result<(), Unserved> {
        let text: Arc<str> = text.into();
        let length = text.len();
        let about = |found: &Path| About {
            method: FS_WRITE_TEXT_FILE,
            title: format!("Write {}", path.display()),
            kind: "edit",
            input: json!({"path": path, "bytes": length}),
            paths: vec![found.to_owned()],
            ..About::default()
        };
        self.with(Kind::Edit, &path, about, move |found| found.write(&text)).await
    }

    /// Does `act` with a file, once it is decided that it may be done with the one that `path` leads to. If it leads
    /// elsewhere meanwhile, it is decided anew.
    async fn with<T: Send + 'static>(
        self: &Arc<Self>,
        kind: Kind,
        path: &Path,
        about: impl Fn(&Path) -> About,
        act: impl Fn(&Found) -> Result<T, FileError> + Clone + Send + 'static,
    ) -> Result<T, Unserved> {
        let mut permitted: Option<PathBuf> = None;
        let mut tries = TRIES;
        loop {
            let (services, asked) = (Arc::clone(self), path.to_owned());
            let found = match blocking(move || services.files.find(&asked)).await {
                Err(error) if *error.kind() == FileErrorKind::Outside => {
                    self.authority.out_of_reach(&about(path), &error.to_string()).await;
                    return Err(error.into());
                }
                found => found?,
            };
            if permitted.as_deref() != Some(found.path()) {
                self.authority.permit(&both(kind, path, found.path()), about(found.path())).await?;
                permitted = Some(found.path().to_owned());
            }
            let act = act.clone();
            tries -= 1;
            match blocking(move || act(&found)).await {
                Err(error) if *error.kind() == FileErrorKind::Changed && tries > 0 => {}
                outcome => return Ok(outcome?),
            }
        }
    }

    /// Starts a command, and returns the id of its terminal.
    pub(crate) async fn start(&self, wanted: Wanted) -> Result<String, Unserved> {
        let Wanted { program, args, env, cwd, output_limit } = wanted;
        if program.is_empty() {
            return Err(Unserved::Invalid("`command` is empty".to_owned()));
        }
        if let Some((name, _)) = env.iter().find(|(name, _)| is_harmful(name)) {
            return Err(Unserved::Invalid(format!("`env`: the variable {name:?} cannot be set")));
        }
        let cwd = cwd.unwrap_or_else(|| self.cwd.clone());
        if !cwd.is_absolute() {
            return Err(Unserved::Invalid("`cwd` must be absolute".to_owned()));
        }
        let argv: Vec<String> = std::iter::once(&program).chain(&args).cloned().collect();
        let about = About {
            method: TERMINAL_CREATE,
            title: format!("Run {}", argv.join(" ")),
            kind: "execute",
            input: json!({"command": program, "args": args, "cwd": cwd}),
            ..About::default()
        };
        let action = Action::execute(Command::Argv(argv), Some(cwd.clone()));
        let (sandbox, confined) = self.confinement.now().await;
        self.authority.permit_in(confined, &action, about).await?;
        let mut environment = self.environment.clone();
        for (name, value) in env {
            environment.set(name, value);
        }
        let create = Create {
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            env: environment,
            cwd,
            output_limit: output_limit.unwrap_or(OUTPUT),
            sandbox,
        };
        self.terminals.create(create).await.map_err(|error| Unserved::Terminal(error.to_string()))
    }
}

/// A file by the name it was asked by, and by where that leads.
fn both(kind: Kind, asked: &Path, found: &Path) -> Action {
    let mut action = Action::file(kind, found);
    if asked != found {
        action.paths.push(asked.to_owned());
    }
    action
}

fn is_harmful(name: &str) -> bool {
    HARMFUL.iter().any(|harmful| match harmful.ends_with('_') {
        true => name.to_ascii_uppercase().starts_with(harmful),
        false => name.eq_ignore_ascii_case(harmful),
    })
}

/// Does `work` where it may take its time.
async fn blocking<T: Send + 'static, E: Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// The services for agents that can only ask through MCP.
pub(crate) struct ThroughMcp(pub(crate) Arc<Services>);

fn words(unserved: &Unserved) -> ServiceError {
    ServiceError(unserved.to_string())
}

impl FileService for ThroughMcp {
    fn read(
        &self,
        path: PathBuf,
        line: Option<u32>,
        limit: Option<u32>,
    ) -> Pending<'_, Result<String, ServiceError>> {
        let path = self.0.cwd.join(path);
        Box::pin(async move { self.0.read(path, line, limit).await.map_err(|error| words(&error)) })
    }

    fn write(&self, path: PathBuf, text: String) -> Pending<'_, Result<(), ServiceError>> {
        let path = self.0.cwd.join(path);
        Box::pin(async move { self.0.write(path, text).await.map_err(|error| words(&error)) })
    }
}

/// Releases a terminal, whatever becomes of who used it.
struct Release {
    services: Arc<Services>,
    id: String,
}

impl Drop for Release {
    fn drop(&mut self) {
        let (services, id) = (Arc::clone(&self.services), std::mem::take(&mut self.id));
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { services.terminals.release(&id).await });
        }
    }
}

impl CommandService for ThroughMcp {
    fn run(&self, run: Run) -> Pending<'_, Result<Ran, ServiceError>> {
        Box::pin(async move {
            let Run { program, args, env, cwd, time_limit, output_limit } = run;
            let cwd = cwd.map(|cwd| self.0.cwd.join(cwd));
            let wanted = Wanted { program, args, env, cwd, output_limit: Some(output_limit) };
            let id = self.0.start(wanted).await.map_err(|error| words(&error))?;
            let release = Release { services: Arc::clone(&self.0), id };
            let terminals = &self.0.terminals;
            let failed = |error: crate::host::terminal::TerminalError| ServiceError(error.to_string());
            let ended = timeout(time_limit, terminals.wait(&release.id)).await;
            let timed_out = ended.is_err();
            if timed_out {
                terminals.kill(&release.id).await.map_err(failed)?;
            }
            let exit = match ended {
                Ok(exit) => Some(exit.map_err(failed)?),
                Err(_) => timeout(Duration::from_secs(10), terminals.wait(&release.id))
                    .await
                    .ok()
                    .and_then(Result::ok),
            };
            let output = terminals.output(&release.id).map_err(failed)?;
            Ok(Ran {
                output: output.text,
                truncated: output.truncated,
                code: exit.as_ref().and_then(|exit| exit.code),
                signal: exit.and_then(|exit| exit.signal),
                timed_out,
            })
        })
    }
}

/// Decides about calls of MCP servers that run here.
pub(crate) struct McpGate(pub(crate) Arc<Authority>);

impl Gate for McpGate {
    fn may(&self, asked: crate::mcp::Asked) -> Pending<'_, Result<(), Refusal>> {
        Box::pin(async move {
            let crate::mcp::Asked { server, method, tool, arguments } = asked;
            let arguments = serde_json::Value::Object(arguments);
            let name = tool.unwrap_or_else(|| method.clone());
            let action = Action::mcp(&server, &name, &arguments);
            let about = About {
                method: "mcp/message",
                title: format!("Use {name} of {server}"),
                kind: "other",
                tool: Some(format!("{server}.{name}")),
                input: arguments,
                ..About::default()
            };
            self.0.permit(&action, about).await.map_err(|denied| Refusal(denied.to_string()))
        })
    }
}
