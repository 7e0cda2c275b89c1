//! Loading, resuming, listing, closing, deleting and forking sessions.

use narrows_acp::v1;
use narrows_testkit::model::{ModelServer, Plan, Reply, Step};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::common::{Client, last_messages, settings};

fn server() -> ModelServer {
    ModelServer::start(Plan::new([
        Reply::thinking("Let me think about this first", "The first answer, which is long"),
        Reply::text("The second answer, which is long"),
        Reply::text("Another answer"),
    ]))
}

async fn two_turns(client: &mut Client) -> String {
    let session = client.session().await;
    client.prompt(&session, "One").await.unwrap();
    let blocks = json!([{"type": "text", "text": "Two"}, {"type": "resource_link", "uri": "/project/a.rs"}]);
    client.prompt_with(&session, blocks).await.unwrap();
    session
}

/// Returns role and text of the messages in `updates`. Joins the chunks of one message.
fn agent_messages(updates: &[Value]) -> Vec<(String, String)> {
    let mut said: Vec<(String, String, String)> = Vec::new();
    for update in updates {
        let Some(kind) = update["sessionUpdate"].as_str().and_then(|kind| kind.strip_suffix("_chunk")) else {
            continue;
        };
        let id = update["messageId"].as_str().unwrap();
        let text = update["content"]["text"].as_str().or(update["content"]["uri"].as_str()).unwrap();
        match said.last_mut() {
            Some((_, last, before)) if last == id => before.push_str(text),
            _ => said.push((kind.to_owned(), id.to_owned(), text.to_owned())),
        }
    }
    said.into_iter().map(|(kind, _, text)| (kind, text)).collect()
}

#[tokio::test]
async fn a_loaded_session_is_replayed_before_the_response() {
    let server = server();
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = two_turns(&mut client).await;
    let live = agent_messages(&client.updates);
    client.ask("session/close", json!({"sessionId": session})).await.unwrap();
    client.forget();
    let from = client.messages.len();
    let loaded = client
        .ask("session/load", json!({"sessionId": session, "cwd": "/project", "mcpServers": []}))
        .await
        .unwrap();
    let replay = client.messages[from..].to_vec();
    assert_eq!(
        replay.last().unwrap()["result"]["sessionId"],
        json!(session),
        "the answer is the last message"
    );
    assert!(
        replay.iter().all(
            |message| message.get("method").is_none() || message["params"]["sessionId"] == json!(session)
        )
    );
    for message in &replay[..replay.len() - 1] {
        serde_json::from_value::<v1::SessionNotification>(message["params"].clone()).unwrap();
    }
    let expected = [
        ("user_message", "One"),
        ("agent_thought", "Let me think about this first"),
        ("agent_message", "The first answer, which is long"),
        ("user_message", "Two/project/a.rs"),
        ("agent_message", "The second answer, which is long"),
    ];
    let again = agent_messages(&client.updates);
    assert_eq!(again, expected.map(|(kind, text)| (kind.to_owned(), text.to_owned())));
    let spoken: Vec<_> = again.into_iter().filter(|(kind, _)| kind != "user_message").collect();
    assert_eq!(spoken, live, "as it was first shown");
    assert_eq!(loaded["models"]["currentModelId"], "test-model");
    serde_json::from_value::<v1::LoadSessionResponse>(loaded).unwrap();
    // The conversation continues from the history.
    client.prompt(&session, "Three").await.unwrap();
    assert_eq!(
        last_messages(&server),
        json!([
            {"role": "user", "content": "One"},
            {"role": "assistant", "content": "The first answer, which is long"},
            {"role": "user", "content": "Two\n[Resource: a.rs] /project/a.rs"},
            {"role": "assistant", "content": "The second answer, which is long"},
            {"role": "user", "content": "Three"},
        ])
    );
    client.leave().await;
}

#[tokio::test]
async fn message_ids_are_the_same_in_a_replay() {
    let server = server();
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = two_turns(&mut client).await;
    let ids = |client: &Client| -> Vec<Value> {
        let chunks = client.updates.iter().filter(|update| {
            let kind = update["sessionUpdate"].as_str().unwrap();
            kind.starts_with("agent_") && kind.ends_with("_chunk")
        });
        let mut ids: Vec<Value> = chunks.map(|update| update["messageId"].clone()).collect();
        ids.dedup();
        ids
    };
    let live = ids(&client);
    assert_eq!(live.len(), 3);
    client.forget();
    // An open session can be loaded as well.
    client.ask("session/load", json!({"sessionId": session, "cwd": "/project"})).await.unwrap();
    assert_eq!(ids(&client), live);
    client.leave().await;
}

