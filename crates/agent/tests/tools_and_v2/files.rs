//! Reading, writing and editing files through the client.

use std::time::Duration;

use narrows_agent::{Limits, Settings};
use narrows_testkit::model::{ModelServer, Reply};
use serde_json::{Value, json};

use crate::common::{chats, last_messages, settings};
use crate::official::check_v1;
use crate::simulated_user::{SimulatedUser, calls, ended, methods, statuses};

fn calling(tool: &str, arguments: Value) -> ModelServer {
    ModelServer::start([Reply::tool_call(tool, arguments), Reply::text("That is all I wanted to do.")])
}

#[tokio::test]
async fn a_file_is_read_and_given_to_the_model() {
    let server = calling("read_file", json!({"path": "src/../a.txt", "line": 2, "limit": 5}));
    let mut client = SimulatedUser::new(&[("/project/a.txt", "the content")]).client(settings(&server)).await;
    let session = client.session().await;
    let end = client.prompt(&session, "Read it").await.unwrap();
    assert_eq!(end["stopReason"], "end_turn");
    let announced = client.update(|update| update["sessionUpdate"] == "tool_call").await;
    assert_eq!(announced["kind"], "read");
    assert_eq!(announced["title"], "Read a.txt");
    assert_eq!(announced["name"], "read_file");
    assert_eq!(announced["status"], "pending");
    assert_eq!(announced["locations"], json!([{"path": "/project/a.txt"}]));
    assert_eq!(announced["rawInput"], json!({"path": "src/../a.txt", "line": 2, "limit": 5}));
    assert_eq!(statuses(&client), ["pending", "in_progress", "completed"]);
    let call = calls(&client).pop().unwrap();
    assert_eq!(
        call["content"],
        json!([{"type": "content", "content": {"type": "text", "text": "the content"}}])
    );
    assert_eq!(call["rawOutput"], json!({"bytes": 11}));
    assert_eq!(
        client.requests,
        [(
            "fs/read_text_file".to_owned(),
            json!({"sessionId": session, "path": "/project/a.txt", "line": 2, "limit": 5}),
        )]
    );
    let arguments = r#"{"path":"src/../a.txt","line":2,"limit":5}"#;
    let messages = last_messages(&server);
    assert_eq!(messages[0], json!({"role": "user", "content": "Read it"}));
    assert_eq!(messages[1]["role"], "assistant");
    let call = &messages[1]["tool_calls"][0];
    assert_eq!((&call["id"], &call["type"]), (&json!("call_1"), &json!("function")));
    let said: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(said, serde_json::from_str::<Value>(arguments).unwrap());
    assert_eq!(messages[2], json!({"role": "tool", "tool_call_id": "call_1", "content": "the content"}));
    check_v1(&client);
    client.leave().await;
}

#[tokio::test]
async fn a_file_is_written_as_a_difference() {
    for (before, shown) in [(None, Value::Null), (Some("old"), json!("old"))] {
        let server = calling("write_file", json!({"path": "/project/a.txt", "content": "new"}));
        let files: Vec<(&str, &str)> = before.map(|text| ("/project/a.txt", text)).into_iter().collect();
        let user = SimulatedUser::new(&files);
        let mut client = user.client(settings(&server)).await;
        let session = client.session().await;
        client.prompt(&session, "Write it").await.unwrap();
        assert_eq!(
            methods(&client),
            ["fs/read_text_file", "session/request_permission", "fs/read_text_file", "fs/write_text_file"]
        );
        let difference =
            json!([{"type": "diff", "path": "/project/a.txt", "oldText": shown, "newText": "new"}]);
        let (_, asked) = &client.requests[1];
        assert_eq!(
            (&asked["toolCall"]["content"], &asked["toolCall"]["kind"]),
            (&difference, &json!("edit"))
        );
        let call = calls(&client).pop().unwrap();
        assert_eq!((&call["content"], &call["status"]), (&difference, &json!("completed")));
        assert_eq!(call["locations"], json!([{"path": "/project/a.txt"}]));
        assert_eq!(user.file("/project/a.txt").as_deref(), Some("new"));
        assert_eq!(last_messages(&server)[2]["content"], "/project/a.txt is written.");
        check_v1(&client);
        client.leave().await;
    }
}

