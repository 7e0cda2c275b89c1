//! Chat commands.

use narrows_client::{Rejection, SessionConfig, Snapshot};
use narrows_process::Ladder;

use super::connection::{Connection, Resumed};
use super::describe::{self, ChoiceList};
use super::parse::ChatCommand;
use super::{AGENT_GONE_NOTICE, ChatEnd, ChosenSettings, Conversation};
use crate::failure::{ExitStatus, Failure};
use crate::interrupt::Signal;
use crate::render::rejection;
use crate::terminal::line;

impl ChosenSettings {
    fn apply(&self, config: &mut SessionConfig) {
        config.model = self.model.clone().or(config.model.take());
        config.mode = self.mode.clone().or(config.mode.take());
    }
}

fn mode(snapshot: &Snapshot) -> Option<String> {
    let option = snapshot.option("mode").and_then(|option| option.current.as_str().map(str::to_owned));
    option.or_else(|| snapshot.modes.as_ref().map(|modes| modes.current.clone()))
}

impl Conversation {
    pub(super) async fn run_command(&mut self, own: ChatCommand, behind: &str) -> Option<ChatEnd> {
        self.last = ExitStatus::Success;
        let done = match own {
            ChatCommand::Quit => return Some(ChatEnd::Quit),
            ChatCommand::Help => self.help(),
            ChatCommand::Restart => self.restart().await,
            ChatCommand::Model => self.choose("model", behind).await,
            ChatCommand::Mode => self.choose("mode", behind).await,
            ChatCommand::Sessions => self.sessions().await,
            ChatCommand::New => self.change(None).await,
            ChatCommand::Resume if behind.is_empty() => {
                self.last = ExitStatus::Usage;
                self.print("session id missing: /resume ID; /sessions lists them\n");
                Ok(())
            }
            ChatCommand::Resume => self.change(Some(behind)).await,
            ChatCommand::Status => self.status(),
        };
        match done {
            Ok(()) => None,
            Err(failure) if failure.code() == ExitStatus::Terminated => {
                Some(ChatEnd::Signal(Signal::Terminate))
            }
            Err(failure) if failure.code() == ExitStatus::HungUp => Some(ChatEnd::Signal(Signal::HangUp)),
            Err(failure) => {
                self.report_failure(&failure);
                None
            }
        }
    }

    fn connected(&mut self) -> Option<&mut Connection> {
        if self.connection.is_none() {
            self.last = ExitStatus::Agent;
            self.print(&format!("{AGENT_GONE_NOTICE}\n"));
        }
        self.connection.as_mut()
    }

    fn help(&mut self) -> Result<(), Failure> {
        let snapshot = self.connection.as_ref().map(|connection| connection.session.snapshot());
        self.print(&describe::help(&snapshot.unwrap_or_default()));
        Ok(())
    }

    fn status(&mut self) -> Result<(), Failure> {
        let cwd = self.wanted.config.cwd.display().to_string();
        let Some(Connection { runtime, session, .. }) = self.connected() else { return Ok(()) };
        let text = describe::status(runtime.provider(), runtime.description(), session, &cwd);
        self.print(&text);
        Ok(())
    }

    async fn choose(&mut self, category: &str, wanted: &str) -> Result<(), Failure> {
        let Some(connection) = self.connected() else { return Ok(()) };
        if wanted.is_empty() {
            let text = match ChoiceList::from_snapshot(&connection.session.snapshot(), category) {
                Some(choosing) => choosing.render(),
                None => format!("this agent does not support {category} selection\n"),
            };
            self.print(&text);
            return Ok(());
        }
        let Some(connection) = &self.connection else { return Ok(()) };
        let set = self.interrupts.unless_signal(connection.session.set(category, wanted)).await;
        match set.map_err(Failure::forced_exit)? {
            Ok(()) => {
                let chosen_settings = if category == "model" {
                    &mut self.chosen_settings.model
                } else {
                    &mut self.chosen_settings.mode
                };
                *chosen_settings = Some(wanted.to_owned());
                if category == "mode" {
                    // Many agents also report a mode change in an update, which need not be shown again.
                    self.announced_mode = mode(&connection.session.snapshot());
                }
                self.print_dim(&format!("{category} set to {}", line(wanted)));
            }
            Err(Rejection { reason, .. }) => {
                self.last = ExitStatus::Agent;
                self.print(&format!("{}\n", rejection(category, wanted, &reason)));
            }
        }
        Ok(())
    }

    async fn sessions(&mut self) -> Result<(), Failure> {
        let cwd = self.wanted.config.cwd.to_string_lossy().into_owned();
        let Some(_) = self.connected() else { return Ok(()) };
        let Some(Connection { runtime, session, .. }) = &self.connection else { return Ok(()) };
        let listed = self.interrupts.unless_signal(runtime.list_sessions(Some(&cwd))).await;
        let text = describe::sessions(&listed.map_err(Failure::forced_exit)??, session.id());
        self.print(&text);
        Ok(())
    }

    /// Changes to the session `id`, or to a new session if `id` is `None`.
    async fn change(&mut self, id: Option<&str>) -> Result<(), Failure> {
        let mut config = self.wanted.config.clone();
        if id.is_none() {
            self.chosen_settings.apply(&mut config);
        }
        let Some(_) = self.connected() else { return Ok(()) };
        let Some(connection) = &mut self.connection else { return Ok(()) };
        if id == Some(connection.session.id()) {
            self.print("this session is already active\n");
            return Ok(());
        }
        self.interrupts
            .unless_signal(connection.change(config, id))
            .await
            .map_err(Failure::forced_exit)??;
        let words = match id {
            Some(_) => format!("continuing session {}", connection.description()),
            None => format!("new session: {}", line(connection.session.id())),
        };
        self.print_dim(&words);
        self.show_past();
        Ok(())
    }

    async fn restart(&mut self) -> Result<(), Failure> {
        if let Some(Connection { runtime, session, .. }) = self.connection.take() {
            self.lost = Some(session.id().to_owned());
            drop(session);
            self.interrupts
                .unless_signal(runtime.close_with(Ladder::default()))
                .await
                .map_err(Failure::forced_exit)?;
        }
        let runtime = self.start().await?;
        let lost = self.lost.clone().unwrap_or_default();
        let mut config = self.wanted.config.clone();
        self.chosen_settings.apply(&mut config);
        let reopened = self.interrupts.unless_signal(Connection::reopen(runtime, config, &lost)).await;
        let (connection, resumed) = reopened.map_err(Failure::forced_exit)??;
        self.print_dim(match resumed {
            Resumed::Yes => "the agent was restarted and the session continues",
            Resumed::NewSession => {
                "the agent was restarted but does not know the session; a new session was opened"
            }
        });
        self.connection = Some(connection);
        self.show_past();
        Ok(())
    }
}
