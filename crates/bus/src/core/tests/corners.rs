//! Cases that were got wrong once, each as the few lines that show it.

use super::super::Stuck;
use super::*;

/// Two shared pools, `p` and `q`, with a worker each.
fn two_pools() -> Config {
    let named = |name: &str| Pool { name: name.into(), ..pool(Share::All) };
    config(vec![named("p"), named("q")])
}

fn unknowing(instances: u32) -> Scene {
    let pool = Pool { instances, protocol: Protocol::JsonRpc, ..pool(Share::All) };
    let mut scene = Scene::new(&config(vec![pool]));
    (0..instances).for_each(|worker| scene.up(worker));
    scene.seen();
    scene
}

/// A client with a worker of its own, and a session in it if that is wanted.
fn exclusive(share: Share, most: u32, session: bool) -> (Scene, u32) {
    let mut scene = Scene::new(&config(vec![Pool { max_instances: most, ..pool(share) }]));
    scene.up(0);
    let client = scene.open();
    scene.ask(client, 1, "initialize", &json!({"protocolVersion": 1}));
    scene.answer(0, 1, &able());
    if session {
        scene.ask(client, 2, "session/new", &json!({"cwd": "/"}));
        scene.answer(0, 2, &json!({"sessionId": "a"}));
    }
    scene.seen();
    (scene, client)
}

fn changed() -> Config {
    config(vec![Pool { command: vec!["other".into()], ..pool(Share::All) }])
}

#[test]
fn a_message_that_is_written_in_part_at_once_is_no_reason_to_hang_up() {
    struct Partial(Vec<Action>);
    impl CoreOutput for Partial {
        fn to_client(&mut self, _: ClientId, parts: &[&[u8]]) -> usize {
            parts.concat().len() - (2 << 20)
        }
        fn to_worker(&mut self, _: WorkerId, _: &[&[u8]]) -> usize {
            0
        }
        fn act(&mut self, action: Action) {
            self.0.push(action);
        }
    }
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.session(client, 0, "a");
    scene.ask(client, 1, "session/prompt", &prompt("a"));
    let mut out = Partial(Vec::new());
    let line = json!({"jsonrpc": "2.0", "id": 3, "result": {"x": "y".repeat(20 << 20)}}).to_string();
    scene.core.worker_line(scene.now, WorkerId(0), View::parse(line.as_bytes()), &mut out);
    assert_eq!(out.0, []);
}

#[test]
fn a_pool_gets_back_to_strength_though_some_of_it_was_there_all_the_time() {
    let mut scene = Scene::shared(4);
    let mut young = vec![1, 2, 3];
    let mut opened = false;
    for _ in 0..20 {
        if !opened {
            young.drain(..).for_each(|worker| scene.dies(worker));
        }
        scene.pass(5.0);
        let seen = scene.seen();
        opened |= seen.contains("CircuitOpened");
        let spawned =
            |line: &str| line.strip_prefix("Spawn { worker: WorkerId(")?.split(')').next()?.parse().ok();
        for worker in seen.lines().filter_map(spawned) {
            scene.up(worker);
            scene.answer(worker, 1, &able());
            young.push(worker);
        }
    }
    assert!(opened);
    let pools = scene.core.status(scene.now).pools;
    assert_eq!((pools[0].workers.len(), pools[0].state), (4, "ready"));
}