#[tokio::test]
async fn a_client_that_only_writes_gets_no_read_requests() {
    let server = calling("write_file", json!({"path": "a.txt", "content": "new"}));
    let user = SimulatedUser::new(&[("/project/a.txt", "old")]);
    let mut client = user.client_with(settings(&server), json!({"fs": {"writeTextFile": true}})).await;
    let session = client.session().await;
    client.prompt(&session, "Write it").await.unwrap();
    assert_eq!(methods(&client), ["session/request_permission", "fs/write_text_file"]);
    assert_eq!(offered(&server), ["write_file", "update_plan"]);
    client.leave().await;
}

fn offered(server: &ModelServer) -> Vec<String> {
    let body = chats(server).pop().unwrap().body;
    let tools = body["tools"].as_array().cloned().unwrap_or_default();
    tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap().to_owned()).collect()
}

/// For any call of the model, a client gets only requests that it offers.
#[tokio::test]
async fn nothing_is_requested_that_was_not_offered() {
    let all = ["read_file", "write_file", "edit_file", "run_command"];
    for (capabilities, expected) in [
        (json!({}), &[][..]),
        (json!({"fs": {"readTextFile": false, "writeTextFile": false}, "terminal": false}), &[]),
        (json!({"fs": {"readTextFile": true}}), &["read_file", "update_plan"]),
        (json!({"terminal": true}), &["run_command", "update_plan"]),
    ] {
        let arguments = json!({"path": "a", "content": "b", "old": "b", "new": "c", "command": "ls"});
        let calls: Vec<(&str, Value)> = all.iter().map(|tool| (*tool, arguments.clone())).collect();
        let server = ModelServer::start([Reply::tool_calls(&calls), Reply::text("So I will not, then.")]);
        let mut client = SimulatedUser::new(&[]).client_with(settings(&server), capabilities.clone()).await;
        let session = client.session().await;
        client.prompt(&session, "Do it all").await.unwrap();
        assert_eq!(offered(&server), expected, "{capabilities}");
        let may = |method: &str| match method {
            "session/request_permission" => !expected.is_empty(),
            "fs/read_text_file" => expected.contains(&"read_file"),
            method => method.starts_with("terminal/") && expected.contains(&"run_command"),
        };
        assert!(methods(&client).into_iter().all(may), "{capabilities}: {:?}", methods(&client));
        client.leave().await;
    }
}

#[tokio::test]
async fn an_edit_replaces_one_part_of_a_file() {
    let edit = json!({"path": "a.txt", "old": "b", "new": "x"});
    let server = calling("edit_file", edit.clone());
    let user = SimulatedUser::new(&[("/project/a.txt", "a b c")]);
    let mut client = user.client(settings(&server)).await;
    let session = client.session().await;
    client.prompt(&session, "Edit it").await.unwrap();
    let call = calls(&client).pop().unwrap();
    let difference =
        json!([{"type": "diff", "path": "/project/a.txt", "oldText": "a b c", "newText": "a x c"}]);
    assert_eq!((&call["content"], &call["rawInput"], &call["kind"]), (&difference, &edit, &json!("edit")));
    assert_eq!(user.file("/project/a.txt").as_deref(), Some("a x c"));
    check_v1(&client);
    client.leave().await;
}

