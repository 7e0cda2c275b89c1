//! The public handle of a bus: starts, queries, reconfigures and stops it.

mod fixed_listeners;

pub use fixed_listeners::ListenerDifference;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard};

use fixed_listeners::FixedListeners;
use mio::{Poll, Waker};
use narrows_base::sync::lock;
use narrows_link::WebSocketHandoff;
use narrows_process::{Controller, Limits, SpawnError, Unenforceable};
use tokio::sync::watch;

use crate::config::{Config, ListenAddr, ListenerAuth};
use crate::core::{Core, OwnedName};
use crate::driver::{
    self, CommandQueue, Driver, DriverParts, IncomingClient, Queues, ResumableConnectionHandler, Router,
    WebSocketHandle,
};
use crate::listen::{self, BoundListener, ListenError, SocketFile};
use crate::owner_store::{self, Index, OwnersError};
use crate::spawner::{self, WorkerEventSender};

const MAX_WORKER_EVENTS: usize = 256;

/// The reason why a bus could not be started, or could not apply another configuration.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("pool {pool:?}: {source}")]
    Program { pool: String, source: SpawnError },
    /// The configuration sets a limit of workers that this machine cannot enforce.
    #[error("pool {pool:?}: cannot enforce `{}` on this machine: {}", source.controller, source.why)]
    UnenforceableLimit { pool: String, source: Unenforceable },
    /// The permanent workers and one client need more file descriptors than this process may have.
    #[error("pools and one client need {needed} descriptors, the limit is {limit}")]
    Descriptors { needed: u64, limit: u64 },
    #[error(transparent)]
    Owners(#[from] OwnersError),
    /// The configuration requires that session owners are recorded, but no file for them was given.
    #[error("cannot record session owners: no data directory")]
    MissingOwnersFile,
    #[error("cannot start the bus: {0}")]
    Io(#[from] io::Error),
}

/// Options of [`Bus::start_with_options`] that are not in the configuration.
#[derive(Default)]
pub struct StartOptions {
    /// The file that records the owners of sessions. Required if a listener identifies its clients.
    pub owners: Option<PathBuf>,
    /// Serves resumable connections. `None`: no connection can be resumed.
    pub hand_over: Option<ResumableConnectionHandler>,
}

impl fmt::Debug for StartOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartOptions").field("owners", &self.owners).finish_non_exhaustive()
    }
}

/// The outcome of a bus that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BusOutcome {
    Done,
    Failed(String),
}

/// The bus has ended, or has too many unanswered requests for its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bus does not respond")]
pub struct NoAnswer;

/// A running bus. It runs until it is drained, even if this handle is dropped.
pub struct Bus<B: Router = Core> {
    handle: Handle<B>,
    addresses: Vec<ListenAddr>,
    files: Vec<SocketFile>,
}

impl Bus {
    /// Starts a bus: checks its programs, opens its listeners, and starts its threads.
    ///
    /// Workers get the variables of `environment` that their pools select.
    ///
    /// # Errors
    /// If a program, a listener or another resource is not available.
    pub fn start(config: Config, environment: Vec<(OsString, OsString)>) -> Result<Self, StartError> {
        Self::start_with_options(config, environment, StartOptions::default())
    }

    /// Starts a bus as [`Bus::start`] does, with options that are not in the configuration.
    ///
    /// # Errors
    /// See [`Bus::start`].
    pub fn start_with_options(
        config: Config,
        environment: Vec<(OsString, OsString)>,
        options: StartOptions,
    ) -> Result<Self, StartError> {
        Self::start_all(config, environment, options, |config| Core::new(config, fastrand::u64(..)))
    }
}

impl<B: Router> Bus<B> {
    /// Starts a bus with the router that `router` creates from the configuration. Before that,
    /// `max_connections` is capped by the file descriptors of this process.
    ///
    /// Workers get the variables of `environment` that their pools select.
    ///
    /// # Errors
    /// See [`Bus::start`].
    pub fn start_with(
        config: Config,
        environment: Vec<(OsString, OsString)>,
        router: impl FnOnce(&Config) -> B,
    ) -> Result<Self, StartError> {
        Self::start_all(config, environment, StartOptions::default(), router)
    }

