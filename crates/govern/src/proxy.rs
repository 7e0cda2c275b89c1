//! A place in a chain: both neighbours of a proxy on the one line that leads to their conductor.
//!
//! What the predecessor says comes as it is, what the successor says in an envelope (`proxy/successor`), and the same the
//! other way. A [`Place`] takes envelopes off and puts them on without touching what is in them, so that a gate stands
//! between two ends as it does anywhere else. It is a pure state machine.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use narrows_acp::method;
use narrows_wire::{
    Batch, BatchStep, Code, DEFAULT_MAX_BATCH_ENTRIES, Frame, Kind, Part, RpcError, member, message,
};

use crate::batches::Batches;

/// How many requests of either side may be open.
const MOST_OPEN: usize = 8_192;

/// Who is next to a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Neighbour {
    /// Towards the client.
    Predecessor,
    /// Towards the agent.
    Successor,
}

/// What is to be sent.
#[derive(Debug, Default)]
pub struct Moves {
    /// Lines to the conductor.
    pub to_conductor: Vec<Bytes>,
    /// Messages to whoever stands between, and from which neighbour they are.
    pub from: Vec<(Neighbour, Bytes)>,
}

/// A proxy's place in a chain.
#[derive(Debug, Default)]
pub struct Place {
    /// Requests of the conductor's that are not answered: whose they are, by their ids.
    asked: HashMap<Box<[u8]>, Neighbour>,
    /// Our requests at the conductor: to whom they are, and which ids they had before they got ours.
    asking: HashMap<u64, (Neighbour, Box<[u8]>)>,
    serial: u64,
    batches: Batches,
    /// Entries of arrays whose turn has come.
    next: VecDeque<Frame>,
}

/// Whether this is how a conductor begins with a proxy.
#[must_use]
pub fn is_for_proxy(frame: &Frame) -> bool {
    let is_it = |frame: &Frame| {
        frame.kind() == Kind::Request
            && frame.method().is_some_and(|method| method == method::PROXY_INITIALIZE)
    };
    if frame.kind() != Kind::Batch {
        return is_it(frame);
    }
    let steps = Batch::open(frame, DEFAULT_MAX_BATCH_ENTRIES).map(|(_, steps)| steps).unwrap_or_default();
    steps.iter().any(|step| matches!(step, BatchStep::Deliver(entry) if is_it(entry)))
}

impl Place {
    /// The conductor has said something.
    pub fn conductor(&mut self, frame: Frame, moves: &mut Moves) {
        self.next.push_back(frame);
        self.go_on(moves);
    }

    /// Whoever stands between says something to a neighbour: one message, and no array of them.
    pub fn say(&mut self, to: Neighbour, frame: &Frame, moves: &mut Moves) {
        match frame.kind() {
            Kind::Request => self.ask(to, frame, moves),
            Kind::Notification => self.tell(to, frame, moves),
            Kind::Response => {
                let Some(id) = frame.id() else { return };
                if self.asked.get(id) == Some(&to) {
                    self.asked.remove(id);
                    self.respond(frame.bytes().clone(), moves);
                }
            }
            Kind::Batch | Kind::Invalid(_) => {}
        }
        self.go_on(moves);
    }

    fn go_on(&mut self, moves: &mut Moves) {
        while let Some(frame) = self.next.pop_front() {
            match frame.kind() {
                Kind::Batch => {
                    let outcome = self.batches.take(&frame);
                    moves.to_conductor.extend(outcome.line);
                    self.next.extend(outcome.deliver);
                }
                Kind::Request => self.requested(&frame, moves),
                Kind::Notification => self.notified(&frame, moves),
                Kind::Response => self.answered(&frame, moves),
                Kind::Invalid(_) => moves.to_conductor.extend(frame.refusal()),
            }
        }
    }

    fn requested(&mut self, frame: &Frame, moves: &mut Moves) {
        let (Some(id), Some(method)) = (frame.id(), frame.method()) else { return };
        let taken = if self.asked.contains_key(id) {
            Err(RpcError::new(Code::DuplicateId, "a request with this id is still unanswered"))
        } else if self.asked.len() >= MOST_OPEN {
            Err(RpcError::new(Code::Backpressure, "too many requests are unanswered"))
        } else {
            match &*method {
                method::PROXY_INITIALIZE => Ok((Neighbour::Predecessor, as_initialize(frame))),
                method::INITIALIZE => Err(RpcError::new(
                    Code::InvalidRequest,
                    "this is a proxy in a chain, which begins with proxy/initialize",
                )),
                method::PROXY_SUCCESSOR => unwrap(frame).map(|line| (Neighbour::Successor, line)),
                _ => Ok((Neighbour::Predecessor, frame.bytes().clone())),
            }
        };
        match taken {
            Ok((from, line)) => {
                self.asked.insert(id.into(), from);
                moves.from.push((from, line));
            }
            Err(error) => self.respond(message::error(id, &error), moves),
        }
    }

