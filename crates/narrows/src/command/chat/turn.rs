//! One turn: what the agent says, what it asks, and what the user does meanwhile.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::Duration;

use narrows_client::{Canceller, Events, RunRequest, RunResult, Runtime, RuntimeEvent, Session};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::beside;
use crate::cli::Output;
use crate::desk::{Asked, Questions, Step};
use crate::failure::{Cancelled, Failure, Limits};
use crate::interrupt::{Interrupts, Signal};
use crate::present::{Presenter, Refusal};
use crate::screen::{Failed, Piece, Room, Screen};
use crate::terminal::{Colour, Echo, Style};
use crate::tidings::Tidings;

/// How many pieces are kept back while the user answers a question.
const KEPT: usize = 4096;

/// How long nothing happens before it is looked whether the connection stands.
const MOMENT: Duration = Duration::from_secs(2);

/// Why a turn is not followed to its end.
pub(super) enum Left {
    /// Somebody wants us to leave.
    Signal(Signal),
    /// Our output cannot be written any more.
    Output(Failure),
}

/// How a turn ended.
pub(super) struct Turned {
    /// What is to be told.
    pub(super) outcome: Result<(), Failure>,
    /// What was refused by the rules.
    pub(super) denied: Vec<Refusal>,
    /// The agent is gone.
    pub(super) is_gone: bool,
    /// Somebody wants us to leave, now that it is over.
    pub(super) leave: Option<Signal>,
}

/// What a turn needs.
pub(super) struct Turn<'a> {
    pub(super) interrupts: &'a mut Interrupts,
    questions: Questions<'a>,
    screen: Screen,
    presenter: Presenter,
    colour: Colour,
    tidings: Tidings,
    /// How long a turn that was cancelled may take to end.
    grace: Duration,
    cancelled: Option<Cancelled>,
    leave: Option<Signal>,
    /// What waits for room on the screen.
    pieces: VecDeque<Piece>,
    /// Keys that are typed meanwhile are not shown in the middle of the answer.
    _echo: Option<Echo>,
}

/// What happened next.
enum Happened {
    Signal(Signal),
    OutputFailed,
    /// Everything before the next question is on the screen.
    Rested,
    Question(Step),
    Shown,
    Event(Option<RuntimeEvent>),
    /// Nothing, for a while.
    Silence,
}

impl<'a> Turn<'a> {
    /// Gets ready.
    pub(super) fn new(
        interrupts: &'a mut Interrupts,
        questions: &'a mut mpsc::Receiver<Asked>,
        tidings: Tidings,
        grace: Duration,
    ) -> Result<Self, Failure> {
        Ok(Self {
            interrupts,
            questions: Questions::new(questions),
            screen: open_screen()?,
            presenter: Presenter::new(Output::Text, false),
            colour: Colour::of_stderr(),
            tidings,
            grace,
            cancelled: None,
            leave: None,
            pieces: VecDeque::new(),
            _echo: Echo::off(),
        })
    }

    /// Says `text`, and shows what comes until the turn is over.
    pub(super) async fn run(
        mut self,
        runtime: &Runtime,
        session: &Session,
        text: String,
    ) -> Result<Turned, Left> {
        let losses = runtime.losses();
        let started = match self.interrupts.unless(session.run(RunRequest::text(text))).await {
            Ok(started) => started,
            Err(signal) => {
                session.cancel();
                return Err(Left::Signal(signal));
            }
        };
        let (mut events, cancel, result) = match started {
            Ok(handle) => handle.split(),
            Err(error) => {
                let is_gone = matches!(error.code(), "agent_exited" | "closed");
                return Ok(Turned { outcome: Err(error.into()), denied: Vec::new(), is_gone, leave: None });
            }
        };
        self.follow(&mut events, &cancel).await?;
        let ended = ended(result).await;
        if let Ok(result) = &ended {
            self.presenter.finish(result, &mut self.pieces);
            let cost = result.usage.as_ref().and_then(beside::cost);
            if let Some(cost) = cost.filter(|_| std::io::stderr().is_terminal()) {
                self.pieces.push_back(Piece::Note(self.colour.paint(Style::Dim, &cost).into_owned()));
            }
        }
        self.show_rest().await?;
        let Self { interrupts, screen, presenter, tidings, cancelled, leave, grace, .. } = self;
        let fate = tidings.fate();
        match interrupts.unless(screen.finish()).await {
            Ok(Ok(())) => {}
            // A terminal that is gone takes no output.
            Ok(Err(_)) if leave == Some(Signal::HangUp) => {}
            Ok(Err(error)) => return Err(Left::Output(Failure::output(&error))),
            Err(signal) => return Err(Left::Signal(signal)),
        }
        let denied = presenter.denied().to_vec();
        let unreadable = presenter.unreadable();
        let limits = Limits { turn: None, grace, fate };
        let (outcome, is_gone) = match ended {
            Err(failure) => (Err(failure), true),
            Ok(result) => {
                let code = result.error.as_ref().map(|error| error.code.as_str());
                let is_given_up = matches!((cancelled, code), (Some(_), None) | (_, Some("silence")));
                // One that was given up and did not stop has been ended.
                let is_gone = code == Some("agent_exited") || (is_given_up && result.stop_reason.is_none());
                let outcome = match cancelled {
                    Some(why) if code.is_none() => {
                        Err(Failure::cancelled(why).unless_stopped(&result, limits))
                    }
                    _ => Failure::of_run(&result, limits),
                };
                (outcome, is_gone)
            }
        };
        let losses = runtime.losses().since(losses);
        let outcome = outcome.and_then(|()| Failure::incomplete(losses, unreadable));
        Ok(Turned { outcome, denied, is_gone, leave })
    }

