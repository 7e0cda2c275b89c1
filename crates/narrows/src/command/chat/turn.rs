//! One turn: what the agent says, what it asks, and what the user does meanwhile.

use std::collections::{HashSet, VecDeque};
use std::io::IsTerminal;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use narrows_client::{
    Canceller, EventBody, Events, Payload, Reply, RunRequest, RunResult, Runtime, RuntimeEvent, Session,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::beside;
use super::desk::Asked;
use crate::ask::Asking;
use crate::cli::Output;
use crate::failure::{Cancelled, Failure, Limits};
use crate::interrupt::{Interrupts, Signal};
use crate::present::Presenter;
use crate::screen::{Failed, Piece, Room, Screen};
use crate::terminal::{Colour, Style};

/// How many pieces are kept back while the user answers a question.
const KEPT: usize = 4096;

/// How long a question waits for what was said before it.
const BEHIND: Duration = Duration::from_secs(1);

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
    pub(super) denied: Vec<String>,
    /// The agent is gone.
    pub(super) is_gone: bool,
    /// Somebody wants us to leave, now that it is over.
    pub(super) leave: Option<Signal>,
}

/// What a turn needs.
pub(super) struct Turn<'a> {
    pub(super) interrupts: &'a mut Interrupts,
    pub(super) questions: &'a mut mpsc::Receiver<Asked>,
    screen: Screen,
    presenter: Presenter,
    colour: Colour,
    /// How long a turn that was cancelled may take to end.
    grace: Duration,
    cancelled: Option<Cancelled>,
    leave: Option<Signal>,
    /// What waits for room on the screen.
    pieces: VecDeque<Piece>,
    /// Questions that wait for their turn, and since when.
    held: VecDeque<(Asked, Instant)>,
    /// The questions that stand where what was shown ends.
    due: HashSet<String>,
    asking: Option<(Asked, Asking)>,
}

/// What happened next.
enum Happened {
    Signal(Signal),
    OutputFailed,
    Asked(Asked),
    Answered(Reply),
    Withdrawn,
    Waited,
    Shown,
    Event(Option<RuntimeEvent>),
}

