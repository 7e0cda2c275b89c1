//! Adds limits that rmcp lacks to any transport, and delivers progress to callers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use narrows_base::sync::lock;
use rmcp::RoleClient;
use rmcp::model::{
    GetExtensions, GetMeta, JsonRpcMessage, ProgressNotificationParam, ProgressToken, ServerNotification,
};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::sync::{Notify, mpsc, watch};

use crate::CallProgress;
use crate::text::clipped;
use crate::verbatim::{KeepVerbatim, Verbatim};

/// Maximum number of queued answers to requests of the server. At the limit, reading from the server pauses.
/// rmcp has no such limit, so a server that sends requests without reading could fill the memory.
const MAX_PENDING_ANSWERS: usize = 64;
/// Maximum number of progress updates queued for a slow caller. Further updates are dropped, because progress
/// is soon outdated.
const MAX_QUEUED_PROGRESS: usize = 32;
const MAX_PROGRESS_CHARS: usize = 1000;

#[derive(Debug, Default)]
pub(crate) struct ServerEvents {
    closed: watch::Sender<bool>,
    progress_senders: Mutex<HashMap<ProgressToken, mpsc::Sender<CallProgress>>>,
    pub(crate) changed: Notify,
    /// Requests whose results are returned without changes.
    pub(crate) verbatim: Verbatim,
}

impl ServerEvents {
    pub(crate) async fn closed(&self) {
        // Waiting cannot fail, because `self` holds the sender.
        _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    fn subscribe(&self, token: ProgressToken, sender: ProgressSender) {
        let mut progress_senders = lock(&self.progress_senders);
        progress_senders.retain(|_, sender| !sender.is_closed());
        progress_senders.insert(token, sender.0);
    }

    fn progress(&self, params: &ProgressNotificationParam) {
        let progress_senders = lock(&self.progress_senders);
        if let Some(sender) = progress_senders.get(&params.progress_token) {
            _ = sender.try_send(call_progress(params));
        }
    }
}

fn call_progress(params: &ProgressNotificationParam) -> CallProgress {
    let message = params.message.as_ref().map(|message| clipped(message, MAX_PROGRESS_CHARS));
    CallProgress { progress: params.progress, total: params.total, message }
}

/// Channel for the progress of a request, attached to the request itself. So no progress arrives before the
/// channel is registered.
#[derive(Debug, Clone)]
pub(crate) struct ProgressSender(mpsc::Sender<CallProgress>);

impl ProgressSender {
    pub(crate) fn new() -> (Self, mpsc::Receiver<CallProgress>) {
        let (sender, updates) = mpsc::channel(MAX_QUEUED_PROGRESS);
        (Self(sender), updates)
    }
}

/// A transport with limits. Handles notifications itself, because rmcp would start a task for each.
pub(crate) struct BoundedTransport<T> {
    inner: T,
    events: Arc<ServerEvents>,
    answers: Arc<PendingAnswers>,
}

#[derive(Debug, Default)]
struct PendingAnswers {
    count: AtomicUsize,
    written: Notify,
}

/// A queued answer to a request of the server. Dropping it frees its place in the queue.
struct PendingAnswer(Arc<PendingAnswers>);

impl PendingAnswer {
    fn new(answers: &Arc<PendingAnswers>) -> Self {
        answers.count.fetch_add(1, Ordering::AcqRel);
        Self(answers.clone())
    }
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.written.notify_one();
    }
}

impl<T> BoundedTransport<T> {
    pub(crate) fn new(inner: T, events: Arc<ServerEvents>) -> Self {
        Self { inner, events, answers: Arc::default() }
    }
}

impl<T> Drop for BoundedTransport<T> {
    fn drop(&mut self) {
        self.events.closed.send_replace(true);
    }
}

