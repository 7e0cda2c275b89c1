//! Runs a gate on two links, an audit log and a clock.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use narrows_audit::{Append, Event, Log};
use narrows_base::text::one_line;
use narrows_link::{CloseReason, Link, Sender};
use narrows_wire::{Frame, Kind, is_one_line, make_line};
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

use crate::batches::Batches;
use crate::gate::{
    ApprovalRequest, ApprovalSummary, ApprovalVote, AuditSeq, Gate, GateOutput, ToolCheck, VoteError,
    value_bytes,
};

/// While this many events are not yet durable, nothing is read from either peer.
const MAX_PENDING_EVENTS: usize = 16;
/// While this many bytes of events are not yet durable, no received message is handled.
const MAX_PENDING_EVENT_BYTES: usize = 8 << 20;
/// Estimated size of an event without its input and output.
const EVENT_BYTES: usize = 2 << 10;
/// Maximum time for handling received messages in one round. Deadlines, requests and other tasks of the
/// thread get a turn after each round.
const MAX_ROUND_TIME: Duration = Duration::from_millis(5);
/// Maximum number of stderr lines of a lost agent in the error for the client.
const MAX_STDERR_LINES: usize = 5;
const MAX_STDERR_CHARS: usize = 1000;
/// Sleep time while there is no deadline.
const NO_DEADLINE_SLEEP: Duration = Duration::from_secs(86_400);

/// Error for requests that are unanswered when the grace period after the end of the client's input is over.
const UNANSWERED: &str = "not answered in time after the end of input";
/// Error for requests that are unanswered when the gate is stopped.
const STOPPED: &str = "the server is shutting down";

/// Reason why a gate ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateExit {
    /// The client disconnected, or the client ended its input and has received all answers.
    ClientClosed,
    /// The agent exited or closed its output.
    AgentLost,
    /// The agent violated the governance. The caller of `run_gate` kills the agent.
    AgentViolation(String),
    /// The agent does not respond. The caller of `run_gate` terminates the agent, with time to exit.
    AgentUnresponsive(String),
    Stopped,
}

/// A request to a running gate.
#[derive(Debug)]
pub enum GateRequest {
    /// The pending approvals in full.
    ListApprovals(oneshot::Sender<Vec<ApprovalRequest>>),
    /// The pending approvals for a list.
    SummarizeApprovals(oneshot::Sender<Vec<ApprovalSummary>>),
    /// The pending approval with this id.
    ShowApproval(String, oneshot::Sender<Option<ApprovalRequest>>),
    /// Asks if the built-in agent may call a tool. The answer is the reason of a refusal, or `None`.
    CheckTool(ToolCheck, oneshot::Sender<Option<String>>),
    Vote(ApprovalVote, oneshot::Sender<Result<(), VoteError>>),
    /// Ends the gate as if the client had disconnected.
    Stop,
}

/// Output of the gate that is neither sent nor recorded yet.
#[derive(Debug, Default)]
struct GateOutputBuffer {
    to_client: Vec<Bytes>,
    to_agent: Vec<Bytes>,
    events: VecDeque<(AuditSeq, Event)>,
    advice: Vec<(u64, Option<String>)>,
    end: Option<GateExit>,
}

impl GateOutputBuffer {
    fn lines(&mut self, which: GateSide) -> &mut Vec<Bytes> {
        match which {
            GateSide::Client => &mut self.to_client,
            GateSide::Agent => &mut self.to_agent,
        }
    }
}

impl GateOutput for GateOutputBuffer {
    fn to_client(&mut self, parts: &[&[u8]]) {
        self.to_client.push(parts.concat().into());
    }

    fn to_agent(&mut self, parts: &[&[u8]]) {
        self.to_agent.push(parts.concat().into());
    }

    fn record(&mut self, seq: AuditSeq, event: Event) {
        self.events.push_back((seq, event));
    }

    fn answer_tool_check(&mut self, number: u64, refusal: Option<String>) {
        self.advice.push((number, refusal));
    }

    fn end_agent(&mut self, why: &str) {
        self.end.get_or_insert_with(|| GateExit::AgentViolation(why.to_owned()));
    }