    fn start_all(
        mut config: Config,
        environment: Vec<(OsString, OsString)>,
        options: StartOptions,
        router: impl FnOnce(&Config) -> B,
    ) -> Result<Self, StartError> {
        check(&config, &environment)?;
        cap(&mut config)?;
        let descriptors = driver::room_for_connections(&config);
        let mut entries = Vec::with_capacity(config.listen.len());
        let mut addresses = Vec::with_capacity(config.listen.len());
        let mut files = Vec::new();
        if config.listen.iter().filter(|listen| listen.addr == ListenAddr::Stdio).count() > 1 {
            return Err(ListenError::StdioTwice.into());
        }
        for listen in &config.listen {
            let (mut entry, address) = listen::open(&listen.addr, config.limits.stall_timeout)?;
            if let BoundListener::Socket(listener) = &mut entry {
                listener.only =
                    (listen.auth != ListenerAuth::None).then(|| rustix::process::geteuid().as_raw());
            }
            files.extend(entry.file().cloned());
            entries.push(entry);
            addresses.push(address);
        }
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), driver::waker_token())?);
        let command_queue = Arc::new(CommandQueue::new(Arc::clone(&waker)));
        let (event_sender, events) = sync_channel(MAX_WORKER_EVENTS);
        let (orders, spawner) =
            spawner::start(WorkerEventSender { events: event_sender, waker: Arc::clone(&waker) })?;
        let mut router = router(&config);
        let (owner_writer, owner_thread) = match (config.keeps_owners(), options.owners) {
            (false, _) => (None, None),
            (true, None) => return Err(StartError::MissingOwnersFile),
            (true, Some(path)) => {
                let learn = |session: &OwnedName, identity: &str| router.know_owner(session, identity);
                let index = Index::open(&path, &config.limits, learn)?;
                let (owner_writer, owner_thread) = owner_store::start(index, Arc::clone(&waker))?;
                (Some(owner_writer), Some(owner_thread))
            }
        };
        let (tell_end, ended) = watch::channel(None);
        let handle = Handle {
            command_queue: Arc::clone(&command_queue),
            ended,
            environment: environment.clone().into(),
            fixed: Arc::new(Mutex::new(FixedListeners {
                listen: config.listen,
                addresses: addresses.clone(),
                max_connections: config.limits.max_connections,
            })),
        };
        let limits = config.limits;
        let parts = DriverParts {
            router,
            poll,
            entries,
            limits,
            environment,
            orders,
            events,
            command_queue: Arc::clone(&command_queue),
            owner_writer,
            hand_over: options.hand_over,
            descriptors,
        };
        std::thread::Builder::new().name("narrows-bus".into()).spawn(move || {
            // The event loop owns the sender of spawner commands. When the loop ends, the sender is dropped,
            // and the spawner ends all processes.
            let result = catch_unwind(AssertUnwindSafe(move || Driver::new(parts).run()));
            command_queue.close();
            let mut end = match result {
                Ok(Ok(())) => BusOutcome::Done,
                Ok(Err(error)) => BusOutcome::Failed(error.to_string()),
                Err(_) => BusOutcome::Failed("event loop panicked".to_owned()),
            };
            if spawner.join().is_err() {
                end = BusOutcome::Failed("spawner thread panicked".to_owned());
            }
            if owner_thread.is_some_and(|owner_thread| owner_thread.join().is_err()) {
                end = BusOutcome::Failed("session owner writer panicked".to_owned());
            }
            if let BusOutcome::Failed(reason) = &end {
                tracing::error!(reason, "bus failed");
            }
            tell_end.send_replace(Some(end));
        })?;
        Ok(Self { handle, addresses, files })
    }

    /// Removes the socket files of the listeners, for a caller that does not wait for the end of the bus.
    pub fn remove_sockets(&self) {
        self.files.iter().for_each(SocketFile::remove);
    }

    /// Returns the listener addresses in the order of the configuration. They have the real port in place of
    /// port 0, and absolute paths.
    #[must_use]
    pub fn addresses(&self) -> &[ListenAddr] {
        &self.addresses
    }

    /// Returns a handle to the bus.
    #[must_use]
    pub fn handle(&self) -> Handle<B> {
        self.handle.clone()
    }

    /// See [`Handle::drain`].
    pub fn drain(&self) {
        self.handle.drain();
    }

    /// See [`Handle::reload`].
    ///
    /// # Errors
    /// See [`Handle::reload`].
    pub fn reload(&self, config: Config) -> Result<Vec<ListenerDifference>, StartError> {
        self.handle.reload(config)
    }

    /// See [`Handle::status`].
    ///
    /// # Errors
    /// See [`Handle::status`].
    pub async fn status(&self) -> Result<B::Status, NoAnswer> {
        self.handle.status().await
    }

    /// See [`Handle::finished`].
    pub async fn finished(&self) -> BusOutcome {
        self.handle.finished().await
    }
}

