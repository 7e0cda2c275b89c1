//! Runs commands for the agent, in a sandbox and within bounds.
//!
//! A terminal is a process tree and the last part of its output. It has no input and no shell. Killing ends
//! the process tree. Releasing also removes the terminal.

mod ring;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use narrows_base::sync::lock;
use narrows_process::{Child, CwdLinks, Environment, Ladder, Sandbox, SpawnError, Spec};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use self::ring::Ring;
use super::created::{Created, CreationGuard};
use super::protected::NewRepositories;

/// Time for a killed command to clean up, and for its remaining children to exit after it.
const KILL_GRACE: Duration = Duration::from_millis(500);
const KILL: Ladder = Ladder { eof_grace: Duration::ZERO, term_grace: KILL_GRACE };
const KILL_NOW: Ladder = Ladder { eof_grace: Duration::ZERO, term_grace: Duration::ZERO };
/// Time to read the remaining output after the process tree has ended. Only a process outside the tree can
/// keep the pipe open longer.
const FINAL_OUTPUT_TIMEOUT: Duration = Duration::from_millis(250);
/// Time to check the created files and report the end of a command.
const CHECK_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Maximum number of terminals, including those that are starting or ending.
    pub(crate) max: usize,
    /// Maximum number of output bytes that a terminal keeps, even if the agent requests more.
    pub(crate) output: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max: 16, output: 1 << 20 }
    }
}

pub(crate) struct Create {
    /// Program name or path, looked up in the `PATH` of `env`.
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Environment,
    pub(crate) cwd: PathBuf,
    pub(crate) cwd_links: CwdLinks,
    pub(crate) output_limit: usize,
    pub(crate) sandbox: Option<Sandbox>,
    pub(crate) guard: Option<Guard>,
}

/// Watches the files that a command creates, and reports them.
pub(crate) struct Guard {
    pub(crate) creation: CreationGuard,
    pub(crate) report: Box<dyn Fn(Vec<Created>, NewRepositories) -> Reporting + Send + Sync>,
}

type Reporting = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Output {
    /// End of stdout and stderr, in the order in which they were written.
    pub(crate) text: String,
    /// `true` if the beginning of the output was dropped.
    pub(crate) truncated: bool,
    /// Exit of the command. Once it is set, the text is complete.
    pub(crate) exit: Option<Exit>,
}

/// Exit of a command. Both fields are `None` if its guardian was killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exit {
    /// Exit status, if the command exited by itself.
    pub(crate) code: Option<u32>,
    pub(crate) signal: Option<String>,
}

impl From<narrows_process::Exit> for Exit {
    fn from(exit: narrows_process::Exit) -> Self {
        let signal = exit.signal.map(|number| match exit.signal_name() {
            Some(name) => name.to_owned(),
            None => format!("signal {number}"),
        });
        Self { code: exit.code.map(i32::cast_unsigned), signal }
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum TerminalError {
    #[error("terminal {id:?} not found")]
    Unknown { id: String },
    #[error("the limit of {max} terminals is reached")]
    TooMany { max: usize },
    /// All terminals were released while this one was starting.
    #[error("the terminal was released before its command ran")]
    Released,
    #[error(transparent)]
    Spawn(#[from] SpawnError),
}

/// The terminals of one session. Dropping this ends all of them.
#[derive(Debug)]
pub(crate) struct Terminals {
    limits: Limits,
    slots: Arc<Semaphore>,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    terminals: HashMap<String, Arc<Terminal>>,
    /// Incremented when all terminals are released, to detect a terminal that was starting meanwhile.
    generation: u64,
}

impl Terminals {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, slots: Arc::new(Semaphore::new(limits.max)), open: Mutex::default() }
    }

    /// Starts a command and returns the id of its terminal. Dropping the future ends the command.
    pub(crate) async fn create(&self, create: Create) -> Result<String, TerminalError> {
        let too_many = |_| TerminalError::TooMany { max: self.limits.max };
        let slot = Arc::clone(&self.slots).try_acquire_owned().map_err(too_many)?;
        let generation = self.open().generation;
        let limit = create.output_limit.min(self.limits.output);
        let spec = Spec {
            args: create.args,
            cwd: Some(create.cwd),
            cwd_links: create.cwd_links,
            env: create.env,
            stderr_limit: 0,
            merge_stderr: true,
            sandbox: create.sandbox,
            orphan_grace: KILL_GRACE,
            ..Spec::new(create.program)
        };
        let terminal = Terminal::new(narrows_process::spawn(spec).await?, limit, slot, create.guard);
        let id = format!("term-{}", uuid::Uuid::now_v7());
        let mut open = self.open();
        if open.generation != generation {
            return Err(TerminalError::Released);
        }
        open.terminals.insert(id.clone(), Arc::new(terminal));
        Ok(id)
    }

    pub(crate) fn output(&self, id: &str) -> Result<Output, TerminalError> {
        Ok(self.find(id)?.output())
    }

    /// Waits until the command and its process tree have ended. Any number of callers may wait.
    pub(crate) async fn wait(&self, id: &str) -> Result<Exit, TerminalError> {
        let terminal = self.find(id)?;
        Ok(terminal.ended().await)
    }

    /// Ends the command and its process tree, and waits for its end. The terminal stays.
    pub(crate) async fn kill(&self, id: &str) -> Result<(), TerminalError> {
        let terminal = self.find(id)?;
        terminal.kill().await;
        Ok(())
    }

    /// Ends the command like [`kill`](Self::kill), and removes the terminal at once. Completes even if the
    /// future is dropped.
    pub(crate) async fn release(&self, id: &str) -> Result<(), TerminalError> {
        let terminal = self.open().terminals.remove(id).ok_or_else(|| unknown(id))?;
        end([terminal]).await;
        Ok(())
    }

    /// Releases all terminals, including those that are starting.
    pub(crate) async fn release_all(&self) {
        let terminals = {
            let mut open = self.open();
            open.generation += 1;
            std::mem::take(&mut open.terminals)
        };
        end(terminals.into_values()).await;
    }

    fn find(&self, id: &str) -> Result<Arc<Terminal>, TerminalError> {
        self.open().terminals.get(id).cloned().ok_or_else(|| unknown(id))
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        // The state is consistent after every statement, so a panic of another thread does not matter.
        lock(&self.open)
    }
}

fn unknown(id: &str) -> TerminalError {
    TerminalError::Unknown { id: id.to_owned() }
}

/// Kills terminals concurrently, each in its own task: the caller may be dropped before the end.
async fn end(terminals: impl IntoIterator<Item = Arc<Terminal>>) {
    let ending: Vec<_> =
        terminals.into_iter().map(|terminal| tokio::spawn(async move { terminal.kill().await })).collect();
    for each in ending {
        // Fails only while the runtime shuts down, which ends the processes too.
        _ = each.await;
    }
}

/// One command. Dropping it ends its process tree.
#[derive(Debug)]
struct Terminal {
    child: Arc<Child>,
    ring: Arc<Mutex<Ring>>,
    exit: watch::Receiver<Option<Exit>>,
    follower: AbortHandle,
    _slot: OwnedSemaphorePermit,
}

impl Terminal {
    fn new(mut child: Child, limit: usize, slot: OwnedSemaphorePermit, guard: Option<Guard>) -> Self {
        drop(child.take_stdin());
        let stdout = child.take_stdout();
        let child = Arc::new(child);
        let ring = Arc::new(Mutex::new(Ring::new(limit)));
        let (told, exit) = watch::channel(None);
        let follower = tokio::spawn(follow(Arc::clone(&child), stdout, Arc::clone(&ring), told, guard));
        Self { child, ring, exit, follower: follower.abort_handle(), _slot: slot }
    }

