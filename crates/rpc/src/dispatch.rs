//! The dispatch loop: reads frames from the link and delivers them.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use narrows_acp::method::{CANCEL_REQUEST, SESSION_UPDATE};
use narrows_link::{CloseReason, Link, Receiver, Sender, queue};
use narrows_wire::{Batch, BatchStep, Code, Fault, Frame, Kind, RawId, RpcError, message};
use tokio::time::sleep;

use crate::call::Response;
use crate::error::CallError;
use crate::inbox::{Inbox, Item};
use crate::options::{Noise, Options};
use crate::peer::{EndOnDrop, Peer};
use crate::request::{Progress, ReplyTo, Request, Responder};
use crate::sessions::InboxRoute;
use crate::shared::{Shared, count};

/// The member that every message has. If an invalid line contains it, the line was probably meant as a
/// message.
const JSONRPC: &[u8] = b"\"jsonrpc\"";

const MAX_LOGGED_BYTES: usize = 100;

/// Silence after which a peer that no longer reads counts as lost.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time without any progress of writing after which a peer that has closed its end counts as lost.
const STANDSTILL_TIMEOUT: Duration = Duration::from_millis(200);

/// Limit of batches that wait for the answer to one of their entries. The rest of each waiting batch stays
/// in memory.
const MAX_WAITING_BATCHES: usize = 8;

/// Starts a conversation on `link`. Must be called inside a runtime.
#[must_use]
pub fn start(link: Link, options: Options) -> (Peer, Inbox) {
    let Link { sender, receiver } = link;
    let (main, inbox) = queue::bounded(options.inbox_bytes);
    let shared = Arc::new(Shared::new(sender, options));
    let alive = Arc::new(EndOnDrop { shared: Arc::clone(&shared) });
    tokio::spawn(run(Dispatch { shared, main }, receiver));
    (Peer::new(Arc::clone(&alive)), Inbox::new(inbox, alive))
}

async fn run(dispatch: Dispatch, mut receiver: Receiver) {
    let shared = &dispatch.shared;
    tokio::select! {
        biased;
        () = shared.stop.wait() => {}
        () = dispatch.read(&mut receiver) => {}
        () = wait_silent(&shared.sender) => {}
        () = wait_stuck(&shared.sender) => {
            tracing::warn!("peer stopped reading, last responses lost");
            // Abandoning the link wakes senders that wait for room.
            shared.sender.abandon();
        }
    }
    let reason = if shared.stop.is_raised() { CloseReason::Local } else { receiver.reason() };
    if shared.stop.is_raised() {
        shared.sender.close();
    }
    shared.end(&reason);
    // The queue is closed explicitly, because a batch that waits for an answer still holds a sender of it.
    dispatch.main.close();
    // A peer that sends nothing more may still read answers.
    shared.stop.wait().await;
    shared.sender.close();
}

/// Waits until the peer neither reads nor sends. A peer that stopped reading may still send data, or exit
/// with an explanation on stderr. After [`SILENCE_TIMEOUT`] without input, the peer counts as lost.
async fn wait_silent(sender: &Sender) {
    sender.written().await;
    loop {
        let before = sender.stats().frames_in;
        sleep(SILENCE_TIMEOUT).await;
        if sender.stats().frames_in == before {
            return;
        }
    }
}

/// Waits until a peer that has closed its end accepts no data. While answers fill the link, the peer's input
/// is not read, so the end of the stream behind the last requests would not be seen.
async fn wait_stuck(sender: &Sender) {
    sender.peer_closed().await;
    sender.standstill(STANDSTILL_TIMEOUT).await;
}

/// State of the loop. A batch that waits for an answer gets a clone.
#[derive(Clone)]
struct Dispatch {
    shared: Arc<Shared>,
    main: queue::Sender<Item>,
}

impl Dispatch {
    async fn read(&self, receiver: &mut Receiver) {
        let mut frames = Vec::new();
        while receiver.recv_all(&mut frames).await {
            for frame in frames.drain(..) {
                self.accept(frame).await;
            }
            // Answers are sent without waiting for room. So a peer that sends requests faster than it reads
            // answers is paused here.
            self.shared.sender.room().await;
        }
    }