/// A handle to query, reconfigure and drain a bus.
pub struct Handle<B: Router = Core> {
    command_queue: Arc<CommandQueue<B::Status>>,
    ended: watch::Receiver<Option<BusOutcome>>,
    environment: Arc<[(OsString, OsString)]>,
    fixed: Arc<Mutex<FixedListeners>>,
}

impl<B: Router> Handle<B> {
    /// Drains the bus: it accepts no new work, lets active turns end, and then ends.
    pub fn drain(&self) {
        self.command_queue.drain();
    }

    /// Applies another configuration. Listeners keep everything but their permitted pools. Returns the
    /// listeners that differ from the configuration until a restart.
    ///
    /// # Errors
    /// If the configuration cannot be applied. The former configuration then stays in effect.
    pub fn reload(&self, mut config: Config) -> Result<Vec<ListenerDifference>, StartError> {
        check(&config, &self.environment)?;
        cap(&mut config)?;
        // The lock is held until the configuration is queued, so that concurrent reloads are queued in the
        // order in which they took it.
        let mut fixed = self.fixed();
        let (listen, differences) = fixed.apply(&config.listen);
        config.listen = listen;
        fixed.listen.clone_from(&config.listen);
        fixed.max_connections = config.limits.max_connections;
        self.command_queue.reload(Box::new(config));
        Ok(differences)
    }

    /// Connects a client that the caller has authenticated, through a socket that carries lines. The caller
    /// also limits how long a full queue may make no progress: `stall_timeout` applies only while the
    /// connection is being closed.
    ///
    /// # Errors
    /// If the bus has ended or too many connections wait to be accepted. The socket is then closed.
    pub fn connect(&self, socket: OwnedFd, from: IncomingClient) -> Result<(), NoAnswer> {
        self.command_queue.connect(socket, from).then_some(()).ok_or(NoAnswer)
    }

    /// Connects a client over a WebSocket without TLS whose handshake is complete. The event loop serves its
    /// frames, pings and close.
    ///
    /// # Errors
    /// If the bus has ended or too many connections wait to be accepted. The error contains the unchanged
    /// socket.
    pub fn connect_upgraded(
        &self,
        upgraded: WebSocketHandoff,
        from: IncomingClient,
    ) -> Result<WebSocketHandle, WebSocketHandoff> {
        self.command_queue.connect_upgraded(upgraded, from)
    }

    /// Closes a client of [`Handle::connect_upgraded`] with a close code and a reason.
    pub fn close_websocket(&self, served: &WebSocketHandle, code: u16, reason: &'static str) {
        self.command_queue.close_websocket(served, code, reason);
    }

    /// Returns the maximum number of connections of the bus.
    #[must_use]
    pub fn max_connections(&self) -> usize {
        self.fixed().max_connections
    }

