//! Sends the updates of a turn in the client's version, and records the items to replay when the session is
//! loaded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use narrows_acp::Version;
use narrows_acp::method::SESSION_UPDATE;
use narrows_rpc::{CallError, Peer};
use narrows_wire::message::{self, MessageTemplate};
use serde::Serialize;
use serde_json::{Value, json};

use crate::encode_update::{self, CallField};
use crate::transcript::{PlanEntry, ToolCall, ToolContent, TranscriptItem};

/// Shortest first chunk of a message, in characters, unless the whole message is shorter. Some clients treat
/// a chunk that begins with all of the earlier text as the complete text so far. Only a short text is
/// repeated by accident.
const MIN_FIRST_CHARS: usize = 16;

/// Key in `_meta` of a chunk that only separates two messages.
const SEPARATOR_KEY: &str = "narrows/separator";

/// Error: the client has disconnected.
#[derive(Debug)]
pub(crate) struct Disconnected;

impl From<CallError> for Disconnected {
    fn from(_: CallError) -> Self {
        Self
    }
}

struct OpenMessage {
    thought: bool,
    id: String,
    text: String,
    /// Number of bytes of `text` that were already sent.
    sent: usize,
    /// Template of the message's updates. A message has thousands of updates that differ only in their text.
    updates: MessageTemplate,
}

