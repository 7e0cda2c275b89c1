//! One connection over as many sockets as it takes.

use std::time::Duration;

use bytes::Bytes;
use narrows_link::{CloseReason, IncomingFrames, OutgoingLines};
use narrows_wire::{Frame, View};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::backoff::Backoff;
use super::connect::Connector;
use super::pending::Open;
use super::pump::{End, Mode, Shared, State, pump};
use super::socket::{Broken, Read, Socket};
use super::state::Watch;
use super::{ConnectionLost, DialError};
use crate::resume::{Answer, Ask, Connection, Counts};

/// The id of our own requests, which are the first on their socket and can be taken for no other.
const RESUME_ID: &[u8] = b"\"narrows/resume\"";

/// How long unanswered requests are waited for once the holder has ended its input.
pub(super) const ANSWERS_TIMEOUT: Duration = Duration::from_millis(1500);

/// How long the server may take to close its end.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

// `narrows run --timeout` promises to end five seconds after the time limit at the latest. The client waits for two of them
// for the answer to its cancel.
const _: () = assert!(ANSWERS_TIMEOUT.as_millis() + CLOSE_TIMEOUT.as_millis() <= 2500);

/// How long it is tried to say the rest when the holder has gone.
pub(super) const FINAL_SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a socket must stand to have been of use though it carried nothing.
pub(super) const MIN_USEFUL_TIME: Duration = Duration::from_secs(10);

/// How often a connection may be taken from us within [`FENCE_WINDOW`] before it is somebody else's.
const MAX_FENCES: u32 = 5;
const FENCE_WINDOW: Duration = Duration::from_secs(60);

/// How often in a row a server that has never said anything may close the connection, or the network may cut it, before there is no
/// point in going on.
pub(super) const MAX_SILENT_CLOSES: u32 = 8;

/// How often another socket is tried after the grace, where there were some in it that were of no use.
const MAX_LATE_ATTEMPTS: u32 = 3;

/// Keeps one connection.
pub(super) struct ReconnectingClient {
    dialler: Connector,
    outgoing: OutgoingLines,
    incoming: IncomingFrames,
    shared: Shared,
    backoff: Backoff,
    watch: Watch,
    /// What had gone each way when a socket was last lost.
    before: Option<Counts>,
    /// Since when no socket was of use and nobody has let us go on.
    since: Instant,
    /// How many sockets in a row were lost after the grace.
    late: u32,
    fences: u32,
    fenced: Instant,
    /// How many sockets in a row were closed without a word, before there was one.
    mute: u32,
}

/// Why an attempt came to nothing.
enum Failed {
    /// The next one may come to something.
    Again(DialError),
    Finally(ConnectionLost),
}

impl Failed {
    /// No socket came about, for a connection that is held or for one that has not begun.
    fn of_dial(error: DialError, is_held: bool) -> Self {
        let is_final = if is_held { error.is_shut() } else { error.is_final() };
        if is_final { Self::Finally(ConnectionLost::Dial(error)) } else { Self::Again(error) }
    }
}

impl From<Broken> for Failed {
    fn from(broken: Broken) -> Self {
        Self::Again(DialError::Io(broken.to_string()))
    }
}

impl ReconnectingClient {
    pub(super) fn new(
        dialler: Connector,
        outgoing: OutgoingLines,
        incoming: IncomingFrames,
        watch: Watch,
    ) -> Self {
        let shared = Shared::new(dialler.options.keep);
        let (backoff, now) = (Backoff::new(), Instant::now());
        Self {
            dialler,
            outgoing,
            incoming,
            shared,
            backoff,
            watch,
            before: None,
            since: now,
            late: 0,
            fences: 0,
            fenced: now,
            mute: 0,
        }
    }

    /// Carries until the holder has done, or it cannot be done any more.
    ///
    /// `first` is a socket, or why the first one was cut.
    pub(super) async fn run(mut self, first: Result<Socket, String>) -> Result<(), ConnectionLost> {
        let mut next = first.map_err(|why| (Broken::Cut(why), Duration::ZERO));
        loop {
            let socket = match next {
                Ok(socket) => socket,
                Err((broken, stood)) => match self.again(broken, stood).await {
                    Ok(Some(socket)) => socket,
                    Ok(None) => break,
                    Err(lost) => {
                        let (lost, answers) = {
                            let mut state = self.shared.state();
                            let lost = if state.is_beginning() { lost } else { lost.later() };
                            let reached = state.held.ring().reached();
                            let answers = state.open.fail(&lost, reached);
                            (lost, answers)
                        };
                        give_up(&lost, answers, &mut self.outgoing, self.incoming).await;
                        return Err(lost);
                    }
                },
            };
            let (silence, began) = (self.dialler.options.silence, Instant::now());
            match pump(&self.shared, &mut self.outgoing, &self.incoming, socket, silence).await {
                End::Done => break,
                End::Broken(broken) => next = Err((broken, began.elapsed())),
            }
        }
        self.incoming.close(CloseReason::Local);
        Ok(())
    }

