//! Child sessions, which agents announce within sessions of clients.

use super::*;

/// A shared pool whose `workers` workers speak version 2.
fn scene_of(workers: u32, listen: Vec<Listen>) -> Scene {
    let pool = Pool { instances: workers, protocol: Protocol::V2, mix_identities: true, ..pool(Share::All) };
    let mut scene = Scene::new(&Config { listen, ..config(vec![pool]) });
    for worker in 0..workers {
        scene.up(worker);
        scene.answer(worker, 1, &json!({"protocolVersion": 2, "capabilities": {"session": {}}}));
    }
    scene.sight.seen.clear();
    scene
}

fn scene() -> Scene {
    scene_of(1, vec![Listen::new(crate::config::Door::Stdio)])
}

impl Scene {
    fn announce(&mut self, worker: u32, parent: &str, child: &str) {
        let update = json!({"sessionUpdate": "subagent_update", "sessionId": child});
        let params = json!({"sessionId": parent, "update": update});
        self.said(
            worker,
            &json!({"jsonrpc": "2.0", "method": "session/update", "params": params}).to_string(),
        );
    }

    fn permission(&mut self, worker: u32, session: &str) {
        let params = json!({"sessionId": session, "options": []});
        let line =
            json!({"jsonrpc": "2.0", "id": "p", "method": "session/request_permission", "params": params});
        self.said(worker, &line.to_string());
    }

    fn strikes(&self) -> u64 {
        self.core.status(self.now).counters.strikes
    }
}

