//! A conversation over Streamable HTTP: orders POSTs, and decides which event streams are open.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use narrows_acp::method;
use narrows_link::{IncomingFrames, OutgoingLines};
use narrows_wire::{Code, Frame, Kind, RawId, RpcError, message};
use reqwest::Response;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::super::pending::PendingRequests;
use super::super::reconnect::{ANSWERS_TIMEOUT, FINAL_SEND_TIMEOUT};
use super::super::socket::one_line;
use super::super::{ConnectionLost, DialError};
use super::HttpRequester;
use super::event_stream::{EventStream, StreamEvent};
use super::post::{Post, PostOutcome, post};
use crate::announced::child_id;

const MAX_STREAM_MESSAGES: usize = 64;

const MAX_OPEN_REQUESTS: usize = 4096;

/// Maximum number of session streams, equal to that of this project's server. Also limits how many sessions
/// post at once.
const MAX_STREAMS: usize = 1024;

/// The longest id of a session, in bytes. Messages of sessions with longer ids are treated as messages of the
/// connection.
const MAX_SESSION_BYTES: usize = 4096;

/// Maximum number of event streams of child sessions. Only used with servers that have a separate stream for
/// each child.
const MAX_CHILD_STREAMS: usize = 64;

/// The jobs of one session, or of the connection itself. They run in order.
#[derive(Default)]
struct Lane {
    waiting: VecDeque<Job>,
    busy: bool,
}

struct Job {
    /// The message to post; `None` to open only a stream.
    line: Option<Bytes>,
    /// `true` if the event stream of the session must be opened before the message is posted.
    listen: bool,
}

struct Done {
    lane: Option<String>,
    /// The response that carries the opened event stream, or the reason why the stream was not opened.
    stream: Option<Result<Response, StreamEvent>>,
    id: Option<RawId>,
    posted: Option<PostOutcome>,
}

type RunningJob = Pin<Box<dyn Future<Output = Done> + Send>>;

pub(super) struct Conversation {
    requester: Arc<HttpRequester>,
    connection: Option<String>,
    lanes: HashMap<Option<String>, Lane>,
    running: FuturesUnordered<RunningJob>,
    waiting: usize,
    streams: HashSet<String>,
    /// The number of entries in `streams` that belong to child sessions.
    child_streams: usize,
    /// Pending requests of the agent with their sessions. The client's response is posted to the same
    /// session.
    asked: HashMap<RawId, String>,
    /// Pending requests of the client that may create a session. `None` if only the response names the
    /// session, otherwise the session whose stream could not be opened before. Only the responses to these
    /// requests open a stream. Otherwise a server could make the client open any number of streams.
    awaited: HashMap<RawId, Option<String>>,
    pending: PendingRequests,
    /// The requests that are being posted. A flag is set once the server may have received the request.
    reached: HashMap<RawId, Arc<AtomicBool>>,
    unposted: usize,
    readers: JoinSet<()>,
    events: (mpsc::Sender<StreamEvent>, mpsc::Receiver<StreamEvent>),
}

impl Conversation {
    pub(super) fn new(requester: Arc<HttpRequester>) -> Self {
        Self {
            requester,
            connection: None,
            lanes: HashMap::new(),
            running: FuturesUnordered::new(),
            waiting: 0,
            streams: HashSet::new(),
            child_streams: 0,
            asked: HashMap::new(),
            awaited: HashMap::new(),
            pending: PendingRequests::default(),
            reached: HashMap::new(),
            unposted: 0,
            readers: JoinSet::new(),
            events: mpsc::channel(MAX_STREAM_MESSAGES),
        }
    }

    pub(super) fn is_begun(&self) -> bool {
        self.connection.is_some()
    }

