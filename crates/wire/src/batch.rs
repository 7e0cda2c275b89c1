//! JSON-RPC batches: splits an array into entries and collects their responses.

use std::collections::HashSet;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};

use crate::envelope::Kind;
use crate::error::{Code, RpcError};
use crate::fault::Fault;
use crate::frame::Frame;
use crate::message;
use crate::scan;

/// Default limit of the entries in a batch.
pub const DEFAULT_MAX_BATCH_ENTRIES: usize = 100;

/// The handling of one entry of a batch.
#[derive(Clone, Debug)]
pub enum BatchStep {
    /// Handle the entry as a single message. Includes malformed responses ([`Fault::BadResponse`]), which
    /// are never answered.
    Deliver(Frame),
    Answer {
        answer: Bytes,
        /// The entry. It may be a malformed response to a pending request.
        entry: Frame,
    },
}

/// A batch and the responses to it so far.
///
/// The answer is one array with a response to each request and to each invalid entry. A batch with neither
/// gets no answer.
#[derive(Debug)]
pub struct Batch {
    expected: usize,
    answers: Vec<Bytes>,
}

impl Batch {
    /// Returns the batch and the handling of each entry, in order.
    ///
    /// # Errors
    /// If the batch is empty or has more than `max` entries. The error answers the whole batch.
    pub fn open(frame: &Frame, max: usize) -> Result<(Self, Vec<BatchStep>), Fault> {
        debug_assert_eq!(frame.kind(), Kind::Batch);
        let entries = scan::entries(frame.bytes(), max.saturating_add(1));
        if entries.is_empty() {
            return Err(Fault::EmptyBatch);
        }
        if entries.len() > max {
            return Err(Fault::TooManyEntries);
        }
        let mut ids = HashSet::new();
        let mut expected = 0;
        let steps = entries
            .into_iter()
            .map(|range| {
                let entry = Frame::entry(slice_entry(frame.bytes(), range));
                match entry.kind() {
                    // Inside an array, the response to an invalid entry has a null id even if the id is
                    // readable.
                    Kind::Invalid(fault) if fault.is_answered() => {
                        expected += 1;
                        return BatchStep::Answer { answer: message::error(b"null", &fault.into()), entry };
                    }
                    Kind::Request => expected += 1,
                    _ => return BatchStep::Deliver(entry),
                }
                let id = entry.id().unwrap_or(b"null");
                if ids.insert(id.to_vec()) {
                    BatchStep::Deliver(entry)
                } else {
                    let error = RpcError::new(Code::DuplicateId, "the id is used twice in one batch");
                    BatchStep::Answer { answer: message::error(id, &error), entry }
                }
            })
            .collect();
        Ok((Self { expected, answers: Vec::with_capacity(expected) }, steps))
    }

    /// Returns `true` if no entry of the batch gets an answer, so the batch as a whole gets none.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.expected == 0
    }

    /// Adds the response to one entry. After the response to the last entry, returns the answer to the whole
    /// batch.
    pub fn answer(&mut self, response: Bytes) -> Option<Bytes> {
        self.answers.push(response);
        (self.answers.len() == self.expected).then(|| self.join())
    }

    fn join(&self) -> Bytes {
        let length: usize = self.answers.iter().map(|answer| answer.len() + 1).sum();
        let mut array = BytesMut::with_capacity(length + 1);
        for (index, answer) in self.answers.iter().enumerate() {
            array.put_u8(if index == 0 { b'[' } else { b',' });
            array.extend_from_slice(answer);
        }
        array.put_u8(b']');
        array.freeze()
    }
}

