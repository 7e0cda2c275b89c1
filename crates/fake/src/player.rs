//! Plays steps, one after the other, and ends what it was given to answer.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use narrows_acp::method;
use narrows_rpc::CallError;
use narrows_wire::RpcError;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::agent::Agent;
use crate::answer::Owed;
use crate::dialect;
use crate::fill::Facts;
use crate::script::step::{Step, Voice};
use crate::session::Session;

/// How a row of steps ended before its last.
#[derive(Debug, PartialEq)]
pub(crate) enum End {
    /// All steps are done.
    Done,
    /// The script stopped it, for this reason.
    Stop(String),
    /// The client cancelled it.
    Cancelled,
    /// The script failed it.
    Error(RpcError),
    /// There is nothing more to say: the agent hangs or ends, or the client has gone.
    Silent,
}

/// What a step returns: the row goes on, or ends.
pub(crate) type Flow<T = ()> = Result<T, End>;

/// What is to be answered at the end.
enum Reply {
    /// Nothing, or nothing any more.
    Nothing,
    /// A request, with this.
    Result(Owed, Value),
    /// A prompt of v1, with why the turn ended.
    Reason(Owed),
    /// A prompt of v2 has been answered with this line; that the turn ended is told as a state.
    State(Option<Bytes>),
}

/// Plays steps.
pub(crate) struct Player {
    pub(crate) agent: Arc<Agent>,
    pub(crate) session: Option<Arc<Session>>,
    pub(crate) facts: Facts,
    /// The pause between two steps.
    pub(crate) delay: Duration,
    /// Terminals that have not been released.
    pub(crate) terminals: Vec<String>,
    reply: Reply,
    /// Whether to answer twice.
    twice: bool,
    /// Become true when the client cancels the turn, or its request.
    cancels: Option<[watch::Receiver<bool>; 2]>,
    /// Whether the script has seen the cancellation, and ends the turn in its own way.
    winding_up: bool,
    /// The message that the next piece belongs to.
    message: Option<(Voice, String)>,
}

impl Player {
    pub(crate) fn new(agent: Arc<Agent>, session: Option<Arc<Session>>) -> Self {
        let mut facts = Facts::default();
        if let Some(session) = &session {
            facts.session.clone_from(&session.id);
            facts.cwd.clone_from(&session.cwd);
            facts.mode = session.mode();
            facts.turn = session.turns();
        }
        Self {
            delay: agent.script.delay,
            agent,
            session,
            facts,
            terminals: Vec::new(),
            reply: Reply::Nothing,
            twice: false,
            cancels: None,
            winding_up: false,
            message: None,
        }
    }

    /// The same, to answer with `result` at the end.
    pub(crate) fn answering(self, owed: Owed, result: Value) -> Self {
        Self { reply: Reply::Result(owed, result), ..self }
    }

    /// To answer with the reason why the turn ended.
    pub(crate) fn answer_with_reason(&mut self, owed: Owed) {
        self.reply = Reply::Reason(owed);
    }

    /// To tell with a state that the turn ended; `said` is the answer to its prompt.
    pub(crate) fn answer_with_state(&mut self, said: Option<Bytes>) {
        self.reply = Reply::State(said);
    }

    /// To stop when the turn or its request is cancelled.
    pub(crate) fn cancellable(&mut self, turn: watch::Receiver<bool>, request: watch::Receiver<bool>) {
        self.cancels = Some([turn, request]);
    }

