//! The public handle of a bus: starts, queries, reconfigures and stops it.

mod fixed_listeners;

pub use fixed_listeners::Unmoved;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard};

use fixed_listeners::Standing;
use mio::{Poll, Waker};
use narrows_base::sync::lock;
use narrows_link::WebSocketHandoff;
use narrows_process::{Controller, Limits, SpawnError, Unenforceable};
use tokio::sync::watch;

use crate::config::{Auth, Config, Door};
use crate::core::{Core, OwnedName};
use crate::driver::{
    self, CommandQueue, Driver, HandOver, IncomingClient, Parts, Queues, Router, WebSocketHandle,
};
use crate::listen::{self, BoundListener, ListenError, Made};
use crate::owner_store::{self, Index, OwnersError};
use crate::spawner::{self, WorkerEventSender};

/// How much news of processes can be under way.
const MAX_WORKER_EVENTS: usize = 256;

/// Why a bus could not be started, or not be changed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Nobody could come in.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A worker could never be started.
    #[error("pool {pool:?}: {source}")]
    Program {
        /// Whose.
        pool: String,
        /// What is wrong.
        source: SpawnError,
    },
    /// A limit that this machine cannot enforce.
    #[error("pool {pool:?}: `{}` cannot be enforced here: {}", source.controller, source.why)]
    Unlimited {
        /// Whose.
        pool: String,
        /// Which, and why.
        source: Unenforceable,
    },
    /// More workers than there can be.
    #[error("the workers of all pools and one client need {needed} descriptors, and there can be {limit}")]
    Descriptors {
        /// How many.
        needed: u64,
        /// How many this process may have.
        limit: u64,
    },
    /// It could not be written down whose sessions are.
    #[error(transparent)]
    Owners(#[from] OwnersError),
    /// Nobody said where that is to be written.
    #[error("there is no place to write down whose sessions are")]
    NoPlace,
    /// The system has no room for it.
    #[error("cannot start the bus: {0}")]
    Io(#[from] io::Error),
}

/// What a bus has to do with beside its settings.
#[derive(Default)]
pub struct StartOptions {
    /// The file in which it is written down whose sessions are; needed where clients are asked who they are.
    pub owners: Option<PathBuf>,
    /// Who serves connections that can be taken up again. Without, they are served here like any other.
    pub hand_over: Option<HandOver>,
}

impl fmt::Debug for StartOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Edges").field("owners", &self.owners).finish_non_exhaustive()
    }
}

/// How a bus ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// As it was told to.
    Done,
    /// By a fault of its own or of the system's.
    Failed(String),
}

/// There is nothing to be asked: the bus has ended, or too many ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bus does not answer")]
pub struct NoAnswer;

/// A bus that runs. It goes on until it is told to stop, also when this is dropped.
pub struct Bus<B: Router = Core> {
    handle: Handle<B>,
    addresses: Vec<Door>,
    files: Vec<Made>,
}

impl Bus {
    /// Starts a bus: finds its programs, opens its doors, and starts its threads.
    ///
    /// `environment` is ours, of which workers get what their pools say.
    ///
    /// # Errors
    /// When something that is needed from the beginning is not there.
    pub fn start(config: Config, environment: Vec<(OsString, OsString)>) -> Result<Self, StartError> {
        Self::start_within(config, environment, StartOptions::default())
    }

    /// The same, with more around it.
    ///
    /// # Errors
    /// As there.
    pub fn start_within(
        config: Config,
        environment: Vec<(OsString, OsString)>,
        edges: StartOptions,
    ) -> Result<Self, StartError> {
        Self::start_all(config, environment, edges, |config| Core::new(config, fastrand::u64(..)))
    }
}

impl<B: Router> Bus<B> {
    /// Starts a bus whose decisions are made by what `brain` makes of the settings, which are those that can be kept to:
    /// the number of connections is capped by the number of descriptors.
    ///
    /// `environment` is ours, of which workers get what their pools say.
    ///
    /// # Errors
    /// When something that is needed from the beginning is not there.
    pub fn start_with(
        config: Config,
        environment: Vec<(OsString, OsString)>,
        brain: impl FnOnce(&Config) -> B,
    ) -> Result<Self, StartError> {
        Self::start_all(config, environment, StartOptions::default(), brain)
    }

