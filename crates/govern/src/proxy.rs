//! A proxy in a chain. It has one link, to the conductor, which connects it with both neighbors.
//!
//! The conductor passes messages of the predecessor unchanged, and messages of the successor in an envelope
//! (`proxy/successor`). Messages to the neighbors have the same two forms. A [`ProxyCore`] adds and removes
//! envelopes without changing their content, so that a gate sees two ordinary peers. It is a pure state
//! machine.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use narrows_acp::method;
use narrows_wire::{
    Batch, BatchStep, Code, DEFAULT_MAX_BATCH_ENTRIES, Frame, Kind, Part, RpcError, member, message,
};

use crate::batches::Batches;

/// Maximum number of unanswered requests of each side.
const MAX_OPEN_REQUESTS: usize = 8_192;

/// A neighbor of a proxy in the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Neighbor {
    /// Towards the client.
    Predecessor,
    /// Towards the agent.
    Successor,
}

/// Output of one step of a [`ProxyCore`].
#[derive(Debug, Default)]
pub struct ProxyOutput {
    pub to_conductor: Vec<Bytes>,
    /// Messages for the gate, each with the neighbor that sent it.
    pub from: Vec<(Neighbor, Bytes)>,
}

/// Routes messages between the conductor and the two neighbors.
#[derive(Debug, Default)]
pub struct ProxyCore {
    /// Unanswered requests that came from the conductor, by id, with the neighbor that sent each request.
    conductor_requests: HashMap<Box<[u8]>, Neighbor>,
    /// Unanswered requests to the conductor, by the id that the proxy gave them. The value is the neighbor
    /// and the original id.
    sent_requests: HashMap<u64, (Neighbor, Box<[u8]>)>,
    serial: u64,
    batches: Batches,
    /// Entries of received batches that wait to be handled.
    queue: VecDeque<Frame>,
}

/// Returns `true` if a message is the first one that a conductor sends to a proxy.
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

impl ProxyCore {
    /// Handles a message from the conductor.
    pub fn handle_conductor(&mut self, frame: Frame, output: &mut ProxyOutput) {
        if let Some(line) = self.batches.refuse_used_id(&frame) {
            return output.to_conductor.push(line);
        }
        self.queue.push_back(frame);
        self.process_queue(output);
    }

    /// Sends one message to a neighbor. Batches must be split before.
    pub fn send(&mut self, to: Neighbor, frame: &Frame, output: &mut ProxyOutput) {
        match frame.kind() {
            Kind::Request => self.send_request(to, frame, output),
            Kind::Notification => self.send_notification(to, frame, output),
            Kind::Response => {
                let Some(id) = frame.id() else { return };
                if self.conductor_requests.get(id) == Some(&to) {
                    self.conductor_requests.remove(id);
                    self.send_response(frame.bytes().clone(), output);
                }
            }
            Kind::Batch | Kind::Invalid(_) => {}
        }
        self.process_queue(output);
    }

    fn process_queue(&mut self, output: &mut ProxyOutput) {
        while let Some(frame) = self.queue.pop_front() {
            match frame.kind() {
                Kind::Batch => {
                    let outcome = self.batches.split(&frame);
                    output.to_conductor.extend(outcome.line);
                    self.queue.extend(outcome.deliver);
                }
                Kind::Request => self.handle_request(&frame, output),
                Kind::Notification => self.handle_notification(&frame, output),
                Kind::Response => self.handle_response(&frame, output),
                Kind::Invalid(_) => output.to_conductor.extend(frame.refusal()),
            }
        }
    }

    fn handle_request(&mut self, frame: &Frame, output: &mut ProxyOutput) {
        let (Some(id), Some(method)) = (frame.id(), frame.method()) else { return };
        let taken = if self.conductor_requests.contains_key(id) {
            Err(RpcError::new(Code::DuplicateId, "a request with this id is still unanswered"))
        } else if self.conductor_requests.len() >= MAX_OPEN_REQUESTS {
            Err(RpcError::new(Code::Backpressure, "too many unanswered requests"))
        } else {
            match &*method {
                method::PROXY_INITIALIZE => Ok((Neighbor::Predecessor, to_initialize(frame))),
                method::INITIALIZE => {
                    Err(RpcError::new(Code::InvalidRequest, "a proxy in a chain expects proxy/initialize"))
                }
                method::PROXY_SUCCESSOR => open_envelope(frame).map(|line| (Neighbor::Successor, line)),
                _ => Ok((Neighbor::Predecessor, frame.bytes().clone())),
            }
        };
        match taken {
            Ok((from, line)) => {
                self.conductor_requests.insert(id.into(), from);
                output.from.push((from, line));
            }
            Err(error) => self.send_response(message::error(id, &error), output),
        }
    }

