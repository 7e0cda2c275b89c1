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
use crate::gate::{Ballot, BallotError, Gate, Open, Out, Request, Ticket};

/// How many events may be on their way to the disk before nothing more is read.
const MOST_EVENTS: usize = 16;
/// How much of the stderr of an agent that has gone the client is shown.
const MAX_STDERR_LINES: usize = 5;
const MAX_STDERR_CHARS: usize = 1000;
/// How far away a deadline is when there is none.
const FAR: Duration = Duration::from_secs(86_400);

/// What a client is told of what it asked before it ended its input.
const UNANSWERED: &str = "it was not done in time after the end of the input";
/// What a client is told of what it asked before somebody wanted us to end.
const STOPPED: &str = "nothing is served any more";

/// How a gate came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The client has gone, or has ended its input and got what it had asked for.
    Client,
    /// The agent has gone.
    Agent,
    /// The agent is to be ended because it does not do as it is told.
    Unruly(String),
    /// The agent is to be ended because it does not answer, and may take its leave.
    Stuck(String),
    /// Somebody wanted it to.
    Told,
}

/// Something that is asked of a gate at work.
#[derive(Debug)]
pub enum Inquiry {
    /// What waits for an approval?
    Open(oneshot::Sender<Vec<Open>>),
    /// May an agent of our own call this? Why not, or nothing if it may.
    Consult(Request, oneshot::Sender<Option<String>>),
    /// Somebody says something about it.
    Ballot(Ballot, oneshot::Sender<Result<(), BallotError>>),
    /// It is to end, as if the client had gone.
    End,
}

/// What comes out of the gate in one go.
#[derive(Debug, Default)]
struct Tray {
    to_client: Vec<Bytes>,
    to_agent: Vec<Bytes>,
    events: VecDeque<(Ticket, Event)>,
    advice: Vec<(u64, Option<String>)>,
    end: Option<Ended>,
}

impl Tray {
    fn lines(&mut self, which: From) -> &mut Vec<Bytes> {
        match which {
            From::Client => &mut self.to_client,
            From::Agent => &mut self.to_agent,
        }
    }
}

impl Out for Tray {
    fn to_client(&mut self, parts: &[&[u8]]) {
        self.to_client.push(parts.concat().into());
    }

    fn to_agent(&mut self, parts: &[&[u8]]) {
        self.to_agent.push(parts.concat().into());
    }

    fn record(&mut self, ticket: Ticket, event: Event) {
        self.events.push_back((ticket, event));
    }

    fn advise(&mut self, number: u64, refusal: Option<String>) {
        self.advice.push((number, refusal));
    }

    fn end_agent(&mut self, why: &str) {
        self.end.get_or_insert_with(|| Ended::Unruly(why.to_owned()));
    }

    fn release_agent(&mut self, why: &str) {
        self.end.get_or_insert_with(|| Ended::Stuck(why.to_owned()));
    }
}

/// An event on its way. Without a log there is none to go.
type Settling = (Ticket, Option<Append>);

/// Stands between a client and an agent until one of them has gone. What was to be recorded by then is when this returns.
/// Without a log nothing is; whether that may be is for the caller to know.
pub async fn stand(
    gate: Gate,
    client: Link,
    agent: Link,
    log: impl Into<Option<Log>>,
    inquiries: mpsc::Receiver<Inquiry>,
) -> Ended {
    let guard = Guard {
        gate,
        log: log.into(),
        began: Instant::now(),
        tray: Tray::default(),
        client: End { sender: client.sender, batches: Batches::default() },
        agent: End { sender: agent.sender, batches: Batches::default() },
        events: VecDeque::new(),
        held: VecDeque::new(),
        unplaced: 0,
        asking: HashMap::new(),
        asked: 0,
    };
    guard.run(client.receiver, agent.receiver, inquiries).await
}

/// One end of the gate.
#[derive(Debug)]
struct End {
    sender: Sender,
    batches: Batches,
}

struct Guard {
    gate: Gate,
    log: Option<Log>,
    began: Instant,
    tray: Tray,
    client: End,
    agent: End,
    /// Events on their way to the disk, in order.
    events: VecDeque<Settling>,
    /// Events that wait until those before them have their place.
    held: VecDeque<(Ticket, Event)>,
    /// How many of those on their way have no place yet.
    unplaced: usize,
    /// Who waits for advice.
    asking: HashMap<u64, oneshot::Sender<Option<String>>>,
    asked: u64,
}

/// Which end something came from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Client,
    Agent,
}

