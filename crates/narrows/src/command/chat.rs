//! `narrows chat`: an interactive conversation with an agent.

mod commands;
mod connection;
mod describe;
mod editor;
mod input;
mod notices;
mod parse;
mod turn;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use narrows_base::sync::lock;
use narrows_client::{PermissionHandler, PermissionReply, Runtime, RuntimeEvent};
use narrows_process::Ladder;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::agent_source::{self, SelectedAgent, SessionRequest, SessionStart};
use crate::cli::{Chat, Output};
use crate::config::{self, Flags, Variables};
use crate::failure::{ExitStatus, Failure};
use crate::interrupt::{Interrupts, Signal};
use crate::permission_prompt::ApprovalSource;
use crate::permission_queue::{PermissionQueue, QueuedRequest};
use crate::terminal::{Color, Style, line};
use connection::Connection;
use describe::ChoiceList;
use input::{Input, Typed, Words};
use parse::ParsedLine;
use turn::{ChatTurn, ChatTurnOutcome, TurnAbort};

const HISTORY_FILE: &str = "chat_history";

/// Time after the error "worker lost" in which the connection must end for the agent to count as gone.
const DISCONNECT_DELAY: Duration = Duration::from_millis(200);

const AGENT_GONE_NOTICE: &str = "the agent exited; /restart starts it again, /quit exits";

pub(super) fn execute(args: &Chat) -> Result<ExitCode, Failure> {
    let mut chosen = agent_source::select(&args.agent, Output::Text)?;
    let (desk, questions) = PermissionQueue::open(ApprovalSource::Unproven);
    let asks = std::io::stdin().is_terminal().then(|| Arc::new(desk) as Arc<dyn PermissionHandler>);
    let mut wanted = agent_source::session_request(&args.session, &mut chosen, asks)?;
    // The agent replays the messages of a continued session, so that the user sees them.
    wanted.config.replay = true;
    // The titles of tool calls are only in the raw updates.
    wanted.config.raw = std::io::stderr().is_terminal();
    let history = history(args.agent.model.config.as_deref());
    super::block_on(converse_with(chosen, wanted, questions, history))?
}

fn history(config: Option<&std::path::Path>) -> Option<PathBuf> {
    let variables = Variables::of_process();
    let loaded = config::load(config, &variables).ok()?;
    let resolved = config::resolve(&Flags::default(), loaded.file, &variables).ok()?;
    Some(resolved.data_dir?.join(HISTORY_FILE))
}

async fn converse_with(
    chosen: SelectedAgent,
    wanted: SessionRequest,
    questions: mpsc::Receiver<QueuedRequest>,
    history: Option<PathBuf>,
) -> Result<ExitCode, Failure> {
    let interrupts = Interrupts::listen().map_err(|error| Failure::setup("listen for signals", &error))?;
    let words = Words::default();
    let input =
        Input::open(history, Arc::clone(&words)).map_err(|error| Failure::prompt_unreadable(&error))?;
    let mut conversation = Conversation {
        interrupts,
        chosen,
        wanted,
        questions,
        connection: None,
        lost: None,
        input,
        words,
        color: Color::for_stderr(),
        interrupt_count: 0,
        last: ExitStatus::Success,
        chosen_settings: ChosenSettings::default(),
        announced_mode: None,
    };
    let end = match conversation.open().await {
        Ok(()) => conversation.converse().await,
        Err(failure) => ChatEnd::Failed(failure),
    };
    conversation.end(end).await
}

enum ChatEnd {
    Quit,
    Signal(Signal),
    /// A second signal asks for an immediate exit.
    Forced(Signal),
    Failed(Failure),
}

enum PromptInput {
    Typed(Typed),
    Signal(Signal),
    Permission(QueuedRequest),
    Event(RuntimeEvent),
    Gone,
}

struct Conversation {
    interrupts: Interrupts,
    chosen: SelectedAgent,
    wanted: SessionRequest,
    questions: mpsc::Receiver<QueuedRequest>,
    connection: Option<Connection>,
    /// The id of the session that was lost when the agent exited.
    lost: Option<String>,
    input: Input,
    words: Words,
    color: Color,
    /// The number of times that Ctrl-C was pressed in a row on an empty line.
    interrupt_count: u8,
    last: ExitStatus,
    /// The model and mode that the user has set, which also apply to new sessions.
    chosen_settings: ChosenSettings,
    /// The mode that the user set last, after the change was confirmed to the user. The first report of this
    /// mode by the agent is not shown.
    announced_mode: Option<String>,
}

#[derive(Default)]
struct ChosenSettings {
    model: Option<String>,
    mode: Option<String>,
}

