//! JSON-RPC batches: what to do with each entry of an array, and putting the answers together.

use std::collections::HashSet;

use bytes::{BufMut, Bytes, BytesMut};

use crate::envelope::Kind;
use crate::error::{Code, RpcError};
use crate::fault::Fault;
use crate::frame::Frame;
use crate::message;
use crate::scan;

/// How many entries a batch may have unless configured otherwise.
pub const MAX_ENTRIES: usize = 100;

/// What to do with one entry.
#[derive(Clone, Debug)]
pub enum Step {
    /// A request, a notification or a response: act on it as if it had come alone.
    Deliver(Frame),
    /// An invalid entry: this is its part of the answer.
    Answer(Bytes),
}

/// An array of messages, and the answers to it as they come.
///
/// The answer is one array with a response to each request and to each invalid entry; with none of either there is
/// no answer at all.
#[derive(Debug)]
pub struct Batch {
    expected: usize,
    answers: Vec<Bytes>,
}

impl Batch {
    /// The batch and the steps it consists of, in order.
    ///
    /// # Errors
    /// When it is answered as a whole: it is empty or has more than `max` entries.
    pub fn open(frame: &Frame, max: usize) -> Result<(Self, Vec<Step>), Fault> {
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
                let entry = Frame::entry(frame.bytes().slice(range));
                match entry.kind() {
                    // Inside an array even a readable id is answered with null.
                    Kind::Invalid(fault) if fault.is_answered() => {
                        expected += 1;
                        return Step::Answer(message::error(b"null", &fault.into()));
                    }
                    Kind::Request => expected += 1,
                    _ => return Step::Deliver(entry),
                }
                let id = entry.id().unwrap_or(b"null");
                if ids.insert(id.to_vec()) {
                    Step::Deliver(entry)
                } else {
                    let error = RpcError::new(Code::DuplicateId, "the id is used twice in one batch");
                    Step::Answer(message::error(id, &error))
                }
            })
            .collect();
        Ok((Self { expected, answers: Vec::with_capacity(expected) }, steps))
    }

    /// Whether there is nothing to answer.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.expected == 0
    }

    /// Takes one answer in, and gives the whole array once it is the last.
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
