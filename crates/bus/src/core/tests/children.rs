//! Child sessions, which agents announce within sessions of clients.

use super::*;

/// Returns a bus with a shared pool that has this number of workers, all of which speak version 2.
fn version_two_bus(workers: u32, listen: Vec<ListenerSettings>) -> TestBus {
    let pool =
        Pool { instances: workers, protocol: PoolProtocol::V2, mix_identities: true, ..pool(ShareMode::All) };
    let mut bus = TestBus::new(&Config { listen, ..config(vec![pool]) });
    for worker in 0..workers {
        bus.up(worker);
        bus.answer(worker, 1, &json!({"protocolVersion": 2, "capabilities": {"session": {}}}));
    }
    bus.output.seen.clear();
    bus
}

fn bus() -> TestBus {
    version_two_bus(1, vec![ListenerSettings::new(crate::config::ListenAddr::Stdio)])
}

impl TestBus {
    fn announce(&mut self, worker: u32, parent: &str, child: &str) {
        let update = json!({"sessionUpdate": "subagent_update", "sessionId": child});
        let params = json!({"sessionId": parent, "update": update});
        self.worker_sends(
            worker,
            &json!({"jsonrpc": "2.0", "method": "session/update", "params": params}).to_string(),
        );
    }

    fn permission(&mut self, worker: u32, session: &str) {
        let params = json!({"sessionId": session, "options": []});
        let line =
            json!({"jsonrpc": "2.0", "id": "p", "method": "session/request_permission", "params": params});
        self.worker_sends(worker, &line.to_string());
    }

    fn strikes(&self) -> u64 {
        self.core.status(self.now).counters.strikes
    }
}

#[test]
fn messages_in_an_announced_child_reach_the_client_of_its_parent() {
    let mut bus = bus();
    let (one, two) = (bus.open(), bus.open());
    bus.session(one, 0, "a");
    bus.session(two, 0, "b");
    bus.announce(0, "a", "kid");
    bus.announce(0, "kid", "grandkid");
    bus.seen();
    for name in ["kid", "grandkid", "kid", "a", "b"] {
        bus.update(0, name, "hi");
    }
    bus.permission(0, "grandkid");
    bus.line(one, r#"{"jsonrpc":"2.0","id":1,"result":{"outcome":{"outcome":"cancelled"}}}"#);
    bus.notify(one, "session/cancel", &json!({"sessionId": "kid"}));
    bus.request(one, 7, "_x/look", &json!({"sessionId": "grandkid"}));
    assert_eq!(
        bus.seen(),
        r#"c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"kid","update":"hi"}}
c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"grandkid","update":"hi"}}
c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"kid","update":"hi"}}
c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"hi"}}
c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"b","update":"hi"}}
c0 < {"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":{"sessionId":"grandkid","options":[]}}
w0 < {"jsonrpc":"2.0","id":"p","result":{"outcome":{"outcome":"cancelled"}}}
w0 < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"kid"}}
w0 < {"jsonrpc":"2.0","id":4,"method":"_x/look","params":{"sessionId":"grandkid"}}"#
    );
    // Another connection of the same identity may use a child session, as it may use the parent.
    bus.request(two, 8, "_x/look", &json!({"sessionId": "kid"}));
    assert!(bus.seen().contains("session_in_use"));
    assert_eq!(bus.strikes(), 0);
}

#[test]
fn a_session_that_was_never_announced_is_a_protocol_violation() {
    let mut bus = bus();
    let one = bus.open();
    bus.session(one, 0, "a");
    // A child that is announced in an unknown session is not known to the bus.
    bus.announce(0, "nowhere", "kid");
    bus.update(0, "kid", "hi");
    assert_eq!(bus.strikes(), 2);
    assert!(!bus.seen().contains("c0 <"));
}

