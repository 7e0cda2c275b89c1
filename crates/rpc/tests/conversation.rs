//! Tests of requests, cancellation, sessions and lost peers, over a pair in memory with paused time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use bytes::Bytes;
use narrows_link::{CloseReason, Link, Options as LinkOptions, memory};
use narrows_rpc::{CallError, Inbox, Item, Options, Peer, Request, Session, start};
use narrows_wire::Effects;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

/// So long that paused time reaches it only when nothing else can run.
const NEVER: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_secs(5);

/// Returns a client and an agent, both of this crate, linked in memory.
fn both() -> ((Peer, Inbox), (Peer, Inbox)) {
    let (one, other) = memory::pair(&LinkOptions::default());
    (start(one, Options::client(|_| true)), start(other, Options::agent(|_| true)))
}

/// Returns a client and the other end of its link.
fn client() -> (Peer, Inbox, Link) {
    let (one, other) = memory::pair(&LinkOptions::default());
    let (peer, inbox) = start(one, Options::client(|_| true));
    (peer, inbox, other)
}

async fn request(inbox: &mut Inbox) -> Request {
    match inbox.recv().await {
        Some(Item::Request(request)) => request,
        other => panic!("{other:?}"),
    }
}

async fn sent(link: &mut Link) -> Value {
    serde_json::from_slice(link.receiver.recv().await.unwrap().bytes()).unwrap()
}

async fn send(link: &Link, message: &Value) {
    link.sender.send(message.to_string().into()).await.unwrap();
}

fn update(session: &str, n: u32) -> Value {
    json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "n": n}})
}