    /// Plays `steps`.
    pub(crate) fn play<'p>(
        &'p mut self,
        steps: &'p [Step],
    ) -> Pin<Box<dyn Future<Output = Flow> + Send + 'p>> {
        Box::pin(async move {
            for (index, step) in steps.iter().enumerate() {
                if index > 0 && !self.delay.is_zero() {
                    self.unless_cancelled(tokio::time::sleep(self.delay)).await?;
                }
                self.step(step).await?;
            }
            Ok(())
        })
    }

    async fn step(&mut self, step: &Step) -> Flow {
        let version = self.agent.version();
        // Only pieces that follow each other are one message.
        if !matches!(step, Step::Speak { .. } | Step::Pause(_) | Step::Repeat { .. } | Step::Fault(_)) {
            self.message = None;
        }
        match step {
            Step::Speak { voice, text, words, every } => self.speak(*voice, text, *words, *every).await,
            Step::Tool(call) => self.tell(dialect::tool(version, call, &self.facts)).await,
            Step::ToolUpdate(call) => self.tell(dialect::tool_update(version, call, &self.facts)).await,
            Step::Plan(entries) => self.tell(dialect::plan(version, entries, &self.facts)).await,
            Step::Ask(ask) => self.ask(ask).await,
            Step::Read { path, line, limit } => self.read(path, *line, *limit).await,
            Step::Write { path, content } => self.write(path, content).await,
            Step::Terminal { command, cwd, tool } => {
                self.terminal(command, cwd.as_deref(), tool.as_deref()).await
            }
            Step::Usage { used, size, cost } => {
                let mut update = json!({"sessionUpdate": "usage_update", "used": used, "size": size});
                if let Some(cost) = cost {
                    update["cost"] = json!({"amount": cost.amount, "currency": cost.currency});
                }
                self.tell(update).await
            }
            Step::Notice { severity, title, description } => {
                self.notice(severity, title, description.as_deref()).await
            }
            Step::Commands(commands) => self.tell(dialect::commands(version, commands)).await,
            Step::Title(title) => {
                let title = self.facts.fill(title);
                if let Some(session) = &self.session {
                    session.set_title(&title);
                }
                self.tell(json!({"sessionUpdate": "session_info_update", "title": title})).await
            }
            Step::Mode(mode) => self.switch(mode).await,
            Step::Update(update) => self.tell(self.facts.fill_json(update)).await,
            Step::Notify { method, params } => self.notify(method, &self.facts.fill_json(params)).await,
            Step::Request { method, params } => self.request(method, params).await,
            Step::Pause(duration) => self.unless_cancelled(tokio::time::sleep(*duration)).await,
            Step::WaitCancel => {
                self.cancelled().await;
                self.winding_up = true;
                Ok(())
            }
            Step::Stop(reason) => Err(End::Stop(reason.clone())),
            Step::Error(error) => {
                let message = self.facts.fill(&error.message).into();
                Err(End::Error(RpcError { message, ..error.clone() }))
            }
            Step::Repeat { times, steps } => self.repeat(*times, steps).await,
            Step::Reorder => {
                let end = if self.winding_up { End::Cancelled } else { End::Done };
                self.conclude(end).await;
                Ok(())
            }
            Step::DuplicateResponse => {
                self.twice = true;
                Ok(())
            }
            Step::Fault(fault) => self.fault(fault).await,
        }
    }

    async fn repeat(&mut self, times: u64, steps: &[Step]) -> Flow {
        let outer = self.facts.round;
        for round in 1..=times {
            self.facts.round = round;
            self.play(steps).await?;
            // A round in which nothing is waited for must not keep the others from their turn.
            self.unless_cancelled(tokio::task::yield_now()).await?;
        }
        self.facts.round = outer;
        Ok(())
    }

    /// Says `text`, at once or word by word.
    pub(crate) async fn speak(
        &mut self,
        voice: Voice,
        text: &str,
        words: bool,
        every: Option<Duration>,
    ) -> Flow {
        let text = self.facts.fill(text);
        let pieces: Vec<&str> =
            if words { text.split_inclusive(char::is_whitespace).collect() } else { vec![&text] };
        for (index, piece) in pieces.into_iter().enumerate() {
            if let Some(every) = every.filter(|_| index > 0) {
                self.unless_cancelled(tokio::time::sleep(every)).await?;
            }
            let update = self.chunk(voice, piece);
            self.tell(update).await?;
        }
        Ok(())
    }

    /// A piece of the message that `voice` is about to say or goes on saying.
    pub(crate) fn chunk(&mut self, voice: Voice, text: &str) -> Value {
        let message = match self.message.take() {
            Some((last, message)) if last == voice => message,
            _ => self.agent.message_id(),
        };
        let update = dialect::chunk(self.agent.version(), voice, text, &message);
        self.message = Some((voice, message));
        update
    }

    async fn notice(&mut self, severity: &str, title: &str, description: Option<&str>) -> Flow {
        let title = self.facts.fill(title);
        let description = description.map(|text| self.facts.fill(text));
        if !self.agent.client().notices {
            let more = description.map_or(String::new(), |text| format!(": {text}"));
            let update = self.chunk(Voice::Message, &format!("[{severity}] {title}{more}\n"));
            return self.tell(update).await;
        }
        let mut update = json!({"sessionUpdate": "notice", "severity": severity, "title": title});
        if let Some(description) = description {
            update["description"] = json!(description);
        }
        self.tell(update).await
    }

    async fn switch(&mut self, mode: &str) -> Flow {
        if let Some(session) = &self.session {
            session.set_mode(mode);
        }
        mode.clone_into(&mut self.facts.mode);
        for update in dialect::mode_changed(self.agent.version(), &self.agent.script.modes, mode) {
            self.tell(update).await?;
        }
        Ok(())
    }

    /// Tells the client what happens in the session, and remembers it.
    pub(crate) async fn tell(&self, update: Value) -> Flow {
        if let Some(session) = &self.session {
            session.record(&update);
        }
        self.unless_cancelled(self.replay(update)).await?
    }

    /// Tells the client what happened in the session.
    pub(crate) async fn replay(&self, update: Value) -> Flow {
        let params = json!({"sessionId": self.facts.session, "update": update});
        gone(self.agent.peer.notify(method::SESSION_UPDATE, &params).await)
    }

    async fn notify(&self, method: &str, params: &Value) -> Flow {
        gone(self.unless_cancelled(self.agent.peer.notify(method, params)).await?)
    }

    /// Does `work` until it is done or the turn is cancelled.
    pub(crate) async fn unless_cancelled<T>(&self, work: impl Future<Output = T>) -> Flow<T> {
        if self.winding_up || self.cancels.is_none() {
            return Ok(work.await);
        }
        let heeded = async {
            self.cancelled().await;
            if self.agent.ignores_cancel.load(Ordering::Acquire) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = heeded => Err(End::Cancelled),
            done = work => Ok(done),
        }
    }

    /// Waits until the client cancels the turn or its request.
    async fn cancelled(&self) {
        let Some([turn, request]) = &self.cancels else { return std::future::pending().await };
        let (mut turn, mut request) = (turn.clone(), request.clone());
        // One that cannot become true any more must not count as one that did.
        let either = async |cancel: &mut watch::Receiver<bool>| {
            if cancel.wait_for(|cancelled| *cancelled).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = either(&mut turn) => {}
            () = either(&mut request) => {}
        }
    }

    /// Answers what is to be answered, once.
    pub(crate) async fn conclude(&mut self, end: End) {
        let end = if end == End::Done && self.winding_up { End::Cancelled } else { end };
        if end == End::Silent {
            return;
        }
        let said = match std::mem::replace(&mut self.reply, Reply::Nothing) {
            Reply::Nothing => None,
            Reply::Result(owed, result) => match end {
                End::Error(error) => owed.fail(&error),
                _ => owed.respond(&result),
            },
            Reply::Reason(owed) => match end {
                End::Error(error) => owed.fail(&error),
                end => owed.respond(&json!({"stopReason": reason(&end)})),
            },
            Reply::State(said) => {
                let mut update = dialect::state("idle");
                update["stopReason"] = json!(reason(&end));
                if let End::Error(error) = &end {
                    update["error"] = json!(error);
                }
                // If the client has gone, nobody needs to know.
                let _ = self.replay(update).await;
                said
            }
        };
        if let Some(line) = said.filter(|_| self.twice) {
            self.write_line(line).await;
        }
    }
}

/// Why a turn ended, by its name on the wire.
fn reason(end: &End) -> &str {
    match end {
        End::Done => "end_turn",
        End::Stop(reason) => reason,
        End::Cancelled => "cancelled",
        End::Error(_) | End::Silent => "error",
    }
}

/// The row of steps ends when the client has gone.
fn gone(outcome: Result<(), CallError>) -> Flow {
    outcome.map_err(|_| End::Silent)
}