    /// Handles a notification. An invalid notification is dropped, because nothing can answer it.
    fn handle_notification(&mut self, frame: &Frame, output: &mut ProxyOutput) {
        match frame.method().as_deref() {
            Some(method::CANCEL_REQUEST) => {
                // The canceled request came through this link from one of the neighbors. The cancellation
                // comes from the same neighbor.
                let neighbor = frame.request_id().and_then(|id| self.conductor_requests.get(id));
                output.from.extend(neighbor.map(|neighbor| (*neighbor, frame.bytes().clone())));
            }
            Some(method::PROXY_SUCCESSOR) => {
                let Ok(line) = open_envelope(frame) else { return };
                // A cancellation in an envelope is dropped, because every proxy passes cancellations on
                // without an envelope.
                if Frame::parse(line.clone()).method().as_deref() != Some(method::CANCEL_REQUEST) {
                    output.from.push((Neighbor::Successor, line));
                }
            }
            Some(method::PROXY_INITIALIZE | method::INITIALIZE) => {}
            _ => output.from.push((Neighbor::Predecessor, frame.bytes().clone())),
        }
    }

    /// Restores the original id in an answer of the conductor.
    fn handle_response(&mut self, frame: &Frame, output: &mut ProxyOutput) {
        let number = frame.id().and_then(|id| std::str::from_utf8(id).ok()?.parse().ok());
        let Some((neighbor, id)) = number.and_then(|number: u64| self.sent_requests.remove(&number)) else {
            return;
        };
        output.from.extend(frame.splice(Part::Id, &id).map(|line| (neighbor, line)));
    }

    fn send_request(&mut self, to: Neighbor, frame: &Frame, output: &mut ProxyOutput) {
        let Some(id) = frame.id() else { return };
        if self.sent_requests.len() >= MAX_OPEN_REQUESTS {
            let error = RpcError::new(Code::Backpressure, "too many unanswered requests");
            return output.from.push((to, message::error(id, &error)));
        }
        self.serial += 1;
        let number = self.serial.to_string();
        let line = match to {
            Neighbor::Predecessor => frame.splice(Part::Id, number.as_bytes()),
            Neighbor::Successor => Some(wrap_in_envelope(Some(&number), frame)),
        };
        self.sent_requests.insert(self.serial, (to, id.into()));
        output.to_conductor.extend(line);
    }

    fn send_notification(&mut self, to: Neighbor, frame: &Frame, output: &mut ProxyOutput) {
        if frame.method().as_deref() == Some(method::CANCEL_REQUEST) {
            let is_it = |(_, (neighbor, id)): &(&u64, &(Neighbor, Box<[u8]>))| {
                *neighbor == to && Some(&**id) == frame.request_id()
            };
            let number = self.sent_requests.iter().find(is_it).map(|(number, _)| number.to_string());
            let line = number.and_then(|number| frame.splice(Part::RequestId, number.as_bytes()));
            return output.to_conductor.extend(line);
        }
        output.to_conductor.push(match to {
            Neighbor::Predecessor => frame.bytes().clone(),
            Neighbor::Successor => wrap_in_envelope(None, frame),
        });
    }

    /// Answers a request of the conductor. If the request was in a batch, the answer is added to the batch's
    /// answers.
    fn send_response(&mut self, line: Bytes, output: &mut ProxyOutput) {
        let outcome = if self.batches.is_empty() { None } else { self.batches.collect_answer(&line) };
        match outcome {
            None => output.to_conductor.push(line),
            Some(outcome) => {
                output.to_conductor.extend(outcome.line);
                self.queue.extend(outcome.deliver);
            }
        }
    }
}

/// Converts `proxy/initialize` into an ordinary `initialize` request.
fn to_initialize(frame: &Frame) -> Bytes {
    let (bytes, place) = (frame.bytes(), frame.envelope().method.range());
    [&bytes[..place.start], b"\"initialize\"", &bytes[place.end..]].concat().into()
}

fn wrap_in_envelope(id: Option<&str>, frame: &Frame) -> Bytes {
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

/// Returns the message that an envelope contains, with the id of the envelope. Other members of the envelope
/// are dropped.
fn open_envelope(frame: &Frame) -> Result<Bytes, RpcError> {
    let fault = |words: &'static str| RpcError::new(Code::InvalidParams, words);
    let doubled = |_| fault("ambiguous envelope");
    let envelope = frame.params().unwrap_or_default();
    if envelope.first() != Some(&b'{') {
        return Err(fault("the envelope is not an object"));
    }
    let method = member(envelope, "method").map_err(doubled)?.map(|place| &envelope[place]);
    let method = method.filter(|method| method.first() == Some(&b'"') && method.len() > 2);
    let method = method.ok_or_else(|| fault("the envelope has no method"))?;
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
