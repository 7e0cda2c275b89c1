//! Starts and ends processes in a separate thread, so that a fork delays no message.

mod stderr_log;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use std::time::Duration;

use mio::Waker;
use narrows_process::{AllowList, Child, Environment, Ladder, Limits, SpawnError, Spec};
use rustc_hash::FxHashMap;
use stderr_log::StderrLog;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::config::Pool;
use crate::driver;

/// Maximum number of orders in the channel to the spawner thread. Further orders wait in the event loop,
/// which limits the number of workers.
const MAX_PENDING_ORDERS: usize = 256;
const MAX_CONCURRENT_STARTS: usize = 8;
/// Number of bytes of a worker's stderr that are kept for its exit message.
const STDERR_TAIL_BYTES: usize = 16 << 10;
const MAX_QUOTED_LINES: usize = 5;
const MAX_QUOTED_CHARS: usize = 1000;
/// Time to wait for the end of a worker's stderr before the exit of the worker is reported.
const LAST_STDERR_TIMEOUT: Duration = Duration::from_millis(300);
/// The signals and delays for processes that outlive their worker. The guardian normally ends them earlier.
const LEFTOVER_LADDER: Ladder =
    Ladder { eof_grace: Duration::from_secs(4), term_grace: Duration::from_secs(1) };
/// Timeout for a guardian to kill its process tree. After that, the bus kills it.
const GUARDIAN_KILL_TIMEOUT: Duration = Duration::from_secs(3);
const IMMEDIATE_LADDER: Ladder = Ladder { eof_grace: Duration::ZERO, term_grace: Duration::ZERO };

/// An order of the event loop. The serial identifies a worker, because its slot may be used again.
#[derive(Debug)]
pub(crate) enum Order {
    Spawn { slot: u32, serial: u64, pool: String, spec: Box<Spec> },
    Stop { serial: u64, kill: bool },
}

#[derive(Debug)]
pub(crate) enum WorkerEvent {
    /// The process of a worker runs. The descriptors are the bus's ends of its pipes, in non-blocking mode.
    Up { slot: u32, serial: u64, pid: u32, stdin: OwnedFd, stdout: OwnedFd },
    /// The process of a worker has exited or did not start. No other event of this worker follows.
    Gone { slot: u32, serial: u64, how: WorkerEnd },
}

#[derive(Debug, Default)]
pub(crate) struct WorkerEnd {
    /// The class of the process's exit, or the reason why the process did not start.
    pub(crate) reason: String,
    pub(crate) stderr: String,
    pub(crate) oom: bool,
    pub(crate) lacked_resources: bool,
}

/// The event loop's handle to the spawner thread. No call of it blocks.
#[derive(Debug)]
pub(crate) struct Orders {
    sender: Sender<Order>,
    waiting: VecDeque<Order>,
}

impl Orders {
    pub(crate) fn queue(&mut self, order: Order) {
        self.waiting.push_back(order);
    }

    /// Sends queued orders to the spawner thread. Returns `false` if some have to wait.
    pub(crate) fn send_waiting(&mut self) -> bool {
        while let Some(order) = self.waiting.pop_front() {
            if let Err(TrySendError::Full(order)) = self.sender.try_send(order) {
                self.waiting.push_front(order);
                return false;
            }
        }
        true
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct WorkerEventSender {
    pub(crate) events: SyncSender<WorkerEvent>,
    pub(crate) waker: Arc<Waker>,
}

impl WorkerEventSender {
    fn send(&self, event: WorkerEvent) {
        // The event loop always reads events, so sending blocks only briefly. It fails when the loop has
        // ended, and the channel of orders is closed then too.
        if self.events.send(event).is_ok() {
            _ = self.waker.wake();
        }
    }
}

/// Starts the spawner thread. It ends when the channel of orders is closed and every process has exited.
///
/// # Errors
/// If the thread or its runtime cannot be created.
pub(crate) fn start(event_sender: WorkerEventSender) -> io::Result<(Orders, JoinHandle<()>)> {
    let (sender, orders) = channel(MAX_PENDING_ORDERS);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAX_CONCURRENT_STARTS)
        .thread_keep_alive(Duration::from_secs(1))
        .build()?;
    let thread = std::thread::Builder::new()
        .name("narrows-spawner".into())
        .spawn(move || runtime.block_on(run(orders, event_sender)))?;
    Ok((Orders { sender, waiting: VecDeque::new() }, thread))
}

async fn run(mut orders: Receiver<Order>, event_sender: WorkerEventSender) {
    let mut workers: FxHashMap<u64, Sender<bool>> = FxHashMap::default();
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                None => break,
                Some(Order::Spawn { slot, serial, pool, spec }) => {
                    // The channel has room for one stop and one kill. Further orders change nothing.
                    let (stop, stops) = channel(2);
                    workers.insert(serial, stop);
                    tasks.spawn(run_worker(slot, serial, pool, *spec, stops, event_sender.clone()));
                }
                Some(Order::Stop { serial, kill }) => {
                    if let Some(stop) = workers.get(&serial) {
                        _ = stop.try_send(kill);
                    }
                }
            },
            Some(ended) = tasks.join_next() => match ended {
                Ok(serial) => _ = workers.remove(&serial),
                Err(error) => tracing::error!(%error, "worker task failed"),
            },
        }
    }
    // Dropping the senders of orders stops all remaining workers.
    drop(workers);
    while tasks.join_next().await.is_some() {}
}