    /// Another socket for the connection, after one that stood so long; `None` if the holder has no use for one.
    async fn again(&mut self, broken: Broken, stood: Duration) -> Result<Option<Socket>, ConnectionLost> {
        tracing::info!(why = %broken, "the connection is lost");
        let broken = match broken {
            Broken::Other(error) if self.shared.state().is_beginning() => {
                return Err(ConnectionLost::Dial(error));
            }
            broken => broken,
        };
        let (connection, counts, is_idle) = {
            let state = self.shared.state();
            let counts = state.held.counts();
            let connection = match &state.mode {
                Mode::Held(granted) => Some(granted.connection.clone()),
                // Nobody has answered, and nothing but a question was sent.
                _ if state.is_beginning() && counts.taken == 0 => None,
                _ => return Err(plain(&state, &broken)),
            };
            (connection, counts, state.held.ring().bytes() == 0)
        };
        match broken {
            Broken::TooLong(why) => return Err(ConnectionLost::TooLong(why)),
            Broken::Fenced => self.fence()?,
            _ => {}
        }
        let was_of_use = self.before.replace(counts) != Some(counts) || stood >= MIN_USEFUL_TIME;
        let is_mute = connection.is_none()
            && matches!(broken, Broken::Closed | Broken::Cut(_))
            && stood < MIN_USEFUL_TIME;
        self.mute = if is_mute { self.mute + 1 } else { 0 };
        if self.mute >= MAX_SILENT_CLOSES {
            return Err(ConnectionLost::Dial(DialError::Mute));
        }
        let grace = self.dialler.options.grace;
        // However often it was lost: there is time for another attempt.
        let mut wait = self.backoff.first(was_of_use).min(grace / 2);
        let now = Instant::now();
        // Whoever has let us go on is there, though nothing was to be carried. Else sockets that come about and carry nothing are
        // no connection either.
        if was_of_use || connection.is_some() && is_idle {
            self.since = now;
        }
        self.late = if now < self.since + grace { 0 } else { self.late + 1 };
        if self.late > MAX_LATE_ATTEMPTS {
            return Err(ConnectionLost::Grace { grace, last: DialError::Io(broken.to_string()) });
        }
        let deadline = (self.since + grace).max(now + wait + self.dialler.options.connect.min(grace));
        let _missing = self.watch.lost(Instant::now(), deadline);
        let (dialler, shared, backoff, mute) =
            (&self.dialler, &self.shared, &mut self.backoff, &mut self.mute);
        let attempts = async {
            let mut last = DialError::Io(broken.to_string());
            loop {
                let attempt = async {
                    sleep(wait).await;
                    attempt(dialler, shared, connection.as_ref()).await
                };
                match timeout_at(deadline, attempt).await {
                    Ok(Ok(socket)) => return Ok(Some(socket)),
                    Ok(Err(Failed::Finally(lost))) => return Err(lost),
                    Ok(Err(Failed::Again(error))) => last = error,
                    Err(_) => return Err(ConnectionLost::Grace { grace, last }),
                }
                tracing::debug!(why = %last, "no connection yet");
                if connection.is_none() {
                    *mute = if matches!(last, DialError::Cut(_)) { *mute + 1 } else { 0 };
                    if *mute >= MAX_SILENT_CLOSES {
                        return Err(ConnectionLost::Dial(DialError::Mute));
                    }
                }
                let left = deadline.saturating_duration_since(Instant::now());
                wait = backoff.after(&last, left, dialler.options.connect);
            }
        };
        let socket = tokio::select! {
            biased;
            socket = attempts => socket?,
            () = parting(shared, &mut self.outgoing) => None,
        };
        if socket.is_some() && matches!(broken, Broken::Oversized) {
            // The server has said how far it has come: the next is the one.
            let answers = self.shared.state().take_back(&broken.to_string());
            for answer in answers {
                // Whoever takes nothing any more may still want to say something.
                let _ = self.incoming.send(answer).await;
            }
        }
        Ok(socket)
    }

    /// Counts how often somebody has taken over.
    fn fence(&mut self) -> Result<(), ConnectionLost> {
        if self.fenced.elapsed() > FENCE_WINDOW {
            self.fences = 0;
        }
        self.fenced = Instant::now();
        self.fences += 1;
        // A late attempt of our own can do that, but not for long.
        if self.fences >= MAX_FENCES { Err(ConnectionLost::Fenced) } else { Ok(()) }
    }
}

