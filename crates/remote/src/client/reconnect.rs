//! Carries one connection over a series of sockets: each lost socket is replaced by a new one.

use std::time::Duration;

use bytes::Bytes;
use narrows_link::{CloseReason, IncomingFrames, OutgoingLines};
use narrows_wire::{Frame, View};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::backoff::Backoff;
use super::connect::Connector;
use super::pending::PendingRequests;
use super::pump::{LinkState, PumpEnd, ResumeMode, SharedLinkState, pump};
use super::socket::{Read, ServerSocket, SocketError};
use super::state::OutageTracker;
use super::{ConnectionLost, DialError};
use crate::resume::{ConnectionName, Counts, ResumeRequest, ResumeResponse};

/// The id of resume requests. The request is the first message on a socket, so the id cannot collide.
const RESUME_ID: &[u8] = b"\"narrows/resume\"";

/// Time to wait for responses after the link's user has ended its output.
pub(super) const ANSWERS_TIMEOUT: Duration = Duration::from_millis(1500);

/// Time for the server to close its end after the client has ended the connection.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

// `narrows run --timeout` promises to end at most five seconds after the time limit. Up to two of these
// seconds pass while the client waits for the response to its cancellation.
const _: () = assert!(ANSWERS_TIMEOUT.as_millis() + CLOSE_TIMEOUT.as_millis() <= 2500);

/// Time to send the rest after the link's user is gone.
pub(super) const FINAL_SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Time after which a socket counts as useful although it carried nothing.
pub(super) const MIN_USEFUL_TIME: Duration = Duration::from_secs(10);

/// Number of takeovers, each within [`FENCE_WINDOW`] of the one before, after which the other client keeps
/// the connection.
const MAX_FENCES: u32 = 5;
const FENCE_WINDOW: Duration = Duration::from_secs(60);

/// Consecutive closes or cuts, from a server that has never sent anything, after which reconnecting is given up.
pub(super) const MAX_SILENT_CLOSES: u32 = 8;

/// Maximum number of sockets tried after the grace period. They are tried only if earlier sockets were
/// accepted but carried nothing.
const MAX_LATE_ATTEMPTS: u32 = 3;

pub(super) struct ReconnectingClient {
    connector: Connector,
    outgoing: OutgoingLines,
    incoming: IncomingFrames,
    shared: SharedLinkState,
    backoff: Backoff,
    outages: OutageTracker,
    last_counts: Option<Counts>,
    since: Instant,
    /// Consecutive sockets lost after the grace period.
    late_losses: u32,
    fences: u32,
    fenced: Instant,
    /// Consecutive sockets closed without a message, before the connection was established.
    silent_closes: u32,
}

enum AttemptError {
    Retryable(DialError),
    Final(ConnectionLost),
}

impl AttemptError {
    /// Classifies a failed attempt to connect. `is_resumable` is `false` if the connection has not begun yet.
    fn from_dial_error(error: DialError, is_resumable: bool) -> Self {
        let is_final = if is_resumable { error.is_final_for_reconnect() } else { error.is_final() };
        if is_final { Self::Final(ConnectionLost::Dial(error)) } else { Self::Retryable(error) }
    }
}

impl From<SocketError> for AttemptError {
    fn from(broken: SocketError) -> Self {
        Self::Retryable(DialError::Io(broken.to_string()))
    }
}

impl ReconnectingClient {
    pub(super) fn new(
        connector: Connector,
        outgoing: OutgoingLines,
        incoming: IncomingFrames,
        outages: OutageTracker,
    ) -> Self {
        let shared = SharedLinkState::new(connector.options.keep);
        let (backoff, now) = (Backoff::new(), Instant::now());
        Self {
            connector,
            outgoing,
            incoming,
            shared,
            backoff,
            outages,
            last_counts: None,
            since: now,
            late_losses: 0,
            fences: 0,
            fenced: now,
            silent_closes: 0,
        }
    }

    /// Carries messages until the link's user is done or the connection is lost for good. `first` is a
    /// socket, or the reason why the first socket was cut.
    pub(super) async fn run(mut self, first: Result<ServerSocket, String>) -> Result<(), ConnectionLost> {
        let mut next = first.map_err(|why| (SocketError::Cut(why), Duration::ZERO));
        loop {
            let socket = match next {
                Ok(socket) => socket,
                Err((broken, stood)) => match self.reconnect(broken, stood).await {
                    Ok(Some(socket)) => socket,
                    Ok(None) => break,
                    Err(lost) => {
                        let (lost, answers) = {
                            let mut state = self.shared.state();
                            let lost =
                                if state.is_uninitialized() { lost } else { lost.into_reconnect_error() };
                            let reached = state.endpoint.ring().reached();
                            let answers = state.pending.fail_all(&lost, reached);
                            (lost, answers)
                        };
                        fail_link(&lost, answers, &mut self.outgoing, self.incoming).await;
                        return Err(lost);
                    }
                },
            };
            let (silence, began) = (self.connector.options.silence_timeout, Instant::now());
            match pump(&self.shared, &mut self.outgoing, &self.incoming, socket, silence).await {
                PumpEnd::Done => break,
                PumpEnd::Broken(broken) => next = Err((broken, began.elapsed())),
            }
        }
        self.incoming.close(CloseReason::Local);
        Ok(())
    }

