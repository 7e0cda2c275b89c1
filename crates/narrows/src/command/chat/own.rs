//! Our own commands.

use narrows_client::{Rejection, SessionConfig, Snapshot};
use narrows_process::Ladder;

use super::connection::{Connection, Resumed};
use super::known::{self, Choosing};
use super::meaning::Own;
use super::{Conversation, GONE, Leaving, Picked};
use crate::failure::{Code, Failure};
use crate::interrupt::Signal;
use crate::present::rejection;
use crate::terminal::line;

impl Picked {
    /// What a session is opened with that is to be as the last one was.
    fn apply(&self, config: &mut SessionConfig) {
        config.model = self.model.clone().or(config.model.take());
        config.mode = self.mode.clone().or(config.mode.take());
    }
}

/// The mode of a session.
fn mode(snapshot: &Snapshot) -> Option<String> {
    let option = snapshot.option("mode").and_then(|option| option.current.as_str().map(str::to_owned));
    option.or_else(|| snapshot.modes.as_ref().map(|modes| modes.current.clone()))
}

impl Conversation {
    /// Does what the user has asked of this program.
    pub(super) async fn obey(&mut self, own: Own, behind: &str) -> Option<Leaving> {
        self.last = Code::Success;
        let done = match own {
            Own::Quit => return Some(Leaving::Quit),
            Own::Help => self.help(),
            Own::Restart => self.restart().await,
            Own::Model => self.choose("model", behind).await,
            Own::Mode => self.choose("mode", behind).await,
            Own::Sessions => self.sessions().await,
            Own::New => self.change(None).await,
            Own::Resume if behind.is_empty() => {
                self.last = Code::Usage;
                self.say("say which: /resume ID; /sessions lists them\n");
                Ok(())
            }
            Own::Resume => self.change(Some(behind)).await,
            Own::Status => self.status(),
        };
        match done {
            Ok(()) => None,
            Err(failure) if failure.code() == Code::Terminated => Some(Leaving::Signal(Signal::Terminate)),
            Err(failure) if failure.code() == Code::HungUp => Some(Leaving::Signal(Signal::HangUp)),
            Err(failure) => {
                self.note_failure(&failure);
                None
            }
        }
    }

    /// The agent that runs, or a word that there is none.
    fn connected(&mut self) -> Option<&mut Connection> {
        if self.connection.is_none() {
            self.last = Code::Agent;
            self.say(&format!("{GONE}\n"));
        }
        self.connection.as_mut()
    }

    fn help(&mut self) -> Result<(), Failure> {
        let snapshot = self.connection.as_ref().map(|connection| connection.session.snapshot());
        self.say(&known::help(&snapshot.unwrap_or_default()));
        Ok(())
    }

    fn status(&mut self) -> Result<(), Failure> {
        let cwd = self.wanted.config.cwd.display().to_string();
        let Some(Connection { runtime, session, .. }) = self.connected() else { return Ok(()) };
        let text = known::status(runtime.provider(), runtime.introduced(), session, &cwd);
        self.say(&text);
        Ok(())
    }

    /// Lists the models or modes, or sets one.
    async fn choose(&mut self, category: &str, wanted: &str) -> Result<(), Failure> {
        let Some(connection) = self.connected() else { return Ok(()) };
        if wanted.is_empty() {
            let text = match Choosing::of(&connection.session.snapshot(), category) {
                Some(choosing) => choosing.render(),
                None => format!("the agent lets nobody choose a {category}\n"),
            };
            self.say(&text);
            return Ok(());
        }
        let Some(connection) = &self.connection else { return Ok(()) };
        let set = self.interrupts.unless(connection.session.set(category, wanted)).await;
        match set.map_err(Failure::left)? {
            Ok(()) => {
                let picked = if category == "model" { &mut self.picked.model } else { &mut self.picked.mode };
                *picked = Some(wanted.to_owned());
                if category == "mode" {
                    // Many agents also send an update about it.
                    self.told_mode = mode(&connection.session.snapshot());
                }
                self.say_dim(&format!("the {category} is now {}", line(wanted)));
            }
            Err(Rejection { reason, .. }) => {
                self.last = Code::Agent;
                self.say(&format!("{}\n", rejection(category, wanted, &reason)));
            }
        }
        Ok(())
    }

    async fn sessions(&mut self) -> Result<(), Failure> {
        let cwd = self.wanted.config.cwd.to_string_lossy().into_owned();
        let Some(_) = self.connected() else { return Ok(()) };
        let Some(Connection { runtime, session, .. }) = &self.connection else { return Ok(()) };
        let listed = self.interrupts.unless(runtime.list_sessions(Some(&cwd))).await;
        let text = known::sessions(&listed.map_err(Failure::left)??, session.id());
        self.say(&text);
        Ok(())
    }

    /// Changes to a new session, or to the one with this id.
    async fn change(&mut self, id: Option<&str>) -> Result<(), Failure> {
        let mut config = self.wanted.config.clone();
        if id.is_none() {
            self.picked.apply(&mut config);
        }
        let Some(_) = self.connected() else { return Ok(()) };
        let Some(connection) = &mut self.connection else { return Ok(()) };
        if id == Some(connection.session.id()) {
            self.say("that is this session\n");
            return Ok(());
        }
        self.interrupts.unless(connection.change(config, id)).await.map_err(Failure::left)??;
        let words = match id {
            Some(_) => format!("going on with the session {}", connection.described()),
            None => format!("a new session has begun: {}", line(connection.session.id())),
        };
        self.say_dim(&words);
        self.show_past();
        Ok(())
    }

    /// Starts the agent again.
    async fn restart(&mut self) -> Result<(), Failure> {
        if let Some(Connection { runtime, session, .. }) = self.connection.take() {
            self.lost = Some(session.id().to_owned());
            drop(session);
            self.interrupts.unless(runtime.close_with(Ladder::default())).await.map_err(Failure::left)?;
        }
        let runtime = self.start().await?;
        let lost = self.lost.clone().unwrap_or_default();
        let mut config = self.wanted.config.clone();
        self.picked.apply(&mut config);
        let reopened = self.interrupts.unless(Connection::reopen(runtime, config, &lost)).await;
        let (connection, resumed) = reopened.map_err(Failure::left)??;
        self.say_dim(match resumed {
            Resumed::Yes => "the agent runs again, and the session goes on",
            Resumed::Anew => {
                "the agent runs again, but does not know the session any more: a new one has begun"
            }
        });
        self.connection = Some(connection);
        self.show_past();
        Ok(())
    }
}
