//! Servers behind a bridge.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use narrows_mcp::{
    Bridge, BridgeError, BridgeFuture, CallError, CallOutcome, Content, Options, Server, Servers,
};
use narrows_process::Environment;
use serde_json::{Map, Value, json};
use tokio::sync::{Notify, mpsc};

/// Timeout of a test step. Waiting costs no time, because the clock is paused.
const TEST_TIMEOUT: Duration = Duration::from_secs(3600);

/// A request to the bridge: server, request, method, params.
type Asked = (String, String, String, Value);

struct Client {
    asked: mpsc::Sender<Asked>,
    requests: Mutex<Vec<String>>,
    abandoned: Arc<Notify>,
}

struct Pending(Arc<Notify>);

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Bridge for Client {
    fn message(&self, server: String, request: String, method: String, params: Value) -> BridgeFuture {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
        let answer = match (method.as_str(), params["name"].as_str()) {
            ("tools/list", _) if server == "broken" => {
                Err(BridgeError { code: -33001, message: "no such\nserver".into() })
            }
            ("tools/list", _) => Ok(json!({"result": {"tools": [{"name": "echo"}]}})),
            (_, Some("echo")) => {
                let text = params["arguments"].to_string();
                Ok(json!({"result": {"content": [{"type": "text", "text": text}]}}))
            }
            (_, Some("inner")) => Ok(json!({"error": {"code": -32602, "message": "inner"}})),
            (_, Some("outer")) => Err(BridgeError { code: -33002, message: "outer".into() }),
            (_, Some("null")) => Ok(json!({"result": null})),
            _ => {
                let pending = Pending(self.abandoned.clone());
                let asked = self.asked.clone();
                return Box::pin(async move {
                    let _pending = pending;
                    _ = asked.send((server, request, method, params)).await;
                    std::future::pending().await
                });
            }
        };
        Box::pin(async move { answer })
    }
}

async fn start(id: &str) -> (Servers, Arc<Client>, mpsc::Receiver<Asked>) {
    let (asked, asks) = mpsc::channel(16);
    let client = Arc::new(Client { asked, requests: Mutex::default(), abandoned: Arc::default() });
    let server = Server::Acp { name: "s".into(), id: id.into(), authorizes: false };
    let options = Options::new("/", Environment::empty());
    let servers = Servers::start(vec![server], options, Some(client.clone()));
    servers.wait_until_settled(TEST_TIMEOUT).await;
    (servers, client, asks)
}

async fn call(servers: &Servers, tool: &str) -> Result<CallOutcome, CallError> {
    let arguments = Map::from_iter([("a".to_owned(), json!(1))]);
    servers.call("s", tool, arguments, |_| {}).await
}

#[tokio::test(start_paused = true)]
async fn tools_are_listed_and_called() {
    let (servers, client, _asks) = start("id-1").await;
    assert_eq!(servers.failures(), []);
    let tools = servers.tools();
    assert_eq!(tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["echo"]);
    let outcome = call(&servers, "echo").await.expect("it echoes");
    assert_eq!(outcome.content, [Content::Text(r#"{"a":1}"#.into())]);
    let refused = |code, message: &str| Err(CallError::Refused { code, message: message.into() });
    assert_eq!(call(&servers, "inner").await, refused(-32602, "inner"));
    assert_eq!(call(&servers, "outer").await, refused(-33002, "outer"));
    assert!(matches!(call(&servers, "null").await, Err(CallError::InvalidResult(_))));
    let mut requests = client.requests.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let all = requests.len();
    requests.sort();
    requests.dedup();
    assert_eq!((all, requests.len()), (5, 5), "every message has an id of its own");
    servers.close().await;
}

#[tokio::test(start_paused = true)]
async fn every_request_names_the_client() {
    let (servers, _client, mut asks) = start("id-1").await;
    let (server, _, method, params) = tokio::select! {
        _ = call(&servers, "slow") => panic!("it has no answer"),
        asked = asks.recv() => asked.expect("it was asked"),
    };
    assert_eq!((&*server, &*method, &params["name"]), ("id-1", "tools/call", &json!("slow")));
    let meta = &params["_meta"];
    assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    assert_eq!(meta["io.modelcontextprotocol/clientInfo"]["name"], "narrows");
    assert!(meta["progressToken"].is_number());
    servers.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_server_fails() {
    let (servers, ..) = start("broken").await;
    let failures = servers.failures();
    assert_eq!(failures.len(), 1);
    assert_eq!(failures[0].reason, "listing the server's tools failed: no such | server (-33001)");
    servers.close().await;
}

#[tokio::test(start_paused = true)]
async fn dropping_a_call_drops_the_answer() {
    let (servers, client, mut asks) = start("id-1").await;
    tokio::select! {
        _ = call(&servers, "slow") => panic!("it has no answer"),
        asked = asks.recv() => assert!(asked.is_some()),
    }
    client.abandoned.notified().await;
    call(&servers, "echo").await.expect("the server is still there");
    servers.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_at_its_limit() {
    let (servers, client, _asks) = start("id-1").await;
    assert_eq!(call(&servers, "slow").await, Err(CallError::Deadline(Duration::from_secs(600))));
    client.abandoned.notified().await;
    servers.close().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_cancels_pending_requests() {
    let (servers, client, mut asks) = start("id-1").await;
    let servers = Arc::new(servers);
    let calling = tokio::spawn({
        let servers = servers.clone();
        async move { call(&servers, "slow").await }
    });
    assert!(asks.recv().await.is_some());
    calling.abort();
    _ = calling.await;
    Arc::into_inner(servers).expect("nobody else has them").close().await;
    client.abandoned.notified().await;
}

#[tokio::test(start_paused = true)]
async fn notifications_reach_the_call_they_belong_to() {
    let (servers, _client, mut asks) = start("id-1").await;
    let (hear, mut heard) = mpsc::channel(16);
    let calling = servers.call("s", "slow", Map::new(), move |text| _ = hear.try_send(text));
    let telling = async {
        let (_, request, _, params) = asks.recv().await.expect("it was asked");
        let token = &params["_meta"]["progressToken"];
        let news = |message: &str| json!({"progressToken": token, "progress": 1, "message": message});
        let method = "notifications/progress";
        servers.handle_notification("id-2", &request, method, &news("another server"));
        servers.handle_notification("id-1", "another request", method, &news("another request"));
        servers.handle_notification("id-1", &request, "tools/call", &json!({"name": "not a notification"}));
        servers.handle_notification("id-1", &request, method, &json!("nonsense"));
        servers.handle_notification("id-1", &request, method, &news("step"));
        heard.recv().await
    };
    tokio::select! {
        _ = calling => panic!("it has no answer"),
        heard = telling => assert_eq!(heard.as_deref(), Some("step")),
    }
    servers.close().await;
}
