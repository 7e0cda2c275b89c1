//! Sessions that are lost, wanted by several, spoken of too early or too late, or called otherwise.

use insta::assert_snapshot;

use super::super::Stuck;
use super::*;

/// Two clients that have the first two of three workers, each of which is for one session.
fn two_of_three() -> (Scene, u32, u32) {
    let mut scene = Scene::new(&config(vec![Pool { instances: 3, ..pool(Share::Session) }]));
    for worker in 0..3 {
        scene.up(worker);
    }
    let (one, other) = (scene.open(), scene.open());
    for (client, worker) in [(one, 0), (other, 1)] {
        scene.ask(client, 0, "initialize", &json!({"protocolVersion": 1}));
        scene.answer(worker, 1, &able());
    }
    (scene, one, other)
}

#[test]
fn a_session_is_lost_for_good_only_when_somebody_is_told() {
    let mut scene = Scene::new(&config(vec![Pool { instances: 1, ..pool(Share::All) }]));
    scene.up(0);
    scene.answer(0, 1, &json!({"protocolVersion": 1}));
    let client = scene.open();
    scene.session(client, 0, "a");
    scene.dies(0);
    scene.seen();
    scene.note(client, "_ext/note", &json!({"sessionId": "a"}));
    scene.ask(client, 1, "session/prompt", &prompt("a"));
    assert_snapshot!(scene.seen(), @r#"c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"the session was lost: killed by SIGKILL","data":{"condition":"not_found","retryable":false,"effects":"none"}}}"#);
}

#[test]
fn a_session_that_was_not_taken_up_in_time_is_tried_again() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.session(client, 0, "a");
    scene.dies(0);
    scene.seen();
    scene.ask(client, 1, "session/prompt", &prompt("a"));
    scene.pass(1.0);
    // One worker may be lost over it by chance, a second is not.
    for _ in 0..2 {
        scene.up(0);
        scene.answer(0, 1, &able());
        scene.dies(0);
        scene.pass(1.0);
    }
    assert_snapshot!(scene.seen(), @r#"
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    w0 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Tell(Ready(WorkerId(0)))
    w0 < {"jsonrpc":"2.0","id":2,"method":"session/resume","params":{"cwd":"/","sessionId":"a","mcpServers":[]}}
    Tell(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 1, sessions: 1 })
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    w0 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Tell(Ready(WorkerId(0)))
    w0 < {"jsonrpc":"2.0","id":2,"method":"session/resume","params":{"cwd":"/","sessionId":"a","mcpServers":[]}}
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32010,"message":"the session could not be taken up again: the agent's process ended: killed by SIGKILL","data":{"condition":"worker_lost","retryable":true,"effects":"none"}}}
    Tell(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 1, sessions: 1 })
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    "#);
    // It waits for a worker, and in vain.
    scene.ask(client, 2, "session/prompt", &prompt("a"));
    scene.pass(31.0);
    assert_snapshot!(scene.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32011,"message":"the session could not be taken up again in time","data":{"condition":"deadline","retryable":true,"effects":"none"}}}
    "#);
    scene.up(0);
    scene.answer(0, 1, &able());
    scene.seen();
    scene.ask(client, 3, "session/prompt", &prompt("a"));
    scene.answer(0, 2, &json!({}));
    assert_snapshot!(scene.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":2,"method":"session/resume","params":{"cwd":"/","sessionId":"a","mcpServers":[]}}
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    "#);
}

#[test]
fn what_is_wanted_before_it_is_there_belongs_to_whom_it_was_made_for() {
    let mut scene = Scene::shared(1);
    let (one, other) = (scene.open(), scene.open());
    scene.ask(one, 1, "session/load", &json!({"sessionId": "a"}));
    scene.ask(other, 1, "session/new", &json!({}));
    scene.seen();
    scene.answer(0, 3, &json!({"sessionId": "a"}));
    scene.update(0, "a", "hello");
    scene.answer(0, 2, &json!({}));
    assert_snapshot!(scene.seen(), @r#"
    c1 < {"jsonrpc":"2.0","id":1,"result":{"sessionId":"a"}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"hello"}}
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"the session is in use by another connection","data":{"condition":"session_in_use","retryable":true,"effects":"none"}}}
    "#);
}

