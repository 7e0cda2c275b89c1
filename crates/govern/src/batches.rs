//! Splits JSON-RPC batches on receipt at one side of a gate, and answers each with one array.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use narrows_acp::method;
use narrows_wire::{
    Batch, BatchStep, Code, DEFAULT_MAX_BATCH_ENTRIES, Effects, Frame, Kind, RpcError, View, message,
};

use crate::gate::{ByteCharge, RetainedBytes};
use crate::request_ids::comparable_id;

/// Maximum size of all batch entries that wait for an answer to an earlier entry.
const MAX_HELD_BYTES: usize = 16 << 20;

/// Estimated memory of one unanswered batch entry beside its id, with room for an error in place of its
/// answer.
const ENTRY_BYTES: usize = 512;

#[derive(Debug, Default)]
pub(crate) struct Batches {
    open: HashMap<u64, OpenBatch>,
    /// The batch of each request that is not answered yet. Ids are normalized as in the gate. A further request
    /// with such an id is refused here: its answer could not be told from that of the first.
    by_request_id: HashMap<Box<[u8]>, u64>,
    serial: u64,
    /// Bytes of all batch entries that wait for an answer to an earlier entry.
    held: usize,
    /// Byte budget of the gate. A batch is charged to the budget until the batch is answered.
    budget: RetainedBytes,
}

#[derive(Debug)]
struct OpenBatch {
    batch: Batch,
    rest: VecDeque<BatchStep>,
    held: usize,
    /// Bytes of the table entries of this batch. Constant until the whole batch is answered.
    fixed: usize,
    answered: usize,
    charge: ByteCharge,
    /// Id of the unanswered request that blocks the remaining entries of the batch.
    barrier: Option<Box<[u8]>>,
}

impl OpenBatch {
    fn new(batch: Batch, steps: Vec<BatchStep>) -> Self {
        let entry = |step: &BatchStep| match step {
            BatchStep::Deliver(frame) => ENTRY_BYTES + 2 * frame.id().map_or(0, <[u8]>::len),
            BatchStep::Answer { .. } => ENTRY_BYTES,
        };
        let fixed = size_of::<Self>() + steps.iter().map(entry).sum::<usize>();
        let rest = steps.into();
        Self { batch, rest, held: 0, fixed, answered: 0, charge: ByteCharge::default(), barrier: None }
    }

    fn held_bytes(&self) -> usize {
        let length = |step: &BatchStep| match step {
            BatchStep::Deliver(frame) => frame.bytes().len(),
            BatchStep::Answer { answer, entry } => answer.len() + entry.bytes().len(),
        };
        self.rest.iter().map(length).sum()
    }

    /// Refuses all waiting requests of the batch, and delivers waiting responses. Returns the answer to the
    /// batch, if the batch is complete now.
    fn refuse_rest(&mut self) -> BatchOutcome {
        let mut outcome = BatchOutcome::default();
        for step in std::mem::take(&mut self.rest) {
            match step {
                BatchStep::Answer { answer, .. } => {
                    outcome.line = self.batch.answer(answer).or(outcome.line);
                }
                BatchStep::Deliver(frame) if frame.kind() == Kind::Response => outcome.deliver.push(frame),
                BatchStep::Deliver(frame) => {
                    if let Some(id) = frame.id().filter(|_| frame.kind() == Kind::Request) {
                        let error = RpcError::new(Code::Backpressure, "too many bytes waiting in batches");
                        outcome.line = self.batch.answer(message::error(id, &error)).or(outcome.line);
                    }
                }
            }
        }
        outcome
    }
}

/// Returns the normalized id. An ambiguous id is returned as it is written.
fn id_key(id: &[u8]) -> Cow<'_, [u8]> {
    comparable_id(id).unwrap_or(Cow::Borrowed(id))
}

fn duplicate_id(id: &[u8]) -> Bytes {
    message::error(id, &RpcError::new(Code::DuplicateId, "a request with this id is still unanswered"))
}

#[derive(Debug, Default)]
pub(crate) struct BatchOutcome {
    /// Messages to handle now, in order.
    pub(crate) deliver: Vec<Frame>,
    pub(crate) line: Option<Bytes>,
}