impl<'a> Turn<'a> {
    /// Gets ready.
    pub(super) fn new(
        interrupts: &'a mut Interrupts,
        questions: &'a mut mpsc::Receiver<Asked>,
        grace: Duration,
    ) -> Result<Self, Failure> {
        Ok(Self {
            interrupts,
            questions,
            screen: open_screen()?,
            presenter: Presenter::new(Output::Text, false),
            colour: Colour::of_stderr(),
            grace,
            cancelled: None,
            leave: None,
            pieces: VecDeque::new(),
            held: VecDeque::new(),
            due: HashSet::new(),
            asking: None,
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
        let Self { interrupts, screen, presenter, cancelled, leave, grace, .. } = self;
        match interrupts.unless(screen.finish()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(Left::Output(Failure::output(&error))),
            Err(signal) => return Err(Left::Signal(signal)),
        }
        let denied = presenter.denied();
        let unreadable = presenter.unreadable();
        let limits = Limits { turn: None, grace };
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
        let is_whole = unreadable == 0 && runtime.losses() == losses;
        let outcome =
            outcome.and_then(|()| if is_whole { Ok(()) } else { Failure::incomplete(runtime, unreadable) });
        Ok(Turned { outcome, denied, is_gone, leave })
    }

    /// Shows what comes, and asks what is asked, until the turn is over.
    async fn follow(&mut self, events: &mut Events, cancel: &Canceller) -> Result<(), Left> {
        let mut more = Vec::new();
        loop {
            if self.pieces.is_empty() && self.asking.is_none() && self.is_due() {
                self.ask().await?;
            }
            match self.happens(events).await {
                Happened::Shown | Happened::Waited => {}
                Happened::Signal(signal) if self.cancelled.is_some() => return Err(Left::Signal(signal)),
                Happened::Signal(signal) => {
                    cancel.cancel();
                    self.cancelled = Some(Cancelled::Signal(signal));
                    self.withdraw().await?;
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
                Happened::Asked(asked) => self.held.push_back((asked, Instant::now())),
                Happened::Answered(reply) => {
                    if let Some((asked, _)) = self.asking.take() {
                        // Whoever no longer waits has decided otherwise.
                        let _ = asked.reply.send(reply);
                    }
                }
                Happened::Withdrawn => self.withdraw().await?,
                Happened::Event(None) => return self.withdraw().await,
                Happened::Event(Some(event)) => {
                    more.push(event);
                    // As much as is worth showing at once.
                    events.take_all(&mut more);
                    for event in more.drain(..) {
                        self.note_question(&event);
                        // Text is shown and not kept, so there is nothing that could be too long.
                        let _ = self.presenter.show(&event, &mut self.pieces);
                    }
                }
            }
        }
    }

    /// Remembers that everything before this question has been told.
    fn note_question(&mut self, event: &RuntimeEvent) {
        if let EventBody::Provider { payload: Payload::PermissionRequested(asked), .. } = &event.body
            && self.due.len() < KEPT
        {
            self.due.insert(asked.request_id.clone());
        }
    }

    /// Whether the next question can be asked.
    fn is_due(&mut self) -> bool {
        while self.held.front().is_some_and(|(asked, _)| asked.reply.is_closed() || self.cancelled.is_some())
        {
            self.held.pop_front();
        }
        let Some((asked, since)) = self.held.front() else { return false };
        self.due.contains(&asked.question.id) || since.elapsed() >= BEHIND
    }

    /// Asks the next question, below everything that was shown.
    async fn ask(&mut self) -> Result<(), Left> {
        let fresh = open_screen().map_err(Left::Output)?;
        let shown = std::mem::replace(&mut self.screen, fresh).finish();
        match self.interrupts.unless(shown).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(Left::Output(Failure::output(&error))),
            Err(signal) => return Err(Left::Signal(signal)),
        }
        let Some((asked, _)) = self.held.pop_front() else { return Ok(()) };
        self.due.remove(&asked.question.id);
        let turn = Arc::new(Mutex::new(()));
        match Asking::begin(Arc::clone(&asked.question), self.colour, turn) {
            Ok(asking) => self.asking = Some((asked, asking)),
            // Dropped, which is a refusal.
            Err(error) => tracing::warn!(%error, "a question cannot be asked"),
        }
        Ok(())
    }

    /// Asks no more: what was asked is neither allowed nor refused.
    async fn withdraw(&mut self) -> Result<(), Left> {
        let Some((asked, asking)) = self.asking.take() else { return Ok(()) };
        // Whoever no longer waits has decided otherwise.
        let _ = asked.reply.send(Reply::Cancel);
        self.interrupts.unless(asking.withdraw()).await.map_err(Left::Signal)
    }

    /// What happens next. While a question is open nothing is shown; while something waits to be shown nothing more is
    /// read from the agent.
    async fn happens(&mut self, events: &mut Events) -> Happened {
        let is_output_gone = matches!(self.cancelled, Some(Cancelled::Output));
        if is_output_gone {
            self.pieces.clear();
        }
        let is_asking = self.asking.is_some();
        let next = self.pieces.front().filter(|_| !is_asking);
        let has_next = next.is_some();
        let reads = if is_asking { self.pieces.len() < KEPT } else { !has_next };
        let waits = self.held.front().filter(|_| !is_asking).map(|(_, since)| *since + BEHIND);
        let shown = tokio::select! {
            biased;
            signal = self.interrupts.next() => return Happened::Signal(signal),
            () = self.screen.failed(), if !is_output_gone => return Happened::OutputFailed,
            happened = answer(&mut self.asking), if is_asking => return happened,
            Some(asked) = self.questions.recv() => return Happened::Asked(asked),
            room = place(&self.screen, next), if has_next => room,
            event = events.next(), if reads => return Happened::Event(event),
            () = sleep_until(waits.unwrap_or_else(Instant::now)), if waits.is_some() => return Happened::Waited,
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

/// What becomes of the question that is asked.
async fn answer(asking: &mut Option<(Asked, Asking)>) -> Happened {
    let Some((asked, asking)) = asking else { return std::future::pending().await };
    tokio::select! {
        biased;
        () = asked.reply.closed() => Happened::Withdrawn,
        reply = asking.reply() => Happened::Answered(reply),
    }
}

async fn place<'a>(screen: &'a Screen, piece: Option<&Piece>) -> Result<Room<'a>, Failed> {
    match piece {
        Some(piece) => screen.room(piece).await,
        None => std::future::pending().await,
    }
}