impl<T: Transport<RoleClient> + 'static> Transport<RoleClient> for BoundedTransport<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        if let JsonRpcMessage::Request(request) = &item
            && let Some(sender) = request.request.extensions().get::<ProgressSender>()
            && let Some(token) = request.request.get_meta().get_progress_token()
        {
            self.events.subscribe(token, sender.clone());
        }
        if let JsonRpcMessage::Request(request) = &item
            && let Some(keep) = request.request.extensions().get::<KeepVerbatim>()
        {
            self.events.verbatim.request(request.id.clone(), keep);
        }
        let answer = matches!(item, JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_))
            .then(|| PendingAnswer::new(&self.answers));
        let send = self.inner.send(item);
        async move {
            let result = send.await;
            drop(answer);
            result
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            // A server that sends messages without pause must not keep other tasks from running.
            tokio::task::consume_budget().await;
            while self.answers.count.load(Ordering::Acquire) >= MAX_PENDING_ANSWERS {
                self.answers.written.notified().await;
            }
            let Some(message) = self.inner.receive().await else {
                self.events.closed.send_replace(true);
                return None;
            };
            let JsonRpcMessage::Notification(notification) = &message else { return Some(message) };
            match &notification.notification {
                ServerNotification::ProgressNotification(progress) => self.events.progress(&progress.params),
                ServerNotification::ToolListChangedNotification(_) => self.events.changed.notify_one(),
                // rmcp needs a cancellation to end its work on the server's request.
                ServerNotification::CancelledNotification(_) => return Some(message),
                _ => {}
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.inner.close().await
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use rmcp::model::{NumberOrString, ServerJsonRpcMessage};
    use rmcp::service::serve_directly;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn progress_is_one_line_of_text() {
        #[track_caller]
        fn check(params: Value, expected: &str) {
            let params = serde_json::from_value(params).expect("it is progress");
            assert_eq!(call_progress(&params).to_string(), expected);
        }
        check(json!({"progressToken": 1, "progress": 1, "message": "a\nb"}), "a | b");
        check(json!({"progressToken": 1, "progress": 1.5, "total": 3}), "1.5 of 3");
        check(json!({"progressToken": "x", "progress": 7}), "7");
        check(
            json!({"progressToken": 1, "progress": 1, "message": "x".repeat(2000)}),
            &format!("{}…", "x".repeat(1000)),
        );
    }

    #[test]
    fn senders_without_a_receiver_are_removed() {
        let events = ServerEvents::default();
        let token = |number| ProgressToken(NumberOrString::Number(number));
        for number in 0..100 {
            let (sender, _) = ProgressSender::new();
            events.subscribe(token(number), sender);
        }
        let (sender, mut updates) = ProgressSender::new();
        events.subscribe(token(100), sender);
        assert_eq!(events.progress_senders.lock().unwrap().len(), 1);
        let update = || ProgressNotificationParam::new(token(100), 1.0);
        for _ in 0..2 * MAX_QUEUED_PROGRESS {
            events.progress(&update());
        }
        assert_eq!(std::iter::from_fn(|| updates.try_recv().ok()).count(), MAX_QUEUED_PROGRESS);
    }

    /// Number of requests that exceeds the limit for queued answers.
    const ENOUGH: usize = 10_000;

    /// A server that sends requests without end and reads no answer.
    struct Flood {
        asked: Arc<AtomicUsize>,
    }

    impl Transport<RoleClient> for Flood {
        type Error = Infallible;

        fn send(
            &mut self,
            _: TxJsonRpcMessage<RoleClient>,
        ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
            std::future::pending()
        }

        async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
            let id = self.asked.fetch_add(1, Ordering::SeqCst);
            // If the limit did not exist, the test would never end.
            if id > ENOUGH {
                return None;
            }
            let ping = json!({"jsonrpc": "2.0", "id": id, "method": "ping"});
            serde_json::from_value::<ServerJsonRpcMessage>(ping).ok()
        }

        async fn close(&mut self) -> Result<(), Self::Error> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_asks_without_reading_answers_is_not_read() {
        let asked = Arc::new(AtomicUsize::new(0));
        let guard = BoundedTransport::new(Flood { asked: asked.clone() }, Arc::default());
        let mut running = serve_directly((), guard, None);
        // sleep: the clock is paused, so this ends when all tasks are idle
        tokio::time::sleep(Duration::from_secs(60)).await;
        let asked = asked.load(Ordering::SeqCst);
        assert!((MAX_PENDING_ANSWERS..ENOUGH).contains(&asked), "{asked}");
        running.close().await.expect("it ends");
    }
}