    async fn accept(&self, frame: Frame) {
        tracing::trace!(?frame, "frame received");
        match frame.kind() {
            Kind::Batch => self.batch(&frame).await,
            Kind::Invalid(fault) => self.refuse(&frame, fault),
            Kind::Request | Kind::Notification | Kind::Response => {
                self.message(frame, &ReplyTo::default()).await;
            }
        }
    }

    /// Handles a valid message. For a delivered request, returns the progress of the request, on which a
    /// batch can wait.
    async fn message(&self, frame: Frame, reply: &ReplyTo) -> Option<Arc<Progress>> {
        if frame.kind() == Kind::Response {
            self.response(&frame);
            return None;
        }
        // Requests and notifications always have a method.
        let method = frame.method().unwrap_or(Cow::Borrowed(""));
        if frame.kind() == Kind::Notification {
            if method == CANCEL_REQUEST {
                self.cancel(&frame);
            } else if (self.shared.options.serves)(&method) && has_named_params(&frame) {
                if method == SESSION_UPDATE && frame.session().is_none() {
                    // The update is counted before it is delivered, so that a caller that has read the next
                    // answer finds it counted.
                    count(&self.shared.counters.nameless);
                    if may_be_answer(&frame) {
                        count(&self.shared.counters.nameless_answers);
                    }
                }
                self.deliver(Item::Notification(frame.clone()), &frame).await;
            } else {
                tracing::debug!(?frame, "message ignored: not supported");
                count(&self.shared.counters.ignored);
            }
            return None;
        }
        let known = (self.shared.options.serves)(&method);
        let reply = reply.to(&frame);
        match self.admit(&frame, known, &method, &reply) {
            Ok((request, progress)) => {
                self.deliver(Item::Request(request), &frame).await;
                Some(progress)
            }
            Err(error) => {
                tracing::debug!(?frame, %error, "request refused");
                reply.send(&self.shared, message::error(frame.id().unwrap_or(b"null"), &error));
                None
            }
        }
    }

    fn admit(
        &self,
        frame: &Frame,
        known: bool,
        method: &str,
        reply: &ReplyTo,
    ) -> Result<(Request, Arc<Progress>), RpcError> {
        if !known {
            let named = serde_json::Value::from(method.chars().take(100).collect::<String>());
            return Err(RpcError::new(Code::MethodNotFound, "method not found").with("method", named));
        }
        if !has_named_params(frame) {
            return Err(RpcError::new(Code::InvalidParams, "params must be an object"));
        }
        let id = RawId::copy(frame.id().unwrap_or(b"null"));
        let progress = Arc::new(Progress::default());
        let mut tables = self.shared.tables();
        let full = tables.answering.len() >= self.shared.options.max_requests;
        match tables.answering.entry(id.clone()) {
            Entry::Occupied(_) => {
                return Err(RpcError::new(
                    Code::DuplicateId,
                    "a request with this id is still being answered",
                ));
            }
            Entry::Vacant(_) if full => {
                return Err(RpcError::new(
                    Code::Backpressure,
                    "too many requests are waiting for their answers",
                ));
            }
            Entry::Vacant(slot) => slot.insert(Arc::clone(&progress)),
        };
        drop(tables);
        let responder = Responder::new(Arc::clone(&self.shared), id, Arc::clone(&progress), reply.clone());
        Ok((Request { frame: frame.clone(), responder }, progress))
    }

    /// Puts `item` into the inbox for `frame`, waiting for room.
    async fn deliver(&self, item: Item, frame: &Frame) {
        let size = frame.bytes().len();
        let route = match (frame.session(), &item) {
            (None, _) => InboxRoute::Main,
            (Some(session), Item::Request(_)) => self.shared.tables().sessions.route_request(&session),
            (Some(session), _) => self.shared.tables().sessions.route(&session, size),
        };
        let undelivered = match route {
            InboxRoute::Session(inbox) => inbox.send(item, size).await.is_err(),
            InboxRoute::Main => self.main.send(item, size).await.is_err(),
            InboxRoute::Held(inbox) => inbox.push(item, size).is_err(),
            InboxRoute::Full => {
                tracing::debug!(?frame, "message dropped: unclaimed sessions exceed their limit");
                count(&self.shared.counters.unclaimed);
                false
            }
            InboxRoute::Closed => {
                if let Item::Request(request) = item {
                    request.responder.fail(&RpcError::new(Code::NotFound, "the session is closed"));
                }
                true
            }
        };
        if undelivered {
            tracing::debug!(?frame, "message ignored: inbox closed");
            count(&self.shared.counters.ignored);
        }
    }

