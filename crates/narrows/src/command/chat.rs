//! `narrows chat`: one conversation with an agent, as many turns as its user likes.

mod beside;
mod connection;
mod editor;
mod input;
mod known;
mod meaning;
mod own;
mod turn;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use narrows_base::sync::lock;
use narrows_client::{Decide, Reply, Runtime, RuntimeEvent};
use narrows_process::Ladder;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::ask::ApprovalSource;
use crate::cli::{Chat, Output};
use crate::config::{self, Flags, Variables};
use crate::desk::{Asked, Desk};
use crate::drive::{self, Chosen, Start, Wanted};
use crate::failure::{Code, Failure};
use crate::interrupt::{Interrupts, Signal};
use crate::terminal::{Colour, Style, line};
use connection::Connection;
use input::{Input, Typed, Words};
use known::Choosing;
use meaning::Meaning;
use turn::{Left, Turn, Turned};

/// The file in our directory in which messages are remembered.
const HISTORY: &str = "chat_history";

/// How soon after the answers to what was open a connection that is lost ends.
const MOMENT: Duration = Duration::from_millis(200);

/// What is said when there is nobody to talk to.
const GONE: &str = "the agent has ended; /restart starts it again, /quit leaves";

/// Talks until its user leaves.
pub(super) fn execute(args: &Chat) -> Result<ExitCode, Failure> {
    let mut chosen = drive::choose(&args.agent, Output::Text)?;
    let (desk, questions) = Desk::open(ApprovalSource::Unproven);
    let asks = std::io::stdin().is_terminal().then(|| Arc::new(desk) as Arc<dyn Decide>);
    let mut wanted = drive::want(&args.session, &mut chosen, asks)?;
    // A person wants to see where they were.
    wanted.config.replay = true;
    // Where somebody watches, tool calls are shown by their titles.
    wanted.config.raw = std::io::stderr().is_terminal();
    let history = history(args.agent.model.config.as_deref());
    super::block_on(talk(chosen, wanted, questions, history))?
}

/// Where messages are remembered.
fn history(config: Option<&std::path::Path>) -> Option<PathBuf> {
    let variables = Variables::of_process();
    let loaded = config::load(config, &variables).ok()?;
    let resolved = config::resolve(&Flags::default(), loaded.file, &variables).ok()?;
    Some(resolved.data_dir?.join(HISTORY))
}

async fn talk(
    chosen: Chosen,
    wanted: Wanted,
    questions: mpsc::Receiver<Asked>,
    history: Option<PathBuf>,
) -> Result<ExitCode, Failure> {
    let interrupts = Interrupts::take().map_err(|error| Failure::setup("get ready", &error))?;
    let words = Words::default();
    let input = Input::open(history, Arc::clone(&words)).map_err(|error| Failure::prompt(&error))?;
    let mut conversation = Conversation {
        interrupts,
        chosen,
        wanted,
        questions,
        connection: None,
        lost: None,
        input,
        words,
        colour: Colour::of_stderr(),
        presses: 0,
        last: Code::Success,
        picked: Picked::default(),
        told_mode: None,
    };
    let leaving = match conversation.begin().await {
        Ok(()) => conversation.converse().await,
        Err(failure) => Leaving::Failed(failure),
    };
    conversation.end(leaving).await
}

/// Why the conversation ends.
enum Leaving {
    /// The user has had enough.
    Quit,
    /// Somebody wants us to stop.
    Signal(Signal),
    /// The same, and not to wait for anything.
    AtOnce(Signal),
    /// It cannot go on.
    Failed(Failure),
}

/// What happened at the prompt.
enum Next {
    Typed(Typed),
    Signal(Signal),
    Asked(Asked),
    Event(RuntimeEvent),
    /// The agent has ended.
    Gone,
}

/// The conversation.
struct Conversation {
    interrupts: Interrupts,
    chosen: Chosen,
    wanted: Wanted,
    questions: mpsc::Receiver<Asked>,
    /// The agent, while it runs.
    connection: Option<Connection>,
    /// The session that was lost with the agent.
    lost: Option<String>,
    input: Input,
    words: Words,
    colour: Colour,
    /// How often Ctrl-C was pressed on an empty line.
    presses: u8,
    /// How the last turn ended.
    last: Code,
    /// The model and the mode that the user has chosen on the way, for sessions that begin here.
    picked: Picked,
    /// The mode that was set and told here, until the agent says so as well.
    told_mode: Option<String>,
}

/// What a user has chosen on the way.
#[derive(Default)]
struct Picked {
    model: Option<String>,
    mode: Option<String>,
}