/// In version 1, a client must have declared that it shows children. If an agent announces them nevertheless,
/// other sessions of its worker are not affected.
#[test]
fn children_that_clients_do_not_show_are_dropped_without_a_violation() {
    let mut bus = TestBus::shared(1);
    let one = bus.open();
    bus.session(one, 0, "a");
    bus.announce(0, "a", "kid");
    assert!(bus.seen().contains("Dropped"), "the violation is logged");
    bus.announce(0, "a", "kid");
    for _ in 0..5 {
        bus.update(0, "kid", "hi");
    }
    bus.announce(0, "kid", "grandkid");
    bus.update(0, "grandkid", "hi");
    bus.permission(0, "grandkid");
    let seen = bus.seen();
    assert!(!seen.contains("c0 <"), "{seen}");
    assert!(
        seen.contains(r#"w0 < {"jsonrpc":"2.0","id":"p","result":{"outcome":{"outcome":"cancelled"}}}"#),
        "{seen}"
    );
    assert_eq!(bus.strikes(), 0);
    bus.update(0, "a", "hi");
    assert!(bus.seen().starts_with("c0 <"));
    // Messages about a child are violations if the child was announced in an unknown session, or not at all.
    bus.announce(0, "nowhere", "other");
    bus.update(0, "other", "hi");
    assert_eq!(bus.strikes(), 2);
}

#[test]
fn version_one_announces_children_if_the_pool_declares_the_capability() {
    let capable = Pool { client_capabilities: json!({"subagents": {}}), ..pool(ShareMode::All) };
    let mut bus = TestBus::new(&config(vec![capable]));
    bus.up(0);
    bus.answer(0, 1, &able());
    let one = bus.open();
    bus.session(one, 0, "a");
    bus.announce(0, "a", "kid");
    bus.seen();
    bus.update(0, "kid", "hi");
    assert!(bus.seen().starts_with("c0 < "));
    assert_eq!(bus.strikes(), 0);
}

#[test]
fn the_state_of_a_child_is_not_that_of_its_parent() {
    let mut bus = bus();
    let one = bus.open();
    bus.session(one, 0, "a");
    bus.announce(0, "a", "kid");
    bus.notify(one, "session/cancel", &json!({"sessionId": "kid"}));
    let running = r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"kid","update":{"sessionUpdate":"state_update","state":"running"}}}"#;
    bus.worker_sends(0, running);
    bus.core.drain(bus.now, &mut bus.output);
    assert!(bus.seen().contains("Stop"), "the worker is stopped: no turn runs in a session of a client");
}

#[test]
fn children_with_the_same_id_in_two_workers_get_different_names() {
    let mut bus = version_two_bus(2, vec![ListenerSettings::new(crate::config::ListenAddr::Stdio)]);
    let (one, two) = (bus.open(), bus.open());
    bus.session(one, 0, "a");
    bus.session(two, 1, "a");
    bus.announce(0, "a", "kid");
    bus.announce(1, "a", "kid");
    bus.update(0, "kid", "hi");
    bus.update(1, "kid", "hi");
    let sent = r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":{"sessionUpdate":"session_message","senderSessionId":"a","recipientSessionId":"kid"}}}"#;
    bus.worker_sends(1, sent);
    bus.permission(1, "kid");
    bus.notify(two, "session/cancel", &json!({"sessionId": "kid~3"}));
    bus.notify(one, "session/cancel", &json!({"sessionId": "kid"}));
    assert_eq!(
        bus.seen(),
        r#"c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":{"sessionUpdate":"subagent_update","sessionId":"kid"}}}
c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a~2","update":{"sessionUpdate":"subagent_update","sessionId":"kid~3"}}}
c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"kid","update":"hi"}}
c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"kid~3","update":"hi"}}
c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a~2","update":{"sessionUpdate":"session_message","senderSessionId":"a~2","recipientSessionId":"kid~3"}}}
c1 < {"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":{"sessionId":"kid~3","options":[]}}
w1 < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"kid"}}
w0 < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"kid"}}"#
    );
}

#[test]
fn a_session_of_a_client_is_not_made_a_child_by_announcing_it() {
    let mut bus = bus();
    let (one, two) = (bus.open(), bus.open());
    bus.session(one, 0, "a");
    bus.session(two, 0, "b");
    bus.announce(0, "a", "b");
    bus.announce(0, "b", "kid");
    bus.announce(0, "a", "kid");
    bus.seen();
    bus.update(0, "b", "hi");
    bus.update(0, "kid", "hi");
    let seen = bus.seen();
    assert!(seen.lines().count() == 2 && seen.lines().all(|line| line.starts_with("c1 < ")), "{seen}");
}