impl Guard {
    async fn run(
        mut self,
        mut client: narrows_link::Receiver,
        mut agent: narrows_link::Receiver,
        mut inquiries: mpsc::Receiver<Inquiry>,
    ) -> Ended {
        let (mut said, mut told) = (Vec::new(), Vec::new());
        let input = self.agent.sender.clone();
        // Not begun anew with every message: what is said to the agent does not make it read.
        let mut deaf = std::pin::pin!(input.standstill(self.gate.patience().write));
        let (mut client_has_room, mut agent_has_room, mut asks) = (true, true, true);
        // Until when a client that says nothing more is answered.
        let mut until: Option<Instant> = None;
        let output = self.client.sender.clone();
        let mut gone = std::pin::pin!(output.written());
        let ended = loop {
            if let Some(ended) = self.tray.end.take() {
                break ended;
            }
            if until.is_some() && self.is_settled() {
                break Ended::Client;
            }
            let due = self.gate.deadline().map_or_else(|| Instant::now() + FAR, |at| self.began + at);
            let reads = self.events.len() + self.held.len() < MOST_EVENTS;
            tokio::select! {
                biased;
                settled = next(&mut self.events), if !self.events.is_empty() => self.settle(settled),
                () = sleep_until(due) => {
                    self.gate.tick(self.began.elapsed(), &mut self.tray);
                    self.deal_out();
                }
                () = sleep_until(until.unwrap_or(due)), if until.is_some() => break Ended::Client,
                () = &mut gone, if until.is_some() => break Ended::Client,
                () = &mut deaf => break Ended::Stuck("it reads nothing of what it is told".to_owned()),
                inquiry = inquiries.recv(), if asks => match inquiry {
                    Some(Inquiry::End) => break Ended::Told,
                    Some(inquiry) => self.inquire(inquiry),
                    None => asks = false,
                },
                () = self.client.sender.room(), if !client_has_room => client_has_room = true,
                () = self.agent.sender.room(), if !agent_has_room => agent_has_room = true,
                more = client.recv_all(&mut said), if until.is_none() && reads && client_has_room && agent_has_room => {
                    if !more {
                        until = Some(Instant::now() + self.gate.patience().close);
                        self.gate.client_mute(self.began.elapsed(), &mut self.tray);
                        self.deal_out();
                        continue;
                    }
                    // A refusal goes back to the sender: a peer that sends and does not read is not read from either.
                    (client_has_room, agent_has_room) = (false, false);
                    for frame in said.drain(..) {
                        self.take(From::Client, &frame);
                    }
                }
                more = agent.recv_all(&mut told), if reads && client_has_room && agent_has_room => {
                    if !more {
                        // A client that only reads still learns that its agent is lost, if it waits for something.
                        break if until.is_some() && self.gate.is_settled() { Ended::Client } else { Ended::Agent };
                    }
                    (client_has_room, agent_has_room) = (false, false);
                    for frame in told.drain(..) {
                        self.take(From::Agent, &frame);
                    }
                }
            }
        };
        self.finish(&ended).await;
        ended
    }

    /// Whether the client has got all that it will get.
    fn is_settled(&self) -> bool {
        self.events.is_empty() && self.held.is_empty() && self.gate.is_settled()
    }

    /// Takes one line of one end.
    fn take(&mut self, from: From, frame: &Frame) {
        if !is_one_line(frame.bytes()) {
            // For some readers it would be more than one, and the others nobody has decided about.
            let mut line = frame.bytes().to_vec();
            make_line(&mut line);
            return self.take(from, &Frame::parse(line.into()));
        }
        if frame.kind() == Kind::Batch {
            let end = self.end(from);
            let outcome = end.batches.take(frame);
            if let Some(line) = outcome.line {
                // Nobody is there to hear it: then nobody is told.
                let _ = end.sender.push(line);
            }
            for frame in outcome.deliver {
                self.take(from, &frame);
            }
            return;
        }
        let now = self.began.elapsed();
        match from {
            From::Client => self.gate.client(now, frame.view(), &mut self.tray),
            From::Agent => self.gate.agent(now, frame.view(), &mut self.tray),
        }
        self.deal_out();
    }

    /// Does what was to be done once these were recorded.
    fn settle(&mut self, settled: Vec<(Ticket, bool)>) {
        let now = self.began.elapsed();
        for (ticket, written) in settled {
            self.unplaced = self.unplaced.saturating_sub(1);
            self.gate.settled(now, ticket, written, &mut self.tray);
        }
        self.deal_out();
    }

    fn end(&mut self, which: From) -> &mut End {
        match which {
            From::Client => &mut self.client,
            From::Agent => &mut self.agent,
        }
    }

