//! Turns: their updates, their cost, and many turns at once.

use narrows_acp::v1;
use narrows_agent::Settings;
use narrows_testkit::model::{ModelServer, Plan, Reply, Step, delta, usage};
use serde_json::{Value, json};

use crate::common::{Client, chats, chats_asked, last_messages, settings};

fn with_window(server: &ModelServer) -> Settings {
    let mut settings = settings(server);
    settings.routes[0].endpoint.context_window = Some(1000);
    settings
}

fn of_kind<'a>(client: &'a Client, kind: &str) -> Vec<&'a Value> {
    client.updates.iter().filter(|update| update["sessionUpdate"] == kind).collect()
}

#[tokio::test]
async fn all_updates_of_a_turn_come_before_its_end() {
    let server =
        ModelServer::start(Reply::thinking("Let me see what this is about", "It is about this and that"));
    let mut client = Client::v1(with_window(&server), json!({})).await;
    let session = client.session().await;
    client.update(|update| update["sessionUpdate"] == "available_commands_update").await;
    client.forget();
    let turn = client.begin_prompt(&session, "Hi").await;
    let end = client.answer(turn).await.unwrap();
    assert_eq!(client.messages.last().unwrap()["id"], turn);
    serde_json::from_value::<v1::PromptResponse>(end).unwrap();
    assert_eq!(
        client.kinds(),
        ["session_info_update", "agent_thought_chunk", "agent_message_chunk", "usage_update"]
    );
    for message in client.messages.iter().filter(|message| message["method"] == "session/update") {
        assert_eq!(message["params"]["sessionId"], json!(session));
        serde_json::from_value::<v1::SessionNotification>(message["params"].clone()).unwrap();
    }
    assert_eq!(client.thoughts(), "Let me see what this is about");
    assert_eq!(client.text(), "It is about this and that");
    let ids = |kind: &str| -> Vec<Value> {
        let mut ids: Vec<Value> =
            of_kind(&client, kind).iter().map(|chunk| chunk["messageId"].clone()).collect();
        ids.dedup();
        ids
    };
    let (thought, text) = (ids("agent_thought_chunk"), ids("agent_message_chunk"));
    assert_eq!((thought.len(), text.len()), (1, 1), "one message, one id");
    assert_ne!(thought, text);
    assert!(of_kind(&client, "agent_message_chunk").len() > 1, "it is streamed");
    client.leave().await;
}

#[tokio::test]
async fn the_first_chunk_is_never_a_prefix_of_the_next() {
    for (pieces, first) in [
        (vec!["a", "a", "a"], "aaa"),
        (vec!["ha", "ha", "ha ", "ha ", "ha ", "ha ", "ha ", "ha ", "and so on"], "hahaha ha ha ha "),
        (
            vec!["A first piece that is long enough", " and", " so", " on"],
            "A first piece that is long enough",
        ),
        (vec!["äö", "äö", "äö", "äö", "äö", "äö", "äö", "äö", "äö"], "äöäöäöäöäöäöäöäö"),
    ] {
        let events = pieces.iter().map(|piece| delta(&json!({"content": piece})));
        let server = ModelServer::start(Reply::sse(events.chain([narrows_testkit::model::finish("stop")])));
        let mut client = Client::v1(settings(&server), json!({})).await;
        let session = client.session().await;
        client.prompt(&session, "Hi").await.unwrap();
        assert_eq!(client.text(), pieces.concat());
        assert_eq!(of_kind(&client, "agent_message_chunk")[0]["content"]["text"], first);
        client.leave().await;
    }
}