impl Conversation {
    async fn open(&mut self) -> Result<(), Failure> {
        if self.chosen.demo {
            self.interrupts
                .unless_signal(agent_source::print_demo_notice())
                .await
                .map_err(Failure::forced_exit)?;
        }
        let runtime = self.start().await?;
        let opened = self.interrupts.unless_signal(Connection::open(runtime, &self.wanted)).await;
        let connection = opened.map_err(Failure::forced_exit)??;
        if self.input.is_person() {
            let agent = describe::agent(connection.runtime.provider(), connection.runtime.description());
            self.print_dim(&format!("{agent}; /help lists the commands, Ctrl-D exits"));
        }
        let goes_on = matches!(self.wanted.start, SessionStart::Continue | SessionStart::Resume(_));
        if goes_on && self.input.is_person() {
            self.print_dim(&format!("continuing session {}", connection.description()));
        }
        self.connection = Some(connection);
        self.show_past();
        Ok(())
    }

    async fn start(&mut self) -> Result<Runtime, Failure> {
        let started = self.chosen.start(self.wanted.offer);
        self.interrupts.unless_signal(started).await.map_err(Failure::forced_exit)?
    }

    async fn converse(&mut self) -> ChatEnd {
        loop {
            self.update_words();
            let end = match self.next().await {
                PromptInput::Typed(Typed::Line(line)) => {
                    self.interrupt_count = 0;
                    self.handle_line(&line).await
                }
                PromptInput::Typed(Typed::Interrupted { was_empty: false }) => {
                    self.interrupt_count = 0;
                    None
                }
                PromptInput::Signal(signal @ Signal::Interrupt) if !self.input.is_person() => {
                    Some(ChatEnd::Signal(signal))
                }
                PromptInput::Typed(Typed::Interrupted { was_empty: true })
                | PromptInput::Signal(Signal::Interrupt) => self.on_interrupt(),
                PromptInput::Typed(Typed::End) => Some(ChatEnd::Quit),
                PromptInput::Typed(Typed::Failed(error)) => {
                    Some(ChatEnd::Failed(Failure::prompt_unreadable(&error)))
                }
                PromptInput::Signal(signal) => Some(ChatEnd::Signal(signal)),
                PromptInput::Permission(asked) => {
                    let wanted = line(&asked.question.title);
                    self.print_dim(&format!("denied: {wanted} (requested while no turn was active)"));
                    // A receiver that is gone needs no reply.
                    let _ = asked.reply.send(PermissionReply::Reject);
                    None
                }
                PromptInput::Event(event) => {
                    let mode = notices::new_mode(&event);
                    let is_told = mode.is_some() && mode == self.announced_mode.take();
                    if let Some(words) = notices::notice_line(&event).filter(|_| !is_told) {
                        self.print_dim(&words);
                    }
                    None
                }
                PromptInput::Gone => {
                    let failure =
                        Failure::agent_exited_idle().or_connection_failure(self.chosen.finish().await);
                    self.report_failure(&failure);
                    self.drop_connection().await
                }
            };
            if let Some(end) = end {
                return end;
            }
        }
    }

    fn on_interrupt(&mut self) -> Option<ChatEnd> {
        self.interrupt_count += 1;
        if self.interrupt_count > 1 {
            return Some(ChatEnd::Quit);
        }
        self.print_dim("press Ctrl-C again, or Ctrl-D, to exit");
        None
    }

