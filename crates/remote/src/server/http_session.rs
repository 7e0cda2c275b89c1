//! One connection over HTTP: a backend connection and its event streams.

use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use narrows_base::sync::lock;
use narrows_wire::{LineRef, RpcError};
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::admission::AdmittedClient;
use super::authorize::Caller;
use super::backend_writer::{BackendWriter, Waiting};
use super::codec;
use super::detached::DetachedConnection;
use super::disconnect_stats::{DisconnectOutcome, DisconnectStats};
use super::post_dedup::{PostDedup, PostState};
use super::shared::HttpServerState;
use super::streams::{Next, OpenFault, ResponseTarget, Streams, TooMany};
use super::unfinished::MessageMemory;
use crate::identity::Identity;

/// Time until a stream that was closed counts as broken. A client that ends its connection meanwhile closed
/// the stream on purpose.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct HttpSession {
    pub(super) name: String,
    owner: Identity,
    listener: usize,
    streams: Mutex<Streams>,
    /// When the client last sent or read something.
    touched: Mutex<Instant>,
    /// Notified when queued events were read.
    room: Notify,
    writer: BackendWriter,
    posts: Mutex<PostDedup>,
    end: Arc<Notify>,
    /// The number of streams that were cut but not counted yet. A client that ends its connection cuts its
    /// streams too.
    cuts: AtomicU64,
    cut: Notify,
    disconnects: Arc<DisconnectStats>,
}

impl HttpSession {
    pub(super) async fn open(shared: &Arc<HttpServerState>, client: AdmittedClient) -> io::Result<Arc<Self>> {
        let backend = shared.open_backend(&client).await?;
        let name = shared.random_name().ok_or(io::ErrorKind::Other)?;
        let (from, to) = backend.into_split();
        let (writer, messages) = BackendWriter::new(to);
        let http_session = Arc::new(Self {
            name: name.clone(),
            owner: client.identity().clone(),
            listener: client.listener(),
            streams: Mutex::new(Streams::new(
                shared.limits.keep(),
                shared.replay_memory.share(client.identity()),
            )),
            touched: Mutex::new(Instant::now()),
            room: Notify::new(),
            writer,
            posts: Mutex::default(),
            end: Arc::default(),
            cuts: AtomicU64::new(0),
            cut: Notify::new(),
            disconnects: Arc::clone(&shared.disconnects),
        });
        shared.http_sessions(|http_sessions| http_sessions.insert(name, Arc::clone(&http_session)));
        tokio::spawn(run(Arc::clone(shared), Arc::clone(&http_session), client, from, messages));
        Ok(http_session)
    }

    /// Finds the connection `name` of `caller`. A connection of another identity, or of a listener with other
    /// rights, is reported as missing.
    pub(super) fn find(shared: &HttpServerState, name: &str, caller: &Caller) -> Option<Arc<Self>> {
        let found = shared.http_sessions(|http_sessions| http_sessions.get(name).cloned())?;
        let may_use = found.owner == caller.identity && shared.may_continue(found.listener, caller.listener);
        may_use.then_some(found)
    }

    pub(super) fn backend_error(&self) -> Option<RpcError> {
        self.with(|streams| streams.backend_error())
    }

    /// Returns the connection as a candidate to end when room is needed, if the client has been inactive for
    /// a while.
    pub(super) fn detached(&self) -> Option<DetachedConnection> {
        let since = *lock(&self.touched);
        let is_quiet = since.elapsed() > LEAVE_TIMEOUT && !self.with(|streams| streams.is_read());
        is_quiet.then(|| DetachedConnection {
            identity: self.owner.to_string(),
            since,
            end_signal: Arc::clone(&self.end),
        })
    }

    pub(super) fn end(&self) {
        self.end.notify_one();
    }

    /// Sends a complete message, even if the request that posted it is dropped meanwhile. `asked` is the id
    /// of a request and the destination of its response. A message with a `number` is sent only once. `part`
    /// counts the memory of the message until the agent has received it.
    pub(super) async fn send(
        &self,
        line: Bytes,
        asked: Option<(&[u8], ResponseTarget)>,
        number: Option<u64>,
        part: Option<MessageMemory>,
    ) -> Result<(), SendFault> {
        self.touch();
        let slot = self.writer.reserve().await.map_err(|_| SendFault::Gone)?;
        let mut posts = lock(&self.posts);
        match number.map(|number| posts.state(number)) {
            Some(PostState::Taken) => return Ok(()),
            Some(PostState::Forgotten) => return Err(SendFault::Forgotten),
            Some(PostState::New) | None => {}
        }
        if let Some((id, target)) = asked {
            self.with(|streams| streams.record_request(id, target))?;
        }
        if let Some(number) = number {
            posts.record(number);
        }
        slot.send(line, part);
        Ok(())
    }

