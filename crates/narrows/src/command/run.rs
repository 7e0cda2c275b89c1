//! `narrows run`: runs one turn with an agent.

mod answers;
mod request;
mod summary;
mod turn;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use narrows_base::text::one_line;
use narrows_client::{PermissionHandler, Runtime, Session};
use narrows_link::Link;
use narrows_process::Ladder;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::agent_source::{self, SelectedAgent, SessionRequest, SessionStart};
use crate::cli::{InputFormat, Output, Run};
use crate::failure::{ExitStatus, Failure, stray_lines_notice};
use crate::interrupt::{Interrupts, Signal};
use crate::output_thread::{OutputPiece, OutputThread};
use crate::permission_prompt::{self, ApprovalSource};
use crate::permission_queue::{PermissionQueue, QueuedRequest};
use crate::reconnect_notice::ReconnectNotice;
use crate::render::Renderer;
use crate::terminal::Color;
use answers::StdinAnswers;
use summary::Summary;

/// The steps to stop an agent after a timeout. Its turn was already cancelled, so the waits are short.
const LATE_STOP_LADDER: Ladder =
    Ladder { eof_grace: Duration::from_millis(300), term_grace: Duration::from_millis(500) };

/// The time for an agent to exit if it did not answer `initialize` before `--timeout`.
const LATE_START_TIMEOUT: Duration = Duration::from_secs(3);

const LATE_OUTPUT_TIMEOUT: Duration = Duration::from_millis(500);

const MAX_NOTICE_CHARS: usize = 1000;

pub(super) fn execute(args: &Run) -> Result<ExitCode, Failure> {
    let request = request::read(args)?;
    let mut chosen = agent_source::select(&args.agent, args.output)?;
    let answers = (args.input == Some(InputFormat::Events)).then(|| Arc::new(StdinAnswers::default()));
    let (desk, questions) = PermissionQueue::open(ApprovalSource::Unproven);
    let asks: Option<Arc<dyn PermissionHandler>> = match &answers {
        Some(answers) => Some(Arc::clone(answers) as _),
        None => permission_prompt::is_possible(args.output).then(|| Arc::new(desk) as _),
    };
    let mut wanted = agent_source::session_request(&args.session, &mut chosen, asks)?;
    let format = args.output;
    // The titles of tool calls are shown on a terminal, and are only in the raw updates.
    wanted.config.raw = args.raw || (format == Output::Text && std::io::stderr().is_terminal());
    let settings = RunSettings { link: None, chosen, wanted, request, format, answers, questions };
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
    let outcome = outcome.map_err(|failure| if is_reported { failure.into_reported() } else { failure });
    outcome.map(|()| ExitStatus::Success.exit_code())
}

/// Runs one turn with a running agent at the other end of `link`, printed as text.
pub(super) async fn run_over_link(
    link: Link,
    chosen: SelectedAgent,
    mut wanted: SessionRequest,
    request: narrows_client::RunRequest,
    questions: mpsc::Receiver<QueuedRequest>,
) -> Result<(), Failure> {
    wanted.config.raw = std::io::stderr().is_terminal();
    let format = Output::Text;
    run(RunSettings { link: Some(link), chosen, wanted, request, format, answers: None, questions }).await.0
}

struct RunSettings {
    link: Option<Link>,
    chosen: SelectedAgent,
    wanted: SessionRequest,
    request: narrows_client::RunRequest,
    format: Output,
    answers: Option<Arc<StdinAnswers>>,
    questions: mpsc::Receiver<QueuedRequest>,
}

/// Everything that a run needs besides the agent.
struct Conversation {
    interrupts: Interrupts,
    output_thread: OutputThread,
    renderer: Renderer,
    summary: Summary,
    answers: Option<Arc<StdinAnswers>>,
    reconnect_notice: ReconnectNotice,
    color: Color,
    grace: Duration,
    /// Time for a cancelled turn to end after `--timeout` has passed.
    late_grace: Duration,
    /// The time at which `--timeout` passes, and the value of `--timeout`.
    deadline: Option<(Instant, Duration)>,
}

enum RunFailure {
    Ended(Failure),
    /// A second signal asks for an immediate exit.
    Forced(Signal),
}

