//! The agent behind a router that identifies sessions by a `sessionId` beside the params, and the end of its
//! input.

use std::time::{Duration, Instant};

use narrows_testkit::model::{ModelServer, Plan, Reply, Step};
use serde_json::{Value, json};

use crate::common::{Client, chats_asked, last_messages, settings};

/// Sends a request with the tag `tag`.
async fn tagged(client: &mut Client, id: Value, tag: &str, method: &str, params: Value) {
    client
        .send(&json!({"jsonrpc": "2.0", "id": id, "sessionId": tag, "method": method, "params": params}))
        .await;
}

async fn response(client: &mut Client, id: &Value) -> Value {
    loop {
        let found =
            client.messages.iter().find(|message| message["id"] == *id && message.get("method").is_none());
        if let Some(message) = found {
            return message.clone();
        }
        client.receive_message().await;
    }
}

#[tokio::test]
async fn every_message_of_a_session_has_its_tag() {
    let server = ModelServer::start(Reply::text("An answer, and not a short one"));
    let mut client = Client::start(settings(&server));
    client.host(|_, _| Some(Ok(json!({"content": "some text"}))));
    let introduction = json!({
        "protocolVersion": 1, "clientInfo": {"name": "bus", "version": "1"},
        "clientCapabilities": {"fs": {"readTextFile": true}},
    });
    tagged(&mut client, json!("i"), "bus-1", "initialize", introduction).await;
    assert_eq!(response(&mut client, &json!("i")).await["sessionId"], "bus-1");
    tagged(&mut client, json!("n"), "bus-1", "session/new", json!({"cwd": "/project", "mcpServers": []}))
        .await;
    let opened = response(&mut client, &json!("n")).await;
    assert_eq!(opened["sessionId"], "bus-1");
    let session = opened["result"]["sessionId"].as_str().unwrap().to_owned();
    assert_ne!(session, "bus-1");
    let place = client.messages.len();
    let prompt = json!([{"type": "text", "text": "Hi"}, {"type": "resource_link", "uri": "/project/a.rs"}]);
    tagged(
        &mut client,
        json!("p"),
        "bus-1",
        "session/prompt",
        json!({"sessionId": session, "prompt": prompt}),
    )
    .await;
    let end = response(&mut client, &json!("p")).await;
    assert_eq!(end["result"]["stopReason"], "end_turn");
    client.update(|update| update["sessionUpdate"] == "available_commands_update").await;
    let heard = &client.messages[place..];
    let methods: Vec<&str> = heard.iter().filter_map(|message| message["method"].as_str()).collect();
    assert!(methods.contains(&"session/update") && methods.contains(&"fs/read_text_file"), "{methods:?}");
    for message in heard {
        assert_eq!(message["sessionId"], "bus-1", "{message}");
        if message.get("method").is_some() {
            assert_eq!(
                message["params"]["sessionId"],
                json!(session),
                "the agent's own id stands in the params"
            );
        }
    }
    client.leave().await;
}

#[tokio::test]
async fn errors_have_the_tag() {
    let server = ModelServer::start(Reply::text("unused"));
    let mut client = Client::v1(settings(&server), json!({})).await;
    for (number, (method, params)) in [
        ("session/prompt", json!({"sessionId": "nobody", "prompt": [{"type": "text", "text": "x"}]})),
        ("session/new", json!({})),
        ("no/such/method", json!({})),
        ("session/load", json!({"sessionId": "nobody", "cwd": "/project"})),
    ]
    .into_iter()
    .enumerate()
    {
        let id = json!(format!("e{number}"));
        tagged(&mut client, id.clone(), "bus \"2\" ä", method, params).await;
        let answer = response(&mut client, &id).await;
        assert!(answer.get("error").is_some(), "{answer}");
        assert_eq!(answer["sessionId"], "bus \"2\" ä", "{method}");
    }
    client.leave().await;
}

/// Returns the tag of the first chunk of an answer after index `place`.
fn tag_of_answer(client: &Client, place: usize) -> Value {
    let is_piece = |message: &&Value| message["params"]["update"]["sessionUpdate"] == "agent_message_chunk";
    client.messages[place..].iter().find(is_piece).unwrap()["sessionId"].clone()
}

#[tokio::test]
async fn each_session_uses_its_latest_tag() {
    let server = ModelServer::start(Reply::text("An answer, and not a short one"));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let mut sessions = Vec::new();
    for tag in ["one", "two"] {
        tagged(&mut client, json!(tag), tag, "session/new", json!({"cwd": "/project"})).await;
        let opened = response(&mut client, &json!(tag)).await;
        sessions.push((tag, opened["result"]["sessionId"].as_str().unwrap().to_owned()));
    }
    let plain = client.session().await;
    let prompt = json!([{"type": "text", "text": "Hi"}]);
    for (tag, session) in &sessions {
        let params = json!({"sessionId": session, "prompt": prompt});
        tagged(&mut client, json!(format!("p{tag}")), tag, "session/prompt", params).await;
    }
    let third = client.begin_prompt(&plain, "Hi").await;
    for (tag, _) in &sessions {
        response(&mut client, &json!(format!("p{tag}"))).await;
    }
    client.answer(third).await.unwrap();
    for message in client.messages.iter().filter(|message| message["method"] == "session/update") {
        let of = sessions.iter().find(|(_, session)| message["params"]["sessionId"] == json!(session));
        assert_eq!(message.get("sessionId"), of.map(|(tag, _)| json!(tag)).as_ref(), "{message}");
    }
    // A request without a tag keeps the known tag. Another tag replaces it.
    let session = sessions[0].1.clone();
    let place = client.messages.len();
    client.prompt(&session, "Hi").await.unwrap();
    assert_eq!(tag_of_answer(&client, place), "one");
    let place = client.messages.len();
    let params = json!({"sessionId": session, "prompt": prompt});
    tagged(&mut client, json!("again"), "three", "session/prompt", params).await;
    response(&mut client, &json!("again")).await;
    assert_eq!(tag_of_answer(&client, place), "three");
    client.leave().await;
}