    fn response(&self, frame: &Frame) {
        let outcome = Response::read_from(frame.clone());
        if self.shared.settle(frame, outcome).is_none() {
            tracing::debug!(?frame, "response dropped: unknown id");
            count(&self.shared.counters.unasked);
        }
    }

    /// Handles the peer's cancellation of one of its requests.
    fn cancel(&self, frame: &Frame) {
        let Some(id) = frame.request_id() else { return count(&self.shared.counters.ignored) };
        match self.shared.tables().answering.get(&RawId::copy(id)) {
            Some(progress) => progress.cancelled.raise(),
            // The peer has cancelled a request that was answered meanwhile, or never existed.
            None => count(&self.shared.counters.ignored),
        }
    }

    /// Answers an invalid message, if it must be answered.
    fn refuse(&self, frame: &Frame, fault: Fault) {
        let counters = &self.shared.counters;
        let noise = matches!(fault, Fault::Syntax | Fault::Utf8 | Fault::TooDeep);
        count(if noise { &counters.noise } else { &counters.invalid });
        let is_message = looks_like_message(frame.bytes());
        if noise && is_message {
            count(&counters.unreadable);
        }
        // The beginning of the line helps to find the code that prints to stdout. A line that looks like a
        // message is not logged, because logs must not contain message content.
        let is_shown = !is_message && !frame.bytes().starts_with(b"{");
        let shown = if is_shown { frame.bytes().len().min(MAX_LOGGED_BYTES) } else { 0 };
        let head = frame.bytes()[..shown].escape_ascii().to_string();
        tracing::debug!(%fault, bytes = frame.bytes().len(), %head, "invalid message received");
        if noise && shown > 0 {
            self.shared.keep_stray_line(&head);
        }
        if self.settle_broken(frame) || noise && self.shared.options.noise == Noise::Ignore {
            return;
        }
        if let Some(refusal) = frame.refusal() {
            // A lost peer gets no answer.
            let _ = self.shared.sender.push(refusal);
        }
    }

    /// Fails the request to which `frame` may be a malformed answer. Returns `false` if there is no such
    /// request.
    fn settle_broken(&self, frame: &Frame) -> bool {
        let Kind::Invalid(fault @ (Fault::BadResponse | Fault::LongResponse | Fault::NoMethod)) =
            frame.kind()
        else {
            return false;
        };
        self.shared.settle(frame, Err(CallError::Malformed(fault.to_string()))).is_some()
    }

