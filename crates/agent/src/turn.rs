//! The turn loop: ask the model, show what it says, run the tools it wants, ask again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use narrows_acp::Version;
use narrows_acp::method::SESSION_UPDATE;
use narrows_model::{Completion, Error, Event, Finish, Kind, Message, Note, Part, Request, Usage};
use narrows_rpc::Peer;
use narrows_wire::Effects;
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::catalog::{Choice, Stage};
use crate::command::{self, Command};
use crate::compact::{Compaction, EMPTY, KEPT};
use crate::content::{self, Block};
use crate::failure;
use crate::session::Session;
use crate::size::{Bound, answer_bytes, cut_arguments, message_bytes};
use crate::stop::Stop;
use crate::tool::Toolbox;
use crate::voice::{Gone, Voice};

/// How long turns wait for MCP servers, from when those were started. What comes later joins a turn later.
const SERVERS: Duration = Duration::from_millis(2500);

/// How long an endpoint may take to tell the size of its context window.
const LEARNING: Duration = Duration::from_secs(5);

/// How long nothing may be said: clients take an agent that is silent for minutes for dead.
const SILENCE: Duration = Duration::from_secs(30);

/// What the model is told of calls that are left when the turn has as many bytes as it may.
const NOT_RUN: &str = "The turn has as many bytes as it may. The tool was not run.";

/// Why a turn is over.
#[derive(Debug)]
pub(crate) enum Reason {
    EndTurn,
    MaxTokens,
    MaxTurnRequests,
    Refusal,
    Cancelled,
    /// Something has more bytes than it may.
    TooLarge(Bound),
    Failed(Error),
}

impl Reason {
    /// Version 1 has no word for a failure; it is told in text.
    pub(crate) fn name_v1(&self) -> &'static str {
        match self {
            Self::Failed(_) => "end_turn",
            reason => reason.name_v2(),
        }
    }

    pub(crate) fn name_v2(&self) -> &'static str {
        match self {
            Self::EndTurn => "end_turn",
            Self::MaxTokens | Self::TooLarge(_) => "max_tokens",
            Self::MaxTurnRequests => "max_turn_requests",
            Self::Refusal => "refusal",
            Self::Cancelled => "cancelled",
            Self::Failed(_) => "error",
        }
    }
}

impl From<Gone> for Reason {
    fn from(_: Gone) -> Self {
        Self::Cancelled
    }
}

/// How a turn ended.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) reason: Reason,
    /// What all requests of the session took until now, if the endpoint told of this turn's: the protocol counts so.
    pub(crate) usage: Option<Usage>,
    /// Whether tools have run, which the next try would run again.
    pub(crate) effects: Effects,
}

/// Puts what is known from earlier sessions before what was said first: data has no place in the system's words. Where the
/// history has to be shortened it is the first to go.
fn remind(messages: &mut [Message], background: &str) {
    let first = messages.iter_mut().find_map(|message| match message {
        Message::User { content } => Some(content),
        Message::Assistant(_) | Message::Tool(_) => None,
    });
    if let Some(content) = first {
        content.insert(0, Part::text(background));
    }
}

/// One turn.
pub(crate) struct Turn {
    pub(crate) agent: Arc<Agent>,
    pub(crate) session: Arc<Session>,
    /// The client, as this session speaks to it.
    pub(crate) peer: Peer,
    pub(crate) stop: Stop,
    pub(crate) voice: Voice,
    /// What this turn adds to the conversation.
    pub(crate) messages: Vec<Message>,
    /// How many bytes the model and its tools have added to the conversation.
    added_bytes: usize,
    usage: Option<Usage>,
    /// The history has been shortened because it did not fit; once is enough.
    pub(crate) compacted: bool,
    /// What the session is called since this turn, to be stored with it.
    pub(crate) title: Option<String>,
    /// `true` if the client that has sent the prompt decides about commands itself.
    pub(crate) authorizes: bool,
}

