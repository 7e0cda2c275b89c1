//! Who sees what: sessions are their identity's, and of everybody else's nobody can tell that they are there.

use insta::assert_snapshot;

use super::*;
use crate::config::{Auth, Door};
use crate::core::OwnedName;

const METHODS: [&str; 9] = [
    "session/prompt",
    "session/load",
    "session/resume",
    "session/close",
    "session/delete",
    "session/fork",
    "session/set_mode",
    "_ext/thing",
    "session/cancel",
];

/// Settings of a bus that asks its clients who they are.
pub(super) fn asking(pools: Vec<Pool>) -> Config {
    let mut listen = Listen::parse("http://127.0.0.1:1/acp").unwrap();
    if let Door::Web(web) = &mut listen.at {
        web.auth = Auth::Token;
        web.tokens = Some("tokens.toml".into());
    }
    Config { listen: vec![listen], ..config(pools) }
}

fn in_pool(pool: &str, name: &str) -> OwnedName {
    OwnedName { pool: Some(pool.into()), name: name.into() }
}

impl Scene {
    pub(super) fn open_as(&mut self, identity: &str) -> u32 {
        self.try_open(identity).unwrap()
    }

    pub(super) fn try_open(&mut self, identity: &str) -> Option<u32> {
        let from = ClientInfo { metered: true, ..ClientInfo::new(0, identity) };
        let client = self.core.client_open(self.now, from, &mut self.sight)?.0;
        self.initialized(client);
        Some(client)
    }

    /// Two identities in a pool with a worker for each, or one for both; the first has `live-one`, and had `kept-one`
    /// before the bus was started again, the second the like.
    fn two(share: Share, mix_identities: bool) -> (Self, [u32; 2]) {
        let pool = Pool { instances: 2, mix_identities, ..pool(share) };
        let mut scene = Self::new(&asking(vec![pool]));
        for (name, identity) in [("kept-one", "token:one"), ("kept-two", "token:two")] {
            scene.core.know_owner(&name.into(), identity);
        }
        for worker in 0..2 {
            scene.up(worker);
            if share == Share::All {
                scene.answer(worker, 1, &able());
            }
        }
        let clients = ["token:one", "token:two"].map(|identity| scene.open_as(identity));
        for (client, name) in clients.into_iter().zip(["live-one", "live-two"]) {
            scene.sight.seen.clear();
            scene.ask(client, 1_000, "session/new", &json!({"cwd": "/"}));
            let worker =
                scene.sight.seen.iter().find_map(|line| line.strip_prefix('w')?.chars().next()?.to_digit(10));
            let worker = worker.unwrap();
            let id = scene.last_id(worker);
            scene.answer(worker, id, &json!({"sessionId": name}));
        }
        scene.sight.seen.clear();
        (scene, clients)
    }
}

#[test]
fn what_is_anothers_is_answered_like_what_is_not_there() {
    for (share, mixes) in
        [(Share::All, true), (Share::All, false), (Share::Connection, false), (Share::Session, false)]
    {
        for method in METHODS {
            let told = ["live-one", "kept-one", "no-where", "no-such1"].map(|name| {
                let (mut scene, [_, second]) = Scene::two(share, mixes);
                let params = json!({"sessionId": name, "cwd": "/", "mcpServers": [], "prompt": []});
                match method {
                    "session/cancel" => scene.note(second, method, &params),
                    _ => scene.ask(second, 7, method, &params),
                }
                scene.seen().replace(name, "*")
            });
            let [live, kept, nowhere, again] = &told;
            assert_eq!(nowhere, again);
            assert_eq!(live, nowhere, "{method} {share:?}");
            assert_eq!(kept, nowhere, "{method} {share:?}");
            let expected = match method {
                "session/cancel" => "",
                _ => {
                    "c1 < {\"jsonrpc\":\"2.0\",\"id\":7,\"error\":{\"code\":-32002,\
                     \"message\":\"the bus knows no such session\",\
                     \"data\":{\"condition\":\"not_found\",\"retryable\":false,\"effects\":\"none\"}}}"
                }
            };
            assert_eq!(nowhere, expected, "{method} {share:?}");
        }
    }
}