    async fn batch(&self, frame: &Frame) {
        let (batch, steps) = match Batch::open(frame, self.shared.options.max_batch) {
            Ok(opened) => opened,
            Err(fault) => {
                count(&self.shared.counters.invalid);
                let _ = self.shared.sender.push(message::error(b"null", &fault.into()));
                return;
            }
        };
        let mut steps = steps.into_iter();
        let reply = ReplyTo::batch(batch);
        if let Some(barrier) = self.batch_until_barrier(&mut steps, &reply).await {
            // The loop must continue while the rest waits: answering the entry may need more messages of
            // the peer.
            let dispatch = self.clone();
            let waiting = &self.shared.waiting_batches;
            if waiting.fetch_add(1, Ordering::Relaxed) >= MAX_WAITING_BATCHES {
                waiting.fetch_sub(1, Ordering::Relaxed);
                return self.refuse_rest(steps, &reply);
            }
            tokio::spawn(async move {
                let mut barrier = Some(barrier);
                while let Some(entry) = barrier {
                    entry.answered.wait().await;
                    barrier = dispatch.batch_until_barrier(&mut steps, &reply).await;
                }
                dispatch.shared.waiting_batches.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }

    /// Refuses the requests among the remaining entries because too many batches are waiting.
    fn refuse_rest(&self, steps: std::vec::IntoIter<BatchStep>, reply: &ReplyTo) {
        let error = RpcError::new(Code::Backpressure, "too many incomplete batches");
        for step in steps {
            match step {
                BatchStep::Answer { answer, entry } => {
                    self.settle_broken(&entry);
                    reply.send(&self.shared, answer);
                }
                BatchStep::Deliver(entry) if entry.kind() == Kind::Request => {
                    reply.send(&self.shared, message::error(entry.id().unwrap_or(b"null"), &error));
                }
                BatchStep::Deliver(_) => count(&self.shared.counters.ignored),
            }
        }
    }

    /// Handles entries of a batch, up to and including one whose answer the remaining entries must wait for.
    async fn batch_until_barrier(
        &self,
        steps: &mut std::vec::IntoIter<BatchStep>,
        reply: &ReplyTo,
    ) -> Option<Arc<Progress>> {
        for step in steps.by_ref() {
            match step {
                BatchStep::Answer { answer, entry } => {
                    self.settle_broken(&entry);
                    reply.send(&self.shared, answer);
                }
                BatchStep::Deliver(entry) => {
                    if let Kind::Invalid(fault) = entry.kind() {
                        self.refuse(&entry, fault);
                        continue;
                    }
                    let barrier =
                        entry.method().is_some_and(|method| (self.shared.options.lifecycle)(&method));
                    if let Some(progress) = self.message(entry, reply).await
                        && barrier
                    {
                        return Some(progress);
                    }
                }
            }
        }
        None
    }
}

/// Returns `true` if a line that is not valid JSON probably contains a message. Other output without a line
/// end may precede a message. A log line may also begin with `[` or `{`, so the next bytes are checked too.
fn looks_like_message(line: &[u8]) -> bool {
    let mut start = line.trim_ascii_start();
    if let Some(entry) = start.strip_prefix(b"[") {
        start = entry.trim_ascii_start();
    }
    let begins = start.strip_prefix(b"{").is_some_and(|rest| rest.trim_ascii_start().starts_with(b"\""));
    begins || line.windows(JSONRPC.len()).any(|part| part == JSONRPC)
}

/// Returns `true` if an update may be part of the agent's answer.
fn may_be_answer(frame: &Frame) -> bool {
    let params = frame.params().unwrap_or(b"{}");
    match serde_json::from_slice::<serde_json::Value>(params) {
        Ok(params) => {
            matches!(
                params["update"]["sessionUpdate"].as_str(),
                Some("agent_message_chunk" | "agent_message")
            )
        }
        Err(_) => params.windows(b"agent_message".len()).any(|piece| piece == b"agent_message"),
    }
}

/// Returns `true` if the params are an object or absent. JSON-RPC also allows an array, which no ACP method
/// uses. An array would deserialize into a struct, with a session id that the router has not seen.
fn has_named_params(frame: &Frame) -> bool {
    frame.params().is_none_or(|params| params[0] == b'{' || params == b"null")
}

#[cfg(test)]
mod tests {
    use super::looks_like_message;

    #[test]
    fn a_broken_message_is_distinguished_from_other_output() {
        for line in [
            r#"{"jsonrpc":"2.0","method":"session/upd"#,
            r#"  { "id": 1, "result": {}"#,
            r#"[{"jsonrpc":"2.0""#,
            r#"[ { "method""#,
            r#"Loading...{"jsonrpc":"2.0","id":1,"result":{}}"#,
            r#"{"jsonrpc":"2.0"}{"jsonrpc":"2.0"}"#,
        ] {
            assert!(looks_like_message(line.as_bytes()), "{line}");
        }
        for line in
            ["Loading...", "[info] ready", "[2026-01-01] {a}", "{ port: 80 }", "{", "{'a': 1}", "[1, 2", ""]
        {
            assert!(!looks_like_message(line.as_bytes()), "{line}");
        }
    }
}
