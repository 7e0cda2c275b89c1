//! Event streams that are cut at every event.

use serde_json::json;

use super::super::HttpLimits;
use super::kit::{EVENTS, JSON, Stream, ask, connect, expect_disconnects, listener, start};

const COUNT: u64 = 40;

async fn prompt(address: std::net::SocketAddr, connection: &str, id: u64) {
    let message = json!({"jsonrpc": "2.0", "id": id, "method": "session/prompt", "params": {"sessionId": "s", "count": COUNT}});
    let posted = ask(address, "POST", &[JSON, ("acp-connection-id", connection)], &message.to_string()).await;
    assert_eq!(posted.status, 202);
}

/// Checks that there is an event and that it has this number.
#[track_caller]
fn check(event: Option<(Option<u64>, serde_json::Value)>, number: u64) {
    let (id, message) = event.expect("another event");
    assert_eq!(id, Some(number));
    match number {
        ..=COUNT => assert_eq!(message["params"]["update"]["number"], number),
        _ => assert_eq!(message["id"], 1),
    }
}

#[tokio::test]
async fn a_stream_that_is_cut_at_any_event_resumes_after_it() {
    let running = start(listener(), HttpLimits::default());
    let at = running.address;
    for cut in 0..=COUNT + 1 {
        let connection = connect(at).await;
        let mut stream = Stream::open(at, &connection, Some("s"), None).await;
        prompt(at, &connection, 1).await;
        for number in 1..=cut {
            check(stream.next().await, number);
        }
        // The old socket is still open when the new one arrives: the newest reader wins.
        let mut next = Stream::open(at, &connection, Some("s"), Some(cut)).await;
        for number in cut + 1..=COUNT + 1 {
            check(next.next().await, number);
        }
        drop(stream);
        // The stream is opened once more, to check that events without an acknowledgment are still kept.
        let mut again = Stream::open(at, &connection, Some("s"), Some(cut)).await;
        for number in cut + 1..=COUNT + 1 {
            check(again.next().await, number);
        }
        assert_eq!(ask(at, "DELETE", &[("acp-connection-id", &connection)], "").await.status, 202);
        assert_eq!(again.next().await, None);
    }
    // Each stream was cut twice and resumed twice.
    let times = 2 * (COUNT + 2);
    expect_disconnects(&running, [times, times, 0, 0]).await;
}

#[tokio::test]
async fn messages_that_are_no_longer_kept_are_reported_as_a_gap() {
    let running = start(listener(), HttpLimits { replay_bytes: 1000, ..HttpLimits::default() });
    let at = running.address;
    let connection = connect(at).await;
    let mut stream = Stream::open(at, &connection, Some("s"), None).await;
    prompt(at, &connection, 1).await;
    for number in 1..=COUNT + 1 {
        check(stream.next().await, number);
    }
    let headers =
        [EVENTS, ("acp-connection-id", &*connection), ("acp-session-id", "s"), ("last-event-id", "1")];
    let gap = ask(at, "GET", &headers, "").await;
    assert_eq!((gap.status, &gap.json()["error"]["data"]["condition"]), (410, &json!("cursor_gap")));
    let mut rest = Stream::open(at, &connection, Some("s"), Some(COUNT)).await;
    check(rest.next().await, COUNT + 1);
    // This session has events that its client does not read in time.
    let message = json!({"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": {"sessionId": "t", "count": 500}});
    let behind = json!({"jsonrpc": "2.0", "id": 3, "method": "session/list", "params": {}});
    for message in [message, behind] {
        ask(at, "POST", &[JSON, ("acp-connection-id", &connection)], &message.to_string()).await;
    }
    let mut own = Stream::open(at, &connection, None, None).await;
    assert_eq!(own.next().await.unwrap().1["id"], 3, "the turn is complete");
    let mut late = Stream::open(at, &connection, Some("t"), None).await;
    let (id, notice) = late.next().await.unwrap();
    assert_eq!(
        (id, &notice["method"], &notice["params"]["sessionId"]),
        (None, &json!("_narrows/cursor_gap"), &json!("t"))
    );
    let missing = notice["params"]["missing"].as_u64().unwrap();
    for number in missing + 1..=500 {
        let (id, update) = late.next().await.unwrap();
        assert_eq!((id, &update["params"]["update"]["number"]), (Some(number), &json!(number)));
    }
    assert_eq!(late.next().await.unwrap().1["id"], 2);
}

#[tokio::test]
async fn a_regular_end_does_not_count_as_broken() {
    let running = start(listener(), HttpLimits::default());
    let at = running.address;
    let connection = connect(at).await;
    let (own, session) = (
        Stream::open(at, &connection, None, None).await,
        Stream::open(at, &connection, Some("s"), None).await,
    );
    // Real clients close the streams first and then the connection.
    drop((own, session));
    assert_eq!(ask(at, "DELETE", &[("acp-connection-id", &connection)], "").await.status, 202);
    // This client returns after a cut. The cut is counted once that is known.
    let connection = connect(at).await;
    drop(Stream::open(at, &connection, Some("s"), None).await);
    let _again = Stream::open(at, &connection, Some("s"), Some(0)).await;
    expect_disconnects(&running, [1, 1, 0, 0]).await;
}
