//! One connection over HTTP: a backend connection and its event streams.

use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use narrows_base::sync::lock;
use narrows_wire::{DEFAULT_MAX_LINE_BYTES, LineRef, RpcError, Splitter};
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::admission::AdmittedClient;
use super::backend_writer::{BackendWriter, Waiting};
use super::detached::Kept;
use super::disconnect_stats::{DisconnectOutcome, DisconnectStats};
use super::post_dedup::{Known, PostDedup};
use super::shared::Shared;
use super::streams::{Next, OpenFault, Streams, TooMany, Waits};
use super::unfinished::Part;
use crate::identity::Identity;

/// Time in which a client that closes its streams may end the connection, so that they do not count as broken.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// One connection over HTTP.
#[derive(Debug)]
pub(super) struct HttpSession {
    /// The value of `Acp-Connection-Id`.
    pub(super) name: String,
    owner: Identity,
    exchange: Mutex<Streams>,
    /// When the client last sent or read something.
    touched: Mutex<Instant>,
    /// Notified when queued events were read.
    room: Notify,
    mouth: BackendWriter,
    posts: Mutex<PostDedup>,
    end: Arc<Notify>,
    /// Streams that were cut but are not counted yet: a client that ends the connection closes them as well.
    cuts: AtomicU64,
    cut: Notify,
    disconnects: Arc<DisconnectStats>,
}

impl HttpSession {
    /// Opens a backend connection for `guest`.
    pub(super) async fn open(shared: &Arc<Shared>, guest: AdmittedClient) -> io::Result<Arc<Self>> {
        let backend = shared.open(&guest).await?;
        let name = shared.name().ok_or(io::ErrorKind::Other)?;
        let (from, to) = backend.into_split();
        let (mouth, messages) = BackendWriter::new(to);
        let channel = Arc::new(Self {
            name: name.clone(),
            owner: guest.identity().clone(),
            exchange: Mutex::new(Streams::new(
                shared.limits.keep(),
                shared.replay_memory.share(guest.identity()),
            )),
            touched: Mutex::new(Instant::now()),
            room: Notify::new(),
            mouth,
            posts: Mutex::default(),
            end: Arc::default(),
            cuts: AtomicU64::new(0),
            cut: Notify::new(),
            disconnects: Arc::clone(&shared.disconnects),
        });
        shared.channels(|channels| channels.insert(name, Arc::clone(&channel)));
        tokio::spawn(run(Arc::clone(shared), Arc::clone(&channel), guest, from, messages));
        Ok(channel)
    }

    /// Finds the connection `name` of `who`. One of another identity is indistinguishable from a missing one.
    pub(super) fn find(shared: &Shared, name: &str, who: &Identity) -> Option<Arc<Self>> {
        let found = shared.channels(|channels| channels.get(name).cloned())?;
        (found.owner == *who).then_some(found)
    }

    /// See [`Streams::last_words`].
    pub(super) fn last_words(&self) -> Option<RpcError> {
        self.with(|exchange| exchange.last_words())
    }

    /// Returns the connection as a candidate for making room, if its client has been inactive for a while.
    pub(super) fn detached(&self) -> Option<Kept> {
        let since = *lock(&self.touched);
        let is_quiet = since.elapsed() > LEAVE_TIMEOUT && !self.with(|exchange| exchange.is_read());
        is_quiet.then(|| Kept { identity: self.owner.to_string(), since, end: Arc::clone(&self.end) })
    }

    /// Ends the connection.
    pub(super) fn end(&self) {
        self.end.notify_one();
    }

    /// Sends a complete message, even if the request that posted it is gone by then.
    ///
    /// `asked` is the id of a request and the destination of its response. A message with a `number` is sent once,
    /// however often it is posted. `part` counts its memory until the agent has it.
    pub(super) async fn send(
        &self,
        line: Bytes,
        asked: Option<(&[u8], Waits)>,
        number: Option<u64>,
        part: Option<Part>,
    ) -> Result<(), SendFault> {
        self.touch();
        let turn = self.mouth.turn().await.map_err(|_| SendFault::Gone)?;
        let mut posts = lock(&self.posts);
        match number.map(|number| posts.know(number)) {
            Some(Known::Taken) => return Ok(()),
            Some(Known::Forgotten) => return Err(SendFault::Forgotten),
            Some(Known::New) | None => {}
        }
        if let Some((id, waits)) = asked {
            self.with(|exchange| exchange.asked(id, waits))?;
        }
        if let Some(number) = number {
            posts.take(number);
        }
        turn.say(line, part);
        Ok(())
    }