#[tokio::test]
async fn usage_is_reported_at_the_end_of_the_turn() {
    let mut counts = usage(100, 20);
    counts["usage"]["prompt_tokens_details"] = json!({"cached_tokens": 64});
    counts["usage"]["completion_tokens_details"] = json!({"reasoning_tokens": 7});
    let answer = delta(&json!({"content": "An answer, and not a short one"}));
    let finish = narrows_testkit::model::finish("stop");
    let server = ModelServer::start(Plan::new([
        Reply::sse([answer, finish, counts]),
        Reply::text("Another answer").without_usage(),
    ]));
    let mut client = Client::v1(with_window(&server), json!({})).await;
    let session = client.session().await;
    let end = client.prompt(&session, "Hi").await.unwrap();
    let expected = json!({
        "inputTokens": 100, "outputTokens": 20, "totalTokens": 120, "cachedReadTokens": 64, "thoughtTokens": 7
    });
    assert_eq!(end, json!({"stopReason": "end_turn", "usage": expected}));
    let expected = json!({"sessionUpdate": "usage_update", "used": 120, "size": 1000});
    assert_eq!(of_kind(&client, "usage_update"), [&expected]);
    client.forget();
    assert_eq!(
        client.prompt(&session, "Hi").await.unwrap(),
        json!({"stopReason": "end_turn"}),
        "none is made up"
    );
    assert!(of_kind(&client, "usage_update").is_empty());
    client.leave().await;
}

#[tokio::test]
async fn the_reported_cost_covers_the_session() {
    let mut counts = usage(10, 2);
    counts["usage"]["cost"] = json!(0.25);
    let answer = delta(&json!({"content": "An answer, and not a short one"}));
    let server = ModelServer::start(Reply::sse([answer, narrows_testkit::model::finish("stop"), counts]));
    let mut client = Client::v1(with_window(&server), json!({})).await;
    let session = client.session().await;
    for total in [0.25, 0.5, 0.75] {
        client.forget();
        client.prompt(&session, "Hi").await.unwrap();
        let cost = &of_kind(&client, "usage_update")[0]["cost"];
        assert_eq!(*cost, json!({"amount": total, "currency": "USD"}));
    }
    client.leave().await;
}

#[tokio::test]
async fn a_client_without_client_info_gets_no_usage_update() {
    let server = ModelServer::start(Reply::text("An answer, and not a short one"));
    for info in [None, Some(Value::Null)] {
        let mut client = Client::start(with_window(&server));
        let mut params = json!({"protocolVersion": 1, "clientCapabilities": {}});
        if let Some(info) = info {
            params["clientInfo"] = info;
        }
        client.ask("initialize", params).await.unwrap();
        let session = client.session().await;
        let end = client.prompt(&session, "Hi").await.unwrap();
        assert_eq!(end["usage"]["inputTokens"], 10, "the end of the turn still reports the usage");
        assert!(of_kind(&client, "usage_update").is_empty());
        client.leave().await;
    }
}

#[tokio::test]
async fn a_session_gets_one_title() {
    let server = ModelServer::start(Reply::text("An answer, and not a short one"));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    client.prompt(&session, "\n  Fix the bug in the parser  \nIt is a bad one").await.unwrap();
    client.prompt(&session, "Something else").await.unwrap();
    let infos = of_kind(&client, "session_info_update");
    assert_eq!(infos.len(), 1);
    assert_eq!(infos[0]["title"], "Fix the bug in the parser");
    assert!(infos[0]["updatedAt"].as_str().unwrap().ends_with('Z'));
    let listed = client.ask("session/list", json!({})).await.unwrap();
    assert_eq!(listed["sessions"][0]["title"], "Fix the bug in the parser");
    client.leave().await;
}

#[tokio::test]
async fn a_second_prompt_is_refused_while_a_turn_is_running() {
    let server = ModelServer::start(Reply::text("An answer, and not a short one").after(6, Step::gate("on")));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    let first = client.begin_prompt(&session, "One").await;
    client.update(|update| update["sessionUpdate"] == "agent_message_chunk").await;
    for _ in 0..2 {
        let error = client.prompt(&session, "Two").await.unwrap_err();
        let told = (&error["data"]["condition"], &error["data"]["retryable"], &error["data"]["sessionId"]);
        assert_eq!(told, (&json!("session_busy"), &json!(true), &json!(session)), "{error}");
    }
    server.release("on");
    assert_eq!(client.answer(first).await.unwrap()["stopReason"], "end_turn");
    assert_eq!(client.text(), "An answer, and not a short one", "the first turn is not affected");
    assert_eq!(client.prompt(&session, "Three").await.unwrap()["stopReason"], "end_turn");
    assert_eq!(last_messages(&server).as_array().unwrap().len(), 3, "the second is not in the history");
    client.leave().await;
}

