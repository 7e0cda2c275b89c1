//! Agents that serve several identities and count their names: whoever has had a name at a worker, nothing of one identity reaches another.

use super::identities::asking;
use super::*;

const RESUMED: &str = r#""method":"session/resume""#;

fn mixed_pool(workers: u32, protocol: Protocol) -> Pool {
    Pool { instances: workers, protocol, mix_identities: true, ..pool(Share::All) }
}

fn abilities(protocol: Protocol) -> Value {
    match protocol {
        Protocol::V2 => json!({"protocolVersion": 2, "capabilities": {"session": {}}}),
        _ => able(),
    }
}

/// A pool whose workers serve all identities.
pub(super) fn mixed(workers: u32, protocol: Protocol) -> Scene {
    let mut scene = Scene::new(&asking(vec![mixed_pool(workers, protocol)]));
    for worker in 0..workers {
        scene.up(worker);
        scene.answer(worker, 1, &abilities(protocol));
    }
    scene.sight.seen.clear();
    scene
}

/// A server that lives in the client.
fn files() -> Value {
    json!({"cwd": "/", "mcpServers": [{"type": "acp", "name": "files", "serverId": "files"}]})
}

fn open_params(session: &str) -> Value {
    json!({"sessionId": session, "cwd": "/", "mcpServers": []})
}

impl Scene {
    /// Opens a session with a server of the client. Returns the request as the worker got it.
    fn session_with_files(&mut self, client: u32, worker: u32, name: &str) -> String {
        self.ask(client, 1_000, "session/new", &files());
        let seen = self.seen();
        self.answer(worker, last_id_in(&seen, worker), &json!({"sessionId": name}));
        self.seen();
        seen
    }

    pub(super) fn announces(&mut self, worker: u32, parent: &str, child: &str) {
        let update = json!({"sessionUpdate": "subagent_update", "sessionId": child});
        let params = json!({"sessionId": parent, "update": update});
        let line = json!({"jsonrpc": "2.0", "method": "session/update", "params": params});
        self.said(worker, &line.to_string());
    }

    fn asks_permission(&mut self, worker: u32, session: &str) {
        let params = json!({"sessionId": session, "options": []});
        let line =
            json!({"jsonrpc": "2.0", "id": "p", "method": "session/request_permission", "params": params});
        self.said(worker, &line.to_string());
    }

    pub(super) fn closes(&mut self, client: u32, worker: u32, name: &str) {
        self.ask(client, 1_001, "session/close", &json!({"sessionId": name}));
        let id = self.last_id(worker);
        self.answer(worker, id, &json!({}));
        self.seen();
    }

    fn strike_count(&self) -> u64 {
        self.core.status(self.now).counters.strikes
    }
}

