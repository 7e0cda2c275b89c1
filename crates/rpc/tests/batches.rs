//! Tests of JSON-RPC batches, on both ends of a conversation.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use bytes::Bytes;
use narrows_link::{Link, Options as LinkOptions, memory};
use narrows_rpc::{Inbox, Item, Options, Peer, Request, start};
use serde_json::{Value, json};

fn rig() -> (Link, Peer, Inbox) {
    let (ours, theirs) = memory::pair(&LinkOptions::default());
    let (peer, inbox) = start(theirs, Options::agent(|method| method != "unknown"));
    (ours, peer, inbox)
}

async fn send(link: &Link, message: &Value) {
    link.sender.send(message.to_string().into()).await.unwrap();
}

async fn recv(link: &mut Link) -> Value {
    serde_json::from_slice(link.receiver.recv().await.unwrap().bytes()).unwrap()
}

async fn request(inbox: &mut Inbox) -> Request {
    match inbox.recv().await {
        Some(Item::Request(request)) => request,
        other => panic!("{other:?}"),
    }
}

fn call(id: u32, method: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method})
}

/// Returns the ids and codes of a batch answer in order; code 0 is a result.
fn outcomes(answer: &Value) -> Vec<(Value, i64)> {
    let answers = answer.as_array().expect("an array answers an array");
    answers
        .iter()
        .map(|answer| (answer["id"].clone(), answer["error"]["code"].as_i64().unwrap_or(0)))
        .collect()
}

#[tokio::test]
async fn mixed_entries_get_one_array_once_all_are_answered() {
    let (mut link, _peer, mut inbox) = rig();
    let note = json!({"jsonrpc": "2.0", "method": "note"});
    let batch =
        json!([call(1, "a"), 17, note, call(2, "b"), null, call(1, "c"), call(3, "unknown"), [call(4, "d")]]);
    send(&link, &batch).await;
    let first = request(&mut inbox).await;
    assert!(matches!(inbox.recv().await, Some(Item::Notification(_))));
    let second = request(&mut inbox).await;
    second.responder.respond(&json!({}));
    // Nothing of the batch is sent before its last answer: another request overtakes it.
    send(&link, &call(9, "alone")).await;
    request(&mut inbox).await.responder.respond(&json!({}));
    assert_eq!(recv(&mut link).await["id"], 9);
    first.responder.respond(&json!({}));
    let answer = recv(&mut link).await;
    let expected = [
        (json!(null), -32600),
        (json!(null), -32600),
        (json!(1), -32014),
        (json!(3), -32601),
        (json!(null), -32600),
        (json!(2), 0),
        (json!(1), 0),
    ];
    assert_eq!(outcomes(&answer), expected);
}

#[tokio::test]
async fn invalid_entries_are_answered_at_once_and_notifications_never() {
    let (mut link, _peer, mut inbox) = rig();
    send(&link, &json!([17, null])).await;
    assert_eq!(outcomes(&recv(&mut link).await), [(json!(null), -32600), (json!(null), -32600)]);
    send(&link, &json!([{"id": 5, "method": "no version"}])).await;
    assert_eq!(outcomes(&recv(&mut link).await), [(json!(null), -32600)]);
    send(&link, &json!([{"jsonrpc": "2.0", "method": "a"}, {"jsonrpc": "2.0", "method": "b"}])).await;
    for _ in 0..2 {
        assert!(matches!(inbox.recv().await, Some(Item::Notification(_))));
    }
    send(&link, &json!([])).await;
    let answer = recv(&mut link).await;
    assert_eq!(
        (&answer["id"], &answer["error"]["code"]),
        (&json!(null), &json!(-32600)),
        "one object, no array"
    );
}

#[tokio::test]
async fn a_hundred_entries_are_fine_and_one_more_runs_none() {
    let (mut link, _peer, mut inbox) = rig();
    let batch = |count: u32| Value::from((0..count).map(|id| call(id, "a")).collect::<Vec<_>>());
    send(&link, &batch(101)).await;
    let answer = recv(&mut link).await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(null), &json!(-32600)));
    send(&link, &batch(100)).await;
    for _ in 0..100 {
        request(&mut inbox).await.responder.respond(&json!({}));
    }
    assert_eq!(outcomes(&recv(&mut link).await).len(), 100);
}

