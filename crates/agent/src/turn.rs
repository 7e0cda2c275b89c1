//! The turn loop: requests an answer of the model, shows it, runs the tools that it calls, and repeats.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use narrows_acp::Version;
use narrows_acp::method::SESSION_UPDATE;
use narrows_model::{
    Completion, ErrorKind, Finish, Message, ModelError, Part, ReplyEvent, ReplyNote, Request, Usage,
};
use narrows_rpc::Peer;
use narrows_wire::Effects;
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::catalog::{Choice, LearnStage};
use crate::compaction::{Compaction, KEPT_TENTHS, NO_SUMMARY};
use crate::content::{self, Block};
use crate::failure;
use crate::session::Session;
use crate::size_limits::{SizeLimit, answer_bytes, cut_arguments, message_bytes};
use crate::slash_command::{self, SlashCommand};
use crate::stop_signal::StopSignal;
use crate::tool::Toolbox;
use crate::update_writer::{Disconnected, UpdateWriter};

/// Time that a turn waits for MCP servers, counted from their start. A server that is ready later is used
/// from a later turn on.
const MCP_SERVERS_TIMEOUT: Duration = Duration::from_millis(2500);

/// Time for an endpoint to report the size of its context window.
const MODEL_INFO_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time without an update. Clients treat an agent as dead if it sends nothing for minutes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);

/// Result of the remaining calls after the turn has reached its byte limit.
const TURN_FULL_MESSAGE: &str = "The turn has as many bytes as it may. The tool was not run.";

#[derive(Debug)]
pub(crate) enum StopReason {
    EndTurn,
    MaxTokens,
    MaxTurnRequests,
    Refusal,
    Cancelled,
    TooLarge(SizeLimit),
    Failed(ModelError),
}

impl StopReason {
    /// Returns the protocol's name in version 1. A failed turn is reported as text, and gets the name of a
    /// normal end.
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

impl From<Disconnected> for StopReason {
    fn from(_: Disconnected) -> Self {
        Self::Cancelled
    }
}

#[derive(Debug)]
pub(crate) struct TurnOutcome {
    pub(crate) reason: StopReason,
    /// Usage of all turns of the session so far, in the protocol's definition. `None` if the endpoint did not
    /// report the usage of this turn.
    pub(crate) usage: Option<Usage>,
    /// `Possible` once tools have run, because sending the prompt again would run the tools again.
    pub(crate) effects: Effects,
}

/// Puts the knowledge from earlier sessions before the first user message. The knowledge is data, so it must
/// not be in the system prompt. Compaction removes it first.
fn insert_background(messages: &mut [Message], background: &str) {
    let first = messages.iter_mut().find_map(|message| match message {
        Message::User { content } => Some(content),
        Message::Assistant(_) | Message::Tool(_) => None,
    });
    if let Some(content) = first {
        content.insert(0, Part::text(background));
    }
}

pub(crate) struct Turn {
    pub(crate) agent: Arc<Agent>,
    pub(crate) session: Arc<Session>,
    pub(crate) peer: Peer,
    pub(crate) stop: StopSignal,
    pub(crate) updates: UpdateWriter,
    pub(crate) messages: Vec<Message>,
    /// Bytes of answers and tool results in `messages`.
    added_bytes: usize,
    usage: Option<Usage>,
    /// `true` once the history was shortened, which happens at most once per turn.
    pub(crate) is_compacted: bool,
    /// Title that this turn gave to the session, to be stored with the turn.
    pub(crate) title: Option<String>,
    /// `true` if the client that sent the prompt decides about commands itself.
    pub(crate) authorizes: bool,
}

impl Turn {
    pub(crate) fn new(
        agent: Arc<Agent>,
        session: Arc<Session>,
        peer: Peer,
        stop: StopSignal,
        updates: UpdateWriter,
    ) -> Self {
        let messages = Vec::new();
        Self {
            agent,
            session,
            peer,
            stop,
            updates,
            messages,
            added_bytes: 0,
            usage: None,
            is_compacted: false,
            title: None,
            authorizes: false,
        }
    }

