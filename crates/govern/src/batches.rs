//! Arrays of messages at one end of a gate: taken apart on the way in, answered as one on the way out.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use narrows_acp::method;
use narrows_wire::{Batch, BatchStep, DEFAULT_MAX_BATCH_ENTRIES, Frame, Kind, RpcError, View, message};

/// The arrays of one end that are not answered yet.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    open: HashMap<u64, Open>,
    /// Which array a request is in, by its id.
    of: HashMap<Box<[u8]>, u64>,
    serial: u64,
}

#[derive(Debug)]
struct Open {
    batch: Batch,
    rest: VecDeque<BatchStep>,
    /// The id of the request that the rest waits for.
    barrier: Option<Box<[u8]>>,
}

/// What follows from an array or from an answer.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Messages to act on now, in order.
    pub(crate) deliver: Vec<Frame>,
    /// A line to send back.
    pub(crate) line: Option<Bytes>,
}

impl Batches {
    /// Whether there is nothing to look out for.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Takes an array apart.
    pub(crate) fn take(&mut self, frame: &Frame) -> Outcome {
        let (batch, steps) = match Batch::open(frame, DEFAULT_MAX_BATCH_ENTRIES) {
            Ok(opened) => opened,
            Err(fault) => {
                let line = message::error(b"null", &RpcError::from(fault));
                return Outcome { line: Some(line), ..Outcome::default() };
            }
        };
        self.serial += 1;
        let silent = batch.is_silent();
        self.open.insert(self.serial, Open { batch, rest: steps.into(), barrier: None });
        let outcome = self.go_on(self.serial);
        if silent {
            self.open.remove(&self.serial);
        }
        outcome
    }

    /// Acts on entries until one has to be answered before the next.
    fn go_on(&mut self, key: u64) -> Outcome {
        let mut outcome = Outcome::default();
        let Some(open) = self.open.get_mut(&key) else { return outcome };
        while open.barrier.is_none() {
            match open.rest.pop_front() {
                None => break,
                Some(BatchStep::Answer { answer, .. }) => {
                    outcome.line = open.batch.answer(answer).or(outcome.line);
                }
                Some(BatchStep::Deliver(frame)) => {
                    if let Some(id) = frame.id().filter(|_| frame.kind() == Kind::Request) {
                        self.of.insert(id.into(), key);
                        let first = frame.method().is_some_and(|method| method::is_lifecycle(&method));
                        open.barrier = first.then(|| id.into());
                    }
                    outcome.deliver.push(frame);
                }
            }
        }
        if outcome.line.is_some() {
            self.open.remove(&key);
        }
        outcome
    }

    /// Looks at a line on its way out. `None`: it is no answer to something in an array.
    pub(crate) fn answer(&mut self, line: &[u8]) -> Option<Outcome> {
        let view = View::parse(line);
        let id = view.id().filter(|_| view.kind() == Kind::Response)?;
        let key = self.of.remove(id)?;
        let open = self.open.get_mut(&key)?;
        let whole = open.batch.answer(Bytes::copy_from_slice(line));
        if open.barrier.as_deref() == Some(id) {
            open.barrier = None;
        }
        if whole.is_some() {
            self.open.remove(&key);
            return Some(Outcome { line: whole, ..Outcome::default() });
        }
        Some(self.go_on(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: u32, method: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}"#)
    }

    fn array(entries: &[String]) -> Frame {
        Frame::parse(Bytes::from(format!("[{}]", entries.join(","))))
    }

    fn methods(outcome: &Outcome) -> Vec<String> {
        outcome.deliver.iter().map(|frame| frame.method().unwrap().into_owned()).collect()
    }

    fn response(id: u32) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
    }

    #[test]
    fn entries_wait_for_what_opens_something_and_answers_come_together() {
        let mut batches = Batches::default();
        let opened = batches.take(&array(&[request(1, "session/new"), request(2, "x"), "7".into()]));
        assert_eq!((methods(&opened), opened.line), (vec!["session/new".into()], None));
        assert!(batches.answer(response(9).as_bytes()).is_none());
        let next = batches.answer(response(1).as_bytes()).unwrap();
        assert_eq!((methods(&next), next.line), (vec!["x".into()], None));
        let last = batches.answer(response(2).as_bytes()).unwrap();
        let line: serde_json::Value = serde_json::from_slice(&last.line.unwrap()).unwrap();
        assert_eq!(line.as_array().unwrap().len(), 3);
        assert!(batches.is_empty());
    }

    #[test]
    fn what_has_no_answer_leaves_nothing_behind() {
        let mut batches = Batches::default();
        let note = r#"{"jsonrpc":"2.0","method":"n"}"#.to_owned();
        let outcome = batches.take(&array(&[note.clone(), note]));
        assert_eq!((methods(&outcome).len(), outcome.line), (2, None));
        assert!(batches.is_empty());
        let outcome = batches.take(&array(&[]));
        assert!(outcome.line.is_some() && batches.is_empty());
        let outcome = batches.take(&array(&["1".into(), "2".into()]));
        assert!(outcome.line.is_some_and(|line| line.starts_with(b"[")) && batches.is_empty());
    }
}
