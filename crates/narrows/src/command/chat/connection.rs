//! The agent that runs and the session with it, and how both begin again.

use std::collections::VecDeque;
use std::time::SystemTime;

use narrows_client::{Events, Listed, Runtime, RuntimeEvent, Session, SessionConfig};
use narrows_process::Ladder;

use crate::age;
use crate::drive::{Start, Wanted};
use crate::failure::Failure;
use crate::terminal::line;

/// How many events of the past are kept to be shown.
const PAST: usize = 4096;

/// An agent, and one session with it.
pub(super) struct Connection {
    pub(super) runtime: Runtime,
    pub(super) session: Session,
    /// What happens outside of turns, until the session ends.
    pub(super) events: Option<Events>,
    /// What has happened there and was not shown.
    pub(super) past: VecDeque<RuntimeEvent>,
    /// The sessions that were known before this one went on.
    known: Vec<Listed>,
}

/// What became of a session that was to go on with a new agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resumed {
    /// It goes on.
    Yes,
    /// Another one began.
    Anew,
}

impl Connection {
    /// With a session that has just begun.
    fn new(runtime: Runtime, session: Session, known: Vec<Listed>) -> Self {
        let mut connection = Self { runtime, session, events: None, past: VecDeque::new(), known };
        connection.listen();
        connection
    }

    /// Opens the session that is wanted. On failure the agent is ended.
    pub(super) async fn open(runtime: Runtime, wanted: &Wanted) -> Result<Self, Failure> {
        let goes_on = matches!(wanted.start, Start::Continue | Start::Resume(_));
        let known = if goes_on { known(&runtime, &wanted.config).await } else { Vec::new() };
        match crate::command::run::open(&runtime, wanted).await {
            Ok(session) => Ok(Self::new(runtime, session, known)),
            Err(failure) => {
                runtime.close_with(Ladder::default()).await;
                Err(failure)
            }
        }
    }

    /// The same after a loss: with the session `id` if the agent still knows it, else with a new one.
    pub(super) async fn reopen(
        runtime: Runtime,
        config: SessionConfig,
        id: &str,
    ) -> Result<(Self, Resumed), Failure> {
        let can = &runtime.introduced().can;
        if can.resume || can.load {
            match runtime.resume_session(id, config.clone()).await {
                Ok(session) => return Ok((Self::new(runtime, session, Vec::new()), Resumed::Yes)),
                Err(error) => tracing::info!(%error, "the agent does not go on with the session"),
            }
        }
        match runtime.open_session(config).await {
            Ok(session) => Ok((Self::new(runtime, session, Vec::new()), Resumed::Anew)),
            Err(error) => {
                runtime.close_with(Ladder::default()).await;
                Err(error.into())
            }
        }
    }

    /// Changes to another session: a new one, or the one with this id. The old one stays if that fails.
    pub(super) async fn change(&mut self, config: SessionConfig, id: Option<&str>) -> Result<(), Failure> {
        let session = match id {
            Some(id) => {
                self.known = known(&self.runtime, &config).await;
                self.runtime.resume_session(id, config).await?
            }
            None => self.runtime.open_session(config).await?,
        };
        let old = std::mem::replace(&mut self.session, session);
        self.listen();
        // It can be gone on with only when it is closed.
        old.close().await;
        Ok(())
    }

    /// The session in words: its title, and when it was used before, as far as the agent tells them.
    pub(super) fn described(&self) -> String {
        let id = self.session.id();
        let listed = self.known.iter().find(|listed| listed.session_id == id);
        let title =
            listed.and_then(|listed| listed.title.clone()).or_else(|| self.session.snapshot().title.clone());
        let title = title.map(|title| format!("{:?}", line(&title)));
        let age = listed.and_then(|listed| age::ago(listed.updated_at.as_deref()?, SystemTime::now()));
        let age = age.map(|age| format!("last used {age}"));
        [Some(line(id)), title, age].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    fn listen(&mut self) {
        self.events = self.session.events();
        self.past.clear();
        let mut past = Vec::new();
        if let Some(events) = &mut self.events {
            events.take_all(&mut past);
        }
        self.past.extend(past.into_iter().rev().take(PAST));
        self.past.make_contiguous().reverse();
    }

    /// What happens next outside of turns; `None` when the session has ended, and then never again. Safe to cancel.
    pub(super) async fn happens(&mut self) -> Option<RuntimeEvent> {
        let Some(events) = &mut self.events else { return std::future::pending().await };
        let event = events.next().await;
        if event.is_none() {
            self.events = None;
        }
        event
    }
}

/// The sessions of the directory, if the agent can list them.
async fn known(runtime: &Runtime, config: &SessionConfig) -> Vec<Listed> {
    runtime.list_sessions(Some(&config.cwd.to_string_lossy())).await.unwrap_or_default()
}
