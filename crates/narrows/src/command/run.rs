//! `narrows run`: one turn with an agent, from its start to its end.

mod builtin;
mod settings;
mod summary;
mod turn;

use std::process::ExitCode;
use std::time::Duration;

use narrows_acp::Version;
use tokio::time::timeout;

use crate::cli::{Output, Run};
use crate::drive::{Agent, DriveError, Opening};
use crate::failure::{Code, Failure, strayed};
use crate::interrupt::{Interrupts, Signal};
use crate::present::Presenter;
use crate::screen::{Piece, Screen};
use settings::Settings;
use summary::Summary;

/// Runs the turn and prints its answer.
pub(super) fn execute(args: Run) -> Result<ExitCode, Failure> {
    let format = args.output;
    let settings = Settings::from_args(args)?;
    let (outcome, summary) = super::block_on(run(&settings, format))?;
    if format == Output::Json {
        summary.print(outcome.as_ref().err())?;
    }
    outcome.map(|()| Code::Success.exit())
}

/// Everything a conversation needs beside the agent.
struct Session<'a> {
    settings: &'a Settings,
    interrupts: Interrupts,
    screen: Screen,
    presenter: Presenter,
    summary: Summary,
    /// We have asked the agent to stop.
    cancelled: bool,
}

/// How a conversation can go wrong.
enum Trouble {
    /// The agent could not be driven.
    Drive(DriveError),
    /// The turn has ended, and not well.
    Ended(Failure),
    /// Somebody wants us to leave at once.
    Leave(Signal),
}

impl From<DriveError> for Trouble {
    fn from(error: DriveError) -> Self {
        Self::Drive(error)
    }
}

async fn run(settings: &Settings, format: Output) -> (Result<(), Failure>, Summary) {
    let prepared = Interrupts::take().and_then(|interrupts| Ok((interrupts, Screen::open()?)));
    let (interrupts, screen) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return (Err(Failure::setup("get ready", &error)), Summary::default()),
    };
    let presenter = Presenter::new(format);
    let summary = Summary::default();
    let mut session = Session { settings, interrupts, screen, presenter, summary, cancelled: false };
    let outcome = session.run().await;
    let Session { mut interrupts, screen, presenter, mut summary, cancelled, .. } = session;
    summary.text = presenter.into_text();
    let left = matches!(outcome, Err(Trouble::Leave(_)));
    let outcome = outcome.map_err(|trouble| match trouble {
        Trouble::Drive(error) => error.into(),
        Trouble::Ended(failure) => failure,
        Trouble::Leave(signal) => Failure::left(signal),
    });
    if left {
        return (outcome, summary);
    }
    // Who has cancelled the turn does not wait for somebody else to read all of it.
    let patience = if cancelled { settings.cancel_grace } else { Duration::MAX };
    let finished = async { timeout(patience, screen.finish()).await.unwrap_or(Ok(())) };
    let outcome = match interrupts.unless(finished).await {
        // Whatever else happened is a consequence of it, or will never be read.
        Ok(Err(error)) => Err(Failure::output(&error)),
        Ok(Ok(())) => outcome,
        Err(signal) => Err(Failure::left(signal)),
    };
    (outcome, summary)
}

impl Session<'_> {
    /// Starts the agent, talks to it and ends it, and all that again if it wants a lower version.
    async fn run(&mut self) -> Result<(), Trouble> {
        let mut version = self.settings.version;
        if self.settings.demo {
            self.interruptible(builtin::introduce_demo()).await?;
        }
        loop {
            let mut agent = self.interruptible(Agent::start(&self.settings.launch)).await??;
            let mut outcome = self.converse(&mut agent, version).await;
            if matches!(outcome, Err(Trouble::Leave(_))) {
                return outcome.map(drop);
            }
            let error = match &mut outcome {
                Err(Trouble::Drive(error)) => Some(error),
                _ => None,
            };
            // Whoever presses Ctrl-C while we tidy up does not want to wait for it. Nothing is left even so: without
            // us the agent is ended by its guardian.
            let stray_lines = self.interrupts.unless(agent.stop(error)).await.map_err(Trouble::Leave)?;
            match outcome? {
                None => return self.mention(stray_lines).await,
                Some(lower) => {
                    tracing::info!(%version, %lower, "the agent wants a lower version");
                    version = lower;
                }
            }
        }
    }

    /// Says at the end of a turn that went well what was odd about it.
    async fn mention(&mut self, stray_lines: u64) -> Result<(), Trouble> {
        if stray_lines == 0 {
            return Ok(());
        }
        let note = Piece::Note(format!("about the agent: {}", strayed(stray_lines)));
        let shown = async { self.screen.room(&note).await.map(|room| room.send(note)) };
        match self.interrupts.unless(shown).await {
            // Whether stdout fails is told when it is finished.
            Ok(_) => Ok(()),
            Err(signal) => Err(Trouble::Leave(signal)),
        }
    }

    /// The conversation with one process, or the version with which to try another.
    async fn converse(&mut self, agent: &mut Agent, offered: Version) -> Result<Option<Version>, Trouble> {
        let settings = self.settings;
        let opening = self.interruptible(agent.initialize(offered, settings.initialize_limit)).await??;
        let known = match opening {
            Opening::Agreed(known) => known,
            Opening::Again(lower) => return Ok(Some(lower)),
        };
        self.summary.protocol = Some(known.version.number());
        self.summary.agent.clone_from(&known.info);
        let opened = agent.new_session(&settings.cwd, &known.logins, settings.session_limit);
        let id = self.interruptible(opened).await??;
        let turn = self.interruptible(agent.prompt(&known, &id, &settings.prompt)).await??;
        self.summary.session_id = Some(id);
        self.follow(turn).await.map(|()| None)
    }

    /// What comes of `work`, unless somebody wants us to stop. Before the turn there is nothing to cancel.
    async fn interruptible<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Trouble> {
        let outcome = self.interrupts.unless(work).await;
        outcome.map_err(|signal| Trouble::Ended(Failure::left(signal)))
    }
}
