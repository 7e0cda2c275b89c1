//! Reads one event stream over several requests: a stream that is cut is opened again after its last event.

use std::sync::Arc;
use std::time::Duration;

use narrows_wire::Frame;
use reqwest::Response;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::super::backoff::Backoff;
use super::super::reconnect::MIN_USEFUL_TIME;
use super::super::{ConnectionLost, DialError};
use super::sse::Parser;
use super::{HttpRequester, causes};

pub(super) enum StreamEvent {
    Frame(Frame),
    /// The event stream of this session has ended, because the server does not know the session.
    SessionUnknown(String),
    Lost(ConnectionLost),
}

/// The event stream of one session or of the connection, and the destination of its items.
pub(super) struct EventStream {
    pub(super) requester: Arc<HttpRequester>,
    pub(super) connection: String,
    /// The session, or `None` for the stream of the connection.
    pub(super) session: Option<String>,
    pub(super) events: mpsc::Sender<StreamEvent>,
}

const GAP_METHOD: &str = "_narrows/cursor_gap";

/// The cursor before the first event. Without a cursor a server continues after the last event that it has written,
/// which may not have arrived.
const START_CURSOR: &str = "0";

/// The text of this project's server for an unknown connection, as opposed to an unknown session.
const NO_CONNECTION_TEXT: &str = "there is no such connection";

struct ReceiverGone;

impl EventStream {
    /// Reads the stream until it ends, beginning with a response if there is one already.
    pub(super) async fn run(self, first: Option<Response>) {
        let mut answer = first;
        // An earlier attempt may have opened the stream, so a cursor is always sent.
        let mut last = START_CURSOR.to_owned();
        let mut counted = true;
        let mut backoff = Backoff::new();
        // The event that was the last to arrive when the stream was cut the previous time.
        let mut before = None;
        loop {
            let wait = if let Some(response) = answer.take() {
                let began = Instant::now();
                let why = match self.read(response, &mut last, &mut counted).await {
                    Ok(why) => why,
                    Err(ReceiverGone) => return,
                };
                tracing::debug!(reason = why, session = self.session.is_some(), "event stream cut");
                if !counted {
                    return self.send(StreamEvent::Lost(ConnectionLost::Plain(why))).await;
                }
                let was_of_use = before.as_ref() != Some(&last) || began.elapsed() >= MIN_USEFUL_TIME;
                before = Some(last.clone());
                backoff.after_loss(was_of_use)
            } else {
                backoff.next()
            };
            match self.reopen(&last, &mut backoff, wait).await {
                Ok(response) => answer = Some(response),
                Err(events) => return self.send(events).await,
            }
        }
    }

    async fn send(&self, events: StreamEvent) {
        // Sending fails only if the receiver is dropped, which then needs no events.
        let _ = self.events.send(events).await;
    }

    /// Delivers events until the stream is cut, and returns the reason. `counted` stays `true` while every event has an
    /// id.
    async fn read(
        &self,
        mut response: Response,
        last: &mut String,
        counted: &mut bool,
    ) -> Result<String, ReceiverGone> {
        let mut parser = Parser::new(self.requester.options.link.max_line);
        let mut events = Vec::new();
        loop {
            // Even without events, a server sends keep-alive comments, so a longer silence means that the
            // connection is lost.
            let read = match timeout(self.requester.options.silence_timeout, response.chunk()).await {
                Ok(Ok(Some(read))) => read,
                Ok(Ok(None)) => return Ok("the server closed the stream".to_owned()),
                Ok(Err(error)) => return Ok(causes(&error)),
                Err(_) => return Ok("the server stopped responding".to_owned()),
            };
            if let Err(error) = parser.feed(&read, &mut events) {
                self.send(StreamEvent::Lost(ConnectionLost::TooLong(error.to_string()))).await;
                return Err(ReceiverGone);
            }
            for event in events.drain(..) {
                let frame = Frame::parse(event.data);
                if event.id.is_none() && frame.method().as_deref() == Some(GAP_METHOD) {
                    self.send(StreamEvent::Lost(ConnectionLost::Gap)).await;
                    return Err(ReceiverGone);
                }
                self.events.send(StreamEvent::Frame(frame)).await.map_err(|_| ReceiverGone)?;
                match event.id {
                    Some(id) => *last = id,
                    None => *counted = false,
                }
            }
        }
    }

    pub(super) async fn open(&self) -> Result<Response, StreamEvent> {
        let error = match self.requester.open_stream(&self.connection, self.session.as_deref(), None).await {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        if let (Some(session), DialError::Status { status: 400..=499, .. }) = (&self.session, &error)
            && !self.requester.deduplicates()
            && !is_temporary(&error)
        {
            return Err(StreamEvent::SessionUnknown(session.clone()));
        }
        let error = self.classify(error)?;
        let (mut backoff, grace) = (Backoff::new(), self.requester.options.grace_period);
        let wait = backoff.after_failure(&error, grace, self.requester.options.connect_timeout);
        // The failed first attempt may have opened the stream, so a cursor is sent.
        self.reopen(START_CURSOR, &mut backoff, wait).await
    }

    /// Decides what an error of an attempt means. Returns `Ok` if another attempt may succeed, and `Err` with
    /// the last item of the stream if not.
    fn classify(&self, error: DialError) -> Result<DialError, StreamEvent> {
        Err(match (&error, &self.session) {
            (DialError::Status { status: 410, .. }, _) => StreamEvent::Lost(ConnectionLost::Gap),
            (DialError::Status { status: 404, words, .. }, Some(session))
                if words.as_deref() != Some(NO_CONNECTION_TEXT) =>
            {
                StreamEvent::SessionUnknown(session.clone())
            }
            (DialError::Status { status: 404, .. }, _) => StreamEvent::Lost(ConnectionLost::Forgotten),
            _ if error.is_final_for_reconnect() => StreamEvent::Lost(ConnectionLost::Dial(error)),
            _ => return Ok(error),
        })
    }

    /// Reopens the stream after the event `last`. `wait` is the delay of the first attempt.
    async fn reopen(
        &self,
        last: &str,
        backoff: &mut Backoff,
        mut wait: Duration,
    ) -> Result<Response, StreamEvent> {
        let grace = self.requester.options.grace_period;
        let deadline = Instant::now() + grace;
        let _missing = self.requester.outages.record_loss(Instant::now(), deadline);
        let mut why = DialError::Io("the event stream was cut".to_owned());
        loop {
            let attempt = async {
                sleep(wait).await;
                self.requester.open_stream(&self.connection, self.session.as_deref(), Some(last)).await
            };
            let error = match timeout_at(deadline, attempt).await {
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(error)) => error,
                Err(_) => return Err(StreamEvent::Lost(ConnectionLost::Grace { grace, last: why })),
            };
            why = self.classify(error)?;
            let left = deadline.saturating_duration_since(Instant::now());
            wait = backoff.after_failure(&why, left, self.requester.options.connect_timeout);
        }
    }
}

/// Returns `true` if a later attempt may succeed. A 409 means that the server has not noticed yet that the
/// stream was cut.
fn is_temporary(error: &DialError) -> bool {
    matches!(error, DialError::Status { status: 408 | 409 | 425 | 429, .. })
}
