//! Assigns messages of an agent to the event streams of an HTTP client, and keeps them for replay.
//!
//! A connection has one stream of its own and one per session. Messages with a session go to its stream, those of a
//! child session to that of its topmost session, and those of a session that the client cannot know to the stream of
//! the connection. Responses go to the stream of their request's session if the client ever opened it, and everything
//! else to the stream of the connection. No I/O: readers leave a waker.

mod children;

use std::collections::HashMap;
use std::io::Write;
use std::task::Waker;
use std::time::Instant;

use bytes::Bytes;
use narrows_wire::{Kind, RpcError, ScanCache, message};
use serde_json::json;
use tokio::sync::oneshot;

use self::children::Children;
use super::replay_memory::ReplayShare;
use crate::announced::child_id;
use crate::resume::{Keep, Ring};

/// Limit of streams of sessions that no agent has confirmed.
pub(super) const MAX_UNCONFIRMED: usize = 16;

/// Limit of streams of sessions. Messages of other sessions go to the stream of the connection.
const MAX_STREAMS: usize = 1024;

const MAX_PENDING: usize = 4096;

/// Bytes of the ids and sessions of pending requests that are accepted without free replay memory.
const FREE_PENDING_BYTES: usize = 16 << 10;

/// The longest id of a session that may have a stream, in bytes. Messages of other sessions go to the stream
/// of the connection.
const MAX_SESSION_BYTES: usize = 4096;

const MAX_BATCH_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(super) enum ResponseTarget {
    Body(oneshot::Sender<Bytes>),
    /// The response goes to the stream of this session if that was ever opened, otherwise to the stream of
    /// the connection.
    Stream(Option<String>),
    /// The response ends a turn, so it goes to the stream of this session, where the updates of the turn are.
    /// The client may open that stream during the turn, and no longer read the stream of the connection.
    Turn(String),
}