    fn end_agent_gracefully(&mut self, why: &str) {
        self.end.get_or_insert_with(|| GateExit::AgentUnresponsive(why.to_owned()));
    }
}

struct PendingAppend {
    seq: AuditSeq,
    append: Option<Append>,
    bytes: usize,
}

/// Runs a gate between a client and an agent until one of the two disconnects. All events are recorded when
/// this function returns.
///
/// Without a log, nothing is recorded.
pub async fn run_gate(
    gate: Gate,
    client: Link,
    agent: Link,
    log: impl Into<Option<Log>>,
    requests: mpsc::Receiver<GateRequest>,
) -> GateExit {
    let driver = GateDriver::new(gate, client.sender, agent.sender, log.into());
    driver.run(client.receiver, agent.receiver, requests).await
}

/// The sending half of one link, and its unanswered batches.
#[derive(Debug)]
struct SideIo {
    sender: Sender,
    batches: Batches,
}

struct GateDriver {
    gate: Gate,
    log: Option<Log>,
    started: Instant,
    output: GateOutputBuffer,
    client: SideIo,
    agent: SideIo,
    /// Events that are being written to the log, in order.
    events: VecDeque<PendingAppend>,
    held_events: VecDeque<(AuditSeq, Event, usize)>,
    event_bytes: usize,
    /// Received messages that are not handled yet. Peers are read only while the queue is empty.
    round: VecDeque<(GateSide, Frame)>,
    /// Number of the oldest events in `events` that must be durable before another event is appended. The
    /// last of these events has no position in the log yet.
    unplaced: usize,
    waiting_checks: HashMap<u64, oneshot::Sender<Option<String>>>,
    last_check: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum GateSide {
    Client,
    Agent,
}

impl GateDriver {
    fn new(gate: Gate, client: Sender, agent: Sender, log: Option<Log>) -> Self {
        let retained = gate.retained();
        Self {
            gate,
            log,
            started: Instant::now(),
            output: GateOutputBuffer::default(),
            client: SideIo { sender: client, batches: Batches::new(retained.clone()) },
            agent: SideIo { sender: agent, batches: Batches::new(retained) },
            events: VecDeque::new(),
            held_events: VecDeque::new(),
            event_bytes: 0,
            round: VecDeque::new(),
            unplaced: 0,
            waiting_checks: HashMap::new(),
            last_check: 0,
        }
    }