#[tokio::test]
async fn entries_wait_for_lifecycle_requests_but_not_for_prompts() {
    let (mut link, _peer, mut inbox) = rig();
    let batch = json!([
        call(1, "session/prompt"),
        call(2, "initialize"),
        call(3, "session/new"),
        call(4, "session/prompt"),
        call(5, "a")
    ]);
    send(&link, &batch).await;
    let prompt = request(&mut inbox).await;
    let initialize = request(&mut inbox).await;
    assert_eq!(initialize.responder.id().as_bytes(), b"2");
    // The loop continues while the rest of the batch waits.
    send(&link, &call(10, "other")).await;
    let other = request(&mut inbox).await;
    assert_eq!(other.responder.id().as_bytes(), b"10");
    initialize.responder.respond(&json!({}));
    let new = request(&mut inbox).await;
    assert_eq!(new.responder.id().as_bytes(), b"3");
    new.responder.respond(&json!({}));
    for id in [&b"4"[..], b"5"] {
        let request = request(&mut inbox).await;
        assert_eq!(request.responder.id().as_bytes(), id);
        request.responder.respond(&json!({}));
    }
    prompt.responder.respond(&json!({}));
    assert_eq!(outcomes(&recv(&mut link).await).len(), 5);
}

#[tokio::test]
async fn the_number_of_waiting_batches_is_limited() {
    let (mut link, _peer, mut inbox) = rig();
    let mut waiting = Vec::new();
    for n in 0..9 {
        send(&link, &json!([call(2 * n, "initialize"), call(2 * n + 1, "a")])).await;
        waiting.push(request(&mut inbox).await);
    }
    waiting.pop().unwrap().responder.respond(&json!({}));
    assert_eq!(outcomes(&recv(&mut link).await), [(json!(17), -32012), (json!(16), 0)]);
    for request in waiting {
        request.responder.respond(&json!({}));
    }
    for _ in 0..8 {
        request(&mut inbox).await.responder.respond(&json!({}));
        assert_eq!(outcomes(&recv(&mut link).await).len(), 2);
    }
}

#[tokio::test]
async fn the_batch_limit_is_configurable() {
    let (mut link, theirs) = memory::pair(&LinkOptions::default());
    let (_peer, _inbox) = start(theirs, Options { max_batch: 1, ..Options::agent(|_| true) });
    send(&link, &json!([call(1, "a"), call(2, "a")])).await;
    assert_eq!(recv(&mut link).await["error"]["code"], -32600);
}

#[tokio::test]
async fn a_waiting_batch_ends_when_the_peer_is_lost() {
    let (link, peer, mut inbox) = rig();
    send(&link, &json!([call(1, "initialize"), call(2, "a")])).await;
    let initialize = request(&mut inbox).await;
    drop(link);
    peer.closed().await;
    assert!(initialize.responder.is_cancelled());
    initialize.responder.respond(&json!({}));
    assert!(inbox.recv().await.is_none());
}

#[tokio::test]
async fn responses_in_an_array_settle_our_requests_and_updates_keep_their_place() {
    let (mut link, theirs) = memory::pair(&LinkOptions::default());
    let (client, _inbox) = start(theirs, Options::client(|_| true));
    let mut session = client.session("s").unwrap();
    let first = client.call("a", &json!({})).await.unwrap();
    let prompt = client.call_in(&session, "session/prompt", &json!({"sessionId": "s"})).await.unwrap();
    assert_eq!(recv(&mut link).await["id"], first.id());
    assert_eq!(recv(&mut link).await["id"], prompt);
    let update =
        |n: u32| json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "n": n}});
    let batch = json!([
        update(1),
        {"jsonrpc": "2.0", "id": first.id(), "result": "one"},
        {"jsonrpc": "2.0", "id": 999, "result": "never asked"},
        update(2),
        {"jsonrpc": "2.0", "id": prompt, "result": {"stopReason": "end_turn"}},
    ]);
    send(&link, &batch).await;
    assert_eq!(first.response().await.unwrap().raw(), b"\"one\"");
    for n in 1..=2 {
        let Some(Item::Notification(frame)) = session.recv().await else { panic!() };
        assert_eq!(frame.read_params::<Value>().unwrap()["n"], n);
    }
    let Some(Item::Answer(answer)) = session.recv().await else { panic!() };
    assert_eq!(answer.id, prompt);
    assert_eq!(client.stats().unasked, 1);
    link.sender.send(Bytes::from_static(b"{}")).await.unwrap();
    let refusal = recv(&mut link).await;
    assert_eq!(refusal["error"]["code"], -32600, "nothing else was answered");
}
