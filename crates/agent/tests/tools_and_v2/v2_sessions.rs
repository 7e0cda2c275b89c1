//! Sessions in version 2: strict params, resuming with and without replay, options, closing, forking.

use narrows_acp::v2;
use narrows_testkit::model::{ModelServer, Plan, Reply};
use serde_json::{Value, json};

use crate::common::{Client, chats, last_messages, settings};
use crate::official::{check_v2, same};
use crate::v2_prompts::{assert_quiet, idle, prompt, session, states, working};

fn server() -> ModelServer {
    ModelServer::start(
        Plan::from(Reply::text("Hello world, this is an answer"))
            .models(Reply::models(&["test-model", "other"])),
    )
}

#[tokio::test]
async fn params_that_violate_the_schema_open_no_session() {
    let server = server();
    let mut client = Client::v2(settings(&server)).await;
    let stdio = |rest: Value| {
        let mut server = json!({"type": "stdio", "name": "s", "command": "x"});
        server.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        json!({"cwd": "/project", "mcpServers": [server]})
    };
    for (params, field) in [
        (json!({}), "cwd"),
        (json!({"cwd": null}), ""),
        (json!({"cwd": 7}), ""),
        (json!({"cwd": ""}), "cwd"),
        (json!({"cwd": "work"}), "cwd"),
        (json!({"cwd": "./project"}), "cwd"),
        (json!({"cwd": "/project", "mcpServers": null}), ""),
        (json!({"cwd": "/project", "mcpServers": {}}), ""),
        (json!({"cwd": "/project", "mcpServers": [7]}), ""),
        (json!({"cwd": "/project", "mcpServers": [{"name": "s", "command": "x"}]}), ""),
        (json!({"cwd": "/project", "mcpServers": [{"type": "stdio", "name": "s"}]}), ""),
        (stdio(json!({"args": "x"})), ""),
        (stdio(json!({"env": {"A": "B"}})), ""),
        (json!({"cwd": "/project", "additionalDirectories": "x"}), ""),
        (json!({"cwd": "/project", "additionalDirectories": ["x"]}), "additionalDirectories[0]"),
    ] {
        let error = client.ask("session/new", params.clone()).await.expect_err(&params.to_string());
        assert_eq!(error["code"], -32602, "{params}: {error}");
        assert!(!error["message"].as_str().unwrap().contains('\n'));
        if !field.is_empty() {
            assert_eq!(error["data"]["field"], field, "{params}: {error}");
        }
    }
    assert_eq!(client.ask("session/list", json!({})).await.unwrap(), json!({"sessions": []}));
    client.leave().await;
}

