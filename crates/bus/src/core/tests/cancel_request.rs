//! Requests that are given up on at every stage, and what need not wait behind others.

use super::*;

/// A client with session `a` in pool `p`, beside a pool `q` of which nobody is up yet.
fn beside() -> (Scene, u32) {
    let slow = Pool { name: "q".into(), ..pool(Share::All) };
    let mut scene = Scene::new(&config(vec![Pool { instances: 1, ..pool(Share::All) }, slow]));
    scene.up(0);
    scene.answer(0, 1, &able());
    let client = scene.open();
    scene.session(client, 0, "a");
    (scene, client)
}

fn new_in(pool: &str) -> Value {
    json!({"cwd": "/", "_meta": {"narrows/pool": pool}})
}

#[test]
fn what_has_its_worker_waits_for_no_other() {
    let (mut scene, client) = beside();
    scene.ask(client, 1, "session/prompt", &prompt("a"));
    scene.ask(client, 2, "session/new", &new_in("q"));
    scene.seen();
    scene.note(client, "session/cancel", &json!({"sessionId": "a"}));
    scene.ask(client, 3, "session/set_mode", &json!({"sessionId": "a", "modeId": "x"}));
    let seen = scene.seen();
    assert!(seen.starts_with(r#"w0 < {"jsonrpc":"2.0","method":"session/cancel""#), "{seen}");
    assert!(seen.contains(r#""method":"session/set_mode""#), "{seen}");
    // But nothing goes before an array, in which there may be something for the same session.
    scene.line(
        client,
        r#"[{"jsonrpc":"2.0","id":4,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}]"#,
    );
    scene.ask(client, 5, "session/set_mode", &json!({"sessionId": "a", "modeId": "y"}));
    assert_eq!(scene.seen(), "");
    scene.note(client, "session/cancel", &json!({"sessionId": "a"}));
    assert!(scene.seen().contains("session/cancel"));
    scene.up(1);
    scene.answer(1, 1, &able());
    let seen = scene.seen();
    let (array, mode) = (seen.find(r#""method":"session/prompt""#), seen.find(r#""modeId":"y""#));
    assert!(array.is_some() && array < mode, "{seen}");
}

#[test]
fn what_waits_for_a_worker_is_given_up_on_at_once() {
    let (mut scene, client) = beside();
    scene.ask(client, 1, "session/new", &new_in("q"));
    scene.ask(client, 2, "session/new", &new_in("q"));
    scene.ask(client, 3, "session/new", &new_in("p"));
    scene.seen();
    let given_up = |id: u64| {
        format!(
            r#"c0 < {{"jsonrpc":"2.0","id":{id},"error":{{"code":-32800,"message":"given up before any agent was asked","data":{{"condition":"cancelled","retryable":false,"effects":"none"}}}}}}"#
        )
    };
    scene.note(client, "$/cancel_request", &json!({"requestId": 2}));
    assert_eq!(scene.seen(), given_up(2));
    // What is behind the first has no need to wait for its pool.
    scene.note(client, "$/cancel_request", &json!({"requestId": 1}));
    let seen = scene.seen();
    let (first, rest) = seen.split_once('\n').unwrap();
    assert_eq!(first, given_up(1));
    assert!(rest.starts_with("w0 < ") && rest.contains("session/new"), "{rest}");
    // One that is nobody's is dropped, then as before.
    scene.note(client, "$/cancel_request", &json!({"requestId": 9}));
    assert_eq!(scene.seen(), "");
}

#[test]
fn a_list_that_is_given_up_on_is_given_up_on_by_all() {
    let mut scene = Scene::shared(2);
    let client = scene.open();
    scene.ask(client, 1, "session/list", &json!({}));
    scene.answer(0, 2, &json!({"sessions": []}));
    scene.seen();
    scene.note(client, "$/cancel_request", &json!({"requestId": 1}));
    let seen = scene.seen();
    let (first, rest) = seen.split_once('\n').unwrap();
    assert_eq!(first, r#"w1 < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":2}}"#);
    assert!(rest.starts_with(r#"c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32800,"#), "{rest}");
    scene.answer(1, 2, &json!({"sessions": []}));
    assert_eq!(scene.seen(), "");
}

#[test]
fn half_a_list_is_none() {
    let lists = |second: &dyn Fn(&mut Scene)| {
        let mut scene = Scene::shared(2);
        let client = scene.open();
        scene.ask(client, 1, "session/list", &json!({}));
        scene.answer(0, 2, &json!({"sessions": [{"sessionId": "x"}]}));
        scene.seen();
        second(&mut scene);
        let seen = scene.seen();
        seen.lines().find_map(|line| line.strip_prefix("c0 < ")).map(str::to_owned).unwrap()
    };
    assert!(lists(&|scene| scene.fail(1, 2, -32603)).contains("-32603"));
    assert!(
        lists(&|scene| scene.said(1, r#"{"jsonrpc":"2.0","id":2,"result":{},"error":{}}"#))
            .contains("-32603")
    );
    let stopped = lists(&|scene| {
        scene.core.limits.drain_timeout = Duration::from_secs(5);
        scene.core.drain(scene.now, &mut scene.sight);
        scene.pass(6.0);
    });
    assert!(stopped.contains("-32016"), "{stopped}");
    // One that cannot list has none.
    assert!(lists(&|scene| scene.fail(1, 2, -32601)).contains(r#"{"sessions":[{"sessionId":"x"}]}"#));
}

#[test]
fn initialize_is_said_once_to_each_worker() {
    for share in [Share::Connection, Share::Session] {
        let mut scene = Scene::new(&config(vec![Pool { instances: 2, ..pool(share) }]));
        scene.up(0);
        scene.up(1);
        let client = scene.open();
        scene.ask(client, 1, "initialize", &json!({"protocolVersion": 1}));
        scene.dies(0);
        scene.seen();
        scene.ask(client, 2, "initialize", &json!({"protocolVersion": 1}));
        scene.answer(1, 1, &able());
        let seen = scene.seen();
        assert_eq!(
            seen.matches(r#"w1 < {"jsonrpc":"2.0","id":1,"method":"initialize""#).count(),
            1,
            "{seen}"
        );
        assert!(seen.contains(r#"c0 < {"jsonrpc":"2.0","id":2,"result""#), "{seen}");
    }
}

#[test]
fn where_nothing_is_known_initialize_is_a_request_like_others() {
    let unknowing = Pool { instances: 1, protocol: Protocol::JsonRpc, ..pool(Share::All) };
    let mut scene = Scene::new(&config(vec![unknowing]));
    scene.up(0);
    let (one, other) = (scene.open(), scene.open());
    scene.ask(one, 1, "initialize", &json!({}));
    scene.ask(other, 1, "work", &json!({}));
    // As are those that elsewhere are about turns.
    scene.ask(other, 2, "session/prompt", &prompt("a"));
    scene.note(other, "session/cancel", &json!({"sessionId": "a"}));
    scene.seen();
    scene.pass(60.0);
    assert_eq!(scene.seen(), "");
}

#[test]
fn a_worker_that_takes_anothers_place_is_told_all_of_the_greeting() {
    let unknowing = Pool { instances: 2, protocol: Protocol::JsonRpc, ..pool(Share::Connection) };
    let mut scene = Scene::new(&config(vec![unknowing]));
    scene.up(0);
    scene.up(1);
    let client = scene.open();
    scene.ask(client, 1, "initialize", &json!({"x": 1}));
    scene.answer(0, 1, &json!({}));
    scene.note(client, "notifications/initialized", &json!({}));
    scene.dies(0);
    scene.seen();
    scene.ask(client, 2, "tools/list", &json!({}));
    scene.answer(1, 1, &json!({}));
    let seen = scene.seen();
    let told: Vec<&str> = seen.lines().filter_map(|line| line.strip_prefix("w1 < ")).collect();
    assert_eq!(
        told,
        [
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"x":1}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}"#,
        ]
    );
}
