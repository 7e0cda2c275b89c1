//! MCP servers that the client provides, and calls of their tools in both versions.

use std::sync::{Arc, Mutex};

use narrows_agent::{Settings, ToolDecision, ToolDecisionFuture, ToolGate, ToolRequest};
use narrows_testkit::model::{ModelServer, Reply};
use serde_json::{Value, json};

use crate::common::{Client, chats, last_messages, settings};
use crate::official::check_v1;
use crate::simulated_user::{calls, ended, methods, statuses};

pub(crate) fn descriptor() -> Value {
    json!({"type": "acp", "name": "mine", "serverId": "server-1"})
}

/// Answers requests to a server with the tools `look` (read-only), `act` (not read-only) and `wait`
/// (read-only, never ends). Answers permission requests with `option`, or not at all.
pub(crate) fn host(
    option: Option<&str>,
) -> impl FnMut(&str, &Value) -> Option<Result<Value, Value>> + Send + use<> {
    let option = option.map(str::to_owned);
    move |method, params| match (method, params["method"].as_str(), params["params"]["name"].as_str()) {
        ("session/request_permission", ..) => {
            let option = option.as_deref()?;
            Some(Ok(json!({"outcome": {"outcome": "selected", "optionId": option}})))
        }
        ("mcp/message", Some("tools/list"), _) => {
            let schema = json!({"type": "object"});
            let reads = json!({"readOnlyHint": true});
            Some(Ok(json!({"result": {"tools": [
                {"name": "look", "title": "Look around", "description": "looks", "inputSchema": schema, "annotations": reads},
                {"name": "act", "inputSchema": schema},
                {"name": "wait", "inputSchema": schema, "annotations": reads},
            ]}})))
        }
        ("mcp/message", Some("tools/call"), Some("wait")) => None,
        ("mcp/message", Some("tools/call"), Some(name)) => {
            let text = format!("{name} {}", params["params"]["arguments"]);
            Some(Ok(json!({"result": {"content": [{"type": "text", "text": text}]}})))
        }
        _ => Some(Err(json!({"code": -32601, "message": "not here"}))),
    }
}

pub(crate) async fn open(client: &mut Client) -> String {
    let params = json!({"cwd": "/project", "mcpServers": [descriptor()]});
    let answer = client.ask("session/new", params).await.unwrap();
    client.forget();
    answer["sessionId"].as_str().unwrap().to_owned()
}

pub(crate) fn calling(tool: &str) -> ModelServer {
    let call = Reply::tool_call(&format!("mine__{tool}"), json!({"at": "it"}));
    ModelServer::start([call, Reply::text("That is all I wanted to do.")])
}