#[tokio::test]
async fn a_second_prompt_during_a_turn_is_refused() {
    let server = ModelServer::start(Reply::text("An answer, and not a short one"));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    let first = client.begin_prompt(&session, "One").await;
    let second = client.begin_prompt(&session, "Two").await;
    assert_eq!(client.answer(second).await.unwrap_err()["data"]["condition"], "session_busy");
    assert_eq!(client.answer(first).await.unwrap()["stopReason"], "end_turn");
    assert_eq!(chats(&server).len(), 1);
    client.leave().await;
}

#[tokio::test]
async fn many_sessions_run_side_by_side() {
    const MANY: usize = 60;
    let server = ModelServer::start(Plan::new([]).unless(|seen| {
        let said = seen.messages().last().unwrap()["content"].as_str().unwrap().to_owned();
        Some(Reply::text(&format!("This is the answer to {said}")).after(3, Step::gate("on")))
    }));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let mut turns = Vec::new();
    for number in 0..MANY {
        let session = client.session().await;
        turns.push((
            number,
            session.clone(),
            client.begin_prompt(&session, &format!("question {number}")).await,
        ));
    }
    // All turns are in the middle of their answers at the same time.
    chats_asked(&server, MANY).await;
    server.release("on");
    for (number, session, turn) in turns {
        assert_eq!(client.answer(turn).await.unwrap()["stopReason"], "end_turn");
        let chunks = client.messages.iter().filter(|message| {
            message["params"]["sessionId"] == json!(session)
                && message["params"]["update"]["sessionUpdate"] == "agent_message_chunk"
        });
        let text: String =
            chunks.filter_map(|message| message["params"]["update"]["content"]["text"].as_str()).collect();
        assert_eq!(text, format!("This is the answer to question {number}"));
    }
    client.leave().await;
}

#[tokio::test]
async fn settings_reach_the_model() {
    let server = ModelServer::start(Reply::text("An answer, and not a short one"));
    let mut settings = Settings { system: Some("Be brief.".to_owned()), ..settings(&server) };
    settings.routes[0].max_tokens = Some(123);
    settings.routes[0].temperature = Some(0.5);
    let mut client = Client::v1(settings, json!({})).await;
    let session = client.session().await;
    client.prompt(&session, "Hi").await.unwrap();
    client.prompt(&session, "Hi").await.unwrap();
    let body = chats(&server).pop().unwrap().body;
    assert_eq!(body["messages"][0], json!({"role": "system", "content": "Be brief."}));
    assert_eq!(body["messages"].as_array().unwrap().len(), 4);
    let limit = body.get("max_tokens").or(body.get("max_completion_tokens")).unwrap();
    assert_eq!((limit, &body["temperature"], &body["stream"]), (&json!(123), &json!(0.5), &json!(true)));
    assert!(body.get("tools").is_none(), "there is nothing to call");
    client.leave().await;
}

#[tokio::test]
async fn an_answer_without_streaming_is_accepted() {
    let server = ModelServer::start(Reply::whole("An answer, and not a short one"));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    let end = client.prompt(&session, "Hi").await.unwrap();
    assert_eq!((&end["stopReason"], &end["usage"]["totalTokens"]), (&json!("end_turn"), &json!(12)));
    assert_eq!(client.text(), "An answer, and not a short one");
    client.leave().await;
}

#[tokio::test]
async fn a_long_answer_arrives_whole() {
    let words: String = (0..1000).map(|number| format!("word{number} ")).collect();
    let server = ModelServer::start(Reply::text(&words).split_every(7000));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    client.prompt(&session, "Hi").await.unwrap();
    assert_eq!(client.text(), words);
    client.leave().await;
}

#[tokio::test]
async fn a_command_sets_no_title() {
    let server = ModelServer::start(Reply::text("An answer, and not a short one"));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    client.prompt(&session, "/status").await.unwrap();
    assert!(of_kind(&client, "session_info_update").is_empty());
    client.prompt(&session, "A name").await.unwrap();
    assert_eq!(of_kind(&client, "session_info_update")[0]["title"], "A name");
    client.leave().await;
}