impl Turn {
    pub(crate) fn new(
        agent: Arc<Agent>,
        session: Arc<Session>,
        peer: Peer,
        stop: Stop,
        voice: Voice,
    ) -> Self {
        let messages = Vec::new();
        Self {
            agent,
            session,
            peer,
            stop,
            voice,
            messages,
            added_bytes: 0,
            usage: None,
            compacted: false,
            title: None,
            authorizes: false,
        }
    }

    /// Plays the turn to its end.
    pub(crate) async fn run(&mut self, blocks: Vec<Block>) -> End {
        let beats =
            beats(self.peer.clone(), Arc::clone(&self.session), self.voice.said(), self.voice.version());
        let reason = tokio::select! {
            biased;
            reason = self.work(blocks) => reason.unwrap_or_else(|reason| reason),
            () = beats => Reason::Cancelled,
        };
        if let Reason::TooLarge(bound) = reason {
            // Fails only if the client has disconnected.
            let _ = self.voice.aside(&bound.words(self.limit(bound)), &json!({})).await;
        }
        let effects = match self.messages.iter().any(|message| matches!(message, Message::Tool(_))) {
            true => Effects::Possible,
            false => Effects::None,
        };
        let usage = self.usage.take().map(|turn| {
            let mut state = self.session.state();
            let sum = match state.usage.take() {
                Some(before) => add(&before, &turn),
                None => turn,
            };
            state.usage = Some(sum.clone());
            sum
        });
        End { reason, usage, effects }
    }

    fn limit(&self, bound: Bound) -> usize {
        let limits = &self.agent.limits;
        match bound {
            Bound::Answer => limits.answer_bytes,
            Bound::Turn => limits.turn_bytes,
            Bound::Session => limits.session_bytes,
        }
    }

    /// Checks that `bytes` are within a limit.
    fn check_size(&self, bytes: usize, bound: Bound) -> Result<(), Reason> {
        if bytes > self.limit(bound) { Err(Reason::TooLarge(bound)) } else { Ok(()) }
    }

    /// How many bytes the turn has: what goes to the model, and what is shown again.
    fn bytes(&self) -> usize {
        self.added_bytes + self.voice.recorded_bytes()
    }

    /// What comes of `work`, unless the turn is given up first.
    pub(crate) async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Result<T, Reason> {
        tokio::select! {
            biased;
            () = self.stop.stopped() => Err(Reason::Cancelled),
            outcome = work => Ok(outcome),
        }
    }

