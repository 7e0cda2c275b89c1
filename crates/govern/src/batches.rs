//! JSON-RPC batches at one side of a gate: split on receipt, answered as one array.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use narrows_acp::method;
use narrows_wire::{Batch, BatchStep, Code, DEFAULT_MAX_BATCH_ENTRIES, Frame, Kind, RpcError, View, message};

use crate::request_ids::comparable_id;

/// Bound for the bytes of entries that wait for an earlier answer.
const MAX_HELD_BYTES: usize = 16 << 20;

/// The unanswered batches of one side.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    open: HashMap<u64, OpenBatch>,
    /// Batches with a request of this id, in order. Ids are normalized as in the gate. Each request gets an
    /// answer, even if its id is already in use.
    by_request_id: HashMap<Box<[u8]>, VecDeque<u64>>,
    serial: u64,
}

#[derive(Debug)]
struct OpenBatch {
    batch: Batch,
    rest: VecDeque<BatchStep>,
    /// Id of the request that the other entries wait for.
    barrier: Option<Box<[u8]>>,
}

impl OpenBatch {
    fn held_bytes(&self) -> usize {
        let length = |step: &BatchStep| match step {
            BatchStep::Deliver(frame) => frame.bytes().len(),
            BatchStep::Answer { answer, entry } => answer.len() + entry.bytes().len(),
        };
        self.rest.iter().map(length).sum()
    }

    /// Refuses all waiting entries. The batch stays incomplete until the request that they wait for is
    /// answered.
    fn refuse_rest(&mut self) {
        for step in std::mem::take(&mut self.rest) {
            match step {
                BatchStep::Answer { answer, .. } => _ = self.batch.answer(answer),
                BatchStep::Deliver(frame) => {
                    if let Some(id) = frame.id().filter(|_| frame.kind() == Kind::Request) {
                        let error = RpcError::new(Code::Backpressure, "too many bytes waiting in batches");
                        _ = self.batch.answer(message::error(id, &error));
                    }
                }
            }
        }
    }
}

/// Returns the normalized id. An ambiguous id is compared as it is written.
fn id_key(id: &[u8]) -> Cow<'_, [u8]> {
    comparable_id(id).unwrap_or(Cow::Borrowed(id))
}

/// Result of a received batch or a collected answer.
#[derive(Debug, Default)]
pub(crate) struct BatchOutcome {
    /// Messages to handle now, in order.
    pub(crate) deliver: Vec<Frame>,
    /// A line to send back.
    pub(crate) line: Option<Bytes>,
}

impl Batches {
    /// Returns `true` if no batch is unanswered.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Splits a batch into its entries.
    pub(crate) fn split(&mut self, frame: &Frame) -> BatchOutcome {
        let (batch, steps) = match Batch::open(frame, DEFAULT_MAX_BATCH_ENTRIES) {
            Ok(opened) => opened,
            Err(fault) => {
                let line = message::error(b"null", &RpcError::from(fault));
                return BatchOutcome { line: Some(line), ..BatchOutcome::default() };
            }
        };
        self.serial += 1;
        let silent = batch.is_silent();
        self.open.insert(self.serial, OpenBatch { batch, rest: steps.into(), barrier: None });
        let outcome = self.advance(self.serial);
        let held: usize = self.open.values().map(OpenBatch::held_bytes).sum();
        if held > MAX_HELD_BYTES
            && let Some(open) = self.open.get_mut(&self.serial)
        {
            open.refuse_rest();
        }
        if silent {
            self.open.remove(&self.serial);
        }
        outcome
    }

