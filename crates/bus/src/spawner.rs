//! Starts and ends processes in a thread of its own, so that a fork delays no message.

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

/// How many orders can be under way; more wait in the loop, which knows how many workers there are.
const MAX_PENDING_ORDERS: usize = 256;
/// How many processes are started at a time.
const MAX_CONCURRENT_STARTS: usize = 8;
/// How much of a worker's stderr is kept, and how much of that is quoted.
const STDERR_TAIL_BYTES: usize = 16 << 10;
const MAX_QUOTED_LINES: usize = 5;
const MAX_QUOTED_CHARS: usize = 1000;
/// How long the end of a worker is held back for the end of its stderr.
const LAST_STDERR_TIMEOUT: Duration = Duration::from_millis(300);
/// For what outlives its worker: the guardian sees to it alone, unless it is kept from doing so.
const LEFTOVER_LADDER: Ladder =
    Ladder { eof_grace: Duration::from_secs(4), term_grace: Duration::from_secs(1) };
/// How long a guardian may take to kill before that is done without it.
const GUARDIAN_KILL_TIMEOUT: Duration = Duration::from_secs(3);
const IMMEDIATE_LADDER: Ladder = Ladder { eof_grace: Duration::ZERO, term_grace: Duration::ZERO };

/// What the loop wants. A serial number is a worker's own, whoever has its slot later.
#[derive(Debug)]
pub(crate) enum Order {
    Spawn { slot: u32, serial: u64, pool: String, spec: Box<Spec> },
    Stop { serial: u64, kill: bool },
}

/// What becomes of it.
#[derive(Debug)]
pub(crate) enum WorkerEvent {
    /// It runs, and these are our ends of its pipes, in non-blocking mode.
    Up { slot: u32, serial: u64, pid: u32, stdin: OwnedFd, stdout: OwnedFd },
    /// It has ended or did not start. Nothing else comes about it.
    Gone { slot: u32, serial: u64, how: Ended },
}

/// How it ended.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// The class of its exit, or why it did not start.
    pub(crate) reason: String,
    /// The end of its stderr, escaped, on one line.
    pub(crate) stderr: String,
    /// It was killed for using too much memory.
    pub(crate) oom: bool,
    /// It did not start because we lack something.
    pub(crate) ours: bool,
}

/// The loop's end of the orders, on which it never waits.
#[derive(Debug)]
pub(crate) struct Orders {
    sender: Sender<Order>,
    waiting: VecDeque<Order>,
}

impl Orders {
    /// To be sent next.
    pub(crate) fn put(&mut self, order: Order) {
        self.waiting.push_back(order);
    }

    /// Sends what can be sent; `false` if something has to wait.
    pub(crate) fn send_waiting(&mut self) -> bool {
        while let Some(order) = self.waiting.pop_front() {
            if let Err(TrySendError::Full(order)) = self.sender.try_send(order) {
                self.waiting.push_front(order);
                return false;
            }
        }
        true
    }

    /// Whether nobody takes orders any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

/// The loop's ear.
#[derive(Clone, Debug)]
pub(crate) struct WorkerEventSender {
    pub(crate) news: SyncSender<WorkerEvent>,
    pub(crate) waker: Arc<Waker>,
}

impl WorkerEventSender {
    fn send(&self, news: WorkerEvent) {
        // The loop takes news whatever else it does, so this waits for moments at most; it fails when the loop is gone,
        // and then the end of the orders has been seen too.
        if self.news.send(news).is_ok() {
            _ = self.waker.wake();
        }
    }
}

/// Starts the thread. It ends when the orders do and every process has ended.
///
/// # Errors
/// When there is no thread or no runtime to be had.
pub(crate) fn start(teller: WorkerEventSender) -> io::Result<(Orders, JoinHandle<()>)> {
    let (sender, orders) = channel(MAX_PENDING_ORDERS);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAX_CONCURRENT_STARTS)
        .thread_keep_alive(Duration::from_secs(1))
        .build()?;
    let thread = std::thread::Builder::new()
        .name("narrows-spawner".into())
        .spawn(move || runtime.block_on(run(orders, teller)))?;
    Ok((Orders { sender, waiting: VecDeque::new() }, thread))
}