#[tokio::test]
async fn a_resumed_session_has_its_history_but_no_replay() {
    let server = server();
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = two_turns(&mut client).await;
    client.ask("session/close", json!({"sessionId": session})).await.unwrap();
    client.forget();
    let resumed =
        client.ask("session/resume", json!({"sessionId": session, "cwd": "/project"})).await.unwrap();
    assert!(client.updates.is_empty(), "{:?}", client.updates);
    serde_json::from_value::<v1::ResumeSessionResponse>(resumed).unwrap();
    client.prompt(&session, "Three").await.unwrap();
    assert_eq!(last_messages(&server).as_array().unwrap().len(), 5);
    client.leave().await;
}

#[tokio::test]
async fn a_missing_session_is_named() {
    let server = server();
    let mut client = Client::v1(settings(&server), json!({})).await;
    let long = "x".repeat(5000);
    for id in ["nobody", "", "../../etc/passwd", "a\u{0}b", "0190b6a0-0000-7000-8000-000000000000"] {
        for method in
            ["session/load", "session/resume", "session/fork", "session/prompt", "session/set_model"]
        {
            let prompt = json!([{"type": "text", "text": "x"}]);
            let params = json!({"sessionId": id, "cwd": "/project", "prompt": prompt, "modelId": "other"});
            let error = client.ask(method, params).await.unwrap_err();
            assert_eq!(
                (&error["code"], &error["data"]["sessionId"]),
                (&json!(-32002), &json!(id)),
                "{method}: {error}"
            );
        }
    }
    for id in [json!(null), json!(7), json!([]), json!(long)] {
        for method in [
            "session/load",
            "session/resume",
            "session/fork",
            "session/prompt",
            "session/close",
            "session/delete",
        ] {
            let params =
                json!({"sessionId": id, "cwd": "/project", "prompt": [{"type": "text", "text": "x"}]});
            let error = client.ask(method, params).await.unwrap_err();
            assert_eq!(
                (&error["code"], &error["data"]["field"]),
                (&json!(-32602), &json!("sessionId")),
                "{method}: {error}"
            );
        }
    }
    client.leave().await;
}

#[tokio::test]
async fn the_list_comes_in_pages() {
    let server = server();
    let mut client = Client::v1(settings(&server), json!({})).await;
    let mut opened = Vec::new();
    for number in 0..120 {
        let cwd = if number % 4 == 0 { "/elsewhere" } else { "/project" };
        let params = json!({"cwd": cwd, "mcpServers": [], "additionalDirectories": if number == 0 { json!(["/more"]) } else { json!([]) }});
        let session =
            client.ask("session/new", params).await.unwrap()["sessionId"].as_str().unwrap().to_owned();
        opened.push(session);
    }
    client.prompt(&opened[5], "A name for it\nand more").await.unwrap();
    for (cwd, count) in [(None, 120), (Some("/elsewhere"), 30), (Some("/project"), 90), (Some("/nowhere"), 0)]
    {
        let mut listed = Vec::new();
        let mut cursor = Value::Null;
        loop {
            let mut params = json!({"cursor": cursor});
            if let Some(cwd) = cwd {
                params["cwd"] = json!(cwd);
            }
            let page = client.ask("session/list", params).await.unwrap();
            let read: v1::ListSessionsResponse = serde_json::from_value(page.clone()).unwrap();
            assert!(read.sessions.len() <= 50);
            listed.extend(page["sessions"].as_array().unwrap().iter().cloned());
            match page.get("nextCursor") {
                Some(next) => cursor = next.clone(),
                None => break,
            }
        }
        assert_eq!(listed.len(), count, "{cwd:?}");
        assert!(cwd.is_none_or(|cwd| listed.iter().all(|info| info["cwd"] == cwd)));
        let mut ids: Vec<&str> = listed.iter().map(|info| info["sessionId"].as_str().unwrap()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count, "each once");
        if cwd.is_none() {
            assert_eq!(listed[0]["title"], "A name for it", "the last one that was used comes first");
            let first = listed.iter().find(|info| info["sessionId"] == json!(opened[0])).unwrap();
            assert_eq!(first["additionalDirectories"], json!(["/more"]));
        }
    }
    for params in [json!({"cursor": "nonsense"}), json!({"cursor": 7}), json!({"cwd": 7})] {
        let field = if params.get("cwd").is_some() { "cwd" } else { "cursor" };
        let error = client.ask("session/list", params).await.unwrap_err();
        assert_eq!((&error["code"], &error["data"]["field"]), (&json!(-32602), &json!(field)));
    }
    client.leave().await;
}

