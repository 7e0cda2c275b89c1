//! Assembles messages of one speaker (answer or thought) from their chunks.

use std::collections::VecDeque;
use std::sync::Arc;

use super::read::head;

/// Maximum number of bytes kept of one message.
pub(super) const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Maximum number of finished messages kept, in case they continue or are sent again as a whole.
const MAX_FINISHED_MESSAGES: usize = 32;
/// Maximum number of bytes of finished messages together.
const MAX_FINISHED_BYTES: usize = 16 << 20;

/// The messages of one speaker in one run.
#[derive(Debug, Default)]
pub(super) struct MessageAssembler {
    open: Option<AssembledMessage>,
    past: VecDeque<AssembledMessage>,
    past_bytes: usize,
    last: Option<Arc<str>>,
}

/// A finished message.
#[derive(Debug, PartialEq)]
pub(super) struct Ended {
    /// Text, as far as it is kept.
    pub(super) text: Arc<str>,
    /// Bytes of the whole text.
    pub(super) length: usize,
}

/// A message that is being received.
#[derive(Debug, Default)]
struct AssembledMessage {
    id: Option<Arc<str>>,
    /// Text, as far as it is kept.
    text: String,
    /// Bytes of the whole text.
    length: usize,
}

impl AssembledMessage {
    fn new(id: Option<&str>) -> Self {
        Self { id: id.map(Arc::from), ..Self::default() }
    }

    fn push(&mut self, text: &str) {
        // Nothing is kept after a gap, which would be invisible otherwise.
        let room = if self.truncated() { 0 } else { MAX_MESSAGE_BYTES - self.text.len() };
        self.text.push_str(head(text, room));
        self.length += text.len();
    }

    fn truncated(&self) -> bool {
        self.length > self.text.len()
    }

    /// Returns the part of `whole` after this text, if it begins with this text.
    fn rest<'a>(&self, whole: &'a str) -> Option<&'a str> {
        whole.starts_with(&self.text).then(|| whole.get(self.length..)).flatten()
    }
}

/// Effect of a message that was sent as a whole.
#[derive(Debug, PartialEq)]
pub(super) enum Upsert<'a> {
    /// The message is unchanged.
    Same,
    /// The message has more text.
    More {
        /// The message that it ends.
        ended: Option<Ended>,
        /// Added text.
        rest: &'a str,
    },
    /// The message has a different text.
    Other {
        /// The message that it ends.
        ended: Option<Ended>,
        /// Id of the message.
        id: Arc<str>,
        /// Text, as far as it is kept.
        text: Arc<str>,
    },
}

impl MessageAssembler {
    /// Adds a chunk of a message. Returns the message that it ends.
    pub(super) fn piece(&mut self, id: Option<&str>, text: &str) -> Option<Ended> {
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

    /// Adds a complete message.
    pub(super) fn whole<'a>(&mut self, id: &str, text: &'a str) -> Upsert<'a> {
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

    /// Makes the message with this id the current one. Returns the previous one.
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

    /// Ends the current message.
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

    /// Returns the current message, or else the one that ended last.
    pub(super) fn last(&self) -> Option<&str> {
        let open = self.open.as_ref().map(|open| &*open.text).filter(|text| !text.is_empty());
        open.or(self.last.as_deref())
    }

    /// Returns the message that ended last.
    pub(super) fn last_ended(&mut self) -> Option<Arc<str>> {
        self.last.take()
    }
}