#[test]
fn an_announced_child_speaks_to_the_client_of_its_parent() {
    let mut scene = scene();
    let (one, two) = (scene.open(), scene.open());
    scene.session(one, 0, "a");
    scene.session(two, 0, "b");
    scene.announce(0, "a", "kid");
    scene.announce(0, "kid", "grandkid");
    scene.seen();
    for name in ["kid", "grandkid", "kid", "a", "b"] {
        scene.update(0, name, "hi");
    }
    scene.permission(0, "grandkid");
    scene.line(one, r#"{"jsonrpc":"2.0","id":1,"result":{"outcome":{"outcome":"cancelled"}}}"#);
    scene.note(one, "session/cancel", &json!({"sessionId": "kid"}));
    scene.ask(one, 7, "_x/look", &json!({"sessionId": "grandkid"}));
    assert_eq!(
        scene.seen(),
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
    // Another connection of the same identity has no more to do with them than with their parent.
    scene.ask(two, 8, "_x/look", &json!({"sessionId": "kid"}));
    assert!(scene.seen().contains("session_in_use"));
    assert_eq!(scene.strikes(), 0);
}

#[test]
fn a_session_that_was_never_announced_is_a_protocol_violation() {
    let mut scene = scene();
    let one = scene.open();
    scene.session(one, 0, "a");
    // Announced in a session that is nobody's, it is not known either.
    scene.announce(0, "nowhere", "kid");
    scene.update(0, "kid", "hi");
    assert_eq!(scene.strikes(), 2);
    assert!(!scene.seen().contains("c0 <"));
}

/// In version 1 clients have to have said that they show children. An agent that has some all the same does no harm to the others of its
/// worker.
#[test]
fn children_that_clients_do_not_show_are_dropped_and_not_held_against_the_worker() {
    let mut scene = Scene::shared(1);
    let one = scene.open();
    scene.session(one, 0, "a");
    scene.announce(0, "a", "kid");
    assert!(scene.seen().contains("Dropped"), "it is logged");
    scene.announce(0, "a", "kid");
    for _ in 0..5 {
        scene.update(0, "kid", "hi");
    }
    scene.announce(0, "kid", "grandkid");
    scene.update(0, "grandkid", "hi");
    scene.permission(0, "grandkid");
    let seen = scene.seen();
    assert!(!seen.contains("c0 <"), "{seen}");
    assert!(
        seen.contains(r#"w0 < {"jsonrpc":"2.0","id":"p","result":{"outcome":{"outcome":"cancelled"}}}"#),
        "{seen}"
    );
    assert_eq!(scene.strikes(), 0);
    scene.update(0, "a", "hi");
    assert!(scene.seen().starts_with("c0 <"));
    // What was never announced is another matter, and so is what was announced nowhere.
    scene.announce(0, "nowhere", "other");
    scene.update(0, "other", "hi");
    assert_eq!(scene.strikes(), 2);
}

#[test]
fn version_one_announces_children_where_the_pool_says_that_clients_show_them() {
    let capable = Pool { client_capabilities: json!({"subagents": {}}), ..pool(Share::All) };
    let mut scene = Scene::new(&config(vec![capable]));
    scene.up(0);
    scene.answer(0, 1, &able());
    let one = scene.open();
    scene.session(one, 0, "a");
    scene.announce(0, "a", "kid");
    scene.seen();
    scene.update(0, "kid", "hi");
    assert!(scene.seen().starts_with("c0 < "));
    assert_eq!(scene.strikes(), 0);
}

#[test]
fn the_state_of_a_child_is_not_that_of_its_parent() {
    let mut scene = scene();
    let one = scene.open();
    scene.session(one, 0, "a");
    scene.announce(0, "a", "kid");
    scene.note(one, "session/cancel", &json!({"sessionId": "kid"}));
    let running = r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"kid","update":{"sessionUpdate":"state_update","state":"running"}}}"#;
    scene.said(0, running);
    scene.core.drain(scene.now, &mut scene.sight);
    assert!(scene.seen().contains("Stop"), "nothing runs in a session that a client opened");
}

#[test]
fn children_with_the_same_id_in_two_workers_get_different_names() {
    let mut scene = scene_of(2, vec![Listen::new(crate::config::Door::Stdio)]);
    let (one, two) = (scene.open(), scene.open());
    scene.session(one, 0, "a");
    scene.session(two, 1, "a");
    scene.announce(0, "a", "kid");
    scene.announce(1, "a", "kid");
    scene.update(0, "kid", "hi");
    scene.update(1, "kid", "hi");
    let sent = r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":{"sessionUpdate":"session_message","senderSessionId":"a","recipientSessionId":"kid"}}}"#;
    scene.said(1, sent);
    scene.permission(1, "kid");
    scene.note(two, "session/cancel", &json!({"sessionId": "kid~3"}));
    scene.note(one, "session/cancel", &json!({"sessionId": "kid"}));
    assert_eq!(
        scene.seen(),
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
    let mut scene = scene();
    let (one, two) = (scene.open(), scene.open());
    scene.session(one, 0, "a");
    scene.session(two, 0, "b");
    scene.announce(0, "a", "b");
    scene.announce(0, "b", "kid");
    scene.announce(0, "a", "kid");
    scene.seen();
    scene.update(0, "b", "hi");
    scene.update(0, "kid", "hi");
    let seen = scene.seen();
    assert!(seen.lines().count() == 2 && seen.lines().all(|line| line.starts_with("c1 < ")), "{seen}");
}

#[test]
fn children_end_with_their_parent_and_are_not_held_against_the_worker() {
    let mut scene = scene();
    let one = scene.open();
    scene.session(one, 0, "a");
    scene.announce(0, "a", "kid");
    scene.ask(one, 3, "session/close", &json!({"sessionId": "a"}));
    let id = scene.last_id(0);
    scene.answer(0, id, &json!({}));
    scene.seen();
    scene.update(0, "kid", "late");
    assert_eq!((scene.seen().as_str(), scene.strikes()), ("", 0));
    scene.ask(one, 4, "session/prompt", &prompt("kid"));
    assert!(scene.seen().contains("-32002"));
    // A new session may be called so.
    scene.session(one, 0, "kid");
    scene.update(0, "kid", "hi");
    assert!(scene.seen().starts_with("c0 < "));
}

#[test]
fn children_go_with_their_parent_to_another_worker() {
    let mut scene = scene_of(2, vec![Listen::new(crate::config::Door::Stdio)]);
    let one = scene.open();
    scene.session(one, 0, "a");
    scene.announce(0, "a", "kid");
    scene.dies(0);
    scene.seen();
    // What is asked in the child waits for its session.
    scene.ask(one, 5, "_x/look", &json!({"sessionId": "kid"}));
    let id = scene.last_id(1);
    assert!(scene.seen().contains("session/resume"));
    scene.announce(1, "a", "told again");
    scene.answer(1, id, &json!({}));
    assert!(scene.seen().contains("_x/look"));
    scene.update(1, "kid", "hi");
    scene.update(1, "told again", "hi");
    let seen = scene.seen();
    assert!(seen.lines().count() == 2 && seen.lines().all(|line| line.starts_with("c0 < ")), "{seen}");
    assert_eq!(scene.strikes(), 0);
}

#[test]
fn a_request_in_a_child_fails_with_its_worker_and_is_not_sent_to_another() {
    let mut scene = scene_of(2, vec![Listen::new(crate::config::Door::Stdio)]);
    let one = scene.open();
    scene.session(one, 0, "a");
    scene.announce(0, "a", "kid");
    scene.sight.queued.clear();
    scene.ask(one, 5, "_x/look", &json!({"sessionId": "kid"}));
    let unsent = scene.sight.queued.remove(&0).unwrap();
    scene.seen();
    scene.gone(0, 0, unsent);
    let seen = scene.seen();
    assert!(
        seen.contains(r#""id":5,"error":{"code":-32010"#) && seen.contains(r#""effects":"none""#),
        "{seen}"
    );
    assert!(!seen.contains("w1 <"), "{seen}");
}

#[test]
fn what_a_child_says_before_its_announcement_is_taken_waits_for_it() {
    let mut scene = scene();
    let (one, two) = (scene.open(), scene.open());
    scene.ask(one, 1, "session/new", &json!({"cwd": "/"}));
    let id = scene.last_id(0);
    scene.ask(two, 1, "session/new", &json!({"cwd": "/"}));
    scene.seen();
    // The agent speaks in a session, and in a child of it, before it has answered.
    scene.announce(0, "a", "kid");
    scene.update(0, "kid", "one");
    scene.answer(0, id, &json!({"sessionId": "a"}));
    scene.update(0, "kid", "two");
    let seen = scene.seen();
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines.len(), 4, "{seen}");
    assert!(lines.iter().all(|line| line.starts_with("c0 < ")));
    assert!(lines[0].contains("subagent_update") && lines[1].contains("one") && lines[3].contains("two"));
    assert_eq!(scene.strikes(), 0);
}

#[test]
fn other_identities_do_not_see_children() {
    let mut web = Listen::parse("http://127.0.0.1:1/acp").unwrap();
    if let crate::config::Door::Web(web) = &mut web.at {
        web.auth = crate::config::Auth::Token;
    }
    let mut scene = scene_of(1, vec![web]);
    let (one, two) = (scene.open_as("token:one"), scene.open_as("token:two"));
    scene.session(one, 0, "a");
    scene.announce(0, "a", "kid");
    assert!(!scene.seen().contains("Own {"), "a child is whose its session is");
    for (id, method) in [(1, "session/load"), (2, "session/prompt"), (3, "_x/look"), (4, "session/close")] {
        scene.ask(two, id, method, &json!({"sessionId": "kid", "cwd": "/"}));
        assert!(scene.seen().contains("-32002"), "{method}");
    }
    scene.note(two, "session/cancel", &json!({"sessionId": "kid"}));
    assert_eq!(scene.seen(), "");
    // Neither when their parent is closed.
    scene.ask(one, 3, "session/close", &json!({"sessionId": "a"}));
    let id = scene.last_id(0);
    scene.answer(0, id, &json!({}));
    scene.seen();
    scene.ask(two, 9, "session/resume", &json!({"sessionId": "kid", "cwd": "/"}));
    assert!(scene.seen().contains("-32002"));
    // It is forgotten with its session.
    scene.ask(one, 9, "session/resume", &json!({"sessionId": "kid", "cwd": "/"}));
    assert!(scene.seen().contains("-32002"));
}

#[test]
fn a_child_is_reached_only_where_its_session_is() {
    let pools = ["p", "q"].map(|name| Pool { name: name.into(), protocol: Protocol::V2, ..pool(Share::All) });
    let mut settings = config(pools.into());
    settings.listen =
        vec![Listen { pools: Some(vec!["p".into(), "q".into()]), ..settings.listen[0].clone() }];
    let mut scene = Scene::new(&settings);
    for worker in 0..2 {
        scene.up(worker);
        scene.answer(worker, 1, &json!({"protocolVersion": 2, "capabilities": {"session": {}}}));
    }
    let one = scene.open();
    scene.session(one, 0, "a");
    scene.announce(0, "a", "kid");
    scene.ask(one, 1, "session/prompt", &prompt("kid"));
    assert!(scene.seen().contains("w0 < "));
    settings.listen[0].pools = Some(vec!["q".into()]);
    scene.core.reload(scene.now, &settings, &mut scene.sight);
    scene.seen();
    let mut ask = |name: &str| {
        scene.ask(one, 2, "session/prompt", &prompt(name));
        scene.seen()
    };
    let (session, child, missing) = (ask("a"), ask("kid"), ask("missing"));
    assert!(!child.contains("w0") && child.contains("error"), "{child}");
    assert_eq!((&session, &child), (&missing, &missing));
}

#[test]
fn children_are_bounded_for_each_session_and_identity_in_number_and_bytes() {
    let mut scene = scene();
    let (one, two) = (scene.open_as("token:one"), scene.open_as("token:two"));
    scene.session(two, 0, "b");
    scene.announce(0, "b", "of-two");
    scene.core.limits.queue_bytes = usize::MAX / 2;
    let long = "x".repeat(4_000);
    for session in 0..10 {
        let session = format!("a{session}");
        scene.session(one, 0, &session);
        for child in 0..70 {
            scene.announce(0, &session, &format!("{session}-{child}-{long}"));
        }
    }
    let held: usize = scene.core.children.bytes();
    assert!(held <= (2 << 20) + 10, "{held}");
    assert!(!scene.seen().contains("Own {"));
    // The other has what it had, and may have more.
    scene.announce(0, "b", "of-two-2");
    scene.seen();
    scene.ask(two, 1, "_x/look", &json!({"sessionId": "of-two"}));
    scene.ask(two, 2, "_x/look", &json!({"sessionId": "of-two-2"}));
    assert_eq!(scene.seen().matches("w0 < ").count(), 2);
}

#[test]
fn who_watches_a_session_sees_its_children_and_steers_nothing() {
    let mut scene = scene_of(1, vec![Listen::parse("http://127.0.0.1:1/acp").unwrap()]);
    let (one, two) = (scene.open(), scene.open());
    scene.session(one, 0, "a");
    scene.announce(0, "a", "kid");
    scene.seen();
    scene.ask(two, 1, "session/resume", &json!({"sessionId": "a"}));
    assert!(scene.seen().contains("subagent_update"));
    scene.update(0, "kid", "hi");
    scene.permission(0, "kid");
    let seen = scene.seen();
    assert_eq!(seen.lines().filter(|line| line.starts_with("c1 < ")).count(), 2, "{seen}");
    for (id, session) in [(2, "a"), (3, "kid")] {
        scene.ask(two, id, "_session/steering", &json!({"sessionId": session}));
        assert!(scene.seen().contains("session_in_use"));
        scene.ask(two, id, "session/set_mode", &json!({"sessionId": session, "modeId": "m"}));
        assert!(scene.seen().contains("session_in_use"));
        scene.note(two, "_session/steering", &json!({"sessionId": session}));
        assert_eq!(scene.seen(), "");
        scene.note(two, "session/cancel", &json!({"sessionId": session}));
        assert!(scene.seen().starts_with("w0 < "), "{session}");
    }
}

#[test]
fn the_oldest_children_are_forgotten_where_there_are_too_many() {
    let mut scene = scene();
    let one = scene.open();
    scene.session(one, 0, "a");
    for number in 0..=1_000 {
        scene.announce(0, "a", &format!("k{number}"));
    }
    scene.seen();
    scene.update(0, "k0", "hi");
    assert_eq!((scene.seen().as_str(), scene.strikes()), ("", 0));
    scene.update(0, "k1", "hi");
    assert!(scene.seen().starts_with("c0 < "));
}

#[test]
fn children_of_a_client_with_a_worker_of_its_own_can_be_cancelled() {
    let mut web = Listen::parse("http://127.0.0.1:1/acp").unwrap();
    if let crate::config::Door::Web(web) = &mut web.at {
        web.auth = crate::config::Auth::Token;
    }
    let mut scene = Scene::new(&Config { listen: vec![web], ..config(vec![pool(Share::Connection)]) });
    scene.up(0);
    let one = scene.open_as("token:one");
    let capable = json!({"protocolVersion": 1, "clientCapabilities": {"subagents": {}}});
    scene.ask(one, 0, "initialize", &capable);
    scene.answer(0, 1, &able());
    scene.session(one, 0, "a");
    scene.announce(0, "a", "kid");
    scene.seen();
    scene.note(one, "session/cancel", &json!({"sessionId": "kid"}));
    assert_eq!(
        scene.seen(),
        r#"w0 < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"kid"}}"#
    );
}

#[test]
fn nothing_that_opens_lists_or_deletes_sessions_goes_to_a_child() {
    let mut scene = scene();
    let one = scene.open();
    scene.session(one, 0, "a");
    scene.announce(0, "a", "kid");
    scene.seen();
    let methods =
        ["new", "load", "resume", "fork", "list", "close", "delete"].map(|name| format!("session/{name}"));
    for method in methods.iter().map(String::as_str).chain(["authenticate", "logout"]) {
        let params =
            json!({"sessionId": "kid", "cwd": "/", "mcpServers": [{"name": "e", "command": "/bin/sh"}]});
        scene.ask(one, 9, method, &params);
        scene.note(one, method, &params);
        let seen = scene.seen();
        assert!(!seen.contains("w0 <"), "{method}: {seen}");
    }
    assert_eq!(scene.strikes(), 0);
}

#[test]
fn a_child_that_came_with_its_session_gives_way_to_one_that_its_worker_announces() {
    let mut scene = scene();
    let (one, two) = (scene.open(), scene.open());
    scene.session(one, 0, "a");
    scene.session(two, 0, "b");
    scene.announce(0, "a", "kid");
    scene.dies(0);
    scene.pass(1.0);
    scene.up(0);
    scene.answer(0, 1, &json!({"protocolVersion": 2, "capabilities": {"session": {}}}));
    for (client, name) in [(one, "a"), (two, "b")] {
        scene.ask(client, 5, "_x/look", &json!({"sessionId": name}));
        let id = scene.last_id(0);
        scene.answer(0, id, &json!({}));
    }
    // The next process counts anew.
    scene.announce(0, "b", "kid");
    scene.seen();
    scene.update(0, "kid", "hi");
    let seen = scene.seen();
    assert!(seen.starts_with("c1 < ") && !seen.contains("c0 < "), "{seen}");
    // It is announced once.
    scene.announce(0, "a", "kid");
    scene.seen();
    scene.update(0, "kid", "hi");
    assert!(scene.seen().starts_with("c1 < "));
}
