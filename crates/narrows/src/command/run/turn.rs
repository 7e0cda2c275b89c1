//! The turn itself, while the agent, the user, and the reader of our output all may end it.

use std::collections::VecDeque;
use std::time::Duration;

use narrows_client::{Canceller, Events, RunRequest, RunResult, Runtime, RuntimeEvent, Session};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{Conversation, LATE_OUTPUT, Trouble};
use crate::desk::{Asked, Questions, Step};
use crate::failure::{Cancelled, Failure, Limits};
use crate::interrupt::Signal;
use crate::screen::{Failed, Piece, Room, Screen};

/// How long nothing happens before it is said that something goes on, and how often that is said.
const MOMENT: Duration = Duration::from_secs(2);

/// How many pieces are kept back while a question is open.
const KEPT: usize = 4096;

/// What somebody is told who has pressed Ctrl-C.
const AGAIN: &str = "cancelling; press Ctrl-C again to leave at once";

/// What happened next.
enum Happened {
    /// Somebody wants us to stop.
    Signal(Signal),
    /// Our output cannot be written any more.
    OutputFailed,
    /// Everything before the next question is on the screen.
    Rested,
    /// Something became of the questions.
    Question(Step),
    /// One piece is on its way to the screen.
    Shown,
    /// Something was told.
    Event(Option<RuntimeEvent>),
    /// The turn is over, though not all of it was shown.
    Over(Box<RunResult>),
    /// Nobody has read the rest in time.
    Unread,
    /// Nothing, for a while.
    Silence,
}

/// How far a turn has come.
struct Following<'a> {
    events: Events,
    questions: Questions<'a>,
    cancel: Canceller,
    result: oneshot::Receiver<RunResult>,
    /// How it ended, if that is known before everything was shown, and until when the rest may be read: a turn that
    /// was given up does not wait for a reader that is slow.
    over: Option<(RunResult, Option<Instant>)>,
    /// When something happened last.
    heard: Instant,
    /// Why we have asked the agent to stop.
    cancelled: Option<Cancelled>,
    /// What waits for room on the screen.
    pieces: VecDeque<Piece>,
}

