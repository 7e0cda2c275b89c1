//! What stands between rmcp and a transport: the bounds that rmcp does not have, and the ears of a call.

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

use crate::News;
use crate::text::clipped;
use crate::verbatim::{AsItIs, Verbatim};

/// How many answers to a server's own requests may wait to be written. rmcp has no bound for them, so a server that
/// asks and does not read would fill our memory; it is not listened to instead.
const MAX_ANSWERS: usize = 64;
/// How many pieces of progress may wait for a caller that is slow to take them. More are dropped: they are news, and
/// old news is worth nothing.
const PROGRESS: usize = 32;
/// How many characters of one piece of progress are kept.
const MAX_PROGRESS: usize = 1000;

/// What a server says without being asked, for those whom it concerns.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    over: watch::Sender<bool>,
    ears: Mutex<HashMap<ProgressToken, mpsc::Sender<News>>>,
    /// The tools have changed.
    pub(crate) changed: Notify,
    /// The requests whose answers come through as they are.
    pub(crate) verbatim: Verbatim,
}

impl Hub {
    /// Waits until nothing more can come.
    pub(crate) async fn over(&self) {
        // It cannot fail: we have the sender.
        _ = self.over.subscribe().wait_for(|over| *over).await;
    }

    fn listen(&self, token: ProgressToken, ear: Ear) {
        let mut ears = lock(&self.ears);
        ears.retain(|_, ear| !ear.is_closed());
        ears.insert(token, ear.0);
    }

    fn progress(&self, params: &ProgressNotificationParam) {
        let ears = lock(&self.ears);
        if let Some(ear) = ears.get(&params.progress_token) {
            _ = ear.try_send(news(params));
        }
    }
}

fn news(params: &ProgressNotificationParam) -> News {
    let message = params.message.as_ref().map(|message| clipped(message, MAX_PROGRESS));
    News { progress: params.progress, total: params.total, message }
}

/// Put into the extensions of a request, it hears of the request's progress. It goes with the request, so that the
/// first news cannot come before it.
#[derive(Debug, Clone)]
pub(crate) struct Ear(mpsc::Sender<News>);

impl Ear {
    /// An ear and what it hears.
    pub(crate) fn new() -> (Self, mpsc::Receiver<News>) {
        let (ear, heard) = mpsc::channel(PROGRESS);
        (Self(ear), heard)
    }
}

/// A transport with bounds. Notifications end here: rmcp would start a task for each.
pub(crate) struct Guard<T> {
    inner: T,
    hub: Arc<Hub>,
    answers: Arc<Answers>,
}

#[derive(Debug, Default)]
struct Answers {
    waiting: AtomicUsize,
    written: Notify,
}

/// One answer that waits to be written.
struct Waiting(Arc<Answers>);

impl Waiting {
    fn new(answers: &Arc<Answers>) -> Self {
        answers.waiting.fetch_add(1, Ordering::AcqRel);
        Self(answers.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
        self.0.written.notify_one();
    }
}

impl<T> Guard<T> {
    pub(crate) fn new(inner: T, hub: Arc<Hub>) -> Self {
        Self { inner, hub, answers: Arc::default() }
    }
}

impl<T> Drop for Guard<T> {
    fn drop(&mut self) {
        self.hub.over.send_replace(true);
    }
}

impl<T: Transport<RoleClient> + 'static> Transport<RoleClient> for Guard<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        if let JsonRpcMessage::Request(request) = &item
            && let Some(ear) = request.request.extensions().get::<Ear>()
            && let Some(token) = request.request.get_meta().get_progress_token()
        {
            self.hub.listen(token, ear.clone());
        }
        if let JsonRpcMessage::Request(request) = &item
            && let Some(wish) = request.request.extensions().get::<AsItIs>()
        {
            self.hub.verbatim.want(request.id.clone(), wish);
        }
        let answer = matches!(item, JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_))
            .then(|| Waiting::new(&self.answers));
        let send = self.inner.send(item);
        async move {
            let result = send.await;
            drop(answer);
            result
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            // A server that floods must not keep this thread from everybody else.
            tokio::task::consume_budget().await;
            while self.answers.waiting.load(Ordering::Acquire) >= MAX_ANSWERS {
                self.answers.written.notified().await;
            }
            let Some(message) = self.inner.receive().await else {
                self.hub.over.send_replace(true);
                return None;
            };
            let JsonRpcMessage::Notification(notification) = &message else { return Some(message) };
            match &notification.notification {
                ServerNotification::ProgressNotification(progress) => self.hub.progress(&progress.params),
                ServerNotification::ToolListChangedNotification(_) => self.hub.changed.notify_one(),
                // rmcp stops a request of the server's that it is working on.
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
    fn progress_in_words() {
        #[track_caller]
        fn check(params: Value, expected: &str) {
            let params = serde_json::from_value(params).expect("it is progress");
            assert_eq!(news(&params).to_string(), expected);
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
    fn ears_that_nobody_holds_are_forgotten() {
        let hub = Hub::default();
        let token = |number| ProgressToken(NumberOrString::Number(number));
        for number in 0..100 {
            let (ear, _) = Ear::new();
            hub.listen(token(number), ear);
        }
        let (ear, mut heard) = Ear::new();
        hub.listen(token(100), ear);
        assert_eq!(hub.ears.lock().unwrap().len(), 1);
        let news = || ProgressNotificationParam::new(token(100), 1.0);
        for _ in 0..2 * PROGRESS {
            hub.progress(&news());
        }
        assert_eq!(std::iter::from_fn(|| heard.try_recv().ok()).count(), PROGRESS);
    }

    /// More than can be asked before the first answers wait.
    const ENOUGH: usize = 10_000;

    /// A server that asks without end and reads no answer.
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
            // Without a bound it would never end, and a test should.
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
    async fn who_asks_without_reading_is_not_listened_to() {
        let asked = Arc::new(AtomicUsize::new(0));
        let guard = Guard::new(Flood { asked: asked.clone() }, Arc::default());
        let mut running = serve_directly((), guard, None);
        // sleep: the clock is paused, so this ends when nobody has anything to do
        tokio::time::sleep(Duration::from_secs(60)).await;
        let asked = asked.load(Ordering::SeqCst);
        assert!((MAX_ANSWERS..ENOUGH).contains(&asked), "{asked}");
        running.close().await.expect("it ends");
    }
}