    fn start_all(
        mut config: Config,
        environment: Vec<(OsString, OsString)>,
        edges: StartOptions,
        brain: impl FnOnce(&Config) -> B,
    ) -> Result<Self, StartError> {
        check(&config, &environment)?;
        cap(&mut config)?;
        let descriptors = driver::room_for_connections(&config);
        let mut entries = Vec::with_capacity(config.listen.len());
        let mut addresses = Vec::with_capacity(config.listen.len());
        let mut files = Vec::new();
        if config.listen.iter().filter(|listen| listen.at == Door::Stdio).count() > 1 {
            return Err(ListenError::StdioTwice.into());
        }
        for listen in &config.listen {
            let (mut entry, door) = listen::open(&listen.at, config.limits.stall_timeout)?;
            if let BoundListener::Socket(listener) = &mut entry {
                listener.only = (listen.auth != Auth::None).then(|| rustix::process::geteuid().as_raw());
            }
            files.extend(entry.file().cloned());
            entries.push(entry);
            addresses.push(door);
        }
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), driver::waker_token())?);
        let mailbox = Arc::new(CommandQueue::new(Arc::clone(&waker)));
        let (teller, news) = sync_channel(MAX_WORKER_EVENTS);
        let (orders, spawner) =
            spawner::start(WorkerEventSender { news: teller, waker: Arc::clone(&waker) })?;
        let mut brain = brain(&config);
        let (ledger, scribe) = match (config.keeps_owners(), edges.owners) {
            (false, _) => (None, None),
            (true, None) => return Err(StartError::NoPlace),
            (true, Some(path)) => {
                let learn = |session: &OwnedName, identity: &str| brain.know_owner(session, identity);
                let index = Index::open(&path, config.limits.owner_expiry, learn)?;
                let (ledger, scribe) = owner_store::start(index, Arc::clone(&waker))?;
                (Some(ledger), Some(scribe))
            }
        };
        let (tell_end, ended) = watch::channel(None);
        let handle = Handle {
            mailbox: Arc::clone(&mailbox),
            ended,
            environment: environment.clone().into(),
            standing: Arc::new(Mutex::new(Standing {
                listen: config.listen,
                addresses: addresses.clone(),
                max_connections: config.limits.max_connections,
            })),
        };
        let limits = config.limits;
        let parts = Parts {
            brain,
            poll,
            entries,
            limits,
            environment,
            orders,
            news,
            mailbox: Arc::clone(&mailbox),
            ledger,
            hand_over: edges.hand_over,
            descriptors,
        };
        std::thread::Builder::new().name("narrows-bus".into()).spawn(move || {
            // With the loop its end of the orders goes, and with that every process.
            let result = catch_unwind(AssertUnwindSafe(move || Driver::new(parts).run()));
            mailbox.close();
            let mut end = match result {
                Ok(Ok(())) => Ended::Done,
                Ok(Err(error)) => Ended::Failed(error.to_string()),
                Err(_) => Ended::Failed("a panic in the loop of the bus".to_owned()),
            };
            if spawner.join().is_err() {
                end = Ended::Failed("a panic in the thread that starts processes".to_owned());
            }
            if scribe.is_some_and(|scribe| scribe.join().is_err()) {
                end = Ended::Failed("a panic in the thread that writes down whose sessions are".to_owned());
            }
            if let Ended::Failed(reason) = &end {
                tracing::error!(reason, "the bus has failed");
            }
            tell_end.send_replace(Some(end));
        })?;
        Ok(Self { handle, addresses, files })
    }

    /// Removes its sockets from where they are, for whoever ends without waiting for it.
    pub fn forsake(&self) {
        self.files.iter().for_each(Made::remove);
    }

    /// Where it listens, in the order of the settings; a port 0 has become a real one, and paths are whole.
    #[must_use]
    pub fn addresses(&self) -> &[Door] {
        &self.addresses
    }

    /// Another hold on it.
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
    /// As there.
    pub fn reload(&self, config: Config) -> Result<Vec<Unmoved>, StartError> {
        self.handle.reload(config)
    }

    /// See [`Handle::status`].
    ///
    /// # Errors
    /// As there.
    pub async fn status(&self) -> Result<B::Status, NoAnswer> {
        self.handle.status().await
    }

    /// See [`Handle::finished`].
    pub async fn finished(&self) -> Ended {
        self.handle.finished().await
    }
}

/// A hold on a bus, for whoever asks it or changes it.
pub struct Handle<B: Router = Core> {
    mailbox: Arc<CommandQueue<B::Status>>,
    ended: watch::Receiver<Option<Ended>>,
    environment: Arc<[(OsString, OsString)]>,
    standing: Arc<Mutex<Standing>>,
}

impl<B: Router> Handle<B> {
    /// Asks it to finish what it does and end.
    pub fn drain(&self) {
        self.mailbox.drain();
    }

