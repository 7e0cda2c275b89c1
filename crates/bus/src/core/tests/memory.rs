//! Memory held for clients: limited in bytes, per identity and in total.

use insta::assert_snapshot;

use super::identities::authenticating;
use super::*;

const PART: usize = 100 << 10;

/// Returns a bus with one shared worker and little memory: 1 MiB in all, and a quarter of that for each
/// identity.
fn bus() -> TestBus {
    let mut settings = authenticating(vec![Pool { mix_identities: true, ..pool(ShareMode::All) }]);
    settings.limits.queue_bytes = 1_000;
    settings.limits.unfinished_input = 1 << 20;
    settings.limits.unfinished_input_per_identity = 256 << 10;
    let mut bus = TestBus::new(&settings);
    bus.up(0);
    bus.answer(0, 1, &able());
    bus.seen();
    bus
}

impl TestBus {
    /// Sends `count` long prompts, each from a client of its own. Returns how many reach the worker.
    fn prompts(&mut self, identity: &str, count: usize) -> usize {
        let mut reached = 0;
        for number in 0..count {
            let client = self.open_as(identity);
            let name = format!("{identity}-{client}");
            self.session(client, 0, &name);
            let text = json!([{"type": "text", "text": "x".repeat(PART)}]);
            self.request(client, 1, "session/prompt", &json!({"sessionId": name, "prompt": text}));
            let seen = self.seen();
            assert_ne!(seen.contains("w0 < "), seen.contains("-32012"), "{number}");
            reached += usize::from(seen.contains("w0 < "));
        }
        reached
    }
}

#[test]
fn messages_that_a_worker_does_not_read_are_bounded_for_each_identity_and_for_all() {
    let mut bus = bus();
    assert_eq!(bus.prompts("token:one", 5), 2);
    assert_eq!(bus.prompts(ANYONE, 5), 2, "another identity has room");
    for other in 0..5 {
        bus.prompts(&format!("token:{other}"), 5);
    }
    let held = bus.core.memory.held(super::super::identity::Identity::ANYONE).0;
    assert!(held <= 1 << 20, "{held}");
    bus.core.worker_drained(bus.now, WorkerId(0), &mut bus.output);
    assert_eq!(bus.prompts("token:one", 5), 2, "there is room again once the worker has read");
    bus.kill_worker(0);
    let held = bus.core.memory.held(super::super::identity::Identity::ANYONE).0;
    assert_eq!(held, 0, "bytes queued for a lost worker are released");
}

#[test]
fn unanswered_requests_to_open_a_session_are_bounded_in_bytes() {
    let mut bus = bus();
    let one = bus.open_as("token:one");
    for id in 0..20 {
        bus.request(one, id, "session/new", &json!({"cwd": "/", "_meta": {"narrows": "x".repeat(PART)}}));
        // The worker reads, but does not respond.
        bus.core.worker_drained(bus.now, WorkerId(0), &mut bus.output);
    }
    let seen = bus.seen();
    assert_eq!((seen.matches("w0 < ").count(), seen.matches("-32012").count()), (2, 18));
    bus.output.waiting.clear();
    bus.answer(0, 2, &json!({"sessionId": "a"}));
    bus.answer(0, 3, &json!({"sessionId": "b"}));
    bus.seen();
    bus.request(one, 30, "session/new", &json!({"cwd": "/", "_meta": {"narrows": "x".repeat(PART)}}));
    assert!(bus.seen().contains("w0 < "));
}

