//! Files and commands of the client for the agent. Each request needs a decision first.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use narrows_acp::method::{FS_READ_TEXT_FILE, FS_WRITE_TEXT_FILE, TERMINAL_CREATE};
use narrows_policy::{Action, Command, Kind, Variable, Verdict};
use narrows_process::{CwdLinks, Environment, Sandbox, Spec};
use narrows_wire::{Code, RpcError};
use serde_json::{Value, json};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::allowed::ClientAction;
use crate::created_report::report_created;
use crate::host::command_sandbox::CommandSandbox;
use crate::host::created::{Baseline, CreationGuard};
use crate::host::files::{FileError, FileErrorKind, Files, Found, PathLinks};
use crate::host::links;
use crate::host::protected::NewRepositories;
use crate::host::terminal::{Create, Guard, Terminals};
use crate::mcp::{CommandService, FileService, Gate, Pending, Ran, Refusal, Run, ServiceError};
use crate::permissions::{ClientActionAt, Denied, PermissionService, RequestSubject, TurnId};

/// Maximum number of lookups of a file that is being replaced.
const MAX_FILE_TRIES: usize = 8;

/// Locked from the last lookup before a change until its end. Each of several changes can be harmless alone,
/// and together make a directory a repository. Shared by all sessions, because their roots can overlap.
static CHANGES: LazyLock<Arc<Mutex<()>>> = LazyLock::new(Arc::default);

/// Number of output bytes kept of a command if the agent sets no limit.
const DEFAULT_OUTPUT_BYTES: usize = 1 << 20;

pub(crate) struct Services {
    pub(crate) permissions: Arc<PermissionService>,
    pub(crate) files: Files,
    pub(crate) terminals: Terminals,
    pub(crate) environment: Environment,
    pub(crate) command_sandbox: CommandSandbox,
    pub(crate) cwd: PathBuf,
    pub(crate) budget: RequestBudget,
    pub(crate) commands_wanted: AtomicU64,
}

/// Limits the memory of requests, because an agent may send them without reading the answers.
pub(crate) struct RequestBudget {
    /// Bytes of unanswered requests.
    request_bytes: Arc<Semaphore>,
    /// Slots for files and outputs that are being read, or whose answers are being sent.
    answers: Arc<Semaphore>,
}

impl RequestBudget {
    /// Maximum number of bytes of the open requests of a session: enough for the longest message.
    pub(crate) const MAX_REQUEST_BYTES: usize = narrows_wire::DEFAULT_MAX_LINE_BYTES;

    /// Maximum number of concurrent answers with a file or the output of a command.
    const MAX_LARGE_ANSWERS: usize = 2;

    pub(crate) fn new() -> Self {
        Self::with_request_bytes(Self::MAX_REQUEST_BYTES)
    }

    pub(crate) fn with_request_bytes(bytes: usize) -> Self {
        Self {
            request_bytes: Arc::new(Semaphore::new(bytes)),
            answers: Arc::new(Semaphore::new(Self::MAX_LARGE_ANSWERS)),
        }
    }

    /// Reserves room for a request of `bytes` until the permit is dropped. Returns `None` if there is too
    /// little room.
    pub(crate) fn admit(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes.min(Self::MAX_REQUEST_BYTES)).ok()?;
        Arc::clone(&self.request_bytes).try_acquire_many_owned(bytes).ok()
    }

    /// Waits for a slot for a large answer. The caller drops the permit when the answer was sent.
    pub(crate) async fn large_answer(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.answers).acquire_owned().await.ok()
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ServiceFailure {
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{0}")]
    Terminal(String),
    #[error("{0}")]
    Invalid(String),
}

impl ServiceFailure {
    pub(crate) fn to_rpc(&self) -> RpcError {
        match self {
            Self::Denied(denied) => RpcError::new(Code::PolicyDenied, denied.to_string()),
            Self::File(error) => error.to_rpc(),
            Self::Terminal(reason) => RpcError::new(Code::Internal, reason.clone()),
            Self::Invalid(reason) => RpcError::new(Code::InvalidParams, reason.clone()),
        }
    }
}

