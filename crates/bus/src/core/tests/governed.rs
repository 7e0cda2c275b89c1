//! Workers with a gate: told first, and by nobody else, who their client is.

use serde_json::json;

use super::super::{ANYONE, ClientInfo};
use super::{Config, Listen, Pool, Scene, Share, able, config, last_id_in, pool};

fn scene(share: Share) -> Scene {
    scene_of(config(vec![pool(share)]))
}

/// The same where several clients can have one session.
fn watched(share: Share) -> Scene {
    let listen = vec![Listen::parse("http://127.0.0.1:1/acp").unwrap()];
    scene_of(Config { listen, ..config(vec![pool(share)]) })
}

fn scene_of(mut settings: Config) -> Scene {
    let governed = settings.pools.remove(0).governed("/w/ACP.md".into(), None);
    settings.pools.push(Pool { instances: 2, ..governed });
    let mut scene = Scene::new(&settings);
    scene.up(0);
    scene.up(1);
    scene.seen();
    scene
}

fn open(scene: &mut Scene, identity: &str) -> u32 {
    open_narrowed(scene, identity, None)
}

fn open_narrowed(scene: &mut Scene, identity: &str, scopes: Option<&[String]>) -> u32 {
    let from = ClientInfo { scopes, ..ClientInfo::new(0, identity) };
    scene.core.client_open(scene.now, from, &mut scene.sight).unwrap().0
}

/// What a worker was told, in order.
fn told(seen: &str, worker: u32) -> Vec<String> {
    let start = format!("w{worker} < ");
    seen.lines().filter_map(|line| line.strip_prefix(&start)).map(str::to_owned).collect()
}

#[test]
fn a_worker_is_told_first_who_its_client_is() {
    for share in [Share::Connection, Share::Session] {
        let mut scene = scene(share);
        let (ada, anyone) = (open(&mut scene, "uid:1000"), open(&mut scene, ANYONE));
        for client in [ada, anyone] {
            let claim =
                json!({"jsonrpc": "2.0", "method": "narrows/identity", "params": {"identity": "uid:0"}});
            scene.line(client, &claim.to_string());
            scene.ask(client, 1, "initialize", &json!({"protocolVersion": 1}));
        }
        let seen = scene.seen();
        let mut firsts = [told(&seen, 0)[0].clone(), told(&seen, 1)[0].clone()];
        firsts.sort();
        assert_eq!(
            firsts,
            ["anyone", "uid:1000"].map(|name| format!(
                r#"{{"jsonrpc":"2.0","method":"narrows/identity","params":{{"identity":"{name}"}}}}"#
            )),
            "{seen}"
        );
    }
}

