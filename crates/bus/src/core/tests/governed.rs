//! Workers with a gate: told first, and by nobody else, who their client is.

use serde_json::json;

use super::super::{ANYONE, Arrival};
use super::{Pool, Scene, Share, able, config, pool};

fn scene(share: Share) -> Scene {
    let governed = pool(share).governed("/w/ACP.md".into(), None);
    let mut scene = Scene::new(&config(vec![Pool { instances: 2, ..governed }]));
    scene.up(0);
    scene.up(1);
    scene.seen();
    scene
}

fn open(scene: &mut Scene, identity: &str) -> u32 {
    open_narrowed(scene, identity, None)
}

fn open_narrowed(scene: &mut Scene, identity: &str, scopes: Option<&[String]>) -> u32 {
    let from = Arrival { scopes, ..Arrival::new(0, identity) };
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