    async fn run(
        mut self,
        mut client: narrows_link::Receiver,
        mut agent: narrows_link::Receiver,
        mut requests: mpsc::Receiver<GateRequest>,
    ) -> GateExit {
        let (mut from_client, mut from_agent) = (Vec::new(), Vec::new());
        let input = self.agent.sender.clone();
        // The timer is created once, so that new messages to the agent do not reset it. Only reads by the
        // agent do.
        let mut stalled = std::pin::pin!(input.standstill(self.gate.timeouts().write));
        let (mut client_has_room, mut agent_has_room, mut requests_open) = (true, true, true);
        // Set when the client has ended its input: the deadline for the remaining answers.
        let mut linger_until: Option<Instant> = None;
        let client_output = self.client.sender.clone();
        let mut flushed = std::pin::pin!(client_output.written());
        let ended = loop {
            if let Some(ended) = self.output.end.take() {
                break ended;
            }
            if linger_until.is_some() && self.is_finished() {
                break GateExit::ClientClosed;
            }
            let due = self
                .gate
                .next_deadline()
                .map_or_else(|| Instant::now() + NO_DEADLINE_SLEEP, |at| self.started + at);
            let has_round = !self.round.is_empty();
            let reads = !has_round && self.events.len() + self.held_events.len() < MAX_PENDING_EVENTS;
            let handles = has_round && self.has_event_room();
            tokio::select! {
                biased;
                settled = next_audit_results(&mut self.events), if !self.events.is_empty() => self.apply_audit_results(settled),
                () = sleep_until(due) => {
                    self.gate.tick(self.started.elapsed(), &mut self.output);
                    self.flush_output();
                }
                () = sleep_until(linger_until.unwrap_or(due)), if linger_until.is_some() => break GateExit::ClientClosed,
                () = &mut flushed, if linger_until.is_some() => break GateExit::ClientClosed,
                () = &mut stalled => break GateExit::AgentUnresponsive("it does not read its input".to_owned()),
                gate_request = requests.recv(), if requests_open => match gate_request {
                    Some(GateRequest::Stop) => break GateExit::Stopped,
                    Some(gate_request) => self.handle_request(gate_request),
                    None => requests_open = false,
                },
                () = self.client.sender.room(), if !client_has_room => client_has_room = true,
                () = self.agent.sender.room(), if !agent_has_room => agent_has_room = true,
                () = yield_now(), if handles => self.handle_round(),
                more = client.recv_all(&mut from_client), if linger_until.is_none() && reads && client_has_room && agent_has_room => {
                    if !more {
                        linger_until = Some(Instant::now() + self.gate.timeouts().close);
                        self.gate.close_client_input(self.started.elapsed(), &mut self.output);
                        self.flush_output();
                        continue;
                    }
                    // Nothing is read from a peer that does not drain its own queue: every further message
                    // could cause another refusal in that queue.
                    (client_has_room, agent_has_room) = (false, false);
                    self.round.extend(from_client.drain(..).map(|frame| (GateSide::Client, frame)));
                    self.handle_round();
                }
                more = agent.recv_all(&mut from_agent), if reads && client_has_room && agent_has_room => {
                    if !more {
                        // The client may wait for an answer without sending anything. Then the loss of the
                        // agent is reported to the client.
                        break if linger_until.is_some() && self.gate.is_idle() { GateExit::ClientClosed } else { GateExit::AgentLost };
                    }
                    (client_has_room, agent_has_room) = (false, false);
                    self.round.extend(from_agent.drain(..).map(|frame| (GateSide::Agent, frame)));
                    self.handle_round();
                }
            }
        };
        self.finish(&ended).await;
        ended
    }

    /// Returns `true` if a client that has ended its input will not get any further answer.
    fn is_finished(&self) -> bool {
        self.events.is_empty() && self.held_events.is_empty() && self.round.is_empty() && self.gate.is_idle()
    }

    /// Returns `true` if another event may be queued for the disk. Checked before each message, because a
    /// slow disk must not fill the memory.
    fn has_event_room(&self) -> bool {
        self.event_bytes < MAX_PENDING_EVENT_BYTES
    }

    /// Handles received messages until none is left or the time of the round is over.
    fn handle_round(&mut self) {
        let started = Instant::now();
        while self.has_event_room()
            && let Some((from, frame)) = self.round.pop_front()
        {
            self.handle_frame(from, &frame);
            if started.elapsed() > MAX_ROUND_TIME {
                break;
            }
        }
    }

    fn handle_frame(&mut self, from: GateSide, frame: &Frame) {
        if !is_one_line(frame.bytes()) {
            // Some readers take a line with inner line breaks for several messages, and the gate has judged
            // only one.
            let mut line = frame.bytes().to_vec();
            make_line(&mut line);
            return self.handle_frame(from, &Frame::parse(line.into()));
        }
        if frame.kind() == Kind::Batch {
            let end = self.side(from);
            let outcome = end.batches.split(frame);
            if let Some(line) = outcome.line {
                // A closed link drops the line, because the peer no longer reads.
                let _ = end.sender.push(line);
            }
            for frame in outcome.deliver {
                self.handle_message(from, &frame);
            }
            return;
        }
        let end = self.side(from);
        if let Some(line) = end.batches.refuse_used_id(frame) {
            let _ = end.sender.push(line);
            return;
        }
        self.handle_message(from, frame);
    }

    /// Handles a message of one line that is not a batch.
    fn handle_message(&mut self, from: GateSide, frame: &Frame) {
        let now = self.started.elapsed();
        match from {
            GateSide::Client => self.gate.handle_client_message(now, frame.view(), &mut self.output),
            GateSide::Agent => self.gate.handle_agent_message(now, frame.view(), &mut self.output),
        }
        self.flush_output();
    }