impl Conversation {
    /// Starts the agent and opens the session.
    async fn begin(&mut self) -> Result<(), Failure> {
        if self.chosen.demo {
            self.interrupts.unless(drive::introduce_demo()).await.map_err(Failure::left)?;
        }
        let runtime = self.start().await?;
        let opened = self.interrupts.unless(Connection::open(runtime, &self.wanted)).await;
        let connection = opened.map_err(Failure::left)??;
        if self.input.is_person() {
            let agent = known::agent(connection.runtime.provider(), connection.runtime.introduced());
            self.say_dim(&format!("{agent}; /help lists the commands, Ctrl-D leaves"));
        }
        let goes_on = matches!(self.wanted.start, Start::Continue | Start::Resume(_));
        if goes_on && self.input.is_person() {
            self.say_dim(&format!("going on with the session {}", connection.described()));
        }
        self.connection = Some(connection);
        self.show_past();
        Ok(())
    }

    async fn start(&mut self) -> Result<Runtime, Failure> {
        let started = self.chosen.start(self.wanted.offer);
        self.interrupts.unless(started).await.map_err(Failure::left)?
    }

    /// Talks until somebody leaves.
    async fn converse(&mut self) -> Leaving {
        loop {
            self.update_words();
            let leaving = match self.next().await {
                Next::Typed(Typed::Line(line)) => {
                    self.presses = 0;
                    self.take(&line).await
                }
                Next::Typed(Typed::Interrupted { was_empty: false }) => {
                    self.presses = 0;
                    None
                }
                Next::Signal(signal @ Signal::Interrupt) if !self.input.is_person() => {
                    Some(Leaving::Signal(signal))
                }
                Next::Typed(Typed::Interrupted { was_empty: true }) | Next::Signal(Signal::Interrupt) => {
                    self.press()
                }
                Next::Typed(Typed::End) => Some(Leaving::Quit),
                Next::Typed(Typed::Failed(error)) => Some(Leaving::Failed(Failure::prompt(&error))),
                Next::Signal(signal) => Some(Leaving::Signal(signal)),
                Next::Asked(asked) => {
                    let wanted = line(&asked.question.title);
                    self.say_dim(&format!("refused: {wanted} (the agent asks while no turn runs)"));
                    // Whoever no longer waits has decided otherwise.
                    let _ = asked.reply.send(Reply::Reject);
                    None
                }
                Next::Event(event) => {
                    let mode = beside::new_mode(&event);
                    let is_told = mode.is_some() && mode == self.told_mode.take();
                    if let Some(words) = beside::between(&event).filter(|_| !is_told) {
                        self.say_dim(&words);
                    }
                    None
                }
                Next::Gone => {
                    let failure = Failure::ended_idle().or_lost(self.chosen.finish().await);
                    self.note_failure(&failure);
                    self.lose().await
                }
            };
            if let Some(leaving) = leaving {
                return leaving;
            }
        }
    }

    /// Ctrl-C on an empty line.
    fn press(&mut self) -> Option<Leaving> {
        self.presses += 1;
        if self.presses > 1 {
            return Some(Leaving::Quit);
        }
        self.say_dim("press Ctrl-C again, or Ctrl-D, to leave");
        None
    }