impl Batches {
    pub(crate) fn new(budget: RetainedBytes) -> Self {
        Self { budget, ..Self::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns the refusal of a request outside of batches whose id is that of an unanswered entry.
    pub(crate) fn refuse_used_id(&self, frame: &Frame) -> Option<Bytes> {
        let id = frame.id().filter(|_| !self.is_empty() && frame.kind() == Kind::Request)?;
        self.by_request_id.contains_key(&*id_key(id)).then(|| duplicate_id(id))
    }

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
        let mut open = OpenBatch::new(batch, steps);
        let has_room = silent || self.budget.has_room_for(open.fixed);
        open.charge = self.budget.charge(open.fixed);
        self.open.insert(self.serial, open);
        if !has_room {
            return self.refuse_rest(self.serial);
        }
        let mut outcome = self.advance(self.serial);
        if self.held > MAX_HELD_BYTES {
            let refused = self.refuse_rest(self.serial);
            outcome.line = refused.line.or(outcome.line);
            outcome.deliver.extend(refused.deliver);
        }
        if silent {
            self.remove(self.serial);
        }
        outcome
    }

    fn refuse_rest(&mut self, key: u64) -> BatchOutcome {
        let outcome = self.open.get_mut(&key).map(OpenBatch::refuse_rest).unwrap_or_default();
        self.update_charge(key, outcome.line.is_some());
        outcome
    }

    /// Sets the charge of a batch to its current size. Removes a complete batch.
    fn update_charge(&mut self, key: u64, is_complete: bool) {
        if is_complete {
            return self.remove(key);
        }
        let Some(open) = self.open.get_mut(&key) else { return };
        let held = open.held_bytes();
        let before = std::mem::replace(&mut open.held, held);
        self.held = self.held - before + held;
        open.charge.resize(open.fixed + held + open.answered);
    }

    fn remove(&mut self, key: u64) {
        if let Some(open) = self.open.remove(&key) {
            self.held -= open.held;
        }
    }

    /// Delivers the entries of a batch, up to one whose answer the next entry has to wait for.
    fn advance(&mut self, key: u64) -> BatchOutcome {
        let mut outcome = BatchOutcome::default();
        let Some(open) = self.open.get_mut(&key) else { return outcome };
        // The byte budget has no room for answers to further entries.
        if !open.batch.is_silent() && !open.rest.is_empty() && !self.budget.has_room_for(1) {
            return self.refuse_rest(key);
        }
        while open.barrier.is_none() {
            match open.rest.pop_front() {
                None => break,
                Some(BatchStep::Answer { answer, .. }) => {
                    outcome.line = open.batch.answer(answer).or(outcome.line);
                }
                Some(BatchStep::Deliver(frame)) => {
                    if let Some(id) = frame.id().filter(|_| frame.kind() == Kind::Request) {
                        if self.by_request_id.contains_key(&*id_key(id)) {
                            outcome.line = open.batch.answer(duplicate_id(id)).or(outcome.line);
                            continue;
                        }
                        let id: Box<[u8]> = id_key(id).into();
                        let first = frame.method().is_some_and(|method| method::is_lifecycle(&method));
                        open.barrier = first.then(|| id.clone());
                        self.by_request_id.insert(id, key);
                    }
                    outcome.deliver.push(frame);
                }
            }
        }
        self.update_charge(key, outcome.line.is_some());
        outcome
    }

    /// Adds an outgoing line to the batch that the line answers. Returns `None` if the line does not answer a
    /// batch entry.
    pub(crate) fn collect_answer(&mut self, line: &[u8]) -> Option<BatchOutcome> {
        let view = View::parse(line);
        let compared = id_key(view.id().filter(|_| view.kind() == Kind::Response)?);
        let id = &*compared;
        let key = self.by_request_id.remove(id)?;
        let open = self.open.get_mut(&key)?;
        let answer = if self.budget.has_room_for(line.len()) {
            open.answered += line.len();
            Bytes::copy_from_slice(line)
        } else {
            let error = RpcError::new(Code::Backpressure, "the answers to open batches take too much memory");
            message::error(id, &error.effects(Effects::Possible))
        };
        let whole = open.batch.answer(answer);
        if open.barrier.as_deref() == Some(id) {
            open.barrier = None;
        }
        if whole.is_some() {
            self.remove(key);
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
    fn ids_with_different_spelling_are_equal() {
        let mut batches = Batches::default();
        let entry = r#"{"jsonrpc":"2.0","id":"\u0061","method":"session/new"}"#.to_owned();
        assert_eq!(methods(&batches.split(&array(&[entry, request(2, "x")]))), ["session/new"]);
        let next = batches.collect_answer(br#"{"jsonrpc":"2.0","id":"a","result":{}}"#).unwrap();
        assert_eq!(methods(&next), ["x"]);
        assert!(batches.collect_answer(response(2).as_bytes()).unwrap().line.is_some());
        assert!(batches.is_empty() && batches.by_request_id.is_empty());
        // Requests with ambiguous ids and with duplicate ids are answered, too.
        let odd = r#"{"jsonrpc":"2.0","id":3.0,"method":"x"}"#.to_owned();
        batches.split(&array(&[odd, request(1, "y")]));
        let again = batches.split(&array(&[request(1, "y")]));
        assert!(again.deliver.is_empty() && String::from_utf8_lossy(&again.line.unwrap()).contains("-32014"));
        let answers = [r#"{"jsonrpc":"2.0","id":3.0,"result":{}}"#.to_owned(), response(1)];
        let lines = answers.map(|answer| batches.collect_answer(answer.as_bytes()).unwrap().line.is_some());
        assert_eq!(lines, [false, true]);
        assert!(batches.is_empty() && batches.by_request_id.is_empty());
    }

    #[test]
    fn an_id_in_use_in_a_batch_is_refused_everywhere() {
        let mut batches = Batches::default();
        let plain =
            |id: &str| Frame::parse(Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"x"}}"#)));
        assert_eq!(batches.refuse_used_id(&plain("9")), None);
        let opened = batches.split(&array(&[request(9, "x"), request(10, "y"), request(9, "z")]));
        assert_eq!((methods(&opened), opened.line), (vec!["x".into(), "y".into()], None));
        let refused = batches.refuse_used_id(&plain("9")).unwrap();
        assert!(String::from_utf8_lossy(&refused).contains("-32014"));
        assert_eq!(batches.refuse_used_id(&plain("11")), None);
        assert!(batches.collect_answer(response(9).as_bytes()).unwrap().line.is_none());
        assert_eq!(batches.refuse_used_id(&plain("9")), None);
        let whole = batches.collect_answer(response(10).as_bytes()).unwrap().line.unwrap();
        let whole: serde_json::Value = serde_json::from_slice(&whole).unwrap();
        let ids: Vec<_> =
            whole.as_array().unwrap().iter().map(|one| (&one["id"], &one["error"]["code"])).collect();
        let (null, code) = (serde_json::Value::Null, serde_json::json!(-32014));
        let [nine, ten] = [9, 10].map(|id| serde_json::json!(id));
        assert_eq!(ids, [(&nine, &code), (&nine, &null), (&ten, &null)]);
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
        assert_eq!(batches.held, batches.open.values().map(OpenBatch::held_bytes).sum::<usize>());
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
    fn answers_that_do_not_fit_into_the_budget_are_replaced_by_errors() {
        const MAX_BYTES: usize = 100_000;
        let budget = RetainedBytes::new(MAX_BYTES);
        let mut batches = Batches::new(budget.clone());
        let entries: Vec<String> = (0..20).map(|id| request(id, "x")).collect();
        assert_eq!(methods(&batches.split(&array(&entries))).len(), 20);
        assert!(budget.used() > 20 * ENTRY_BYTES);
        let large =
            |id: u32| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"{}"}}"#, "x".repeat(MAX_BYTES / 4));
        for id in 1..20 {
            let outcome = batches.collect_answer(large(id).as_bytes()).unwrap();
            assert!(outcome.line.is_none() && budget.used() <= MAX_BYTES);
        }
        // While the byte budget is used up, no entry is delivered.
        let spare = MAX_BYTES - budget.used();
        let full = budget.charge(spare);
        let refused = batches.split(&array(&[request(30, "x"), "7".into()]));
        assert!(refused.deliver.is_empty() && refused.line.unwrap().starts_with(b"[{"));
        drop(full);
        let line = batches.collect_answer(response(0).as_bytes()).unwrap().line.unwrap();
        let line: Vec<serde_json::Value> = serde_json::from_slice(&line).unwrap();
        let replaced: Vec<_> = line.iter().filter(|answer| answer["error"]["code"] == -32012).collect();
        assert_eq!((line.len(), replaced.len()), (20, 16));
        assert!(replaced.iter().all(|answer| answer["error"]["data"]["effects"] == "possible"));
        assert_eq!((budget.used(), batches.held), (0, 0));
        assert!(batches.is_empty() && batches.by_request_id.is_empty());
    }

    #[test]
    fn entries_after_a_lifecycle_request_are_not_delivered_without_room() {
        let budget = RetainedBytes::new(50_000);
        let mut batches = Batches::new(budget.clone());
        batches.split(&array(&[request(1, "session/new"), request(2, "x"), request(3, "x")]));
        let full = budget.charge(50_000);
        let refused = batches.collect_answer(response(1).as_bytes()).unwrap();
        assert!(refused.deliver.is_empty());
        let line: serde_json::Value = serde_json::from_slice(&refused.line.unwrap()).unwrap();
        let effects = [0, 1, 2].map(|index| line[index]["error"]["data"]["effects"].clone());
        assert_eq!(effects, ["possible", "none", "none"]);
        drop(full);
        assert_eq!((budget.used(), batches.is_empty()), (0, true));
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