    /// Reports to the gate which events were recorded and which failed.
    fn apply_audit_results(&mut self, settled: Vec<(PendingAppend, bool)>) {
        let now = self.started.elapsed();
        for (PendingAppend { seq, bytes, .. }, written) in settled {
            self.event_bytes -= bytes;
            self.unplaced = self.unplaced.saturating_sub(1);
            self.gate.handle_audit_result(now, seq, written, &mut self.output);
        }
        self.flush_output();
    }

    fn side(&mut self, which: GateSide) -> &mut SideIo {
        match which {
            GateSide::Client => &mut self.client,
            GateSide::Agent => &mut self.agent,
        }
    }

    fn flush_output(&mut self) {
        loop {
            for (seq, event) in self.output.events.drain(..) {
                let bytes = event_bytes(&event);
                self.event_bytes += bytes;
                self.held_events.push_back((seq, event, bytes));
            }
            self.append_held();
            for (number, refusal) in self.output.advice.drain(..) {
                if let Some(asker) = self.waiting_checks.remove(&number) {
                    let _ = asker.send(refusal);
                }
            }
            if self.output.to_client.is_empty() && self.output.to_agent.is_empty() {
                return;
            }
            for which in [GateSide::Client, GateSide::Agent] {
                let mut lines = std::mem::take(self.output.lines(which));
                for line in lines.drain(..) {
                    self.send_line(which, line);
                }
                // Keeps the allocation for reuse, unless the last line of a batch has produced further
                // output.
                let more = self.output.lines(which);
                if more.is_empty() {
                    *more = lines;
                }
            }
        }
    }

    fn send_line(&mut self, which: GateSide, line: Bytes) {
        let end = self.side(which);
        let outcome = if end.batches.is_empty() { None } else { end.batches.collect_answer(&line) };
        let Some(outcome) = outcome else {
            let _ = end.sender.push(line);
            return;
        };
        if let Some(whole) = outcome.line {
            let _ = end.sender.push(whole);
        }
        let now = self.started.elapsed();
        for frame in outcome.deliver {
            match which {
                GateSide::Client => self.gate.handle_client_message(now, frame.view(), &mut self.output),
                GateSide::Agent => self.gate.handle_agent_message(now, frame.view(), &mut self.output),
            }
        }
    }

    /// Appends held events to the log, in order. While one event has no position in the log, no later event
    /// is appended.
    fn append_held(&mut self) {
        while self.unplaced == 0
            && let Some((seq, event, bytes)) = self.held_events.pop_front()
        {
            let append = self.log.as_ref().map(|log| log.append(event));
            if append.as_ref().is_some_and(Append::is_waiting) {
                // The event gets its position at the latest when it is durable. All earlier events are
                // durable by then.
                self.unplaced = self.events.len() + 1;
            }
            self.events.push_back(PendingAppend { seq, append, bytes });
        }
    }

    fn handle_request(&mut self, gate_request: GateRequest) {
        match gate_request {
            // Sending fails if the caller no longer waits for the answer.
            GateRequest::ListApprovals(answer) => {
                let _ = answer.send(self.gate.pending_approvals());
            }
            GateRequest::SummarizeApprovals(answer) => {
                let _ = answer.send(self.gate.approval_summaries());
            }
            GateRequest::ShowApproval(id, answer) => {
                let _ = answer.send(self.gate.pending_approval(&id));
            }
            GateRequest::CheckTool(request, answer) => {
                self.last_check += 1;
                self.waiting_checks.insert(self.last_check, answer);
                self.gate.check_tool(self.started.elapsed(), self.last_check, request, &mut self.output);
                self.flush_output();
            }
            GateRequest::Vote(vote, answer) => {
                let outcome = self.gate.vote(self.started.elapsed(), vote, &mut self.output);
                self.flush_output();
                let _ = answer.send(outcome);
            }
            // `Stop` is handled by the loop that receives the requests.
            GateRequest::Stop => {}
        }
    }