#[test]
fn children_end_with_their_parent_without_a_violation() {
    let mut bus = bus();
    let one = bus.open();
    bus.session(one, 0, "a");
    bus.announce(0, "a", "kid");
    bus.request(one, 3, "session/close", &json!({"sessionId": "a"}));
    let id = bus.last_id(0);
    bus.answer(0, id, &json!({}));
    bus.seen();
    bus.update(0, "kid", "late");
    assert_eq!((bus.seen().as_str(), bus.strikes()), ("", 0));
    bus.request(one, 4, "session/prompt", &prompt("kid"));
    assert!(bus.seen().contains("-32002"));
    // A new session may have the name of the former child.
    bus.session(one, 0, "kid");
    bus.update(0, "kid", "hi");
    assert!(bus.seen().starts_with("c0 < "));
}

#[test]
fn children_move_with_their_parent_to_another_worker() {
    let mut bus = version_two_bus(2, vec![ListenerSettings::new(crate::config::ListenAddr::Stdio)]);
    let one = bus.open();
    bus.session(one, 0, "a");
    bus.announce(0, "a", "kid");
    bus.kill_worker(0);
    bus.seen();
    // A request in a child session waits until the parent is restored.
    bus.request(one, 5, "_x/look", &json!({"sessionId": "kid"}));
    let id = bus.last_id(1);
    assert!(bus.seen().contains("session/resume"));
    bus.announce(1, "a", "told again");
    bus.answer(1, id, &json!({}));
    assert!(bus.seen().contains("_x/look"));
    bus.update(1, "kid", "hi");
    bus.update(1, "told again", "hi");
    let seen = bus.seen();
    assert!(seen.lines().count() == 2 && seen.lines().all(|line| line.starts_with("c0 < ")), "{seen}");
    assert_eq!(bus.strikes(), 0);
}

#[test]
fn a_request_in_a_child_fails_with_its_worker_and_is_not_sent_to_another() {
    let mut bus = version_two_bus(2, vec![ListenerSettings::new(crate::config::ListenAddr::Stdio)]);
    let one = bus.open();
    bus.session(one, 0, "a");
    bus.announce(0, "a", "kid");
    bus.output.queued.clear();
    bus.request(one, 5, "_x/look", &json!({"sessionId": "kid"}));
    let unsent = bus.output.queued.remove(&0).unwrap();
    bus.seen();
    bus.exit_worker(0, 0, unsent);
    let seen = bus.seen();
    assert!(
        seen.contains(r#""id":5,"error":{"code":-32010"#) && seen.contains(r#""effects":"none""#),
        "{seen}"
    );
    assert!(!seen.contains("w1 <"), "{seen}");
}

#[test]
fn messages_in_a_child_wait_for_its_announcement() {
    let mut bus = bus();
    let (one, two) = (bus.open(), bus.open());
    bus.request(one, 1, "session/new", &json!({"cwd": "/"}));
    let id = bus.last_id(0);
    bus.request(two, 1, "session/new", &json!({"cwd": "/"}));
    bus.seen();
    // Before the agent answers the request that opens session `a`, it sends messages in that session and in a
    // child of it.
    bus.announce(0, "a", "kid");
    bus.update(0, "kid", "one");
    bus.answer(0, id, &json!({"sessionId": "a"}));
    bus.update(0, "kid", "two");
    let seen = bus.seen();
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines.len(), 4, "{seen}");
    assert!(lines.iter().all(|line| line.starts_with("c0 < ")));
    assert!(lines[0].contains("subagent_update") && lines[1].contains("one") && lines[3].contains("two"));
    assert_eq!(bus.strikes(), 0);
}

