//! One event stream, over as many requests as it takes.

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
use super::{Wire, causes};

/// An item of an event stream.
pub(super) enum News {
    Frame(Frame),
    /// The stream of this session has ended: the server does not know the session.
    Over(String),
    /// The connection is lost.
    Lost(ConnectionLost),
}

/// An event stream and the destination of its items.
pub(super) struct EventStream {
    pub(super) wire: Arc<Wire>,
    pub(super) connection: String,
    /// `None` for the stream of the connection.
    pub(super) session: Option<String>,
    pub(super) news: mpsc::Sender<News>,
}

/// The notification of a server that events are lost.
const GAP_METHOD: &str = "_narrows/cursor_gap";

/// The cursor before the first event. Without a cursor a server continues after the last event that it has written,
/// which may not have arrived.
const START_CURSOR: &str = "0";

/// The text of this project's server for an unknown connection, as opposed to an unknown session.
const NO_CONNECTION_TEXT: &str = "there is no such connection";

/// The receiver of the items is gone.
struct Unheard;

impl EventStream {
    /// Reads the stream until it ends, beginning with a response if there is one already.
    pub(super) async fn run(self, first: Option<Response>) {
        let mut answer = first;
        // An earlier attempt may have opened the stream, so a cursor is always sent.
        let mut last = START_CURSOR.to_owned();
        let mut counted = true;
        let mut backoff = Backoff::new();
        // The last event when the stream was last cut.
        let mut before = None;
        loop {
            let wait = if let Some(response) = answer.take() {
                let began = Instant::now();
                let why = match self.read(response, &mut last, &mut counted).await {
                    Ok(why) => why,
                    Err(Unheard) => return,
                };
                tracing::debug!(reason = why, session = self.session.is_some(), "event stream cut");
                if !counted {
                    return self.tell(News::Lost(ConnectionLost::Plain(why))).await;
                }
                let was_of_use = before.as_ref() != Some(&last) || began.elapsed() >= MIN_USEFUL_TIME;
                before = Some(last.clone());
                backoff.first(was_of_use)
            } else {
                backoff.next()
            };
            match self.again(&last, &mut backoff, wait).await {
                Ok(response) => answer = Some(response),
                Err(news) => return self.tell(news).await,
            }
        }
    }

    async fn tell(&self, news: News) {
        // The receiver may be gone.
        let _ = self.news.send(news).await;
    }

    /// Delivers events until the stream is cut, and returns the reason. `counted` stays `true` while every event has an
    /// id.
    async fn read(
        &self,
        mut response: Response,
        last: &mut String,
        counted: &mut bool,
    ) -> Result<String, Unheard> {
        let mut parser = Parser::new(self.wire.options.link.max_line);
        let mut events = Vec::new();
        loop {
            // A server without events sends keep-alives.
            let read = match timeout(self.wire.options.silence, response.chunk()).await {
                Ok(Ok(Some(read))) => read,
                Ok(Ok(None)) => return Ok("the server closed the stream".to_owned()),
                Ok(Err(error)) => return Ok(causes(&error)),
                Err(_) => return Ok("the server stopped responding".to_owned()),
            };
            if let Err(error) = parser.feed(&read, &mut events) {
                self.tell(News::Lost(ConnectionLost::TooLong(error.to_string()))).await;
                return Err(Unheard);
            }
            for event in events.drain(..) {
                let frame = Frame::parse(event.data);
                if event.id.is_none() && frame.method().as_deref() == Some(GAP_METHOD) {
                    self.tell(News::Lost(ConnectionLost::Gap)).await;
                    return Err(Unheard);
                }
                self.news.send(News::Frame(frame)).await.map_err(|_| Unheard)?;
                match event.id {
                    Some(id) => *last = id,
                    None => *counted = false,
                }
            }
        }
    }

    /// Opens the stream for the first time, with retries.
    pub(super) async fn open(&self) -> Result<Response, News> {
        let error = match self.wire.listen(&self.connection, self.session.as_deref(), None).await {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        if let (Some(session), DialError::Status { status: 400..=499, .. }) = (&self.session, &error)
            && !self.wire.counts()
            && !is_for_now(&error)
        {
            return Err(News::Over(session.clone()));
        }
        let error = self.verdict(error)?;
        let (mut backoff, grace) = (Backoff::new(), self.wire.options.grace);
        let wait = backoff.after(&error, grace, self.wire.options.connect);
        // The failed attempt may have opened it.
        self.again(START_CURSOR, &mut backoff, wait).await
    }

    /// Returns an item if the failed attempt ends the stream; otherwise the error, and another attempt may succeed.
    fn verdict(&self, error: DialError) -> Result<DialError, News> {
        Err(match (&error, &self.session) {
            (DialError::Status { status: 410, .. }, _) => News::Lost(ConnectionLost::Gap),
            (DialError::Status { status: 404, words, .. }, Some(session))
                if words.as_deref() != Some(NO_CONNECTION_TEXT) =>
            {
                News::Over(session.clone())
            }
            (DialError::Status { status: 404, .. }, _) => News::Lost(ConnectionLost::Forgotten),
            _ if error.is_shut() => News::Lost(ConnectionLost::Dial(error)),
            _ => return Ok(error),
        })
    }

    /// Reopens the stream after the event `last`. `wait` is the delay of the first attempt.
    async fn again(&self, last: &str, backoff: &mut Backoff, mut wait: Duration) -> Result<Response, News> {
        let grace = self.wire.options.grace;
        let deadline = Instant::now() + grace;
        let _missing = self.wire.watch.lost(Instant::now(), deadline);
        let mut why = DialError::Io("the stream was cut".to_owned());
        loop {
            let attempt = async {
                sleep(wait).await;
                self.wire.listen(&self.connection, self.session.as_deref(), Some(last)).await
            };
            let error = match timeout_at(deadline, attempt).await {
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(error)) => error,
                Err(_) => return Err(News::Lost(ConnectionLost::Grace { grace, last: why })),
            };
            why = self.verdict(error)?;
            let left = deadline.saturating_duration_since(Instant::now());
            wait = backoff.after(&why, left, self.wire.options.connect);
        }
    }
}

/// Returns `true` if a later attempt may succeed. With 409 the server has not noticed yet that the stream was cut.
fn is_for_now(error: &DialError) -> bool {
    matches!(error, DialError::Status { status: 408 | 409 | 425 | 429, .. })
}