    async fn next(&mut self) -> PromptInput {
        let next_event = async {
            match &mut self.connection {
                Some(connection) => connection.next_event().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            signal = self.interrupts.next() => PromptInput::Signal(signal),
            Some(asked) = self.questions.recv() => PromptInput::Permission(asked),
            event = next_event => event.map_or(PromptInput::Gone, PromptInput::Event),
            typed = self.input.next() => PromptInput::Typed(typed),
        }
    }

    async fn handle_line(&mut self, line: &str) -> Option<ChatEnd> {
        let commands = self.connection.as_ref().map(|connection| connection.session.snapshot().commands);
        match parse::parse_line(line, &commands.unwrap_or_default()) {
            ParsedLine::Empty => None,
            ParsedLine::Prompt(text) => self.run_turn(text).await,
            ParsedLine::Command(own, behind) => self.run_command(own, &behind).await,
            ParsedLine::Unknown(name) => {
                let name = crate::terminal::line(&name);
                self.last = ExitStatus::Usage;
                self.print(&format!(
                    "unknown command /{name}; /help lists commands, //{name} sends it to the agent as text\n"
                ));
                None
            }
        }
    }

    async fn run_turn(&mut self, text: String) -> Option<ChatEnd> {
        let Some(connection) = &mut self.connection else {
            self.print(&format!("{AGENT_GONE_NOTICE}\n"));
            return None;
        };
        let grace = self.chosen.agent.deadlines.cancel;
        let turn = match ChatTurn::new(
            &mut self.interrupts,
            &mut self.questions,
            self.chosen.reconnect_notice(),
            grace,
        ) {
            Ok(turn) => turn,
            Err(failure) => return Some(ChatEnd::Failed(failure)),
        };
        let ChatTurnOutcome { outcome, denied, is_agent_lost, leave } =
            match turn.run(&connection.runtime, &connection.session, text).await {
                Ok(turned) => turned,
                Err(TurnAbort::Signal(signal)) => return Some(ChatEnd::Forced(signal)),
                Err(TurnAbort::Output(failure)) => return Some(ChatEnd::Failed(failure)),
            };
        let may_be_gone = outcome.as_ref().err().is_some_and(Failure::is_agent_lost);
        let is_agent_lost = is_agent_lost || (may_be_gone && self.agent_has_gone().await);
        self.last = ExitStatus::Success;
        // The user has already seen the denials, or has denied the requests.
        let outcome =
            if self.input.is_person() { outcome } else { outcome.and_then(|()| Failure::denied(&denied)) };
        if let Err(mut failure) = outcome {
            if is_agent_lost {
                failure = failure.or_connection_failure(self.chosen.finish().await);
            }
            match failure.code() {
                ExitStatus::OutputClosed => return Some(ChatEnd::Failed(failure)),
                ExitStatus::Terminated | ExitStatus::HungUp => {}
                ExitStatus::Interrupted if self.input.is_person() => self.print_dim(&failure.message()),
                ExitStatus::Interrupted => return Some(ChatEnd::Signal(Signal::Interrupt)),
                _ => self.report_failure(&failure),
            }
        }
        if let Some(signal) = leave {
            return Some(ChatEnd::Signal(signal));
        }
        if is_agent_lost { self.drop_connection().await } else { None }
    }

    /// Returns `true` if the agent is gone for good after a "worker lost" error. A bus may have another worker.
    async fn agent_has_gone(&mut self) -> bool {
        let Some(connection) = &mut self.connection else { return true };
        let mut told = Vec::new();
        let ending = async {
            while let Some(event) = connection.next_event().await {
                told.extend(notices::notice_line(&event));
            }
        };
        let agent_has_gone = timeout(DISCONNECT_DELAY, ending).await.is_ok();
        told.iter().for_each(|words| self.print_dim(words));
        agent_has_gone
    }

    async fn drop_connection(&mut self) -> Option<ChatEnd> {
        let Connection { runtime, session, .. } = self.connection.take()?;
        self.lost = Some(session.id().to_owned());
        drop(session);
        if let Err(signal) = self.interrupts.unless_signal(runtime.close_with(Ladder::default())).await {
            return Some(ChatEnd::Forced(signal));
        }
        if !self.input.is_person() {
            return Some(ChatEnd::Quit);
        }
        self.print(&format!("{}\n", self.color.paint(Style::Hint, AGENT_GONE_NOTICE)));
        None
    }

    /// Prints a failure and keeps its exit status.
    fn report_failure(&mut self, failure: &Failure) {
        self.last = failure.code();
        self.print(&failure.render(self.color));
    }

    /// Prints whole lines beside the input line.
    fn print(&self, lines: &str) {
        self.input.print_above(lines);
    }

    fn print_dim(&self, words: &str) {
        self.print(&format!("{}\n", self.color.paint(Style::Dim, words)));
    }

    fn show_past(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        let events = std::mem::take(&mut connection.past);
        // Earlier messages are shown only to a user at a terminal. A program that writes the input knows
        // them.
        let past = if self.input.is_person() { notices::past_messages(&events) } else { Vec::new() };
        let lines = past.into_iter().chain(events.iter().filter_map(notices::notice_line));
        lines.for_each(|line| self.print_dim(&line));
    }

    fn update_words(&self) {
        let snapshot = self.connection.as_ref().map(|connection| connection.session.snapshot());
        let snapshot = snapshot.unwrap_or_default();
        let mut words: Vec<String> = parse::completions(&snapshot.commands).collect();
        for category in ["model", "mode"] {
            if let Some(choosing) = ChoiceList::from_snapshot(&snapshot, category) {
                words.extend(choosing.ids().map(|id| format!("/{category} {id}")));
            }
        }
        // Only completions without characters that control the terminal are offered.
        words.retain(|word| *word == line(word));
        *lock(&self.words) = words;
    }

    /// Ends the agent. A signal skips waiting for its exit.
    async fn end(mut self, end: ChatEnd) -> Result<ExitCode, Failure> {
        let outcome = match end {
            ChatEnd::Quit if self.input.is_person() => Ok(ExitStatus::Success.exit_code()),
            ChatEnd::Quit => Ok(self.last.exit_code()),
            ChatEnd::Signal(signal) => Err(Failure::forced_exit(signal)),
            // After this exit, the guardian process ends the agent.
            ChatEnd::Forced(signal) => return Err(Failure::forced_exit(signal)),
            ChatEnd::Failed(failure) => Err(failure),
        };
        // Dropping the input restores the terminal before the slower cleanup starts.
        drop(self.input);
        if let Some(Connection { runtime, session, .. }) = self.connection.take() {
            drop(session);
            // A signal during cleanup asks for an immediate exit.
            let closing = async {
                runtime.close_with(Ladder::default()).await;
                self.chosen.finish().await;
            };
            if let Err(signal) = self.interrupts.unless_signal(closing).await {
                return Err(Failure::forced_exit(signal));
            }
        }
        outcome
    }
}
