//! The official HTTP server with an agent of a few lines in it: `http-server PORT` serves HTTP and WebSocket at `/acp`.
//!
//! It is the other end of our client in tests, and the peer of ours in `cargo xtask bench remote`, whose agent answers in
//! the same words.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use agent_client_protocol::{
    Agent, Client, ConnectTo, Error, Responder, UntypedMessage, V1, on_receive_notification,
    on_receive_request, v1,
};
use agent_client_protocol_http::AcpHttpServer;
use serde_json::{Value, json};
use tokio::sync::Notify;

/// Digits at the end of a text of the bench: whose it is, and in the last four how many updates are asked for.
const TAG: usize = 16;
const COUNT: usize = 4;

/// How many sessions there are, on all connections.
static SESSIONS: AtomicU64 = AtomicU64::new(0);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let port: u16 =
        std::env::args().nth(1).ok_or_else(|| anyhow::anyhow!("usage: http-server PORT"))?.parse()?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;
    axum::serve(listener, AcpHttpServer::new(agent).into_router()).await?;
    Ok(())
}

fn agent() -> impl ConnectTo<Client> {
    let cancelled = Arc::new(Notify::new());
    let heard = Arc::clone(&cancelled);
    Agent
        .v1()
        .on_receive_request(
            async move |request: UntypedMessage, responder: Responder<Value, V1>, cx| {
                let meta = &request.params()["_meta"];
                match request.method() {
                    "initialize" => responder.respond(json!({
                        "protocolVersion": 1, "agentCapabilities": {}, "authMethods": [], "_meta": meta
                    })),
                    "session/new" => {
                        let number = SESSIONS.fetch_add(1, Ordering::Relaxed);
                        let session = format!("h{:07}-{number:07}", std::process::id());
                        responder.respond(json!({"sessionId": session, "_meta": meta}))
                    }
                    "session/prompt" => prompt(&request, responder, &cx, &cancelled),
                    method => responder.respond_with_error(Error::method_not_found().data(method)),
                }
            },
            on_receive_request!(),
        )
        .on_receive_notification(
            async move |notification: UntypedMessage, _cx| {
                if notification.method() == "session/cancel" {
                    heard.notify_one();
                }
                Ok(())
            },
            on_receive_notification!(),
        )
}

/// Says the text back, waits, or asks first, as the text wants it.
fn prompt(
    request: &UntypedMessage,
    responder: Responder<Value, V1>,
    cx: &v1::ConnectionTo<Client>,
    cancelled: &Arc<Notify>,
) -> Result<(), Error> {
    let session = request.params()["sessionId"].clone();
    let text = request.params()["prompt"][0]["text"].as_str().unwrap_or_default().to_owned();
    let say = {
        let (cx, session) = (cx.clone(), session.clone());
        move |text: &str| {
            let content = json!({"type": "text", "text": text});
            let update = json!({"sessionUpdate": "agent_message_chunk", "content": content});
            let params = json!({"sessionId": session, "update": update});
            cx.send_notification(UntypedMessage::new("session/update", params)?)
        }
    };
    if let Some(count) = count(&text) {
        for number in 0..count {
            say(&format!("{}{number:0COUNT$}", &text[..text.len() - COUNT]))?;
        }
        let meta = json!({"bench": {"session": session, "echo": text}});
        return responder.respond(json!({"stopReason": "end_turn", "_meta": meta}));
    }
    say(&text)?;
    if text.starts_with("wait") {
        let cancelled = Arc::clone(cancelled);
        return cx.spawn(async move {
            cancelled.notified().await;
            responder.respond(json!({"stopReason": "cancelled"}))
        });
    }
    if !text.starts_with("ask") {
        return responder.respond(json!({"stopReason": "end_turn"}));
    }
    let asking = cx.clone();
    cx.spawn(async move {
        let option = json!({"optionId": "yes", "name": "Yes", "kind": "allow_once"});
        let call = json!({"toolCallId": "t", "title": "Do it"});
        let params = json!({"sessionId": session, "toolCall": call, "options": [option]});
        let question = UntypedMessage::new("session/request_permission", params)?;
        let answer = asking.send_request(question).block_task().await?;
        say(&format!(" {}", answer["outcome"]["optionId"].as_str().unwrap_or("no")))?;
        responder.respond(json!({"stopReason": "end_turn"}))
    })
}

/// How many updates a text of the bench asks for.
fn count(text: &str) -> Option<u32> {
    let tag = text.len().checked_sub(TAG).and_then(|start| text.get(start..))?;
    tag.bytes().all(|digit| digit.is_ascii_digit()).then(|| tag[TAG - COUNT..].parse().ok())?
}