    /// Opens another socket to replace one that was open for `stood`. Returns `None` if the link's user needs
    /// no more sockets.
    async fn reconnect(
        &mut self,
        broken: SocketError,
        stood: Duration,
    ) -> Result<Option<ServerSocket>, ConnectionLost> {
        tracing::info!(reason = %broken, "connection lost");
        let broken = match broken {
            SocketError::Other(error) if self.shared.state().is_uninitialized() => {
                return Err(ConnectionLost::Dial(error));
            }
            broken => broken,
        };
        let (connection, counts, is_idle) = {
            let state = self.shared.state();
            let counts = state.endpoint.counts();
            let connection = match &state.mode {
                ResumeMode::Resumable(granted) => Some(granted.connection.clone()),
                // Only `initialize` was sent and there was no response, so a new connection is opened.
                _ if state.is_uninitialized() && counts.received == 0 => None,
                _ => return Err(not_resumable(&state, &broken)),
            };
            (connection, counts, state.endpoint.ring().bytes() == 0)
        };
        match broken {
            SocketError::TooLong(why) => return Err(ConnectionLost::TooLong(why)),
            SocketError::Fenced => self.count_takeover()?,
            _ => {}
        }
        let was_of_use = self.last_counts.replace(counts) != Some(counts) || stood >= MIN_USEFUL_TIME;
        let is_silent_close = connection.is_none()
            && matches!(broken, SocketError::Closed | SocketError::Cut(_))
            && stood < MIN_USEFUL_TIME;
        self.silent_closes = if is_silent_close { self.silent_closes + 1 } else { 0 };
        if self.silent_closes >= MAX_SILENT_CLOSES {
            return Err(ConnectionLost::Dial(DialError::ClosedSilently));
        }
        let grace = self.connector.options.grace_period;
        // The delay takes at most half of the grace period. The rest remains for the attempt.
        let mut wait = self.backoff.after_loss(was_of_use).min(grace / 2);
        let now = Instant::now();
        // A server that accepts a resume is reachable, even if there was nothing to carry. Other sockets must
        // carry something before the grace period starts again.
        if was_of_use || connection.is_some() && is_idle {
            self.since = now;
        }
        self.late_losses = if now < self.since + grace { 0 } else { self.late_losses + 1 };
        if self.late_losses > MAX_LATE_ATTEMPTS {
            return Err(ConnectionLost::Grace { grace, last: DialError::Io(broken.to_string()) });
        }
        let deadline =
            (self.since + grace).max(now + wait + self.connector.options.connect_timeout.min(grace));
        let _missing = self.outages.record_loss(Instant::now(), deadline);
        let (connector, shared, backoff, silent_closes) =
            (&self.connector, &self.shared, &mut self.backoff, &mut self.silent_closes);
        let attempts = async {
            let mut last = DialError::Io(broken.to_string());
            loop {
                let attempt = async {
                    sleep(wait).await;
                    attempt(connector, shared, connection.as_ref()).await
                };
                match timeout_at(deadline, attempt).await {
                    Ok(Ok(socket)) => return Ok(Some(socket)),
                    Ok(Err(AttemptError::Final(lost))) => return Err(lost),
                    Ok(Err(AttemptError::Retryable(error))) => last = error,
                    Err(_) => return Err(ConnectionLost::Grace { grace, last }),
                }
                tracing::debug!(error = %last, "connection attempt failed");
                if connection.is_none() {
                    *silent_closes =
                        if matches!(last, DialError::ConnectionCut(_)) { *silent_closes + 1 } else { 0 };
                    if *silent_closes >= MAX_SILENT_CLOSES {
                        return Err(ConnectionLost::Dial(DialError::ClosedSilently));
                    }
                }
                let left = deadline.saturating_duration_since(Instant::now());
                wait = backoff.after_failure(&last, left, connector.options.connect_timeout);
            }
        };
        let socket = tokio::select! {
            biased;
            socket = attempts => socket?,
            () = until_user_gone(shared, &mut self.outgoing) => None,
        };
        if socket.is_some() && matches!(broken, SocketError::Oversized) {
            // The server has reported how many messages it received, so the next message is the one that was
            // too long.
            let answers = self.shared.state().replace_oversized(&broken.to_string());
            for answer in answers {
                // Sending fails if the link's user reads no more input. The user may still send messages.
                let _ = self.incoming.send(answer).await;
            }
        }
        Ok(socket)
    }