/// Result of reading or writing a file, with the slot of its large answer. The slot is freed on drop.
pub(crate) struct WithSlot<T> {
    value: T,
    slot: Option<OwnedSemaphorePermit>,
}

impl<T> WithSlot<T> {
    pub(crate) fn into_value(self) -> T {
        self.value
    }

    pub(crate) fn into_parts(self) -> (T, Option<OwnedSemaphorePermit>) {
        (self.value, self.slot)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct WantedCommand {
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: Option<PathBuf>,
    /// Handling of links in `cwd`.
    pub(crate) links: PathLinks,
    pub(crate) output_limit: Option<usize>,
}

impl Services {
    /// Returns the number of commands that the agent has requested, allowed or not.
    pub(crate) fn commands_wanted(&self) -> u64 {
        self.commands_wanted.load(Ordering::Relaxed)
    }

    pub(crate) async fn read(
        self: &Arc<Self>,
        turn: TurnId,
        (path, links): (PathBuf, PathLinks),
        line: Option<u32>,
        limit: Option<u32>,
    ) -> Result<WithSlot<String>, ServiceFailure> {
        let client_action = ClientAction::Read { path: path.clone() };
        let about = |found: &Path| RequestSubject {
            turn,
            method: FS_READ_TEXT_FILE,
            title: format!("Read {}", path.display()),
            kind: "read",
            input: json!({"path": path}),
            paths: vec![found.to_owned()],
            ..RequestSubject::default()
        };
        self.with_permitted_file(Kind::Read, (&path, links), about, Some(client_action), move |found| {
            found.read(line, limit)
        })
        .await
    }

    pub(crate) async fn write(
        self: &Arc<Self>,
        turn: TurnId,
        (path, links): (PathBuf, PathLinks),
        text: String,
    ) -> Result<WithSlot<()>, ServiceFailure> {
        let client_action = ClientAction::Write { path: path.clone(), text: text.clone() };
        let text: Arc<str> = text.into();
        let length = text.len();
        let command_sandbox = self.command_sandbox.clone();
        let about = |found: &Path| RequestSubject {
            turn,
            method: FS_WRITE_TEXT_FILE,
            title: format!("Write {}", path.display()),
            kind: "edit",
            input: json!({"path": path, "bytes": length}),
            paths: vec![found.to_owned()],
            ..RequestSubject::default()
        };
        self.with_permitted_file(Kind::Edit, (&path, links), about, Some(client_action), move |found| {
            found.write(&text, command_sandbox.write_mode(found.path()))
        })
        .await
    }

    /// Judges the file that `path` leads to, and applies `act` to it. If the path then leads to another file,
    /// or a change counts as another one, decides again.
    async fn with_permitted_file<T: Send + 'static>(
        self: &Arc<Self>,
        kind: Kind,
        (path, links): (&Path, PathLinks),
        about: impl Fn(&Path) -> RequestSubject,
        client_action: Option<ClientAction>,
        act: impl Fn(&Found) -> Result<T, FileError> + Clone + Send + 'static,
    ) -> Result<WithSlot<T>, ServiceFailure> {
        let mut permitted: Option<Action> = None;
        let mut tries = MAX_FILE_TRIES;
        loop {
            // Acquired after the decision, because a person may take long to answer.
            let slot = if permitted.is_some() { self.budget.large_answer().await } else { None };
            let is_change = kind == Kind::Edit && permitted.is_some();
            let change = if is_change { Some(Arc::clone(&CHANGES).lock_owned().await) } else { None };
            let (found, action) = match self.find(kind, (path, links), permitted.as_ref()).await {
                Err(error) if *error.kind() == FileErrorKind::Outside => {
                    self.permissions.refuse_unreachable(&about(path), &error.to_string()).await;
                    return Err(error.into());
                }
                found => found?,
            };
            if permitted.as_ref() == Some(&action) {
                let act = act.clone();
                let acting = move || {
                    let outcome = act(&found);
                    drop(change);
                    outcome
                };
                match blocking(acting).await {
                    Err(error) if *error.kind() == FileErrorKind::Changed && tries > 0 => tries -= 1,
                    outcome => return Ok(WithSlot { value: outcome?, slot }),
                }
                continue;
            }
            if permitted.is_some() {
                tries = tries.checked_sub(1).ok_or_else(|| FileError::new(path, FileErrorKind::Changed))?;
            }
            let found = {
                let path = found.path().to_owned();
                // Neither a descriptor nor a slot is held while a person is asked.
                drop((found, slot, change));
                path
            };
            let client_action =
                client_action.as_ref().map(|client_action| (client_action, Some(found.as_path())));
            self.permissions.permit(&action, about(&found), client_action).await?;
            permitted = Some(action);
        }
    }

    /// Finds the file that `asked` leads to, and returns the action that counts for it. A change is judged
    /// anew each time, because other changes may have given its path another meaning. A reading is only
    /// compared with the `permitted` one.
    async fn find(
        &self,
        kind: Kind,
        (asked, links): (&Path, PathLinks),
        permitted: Option<&Action>,
    ) -> Result<(Found, Action), FileError> {
        let protected = self.permissions.files().clone();
        let (files, asked) = (self.files.clone(), asked.to_owned());
        let permitted = permitted.filter(|_| kind == Kind::Read).cloned();
        let find = move || {
            let found = match links {
                PathLinks::Follow => files.find(&asked)?,
                PathLinks::Refuse => files.find(&asked).and_then(Found::without_links)?,
            };
            let action = match permitted {
                Some(action) if action.paths.first().is_some_and(|path| path == found.path()) => action,
                _ => links::file_action(kind, &asked, found.path(), &protected),
            };
            Ok((found, action))
        };
        self.permissions.files().look_up(find).await
    }

    /// Starts a command. Returns the id of its terminal.
    pub(crate) async fn start(&self, turn: TurnId, wanted: WantedCommand) -> Result<String, ServiceFailure> {
        let WantedCommand { program, args, env, cwd, links, output_limit } = wanted;
        self.commands_wanted.fetch_add(1, Ordering::Relaxed);
        if program.is_empty() {
            return Err(ServiceFailure::Invalid("`command` is empty".to_owned()));
        }
        if let Some((name, _)) = env.iter().find(|(name, value)| !is_variable(name, value)) {
            return Err(ServiceFailure::Invalid(format!("`env`: {name:?} cannot be set")));
        }
        // The session's directory may contain links, because its target is known.
        let refuses_links = links == PathLinks::Refuse && cwd.is_some();
        let asked = cwd.unwrap_or_else(|| self.cwd.clone());
        if !asked.is_absolute() {
            return Err(ServiceFailure::Invalid("`cwd` must be absolute".to_owned()));
        }
        let argv: Vec<String> = std::iter::once(&program).chain(&args).cloned().collect();
        let variables: Vec<Variable> =
            env.iter().map(|(name, value)| Variable::new(name.as_str(), value.as_str())).collect();
        let (named, cwd) = self.directory(&asked).await?;
        if refuses_links && cwd != asked {
            return Err(ServiceFailure::Invalid("there is a symbolic link in `cwd`".to_owned()));
        }
        let action = Action {
            real_cwd: Some(cwd.clone()).filter(|real| *real != named),
            env: variables.clone(),
            ..Action::execute(Command::Argv(argv.clone()), Some(named.clone()))
        };
        let action = self.followed(action, cwd.clone()).await;
        let about = RequestSubject {
            turn,
            method: TERMINAL_CREATE,
            title: title(&variables, &argv),
            kind: "execute",
            input: input(&program, &args, &asked, &variables),
            ..RequestSubject::default()
        };
        let client_action = ClientAction::run(Command::Argv(argv), asked, variables);
        let (sandbox, baseline) = self.permit_command(&action, &about, (&client_action, Some(&cwd))).await?;
        let program = self.program(program, &env, &cwd)?;
        let mut environment = self.environment.clone();
        for (name, value) in env {
            environment.set(name, value);
        }
        let create = Create {
            program,
            args: args.into_iter().map(Into::into).collect(),
            env: environment,
            cwd,
            cwd_links: match self.permissions.local_root() {
                None if !refuses_links => CwdLinks::Follow,
                _ => CwdLinks::Refuse,
            },
            output_limit: output_limit.unwrap_or(DEFAULT_OUTPUT_BYTES),
            guard: sandbox.is_some().then(|| self.guard(turn, baseline)),
            sandbox,
        };
        self.terminals.create(create).await.map_err(|error| ServiceFailure::Terminal(error.to_string()))
    }

    /// Adds the link targets of the command's words, for a command that runs in `directory`. If they cannot
    /// be followed, the action also counts as an unknown kind.
    async fn followed(&self, action: Action, directory: PathBuf) -> Action {
        if self.permissions.local_root().is_none() {
            return action;
        }
        let files = self.permissions.files().clone();
        let mut followed = action.clone();
        let following = move || links::follow_links_in(&mut followed, &directory, &files).map(|()| followed);
        let is_followed = self.permissions.files().look_up(following).await;
        is_followed.unwrap_or_else(|_| Action { also: vec![Kind::Other], ..action })
    }

    /// Decides about a command, and returns its sandbox. While a person is asked, protected files may be
    /// created. So the sandbox is built after the answer. If it enforces less than the person was shown, the
    /// person is asked again.
    async fn permit_command(
        &self,
        action: &Action,
        about: &RequestSubject,
        client_action: ClientActionAt<'_>,
    ) -> Result<(Option<Sandbox>, Baseline), ServiceFailure> {
        let (mut sandbox, mut confined, mut baseline) = self.command_sandbox.prepare_with_baseline().await;
        for _ in 0..MAX_FILE_TRIES {
            let waits = self.permissions.judge_in(about.turn, confined, action).verdict == Verdict::Ask;
            self.permissions.permit_in(confined, action, about.clone(), Some(client_action)).await?;
            if !waits {
                return Ok((sandbox, baseline));
            }
            let judged = confined;
            (sandbox, confined, baseline) = self.command_sandbox.prepare_with_baseline().await;
            if confined == judged {
                return Ok((sandbox, baseline));
            }
        }
        Err(ServiceFailure::Terminal("the sandbox of the command changes too often".to_owned()))
    }

    /// Watches the files that a command of `turn` creates. Reports each file that git would use as a denied
    /// change.
    fn guard(&self, turn: TurnId, baseline: Baseline) -> Guard {
        let creation = CreationGuard::new(self.files.clone(), self.permissions.files().clone(), baseline);
        let permissions = Arc::clone(&self.permissions);
        let report = move |created, repositories: NewRepositories| {
            let permissions = Arc::clone(&permissions);
            let reporting: Pin<Box<dyn Future<Output = ()> + Send>> =
                Box::pin(async move { report_created(&permissions, turn, created, repositories).await });
            reporting
        };
        Guard { creation, report: Box::new(report) }
    }

    /// Returns a directory by name, and its link target, in which the command runs. For the session's
    /// directory, both are the target.
    async fn directory(&self, asked: &Path) -> Result<(PathBuf, PathBuf), ServiceFailure> {
        if self.permissions.local_root().is_none() {
            return Ok((asked.to_owned(), asked.to_owned()));
        }
        let path = asked.to_owned();
        let real = self.permissions.files().look_up(move || links::real(&path)).await;
        let real = real
            .ok()
            .flatten()
            .ok_or_else(|| ServiceFailure::Invalid("`cwd` cannot be followed".to_owned()))?;
        let named = if asked == self.cwd { real.clone() } else { asked.to_owned() };
        Ok((named, real))
    }

    /// Returns the program to start: its name, unless the request sets `PATH`. In that case the name is
    /// looked up in the original `PATH`, so that a variable cannot substitute another program.
    fn program(
        &self,
        name: String,
        env: &[(String, String)],
        cwd: &Path,
    ) -> Result<OsString, ServiceFailure> {
        if env.iter().all(|(variable, _)| variable != "PATH") {
            return Ok(name.into());
        }
        let spec = Spec { env: self.environment.clone(), cwd: Some(cwd.to_owned()), ..Spec::new(name) };
        let found =
            narrows_process::find(&spec).map_err(|error| ServiceFailure::Terminal(error.to_string()))?;
        Ok(found.into())
    }
}

/// Returns the title of the request: the variables, then the words of the command.
fn title(variables: &[Variable], argv: &[String]) -> String {
    let assigned = variables.iter().map(|Variable { name, value }| format!("{name}={value}"));
    format!("Run {}", assigned.chain(argv.iter().cloned()).collect::<Vec<_>>().join(" "))
}

/// Returns the input for events. Omits `env` if there are no variables.
fn input(program: &str, args: &[String], cwd: &Path, variables: &[Variable]) -> Value {
    let mut input = json!({"command": program, "args": args, "cwd": cwd});
    if !variables.is_empty() {
        input["env"] =
            variables.iter().map(|Variable { name, value }| json!({"name": name, "value": value})).collect();
    }
    input
}

/// Returns `true` if the system accepts a variable with this name and value.
fn is_variable(name: &str, value: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
}

async fn blocking<T: Send + 'static, E: Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Services for agents that can only use MCP.
pub(crate) struct McpServices(pub(crate) Arc<Services>);

fn service_error(failure: &ServiceFailure) -> ServiceError {
    ServiceError(failure.to_string())
}

impl FileService for McpServices {
    fn read(
        &self,
        path: PathBuf,
        line: Option<u32>,
        limit: Option<u32>,
    ) -> Pending<'_, Result<String, ServiceError>> {
        let path = self.0.cwd.join(path);
        let turn = self.0.permissions.turn();
        Box::pin(async move {
            self.0
                .read(turn, (path, PathLinks::Follow), line, limit)
                .await
                .map(WithSlot::into_value)
                .map_err(|error| service_error(&error))
        })
    }

