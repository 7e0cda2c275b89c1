//! Commands the agent runs here, contained and within bounds.
//!
//! A terminal is a process tree and the end of what it writes; it has no input, and no shell is involved. Killing ends
//! the tree, releasing ends it and forgets the terminal.

mod ring;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::pin::pin;
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

/// Time for a killed command to clean up, and for its remaining children to exit after it has ended.
const KILL_GRACE: Duration = Duration::from_millis(500);
const KILL: Ladder = Ladder { eof_grace: Duration::ZERO, term_grace: KILL_GRACE };
/// Time to read the remaining output after the process tree has ended. Only a process outside of the tree can
/// keep the pipe open longer.
const FINAL_OUTPUT_TIMEOUT: Duration = Duration::from_millis(250);

/// How much an agent may have of this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// How many terminals there are at a time, those included that are on their way or not quite dead.
    pub(crate) max: usize,
    /// How many bytes of output a terminal keeps, whatever was asked for.
    pub(crate) output: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max: 16, output: 1 << 20 }
    }
}

/// A command to be run.
#[derive(Debug, Clone)]
pub(crate) struct Create {
    /// The program, looked up in the `PATH` of `env`.
    pub(crate) program: OsString,
    /// Its arguments, as they are.
    pub(crate) args: Vec<OsString>,
    /// Its whole environment.
    pub(crate) env: Environment,
    /// Where it runs.
    pub(crate) cwd: PathBuf,
    pub(crate) cwd_links: CwdLinks,
    /// How many bytes of output are wanted: the last ones.
    pub(crate) output_limit: usize,
    /// What confines it.
    pub(crate) sandbox: Option<Sandbox>,
}

/// What a command has written, and whether it has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Output {
    /// The end of stdout and stderr, in the order in which they were written.
    pub(crate) text: String,
    /// The beginning is missing.
    pub(crate) truncated: bool,
    /// How it ended; with it, the text is complete.
    pub(crate) exit: Option<Exit>,
}

/// The end of a command. Neither is known if its guardian was killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exit {
    /// Its exit status, if it exited.
    pub(crate) code: Option<u32>,
    /// The signal that ended it, if one did.
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

/// Why a terminal could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TerminalError {
    /// There never was such a terminal, or it has been released.
    #[error("there is no terminal {id:?}")]
    Unknown {
        /// The id that was given.
        id: String,
    },
    /// As many as there may be.
    #[error("{max} terminals are open, and there may be no more; release one first")]
    TooMany { max: usize },
    /// All terminals were released while this one was starting.
    #[error("the terminal was released before its command ran")]
    Released,
    /// The command does not run.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
}

/// The terminals of one session. Dropping it ends them all.
#[derive(Debug)]
pub(crate) struct Terminals {
    limits: Limits,
    slots: Arc<Semaphore>,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    terminals: HashMap<String, Arc<Terminal>>,
    /// How often all have been released, so that one that was on its way then is not forgotten.
    generation: u64,
}

impl Terminals {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, slots: Arc::new(Semaphore::new(limits.max)), open: Mutex::default() }
    }

    /// Starts a command and returns the id of its terminal. Dropping the future ends what has been started.
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
        let terminal = Terminal::new(narrows_process::spawn(spec).await?, limit, slot);
        let id = format!("term-{}", uuid::Uuid::now_v7());
        let mut open = self.open();
        if open.generation != generation {
            return Err(TerminalError::Released);
        }
        open.terminals.insert(id.clone(), Arc::new(terminal));
        Ok(id)
    }

    /// What the command has written so far.
    pub(crate) fn output(&self, id: &str) -> Result<Output, TerminalError> {
        Ok(self.find(id)?.output())
    }

    /// Waits until the command has ended, and with it whatever it started. Any number may wait.
    pub(crate) async fn wait(&self, id: &str) -> Result<Exit, TerminalError> {
        let terminal = self.find(id)?;
        Ok(terminal.ended().await)
    }

    /// Ends the command and whatever it started, and returns when they are gone. The terminal stays.
    pub(crate) async fn kill(&self, id: &str) -> Result<(), TerminalError> {
        let terminal = self.find(id)?;
        terminal.kill().await;
        Ok(())
    }

    /// Ends the command like [`kill`](Self::kill), and forgets the terminal at once. This goes on if nobody waits
    /// for it.
    pub(crate) async fn release(&self, id: &str) -> Result<(), TerminalError> {
        let terminal = self.open().terminals.remove(id).ok_or_else(|| unknown(id))?;
        end([terminal]).await;
        Ok(())
    }

    /// Releases every terminal, those included that are being made.
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
        // Consistent after every statement, so a panic elsewhere does not spoil it.
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
        // It fails only if the runtime ends, which ends the processes too.
        _ = each.await;
    }
}

/// One command. Dropping it ends its tree.
#[derive(Debug)]
struct Terminal {
    child: Arc<Child>,
    ring: Arc<Mutex<Ring>>,
    exit: watch::Receiver<Option<Exit>>,
    follower: AbortHandle,
    _slot: OwnedSemaphorePermit,
}

impl Terminal {
    fn new(mut child: Child, limit: usize, slot: OwnedSemaphorePermit) -> Self {
        drop(child.take_stdin());
        let stdout = child.take_stdout();
        let child = Arc::new(child);
        let ring = Arc::new(Mutex::new(Ring::new(limit)));
        let (told, exit) = watch::channel(None);
        let follower = tokio::spawn(follow(Arc::clone(&child), stdout, Arc::clone(&ring), told));
        Self { child, ring, exit, follower: follower.abort_handle(), _slot: slot }
    }

    fn output(&self) -> Output {
        // The end first: what is written before it is then in the text.
        let exit = self.exit.borrow().clone();
        let (text, truncated) = lock(&self.ring).text(exit.is_some());
        Output { text, truncated, exit }
    }

    async fn ended(&self) -> Exit {
        let mut exit = self.exit.clone();
        match exit.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(exit)) => exit.clone(),
            // The runtime is ending, and the result is not needed.
            _ => Exit { code: None, signal: None },
        }
    }

    async fn kill(&self) {
        let exit = self.child.stop(KILL).await;
        if exit.survivors > 0 {
            tracing::warn!(survivors = exit.survivors, "processes of a terminal could not be ended");
        }
        // The remaining output arrives soon; waiting callers are notified of the end before the terminal is
        // dropped.
        _ = timeout(2 * FINAL_OUTPUT_TIMEOUT, self.ended()).await;
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It has the other hold on the child.
        self.follower.abort();
    }
}

/// Takes all that a command writes, so that it never waits for us, and tells its end when the output is complete.
async fn follow(
    child: Arc<Child>,
    stdout: Option<pipe::Receiver>,
    ring: Arc<Mutex<Ring>>,
    told: watch::Sender<Option<Exit>>,
) {
    let mut reading = pin!(read(stdout, &ring));
    let exit = tokio::select! {
        () = &mut reading => child.wait().await,
        exit = child.wait() => {
            _ = timeout(FINAL_OUTPUT_TIMEOUT, &mut reading).await;
            exit
        }
    };
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
