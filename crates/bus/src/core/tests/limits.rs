//! Limits of one identity.

use super::identities::authenticating;
use super::*;

#[test]
fn connections_and_sessions_of_an_identity_are_limited() {
    let limits =
        BusLimits { max_connections_per_identity: 2, max_sessions_per_identity: 1, ..BusLimits::default() };
    let mut bus = TestBus::new(&Config { limits, ..authenticating(vec![pool(ShareMode::All)]) });
    bus.up(0);
    bus.answer(0, 1, &able());
    let one = bus.open_as("token:one");
    let two = bus.open_as("token:one");
    assert_eq!(bus.try_open("token:one"), None);
    assert!(bus.try_open("token:two").is_some());
    bus.disconnect(two);
    let two = bus.open_as("token:one");
    bus.seen();
    bus.session(one, 0, "a");
    bus.request(two, 1, "session/new", &json!({}));
    bus.request(two, 2, "session/load", &json!({"sessionId": "b"}));
    let seen = bus.seen();
    assert_eq!(seen.matches("session limit of this identity").count(), 2, "{seen}");
    let status = bus.core.status(bus.now);
    let one = &status.identities["token:one"];
    assert_eq!((one.clients, one.sessions, one.refused), (2, 1, 3));
    assert_eq!(status.listeners, [3]);
}

#[test]
fn a_client_over_its_rate_is_read_more_slowly() {
    let limits = BusLimits { max_rate_per_identity: 10, ..BusLimits::default() };
    let mut bus = TestBus::new(&Config { limits, ..authenticating(vec![pool(ShareMode::All)]) });
    bus.up(0);
    bus.answer(0, 1, &able());
    let (one, two) = (bus.open_as("token:one"), bus.open_as("token:one"));
    let other = bus.open_as("token:two");
    bus.seen();
    for _ in 0..11 {
        bus.notify(one, "x", &json!({}));
    }
    bus.notify(two, "x", &json!({}));
    bus.notify(other, "x", &json!({}));
    let seen = bus.seen();
    let paused: Vec<_> = seen.lines().filter(|line| line.starts_with("Pause")).collect();
    assert_eq!(paused, ["PauseClient(ClientId(0))", "PauseClient(ClientId(1))"]);
    bus.advance(0.3);
    assert_eq!(bus.seen(), "ResumeClient(ClientId(0))\nResumeClient(ClientId(1))");
    // A client that disconnects while it is paused is not resumed.
    for _ in 0..20 {
        bus.notify(one, "x", &json!({}));
    }
    bus.disconnect(one);
    bus.seen();
    bus.advance(9.0);
    assert_eq!(bus.seen(), "");
}

#[test]
fn each_entry_of_an_array_counts_for_the_rate() {
    let limits = BusLimits { max_rate_per_identity: 10, ..BusLimits::default() };
    let mut bus = TestBus::new(&Config { limits, ..authenticating(vec![pool(ShareMode::All)]) });
    bus.up(0);
    bus.answer(0, 1, &able());
    let one = bus.open_as("token:one");
    bus.seen();
    let array =
        |entries| json!(vec![json!({"jsonrpc": "2.0", "method": "x", "params": {}}); entries]).to_string();
    bus.line(one, &array(10));
    assert!(!bus.seen().contains("Pause"));
    bus.advance(1.0);
    bus.seen();
    bus.line(one, &array(30));
    assert!(bus.seen().contains("PauseClient(ClientId(0))"));
    bus.advance(1.9);
    assert!(!bus.seen().contains("Resume"));
    bus.advance(0.2);
    assert!(bus.seen().contains("ResumeClient(ClientId(0))"));
}
