//! One turn of a chat: output, permission requests and signals.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::Duration;

use narrows_client::{Canceller, Events, RunRequest, RunResult, Runtime, RuntimeEvent, Session};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::notices;
use crate::cli::Output;
use crate::failure::{CancelReason, Failure, RunLimits};
use crate::interrupt::{Interrupts, Signal};
use crate::output_thread::{OutputPiece, OutputThread, PieceSlot, StdoutFailed};
use crate::permission_queue::{PromptProgress, PromptQueue, QueuedRequest};
use crate::reconnect_notice::ReconnectNotice;
use crate::render::{Refusal, Renderer};
use crate::terminal::{Color, Echo, Style};

/// Maximum number of output pieces that wait while a permission prompt is shown. At this number, nothing more
/// is read from the agent.
const MAX_KEPT_PIECES: usize = 4096;

const CONNECTION_CHECK_INTERVAL: Duration = Duration::from_secs(2);

pub(super) enum TurnAbort {
    /// A second signal asks for an immediate exit.
    Signal(Signal),
    Output(Failure),
}

pub(super) struct ChatTurnOutcome {
    pub(super) outcome: Result<(), Failure>,
    pub(super) denied: Vec<Refusal>,
    pub(super) is_agent_lost: bool,
    /// The signal that asked to quit after the turn.
    pub(super) leave: Option<Signal>,
}

pub(super) struct ChatTurn<'a> {
    pub(super) interrupts: &'a mut Interrupts,
    questions: PromptQueue<'a>,
    output_thread: OutputThread,
    renderer: Renderer,
    color: Color,
    reconnect_notice: ReconnectNotice,
    grace: Duration,
    cancelled: Option<CancelReason>,
    leave: Option<Signal>,
    /// The output pieces that wait for room in the queue of the output thread.
    pieces: VecDeque<OutputPiece>,
    /// Hides typed keys during the answer; restores the terminal when dropped.
    _echo: Option<Echo>,
}

enum TurnEvent {
    Signal(Signal),
    OutputFailed,
    /// All output before the next permission prompt is on the screen.
    Rested,
    Question(PromptProgress),
    Shown,
    Event(Option<RuntimeEvent>),
    Silence,
}

impl<'a> ChatTurn<'a> {
    pub(super) fn new(
        interrupts: &'a mut Interrupts,
        questions: &'a mut mpsc::Receiver<QueuedRequest>,
        reconnect_notice: ReconnectNotice,
        grace: Duration,
    ) -> Result<Self, Failure> {
        Ok(Self {
            interrupts,
            questions: PromptQueue::new(questions),
            output_thread: open_screen()?,
            renderer: Renderer::new(Output::Text, false),
            color: Color::for_stderr(),
            reconnect_notice,
            grace,
            cancelled: None,
            leave: None,
            pieces: VecDeque::new(),
            _echo: Echo::off(),
        })
    }

    pub(super) async fn run(
        mut self,
        runtime: &Runtime,
        session: &Session,
        text: String,
    ) -> Result<ChatTurnOutcome, TurnAbort> {
        let message_loss = runtime.message_loss();
        let started = match self.interrupts.unless_signal(session.run(RunRequest::text(text))).await {
            Ok(started) => started,
            Err(signal) => {
                session.cancel();
                return Err(TurnAbort::Signal(signal));
            }
        };
        let (mut events, cancel, result) = match started {
            Ok(handle) => handle.split(),
            Err(error) => {
                let is_agent_lost = matches!(error.code(), "agent_exited" | "closed");
                return Ok(ChatTurnOutcome {
                    outcome: Err(error.into()),
                    denied: Vec::new(),
                    is_agent_lost,
                    leave: None,
                });
            }
        };
        self.follow(&mut events, &cancel).await?;
        let ended = ended(result).await;
        if let Ok(result) = &ended {
            self.renderer.finish(result, &mut self.pieces);
            let cost = result.usage.as_ref().and_then(notices::usage_line);
            if let Some(cost) = cost.filter(|_| std::io::stderr().is_terminal()) {
                self.pieces.push_back(OutputPiece::Note(self.color.paint(Style::Dim, &cost).into_owned()));
            }
        }
        self.show_rest().await?;
        let Self { interrupts, output_thread, renderer, reconnect_notice, cancelled, leave, grace, .. } =
            self;
        let unstopped_agent = reconnect_notice.unstopped_agent();
        match interrupts.unless_signal(output_thread.finish()).await {
            Ok(Ok(())) => {}
            // After SIGHUP the terminal is closed, so a write error is expected.
            Ok(Err(_)) if leave == Some(Signal::HangUp) => {}
            Ok(Err(error)) => return Err(TurnAbort::Output(Failure::output_failed(&error))),
            Err(signal) => return Err(TurnAbort::Signal(signal)),
        }
        let denied = renderer.denied().to_vec();
        let unreadable = renderer.unreadable();
        let limits = RunLimits { turn: None, grace, unstopped_agent };
        let (outcome, is_agent_lost) = match ended {
            Err(failure) => (Err(failure), true),
            Ok(result) => {
                let code = result.error.as_ref().map(|error| error.code.as_str());
                let is_given_up = matches!((cancelled, code), (Some(_), None) | (_, Some("silence")));
                // An agent that did not stop after the turn was cancelled was killed, so it is lost.
                let is_agent_lost =
                    code == Some("agent_exited") || (is_given_up && result.stop_reason.is_none());
                let outcome = match cancelled {
                    Some(why) if code.is_none() => {
                        Err(Failure::cancelled(why).with_unstopped_agent(&result, limits))
                    }
                    _ => Failure::from_run(&result, limits),
                };
                (outcome, is_agent_lost)
            }
        };
        let message_loss = runtime.message_loss().since(message_loss);
        let outcome = outcome.and_then(|()| Failure::incomplete_answer(message_loss, unreadable));
        Ok(ChatTurnOutcome { outcome, denied, is_agent_lost, leave })
    }

