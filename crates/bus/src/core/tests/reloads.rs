//! Reloads that change, reorder, add and remove pools, and the clients of those pools.

use super::super::state::WorkerLifecycle;
use super::*;

fn named(name: &str, program: &str, share: ShareMode) -> Pool {
    Pool { share, ..Pool::new(name, vec![program.into()]) }
}

impl TestBus {
    fn reload(&mut self, pools: Vec<Pool>) {
        self.core.reload(self.now, &config(pools), &mut self.output);
    }

    fn pool_of(&self, client: u32) -> Option<&str> {
        let pool = self.core.clients.get(self.core.clients.key_at(client)?)?.pool?;
        Some(&self.core.pool_of(pool).settings.name)
    }
}

#[test]
fn the_first_pool_of_the_file_serves_clients_that_name_none() {
    /// Loads `files` one after the other. Each of them lists pools with their programs.
    #[track_caller]
    fn check(files: &[&str]) {
        for share in [ShareMode::All, ShareMode::Connection, ShareMode::Session] {
            let pools = |file: &str| -> Vec<Pool> {
                let words = file.split(' ').map(|word| word.split_once('=').unwrap_or((word, "x")));
                words.map(|(name, program)| named(name, program, share)).collect()
            };
            let mut bus = TestBus::new(&config(pools(files[0])));
            for (number, file) in files.iter().enumerate() {
                if number > 0 {
                    bus.reload(pools(file));
                }
                let names: Vec<String> = pools(file).into_iter().map(|pool| pool.name).collect();
                let client = bus.open();
                bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
                assert_eq!(bus.pool_of(client), Some(&*names[0]), "{files:?}, {file}, {share:?}");
                let status = bus.core.status(bus.now).pools;
                let there = status.into_iter().filter(|pool| pool.state != "leaving");
                assert_eq!(there.map(|pool| pool.name).collect::<Vec<_>>(), names, "{files:?}, {file}");
            }
        }
    }
    check(&["a b", "a=y b"]);
    check(&["a b", "a=y b", "a=y b=y", "b=y a=y"]);
    check(&["a b", "b a", "a b"]);
    check(&["a b", "new a b", "new=y a b"]);
    check(&["a b c", "b c", "c a b"]);
    check(&["a", "b", "a"]);
}

fn with_session(share: ShareMode) -> (TestBus, u32) {
    let mut bus = TestBus::new(&config(vec![named("p", "x", share)]));
    bus.up(0);
    let client = bus.open();
    if share == ShareMode::All {
        bus.answer(0, 1, &able());
        bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
    } else {
        bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
        bus.answer(0, 1, &able());
    }
    bus.request(client, 2, "session/new", &json!({"cwd": "/"}));
    bus.answer(0, 2, &json!({"sessionId": "a"}));
    (bus, client)
}

/// Starts all workers that were ordered, and initializes the shared ones. Returns the numbers of the workers.
fn started(bus: &mut TestBus) -> Vec<u32> {
    let seen = bus.seen();
    let number = |line: &str| line.strip_prefix("Spawn { worker: WorkerId(")?.split(')').next()?.parse().ok();
    let workers: Vec<u32> = seen.lines().filter_map(number).collect();
    for worker in &workers {
        bus.up(*worker);
        if bus.seen().contains("\"initialize\"") {
            bus.answer(*worker, 1, &able());
        }
    }
    bus.seen();
    workers
}

