//! Runs one turn. The agent, the user or the reader of stdout may end it.

use std::collections::VecDeque;
use std::time::Duration;

use narrows_client::{Canceller, Events, RunRequest, RunResult, Runtime, RuntimeEvent, Session};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{Conversation, LATE_OUTPUT_TIMEOUT, RunFailure};
use crate::failure::{CancelReason, Failure, RunLimits};
use crate::interrupt::Signal;
use crate::output_thread::{OutputPiece, OutputThread, PieceSlot, StdoutFailed};
use crate::permission_queue::{PromptProgress, PromptQueue, QueuedRequest};

/// Time without output after which a status is shown, and the interval of its updates.
const STATUS_INTERVAL: Duration = Duration::from_secs(2);

/// Maximum number of output pieces that wait while a permission prompt is shown.
const MAX_KEPT_PIECES: usize = 4096;

const CANCELLING_NOTICE: &str = "cancelling; press Ctrl-C again to exit immediately";

enum TurnEvent {
    Signal(Signal),
    OutputFailed,
    /// All output before the next permission prompt is on the screen.
    Rested,
    Question(PromptProgress),
    Shown,
    Event(Option<RuntimeEvent>),
    Over(Box<RunResult>),
    Unread,
    Silence,
}

struct TurnState<'a> {
    events: Events,
    questions: PromptQueue<'a>,
    cancel: Canceller,
    result: oneshot::Receiver<RunResult>,
    /// Set if the turn ended before all output was written: the result, and the deadline for writing the
    /// rest. After a cancelled turn, the deadline limits the wait for a slow reader.
    over: Option<(RunResult, Option<Instant>)>,
    last_activity: Instant,
    cancelled: Option<CancelReason>,
    /// The output pieces that wait for room in the queue of the output thread.
    pieces: VecDeque<OutputPiece>,
}

