//! Hosted MCP servers of the user, reached over HTTP by an independent agent, in both forms of messages.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use narrows_acp::Version;
use narrows_client::{PermissionReply, PermissionRequest, RunRequest, ServerConfig, Transport};
use narrows_link::Link;
use narrows_policy::{Access, Narrowing, Policy, Rules};
use narrows_rpc::{CallError, Item, Peer, Request};
use narrows_testkit::peer::pair;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::common::{Stage, all, payloads};

const TEST_TIMEOUT: Duration = Duration::from_secs(30);

async fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it has one");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(BufReader::new(stream)));
        }
    });
    address
}

async fn serve(mut stream: BufReader<TcpStream>) -> std::io::Result<()> {
    loop {
        let (mut first, mut length) = (String::new(), 0);
        if stream.read_line(&mut first).await? == 0 {
            return Ok(());
        }
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let answer = answer(&first, &serde_json::from_slice(&body).unwrap_or_default());
        stream.get_mut().write_all(answer.as_bytes()).await?;
    }
}

fn answer(first: &str, message: &Value) -> String {
    if !first.starts_with("POST") {
        return "HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n".to_owned();
    }
    let params = &message["params"];
    let result = match message["method"].as_str().unwrap_or_default() {
        "initialize" => json!({
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "echo", "version": "1"},
        }),
        "tools/list" => json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}),
        "tools/call" => json!({"content": [{"type": "text", "text": params["arguments"]["say"]}]}),
        _ => return "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n".to_owned(),
    };
    let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string();
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
}

/// The form in which an agent sends messages to hosted servers.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// Every message names the server.
    Current,
    /// Every message names a connection.
    Older,
    /// Messages have the current form. Before each call, the agent requests permission.
    AsksFirst,
}

/// An agent of version 1. In every turn, it calls the tool `echo` of its only server and reports the result.
async fn agent(link: Link, form: Form) {
    let (peer, mut inbox) = narrows_rpc::start(link, narrows_rpc::Options::agent(|_| true));
    let mut given = Value::Null;
    while let Some(item) = inbox.recv().await {
        let Item::Request(Request { frame, responder }) = item else { continue };
        let params: Value = frame.read_params().unwrap_or_default();
        match frame.method().as_deref() {
            Some("initialize") => responder.respond(&json!({
                "protocolVersion": 1,
                "agentCapabilities": {"mcpCapabilities": {"acp": true}},
            })),
            Some("session/new") => {
                given = params["mcpServers"][0].clone();
                responder.respond(&json!({"sessionId": "s"}));
            }
            Some("session/prompt") => {
                let said = match form {
                    Form::AsksFirst if !is_allowed(&peer).await => Ok(Value::Null),
                    Form::Current | Form::AsksFirst => current(&peer, &given).await,
                    Form::Older => older(&peer, &given).await,
                };
                let said = said.map_or_else(|error| error.to_string(), |result| result.to_string());
                let update = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": said}});
                let told = peer.notify("session/update", &json!({"sessionId": "s", "update": update})).await;
                told.expect("the client is there");
                responder.respond(&json!({"stopReason": "end_turn"}));
            }
            _ => responder.respond(&json!({})),
        }
    }
}

/// Requests permission for the call, with the agent's own name of the tool.
async fn is_allowed(peer: &Peer) -> bool {
    let call = json!({"toolCallId": "t", "title": "Echo", "kind": "other", "name": "mcp__web__echo", "rawInput": call()["arguments"]});
    let options = json!([{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]);
    let params = json!({"sessionId": "s", "toolCall": call, "options": options});
    let answer: Value =
        peer.request("session/request_permission", &params, TEST_TIMEOUT).await.expect("an answer");
    answer["outcome"]["optionId"] == "yes"
}

const CALL: &str = r#"{"name":"echo","arguments":{"say":"over HTTP"}}"#;

fn call() -> Value {
    serde_json::from_str(CALL).expect("JSON")
}

async fn current(peer: &Peer, given: &Value) -> Result<Value, CallError> {
    let message = |id: &str, method: &str, params: Value| {
        let params =
            json!({"serverId": given["serverId"], "requestId": id, "method": method, "params": params});
        async move { peer.request::<_, Value>("mcp/message", &params, TEST_TIMEOUT).await }
    };
    let page = message("1", "tools/list", json!({})).await?;
    assert_eq!(page["result"]["tools"][0]["name"], "echo");
    Ok(message("2", "tools/call", call()).await?["result"].clone())
}

async fn older(peer: &Peer, given: &Value) -> Result<Value, CallError> {
    let acp_id = json!({"acpId": given["id"]});
    let connected: Value = peer.request("mcp/connect", &acp_id, TEST_TIMEOUT).await?;
    let message = |method: &str, params: Value| {
        let params = json!({"connectionId": connected["connectionId"], "method": method, "params": params});
        async move { peer.request::<_, Value>("mcp/message", &params, TEST_TIMEOUT).await }
    };
    let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}});
    assert!(message("initialize", hello).await?["serverInfo"]["name"].is_string());
    message("notifications/initialized", json!({})).await?;
    assert_eq!(message("tools/list", json!({})).await?["tools"][0]["name"], "echo");
    let result = message("tools/call", call()).await?;
    let left = json!({"connectionId": connected["connectionId"]});
    peer.request::<_, Value>("mcp/disconnect", &left, TEST_TIMEOUT).await?;
    Ok(result)
}