    async fn work(&mut self, blocks: Vec<Block>) -> Result<Reason, Reason> {
        self.tell_troubles().await?;
        if let Some(command) = command::read(&blocks) {
            return self.command(command).await;
        }
        let choice = self.session.state().choice.clone();
        let choice = choice.ok_or_else(|| Reason::Failed(failure::unconfigured()))?;
        let stored_bytes = self.session.state().stored_bytes;
        self.check_size(stored_bytes, Bound::Session)?;
        self.name_session(&blocks).await?;
        self.learn(&choice, Stage::Asked);
        let blocks = self.unless_stopped(self.fetch(blocks)).await?;
        let mut request = self.request(&choice);
        request.messages.extend(self.session.state().past.iter().flat_map(|past| past.messages.clone()));
        self.say(&mut request, Message::User { content: content::parts(blocks) });
        if let Some(background) = &self.session.state().background {
            remind(&mut request.messages, background);
        }
        let (servers, since) = {
            let state = self.session.state();
            (Arc::clone(&state.servers), state.servers_since)
        };
        self.unless_stopped(servers.settled(SERVERS.saturating_sub(since.elapsed()))).await?;
        for _ in 0..self.agent.limits.requests_per_turn {
            self.tell_troubles().await?;
            let toolbox = Toolbox::new(self.agent.client().can, &servers.tools());
            request.tools = toolbox.tools().to_vec();
            let completion = self.ask(&choice, &mut request).await?;
            let Completion { mut message, finish, usage, .. } = completion;
            self.count(&choice, usage).await?;
            self.check_size(answer_bytes(&message), Bound::Answer)?;
            self.learn(&choice, Stage::Answered);
            let last = match finish {
                Finish::Calls => None,
                Finish::Stop => Some(Reason::EndTurn),
                Finish::Length => Some(Reason::MaxTokens),
                Finish::Refusal => Some(Reason::Refusal),
            };
            if let Some(reason) = last {
                // There is no request any more for it to be a part of.
                self.messages.push(Message::Assistant(message));
                return Ok(reason);
            }
            let refusals: Vec<Option<String>> = message.calls.iter_mut().map(cut_arguments).collect();
            let calls = message.calls.clone();
            self.say(&mut request, Message::Assistant(message));
            for (call, refusal) in calls.iter().zip(refusals) {
                let is_full = self.check_size(self.bytes(), Bound::Turn).is_err();
                let refusal = refusal.or_else(|| is_full.then(|| NOT_RUN.to_owned()));
                // Boxed, because it needs three times the room of all else, and most turns call nothing.
                let result = match refusal {
                    Some(reason) => Box::pin(self.refuse_call(&toolbox, call, &reason)).await?,
                    None => Box::pin(self.call(&toolbox, call)).await?,
                };
                self.say(&mut request, Message::Tool(result));
            }
            self.check_size(self.bytes(), Bound::Turn)?;
        }
        Ok(Reason::MaxTurnRequests)
    }

    /// Adds to the conversation.
    fn say(&mut self, request: &mut Request, message: Message) {
        if !matches!(message, Message::User { .. }) {
            self.added_bytes += message_bytes(&message);
        }
        request.messages.push(message.clone());
        self.messages.push(message);
    }

    /// What every request of this turn has in common.
    pub(crate) fn request(&self, choice: &Choice) -> Request {
        let route = self.agent.catalog.route(choice);
        Request {
            model: choice.model.clone(),
            system: self.agent.system.clone(),
            max_tokens: route.max_tokens,
            temperature: route.temperature,
            effort: choice.effort,
            cache_key: Some(self.session.id.to_string()),
            ..Request::default()
        }
    }

    /// One answer of the model. What does not fit its window is shortened, once.
    async fn ask(&mut self, choice: &Choice, request: &mut Request) -> Result<Completion, Reason> {
        if self.is_tight(choice, request) {
            self.compact(choice, request, KEPT).await?;
        }
        loop {
            match self.listen(choice, request).await {
                Err(Reason::Failed(error)) if error.kind == Kind::Overflow && !error.shown => {
                    if self.compacted
                        || matches!(self.compact(choice, request, KEPT).await?, Compaction::Nothing)
                    {
                        return Err(Reason::Failed(error));
                    }
                }
                outcome => return outcome,
            }
        }
    }

    /// Shows an answer as it comes.
    async fn listen(&mut self, choice: &Choice, request: &Request) -> Result<Completion, Reason> {
        let agent = Arc::clone(&self.agent);
        let mut reply = agent.catalog.client(choice).chat(request);
        let stopped = self.stop.stopped();
        tokio::pin!(stopped);
        let mut bytes = 0;
        loop {
            // Looked at here, so that an answer that never pauses cannot outrun it; waited for below.
            if self.stop.is_stopped() {
                return Err(Reason::Cancelled);
            }
            let event = match reply.next_now() {
                Some(event) => Some(event),
                None => tokio::select! {
                    biased;
                    event = reply.next() => event.map_err(Reason::Failed)?,
                    () = &mut stopped => return Err(Reason::Cancelled),
                },
            };
            if let Some(Event::Text(text) | Event::Thought(text)) = &event {
                bytes += text.len();
                self.check_size(bytes, Bound::Answer)?;
            }
            match event {
                Some(Event::Text(text)) => self.voice.text(&text).await?,
                Some(Event::Thought(text)) => self.voice.thought(&text).await?,
                Some(Event::Calling { name }) => tracing::debug!(name, "the model writes a call"),
                Some(Event::Note(note)) => self.tell_note(&note).await?,
                None => break,
            }
        }
        self.voice.pause().await?;
        Ok(reply.into_completion())
    }