    fn output(&self) -> Output {
        // Read the exit first: all output before it is then in the text.
        let exit = self.exit.borrow().clone();
        let (text, truncated) = lock(&self.ring).text(exit.is_some());
        Output { text, truncated, exit }
    }

    async fn ended(&self) -> Exit {
        let mut exit = self.exit.clone();
        match exit.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(exit)) => exit.clone(),
            // The runtime is shutting down, so no caller needs the result.
            _ => Exit { code: None, signal: None },
        }
    }

    async fn kill(&self) {
        let exit = self.child.stop(KILL).await;
        if exit.survivors > 0 {
            tracing::warn!(survivors = exit.survivors, "processes of a terminal could not be ended");
        }
        // The remaining output arrives soon. Waiting callers must get the exit before the terminal is
        // dropped.
        _ = timeout(2 * FINAL_OUTPUT_TIMEOUT + CHECK_TIMEOUT, self.ended()).await;
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The follower holds the other reference to the child.
        self.follower.abort();
    }
}

/// Reads all output, so that the command never blocks on it. Reports the exit when the output is complete.
async fn follow(
    child: Arc<Child>,
    stdout: Option<pipe::Receiver>,
    ring: Arc<Mutex<Ring>>,
    told: watch::Sender<Option<Exit>>,
    guard: Option<Guard>,
) {
    let end = async {
        let mut reading = pin!(read(stdout, &ring));
        tokio::select! {
            () = &mut reading => child.wait().await,
            exit = child.wait() => {
                _ = timeout(FINAL_OUTPUT_TIMEOUT, &mut reading).await;
                exit
            }
        }
    };
    let Some(Guard { creation, report }) = guard else {
        told.send_replace(Some(end.await.into()));
        return;
    };
    let stop = async || {
        child.stop(KILL_NOW).await;
    };
    let exit = creation.watch(end, stop).await;
    let (created, repositories) = creation.finish().await;
    if !created.is_empty() || !repositories.paths.is_empty() {
        // Has no effect while the session closes.
        _ = timeout(CHECK_TIMEOUT / 3, report(created, repositories)).await;
    }
    told.send_replace(Some(exit.into()));
}

async fn read(stdout: Option<pipe::Receiver>, ring: &Mutex<Ring>) {
    let Some(mut stdout) = stdout else { return };
    let mut chunk = vec![0; 16 << 10];
    loop {
        match stdout.read(&mut chunk).await {
            Ok(0) => return,
            Ok(length) => lock(ring).push(chunk.get(..length).unwrap_or_default()),
            Err(error) => {
                tracing::debug!(%error, "reading the output of a command failed");
                return;
            }
        }
    }
}
