//! Reopened sessions: with other directories, during a turn, and with histories of all kinds.

use std::time::{Duration, Instant};

use narrows_agent::Settings;
use narrows_testkit::model::{ModelServer, Plan, Reply, Step, delta, finish};
use serde_json::{Value, json};

use crate::common::{Client, chats, last_messages, settings};

fn contents(server: &ModelServer) -> Vec<Value> {
    last_messages(server).as_array().unwrap().iter().map(|message| message["content"].clone()).collect()
}

#[tokio::test]
async fn a_session_can_be_reopened_in_another_directory() {
    let server = ModelServer::start(Reply::text("An answer, and not a short one"));
    for method in ["session/load", "session/resume"] {
        for close in [true, false] {
            let mut client = Client::v1(settings(&server), json!({})).await;
            let params = json!({"cwd": "/project", "additionalDirectories": ["/more"]});
            let opened = client.ask("session/new", params).await.unwrap();
            let session = opened["sessionId"].as_str().unwrap().to_owned();
            client.prompt(&session, "One").await.unwrap();
            if close {
                client.ask("session/close", json!({"sessionId": session})).await.unwrap();
            }
            client.ask(method, json!({"sessionId": session, "cwd": "/elsewhere"})).await.unwrap();
            let listed = client.ask("session/list", json!({})).await.unwrap();
            let info = &listed["sessions"][0];
            assert_eq!(info["cwd"], "/elsewhere", "{method} close: {close}");
            assert!(info.get("additionalDirectories").is_none(), "nothing is inherited: {info}");
            client.forget();
            client.prompt(&session, "/status").await.unwrap();
            assert!(client.text().contains("Directory: /elsewhere"), "{}", client.text());
            client.leave().await;
        }
    }
}

#[tokio::test]
async fn a_session_may_be_loaded_during_a_turn() {
    let server = ModelServer::start(Plan::new([
        Reply::text("The first answer"),
        Reply::text("The second answer, which takes its time").after(5, Step::gate("on")),
    ]));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    client.prompt(&session, "One").await.unwrap();
    client.forget();
    let turn = client.begin_prompt(&session, "Two").await;
    client.update(|update| update["content"]["text"] == "which ").await;
    client.forget();
    client.ask("session/load", json!({"sessionId": session, "cwd": "/project"})).await.unwrap();
    assert_eq!(client.text(), "The first answer", "ended turns are replayed");
    assert_eq!(client.prompt(&session, "Three").await.unwrap_err()["data"]["condition"], "session_busy");
    server.release("on");
    assert_eq!(client.answer(turn).await.unwrap()["stopReason"], "end_turn");
    client.prompt(&session, "Three").await.unwrap();
    assert_eq!(contents(&server).len(), 5);
    client.leave().await;
}

#[tokio::test]
async fn a_dead_endpoint_does_not_delay_reopening() {
    let server = ModelServer::start(Plan::new([Reply::text("Hello")]).models(Reply::hang()));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    client.ask("session/close", json!({"sessionId": session})).await.unwrap();
    for method in ["session/load", "session/resume", "session/fork", "session/new"] {
        let started = Instant::now();
        client.ask(method, json!({"sessionId": session, "cwd": "/project"})).await.unwrap();
        assert!(started.elapsed() < Duration::from_millis(500), "{method}: it has been found dead already");
    }
    client.leave().await;
}

#[tokio::test]
async fn a_turn_without_an_answer_is_not_sent_to_the_model() {
    let thought = || delta(&json!({"reasoning_content": "I think and think and think"}));
    for (empty, reason) in [
        (Reply::sse([thought(), finish("length")]), "max_tokens"),
        (Reply::sse([thought(), finish("stop")]), "end_turn"),
        (Reply::sse([delta(&json!({"role": "assistant", "content": ""})), finish("length")]), "max_tokens"),
    ] {
        let server = ModelServer::start(Plan::new([
            Reply::text("The first answer"),
            empty,
            Reply::text("The last answer"),
        ]));
        let mut client = Client::v1(settings(&server), json!({})).await;
        let session = client.session().await;
        client.prompt(&session, "One").await.unwrap();
        let end = client.prompt(&session, "Two").await.unwrap();
        assert_eq!(end["stopReason"], reason);
        client.prompt(&session, "Three").await.unwrap();
        assert_eq!(contents(&server), ["One", "The first answer", "Three"], "every message has an answer");
        // The user has seen the text, and sees it again.
        client.ask("session/close", json!({"sessionId": session})).await.unwrap();
        client.forget();
        client.ask("session/load", json!({"sessionId": session, "cwd": "/project"})).await.unwrap();
        let said = client.updates.iter().filter(|update| update["sessionUpdate"] == "user_message_chunk");
        assert_eq!(said.count(), 3);
        client.prompt(&session, "Four").await.unwrap();
        assert_eq!(contents(&server), ["One", "The first answer", "Three", "The last answer", "Four"]);
        client.leave().await;
    }
}

#[tokio::test]
async fn the_number_of_open_sessions_is_limited() {
    let mut client = Client::v1(Settings::default(), json!({})).await;
    let mut last = String::new();
    for _ in 0..512 {
        last = client.session().await;
    }
    let error = client.ask("session/new", json!({"cwd": "/project"})).await.unwrap_err();
    assert_eq!((&error["code"], &error["data"]["retryable"]), (&json!(-32012), &json!(true)), "{error}");
    client.ask("session/close", json!({"sessionId": last})).await.unwrap();
    client.session().await;
    client.leave().await;
}

/// A client that does not read delays only its own turn.
#[tokio::test]
async fn a_turn_waits_for_a_client_that_does_not_read() {
    let piece = delta(&json!({"content": "x".repeat(4000)}));
    let flood = Reply::sse((0..1000).map(|_| piece.clone()).chain([finish("stop")]));
    let server = ModelServer::start(Plan::new([flood, Reply::text("The next answer")]));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    let turn = client.begin_prompt(&session, "Hi").await;
    client.update(|update| update["sessionUpdate"] == "agent_message_chunk").await;
    client.notify("session/cancel", json!({"sessionId": session})).await;
    assert_eq!(client.answer(turn).await.unwrap()["stopReason"], "cancelled");
    assert!(client.text().len() < 4_000_000);
    assert_eq!(client.prompt(&session, "Next").await.unwrap()["stopReason"], "end_turn");
    assert_eq!(chats(&server).len(), 2);
    client.leave().await;
}