#[test]
fn copies_of_permission_requests_are_bounded_in_bytes() {
    let mut bus = bus();
    bus.core.limits.queue_bytes = 1 << 30;
    let (one, two) = (bus.open_as("token:one"), bus.open_as("token:one"));
    bus.session(one, 0, "a");
    bus.request(two, 1, "session/resume", &json!({"sessionId": "a"}));
    bus.seen();
    for id in 0..10 {
        let params = json!({"sessionId": "a", "options": [], "toolCall": {"title": "x".repeat(PART)}});
        let line =
            json!({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": params});
        bus.worker_sends(0, &line.to_string());
    }
    let seen = bus.seen();
    assert_eq!((seen.matches("c0 < ").count(), seen.matches("c1 < ").count()), (10, 2));
}

#[test]
fn a_long_initialize_is_refused_and_long_ids_are_bounded() {
    let mut bus = bus();
    let one = bus.open_as("token:one");
    bus.request(one, 1, "initialize", &json!({"protocolVersion": 1, "_meta": "x".repeat(65 << 10)}));
    assert!(bus.seen().contains("-32013"));
    bus.core.limits.queue_bytes = 1 << 30;
    for number in 0..1_030 {
        let id = format!("{number}-{}", "x".repeat(300));
        let line = json!({"jsonrpc": "2.0", "id": id, "method": "session/new", "params": {"cwd": "/"}});
        bus.line(one, &line.to_string());
    }
    assert!(bus.seen().contains("-32012"));
}

#[test]
fn clients_without_an_identity_are_refused_sessions_first_when_memory_is_short() {
    let mut bus = bus();
    let (anyone, one) = (bus.open_as(ANYONE), bus.open_as("token:one"));
    bus.core.set_anonymous_pressure(true);
    bus.request(anyone, 1, "session/new", &json!({"cwd": "/"}));
    assert!(bus.seen().contains("-32012"));
    bus.request(one, 1, "session/new", &json!({"cwd": "/"}));
    assert!(bus.seen().starts_with("w0 < "));
    bus.core.set_pressure(true);
    bus.request(one, 2, "session/new", &json!({"cwd": "/"}));
    assert!(bus.seen().contains("-32012"));
}

/// Returns the bytes of the params that are kept for all sessions.
fn kept_params(bus: &TestBus) -> usize {
    bus.core.sessions.iter().map(|(_, session)| session.params.len()).sum()
}

#[test]
fn when_memory_is_short_open_sessions_are_neither_loaded_again_nor_forked() {
    let mut bus = bus();
    bus.core.limits.queue_bytes = 1 << 30;
    let one = bus.open_as("token:one");
    bus.session(one, 0, "a");
    bus.core.set_pressure(true);
    for (id, method) in [(1, "session/load"), (2, "session/resume"), (3, "session/fork")] {
        bus.request(one, id, method, &json!({"sessionId": "a", "cwd": "/"}));
        let seen = bus.seen();
        assert!(seen.contains("-32012") && !seen.contains("w0 < "), "{method}: {seen}");
    }
    bus.request(one, 4, "session/prompt", &prompt("a"));
    assert!(bus.seen().starts_with("w0 < "), "open sessions continue");
}

#[test]
fn params_that_are_kept_to_restore_sessions_are_bounded_by_the_memory_budget() {
    for method in ["session/load", "session/fork"] {
        let mut bus = bus();
        bus.core.limits.queue_bytes = 1 << 30;
        bus.core.limits.memory = 4 << 20;
        for identity in 0..5 {
            let client = bus.open_as(&format!("token:{identity}"));
            for number in 0..4 {
                let name = format!("{identity}-{number}");
                bus.session(client, 0, &name);
                let params = json!({"sessionId": name, "cwd": "/", "junk": "x".repeat(PART)});
                bus.request(client, 1, method, &params);
                let id = bus.last_id(0);
                bus.answer(0, id, &json!({"sessionId": format!("{name}-fork")}));
                bus.seen();
            }
        }
        assert!(kept_params(&bus) <= 512 << 10, "{method}: {}", kept_params(&bus));
        assert!(kept_params(&bus) > 256 << 10, "{method}: {}", kept_params(&bus));
    }
}

#[test]
fn kept_params_of_one_identity_leave_room_for_those_of_others() {
    let mut bus = bus();
    bus.core.limits.queue_bytes = 1 << 30;
    bus.core.limits.memory = 4 << 20;
    let (one, two) = (bus.open_as("token:one"), bus.open_as("token:two"));
    for number in 0..6 {
        bus.request(one, 1, "session/new", &json!({"cwd": "/", "junk": "x".repeat(PART)}));
        let id = bus.last_id(0);
        bus.answer(0, id, &json!({"sessionId": format!("one-{number}")}));
        bus.seen();
    }
    assert!(kept_params(&bus) <= 256 << 10, "{}", kept_params(&bus));
    bus.session(two, 0, "two");
    bus.kill_worker(0);
    bus.advance(1.0);
    bus.up(0);
    bus.answer(0, 1, &able());
    bus.seen();
    bus.request(two, 2, "session/prompt", &prompt("two"));
    assert!(bus.seen().contains(r#""method":"session/resume""#), "the session is restored in the new worker");
    // The params of dropped sessions no longer count.
    for number in 0..6 {
        let key = bus.core.sessions.find(&format!("one-{number}")).unwrap();
        bus.core.sessions.remove(key);
    }
    bus.request(one, 1, "session/new", &json!({"cwd": "/", "junk": "x".repeat(PART)}));
    let id = bus.last_id(0);
    bus.answer(0, id, &json!({"sessionId": "again"}));
    let key = bus.core.sessions.find("again").unwrap();
    assert!(bus.core.sessions.get(key).unwrap().params.len() > PART);
}

#[test]
fn an_unfinished_message_is_refused_for_now_and_an_unfinished_answer_fails_for_the_worker() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "s");
    bus.worker_sends(
        0,
        r#"{"jsonrpc":"2.0","id":"q","method":"fs/read_text_file","params":{"sessionId":"s"}}"#,
    );
    bus.seen();
    for head in [
        r#"{"jsonrpc":"2.0","id":7,"method":"session/prompt","params":{"a":""#,
        r#"{"jsonrpc":"2.0","method":"session/prompt","params":{"a":""#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"content":""#,
        r#"{"jsonrpc":"2.0","id":99,"result":{"content":""#,
    ] {
        bus.core.refuse_unfinished(bus.now, ClientId(client), head.as_bytes(), &mut bus.output);
    }
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":7,"error":{"code":-32012,"message":"too many bytes of incomplete messages","data":{"condition":"backpressure","retryable":true,"effects":"none","retryAfterMs":1000}}}
    c0 < {"jsonrpc":"2.0","id":null,"error":{"code":-32012,"message":"too many bytes of incomplete messages","data":{"condition":"backpressure","retryable":true,"effects":"none","retryAfterMs":1000}}}
    w0 < {"jsonrpc":"2.0","id":"q","error":{"code":-32012,"message":"too many bytes of incomplete messages","data":{"condition":"backpressure","retryable":true,"effects":"none","retryAfterMs":1000}}}
    "#);
}