#[test]
fn other_identities_do_not_see_children() {
    let mut web = ListenerSettings::parse("http://127.0.0.1:1/acp").unwrap();
    if let crate::config::ListenAddr::Web(web) = &mut web.addr {
        web.auth = crate::config::ListenerAuth::Token;
    }
    let mut bus = version_two_bus(1, vec![web]);
    let (one, two) = (bus.open_as("token:one"), bus.open_as("token:two"));
    bus.session(one, 0, "a");
    bus.announce(0, "a", "kid");
    assert!(
        !bus.seen().contains("Own {"),
        "a child has the owner of its session, without an entry of its own"
    );
    for (id, method) in [(1, "session/load"), (2, "session/prompt"), (3, "_x/look"), (4, "session/close")] {
        bus.request(two, id, method, &json!({"sessionId": "kid", "cwd": "/"}));
        assert!(bus.seen().contains("-32002"), "{method}");
    }
    bus.notify(two, "session/cancel", &json!({"sessionId": "kid"}));
    assert_eq!(bus.seen(), "");
    // The second client gets the same answers after the parent is closed.
    bus.request(one, 3, "session/close", &json!({"sessionId": "a"}));
    let id = bus.last_id(0);
    bus.answer(0, id, &json!({}));
    bus.seen();
    bus.request(two, 9, "session/resume", &json!({"sessionId": "kid", "cwd": "/"}));
    assert!(bus.seen().contains("-32002"));
    // The bus forgets a child session together with its parent.
    bus.request(one, 9, "session/resume", &json!({"sessionId": "kid", "cwd": "/"}));
    assert!(bus.seen().contains("-32002"));
}

#[test]
fn a_child_is_reached_only_in_the_pool_of_its_session() {
    let pools =
        ["p", "q"].map(|name| Pool { name: name.into(), protocol: PoolProtocol::V2, ..pool(ShareMode::All) });
    let mut settings = config(pools.into());
    settings.listen =
        vec![ListenerSettings { pools: Some(vec!["p".into(), "q".into()]), ..settings.listen[0].clone() }];
    let mut bus = TestBus::new(&settings);
    for worker in 0..2 {
        bus.up(worker);
        bus.answer(worker, 1, &json!({"protocolVersion": 2, "capabilities": {"session": {}}}));
    }
    let one = bus.open();
    bus.session(one, 0, "a");
    bus.announce(0, "a", "kid");
    bus.request(one, 1, "session/prompt", &prompt("kid"));
    assert!(bus.seen().contains("w0 < "));
    settings.listen[0].pools = Some(vec!["q".into()]);
    bus.core.reload(bus.now, &settings, &mut bus.output);
    bus.seen();
    let mut ask = |name: &str| {
        bus.request(one, 2, "session/prompt", &prompt(name));
        bus.seen()
    };
    let (session, child, missing) = (ask("a"), ask("kid"), ask("missing"));
    assert!(!child.contains("w0") && child.contains("error"), "{child}");
    assert_eq!((&session, &child), (&missing, &missing));
}

#[test]
fn children_are_bounded_for_each_session_and_identity_in_number_and_bytes() {
    let mut bus = bus();
    let (one, two) = (bus.open_as("token:one"), bus.open_as("token:two"));
    bus.session(two, 0, "b");
    bus.announce(0, "b", "of-two");
    bus.core.limits.queue_bytes = usize::MAX / 2;
    let long = "x".repeat(4_000);
    for session in 0..10 {
        let session = format!("a{session}");
        bus.session(one, 0, &session);
        for child in 0..70 {
            bus.announce(0, &session, &format!("{session}-{child}-{long}"));
        }
    }
    let held: usize = bus.core.children.bytes();
    assert!(held <= (2 << 20) + 10, "{held}");
    assert!(!bus.seen().contains("Own {"));
    // The second identity keeps its children and may have more.
    bus.announce(0, "b", "of-two-2");
    bus.seen();
    bus.request(two, 1, "_x/look", &json!({"sessionId": "of-two"}));
    bus.request(two, 2, "_x/look", &json!({"sessionId": "of-two-2"}));
    assert_eq!(bus.seen().matches("w0 < ").count(), 2);
}

#[test]
fn an_observer_sees_children_but_cannot_control_them() {
    let mut bus = version_two_bus(1, vec![ListenerSettings::parse("http://127.0.0.1:1/acp").unwrap()]);
    let (one, two) = (bus.open(), bus.open());
    bus.session(one, 0, "a");
    bus.announce(0, "a", "kid");
    bus.seen();
    bus.request(two, 1, "session/resume", &json!({"sessionId": "a"}));
    assert!(bus.seen().contains("subagent_update"));
    bus.update(0, "kid", "hi");
    bus.permission(0, "kid");
    let seen = bus.seen();
    assert_eq!(seen.lines().filter(|line| line.starts_with("c1 < ")).count(), 2, "{seen}");
    for (id, session) in [(2, "a"), (3, "kid")] {
        bus.request(two, id, "_session/steering", &json!({"sessionId": session}));
        assert!(bus.seen().contains("session_in_use"));
        bus.request(two, id, "session/set_mode", &json!({"sessionId": session, "modeId": "m"}));
        assert!(bus.seen().contains("session_in_use"));
        bus.notify(two, "_session/steering", &json!({"sessionId": session}));
        assert_eq!(bus.seen(), "");
        bus.notify(two, "session/cancel", &json!({"sessionId": session}));
        assert!(bus.seen().starts_with("w0 < "), "{session}");
    }
}