#[tokio::test]
async fn closed_sessions_can_be_reopened_and_deleted_ones_cannot() {
    let server = server();
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = two_turns(&mut client).await;
    let named = json!({"sessionId": session});
    let open = json!({"sessionId": session, "cwd": "/project", "mcpServers": []});
    assert_eq!(client.ask("session/close", named.clone()).await.unwrap(), json!({}));
    assert_eq!(client.prompt(&session, "Still?").await.unwrap_err()["code"], -32002);
    assert_eq!(
        client.ask("session/close", named.clone()).await.unwrap(),
        json!({}),
        "a second call has no effect"
    );
    client.ask("session/load", open.clone()).await.unwrap();
    assert_eq!(client.ask("session/delete", named.clone()).await.unwrap(), json!({}));
    assert_eq!(client.prompt(&session, "Still?").await.unwrap_err()["code"], -32002);
    assert_eq!(client.ask("session/load", open.clone()).await.unwrap_err()["code"], -32002);
    assert_eq!(client.ask("session/resume", open).await.unwrap_err()["code"], -32002);
    assert_eq!(client.ask("session/delete", named).await.unwrap(), json!({}), "a second call has no effect");
    assert_eq!(client.ask("session/delete", json!({"sessionId": "never was"})).await.unwrap(), json!({}));
    assert_eq!(client.ask("session/list", json!({})).await.unwrap()["sessions"], json!([]));
    client.leave().await;
}

/// Some clients open and close a session only to get the list of models.
#[tokio::test]
async fn no_update_is_sent_for_a_closed_session() {
    let server = server();
    let mut client = Client::v1(settings(&server), json!({})).await;
    for method in ["session/close", "session/delete"] {
        let session = client.session().await;
        let deleted = client.ask(method, json!({"sessionId": session})).await;
        deleted.unwrap();
        let place = client.messages.len();
        // If this session had a pending update, it would arrive before one of another session.
        let other = client.session().await;
        client.update(|update| update["sessionUpdate"] == "available_commands_update").await;
        assert!(
            client.messages[place..].iter().all(|message| message["params"]["sessionId"] != json!(session))
        );
        client.forget();
        client.ask("session/close", json!({"sessionId": other})).await.unwrap();
    }
    client.leave().await;
}

#[tokio::test]
async fn closing_and_deleting_cancel_the_running_turn() {
    for method in ["session/close", "session/delete"] {
        let server =
            ModelServer::start(Reply::text("This answer never comes to its end").after(4, Step::Hang));
        let mut client = Client::v1(settings(&server), json!({})).await;
        let session = client.session().await;
        let turn = client.begin_prompt(&session, "Hi").await;
        client.update(|update| update["sessionUpdate"] == "agent_message_chunk").await;
        let closing = client.begin(method, json!({"sessionId": session})).await;
        assert_eq!(client.answer(turn).await.unwrap()["stopReason"], "cancelled", "{method}");
        assert_eq!(client.answer(closing).await.unwrap(), json!({}));
        let end = client.messages.iter().position(|message| message["id"] == turn).unwrap();
        let closed = client.messages.iter().position(|message| message["id"] == closing).unwrap();
        assert!(end < closed, "the turn ends before the session does");
        server.hung_up().await;
        client.leave().await;
    }
}

#[tokio::test]
async fn a_fork_and_its_origin_are_independent() {
    let server = server();
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = two_turns(&mut client).await;
    let forked = client
        .ask("session/fork", json!({"sessionId": session, "cwd": "/project", "mcpServers": []}))
        .await
        .unwrap();
    let fork = forked["sessionId"].as_str().unwrap().to_owned();
    assert_ne!(fork, session);
    assert_eq!(forked["models"]["currentModelId"], "test-model");
    client.prompt(&fork, "Left").await.unwrap();
    let in_fork = last_messages(&server);
    client.prompt(&session, "Right").await.unwrap();
    let in_source = last_messages(&server);
    assert_eq!(in_fork.as_array().unwrap()[..4], in_source.as_array().unwrap()[..4]);
    assert_eq!((&in_fork[4]["content"], &in_source[4]["content"]), (&json!("Left"), &json!("Right")));
    // The fork was stored with its initial history.
    client.ask("session/close", json!({"sessionId": fork})).await.unwrap();
    client.forget();
    client.ask("session/load", json!({"sessionId": fork, "cwd": "/project"})).await.unwrap();
    let texts: Vec<String> = agent_messages(&client.updates).into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts.len(), 7);
    assert_eq!((texts[0].as_str(), texts[5].as_str()), ("One", "Left"));
    client.leave().await;
}