    fn fixed(&self) -> MutexGuard<'_, FixedListeners> {
        lock(&self.fixed)
    }

    /// Returns the status of the router.
    ///
    /// # Errors
    /// If the bus has ended or has too many unanswered requests for its status.
    pub async fn status(&self) -> Result<B::Status, NoAnswer> {
        self.report().await.map(|(status, _)| status)
    }

    /// Returns the status of the router and of the write queues.
    ///
    /// # Errors
    /// See [`Handle::status`].
    pub async fn report(&self) -> Result<(B::Status, Queues), NoAnswer> {
        let answer = self.command_queue.status().ok_or(NoAnswer)?;
        tokio::select! {
            biased;
            answer = answer => answer.map_err(|_| NoAnswer),
            _ = self.finished() => Err(NoAnswer),
        }
    }

    /// Waits until the bus and all processes of its workers have ended.
    pub async fn finished(&self) -> BusOutcome {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(end) => end.clone().unwrap_or(BusOutcome::Done),
            Err(_) => BusOutcome::Failed("bus thread exited".to_owned()),
        }
    }
}

impl<B: Router> Clone for Handle<B> {
    fn clone(&self) -> Self {
        Self {
            command_queue: Arc::clone(&self.command_queue),
            ended: self.ended.clone(),
            environment: Arc::clone(&self.environment),
            fixed: Arc::clone(&self.fixed),
        }
    }
}

impl<B: Router> fmt::Debug for Handle<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("ended", &*self.ended.borrow()).finish_non_exhaustive()
    }
}

impl<B: Router> fmt::Debug for Bus<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bus").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// Returns the limits that can be set for workers, each with the reason if this machine cannot enforce it. A
/// configuration that sets an unenforceable limit is refused.
pub fn worker_limits() -> [(Controller, Result<(), Unenforceable>); 2] {
    [Controller::Memory, Controller::Pids].map(|controller| (controller, Limits::check(controller)))
}

fn check(config: &Config, environment: &[(OsString, OsString)]) -> Result<(), StartError> {
    for pool in &config.pools {
        let spec = spawner::spec(pool, environment);
        narrows_process::find(&spec)
            .map_err(|source| StartError::Program { pool: pool.name.clone(), source })?;
        spec.limits
            .try_out()
            .map_err(|source| StartError::UnenforceableLimit { pool: pool.name.clone(), source })?;
    }
    Ok(())
}

/// Lowers `max_connections` to what the file descriptors allow. Fails if not even one client is possible.
fn cap(config: &mut Config) -> Result<(), StartError> {
    let limit = driver::raise_fd_limit();
    let needed = driver::needed_descriptors(config);
    if needed > limit {
        return Err(StartError::Descriptors { needed, limit });
    }
    if let Some(room) = driver::cap_connections(config, limit) {
        let wanted = config.limits.max_connections;
        let what = "max_connections lowered to the file descriptor limit";
        if is_much_less(room, wanted) {
            tracing::warn!(wanted, room, descriptors = limit, "{what}");
        } else {
            tracing::info!(wanted, room, descriptors = limit, "{what}");
        }
        config.limits.max_connections = room;
    }
    config.limits.max_anonymous_connections = driver::anonymous_connections(config);
    Ok(())
}

/// Returns `true` if `room` is over a tenth less than an explicitly configured `wanted`. A shortage for the
/// default value is not reported, because no administrator asked for that value.
fn is_much_less(room: usize, wanted: usize) -> bool {
    wanted != crate::config::BusLimits::default().max_connections && room < wanted - wanted / 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_shortage_of_more_than_a_tenth_is_reported() {
        for (room, wanted, much) in [
            (8_999, 10_000, true),
            (9_000, 10_000, false),
            (6_642, 20_000, false),
            (1, 2, true),
            (9, 10, false),
            (1, 1, false),
        ] {
            assert_eq!(is_much_less(room, wanted), much, "{room} of {wanted}");
        }
    }
}