impl OpenMessage {
    fn new(thought: bool, session: &str) -> Result<Self, CallError> {
        let id = new_id();
        let session_update = if thought { "agent_thought_chunk" } else { "agent_message_chunk" };
        let chunk = Chunk { session_update, message_id: &id, content: Text { text: "" }, meta: None };
        let line = message::notification(SESSION_UPDATE, &Params { session_id: session, update: chunk });
        // The empty text in `line` is its last value, where the template inserts the text of a chunk.
        let updates = MessageTemplate::from_line(&line.map_err(serialize_error)?);
        let updates = updates.ok_or_else(|| CallError::NotSerializable("no place for text".to_owned()))?;
        Ok(Self { thought, id, text: String::new(), sent: 0, updates })
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err takes")]
fn serialize_error(error: serde_json::Error) -> CallError {
    CallError::NotSerializable(error.to_string())
}

pub(crate) struct UpdateWriter {
    peer: Peer,
    session: Arc<str>,
    version: Version,
    open: Option<OpenMessage>,
    items: Vec<RecordedItem>,
    sent_count: Arc<AtomicU64>,
}

/// A serialized transcript item. JSON text needs less memory than parsed values.
struct RecordedItem {
    kind: ItemKind,
    json: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ItemKind {
    Text,
    Plan,
    Other,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a, U: Serialize> {
    session_id: &'a str,
    update: U,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Chunk<'a> {
    session_update: &'static str,
    message_id: &'a str,
    content: Text<'a>,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<&'a Value>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename = "text")]
struct Text<'a> {
    text: &'a str,
}

impl UpdateWriter {
    pub(crate) fn new(peer: Peer, session: Arc<str>, version: Version) -> Self {
        Self { peer, session, version, open: None, items: Vec::new(), sent_count: Arc::default() }
    }

    pub(crate) fn version(&self) -> Version {
        self.version
    }

    pub(crate) fn sent_count(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.sent_count)
    }

    pub(crate) async fn send_text(&mut self, piece: &str) -> Result<(), Disconnected> {
        self.send_piece(false, piece).await
    }

    pub(crate) async fn send_thought(&mut self, piece: &str) -> Result<(), Disconnected> {
        self.send_piece(true, piece).await
    }

    async fn send_piece(&mut self, thought: bool, piece: &str) -> Result<(), Disconnected> {
        if piece.is_empty() {
            return Ok(());
        }
        if self.open.as_ref().is_some_and(|open| open.thought != thought) {
            self.end_message().await?;
        }
        let open = match &mut self.open {
            Some(open) => open,
            none => none.insert(OpenMessage::new(thought, &self.session)?),
        };
        open.text.push_str(piece);
        if open.sent == 0 && open.text.chars().take(MIN_FIRST_CHARS).count() < MIN_FIRST_CHARS {
            return Ok(());
        }
        self.flush_open().await
    }

    async fn flush_open(&mut self) -> Result<(), Disconnected> {
        let Some(open) = &mut self.open else { return Ok(()) };
        if open.sent == open.text.len() {
            return Ok(());
        }
        self.sent_count.fetch_add(1, Ordering::Relaxed);
        let update = open.updates.fill(&open.text[open.sent..]);
        self.peer.notify_line(update).await?;
        open.sent = open.text.len();
        Ok(())
    }

    /// Ends the current message. The next piece of text begins a new message.
    pub(crate) async fn end_message(&mut self) -> Result<(), Disconnected> {
        self.flush_open().await?;
        if let Some(OpenMessage { thought, id, text, .. }) = self.open.take() {
            self.record(&if thought {
                TranscriptItem::Thought { id, text }
            } else {
                TranscriptItem::Text { id, text }
            });
        }
        Ok(())
    }

    /// Sends text that is not part of the answer, as a separate message that is not replayed.
    pub(crate) async fn send_unrecorded_text(
        &mut self,
        text: &str,
        meta: &Value,
    ) -> Result<(), Disconnected> {
        self.end_message().await?;
        if self.items.iter().any(|recorded| recorded.kind == ItemKind::Text) {
            // Separates the text: clients that join chunks of different messages would append it to the
            // answer.
            self.send_chunk("agent_message_chunk", "\n\n", Some(&json!({SEPARATOR_KEY: true}))).await?;
        }
        self.send_chunk("agent_message_chunk", text, Some(meta)).await
    }

    /// Sends a thought of the agent, not of the model, as a separate message that is not replayed.
    pub(crate) async fn send_unrecorded_thought(&mut self, text: &str) -> Result<(), Disconnected> {
        self.end_message().await?;
        self.send_chunk("agent_thought_chunk", text, None).await
    }

    async fn send_chunk(
        &self,
        kind: &'static str,
        text: &str,
        meta: Option<&Value>,
    ) -> Result<(), Disconnected> {
        let id = new_id();
        let content = Text { text };
        self.send_update(&Chunk { session_update: kind, message_id: &id, content, meta }).await
    }

    pub(crate) async fn announce_call(&mut self, call: &ToolCall) -> Result<(), Disconnected> {
        self.end_message().await?;
        self.send_update(&encode_update::tool_call(self.version, call)).await
    }

    pub(crate) async fn send_call_change(
        &self,
        call: &ToolCall,
        changed: &[CallField],
    ) -> Result<(), Disconnected> {
        self.send_update(&encode_update::tool_change(self.version, call, changed)).await
    }

    pub(crate) fn record_call(&mut self, mut call: ToolCall) {
        call.content.retain(|content| !matches!(content, ToolContent::Terminal { .. }));
        self.record(&TranscriptItem::Tool(Box::new(call)));
    }

    pub(crate) async fn send_plan(&mut self, entries: Vec<PlanEntry>) -> Result<(), Disconnected> {
        self.end_message().await?;
        self.send_update(&encode_update::plan(self.version, &entries)).await?;
        self.items.retain(|recorded| recorded.kind != ItemKind::Plan);
        self.record(&TranscriptItem::Plan { entries });
        Ok(())
    }

    /// Sends the session's state. In version 1 nothing is sent, because this update does not exist.
    pub(crate) async fn send_state(&self, state: &str) -> Result<(), Disconnected> {
        if self.version == Version::V1 {
            return Ok(());
        }
        self.send_update(&json!({"sessionUpdate": "state_update", "state": state})).await
    }

    pub(crate) async fn send_update<U: Serialize>(&self, update: &U) -> Result<(), Disconnected> {
        self.sent_count.fetch_add(1, Ordering::Relaxed);
        self.peer.notify(SESSION_UPDATE, &Params { session_id: &self.session, update }).await?;
        Ok(())
    }

    pub(crate) fn record(&mut self, shown: &TranscriptItem) {
        let kind = match shown {
            TranscriptItem::Text { .. } => ItemKind::Text,
            TranscriptItem::Plan { .. } => ItemKind::Plan,
            _ => ItemKind::Other,
        };
        self.items.extend(serde_json::to_string(shown).ok().map(|json| RecordedItem { kind, json }));
    }

    pub(crate) fn recorded_bytes(&self) -> usize {
        self.items.iter().map(|recorded| recorded.json.len()).sum()
    }

    /// Removes and returns the recorded items, each as JSON.
    pub(crate) fn take_items(&mut self) -> Vec<String> {
        std::mem::take(&mut self.items).into_iter().map(|recorded| recorded.json).collect()
    }
}

pub(crate) fn new_id() -> String {
    uuid::Uuid::now_v7().to_string()
}

#[cfg(test)]
mod tests {
    use narrows_link::{Link, Options as LinkOptions, memory};