    fn write(&self, path: PathBuf, text: String) -> Pending<'_, Result<(), ServiceError>> {
        let path = self.0.cwd.join(path);
        let turn = self.0.permissions.turn();
        Box::pin(async move {
            self.0
                .write(turn, (path, PathLinks::Follow), text)
                .await
                .map(WithSlot::into_value)
                .map_err(|error| service_error(&error))
        })
    }
}

/// Releases a terminal on drop.
struct ReleaseTerminal {
    services: Arc<Services>,
    id: String,
}

impl Drop for ReleaseTerminal {
    fn drop(&mut self) {
        let (services, id) = (Arc::clone(&self.services), std::mem::take(&mut self.id));
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { services.terminals.release(&id).await });
        }
    }
}

impl CommandService for McpServices {
    fn run(&self, run: Run) -> Pending<'_, Result<Ran, ServiceError>> {
        let turn = self.0.permissions.turn();
        Box::pin(async move {
            let Run { program, args, env, cwd, time_limit, output_limit } = run;
            let cwd = cwd.map(|cwd| self.0.cwd.join(cwd));
            let (links, output_limit) = (PathLinks::Follow, Some(output_limit));
            let wanted = WantedCommand { program, args, env, cwd, links, output_limit };
            let id = self.0.start(turn, wanted).await.map_err(|error| service_error(&error))?;
            let release = ReleaseTerminal { services: Arc::clone(&self.0), id };
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

/// Decides about calls of hosted MCP servers.
pub(crate) struct HostedCallAuthorizer(pub(crate) Arc<PermissionService>);

impl Gate for HostedCallAuthorizer {
    fn authorize(&self, asked: crate::mcp::ServerRequest) -> Pending<'_, Result<(), Refusal>> {
        let turn = self.0.turn();
        Box::pin(async move {
            let crate::mcp::ServerRequest { server, method, tool, arguments } = asked;
            let arguments = Value::Object(arguments);
            let name = tool.unwrap_or_else(|| method.clone());
            let action = self.0.followed(Action::mcp(&server, &name, &arguments)).await;
            let client_action = ClientAction::Mcp {
                server: server.clone(),
                tool: name.clone(),
                arguments: arguments.clone(),
            };
            let about = RequestSubject {
                turn,
                method: "mcp/message",
                title: format!("Use {name} of {server}"),
                kind: "other",
                tool: Some(format!("{server}.{name}")),
                mcp: Some((server, name)),
                input: arguments,
                ..RequestSubject::default()
            };
            self.0
                .permit(&action, about, Some((&client_action, None)))
                .await
                .map_err(|denied| Refusal(denied.to_string()))
        })
    }
}