    fn count_takeover(&mut self) -> Result<(), ConnectionLost> {
        if self.fenced.elapsed() > FENCE_WINDOW {
            self.fences = 0;
        }
        self.fenced = Instant::now();
        self.fences += 1;
        // A takeover may also come from an older socket of this client, but not many times in a row.
        if self.fences >= MAX_FENCES { Err(ConnectionLost::Fenced) } else { Ok(()) }
    }
}

/// Returns the reason why a connection that cannot be resumed is lost. The server's text is preferred.
fn not_resumable(state: &LinkState, broken: &SocketError) -> ConnectionLost {
    match &state.closing_error {
        Some(words) if state.is_uninitialized() => ConnectionLost::Dial(DialError::TurnedAway(words.clone())),
        Some(words) => ConnectionLost::Refused(words.clone()),
        None => ConnectionLost::Plain(broken.to_string()),
    }
}

/// Waits until the link's user is gone. If messages are queued, waits longer so that they can be sent.
async fn until_user_gone(shared: &SharedLinkState, outgoing: &mut OutgoingLines) {
    outgoing.ended().await;
    let mut lines = Vec::new();
    outgoing.try_recv_lines(&mut lines);
    let is_drained = {
        let mut state = shared.state();
        lines.drain(..).for_each(|line| state.queue(line));
        state.ended = true;
        state.endpoint.ring().is_drained()
    };
    if !is_drained {
        sleep(FINAL_SEND_TIMEOUT).await;
    }
}

async fn attempt(
    connector: &Connector,
    shared: &SharedLinkState,
    connection: Option<&ConnectionName>,
) -> Result<ServerSocket, AttemptError> {
    let dialled = connector.dial().await;
    let mut socket = dialled.map_err(|error| AttemptError::from_dial_error(error, connection.is_some()))?;
    let Some(connection) = connection else {
        return shared
            .state()
            .endpoint
            .resume(0)
            .map(|_| socket)
            .map_err(|_| AttemptError::Final(ConnectionLost::Gap));
    };
    let received = shared.state().endpoint.counts().received;
    let ask = ResumeRequest { id: Bytes::from_static(RESUME_ID), connection: connection.clone(), received };
    let limit = connector.options.connect_timeout;
    let asking = async {
        socket.writer.put(ask.line()).await?;
        socket.writer.flush().await?;
        loop {
            match socket.reader.next().await? {
                Read::Message(line) => {
                    return Ok::<_, AttemptError>(ResumeResponse::read(&View::parse(&line), RESUME_ID));
                }
                // The flush sends the pong for a ping of the server.
                _ => socket.writer.flush().await?,
            }
        }
    };
    let answer =
        timeout(limit, asking).await.unwrap_or(Err(AttemptError::Retryable(DialError::Timeout(limit))))?;
    match answer {
        Some(ResumeResponse::Resumed { received }) => {
            let counts = shared.state().endpoint.counts();
            shared.state().endpoint.resume(received).map_err(|_| AttemptError::Final(ConnectionLost::Gap))?;
            tracing::info!(received, sent = counts.sent, taken = counts.received, "connection resumed");
            Ok(socket)
        }
        Some(ResumeResponse::Unknown) => Err(AttemptError::Final(ConnectionLost::Forgotten)),
        Some(ResumeResponse::Gap) => Err(AttemptError::Final(ConnectionLost::Gap)),
        Some(ResumeResponse::Refused(error)) => {
            let is_retryable = error
                .data
                .as_ref()
                .and_then(|data| data.get("retryable"))
                .is_some_and(|retryable| retryable == true);
            let error = error.to_string();
            Err(if is_retryable {
                AttemptError::Retryable(DialError::Io(error))
            } else {
                AttemptError::Final(ConnectionLost::Refused(error))
            })
        }
        // Another program responded instead of the server, perhaps only temporarily.
        None => Err(AttemptError::Retryable(DialError::Protocol(SocketError::ProtocolViolation.to_string()))),
    }
}

pub(super) async fn fail_link(
    lost: &ConnectionLost,
    mut answers: Vec<Frame>,
    outgoing: &mut OutgoingLines,
    incoming: IncomingFrames,
) {
    let why = describe_loss(lost);
    let mut lines = Vec::new();
    outgoing.try_recv_lines(&mut lines);
    let mut unsent = PendingRequests::default();
    for (number, line) in (1..).zip(&lines) {
        unsent.record(line, number);
    }
    answers.extend(unsent.fail_all(lost, 0));
    for answer in answers {
        if incoming.send(answer).await.is_err() {
            break;
        }
    }
    incoming.close(CloseReason::Io { kind: std::io::ErrorKind::ConnectionAborted, message: why });
}

pub(super) fn describe_loss(lost: &ConnectionLost) -> String {
    use std::error::Error;
    match lost.source() {
        Some(source) if matches!(lost, ConnectionLost::Dial(_)) => format!("{lost}: {source}"),
        Some(source) => format!("connection lost: {lost}: {source}"),
        None => format!("connection lost: {lost}"),
    }
}
