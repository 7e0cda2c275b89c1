//! A session, from the caller's side.

mod active_run;
mod actor;
mod client_run_commands;
mod mode_guard;
mod open;
mod permission;
mod restrict;
mod run_lifecycle;
mod serve;
mod set;
mod timeouts;

use std::sync::{Arc, Mutex, MutexGuard};

use narrows_acp::method::{
    ELICITATION_CREATE, FS_READ_TEXT_FILE, FS_WRITE_TEXT_FILE, SESSION_REQUEST_PERMISSION, SESSION_UPDATE,
    TERMINAL_CREATE, TERMINAL_KILL, TERMINAL_OUTPUT, TERMINAL_RELEASE, TERMINAL_WAIT_FOR_EXIT,
};
use narrows_base::sync::lock;
use tokio::sync::{mpsc, oneshot};

use crate::error::{ClientError, Problem, Stage};
use crate::event_queue::Reader;
use crate::mcp::Hosted;
use crate::run::{Events, RunHandle, RunRequest};
use crate::runtime::Shared;
use crate::snapshot::Snapshot;

use mode_guard::ModeGuard;
pub(crate) use open::begin;

/// Returns `true` for methods that the client supports.
pub(crate) fn serves(method: &str) -> bool {
    matches!(
        method,
        SESSION_UPDATE
            | SESSION_REQUEST_PERMISSION
            | FS_READ_TEXT_FILE
            | FS_WRITE_TEXT_FILE
            | TERMINAL_CREATE
            | TERMINAL_OUTPUT
            | TERMINAL_WAIT_FOR_EXIT
            | TERMINAL_KILL
            | TERMINAL_RELEASE
            | ELICITATION_CREATE
    ) || Hosted::takes(method)
}

pub(crate) enum Command {
    Run { request: Box<RunRequest>, reply: oneshot::Sender<Result<RunHandle, ClientError>> },
    Rejected { option: String, value: String, reason: String, told: oneshot::Sender<()> },
    Close { reply: oneshot::Sender<()> },
}

/// One session with an agent. Dropping the session closes it after its active run: its terminals are ended,
/// and the agent is notified if it supports that.
pub struct Session {
    id: Arc<str>,
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
    cancels: mpsc::Sender<Arc<str>>,
    snapshot: Arc<Mutex<Snapshot>>,
    mode_guard: Arc<ModeGuard>,
    events: Option<Reader<crate::event::RuntimeEvent>>,
}

/// A rejected setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// `model`, `mode` or `thought_level`.
    pub option: String,
    pub value: String,
    pub reason: String,
}

impl Session {
    /// Returns the session id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the state of the session, as far as the agent has reported it.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        locked(&self.snapshot).clone()
    }

    /// Returns the events outside of runs: unsolicited messages and replayed history. Only the first call
    /// returns `Some`.
    pub fn events(&mut self) -> Option<Events> {
        self.events.take().map(|reader| Events { reader })
    }

    /// Starts a run.
    ///
    /// # Errors
    /// [`Problem::Busy`] if another run is active. Other errors if the request cannot be sent.
    pub async fn run(&self, request: RunRequest) -> Result<RunHandle, ClientError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Run { request: Box::new(request), reply };
        self.commands.send(command).await.map_err(|_| self.closed())?;
        answer.await.map_err(|_| self.closed())?
    }

    /// Cancels the active run, if any.
    pub fn cancel(&self) {
        // A full queue already contains a cancellation.
        let _ = self.cancels.try_send("".into());
    }

    /// Selects a model by id or name.
    ///
    /// # Errors
    /// Returns a [`Rejection`] if the model does not exist or the agent rejects it.
    pub async fn set_model(&self, wanted: &str) -> Result<(), Rejection> {
        self.set("model", wanted).await
    }

    /// Selects a mode by id or name.
    ///
    /// # Errors
    /// See [`Session::set_model`].
    pub async fn set_mode(&self, wanted: &str) -> Result<(), Rejection> {
        self.set("mode", wanted).await
    }

    /// Sets the option of this category. Models and modes are also set by the older methods.
    ///
    /// # Errors
    /// See [`Session::set_model`].
    pub async fn set(&self, category: &str, wanted: &str) -> Result<(), Rejection> {
        // The user's choice of a mode overrides the mode that low access selected. If the agent rejects the
        // choice, the selected mode stays enforced.
        let guarded = (category == "mode").then(|| self.mode_guard.release()).flatten();
        let outcome = set::try_set(&self.shared, &self.id, &self.snapshot, category, wanted).await;
        if let Some(mode) = guarded.filter(|_| outcome.is_err()) {
            self.mode_guard.set_mode(&mode);
        }
        outcome.map_err(|reason| Rejection { option: category.to_owned(), value: wanted.to_owned(), reason })
    }

    pub(crate) async fn report_rejection(&self, rejection: &Rejection) {
        let Rejection { option, value, reason } = rejection.clone();
        let (told, telling) = oneshot::channel();
        // The task of the session may have ended, so sending may fail.
        if self.commands.send(Command::Rejected { option, value, reason, told }).await.is_ok() {
            let _ = telling.await;
        }
    }

    /// Closes the session: cancels an active run, ends its terminals, and notifies the agent if it supports
    /// that.
    pub async fn close(self) {
        let (reply, closed) = oneshot::channel();
        if self.commands.send(Command::Close { reply }).await.is_ok() {
            let _ = closed.await;
        }
    }

    fn closed(&self) -> ClientError {
        self.shared.failed(Stage::Turn, Problem::Closed)
    }
}

fn locked(snapshot: &Mutex<Snapshot>) -> MutexGuard<'_, Snapshot> {
    lock(snapshot)
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("id", &self.id).finish_non_exhaustive()
    }
}