#[tokio::test]
async fn a_server_over_http_is_used_under_the_policy() {
    for form in [Form::Current, Form::Older] {
        for (access, said, outcome) in [
            (Access::High, json!({"content": [{"type": "text", "text": "over HTTP"}]}), "allowed"),
            // No user can be asked, so the call is refused.
            (Access::Medium, Value::Null, "refused"),
        ] {
            let mut stage = Stage::new(Version::V1, access);
            let url = format!("http://{}/mcp", server().await);
            let transport = Transport::Http { url, headers: Vec::new() };
            stage.config.mcp_servers = vec![ServerConfig { name: "web".to_owned(), transport }];
            let (link, far, _) = pair();
            let driven = stage.open_on(link, tokio::spawn(agent(far, form))).await;
            let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
            let resolved = payloads(&all(&mut run).await, "permission.resolved");
            assert_eq!((resolved.len(), &resolved[0]["outcome"]), (1, &json!(outcome)), "{form:?}");
            let text = run.result().await.final_text.expect("a result");
            let result: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{form:?}: {text}"));
            if said.is_null() {
                assert_eq!(result["isError"], true, "{form:?}: {result}");
            } else {
                assert_eq!(result, said, "{form:?}");
            }
            driven.leave().await;
        }
    }
}

#[tokio::test]
async fn a_tool_call_is_matched_to_its_server_and_asked_about_once() {
    let allow = "[[rule]]\neffect = 'allow'\nserver = 'web'\ntool = 'echo'\n";
    let deny = "[[rule]]\neffect = 'deny'\ntool = 'mcp__web__*'\n";
    for (rules, permission_requests, outcomes) in [
        ("", 1, &["selected", "allowed"][..]),
        (allow, 0, &["selected", "allowed"]),
        (deny, 0, &["cancelled"]),
    ] {
        let asked: Arc<Mutex<Vec<PermissionRequest>>> = Arc::default();
        let heard = Arc::clone(&asked);
        let mut stage = Stage::new(Version::V1, Access::Medium).asking(
            move |permission_request: Arc<PermissionRequest>| {
                heard.lock().expect("no panic").push((*permission_request).clone());
                async { PermissionReply::Allow }
            },
        );
        let (rules, _) = Rules::parse(rules, "p.toml").expect("rules");
        stage.config.policy = Arc::new(Policy::new(Access::Medium, Narrowing::default()).with_rules(rules));
        let url = format!("http://{}/mcp", server().await);
        let transport = Transport::Http { url, headers: Vec::new() };
        stage.config.mcp_servers = vec![ServerConfig { name: "web".to_owned(), transport }];
        let (link, far, _) = pair();
        let driven = stage.open_on(link, tokio::spawn(agent(far, Form::AsksFirst))).await;
        let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
        let events = all(&mut run).await;
        let resolved = payloads(&events, "permission.resolved");
        let told: Vec<&str> = resolved.iter().filter_map(|resolved| resolved["outcome"].as_str()).collect();
        assert_eq!(told, outcomes, "{resolved:?}");
        assert_eq!(asked.lock().expect("no panic").len(), permission_requests, "{resolved:?}");
        let requested = payloads(&events, "permission.requested");
        assert!(
            requested.iter().all(|it| it["server"] == "web" && it["serverTool"] == "echo"),
            "{requested:?}"
        );
        driven.leave().await;
    }
}
