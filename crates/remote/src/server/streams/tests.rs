//! Event streams: each message goes to the right stream, and none is lost, doubled or out of order after a
//! cut.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::Value;

use super::super::HttpLimits;
use super::super::replay_memory::ReplayMemory;
use super::*;
use crate::identity::{Identity, Proof};

const KEEP: Keep = Keep { bytes: 400, time: Duration::from_secs(300) };

fn unlimited(keep: Keep) -> Streams {
    Streams::new(keep, memory(usize::MAX).share(&Identity::new(Proof::Token, "a")))
}

fn memory(bytes: usize) -> Arc<ReplayMemory> {
    let limits =
        HttpLimits { replay_memory: bytes, replay_memory_per_identity: bytes, ..HttpLimits::default() };
    ReplayMemory::new(&limits)
}

fn update(session: &str, number: usize) -> String {
    json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "number": number}})
        .to_string()
}

fn answer(id: usize, session: Option<&str>) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": {"sessionId": session}}).to_string()
}

fn refusal(id: usize) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": 1, "message": "no"}})
}

fn add_request(streams: &mut Streams, id: usize, session: Option<&str>) {
    streams
        .record_request(id.to_string().as_bytes(), ResponseTarget::Stream(session.map(str::to_owned)))
        .unwrap();
}

/// Reads all available events: numbers and messages.
fn read(streams: &mut Streams, session: Option<&str>, reader: u64) -> Vec<(Option<u64>, Value)> {
    let mut events = Vec::new();
    while let Next::Events(bytes) = streams.next(session, reader, Instant::now(), Waker::noop()) {
        events.extend(parse(&bytes));
    }
    events
}

fn parse(bytes: &[u8]) -> Vec<(Option<u64>, Value)> {
    let text = std::str::from_utf8(bytes).unwrap();
    let event = |event: &str| {
        let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
        (field("id: ").map(|id| id.parse().unwrap()), serde_json::from_str(field("data: ").unwrap()).unwrap())
    };
    text.split_terminator("\n\n").map(event).collect()
}

/// A page opens the stream of its session during the turn, and no longer reads that of the connection.
#[test]
fn the_response_to_a_prompt_follows_its_updates_on_a_stream_opened_later() {
    let mut streams = unlimited(KEEP);
    let (connection, _) = streams.open(None, None).unwrap();
    add_request(&mut streams, 1, None);
    streams.deliver(answer(1, Some("a")).as_bytes(), Instant::now());
    read(&mut streams, None, connection);
    for updates in [0, 1] {
        let id = 2 + updates;
        streams.record_request(id.to_string().as_bytes(), ResponseTarget::Turn("a".to_owned())).unwrap();
        (0..updates).for_each(|number| streams.deliver(update("a", number).as_bytes(), Instant::now()));
        streams.deliver(answer(id, None).as_bytes(), Instant::now());
    }
    assert_eq!(read(&mut streams, None, connection), []);
    let (session, _) = streams.open(Some("a"), None).unwrap();
    let ids: Vec<Value> =
        read(&mut streams, Some("a"), session).into_iter().map(|(_, line)| line["id"].clone()).collect();
    assert_eq!(ids, [json!(2), Value::Null, json!(3)]);
}

/// An agent that does not know the session answers the prompt. The answer goes to the stream that the client
/// reads.
#[test]
fn a_refused_prompt_of_an_unknown_session_is_answered_on_the_connection() {
    let mut streams = unlimited(KEEP);
    streams.record_request(b"1", ResponseTarget::Turn("a".to_owned())).unwrap();
    streams.deliver(refusal(1).to_string().as_bytes(), Instant::now());
    let (connection, _) = streams.open(None, None).unwrap();
    assert_eq!(read(&mut streams, None, connection).len(), 1);
}