/// Each call is reported to the model, shown as failed, and changes nothing.
#[tokio::test]
async fn calls_that_cannot_run_are_reported_to_the_model() {
    for (tool, arguments, told) in [
        ("read_file", json!({"path": "/etc/passwd"}), "outside the directories"),
        ("read_file", json!({"path": "../../etc/passwd"}), "outside the directories"),
        ("read_file", json!({"path": "file:///etc/passwd"}), "outside the directories"),
        ("read_file", json!({"path": 7}), "`path` must be a string"),
        ("read_file", json!({}), "`path` is missing"),
        ("read_file", json!({"path": "a.txt", "line": 0}), "`line` must be a positive integer"),
        ("read_file", json!({"path": "a.txt", "limit": "all"}), "`limit` must be a positive integer"),
        ("read_file", json!({"path": "none.txt"}), "no such file"),
        ("read_file", json!([1]), "must be a JSON object"),
        ("write_file", json!({"path": "/etc/passwd", "content": ""}), "outside the directories"),
        ("write_file", json!({"path": "a.txt"}), "`content` is missing"),
        ("edit_file", json!({"path": "none.txt", "old": "a", "new": "b"}), "no such file"),
        ("edit_file", json!({"path": "a.txt", "old": "z", "new": "b"}), "does not occur"),
        ("edit_file", json!({"path": "a.txt", "old": "a", "new": "b"}), "more than once"),
        ("edit_file", json!({"path": "a.txt", "old": "", "new": "b"}), "must not be empty"),
        ("no_such_tool", json!({}), "no tool of this name"),
    ] {
        let server = calling(tool, arguments.clone());
        let user = SimulatedUser::new(&[("/project/a.txt", "a a")]);
        let mut client = user.client(settings(&server)).await;
        let session = client.session().await;
        let end = client.prompt(&session, "Go").await.unwrap();
        assert_eq!(end["stopReason"], "end_turn");
        let result = &last_messages(&server)[2];
        assert_eq!((&result["role"], &result["tool_call_id"]), (&json!("tool"), &json!("call_1")));
        let content = result["content"].as_str().unwrap();
        assert!(content.contains(told), "{tool} {arguments}: {content}");
        let call = calls(&client).pop().unwrap();
        assert_eq!((&call["status"], &call["rawInput"]), (&json!("failed"), &arguments));
        assert!(methods(&client).iter().all(|method| *method == "fs/read_text_file"));
        assert_eq!(user.file("/project/a.txt").as_deref(), Some("a a"));
        check_v1(&client);
        client.leave().await;
    }
}