    /// What happens at the prompt.
    async fn next(&mut self) -> Next {
        let happens = async {
            match &mut self.connection {
                Some(connection) => connection.happens().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            signal = self.interrupts.next() => Next::Signal(signal),
            Some(asked) = self.questions.recv() => Next::Asked(asked),
            event = happens => event.map_or(Next::Gone, Next::Event),
            typed = self.input.next() => Next::Typed(typed),
        }
    }

    /// Does what a line means.
    async fn take(&mut self, line: &str) -> Option<Leaving> {
        let commands = self.connection.as_ref().map(|connection| connection.session.snapshot().commands);
        match meaning::meaning(line, &commands.unwrap_or_default()) {
            Meaning::Nothing => None,
            Meaning::Say(text) => self.say_to_agent(text).await,
            Meaning::Own(own, behind) => self.obey(own, &behind).await,
            Meaning::Unknown(name) => {
                let name = crate::terminal::line(&name);
                self.last = Code::Usage;
                self.say(&format!(
                    "neither the agent nor this program has a command /{name}: /help lists them, //{name} sends it\n"
                ));
                None
            }
        }
    }

    /// One turn.
    async fn say_to_agent(&mut self, text: String) -> Option<Leaving> {
        let Some(connection) = &mut self.connection else {
            self.say(&format!("{GONE}\n"));
            return None;
        };
        let grace = self.chosen.agent.deadlines.cancel;
        let turn = match Turn::new(&mut self.interrupts, &mut self.questions, self.chosen.tidings(), grace) {
            Ok(turn) => turn,
            Err(failure) => return Some(Leaving::Failed(failure)),
        };
        let Turned { outcome, denied, is_gone, leave } =
            match turn.run(&connection.runtime, &connection.session, text).await {
                Ok(turned) => turned,
                Err(Left::Signal(signal)) => return Some(Leaving::AtOnce(signal)),
                Err(Left::Output(failure)) => return Some(Leaving::Failed(failure)),
            };
        let may_be_gone = outcome.as_ref().err().is_some_and(Failure::is_gone);
        let is_gone = is_gone || (may_be_gone && self.has_gone().await);
        self.last = Code::Success;
        // Somebody who sits there has seen what was refused, or has refused it.
        let outcome =
            if self.input.is_person() { outcome } else { outcome.and_then(|()| Failure::denied(&denied)) };
        if let Err(mut failure) = outcome {
            if is_gone {
                failure = failure.or_lost(self.chosen.finish().await);
            }
            match failure.code() {
                Code::OutputClosed => return Some(Leaving::Failed(failure)),
                Code::Terminated | Code::HungUp => {}
                Code::Interrupted if self.input.is_person() => self.say_dim(&failure.message()),
                Code::Interrupted => return Some(Leaving::Signal(Signal::Interrupt)),
                _ => self.note_failure(&failure),
            }
        }
        if let Some(signal) = leave {
            return Some(Leaving::Signal(signal));
        }
        if is_gone { self.lose().await } else { None }
    }

    /// Whether the agent has gone for good, when whoever carries messages has answered that it is lost. A bus may have another.
    async fn has_gone(&mut self) -> bool {
        let Some(connection) = &mut self.connection else { return true };
        let mut told = Vec::new();
        let ending = async {
            while let Some(event) = connection.happens().await {
                told.extend(beside::between(&event));
            }
        };
        let has_gone = timeout(MOMENT, ending).await.is_ok();
        told.iter().for_each(|words| self.say_dim(words));
        has_gone
    }

    /// The agent is gone: what it left is ended.
    async fn lose(&mut self) -> Option<Leaving> {
        let Connection { runtime, session, .. } = self.connection.take()?;
        self.lost = Some(session.id().to_owned());
        drop(session);
        if let Err(signal) = self.interrupts.unless(runtime.close_with(Ladder::default())).await {
            return Some(Leaving::AtOnce(signal));
        }
        if !self.input.is_person() {
            return Some(Leaving::Quit);
        }
        self.say(&format!("{}\n", self.colour.paint(Style::Hint, GONE)));
        None
    }

    /// Tells of a failure, and remembers it for the exit code.
    fn note_failure(&mut self, failure: &Failure) {
        self.last = failure.code();
        self.say(&failure.render(self.colour));
    }

    /// Writes whole lines beside the conversation.
    fn say(&self, lines: &str) {
        self.input.note(lines);
    }

    /// The same, a line that nobody needs to read.
    fn say_dim(&self, words: &str) {
        self.say(&format!("{}\n", self.colour.paint(Style::Dim, words)));
    }

    /// Shows the past of a session that goes on.
    fn show_past(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        let events = std::mem::take(&mut connection.past);
        // A program knows what it said.
        let past = if self.input.is_person() { beside::past(&events) } else { Vec::new() };
        let lines = past.into_iter().chain(events.iter().filter_map(beside::between));
        lines.for_each(|line| self.say_dim(&line));
    }

    /// What Tab can complete from now on.
    fn update_words(&self) {
        let snapshot = self.connection.as_ref().map(|connection| connection.session.snapshot());
        let snapshot = snapshot.unwrap_or_default();
        let mut words: Vec<String> = meaning::completions(&snapshot.commands).collect();
        for category in ["model", "mode"] {
            if let Some(choosing) = Choosing::of(&snapshot, category) {
                words.extend(choosing.ids().map(|id| format!("/{category} {id}")));
            }
        }
        // Only what can be typed, and cannot steer the terminal.
        words.retain(|word| *word == line(word));
        *lock(&self.words) = words;
    }

    /// Ends the agent, unless that would take too long for who wants to leave.
    async fn end(mut self, leaving: Leaving) -> Result<ExitCode, Failure> {
        let outcome = match leaving {
            Leaving::Quit if self.input.is_person() => Ok(Code::Success.exit()),
            Leaving::Quit => Ok(self.last.exit()),
            Leaving::Signal(signal) => Err(Failure::left(signal)),
            // Nothing is left even so: without us the agent is ended by its guardian.
            Leaving::AtOnce(signal) => return Err(Failure::left(signal)),
            Leaving::Failed(failure) => Err(failure),
        };
        // The terminal is given back before anything takes its time.
        drop(self.input);
        if let Some(Connection { runtime, session, .. }) = self.connection.take() {
            drop(session);
            // Whoever presses Ctrl-C while we tidy up does not want to wait for it.
            let closing = async {
                runtime.close_with(Ladder::default()).await;
                self.chosen.finish().await;
            };
            if let Err(signal) = self.interrupts.unless(closing).await {
                return Err(Failure::left(signal));
            }
        }
        outcome
    }
}