#[test]
fn a_history_is_asked_for_with_the_server_ids_of_the_session_whoever_controls_it() {
    let mut scene = mixed(1, Protocol::V1);
    let victim = scene.open_as("token:victim");
    let (one, two) = (scene.open_as("token:mallory"), scene.open_as("token:mallory"));
    scene.session_with_files(victim, 0, "v");
    let opened = scene.session_with_files(one, 0, "m");
    assert!(opened.contains(r#""serverId":"files~2""#), "{opened}");
    scene.ask(two, 1, "session/resume", &open_params("m"));
    scene.ask(two, 2, "session/prompt", &prompt("m"));
    let id = scene.last_id(0);
    scene.answer(0, id, &json!({"stopReason": "end_turn"}));
    scene.seen();
    scene.ask(one, 3, "session/load", &open_params("m"));
    let seen = scene.seen();
    assert!(seen.contains("session/load") && seen.contains(r#""serverId":"files~2""#), "{seen}");
}

#[test]
fn the_server_id_of_a_client_that_is_gone_is_not_given_out_while_a_session_has_it() {
    let mut scene = mixed(1, Protocol::V1);
    let (one, two) = (scene.open_as("token:mallory"), scene.open_as("token:mallory"));
    scene.session_with_files(one, 0, "m");
    scene.ask(two, 1, "session/resume", &open_params("m"));
    scene.leaves(one);
    let victim = scene.open_as("token:victim");
    let opened = scene.session_with_files(victim, 0, "v");
    assert!(opened.contains(r#""serverId":"files~2""#), "{opened}");
    let call = |server: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":"t","method":"mcp/message","params":{{"serverId":"{server}","method":"tools/call"}}}}"#
        )
    };
    scene.said(0, &call("files"));
    let seen = scene.seen();
    assert!(seen.starts_with(r#"w0 < {"jsonrpc":"2.0","id":"t","error":"#), "{seen}");
    assert_eq!(seen.lines().count(), 1, "{seen}");
    // Once the session is closed, the id is free.
    scene.closes(two, 0, "m");
    let opened = scene.session_with_files(victim, 0, "w");
    assert!(opened.contains(r#""serverId":"files~2""#), "the same server: {opened}");
    let third = scene.open_as("token:third");
    let opened = scene.session_with_files(third, 0, "x");
    assert!(opened.contains(r#""serverId":"files""#), "{opened}");
}

#[test]
fn no_key_of_a_server_is_passed_on_with_the_id_of_another_client() {
    let mut scene = mixed(1, Protocol::V1);
    let (victim, mallory) = (scene.open_as("token:victim"), scene.open_as("token:mallory"));
    scene.session_with_files(victim, 0, "v");
    let servers = json!([{"type": "acp", "name": "x", "serverId": "mine", "id": "files"}]);
    scene.ask(mallory, 1, "session/new", &json!({"cwd": "/", "mcpServers": servers}));
    let seen = scene.seen();
    assert!(!seen.contains(r#""files""#), "{seen}");
}

#[test]
fn a_fork_keeps_the_server_ids_of_its_session_in_use() {
    let mut scene = mixed(1, Protocol::V1);
    let mallory = scene.open_as("token:mallory");
    scene.session_with_files(mallory, 0, "m");
    scene.ask(mallory, 1, "session/fork", &json!({"sessionId": "m", "cwd": "/"}));
    let id = scene.last_id(0);
    scene.answer(0, id, &json!({"sessionId": "f"}));
    scene.closes(mallory, 0, "m");
    let victim = scene.open_as("token:victim");
    let opened = scene.session_with_files(victim, 0, "v");
    assert!(opened.contains(r#""serverId":"files~2""#), "{opened}");
}

#[test]
fn a_flood_of_closed_sessions_does_not_make_a_name_of_another_identity_unknown() {
    let mut scene = mixed(1, Protocol::V1);
    let (victim, mallory) = (scene.open_as("token:victim"), scene.open_as("token:mallory"));
    scene.session(victim, 0, "v");
    scene.announces(0, "v", "kid");
    for number in 0..1_100 {
        let name = format!("m{number}");
        scene.session(mallory, 0, &name);
        scene.closes(mallory, 0, &name);
    }
    scene.ask(mallory, 1, "session/new", &json!({"cwd": "/"}));
    scene.seen();
    scene.asks_permission(0, "kid");
    let seen = scene.seen();
    assert!(seen.starts_with(r#"w0 < {"jsonrpc":"2.0","id":"p","result":{"outcome""#), "{seen}");
    assert_eq!(seen.lines().count(), 1, "{seen}");
}

#[test]
fn a_request_for_an_unknown_session_is_nobodys_where_several_identities_are() {
    let mut scene = mixed(1, Protocol::V1);
    let mallory = scene.open_as("token:mallory");
    // The worker has had nobody else: there is only one whom it can mean.
    scene.ask(mallory, 1, "session/new", &json!({"cwd": "/"}));
    let id = scene.last_id(0);
    scene.seen();
    scene.asks_permission(0, "m");
    assert!(scene.seen().starts_with("c0 < "));
    scene.line(mallory, r#"{"jsonrpc":"2.0","id":1,"result":{"outcome":{"outcome":"cancelled"}}}"#);
    scene.answer(0, id, &json!({"sessionId": "m"}));
    let victim = scene.open_as("token:victim");
    scene.session(victim, 0, "v");
    scene.ask(mallory, 2, "session/new", &json!({"cwd": "/"}));
    let id = scene.last_id(0);
    scene.seen();
    scene.asks_permission(0, "kid");
    assert_eq!(scene.seen(), "");
    // What its session asks for comes after the answer that names the session.
    scene.answer(0, id, &json!({"sessionId": "kid"}));
    let seen = scene.seen();
    assert!(seen.contains("request_permission") && seen.contains(r#""sessionId":"kid""#), "{seen}");
}

#[test]
fn a_child_of_a_session_that_moved_on_is_still_known_where_it_was() {
    let mut settings = asking(vec![mixed_pool(1, Protocol::V2)]);
    let mut scene = mixed(1, Protocol::V2);
    let (victim, mallory) = (scene.open_as("token:victim"), scene.open_as("token:mallory"));
    scene.session(victim, 0, "v");
    scene.announces(0, "v", "kid");
    scene.session(mallory, 0, "m");
    scene.ask(mallory, 1, "session/new", &json!({"cwd": "/"}));
    settings.pools[0].env.insert("X".to_owned(), "2".to_owned());
    scene.core.reload(scene.now, &settings, &mut scene.sight);
    scene.up(1);
    scene.answer(1, 1, &abilities(Protocol::V2));
    scene.seen();
    scene.ask(victim, 2, "session/prompt", &prompt("v"));
    assert!(scene.seen().contains(RESUMED));
    for name in ["v", "kid"] {
        scene.asks_permission(0, name);
        let seen = scene.seen();
        assert!(seen.starts_with(r#"w0 < {"jsonrpc":"2.0","id":"p","result":{"outcome""#), "{seen}");
        assert_eq!(seen.lines().count(), 1, "{seen}");
    }
    assert_eq!(scene.strike_count(), 0);
}

#[test]
fn a_lost_session_is_not_restored_where_a_child_of_another_has_its_name() {
    let mut scene = mixed(2, Protocol::V2);
    let (victim, mallory) = (scene.open_as("token:victim"), scene.open_as("token:mallory"));
    scene.session(victim, 0, "v");
    scene.session(mallory, 1, "s2");
    scene.announces(0, "v", "s2");
    scene.dies(1);
    scene.seen();
    scene.ask(mallory, 1, "session/prompt", &prompt("s2"));
    let seen = scene.seen();
    assert!(!seen.contains("w0 < "), "{seen}");
    // It is restored in the next one, which has no such child.
    scene.pass(5.0);
    scene.up(1);
    scene.answer(1, 1, &abilities(Protocol::V2));
    let seen = scene.seen();
    assert!(seen.contains(RESUMED) && !seen.contains("w0 < "), "{seen}");
}

#[test]
fn a_lost_session_is_not_restored_where_a_closed_session_of_another_has_its_name() {
    let mut scene = mixed(2, Protocol::V1);
    let (victim, mallory) = (scene.open_as("token:victim"), scene.open_as("token:mallory"));
    scene.session(victim, 0, "s1");
    scene.session(mallory, 1, "s1");
    scene.closes(victim, 0, "s1");
    scene.dies(1);
    scene.seen();
    scene.ask(mallory, 1, "session/prompt", &prompt("s1~2"));
    let seen = scene.seen();
    assert!(!seen.contains("w0 < "), "{seen}");
}

#[test]
fn the_children_of_a_restored_session_do_not_take_names_that_another_had_there() {
    let mut scene = mixed(2, Protocol::V2);
    let (victim, mallory) = (scene.open_as("token:victim"), scene.open_as("token:mallory"));
    scene.session(victim, 0, "v");
    scene.session(mallory, 1, "m");
    scene.announces(1, "m", "kid");
    scene.announces(0, "v", "kid");
    // The agent goes on in the child of a session that is closed.
    scene.closes(victim, 0, "v");
    scene.dies(1);
    scene.ask(mallory, 1, "session/prompt", &prompt("m"));
    let id = scene.last_id(0);
    scene.answer(0, id, &json!({}));
    assert!(scene.seen().contains(RESUMED));
    scene.update(0, "kid", "secret");
    let seen = scene.seen();
    assert!(!seen.contains("secret"), "{seen}");
}

#[test]
fn a_load_is_not_tried_at_a_worker_that_gave_its_name_to_another() {
    let mut scene = mixed(2, Protocol::V1);
    let (victim, mallory) = (scene.open_as("token:victim"), scene.open_as("token:mallory"));
    scene.session(mallory, 0, "z");
    scene.closes(mallory, 0, "z");
    scene.ask(mallory, 1, "session/load", &open_params("z"));
    let load = scene.last_id(0);
    scene.session(victim, 1, "z");
    scene.fail(0, load, -32002);
    let seen = scene.seen();
    assert!(!seen.contains("w1 < "), "{seen}");
    assert!(seen.contains(r#"c1 < {"jsonrpc":"2.0","id":1,"error":{"code":-32002"#), "{seen}");
    // What the victim's session says is the victim's.
    scene.update(1, "z", "secret");
    assert!(scene.seen().starts_with("c0 < "));
}

#[test]
fn a_session_lost_by_a_reload_is_not_restored_as_one_that_another_has_closed() {
    for again in ["session/prompt", "session/load", "session/resume"] {
        let mut settings = asking(vec![mixed_pool(1, Protocol::V1)]);
        let mut scene = mixed(1, Protocol::V1);
        let (victim, mallory) = (scene.open_as("token:victim"), scene.open_as("token:mallory"));
        scene.session(mallory, 0, "s1");
        settings.pools[0].env.insert("X".to_owned(), "2".to_owned());
        scene.core.reload(scene.now, &settings, &mut scene.sight);
        scene.dies(0);
        scene.up(1);
        scene.answer(1, 1, &able());
        scene.session(victim, 1, "s1");
        scene.closes(victim, 1, "s1~2");
        let params = json!({"sessionId": "s1", "cwd": "/", "mcpServers": [], "prompt": []});
        scene.ask(mallory, 1, again, &params);
        let seen = scene.seen();
        assert!(!seen.contains("w1 < ") && seen.contains("-32002"), "{again}: {seen}");
    }
}

#[test]
fn a_new_session_wins_over_one_of_its_name_that_is_being_restored() {
    let mut scene = mixed(2, Protocol::V1);
    let (victim, mallory) = (scene.open_as("token:victim"), scene.open_as("token:mallory"));
    scene.session(mallory, 0, "s1");
    scene.dies(0);
    scene.seen();
    scene.ask(mallory, 1, "session/prompt", &prompt("s1"));
    let resume = scene.last_id(1);
    assert!(scene.seen().contains(RESUMED));
    scene.ask(victim, 1, "session/new", &json!({"cwd": "/"}));
    let new = scene.last_id(1);
    scene.seen();
    scene.answer(1, new, &json!({"sessionId": "s1"}));
    let seen = scene.seen();
    assert!(seen.contains(r#"c0 < {"jsonrpc":"2.0","id":1,"result":{"sessionId":"s1~2"}}"#), "{seen}");
    assert!(seen.contains(r#"c1 < {"jsonrpc":"2.0","id":1,"error":{"code":-32002"#), "{seen}");
    scene.answer(1, resume, &json!({}));
    scene.update(1, "s1", "secret");
    let seen = scene.seen();
    assert!(seen.starts_with("c0 < ") && seen.lines().count() == 1, "{seen}");
    assert_eq!(scene.strike_count(), 0);
}

#[test]
fn the_owner_of_a_turn_stops_it_after_its_listener_lost_the_pool() {
    let pools = ["p", "q"].map(|name| Pool { name: name.into(), ..mixed_pool(1, Protocol::V2) });
    let mut settings = asking(pools.into());
    settings.listen[0].pools = Some(vec!["p".into(), "q".into()]);
    let mut scene = Scene::new(&settings);
    for worker in 0..2 {
        scene.up(worker);
        scene.answer(worker, 1, &abilities(Protocol::V2));
    }
    let (one, other) = (scene.open_as("token:one"), scene.open_as("token:other"));
    scene.session(one, 0, "a");
    scene.announces(0, "a", "kid");
    scene.ask(one, 1, "session/prompt", &prompt("a"));
    settings.listen[0].pools = Some(vec!["q".into()]);
    scene.core.reload(scene.now, &settings, &mut scene.sight);
    scene.seen();
    for name in ["a", "kid"] {
        scene.note(other, "session/cancel", &json!({"sessionId": name}));
        assert_eq!(scene.seen(), "");
        scene.note(one, "session/cancel", &json!({"sessionId": name}));
        let seen = scene.seen();
        assert!(seen.starts_with("w0 < ") && seen.contains("session/cancel"), "{name}: {seen}");
    }
    scene.ask(one, 2, "session/prompt", &prompt("a"));
    assert!(!scene.seen().contains("w0 < "));
}

#[test]
fn a_child_wins_over_a_session_of_another_identity_that_is_being_opened_under_its_name() {
    let all = [Protocol::V1, Protocol::V2]
        .map(|protocol| [(protocol, "session/prompt"), (protocol, "session/resume")]);
    for (protocol, again) in all.into_iter().flatten() {
        let mut scene = mixed(2, protocol);
        let (victim, mallory) = (scene.open_as("token:victim"), scene.open_as("token:mallory"));
        scene.session(mallory, 0, "s2");
        scene.session(victim, 1, "v");
        scene.dies(0);
        scene.seen();
        scene.ask(mallory, 1, again, &json!({"sessionId": "s2", "cwd": "/", "prompt": []}));
        let resume = scene.last_id(1);
        assert!(scene.seen().contains(RESUMED));
        // The worker has not read that yet.
        scene.announces(1, "v", "s2");
        scene.answer(1, resume, &json!({}));
        let seen = scene.seen();
        assert!(!seen.contains("w1 < "), "{again}: {seen}");
        assert!(seen.contains(r#"c1 < {"jsonrpc":"2.0","id":1,"error":"#), "{again}: {seen}");
        scene.update(1, "s2", "secret");
        let seen = scene.seen();
        match protocol {
            // Clients of such a pool are not shown children.
            Protocol::V1 => assert_eq!(seen, "", "{again}"),
            _ => assert!(seen.starts_with("c0 < ") && seen.lines().count() == 1, "{again}: {seen}"),
        }
        assert_eq!(scene.strike_count(), 0);
    }
}