#[test]
fn what_is_said_in_a_session_that_is_no_more_reaches_nobody() {
    let mut scene = Scene::shared(1);
    let (one, other) = (scene.open(), scene.open());
    scene.session(one, 0, "a");
    scene.leaves(one);
    scene.pass(301.0);
    scene.ask(other, 1, "session/new", &json!({}));
    scene.seen();
    // The one that waits for a session is not asked in its place, and the worker has done nothing wrong.
    for id in ["p", "q", "r"] {
        let params = json!({"sessionId": "a"});
        let asked =
            json!({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": params});
        scene.said(0, &asked.to_string());
    }
    scene.update(0, "a", "more");
    assert_snapshot!(scene.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":"p","result":{"outcome":{"outcome":"cancelled"}}}
    w0 < {"jsonrpc":"2.0","id":"q","result":{"outcome":{"outcome":"cancelled"}}}
    w0 < {"jsonrpc":"2.0","id":"r","result":{"outcome":{"outcome":"cancelled"}}}
    "#);
}

#[test]
fn what_waited_for_a_worker_goes_only_where_it_still_may() {
    let (mut scene, one, other) = two_of_three();
    scene.ask(other, 1, "session/new", &json!({}));
    scene.dies(0);
    // Its new worker is being greeted; by then there is such a session, but it is another's.
    scene.ask(one, 2, "session/close", &json!({"sessionId": "a"}));
    let id = scene.last_id(1);
    scene.answer(1, id, &json!({"sessionId": "a"}));
    scene.seen();
    scene.answer(2, 1, &json!({"protocolVersion": 1}));
    assert_snapshot!(scene.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32602,"message":"the session is in use by another connection","data":{"condition":"session_in_use","retryable":true,"effects":"none"}}}
    "#);
}

#[test]
fn a_session_is_not_reached_by_its_workers_name_for_it() {
    let mut scene = Scene::shared(2);
    let (one, other) = (scene.open(), scene.open());
    scene.session(one, 0, "a");
    scene.session(other, 1, "a");
    scene.ask(one, 1, "session/close", &json!({"sessionId": "a"}));
    let id = scene.last_id(0);
    scene.answer(0, id, &json!({}));
    scene.seen();
    // Of the second one, which clients call a~2.
    scene.ask(one, 2, "session/load", &json!({"sessionId": "a"}));
    scene.ask(one, 3, "session/delete", &json!({"sessionId": "a"}));
    assert_snapshot!(scene.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32602,"message":"the session is in use by another connection","data":{"condition":"session_in_use","retryable":true,"effects":"none"}}}
    c0 < {"jsonrpc":"2.0","id":3,"error":{"code":-32602,"message":"the session is in use by another connection","data":{"condition":"session_in_use","retryable":true,"effects":"none"}}}
    "#);
}

#[test]
fn what_is_asked_too_early_is_answered_as_it_was_asked() {
    let mut scene = Scene::shared(1);
    let (client, other) = (scene.open(), scene.open());
    scene.ask(client, 1, "session/new", &json!({}));
    scene.ask(other, 2, "session/new", &json!({}));
    scene.seen();
    let ask =
        |id| json!({"jsonrpc": "2.0", "id": id, "method": "fs/read_text_file", "params": {"sessionId": "a"}});
    scene.said(0, &json!([ask("p"), ask("q")]).to_string());
    scene.answer(0, 2, &json!({"sessionId": "a"}));
    scene.line(client, r#"{"jsonrpc":"2.0","id":2,"result":{}}"#);
    scene.line(client, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    // What it takes back by then is nothing that its client knows.
    scene.said(0, r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"p"}}"#);
    // No session is made that this could be about.
    scene.ask(client, 3, "session/new", &json!({}));
    scene.said(0, &ask("r").to_string().replace("\"a\"", "\"b\""));
    scene.fail(0, 4, -32603);
    scene.said(0, r#"{"jsonrpc":"2.0","id":3}"#);
    assert_snapshot!(scene.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"method":"fs/read_text_file","params":{"sessionId":"a"}}
    c0 < {"jsonrpc":"2.0","id":2,"method":"fs/read_text_file","params":{"sessionId":"a"}}
    c0 < {"jsonrpc":"2.0","id":1,"result":{"sessionId":"a"}}
    w0 < [{"jsonrpc":"2.0","id":"q","result":{}},{"jsonrpc":"2.0","id":"p","result":{}}]
    Tell(Dropped { worker: WorkerId(0), why: "the request it is about is not open" })
    w0 < {"jsonrpc":"2.0","id":4,"method":"session/new","params":{}}
    c0 < {"jsonrpc":"2.0","id":3,"error":{"code":-32603,"message":"no"}}
    c1 < {"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"the agent's answer is no valid response","data":{"condition":"internal_error","retryable":false,"effects":"possible"}}}
    w0 < {"jsonrpc":"2.0","id":"r","error":{"code":-32602,"message":"the session is not this agent's","data":{"condition":"invalid_params","retryable":false,"effects":"none"}}}
    Tell(Strike { worker: WorkerId(0), what: "named a session that is not its own" })
    Tell(Strike { worker: WorkerId(0), what: "sent an answer that is none" })
    "#);
}

#[test]
fn a_client_with_several_workers_has_one_list() {
    let (mut scene, one, other) = two_of_three();
    scene.ask(one, 1, "session/new", &json!({}));
    scene.answer(0, 2, &json!({"sessionId": "a"}));
    scene.ask(one, 2, "session/new", &json!({}));
    scene.answer(2, 1, &able());
    scene.answer(2, 2, &json!({"sessionId": "a"}));
    scene.seen();
    // Both call theirs so, and both know an old one.
    scene.ask(one, 3, "session/list", &json!({"cwd": "/"}));
    scene.answer(2, 3, &json!({"sessions": [{"sessionId": "a"}, {"sessionId": "old"}]}));
    scene.answer(0, 3, &json!({"sessions": [{"sessionId": "a"}, {"sessionId": "old"}], "nextCursor": "n"}));
    assert_snapshot!(scene.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/list","params":{"cwd":"/"}}
    w2 < {"jsonrpc":"2.0","id":3,"method":"session/list","params":{"cwd":"/"}}
    c0 < {"jsonrpc":"2.0","id":3,"result":{"sessions":[{"sessionId":"a~2"},{"sessionId":"old"},{"sessionId":"a"}],"nextCursor":"{\"1\":\"n\"}"}}
    "#);
    scene.ask(one, 4, "session/list", &json!({"cursor": r#"{"1":"n"}"#}));
    scene.ask(one, 5, "session/delete", &json!({"sessionId": "old"}));
    assert_snapshot!(scene.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":4,"method":"session/list","params":{"cursor":"n"}}
    w0 < {"jsonrpc":"2.0","id":5,"method":"session/delete","params":{"sessionId":"old"}}
    w2 < {"jsonrpc":"2.0","id":4,"method":"session/delete","params":{"sessionId":"old"}}
    "#);
    // Who has none yet is listed what the first one knows.
    scene.dies(1);
    scene.ask(other, 1, "session/list", &json!({}));
    scene.pass(1.0);
    scene.up(1);
    scene.seen();
    scene.answer(1, 1, &able());
    scene.answer(1, 2, &json!({"sessions": [], "nextCursor": "m"}));
    assert_snapshot!(scene.seen(), @r#"
    w1 < {"jsonrpc":"2.0","id":2,"method":"session/list","params":{}}
    c1 < {"jsonrpc":"2.0","id":1,"result":{"sessions":[],"nextCursor":"{\"8\":\"m\"}"}}
    "#);
}

#[test]
fn sessions_that_have_workers_of_their_own_are_not_taken_up_in_one() {
    let mut scene = Scene::new(&config(vec![Pool { instances: 2, ..pool(Share::Session) }]));
    scene.up(0);
    scene.up(1);
    let client = scene.open();
    scene.ask(client, 0, "initialize", &json!({"protocolVersion": 1}));
    scene.answer(0, 1, &able());
    scene.session(client, 0, "a");
    scene.ask(client, 1, "session/new", &json!({}));
    scene.answer(1, 1, &able());
    scene.answer(1, 2, &json!({"sessionId": "b"}));
    scene.dies(0);
    scene.dies(1);
    scene.pass(5.0);
    let there: Vec<u32> = (0..8).filter(|worker| scene.core.workers.key_at(*worker).is_some()).collect();
    there.iter().for_each(|worker| scene.up(*worker));
    scene.seen();
    scene.ask(client, 2, "session/prompt", &prompt("a"));
    scene.ask(client, 3, "session/prompt", &prompt("b"));
    scene.ask(client, 4, "session/new", &json!({}));
    for worker in 0..8 {
        if scene.core.workers.key_at(worker).is_some() {
            scene.up(worker);
            scene.answer(worker, 1, &able());
        }
    }
    let seen = scene.seen();
    let opened: Vec<&str> =
        seen.lines().filter(|line| line.contains("session/resume") || line.contains("session/new")).collect();
    let mut workers: Vec<&str> = opened.iter().map(|line| &line[..2]).collect();
    workers.sort_unstable();
    workers.dedup();
    assert_eq!((opened.len(), workers.len()), (3, 3), "{seen}");
}

fn resume(scene: &mut Scene, client: u32, id: u64, name: &str) {
    scene.ask(client, id, "session/resume", &json!({"sessionId": name, "cwd": "/"}));
}

#[test]
fn a_client_whose_resume_failed_with_its_worker_does_not_own_the_session() {
    let mut scene = Scene::shared(1);
    let (one, two, three) = (scene.open(), scene.open(), scene.open());
    scene.session(one, 0, "a");
    scene.leaves(one);
    resume(&mut scene, two, 7, "a");
    scene.dies(0);
    assert!(scene.seen().contains(r#"c1 < {"jsonrpc":"2.0","id":7,"error":{"code":-32010"#));
    scene.ask(two, 8, "session/prompt", &prompt("a"));
    assert_eq!(
        scene.seen(),
        r#"c1 < {"jsonrpc":"2.0","id":8,"error":{"code":-32002,"message":"load or resume the session on this connection first","data":{"condition":"not_found","retryable":false,"effects":"none"}}}"#
    );
    // Another connection of the same identity can resume it.
    scene.pass(1.0);
    scene.up(0);
    scene.answer(0, 1, &able());
    scene.seen();
    resume(&mut scene, three, 9, "a");
    assert!(scene.seen().starts_with("w0 < "));
}

#[test]
fn a_failed_resume_takes_no_session_from_the_client_that_resumed_it_since() {
    let mut scene = Scene::shared(1);
    let (one, two, three) = (scene.open(), scene.open(), scene.open());
    scene.session(one, 0, "a");
    scene.leaves(one);
    resume(&mut scene, two, 7, "a");
    let first = scene.last_id(0);
    scene.leaves(two);
    resume(&mut scene, three, 8, "a");
    let second = scene.last_id(0);
    scene.seen();
    scene.fail(0, first, -32603);
    scene.answer(0, second, &json!({}));
    assert_eq!(scene.seen(), r#"c2 < {"jsonrpc":"2.0","id":8,"result":{}}"#);
    scene.ask(three, 9, "session/prompt", &prompt("a"));
    assert!(scene.seen().starts_with("w0 < "));
}

#[test]
fn of_two_requests_to_resume_a_session_one_that_succeeds_is_enough() {
    let mut scene = Scene::shared(1);
    let (one, two) = (scene.open(), scene.open());
    scene.session(one, 0, "a");
    scene.leaves(one);
    resume(&mut scene, two, 7, "a");
    let first = scene.last_id(0);
    resume(&mut scene, two, 8, "a");
    let second = scene.last_id(0);
    scene.fail(0, first, -32603);
    scene.answer(0, second, &json!({}));
    scene.seen();
    scene.ask(two, 9, "session/prompt", &prompt("a"));
    assert!(scene.seen().starts_with("w0 < "));
}

#[test]
fn a_client_whose_resume_waited_in_vain_does_not_own_the_session() {
    let mut scene = Scene::shared(1);
    let (one, two) = (scene.open(), scene.open());
    scene.session(one, 0, "a");
    scene.dies(0);
    scene.pass(1.0);
    scene.up(0);
    scene.answer(0, 1, &able());
    // The session is being restored for the first client when that leaves.
    scene.ask(one, 7, "session/prompt", &prompt("a"));
    scene.leaves(one);
    resume(&mut scene, two, 8, "a");
    scene.seen();
    scene.pass(120.0);
    let seen = scene.seen();
    assert!(seen.contains(r#"c1 < {"jsonrpc":"2.0","id":8,"error""#), "{seen}");
    scene.ask(two, 9, "session/prompt", &prompt("a"));
    let seen = scene.seen();
    assert!(seen.contains("load or resume the session on this connection first"), "{seen}");
}

#[test]
fn a_load_is_answered_also_if_its_worker_closes_its_input_and_the_session_is_asked_for_again() {
    let mut scene = Scene::shared(1);
    let one = scene.open();
    scene.ask(one, 7, "session/load", &json!({"sessionId": "a", "cwd": "/"}));
    let load = scene.last_id(0);
    let taken = scene.sight.queued[&0].len() as u64;
    scene.core.worker_stuck(scene.now, WorkerId(0), Stuck::InputClosed { taken }, &mut scene.sight);
    scene.seen();
    // The answer decides whether there is such a session; until then it moves nowhere.
    resume(&mut scene, one, 8, "a");
    let seen = scene.seen();
    assert!(seen.contains(r#"c0 < {"jsonrpc":"2.0","id":8,"error":{"code":-32010"#), "{seen}");
    scene.answer(0, load, &json!({}));
    let seen = scene.seen();
    assert!(seen.contains(r#"c0 < {"jsonrpc":"2.0","id":7,"result":{}}"#), "{seen}");
}
