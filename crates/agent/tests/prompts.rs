//! Turns in version 1: requests to the model, displayed answers, and stored turns.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::{Client, settings};
use narrows_testkit::model::{ModelServer, Reply};
use serde_json::json;

#[tokio::test]
async fn a_turn_is_streamed_and_stays_in_the_history() {
    let server = ModelServer::start(Reply::text("Hello world, this is an answer"));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    let end = client.prompt(&session, "Hi").await.unwrap();
    assert_eq!(end["stopReason"], "end_turn");
    assert!(end["usage"]["totalTokens"].as_u64().unwrap() > 0);
    assert_eq!(client.text(), "Hello world, this is an answer");
    client.prompt(&session, "And?").await.unwrap();
    let seen = server.seen();
    let chats: Vec<_> = seen.iter().filter(|seen| seen.path.ends_with("/chat/completions")).collect();
    assert_eq!(
        chats[1].body["messages"],
        json!([
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello world, this is an answer"},
            {"role": "user", "content": "And?"},
        ])
    );
    client.leave().await;
}