    /// Gives it other pools and limits. Listeners stay as they are but for their pools; what is returned says how that is
    /// not what the settings say.
    ///
    /// # Errors
    /// When it could not keep to them; then everything stays as it is.
    pub fn reload(&self, mut config: Config) -> Result<Vec<Unmoved>, StartError> {
        check(&config, &self.environment)?;
        cap(&mut config)?;
        // Held until it is handed over, so that of two at once the same one is the last.
        let mut standing = self.standing();
        let (listen, unmoved) = standing.keep(&config.listen);
        config.listen = listen;
        standing.listen.clone_from(&config.listen);
        standing.max_connections = config.limits.max_connections;
        self.mailbox.reload(Box::new(config));
        Ok(unmoved)
    }

    /// Lets a client in through a socket that carries lines, which somebody else has made sure of. How long it may take
    /// nothing of a full queue is up to them too: `stall_timeout` does not hold for it, unless it is being hung up on.
    ///
    /// # Errors
    /// When it has ended, or too many wait to be let in; then the socket is closed.
    pub fn connect(&self, socket: OwnedFd, from: IncomingClient) -> Result<(), NoAnswer> {
        self.mailbox.connect(socket, from).then_some(()).ok_or(NoAnswer)
    }

    /// Lets a client in over a WebSocket without TLS. From here on it is served in the loop of the bus: frames, pings and the end.
    ///
    /// # Errors
    /// When it has ended, or too many wait to be let in; then the socket comes back as it was.
    pub fn connect_upgraded(
        &self,
        upgraded: WebSocketHandoff,
        from: IncomingClient,
    ) -> Result<WebSocketHandle, WebSocketHandoff> {
        self.mailbox.connect_upgraded(upgraded, from)
    }

    /// Hangs up on a client that came in so, with this as the last word.
    pub fn hang_up(&self, served: &WebSocketHandle, code: u16, reason: &'static str) {
        self.mailbox.hang_up(served, code, reason);
    }

    /// How many connections there can be at once.
    #[must_use]
    pub fn max_connections(&self) -> usize {
        self.standing().max_connections
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        lock(&self.standing)
    }

    /// How things stand.
    ///
    /// # Errors
    /// When it has ended, or too many ask.
    pub async fn status(&self) -> Result<B::Status, NoAnswer> {
        self.report().await.map(|(status, _)| status)
    }

    /// The same, with what waits to be written.
    ///
    /// # Errors
    /// As there.
    pub async fn report(&self) -> Result<(B::Status, Queues), NoAnswer> {
        let answer = self.mailbox.status().ok_or(NoAnswer)?;
        tokio::select! {
            biased;
            answer = answer => answer.map_err(|_| NoAnswer),
            _ = self.finished() => Err(NoAnswer),
        }
    }

    /// Waits until it has ended and every process of its workers with it.
    pub async fn finished(&self) -> Ended {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(end) => end.clone().unwrap_or(Ended::Done),
            Err(_) => Ended::Failed("the thread of the bus is gone".to_owned()),
        }
    }
}

impl<B: Router> Clone for Handle<B> {
    fn clone(&self) -> Self {
        Self {
            mailbox: Arc::clone(&self.mailbox),
            ended: self.ended.clone(),
            environment: Arc::clone(&self.environment),
            standing: Arc::clone(&self.standing),
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

/// Which settings that limit a worker and all it starts this machine can enforce, and why not the others. Whoever sets one
/// of those is refused.
pub fn worker_limits() -> [(Controller, Result<(), Unenforceable>); 2] {
    [Controller::Memory, Controller::Pids].map(|controller| (controller, Limits::check(controller)))
}

/// Whether the workers of every pool could be started.
fn check(config: &Config, environment: &[(OsString, OsString)]) -> Result<(), StartError> {
    for pool in &config.pools {
        let spec = spawner::spec(pool, environment);
        narrows_process::find(&spec)
            .map_err(|source| StartError::Program { pool: pool.name.clone(), source })?;
        spec.limits.try_out().map_err(|source| StartError::Unlimited { pool: pool.name.clone(), source })?;
    }
    Ok(())
}

/// Lowers the number of connections to what there can be.
fn cap(config: &mut Config) -> Result<(), StartError> {
    let limit = driver::raise_descriptors();
    let needed = driver::needed_descriptors(config);
    if needed > limit {
        return Err(StartError::Descriptors { needed, limit });
    }
    if let Some(room) = driver::cap_connections(config, limit) {
        let wanted = config.limits.max_connections;
        let what = "there are descriptors for fewer connections than `max_connections`: `ulimit -n` before the start gives more";
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

/// Whether more than a tenth of what somebody wanted is missing: then they should know. What is so by default nobody has asked for.
fn is_much_less(room: usize, wanted: usize) -> bool {
    wanted != crate::config::Limits::default().max_connections && room < wanted - wanted / 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_less_is_no_matter() {
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