#[test]
fn a_worker_is_told_what_its_client_is_narrowed_to() {
    for (scopes, expected) in [(vec![], "[]"), (vec!["kind:\"read".to_owned()], r#"["kind:\"read"]"#)] {
        let mut scene = scene(Share::Connection);
        let ada = open_narrowed(&mut scene, "token:ada", Some(&scopes));
        scene.ask(ada, 1, "initialize", &json!({"protocolVersion": 1}));
        let seen = scene.seen();
        let line = format!(r#""params":{{"identity":"token:ada","scopes":{expected}}}}}"#);
        assert!(seen.contains(&line), "{seen}");
    }
}

#[test]
fn each_further_worker_of_a_client_is_told_too() {
    let mut scene = scene(Share::Session);
    let ada = open(&mut scene, "uid:1000");
    scene.ask(ada, 1, "initialize", &json!({"protocolVersion": 1}));
    let first = if told(&scene.seen(), 0).is_empty() { 1 } else { 0 };
    scene.answer(first, 1, &able());
    scene.session(ada, first, "one");
    scene.ask(ada, 2, "session/new", &json!({"cwd": "/"}));
    let seen = scene.seen();
    let lines = told(&seen, 1 - first);
    assert!(lines[0].contains("narrows/identity") && lines[0].contains("1000"), "{seen}");
    assert!(lines[1].contains("initialize"), "{seen}");
}

/// A client that has initialized, with the worker that was claimed for it.
fn claimed(scene: &mut Scene, identity: &str, scopes: Option<&[String]>) -> (u32, u32) {
    let client = open_narrowed(scene, identity, scopes);
    for worker in 0..8 {
        scene.up(worker);
    }
    scene.seen();
    scene.ask(client, 1, "initialize", &json!({"protocolVersion": 1}));
    let seen = scene.seen();
    let worker = (0..8).find(|worker| !told(&seen, *worker).is_empty()).unwrap();
    scene.answer(worker, 1, &able());
    (client, worker)
}

#[test]
fn a_session_goes_on_under_the_scopes_that_its_client_has_now() {
    for share in [Share::Connection, Share::Session] {
        let mut scene = scene(share);
        let (ada, worker) = claimed(&mut scene, "token:ada", None);
        scene.session(ada, worker, "one");
        scene.leaves(ada);
        let none: Vec<String> = Vec::new();
        let back = open_narrowed(&mut scene, "token:ada", Some(&none));
        scene.ask(back, 1, "initialize", &json!({"protocolVersion": 1}));
        let seen = scene.seen();
        let second = (0..8).find(|worker| !told(&seen, *worker).is_empty()).unwrap();
        assert!(told(&seen, second)[0].contains(r#""scopes":[]"#), "{seen}");
        scene.answer(second, 1, &able());
        scene.seen();
        scene.ask(back, 2, "session/load", &json!({"sessionId": "one", "cwd": "/"}));
        let seen = scene.seen();
        assert!(told(&seen, worker).is_empty(), "{share:?}: {seen}");
        assert!(told(&seen, second).iter().any(|line| line.contains("session/load")), "{share:?}: {seen}");
        assert!(seen.contains(&format!("Stop {{ worker: WorkerId({worker})")), "{share:?}: {seen}");
    }
}

#[test]
fn a_worker_is_kept_for_a_client_with_the_same_scopes() {
    let mut scene = scene(Share::Connection);
    let read = vec!["kind:read".to_owned()];
    let (ada, worker) = claimed(&mut scene, "token:ada", Some(&read));
    scene.session(ada, worker, "one");
    scene.leaves(ada);
    let (back, _) = claimed(&mut scene, "token:ada", Some(&read));
    scene.seen();
    scene.ask(back, 2, "session/load", &json!({"sessionId": "one", "cwd": "/"}));
    assert_eq!(told(&scene.seen(), worker).len(), 1);
}

#[test]
fn nobody_speaks_through_a_gate_that_was_told_the_scopes_of_another_who_is_there() {
    let mut scene = watched(Share::Connection);
    let (ada, worker) = claimed(&mut scene, "token:ada", None);
    scene.session(ada, worker, "one");
    let (other, _) = claimed(&mut scene, "token:ada", Some(&[]));
    scene.seen();
    for (id, method) in
        [(2, "session/load"), (3, "session/resume"), (4, "session/prompt"), (5, "session/close")]
    {
        scene.ask(other, id, method, &json!({"sessionId": "one", "cwd": "/"}));
        let seen = scene.seen();
        assert!(seen.contains("session_in_use") && told(&seen, worker).is_empty(), "{method}: {seen}");
    }
}

#[test]
fn nobody_comes_to_a_lost_session_whose_client_has_other_scopes() {
    for share in [Share::Connection, Share::Session] {
        let mut scene = watched(share);
        let (ada, worker) = claimed(&mut scene, "token:ada", None);
        scene.session(ada, worker, "one");
        let (other, _) = claimed(&mut scene, "token:ada", Some(&[]));
        scene.dies(worker);
        scene.pass(1.0);
        scene.seen();
        for (id, method) in [(2, "session/load"), (3, "session/resume"), (4, "session/prompt")] {
            scene.ask(other, id, method, &json!({"sessionId": "one", "cwd": "/", "prompt": []}));
            let seen = scene.seen();
            assert!(seen.contains("session_in_use"), "{share:?} {method}: {seen}");
        }
        // Its client has it restored, and leaves: nobody with other scopes is promoted.
        for worker in 0..8 {
            scene.up(worker);
        }
        scene.ask(ada, 2, "session/prompt", &json!({"sessionId": "one", "prompt": []}));
        let seen = scene.seen();
        let worker = (0..8).find(|worker| !told(&seen, *worker).is_empty()).unwrap();
        scene.answer(worker, last_id_in(&seen, worker), &able());
        let id = scene.last_id(worker);
        assert!(scene.seen().contains("session/resume"));
        scene.answer(worker, id, &json!({}));
        let id = scene.last_id(worker);
        assert!(scene.seen().contains("session/prompt"));
        scene.answer(worker, id, &json!({"stopReason": "end_turn"}));
        scene.leaves(ada);
        scene.seen();
        scene.ask(other, 5, "session/prompt", &json!({"sessionId": "one", "prompt": []}));
        let seen = scene.seen();
        assert!(told(&seen, worker).is_empty() && seen.contains("error"), "{share:?}: {seen}");
    }
}

#[test]
fn who_is_turned_away_changes_nothing_for_others() {
    for share in [Share::Connection, Share::Session] {
        let mut scene = scene(share);
        let (ada, worker) = claimed(&mut scene, "token:ada", None);
        scene.session(ada, worker, "one");
        // Its gate answers a stranger, too, and can do nothing for it.
        let stranger = open(&mut scene, "token:mallory");
        scene.ask(stranger, 1, "initialize", &json!({"protocolVersion": 1}));
        let seen = scene.seen();
        let lobby = (0..8).find(|worker| !told(&seen, *worker).is_empty()).unwrap();
        scene.answer(lobby, 1, &json!({"protocolVersion": 1, "agentCapabilities": {}}));
        scene.leaves(ada);
        // Longer than `disconnect_grace`.
        scene.pass(30.0);
        scene.seen();
        let (back, _) = claimed(&mut scene, "token:ada", None);
        scene.seen();
        scene.ask(back, 2, "session/load", &json!({"sessionId": "one", "cwd": "/"}));
        let seen = scene.seen();
        assert_eq!(told(&seen, worker).len(), 1, "{share:?}");
        scene.answer(worker, last_id_in(&seen, worker), &json!({}));
        // And what is lost is taken up again.
        scene.dies(worker);
        scene.pass(1.0);
        scene.seen();
        scene.ask(back, 3, "session/prompt", &json!({"sessionId": "one", "prompt": []}));
        assert!(!scene.seen().contains("-32002"), "{share:?}");
    }
}
