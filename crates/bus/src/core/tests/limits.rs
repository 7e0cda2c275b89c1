//! Limits of what one identity may have.

use super::identities::asking;
use super::*;

#[test]
fn an_identity_has_so_many_connections_and_sessions() {
    let limits =
        Limits { max_connections_per_identity: 2, max_sessions_per_identity: 1, ..Limits::default() };
    let mut scene = Scene::new(&Config { limits, ..asking(vec![pool(Share::All)]) });
    scene.up(0);
    scene.answer(0, 1, &able());
    let one = scene.open_as("token:one");
    let two = scene.open_as("token:one");
    assert_eq!(scene.try_open("token:one"), None);
    assert!(scene.try_open("token:two").is_some());
    scene.leaves(two);
    let two = scene.open_as("token:one");
    scene.seen();
    scene.session(one, 0, "a");
    scene.ask(two, 1, "session/new", &json!({}));
    scene.ask(two, 2, "session/load", &json!({"sessionId": "b"}));
    let seen = scene.seen();
    assert_eq!(seen.matches("has too many sessions").count(), 2, "{seen}");
    let status = scene.core.status(scene.now);
    let one = &status.identities["token:one"];
    assert_eq!((one.clients, one.sessions, one.refused), (2, 1, 3));
    assert_eq!(status.listeners, [3]);
}

#[test]
fn whoever_sends_too_much_is_read_more_slowly() {
    let limits = Limits { max_rate_per_identity: 10, ..Limits::default() };
    let mut scene = Scene::new(&Config { limits, ..asking(vec![pool(Share::All)]) });
    scene.up(0);
    scene.answer(0, 1, &able());
    let (one, two) = (scene.open_as("token:one"), scene.open_as("token:one"));
    let other = scene.open_as("token:two");
    scene.seen();
    for _ in 0..11 {
        scene.note(one, "x", &json!({}));
    }
    scene.note(two, "x", &json!({}));
    scene.note(other, "x", &json!({}));
    let seen = scene.seen();
    let paused: Vec<_> = seen.lines().filter(|line| line.starts_with("Pause")).collect();
    assert_eq!(paused, ["PauseClient(ClientId(0))", "PauseClient(ClientId(1))"]);
    scene.pass(0.3);
    assert_eq!(scene.seen(), "ResumeClient(ClientId(0))\nResumeClient(ClientId(1))");
    // One that goes while it rests is not woken.
    for _ in 0..20 {
        scene.note(one, "x", &json!({}));
    }
    scene.leaves(one);
    scene.seen();
    scene.pass(9.0);
    assert_eq!(scene.seen(), "");
}

#[test]
fn each_entry_of_an_array_counts_for_the_rate() {
    let limits = Limits { max_rate_per_identity: 10, ..Limits::default() };
    let mut scene = Scene::new(&Config { limits, ..asking(vec![pool(Share::All)]) });
    scene.up(0);
    scene.answer(0, 1, &able());
    let one = scene.open_as("token:one");
    scene.seen();
    let array =
        |entries| json!(vec![json!({"jsonrpc": "2.0", "method": "x", "params": {}}); entries]).to_string();
    scene.line(one, &array(10));
    assert!(!scene.seen().contains("Pause"));
    scene.pass(1.0);
    scene.seen();
    scene.line(one, &array(30));
    assert!(scene.seen().contains("PauseClient(ClientId(0))"));
    scene.pass(1.9);
    assert!(!scene.seen().contains("Resume"));
    scene.pass(0.2);
    assert!(scene.seen().contains("ResumeClient(ClientId(0))"));
}