    async fn follow(&mut self, events: &mut Events, cancel: &Canceller) -> Result<(), TurnAbort> {
        let mut more = Vec::new();
        loop {
            match self.next_event(events).await {
                TurnEvent::Shown | TurnEvent::Question(PromptProgress::Advanced) => {}
                TurnEvent::Rested => self.questions.show_next(),
                TurnEvent::Silence => {
                    self.pieces.extend(self.reconnect_notice.next(self.renderer.is_watched(), self.color));
                }
                TurnEvent::Signal(signal) if self.cancelled.is_some() => {
                    return Err(TurnAbort::Signal(signal));
                }
                TurnEvent::Signal(signal) => {
                    cancel.cancel();
                    self.cancelled = Some(CancelReason::Signal(signal));
                    self.interrupts
                        .unless_signal(self.questions.withdraw_all())
                        .await
                        .map_err(TurnAbort::Signal)?;
                    match signal {
                        Signal::Terminate | Signal::HangUp => self.leave = Some(signal),
                        Signal::Interrupt => {
                            let words = "cancelling; press Ctrl-C again to exit";
                            let note = self.color.paint(Style::Dim, words).into_owned();
                            // The note is shown before output that still waits for a slow reader.
                            self.pieces.push_front(OutputPiece::Note(note));
                        }
                    }
                }
                TurnEvent::OutputFailed => {
                    self.cancelled.get_or_insert(CancelReason::Output);
                    cancel.cancel();
                }
                TurnEvent::Question(PromptProgress::Withdrawn) => {
                    self.interrupts
                        .unless_signal(self.questions.withdraw())
                        .await
                        .map_err(TurnAbort::Signal)?;
                }
                TurnEvent::Event(None) => {
                    return self
                        .interrupts
                        .unless_signal(self.questions.withdraw_all())
                        .await
                        .map_err(TurnAbort::Signal);
                }
                TurnEvent::Event(Some(event)) => {
                    more.push(event);
                    // All events that are available now are shown in one go.
                    events.take_all(&mut more);
                    for event in more.drain(..) {
                        self.questions.record_event(&event);
                        // The answer cannot exceed the size limit of collected text, because a chat does not
                        // collect it.
                        let _ = self.renderer.show(&event, &mut self.pieces);
                    }
                }
            }
        }
    }

    /// Waits for the next event. While a prompt is shown, no other output is written. While output waits to
    /// be written, nothing is read from the agent.
    async fn next_event(&mut self, events: &mut Events) -> TurnEvent {
        let is_output_gone = matches!(self.cancelled, Some(CancelReason::Output));
        if is_output_gone {
            self.pieces.clear();
        }
        let is_asking = self.questions.is_prompting();
        let next = self.pieces.front().filter(|_| !is_asking);
        let has_next = next.is_some();
        let asks = !is_output_gone && self.pieces.is_empty() && self.questions.is_ready();
        let reads = if is_asking { self.pieces.len() < MAX_KEPT_PIECES } else { !has_next && !asks };
        let tells = self.reconnect_notice.is_remote();
        let shown = tokio::select! {
            biased;
            signal = self.interrupts.next() => return TurnEvent::Signal(signal),
            () = self.output_thread.failed(), if !is_output_gone => return TurnEvent::OutputFailed,
            step = self.questions.next() => return TurnEvent::Question(step),
            Ok(()) = self.output_thread.flush(), if asks => return TurnEvent::Rested,
            room = reserve_slot(&self.output_thread, next), if has_next => room,
            event = events.next(), if reads => return TurnEvent::Event(event),
            () = sleep(CONNECTION_CHECK_INTERVAL), if reads && !is_asking && tells => return TurnEvent::Silence,
        };
        if let (Ok(room), Some(piece)) = (shown, self.pieces.pop_front()) {
            room.send(piece);
        }
        TurnEvent::Shown
    }

    async fn show_rest(&mut self) -> Result<(), TurnAbort> {
        for piece in std::mem::take(&mut self.pieces) {
            match self.interrupts.unless_signal(self.output_thread.reserve(&piece)).await {
                Ok(Ok(room)) => room.send(piece),
                // A write error is reported when the output is finished.
                Ok(Err(StdoutFailed)) => return Ok(()),
                Err(signal) => return Err(TurnAbort::Signal(signal)),
            }
        }
        Ok(())
    }
}

fn open_screen() -> Result<OutputThread, Failure> {
    OutputThread::open().map_err(|error| Failure::setup("write to stdout", &error))
}

async fn ended(result: oneshot::Receiver<RunResult>) -> Result<RunResult, Failure> {
    result.await.map_err(|_| Failure::session_closed())
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