    pub(super) async fn run(
        &mut self,
        outgoing: &mut OutgoingLines,
        incoming: &IncomingFrames,
    ) -> Result<(), ConnectionLost> {
        let mut lines = Vec::new();
        let mut ended = false;
        // Two deadlines that apply once the link's user has ended its output: for posting the rest, and for
        // responses.
        let (mut said, mut last) = (Instant::now(), Instant::now());
        loop {
            let idle = self.running.is_empty();
            if idle {
                outgoing.mark_flushed();
            }
            let deadline = if self.unposted == 0 { last } else { said };
            let room = self.waiting < self.requester.options.keep.bytes && self.lanes.len() < MAX_STREAMS;
            tokio::select! {
                biased;
                Some(done) = self.running.next(), if !idle => {
                    self.finish_job(done, incoming).await?;
                    last = Instant::now() + ANSWERS_TIMEOUT;
                }
                Some(events) = self.events.1.recv() => self.handle_event(events, incoming).await?,
                more = outgoing.recv_lines(&mut lines), if !ended && room => {
                    ended = !more;
                    (said, last) = (Instant::now() + FINAL_SEND_TIMEOUT, Instant::now() + ANSWERS_TIMEOUT);
                    outgoing.mark_writing();
                    for line in lines.drain(..) {
                        outgoing.count_written(&line);
                        self.accept_line(line, outgoing, incoming).await?;
                    }
                }
                () = sleep_until(deadline), if ended => return Ok(()),
                else => {}
            }
            if ended && self.running.is_empty() && self.pending.is_empty() {
                return Ok(());
            }
        }
    }

    async fn accept_line(
        &mut self,
        line: Bytes,
        outgoing: &OutgoingLines,
        incoming: &IncomingFrames,
    ) -> Result<(), ConnectionLost> {
        let frame = Frame::parse(line.clone());
        if self.connection.is_none() {
            return self.initialize(&frame, outgoing, incoming).await;
        }
        if frame.kind() == Kind::Batch {
            return self.refuse_batch(&frame, incoming).await;
        }
        let method = frame.method().unwrap_or_default();
        let session = match frame.kind() {
            Kind::Response => frame.id().and_then(|id| self.asked.remove(&RawId::copy(id))),
            // Notifications such as `$/cancel_request` never belong to a session, even if they contain a
            // session id.
            _ if method.starts_with("$/") => None,
            _ => frame.session().filter(|session| session.len() <= MAX_SESSION_BYTES).map(Cow::into_owned),
        };
        if let Some(id) = frame.id().filter(|_| frame.kind() == Kind::Request && may_open_session(&method))
            && self.awaited.len() < MAX_OPEN_REQUESTS
        {
            self.awaited.insert(RawId::copy(id), None);
        }
        let ends = matches!(&*method, method::SESSION_CLOSE | method::SESSION_DELETE);
        let listen = match &session {
            Some(session) if frame.kind() == Kind::Request && !ends => self.add_stream(session),
            _ => false,
        };
        self.pending.record(&line, u64::MAX);
        self.enqueue(session, Job { line: Some(line), listen });
        Ok(())
    }

    /// Opens the connection with `initialize`. Answers any request before `initialize` with an error.
    async fn initialize(
        &mut self,
        frame: &Frame,
        outgoing: &OutgoingLines,
        incoming: &IncomingFrames,
    ) -> Result<(), ConnectionLost> {
        if frame.kind() != Kind::Request || frame.method().as_deref() != Some(method::INITIALIZE) {
            if let Some(id) = frame.id().filter(|_| frame.kind() == Kind::Request) {
                let error = RpcError::new(Code::InvalidRequest, "expected `initialize` first");
                send_to_user(incoming, Frame::parse(message::error(id, &error))).await;
            }
            return Ok(());
        }
        self.pending.record(frame.bytes(), 1);
        let reached = self.track_delivery(frame);
        let given_up = async {
            outgoing.ended().await;
            sleep(ANSWERS_TIMEOUT).await;
        };
        let response = tokio::select! {
            biased;
            response = self.requester.initialize(frame.bytes(), &reached) => response?,
            // The link's user has ended its output and does not wait for the response any longer.
            () = given_up => return Ok(()),
        };
        self.reached.clear();
        let (connection, answer) = response;
        let answer = Frame::parse(one_line(answer));
        self.pending.record_answers(&answer);
        if answer.id() != frame.id() {
            let why = "the response to `initialize` has another id".to_owned();
            return Err(ConnectionLost::Dial(DialError::Protocol(why)));
        }
        if let Some(connection) = connection {
            // The stream of the connection is opened before the first request, so that no response is missed.
            let opened = self.requester.open_stream(&connection, None, None).await;
            let first = match opened {
                Ok(response) => Some(response),
                Err(error)
                    if error.is_final_for_reconnect()
                        || error.is_final() && !self.requester.deduplicates() =>
                {
                    return Err(ConnectionLost::Dial(error));
                }
                Err(_) => None,
            };
            self.connection = Some(connection);
            self.start_reader(None, first);
        } else if answer.error().is_none() {
            let why = "the response has no `Acp-Connection-Id`".to_owned();
            return Err(ConnectionLost::Dial(DialError::Protocol(why)));
        }
        send_to_user(incoming, answer).await;
        Ok(())
    }