    async fn tell_note(&mut self, note: &Note) -> Result<(), Reason> {
        let (title, error) = match note {
            Note::Retrying { attempt, wait, error } => {
                let wait = wait.as_secs_f32();
                (format!("The endpoint failed; attempt {attempt} follows in {wait:.1} s"), error)
            }
            Note::Without { what, error } => {
                (format!("The endpoint does not take {what}; it is asked without"), error)
            }
        };
        tracing::info!(%error, "{title}");
        match note {
            // What only the endpoint sees is nothing to the user.
            Note::Without { what, .. } if !what.matters() => Ok(()),
            _ => self.notice("warning", &title, Some(&error.message)).await,
        }
    }

    /// Tells something beside the answer, to clients that show such things.
    pub(crate) async fn notice(
        &mut self,
        severity: &str,
        title: &str,
        description: Option<&str>,
    ) -> Result<(), Reason> {
        if self.agent.client().can.notices {
            let mut notice = json!({"sessionUpdate": "notice", "severity": severity, "title": title});
            if let Some(description) = description.filter(|text| !text.is_empty()) {
                notice["description"] = description.into();
            }
            self.voice.update(&notice).await?;
        }
        Ok(())
    }

    /// Tells what has gone wrong beside the turn, each thing once.
    async fn tell_troubles(&mut self) -> Result<(), Reason> {
        let (mut troubles, servers) = {
            let mut state = self.session.state();
            (std::mem::take(&mut state.troubles), Arc::clone(&state.servers))
        };
        troubles.extend(servers.failures().iter().map(ToString::to_string));
        for trouble in troubles {
            tracing::warn!("{trouble}");
            if self.agent.client().can.notices {
                self.notice("warning", &trouble, None).await?;
            } else {
                self.voice.remark(&format!("({trouble})\n")).await?;
            }
        }
        Ok(())
    }

    /// Gives a session without a name one.
    async fn name_session(&mut self, blocks: &[Block]) -> Result<(), Reason> {
        let Some(title) = content::title(blocks) else { return Ok(()) };
        {
            let mut state = self.session.state();
            if state.title.is_some() {
                return Ok(());
            }
            state.title = Some(title.clone());
        }
        self.voice.update(&info(Some(&title))).await?;
        self.title = Some(title);
        Ok(())
    }

    /// Finds out about the model in the background, if nobody has.
    fn learn(&self, choice: &Choice, stage: Stage) {
        if self.agent.catalog.to_be_learnt(choice, stage) {
            let client = self.agent.catalog.client(choice).clone();
            let model = choice.model.clone();
            tokio::spawn(async move { client.learn(&model, LEARNING).await });
        }
    }

    /// Adds up what the requests took.
    pub(crate) fn add_up(&mut self, usage: Usage) {
        self.usage = Some(match self.usage.take() {
            None => usage,
            Some(sum) => add(&sum, &usage),
        });
    }

    /// Counts what a request took, and tells how full the window is.
    async fn count(&mut self, choice: &Choice, usage: Option<Usage>) -> Result<(), Reason> {
        let Some(usage) = usage else { return Ok(()) };
        let used = usage.input + usage.output;
        let cost = {
            let mut state = self.session.state();
            state.used = Some(used);
            state.cost = usage.cost.map(|cost| state.cost.unwrap_or(0.0) + cost).or(state.cost);
            state.cost
        };
        self.add_up(usage);
        let client = self.agent.client();
        if let Some(size) = self.agent.catalog.traits(choice).window
            && client.introduced
        {
            let mut update = json!({"sessionUpdate": "usage_update", "used": used, "size": size});
            if let Some(cost) = cost {
                update["cost"] = json!({"amount": cost, "currency": "USD"});
            }
            self.voice.update(&update).await?;
        }
        Ok(())
    }

