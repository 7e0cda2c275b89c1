//! A gate at work: on two links, a log and a clock.

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
use tokio::time::{Instant, sleep_until};

use crate::batches::Batches;
use crate::gate::{ApprovalRequest, ApprovalVote, AuditSeq, Gate, GateOutput, ToolCheck, VoteError};

/// How many events may be on their way to the disk before nothing more is read.
const MAX_PENDING_EVENTS: usize = 16;
/// How much of the stderr of an agent that has gone the client is shown.
const MAX_STDERR_LINES: usize = 5;
const MAX_STDERR_CHARS: usize = 1000;
/// How far away a deadline is when there is none.
const NO_DEADLINE_SLEEP: Duration = Duration::from_secs(86_400);

/// What a client is told of what it asked before it ended its input.
const UNANSWERED: &str = "it was not done in time after the end of the input";
/// What a client is told of what it asked before somebody wanted us to end.
const STOPPED: &str = "nothing is served any more";

/// How a gate came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateExit {
    /// The client has gone, or has ended its input and got what it had asked for.
    ClientClosed,
    /// The agent has gone.
    AgentLost,
    /// The agent is to be ended because it does not do as it is told.
    AgentViolation(String),
    /// The agent is to be ended because it does not answer, and may take its leave.
    AgentUnresponsive(String),
    /// Somebody wanted it to.
    Stopped,
}

/// Something that is asked of a gate at work.
#[derive(Debug)]
pub enum GateRequest {
    /// What waits for an approval?
    ListApprovals(oneshot::Sender<Vec<ApprovalRequest>>),
    /// May an agent of our own call this? Why not, or nothing if it may.
    CheckTool(ToolCheck, oneshot::Sender<Option<String>>),
    /// Somebody says something about it.
    Vote(ApprovalVote, oneshot::Sender<Result<(), VoteError>>),
    /// It is to end, as if the client had gone.
    Stop,
}

/// What comes out of the gate in one go.
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

/// An event on its way. Without a log there is none to go.
type PendingAppend = (AuditSeq, Option<Append>);

/// Stands between a client and an agent until one of them has gone. What was to be recorded by then is when this returns.
/// Without a log nothing is; whether that may be is for the caller to know.
pub async fn run_gate(
    gate: Gate,
    client: Link,
    agent: Link,
    log: impl Into<Option<Log>>,
    requests: mpsc::Receiver<GateRequest>,
) -> GateExit {
    let driver = GateDriver {
        gate,
        log: log.into(),
        started: Instant::now(),
        output: GateOutputBuffer::default(),
        client: SideIo { sender: client.sender, batches: Batches::default() },
        agent: SideIo { sender: agent.sender, batches: Batches::default() },
        events: VecDeque::new(),
        held_events: VecDeque::new(),
        unplaced: 0,
        waiting_checks: HashMap::new(),
        last_check: 0,
    };
    driver.run(client.receiver, agent.receiver, requests).await
}

/// One end of the gate.
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
    /// Events on their way to the disk, in order.
    events: VecDeque<PendingAppend>,
    /// Events that wait until those before them have their place.
    held_events: VecDeque<(AuditSeq, Event)>,
    /// How many of those on their way have no place yet.
    unplaced: usize,
    /// Who waits for advice.
    waiting_checks: HashMap<u64, oneshot::Sender<Option<String>>>,
    last_check: u64,
}

/// Which end something came from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GateSide {
    Client,
    Agent,
}