impl Conversation {
    /// Sends the prompt, and shows what comes until the turn is over.
    pub(super) async fn turn(
        &mut self,
        runtime: &Runtime,
        mut session: Session,
        mut request: RunRequest,
        mut questions: mpsc::Receiver<Asked>,
    ) -> Result<(), Trouble> {
        self.summary.session_id = Some(session.id().to_owned());
        let outside = session.events();
        // What is lost before the prompt is no part of the answer.
        let losses = runtime.losses();
        let has_form = request.output_schema.is_some();
        let format = self.presenter.format();
        let limit = request.timeout;
        let left = self.left();
        // Whole milliseconds: the events name it.
        request.timeout =
            limit.map(|_| Duration::from_millis(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)));
        let (started, signal) = self.start(timeout(left, session.run(request))).await?;
        let started = started.map_err(|_| self.not_ready())?;
        let started = started.map_err(Failure::from)?;
        self.summary.run_id = Some(started.run_id().to_owned());
        let (events, cancel, result) = started.split();
        if let Some(answers) = &self.answers {
            answers.listen(cancel.clone()).map_err(|error| Failure::setup("read stdin", &error))?;
        }
        let mut following = Following {
            events,
            questions: Questions::new(&mut questions),
            cancel,
            result,
            over: None,
            heard: Instant::now(),
            cancelled: None,
            pieces: VecDeque::new(),
        };
        if let Some(signal) = signal {
            stop(&mut following, signal);
        }
        self.summary.has_run = true;
        let mut early = Vec::new();
        if let Some(mut outside) = outside {
            outside.take_all(&mut early);
        }
        self.follow(&mut following, early).await?;
        let Following { result, over, cancelled, mut pieces, .. } = following;
        let result = match over {
            Some((result, _)) => result,
            None => result.await.map_err(|_| Failure::session_closed())?,
        };
        let asked = self.answers.as_ref().is_some_and(|answers| answers.has_cancelled());
        let cancelled = cancelled.or(asked.then_some(Cancelled::Program));
        let is_late = result.error.as_ref().is_some_and(|error| error.code == "timeout");
        let grace = if is_late { self.late_grace } else { self.grace };
        let limits = Limits { turn: limit, grace, fate: self.tidings.fate() };
        self.summary.end(&result);
        self.presenter.finish(&result, &mut pieces);
        self.show_rest(pieces).await?;
        let outcome = match cancelled {
            Some(why) if result.error.is_none() => {
                Err(Failure::cancelled(why).unless_stopped(&result, limits))
            }
            _ => Failure::of_run(&result, limits).and_then(|()| {
                Failure::incomplete(runtime.losses().since(losses), self.presenter.unreadable())
            }),
        };
        let formless = has_form && result.structured_output.is_none();
        let outcome =
            outcome.and_then(|()| if formless { Err(Failure::formless(&result, format)) } else { Ok(()) });
        Ok(outcome.and_then(|()| Failure::denied(self.presenter.denied()))?)
    }

    /// Waits until the prompt is sent. What comes while it is on its way cancels the turn as soon as there is one.
    async fn start<T>(&mut self, starting: impl Future<Output = T>) -> Result<(T, Option<Signal>), Trouble> {
        tokio::pin!(starting);
        match self.interrupts.unless(&mut starting).await {
            Ok(started) => Ok((started, None)),
            Err(signal) => match timeout(self.grace, starting).await {
                Ok(started) => Ok((started, Some(signal))),
                Err(_) => Err(Trouble::Ended(Failure::left(signal))),
            },
        }
    }

    /// Shows what comes until the turn is over; what was `early` behind its beginning.
    async fn follow(
        &mut self,
        following: &mut Following<'_>,
        early: Vec<RuntimeEvent>,
    ) -> Result<(), Trouble> {
        let mut early = Some(early);
        let mut more = Vec::new();
        loop {
            match self.happens(following).await {
                Happened::Shown | Happened::Question(Step::Moved) => {}
                Happened::Rested => following.questions.ask(),
                Happened::Question(Step::Withdrawn) => {
                    self.withdraw(following.questions.withdraw()).await?;
                }
                Happened::Silence => {
                    let lost = self.tidings.now(self.presenter.is_watched(), self.colour);
                    let goes_on = || self.presenter.status(following.heard.elapsed().as_secs());
                    following.pieces.extend(lost.or_else(goes_on));
                }
                Happened::Signal(signal) if following.cancelled.is_some() => {
                    return Err(Trouble::Leave(signal));
                }
                Happened::Signal(signal) => {
                    stop(following, signal);
                    if let Some((_, leave_by)) = &mut following.over {
                        leave_by.get_or_insert(Instant::now() + self.grace);
                    }
                    self.withdraw(following.questions.withdraw_all()).await?;
                }
                Happened::OutputFailed => cancel(following, Cancelled::Output),
                Happened::Over(result) => {
                    let is_late = result.error.as_ref().is_some_and(|error| error.code == "timeout");
                    let patience = match following.cancelled {
                        _ if is_late => Some(LATE_OUTPUT),
                        Some(_) => Some(self.grace),
                        None => None,
                    };
                    following.over = Some((*result, patience.map(|patience| Instant::now() + patience)));
                }
                Happened::Unread => {
                    following.pieces.clear();
                    return Ok(());
                }
                Happened::Event(None) => return self.withdraw(following.questions.withdraw_all()).await,
                Happened::Event(Some(event)) => {
                    following.heard = Instant::now();
                    more.push(event);
                    // As much as is worth showing at once.
                    following.events.take_all(&mut more);
                    for event in more.drain(..) {
                        following.questions.note(&event);
                        if let Some(answers) = &self.answers {
                            answers.note(&event);
                        }
                        let shown = self.presenter.show(&event, &mut following.pieces);
                        if shown.is_err() && following.cancelled.is_none() {
                            cancel(following, Cancelled::TooLong);
                        }
                        for earlier in early.take().into_iter().flatten() {
                            let earlier = of_run(earlier, &event);
                            self.presenter.show_session(&earlier, &mut following.pieces);
                        }
                    }
                }
            }
        }
    }

    /// Takes questions back, unless somebody wants us to leave at once.
    async fn withdraw(&mut self, withdrawing: impl Future<Output = ()>) -> Result<(), Trouble> {
        self.interrupts.unless(withdrawing).await.map_err(Trouble::Leave)
    }

    /// What happens next. While a question is open nothing is shown; while something waits to be shown nothing more is
    /// read from the agent.
    async fn happens(&mut self, following: &mut Following<'_>) -> Happened {
        let is_output_gone = matches!(following.cancelled, Some(Cancelled::Output));
        if is_output_gone {
            following.pieces.clear();
        }
        let is_asking = following.questions.is_asking();
        let asks = !is_output_gone && following.pieces.is_empty() && following.questions.is_due();
        let waits = following.pieces.front().filter(|_| !is_asking);
        let reads = if is_asking { following.pieces.len() < KEPT } else { waits.is_none() && !asks };
        let is_over = following.over.is_some();
        let leave_by = following.over.as_ref().and_then(|(_, leave_by)| *leave_by);
        let shown = tokio::select! {
            biased;
            signal = self.interrupts.next() => return Happened::Signal(signal),
            () = self.screen.failed(), if !is_output_gone => return Happened::OutputFailed,
            step = following.questions.next() => return Happened::Question(step),
            Ok(()) = self.screen.rest(), if asks => return Happened::Rested,
            room = place(&self.screen, waits), if waits.is_some() => room,
            // Whoever has given up a turn does not wait for somebody else to read all of it.
            Ok(result) = &mut following.result, if !is_over && waits.is_some() => {
                return Happened::Over(Box::new(result));
            }
            () = sleep_until(leave_by.unwrap_or_else(Instant::now)), if leave_by.is_some() => return Happened::Unread,
            event = following.events.next(), if reads => return Happened::Event(event),
            () = sleep(MOMENT), if reads && !is_asking => return Happened::Silence,
        };
        if let (Ok(room), Some(piece)) = (shown, following.pieces.pop_front()) {
            room.send(piece);
        }
        Happened::Shown
    }

    /// Shows what is left.
    async fn show_rest(&mut self, pieces: VecDeque<Piece>) -> Result<(), Trouble> {
        for piece in pieces {
            match self.interrupts.unless(self.screen.room(&piece)).await {
                Ok(Ok(room)) => room.send(piece),
                // Whether stdout fails is told when it is finished.
                Ok(Err(Failed)) => return Ok(()),
                Err(signal) => return Err(Trouble::Leave(signal)),
            }
        }
        Ok(())
    }
}

async fn place<'a>(screen: &'a Screen, piece: Option<&Piece>) -> Result<Room<'a>, Failed> {
    match piece {
        Some(piece) => screen.room(piece).await,
        None => std::future::pending().await,
    }
}

/// The event of the session as it is shown behind the beginning of the run: with the run's id, and no time before it.
fn of_run(event: RuntimeEvent, started: &RuntimeEvent) -> RuntimeEvent {
    RuntimeEvent { run_id: started.run_id.clone(), at_ms: event.at_ms.max(started.at_ms), ..event }
}

/// Somebody wants the turn to end.
fn stop(following: &mut Following<'_>, signal: Signal) {
    if signal == Signal::Interrupt {
        // Before anything that waits for a slow reader.
        following.pieces.push_front(Piece::Note(AGAIN.to_owned()));
    }
    cancel(following, Cancelled::Signal(signal));
}

fn cancel(following: &mut Following<'_>, why: Cancelled) {
    following.cancelled.get_or_insert(why);
    following.cancel.cancel();
}