/// Returns the streams on which `line` arrives, of the connection and of two sessions; the stream of "a" has a reader.
#[track_caller]
fn check(line: &str, expected: &str) {
    let mut streams = unlimited(KEEP);
    add_request(&mut streams, 1, None);
    add_request(&mut streams, 2, Some("a"));
    add_request(&mut streams, 3, Some("b"));
    streams.open(Some("a"), None).unwrap();
    streams.deliver(line.as_bytes(), Instant::now());
    let mut found = Vec::new();
    for session in [None, Some("a"), Some("b"), Some("c")] {
        streams.connection.reader = None;
        streams.sessions.values_mut().for_each(|stream| stream.reader = None);
        let (reader, _) = streams.open(session, None).unwrap();
        if let Next::Events(_) = streams.next(session, reader, Instant::now(), Waker::noop()) {
            found.push(session.unwrap_or("connection"));
        }
    }
    assert_eq!(found, [expected], "{line}");
}

#[test]
fn each_message_goes_to_its_stream() {
    check(&update("a", 1), "a");
    check(&update("b", 1), "b");
    check(
        r#"{"jsonrpc":"2.0","id":9,"method":"session/request_permission","params":{"sessionId":"b"}}"#,
        "b",
    );
    check(r#"{"jsonrpc":"2.0","id":9,"method":"mcp/message","params":{}}"#, "connection");
    check(r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}"#, "connection");
    check(&answer(1, Some("b")), "connection");
    check(&answer(2, None), "a");
    // The stream of the session was never opened, so the client would not look for a response there.
    check(&answer(3, None), "connection");
    check(r#"{"jsonrpc":"2.0","id":2,"error":{"code":1,"message":"no"}}"#, "a");
    check(&answer(77, Some("a")), "connection");
    // A pending response may name the session. If no response is pending, the client cannot know that it has
    // to open this stream.
    check(&update("c", 1), "c");
    check("[]", "connection");
    check("nonsense", "connection");
}

/// The messages of a child session and the streams on which they arrive.
#[test]
fn messages_of_a_child_session_go_to_the_stream_of_the_topmost_session() {
    let announce = |session: &str, child: &str| {
        let update = json!({"sessionUpdate": "subagent_update", "sessionId": child});
        let params = json!({"sessionId": session, "update": update});
        json!({"jsonrpc": "2.0", "method": "session/update", "params": params}).to_string()
    };
    let mut streams = unlimited(Keep { bytes: 4000, ..KEEP });
    let mut readers = Vec::new();
    for session in [None, Some("a"), Some("mine")] {
        readers.push((session, streams.open(session, None).unwrap().0));
    }
    let mut said = |line: &str| streams.deliver(line.as_bytes(), Instant::now());
    said(&update("kid", 0));
    said(&announce("a", "kid"));
    said(&update("kid", 1));
    said(&announce("kid", "grandkid"));
    said(&update("grandkid", 2));
    said(r#"{"jsonrpc":"2.0","id":9,"method":"session/request_permission","params":{"sessionId":"kid"}}"#);
    said(&announce("a", "mine"));
    said(&update("mine", 3));
    said(&announce("kid", "a"));
    said(&announce("a", "a"));
    said(&update("a", 4));
    readers.push((Some("kid"), streams.open(Some("kid"), None).unwrap().0));
    streams.deliver(update("kid", 5).as_bytes(), Instant::now());
    let mut found = String::new();
    for (session, reader) in readers {
        let events = read(&mut streams, session, reader);
        let of = |(_, message): &(_, Value)| format!(" {}", message["params"]["sessionId"].as_str().unwrap());
        found += &format!("{}:{}\n", session.unwrap_or("-"), events.iter().map(of).collect::<String>());
    }
    assert_eq!(found, "-: kid\na: a kid kid grandkid kid a kid a a kid\nmine: mine\nkid:\n");
}

#[test]
fn events_are_one_line_each() {
    let mut streams = unlimited(KEEP);
    let (reader, first) = streams.open(None, None).unwrap();
    assert_eq!(first, None);
    streams.deliver(b"{\"jsonrpc\":\"2.0\",\r\"method\":\"x\"\r}", Instant::now());
    streams.deliver(br#"{"jsonrpc":"2.0","method":"y","params":{"text":"a\nb\r"}}"#, Instant::now());
    let Next::Events(events) = streams.next(None, reader, Instant::now(), Waker::noop()) else {
        panic!("two events")
    };
    let expected = "id: 1\ndata: {\"jsonrpc\":\"2.0\", \"method\":\"x\" }\n\nid: 2\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"y\",\"params\":{\"text\":\"a\\nb\\r\"}}\n\n";
    assert_eq!(events, expected);
    assert_eq!(streams.next(None, reader, Instant::now(), Waker::noop()), Next::Wait);
    streams.end();
    assert_eq!(streams.next(None, reader, Instant::now(), Waker::noop()), Next::Ended);
}

#[test]
fn a_stream_has_one_reader_and_a_returning_reader_wins() {
    let mut streams = unlimited(KEEP);
    let (first, _) = streams.open(None, None).unwrap();
    assert_eq!(streams.open(None, None), Err(OpenFault::Taken));
    let (second, _) = streams.open(None, Some(0)).unwrap();
    assert_eq!(streams.next(None, first, Instant::now(), Waker::noop()), Next::Replaced);
    streams.close(None, first);
    assert_eq!(streams.open(None, None), Err(OpenFault::Taken), "the second reader still has the stream");
    streams.close(None, second);
    assert!(streams.open(None, None).is_ok());
}

#[test]
fn streams_of_unconfirmed_sessions_are_limited() {
    let mut streams = unlimited(KEEP);
    for number in 0..MAX_UNCONFIRMED {
        assert!(streams.open(Some(&number.to_string()), None).is_ok());
    }
    assert_eq!(streams.open(Some("more"), None), Err(OpenFault::Unknown));
    // A session that an agent mentions in any way is confirmed.
    streams.deliver(update("0", 1).as_bytes(), Instant::now());
    assert!(streams.open(Some("more"), None).is_ok());
    add_request(&mut streams, 1, Some("1"));
    streams.deliver(answer(1, None).as_bytes(), Instant::now());
    assert!(streams.open(Some("still more"), None).is_ok());
    add_request(&mut streams, 2, Some("2"));
    streams.deliver(br#"{"jsonrpc":"2.0","id":2,"error":{"code":1,"message":"no"}}"#, Instant::now());
    assert_eq!(streams.open(Some("too many"), None), Err(OpenFault::Unknown));
    add_request(&mut streams, 3, None);
    streams.deliver(answer(3, Some("new")).as_bytes(), Instant::now());
    assert!(streams.open(Some("new"), None).is_ok());
}

#[test]
fn an_unconfirmed_session_without_a_reader_is_removed() {
    let mut streams = unlimited(KEEP);
    for number in 0..3 * MAX_UNCONFIRMED {
        let session = number.to_string();
        let (reader, _) = streams.open(Some(&session), None).unwrap();
        add_request(&mut streams, number, Some(&session));
        streams.deliver(refusal(number).to_string().as_bytes(), Instant::now());
        assert_eq!(read(&mut streams, Some(&session), reader), [(Some(1), refusal(number))]);
        streams.close(Some(&session), reader);
    }
    assert_eq!(streams.sessions.len(), MAX_UNCONFIRMED);
    // A client that returns to an existing stream continues it.
    let last = (3 * MAX_UNCONFIRMED - 1).to_string();
    assert!(streams.open(Some(&last), Some(1)).is_ok());
    // A stream with unread messages is not removed to make room.
    let mut streams = unlimited(KEEP);
    for number in 0..MAX_UNCONFIRMED {
        let session = number.to_string();
        let (reader, _) = streams.open(Some(&session), None).unwrap();
        add_request(&mut streams, number, Some(&session));
        streams.close(Some(&session), reader);
        streams.deliver(refusal(number).to_string().as_bytes(), Instant::now());
    }
    assert_eq!(streams.open(Some("more"), None), Err(OpenFault::Unknown));
}

#[test]
fn everything_is_bounded() {
    let mut streams = unlimited(KEEP);
    add_request(&mut streams, MAX_PENDING, None);
    for number in 0..3 * MAX_STREAMS {
        streams.deliver(update(&number.to_string(), 1).as_bytes(), Instant::now());
    }
    assert_eq!(streams.sessions.len(), MAX_STREAMS);
    assert!(streams.connection.ring.bytes() <= 3 * KEEP.bytes);
    for number in 1..MAX_PENDING {
        add_request(&mut streams, number, None);
    }
    assert_eq!(streams.record_request(b"more", ResponseTarget::Stream(None)), Err(TooMany));
}

#[test]
fn a_late_reader_receives_a_gap_event() {
    let mut streams = unlimited(KEEP);
    add_request(&mut streams, 1, None);
    for number in 1..=100 {
        streams.deliver(update("a", number).as_bytes(), Instant::now());
    }
    assert!(streams.sessions["a"].ring.bytes() <= 3 * KEEP.bytes);
    assert!(!streams.is_full(), "without a reader there is no backpressure");
    assert_eq!(streams.open(Some("a"), Some(50)), Err(OpenFault::Gap), "the cursor is too high");
    let (reader, first) = streams.open(Some("a"), None).unwrap();
    let first = parse(&first.unwrap());
    assert_eq!(first[0].0, None);
    assert_eq!(first[0].1["method"], "_narrows/cursor_gap");
    let missing = first[0].1["params"]["missing"].as_u64().unwrap();
    let events = read(&mut streams, Some("a"), reader);
    assert_eq!(events.first().unwrap().0, Some(missing + 1));
    assert_eq!(events.last().unwrap().0, Some(100));
    assert_eq!(events.len() as u64, 100 - missing);
    streams.close(Some("a"), reader);
    assert_eq!(streams.open(Some("a"), Some(1)), Err(OpenFault::Gap));
    assert_eq!(streams.open(Some("a"), Some(101)), Err(OpenFault::Gap));
}

fn long(session: &str) -> String {
    json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "x": "x".repeat(10 << 10)}})
        .to_string()
}

#[test]
fn over_the_memory_limit_old_messages_are_dropped_and_a_reader_slows_the_agent() {
    let now = Instant::now();
    let keep = Keep { bytes: 4 << 20, ..KEEP };
    let all = memory(100 << 10);
    let mut one = Streams::new(keep, all.share(&Identity::new(Proof::Token, "a")));
    let mut other = Streams::new(keep, all.share(&Identity::new(Proof::Token, "a")));
    let most = (100 << 10) + (32 << 10);
    let kept = |streams: &Streams| streams.streams().map(|stream| stream.ring.bytes()).sum::<usize>();
    // No client reads: the oldest messages of all streams are dropped.
    for streams in [&mut one, &mut other] {
        add_request(streams, 1, None);
        for number in 0..100 {
            streams.deliver(long(["a", "b"][number % 2]).as_bytes(), now);
            streams.limit_memory(now);
        }
    }
    assert!(kept(&one) + kept(&other) <= most, "{} {}", kept(&one), kept(&other));
    assert!(!one.is_full() && !other.is_full());
    // A reader gets the rest and all new messages; none is dropped before it is read.
    let (reader, first) = other.open(Some("b"), None).unwrap();
    assert!(first.is_some());
    while !other.is_full() {
        other.deliver(long("b").as_bytes(), now);
        other.limit_memory(now);
    }
    let events = read(&mut other, Some("b"), reader);
    let numbers: Vec<u64> = events.iter().map(|(number, _)| number.unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
    other.limit_memory(now);
    assert!(!other.is_full());
    // A reader that does not read is removed, and its unread messages are dropped.
    while !other.is_full() {
        other.deliver(long("b").as_bytes(), now);
        other.limit_memory(now);
    }
    other.drop_slow(now);
    assert!(!other.is_read() && kept(&one) + kept(&other) <= most);
    // The freed memory is available to the other connection.
    drop(one);
    for _ in 0..5 {
        other.deliver(long("b").as_bytes(), now);
        other.limit_memory(now);
    }
    assert!(kept(&other) > 50 << 10, "{}", kept(&other));
}

#[test]
fn a_slow_reader_slows_the_agent_and_is_removed_in_the_end() {
    let mut streams = unlimited(KEEP);
    let (reader, _) = streams.open(Some("a"), None).unwrap();
    let mut number = 0;
    while !streams.is_full() {
        number += 1;
        streams.deliver(update("a", number).as_bytes(), Instant::now());
    }
    assert!(read(&mut streams, Some("a"), reader).len() == number && !streams.is_full());
    while !streams.is_full() {
        streams.deliver(update("a", number).as_bytes(), Instant::now());
    }
    streams.drop_slow(Instant::now());
    assert!(!streams.is_full() && !streams.is_read());
    assert_eq!(streams.next(Some("a"), reader, Instant::now(), Waker::noop()), Next::Replaced);
}

/// An event in the life of a client that reads one session.
#[derive(Clone, Debug)]
enum Step {
    Said(usize),
    Read,
    /// The socket is lost; this many of the events read last did not arrive.
    Cut(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step =
        prop_oneof![(1_usize..4).prop_map(Step::Said), Just(Step::Read), (0_usize..4).prop_map(Step::Cut)];
    prop::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn nothing_is_lost_doubled_or_out_of_order_without_a_gap_event(steps in steps()) {
        let mut streams = unlimited(KEEP);
        let (mut reader, _) = streams.open(Some("a"), None).unwrap();
        let mut said = 0;
        let mut got: Vec<u64> = Vec::new();
        let (mut last, mut sure) = (0, 0);
        let finally = [Step::Read, Step::Cut(0), Step::Read];
        for step in steps.into_iter().chain(finally) {
            match step {
                Step::Said(count) => for _ in 0..count {
                    said += 1;
                    streams.deliver(update("a", said).as_bytes(), Instant::now());
                },
                Step::Read => for (id, message) in read(&mut streams, Some("a"), reader) {
                    last = id.unwrap();
                    prop_assert_eq!(message["params"]["number"].as_u64(), id);
                    got.push(last);
                },
                Step::Cut(lost) => {
                    // Everything up to the cursor has arrived at the client.
                    got.truncate(got.len().saturating_sub(lost).max(sure));
                    sure = got.len();
                    let cursor = got.last().copied().unwrap_or(0);
                    match streams.open(Some("a"), Some(cursor)) {
                        Ok((newest, first)) => {
                            prop_assert_eq!(first, None);
                            reader = newest;
                        }
                        Err(fault) => {
                            // A gap may be reported only if more is missing than is kept.
                            prop_assert_eq!(fault, OpenFault::Gap);
                            let missing: usize = (cursor + 1..=last).map(|number| update("a", number as usize).len() + 1).sum();
                            prop_assert!(missing + 100 > KEEP.bytes, "{}", missing);
                            return Ok(());
                        }
                    }
                }
            }
        }
        prop_assert_eq!(got, (1..=said as u64).collect::<Vec<_>>());
    }
}

#[test]
fn the_names_of_pending_requests_count_as_memory() {
    let all = memory(1 << 20);
    let identity = Identity::new(Proof::Token, "a");
    let mut connections = [(); 3].map(|()| Streams::new(KEEP, all.share(&identity)));
    let long = |number: usize| format!("{number:04000}");
    let mut accepted = 0;
    for streams in &mut connections {
        accepted += (0..1000)
            .take_while(|number| {
                let target = ResponseTarget::Turn(long(*number));
                streams.record_request(number.to_string().as_bytes(), target).is_ok()
            })
            .count();
    }
    assert!((250..300).contains(&accepted), "{accepted}");
    // Requests with short ids are still accepted on every connection. Memory is free again after the
    // responses.
    let [first, _, last] = &mut connections;
    add_request(last, 9999, Some("s"));
    for number in 0..200 {
        first.deliver(refusal(number).to_string().as_bytes(), Instant::now());
    }
    first.limit_memory(Instant::now());
    assert!(last.record_request(b"x", ResponseTarget::Turn(long(1))).is_ok());
    first.end();
    assert_eq!(first.pending_bytes, 0);
}

#[test]
fn a_session_with_an_overlong_id_has_no_stream() {
    let mut streams = unlimited(Keep { bytes: 1 << 20, ..KEEP });
    let long = "x".repeat(MAX_SESSION_BYTES + 1);
    assert_eq!(streams.open(Some(&long), None).err(), Some(OpenFault::Unknown));
    add_request(&mut streams, 1, Some(&long));
    assert_eq!(streams.pending_bytes, 1);
    streams.deliver(answer(1, Some(&long)).as_bytes(), Instant::now());
    streams.deliver(update(&long, 1).as_bytes(), Instant::now());
    assert!(streams.sessions.is_empty());
    let (reader, _) = streams.open(None, None).unwrap();
    assert_eq!(read(&mut streams, None, reader).len(), 2, "on the stream of the connection");
}
