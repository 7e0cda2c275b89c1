//! What the agent says in one session: updates in the client's version, and a record of what is to be shown again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use narrows_acp::Version;
use narrows_acp::method::SESSION_UPDATE;
use narrows_rpc::{CallError, Peer};
use narrows_wire::message::{self, MessageTemplate};
use serde::Serialize;
use serde_json::{Value, json};

use crate::dialect::{self, Field};
use crate::shown::{PlanEntry, Shown, ToolCall, ToolContent};

/// How long the first piece of a message is, if there is so much: some clients take a chunk that begins with all the
/// text so far for the whole text up to now, which only happens while that is short.
const FIRST: usize = 16;

/// Marks in `_meta` what is said only to keep apart what is said before and after it.
const SEPARATOR: &str = "narrows/separator";

/// The client is gone; there is nobody to speak to.
#[derive(Debug)]
pub(crate) struct Gone;

impl From<CallError> for Gone {
    fn from(_: CallError) -> Self {
        Self
    }
}

/// A message that is being said.
struct Open {
    thought: bool,
    id: String,
    text: String,
    /// How much of the text has been sent.
    sent: usize,
    /// Its updates: a message has thousands, and they differ in nothing but their text.
    updates: MessageTemplate,
}

impl Open {
    fn new(thought: bool, session: &str) -> Result<Self, CallError> {
        let id = new_id();
        let session_update = if thought { "agent_thought_chunk" } else { "agent_message_chunk" };
        let chunk = Chunk { session_update, message_id: &id, content: Text { text: "" }, meta: None };
        let line = message::notification(SESSION_UPDATE, &Params { session_id: session, update: chunk });
        // The text is the last thing in it, and empty.
        let updates = MessageTemplate::from_line(&line.map_err(unwritable)?);
        let updates = updates.ok_or_else(|| CallError::Unwritable("no place for text".to_owned()))?;
        Ok(Self { thought, id, text: String::new(), sent: 0, updates })
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err takes")]
fn unwritable(error: serde_json::Error) -> CallError {
    CallError::Unwritable(error.to_string())
}

/// Speaks in one session, for the length of one turn.
pub(crate) struct Voice {
    peer: Peer,
    session: Arc<str>,
    version: Version,
    open: Option<Open>,
    record: Vec<Recorded>,
    /// How many updates have been sent, for whoever watches over the silence.
    said: Arc<AtomicU64>,
}

/// Something that is to be shown again, as it is stored: text needs less memory than values.
struct Recorded {
    kind: RecordedKind,
    json: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordedKind {
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

impl Voice {
    pub(crate) fn new(peer: Peer, session: Arc<str>, version: Version) -> Self {
        Self { peer, session, version, open: None, record: Vec::new(), said: Arc::default() }
    }

    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// Counts what has been said.
    pub(crate) fn said(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.said)
    }

    /// Says a piece of the answer.
    pub(crate) async fn text(&mut self, piece: &str) -> Result<(), Gone> {
        self.piece(false, piece).await
    }

    /// Says a piece of what the model thinks.
    pub(crate) async fn thought(&mut self, piece: &str) -> Result<(), Gone> {
        self.piece(true, piece).await
    }

    async fn piece(&mut self, thought: bool, piece: &str) -> Result<(), Gone> {
        if piece.is_empty() {
            return Ok(());
        }
        if self.open.as_ref().is_some_and(|open| open.thought != thought) {
            self.pause().await?;
        }
        let open = match &mut self.open {
            Some(open) => open,
            none => none.insert(Open::new(thought, &self.session)?),
        };
        open.text.push_str(piece);
        if open.sent == 0 && open.text.chars().take(FIRST).count() < FIRST {
            return Ok(());
        }
        self.send_open().await
    }

    /// Sends what is held back of the message that is being said.
    async fn send_open(&mut self) -> Result<(), Gone> {
        let Some(open) = &mut self.open else { return Ok(()) };
        if open.sent == open.text.len() {
            return Ok(());
        }
        self.said.fetch_add(1, Ordering::Relaxed);
        let update = open.updates.fill(&open.text[open.sent..]);
        self.peer.notify_line(update).await?;
        open.sent = open.text.len();
        Ok(())
    }

    /// Ends the message that is being said; what follows is another one.
    pub(crate) async fn pause(&mut self) -> Result<(), Gone> {
        self.send_open().await?;
        if let Some(Open { thought, id, text, .. }) = self.open.take() {
            self.note(&if thought { Shown::Thought { id, text } } else { Shown::Text { id, text } });
        }
        Ok(())
    }

    /// Says something that is no part of the answer, in a message of its own that is not shown again.
    pub(crate) async fn aside(&mut self, text: &str, meta: &Value) -> Result<(), Gone> {
        self.pause().await?;
        if self.record.iter().any(|recorded| recorded.kind == RecordedKind::Text) {
            // Clients that join chunks whatever their message would otherwise run it into the answer.
            self.chunk("agent_message_chunk", "\n\n", Some(&json!({SEPARATOR: true}))).await?;
        }
        self.chunk("agent_message_chunk", text, Some(meta)).await
    }

    /// Thinks aloud about something that is no part of the answer, in a message of its own that is not shown again.
    pub(crate) async fn remark(&mut self, text: &str) -> Result<(), Gone> {
        self.pause().await?;
        self.chunk("agent_thought_chunk", text, None).await
    }

    async fn chunk(&self, kind: &'static str, text: &str, meta: Option<&Value>) -> Result<(), Gone> {
        let id = new_id();
        let content = Text { text };
        self.update(&Chunk { session_update: kind, message_id: &id, content, meta }).await
    }

    /// Announces a call.
    pub(crate) async fn announce(&mut self, call: &ToolCall) -> Result<(), Gone> {
        self.pause().await?;
        self.update(&dialect::tool_call(self.version, call)).await
    }

    /// Tells how a call has changed.
    pub(crate) async fn change(&self, call: &ToolCall, changed: &[Field]) -> Result<(), Gone> {
        self.update(&dialect::tool_change(self.version, call, changed)).await
    }

    /// Keeps a call that has ended.
    pub(crate) fn keep(&mut self, mut call: ToolCall) {
        call.content.retain(|content| !matches!(content, ToolContent::Terminal { .. }));
        self.note(&Shown::Tool(Box::new(call)));
    }

    /// Tells the plan.
    pub(crate) async fn plan(&mut self, entries: Vec<PlanEntry>) -> Result<(), Gone> {
        self.pause().await?;
        self.update(&dialect::plan(self.version, &entries)).await?;
        self.record.retain(|recorded| recorded.kind != RecordedKind::Plan);
        self.note(&Shown::Plan { entries });
        Ok(())
    }

    /// Tells what state the session is in; version 1 has no word for it.
    pub(crate) async fn state(&self, state: &str) -> Result<(), Gone> {
        if self.version == Version::V1 {
            return Ok(());
        }
        self.update(&json!({"sessionUpdate": "state_update", "state": state})).await
    }

    /// Sends any other update.
    pub(crate) async fn update<U: Serialize>(&self, update: &U) -> Result<(), Gone> {
        self.said.fetch_add(1, Ordering::Relaxed);
        self.peer.notify(SESSION_UPDATE, &Params { session_id: &self.session, update }).await?;
        Ok(())
    }

    /// Keeps something that is to be shown again.
    pub(crate) fn note(&mut self, shown: &Shown) {
        let kind = match shown {
            Shown::Text { .. } => RecordedKind::Text,
            Shown::Plan { .. } => RecordedKind::Plan,
            _ => RecordedKind::Other,
        };
        // Plain data with string keys, which always can be written.
        self.record.extend(serde_json::to_string(shown).ok().map(|json| Recorded { kind, json }));
    }

    /// How many bytes are to be shown again.
    pub(crate) fn recorded_bytes(&self) -> usize {
        self.record.iter().map(|recorded| recorded.json.len()).sum()
    }

    /// Takes what is to be shown again, each as JSON.
    pub(crate) fn take_record(&mut self) -> Vec<String> {
        std::mem::take(&mut self.record).into_iter().map(|recorded| recorded.json).collect()
    }
}

/// A new id for a message, a call or a session.
pub(crate) fn new_id() -> String {
    uuid::Uuid::now_v7().to_string()
}

#[cfg(test)]
mod tests {
    use narrows_link::{Link, Options as LinkOptions, memory};

    use super::*;

    fn voice() -> (Voice, Link) {
        let (near, far) = memory::pair(&LinkOptions::default());
        let (peer, inbox) = narrows_rpc::start(near, narrows_rpc::Options::agent(|_| false));
        drop(inbox);
        (Voice::new(peer, "s".into(), Version::V1), far)
    }

    /// What arrives as texts when `pieces` are said: thoughts begin with `~`.
    async fn said(pieces: &[&str]) -> (Vec<String>, Vec<Shown>) {
        let (mut voice, mut far) = voice();
        for piece in pieces {
            match piece.strip_prefix('~') {
                Some(thought) => voice.thought(thought).await.unwrap(),
                None => voice.text(piece).await.unwrap(),
            }
        }
        voice.pause().await.unwrap();
        let count = voice.said().load(Ordering::Relaxed);
        let mut texts = Vec::new();
        for _ in 0..count {
            let update: Value = far.receiver.recv().await.unwrap().read_params().unwrap();
            texts.push(update["update"]["content"]["text"].as_str().unwrap().to_owned());
        }
        let record = voice.take_record().iter().map(|json| serde_json::from_str(json).unwrap()).collect();
        (texts, record)
    }

    #[tokio::test]
    async fn the_first_piece_is_long_enough() {
        for (pieces, expected) in [
            (&["a", "a"][..], &["aa"][..]),
            (&["Hello ", "world, how ", "are ", "you"], &["Hello world, how ", "are ", "you"]),
            (&["~hm", "yes"], &["hm", "yes"]),
            (&["", ""], &[]),
            (&["äöüäöüäöüäöüäöü", "ä", "x"], &["äöüäöüäöüäöüäöüä", "x"]),
        ] {
            assert_eq!(said(pieces).await.0, expected, "{pieces:?}");
        }
    }

    #[test]
    fn an_update_is_what_the_types_would_write() {
        for thought in [false, true] {
            let mut open = Open::new(thought, "a \"session\"").unwrap();
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
    async fn messages_are_recorded_whole() {
        let (_, record) = said(&["~think", "~ing", "said ", "so"]).await;
        let [Shown::Thought { text: thought, .. }, Shown::Text { text, .. }] = &record[..] else {
            panic!("{record:?}")
        };
        assert_eq!((thought.as_str(), text.as_str()), ("thinking", "said so"));
    }
}