/// Returns one entry of `array`. A small entry is copied, so that it does not keep the whole array in memory.
fn slice_entry(array: &Bytes, entry: Range<usize>) -> Bytes {
    if entry.len() < array.len() / 4 { Bytes::copy_from_slice(&array[entry]) } else { array.slice(entry) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the handling of each entry: its kind, or the id and code of the answer.
    #[track_caller]
    fn check(line: &str, expected: Result<&[&str], Fault>) {
        let frame = Frame::parse(Bytes::copy_from_slice(line.as_bytes()));
        assert_eq!(frame.kind(), Kind::Batch, "{line}");
        let steps = Batch::open(&frame, 5).map(|(_, steps)| steps.iter().map(show).collect::<Vec<_>>());
        assert_eq!(
            steps.as_ref().map(Vec::as_slice).map_err(|fault| *fault),
            to_owned_steps(expected).as_deref().map_err(|fault| *fault),
            "{line}"
        );
    }

    fn to_owned_steps(expected: Result<&[&str], Fault>) -> Result<Vec<String>, Fault> {
        expected.map(|steps| steps.iter().map(|&step| step.to_owned()).collect())
    }

    fn show(step: &BatchStep) -> String {
        match step {
            BatchStep::Deliver(frame) => format!("{:?}", frame.kind()),
            BatchStep::Answer { answer, .. } => {
                let answer = Frame::parse(answer.clone());
                let id = answer.id().unwrap_or(b"null");
                format!("{} {}", id.escape_ascii(), answer.error().unwrap().code)
            }
        }
    }

    #[test]
    fn each_entry_is_delivered_or_answered() {
        let request = r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#;
        let notification = r#"{"jsonrpc":"2.0","method":"m","params":"wrong"}"#;
        let response = r#"{"jsonrpc":"2.0","id":1,"result":1}"#;
        check("[]", Err(Fault::EmptyBatch));
        check(" [ ] ", Err(Fault::EmptyBatch));
        check("[17,null]", Ok(&["null -32600", "null -32600"]));
        check(&format!("[{request}]"), Ok(&["Request"]));
        check(&format!("[{notification}, {notification}]"), Ok(&["Notification", "Notification"]));
        check(&format!("[{response}]"), Ok(&["Response"]));
        check(
            &format!(" [ {notification} ,\"x\",{request},[{request}],{response} ] "),
            Ok(&["Notification", "null -32600", "Request", "null -32600", "Response"]),
        );
        // Invalid entries with a readable id get the null id, too.
        check(r#"[{"id":5,"method":"m"},{"jsonrpc":"2.0","id":null,"method":"m"}]"#, Ok(&["null -32600"; 2]));
        check(r#"[{"jsonrpc":"2.0","id":1,"i\u0064":1,"method":"m"}]"#, Ok(&["null -32600"]));
        check(r#"[{"id":5,"result":1}]"#, Ok(&["Invalid(BadResponse)"]));
        check(
            &format!(r#"[{request},{request},{{"jsonrpc":"2.0","id":"1","method":"m"}}]"#),
            Ok(&["Request", "1 -32014", "Request"]),
        );
        check("[1,2,3,4,5]", Ok(&["null -32600"; 5]));
        check("[1,2,3,4,5,6]", Err(Fault::TooManyEntries));
        check(&format!("[{}1]", "1,".repeat(100_000)), Err(Fault::TooManyEntries));
    }

    #[test]
    fn the_answer_is_one_array_once_all_are_there() {
        let line = r#"[1,{"jsonrpc":"2.0","id":"a","method":"m"},{"jsonrpc":"2.0","method":"n"},{"jsonrpc":"2.0","id":2,"method":"m"}]"#;
        let (mut batch, steps) = Batch::open(&Frame::parse(line.into()), DEFAULT_MAX_BATCH_ENTRIES).unwrap();
        assert!(!batch.is_silent());
        let mut whole = Vec::new();
        for step in steps {
            match step {
                BatchStep::Answer { answer, .. } => whole.extend(batch.answer(answer)),
                BatchStep::Deliver(frame) if frame.kind() == Kind::Request => {
                    let answer = message::response(frame.id().unwrap(), &frame.method()).unwrap();
                    whole.extend(batch.answer(answer));
                }
                BatchStep::Deliver(_) => {}
            }
        }
        let [whole] = whole.as_slice() else { panic!("{} answers", whole.len()) };
        let answers: Vec<serde_json::Value> = serde_json::from_slice(whole).unwrap();
        let ids: Vec<_> = answers.iter().map(|answer| answer["id"].clone()).collect();
        assert_eq!(ids, [serde_json::json!(null), serde_json::json!("a"), serde_json::json!(2)]);
        assert_eq!(answers[0]["error"]["code"], -32600);
        assert_eq!(answers[1]["result"], "m");
    }

    #[test]
    fn notifications_and_responses_alone_are_not_answered() {
        let line =
            r#"[{"jsonrpc":"2.0","method":"n"},{"jsonrpc":"2.0","id":1,"result":2},{"id":1,"error":2}]"#;
        let (batch, steps) = Batch::open(&Frame::parse(line.into()), DEFAULT_MAX_BATCH_ENTRIES).unwrap();
        assert!(batch.is_silent());
        assert!(steps.iter().all(|step| matches!(step, BatchStep::Deliver(_))));
    }

    #[test]
    fn a_small_entry_does_not_keep_the_array_alive() {
        let filler = "x".repeat(1000);
        let line = format!(r#"[{{"jsonrpc":"2.0","method":"n"}},"{filler}"]"#);
        let frame = Frame::parse(line.into());
        let (_, steps) = Batch::open(&frame, 5).unwrap();
        let Some(BatchStep::Deliver(entry)) = steps.first() else { panic!("a notification is delivered") };
        assert!(entry.bytes().is_unique());
    }
}