#[tokio::test]
async fn invalid_json_arguments_are_reported_to_the_model() {
    let broken = Reply::tool_call("read_file", json!({})).map_events(|event| {
        if let Some(arguments) = event.pointer_mut("/choices/0/delta/tool_calls/0/function/arguments")
            && *arguments == "}"
        {
            *arguments = json!(r#""path": "a.t"#);
        }
    });
    let server = ModelServer::start([broken, Reply::text("Then I had better not.")]);
    let mut client = SimulatedUser::new(&[]).client(settings(&server)).await;
    let session = client.session().await;
    client.prompt(&session, "Go").await.unwrap();
    let call = calls(&client).pop().unwrap();
    assert_eq!((&call["status"], &call["rawInput"]), (&json!("failed"), &json!(r#"{"path": "a.t"#)));
    let messages = last_messages(&server);
    assert!(messages[2]["content"].as_str().unwrap().contains("not valid JSON"), "{messages}");
    // Requests to the endpoint must still contain valid JSON: some endpoints refuse an invalid history.
    let said = messages[1]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(said).is_ok(), "{said}");
    check_v1(&client);
    client.leave().await;
}

#[tokio::test]
async fn other_roots_count_as_inside() {
    let server = calling("read_file", json!({"path": "/else/b.txt"}));
    let mut client = SimulatedUser::new(&[("/else/b.txt", "there")]).client(settings(&server)).await;
    let params = json!({"cwd": "/project", "mcpServers": [], "additionalDirectories": ["/else"]});
    let session = client.ask("session/new", params).await.unwrap()["sessionId"].as_str().unwrap().to_owned();
    client.prompt(&session, "Go").await.unwrap();
    assert_eq!(last_messages(&server)[2]["content"], "there");
    client.leave().await;
}

fn hasty(server: &ModelServer) -> Settings {
    Settings {
        limits: Limits { tool_timeout: Duration::from_millis(50), ..Limits::default() },
        ..settings(server)
    }
}

#[tokio::test]
async fn a_client_that_never_answers_has_a_timeout() {
    let server = calling("read_file", json!({"path": "a.txt"}));
    let user = SimulatedUser::new(&[]);
    user.reply("fs/read_text_file", None);
    let mut client = user.client(hasty(&server)).await;
    let session = client.session().await;
    let end = client.prompt(&session, "Go").await.unwrap();
    assert_eq!(end["stopReason"], "end_turn");
    assert_eq!(calls(&client).pop().unwrap()["status"], "failed");
    let told = last_messages(&server)[2]["content"].as_str().unwrap().to_owned();
    assert!(told.contains("did not end within"), "{told}");
    // The agent cancels its request to the client.
    assert!(client.messages.iter().any(|message| message["method"] == "$/cancel_request"));
    check_v1(&client);
    client.leave().await;
}

#[tokio::test]
async fn errors_and_invalid_responses_fail_the_call() {
    let refused = Err(json!({"code": -32603, "message": "the disk is on fire"}));
    for (method, reply, told) in [
        ("fs/read_text_file", refused.clone(), "the disk is on fire"),
        ("fs/read_text_file", Ok(json!({"content": 7})), "could not be read"),
        ("fs/read_text_file", Ok(json!(null)), "could not be read"),
    ] {
        let server = calling("read_file", json!({"path": "a.txt"}));
        let user = SimulatedUser::new(&[]);
        user.reply(method, Some(reply));
        let mut client = user.client(settings(&server)).await;
        let session = client.session().await;
        client.prompt(&session, "Go").await.unwrap();
        let content = last_messages(&server)[2]["content"].as_str().unwrap().to_owned();
        assert!(content.contains(told), "{content}");
        client.leave().await;
    }
    let server = calling("write_file", json!({"path": "a.txt", "content": "x"}));
    let user = SimulatedUser::new(&[]);
    user.reply("fs/write_text_file", Some(refused));
    let mut client = user.client(settings(&server)).await;
    let session = client.session().await;
    client.prompt(&session, "Go").await.unwrap();
    assert!(last_messages(&server)[2]["content"].as_str().unwrap().contains("on fire"));
    assert_eq!(calls(&client).pop().unwrap()["status"], "failed");
    client.leave().await;
}

#[tokio::test]
async fn a_turn_can_be_cancelled_while_the_client_reads() {
    let server = calling("read_file", json!({"path": "a.txt"}));
    let user = SimulatedUser::new(&[]);
    let (mut client, session, prompt) = user.stuck("fs/read_text_file", settings(&server)).await;
    client.notify("session/cancel", json!({"sessionId": session})).await;
    assert_eq!(client.answer(prompt).await.unwrap()["stopReason"], "cancelled");
    assert_eq!(ended(&mut client).await["status"], "failed");
    assert_eq!(chats(&server).len(), 1, "the model is not asked again");
    // The next turn contains nothing of the cancelled one.
    server.replan(Reply::text("A new beginning for us both."));
    client.prompt(&session, "Hello").await.unwrap();
    assert_eq!(last_messages(&server), json!([{"role": "user", "content": "Hello"}]));
    check_v1(&client);
    client.leave().await;
}

/// While the old text of a file is being read, no call is announced yet.
#[tokio::test]
async fn a_turn_can_be_cancelled_before_a_change_is_announced() {
    for (tool, arguments) in [
        ("write_file", json!({"path": "a.txt", "content": "x"})),
        ("edit_file", json!({"path": "a.txt", "old": "a", "new": "b"})),
    ] {
        let server = calling(tool, arguments);
        let user = SimulatedUser::new(&[("/project/a.txt", "a")]);
        let (mut client, session, prompt) = user.stuck("fs/read_text_file", settings(&server)).await;
        client.notify("session/cancel", json!({"sessionId": session})).await;
        assert_eq!(client.answer(prompt).await.unwrap()["stopReason"], "cancelled");
        assert!(calls(&client).is_empty());
        assert_eq!(methods(&client), ["fs/read_text_file"]);
        client.leave().await;
    }
}

/// A user may edit a file while a permission request is open, and must not lose the edit.
#[tokio::test]
async fn a_file_that_changed_since_it_was_shown_is_not_overwritten() {
    for (tool, arguments) in [
        ("edit_file", json!({"path": "a.txt", "old": "one", "new": "ONE"})),
        ("write_file", json!({"path": "a.txt", "content": "ONE"})),
    ] {
        let server = calling(tool, arguments);
        let mut client = SimulatedUser::new(&[]).client(settings(&server)).await;
        let mut content = "one\ntwo\n".to_owned();
        client.host(move |method, _| match method {
            "fs/read_text_file" => Some(Ok(json!({"content": content}))),
            "session/request_permission" => {
                content.push_str("the user typed this");
                Some(Ok(json!({"outcome": {"outcome": "selected", "optionId": "allow_once"}})))
            }
            _ => Some(Ok(json!({}))),
        });
        let session = client.session().await;
        client.prompt(&session, "Change it").await.unwrap();
        assert!(!methods(&client).contains(&"fs/write_text_file"), "{tool}");
        assert_eq!(statuses(&client).last().copied(), Some("failed"), "{tool}");
        let told = last_messages(&server)[2]["content"].as_str().unwrap().to_owned();
        assert!(told.contains("has changed"), "{told}");
        client.leave().await;
    }
}