#[test]
fn whatever_else_is_wrong_with_it_is_told_first_and_in_the_same_way() {
    let told = ["live-one", "kept-one", "no-where"].map(|name| {
        let (mut scene, [_, second]) = Scene::two(Share::All, true);
        scene.line(
            second,
            &format!(r#"{{"jsonrpc":"2.0","id":7,"method":"session/load","pool":"none","params":{{"sessionId":"{name}"}}}}"#),
        );
        scene.core.set_pressure(true);
        scene.ask(second, 8, "session/load", &json!({"sessionId": name}));
        scene.seen().replace(name, "*")
    });
    assert_eq!(told[0], told[2]);
    assert_eq!(told[1], told[2]);
}

#[test]
fn what_is_ones_own_is_found() {
    for (share, mixes) in
        [(Share::All, true), (Share::All, false), (Share::Connection, false), (Share::Session, false)]
    {
        for method in METHODS {
            let (mut scene, [_, second]) = Scene::two(share, mixes);
            let params = json!({"sessionId": "live-two", "cwd": "/", "mcpServers": [], "prompt": []});
            match method {
                "session/cancel" => scene.note(second, method, &params),
                _ => scene.ask(second, 7, method, &params),
            }
            assert!(scene.seen().starts_with('w'), "{method} {share:?}");
        }
        for method in ["session/load", "session/resume"] {
            let (mut scene, [_, second]) = Scene::two(share, mixes);
            scene.ask(second, 7, method, &json!({"sessionId": "kept-two", "cwd": "/", "mcpServers": []}));
            let seen = scene.seen();
            assert!(seen.starts_with('w') || seen.starts_with("Spawn"), "{method} {share:?} {seen}");
        }
    }
}

#[test]
fn lists_have_ones_own_only() {
    let all = ["live-one", "kept-one", "live-two", "kept-two", "no-where"];
    let entries: Vec<_> = all.iter().map(|name| json!({"sessionId": name, "cwd": "/"})).collect();
    for (share, mixes) in [(Share::All, true), (Share::All, false), (Share::Connection, false)] {
        let (mut scene, clients) = Scene::two(share, mixes);
        for (client, own) in clients.into_iter().zip(["one", "two"]) {
            scene.ask(client, 7, "session/list", &json!({}));
            let asked: Vec<u32> = (0..2)
                .filter(|worker| {
                    scene.sight.seen.iter().any(|line| line.starts_with(&format!("w{worker} <")))
                })
                .collect();
            for worker in asked {
                let id = scene.last_id(worker);
                scene.answer(worker, id, &json!({"sessions": entries, "nextCursor": null}));
            }
            let seen = scene.seen();
            let answer = seen.lines().find_map(|line| line.strip_prefix(&format!("c{client} < "))).unwrap();
            let answer: Value = serde_json::from_str(answer).unwrap();
            let listed = answer["result"]["sessions"].as_array().unwrap();
            let names: Vec<_> = listed.iter().map(|entry| entry["sessionId"].as_str().unwrap()).collect();
            assert_eq!(names, [format!("live-{own}"), format!("kept-{own}")], "{share:?} {mixes}");
        }
    }
}

#[test]
fn what_is_used_for_long_is_written_down_again_now_and_then() {
    for (expiry, refresh) in [(90 * 24 * 3600, 24 * 3600), (100, 50)] {
        let mut config = asking(vec![Pool { instances: 1, ..pool(Share::All) }]);
        config.limits.owner_expiry = Duration::from_secs(expiry);
        let mut scene = Scene::new(&config);
        scene.up(0);
        scene.answer(0, 1, &able());
        let client = scene.open_as("token:one");
        scene.session(client, 0, "a");
        let mut asks = |after: u64| {
            scene.now += Duration::from_secs(after);
            scene.ask(client, 2, "session/prompt", &prompt("a"));
            let id = scene.last_id(0);
            scene.answer(0, id, &json!({"stopReason": "end_turn"}));
            scene.seen().contains(r#"Own { client: None, session: "a", identity: "token:one" }"#)
        };
        assert_eq!([asks(refresh - 1), asks(1), asks(1), asks(refresh)], [false, true, false, true]);
    }
}

#[test]
fn it_is_written_down_whose_a_session_is_before_anybody_is_told() {
    let mut scene = Scene::new(&asking(vec![Pool { instances: 1, ..pool(Share::All) }]));
    scene.up(0);
    scene.answer(0, 1, &able());
    let client = scene.open_as("token:one");
    scene.seen();
    scene.ask(client, 1, "session/new", &json!({"cwd": "/"}));
    scene.update(0, "a", "early");
    scene.answer(0, 2, &json!({"sessionId": "a"}));
    scene.ask(client, 2, "session/fork", &json!({"sessionId": "a"}));
    scene.answer(0, 3, &json!({"sessionId": "b"}));
    scene.ask(client, 3, "session/close", &json!({"sessionId": "b"}));
    scene.answer(0, 4, &json!({}));
    scene.ask(client, 4, "session/load", &json!({"sessionId": "b"}));
    scene.answer(0, 5, &json!({}));
    scene.ask(client, 5, "session/delete", &json!({"sessionId": "b"}));
    scene.answer(0, 6, &json!({}));
    scene.ask(client, 6, "session/load", &json!({"sessionId": "b"}));
    assert_snapshot!(scene.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/"}}
    Own { client: Some(ClientId(0)), session: "a", identity: "token:one" }
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"early"}}
    c0 < {"jsonrpc":"2.0","id":1,"result":{"sessionId":"a"}}
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/fork","params":{"sessionId":"a"}}
    Own { client: Some(ClientId(0)), session: "b", identity: "token:one" }
    c0 < {"jsonrpc":"2.0","id":2,"result":{"sessionId":"b"}}
    w0 < {"jsonrpc":"2.0","id":4,"method":"session/close","params":{"sessionId":"b"}}
    c0 < {"jsonrpc":"2.0","id":3,"result":{}}
    w0 < {"jsonrpc":"2.0","id":5,"method":"session/load","params":{"sessionId":"b"}}
    Own { client: None, session: "b", identity: "token:one" }
    c0 < {"jsonrpc":"2.0","id":4,"result":{}}
    w0 < {"jsonrpc":"2.0","id":6,"method":"session/delete","params":{"sessionId":"b"}}
    Disown { session: "b" }
    c0 < {"jsonrpc":"2.0","id":5,"result":{}}
    c0 < {"jsonrpc":"2.0","id":6,"error":{"code":-32002,"message":"the bus knows no such session","data":{"condition":"not_found","retryable":false,"effects":"none"}}}
    "#);
}

#[test]
fn where_nobody_is_asked_nothing_is_written_down() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.core.know_owner(&"x".into(), "token:one");
    scene.ask(client, 1, "session/new", &json!({"cwd": "/"}));
    scene.answer(0, 2, &json!({"sessionId": "a"}));
    scene.ask(client, 2, "session/load", &json!({"sessionId": "x"}));
    let seen = scene.seen();
    assert!(!seen.contains("Own"), "{seen}");
    assert!(seen.ends_with(r#""method":"session/load","params":{"sessionId":"x"}}"#), "{seen}");
}

#[test]
fn sessions_of_clients_that_are_gone_are_for_their_identity_alone() {
    let (mut scene, [first, second]) = Scene::two(Share::All, true);
    scene.leaves(first);
    scene.ask(second, 7, "session/load", &json!({"sessionId": "live-one"}));
    assert!(scene.seen().contains("-32002"));
    let again = scene.open_as("token:one");
    scene.ask(again, 7, "session/load", &json!({"sessionId": "live-one"}));
    assert!(scene.seen().starts_with("w0 <"));
    // Also when the bus has dropped it, and when its worker is gone.
    scene.leaves(again);
    scene.pass(600.0);
    scene.seen();
    scene.ask(second, 8, "session/load", &json!({"sessionId": "live-one"}));
    assert!(scene.seen().contains("-32002"));
    let again = scene.open_as("token:one");
    scene.ask(again, 7, "session/load", &json!({"sessionId": "live-one"}));
    assert!(scene.seen().starts_with('w'));
}

#[test]
fn a_session_name_with_a_nul_does_not_stand_for_a_session_of_another_pool() {
    for name in ["p\0s-1", "p\0\0s-1", "\0s-1", "p/s-1", "p\u{1f}s-1"] {
        let acp = Pool { mix_identities: true, ..pool(Share::All) };
        let rpc = Pool { name: "rpc".into(), protocol: Protocol::JsonRpc, ..pool(Share::All) };
        let mut scene = Scene::new(&asking(vec![acp, rpc]));
        scene.up(0);
        scene.answer(0, 1, &able());
        scene.up(1);
        let open_initialized = |scene: &mut Scene| {
            let client = scene.open_as("token:alice");
            scene.ask(client, 1, "initialize", &json!({"protocolVersion": 1}));
            client
        };
        let alice = open_initialized(&mut scene);
        scene.session(alice, 0, "s-1");
        scene.leaves(alice);
        scene.pass(600.0);

        let bob = scene.open_as("token:bob");
        let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "hello", "pool": "rpc", "params": {"sessionId": name}});
        scene.line(bob, &hello.to_string());
        let seen = scene.seen();
        assert!(seen.contains("identity: \"token:bob\"") && seen.contains("w1 <"), "{name:?} {seen}");

        let alice = open_initialized(&mut scene);
        scene.seen();
        scene.ask(alice, 2, "session/list", &json!({}));
        let id = scene.last_id(0);
        scene.answer(0, id, &json!({"sessions": [{"sessionId": "s-1", "cwd": "/"}]}));
        assert!(
            scene.seen().contains(r#""result":{"sessions":[{"sessionId":"s-1","cwd":"/"}]}"#),
            "{name:?}"
        );
        scene.ask(alice, 3, "session/load", &json!({"sessionId": "s-1", "cwd": "/", "mcpServers": []}));
        assert!(scene.seen().starts_with("w0 <"), "{name:?}");
    }
}

#[test]
fn a_name_that_is_anothers_is_not_given_out_again() {
    let load = |id: u64, pool: &str, name: &str| {
        let params = json!({"sessionId": name, "cwd": "/", "mcpServers": []});
        json!({"jsonrpc": "2.0", "id": id, "method": "session/load", "pool": pool, "params": params})
            .to_string()
    };
    for restarted in [false, true] {
        let pools =
            ["p", "q"].map(|name| Pool { name: name.into(), mix_identities: true, ..pool(Share::All) });
        let mut scene = Scene::new(&asking(pools.into()));
        if restarted {
            scene.core.know_owner(&"session-1".into(), "token:one");
            scene.core.know_owner(&"session-1~2".into(), "token:three");
        }
        for worker in 0..2 {
            scene.up(worker);
            scene.answer(worker, 1, &able());
        }
        if !restarted {
            let first = scene.open_as("token:one");
            scene.session(first, 0, "session-1");
            scene.leaves(first);
            scene.pass(600.0);
        }
        // The agent of another pool counts its sessions too.
        let second = scene.open_as("token:two");
        scene.seen();
        scene.line(
            second,
            r#"{"jsonrpc":"2.0","id":1,"method":"session/new","pool":"q","params":{"cwd":"/"}}"#,
        );
        let id = scene.last_id(1);
        scene.answer(1, id, &json!({"sessionId": "session-1"}));
        let seen = scene.seen();
        let name = if restarted { "session-1~3" } else { "session-1~2" };
        assert!(seen.contains(&format!("session: \"{name}\", identity: \"token:two\"")), "{seen}");
        assert!(seen.contains(r#"session: "q"/"session-1", identity: "token:two""#), "{seen}");
        assert!(seen.ends_with(&format!(r#""result":{{"sessionId":"{name}"}}}}"#)), "{seen}");
        scene.ask(second, 2, "session/prompt", &prompt(name));
        let id = scene.last_id(1);
        assert!(scene.seen().contains(r#""sessionId":"session-1","#));
        scene.answer(1, id, &json!({"stopReason": "end_turn"}));
        // It stays the first one's, also after the other has gone.
        scene.leaves(second);
        scene.pass(600.0);
        let second = scene.open_as("token:two");
        scene.seen();
        scene.line(second, &load(3, "p", "session-1"));
        let seen = scene.seen();
        assert!(seen.starts_with(&format!("c{second} < ")) && seen.contains("-32002"), "{seen}");
        let first = scene.open_as("token:one");
        scene.seen();
        scene.line(first, &load(1, "p", "session-1"));
        let id = scene.last_id(0);
        assert!(scene.seen().starts_with("w0 <"));
        scene.fail(0, id, -32603);
        scene.seen();
        // And the other's is not the first one's, though its agent calls it so.
        scene.line(first, &load(1, "q", "session-1"));
        scene.line(first, &load(2, "q", "session-1").replace("/load", "/delete"));
        let seen = scene.seen();
        assert!(!seen.contains("w1 <") && seen.matches("-32002").count() == 2, "{seen}");
        scene.ask(first, 3, "session/list", &json!({}));
        let id = scene.last_id(1);
        scene.answer(1, id, &json!({"sessions": [{"sessionId": "session-1", "cwd": "/"}]}));
        assert!(scene.seen().ends_with(r#""result":{"sessions":[]}}"#));
        // Until it is given the name there itself.
        scene.line(
            first,
            r#"{"jsonrpc":"2.0","id":4,"method":"session/new","pool":"q","params":{"cwd":"/"}}"#,
        );
        let id = scene.last_id(1);
        scene.answer(1, id, &json!({"sessionId": "session-1"}));
        assert!(scene.seen().ends_with(r#""result":{"sessionId":"session-1"}}"#));
        scene.leaves(first);
        scene.pass(600.0);
        let first = scene.open_as("token:one");
        scene.seen();
        scene.line(first, &load(1, "q", "session-1"));
        assert!(scene.seen().starts_with("w1 <"));
    }
}

#[test]
fn what_agents_call_anothers_session_is_known_after_a_restart() {
    let other = Pool { name: "q".into(), ..pool(Share::All) };
    for (pool, worker) in [("p", "w0 <"), ("q", "c0 <")] {
        let mut scene = Scene::new(&asking(vec![self::pool(Share::All), other.clone()]));
        scene.core.know_owner(&"session-1".into(), "token:one");
        scene.core.know_owner(&"session-1~2".into(), "token:two");
        scene.core.know_owner(&in_pool("q", "session-1"), "token:two");
        for worker in 0..2 {
            scene.up(worker);
            scene.answer(worker, 1, &able());
        }
        let first = scene.open_as("token:one");
        scene.seen();
        let params = json!({"sessionId": "session-1", "cwd": "/", "mcpServers": []});
        let load =
            json!({"jsonrpc": "2.0", "id": 1, "method": "session/load", "pool": pool, "params": params});
        scene.line(first, &load.to_string());
        let seen = scene.seen();
        assert!(seen.starts_with(worker), "{seen}");
    }
}

#[test]
fn a_name_that_was_ones_own_is_given_out_again() {
    let (mut scene, [_, second]) = Scene::two(Share::All, true);
    scene.ask(second, 1, "session/new", &json!({"cwd": "/"}));
    let worker = u32::from(!scene.sight.seen.iter().any(|line| line.starts_with("w0")));
    let id = scene.last_id(worker);
    scene.answer(worker, id, &json!({"sessionId": "kept-two"}));
    assert!(scene.seen().ends_with(r#""result":{"sessionId":"kept-two"}}"#));
}

#[test]
fn a_session_whose_worker_is_gone_is_taken_up_for_its_identity_alone() {
    let (mut scene, [first, second]) = Scene::two(Share::All, true);
    scene.dies(0);
    scene.seen();
    scene.ask(second, 8, "session/prompt", &prompt("live-one"));
    assert!(scene.seen().contains("-32002"));
    scene.ask(first, 8, "session/prompt", &prompt("live-one"));
    assert!(scene.seen().contains("session/resume"));
}

#[test]
fn names_of_an_unknown_protocol_are_whose_they_were_first() {
    let jsonrpc = Pool { protocol: Protocol::JsonRpc, mix_identities: true, ..pool(Share::All) };
    let mut scene = Scene::new(&asking(vec![jsonrpc]));
    scene.core.know_owner(&"kept".into(), "token:one");
    scene.up(0);
    let [first, second] = ["token:one", "token:two"].map(|identity| scene.open_as(identity));
    scene.seen();
    scene.ask(first, 1, "m", &json!({"sessionId": "new"}));
    scene.ask(second, 1, "m", &json!({"sessionId": "new"}));
    scene.ask(second, 2, "m", &json!({"sessionId": "kept"}));
    scene.line(second, r#"{"jsonrpc":"2.0","id":3,"method":"m","sessionId":"kept"}"#);
    scene.line(
        second,
        r#"{"jsonrpc":"2.0","id":4,"method":"m","sessionId":"kept","params":{"sessionId":"mine"}}"#,
    );
    scene.ask(first, 2, "m", &json!({"sessionId": "kept"}));
    assert_snapshot!(scene.seen(), @r#"
    Own { client: None, session: "new", identity: "token:one" }
    w0 < {"jsonrpc":"2.0","id":1,"method":"m","params":{"sessionId":"new"}}
    c1 < {"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"the bus knows no such session","data":{"condition":"not_found","retryable":false,"effects":"none"}}}
    c1 < {"jsonrpc":"2.0","id":2,"error":{"code":-32002,"message":"the bus knows no such session","data":{"condition":"not_found","retryable":false,"effects":"none"}}}
    c1 < {"sessionId":"kept","jsonrpc":"2.0","id":3,"error":{"code":-32002,"message":"the bus knows no such session","data":{"condition":"not_found","retryable":false,"effects":"none"}}}
    c1 < {"sessionId":"kept","jsonrpc":"2.0","id":4,"error":{"code":-32002,"message":"the bus knows no such session","data":{"condition":"not_found","retryable":false,"effects":"none"}}}
    Own { client: None, session: "kept", identity: "token:one" }
    w0 < {"jsonrpc":"2.0","id":2,"method":"m","params":{"sessionId":"kept"}}
    "#);
}

#[test]
fn nobody_answers_for_another() {
    let (mut scene, [first, second]) = Scene::two(Share::All, true);
    scene.said(
        0,
        r#"{"jsonrpc":"2.0","id":"p","method":"session/request_permission","params":{"sessionId":"live-one"}}"#,
    );
    assert!(scene.seen().starts_with("c0 < "));
    let answer = r#"{"jsonrpc":"2.0","id":1,"result":{"outcome":{"outcome":"selected","optionId":"yes"}}}"#;
    scene.line(second, answer);
    scene.line(first, &answer.replace("\"id\":1", "\"id\":2"));
    assert_eq!(scene.seen(), "");
    scene.line(first, answer);
    assert_eq!(scene.seen(), format!("w0 < {}", answer.replace("\"id\":1", "\"id\":\"p\"")));
    scene.line(first, answer);
    assert_eq!(scene.seen(), "");
}

#[test]
fn where_nobody_is_asked_users_and_anyone_are_told_apart_as_long_as_the_bus_runs() {
    let doors = ["unix:/run/bus.sock", "tcp://127.0.0.1:1"].map(|door| Listen::parse(door).unwrap());
    let shared = Pool { mix_identities: true, ..pool(Share::All) };
    let mut scene = Scene::new(&Config { listen: doors.into(), ..config(vec![shared]) });
    scene.up(0);
    scene.answer(0, 1, &able());
    let (user, anyone) = (scene.open_as("uid:1"), scene.open_as("anyone"));
    scene.session(user, 0, "a");
    scene.ask(user, 5, "session/close", &json!({"sessionId": "a"}));
    let id = scene.last_id(0);
    scene.answer(0, id, &json!({}));
    scene.seen();
    let load = |name: &str| json!({"sessionId": name, "cwd": "/", "mcpServers": []});
    scene.ask(anyone, 1, "session/load", &load("a"));
    assert!(scene.seen().contains("-32002"), "it is another's");
    scene.ask(anyone, 2, "session/list", &json!({}));
    let id = scene.last_id(0);
    scene.answer(
        0,
        id,
        &json!({"sessions": [{"sessionId": "a", "cwd": "/"}, {"sessionId": "older", "cwd": "/"}]}),
    );
    let seen = scene.seen();
    assert!(seen.contains("older") && !seen.contains(r#""sessionId":"a""#), "{seen}");
    scene.ask(anyone, 3, "session/load", &load("older"));
    assert!(scene.seen().starts_with("w0 < "), "it may be whoever's who asks");
    scene.ask(user, 6, "session/load", &load("a"));
    assert!(scene.seen().starts_with("w0 < "), "it is still its owner's");
}

/// An agent that counts its sessions uses a name again.
#[test]
fn a_lost_session_is_not_taken_up_if_its_agent_gave_its_name_to_another_identity() {
    for asked in ["session/prompt", "session/load", "session/resume"] {
        let mut scene = Scene::new(&asking(vec![Pool { mix_identities: true, ..pool(Share::All) }]));
        scene.up(0);
        scene.answer(0, 1, &able());
        let (one, two) = (scene.open_as("token:one"), scene.open_as("token:two"));
        scene.session(one, 0, "s1");
        scene.dies(0);
        scene.pass(1.0);
        scene.up(0);
        scene.answer(0, 1, &able());
        scene.ask(two, 1, "session/new", &json!({"cwd": "/"}));
        let id = scene.last_id(0);
        scene.answer(0, id, &json!({"sessionId": "s1"}));
        scene.ask(two, 2, "session/close", &json!({"sessionId": "s1~2"}));
        let id = scene.last_id(0);
        scene.answer(0, id, &json!({}));
        scene.seen();
        scene.ask(one, 7, asked, &json!({"sessionId": "s1", "cwd": "/", "mcpServers": [], "prompt": []}));
        let seen = scene.seen();
        assert!(seen.contains("-32002") && !seen.contains("w0 < "), "{asked}: {seen}");
    }
}