    /// Nobody answers a notification, so one that cannot be understood comes to nothing.
    fn notified(&mut self, frame: &Frame, moves: &mut Moves) {
        match frame.method().as_deref() {
            Some(method::CANCEL_REQUEST) => {
                // It is about a request on this line, whoever made that.
                let whose = frame.request_id().and_then(|id| self.asked.get(id));
                moves.from.extend(whose.map(|whose| (*whose, frame.bytes().clone())));
            }
            Some(method::PROXY_SUCCESSOR) => {
                let Ok(line) = unwrap(frame) else { return };
                // Cancelling goes from hop to hop and in no envelope.
                if Frame::parse(line.clone()).method().as_deref() != Some(method::CANCEL_REQUEST) {
                    moves.from.push((Neighbour::Successor, line));
                }
            }
            Some(method::PROXY_INITIALIZE | method::INITIALIZE) => {}
            _ => moves.from.push((Neighbour::Predecessor, frame.bytes().clone())),
        }
    }

    /// The conductor has answered: its answer gets the id back that the request had.
    fn answered(&mut self, frame: &Frame, moves: &mut Moves) {
        let number = frame.id().and_then(|id| std::str::from_utf8(id).ok()?.parse().ok());
        let Some((whose, id)) = number.and_then(|number: u64| self.asking.remove(&number)) else { return };
        moves.from.extend(frame.splice(Part::Id, &id).map(|line| (whose, line)));
    }

    fn ask(&mut self, to: Neighbour, frame: &Frame, moves: &mut Moves) {
        let Some(id) = frame.id() else { return };
        if self.asking.len() >= MOST_OPEN {
            let error = RpcError::new(Code::Backpressure, "too many requests are unanswered");
            return moves.from.push((to, message::error(id, &error)));
        }
        self.serial += 1;
        let number = self.serial.to_string();
        let line = match to {
            Neighbour::Predecessor => frame.splice(Part::Id, number.as_bytes()),
            Neighbour::Successor => Some(wrap(Some(&number), frame)),
        };
        self.asking.insert(self.serial, (to, id.into()));
        moves.to_conductor.extend(line);
    }

    fn tell(&mut self, to: Neighbour, frame: &Frame, moves: &mut Moves) {
        if frame.method().as_deref() == Some(method::CANCEL_REQUEST) {
            let is_it = |(_, (whose, id)): &(&u64, &(Neighbour, Box<[u8]>))| {
                *whose == to && Some(&**id) == frame.request_id()
            };
            let number = self.asking.iter().find(is_it).map(|(number, _)| number.to_string());
            let line = number.and_then(|number| frame.splice(Part::RequestId, number.as_bytes()));
            return moves.to_conductor.extend(line);
        }
        moves.to_conductor.push(match to {
            Neighbour::Predecessor => frame.bytes().clone(),
            Neighbour::Successor => wrap(None, frame),
        });
    }

    /// Answers the conductor, in an array if it asked in one.
    fn respond(&mut self, line: Bytes, moves: &mut Moves) {
        let outcome = if self.batches.is_empty() { None } else { self.batches.answer(&line) };
        match outcome {
            None => moves.to_conductor.push(line),
            Some(outcome) => {
                moves.to_conductor.extend(outcome.line);
                self.next.extend(outcome.deliver);
            }
        }
    }
}

/// What a conductor says to a proxy, as it would say it to an agent.
fn as_initialize(frame: &Frame) -> Bytes {
    let (bytes, place) = (frame.bytes(), frame.envelope().method.range());
    [&bytes[..place.start], b"\"initialize\"", &bytes[place.end..]].concat().into()
}

/// A message in an envelope.
fn wrap(id: Option<&str>, frame: &Frame) -> Bytes {
    let id = id.map(|id| format!("\"id\":{id},")).unwrap_or_default();
    let method = frame.envelope().method.slice(frame.bytes()).unwrap_or(b"\"\"");
    let mut line =
        format!("{{\"jsonrpc\":\"2.0\",{id}\"method\":\"{}\",", method::PROXY_SUCCESSOR).into_bytes();
    line.extend_from_slice(b"\"params\":{\"method\":");
    line.extend_from_slice(method);
    if let Some(params) = frame.params() {
        line.extend_from_slice(b",\"params\":");
        line.extend_from_slice(params);
    }
    line.extend_from_slice(b"}}");
    line.into()
}

/// What is in an envelope, with the id that is on it. What else is on it was for us.
fn unwrap(frame: &Frame) -> Result<Bytes, RpcError> {
    let fault = |words: &'static str| RpcError::new(Code::InvalidParams, words);
    let doubled = |_| fault("the envelope can be read in two ways");
    let envelope = frame.params().unwrap_or_default();
    if envelope.first() != Some(&b'{') {
        return Err(fault("the envelope is no object"));
    }
    let method = member(envelope, "method").map_err(doubled)?.map(|place| &envelope[place]);
    let method = method.filter(|method| method.first() == Some(&b'"') && method.len() > 2);
    let method = method.ok_or_else(|| fault("the envelope has no method in it"))?;
    let params = member(envelope, "params").map_err(doubled)?.map(|place| &envelope[place]);
    let params = params.filter(|params| *params != b"null");
    if params.is_some_and(|params| !matches!(params.first(), Some(b'{' | b'['))) {
        return Err(fault("params in the envelope are neither an object nor an array"));
    }
    let mut line = br#"{"jsonrpc":"2.0","#.to_vec();
    if let Some(id) = frame.id() {
        line.extend_from_slice(b"\"id\":");
        line.extend_from_slice(id);
        line.push(b',');
    }
    line.extend_from_slice(b"\"method\":");
    line.extend_from_slice(method);
    if let Some(params) = params {
        line.extend_from_slice(b",\"params\":");
        line.extend_from_slice(params);
    }
    line.push(b'}');
    Ok(line.into())
}

#[cfg(test)]
mod tests;