    /// Shows what comes, and asks what is asked, until the turn is over.
    async fn follow(&mut self, events: &mut Events, cancel: &Canceller) -> Result<(), Left> {
        let mut more = Vec::new();
        loop {
            match self.happens(events).await {
                Happened::Shown | Happened::Question(Step::Moved) => {}
                Happened::Rested => self.questions.ask(),
                Happened::Silence => {
                    self.pieces.extend(self.tidings.now(self.presenter.is_watched(), self.colour));
                }
                Happened::Signal(signal) if self.cancelled.is_some() => return Err(Left::Signal(signal)),
                Happened::Signal(signal) => {
                    cancel.cancel();
                    self.cancelled = Some(Cancelled::Signal(signal));
                    self.interrupts.unless(self.questions.withdraw_all()).await.map_err(Left::Signal)?;
                    match signal {
                        Signal::Terminate | Signal::HangUp => self.leave = Some(signal),
                        Signal::Interrupt => {
                            let words = "cancelling; press Ctrl-C again to leave";
                            let note = self.colour.paint(Style::Dim, words).into_owned();
                            // Before anything that waits for a slow reader.
                            self.pieces.push_front(Piece::Note(note));
                        }
                    }
                }
                Happened::OutputFailed => {
                    self.cancelled.get_or_insert(Cancelled::Output);
                    cancel.cancel();
                }
                Happened::Question(Step::Withdrawn) => {
                    self.interrupts.unless(self.questions.withdraw()).await.map_err(Left::Signal)?;
                }
                Happened::Event(None) => {
                    return self.interrupts.unless(self.questions.withdraw_all()).await.map_err(Left::Signal);
                }
                Happened::Event(Some(event)) => {
                    more.push(event);
                    // As much as is worth showing at once.
                    events.take_all(&mut more);
                    for event in more.drain(..) {
                        self.questions.note(&event);
                        // Text is shown and not kept, so there is nothing that could be too long.
                        let _ = self.presenter.show(&event, &mut self.pieces);
                    }
                }
            }
        }
    }

    /// What happens next. While a question is open nothing is shown; while something waits to be shown nothing more is
    /// read from the agent.
    async fn happens(&mut self, events: &mut Events) -> Happened {
        let is_output_gone = matches!(self.cancelled, Some(Cancelled::Output));
        if is_output_gone {
            self.pieces.clear();
        }
        let is_asking = self.questions.is_asking();
        let next = self.pieces.front().filter(|_| !is_asking);
        let has_next = next.is_some();
        let asks = !is_output_gone && self.pieces.is_empty() && self.questions.is_due();
        let reads = if is_asking { self.pieces.len() < KEPT } else { !has_next && !asks };
        let tells = self.tidings.are_possible();
        let shown = tokio::select! {
            biased;
            signal = self.interrupts.next() => return Happened::Signal(signal),
            () = self.screen.failed(), if !is_output_gone => return Happened::OutputFailed,
            step = self.questions.next() => return Happened::Question(step),
            Ok(()) = self.screen.rest(), if asks => return Happened::Rested,
            room = place(&self.screen, next), if has_next => room,
            event = events.next(), if reads => return Happened::Event(event),
            () = sleep(MOMENT), if reads && !is_asking && tells => return Happened::Silence,
        };
        if let (Ok(room), Some(piece)) = (shown, self.pieces.pop_front()) {
            room.send(piece);
        }
        Happened::Shown
    }

    /// Shows what is left.
    async fn show_rest(&mut self) -> Result<(), Left> {
        for piece in std::mem::take(&mut self.pieces) {
            match self.interrupts.unless(self.screen.room(&piece)).await {
                Ok(Ok(room)) => room.send(piece),
                // Whether stdout fails is told when it is finished.
                Ok(Err(Failed)) => return Ok(()),
                Err(signal) => return Err(Left::Signal(signal)),
            }
        }
        Ok(())
    }
}

fn open_screen() -> Result<Screen, Failure> {
    Screen::open().map_err(|error| Failure::setup("write to stdout", &error))
}

async fn ended(result: oneshot::Receiver<RunResult>) -> Result<RunResult, Failure> {
    result.await.map_err(|_| Failure::session_closed())
}

async fn place<'a>(screen: &'a Screen, piece: Option<&Piece>) -> Result<Room<'a>, Failed> {
    match piece {
        Some(piece) => screen.room(piece).await,
        None => std::future::pending().await,
    }
}