    /// Adds a reader to a stream; see [`Streams::open`].
    pub(super) fn subscribe(
        &self,
        session: Option<&str>,
        cursor: Option<u64>,
    ) -> Result<(u64, Option<Bytes>), OpenFault> {
        self.touch();
        self.count_cuts();
        let opened = self.with(|streams| streams.open(session, cursor));
        match &opened {
            Ok((_, Some(_))) | Err(OpenFault::Gap) => self.disconnects.add(DisconnectOutcome::Gap),
            // A client that sends a cursor resumes an earlier stream.
            Ok(_) if cursor.is_some() => self.disconnects.add(DisconnectOutcome::Resumed),
            Ok(_) | Err(OpenFault::Taken | OpenFault::Unknown) => {}
        }
        opened
    }

    pub(super) fn next(&self, session: Option<&str>, reader: u64, waker: &Waker) -> Next {
        let now = Instant::now().into_std();
        let next = self.with(|streams| {
            let next = streams.next(session, reader, now, waker);
            streams.limit_memory(now);
            next
        });
        if let Next::Events(_) = next {
            self.room.notify_one();
        }
        next
    }

    /// Removes a reader; see [`Streams::close`]. `cut` is `true` if the stream had not ended.
    pub(super) fn unsubscribe(&self, session: Option<&str>, reader: u64, cut: bool) {
        self.touch();
        let was_reading = self.with(|streams| streams.close(session, reader));
        match (cut, was_reading) {
            (true, true) => {
                self.cuts.fetch_add(1, Ordering::Relaxed);
                self.cut.notify_one();
            }
            // Another reader has replaced this one, so the client did not close the stream on purpose.
            (true, false) => self.disconnects.add(DisconnectOutcome::Broken),
            (false, _) => {}
        }
        // The output of the agent may have been held back for this reader.
        self.room.notify_one();
    }

    fn count_cuts(&self) {
        (0..self.cuts.swap(0, Ordering::Relaxed))
            .for_each(|_| self.disconnects.add(DisconnectOutcome::Broken));
    }

    /// Counts cut streams after [`LEAVE_TIMEOUT`], unless the connection has ended. Never returns.
    async fn count_cuts_later(&self) {
        loop {
            self.cut.notified().await;
            sleep(LEAVE_TIMEOUT).await;
            self.count_cuts();
        }
    }

    fn touch(&self) {
        *lock(&self.touched) = Instant::now();
    }

    fn with<T>(&self, act: impl FnOnce(&mut Streams) -> T) -> T {
        act(&mut lock(&self.streams))
    }

    /// Reads the output of the agents as fast as the readers allow.
    async fn read_backend(&self, shared: &HttpServerState, mut backend: OwnedReadHalf) {
        let mut splitter = codec::backend_splitter();
        loop {
            while self.with(|streams| streams.is_full()) {
                if timeout(shared.limits.idle_timeout, self.room.notified()).await.is_err() {
                    self.with(|streams| streams.drop_slow(Instant::now().into_std()));
                }
            }
            let mut deliver = |read: &mut [u8]| {
                let now = Instant::now().into_std();
                self.with(|streams| {
                    splitter.feed(read, |piece| {
                        // None is too long for this splitter.
                        if let LineRef::Whole(line) = piece {
                            streams.deliver(line, now);
                        }
                    });
                    streams.limit_memory(now);
                });
            };
            match poll_fn(|cx| shared.scratch.poll_read(cx, &mut backend, &mut deliver)).await {
                Ok(count) if count > 0 => {}
                _ => return,
            }
        }
    }

    async fn until_inactive(&self, shared: &HttpServerState) {
        let grace = shared.limits.grace;
        loop {
            if self.with(|streams| streams.is_read()) {
                sleep(grace).await;
                continue;
            }
            let until = *lock(&self.touched) + grace;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SendFault {
    #[error("the connection has ended")]
    Gone,
    /// So many later POSTs were accepted that the server has forgotten whether it accepted this one.
    #[error("the server no longer knows whether it accepted this POST")]
    Forgotten,
    #[error(transparent)]
    TooMany(#[from] TooMany),
}

async fn run(
    shared: Arc<HttpServerState>,
    http_session: Arc<HttpSession>,
    mut client: AdmittedClient,
    from: OwnedReadHalf,
    messages: mpsc::Receiver<Waiting>,
) {
    let in_order = tokio::select! {
        () = http_session.read_backend(&shared, from) => false,
        () = http_session.writer.write_queued(messages) => false,
        () = http_session.until_inactive(&shared) => {
            shared.disconnects.add(DisconnectOutcome::Expired);
            false
        }
        () = http_session.end.notified() => true,
        () = shared.stopping() => false,
        () = client.revoked() => false,
        () = http_session.count_cuts_later() => false,
    };
    if !in_order {
        http_session.count_cuts();
    }
    shared.http_sessions(|http_sessions| http_sessions.remove(&http_session.name));
    http_session.writer.close();
    http_session.with(Streams::end);
}
