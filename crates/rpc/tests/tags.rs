//! Tests of the top-level `sessionId`, for routers that do not read `params`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use narrows_link::{Link, Options as LinkOptions, memory};
use narrows_rpc::{Inbox, Item, Options, Peer, start};
use serde_json::{Value, json};

fn agent() -> (Peer, Inbox, Link) {
    let (one, other) = memory::pair(&LinkOptions::default());
    let (peer, inbox) = start(one, Options::agent(|method| method == "known"));
    (peer, inbox, other)
}

async fn sent(link: &mut Link) -> Value {
    serde_json::from_slice(link.receiver.recv().await.unwrap().bytes()).unwrap()
}

async fn send(link: &Link, message: &Value) {
    link.sender.send(message.to_string().into()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_answer_carries_the_tag_of_its_request() {
    let (_peer, mut inbox, mut link) = agent();
    send(&link, &json!({"jsonrpc": "2.0", "id": 1, "method": "known", "sessionId": "a\"b"})).await;
    send(&link, &json!({"jsonrpc": "2.0", "id": 2, "method": "known"})).await;
    send(&link, &json!({"jsonrpc": "2.0", "id": 3, "method": "unknown", "sessionId": "c"})).await;
    send(&link, &json!({"jsonrpc": "2.0", "id": 4, "method": "known", "sessionId": 7})).await;
    for _ in 0..3 {
        let Some(Item::Request(request)) = inbox.recv().await else { panic!("a request") };
        request.responder.respond(&json!({}));
    }
    let mut tags = Vec::new();
    for _ in 0..4 {
        let answer = sent(&mut link).await;
        tags.push((answer["id"].as_u64().unwrap(), answer["sessionId"].as_str().map(str::to_owned)));
    }
    tags.sort();
    assert_eq!(tags, [(1, Some("a\"b".to_owned())), (2, None), (3, Some("c".to_owned())), (4, None)]);
}

#[tokio::test(start_paused = true)]
async fn a_tagged_handle_marks_what_it_sends() {
    let (peer, _inbox, mut link) = agent();
    let tagged = peer.with_tag(Some(br#""x""#));
    tagged.notify("session/update", &json!({"sessionId": "inner"})).await.unwrap();
    let message = sent(&mut link).await;
    assert_eq!((&message["sessionId"], &message["params"]["sessionId"]), (&json!("x"), &json!("inner")));
    let asking = tokio::spawn(async move {
        tagged.request::<_, Value>("fs/read_text_file", &json!({}), Duration::from_secs(5)).await.unwrap()
    });
    let question = sent(&mut link).await;
    assert_eq!(question["sessionId"], "x");
    send(&link, &json!({"jsonrpc": "2.0", "id": question["id"], "sessionId": "x", "result": 1})).await;
    assert_eq!(asking.await.unwrap(), 1);
    peer.notify("session/update", &json!({})).await.unwrap();
    assert_eq!(sent(&mut link).await.get("sessionId"), None);
}
