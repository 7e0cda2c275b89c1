//! Assembles the messages of the answer, or those of the reasoning, from their chunks.

use std::collections::VecDeque;
use std::sync::Arc;

use super::read::head;

pub(super) const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Maximum number of finished messages that are kept. Such a message may continue, or be sent again as a
/// whole.
const MAX_FINISHED_MESSAGES: usize = 32;
const MAX_FINISHED_BYTES: usize = 16 << 20;

/// The messages of the answer, or those of the reasoning, in one run.
#[derive(Debug, Default)]
pub(super) struct MessageAssembler {
    open: Option<AssembledMessage>,
    past: VecDeque<AssembledMessage>,
    past_bytes: usize,
    last: Option<Arc<str>>,
}

#[derive(Debug, PartialEq)]
pub(super) struct Ended {
    /// Text of the message, cut to the kept size.
    pub(super) text: Arc<str>,
    /// Length of the uncut text in bytes.
    pub(super) length: usize,
}

#[derive(Debug, Default)]
struct AssembledMessage {
    id: Option<Arc<str>>,
    /// Text received so far, cut to the kept size.
    text: String,
    /// Length of the uncut text in bytes.
    length: usize,
}

impl AssembledMessage {
    fn new(id: Option<&str>) -> Self {
        Self { id: id.map(Arc::from), ..Self::default() }
    }

    fn push(&mut self, text: &str) {
        // After a part was dropped, later text is dropped too, so that no text with an invisible gap is
        // shown.
        let room = if self.truncated() { 0 } else { MAX_MESSAGE_BYTES - self.text.len() };
        self.text.push_str(head(text, room));
        self.length += text.len();
    }

    fn truncated(&self) -> bool {
        self.length > self.text.len()
    }

    /// Returns the rest of `whole` if `whole` begins with the assembled text.
    fn rest<'a>(&self, whole: &'a str) -> Option<&'a str> {
        whole.starts_with(&self.text).then(|| whole.get(self.length..)).flatten()
    }
}

/// Effect of a complete message on the assembled ones.
#[derive(Debug, PartialEq)]
pub(super) enum Upsert<'a> {
    Same,
    /// The message is new, or continues an assembled one.
    More {
        /// The previous message, which ends because of the new one.
        ended: Option<Ended>,
        rest: &'a str,
    },
    /// The message replaces the text of an assembled one.
    Other {
        /// The previous message, which ends because of the replacement.
        ended: Option<Ended>,
        id: Arc<str>,
        text: Arc<str>,
    },
}

impl MessageAssembler {
    /// Adds a chunk. Returns the previous message if the chunk begins another one.
    pub(super) fn add_chunk(&mut self, id: Option<&str>, text: &str) -> Option<Ended> {
        match &mut self.open {
            // A chunk without an id continues the current message.
            Some(open) if id.is_none() || open.id.as_deref() == id => {
                open.push(text);
                None
            }
            _ => {
                let ended = self.turn_to(id);
                self.open.get_or_insert_with(|| AssembledMessage::new(id)).push(text);
                ended
            }
        }
    }

    pub(super) fn add_message<'a>(&mut self, id: &str, text: &'a str) -> Upsert<'a> {
        let known = self.open.iter().chain(&self.past).find(|told| told.id.as_deref() == Some(id));
        match known.map_or(Some(text), |told| told.rest(text)) {
            Some("") => Upsert::Same,
            Some(rest) => {
                let ended = self.turn_to(Some(id));
                self.open.get_or_insert_with(|| AssembledMessage::new(Some(id))).push(rest);
                Upsert::More { ended, rest }
            }
            None => {
                let ended = self.turn_to(Some(id));
                let mut told = AssembledMessage::new(Some(id));
                told.push(text);
                let (id, text) = (told.id.clone().unwrap_or_default(), told.text.as_str().into());
                self.open = Some(told);
                Upsert::Other { ended, id, text }
            }
        }
    }

    /// Makes the message with this id the current one. Returns the previous message, which ends.
    fn turn_to(&mut self, id: Option<&str>) -> Option<Ended> {
        if id.is_some() && self.open.as_ref().is_some_and(|open| open.id.as_deref() == id) {
            return None;
        }
        let ended = self.end();
        let past = self.past.iter().position(|told| id.is_some() && told.id.as_deref() == id);
        self.open = past.and_then(|at| self.past.remove(at));
        self.past_bytes -= self.open.as_ref().map_or(0, |open| open.text.len());
        ended
    }

    pub(super) fn end(&mut self) -> Option<Ended> {
        let told = self.open.take()?;
        let text = told.text.as_str();
        let ended = (!text.is_empty()).then(|| Ended { text: text.into(), length: told.length });
        if told.id.is_some() {
            self.past_bytes += told.text.len();
            self.past.push_back(told);
            while self.past.len() > MAX_FINISHED_MESSAGES || self.past_bytes > MAX_FINISHED_BYTES {
                let Some(forgotten) = self.past.pop_front() else { break };
                self.past_bytes -= forgotten.text.len();
            }
        }
        if let Some(ended) = &ended {
            self.last = Some(Arc::clone(&ended.text));
        }
        ended
    }

    /// Returns the text of the current message, or else of the last finished one.
    pub(super) fn last(&self) -> Option<&str> {
        let open = self.open.as_ref().map(|open| &*open.text).filter(|text| !text.is_empty());
        open.or(self.last.as_deref())
    }

    pub(super) fn last_ended(&mut self) -> Option<Arc<str>> {
        self.last.take()
    }
}