    /// Sends and records what came out of the gate.
    fn deal_out(&mut self) {
        loop {
            self.held.append(&mut self.tray.events);
            self.log_held();
            for (number, refusal) in self.tray.advice.drain(..) {
                if let Some(asker) = self.asking.remove(&number) {
                    let _ = asker.send(refusal);
                }
            }
            if self.tray.to_client.is_empty() && self.tray.to_agent.is_empty() {
                return;
            }
            for which in [From::Client, From::Agent] {
                let mut lines = std::mem::take(self.tray.lines(which));
                for line in lines.drain(..) {
                    self.put(which, line);
                }
                // The room is kept, unless what was put was the last of a batch and brought more.
                let more = self.tray.lines(which);
                if more.is_empty() {
                    *more = lines;
                }
            }
        }
    }

    /// Sends one line, or puts it into the array that it is a part of.
    fn put(&mut self, which: From, line: Bytes) {
        let end = self.end(which);
        let outcome = if end.batches.is_empty() { None } else { end.batches.answer(&line) };
        let Some(outcome) = outcome else {
            let _ = end.sender.push(line);
            return;
        };
        if let Some(whole) = outcome.line {
            let _ = end.sender.push(whole);
        }
        let now = self.began.elapsed();
        for frame in outcome.deliver {
            match which {
                From::Client => self.gate.client(now, frame.view(), &mut self.tray),
                From::Agent => self.gate.agent(now, frame.view(), &mut self.tray),
            }
        }
    }

    /// Logs what is to be, in order: nothing overtakes what has no place yet.
    fn log_held(&mut self) {
        while self.unplaced == 0
            && let Some((ticket, event)) = self.held.pop_front()
        {
            let append = self.log.as_ref().map(|log| log.append(event));
            if append.as_ref().is_some_and(Append::is_waiting) {
                // It has its place when it is settled at the latest, and so has everything before it.
                self.unplaced = self.events.len() + 1;
            }
            self.events.push_back((ticket, append));
        }
    }

    fn inquire(&mut self, inquiry: Inquiry) {
        match inquiry {
            // Whoever does not wait for the answer does not need it.
            Inquiry::Open(answer) => {
                let _ = answer.send(self.gate.open());
            }
            Inquiry::Consult(request, answer) => {
                self.asked += 1;
                self.asking.insert(self.asked, answer);
                self.gate.consult(self.began.elapsed(), self.asked, request, &mut self.tray);
                self.deal_out();
            }
            Inquiry::Ballot(ballot, answer) => {
                let outcome = self.gate.ballot(self.began.elapsed(), ballot, &mut self.tray);
                self.deal_out();
                let _ = answer.send(outcome);
            }
            // Whoever reads inquiries ends by it.
            Inquiry::End => {}
        }
    }

    /// Ends what is left, and waits until all of it is recorded.
    async fn finish(&mut self, ended: &Ended) {
        let now = self.began.elapsed();
        match ended {
            Ended::Client => self.gate.client_left(now, UNANSWERED, &mut self.tray),
            Ended::Told => self.gate.client_left(now, STOPPED, &mut self.tray),
            Ended::Agent => {
                let how = last_words(&self.agent.sender.reason());
                self.gate.agent_gone(now, how.as_deref(), &mut self.tray);
            }
            Ended::Unruly(_) | Ended::Stuck(_) => self.gate.agent_gone(now, None, &mut self.tray),
        }
        self.deal_out();
        while !self.events.is_empty() {
            let settled = next(&mut self.events).await;
            self.settle(settled);
        }
        self.client.sender.close();
        self.agent.sender.close();
    }
}

/// Returns how a process ended, with the last lines of its stderr. Each connection has an agent of its own, so those lines are
/// about this client.
fn last_words(reason: &CloseReason) -> Option<String> {
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
async fn next(events: &mut VecDeque<Settling>) -> Vec<(Ticket, bool)> {
    poll_fn(|context| {
        let mut settled = Vec::new();
        while let Some((ticket, append)) = events.front_mut()
            && let Poll::Ready(written) = poll(append, context)
        {
            settled.push((*ticket, written));
            events.pop_front();
        }
        if settled.is_empty() { Poll::Pending } else { Poll::Ready(settled) }
    })
    .await
}

fn poll(append: &mut Option<Append>, context: &mut Context<'_>) -> Poll<bool> {
    match append {
        None => Poll::Ready(true),
        Some(append) => Pin::new(append).poll(context).map(|recorded| recorded.is_ok()),
    }
}
