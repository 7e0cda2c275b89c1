//! Visibility of sessions: a session of another identity is indistinguishable from a missing one.

use insta::assert_snapshot;

use super::*;
use crate::config::{ListenAddr, ListenerAuth};
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

pub(super) fn authenticating(pools: Vec<Pool>) -> Config {
    let mut listen = ListenerSettings::parse("http://127.0.0.1:1/acp").unwrap();
    if let ListenAddr::Web(web) = &mut listen.addr {
        web.auth = ListenerAuth::Token;
        web.tokens = Some("tokens.toml".into());
    }
    Config { listen: vec![listen], ..config(pools) }
}

fn in_pool(pool: &str, name: &str) -> OwnedName {
    OwnedName { pool: Some(pool.into()), name: name.into() }
}

impl TestBus {
    pub(super) fn open_as(&mut self, identity: &str) -> u32 {
        self.try_open(identity).unwrap()
    }

    pub(super) fn try_open(&mut self, identity: &str) -> Option<u32> {
        let from = ClientInfo { is_authenticated: true, ..ClientInfo::new(0, identity) };
        let client = self.core.client_open(self.now, from, &mut self.output)?.0;
        self.initialized(client);
        Some(client)
    }

    /// Returns two identities in a pool with a worker for each, or one for both. Each has an open session,
    /// `live-one` and `live-two`, and one from before a restart of the bus, `kept-one` and `kept-two`.
    fn two(share: ShareMode, mix_identities: bool) -> (Self, [u32; 2]) {
        let pool = Pool { instances: 2, mix_identities, ..pool(share) };
        let mut bus = Self::new(&authenticating(vec![pool]));
        for (name, identity) in [("kept-one", "token:one"), ("kept-two", "token:two")] {
            bus.core.load_owner(&name.into(), identity);
        }
        for worker in 0..2 {
            bus.up(worker);
            if share == ShareMode::All {
                bus.answer(worker, 1, &able());
            }
        }
        let clients = ["token:one", "token:two"].map(|identity| bus.open_as(identity));
        for (client, name) in clients.into_iter().zip(["live-one", "live-two"]) {
            bus.output.seen.clear();
            bus.request(client, 1_000, "session/new", &json!({"cwd": "/"}));
            let worker =
                bus.output.seen.iter().find_map(|line| line.strip_prefix('w')?.chars().next()?.to_digit(10));
            let worker = worker.unwrap();
            let id = bus.last_id(worker);
            bus.answer(worker, id, &json!({"sessionId": name}));
        }
        bus.output.seen.clear();
        (bus, clients)
    }
}

#[test]
fn a_session_of_another_identity_is_answered_like_a_missing_one() {
    for (share, mixes) in [
        (ShareMode::All, true),
        (ShareMode::All, false),
        (ShareMode::Connection, false),
        (ShareMode::Session, false),
    ] {
        for method in METHODS {
            let told = ["live-one", "kept-one", "no-where", "no-such1"].map(|name| {
                let (mut bus, [_, second]) = TestBus::two(share, mixes);
                let params = json!({"sessionId": name, "cwd": "/", "mcpServers": [], "prompt": []});
                match method {
                    "session/cancel" => bus.notify(second, method, &params),
                    _ => bus.request(second, 7, method, &params),
                }
                bus.seen().replace(name, "*")
            });
            let [live, kept, nowhere, again] = &told;
            assert_eq!(nowhere, again);
            assert_eq!(live, nowhere, "{method} {share:?}");
            assert_eq!(kept, nowhere, "{method} {share:?}");
            let expected = match method {
                "session/cancel" => "",
                _ => {
                    "c1 < {\"jsonrpc\":\"2.0\",\"id\":7,\"error\":{\"code\":-32002,\
                     \"message\":\"session not found\",\
                     \"data\":{\"condition\":\"not_found\",\"retryable\":false,\"effects\":\"none\"}}}"
                }
            };
            assert_eq!(nowhere, expected, "{method} {share:?}");
        }
    }
}