/// How a connection is lost that cannot be taken up again: as the server has said, if it has.
fn plain(state: &State, broken: &Broken) -> ConnectionLost {
    match &state.last_words {
        Some(words) if state.is_beginning() => ConnectionLost::Dial(DialError::TurnedAway(words.clone())),
        Some(words) => ConnectionLost::Refused(words.clone()),
        None => ConnectionLost::Plain(broken.to_string()),
    }
}

/// Waits until the holder has gone, and a little longer if there is something to say.
async fn parting(shared: &Shared, outgoing: &mut OutgoingLines) {
    outgoing.ended().await;
    let mut lines = Vec::new();
    outgoing.try_recv_lines(&mut lines);
    let is_drained = {
        let mut state = shared.state();
        lines.drain(..).for_each(|line| state.sends(line));
        state.ended = true;
        state.held.ring().is_drained()
    };
    if !is_drained {
        sleep(FINAL_SEND_TIMEOUT).await;
    }
}

/// A new socket on which the connection goes on.
async fn attempt(
    dialler: &Connector,
    shared: &Shared,
    connection: Option<&Connection>,
) -> Result<Socket, Failed> {
    let dialled = dialler.dial().await;
    let mut socket = dialled.map_err(|error| Failed::of_dial(error, connection.is_some()))?;
    let Some(connection) = connection else {
        return shared
            .state()
            .held
            .resume(0)
            .map(|_| socket)
            .map_err(|_| Failed::Finally(ConnectionLost::Gap));
    };
    let received = shared.state().held.counts().taken;
    let ask = Ask { id: Bytes::from_static(RESUME_ID), connection: connection.clone(), received };
    let limit = dialler.options.connect;
    let asking = async {
        socket.writer.put(ask.line()).await?;
        socket.writer.flush().await?;
        loop {
            match socket.reader.next().await? {
                Read::Message(line) => return Ok::<_, Failed>(Answer::read(&View::parse(&line), RESUME_ID)),
                // A ping is answered.
                _ => socket.writer.flush().await?,
            }
        }
    };
    let answer = timeout(limit, asking).await.unwrap_or(Err(Failed::Again(DialError::Timeout(limit))))?;
    match answer {
        Some(Answer::Resumed { received }) => {
            let counts = shared.state().held.counts();
            shared.state().held.resume(received).map_err(|_| Failed::Finally(ConnectionLost::Gap))?;
            tracing::info!(received, sent = counts.sent, taken = counts.taken, "the connection goes on");
            Ok(socket)
        }
        Some(Answer::Unknown) => Err(Failed::Finally(ConnectionLost::Forgotten)),
        Some(Answer::Gap) => Err(Failed::Finally(ConnectionLost::Gap)),
        Some(Answer::Refused(error)) => {
            let is_retryable = error
                .data
                .as_ref()
                .and_then(|data| data.get("retryable"))
                .is_some_and(|retryable| retryable == true);
            let error = error.to_string();
            Err(if is_retryable {
                Failed::Again(DialError::Io(error))
            } else {
                Failed::Finally(ConnectionLost::Refused(error))
            })
        }
        // Somebody else, who may not be there for long.
        None => Err(Failed::Again(DialError::Protocol(Broken::Nonsense.to_string()))),
    }
}

/// Tells the holder what is lost, by the answers to what it has asked, and ends the link.
pub(super) async fn give_up(
    lost: &ConnectionLost,
    mut answers: Vec<Frame>,
    outgoing: &mut OutgoingLines,
    incoming: IncomingFrames,
) {
    let why = words(lost);
    let mut lines = Vec::new();
    outgoing.try_recv_lines(&mut lines);
    let mut unsent = Open::default();
    for (number, line) in (1..).zip(&lines) {
        unsent.asked(line, number);
    }
    answers.extend(unsent.fail(lost, 0));
    for answer in answers {
        if incoming.send(answer).await.is_err() {
            break;
        }
    }
    incoming.close(CloseReason::Io { kind: std::io::ErrorKind::ConnectionAborted, message: why });
}

/// What happened, and why.
pub(super) fn words(lost: &ConnectionLost) -> String {
    use std::error::Error;
    match lost.source() {
        Some(source) if matches!(lost, ConnectionLost::Dial(_)) => format!("{lost}: {source}"),
        Some(source) => format!("the connection is lost: {lost}: {source}"),
        None => format!("the connection is lost: {lost}"),
    }
}