impl From<Failure> for RunFailure {
    fn from(failure: Failure) -> Self {
        Self::Ended(failure)
    }
}

async fn run(settings: RunSettings) -> (Result<(), Failure>, Summary) {
    let prepared = Interrupts::listen().and_then(|interrupts| Ok((interrupts, OutputThread::open()?)));
    let (interrupts, output_thread) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return (Err(Failure::setup("set up signals and output", &error)), Summary::default()),
    };
    let renderer = Renderer::new(settings.format, settings.request.output_schema.is_some());
    let answers = settings.answers.clone();
    let deadlines = settings.chosen.agent.deadlines;
    let mut conversation = Conversation {
        interrupts,
        output_thread,
        renderer,
        summary: Summary::default(),
        answers,
        reconnect_notice: ReconnectNotice::default(),
        color: Color::for_stderr(),
        grace: deadlines.cancel,
        late_grace: deadlines.cancel_late,
        deadline: settings
            .request
            .timeout
            .and_then(|limit| Some((Instant::now().checked_add(limit)?, limit))),
    };
    let outcome = conversation.run(settings).await;
    let Conversation { mut interrupts, output_thread, mut renderer, mut summary, grace, .. } = conversation;
    summary.warnings.splice(..0, renderer.take_warnings());
    summary.text = renderer.into_text();
    let (outcome, left) = match outcome {
        Ok(()) => (Ok(()), false),
        Err(RunFailure::Ended(failure)) => (Err(failure), false),
        Err(RunFailure::Forced(signal)) => (Err(Failure::forced_exit(signal)), true),
    };
    if left {
        return (outcome, summary);
    }
    // A cancelled turn does not wait for its output to be read.
    let given_up = [ExitStatus::Interrupted, ExitStatus::Terminated, ExitStatus::HungUp, ExitStatus::Timeout];
    let cancelled = outcome.as_ref().is_err_and(|failure| given_up.contains(&failure.code()));
    let hung_up = outcome.as_ref().is_err_and(|failure| failure.code() == ExitStatus::HungUp);
    let patience = match &outcome {
        Err(failure) if failure.code() == ExitStatus::Timeout => LATE_OUTPUT_TIMEOUT,
        _ if cancelled => grace,
        _ => Duration::MAX,
    };
    let finished = async { timeout(patience, output_thread.finish()).await.unwrap_or(Ok(())) };
    let outcome = match interrupts.unless_signal(finished).await {
        // After SIGHUP the terminal is closed, so a write error is expected.
        Ok(Err(_)) if hung_up => outcome,
        // A write error replaces the outcome, which follows from the error or will never be read.
        Ok(Err(error)) => Err(Failure::output_failed(&error)),
        Ok(Ok(())) => outcome,
        Err(signal) => Err(Failure::forced_exit(signal)),
    };
    (outcome, summary)
}