impl Conversation {
    pub(super) async fn run_turn(
        &mut self,
        runtime: &Runtime,
        mut session: Session,
        mut request: RunRequest,
        mut questions: mpsc::Receiver<QueuedRequest>,
    ) -> Result<(), RunFailure> {
        self.summary.session_id = Some(session.id().to_owned());
        let outside = session.events();
        // Messages that were lost before the prompt do not affect the answer.
        let message_loss = runtime.message_loss();
        let has_form = request.output_schema.is_some();
        let format = self.renderer.format();
        let limit = request.timeout;
        let left = self.remaining();
        // The timeout is rounded to whole milliseconds, the unit in which events report it.
        request.timeout =
            limit.map(|_| Duration::from_millis(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)));
        let (started, signal) = self.start(timeout(left, session.run(request))).await?;
        let started = started.map_err(|_| self.startup_timeout())?;
        let started = started.map_err(Failure::from)?;
        self.summary.run_id = Some(started.run_id().to_owned());
        let (events, cancel, result) = started.split();
        if let Some(answers) = &self.answers {
            answers.listen(cancel.clone()).map_err(|error| Failure::setup("read stdin", &error))?;
        }
        let mut state = TurnState {
            events,
            questions: PromptQueue::new(&mut questions),
            cancel,
            result,
            over: None,
            last_activity: Instant::now(),
            cancelled: None,
            pieces: VecDeque::new(),
        };
        if let Some(signal) = signal {
            stop(&mut state, signal);
        }
        self.summary.has_run = true;
        let mut early = Vec::new();
        if let Some(mut outside) = outside {
            outside.take_all(&mut early);
        }
        self.follow(&mut state, early).await?;
        let TurnState { result, over, cancelled, mut pieces, .. } = state;
        let result = match over {
            Some((result, _)) => result,
            None => result.await.map_err(|_| Failure::session_closed())?,
        };
        let asked = self.answers.as_ref().is_some_and(|answers| answers.has_cancelled());
        let cancelled = cancelled.or(asked.then_some(CancelReason::Program));
        let is_late = result.error.as_ref().is_some_and(|error| error.code == "timeout");
        let grace = if is_late { self.late_grace } else { self.grace };
        let limits =
            RunLimits { turn: limit, grace, unstopped_agent: self.reconnect_notice.unstopped_agent() };
        self.summary.end(&result);
        self.renderer.finish(&result, &mut pieces);
        self.show_rest(pieces).await?;
        let outcome = match cancelled {
            Some(why) if result.error.is_none() => {
                Err(Failure::cancelled(why).with_unstopped_agent(&result, limits))
            }
            _ => Failure::from_run(&result, limits).and_then(|()| {
                Failure::incomplete_answer(
                    runtime.message_loss().since(message_loss),
                    self.renderer.unreadable(),
                )
            }),
        };
        let formless = has_form && result.structured_output.is_none();
        let outcome = outcome
            .and_then(|()| if formless { Err(Failure::schema_mismatch(&result, format)) } else { Ok(()) });
        Ok(outcome.and_then(|()| Failure::denied(self.renderer.denied()))?)
    }

    /// Waits until the prompt is sent. A signal meanwhile cancels the turn as soon as it exists.
    async fn start<T>(
        &mut self,
        starting: impl Future<Output = T>,
    ) -> Result<(T, Option<Signal>), RunFailure> {
        tokio::pin!(starting);
        match self.interrupts.unless_signal(&mut starting).await {
            Ok(started) => Ok((started, None)),
            Err(signal) => match timeout(self.grace, starting).await {
                Ok(started) => Ok((started, Some(signal))),
                Err(_) => Err(RunFailure::Ended(Failure::forced_exit(signal))),
            },
        }
    }

    /// Shows events until the turn ends. `early` events, from before its start, come after `run.started`.
    async fn follow(
        &mut self,
        state: &mut TurnState<'_>,
        early: Vec<RuntimeEvent>,
    ) -> Result<(), RunFailure> {
        let mut early = Some(early);
        let mut more = Vec::new();
        loop {
            match self.next_event(state).await {
                TurnEvent::Shown | TurnEvent::Question(PromptProgress::Advanced) => {}
                TurnEvent::Rested => state.questions.show_next(),
                TurnEvent::Question(PromptProgress::Withdrawn) => {
                    self.withdraw_prompts(state.questions.withdraw()).await?;
                }
                TurnEvent::Silence => {
                    let lost = self.reconnect_notice.next(self.renderer.is_watched(), self.color);
                    let goes_on = || self.renderer.status(state.last_activity.elapsed().as_secs());
                    state.pieces.extend(lost.or_else(goes_on));
                }
                TurnEvent::Signal(signal) if state.cancelled.is_some() => {
                    return Err(RunFailure::Forced(signal));
                }
                TurnEvent::Signal(signal) => {
                    stop(state, signal);
                    if let Some((_, leave_by)) = &mut state.over {
                        leave_by.get_or_insert(Instant::now() + self.grace);
                    }
                    self.withdraw_prompts(state.questions.withdraw_all()).await?;
                }
                TurnEvent::OutputFailed => cancel(state, CancelReason::Output),
                TurnEvent::Over(result) => {
                    let is_late = result.error.as_ref().is_some_and(|error| error.code == "timeout");
                    let patience = match state.cancelled {
                        _ if is_late => Some(LATE_OUTPUT_TIMEOUT),
                        Some(_) => Some(self.grace),
                        None => None,
                    };
                    state.over = Some((*result, patience.map(|patience| Instant::now() + patience)));
                }
                TurnEvent::Unread => {
                    state.pieces.clear();
                    return Ok(());
                }
                TurnEvent::Event(None) => {
                    return self.withdraw_prompts(state.questions.withdraw_all()).await;
                }
                TurnEvent::Event(Some(event)) => {
                    state.last_activity = Instant::now();
                    more.push(event);
                    // All events that are available now are shown in one go.
                    state.events.take_all(&mut more);
                    for event in more.drain(..) {
                        state.questions.record_event(&event);
                        if let Some(answers) = &self.answers {
                            answers.record_event(&event);
                        }
                        let shown = self.renderer.show(&event, &mut state.pieces);
                        if shown.is_err() && state.cancelled.is_none() {
                            cancel(state, CancelReason::TooLong);
                        }
                        for earlier in early.take().into_iter().flatten() {
                            let earlier = as_run_event(earlier, &event);
                            self.renderer.show_session(&earlier, &mut state.pieces);
                        }
                    }
                }
            }
        }
    }

    /// Withdraws prompts, until a signal asks for an immediate exit.
    async fn withdraw_prompts(&mut self, withdrawing: impl Future<Output = ()>) -> Result<(), RunFailure> {
        self.interrupts.unless_signal(withdrawing).await.map_err(RunFailure::Forced)
    }

    /// Waits for the next event. While a prompt is shown, no other output is written. While output waits to
    /// be written, nothing is read from the agent.
    async fn next_event(&mut self, state: &mut TurnState<'_>) -> TurnEvent {
        let is_output_gone = matches!(state.cancelled, Some(CancelReason::Output));
        if is_output_gone {
            state.pieces.clear();
        }
        let is_asking = state.questions.is_prompting();
        let asks = !is_output_gone && state.pieces.is_empty() && state.questions.is_ready();
        let waits = state.pieces.front().filter(|_| !is_asking);
        let reads = if is_asking { state.pieces.len() < MAX_KEPT_PIECES } else { waits.is_none() && !asks };
        let is_over = state.over.is_some();
        let leave_by = state.over.as_ref().and_then(|(_, leave_by)| *leave_by);
        let shown = tokio::select! {
            biased;
            signal = self.interrupts.next() => return TurnEvent::Signal(signal),
            () = self.output_thread.failed(), if !is_output_gone => return TurnEvent::OutputFailed,
            step = state.questions.next() => return TurnEvent::Question(step),
            Ok(()) = self.output_thread.flush(), if asks => return TurnEvent::Rested,
            room = reserve_slot(&self.output_thread, waits), if waits.is_some() => room,
            // A cancelled turn does not wait for its output to be read.
            Ok(result) = &mut state.result, if !is_over && waits.is_some() => {
                return TurnEvent::Over(Box::new(result));
            }
            () = sleep_until(leave_by.unwrap_or_else(Instant::now)), if leave_by.is_some() => return TurnEvent::Unread,
            event = state.events.next(), if reads => return TurnEvent::Event(event),
            () = sleep(STATUS_INTERVAL), if reads && !is_asking => return TurnEvent::Silence,
        };
        if let (Ok(room), Some(piece)) = (shown, state.pieces.pop_front()) {
            room.send(piece);
        }
        TurnEvent::Shown
    }

    async fn show_rest(&mut self, pieces: VecDeque<OutputPiece>) -> Result<(), RunFailure> {
        for piece in pieces {
            match self.interrupts.unless_signal(self.output_thread.reserve(&piece)).await {
                Ok(Ok(room)) => room.send(piece),
                // A write error is reported when the output is finished.
                Ok(Err(StdoutFailed)) => return Ok(()),
                Err(signal) => return Err(RunFailure::Forced(signal)),
            }
        }
        Ok(())
    }
}

async fn reserve_slot<'a>(
    output_thread: &'a OutputThread,
    piece: Option<&OutputPiece>,
) -> Result<PieceSlot<'a>, StdoutFailed> {
    match piece {
        Some(piece) => output_thread.reserve(piece).await,
        None => std::future::pending().await,
    }
}

/// Converts a session event to one of the run: with the run id, and a time within the run.
fn as_run_event(event: RuntimeEvent, started: &RuntimeEvent) -> RuntimeEvent {
    RuntimeEvent { run_id: started.run_id.clone(), at_ms: event.at_ms.max(started.at_ms), ..event }
}

fn stop(state: &mut TurnState<'_>, signal: Signal) {
    if signal == Signal::Interrupt {
        // The note is shown before output that still waits for a slow reader.
        state.pieces.push_front(OutputPiece::Note(CANCELLING_NOTICE.to_owned()));
    }
    cancel(state, CancelReason::Signal(signal));
}

fn cancel(state: &mut TurnState<'_>, why: CancelReason) {
    state.cancelled.get_or_insert(why);
    state.cancel.cancel();
}