#[test]
fn other_errors_come_first_and_are_the_same_for_foreign_sessions() {
    let told = ["live-one", "kept-one", "no-where"].map(|name| {
        let (mut bus, [_, second]) = TestBus::two(ShareMode::All, true);
        bus.line(
            second,
            &format!(r#"{{"jsonrpc":"2.0","id":7,"method":"session/load","pool":"none","params":{{"sessionId":"{name}"}}}}"#),
        );
        bus.core.set_pressure(true);
        bus.request(second, 8, "session/load", &json!({"sessionId": name}));
        bus.seen().replace(name, "*")
    });
    assert_eq!(told[0], told[2]);
    assert_eq!(told[1], told[2]);
}

#[test]
fn own_sessions_are_found() {
    for (share, mixes) in [
        (ShareMode::All, true),
        (ShareMode::All, false),
        (ShareMode::Connection, false),
        (ShareMode::Session, false),
    ] {
        for method in METHODS {
            let (mut bus, [_, second]) = TestBus::two(share, mixes);
            let params = json!({"sessionId": "live-two", "cwd": "/", "mcpServers": [], "prompt": []});
            match method {
                "session/cancel" => bus.notify(second, method, &params),
                _ => bus.request(second, 7, method, &params),
            }
            assert!(bus.seen().starts_with('w'), "{method} {share:?}");
        }
        for method in ["session/load", "session/resume"] {
            let (mut bus, [_, second]) = TestBus::two(share, mixes);
            bus.request(second, 7, method, &json!({"sessionId": "kept-two", "cwd": "/", "mcpServers": []}));
            let seen = bus.seen();
            assert!(seen.starts_with('w') || seen.starts_with("Spawn"), "{method} {share:?} {seen}");
        }
    }
}

#[test]
fn lists_contain_own_sessions_only() {
    let all = ["live-one", "kept-one", "live-two", "kept-two", "no-where"];
    let entries: Vec<_> = all.iter().map(|name| json!({"sessionId": name, "cwd": "/"})).collect();
    for (share, mixes) in [(ShareMode::All, true), (ShareMode::All, false), (ShareMode::Connection, false)] {
        let (mut bus, clients) = TestBus::two(share, mixes);
        for (client, own) in clients.into_iter().zip(["one", "two"]) {
            bus.request(client, 7, "session/list", &json!({}));
            let asked: Vec<u32> = (0..2)
                .filter(|worker| bus.output.seen.iter().any(|line| line.starts_with(&format!("w{worker} <"))))
                .collect();
            for worker in asked {
                let id = bus.last_id(worker);
                bus.answer(worker, id, &json!({"sessions": entries, "nextCursor": null}));
            }
            let seen = bus.seen();
            let answer = seen.lines().find_map(|line| line.strip_prefix(&format!("c{client} < "))).unwrap();
            let answer: Value = serde_json::from_str(answer).unwrap();
            let listed = answer["result"]["sessions"].as_array().unwrap();
            let names: Vec<_> = listed.iter().map(|entry| entry["sessionId"].as_str().unwrap()).collect();
            assert_eq!(names, [format!("live-{own}"), format!("kept-{own}")], "{share:?} {mixes}");
        }
    }
}

#[test]
fn the_owner_of_a_session_in_long_use_is_recorded_again() {
    for (expiry, refresh) in [(90 * 24 * 3600, 24 * 3600), (100, 50)] {
        let mut config = authenticating(vec![Pool { instances: 1, ..pool(ShareMode::All) }]);
        config.limits.owner_expiry = Duration::from_secs(expiry);
        let mut bus = TestBus::new(&config);
        bus.up(0);
        bus.answer(0, 1, &able());
        let client = bus.open_as("token:one");
        bus.session(client, 0, "a");
        let mut asks = |after: u64| {
            bus.now += Duration::from_secs(after);
            bus.request(client, 2, "session/prompt", &prompt("a"));
            let id = bus.last_id(0);
            bus.answer(0, id, &json!({"stopReason": "end_turn"}));
            bus.seen().contains(r#"RecordOwner { client: None, session: "a", identity: "token:one" }"#)
        };
        assert_eq!([asks(refresh - 1), asks(1), asks(1), asks(refresh)], [false, true, false, true]);
    }
}

#[test]
fn the_owner_of_a_session_is_recorded_before_the_client_learns_of_it() {
    let mut bus = TestBus::new(&authenticating(vec![Pool { instances: 1, ..pool(ShareMode::All) }]));
    bus.up(0);
    bus.answer(0, 1, &able());
    let client = bus.open_as("token:one");
    bus.seen();
    bus.request(client, 1, "session/new", &json!({"cwd": "/"}));
    bus.update(0, "a", "early");
    bus.answer(0, 2, &json!({"sessionId": "a"}));
    bus.request(client, 2, "session/fork", &json!({"sessionId": "a"}));
    bus.answer(0, 3, &json!({"sessionId": "b"}));
    bus.request(client, 3, "session/close", &json!({"sessionId": "b"}));
    bus.answer(0, 4, &json!({}));
    bus.request(client, 4, "session/load", &json!({"sessionId": "b"}));
    bus.answer(0, 5, &json!({}));
    bus.request(client, 5, "session/delete", &json!({"sessionId": "b"}));
    bus.answer(0, 6, &json!({}));
    bus.request(client, 6, "session/load", &json!({"sessionId": "b"}));
    assert_snapshot!(bus.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/"}}
    RecordOwner { client: Some(ClientId(0)), session: "a", identity: "token:one" }
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"early"}}
    c0 < {"jsonrpc":"2.0","id":1,"result":{"sessionId":"a"}}
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/fork","params":{"sessionId":"a"}}
    RecordOwner { client: Some(ClientId(0)), session: "b", identity: "token:one" }
    c0 < {"jsonrpc":"2.0","id":2,"result":{"sessionId":"b"}}
    w0 < {"jsonrpc":"2.0","id":4,"method":"session/close","params":{"sessionId":"b"}}
    c0 < {"jsonrpc":"2.0","id":3,"result":{}}
    w0 < {"jsonrpc":"2.0","id":5,"method":"session/load","params":{"sessionId":"b"}}
    RecordOwner { client: None, session: "b", identity: "token:one" }
    c0 < {"jsonrpc":"2.0","id":4,"result":{}}
    w0 < {"jsonrpc":"2.0","id":6,"method":"session/delete","params":{"sessionId":"b"}}
    DeleteOwner { session: "b" }
    c0 < {"jsonrpc":"2.0","id":5,"result":{}}
    c0 < {"jsonrpc":"2.0","id":6,"error":{"code":-32002,"message":"session not found","data":{"condition":"not_found","retryable":false,"effects":"none"}}}
    "#);
}

#[test]
fn no_owners_are_recorded_without_authentication() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.core.load_owner(&"x".into(), "token:one");
    bus.request(client, 1, "session/new", &json!({"cwd": "/"}));
    bus.answer(0, 2, &json!({"sessionId": "a"}));
    bus.request(client, 2, "session/load", &json!({"sessionId": "x"}));
    let seen = bus.seen();
    assert!(!seen.contains("RecordOwner"), "{seen}");
    assert!(seen.ends_with(r#""method":"session/load","params":{"sessionId":"x"}}"#), "{seen}");
}

#[test]
fn only_their_identity_reaches_sessions_of_disconnected_clients() {
    let (mut bus, [first, second]) = TestBus::two(ShareMode::All, true);
    bus.disconnect(first);
    bus.request(second, 7, "session/load", &json!({"sessionId": "live-one"}));
    assert!(bus.seen().contains("-32002"));
    let again = bus.open_as("token:one");
    bus.request(again, 7, "session/load", &json!({"sessionId": "live-one"}));
    assert!(bus.seen().starts_with("w0 <"));
    // The other identity gets the same answer after the bus has dropped the session, and after the worker was
    // lost.
    bus.disconnect(again);
    bus.advance(600.0);
    bus.seen();
    bus.request(second, 8, "session/load", &json!({"sessionId": "live-one"}));
    assert!(bus.seen().contains("-32002"));
    let again = bus.open_as("token:one");
    bus.request(again, 7, "session/load", &json!({"sessionId": "live-one"}));
    assert!(bus.seen().starts_with('w'));
}

#[test]
fn a_session_name_with_a_nul_does_not_stand_for_a_session_of_another_pool() {
    for name in ["p\0s-1", "p\0\0s-1", "\0s-1", "p/s-1", "p\u{1f}s-1"] {
        let acp = Pool { mix_identities: true, ..pool(ShareMode::All) };
        let rpc = Pool { name: "rpc".into(), protocol: PoolProtocol::JsonRpc, ..pool(ShareMode::All) };
        let mut bus = TestBus::new(&authenticating(vec![acp, rpc]));
        bus.up(0);
        bus.answer(0, 1, &able());
        bus.up(1);
        let open_initialized = |bus: &mut TestBus| {
            let client = bus.open_as("token:alice");
            bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
            client
        };
        let alice = open_initialized(&mut bus);
        bus.session(alice, 0, "s-1");
        bus.disconnect(alice);
        bus.advance(600.0);

        let bob = bus.open_as("token:bob");
        let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "hello", "pool": "rpc", "params": {"sessionId": name}});
        bus.line(bob, &hello.to_string());
        let seen = bus.seen();
        assert!(seen.contains("identity: \"token:bob\"") && seen.contains("w1 <"), "{name:?} {seen}");

        let alice = open_initialized(&mut bus);
        bus.seen();
        bus.request(alice, 2, "session/list", &json!({}));
        let id = bus.last_id(0);
        bus.answer(0, id, &json!({"sessions": [{"sessionId": "s-1", "cwd": "/"}]}));
        assert!(bus.seen().contains(r#""result":{"sessions":[{"sessionId":"s-1","cwd":"/"}]}"#), "{name:?}");
        bus.request(alice, 3, "session/load", &json!({"sessionId": "s-1", "cwd": "/", "mcpServers": []}));
        assert!(bus.seen().starts_with("w0 <"), "{name:?}");
    }
}

#[test]
fn a_name_of_another_identity_is_not_reused() {
    let load = |id: u64, pool: &str, name: &str| {
        let params = json!({"sessionId": name, "cwd": "/", "mcpServers": []});
        json!({"jsonrpc": "2.0", "id": id, "method": "session/load", "pool": pool, "params": params})
            .to_string()
    };
    for restarted in [false, true] {
        let pools =
            ["p", "q"].map(|name| Pool { name: name.into(), mix_identities: true, ..pool(ShareMode::All) });
        let mut bus = TestBus::new(&authenticating(pools.into()));
        if restarted {
            bus.core.load_owner(&"session-1".into(), "token:one");
            bus.core.load_owner(&"session-1~2".into(), "token:three");
        }
        for worker in 0..2 {
            bus.up(worker);
            bus.answer(worker, 1, &able());
        }
        if !restarted {
            let first = bus.open_as("token:one");
            bus.session(first, 0, "session-1");
            bus.disconnect(first);
            bus.advance(600.0);
        }
        // The agent of another pool also numbers its sessions, so it uses the same name.
        let second = bus.open_as("token:two");
        bus.seen();
        bus.line(
            second,
            r#"{"jsonrpc":"2.0","id":1,"method":"session/new","pool":"q","params":{"cwd":"/"}}"#,
        );
        let id = bus.last_id(1);
        bus.answer(1, id, &json!({"sessionId": "session-1"}));
        let seen = bus.seen();
        let name = if restarted { "session-1~3" } else { "session-1~2" };
        assert!(seen.contains(&format!("session: \"{name}\", identity: \"token:two\"")), "{seen}");
        assert!(seen.contains(r#"session: "q"/"session-1", identity: "token:two""#), "{seen}");
        assert!(seen.ends_with(&format!(r#""result":{{"sessionId":"{name}"}}}}"#)), "{seen}");
        bus.request(second, 2, "session/prompt", &prompt(name));
        let id = bus.last_id(1);
        assert!(bus.seen().contains(r#""sessionId":"session-1","#));
        bus.answer(1, id, &json!({"stopReason": "end_turn"}));
        // The name in pool `p` still belongs to the first identity, also after the other client has
        // disconnected.
        bus.disconnect(second);
        bus.advance(600.0);
        let second = bus.open_as("token:two");
        bus.seen();
        bus.line(second, &load(3, "p", "session-1"));
        let seen = bus.seen();
        assert!(seen.starts_with(&format!("c{second} < ")) && seen.contains("-32002"), "{seen}");
        let first = bus.open_as("token:one");
        bus.seen();
        bus.line(first, &load(1, "p", "session-1"));
        let id = bus.last_id(0);
        assert!(bus.seen().starts_with("w0 <"));
        bus.fail(0, id, -32603);
        bus.seen();
        // The first identity does not see the session of the other one in pool `q`, although it has an equal
        // name there.
        bus.line(first, &load(1, "q", "session-1"));
        bus.line(first, &load(2, "q", "session-1").replace("/load", "/delete"));
        let seen = bus.seen();
        assert!(!seen.contains("w1 <") && seen.matches("-32002").count() == 2, "{seen}");
        bus.request(first, 3, "session/list", &json!({}));
        let id = bus.last_id(1);
        bus.answer(1, id, &json!({"sessions": [{"sessionId": "session-1", "cwd": "/"}]}));
        assert!(bus.seen().ends_with(r#""result":{"sessions":[]}}"#));
        // The first identity may use the name in pool `q` only after it has created a session there.
        bus.line(first, r#"{"jsonrpc":"2.0","id":4,"method":"session/new","pool":"q","params":{"cwd":"/"}}"#);
        let id = bus.last_id(1);
        bus.answer(1, id, &json!({"sessionId": "session-1"}));
        assert!(bus.seen().ends_with(r#""result":{"sessionId":"session-1"}}"#));
        bus.disconnect(first);
        bus.advance(600.0);
        let first = bus.open_as("token:one");
        bus.seen();
        bus.line(first, &load(1, "q", "session-1"));
        assert!(bus.seen().starts_with("w1 <"));
    }
}

#[test]
fn agents_names_for_sessions_of_other_identities_are_known_after_a_restart() {
    let other = Pool { name: "q".into(), ..pool(ShareMode::All) };
    for (pool, worker) in [("p", "w0 <"), ("q", "c0 <")] {
        let mut bus = TestBus::new(&authenticating(vec![self::pool(ShareMode::All), other.clone()]));
        bus.core.load_owner(&"session-1".into(), "token:one");
        bus.core.load_owner(&"session-1~2".into(), "token:two");
        bus.core.load_owner(&in_pool("q", "session-1"), "token:two");
        for worker in 0..2 {
            bus.up(worker);
            bus.answer(worker, 1, &able());
        }
        let first = bus.open_as("token:one");
        bus.seen();
        let params = json!({"sessionId": "session-1", "cwd": "/", "mcpServers": []});
        let load =
            json!({"jsonrpc": "2.0", "id": 1, "method": "session/load", "pool": pool, "params": params});
        bus.line(first, &load.to_string());
        let seen = bus.seen();
        assert!(seen.starts_with(worker), "{seen}");
    }
}

#[test]
fn a_name_of_the_same_identity_is_reused() {
    let (mut bus, [_, second]) = TestBus::two(ShareMode::All, true);
    bus.request(second, 1, "session/new", &json!({"cwd": "/"}));
    let worker = u32::from(!bus.output.seen.iter().any(|line| line.starts_with("w0")));
    let id = bus.last_id(worker);
    bus.answer(worker, id, &json!({"sessionId": "kept-two"}));
    assert!(bus.seen().ends_with(r#""result":{"sessionId":"kept-two"}}"#));
}

#[test]
fn a_lost_session_is_restored_for_its_identity_only() {
    let (mut bus, [first, second]) = TestBus::two(ShareMode::All, true);
    bus.kill_worker(0);
    bus.seen();
    bus.request(second, 8, "session/prompt", &prompt("live-one"));
    assert!(bus.seen().contains("-32002"));
    bus.request(first, 8, "session/prompt", &prompt("live-one"));
    assert!(bus.seen().contains("session/resume"));
}

#[test]
fn names_of_an_unknown_protocol_belong_to_their_first_user() {
    let jsonrpc = Pool { protocol: PoolProtocol::JsonRpc, mix_identities: true, ..pool(ShareMode::All) };
    let mut bus = TestBus::new(&authenticating(vec![jsonrpc]));
    bus.core.load_owner(&"kept".into(), "token:one");
    bus.up(0);
    let [first, second] = ["token:one", "token:two"].map(|identity| bus.open_as(identity));
    bus.seen();
    bus.request(first, 1, "m", &json!({"sessionId": "new"}));
    bus.request(second, 1, "m", &json!({"sessionId": "new"}));
    bus.request(second, 2, "m", &json!({"sessionId": "kept"}));
    bus.line(second, r#"{"jsonrpc":"2.0","id":3,"method":"m","sessionId":"kept"}"#);
    bus.line(
        second,
        r#"{"jsonrpc":"2.0","id":4,"method":"m","sessionId":"kept","params":{"sessionId":"mine"}}"#,
    );
    bus.request(first, 2, "m", &json!({"sessionId": "kept"}));
    assert_snapshot!(bus.seen(), @r#"
    RecordOwner { client: None, session: "new", identity: "token:one" }
    w0 < {"jsonrpc":"2.0","id":1,"method":"m","params":{"sessionId":"new"}}
    c1 < {"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"session not found","data":{"condition":"not_found","retryable":false,"effects":"none"}}}
    c1 < {"jsonrpc":"2.0","id":2,"error":{"code":-32002,"message":"session not found","data":{"condition":"not_found","retryable":false,"effects":"none"}}}
    c1 < {"sessionId":"kept","jsonrpc":"2.0","id":3,"error":{"code":-32002,"message":"session not found","data":{"condition":"not_found","retryable":false,"effects":"none"}}}
    c1 < {"sessionId":"kept","jsonrpc":"2.0","id":4,"error":{"code":-32002,"message":"session not found","data":{"condition":"not_found","retryable":false,"effects":"none"}}}
    RecordOwner { client: None, session: "kept", identity: "token:one" }
    w0 < {"jsonrpc":"2.0","id":2,"method":"m","params":{"sessionId":"kept"}}
    "#);
}

#[test]
fn no_client_answers_for_another_identity() {
    let (mut bus, [first, second]) = TestBus::two(ShareMode::All, true);
    bus.worker_sends(
        0,
        r#"{"jsonrpc":"2.0","id":"p","method":"session/request_permission","params":{"sessionId":"live-one"}}"#,
    );
    assert!(bus.seen().starts_with("c0 < "));
    let answer = r#"{"jsonrpc":"2.0","id":1,"result":{"outcome":{"outcome":"selected","optionId":"yes"}}}"#;
    bus.line(second, answer);
    bus.line(first, &answer.replace("\"id\":1", "\"id\":2"));
    assert_eq!(bus.seen(), "");
    bus.line(first, answer);
    assert_eq!(bus.seen(), format!("w0 < {}", answer.replace("\"id\":1", "\"id\":\"p\"")));
    bus.line(first, answer);
    assert_eq!(bus.seen(), "");
}

#[test]
fn users_and_anyone_have_separate_sessions_while_the_bus_runs() {
    let listeners =
        ["unix:/run/bus.sock", "tcp://127.0.0.1:1"].map(|url| ListenerSettings::parse(url).unwrap());
    let shared = Pool { mix_identities: true, ..pool(ShareMode::All) };
    let mut bus = TestBus::new(&Config { listen: listeners.into(), ..config(vec![shared]) });
    bus.up(0);
    bus.answer(0, 1, &able());
    let (user, anyone) = (bus.open_as("uid:1"), bus.open_as("anyone"));
    bus.session(user, 0, "a");
    bus.request(user, 5, "session/close", &json!({"sessionId": "a"}));
    let id = bus.last_id(0);
    bus.answer(0, id, &json!({}));
    bus.seen();
    let load = |name: &str| json!({"sessionId": name, "cwd": "/", "mcpServers": []});
    bus.request(anyone, 1, "session/load", &load("a"));
    assert!(bus.seen().contains("-32002"), "the session belongs to another identity");
    bus.request(anyone, 2, "session/list", &json!({}));
    let id = bus.last_id(0);
    bus.answer(
        0,
        id,
        &json!({"sessions": [{"sessionId": "a", "cwd": "/"}, {"sessionId": "older", "cwd": "/"}]}),
    );
    let seen = bus.seen();
    assert!(seen.contains("older") && !seen.contains(r#""sessionId":"a""#), "{seen}");
    bus.request(anyone, 3, "session/load", &load("older"));
    assert!(bus.seen().starts_with("w0 < "), "without a known owner, any identity may open it");
    bus.request(user, 6, "session/load", &load("a"));
    assert!(bus.seen().starts_with("w0 < "), "the owner still has it");
}

/// The agent numbers its sessions, so it uses the name of the lost session again.
#[test]
fn a_lost_session_is_not_restored_if_its_agent_gave_its_name_to_another_identity() {
    for asked in ["session/prompt", "session/load", "session/resume"] {
        let mut bus =
            TestBus::new(&authenticating(vec![Pool { mix_identities: true, ..pool(ShareMode::All) }]));
        bus.up(0);
        bus.answer(0, 1, &able());
        let (one, two) = (bus.open_as("token:one"), bus.open_as("token:two"));
        bus.session(one, 0, "s1");
        bus.kill_worker(0);
        bus.advance(1.0);
        bus.up(0);
        bus.answer(0, 1, &able());
        bus.request(two, 1, "session/new", &json!({"cwd": "/"}));
        let id = bus.last_id(0);
        bus.answer(0, id, &json!({"sessionId": "s1"}));
        bus.request(two, 2, "session/close", &json!({"sessionId": "s1~2"}));
        let id = bus.last_id(0);
        bus.answer(0, id, &json!({}));
        bus.seen();
        bus.request(one, 7, asked, &json!({"sessionId": "s1", "cwd": "/", "mcpServers": [], "prompt": []}));
        let seen = bus.seen();
        assert!(seen.contains("-32002") && !seen.contains("w0 < "), "{asked}: {seen}");
    }
}
