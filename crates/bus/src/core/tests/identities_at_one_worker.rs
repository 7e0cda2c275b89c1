//! Agents that serve several identities and number their sessions. Whatever names a worker has used, no
//! message of one identity reaches another.

use super::identities::authenticating;
use super::*;

const RESUMED: &str = r#""method":"session/resume""#;

fn mixed_pool(workers: u32, protocol: PoolProtocol) -> Pool {
    Pool { instances: workers, protocol, mix_identities: true, ..pool(ShareMode::All) }
}

fn abilities(protocol: PoolProtocol) -> Value {
    match protocol {
        PoolProtocol::V2 => json!({"protocolVersion": 2, "capabilities": {"session": {}}}),
        _ => able(),
    }
}

/// Returns a bus with workers that each serve all identities.
pub(super) fn mixed(workers: u32, protocol: PoolProtocol) -> TestBus {
    let mut bus = TestBus::new(&authenticating(vec![mixed_pool(workers, protocol)]));
    for worker in 0..workers {
        bus.up(worker);
        bus.answer(worker, 1, &abilities(protocol));
    }
    bus.output.seen.clear();
    bus
}

fn files() -> Value {
    json!({"cwd": "/", "mcpServers": [{"type": "acp", "name": "files", "serverId": "files"}]})
}

fn open_params(session: &str) -> Value {
    json!({"sessionId": session, "cwd": "/", "mcpServers": []})
}

impl TestBus {
    /// Opens a session with a server of the client. Returns the request as the worker got it.
    fn session_with_files(&mut self, client: u32, worker: u32, name: &str) -> String {
        self.request(client, 1_000, "session/new", &files());
        let seen = self.seen();
        self.answer(worker, last_id_in(&seen, worker), &json!({"sessionId": name}));
        self.seen();
        seen
    }

    pub(super) fn announces(&mut self, worker: u32, parent: &str, child: &str) {
        let update = json!({"sessionUpdate": "subagent_update", "sessionId": child});
        let params = json!({"sessionId": parent, "update": update});
        let line = json!({"jsonrpc": "2.0", "method": "session/update", "params": params});
        self.worker_sends(worker, &line.to_string());
    }

    fn asks_permission(&mut self, worker: u32, session: &str) {
        let params = json!({"sessionId": session, "options": []});
        let line =
            json!({"jsonrpc": "2.0", "id": "p", "method": "session/request_permission", "params": params});
        self.worker_sends(worker, &line.to_string());
    }

    pub(super) fn closes(&mut self, client: u32, worker: u32, name: &str) {
        self.request(client, 1_001, "session/close", &json!({"sessionId": name}));
        let id = self.last_id(worker);
        self.answer(worker, id, &json!({}));
        self.seen();
    }

    fn strike_count(&self) -> u64 {
        self.core.status(self.now).counters.strikes
    }
}