    /// See [`Streams::open`].
    pub(super) fn subscribe(
        &self,
        session: Option<&str>,
        cursor: Option<u64>,
    ) -> Result<(u64, Option<Bytes>), OpenFault> {
        self.touch();
        self.count_cuts();
        let opened = self.with(|exchange| exchange.open(session, cursor));
        match &opened {
            Ok((_, Some(_))) | Err(OpenFault::Gap) => self.disconnects.add(DisconnectOutcome::Gap),
            // A client with a cursor resumes.
            Ok(_) if cursor.is_some() => self.disconnects.add(DisconnectOutcome::Resumed),
            Ok(_) | Err(OpenFault::Taken | OpenFault::Unknown) => {}
        }
        opened
    }

    /// See [`Streams::next`].
    pub(super) fn next(&self, session: Option<&str>, reader: u64, waker: &Waker) -> Next {
        let now = Instant::now().into_std();
        let next = self.with(|exchange| {
            let next = exchange.next(session, reader, now, waker);
            exchange.limit_memory(now);
            next
        });
        if let Next::Events(_) = next {
            self.room.notify_one();
        }
        next
    }

    /// See [`Streams::close`]. `cut`: before the end of the stream.
    pub(super) fn unsubscribe(&self, session: Option<&str>, reader: u64, cut: bool) {
        self.touch();
        let was_reading = self.with(|exchange| exchange.close(session, reader));
        match (cut, was_reading) {
            (true, true) => {
                self.cuts.fetch_add(1, Ordering::Relaxed);
                self.cut.notify_one();
            }
            // Another reader has replaced it.
            (true, false) => self.disconnects.add(DisconnectOutcome::Broken),
            (false, _) => {}
        }
        // The agent may have been waiting for this reader.
        self.room.notify_one();
    }

    /// Counts cut streams as broken.
    fn count_cuts(&self) {
        (0..self.cuts.swap(0, Ordering::Relaxed))
            .for_each(|_| self.disconnects.add(DisconnectOutcome::Broken));
    }

    /// Counts cut streams after [`LEAVE_TIMEOUT`], unless the connection has ended. Never returns.
    async fn count(&self) {
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
        act(&mut lock(&self.exchange))
    }

    /// Reads the output of the agents as fast as the readers allow.
    async fn listen(&self, shared: &Shared, mut backend: OwnedReadHalf) {
        let mut splitter = Splitter::new(DEFAULT_MAX_LINE_BYTES);
        loop {
            while self.with(|exchange| exchange.is_full()) {
                if timeout(shared.limits.idle_timeout, self.room.notified()).await.is_err() {
                    self.with(|exchange| exchange.drop_slow(Instant::now().into_std()));
                }
            }
            let mut hear = |read: &mut [u8]| {
                let now = Instant::now().into_std();
                self.with(|exchange| {
                    splitter.feed(read, |piece| {
                        if let LineRef::Whole(line) = piece {
                            exchange.said(line, now);
                        }
                    });
                    exchange.limit_memory(now);
                });
            };
            match poll_fn(|cx| shared.scratch.poll_read(cx, &mut backend, &mut hear)).await {
                Ok(count) if count > 0 => {}
                _ => return,
            }
        }
    }

    /// Waits until the client has been inactive for the grace period.
    async fn quiet(&self, shared: &Shared) {
        let grace = shared.limits.grace;
        loop {
            if self.with(|exchange| exchange.is_read()) {
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

/// A reason why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SendFault {
    /// The connection has ended.
    #[error("the connection has ended")]
    Gone,
    /// Too many posts followed to tell whether it was sent before.
    #[error("unknown whether the post was accepted")]
    Forgotten,
    /// Too many requests are pending.
    #[error(transparent)]
    TooMany(#[from] TooMany),
}

async fn run(
    shared: Arc<Shared>,
    channel: Arc<HttpSession>,
    mut guest: AdmittedClient,
    from: OwnedReadHalf,
    messages: mpsc::Receiver<Waiting>,
) {
    let in_order = tokio::select! {
        () = channel.listen(&shared, from) => false,
        () = channel.mouth.speak(messages) => false,
        () = channel.quiet(&shared) => {
            shared.disconnects.add(DisconnectOutcome::Expired);
            false
        }
        () = channel.end.notified() => true,
        () = shared.stopping() => false,
        () = guest.revoked() => false,
        () = channel.count() => false,
    };
    if !in_order {
        channel.count_cuts();
    }
    shared.channels(|channels| channels.remove(&channel.name));
    channel.mouth.shut();
    channel.with(Streams::end);
}