    use super::*;

    fn writer() -> (UpdateWriter, Link) {
        let (near, far) = memory::pair(&LinkOptions::default());
        let (peer, inbox) = narrows_rpc::start(near, narrows_rpc::Options::agent(|_| false));
        drop(inbox);
        (UpdateWriter::new(peer, "s".into(), Version::V1), far)
    }

    /// Returns the texts that the client receives for `pieces`, and the recorded items. Thoughts begin with
    /// `~`.
    async fn send_pieces(pieces: &[&str]) -> (Vec<String>, Vec<TranscriptItem>) {
        let (mut updates, mut far) = writer();
        for piece in pieces {
            match piece.strip_prefix('~') {
                Some(thought) => updates.send_thought(thought).await.unwrap(),
                None => updates.send_text(piece).await.unwrap(),
            }
        }
        updates.end_message().await.unwrap();
        let count = updates.sent_count().load(Ordering::Relaxed);
        let mut texts = Vec::new();
        for _ in 0..count {
            let update: Value = far.receiver.recv().await.unwrap().read_params().unwrap();
            texts.push(update["update"]["content"]["text"].as_str().unwrap().to_owned());
        }
        let items = updates.take_items().iter().map(|json| serde_json::from_str(json).unwrap()).collect();
        (texts, items)
    }

    #[tokio::test]
    async fn the_first_chunk_has_a_minimum_length() {
        for (pieces, expected) in [
            (&["a", "a"][..], &["aa"][..]),
            (&["Hello ", "world, how ", "are ", "you"], &["Hello world, how ", "are ", "you"]),
            (&["~hm", "yes"], &["hm", "yes"]),
            (&["", ""], &[]),
            (&["äöüäöüäöüäöüäöü", "ä", "x"], &["äöüäöüäöüäöüäöüä", "x"]),
        ] {
            assert_eq!(send_pieces(pieces).await.0, expected, "{pieces:?}");
        }
    }

    #[test]
    fn a_templated_update_equals_the_serialized_one() {
        for thought in [false, true] {
            let mut open = OpenMessage::new(thought, "a \"session\"").unwrap();
            open.text = "said and \"quoted\"\n".to_owned();
            let session_update = if thought { "agent_thought_chunk" } else { "agent_message_chunk" };
            let update = open.updates.fill(&open.text[5..]);
            let content = Text { text: &open.text[5..] };
            let chunk = Chunk { session_update, message_id: &open.id, content, meta: None };
            let params = Params { session_id: "a \"session\"", update: chunk };
            let expected = message::notification(SESSION_UPDATE, &params).unwrap();
            assert_eq!(update, expected);
        }
    }

    #[tokio::test]
    async fn each_message_is_recorded_as_one_item() {
        let (_, items) = send_pieces(&["~think", "~ing", "said ", "so"]).await;
        let [TranscriptItem::Thought { text: thought, .. }, TranscriptItem::Text { text, .. }] = &items[..]
        else {
            panic!("{items:?}")
        };
        assert_eq!((thought.as_str(), text.as_str()), ("thinking", "said so"));
    }
}
