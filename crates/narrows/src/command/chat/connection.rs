//! A running agent with its session, and how both are restarted.

use std::collections::VecDeque;
use std::time::SystemTime;

use narrows_client::{Events, Runtime, RuntimeEvent, Session, SessionConfig, SessionSummary};
use narrows_process::Ladder;

use crate::agent_source::{SessionRequest, SessionStart};
use crate::failure::Failure;
use crate::relative_time;
use crate::terminal::line;

const MAX_PAST_EVENTS: usize = 4096;

pub(super) struct Connection {
    pub(super) runtime: Runtime,
    pub(super) session: Session,
    /// Events outside of turns, until the session ends.
    pub(super) events: Option<Events>,
    pub(super) past: VecDeque<RuntimeEvent>,
    /// The sessions that the agent listed before it continued the current session.
    known: Vec<SessionSummary>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resumed {
    Yes,
    NewSession,
}

impl Connection {
    fn new(runtime: Runtime, session: Session, known: Vec<SessionSummary>) -> Self {
        let mut connection = Self { runtime, session, events: None, past: VecDeque::new(), known };
        connection.listen();
        connection
    }

    /// Opens the requested session. On failure the agent is ended.
    pub(super) async fn open(runtime: Runtime, wanted: &SessionRequest) -> Result<Self, Failure> {
        let goes_on = matches!(wanted.start, SessionStart::Continue | SessionStart::Resume(_));
        let known = if goes_on { list_sessions(&runtime, &wanted.config).await } else { Vec::new() };
        match crate::command::run::open(&runtime, wanted).await {
            Ok(session) => Ok(Self::new(runtime, session, known)),
            Err(failure) => {
                runtime.close_with(Ladder::default()).await;
                Err(failure)
            }
        }
    }

    /// Reopens session `id` after a loss, or opens a new session if the agent does not know it.
    pub(super) async fn reopen(
        runtime: Runtime,
        config: SessionConfig,
        id: &str,
    ) -> Result<(Self, Resumed), Failure> {
        let can = &runtime.description().can;
        if can.resume || can.load {
            match runtime.resume_session(id, config.clone()).await {
                Ok(session) => return Ok((Self::new(runtime, session, Vec::new()), Resumed::Yes)),
                Err(error) => tracing::info!(%error, "session not resumed"),
            }
        }
        match runtime.open_session(config).await {
            Ok(session) => Ok((Self::new(runtime, session, Vec::new()), Resumed::NewSession)),
            Err(error) => {
                runtime.close_with(Ladder::default()).await;
                Err(error.into())
            }
        }
    }

    /// Changes to the session `id`, or to a new session if `id` is `None`. On failure the current session
    /// stays.
    pub(super) async fn change(&mut self, config: SessionConfig, id: Option<&str>) -> Result<(), Failure> {
        let session = match id {
            Some(id) => {
                self.known = list_sessions(&self.runtime, &config).await;
                self.runtime.resume_session(id, config).await?
            }
            None => self.runtime.open_session(config).await?,
        };
        let old = std::mem::replace(&mut self.session, session);
        self.listen();
        // The agent can continue the same session only after the session is closed.
        old.close().await;
        Ok(())
    }

    /// Describes the session: its title, and its last use if known.
    pub(super) fn description(&self) -> String {
        let id = self.session.id();
        let listed = self.known.iter().find(|listed| listed.session_id == id);
        let title =
            listed.and_then(|listed| listed.title.clone()).or_else(|| self.session.snapshot().title.clone());
        let title = title.map(|title| format!("{:?}", line(&title)));
        let age =
            listed.and_then(|listed| relative_time::ago(listed.updated_at.as_deref()?, SystemTime::now()));
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
        self.past.extend(past.into_iter().rev().take(MAX_PAST_EVENTS));
        self.past.make_contiguous().reverse();
    }

    /// Waits for the next event outside of turns. `None` after the session has ended. Cancel-safe.
    pub(super) async fn next_event(&mut self) -> Option<RuntimeEvent> {
        let Some(events) = &mut self.events else { return std::future::pending().await };
        let event = events.next().await;
        if event.is_none() {
            self.events = None;
        }
        event
    }
}

/// Returns the sessions of the directory, if the agent can list them.
async fn list_sessions(runtime: &Runtime, config: &SessionConfig) -> Vec<SessionSummary> {
    runtime.list_sessions(Some(&config.cwd.to_string_lossy())).await.unwrap_or_default()
}
