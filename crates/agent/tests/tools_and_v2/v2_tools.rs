//! Tools in version 2: updates, permissions with their states, and cancellation of single calls.

use narrows_acp::v2;
use narrows_testkit::model::{ModelServer, Reply};
use serde_json::{Value, json};

use crate::bridge::{calling, host, open};
use crate::common::{Client, chats, last_messages, settings};
use crate::official::{check_v2, same};
use crate::simulated_user::calls;
use crate::v2_prompts::{idle, prompt, states};

async fn client(server: &ModelServer, option: Option<&str>) -> (Client, String) {
    let mut client = Client::v2(settings(server)).await;
    client.host(host(option));
    let session = open(&mut client).await;
    (client, session)
}

#[tokio::test]
async fn a_call_is_reported_by_updates_of_one_kind() {
    let server = calling("look");
    let (mut client, session) = client(&server, None).await;
    prompt(&mut client, &session, "Go").await;
    assert_eq!(idle(&mut client).await["stopReason"], "end_turn");
    let told: Vec<&Value> = client.updates.iter().filter(|update| update["toolCallId"].is_string()).collect();
    assert!(told.iter().all(|update| update["sessionUpdate"] == "tool_call_update"));
    assert_eq!((&told[0]["title"], &told[0]["status"]), (&json!("Look around (mine)"), &json!("pending")));
    let able: Vec<&Value> = told.iter().filter_map(|update| update.get("capabilities")).collect();
    assert_eq!(able, [&json!({"cancel": {}}), &json!({"cancel": {}}), &Value::Null], "as long as it runs");
    let call = calls(&client).pop().unwrap();
    assert_eq!((&call["status"], &call["rawInput"]), (&json!("completed"), &json!({"at": "it"})));
    assert_eq!(states(&client), ["running", "idle"], "no permission was requested");
    assert_eq!(last_messages(&server)[2]["content"], r#"look {"at":"it"}"#);
    // The call is replayed in its final state.
    client.forget();
    let params = json!({"sessionId": session, "cwd": "/project", "replayFrom": {"type": "start"}});
    client.ask("session/resume", params).await.unwrap();
    let again = calls(&client).pop().unwrap();
    assert_eq!((&again["toolCallId"], &again["status"]), (&call["toolCallId"], &json!("completed")));
    check_v2(&client);
    client.leave().await;
}

#[tokio::test]
async fn a_permission_request_is_a_request_and_a_state() {
    for (option, status) in
        [("allow_once", "completed"), ("reject_once", "failed"), ("_unheard_of", "failed")]
    {
        let server = calling("act");
        let (mut client, session) = client(&server, Some(option)).await;
        prompt(&mut client, &session, "Go").await;
        assert_eq!(idle(&mut client).await["stopReason"], "end_turn");
        assert_eq!(states(&client), ["running", "requires_action", "running", "idle"]);
        let asked = client.question("session/request_permission").await;
        same::<v2::RequestPermissionRequest>(&asked);
        let call = calls(&client).pop().unwrap();
        assert_eq!((&asked["title"], &asked["sessionId"]), (&json!("act (mine)"), &json!(session)));
        assert_eq!(asked["subject"]["type"], "tool_call");
        assert_eq!(asked["subject"]["toolCall"]["toolCallId"], call["toolCallId"]);
        let ids: Vec<&Value> =
            asked["options"].as_array().unwrap().iter().map(|option| &option["optionId"]).collect();
        assert_eq!(ids, ["allow_once", "allow_session", "reject_once"]);
        assert_eq!(call["status"], status, "{option}");
        check_v2(&client);
        client.leave().await;
    }
}

#[tokio::test]
async fn an_unknown_outcome_is_no_approval() {
    let server = calling("act");
    let (mut client, session) = client(&server, None).await;
    let mut usual = host(None);
    client.host(move |method, params| match method {
        "session/request_permission" => {
            Some(Ok(json!({"outcome": {"outcome": "_maybe", "optionId": "allow_once"}})))
        }
        _ => usual(method, params),
    });
    prompt(&mut client, &session, "Go").await;
    assert_eq!(idle(&mut client).await["stopReason"], "end_turn");
    assert_eq!(calls(&client).pop().unwrap()["status"], "failed");
    client.leave().await;
}

/// Waits until the agent has sent `method` with the MCP method `inner`, and returns the message.
async fn message(client: &mut Client, method: &str, inner: Option<&str>) -> Value {
    loop {
        let found = client.messages.iter().find(|message| {
            message["method"] == method && inner.is_none_or(|inner| message["params"]["method"] == inner)
        });
        if let Some(found) = found {
            return found.clone();
        }
        client.receive_message().await;
    }
}

/// Waits until the client gets a cancellation of request `id`.
async fn given_up(client: &mut Client, id: &Value) {
    let said =
        |message: &Value| message["method"] == "$/cancel_request" && message["params"]["requestId"] == *id;
    while !client.messages.iter().any(said) {
        client.receive_message().await;
    }
}

#[tokio::test]
async fn one_call_is_cancelled_and_the_turn_continues() {
    let server = calling("wait");
    let (mut client, session) = client(&server, None).await;
    prompt(&mut client, &session, "Go").await;
    let asked = message(&mut client, "mcp/message", Some("tools/call")).await;
    let call = calls(&client).pop().unwrap()["toolCallId"].clone();
    let params = json!({"sessionId": session, "toolCallId": call});
    let answer = client.ask("tool_call/cancel", params.clone()).await.unwrap();
    same::<v2::CancelToolCallResponse>(&answer);
    assert_eq!(idle(&mut client).await["stopReason"], "end_turn");
    assert_eq!(calls(&client).pop().unwrap()["status"], "cancelled");
    given_up(&mut client, &asked["id"]).await;
    assert_eq!(last_messages(&server)[2]["content"], "The user has cancelled the call.");
    for (params, code) in [
        (params, -32602),
        (json!({"sessionId": session, "toolCallId": "none"}), -32602),
        (json!({"sessionId": session}), -32602),
        (json!({"sessionId": session, "toolCallId": 7}), -32602),
        (json!({"sessionId": "none", "toolCallId": call}), -32002),
    ] {
        let error = client.ask("tool_call/cancel", params.clone()).await.expect_err(&params.to_string());
        assert_eq!(error["code"], code, "{params}");
    }
    check_v2(&client);
    client.leave().await;
}

#[tokio::test]
async fn a_call_can_be_cancelled_during_its_permission_request() {
    let server = calling("act");
    let (mut client, session) = client(&server, None).await;
    prompt(&mut client, &session, "Go").await;
    let asked = message(&mut client, "session/request_permission", None).await;
    let call = calls(&client).pop().unwrap()["toolCallId"].clone();
    client.ask("tool_call/cancel", json!({"sessionId": session, "toolCallId": call})).await.unwrap();
    assert_eq!(idle(&mut client).await["stopReason"], "end_turn");
    given_up(&mut client, &asked["id"]).await;
    assert_eq!(states(&client), ["running", "requires_action", "running", "idle"], "work continues after it");
    assert_eq!(calls(&client).pop().unwrap()["status"], "cancelled");
    assert!(!client.requests.iter().any(|(_, params)| params["method"] == "tools/call"));
    check_v2(&client);
    client.leave().await;
}

#[tokio::test]
async fn a_turn_can_be_cancelled_during_a_permission_request_or_a_call() {
    for tool in ["act", "wait"] {
        let server = calling(tool);
        let (mut client, session) = client(&server, None).await;
        prompt(&mut client, &session, "Go").await;
        let asked = match tool {
            "act" => message(&mut client, "session/request_permission", None).await,
            _ => message(&mut client, "mcp/message", Some("tools/call")).await,
        };
        client.notify("session/cancel", json!({"sessionId": session})).await;
        assert_eq!(idle(&mut client).await["stopReason"], "cancelled");
        given_up(&mut client, &asked["id"]).await;
        assert_eq!(calls(&client).pop().unwrap()["status"], "cancelled");
        assert_eq!(states(&client).last(), Some(&"idle"));
        assert_eq!(chats(&server).len(), 1);
        check_v2(&client);
        client.leave().await;
    }
}

#[tokio::test]
async fn closing_ends_a_call() {
    let server = calling("wait");
    let (mut client, session) = client(&server, None).await;
    prompt(&mut client, &session, "Go").await;
    let asked = message(&mut client, "mcp/message", Some("tools/call")).await;
    client.ask("session/close", json!({"sessionId": session})).await.unwrap();
    assert_eq!(client.updates.last().unwrap()["stopReason"], "cancelled");
    assert_eq!(calls(&client).pop().unwrap()["status"], "cancelled");
    given_up(&mut client, &asked["id"]).await;
    check_v2(&client);
    client.leave().await;
}

#[tokio::test]
async fn a_plan_has_an_id() {
    let entries = json!([{"content": "Look", "priority": "low", "status": "in_progress"}]);
    let plan = Reply::tool_call("update_plan", json!({"entries": entries}));
    let server = ModelServer::start([plan, Reply::text("That is all I wanted to do.")]);
    let (mut client, session) = client(&server, None).await;
    prompt(&mut client, &session, "Go").await;
    idle(&mut client).await;
    let told = client.update(|update| update["sessionUpdate"] == "plan_update").await;
    assert_eq!((&told["plan"]["type"], &told["plan"]["entries"]), (&json!("items"), &entries));
    assert!(told["plan"]["planId"].is_string());
    check_v2(&client);
    client.leave().await;
}

/// Version 2 has no files and terminals of the client, even if the capabilities contain them.
#[tokio::test]
async fn files_and_terminals_are_not_offered() {
    let server = ModelServer::start(Reply::text("Hello world, this is an answer"));
    let mut client = Client::start(settings(&server));
    let capabilities = json!({"fs": {"readTextFile": true, "writeTextFile": true}, "terminal": true});
    let params = json!({"protocolVersion": 2, "info": {"name": "t", "version": "1"}, "capabilities": capabilities,
        "clientCapabilities": capabilities});
    client.ask("initialize", params).await.unwrap();
    let session = crate::v2_prompts::session(&mut client).await;
    let link = json!({"type": "resource_link", "uri": "file:///project/a.txt", "name": "a"});
    client.prompt_with(&session, json!([link])).await.unwrap();
    idle(&mut client).await;
    assert!(client.requests.is_empty() && chats(&server)[0].body.get("tools").is_none());
    assert_eq!(last_messages(&server)[0]["content"], "[Resource: a] file:///project/a.txt");
    check_v2(&client);
    client.leave().await;
}