async fn run_worker(
    slot: u32,
    serial: u64,
    pool: String,
    spec: Spec,
    mut stops: Receiver<bool>,
    event_sender: WorkerEventSender,
) -> u64 {
    let spawned =
        narrows_process::spawn(spec).await.map_err(|error| (with_causes(&error), error.is_shortage()));
    let child = match spawned.and_then(|child| take_pipes(child).map_err(|reason| (reason, false))) {
        Ok((child, stdin, stdout)) => {
            event_sender.send(WorkerEvent::Up { slot, serial, pid: child.pid(), stdin, stdout });
            Arc::new(child)
        }
        Err((reason, lacked_resources)) => {
            event_sender.send(WorkerEvent::Gone {
                slot,
                serial,
                how: WorkerEnd { reason, lacked_resources, ..WorkerEnd::default() },
            });
            return serial;
        }
    };
    let mut stderr_log = stderr_log::is_wanted().then(|| StderrLog::new(pool, slot, child.stderr()));
    let mut stopping = JoinSet::new();
    let ended = child.worker_ended();
    tokio::pin!(ended);
    let exit = loop {
        tokio::select! {
            exit = &mut ended => break exit,
            () = follow(&mut stderr_log) => {}
            order = stops.recv(), if !stops.is_closed() || !stops.is_empty() => {
                let child = Arc::clone(&child);
                if order.unwrap_or(true) {
                    child.kill();
                    stopping.spawn(async move {
                        if timeout(GUARDIAN_KILL_TIMEOUT, child.wait()).await.is_err() {
                            child.stop(IMMEDIATE_LADDER).await;
                        }
                    });
                } else {
                    stopping.spawn(async move { _ = child.stop(Ladder::default()).await });
                }
            },
        }
    };
    let exit = timeout(LAST_STDERR_TIMEOUT, child.wait()).await.unwrap_or(exit);
    if let Some(stderr_log) = &mut stderr_log {
        stderr_log.log_lines();
    }
    let how = WorkerEnd {
        reason: exit.to_string(),
        stderr: last_stderr_lines(&child),
        oom: exit.oom,
        lacked_resources: false,
    };
    event_sender.send(WorkerEvent::Gone { slot, serial, how });
    stopping.abort_all();
    let exit = child.stop(LEFTOVER_LADDER).await;
    if exit.survivors > 0 {
        tracing::error!(pid = child.pid(), survivors = exit.survivors, "cannot end worker processes");
    }
    serial
}

async fn follow(stderr_log: &mut Option<StderrLog>) {
    match stderr_log {
        Some(stderr_log) => stderr_log.follow().await,
        None => std::future::pending().await,
    }
}

/// Takes stdin and stdout from a child, as descriptors for an event loop without tokio.
fn take_pipes(mut child: Child) -> Result<(Child, OwnedFd, OwnedFd), String> {
    let fail = |error: io::Error| format!("cannot use the pipes of the process: {error}");
    let stdin = child.take_stdin().ok_or("the process has no stdin")?.into_nonblocking_fd().map_err(fail)?;
    let stdout =
        child.take_stdout().ok_or("the process has no stdout")?.into_nonblocking_fd().map_err(fail)?;
    Ok((child, stdin, stdout))
}

fn last_stderr_lines(child: &Child) -> String {
    let tail = child.stderr().tail(MAX_QUOTED_LINES);
    let tail = tail.trim();
    let excess = tail.chars().count().saturating_sub(MAX_QUOTED_CHARS);
    let start = tail.char_indices().nth(excess).map_or(0, |(at, _)| at);
    let cut = if start > 0 { "…" } else { "" };
    format!("{cut}{}", tail[start..].replace('\n', " | "))
}

fn with_causes(error: &SpawnError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Returns the process specification for workers of `pool`, with those variables of `environment` that the
/// pool selects.
pub(crate) fn spec(pool: &Pool, environment: &[(OsString, OsString)]) -> Spec {
    let allowed = match pool.whole_env {
        true => AllowList::new(["*"]),
        false => AllowList::default().and(&pool.pass_env),
    };
    let mut words = pool.command.iter();
    let mut spec = Spec::new(words.next().map_or("", String::as_str));
    spec.args = words.map(OsString::from).collect();
    spec.cwd.clone_from(&pool.cwd);
    spec.env = Environment::filtered(environment.iter().cloned(), &allowed);
    spec.env.extend(pool.env.iter());
    spec.stderr_limit = STDERR_TAIL_BYTES;
    spec.limits = Limits { memory: pool.memory, pids: pool.pids };
    spec.descriptors = driver::original_fd_limit();
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(pool: &Pool) -> Vec<String> {
        let ours = ["PATH", "HOME", "OPENAI_API_KEY", "OPENAI_MODEL", "SECRET"]
            .map(|name| (name.into(), "x".into()));
        spec(pool, &ours).env.iter().map(|(name, _)| name.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_worker_gets_the_selected_variables_and_no_others() {
        let mut pool = Pool::new("p", vec!["cat".into(), "-u".into()]);
        assert_eq!(names(&pool), ["HOME", "PATH"]);
        pool.pass_env = vec!["OPENAI_*".into()];
        pool.env.insert("EXTRA".into(), "y".into());
        assert_eq!(names(&pool), ["EXTRA", "HOME", "OPENAI_API_KEY", "OPENAI_MODEL", "PATH"]);
        pool.whole_env = true;
        assert_eq!(names(&pool), ["EXTRA", "HOME", "OPENAI_API_KEY", "OPENAI_MODEL", "PATH", "SECRET"]);
        let spec = spec(&pool, &[]);
        assert_eq!((spec.program, spec.args), ("cat".into(), vec!["-u".into()]));
    }
}