impl Conversation {
    async fn run(&mut self, settings: RunSettings) -> Result<(), RunFailure> {
        let RunSettings { link, mut chosen, wanted, request, questions, .. } = settings;
        if chosen.demo {
            self.before_turn(agent_source::print_demo_notice(), Duration::ZERO).await?;
        }
        // The client itself must time out first, because its error includes the agent's stderr.
        let initialize = &mut chosen.agent.deadlines.initialize;
        *initialize = self.remaining().min(*initialize);
        let started = async {
            match link {
                Some(link) => Ok(Runtime::connect(chosen.agent.clone(), link, wanted.offer).await?),
                None => chosen.start(wanted.offer).await,
            }
        };
        let started = self.before_turn(started, LATE_START_TIMEOUT).await?;
        let runtime = started.map_err(|failure| {
            let is_late = failure.code() == ExitStatus::Timeout && self.remaining().is_zero();
            if is_late { self.startup_timeout().with_stderr(failure.stderr()) } else { failure }
        })?;
        self.reconnect_notice = chosen.reconnect_notice();
        self.summary.introduce(runtime.description());
        // The notice is for the user who starts the agent, and the agent's stderr is not shown.
        if let Some(notice) = runtime.description().raw["_meta"]["aip44"]["notice"].as_str() {
            self.print_note(format!("notice of the agent: {}", one_line(notice, MAX_NOTICE_CHARS))).await?;
        }
        let outcome = match self.before_turn(open(&runtime, &wanted), Duration::ZERO).await {
            Ok(Ok(session)) => self.run_turn(&runtime, session, request, questions).await,
            Ok(Err(failure)) => Err(failure.into()),
            Err(trouble) => Err(trouble),
        };
        if matches!(outcome, Err(RunFailure::Forced(_))) {
            return outcome;
        }
        // A signal during cleanup asks for an immediate exit. The guardian ends the agent then.
        let closing = async {
            let is_late =
                matches!(&outcome, Err(RunFailure::Ended(failure)) if failure.code() == ExitStatus::Timeout);
            let seen = runtime.close_with(if is_late { LATE_STOP_LADDER } else { Ladder::default() }).await;
            (seen, chosen.finish().await)
        };
        let (seen, lost) = self.interrupts.unless_signal(closing).await.map_err(RunFailure::Forced)?;
        if outcome.is_ok() && seen.stray_lines > 0 {
            let notice =
                format!("notice of the agent: {}", stray_lines_notice(seen.stray_lines, &seen.strays));
            self.summary.warnings.push(notice.clone());
            self.print_note(notice).await?;
        }
        let has_run = self.summary.has_run;
        outcome.map_err(|trouble| match trouble {
            RunFailure::Ended(failure) if failure.code() == ExitStatus::Timeout && !has_run => {
                RunFailure::Ended(failure.or_connection_failure(lost).with_stderr(&seen.stderr))
            }
            RunFailure::Ended(failure) => RunFailure::Ended(failure.or_connection_failure(lost)),
            leave @ RunFailure::Forced(_) => leave,
        })
    }

    async fn print_note(&mut self, words: String) -> Result<(), RunFailure> {
        let note = OutputPiece::Note(words);
        let shown = async { self.output_thread.reserve(&note).await.map(|room| room.send(note)) };
        match self.interrupts.unless_signal(shown).await {
            // A write error is reported when the output is finished.
            Ok(_) => Ok(()),
            Err(signal) => Err(RunFailure::Forced(signal)),
        }
    }

    /// Runs `work` until `margin` after `--timeout`, or until a signal. Used before the prompt, when there is
    /// no turn to cancel.
    async fn before_turn<T>(
        &mut self,
        work: impl Future<Output = T>,
        margin: Duration,
    ) -> Result<T, RunFailure> {
        let limited = timeout(self.remaining().saturating_add(margin), work);
        match self.interrupts.unless_signal(limited).await {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(_)) => Err(self.startup_timeout().into()),
            Err(signal) => Err(Failure::forced_exit(signal).into()),
        }
    }

    /// Returns the failure of a run whose `--timeout` passed before the prompt was sent.
    fn startup_timeout(&self) -> Failure {
        Failure::startup_timeout(self.deadline.map(|(_, limit)| limit).unwrap_or_default())
    }

    fn remaining(&self) -> Duration {
        self.deadline
            .map_or(Duration::MAX, |(deadline, _)| deadline.saturating_duration_since(Instant::now()))
    }
}

pub(super) async fn open(runtime: &Runtime, wanted: &SessionRequest) -> Result<Session, Failure> {
    let config = wanted.config.clone();
    let opened = match &wanted.start {
        SessionStart::New => runtime.open_session(config).await,
        SessionStart::Resume(id) => runtime.resume_session(id, config).await,
        SessionStart::Fork(id) => runtime.fork_session(id, config).await,
        SessionStart::Continue => {
            let cwd = config.cwd.to_string_lossy().into_owned();
            let mut known = runtime.list_sessions(Some(&cwd)).await?;
            known.retain(|listed| listed.cwd == cwd);
            // A session without a successful turn has no title. Agents without titles are an exception, unless it is
            // the built-in agent.
            let info = runtime.description().info.as_ref();
            let gives_titles = info.is_some_and(|info| info.name == "narrows")
                || known.iter().any(|listed| listed.title.is_some());
            let last = known.into_iter().find(|listed| listed.title.is_some() || !gives_titles);
            let last = last.ok_or_else(|| Failure::no_session_to_continue(&config.cwd))?;
            runtime.resume_session(&last.session_id, config).await
        }
    };
    Ok(opened?)
}