    async fn command(&mut self, command: Command) -> Result<Reason, Reason> {
        let choice = self.session.state().choice.clone();
        let choice = choice.ok_or_else(|| Reason::Failed(failure::unconfigured()))?;
        let text = match command {
            Command::Compact => {
                let mut request = self.request(&choice);
                // Whoever asks for it wants all of it but what was said last.
                match self.compact(&choice, &mut request, 0).await? {
                    Compaction::Done => {
                        "The earlier part of this conversation has been replaced by a summary.".to_owned()
                    }
                    Compaction::Nothing => "There is nothing to compact yet.".to_owned(),
                    Compaction::Unsummarised(Some(error)) => return Err(Reason::Failed(error)),
                    Compaction::Unsummarised(None) => format!("{EMPTY} The conversation is as it was."),
                }
            }
            Command::Status => self.status(&choice),
        };
        self.voice.text(&text).await?;
        Ok(Reason::EndTurn)
    }

    fn status(&self, choice: &Choice) -> String {
        let route = self.agent.catalog.route(choice);
        let state = self.session.state();
        let tools = Toolbox::new(self.agent.client().can, &state.servers.tools());
        let names: Vec<&str> = tools.tools().iter().map(|tool| tool.name.as_str()).collect();
        let window = self.agent.catalog.traits(choice).window;
        let size = window.map_or_else(|| "unknown".to_owned(), |size| format!("{size} tokens"));
        let used = state.used.map_or_else(|| "unknown".to_owned(), |used| format!("{used} tokens"));
        format!(
            "- Model: {}\n- Endpoint: {} ({})\n- Context window: {size}, used: {used}\n- Turns in memory: {}\n\
             - Tools: {}\n- Directory: {}",
            choice.model,
            route.endpoint.base_url,
            route.endpoint.name,
            state.past.len(),
            if names.is_empty() { "none".to_owned() } else { names.join(", ") },
            state.place.cwd,
        )
    }
}

fn add(sum: &Usage, more: &Usage) -> Usage {
    let both = |a: Option<u64>, b: Option<u64>| match (a, b) {
        (None, None) => None,
        (a, b) => Some(a.unwrap_or(0) + b.unwrap_or(0)),
    };
    Usage {
        input: sum.input + more.input,
        output: sum.output + more.output,
        total: sum.total + more.total,
        cached: both(sum.cached, more.cached),
        reasoning: both(sum.reasoning, more.reasoning),
        cost: match (sum.cost, more.cost) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0.0) + b.unwrap_or(0.0)),
        },
    }
}

/// The update that tells when the session was last alive, and what it is called.
fn info(title: Option<&str>) -> Value {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string();
    let mut update = json!({"sessionUpdate": "session_info_update", "updatedAt": now});
    if let Some(title) = title {
        update["title"] = title.into();
    }
    update
}

/// Says something harmless whenever nothing else has been said for long.
async fn beats(peer: Peer, session: Arc<Session>, said: Arc<AtomicU64>, version: Version) {
    let mut before = said.load(Ordering::Relaxed);
    loop {
        tokio::time::sleep(SILENCE).await;
        let now = said.load(Ordering::Relaxed);
        if now == before {
            let mut update = info(None);
            // A call that goes on is what clients watch, if there is one.
            if let Some(call) = session.calls().into_iter().next()
                && version == Version::V1
            {
                update = json!({"sessionUpdate": "tool_call_update", "toolCallId": call});
            }
            let params = json!({"sessionId": &*session.id, "update": update});
            if peer.notify(SESSION_UPDATE, &params).await.is_err() {
                return;
            }
        }
        before = now;
    }
}
