//! Handles requests that belong to no open session: they name a session that is being opened, or an MCP
//! server.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use narrows_acp::method::SESSION_UPDATE;
use narrows_base::sync::lock;
use narrows_rpc::{Inbox, Item, Request};
use narrows_wire::{Code, RpcError};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::session::serves;

/// Maximum number of requests that wait for sessions that are being opened.
const MAX_EARLY_REQUESTS: usize = 32;

/// Time for which a request waits for its session to be opened. The agent's answer with the session id
/// usually follows the request at once.
pub(crate) const EARLY_REQUEST_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum number of queued requests of one session.
pub(crate) const MAX_QUEUED_REQUESTS: usize = 64;

#[derive(Default)]
struct State {
    /// Request queues of the open sessions, by session id.
    open: HashMap<String, mpsc::Sender<Item>>,
    /// Requests that name no open session: session id, request and time of arrival.
    waiting: Vec<(String, Request, Instant)>,
}

/// Holds requests that arrive before their session is known.
///
/// An agent may request a file right after it has returned the id of a new session. The client may not have
/// opened the session yet, but must not refuse the request for that reason.
#[derive(Default)]
pub(crate) struct EarlyRequests {
    state: Mutex<State>,
    opening: AtomicUsize,
    has_refused: AtomicBool,
}

/// Marks that some session is being opened, until it is dropped.
pub(crate) struct OpeningSession {
    early_requests: Arc<EarlyRequests>,
}

impl Drop for OpeningSession {
    fn drop(&mut self) {
        if self.early_requests.opening.fetch_sub(1, Ordering::Relaxed) == 1 {
            // No session is being opened any more, so no session will take the waiting requests.
            let left = std::mem::take(&mut self.early_requests.state().waiting);
            left.into_iter().for_each(|(session, request, _)| self.early_requests.refuse(&session, request));
        }
    }
}

impl EarlyRequests {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Starts holding requests that name no open session.
    pub(crate) fn begin_opening(self: &Arc<Self>) -> OpeningSession {
        self.opening.fetch_add(1, Ordering::Relaxed);
        OpeningSession { early_requests: Arc::clone(self) }
    }

    /// Registers the open session `id`. Returns the queue of its requests.
    pub(crate) fn open_session(&self, id: &str) -> mpsc::Receiver<Item> {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_REQUESTS);
        let mut state = self.state();
        let (ours, others) =
            std::mem::take(&mut state.waiting).into_iter().partition(|(session, ..)| session == id);
        state.waiting = others;
        let ours: Vec<(String, Request, Instant)> = ours;
        for (_, request, _) in ours {
            // Never full: the queue of a session has more room than the limit for waiting requests.
            let _ = sender.try_send(Item::Request(request));
        }
        state.open.insert(id.to_owned(), sender);
        receiver
    }

    pub(crate) fn close_session(&self, id: &str) {
        self.state().open.remove(id);
    }

    /// Queues a request for the open session `id`. If there is none, holds or refuses the request.
    fn accept(self: &Arc<Self>, id: String, request: Request) {
        let mut state = self.state();
        if let Some(open) = state.open.get(&id) {
            if let Err(full) = open.try_send(Item::Request(request))
                && let Item::Request(request) = full.into_inner()
            {
                request
                    .responder
                    .fail(&RpcError::new(Code::Backpressure, "too many requests in one session"));
            }
            return;
        }
        if self.opening.load(Ordering::Relaxed) > 0 && state.waiting.len() < MAX_EARLY_REQUESTS {
            state.waiting.push((id, request, Instant::now()));
            drop(state);
            let early_requests = Arc::clone(self);
            tokio::spawn(async move {
                tokio::time::sleep(EARLY_REQUEST_TIMEOUT).await;
                early_requests.refuse_expired();
            });
            return;
        }
        drop(state);
        self.refuse(&id, request);
    }
}

impl EarlyRequests {
    /// Refuses requests that have waited too long. An agent may wait for the response before it sends the id
    /// of the new session.
    fn refuse_expired(&self) {
        let mut state = self.state();
        let is_late = |since: &Instant| since.elapsed() >= EARLY_REQUEST_TIMEOUT;
        let (late, others) =
            std::mem::take(&mut state.waiting).into_iter().partition(|waiting| is_late(&waiting.2));
        state.waiting = others;
        drop(state);
        let late: Vec<(String, Request, Instant)> = late;
        late.into_iter().for_each(|(session, request, _)| self.refuse(&session, request));
    }

    /// Refuses a request that names no open session. If exactly one session is open, that session refuses the
    /// request and reports an event: the id may belong to one of its child sessions.
    fn refuse(&self, session: &str, request: Request) {
        let state = self.state();
        let only = state.open.values().next().filter(|_| state.open.len() == 1).cloned();
        drop(state);
        let request = match only {
            Some(open) => match open.try_send(Item::Request(request)) {
                Err(left) => match left.into_inner() {
                    Item::Request(request) => request,
                    _ => return,
                },
                Ok(()) => return,
            },
            None => request,
        };
        self.refuse_unknown_session(session, request);
    }

    pub(crate) fn refuse_unknown_session(&self, session: &str, request: Request) {
        // Only the first refusal is logged, because an agent may repeat such requests endlessly.
        if !self.has_refused.swap(true, Ordering::Relaxed) {
            let method = request.frame.method().unwrap_or_default();
            tracing::warn!(%method, "request of an unknown session refused");
        }
        request.responder.fail(&unknown_session(session));
    }

    /// Passes an unknown message to the session that the message names. A message without a session goes to
    /// the only open session, which reports an event.
    fn forward_unknown(&self, session: Option<&str>, item: Item) {
        let state = self.state();
        let open = match session {
            Some(session) => state.open.get(session),
            None if state.open.len() == 1 => state.open.values().next(),
            None => None,
        };
        let left = match open.cloned() {
            Some(open) => open.try_send(item).err().map(mpsc::error::TrySendError::into_inner),
            None => Some(item),
        };
        drop(state);
        match left {
            Some(Item::Request(request)) => request.responder.fail(&unknown_method()),
            Some(Item::Notification(frame)) => {
                tracing::debug!(?frame, "message of an unknown session ignored");
            }
            Some(Item::Answer(_)) | None => {}
        }
    }
}

pub(crate) fn unknown_session(session: &str) -> RpcError {
    let error = RpcError::new(Code::NotFound, "session not found");
    error.with("sessionId", session.chars().take(100).collect::<String>().into())
}

pub(crate) fn unknown_method() -> RpcError {
    RpcError::new(Code::MethodNotFound, "method not found")
}

/// Reads messages that belong to no session until the connection ends. `other` handles requests without a
/// session id.
pub(crate) async fn read(early_requests: Arc<EarlyRequests>, mut inbox: Inbox, other: impl Fn(Request)) {
    while let Some(item) = inbox.recv().await {
        match item {
            Item::Request(request) => {
                let session = request.frame.session().map(std::borrow::Cow::into_owned);
                if !serves(&request.frame.method().unwrap_or_default()) {
                    early_requests.forward_unknown(session.as_deref(), Item::Request(request));
                } else if let Some(session) = session {
                    early_requests.accept(session, request);
                } else {
                    other(request);
                }
            }
            Item::Notification(frame) if frame.method().as_deref() == Some(SESSION_UPDATE) => {
                tracing::debug!(?frame, "message without a session ignored");
            }
            Item::Notification(frame) => {
                let session = frame.session().map(std::borrow::Cow::into_owned);
                early_requests.forward_unknown(session.as_deref(), Item::Notification(frame));
            }
            Item::Answer(_) => {}
        }
    }
}