/// Sends `prompts` in a new session, which is closed and reopened before number `again`.
async fn order_is_kept(
    client: &mut Client,
    server: &ModelServer,
    prompts: &[String],
    again: usize,
) -> Result<(), TestCaseError> {
    let session = client.session().await;
    let mut expected = Vec::new();
    for (number, prompt) in prompts.iter().enumerate() {
        if number == again {
            client.ask("session/close", json!({"sessionId": session})).await.unwrap();
            client.ask("session/resume", json!({"sessionId": session, "cwd": "/project"})).await.unwrap();
        }
        let text = format!("{number} {prompt}");
        client.prompt(&session, &text).await.unwrap();
        expected.push(json!({"role": "user", "content": text}));
        prop_assert_eq!(last_messages(server), json!(expected));
        expected.push(json!({"role": "assistant", "content": format!("You said {text}")}));
    }
    client.ask("session/delete", json!({"sessionId": session})).await.unwrap();
    Ok(())
}

#[test]
fn history_keeps_its_order() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = ModelServer::start(Plan::new([]).unless(|seen| {
        let last = seen.messages().last().unwrap()["content"].as_str().unwrap().to_owned();
        Some(Reply::whole(&format!("You said {last}")))
    }));
    let client = std::cell::RefCell::new(runtime.block_on(Client::v1(settings(&server), json!({}))));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(100));
    let cases = (prop::collection::vec(".{0,20}", 1..4), 0usize..4);
    let run = |(prompts, again): (Vec<String>, usize)| {
        runtime.block_on(order_is_kept(&mut client.borrow_mut(), &server, &prompts, again))
    };
    runner.run(&cases, run).unwrap();
    runtime.block_on(client.into_inner().leave());
}

/// One client treats a `null` result as a missing response and keeps waiting.
#[tokio::test]
async fn every_result_is_an_object() {
    let server = server();
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    let of = |extra: Value| {
        let mut params = json!({"sessionId": session, "cwd": "/project", "mcpServers": []});
        params.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        params
    };
    for (method, extra) in [
        ("initialize", json!({"protocolVersion": 1})),
        ("authenticate", json!({"methodId": "x"})),
        ("session/new", json!({})),
        ("session/set_config_option", json!({"configId": "model", "value": "test-model"})),
        ("session/set_model", json!({"modelId": "test-model"})),
        ("session/prompt", json!({"prompt": [{"type": "text", "text": "Hi"}]})),
        ("session/cancel", json!({})),
        ("session/load", json!({})),
        ("session/resume", json!({})),
        ("session/fork", json!({})),
        ("session/list", json!({})),
        ("session/close", json!({})),
        ("session/delete", json!({})),
    ] {
        let result = client.ask(method, of(extra)).await;
        assert!(result.as_ref().is_ok_and(Value::is_object), "{method}: {result:?}");
    }
    assert!(client.messages.iter().all(Value::is_object), "and nothing is sent in a batch");
    client.leave().await;
}

#[tokio::test]
async fn a_tool_call_and_a_plan_are_replayed_in_their_final_state() {
    let entries =
        json!([{"content": "Look", "status": "completed"}, {"content": "Tell", "status": "pending"}]);
    let server = ModelServer::start(Plan::new([
        Reply::text_and_calls(
            "I shall have a look at it",
            &[("read_file", json!({"path": "a.txt"})), ("update_plan", json!({"entries": entries}))],
        ),
        Reply::text("It says hello to everybody"),
    ]));
    let mut client = Client::v1(settings(&server), json!({"fs": {"readTextFile": true}})).await;
    client.host(|_, _| Some(Ok(json!({"content": "hello, everybody"}))));
    let session = client.session().await;
    client.prompt(&session, "What is in a.txt?").await.unwrap();
    let call = client.update(|update| update["sessionUpdate"] == "tool_call").await;
    client.ask("session/close", json!({"sessionId": session})).await.unwrap();
    client.forget();
    client.ask("session/load", json!({"sessionId": session, "cwd": "/project"})).await.unwrap();
    assert_eq!(
        client.kinds(),
        ["user_message_chunk", "agent_message_chunk", "tool_call", "plan", "agent_message_chunk"]
    );
    let again = client.update(|update| update["sessionUpdate"] == "tool_call").await;
    for field in ["toolCallId", "title", "kind", "locations", "rawInput"] {
        assert_eq!(again[field], call[field], "{field}");
    }
    assert_eq!(again["status"], "completed");
    assert!(again["content"].to_string().contains("hello, everybody"), "{again}");
    let plan = client.update(|update| update["sessionUpdate"] == "plan").await;
    assert_eq!(plan["entries"][1]["content"], "Tell");
    // The model also gets the call and its result again.
    client.prompt(&session, "And?").await.unwrap();
    let messages = last_messages(&server);
    let roles: Vec<&Value> = messages.as_array().unwrap().iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "assistant", "user"]);
    assert_eq!(messages[1]["tool_calls"][0]["id"], messages[2]["tool_call_id"]);
    client.leave().await;
}
