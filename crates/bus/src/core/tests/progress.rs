//! Progress of requests whose clients chose the same tokens.

use insta::assert_snapshot;

use super::*;

/// A pool of a protocol that is not known, with one worker that all share.
fn scene() -> Scene {
    let mut scene = Scene::new(&config(vec![Pool { protocol: Protocol::JsonRpc, ..pool(Share::All) }]));
    scene.up(0);
    scene.seen();
    scene
}

fn call(token: &Value) -> Value {
    json!({"name": "tool", "_meta": {"progressToken": token}})
}

fn progress(token: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
    )
}

#[test]
fn tokens_may_collide() {
    let mut scene = scene();
    let (one, two) = (scene.open(), scene.open());
    scene.ask(one, 7, "tools/call", &call(&json!("t")));
    scene.ask(two, 7, "tools/call", &call(&json!("t")));
    scene.ask(two, 8, "tools/call", &json!({"name": "progressToken"}));
    scene.said(0, &progress("2"));
    scene.said(0, &progress("1"));
    scene.answer(0, 1, &json!({}));
    scene.said(0, &progress("2"));
    assert_snapshot!(scene.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"tool","_meta":{"progressToken":1}}}
    w0 < {"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"tool","_meta":{"progressToken":2}}}
    w0 < {"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"progressToken"}}
    c1 < {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1}}
    c0 < {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1}}
    c0 < {"jsonrpc":"2.0","id":7,"result":{}}
    c1 < {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1}}
    "#);
}

#[test]
fn what_is_not_under_way_has_no_progress() {
    let mut scene = scene();
    let (one, two) = (scene.open(), scene.open());
    scene.ask(one, 1, "tools/call", &call(&json!(5)));
    scene.ask(two, 1, "tools/call", &json!({}));
    scene.seen();
    // Another's request without a token, one never made, and the client's own word for it.
    for token in ["2", "3", "5", "\"1\"", "null", "1.0"] {
        scene.said(0, &progress(token));
    }
    scene.said(0, r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#);
    scene.answer(0, 1, &json!({}));
    scene.said(0, &progress("1"));
    let seen = scene.seen();
    assert_eq!(seen.matches("of nothing that is under way").count(), 8, "{seen}");
    assert_eq!(seen.lines().filter(|line| line.starts_with('c')).count(), 1, "{seen}");
    // Whoever has gone sees nothing.
    scene.ask(one, 2, "tools/call", &call(&json!(5)));
    scene.leaves(one);
    scene.seen();
    scene.said(0, &progress("3"));
    assert_eq!(scene.seen(), "");
}

#[test]
fn a_token_that_stands_there_twice_is_refused() {
    let mut scene = scene();
    let client = scene.open();
    scene.line(
        client,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken":1,"progressToken":2}}}"#,
    );
    assert_snapshot!(scene.seen(), @r#"c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"the progress token stands there twice","data":{"condition":"invalid_params","retryable":false,"effects":"none"}}}"#);
}

/// What a worker never read goes to the next as if it were new, with the token of the client.
#[test]
fn a_request_that_is_sent_again_has_another_number() {
    let mut scene = scene();
    let client = scene.open();
    scene.ask(client, 1, "x", &json!({}));
    scene.sight.queued.clear();
    let line = r#"{"jsonrpc":"2.0","id":"q","method":"m","params":{"_meta":{"progressToken": "mine" }}}"#;
    scene.line(client, line);
    let unsent = scene.sight.queued.remove(&0).unwrap();
    scene.seen();
    scene.gone(0, 0, unsent);
    scene.pass(1.0);
    let worker = scene.core.workers.iter().map(|(worker, _)| worker.slot()).next().unwrap();
    scene.seen();
    scene.up(worker);
    let asked = scene.seen();
    let expected = line.replace("\"q\"", "1").replace("\"mine\"", "1");
    assert!(asked.contains(&format!("w{worker} < {expected}")), "{asked}");
    scene.said(worker, &progress("1"));
    assert!(scene.seen().contains(r#""progressToken":"mine""#));
}

#[test]
fn who_has_a_worker_alone_keeps_its_tokens() {
    for (share, protocol) in [(Share::Connection, Protocol::JsonRpc), (Share::Connection, Protocol::V1)] {
        let mut scene = Scene::new(&config(vec![Pool { protocol, ..pool(share) }]));
        scene.up(0);
        let client = scene.open();
        scene.ask(client, 1, "initialize", &call(&json!("t")));
        scene.said(0, &progress("\"t\""));
        let seen = scene.seen();
        assert_eq!(seen.matches(r#""progressToken":"t""#).count(), 2, "{seen}");
    }
}
