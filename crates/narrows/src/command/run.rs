//! `narrows run`: one turn with an agent, from its start to its end.

mod answers;
mod request;
mod summary;
mod turn;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use narrows_base::text::one_line;
use narrows_client::{Decide, Runtime, Session};
use narrows_link::Link;
use narrows_process::Ladder;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::ask::{self, ApprovalSource};
use crate::cli::{InputFormat, Output, Run};
use crate::desk::{Asked, Desk};
use crate::drive::{self, Chosen, Start, Wanted};
use crate::failure::{Code, Failure, strayed};
use crate::interrupt::{Interrupts, Signal};
use crate::present::Presenter;
use crate::screen::{Piece, Screen};
use crate::terminal::Colour;
use crate::tidings::Tidings;
use answers::Answers;
use summary::Summary;

/// How an agent is ended whose turn took too long: it was asked to stop before.
const LATE: Ladder = Ladder { eof_grace: Duration::from_millis(300), term_grace: Duration::from_millis(500) };

/// The time an agent has to end if it did not answer `initialize` before `--timeout` had passed.
const LATE_START: Duration = Duration::from_secs(3);

/// How long a slow reader of stdout may take for what is left of a turn that took too long.
const LATE_OUTPUT: Duration = Duration::from_millis(500);

/// How much is shown of what a gate in front of the agent says of itself.
const NOTICE: usize = 1000;

/// Runs the turn and prints its answer.
pub(super) fn execute(args: &Run) -> Result<ExitCode, Failure> {
    let request = request::read(args)?;
    let mut chosen = drive::choose(&args.agent, args.output)?;
    let answers = (args.input == Some(InputFormat::Events)).then(|| Arc::new(Answers::default()));
    let (desk, questions) = Desk::open(ApprovalSource::Unproven);
    let asks: Option<Arc<dyn Decide>> = match &answers {
        Some(answers) => Some(Arc::clone(answers) as _),
        None => ask::is_possible(args.output).then(|| Arc::new(desk) as _),
    };
    let mut wanted = drive::want(&args.session, &mut chosen, asks)?;
    let format = args.output;
    // The titles of tools stand there, for whoever watches.
    wanted.config.raw = args.raw || (format == Output::Text && std::io::stderr().is_terminal());
    let settings = Settings { link: None, chosen, wanted, request, format, answers, questions };
    let (outcome, summary) = super::block_on(run(settings))?;
    let is_reported = match format {
        Output::Text => false,
        Output::Events => match &outcome {
            Ok(()) => false,
            Err(failure) => summary.print_event(failure)?,
        },
        Output::Json => {
            summary.print(outcome.as_ref().err())?;
            true
        }
    };
    let outcome = outcome.map_err(|failure| if is_reported { failure.reported() } else { failure });
    outcome.map(|()| Code::Success.exit())
}

/// One turn with an agent that runs already, at the other end of `link`, printed as text.
pub(super) async fn over(
    link: Link,
    chosen: Chosen,
    mut wanted: Wanted,
    request: narrows_client::RunRequest,
    questions: mpsc::Receiver<Asked>,
) -> Result<(), Failure> {
    wanted.config.raw = std::io::stderr().is_terminal();
    let format = Output::Text;
    run(Settings { link: Some(link), chosen, wanted, request, format, answers: None, questions }).await.0
}

/// What a turn needs.
struct Settings {
    /// The way to an agent that runs already.
    link: Option<Link>,
    chosen: Chosen,
    wanted: Wanted,
    request: narrows_client::RunRequest,
    format: Output,
    answers: Option<Arc<Answers>>,
    questions: mpsc::Receiver<Asked>,
}

/// Everything a conversation needs beside the agent.
struct Conversation {
    interrupts: Interrupts,
    screen: Screen,
    presenter: Presenter,
    summary: Summary,
    answers: Option<Arc<Answers>>,
    tidings: Tidings,
    colour: Colour,
    /// How long a cancelled turn may take to end.
    grace: Duration,
    /// The same for one that was cancelled because its time was over.
    late_grace: Duration,
    /// When `--timeout` passes, and its value.
    deadline: Option<(Instant, Duration)>,
}