#[test]
fn the_oldest_children_are_forgotten_where_there_are_too_many() {
    let mut bus = bus();
    let one = bus.open();
    bus.session(one, 0, "a");
    for number in 0..=1_000 {
        bus.announce(0, "a", &format!("k{number}"));
    }
    bus.seen();
    bus.update(0, "k0", "hi");
    assert_eq!((bus.seen().as_str(), bus.strikes()), ("", 0));
    bus.update(0, "k1", "hi");
    assert!(bus.seen().starts_with("c0 < "));
}

#[test]
fn children_of_a_client_with_a_worker_of_its_own_can_be_cancelled() {
    let mut web = ListenerSettings::parse("http://127.0.0.1:1/acp").unwrap();
    if let crate::config::ListenAddr::Web(web) = &mut web.addr {
        web.auth = crate::config::ListenerAuth::Token;
    }
    let mut bus = TestBus::new(&Config { listen: vec![web], ..config(vec![pool(ShareMode::Connection)]) });
    bus.up(0);
    let one = bus.open_as("token:one");
    let capable = json!({"protocolVersion": 1, "clientCapabilities": {"subagents": {}}});
    bus.request(one, 0, "initialize", &capable);
    bus.answer(0, 1, &able());
    bus.session(one, 0, "a");
    bus.announce(0, "a", "kid");
    bus.seen();
    bus.notify(one, "session/cancel", &json!({"sessionId": "kid"}));
    assert_eq!(
        bus.seen(),
        r#"w0 < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"kid"}}"#
    );
}

#[test]
fn requests_that_open_list_or_delete_sessions_are_refused_for_a_child() {
    let mut bus = bus();
    let one = bus.open();
    bus.session(one, 0, "a");
    bus.announce(0, "a", "kid");
    bus.seen();
    let methods =
        ["new", "load", "resume", "fork", "list", "close", "delete"].map(|name| format!("session/{name}"));
    for method in methods.iter().map(String::as_str).chain(["authenticate", "logout"]) {
        let params =
            json!({"sessionId": "kid", "cwd": "/", "mcpServers": [{"name": "e", "command": "/bin/sh"}]});
        bus.request(one, 9, method, &params);
        bus.notify(one, method, &params);
        let seen = bus.seen();
        assert!(!seen.contains("w0 <"), "{method}: {seen}");
    }
    assert_eq!(bus.strikes(), 0);
}

#[test]
fn a_moved_child_loses_its_name_to_one_that_the_worker_announces() {
    let mut bus = bus();
    let (one, two) = (bus.open(), bus.open());
    bus.session(one, 0, "a");
    bus.session(two, 0, "b");
    bus.announce(0, "a", "kid");
    bus.kill_worker(0);
    bus.advance(1.0);
    bus.up(0);
    bus.answer(0, 1, &json!({"protocolVersion": 2, "capabilities": {"session": {}}}));
    for (client, name) in [(one, "a"), (two, "b")] {
        bus.request(client, 5, "_x/look", &json!({"sessionId": name}));
        let id = bus.last_id(0);
        bus.answer(0, id, &json!({}));
    }
    // The new process of the agent numbers its sessions from the beginning.
    bus.announce(0, "b", "kid");
    bus.seen();
    bus.update(0, "kid", "hi");
    let seen = bus.seen();
    assert!(seen.starts_with("c1 < ") && !seen.contains("c0 < "), "{seen}");
    // A second announcement of the same child changes nothing.
    bus.announce(0, "a", "kid");
    bus.seen();
    bus.update(0, "kid", "hi");
    assert!(bus.seen().starts_with("c1 < "));
}