#[tokio::test]
async fn replayed_updates_have_the_tag() {
    let server = ModelServer::start(Reply::text("An answer, and not a short one"));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    client.prompt(&session, "Hi").await.unwrap();
    client.ask("session/close", json!({"sessionId": session})).await.unwrap();
    let place = client.messages.len();
    tagged(&mut client, json!("l"), "bus", "session/load", json!({"sessionId": session, "cwd": "/project"}))
        .await;
    response(&mut client, &json!("l")).await;
    assert_eq!(client.messages.len() - place, 3, "two replayed messages and the response");
    assert!(client.messages[place..].iter().all(|message| message["sessionId"] == "bus"));
    client.leave().await;
}

#[tokio::test]
async fn a_cancellation_with_a_tag_cancels_its_turn() {
    for with_id in [false, true] {
        let server = ModelServer::start(Reply::text("An answer, and not a short one").after(6, Step::Hang));
        let mut client = Client::v1(settings(&server), json!({})).await;
        let session = client.session().await;
        let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "Hi"}]});
        tagged(&mut client, json!("p"), "bus", "session/prompt", prompt).await;
        client.update(|update| update["sessionUpdate"] == "agent_message_chunk").await;
        let mut line = json!({
            "jsonrpc": "2.0", "sessionId": "bus", "method": "session/cancel", "params": {"sessionId": session},
        });
        if with_id {
            line["id"] = json!("c");
        }
        client.send(&line).await;
        let end = response(&mut client, &json!("p")).await;
        assert_eq!((&end["result"]["stopReason"], &end["sessionId"]), (&json!("cancelled"), &json!("bus")));
        if with_id {
            let answer = response(&mut client, &json!("c")).await;
            assert_eq!((&answer["result"], &answer["sessionId"]), (&json!({}), &json!("bus")));
        }
        client.leave().await;
    }
}

#[tokio::test]
async fn a_response_with_a_tag_is_matched_to_its_request() {
    let server = ModelServer::start(Reply::text("An answer, and not a short one"));
    let mut client = Client::v1(settings(&server), json!({"fs": {"readTextFile": true}})).await;
    client.host(|_, _| None);
    let session = client.session().await;
    let prompt = json!([{"type": "resource_link", "uri": "/project/a.rs"}]);
    tagged(&mut client, json!("p"), "bus", "session/prompt", json!({"sessionId": session, "prompt": prompt}))
        .await;
    client.question("fs/read_text_file").await;
    let question = client.messages.iter().find(|message| message["method"] == "fs/read_text_file").unwrap();
    let answer = json!({
        "jsonrpc": "2.0", "id": question["id"], "sessionId": question["sessionId"], "result": {"content": "its text"},
    });
    client.send(&answer).await;
    assert_eq!(response(&mut client, &json!("p")).await["result"]["stopReason"], "end_turn");
    assert_eq!(last_messages(&server)[0]["content"], "[Resource: /project/a.rs]\nits text");
    client.leave().await;
}

#[tokio::test]
async fn the_end_of_the_input_ends_every_turn_at_once() {
    for reply in [
        Reply::hang(),
        Reply::text("An answer, and not a short one").after(0, Step::Hang),
        Reply::text("An answer, and not a short one").after(6, Step::Hang),
    ] {
        let server = ModelServer::start(Plan::new([reply]));
        let mut client = Client::v1(settings(&server), json!({})).await;
        for _ in 0..3 {
            let session = client.session().await;
            client.begin_prompt(&session, "Hi").await;
        }
        chats_asked(&server, 3).await;
        let started = Instant::now();
        client.leave().await;
        assert!(started.elapsed() < Duration::from_millis(500), "{:?}", started.elapsed());
        server.hung_up().await;
    }
}

#[tokio::test]
async fn the_end_of_the_input_cancels_the_turn_and_reports_it() {
    let server = ModelServer::start(Reply::text("An answer, and not a short one").after(6, Step::Hang));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    let turn = client.begin_prompt(&session, "Hi").await;
    client.update(|update| update["sessionUpdate"] == "agent_message_chunk").await;
    let started = Instant::now();
    let last = client.finish().await;
    assert!(started.elapsed() < Duration::from_millis(500), "{:?}", started.elapsed());
    let ends: Vec<&Value> = last.iter().filter(|message| message["id"] == turn).collect();
    assert_eq!(ends.len(), 1, "{last:?}");
    assert_eq!(ends[0]["result"]["stopReason"], "cancelled");
    server.hung_up().await;
}

#[tokio::test]
async fn the_end_of_the_input_ends_an_idle_agent() {
    let server = ModelServer::start(Reply::text("An answer, and not a short one"));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    client.prompt(&session, "Hi").await.unwrap();
    let started = Instant::now();
    client.finish().await;
    assert!(started.elapsed() < Duration::from_millis(500), "{:?}", started.elapsed());
    // An agent that has received no message ends as well.
    Client::start(settings(&server)).finish().await;
}