    /// Answers a batch that contains requests with an error: Streamable HTTP has no batches.
    async fn refuse_batch(&mut self, frame: &Frame, incoming: &IncomingFrames) -> Result<(), ConnectionLost> {
        let mut requests = PendingRequests::default();
        requests.record(frame.bytes(), 1);
        if !requests.is_empty() {
            let error = RpcError::new(Code::InvalidRequest, "batches are not supported over HTTP");
            send_to_user(incoming, Frame::parse(message::error(b"null", &error))).await;
        }
        Ok(())
    }

    fn enqueue(&mut self, lane: Option<String>, job: Job) {
        self.waiting += job.line.as_ref().map_or(0, Bytes::len);
        self.unposted += usize::from(job.line.is_some());
        self.lanes.entry(lane.clone()).or_default().waiting.push_back(job);
        self.advance(lane);
    }

    fn advance(&mut self, lane: Option<String>) {
        let Some(now) = self.lanes.get_mut(&lane).filter(|lane| !lane.busy) else { return };
        let (Some(job), Some(connection)) = (now.waiting.pop_front(), self.connection.clone()) else {
            self.lanes.remove(&lane);
            return;
        };
        now.busy = true;
        let frame = job.line.map(Frame::parse);
        let reached = frame.as_ref().map(|frame| self.track_delivery(frame)).unwrap_or_default();
        if let Some(frame) = &frame {
            self.waiting -= frame.bytes().len();
            // From here on the request may have an effect, so it is tracked.
            self.pending.record(frame.bytes(), 1);
        }
        let requester = Arc::clone(&self.requester);
        let stream = job.listen.then(|| self.event_stream(connection.clone(), lane.clone()));
        self.running.push(Box::pin(async move {
            let stream = match stream {
                Some(stream) => Some(stream.open().await),
                None => None,
            };
            let id = frame.as_ref().and_then(Frame::id).map(RawId::copy);
            let session = lane.as_deref();
            let posted = match (frame, &stream) {
                (None, _) | (_, Some(Err(StreamEvent::Lost(_)))) => None,
                (Some(frame), _) => {
                    let line = frame.into_bytes();
                    Some(
                        post(&requester, Post { connection: &connection, session, line, reached: &reached })
                            .await,
                    )
                }
            };
            Done { lane, stream, id, posted }
        }));
    }

    /// Returns a flag that records whether the server may have received a request.
    fn track_delivery(&mut self, frame: &Frame) -> Arc<AtomicBool> {
        let reached = Arc::new(AtomicBool::new(false));
        if let Some(id) = frame.id().filter(|_| frame.kind() == Kind::Request) {
            self.reached.insert(RawId::copy(id), Arc::clone(&reached));
        }
        reached
    }

    async fn finish_job(&mut self, done: Done, incoming: &IncomingFrames) -> Result<(), ConnectionLost> {
        let Done { lane, stream, id, posted } = done;
        if let Some(now) = self.lanes.get_mut(&lane) {
            now.busy = false;
        }
        match stream {
            Some(Ok(response)) => self.start_reader(lane.clone(), Some(response)),
            Some(Err(StreamEvent::SessionUnknown(session))) => {
                // The server does not know the session yet. The stream is opened once the session exists.
                self.streams.remove(&session);
                if let Some(id) = id.clone()
                    && (self.awaited.len() < MAX_OPEN_REQUESTS || self.awaited.contains_key(&id))
                {
                    self.awaited.insert(id, Some(session));
                }
            }
            Some(Err(StreamEvent::Lost(lost))) => return Err(lost),
            _ => {}
        }
        if matches!(posted, Some(PostOutcome::Taken(_) | PostOutcome::Failed(_))) {
            self.unposted -= 1;
            if let Some(id) = &id {
                self.reached.remove(id);
            }
        }
        match posted {
            Some(PostOutcome::Taken(Some(answer)) | PostOutcome::Failed(Some(answer))) => {
                self.deliver(answer, incoming).await;
            }
            Some(PostOutcome::Lost(lost)) => return Err(lost),
            Some(PostOutcome::Taken(None) | PostOutcome::Failed(None)) | None => {}
        }
        self.advance(lane);
        Ok(())
    }