async fn run(mut orders: Receiver<Order>, teller: WorkerEventSender) {
    let mut cribs: FxHashMap<u64, Sender<bool>> = FxHashMap::default();
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                None => break,
                Some(Order::Spawn { slot, serial, pool, spec }) => {
                    // A stop and a kill; what comes after changes nothing.
                    let (stop, stops) = channel(2);
                    cribs.insert(serial, stop);
                    tasks.spawn(raise(slot, serial, pool, *spec, stops, teller.clone()));
                }
                Some(Order::Stop { serial, kill }) => {
                    if let Some(stop) = cribs.get(&serial) {
                        _ = stop.try_send(kill);
                    }
                }
            },
            Some(ended) = tasks.join_next() => match ended {
                Ok(serial) => _ = cribs.remove(&serial),
                Err(error) => tracing::error!(%error, "a task that follows a worker has failed"),
            },
        }
    }
    // Nobody is left to stop them one by one.
    drop(cribs);
    while tasks.join_next().await.is_some() {}
}

/// Follows one worker from its start to the end of its tree.
async fn raise(
    slot: u32,
    serial: u64,
    pool: String,
    spec: Spec,
    mut stops: Receiver<bool>,
    teller: WorkerEventSender,
) -> u64 {
    let spawned = narrows_process::spawn(spec).await.map_err(|error| (because(&error), error.is_shortage()));
    let child = match spawned.and_then(|child| part(child).map_err(|reason| (reason, false))) {
        Ok((child, stdin, stdout)) => {
            teller.send(WorkerEvent::Up { slot, serial, pid: child.pid(), stdin, stdout });
            Arc::new(child)
        }
        Err((reason, ours)) => {
            teller.send(WorkerEvent::Gone { slot, serial, how: Ended { reason, ours, ..Ended::default() } });
            return serial;
        }
    };
    let mut heard = stderr_log::is_wanted().then(|| StderrLog::new(pool, slot, child.stderr()));
    let mut stopping = JoinSet::new();
    let ended = child.worker_ended();
    tokio::pin!(ended);
    let exit = loop {
        tokio::select! {
            exit = &mut ended => break exit,
            () = follow(&mut heard) => {}
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
    if let Some(heard) = &mut heard {
        heard.log_lines();
    }
    let how = Ended { reason: exit.to_string(), stderr: last_words(&child), oom: exit.oom, ours: false };
    teller.send(WorkerEvent::Gone { slot, serial, how });
    stopping.abort_all();
    let exit = child.stop(LEFTOVER_LADDER).await;
    if exit.survivors > 0 {
        tracing::error!(
            pid = child.pid(),
            survivors = exit.survivors,
            "processes of a worker could not be ended"
        );
    }
    serial
}

async fn follow(heard: &mut Option<StderrLog>) {
    match heard {
        Some(heard) => heard.follow().await,
        None => std::future::pending().await,
    }
}

/// Takes the pipes out of a child, for a loop that is not tokio's.
fn part(mut child: Child) -> Result<(Child, OwnedFd, OwnedFd), String> {
    let fail = |error: io::Error| format!("its pipes cannot be used: {error}");
    let stdin = child.take_stdin().ok_or("it has no stdin")?.into_nonblocking_fd().map_err(fail)?;
    let stdout = child.take_stdout().ok_or("it has no stdout")?.into_nonblocking_fd().map_err(fail)?;
    Ok((child, stdin, stdout))
}

/// What a worker said last, on one line.
fn last_words(child: &Child) -> String {
    let tail = child.stderr().tail(MAX_QUOTED_LINES);
    let tail = tail.trim();
    let excess = tail.chars().count().saturating_sub(MAX_QUOTED_CHARS);
    let start = tail.char_indices().nth(excess).map_or(0, |(at, _)| at);
    let cut = if start > 0 { "…" } else { "" };
    format!("{cut}{}", tail[start..].replace('\n', " | "))
}

/// An error and what caused it.
fn because(error: &SpawnError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// A process of `pool`, where `environment` is ours.
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
    spec.descriptors = driver::own_descriptors();
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
    fn a_worker_gets_what_it_needs_and_no_secrets() {
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