#[tokio::test]
async fn a_new_session_returns_options_and_commands() {
    let server = server();
    let mut client = Client::v2(settings(&server)).await;
    let params = json!({"cwd": "/project", "additionalDirectories": ["/else"], "mcpServers": []});
    let answer = client.ask("session/new", params).await.unwrap();
    same::<v2::NewSessionResponse>(&answer);
    let option = &answer["configOptions"][0];
    assert_eq!((&option["configId"], &option["currentValue"]), (&json!("model"), &json!("test-model")));
    let commands: Vec<&Value> =
        answer["availableCommands"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
    assert_eq!(commands, ["compact", "status"]);
    assert_eq!(answer.get("models"), None, "only version 1 has it");
    check_v2(&client);
    client.leave().await;
}

#[tokio::test]
async fn a_session_is_resumed_with_or_without_replay() {
    let server = server();
    let mut client = Client::v2(settings(&server)).await;
    let session = session(&mut client).await;
    let message = prompt(&mut client, &session, "Hi").await;
    idle(&mut client).await;
    let said = client.updates.iter().find(|update| update["sessionUpdate"] == "agent_message_chunk").unwrap()
        ["messageId"]
        .clone();
    let idle = json!({"sessionUpdate": "state_update", "state": "idle"});
    let past = [
        json!({"sessionUpdate": "user_message", "messageId": message, "content": [{"type": "text", "text": "Hi"}]}),
        json!({"sessionUpdate": "agent_message", "messageId": said, "content": [{"type": "text", "text": "Hello world, this is an answer"}]}),
    ];
    for reopened in [false, true] {
        if reopened {
            client.ask("session/close", json!({"sessionId": session})).await.unwrap();
        }
        for replay in [true, false] {
            client.forget();
            let mut params = json!({"sessionId": session, "cwd": "/project"});
            if replay {
                params["replayFrom"] = json!({"type": "start"});
            }
            let answer = client.ask("session/resume", params).await.unwrap();
            same::<v2::ResumeSessionResponse>(&answer);
            assert_eq!(answer["configOptions"][0]["currentValue"], "test-model");
            let expected: Vec<Value> = past.iter().filter(|_| replay).chain([&idle]).cloned().collect();
            assert_eq!(client.updates, expected, "all before the answer");
            assert_quiet(&mut client).await;
        }
    }
    client.forget();
    prompt(&mut client, &session, "And?").await;
    crate::v2_prompts::idle(&mut client).await;
    assert_eq!(
        last_messages(&server).as_array().unwrap().len(),
        3,
        "the model gets the history in both cases"
    );
    check_v2(&client);
    client.leave().await;
}

#[tokio::test]
async fn sessions_that_cannot_be_resumed_are_refused() {
    let server = server();
    let mut client = Client::v2(settings(&server)).await;
    let session = session(&mut client).await;
    for (params, code) in [
        (json!({"sessionId": session, "cwd": "/else"}), -32602),
        (json!({"sessionId": session, "cwd": "work"}), -32602),
        (json!({"sessionId": session}), -32602),
        (json!({"sessionId": session, "cwd": "/project", "replayFrom": {"type": "_tomorrow"}}), -32602),
        (json!({"sessionId": session, "cwd": "/project", "replayFrom": "start"}), -32602),
        (json!({"sessionId": "none", "cwd": "/project"}), -32002),
        (json!({"cwd": "/project"}), -32602),
    ] {
        let error = client.ask("session/resume", params.clone()).await.expect_err(&params.to_string());
        assert_eq!(error["code"], code, "{params}: {error}");
    }
    assert!(client.updates.is_empty(), "{:?}", client.updates);
    client.leave().await;
}

#[tokio::test]
async fn a_resumed_session_reports_that_it_is_running() {
    let (server, mut client, session) = working().await;
    client.forget();
    client.ask("session/resume", json!({"sessionId": session, "cwd": "/project"})).await.unwrap();
    assert_eq!(states(&client), ["running"]);
    server.release("model");
    assert_eq!(idle(&mut client).await["stopReason"], "end_turn");
    client.leave().await;
}

#[tokio::test]
async fn an_option_value_must_have_its_type() {
    let server = server();
    let mut client = Client::v2(settings(&server)).await;
    let session = session(&mut client).await;
    let set = |rest: Value| {
        let mut params = json!({"sessionId": session, "configId": "model"});
        params.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        params
    };
    for params in [
        set(json!({"value": "other"})),
        set(json!({"type": "boolean", "value": true})),
        set(json!({"type": "id", "value": true})),
        set(json!({"type": "id", "value": "no such model"})),
        set(json!({"type": "id"})),
        set(json!({"configId": "none", "type": "id", "value": "other"})),
    ] {
        let error =
            client.ask("session/set_config_option", params.clone()).await.expect_err(&params.to_string());
        assert_eq!(error["code"], -32602, "{params}: {error}");
    }
    prompt(&mut client, &session, "Hi").await;
    idle(&mut client).await;
    assert_eq!(chats(&server)[0].body["model"], "test-model", "nothing has changed");
    let answer =
        client.ask("session/set_config_option", set(json!({"type": "id", "value": "other"}))).await.unwrap();
    same::<v2::SetSessionConfigOptionResponse>(&answer);
    assert_eq!(answer["configOptions"][0]["currentValue"], "other");
    client.forget();
    prompt(&mut client, &session, "Hi").await;
    idle(&mut client).await;
    assert_eq!(chats(&server)[1].body["model"], "other");
    check_v2(&client);
    client.leave().await;
}

#[tokio::test]
async fn closing_cancels_the_turn_first() {
    let server = ModelServer::start(Reply::hang());
    let mut client = Client::v2(settings(&server)).await;
    let session = session(&mut client).await;
    let before = server.seen().len();
    prompt(&mut client, &session, "Hi").await;
    server.seen_count(before + 1).await;
    let answer = client.ask("session/close", json!({"sessionId": session})).await.unwrap();
    assert_eq!(answer, json!({}));
    let last = client.updates.last().unwrap();
    assert_eq!((&last["state"], &last["stopReason"]), (&json!("idle"), &json!("cancelled")));
    assert_quiet(&mut client).await;
    server.hung_up().await;
    let error = client.prompt(&session, "Hi").await.unwrap_err();
    assert_eq!(error["code"], -32002);
    assert_eq!(client.ask("session/close", json!({"sessionId": session})).await.unwrap(), json!({}));
    assert_eq!(client.ask("session/close", json!({"sessionId": "none"})).await.unwrap(), json!({}));
    check_v2(&client);
    client.leave().await;
}

#[tokio::test]
async fn sessions_are_listed_forked_and_deleted() {
    let server = server();
    let mut client = Client::v2(settings(&server)).await;
    let first = session(&mut client).await;
    prompt(&mut client, &first, "Hi").await;
    idle(&mut client).await;
    let forked = client.ask("session/fork", json!({"sessionId": first, "cwd": "/else"})).await.unwrap();
    same::<v2::ForkSessionResponse>(&forked);
    let second = forked["sessionId"].as_str().unwrap().to_owned();
    client.forget();
    prompt(&mut client, &second, "And?").await;
    idle(&mut client).await;
    assert_eq!(
        last_messages(&server).as_array().unwrap().len(),
        3,
        "it begins with what was said in the other"
    );
    for (filter, expected) in [
        (json!({}), 2),
        (json!({"cwd": "/project"}), 1),
        (json!({"cwd": "/wor"}), 0),
        (json!({"cursor": ""}), 2),
    ] {
        let list = client.ask("session/list", filter.clone()).await.unwrap();
        same::<v2::ListSessionsResponse>(&list);
        assert_eq!(list["sessions"].as_array().unwrap().len(), expected, "{filter}");
    }
    let error = client.ask("session/list", json!({"cursor": "nonsense"})).await.unwrap_err();
    assert_eq!(error["code"], -32602);
    for (method, params) in [
        ("session/fork", json!({"sessionId": first, "cwd": "else"})),
        ("session/fork", json!({"sessionId": first})),
    ] {
        assert_eq!(client.ask(method, params).await.unwrap_err()["code"], -32602);
    }
    let error =
        client.ask("session/fork", json!({"sessionId": "none", "cwd": "/project"})).await.unwrap_err();
    assert_eq!(error["code"], -32002);
    for id in [first.as_str(), first.as_str(), "none"] {
        assert_eq!(client.ask("session/delete", json!({"sessionId": id})).await.unwrap(), json!({}));
    }
    let list = client.ask("session/list", json!({})).await.unwrap();
    assert_eq!(
        (list["sessions"].as_array().unwrap().len(), &list["sessions"][0]["sessionId"]),
        (1, &json!(second))
    );
    check_v2(&client);
    client.leave().await;
}

#[tokio::test]
async fn deleting_cancels_the_turn_first() {
    let server = ModelServer::start(Reply::hang());
    let mut client = Client::v2(settings(&server)).await;
    let session = session(&mut client).await;
    prompt(&mut client, &session, "Hi").await;
    client.ask("session/delete", json!({"sessionId": session})).await.unwrap();
    assert_eq!(client.updates.last().unwrap()["stopReason"], "cancelled");
    assert_eq!(client.ask("session/list", json!({})).await.unwrap(), json!({"sessions": []}));
    client.leave().await;
}