    async fn handle_event(
        &mut self,
        events: StreamEvent,
        incoming: &IncomingFrames,
    ) -> Result<(), ConnectionLost> {
        match events {
            StreamEvent::Frame(frame) => self.deliver(frame, incoming).await,
            StreamEvent::SessionUnknown(session) => drop(self.streams.remove(&session)),
            StreamEvent::Lost(lost) => return Err(lost),
        }
        Ok(())
    }

    /// Delivers a message, and opens event streams for sessions that it announces.
    async fn deliver(&mut self, frame: Frame, incoming: &IncomingFrames) {
        self.pending.record_answers(&frame);
        // A server that deduplicates POSTs sends the messages of a child session on the stream of the parent.
        // Other servers may have a separate stream for the child.
        if !self.requester.deduplicates()
            && self.child_streams < MAX_CHILD_STREAMS
            && let Some(child) = child_id(&frame.view())
            && self.add_stream(&child)
        {
            self.child_streams += 1;
            self.enqueue(Some(child), Job { line: None, listen: true });
        }
        match (frame.kind(), frame.id().map(RawId::copy), frame.session()) {
            (Kind::Request, Some(id), Some(session))
                if self.asked.len() < MAX_OPEN_REQUESTS && session.len() <= MAX_SESSION_BYTES =>
            {
                self.asked.insert(id, session.into_owned());
            }
            (Kind::Response, Some(id), named) => {
                if let Some(awaited) = self.awaited.remove(&id)
                    && frame.result().is_some()
                    && let Some(session) = named.map(Cow::into_owned).or(awaited)
                    && self.add_stream(&session)
                {
                    self.enqueue(Some(session), Job { line: None, listen: true });
                }
            }
            _ => {}
        }
        send_to_user(incoming, frame).await;
    }

    /// Records an event stream. Returns `true` if the stream must be opened now.
    fn add_stream(&mut self, session: &str) -> bool {
        let has_room = self.streams.len() < MAX_STREAMS && session.len() <= MAX_SESSION_BYTES;
        has_room && self.streams.insert(session.to_owned())
    }

    fn start_reader(&mut self, session: Option<String>, first: Option<Response>) {
        while self.readers.try_join_next().is_some() {}
        let Some(connection) = self.connection.clone() else { return };
        self.readers.spawn(self.event_stream(connection, session).run(first));
    }

    fn event_stream(&self, connection: String, session: Option<String>) -> EventStream {
        EventStream {
            requester: Arc::clone(&self.requester),
            connection,
            session,
            events: self.events.0.clone(),
        }
    }

    pub(super) fn fail_pending(&mut self, lost: &ConnectionLost) -> Vec<Frame> {
        for (id, reached) in &self.reached {
            if !reached.load(Ordering::Relaxed) {
                self.pending.mark_unsent(id);
            }
        }
        self.pending.fail_all(lost, 1)
    }

    pub(super) async fn close(&mut self) {
        self.readers.shutdown().await;
        if let Some(connection) = self.connection.take() {
            self.requester.delete_connection(&connection).await;
        }
    }
}

/// Returns `true` if the response to a request with this method may name a new session. Methods that are not part of the
/// protocol may open sessions, too.
fn may_open_session(name: &str) -> bool {
    let opens = [method::SESSION_NEW, method::SESSION_LOAD, method::SESSION_RESUME, method::SESSION_FORK];
    opens.contains(&name) || !name.starts_with("$/") && method::METHODS.iter().all(|row| row.name != name)
}

async fn send_to_user(incoming: &IncomingFrames, frame: Frame) {
    // Sending fails if the link's user reads no more input. The user may still send messages.
    let _ = incoming.send(frame).await;
}