impl GateDriver {
    async fn run(
        mut self,
        mut client: narrows_link::Receiver,
        mut agent: narrows_link::Receiver,
        mut requests: mpsc::Receiver<GateRequest>,
    ) -> GateExit {
        let (mut from_client, mut from_agent) = (Vec::new(), Vec::new());
        let input = self.agent.sender.clone();
        // Not begun anew with every message: what is said to the agent does not make it read.
        let mut stalled = std::pin::pin!(input.standstill(self.gate.timeouts().write));
        let (mut client_has_room, mut agent_has_room, mut requests_open) = (true, true, true);
        // Until when a client that says nothing more is answered.
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
            let reads = self.events.len() + self.held_events.len() < MAX_PENDING_EVENTS;
            tokio::select! {
                biased;
                settled = next_audit_results(&mut self.events), if !self.events.is_empty() => self.apply_audit_results(settled),
                () = sleep_until(due) => {
                    self.gate.tick(self.started.elapsed(), &mut self.output);
                    self.flush_output();
                }
                () = sleep_until(linger_until.unwrap_or(due)), if linger_until.is_some() => break GateExit::ClientClosed,
                () = &mut flushed, if linger_until.is_some() => break GateExit::ClientClosed,
                () = &mut stalled => break GateExit::AgentUnresponsive("it reads nothing of what it is told".to_owned()),
                gate_request = requests.recv(), if requests_open => match gate_request {
                    Some(GateRequest::Stop) => break GateExit::Stopped,
                    Some(gate_request) => self.handle_request(gate_request),
                    None => requests_open = false,
                },
                () = self.client.sender.room(), if !client_has_room => client_has_room = true,
                () = self.agent.sender.room(), if !agent_has_room => agent_has_room = true,
                more = client.recv_all(&mut from_client), if linger_until.is_none() && reads && client_has_room && agent_has_room => {
                    if !more {
                        linger_until = Some(Instant::now() + self.gate.timeouts().close);
                        self.gate.close_client_input(self.started.elapsed(), &mut self.output);
                        self.flush_output();
                        continue;
                    }
                    // A refusal goes back to the sender: a peer that sends and does not read is not read from either.
                    (client_has_room, agent_has_room) = (false, false);
                    for frame in from_client.drain(..) {
                        self.handle_frame(GateSide::Client, &frame);
                    }
                }
                more = agent.recv_all(&mut from_agent), if reads && client_has_room && agent_has_room => {
                    if !more {
                        // A client that only reads still learns that its agent is lost, if it waits for something.
                        break if linger_until.is_some() && self.gate.is_idle() { GateExit::ClientClosed } else { GateExit::AgentLost };
                    }
                    (client_has_room, agent_has_room) = (false, false);
                    for frame in from_agent.drain(..) {
                        self.handle_frame(GateSide::Agent, &frame);
                    }
                }
            }
        };
        self.finish(&ended).await;
        ended
    }

    /// Whether the client has got all that it will get.
    fn is_finished(&self) -> bool {
        self.events.is_empty() && self.held_events.is_empty() && self.gate.is_idle()
    }

    /// Takes one line of one end.
    fn handle_frame(&mut self, from: GateSide, frame: &Frame) {
        if !is_one_line(frame.bytes()) {
            // For some readers it would be more than one, and the others nobody has decided about.
            let mut line = frame.bytes().to_vec();
            make_line(&mut line);
            return self.handle_frame(from, &Frame::parse(line.into()));
        }
        if frame.kind() == Kind::Batch {
            let end = self.side(from);
            let outcome = end.batches.split(frame);
            if let Some(line) = outcome.line {
                // Nobody is there to hear it: then nobody is told.
                let _ = end.sender.push(line);
            }
            for frame in outcome.deliver {
                self.handle_frame(from, &frame);
            }
            return;
        }
        let now = self.started.elapsed();
        match from {
            GateSide::Client => self.gate.handle_client_message(now, frame.view(), &mut self.output),
            GateSide::Agent => self.gate.handle_agent_message(now, frame.view(), &mut self.output),
        }
        self.flush_output();
    }

    /// Does what was to be done once these were recorded.
    fn apply_audit_results(&mut self, settled: Vec<(AuditSeq, bool)>) {
        let now = self.started.elapsed();
        for (seq, written) in settled {
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

    /// Sends and records what came out of the gate.
    fn flush_output(&mut self) {
        loop {
            self.held_events.append(&mut self.output.events);
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
                // The room is kept, unless what was put was the last of a batch and brought more.
                let more = self.output.lines(which);
                if more.is_empty() {
                    *more = lines;
                }
            }
        }
    }

    /// Sends one line, or puts it into the array that it is a part of.
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

    /// Logs what is to be, in order: nothing overtakes what has no place yet.
    fn append_held(&mut self) {
        while self.unplaced == 0
            && let Some((seq, event)) = self.held_events.pop_front()
        {
            let append = self.log.as_ref().map(|log| log.append(event));
            if append.as_ref().is_some_and(Append::is_waiting) {
                // It has its place when it is settled at the latest, and so has everything before it.
                self.unplaced = self.events.len() + 1;
            }
            self.events.push_back((seq, append));
        }
    }

    fn handle_request(&mut self, gate_request: GateRequest) {
        match gate_request {
            // Whoever does not wait for the answer does not need it.
            GateRequest::ListApprovals(answer) => {
                let _ = answer.send(self.gate.pending_approvals());
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
            // Whoever reads inquiries ends by it.
            GateRequest::Stop => {}
        }
    }

    /// Ends what is left, and waits until all of it is recorded.
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
                self.gate.handle_agent_lost(now, None, &mut self.output)
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

/// Returns how a process ended, with the last lines of its stderr. Each connection has an agent of its own, so those lines are
/// about this client.
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

/// Waits until something is settled, and tells of all that is: in order, and whether it was recorded.
async fn next_audit_results(events: &mut VecDeque<PendingAppend>) -> Vec<(AuditSeq, bool)> {
    poll_fn(|context| {
        let mut settled = Vec::new();
        while let Some((seq, append)) = events.front_mut()
            && let Poll::Ready(written) = poll_append(append, context)
        {
            settled.push((*seq, written));
            events.pop_front();
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