async fn next_update(session: &mut Session) -> u64 {
    match session.recv().await {
        Some(Item::Notification(frame)) => frame.read_params::<Value>().unwrap()["n"].as_u64().unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn both_ends_can_send_requests_at_the_same_time() {
    let ((client, mut client_inbox), (agent, mut agent_inbox)) = both();
    let ask = async {
        let answer: Value = client.request("up", &json!({"x": 1}), SOON).await.unwrap();
        assert_eq!(answer, json!({"y": 2}));
    };
    let serve = async {
        let up = request(&mut agent_inbox).await;
        // The agent sends a request before it answers: neither may block the loop.
        let back: Value = agent.request("back", &json!({}), SOON).await.unwrap();
        assert_eq!(back, json!("back"));
        up.responder.respond(&json!({"y": 2}));
    };
    let serve_back = async { request(&mut client_inbox).await.responder.respond(&json!("back")) };
    tokio::join!(ask, serve, serve_back);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_settles_the_request_and_cancels_it_at_the_peer() {
    let (client, mut inbox, mut link) = client();
    let started = Instant::now();
    let outcome = client.request::<_, Value>("slow", &json!({}), SOON).await;
    assert_eq!(outcome, Err(CallError::Deadline(SOON)));
    assert_eq!(started.elapsed(), SOON);
    assert_eq!(sent(&mut link).await["id"], 1);
    let cancel = sent(&mut link).await;
    assert_eq!(cancel, json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 1}}));
    // The late answer is dropped. It is counted separately from answers to unknown requests.
    send(&link, &json!({"jsonrpc": "2.0", "id": 1, "result": {}})).await;
    send(&link, &json!({"jsonrpc": "2.0", "id": 2, "result": {}})).await;
    send(&link, &json!({"jsonrpc": "2.0", "id": "1", "result": {}})).await;
    send(&link, &json!({"jsonrpc": "2.0", "method": "note"})).await;
    assert!(matches!(inbox.recv().await, Some(Item::Notification(_))));
    let call = client.call("next", &json!({})).await.unwrap();
    assert_eq!(sent(&mut link).await["id"], 2);
    send(&link, &json!({"jsonrpc": "2.0", "id": 2, "result": "yes"})).await;
    assert_eq!(call.response().await.unwrap().raw(), b"\"yes\"");
    assert_eq!((client.stats().late, client.stats().unasked), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_is_cancelled_and_one_that_was_never_sent_is_not() {
    let (one, mut link) = memory::pair(&LinkOptions { queue_bytes: 500, ..LinkOptions::default() });
    let (client, _inbox) = start(one, Options::client(|_| true));
    drop(client.call("a", &json!({})).await.unwrap());
    assert_eq!(sent(&mut link).await["method"], "a");
    assert_eq!(sent(&mut link).await["method"], "$/cancel_request");
    // The peer does not read: the queues fill up, and a call that waits for room is dropped.
    let params = json!({"x": "y".repeat(100)});
    let flood = async { while client.notify("n", &params).await.is_ok() {} };
    assert!(timeout(NEVER, flood).await.is_err());
    assert!(timeout(SOON, client.call("b", &params)).await.is_err());
    client.notify_now("session/cancel", &json!({})).unwrap();
    client.close();
    let mut methods = Vec::new();
    while let Some(frame) = link.receiver.recv().await {
        methods.push(frame.method().unwrap().into_owned());
    }
    assert_eq!(methods.pop().as_deref(), Some("session/cancel"), "after everything sent before");
    assert!(methods.len() > 1 && methods.iter().all(|method| method == "n"), "{methods:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_cancelled_by_the_peer_is_still_answered() {
    let ((client, _), (_agent, mut inbox)) = both();
    let call = client.call("work", &json!({})).await.unwrap();
    let work = request(&mut inbox).await;
    assert!(timeout(NEVER, work.responder.cancelled()).await.is_err());
    call.cancel();
    work.responder.cancelled().await;
    assert!(work.responder.is_cancelled());
    work.responder.respond(&json!("partial"));
    assert_eq!(call.response().await.unwrap().raw(), b"\"partial\"");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_is_answered_with_an_error() {
    let ((client, _), (_agent, mut inbox)) = both();
    let call = client.call("work", &json!({})).await.unwrap();
    drop(request(&mut inbox).await);
    let Err(CallError::Refused(error)) = call.response().await else { panic!() };
    assert_eq!(error.code, -32603);
}

#[tokio::test(start_paused = true)]
async fn malformed_answers_settle_the_request_they_answer() {
    for (answer, expected) in [
        (r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":"x"}}"#, "both"),
        (r#"{"jsonrpc":"2.0","id":1}"#, "missing"),
        (r#"{"id":1,"result":{}}"#, "malformed response"),
        (r#"{"jsonrpc":"2.0","id":1,"error":"text"}"#, "malformed error object"),
        (r#"{"jsonrpc":"2.0","id":1,"result":"text"}"#, "invalid type"),
    ] {
        let (client, _inbox, link) = client();
        let answering = async { link.sender.send(Bytes::from_static(answer.as_bytes())).await.unwrap() };
        let params = json!({});
        let (outcome, ()) = tokio::join!(client.request::<_, Vec<u8>>("a", &params, SOON), answering);
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains(expected), "{answer}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_over_the_limit_settles_its_request() {
    let (one, other) = memory::pair(&LinkOptions { max_line: 1000, ..LinkOptions::default() });
    let (client, _inbox) = start(one, Options::client(|_| true));
    let call = client.call("a", &json!({})).await.unwrap();
    send(&other, &json!({"jsonrpc": "2.0", "id": 1, "result": "x".repeat(2000)})).await;
    assert_eq!(call.response().await.unwrap_err(), CallError::Malformed("response too long".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_null_result_counts_as_an_empty_object() {
    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Empty {}
    let (client, _inbox, link) = client();
    let call = client.call("a", &json!({})).await.unwrap();
    send(&link, &json!({"jsonrpc": "2.0", "id": 1, "result": null})).await;
    let response = call.response().await.unwrap();
    assert_eq!(response.read::<Empty>().unwrap(), Empty {});
    assert_eq!(response.read::<Value>().unwrap(), Value::Null);
    assert!(response.read::<String>().is_err());
}

#[tokio::test(start_paused = true)]
async fn losing_the_peer_settles_everything_with_the_reason() {
    let (client, mut inbox, mut link) = client();
    let mut session = client.session("s").unwrap();
    let call = client.call("a", &json!({})).await.unwrap();
    let prompt = client.call_in(&session, "session/prompt", &json!({"sessionId": "s"})).await.unwrap();
    assert_eq!(sent(&mut link).await["id"], 1);
    assert_eq!(sent(&mut link).await["id"], 2);
    send(&link, &update("s", 1)).await;
    send(&link, &json!({"jsonrpc": "2.0", "id": 7, "method": "ask", "params": {"sessionId": "s"}})).await;
    drop(link);
    let lost = CallError::Lost { reason: CloseReason::Eof, effects: Effects::Possible };
    assert_eq!(call.response().await.unwrap_err(), lost);
    assert_eq!(next_update(&mut session).await, 1);
    let Some(Item::Request(ask)) = session.recv().await else { panic!() };
    ask.responder.cancelled().await;
    let Some(Item::Answer(answer)) = session.recv().await else { panic!() };
    assert_eq!((answer.id, answer.outcome.unwrap_err()), (prompt, lost));
    assert!(session.recv().await.is_none());
    assert!(inbox.recv().await.is_none());
    assert_eq!(client.closed().await, CloseReason::Eof);
    let unsent = CallError::Lost { reason: CloseReason::Eof, effects: Effects::None };
    assert_eq!(client.call("b", &json!({})).await.unwrap_err(), unsent);
    assert_eq!(client.call_in(&session, "b", &json!({})).await.unwrap_err(), unsent);
}

#[tokio::test(start_paused = true)]
async fn the_answer_that_ends_a_turn_comes_after_its_updates() {
    let ((client, _inbox), (agent, mut agent_inbox)) = both();
    let mut session = client.session("s").unwrap();
    let id = client.call_in(&session, "session/prompt", &json!({"sessionId": "s"})).await.unwrap();
    tokio::spawn(async move {
        let prompt = request(&mut agent_inbox).await;
        for n in 0..20_000 {
            agent.notify("session/update", &json!({"sessionId": "s", "n": n})).await.unwrap();
        }
        prompt.responder.respond(&json!({"stopReason": "end_turn"}));
        // Keep the conversation until the other side is gone.
        agent.closed().await;
    });
    for n in 0..20_000 {
        assert_eq!(next_update(&mut session).await, n);
    }
    let Some(Item::Answer(answer)) = session.recv().await else { panic!() };
    assert_eq!(answer.id, id);
    assert!(session.try_recv().is_none());
}

#[tokio::test(start_paused = true)]
async fn updates_that_precede_the_claim_are_held_in_order() {
    let (client, mut inbox, link) = client();
    for n in 0..5 {
        send(&link, &update("early", n)).await;
    }
    send(&link, &json!({"jsonrpc": "2.0", "method": "note"})).await;
    assert!(matches!(inbox.recv().await, Some(Item::Notification(_))));
    let mut session = client.session("early").unwrap();
    assert!(client.session("early").is_err(), "one inbox, one reader");
    send(&link, &update("early", 5)).await;
    for n in 0..6 {
        assert_eq!(next_update(&mut session).await, n);
    }
    drop(session);
    send(&link, &update("early", 6)).await;
    send(&link, &json!({"jsonrpc": "2.0", "method": "note"})).await;
    assert!(inbox.recv().await.is_some());
    assert_eq!(client.stats().ignored, 1);
    client.session("early").expect("a closed session can be opened again");
}

#[tokio::test(start_paused = true)]
async fn a_request_for_a_closed_session_is_answered() {
    let (client, _inbox, mut link) = client();
    drop(client.session("s").unwrap());
    send(&link, &json!({"jsonrpc": "2.0", "id": 1, "method": "ask", "params": {"sessionId": "s"}})).await;
    assert_eq!(sent(&mut link).await["error"]["code"], -32002);
}

#[tokio::test(start_paused = true)]
async fn unclaimed_messages_are_bounded_and_block_nothing() {
    let (one, mut link) = memory::pair(&LinkOptions::default());
    let (client, mut inbox) =
        start(one, Options { held_sessions: 2, inbox_bytes: 2000, ..Options::client(|_| true) });
    send(&link, &update("first", 0)).await;
    for n in 0..100 {
        send(&link, &update("second", n)).await;
    }
    send(&link, &update("third", 0)).await;
    // Requests are not held, because the peer waits for the answer.
    let ask = json!({"jsonrpc": "2.0", "id": 1, "method": "ask", "params": {"sessionId": "third"}});
    send(&link, &ask).await;
    request(&mut inbox).await.responder.respond(&json!({}));
    assert_eq!(sent(&mut link).await["id"], 1);
    assert!(client.stats().unclaimed > 50);
    let mut third = client.session("third").unwrap();
    assert_eq!(next_update(&mut third).await, 0);
    assert!(client.session("first").unwrap().try_recv().is_none(), "the oldest session was dropped");
}

#[tokio::test(start_paused = true)]
async fn all_unclaimed_sessions_share_one_limit() {
    let (one, link) = memory::pair(&LinkOptions::default());
    let (client, mut inbox) = start(one, Options { inbox_bytes: 10_000, ..Options::client(|_| true) });
    let long = "x".repeat(5000);
    send(&link, &update("first", 1)).await;
    // A message too large for the rest of the budget, and sessions whose names alone would fill the tables.
    send(
        &link,
        &json!({"jsonrpc": "2.0", "method": "n", "params": {"sessionId": "second", "x": "y".repeat(20_000)}}),
    )
    .await;
    for n in 0..10 {
        send(&link, &update(&format!("{}{n}", &long[..3000]), n)).await;
    }
    assert!(timeout(NEVER, inbox.recv()).await.is_err());
    assert!(client.stats().unclaimed >= 8, "{:?}", client.stats());
    send(&link, &update(&long, 7)).await;
    assert!(
        matches!(inbox.recv().await, Some(Item::Notification(_))),
        "messages with an overlong id are not held"
    );
    assert_eq!(next_update(&mut client.session("first").unwrap()).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_full_inbox_stops_the_reading_and_loses_nothing() {
    let (one, link) = memory::pair(&LinkOptions { queue_bytes: 2000, ..LinkOptions::default() });
    let (client, _inbox) = start(one, Options { inbox_bytes: 2000, ..Options::client(|_| true) });
    let mut session = client.session("s").unwrap();
    let mut n = 0;
    let flood = async {
        loop {
            send(&link, &update("s", n)).await;
            n += 1;
        }
    };
    assert!(timeout(NEVER, flood).await.is_err());
    assert!(n < 200, "{n}");
    drop(link);
    for expected in 0..n {
        assert_eq!(next_update(&mut session).await, u64::from(expected));
    }
    // The call that was dropped while sending may or may not have been sent.
    while session.recv().await.is_some() {}
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_sends_requests_without_reading_is_paused() {
    let (one, link) = memory::pair(&LinkOptions { queue_bytes: 2000, ..LinkOptions::default() });
    let (agent, _inbox) = start(one, Options::agent(|_| false));
    let mut n = 0;
    let flood = async {
        loop {
            send(&link, &json!({"jsonrpc": "2.0", "id": n, "method": "unknown"})).await;
            n += 1;
        }
    };
    assert!(
        timeout(NEVER, flood).await.is_err(),
        "requests of the peer must wait while it does not read answers"
    );
    assert!(n < 500, "{n}");
    drop(agent);
}

#[tokio::test(start_paused = true)]
async fn a_paused_peer_that_closes_its_end_is_lost() {
    let (one, link) = memory::pair(&LinkOptions { queue_bytes: 2000, ..LinkOptions::default() });
    let (agent, _inbox) = start(one, Options::agent(|_| false));
    let unknown = json!({"jsonrpc": "2.0", "id": 1, "method": "unknown"});
    let flood = async { while link.sender.send(unknown.to_string().into()).await.is_ok() {} };
    assert!(timeout(NEVER, flood).await.is_err());
    assert!(timeout(NEVER, agent.closed()).await.is_err(), "the peer may still read");
    let since = Instant::now();
    link.sender.close();
    timeout(NEVER, agent.closed()).await.expect("the peer neither reads nor sends");
    agent.finish().await;
    assert!(since.elapsed() < Duration::from_millis(300), "{:?}", since.elapsed());
    drop(link);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_closes_its_end_gets_every_answer_it_reads() {
    const MANY: u32 = 1000;
    let (one, mut link) = memory::pair(&LinkOptions { queue_bytes: 2000, ..LinkOptions::default() });
    let (agent, _inbox) = start(one, Options::agent(|_| false));
    for n in 0..MANY {
        let unknown = json!({"jsonrpc": "2.0", "id": n, "method": "unknown"});
        link.sender.push(unknown.to_string().into()).unwrap();
    }
    link.sender.close();
    for n in 0..MANY {
        // sleep: this is the slowness
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(sent(&mut link).await["id"], n);
    }
    assert_eq!(agent.closed().await, CloseReason::Eof);
}

#[tokio::test(start_paused = true)]
async fn closing_does_not_wait_for_a_peer_that_no_longer_reads() {
    let (one, link) = memory::pair(&LinkOptions::default());
    let Link { sender, receiver } = link;
    let (client, _inbox) = start(one, Options::client(|_| true));
    drop(receiver);
    let _ = client.notify("n", &json!({})).await;
    let since = Instant::now();
    assert!(timeout(Duration::from_secs(1), client.closed()).await.is_err(), "the peer may still send");
    client.close();
    client.closed().await;
    assert_eq!(since.elapsed(), Duration::from_secs(1));
    drop(sender);
}

#[tokio::test(start_paused = true)]
async fn lines_of_an_agent_that_are_not_json_are_counted_and_not_answered() {
    let (client, _inbox, mut link) = client();
    link.sender.send(Bytes::from_static(b"npm WARN deprecated")).await.unwrap();
    assert!(timeout(SOON, sent(&mut link)).await.is_err(), "a line that is not JSON gets no answer");
    assert_eq!(client.stats().noise, 1);
}

#[tokio::test(start_paused = true)]
async fn closing_writes_queued_messages_and_ends_both_sides() {
    let ((client, inbox), (agent, mut agent_inbox)) = both();
    for n in 0..10 {
        client.notify("n", &json!({"n": n})).await.unwrap();
    }
    client.close();
    assert_eq!(client.closed().await, CloseReason::Local);
    assert!(client.notify("n", &json!({})).await.is_err());
    for _ in 0..10 {
        assert!(matches!(agent_inbox.recv().await, Some(Item::Notification(_))));
    }
    assert!(agent_inbox.recv().await.is_none());
    assert_eq!(agent.closed().await, CloseReason::Eof);
    drop(inbox);
}

#[tokio::test(start_paused = true)]
async fn dropping_every_handle_ends_the_conversation() {
    let ((client, inbox), (agent, _agent_inbox)) = both();
    let session = client.session("s").unwrap();
    drop((client, inbox));
    assert!(timeout(NEVER, agent.closed()).await.is_err(), "a session is a handle, too");
    drop(session);
    assert_eq!(agent.closed().await, CloseReason::Eof);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_only_stops_sending_still_gets_the_answer() {
    let (one, mut link) = memory::pair(&LinkOptions::default());
    let (agent, mut inbox) = start(one, Options::agent(|_| true));
    send(&link, &json!({"jsonrpc": "2.0", "id": 1, "method": "work"})).await;
    let work = request(&mut inbox).await;
    link.sender.close();
    assert_eq!(agent.closed().await, CloseReason::Eof);
    work.responder.respond(&json!("done"));
    assert_eq!(sent(&mut link).await["result"], "done");
    agent.close();
    assert!(link.receiver.recv().await.is_none(), "and then the end");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_stops_reading_is_lost_but_its_messages_are_not() {
    let (one, link) = memory::pair(&LinkOptions::default());
    let Link { sender, receiver } = link;
    let (client, _inbox) = start(one, Options::client(|_| true));
    let mut session = client.session("s").unwrap();
    sender.send(update("s", 1).to_string().into()).await.unwrap();
    drop(receiver);
    let _ = client.notify("n", &json!({})).await;
    let outcome = client.request::<_, Value>("a", &json!({}), NEVER).await;
    assert!(matches!(outcome, Err(CallError::Lost { reason: CloseReason::NotReading, .. })), "{outcome:?}");
    assert_eq!(next_update(&mut session).await, 1);
    assert_eq!(client.closed().await, CloseReason::NotReading);
    assert!(session.recv().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn finishing_waits_until_everything_is_written() {
    let (one, mut link) = memory::pair(&LinkOptions { queue_bytes: 1000, ..LinkOptions::default() });
    let (agent, _inbox) = start(one, Options::agent(|_| true));
    for n in 0..100 {
        agent.notify_now("n", &json!({"n": n})).unwrap();
    }
    assert!(timeout(NEVER, agent.finish()).await.is_err(), "nobody reads");
    let reader = tokio::spawn(async move {
        let mut count = 0;
        while link.receiver.recv().await.is_some() {
            count += 1;
        }
        count
    });
    agent.finish().await;
    assert_eq!(reader.await.unwrap(), 100);
}