/// How a conversation can go wrong.
enum Trouble {
    /// It has ended, and not well.
    Ended(Failure),
    /// Somebody wants us to leave at once.
    Leave(Signal),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Ended(failure)
    }
}

async fn run(settings: Settings) -> (Result<(), Failure>, Summary) {
    let prepared = Interrupts::take().and_then(|interrupts| Ok((interrupts, Screen::open()?)));
    let (interrupts, screen) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return (Err(Failure::setup("get ready", &error)), Summary::default()),
    };
    let presenter = Presenter::new(settings.format, settings.request.output_schema.is_some());
    let answers = settings.answers.clone();
    let deadlines = settings.chosen.agent.deadlines;
    let mut conversation = Conversation {
        interrupts,
        screen,
        presenter,
        summary: Summary::default(),
        answers,
        tidings: Tidings::default(),
        colour: Colour::of_stderr(),
        grace: deadlines.cancel,
        late_grace: deadlines.cancel_late,
        deadline: settings
            .request
            .timeout
            .and_then(|limit| Some((Instant::now().checked_add(limit)?, limit))),
    };
    let outcome = conversation.run(settings).await;
    let Conversation { mut interrupts, screen, mut presenter, mut summary, grace, .. } = conversation;
    summary.warnings = presenter.take_warnings();
    summary.text = presenter.into_text();
    let (outcome, left) = match outcome {
        Ok(()) => (Ok(()), false),
        Err(Trouble::Ended(failure)) => (Err(failure), false),
        Err(Trouble::Leave(signal)) => (Err(Failure::left(signal)), true),
    };
    if left {
        return (outcome, summary);
    }
    // Who has cancelled the turn does not wait for somebody else to read all of it.
    let given_up = [Code::Interrupted, Code::Terminated, Code::HungUp, Code::Timeout];
    let cancelled = outcome.as_ref().is_err_and(|failure| given_up.contains(&failure.code()));
    let hung_up = outcome.as_ref().is_err_and(|failure| failure.code() == Code::HungUp);
    let patience = match &outcome {
        Err(failure) if failure.code() == Code::Timeout => LATE_OUTPUT,
        _ if cancelled => grace,
        _ => Duration::MAX,
    };
    let finished = async { timeout(patience, screen.finish()).await.unwrap_or(Ok(())) };
    let outcome = match interrupts.unless(finished).await {
        // A terminal that is gone takes no output.
        Ok(Err(_)) if hung_up => outcome,
        // Whatever else happened is a consequence of it, or will never be read.
        Ok(Err(error)) => Err(Failure::output(&error)),
        Ok(Ok(())) => outcome,
        Err(signal) => Err(Failure::left(signal)),
    };
    (outcome, summary)
}