    /// Closes all sessions, and waits until everything is recorded.
    async fn finish(&mut self, ended: &GateExit) {
        let now = self.started.elapsed();
        match ended {
            GateExit::ClientClosed => self.gate.handle_client_closed(now, UNANSWERED, &mut self.output),
            GateExit::Stopped => self.gate.handle_client_closed(now, STOPPED, &mut self.output),
            GateExit::AgentLost => {
                let how = describe_exit(&self.agent.sender.reason());
                self.gate.handle_agent_lost(now, how.as_deref(), &mut self.output);
            }
            GateExit::AgentViolation(_) | GateExit::AgentUnresponsive(_) => {
                self.gate.handle_agent_lost(now, None, &mut self.output);
            }
        }
        self.flush_output();
        while !self.events.is_empty() {
            let settled = next_audit_results(&mut self.events).await;
            self.apply_audit_results(settled);
        }
        self.client.sender.close();
        self.agent.sender.close();
    }
}

/// Describes how the agent process ended, with its last stderr lines. Each connection has its own agent, so
/// the lines are not about another client.
fn describe_exit(reason: &CloseReason) -> Option<String> {
    let CloseReason::Exited { exit, stderr } = reason else { return None };
    let lines: Vec<&str> = stderr.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let tail = one_line(&lines[lines.len().saturating_sub(MAX_STDERR_LINES)..].join(" | "), usize::MAX);
    let excess = tail.chars().count().saturating_sub(MAX_STDERR_CHARS);
    let kept: String = tail.chars().skip(excess).collect();
    Some(match (kept.is_empty(), excess) {
        (true, _) => exit.to_string(),
        (false, 0) => format!("{exit}; stderr: {kept}"),
        (false, _) => format!("{exit}; stderr: …{kept}"),
    })
}

fn event_bytes(event: &Event) -> usize {
    EVENT_BYTES + [&event.input, &event.output].into_iter().flatten().map(value_bytes).sum::<usize>()
}

/// Waits for at least one audit result. Returns all results that are ready, in order. `true` means that the
/// event is durable.
async fn next_audit_results(events: &mut VecDeque<PendingAppend>) -> Vec<(PendingAppend, bool)> {
    poll_fn(|context| {
        let mut settled = Vec::new();
        while let Some(first) = events.front_mut()
            && let Poll::Ready(written) = poll_append(&mut first.append, context)
        {
            settled.extend(events.pop_front().map(|first| (first, written)));
        }
        if settled.is_empty() { Poll::Pending } else { Poll::Ready(settled) }
    })
    .await
}

fn poll_append(append: &mut Option<Append>, context: &mut Context<'_>) -> Poll<bool> {
    match append {
        None => Poll::Ready(true),
        Some(append) => Pin::new(append).poll(context).map(|recorded| recorded.is_ok()),
    }
}

#[cfg(test)]
mod tests {
    use narrows_link::memory;
    use narrows_policy::{Access, Narrowing, Policy};

    use super::*;
    use crate::config::GateConfig;
    use crate::gate::GateStart;
    use crate::path_resolver::SystemPathResolver;

    #[tokio::test]
    async fn a_round_pauses_while_too_many_bytes_wait_for_the_disk() {
        let policy = Policy::new(Access::High, Narrowing::default());
        let start = GateStart { started_at: 1_700_000_000, nonce: "n".into() };
        let gate =
            Gate::new(GateConfig::default(), Default::default(), policy, Box::new(SystemPathResolver), start);
        let [(client, _), (agent, _)] =
            [memory::pair(&Default::default()), memory::pair(&Default::default())];
        let mut driver = GateDriver::new(gate, client.sender, agent.sender, None);
        let line = Bytes::from_static(br#"{"jsonrpc":"2.0","id":1.5,"method":"session/list"}"#);
        driver.round.extend((0..3).map(|_| (GateSide::Client, Frame::parse(line.clone()))));
        driver.event_bytes = MAX_PENDING_EVENT_BYTES;
        driver.handle_round();
        assert_eq!(driver.round.len(), 3);
        driver.event_bytes -= 1;
        driver.handle_round();
        assert!(driver.round.is_empty());
    }
}
