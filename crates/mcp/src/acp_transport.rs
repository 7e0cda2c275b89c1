//! Transport through a [`Bridge`]: every MCP request is a separate ACP request.

use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex};

use narrows_base::sync::lock;
use rmcp::RoleClient;
use rmcp::model::{
    ClientNotification, CustomResult, ErrorCode, ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage,
    ServerResult,
};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::bridge::{Bridge, BridgeError};

/// Maximum number of answers and notifications that are queued for rmcp.
const INBOX_MESSAGES: usize = 64;

pub(crate) struct AcpTransport {
    bridge: Arc<dyn Bridge>,
    server: String,
    inbox: mpsc::Receiver<ServerJsonRpcMessage>,
    pending: PendingRequests,
}

/// Unanswered requests of an [`AcpTransport`], to which notifications are routed.
#[derive(Debug, Clone)]
pub(crate) struct PendingRequests {
    /// Prefix of request ids, which distinguishes this session from others on the same connection.
    prefix: String,
    open: Arc<Mutex<HashMap<RequestId, AbortHandle>>>,
    deliver: mpsc::Sender<ServerJsonRpcMessage>,
}

impl PendingRequests {
    pub(crate) fn handle_notification(&self, request: &str, method: &str, params: &Value) {
        let id = request.strip_prefix(&self.prefix).and_then(|id| id.parse().ok()).map(RequestId::Number);
        let known = id.is_some_and(|id| self.lock().contains_key(&id));
        let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
        match serde_json::from_value(message) {
            Ok(message @ JsonRpcMessage::Notification(_)) if known => {
                // If the queue is full, the notification is dropped, because waiting would delay all messages
                // of the client.
                _ = self.deliver.try_send(message);
            }
            _ => tracing::debug!(request, method, "notification for an unknown request"),
        }
    }

    fn request_id(&self, id: &RequestId) -> String {
        format!("{}{id}", self.prefix)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<RequestId, AbortHandle>> {
        lock(&self.open)
    }
}

impl AcpTransport {
    pub(crate) fn new(bridge: Arc<dyn Bridge>, server: String) -> Self {
        let (deliver, inbox) = mpsc::channel(INBOX_MESSAGES);
        let prefix = format!("{:016x}-", RandomState::new().build_hasher().finish());
        Self { bridge, server, inbox, pending: PendingRequests { prefix, open: Arc::default(), deliver } }
    }

    pub(crate) fn pending(&self) -> PendingRequests {
        self.pending.clone()
    }

    fn send_request(&self, id: RequestId, mut message: Value) {
        let method = message["method"].as_str().unwrap_or_default().to_owned();
        let params = match message["params"].take() {
            Value::Null => Map::new().into(),
            params => params,
        };
        let answer = self.bridge.message(self.server.clone(), self.pending.request_id(&id), method, params);
        let pending = self.pending.clone();
        let mut open = self.pending.lock();
        let asked = id.clone();
        let task = tokio::spawn(async move {
            let message = parse_answer(answer.await, asked.clone());
            pending.lock().remove(&asked);
            _ = pending.deliver.send(message).await;
        });
        open.insert(id, task.abort_handle());
    }

    fn abort_all(&self) {
        for (_, task) in self.pending.lock().drain() {
            task.abort();
        }
    }
}

impl Drop for AcpTransport {
    fn drop(&mut self) {
        self.abort_all();
    }
}

impl Transport<RoleClient> for AcpTransport {
    type Error = Infallible;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        match &item {
            JsonRpcMessage::Request(request) => {
                let message = serde_json::to_value(&item).unwrap_or_default();
                self.send_request(request.id.clone(), message);
            }
            // Dropping the future of the answer makes the bridge cancel the request.
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                    && let Some(task) = self.pending.lock().remove(id)
                {
                    task.abort();
                }
            }
            // A server behind a bridge sends no requests that could be answered.
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => {}
        }
        std::future::ready(Ok(()))
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        self.inbox.recv().await
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.abort_all();
        Ok(())
    }
}

/// Returns the server's answer inside the bridge's answer. If the answer has both a result and an error, the
/// result counts.
fn parse_answer(answer: Result<Value, BridgeError>, id: RequestId) -> ServerJsonRpcMessage {
    let error = match answer {
        Err(BridgeError { code, message }) => error_data(code, message, None),
        Ok(Value::Object(mut answer)) => match (answer.remove("result"), answer.remove("error")) {
            (Some(value), _) => return JsonRpcMessage::response(parse_result(value), id),
            (None, Some(Value::Object(mut error))) => {
                let code = error.get("code").and_then(Value::as_i64);
                let text = error.get("message").and_then(Value::as_str);
                let text = text.unwrap_or("it gave no reason").to_owned();
                error_data(code.unwrap_or(i64::from(ErrorCode::INTERNAL_ERROR.0)), text, error.remove("data"))
            }
            _ => ErrorData::internal_error("the response has neither a result nor an error", None),
        },
        Ok(_) => ErrorData::internal_error("the answer is not an object", None),
    };
    JsonRpcMessage::error(error, Some(id))
}

fn error_data(code: i64, message: String, data: Option<Value>) -> ErrorData {
    let code = i32::try_from(code).unwrap_or(ErrorCode::INTERNAL_ERROR.0);
    ErrorData::new(ErrorCode(code), message, data)
}

fn parse_result(value: Value) -> ServerResult {
    serde_json::from_value(value.clone()).unwrap_or_else(|_| ServerResult::CustomResult(CustomResult(value)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(answer: Result<Value, BridgeError>, expected: Result<Value, (i32, &str)>) {
        let id = RequestId::Number(1);
        match (parse_answer(answer, id.clone()), expected) {
            (JsonRpcMessage::Response(response), Ok(expected)) => {
                assert_eq!(response.id, id);
                assert_eq!(serde_json::to_value(response.result).unwrap(), expected);
            }
            (JsonRpcMessage::Error(error), Err((code, message))) => {
                assert_eq!(error.id, Some(id));
                assert_eq!((error.error.code.0, &*error.error.message), (code, message));
            }
            (message, expected) => panic!("{message:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn answers_are_results_or_errors() {
        check(Ok(json!({"result": {"x": 1}})), Ok(json!({"x": 1})));
        check(Ok(json!({"result": null})), Ok(json!(null)));
        check(Ok(json!({"result": {"x": 1}, "error": {"code": 1, "message": "no"}})), Ok(json!({"x": 1})));
        check(Ok(json!({"error": {"code": -32601, "message": "no"}})), Err((-32601, "no")));
        check(Ok(json!({"error": {}})), Err((-32603, "it gave no reason")));
        check(Ok(json!({"error": "no"})), Err((-32603, "the response has neither a result nor an error")));
        check(Ok(json!({})), Err((-32603, "the response has neither a result nor an error")));
        check(Ok(json!([])), Err((-32603, "the answer is not an object")));
        let outer = |code| Err(BridgeError { code, message: "gone".into() });
        check(outer(-33001), Err((-33001, "gone")));
        check(outer(i64::MIN), Err((-32603, "gone")));
    }

    proptest! {
        #[test]
        fn any_answer_is_parsed_without_panic(text in "[\\[\\]{}:,\"a-z0-9]{0,60}", code in any::<i64>()) {
            let value: Value = serde_json::from_str(&text).unwrap_or(Value::String(text));
            for answer in [json!({"result": value.clone()}), json!({"error": value.clone()}), value] {
                _ = parse_answer(Ok(answer), RequestId::Number(1));
            }
            _ = parse_answer(Err(BridgeError { code, message: String::new() }), RequestId::Number(1));
        }
    }
}