impl Conversation {
    /// Starts the agent, talks to it and ends it.
    async fn run(&mut self, settings: Settings) -> Result<(), Trouble> {
        let Settings { link, mut chosen, wanted, request, questions, .. } = settings;
        if chosen.demo {
            self.before_turn(drive::introduce_demo(), Duration::ZERO).await?;
        }
        // The client's own deadline, not `--timeout`, ends the wait: then the agent's stderr is known.
        let initialize = &mut chosen.agent.deadlines.initialize;
        *initialize = self.left().min(*initialize);
        let started = async {
            match link {
                Some(link) => Ok(Runtime::connect(chosen.agent.clone(), link, wanted.offer).await?),
                None => chosen.start(wanted.offer).await,
            }
        };
        let started = self.before_turn(started, LATE_START).await?;
        let runtime = started.map_err(|failure| {
            let is_late = failure.code() == Code::Timeout && self.left().is_zero();
            if is_late { self.not_ready().with_stderr(failure.stderr()) } else { failure }
        })?;
        self.tidings = chosen.tidings();
        self.summary.introduce(runtime.introduced());
        // What the agent's stderr says is not shown, and this is for whoever starts it.
        if let Some(notice) = runtime.introduced().raw["_meta"]["aip44"]["notice"].as_str() {
            self.mention(format!("about the agent: {}", one_line(notice, NOTICE))).await?;
        }
        let outcome = match self.before_turn(open(&runtime, &wanted), Duration::ZERO).await {
            Ok(Ok(session)) => self.turn(&runtime, session, request, questions).await,
            Ok(Err(failure)) => Err(failure.into()),
            Err(trouble) => Err(trouble),
        };
        if matches!(outcome, Err(Trouble::Leave(_))) {
            return outcome;
        }
        // Whoever presses Ctrl-C while we tidy up does not want to wait for it. Nothing is left even so: without us the
        // agent is ended by its guardian.
        let closing = async {
            let is_late = matches!(&outcome, Err(Trouble::Ended(failure)) if failure.code() == Code::Timeout);
            let seen = runtime.close_with(if is_late { LATE } else { Ladder::default() }).await;
            (seen, chosen.finish().await)
        };
        let (seen, lost) = self.interrupts.unless(closing).await.map_err(Trouble::Leave)?;
        if outcome.is_ok() && seen.stray_lines > 0 {
            self.mention(format!("about the agent: {}", strayed(seen.stray_lines, &seen.strays))).await?;
        }
        let has_run = self.summary.has_run;
        outcome.map_err(|trouble| match trouble {
            Trouble::Ended(failure) if failure.code() == Code::Timeout && !has_run => {
                Trouble::Ended(failure.or_lost(lost).with_stderr(&seen.stderr))
            }
            Trouble::Ended(failure) => Trouble::Ended(failure.or_lost(lost)),
            leave @ Trouble::Leave(_) => leave,
        })
    }

    /// Says something beside the answer.
    async fn mention(&mut self, words: String) -> Result<(), Trouble> {
        let note = Piece::Note(words);
        let shown = async { self.screen.room(&note).await.map(|room| room.send(note)) };
        match self.interrupts.unless(shown).await {
            // Whether stdout fails is told when it is finished.
            Ok(_) => Ok(()),
            Err(signal) => Err(Trouble::Leave(signal)),
        }
    }

    /// Awaits `work`, at most until `margin` after `--timeout` has passed, unless a signal asks the command to stop. There
    /// is no turn yet that could be cancelled.
    async fn before_turn<T>(
        &mut self,
        work: impl Future<Output = T>,
        margin: Duration,
    ) -> Result<T, Trouble> {
        let limited = timeout(self.left().saturating_add(margin), work);
        match self.interrupts.unless(limited).await {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(_)) => Err(self.not_ready().into()),
            Err(signal) => Err(Failure::left(signal).into()),
        }
    }

    /// The failure of a run whose `--timeout` has passed before its prompt was sent.
    fn not_ready(&self) -> Failure {
        Failure::not_ready(self.deadline.map(|(_, limit)| limit).unwrap_or_default())
    }

    /// Returns what is left of `--timeout`.
    fn left(&self) -> Duration {
        self.deadline
            .map_or(Duration::MAX, |(deadline, _)| deadline.saturating_duration_since(Instant::now()))
    }
}

/// Opens the session that is wanted.
pub(super) async fn open(runtime: &Runtime, wanted: &Wanted) -> Result<Session, Failure> {
    let config = wanted.config.clone();
    let opened = match &wanted.start {
        Start::New => runtime.open_session(config).await,
        Start::Resume(id) => runtime.resume_session(id, config).await,
        Start::Fork(id) => runtime.fork_session(id, config).await,
        Start::Continue => {
            let cwd = config.cwd.to_string_lossy().into_owned();
            let mut known = runtime.list_sessions(Some(&cwd)).await?;
            known.retain(|listed| listed.cwd == cwd);
            // A session in which no turn succeeded has no title. An agent that gives no titles at all says nothing by that, but
            // the built-in agent does.
            let info = runtime.introduced().info.as_ref();
            let gives_titles = info.is_some_and(|info| info.name == "narrows")
                || known.iter().any(|listed| listed.title.is_some());
            let last = known.into_iter().find(|listed| listed.title.is_some() || !gives_titles);
            let last = last.ok_or_else(|| Failure::nothing_to_continue(&config.cwd))?;
            runtime.resume_session(&last.session_id, config).await
        }
    };
    Ok(opened?)
}