    pub(crate) async fn run(&mut self, blocks: Vec<Block>) -> TurnOutcome {
        let keepalives = send_keepalives(
            self.peer.clone(),
            Arc::clone(&self.session),
            self.updates.sent_count(),
            self.updates.version(),
        );
        let reason = tokio::select! {
            biased;
            reason = self.run_requests(blocks) => reason.unwrap_or_else(|reason| reason),
            () = keepalives => StopReason::Cancelled,
        };
        if let StopReason::TooLarge(bound) = reason {
            let _ = self.updates.send_unrecorded_text(&bound.message(self.limit(bound)), &json!({})).await;
        }
        let effects = match self.messages.iter().any(|message| matches!(message, Message::Tool(_))) {
            true => Effects::Possible,
            false => Effects::None,
        };
        let usage = self.usage.take().map(|turn| {
            let mut state = self.session.state();
            let sum = match state.usage.take() {
                Some(before) => sum_usage(&before, &turn),
                None => turn,
            };
            state.usage = Some(sum.clone());
            sum
        });
        TurnOutcome { reason, usage, effects }
    }

    fn limit(&self, bound: SizeLimit) -> usize {
        let limits = &self.agent.limits;
        match bound {
            SizeLimit::Answer => limits.answer_bytes,
            SizeLimit::Turn => limits.turn_bytes,
            SizeLimit::Session => limits.session_bytes,
        }
    }

    /// Checks that `bytes` are within the limit `bound`.
    fn check_size(&self, bytes: usize, bound: SizeLimit) -> Result<(), StopReason> {
        if bytes > self.limit(bound) { Err(StopReason::TooLarge(bound)) } else { Ok(()) }
    }

    /// Returns the size of the turn: its messages to the model, and its items to replay.
    fn bytes(&self) -> usize {
        self.added_bytes + self.updates.recorded_bytes()
    }

    pub(crate) async fn unless_cancelled<T>(&self, work: impl Future<Output = T>) -> Result<T, StopReason> {
        tokio::select! {
            biased;
            () = self.stop.stopped() => Err(StopReason::Cancelled),
            outcome = work => Ok(outcome),
        }
    }

    async fn run_requests(&mut self, blocks: Vec<Block>) -> Result<StopReason, StopReason> {
        self.send_warnings().await?;
        if let Some(command) = slash_command::parse(&blocks) {
            return self.run_slash_command(command).await;
        }
        let choice = self.session.state().choice.clone();
        let choice = choice.ok_or_else(|| StopReason::Failed(failure::unconfigured()))?;
        let stored_bytes = self.session.state().stored_bytes;
        self.check_size(stored_bytes, SizeLimit::Session)?;
        self.name_session(&blocks).await?;
        self.learn_model(&choice, LearnStage::BeforeAnswer);
        let blocks = self.unless_cancelled(self.fetch_linked_files(blocks)).await?;
        let mut request = self.new_request(&choice);
        request
            .messages
            .extend(self.session.state().past_turns.iter().flat_map(|past| past.messages.clone()));
        self.push_message(&mut request, Message::User { content: content::to_parts(blocks) });
        if let Some(background) = &self.session.state().background {
            insert_background(&mut request.messages, background);
        }
        let (servers, since) = {
            let state = self.session.state();
            (Arc::clone(&state.servers), state.servers_since)
        };
        self.unless_cancelled(
            servers.wait_until_settled(MCP_SERVERS_TIMEOUT.saturating_sub(since.elapsed())),
        )
        .await?;
        for _ in 0..self.agent.limits.requests_per_turn {
            self.send_warnings().await?;
            let toolbox = Toolbox::new(self.agent.client().can, &servers.tools());
            request.tools = toolbox.tools().to_vec();
            let completion = self.request_answer(&choice, &mut request).await?;
            let Completion { mut message, finish, usage, .. } = completion;
            self.record_usage(&choice, usage).await?;
            self.check_size(answer_bytes(&message), SizeLimit::Answer)?;
            self.learn_model(&choice, LearnStage::AfterAnswer);
            let last = match finish {
                Finish::Calls => None,
                Finish::Stop => Some(StopReason::EndTurn),
                Finish::Length => Some(StopReason::MaxTokens),
                Finish::Refusal => Some(StopReason::Refusal),
            };
            if let Some(reason) = last {
                // The last answer is added only to the history, because no further request of this turn
                // contains it.
                self.messages.push(Message::Assistant(message));
                return Ok(reason);
            }
            let refusals: Vec<Option<String>> = message.calls.iter_mut().map(cut_arguments).collect();
            let calls = message.calls.clone();
            self.push_message(&mut request, Message::Assistant(message));
            for (call, refusal) in calls.iter().zip(refusals) {
                let is_full = self.check_size(self.bytes(), SizeLimit::Turn).is_err();
                let refusal = refusal.or_else(|| is_full.then(|| TURN_FULL_MESSAGE.to_owned()));
                // This future is boxed because it needs three times the memory of the other code, and most
                // turns call no tool.
                let result = match refusal {
                    Some(reason) => Box::pin(self.refuse_call(&toolbox, call, &reason)).await?,
                    None => Box::pin(self.run_call(&toolbox, call)).await?,
                };
                self.push_message(&mut request, Message::Tool(result));
            }
            self.check_size(self.bytes(), SizeLimit::Turn)?;
        }
        Ok(StopReason::MaxTurnRequests)
    }