impl ResponseTarget {
    fn session(&self) -> Option<&str> {
        match self {
            Self::Body(_) => None,
            Self::Stream(session) => session.as_deref(),
            Self::Turn(session) => Some(session),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many pending requests")]
pub(super) struct TooMany;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum OpenFault {
    #[error("the stream already has a reader")]
    Taken,
    /// The session does not exist, and there is no room for another session that may be created later.
    #[error("session not found")]
    Unknown,
    #[error("the events after this Last-Event-ID are not available")]
    Gap,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Events(Bytes),
    /// There is no event at present. The waker is kept and woken by the next event.
    Wait,
    Ended,
    /// This reader was replaced by another one, or removed because it was too slow.
    Replaced,
}

#[derive(Debug)]
struct Stream {
    ring: Ring,
    /// The number of the last event that a reader received.
    delivered: u64,
    reader: Option<u64>,
    waker: Option<Waker>,
    /// `true` if the stream ever had a reader.
    opened: bool,
    /// `true` if an agent has mentioned the session.
    confirmed: bool,
}

impl Stream {
    fn new(keep: Keep, confirmed: bool) -> Self {
        Self { ring: Ring::new(keep), delivered: 0, reader: None, waker: None, opened: false, confirmed }
    }

    fn push(&mut self, line: Bytes, now: Instant) {
        self.ring.push(line);
        // Without a reader there is no backpressure: the oldest events are dropped, and the next reader
        // learns of the gap.
        while self.reader.is_none() && self.ring.is_full() {
            self.ring.next(now);
        }
        self.wake();
    }

    /// Drops the oldest messages until `bytes` are free. Messages that no reader has received are dropped
    /// only if the stream has no reader. Returns the number of bytes freed.
    fn shed(&mut self, bytes: usize, now: Instant) -> usize {
        let mut freed = self.ring.shed(bytes);
        while freed < bytes && self.reader.is_none() && self.ring.next(now).is_some() {
            freed += self.ring.shed(bytes - freed);
        }
        freed
    }

    /// Returns `true` if the stream has a reader, but no room for messages that the reader has not read.
    fn is_slow(&self, is_over_memory: bool) -> bool {
        let is_full = self.ring.is_full() || is_over_memory && !self.ring.is_drained();
        self.reader.is_some() && is_full
    }

    /// Returns `true` if the stream has no reader and no unread message.
    fn is_idle(&self) -> bool {
        self.reader.is_none() && self.ring.is_drained()
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Moves the stream to the event after `cursor`, or after the last event that was read. Returns the
    /// number of missing events that must be reported.
    fn seek(&mut self, cursor: Option<u64>) -> Result<u64, OpenFault> {
        if let Some(cursor) = cursor {
            if cursor > self.delivered || self.ring.rewind(cursor).is_err() {
                return Err(OpenFault::Gap);
            }
            return Ok(0);
        }
        let from = self.delivered.max(self.ring.dropped());
        self.ring.rewind(from).map_err(|_| OpenFault::Gap)?;
        Ok(from - self.delivered)
    }
}

#[derive(Debug)]
pub(super) struct Streams {
    keep: Keep,
    share: ReplayShare,
    /// `true` if the memory limit is exceeded, and these streams can drop nothing more.
    is_over_memory: bool,
    connection: Stream,
    sessions: HashMap<String, Stream>,
    children: Children,
    pending: HashMap<Bytes, ResponseTarget>,
    /// Bytes of the ids and sessions in `pending`. The client chooses both, so the bytes count as replay
    /// memory.
    pending_bytes: usize,
    /// Speeds up scanning of messages that resemble the previous one.
    scan_cache: ScanCache,
    readers: u64,
    ended: bool,
    backend_error: Option<RpcError>,
}

impl Streams {
    pub(super) fn new(keep: Keep, share: ReplayShare) -> Self {
        Self {
            keep,
            share,
            is_over_memory: false,
            connection: Stream::new(keep, true),
            sessions: HashMap::new(),
            children: Children::default(),
            pending: HashMap::new(),
            pending_bytes: 0,
            scan_cache: ScanCache::default(),
            readers: 0,
            ended: false,
            backend_error: None,
        }
    }

    /// Records a pending request of the client and the destination of the response.
    pub(super) fn record_request(&mut self, id: &[u8], target: ResponseTarget) -> Result<(), TooMany> {
        if self.pending.len() >= MAX_PENDING {
            return Err(TooMany);
        }
        let target = match target.session().is_some_and(|session| session.len() > MAX_SESSION_BYTES) {
            true => ResponseTarget::Stream(None),
            false => target,
        };
        let bytes = pending_bytes(id, &target);
        self.pending_bytes += bytes;
        let now = Instant::now();
        self.limit_memory(now);
        if self.is_over_memory && self.pending_bytes > FREE_PENDING_BYTES {
            self.pending_bytes -= bytes;
            self.limit_memory(now);
            return Err(TooMany);
        }
        self.remove_pending(id);
        self.pending.insert(Bytes::copy_from_slice(id), target);
        Ok(())
    }

    fn remove_pending(&mut self, id: &[u8]) -> Option<ResponseTarget> {
        let target = self.pending.remove(id)?;
        self.pending_bytes -= pending_bytes(id, &target);
        Some(target)
    }

    pub(super) fn deliver(&mut self, line: &[u8], now: Instant) {
        let view = self.scan_cache.view(line);
        let mut session = None;
        match view.kind() {
            Kind::Request | Kind::Notification => {
                let named = view.session();
                let child = child_id(&view);
                let stream = self.target_stream(named.as_deref());
                stream.push(one_line(line), now);
                if let (Some(session), Some(child)) = (named, child) {
                    self.children.record(&session, child);
                }
                return;
            }
            Kind::Response => match view.id().and_then(|id| self.remove_pending(id)) {
                Some(ResponseTarget::Body(sender)) => {
                    // Sending fails if the HTTP request that waits for this response has ended.
                    _ = sender.send(Bytes::copy_from_slice(line));
                    return;
                }
                Some(ResponseTarget::Stream(asked_in)) => {
                    if view.result().is_some() {
                        self.confirm(view.session().as_deref());
                        self.confirm(asked_in.as_deref());
                    }
                    let read = |name: &String| self.sessions.get(name).is_some_and(|stream| stream.opened);
                    session = asked_in.filter(read);
                }
                Some(ResponseTarget::Turn(name)) => {
                    if view.result().is_some() {
                        self.confirm(Some(&name));
                    }
                    session = Some(name);
                }
                None if view.id().is_none() => {
                    self.backend_error = view.error();
                }
                None => {}
            },
            Kind::Batch | Kind::Invalid(_) => {}
        }
        self.stream(session.as_deref()).push(one_line(line), now);
    }

    fn target_stream(&mut self, session: Option<&str>) -> &mut Stream {
        let Some(name) = session else { return &mut self.connection };
        let is_open = |name: &str| self.sessions.get(name).is_some_and(|stream| stream.opened);
        if let Some(of) = self.children.stream_of(name, is_open) {
            return self.confirm(Some(&of));
        }
        // The next message of the agent may be the response that names or confirms this session.
        let is_expected = |target: &ResponseTarget| match target {
            ResponseTarget::Stream(asked_in) => asked_in.as_deref().is_none_or(|asked_in| asked_in == name),
            ResponseTarget::Turn(asked_in) => asked_in == name,
            ResponseTarget::Body(_) => false,
        };
        if self.sessions.contains_key(name) || self.pending.values().any(is_expected) {
            return self.confirm(session);
        }
        &mut self.connection
    }

    /// Records that an agent knows this session, so the session may have a stream. Returns this stream, or
    /// the stream of the connection if there is no room.
    fn confirm(&mut self, session: Option<&str>) -> &mut Stream {
        let Some(session) = session else { return &mut self.connection };
        if !self.sessions.contains_key(session) && session.len() <= MAX_SESSION_BYTES && self.make_room() {
            self.sessions.insert(session.to_owned(), Stream::new(self.keep, true));
        }
        match self.sessions.get_mut(session) {
            Some(stream) => {
                stream.confirmed = true;
                stream
            }
            None => &mut self.connection,
        }
    }

    /// Returns `true` if there is room for another stream, after removing an idle stream if needed.
    fn make_room(&mut self) -> bool {
        self.make_room_among(MAX_STREAMS, |_| true)
    }

    /// Like [`Self::make_room`], for a session that no agent has confirmed.
    fn make_room_unconfirmed(&mut self) -> bool {
        self.make_room_among(MAX_UNCONFIRMED, |stream| !stream.confirmed) && self.make_room()
    }

    fn make_room_among(&mut self, most: usize, counts: impl Fn(&Stream) -> bool) -> bool {
        let counted = || self.sessions.iter().filter(|(_, stream)| counts(stream));
        if counted().count() < most {
            return true;
        }
        let idle = counted().find(|(_, stream)| stream.is_idle()).map(|(name, _)| name.clone());
        idle.is_some_and(|name| self.sessions.remove(&name).is_some())
    }

    fn stream(&mut self, session: Option<&str>) -> &mut Stream {
        match session.and_then(|session| self.sessions.get_mut(session)) {
            Some(stream) => stream,
            None => &mut self.connection,
        }
    }

    /// Adds a reader to a stream. `cursor` is the last event that the client received. A reader with a cursor
    /// replaces the previous reader. Returns the number of the reader, and an event that must be sent first.
    pub(super) fn open(
        &mut self,
        session: Option<&str>,
        cursor: Option<u64>,
    ) -> Result<(u64, Option<Bytes>), OpenFault> {
        if let Some(name) = session
            && !self.sessions.contains_key(name)
        {
            if name.len() > MAX_SESSION_BYTES || !self.make_room_unconfirmed() {
                return Err(OpenFault::Unknown);
            }
            self.sessions.insert(name.to_owned(), Stream::new(self.keep, false));
        }
        self.readers += 1;
        let reader = self.readers;
        let stream = self.stream(session);
        if stream.reader.is_some() && cursor.is_none() {
            return Err(OpenFault::Taken);
        }
        let missing = stream.seek(cursor)?;
        stream.wake();
        stream.reader = Some(reader);
        stream.opened = true;
        Ok((reader, (missing > 0).then(|| gap_event(session, missing))))
    }

    pub(super) fn next(&mut self, session: Option<&str>, reader: u64, now: Instant, waker: &Waker) -> Next {
        let ended = self.ended;
        let stream = self.stream(session);
        if stream.reader != Some(reader) {
            return Next::Replaced;
        }
        let mut events = Vec::new();
        while events.len() < MAX_BATCH_BYTES
            && let Some((number, line)) = stream.ring.next(now)
        {
            stream.delivered = number;
            write_event(&mut events, Some(number), line);
        }
        if !events.is_empty() {
            return Next::Events(events.into());
        }
        if ended {
            return Next::Ended;
        }
        stream.ring.expire(now);
        stream.waker = Some(waker.clone());
        Next::Wait
    }

    /// Removes a reader. Returns `false` if another reader has already replaced this one.
    pub(super) fn close(&mut self, session: Option<&str>, reader: u64) -> bool {
        let stream = self.stream(session);
        let was_reading = stream.reader == Some(reader);
        if was_reading {
            stream.reader = None;
            stream.waker = None;
        }
        was_reading
    }

    /// Returns the last error without a request id: the reason why the backend refuses the connection.
    pub(super) fn backend_error(&self) -> Option<RpcError> {
        self.backend_error.clone()
    }

    pub(super) fn is_read(&self) -> bool {
        self.streams().any(|stream| stream.reader.is_some())
    }

    /// Returns `true` if a reader is so slow that the output of the agent must not be read.
    pub(super) fn is_full(&self) -> bool {
        self.streams().any(|stream| stream.is_slow(self.is_over_memory))
    }

    pub(super) fn drop_slow(&mut self, now: Instant) {
        for stream in self.sessions.values_mut().chain([&mut self.connection]) {
            if stream.is_slow(self.is_over_memory) {
                stream.reader = None;
                stream.wake();
            }
        }
        self.limit_memory(now);
    }

    /// Counts the kept bytes, and drops messages if the limits are exceeded. Must be called after every
    /// change.
    pub(super) fn limit_memory(&mut self, now: Instant) {
        let names = self.sessions.keys().map(String::len).sum::<usize>() + self.pending_bytes;
        let bytes = self.streams().map(|stream| stream.ring.bytes()).sum::<usize>();
        let mut over = self.share.set(names + bytes);
        if over > 0 {
            let mut streams: Vec<&mut Stream> =
                self.sessions.values_mut().chain([&mut self.connection]).collect();
            streams.sort_by_key(|stream| std::cmp::Reverse(stream.ring.bytes()));
            for stream in streams {
                over = over.saturating_sub(stream.shed(over, now));
            }
            let bytes = self.streams().map(|stream| stream.ring.bytes()).sum::<usize>();
            over = self.share.set(names + bytes);
        }
        self.is_over_memory = over > 0;
    }

    /// Records that the agent has closed its output.
    pub(super) fn end(&mut self) {
        self.ended = true;
        self.pending.clear();
        self.pending_bytes = 0;
        for stream in self.sessions.values_mut().chain([&mut self.connection]) {
            stream.wake();
        }
    }

    fn streams(&self) -> impl Iterator<Item = &Stream> {
        self.sessions.values().chain([&self.connection])
    }
}

fn pending_bytes(id: &[u8], target: &ResponseTarget) -> usize {
    id.len() + target.session().map_or(0, str::len)
}

fn gap_event(session: Option<&str>, missing: u64) -> Bytes {
    let params = json!({"sessionId": session, "missing": missing, "condition": "cursor_gap"});
    let mut events = Vec::new();
    // Plain data with string keys always serializes.
    write_event(
        &mut events,
        None,
        &message::notification("_narrows/cursor_gap", &params).unwrap_or_default(),
    );
    events.into()
}

fn write_event(out: &mut Vec<u8>, number: Option<u64>, line: &[u8]) {
    if let Some(number) = number {
        // Writing to memory cannot fail.
        _ = writeln!(out, "id: {number}");
    }
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(line);
    out.extend_from_slice(b"\n\n");
}

/// Replaces carriage returns, which would end a line of an event. In a JSON message, a raw carriage return is
/// white space.
fn one_line(line: &[u8]) -> Bytes {
    if memchr::memchr(b'\r', line).is_none() {
        return Bytes::copy_from_slice(line);
    }
    line.iter().map(|&byte| if byte == b'\r' { b' ' } else { byte }).collect()
}

#[cfg(test)]
mod tests;