#[test]
fn workers_that_number_alike_do_not_mix_their_sessions_where_nothing_is_known() {
    let mut scene = unknowing(2);
    let (a, b) = (scene.open(), scene.open());
    for (client, worker) in [(a, 0), (b, 1)] {
        scene.ask(client, 1, "open", &json!({}));
        scene.answer(worker, 1, &json!({"sessionId": "1"}));
    }
    assert!(scene.seen().contains(r#"c1 < {"jsonrpc":"2.0","id":1,"result":{"sessionId":"1~2"}}"#));
    scene.ask(b, 2, "use", &json!({"sessionId": "1~2"}));
    assert!(
        scene.seen().starts_with("w1 < ") && scene.sight.queued[&1].ends_with(b"\"sessionId\":\"1\"}}\n")
    );
}

#[test]
fn a_session_where_nothing_is_known_stays_where_it_is_when_its_first_client_leaves() {
    let mut scene = unknowing(2);
    let (a, b) = (scene.open(), scene.open());
    for client in [a, b] {
        scene.ask(client, 1, "use", &json!({"sessionId": "s"}));
    }
    scene.leaves(a);
    scene.pass(1.0);
    scene.seen();
    scene.ask(b, 2, "use", &json!({"sessionId": "s"}));
    assert!(scene.seen().starts_with("w0 < "));
}

#[test]
fn nobody_there_is_no_empty_list_and_half_of_one_is_none() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.dies(0);
    scene.seen();
    scene.ask(client, 1, "session/list", &json!({}));
    assert_eq!(scene.seen(), "");
    let mut scene = Scene::shared(2);
    let client = scene.open();
    scene.ask(client, 1, "session/list", &json!({}));
    scene.answer(0, 2, &json!({"sessions": [{"sessionId": "x"}]}));
    scene.dies(1);
    assert!(scene.seen().contains(r#"c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32010"#));
    // What was to be deleted may be.
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.ask(client, 1, "session/delete", &json!({"sessionId": "stored"}));
    scene.pass(31.0);
    assert!(scene.seen().contains(r#""effects":"possible""#));
}

#[test]
fn a_reload_cuts_no_turn_short_and_no_session_off() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.session(client, 0, "a");
    scene.ask(client, 1, "session/prompt", &prompt("a"));
    scene.core.reload(scene.now, &changed(), &mut scene.sight);
    scene.up(1);
    scene.answer(1, 1, &able());
    scene.pass(3_600.0);
    scene.seen();
    scene.answer(0, 3, &json!({"stopReason": "end_turn"}));
    let seen = scene.seen();
    assert!(
        seen.starts_with("c0 < ") && seen.ends_with("Stop { worker: WorkerId(0), kill: false }"),
        "{seen}"
    );
    // One whose agent cannot take sessions up again keeps it.
    let mut scene = Scene::new(&config(vec![pool(Share::All)]));
    scene.up(0);
    scene.answer(0, 1, &json!({"protocolVersion": 1}));
    let client = scene.open();
    scene.session(client, 0, "a");
    scene.core.reload(scene.now, &changed(), &mut scene.sight);
    scene.seen();
    scene.ask(client, 1, "session/prompt", &prompt("a"));
    assert!(scene.seen().starts_with("w0 < "));
    scene.answer(0, 3, &json!({"stopReason": "end_turn"}));
    scene.leaves(client);
    scene.pass(1.0);
    assert!(scene.seen().contains("Stop { worker: WorkerId(0)"));
}

#[test]
fn a_pool_shrinks_by_those_that_nobody_uses() {
    let mut scene = Scene::shared(2);
    let (a, b) = (scene.open(), scene.open());
    scene.session(a, 0, "a");
    scene.session(b, 1, "b");
    scene.ask(a, 1, "session/close", &json!({"sessionId": "a"}));
    scene.answer(0, 3, &json!({}));
    scene.seen();
    scene.core.reload(scene.now, &config(vec![pool(Share::All)]), &mut scene.sight);
    assert_eq!(scene.seen(), "Stop { worker: WorkerId(0), kill: false }");
}

#[test]
fn a_list_under_way_survives_a_reload() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.ask(client, 1, "session/list", &json!({}));
    scene.core.reload(scene.now, &changed(), &mut scene.sight);
    scene.seen();
    scene.answer(0, 2, &json!({"sessions": []}));
    assert!(scene.seen().starts_with(r#"c0 < {"jsonrpc":"2.0","id":1,"result""#));
}

#[test]
fn a_worker_whose_client_is_gone_does_not_stay_for_what_nobody_waits_for() {
    for session in [false, true] {
        let (mut scene, client) = exclusive(Share::Connection, 1, session);
        scene.ask(client, 3, "authenticate", &json!({"methodId": "x"}));
        scene.leaves(client);
        scene.seen();
        scene.pass(400.0);
        assert!(scene.seen().contains("Stop { worker: WorkerId(0)"), "{session}");
    }
}

#[test]
fn the_session_that_was_left_first_makes_room() {
    let (mut scene, client) = exclusive(Share::Connection, 1, true);
    scene.leaves(client);
    scene.seen();
    let other = scene.open();
    scene.ask(other, 1, "initialize", &json!({"protocolVersion": 1}));
    assert_eq!(scene.seen(), "Stop { worker: WorkerId(0), kill: false }");
    scene.dies(0);
    scene.up(0);
    assert!(scene.seen().contains(r#"w0 < {"jsonrpc":"2.0","id":1,"method":"initialize""#));
}

#[test]
fn a_worker_that_floods_and_does_not_read_is_not_read() {
    let mut scene = Scene::shared(1);
    for number in 0..100_000 {
        scene.said(0, &format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"x"}}"#));
    }
    assert_eq!(scene.seen().matches("PauseWorker(WorkerId(0))").count(), 1);
    assert!(scene.core.has_pending_work(WorkerId(0)));
    scene.core.worker_drained(scene.now, WorkerId(0), &mut scene.sight);
    assert_eq!(scene.seen(), "ResumeWorker(WorkerId(0))");
}

#[test]
fn numbers_of_one_worker_mean_nothing_to_another() {
    let mut scene = Scene::shared(2);
    let (a, b) = (scene.open(), scene.open());
    scene.ask(b, 1, "session/new", &json!({"cwd": "/"}));
    scene.ask(b, 2, "session/new", &json!({"cwd": "/"}));
    scene.answer(0, 2, &json!({"sessionId": "b0"}));
    scene.answer(1, 2, &json!({"sessionId": "b1"}));
    scene.ask(a, 1, "session/load", &json!({"sessionId": "x"}));
    scene.ask(a, 2, "session/prompt", &prompt("x"));
    scene.ask(b, 3, "_ext", &json!({"sessionId": "b1"}));
    scene.ask(b, 4, "session/prompt", &prompt("b1"));
    scene.fail(0, 3, -32_002);
    scene.answer(1, 5, &json!({}));
    scene.ask(a, 5, "session/close", &json!({"sessionId": "x"}));
    scene.seen();
    scene.answer(1, 6, &json!({}));
    assert_eq!(scene.seen(), r#"c0 < {"jsonrpc":"2.0","id":5,"result":{}}"#);
}

#[test]
fn a_session_that_is_loaded_stays_though_another_answer_about_it_was_none() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.ask(client, 1, "session/load", &json!({"sessionId": "x"}));
    scene.ask(client, 2, "session/set_mode", &json!({"sessionId": "x"}));
    scene.said(0, r#"{"jsonrpc":"2.0","id":3}"#);
    scene.answer(0, 2, &json!({}));
    scene.seen();
    scene.ask(client, 3, "session/prompt", &prompt("x"));
    assert!(scene.seen().starts_with("w0 < "));
}

#[test]
fn who_waits_for_another_pool_holds_nobody_up() {
    let mut scene = Scene::new(&two_pools());
    let (one, two) = (scene.open(), scene.open());
    scene.ask(one, 1, "session/new", &json!({"_meta": {"narrows/pool": "p"}}));
    scene.ask(one, 2, "session/new", &json!({"_meta": {"narrows/pool": "q"}}));
    scene.ask(two, 1, "session/new", &json!({"_meta": {"narrows/pool": "p"}}));
    scene.up(0);
    scene.seen();
    scene.answer(0, 1, &able());
    assert_eq!(scene.seen().matches("w0 < ").count(), 2);
}

#[test]
fn whoever_asks_for_a_pool_that_is_not_there_gets_no_other() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.ask(client, 1, "initialize", &json!({"protocolVersion": 1, "_meta": {"narrows/pool": "nope"}}));
    scene.ask(client, 2, "session/new", &json!({"cwd": "/"}));
    let seen = scene.seen();
    assert!(seen.contains("-32602") && seen.contains("-32600") && !seen.contains("w0 < "), "{seen}");
    scene.ask(client, 3, "initialize", &json!({"protocolVersion": 1}));
    scene.ask(client, 4, "session/new", &json!({"cwd": "/"}));
    assert!(scene.seen().contains("w0 < "));
}

#[test]
fn whoever_was_refused_a_pool_can_have_any() {
    let pools = [("p", Share::All), ("own", Share::Connection)];
    let mut scene =
        Scene::new(&config(pools.map(|(name, share)| Pool { name: name.into(), ..pool(share) }).into()));
    let client = scene.open();
    let initialize = |pool: &str| json!({"protocolVersion": 1, "_meta": {"narrows/pool": pool}});
    scene.ask(client, 1, "initialize", &initialize("nope"));
    scene.ask(client, 2, "session/new", &json!({"cwd": "/"}));
    scene.seen();
    scene.ask(client, 3, "initialize", &initialize("own"));
    assert!(!scene.seen().contains("error"), "what was refused has bound nobody");
}

#[test]
fn a_session_belongs_to_whom_it_was_made_for_even_if_that_one_is_gone() {
    let shared = Pool { mix_identities: true, ..pool(Share::All) };
    let mut scene = Scene::new(&config(vec![shared]));
    scene.up(0);
    scene.answer(0, 1, &able());
    let clients = ["uid:1", "uid:2"].map(|identity| {
        let from = ClientInfo::new(0, identity);
        let client = scene.core.client_open(scene.now, from, &mut scene.sight).unwrap().0;
        scene.initialized(client);
        client
    });
    for client in clients {
        scene.ask(client, 1, "session/new", &json!({"cwd": "/"}));
    }
    scene.leaves(clients[0]);
    scene.answer(0, 2, &json!({"sessionId": "of the first"}));
    scene.seen();
    scene.ask(clients[1], 2, "session/load", &json!({"sessionId": "of the first"}));
    assert!(scene.seen().contains("-32002"));
}

#[test]
fn nobody_logs_a_shared_agent_out_and_a_refused_login_is_no_loss() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.ask(client, 1, "logout", &json!({}));
    assert!(scene.seen().contains("-32602"));
    let (mut scene, client) = exclusive(Share::Session, 8, true);
    scene.ask(client, 3, "authenticate", &json!({"methodId": "x"}));
    scene.answer(0, 3, &json!({}));
    scene.up(1);
    scene.ask(client, 4, "session/new", &json!({"cwd": "/"}));
    scene.answer(1, 1, &able());
    scene.seen();
    scene.fail(1, 2, -32_000);
    scene.dies(1);
    let seen = scene.seen();
    assert!(seen.contains(r#""id":4,"error":{"code":-32000"#) && !seen.contains("Lost"), "{seen}");
}

#[test]
fn the_words_of_one_clients_worker_are_not_for_others() {
    let (mut scene, _) = exclusive(Share::Connection, 1, false);
    let end = WorkerExit { reason: "exit status 1; stderr: SECRET".into(), ..WorkerExit::default() };
    scene.core.worker_gone(scene.now, WorkerId(0), &end, &mut scene.sight);
    for _ in 0..5 {
        scene.pass(3.0);
        scene.core.worker_gone(scene.now, WorkerId(0), &end, &mut scene.sight);
    }
    let other = scene.open();
    scene.seen();
    scene.ask(other, 1, "initialize", &json!({"protocolVersion": 1}));
    let seen = scene.seen();
    assert!(seen.contains("exit status 1") && !seen.contains("SECRET"), "{seen}");
    assert_eq!(scene.core.status(scene.now).pools[0].state, "tripped");
}

#[test]
fn who_waits_for_a_deaf_worker_is_read_again() {
    let mut scene = Scene::shared(1);
    let (a, b) = (scene.open(), scene.open());
    scene.session(a, 0, "a");
    scene.session(b, 0, "b");
    scene.ask(a, 1, "session/prompt", &prompt("a"));
    let taken = scene.sight.queued[&0].len() as u64;
    scene.ask(b, 1, "session/prompt", &json!({"sessionId": "b", "prompt": "x".repeat(9 << 20)}));
    assert!(scene.seen().contains("PauseClient(ClientId(1))"));
    scene.core.worker_stuck(scene.now, WorkerId(0), Stuck::InputClosed { taken }, &mut scene.sight);
    assert!(scene.seen().contains("ResumeClient(ClientId(1))"));
}

#[test]
fn nothing_new_goes_to_a_mute_worker() {
    let mut scene = Scene::shared(2);
    let client = scene.open();
    scene.core.worker_stuck(scene.now, WorkerId(0), Stuck::OutputClosed, &mut scene.sight);
    scene.seen();
    scene.ask(client, 1, "session/new", &json!({"cwd": "/"}));
    assert!(scene.seen().starts_with("w1 < "));
}

#[test]
fn what_is_asked_about_a_session_that_was_not_opened_is_shown_to_nobody() {
    let mut scene = Scene::shared(1);
    let (a, b) = (scene.open(), scene.open());
    scene.ask(a, 1, "session/load", &json!({"sessionId": "x"}));
    scene.fail(0, 2, -32_603);
    scene.ask(b, 1, "session/new", &json!({"cwd": "/"}));
    scene.seen();
    scene.said(
        0,
        r#"{"jsonrpc":"2.0","id":"p","method":"session/request_permission","params":{"sessionId":"x"}}"#,
    );
    assert!(scene.seen().starts_with("w0 < "));
}

#[test]
fn a_turn_that_is_given_up_on_has_its_time() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.session(client, 0, "a");
    scene.ask(client, 1, "session/prompt", &prompt("a"));
    scene.note(client, "$/cancel_request", &json!({"requestId": 1}));
    scene.seen();
    scene.pass(31.0);
    assert!(scene.seen().contains(r#"c0 < {"jsonrpc":"2.0","id":1,"result":{"stopReason":"cancelled"}}"#));
}

#[test]
fn names_have_an_end() {
    let mut scene = unknowing(1);
    let client = scene.open();
    scene.ask(client, 1, "use", &json!({"sessionId": "x".repeat(5_000)}));
    assert!(scene.seen().contains("-32602"));
}