#[test]
fn a_replay_is_requested_with_the_server_ids_of_the_session_after_a_change_of_controller() {
    let mut bus = mixed(1, PoolProtocol::V1);
    let victim = bus.open_as("token:victim");
    let (one, two) = (bus.open_as("token:mallory"), bus.open_as("token:mallory"));
    bus.session_with_files(victim, 0, "v");
    let opened = bus.session_with_files(one, 0, "m");
    assert!(opened.contains(r#""serverId":"files~2""#), "{opened}");
    bus.request(two, 1, "session/resume", &open_params("m"));
    bus.request(two, 2, "session/prompt", &prompt("m"));
    let id = bus.last_id(0);
    bus.answer(0, id, &json!({"stopReason": "end_turn"}));
    bus.seen();
    bus.request(one, 3, "session/load", &open_params("m"));
    let seen = bus.seen();
    assert!(seen.contains("session/load") && seen.contains(r#""serverId":"files~2""#), "{seen}");
}

#[test]
fn the_server_id_of_a_client_that_is_gone_is_not_given_out_while_a_session_has_it() {
    let mut bus = mixed(1, PoolProtocol::V1);
    let (one, two) = (bus.open_as("token:mallory"), bus.open_as("token:mallory"));
    bus.session_with_files(one, 0, "m");
    bus.request(two, 1, "session/resume", &open_params("m"));
    bus.disconnect(one);
    let victim = bus.open_as("token:victim");
    let opened = bus.session_with_files(victim, 0, "v");
    assert!(opened.contains(r#""serverId":"files~2""#), "{opened}");
    let call = |server: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":"t","method":"mcp/message","params":{{"serverId":"{server}","method":"tools/call"}}}}"#
        )
    };
    bus.worker_sends(0, &call("files"));
    let seen = bus.seen();
    assert!(seen.starts_with(r#"w0 < {"jsonrpc":"2.0","id":"t","error":"#), "{seen}");
    assert_eq!(seen.lines().count(), 1, "{seen}");
    // After the session is closed, another client's server may have the id.
    bus.closes(two, 0, "m");
    let opened = bus.session_with_files(victim, 0, "w");
    assert!(opened.contains(r#""serverId":"files~2""#), "the same server: {opened}");
    let third = bus.open_as("token:third");
    let opened = bus.session_with_files(third, 0, "x");
    assert!(opened.contains(r#""serverId":"files""#), "{opened}");
}

#[test]
fn no_key_of_a_server_is_passed_on_with_the_id_of_another_client() {
    let mut bus = mixed(1, PoolProtocol::V1);
    let (victim, mallory) = (bus.open_as("token:victim"), bus.open_as("token:mallory"));
    bus.session_with_files(victim, 0, "v");
    let servers = json!([{"type": "acp", "name": "x", "serverId": "mine", "id": "files"}]);
    bus.request(mallory, 1, "session/new", &json!({"cwd": "/", "mcpServers": servers}));
    let seen = bus.seen();
    assert!(!seen.contains(r#""files""#), "{seen}");
}

#[test]
fn a_fork_keeps_the_server_ids_of_its_session_in_use() {
    let mut bus = mixed(1, PoolProtocol::V1);
    let mallory = bus.open_as("token:mallory");
    bus.session_with_files(mallory, 0, "m");
    bus.request(mallory, 1, "session/fork", &json!({"sessionId": "m", "cwd": "/"}));
    let id = bus.last_id(0);
    bus.answer(0, id, &json!({"sessionId": "f"}));
    bus.closes(mallory, 0, "m");
    let victim = bus.open_as("token:victim");
    let opened = bus.session_with_files(victim, 0, "v");
    assert!(opened.contains(r#""serverId":"files~2""#), "{opened}");
}

#[test]
fn many_closed_sessions_do_not_displace_a_name_of_another_identity() {
    let mut bus = mixed(1, PoolProtocol::V1);
    let (victim, mallory) = (bus.open_as("token:victim"), bus.open_as("token:mallory"));
    bus.session(victim, 0, "v");
    bus.announces(0, "v", "kid");
    for number in 0..1_100 {
        let name = format!("m{number}");
        bus.session(mallory, 0, &name);
        bus.closes(mallory, 0, &name);
    }
    bus.request(mallory, 1, "session/new", &json!({"cwd": "/"}));
    bus.seen();
    bus.asks_permission(0, "kid");
    let seen = bus.seen();
    assert!(seen.starts_with(r#"w0 < {"jsonrpc":"2.0","id":"p","result":{"outcome""#), "{seen}");
    assert_eq!(seen.lines().count(), 1, "{seen}");
}

#[test]
fn a_request_for_an_unknown_session_reaches_no_client_where_identities_share_a_worker() {
    let mut bus = mixed(1, PoolProtocol::V1);
    let mallory = bus.open_as("token:mallory");
    // The worker has served no other identity, so the client of the request is the only possible recipient.
    bus.request(mallory, 1, "session/new", &json!({"cwd": "/"}));
    let id = bus.last_id(0);
    bus.seen();
    bus.asks_permission(0, "m");
    assert!(bus.seen().starts_with("c0 < "));
    bus.line(mallory, r#"{"jsonrpc":"2.0","id":1,"result":{"outcome":{"outcome":"cancelled"}}}"#);
    bus.answer(0, id, &json!({"sessionId": "m"}));
    let victim = bus.open_as("token:victim");
    bus.session(victim, 0, "v");
    bus.request(mallory, 2, "session/new", &json!({"cwd": "/"}));
    let id = bus.last_id(0);
    bus.seen();
    bus.asks_permission(0, "kid");
    assert_eq!(bus.seen(), "");
    // The agent's request reaches the client after the response that names the session.
    bus.answer(0, id, &json!({"sessionId": "kid"}));
    let seen = bus.seen();
    assert!(seen.contains("request_permission") && seen.contains(r#""sessionId":"kid""#), "{seen}");
}

#[test]
fn a_child_of_a_session_that_moved_on_is_still_known_where_it_was() {
    let mut settings = authenticating(vec![mixed_pool(1, PoolProtocol::V2)]);
    let mut bus = mixed(1, PoolProtocol::V2);
    let (victim, mallory) = (bus.open_as("token:victim"), bus.open_as("token:mallory"));
    bus.session(victim, 0, "v");
    bus.announces(0, "v", "kid");
    bus.session(mallory, 0, "m");
    bus.request(mallory, 1, "session/new", &json!({"cwd": "/"}));
    settings.pools[0].env.insert("X".to_owned(), "2".to_owned());
    bus.core.reload(bus.now, &settings, &mut bus.output);
    bus.up(1);
    bus.answer(1, 1, &abilities(PoolProtocol::V2));
    bus.seen();
    bus.request(victim, 2, "session/prompt", &prompt("v"));
    assert!(bus.seen().contains(RESUMED));
    for name in ["v", "kid"] {
        bus.asks_permission(0, name);
        let seen = bus.seen();
        assert!(seen.starts_with(r#"w0 < {"jsonrpc":"2.0","id":"p","result":{"outcome""#), "{seen}");
        assert_eq!(seen.lines().count(), 1, "{seen}");
    }
    assert_eq!(bus.strike_count(), 0);
}

#[test]
fn a_lost_session_is_not_restored_where_a_child_of_another_has_its_name() {
    let mut bus = mixed(2, PoolProtocol::V2);
    let (victim, mallory) = (bus.open_as("token:victim"), bus.open_as("token:mallory"));
    bus.session(victim, 0, "v");
    bus.session(mallory, 1, "s2");
    bus.announces(0, "v", "s2");
    bus.kill_worker(1);
    bus.seen();
    bus.request(mallory, 1, "session/prompt", &prompt("s2"));
    let seen = bus.seen();
    assert!(!seen.contains("w0 < "), "{seen}");
    // The next worker has no such child, so the session is restored there.
    bus.advance(5.0);
    bus.up(1);
    bus.answer(1, 1, &abilities(PoolProtocol::V2));
    let seen = bus.seen();
    assert!(seen.contains(RESUMED) && !seen.contains("w0 < "), "{seen}");
}

#[test]
fn a_lost_session_is_not_restored_where_a_closed_session_of_another_has_its_name() {
    let mut bus = mixed(2, PoolProtocol::V1);
    let (victim, mallory) = (bus.open_as("token:victim"), bus.open_as("token:mallory"));
    bus.session(victim, 0, "s1");
    bus.session(mallory, 1, "s1");
    bus.closes(victim, 0, "s1");
    bus.kill_worker(1);
    bus.seen();
    bus.request(mallory, 1, "session/prompt", &prompt("s1~2"));
    let seen = bus.seen();
    assert!(!seen.contains("w0 < "), "{seen}");
}

#[test]
fn the_children_of_a_restored_session_do_not_take_names_that_another_had_there() {
    let mut bus = mixed(2, PoolProtocol::V2);
    let (victim, mallory) = (bus.open_as("token:victim"), bus.open_as("token:mallory"));
    bus.session(victim, 0, "v");
    bus.session(mallory, 1, "m");
    bus.announces(1, "m", "kid");
    bus.announces(0, "v", "kid");
    // The agent sends messages in a child whose session is closed.
    bus.closes(victim, 0, "v");
    bus.kill_worker(1);
    bus.request(mallory, 1, "session/prompt", &prompt("m"));
    let id = bus.last_id(0);
    bus.answer(0, id, &json!({}));
    assert!(bus.seen().contains(RESUMED));
    bus.update(0, "kid", "secret");
    let seen = bus.seen();
    assert!(!seen.contains("secret"), "{seen}");
}

#[test]
fn a_load_is_not_tried_at_a_worker_that_gave_its_name_to_another() {
    let mut bus = mixed(2, PoolProtocol::V1);
    let (victim, mallory) = (bus.open_as("token:victim"), bus.open_as("token:mallory"));
    bus.session(mallory, 0, "z");
    bus.closes(mallory, 0, "z");
    bus.request(mallory, 1, "session/load", &open_params("z"));
    let load = bus.last_id(0);
    bus.session(victim, 1, "z");
    bus.fail(0, load, -32002);
    let seen = bus.seen();
    assert!(!seen.contains("w1 < "), "{seen}");
    assert!(seen.contains(r#"c1 < {"jsonrpc":"2.0","id":1,"error":{"code":-32002"#), "{seen}");
    // Messages of the victim's session still reach the victim.
    bus.update(1, "z", "secret");
    assert!(bus.seen().starts_with("c0 < "));
}

#[test]
fn a_session_lost_by_a_reload_is_not_restored_as_one_that_another_has_closed() {
    for again in ["session/prompt", "session/load", "session/resume"] {
        let mut settings = authenticating(vec![mixed_pool(1, PoolProtocol::V1)]);
        let mut bus = mixed(1, PoolProtocol::V1);
        let (victim, mallory) = (bus.open_as("token:victim"), bus.open_as("token:mallory"));
        bus.session(mallory, 0, "s1");
        settings.pools[0].env.insert("X".to_owned(), "2".to_owned());
        bus.core.reload(bus.now, &settings, &mut bus.output);
        bus.kill_worker(0);
        bus.up(1);
        bus.answer(1, 1, &able());
        bus.session(victim, 1, "s1");
        bus.closes(victim, 1, "s1~2");
        let params = json!({"sessionId": "s1", "cwd": "/", "mcpServers": [], "prompt": []});
        bus.request(mallory, 1, again, &params);
        let seen = bus.seen();
        assert!(!seen.contains("w1 < ") && seen.contains("-32002"), "{again}: {seen}");
    }
}

#[test]
fn a_new_session_ends_the_restore_of_one_with_the_same_name() {
    let mut bus = mixed(2, PoolProtocol::V1);
    let (victim, mallory) = (bus.open_as("token:victim"), bus.open_as("token:mallory"));
    bus.session(mallory, 0, "s1");
    bus.kill_worker(0);
    bus.seen();
    bus.request(mallory, 1, "session/prompt", &prompt("s1"));
    let resume = bus.last_id(1);
    assert!(bus.seen().contains(RESUMED));
    bus.request(victim, 1, "session/new", &json!({"cwd": "/"}));
    let new = bus.last_id(1);
    bus.seen();
    bus.answer(1, new, &json!({"sessionId": "s1"}));
    let seen = bus.seen();
    assert!(seen.contains(r#"c0 < {"jsonrpc":"2.0","id":1,"result":{"sessionId":"s1~2"}}"#), "{seen}");
    assert!(seen.contains(r#"c1 < {"jsonrpc":"2.0","id":1,"error":{"code":-32002"#), "{seen}");
    bus.answer(1, resume, &json!({}));
    bus.update(1, "s1", "secret");
    let seen = bus.seen();
    assert!(seen.starts_with("c0 < ") && seen.lines().count() == 1, "{seen}");
    assert_eq!(bus.strike_count(), 0);
}

#[test]
fn the_owner_of_a_turn_stops_it_after_its_listener_lost_the_pool() {
    let pools = ["p", "q"].map(|name| Pool { name: name.into(), ..mixed_pool(1, PoolProtocol::V2) });
    let mut settings = authenticating(pools.into());
    settings.listen[0].pools = Some(vec!["p".into(), "q".into()]);
    let mut bus = TestBus::new(&settings);
    for worker in 0..2 {
        bus.up(worker);
        bus.answer(worker, 1, &abilities(PoolProtocol::V2));
    }
    let (one, other) = (bus.open_as("token:one"), bus.open_as("token:other"));
    bus.session(one, 0, "a");
    bus.announces(0, "a", "kid");
    bus.request(one, 1, "session/prompt", &prompt("a"));
    settings.listen[0].pools = Some(vec!["q".into()]);
    bus.core.reload(bus.now, &settings, &mut bus.output);
    bus.seen();
    for name in ["a", "kid"] {
        bus.notify(other, "session/cancel", &json!({"sessionId": name}));
        assert_eq!(bus.seen(), "");
        bus.notify(one, "session/cancel", &json!({"sessionId": name}));
        let seen = bus.seen();
        assert!(seen.starts_with("w0 < ") && seen.contains("session/cancel"), "{name}: {seen}");
    }
    bus.request(one, 2, "session/prompt", &prompt("a"));
    assert!(!bus.seen().contains("w0 < "));
}

#[test]
fn a_child_cancels_the_opening_of_another_identitys_session_with_its_name() {
    let all = [PoolProtocol::V1, PoolProtocol::V2]
        .map(|protocol| [(protocol, "session/prompt"), (protocol, "session/resume")]);
    for (protocol, again) in all.into_iter().flatten() {
        let mut bus = mixed(2, protocol);
        let (victim, mallory) = (bus.open_as("token:victim"), bus.open_as("token:mallory"));
        bus.session(mallory, 0, "s2");
        bus.session(victim, 1, "v");
        bus.kill_worker(0);
        bus.seen();
        bus.request(mallory, 1, again, &json!({"sessionId": "s2", "cwd": "/", "prompt": []}));
        let resume = bus.last_id(1);
        assert!(bus.seen().contains(RESUMED));
        // The worker announces the child before it reads the request.
        bus.announces(1, "v", "s2");
        bus.answer(1, resume, &json!({}));
        let seen = bus.seen();
        assert!(!seen.contains("w1 < "), "{again}: {seen}");
        assert!(seen.contains(r#"c1 < {"jsonrpc":"2.0","id":1,"error":"#), "{again}: {seen}");
        bus.update(1, "s2", "secret");
        let seen = bus.seen();
        match protocol {
            // In version 1, these clients do not show child sessions.
            PoolProtocol::V1 => assert_eq!(seen, "", "{again}"),
            _ => assert!(seen.starts_with("c0 < ") && seen.lines().count() == 1, "{again}: {seen}"),
        }
        assert_eq!(bus.strike_count(), 0);
    }
}