#[test]
fn a_client_of_a_removed_pool_starts_again_with_initialize() {
    for share in [ShareMode::All, ShareMode::Connection, ShareMode::Session] {
        for (named_pool, meta) in [("q", json!({})), ("r", json!({"narrows/pool": "r"}))] {
            let (mut bus, client) = with_session(share);
            bus.request(client, 3, "authenticate", &json!({"methodId": "x"}));
            bus.answer(0, 3, &json!({}));
            bus.seen();
            bus.reload(vec![named("q", "x", share), named("r", "x", share)]);
            let workers = started(&mut bus);
            bus.request(client, 4, "session/new", &json!({"cwd": "/"}));
            assert!(bus.seen().contains("pool of this connection was removed"), "{share:?}");
            bus.request(client, 5, "initialize", &json!({"protocolVersion": 1, "_meta": meta}));
            assert_eq!(bus.pool_of(client), Some(named_pool), "{share:?}");
            let worker = workers[usize::from(named_pool == "r")];
            let seen = bus.seen();
            if share == ShareMode::All {
                assert!(seen.starts_with(r#"c0 < {"jsonrpc":"2.0","id":5,"result":"#), "{seen}");
            } else {
                // The worker gets `initialize` once, and nothing that was sent to removed workers.
                assert!(seen.contains(&format!(r#"w{worker} < {{"jsonrpc":"2.0","id":1,"#)), "{seen}");
                assert_eq!(seen.matches("\"initialize\"").count(), 1, "{seen}");
                assert!(!seen.contains("authenticate"), "{seen}");
                bus.answer(worker, 1, &able());
            }
            bus.seen();
            bus.request(client, 6, "session/new", &json!({"cwd": "/"}));
            let seen = bus.seen();
            assert!(seen.starts_with(&format!("w{worker} < ")), "{share:?}: {seen}");
        }
    }
}

#[test]
fn a_worker_of_a_removed_pool_is_stopped_when_its_client_starts_again_without_sessions() {
    for share in [ShareMode::Connection, ShareMode::Session] {
        for has_session in [false, true] {
            let (mut bus, client) = with_session(share);
            if !has_session {
                bus.request(client, 3, "session/close", &json!({"sessionId": "a"}));
                bus.answer(0, 3, &json!({}));
            }
            bus.seen();
            bus.reload(vec![named("q", "x", share)]);
            let workers = started(&mut bus);
            bus.request(client, 5, "initialize", &json!({"protocolVersion": 1}));
            bus.answer(workers[0], 1, &able());
            bus.seen();
            let worker = bus.core.workers.key_at(0).unwrap();
            let state = bus.core.worker(worker).map(|state| state.stage);
            let expected = if has_session { WorkerLifecycle::Ready } else { WorkerLifecycle::Stopping };
            assert_eq!(state, Some(expected), "{share:?}");
            if has_session {
                bus.request(client, 6, "session/prompt", &prompt("a"));
                assert!(bus.seen().starts_with("w0 < "), "{share:?}");
                bus.answer(0, 3, &json!({"stopReason": "end_turn"}));
                bus.request(client, 7, "session/close", &json!({"sessionId": "a"}));
                bus.answer(0, 4, &json!({}));
                let seen = bus.seen();
                assert!(seen.contains("Stop { worker: WorkerId(0), kill: false }"), "{share:?}: {seen}");
            }
        }
    }
}

#[test]
fn a_pool_that_is_added_again_serves_its_former_clients() {
    for share in [ShareMode::All, ShareMode::Connection, ShareMode::Session] {
        for program in ["x", "y"] {
            let (mut bus, client) = with_session(share);
            bus.reload(vec![named("q", "x", share)]);
            bus.request(client, 3, "session/new", &json!({"cwd": "/"}));
            assert!(bus.seen().contains("pool of this connection was removed"), "{share:?}");
            bus.reload(vec![named("q", "x", share), named("p", program, share)]);
            let workers = started(&mut bus);
            if share == ShareMode::All {
                bus.kill_worker(0);
            }
            bus.seen();
            bus.request(client, 4, "session/new", &json!({"cwd": "/"}));
            assert_eq!(bus.pool_of(client), Some("p"));
            let worker = if share == ShareMode::Connection { 0 } else { *workers.last().unwrap() };
            let seen = bus.seen();
            assert!(seen.contains(&format!("w{worker} < ")), "{share:?}: {seen}");
            // The session from before the reload is still usable.
            bus.request(client, 5, "session/prompt", &prompt("a"));
            let seen = bus.seen();
            let expected = if share == ShareMode::All { format!("w{worker} < ") } else { "w0 < ".to_owned() };
            assert!(seen.starts_with(&expected), "{share:?}: {seen}");
        }
    }
}

#[test]
fn unclaimed_workers_are_stopped_when_fewer_are_configured() {
    /// Checks which workers are stopped when the settings become `instances` and, as the maximum, `most`. Of
    /// four workers, `up` run and `claimed` have a client.
    #[track_caller]
    fn check(up: u32, claimed: u64, (instances, most): (u32, u32), stopped: &[u32]) {
        for share in [ShareMode::Connection, ShareMode::Session] {
            let with =
                |instances, max_instances| vec![Pool { instances, max_instances, ..named("p", "x", share) }];
            let mut bus = TestBus::new(&config(with(4, 256)));
            (0..up).for_each(|worker| bus.up(worker));
            for _ in 0..claimed {
                let client = bus.open();
                bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
            }
            bus.seen();
            bus.reload(with(instances, most));
            let expected: Vec<String> = stopped
                .iter()
                .map(|worker| format!("Stop {{ worker: WorkerId({worker}), kill: false }}"))
                .collect();
            assert_eq!(bus.seen(), expected.join("\n"), "{share:?}");
        }
    }
    check(4, 0, (4, 256), &[]);
    check(4, 0, (1, 256), &[3, 2, 1]);
    check(4, 0, (3, 256), &[3]);
    // Workers that are not ready are stopped first.
    check(2, 0, (1, 256), &[3, 2, 1]);
    check(2, 0, (2, 256), &[3, 2]);
    // For each claimed worker, one more was started before the reload.
    check(4, 1, (2, 256), &[4, 3]);
    check(4, 2, (1, 256), &[5, 4, 3]);
    check(4, 2, (1, 2), &[5, 4, 3, 2]);
}

#[test]
fn workers_that_clients_wait_for_are_not_stopped() {
    let with = |instances| vec![Pool { instances, ..named("p", "x", ShareMode::Connection) }];
    let mut bus = TestBus::new(&config(with(3)));
    for _ in 0..2 {
        let client = bus.open();
        bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
    }
    bus.seen();
    bus.reload(with(1));
    let free = bus.core.workers.iter().filter(|(_, state)| state.stage == WorkerLifecycle::Starting).count();
    assert_eq!(free, 3, "one free worker per waiting client, and one to be ready");
}

#[test]
fn after_a_reload_a_connection_keeps_its_worker_and_a_new_session_gets_a_new_one() {
    for share in [ShareMode::Connection, ShareMode::Session] {
        for has_session in [false, true] {
            let (mut bus, client) = with_session(share);
            if !has_session {
                bus = TestBus::new(&config(vec![named("p", "x", share)]));
                bus.up(0);
                assert_eq!(bus.open(), client);
                bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
                bus.answer(0, 1, &able());
            }
            bus.seen();
            bus.reload(vec![named("p", "y", share)]);
            let seen = bus.seen();
            let is_stopped = seen.contains("Stop { worker: WorkerId(0)");
            assert_eq!(is_stopped, share == ShareMode::Session && !has_session, "{share:?}: {seen}");
            bus.output.seen = seen.lines().map(str::to_owned).collect();
            let workers = started(&mut bus);
            let worker = if share == ShareMode::Session { *workers.last().unwrap() } else { 0 };
            bus.request(client, 4, "session/new", &json!({"cwd": "/"}));
            let seen = bus.seen();
            assert!(seen.contains(&format!("w{worker} < ")), "{share:?}: {seen}");
            if share == ShareMode::Session {
                assert!(seen.contains("\"initialize\""), "{seen}");
                bus.answer(worker, 1, &able());
                assert!(
                    bus.seen()
                        .contains(&format!(r#"w{worker} < {{"jsonrpc":"2.0","id":2,"method":"session/new""#))
                );
            }
            if has_session {
                bus.request(client, 5, "session/prompt", &prompt("a"));
                assert!(bus.seen().starts_with("w0 < "), "{share:?}");
            }
            // A new client does not get a worker from before the reload.
            let other = bus.open();
            bus.request(other, 1, "initialize", &json!({"protocolVersion": 1}));
            assert!(!bus.seen().contains("w0 < "), "{share:?}");
        }
    }
}

/// Returns a bus with a shared pool of one worker with the capabilities of `answer`, and an initialized
/// client with session `a`.
fn shared_with_session(answer: &Value) -> (TestBus, u32) {
    let mut bus = TestBus::new(&config(vec![pool(ShareMode::All)]));
    bus.up(0);
    bus.answer(0, 1, answer);
    let client = bus.open();
    let version = json!({"protocolVersion": 2, "clientCapabilities": {"terminal": true}});
    bus.request(client, 0, "initialize", &version);
    bus.session(client, 0, "a");
    (bus, client)
}

#[test]
fn initialize_is_repeated_to_the_workers_of_a_pool_that_is_no_longer_shared() {
    for share in [ShareMode::Connection, ShareMode::Session] {
        let (mut bus, client) = shared_with_session(&able());
        bus.core.reload(bus.now, &config(vec![pool(share)]), &mut bus.output);
        assert!(bus.seen().contains("Spawn { worker: WorkerId(1)"));
        bus.up(1);
        bus.seen();
        // A session from before the reload gets a prompt, and a new session is opened.
        bus.request(client, 1, "session/prompt", &prompt("a"));
        let seen = bus.seen();
        let initialize =
            r#""method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"terminal":true}}"#;
        assert!(seen.contains("w1 < ") && seen.contains(initialize), "{share:?}: {seen}");
        bus.answer(1, 1, &able());
        assert!(bus.seen().contains("session/resume"));
        bus.answer(1, 2, &json!({}));
        assert!(bus.seen().contains("session/prompt"));
        bus.answer(1, 3, &json!({"stopReason": "end_turn"}));
        assert!(bus.seen().contains(r#"c0 < {"jsonrpc":"2.0","id":1,"result""#));
        bus.request(client, 2, "session/new", &json!({"cwd": "/"}));
        let worker = if share == ShareMode::Session { 2 } else { 1 };
        if share == ShareMode::Session {
            bus.up(worker);
            assert!(bus.seen().contains(initialize));
            bus.answer(worker, 1, &able());
        }
        let id = bus.last_id(worker);
        assert!(bus.seen().contains("session/new"));
        bus.answer(worker, id, &json!({"sessionId": "b"}));
        assert!(bus.seen().contains(r#"c0 < {"jsonrpc":"2.0","id":2,"result""#));
    }
}

#[test]
fn before_initialize_no_other_request_is_served_in_a_shared_pool() {
    let mut bus = TestBus::shared(1);
    let former = bus.open();
    bus.session(former, 0, "a");
    bus.disconnect(former);
    bus.seen();
    let from = ClientInfo::new(0, ANYONE);
    let client = bus.core.client_open(bus.now, from, &mut bus.output).unwrap().0;
    let none = json!({"cwd": "/"});
    let (one, prompt) = (json!({"sessionId": "a", "cwd": "/"}), prompt("a"));
    for (id, (method, params)) in (10..).zip([
        ("session/new", &none),
        ("session/list", &none),
        ("_x/y", &none),
        ("session/resume", &one),
        ("session/load", &one),
        ("session/prompt", &prompt),
        ("session/close", &one),
        ("session/delete", &one),
        ("_x/y", &one),
    ]) {
        bus.request(client, id, method, params);
        let seen = bus.seen();
        assert!(seen.contains("-32602") && !seen.contains("w0 < "), "{method}: {seen}");
    }
    bus.request(client, 4, "initialize", &json!({"protocolVersion": 1}));
    bus.seen();
    bus.request(client, 5, "session/new", &json!({"cwd": "/"}));
    assert!(bus.seen().starts_with("w0 < "));
    bus.request(client, 6, "session/resume", &one);
    assert!(bus.seen().starts_with("w0 < "));
}

#[test]
fn before_initialize_no_session_of_another_connection_is_resumed_in_any_pool() {
    for share in [ShareMode::Connection, ShareMode::Session] {
        let mut bus = TestBus::new(&config(vec![pool(share)]));
        bus.up(0);
        let former = bus.open();
        bus.request(former, 1, "initialize", &json!({"protocolVersion": 1}));
        let id = bus.last_id(0);
        bus.answer(0, id, &able());
        bus.session(former, 0, "a");
        bus.disconnect(former);
        let next = bus.open();
        bus.seen();
        bus.request(next, 1, "session/resume", &json!({"sessionId": "a", "cwd": "/"}));
        let seen = bus.seen();
        assert!(seen.contains("-32602") && !seen.contains("w0 < "), "{share:?}: {seen}");
    }
}

#[test]
fn a_removed_shared_pool_ends_after_its_timeout_despite_an_idle_session() {
    let unable = json!({"protocolVersion": 1, "agentCapabilities": {}});
    let (mut bus, client) = shared_with_session(&unable);
    let other = Pool { name: "other".into(), ..pool(ShareMode::All) };
    bus.core.reload(bus.now, &config(vec![other]), &mut bus.output);
    bus.seen();
    bus.request(client, 1, "session/prompt", &prompt("a"));
    let id = bus.last_id(0);
    bus.answer(0, id, &json!({"stopReason": "end_turn"}));
    bus.seen();
    bus.advance(29.0);
    assert!(!bus.seen().contains("Stop"));
    bus.advance(2.0);
    assert!(bus.seen().contains("Stop { worker: WorkerId(0)"));
    bus.request(client, 2, "session/prompt", &prompt("a"));
    assert!(bus.seen().contains("-32002"));
}

/// The agent can load sessions in one case, and not in the other.
#[test]
fn a_turn_that_runs_when_its_shared_pool_is_removed_ends_by_itself() {
    for agent in [able(), json!({"protocolVersion": 1, "agentCapabilities": {}})] {
        let (mut bus, client) = shared_with_session(&agent);
        bus.session(client, 0, "idle");
        bus.request(client, 1, "session/prompt", &prompt("a"));
        let id = bus.last_id(0);
        let other = Pool { name: "other".into(), ..pool(ShareMode::All) };
        bus.core.reload(bus.now, &config(vec![other]), &mut bus.output);
        bus.advance(100.0);
        let seen = bus.seen();
        assert!(!seen.contains("Stop { worker: WorkerId(0)") && !seen.contains("-32010"), "{seen}");
        // No other turn is started in the worker of the removed pool.
        bus.request(client, 2, "session/prompt", &prompt("idle"));
        let seen = bus.seen();
        assert!(seen.contains("-32002") && !seen.contains("w0 <"), "{seen}");
        bus.answer(0, id, &json!({"stopReason": "end_turn"}));
        let seen = bus.seen();
        assert!(seen.contains("end_turn") && seen.contains("Stop { worker: WorkerId(0)"), "{seen}");
    }
}

#[test]
fn a_replaced_shared_worker_stays_while_a_client_has_a_session_that_cannot_be_loaded() {
    let (mut bus, client) = shared_with_session(&json!({"protocolVersion": 1, "agentCapabilities": {}}));
    let changed = Pool { command: vec!["other".into()], ..pool(ShareMode::All) };
    bus.core.reload(bus.now, &config(vec![changed]), &mut bus.output);
    bus.advance(1000.0);
    assert!(!bus.seen().contains("Stop { worker: WorkerId(0)"));
    bus.request(client, 1, "session/prompt", &prompt("a"));
    let id = bus.last_id(0);
    bus.answer(0, id, &json!({"stopReason": "end_turn"}));
    bus.seen();
    bus.disconnect(client);
    bus.advance(1000.0);
    assert!(bus.seen().contains("Stop { worker: WorkerId(0)"));
}