    fn push_message(&mut self, request: &mut Request, message: Message) {
        if !matches!(message, Message::User { .. }) {
            self.added_bytes += message_bytes(&message);
        }
        request.messages.push(message.clone());
        self.messages.push(message);
    }

    /// Returns the parts that all requests of this turn share.
    pub(crate) fn new_request(&self, choice: &Choice) -> Request {
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

    /// Requests one answer of the model. If the conversation exceeds the window, shortens it and repeats the
    /// request once.
    async fn request_answer(
        &mut self,
        choice: &Choice,
        request: &mut Request,
    ) -> Result<Completion, StopReason> {
        if self.needs_compaction(choice, request) {
            self.compact(choice, request, KEPT_TENTHS).await?;
        }
        loop {
            match self.stream_answer(choice, request).await {
                Err(StopReason::Failed(error)) if error.kind == ErrorKind::Overflow && !error.shown => {
                    if self.is_compacted
                        || matches!(self.compact(choice, request, KEPT_TENTHS).await?, Compaction::Nothing)
                    {
                        return Err(StopReason::Failed(error));
                    }
                }
                outcome => return outcome,
            }
        }
    }

    async fn stream_answer(&mut self, choice: &Choice, request: &Request) -> Result<Completion, StopReason> {
        let agent = Arc::clone(&self.agent);
        let mut reply = agent.catalog.client(choice).chat(request);
        let stopped = self.stop.stopped();
        tokio::pin!(stopped);
        let mut bytes = 0;
        loop {
            // The stop signal is checked for each event too, so that an answer without pauses can be
            // cancelled.
            if self.stop.is_stopped() {
                return Err(StopReason::Cancelled);
            }
            let event = match reply.next_now() {
                Some(event) => Some(event),
                None => tokio::select! {
                    biased;
                    event = reply.next() => event.map_err(StopReason::Failed)?,
                    () = &mut stopped => return Err(StopReason::Cancelled),
                },
            };
            if let Some(ReplyEvent::Text(text) | ReplyEvent::Thought(text)) = &event {
                bytes += text.len();
                self.check_size(bytes, SizeLimit::Answer)?;
            }
            match event {
                Some(ReplyEvent::Text(text)) => self.updates.send_text(&text).await?,
                Some(ReplyEvent::Thought(text)) => self.updates.send_thought(&text).await?,
                Some(ReplyEvent::Calling { name }) => tracing::debug!(name, "model emits a tool call"),
                Some(ReplyEvent::Note(note)) => self.handle_note(&note).await?,
                None => break,
            }
        }
        self.updates.end_message().await?;
        Ok(reply.into_completion())
    }

    async fn handle_note(&mut self, note: &ReplyNote) -> Result<(), StopReason> {
        let (title, error) = match note {
            ReplyNote::Retrying { attempt, wait, error } => {
                let wait = wait.as_secs_f32();
                (format!("The endpoint failed; attempt {attempt} follows in {wait:.1} s"), error)
            }
            ReplyNote::Without { what, error } => {
                (format!("The endpoint refused {what}; the request is repeated without"), error)
            }
        };
        tracing::info!(%error, "{title}");
        match note {
            // The user is not told about a change that makes a difference only to the endpoint.
            ReplyNote::Without { what, .. } if !what.matters() => Ok(()),
            _ => self.send_notice("warning", &title, Some(&error.message)).await,
        }
    }

    /// Sends a notice to clients that support notices.
    pub(crate) async fn send_notice(
        &mut self,
        severity: &str,
        title: &str,
        description: Option<&str>,
    ) -> Result<(), StopReason> {
        if self.agent.client().can.notices {
            let mut notice = json!({"sessionUpdate": "notice", "severity": severity, "title": title});
            if let Some(description) = description.filter(|text| !text.is_empty()) {
                notice["description"] = description.into();
            }
            self.updates.send_update(&notice).await?;
        }
        Ok(())
    }

    async fn send_warnings(&mut self) -> Result<(), StopReason> {
        let (mut warnings, servers) = {
            let mut state = self.session.state();
            (std::mem::take(&mut state.warnings), Arc::clone(&state.servers))
        };
        warnings.extend(servers.failures().iter().map(ToString::to_string));
        for warning in warnings {
            tracing::warn!("{warning}");
            if self.agent.client().can.notices {
                self.send_notice("warning", &warning, None).await?;
            } else {
                self.updates.send_unrecorded_thought(&format!("({warning})\n")).await?;
            }
        }
        Ok(())
    }

    /// Sets the title of a session that has none.
    async fn name_session(&mut self, blocks: &[Block]) -> Result<(), StopReason> {
        let Some(title) = content::prompt_title(blocks) else { return Ok(()) };
        {
            let mut state = self.session.state();
            if state.title.is_some() {
                return Ok(());
            }
            state.title = Some(title.clone());
        }
        self.updates.send_update(&session_info_update(Some(&title))).await?;
        self.title = Some(title);
        Ok(())
    }

    /// Queries the endpoint about the model in the background, once per stage.
    fn learn_model(&self, choice: &Choice, stage: LearnStage) {
        if self.agent.catalog.start_learning(choice, stage) {
            let client = self.agent.catalog.client(choice).clone();
            let model = choice.model.clone();
            tokio::spawn(async move { client.learn(&model, MODEL_INFO_TIMEOUT).await });
        }
    }

    pub(crate) fn add_usage(&mut self, usage: Usage) {
        self.usage = Some(match self.usage.take() {
            None => usage,
            Some(sum) => sum_usage(&sum, &usage),
        });
    }

    /// Records the usage of a request, and reports the used part of the window.
    async fn record_usage(&mut self, choice: &Choice, usage: Option<Usage>) -> Result<(), StopReason> {
        let Some(usage) = usage else { return Ok(()) };
        let used = usage.input + usage.output;
        let cost = {
            let mut state = self.session.state();
            state.used = Some(used);
            state.cost = usage.cost.map(|cost| state.cost.unwrap_or(0.0) + cost).or(state.cost);
            state.cost
        };
        self.add_usage(usage);
        let client = self.agent.client();
        if let Some(size) = self.agent.catalog.traits(choice).window
            && client.has_info
        {
            let mut update = json!({"sessionUpdate": "usage_update", "used": used, "size": size});
            if let Some(cost) = cost {
                update["cost"] = json!({"amount": cost, "currency": "USD"});
            }
            self.updates.send_update(&update).await?;
        }
        Ok(())
    }

    async fn run_slash_command(&mut self, command: SlashCommand) -> Result<StopReason, StopReason> {
        let choice = self.session.state().choice.clone();
        let choice = choice.ok_or_else(|| StopReason::Failed(failure::unconfigured()))?;
        let text = match command {
            SlashCommand::Compact => {
                let mut request = self.new_request(&choice);
                // Compact all turns except the last one.
                match self.compact(&choice, &mut request, 0).await? {
                    Compaction::Done => {
                        "The earlier part of this conversation has been replaced by a summary.".to_owned()
                    }
                    Compaction::Nothing => "There is nothing to compact yet.".to_owned(),
                    Compaction::Unsummarized(Some(error)) => return Err(StopReason::Failed(error)),
                    Compaction::Unsummarized(None) => format!("{NO_SUMMARY} The conversation is as it was."),
                }
            }
            SlashCommand::Status => self.status_text(&choice),
        };
        self.updates.send_text(&text).await?;
        Ok(StopReason::EndTurn)
    }

    fn status_text(&self, choice: &Choice) -> String {
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
            state.past_turns.len(),
            if names.is_empty() { "none".to_owned() } else { names.join(", ") },
            state.dirs.cwd,
        )
    }
}

fn sum_usage(sum: &Usage, more: &Usage) -> Usage {
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

/// Returns the update with the time of the last activity and, if given, a title.
fn session_info_update(title: Option<&str>) -> Value {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string();
    let mut update = json!({"sessionUpdate": "session_info_update", "updatedAt": now});
    if let Some(title) = title {
        update["title"] = title.into();
    }
    update
}

/// Sends a harmless update whenever no update was sent for [`KEEPALIVE_INTERVAL`].
async fn send_keepalives(peer: Peer, session: Arc<Session>, sent_chunks: Arc<AtomicU64>, version: Version) {
    let mut before = sent_chunks.load(Ordering::Relaxed);
    loop {
        tokio::time::sleep(KEEPALIVE_INTERVAL).await;
        let now = sent_chunks.load(Ordering::Relaxed);
        if now == before {
            let mut update = session_info_update(None);
            // During a tool call, the keepalive updates that call, because clients watch for its updates.
            if let Some(call) = session.active_calls().into_iter().next()
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