    /// Delivers entries until one must be answered before the next.
    fn advance(&mut self, key: u64) -> BatchOutcome {
        let mut outcome = BatchOutcome::default();
        let Some(open) = self.open.get_mut(&key) else { return outcome };
        while open.barrier.is_none() {
            match open.rest.pop_front() {
                None => break,
                Some(BatchStep::Answer { answer, .. }) => {
                    outcome.line = open.batch.answer(answer).or(outcome.line);
                }
                Some(BatchStep::Deliver(frame)) => {
                    if let Some(id) = frame.id().filter(|_| frame.kind() == Kind::Request) {
                        let id: Box<[u8]> = id_key(id).into();
                        let first = frame.method().is_some_and(|method| method::is_lifecycle(&method));
                        open.barrier = first.then(|| id.clone());
                        self.by_request_id.entry(id).or_default().push_back(key);
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

    /// Adds an outgoing line to its batch. Returns `None` if the line does not answer a batch entry.
    pub(crate) fn collect_answer(&mut self, line: &[u8]) -> Option<BatchOutcome> {
        let view = View::parse(line);
        let compared = id_key(view.id().filter(|_| view.kind() == Kind::Response)?);
        let id = &*compared;
        let arrays = self.by_request_id.get_mut(id)?;
        let key = arrays.pop_front()?;
        if arrays.is_empty() {
            self.by_request_id.remove(id);
        }
        let open = self.open.get_mut(&key)?;
        let whole = open.batch.answer(Bytes::copy_from_slice(line));
        if open.barrier.as_deref() == Some(id) {
            open.barrier = None;
        }
        if whole.is_some() {
            self.open.remove(&key);
            return Some(BatchOutcome { line: whole, ..BatchOutcome::default() });
        }
        Some(self.advance(key))
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

    fn methods(outcome: &BatchOutcome) -> Vec<String> {
        outcome.deliver.iter().map(|frame| frame.method().unwrap().into_owned()).collect()
    }

    fn response(id: u32) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
    }

    #[test]
    fn entries_wait_for_lifecycle_requests_and_answers_are_collected() {
        let mut batches = Batches::default();
        let opened = batches.split(&array(&[request(1, "session/new"), request(2, "x"), "7".into()]));
        assert_eq!((methods(&opened), opened.line), (vec!["session/new".into()], None));
        assert!(batches.collect_answer(response(9).as_bytes()).is_none());
        let next = batches.collect_answer(response(1).as_bytes()).unwrap();
        assert_eq!((methods(&next), next.line), (vec!["x".into()], None));
        let last = batches.collect_answer(response(2).as_bytes()).unwrap();
        let line: serde_json::Value = serde_json::from_slice(&last.line.unwrap()).unwrap();
        assert_eq!(line.as_array().unwrap().len(), 3);
        assert!(batches.is_empty());
    }

    #[test]
    fn every_spelling_of_an_id_is_the_same() {
        let mut batches = Batches::default();
        let entry = r#"{"jsonrpc":"2.0","id":"\u0061","method":"session/new"}"#.to_owned();
        assert_eq!(methods(&batches.split(&array(&[entry, request(2, "x")]))), ["session/new"]);
        let next = batches.collect_answer(br#"{"jsonrpc":"2.0","id":"a","result":{}}"#).unwrap();
        assert_eq!(methods(&next), ["x"]);
        assert!(batches.collect_answer(response(2).as_bytes()).unwrap().line.is_some());
        assert!(batches.is_empty() && batches.by_request_id.is_empty());
        // Ambiguous ids, and ids in use, are answered too.
        let odd = r#"{"jsonrpc":"2.0","id":3.0,"method":"x"}"#.to_owned();
        batches.split(&array(&[odd, request(1, "y")]));
        batches.split(&array(&[request(1, "y")]));
        let answers = [r#"{"jsonrpc":"2.0","id":3.0,"result":{}}"#.to_owned(), response(1), response(1)];
        let lines = answers.map(|answer| batches.collect_answer(answer.as_bytes()).unwrap().line.is_some());
        assert_eq!(lines, [false, true, true]);
        assert!(batches.is_empty() && batches.by_request_id.is_empty());
    }

    #[test]
    fn waiting_entries_are_bounded_in_bytes() {
        let mut batches = Batches::default();
        let large = |id: u32| {
            let text = "x".repeat(MAX_HELD_BYTES / 2);
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"x","params":{{"text":"{text}"}}}}"#)
        };
        let note = r#"{"jsonrpc":"2.0","method":"n"}"#.to_owned();
        for id in [1, 3] {
            let opened = batches.split(&array(&[request(id, "session/new"), note.clone(), large(id + 1)]));
            assert_eq!((methods(&opened), opened.line), (vec!["session/new".into()], None));
        }
        assert!(batches.open.values().map(OpenBatch::held_bytes).sum::<usize>() < MAX_HELD_BYTES);
        let refused = batches.collect_answer(response(3).as_bytes()).unwrap();
        assert!(refused.deliver.is_empty());
        let line: serde_json::Value = serde_json::from_slice(&refused.line.unwrap()).unwrap();
        assert_eq!(
            (&line[0]["id"], &line[0]["error"]["data"]["condition"]),
            (&4.into(), &"backpressure".into())
        );
        assert_eq!(methods(&batches.collect_answer(response(1).as_bytes()).unwrap()), ["n", "x"]);
    }

    #[test]
    fn batches_without_requests_leave_no_state() {
        let mut batches = Batches::default();
        let note = r#"{"jsonrpc":"2.0","method":"n"}"#.to_owned();
        let outcome = batches.split(&array(&[note.clone(), note]));
        assert_eq!((methods(&outcome).len(), outcome.line), (2, None));
        assert!(batches.is_empty());
        let outcome = batches.split(&array(&[]));
        assert!(outcome.line.is_some() && batches.is_empty());
        let outcome = batches.split(&array(&["1".into(), "2".into()]));
        assert!(outcome.line.is_some_and(|line| line.starts_with(b"[")) && batches.is_empty());
    }
}