#[tokio::test]
async fn a_tool_of_the_client_is_called_by_message() {
    let server = calling("look");
    let mut client = Client::v1(settings(&server), json!({})).await;
    client.host(host(None));
    let session = open(&mut client).await;
    client.prompt(&session, "Go").await.unwrap();
    let tools = &chats(&server)[0].body["tools"];
    assert_eq!(tools[0]["function"]["name"], "mine__look");
    assert_eq!(tools[0]["function"]["description"], "looks");
    assert!(
        methods(&client).iter().all(|method| *method == "mcp/message"),
        "read-only tools need no permission"
    );
    let (_, asked) = client.requests.last().unwrap();
    assert_eq!((&asked["serverId"], &asked["method"]), (&json!("server-1"), &json!("tools/call")));
    assert_eq!(
        (&asked["params"]["name"], &asked["params"]["arguments"]),
        (&json!("look"), &json!({"at": "it"}))
    );
    let call = calls(&client).pop().unwrap();
    assert_eq!((&call["title"], &call["kind"]), (&json!("Look around (mine)"), &json!("read")));
    assert_eq!((&call["name"], &call["rawInput"]), (&json!("mine__look"), &json!({"at": "it"})));
    assert_eq!(statuses(&client), ["pending", "in_progress", "completed"]);
    assert_eq!(call["content"][0]["content"]["text"], r#"look {"at":"it"}"#);
    assert_eq!(last_messages(&server)[2]["content"], r#"look {"at":"it"}"#);
    check_v1(&client);
    client.leave().await;
}

/// A client that authorizes calls asks its user itself, so a permission request would ask twice. Both marks
/// are required: a gate removes the capability, and the server may belong to another client.
#[tokio::test]
async fn a_client_that_decides_about_its_tools_itself_is_not_asked_for_permission_first() {
    let mark = json!({"narrows/authorizes": true});
    for (can, server_mark, is_asked) in
        [(Some(&mark), Some(&mark), false), (Some(&mark), None, true), (None, Some(&mark), true)]
    {
        for version in [1, 2] {
            let server = calling("act");
            let can = json!({"_meta": can});
            let mut client = match version {
                1 => Client::v1(settings(&server), can).await,
                _ => Client::v2_with(settings(&server), can).await,
            };
            client.host(host(Some("allow_once")));
            let mut described = descriptor();
            described["_meta"] = json!(server_mark);
            let params = json!({"cwd": "/project", "mcpServers": [described]});
            let answer = client.ask("session/new", params).await.unwrap();
            client.forget();
            client.prompt(answer["sessionId"].as_str().unwrap(), "Go").await.unwrap();
            assert_eq!(ended(&mut client).await["status"], "completed");
            let asked = methods(&client).contains(&"session/request_permission");
            assert_eq!(asked, is_asked, "version {version}, {server_mark:?}");
            client.leave().await;
        }
    }
}

#[tokio::test]
async fn a_tool_that_is_not_read_only_needs_permission() {
    for (option, status) in [("allow_once", "completed"), ("reject_once", "failed")] {
        let server = calling("act");
        let mut client = Client::v1(settings(&server), json!({})).await;
        client.host(host(Some(option)));
        let session = open(&mut client).await;
        client.prompt(&session, "Go").await.unwrap();
        let asked = client.question("session/request_permission").await;
        assert_eq!(asked["options"][1]["name"], "Allow `act` of mine for this session");
        assert_eq!(ended(&mut client).await["status"], status);
        let called = client.requests.iter().any(|(_, params)| params["method"] == "tools/call");
        assert_eq!(called, status == "completed");
        check_v1(&client);
        client.leave().await;
    }
}

/// Responses of a server, and their form for the model.
#[tokio::test]
async fn every_kind_of_answer_reaches_the_model() {
    let image = json!({"type": "image", "mimeType": "image/png", "data": "AAAA"});
    let link = json!({"type": "resource_link", "uri": "x://y", "name": "Why"});
    let resource = json!({"type": "resource", "resource": {"uri": "x://z", "text": "zed"}});
    for (answer, told, status) in [
        (Ok(json!({"result": {"content": [link, resource]}})), "[Resource: Why] x://y", "completed"),
        (Ok(json!({"result": {"content": [image]}})), "", "completed"),
        (Ok(json!({"result": {"content": []}})), "(no output)", "completed"),
        (
            Ok(json!({"result": {"content": [{"type": "text", "text": "it broke"}], "isError": true}})),
            "it broke",
            "failed",
        ),
        (Ok(json!({"error": {"code": -32602, "message": "no such tool"}})), "no such tool", "failed"),
        (Ok(json!({"result": null})), "the result is not an object", "failed"),
        (Ok(json!({})), "neither a result nor an error", "failed"),
        (Err(json!({"code": -33001, "message": "server unavailable"})), "server unavailable", "failed"),
    ] {
        let server = calling("look");
        let mut client = Client::v1(settings(&server), json!({})).await;
        let mut usual = host(None);
        let reply = answer.clone();
        client.host(move |method, params| match params["method"].as_str() {
            Some("tools/call") => Some(reply.clone()),
            _ => usual(method, params),
        });
        let session = open(&mut client).await;
        let end = client.prompt(&session, "Go").await.unwrap();
        assert_eq!(end["stopReason"], "end_turn", "{answer:?}");
        assert_eq!(ended(&mut client).await["status"], status, "{answer:?}");
        let messages = last_messages(&server).to_string();
        assert!(messages.contains(told), "{answer:?}: {messages}");
        check_v1(&client);
        client.leave().await;
    }
}

/// One call reaches its timeout, and another is cancelled with its turn. The client gets a cancellation for
/// both calls.
#[tokio::test]
async fn a_call_that_never_ends_is_cancelled() {
    for by_limit in [true, false] {
        let server = calling("wait");
        let mut settings = settings(&server);
        if by_limit {
            settings.limits.tool_timeout = std::time::Duration::from_millis(50);
        }
        let mut client = Client::v1(settings, json!({})).await;
        client.host(host(None));
        let session = open(&mut client).await;
        let prompt = client.begin_prompt(&session, "Go").await;
        client.update(|update| update["status"] == "in_progress").await;
        while client.requests.last().unwrap().1["method"] != "tools/call" {
            client.receive_message().await;
        }
        if !by_limit {
            client.notify("session/cancel", json!({"sessionId": session})).await;
        }
        let end = client.answer(prompt).await.unwrap();
        assert_eq!(end["stopReason"], if by_limit { "end_turn" } else { "cancelled" });
        assert_eq!(ended(&mut client).await["status"], "failed");
        let call =
            client.messages.iter().find(|message| message["params"]["method"] == "tools/call").unwrap();
        let id = call["id"].clone();
        while !client
            .messages
            .iter()
            .any(|message| message["method"] == "$/cancel_request" && message["params"]["requestId"] == id)
        {
            client.receive_message().await;
        }
        check_v1(&client);
        client.leave().await;
    }
}

/// A server that never lists its tools delays neither the session nor the turn for long.
#[tokio::test]
async fn a_server_that_never_lists_its_tools_is_omitted() {
    let server = ModelServer::start(Reply::text("Hello world, this is an answer"));
    let mut settings = settings(&server);
    settings.limits.server_start_timeout = std::time::Duration::from_millis(100);
    let mut client = Client::v1(settings, json!({"session": {"notices": {}}})).await;
    client.host(|_, _| None);
    let session = open(&mut client).await;
    assert_eq!(client.prompt(&session, "Go").await.unwrap()["stopReason"], "end_turn");
    assert!(chats(&server)[0].body.get("tools").is_none());
    let notices = client.updates.iter().filter(|update| update["sessionUpdate"] == "notice").count();
    assert_eq!(notices, 1);
    client.prompt(&session, "Go").await.unwrap();
    let notices = client.updates.iter().filter(|update| update["sessionUpdate"] == "notice").count();
    assert_eq!(notices, 1, "it is reported once");
    check_v1(&client);
    client.leave().await;
}

/// A message that is invalid or belongs to no request has no effect.
#[tokio::test]
async fn unexpected_notifications_are_ignored() {
    let server = calling("wait");
    let mut client = Client::v1(settings(&server), json!({})).await;
    let heard = Arc::new(Mutex::new(Vec::new()));
    let mut usual = host(None);
    let log = heard.clone();
    client.host(move |method, params| {
        log.lock().unwrap().push(params.clone());
        usual(method, params)
    });
    let session = open(&mut client).await;
    let prompt = client.begin_prompt(&session, "Go").await;
    let call = loop {
        let call = heard.lock().unwrap().iter().find(|params| params["method"] == "tools/call").cloned();
        match call {
            Some(call) => break call,
            None => client.receive_message().await,
        }
    };
    let progress = |request: &Value, server: &str| {
        let token = &call["params"]["_meta"]["progressToken"];
        json!({"serverId": server, "requestId": request, "method": "notifications/progress",
            "params": {"progressToken": token, "progress": 1}})
    };
    for params in [
        progress(&call["requestId"], "server-1"),
        progress(&json!("another"), "server-1"),
        progress(&call["requestId"], "another"),
        json!({"serverId": 7}),
        json!("nonsense"),
        Value::Null,
    ] {
        client.notify("mcp/message", params).await;
    }
    let message =
        client.messages.iter().position(|message| message["params"]["method"] == "tools/call").unwrap();
    let id = client.messages[message]["id"].clone();
    let result = json!({"result": {"content": [{"type": "text", "text": "at last"}]}});
    client.send(&json!({"jsonrpc": "2.0", "id": id, "result": result})).await;
    assert_eq!(client.answer(prompt).await.unwrap()["stopReason"], "end_turn");
    assert_eq!(last_messages(&server)[2]["content"], "at last");
    client.leave().await;
}

#[tokio::test]
async fn the_agent_ends_with_its_client_in_the_middle_of_a_call() {
    for version_2 in [false, true] {
        let server = calling("wait");
        let mut client = match version_2 {
            true => Client::v2(settings(&server)).await,
            false => Client::v1(settings(&server), json!({})).await,
        };
        client.host(host(None));
        let session = open(&mut client).await;
        client.begin_prompt(&session, "Go").await;
        client.update(|update| update["status"] == "in_progress").await;
        client.leave().await;
        assert_eq!(chats(&server).len(), 1);
    }
}

#[derive(Debug, Default)]
struct Gate(Mutex<Vec<ToolRequest>>);

impl ToolGate for Gate {
    fn check<'a>(&'a self, request: &'a ToolRequest) -> ToolDecisionFuture<'a> {
        self.0.lock().unwrap().push(request.clone());
        Box::pin(std::future::ready(ToolDecision::Deny("not today".to_owned())))
    }
}

#[tokio::test]
async fn the_gate_gets_the_server_of_a_tool() {
    let server = calling("act");
    let gate = Arc::new(Gate::default());
    let mut client = Client::v1(Settings { gate: gate.clone(), ..settings(&server) }, json!({})).await;
    client.host(host(Some("allow_once")));
    let session = open(&mut client).await;
    client.prompt(&session, "Go").await.unwrap();
    let request = ToolRequest {
        session,
        id: gate.0.lock().unwrap()[0].id.clone(),
        server: Some("mine".to_owned()),
        tool: "act".to_owned(),
        name: "mine__act".to_owned(),
        arguments: json!({"at": "it"}),
    };
    assert_eq!(*gate.0.lock().unwrap(), [request]);
    assert!(calls(&client).is_empty() && !methods(&client).contains(&"session/request_permission"));
    assert_eq!(last_messages(&server)[2]["content"], "The call is not allowed: not today");
    client.leave().await;
}
