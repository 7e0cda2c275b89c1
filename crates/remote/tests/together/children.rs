//! Child sessions, which an agent announces and no client opens, over every transport.

use narrows_remote::client::{ClientOptions, Connected, connect};
use narrows_remote::server::HttpLimits;
use narrows_wire::message;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{STEP_TIMEOUT, recv, send, start};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_a_child_session_arrive_and_are_answered() {
    for scheme in ["http", "ws"] {
        let running = start(HttpLimits::default());
        let url = format!("{scheme}://{}/acp", running.address);
        let Connected { mut link, outcome } =
            connect(&url.parse().unwrap(), ClientOptions::default()).await.unwrap();
        send(&link, "1", "initialize", &json!({"protocolVersion": 1})).await;
        recv(&mut link).await;
        send(&link, "2", "session/new", &json!({"cwd": "/", "mcpServers": []})).await;
        recv(&mut link).await;
        send(&link, "3", "session/prompt", &json!({"sessionId": "s", "child": "kid", "count": 0})).await;
        let mut heard = Vec::new();
        // The messages of the child session, and the response to the prompt.
        while heard.len() < 4 {
            let frame = recv(&mut link).await;
            if frame.method().as_deref() == Some("session/request_permission") {
                link.sender.send(message::response(frame.id().unwrap(), &json!({})).unwrap()).await.unwrap();
            }
            let of = frame.session().map(std::borrow::Cow::into_owned);
            heard.push(of.unwrap_or_else(|| String::from_utf8_lossy(frame.id().unwrap()).into_owned()));
        }
        assert_eq!(heard, ["s", "kid", "kid", "3"], "{scheme}");
        // The response to that request was sent before this prompt, so the agent has received it.
        send(&link, "4", "session/prompt", &json!({"sessionId": "kid", "count": 0})).await;
        assert_eq!(recv(&mut link).await.id(), Some(&b"4"[..]));
        let received: Vec<Value> = running.agent.received.lock().unwrap().clone();
        assert_eq!(received, [json!({"jsonrpc": "2.0", "id": "k", "result": {}})], "{scheme}");
        drop(link);
        timeout(STEP_TIMEOUT, outcome.wait()).await.unwrap().unwrap();
    }
}
