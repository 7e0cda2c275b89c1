//! Memory accounts of identities: kept data of sessions and pending requests is charged exactly, and other
//! identities have room.

use std::sync::Arc;

use super::super::identity::Identity;
use super::identities::authenticating;
use super::*;

/// Returns a bus with one worker that all identities share. Each identity has 64 KiB for data kept with its
/// sessions.
fn bus(protocol: PoolProtocol) -> TestBus {
    let mut settings = authenticating(vec![Pool { protocol, mix_identities: true, ..pool(ShareMode::All) }]);
    settings.limits.memory = 1 << 20;
    settings.limits.max_sessions_per_worker = 100_000;
    let mut bus = TestBus::new(&settings);
    bus.up(0);
    if protocol != PoolProtocol::JsonRpc {
        bus.answer(0, 1, &able());
    }
    bus.seen();
    bus
}

impl TestBus {
    /// Opens a session with a tag. Returns `false` if the session is refused.
    fn tagged(&mut self, client: u32, name: &str, tag: &str, result: &Value) -> bool {
        let params = json!({"cwd": "/", "mcpServers": [{"type": "acp", "name": "n", "id": "files"}]});
        let line =
            json!({"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": params, "sessionId": tag});
        self.line(client, &line.to_string());
        let seen = self.seen();
        if !seen.starts_with("w0 < ") {
            return false;
        }
        let mut result = result.clone();
        result["sessionId"] = json!(name);
        self.answer(0, last_id_in(&seen, 0), &result);
        self.output.waiting.clear();
        self.core.worker_drained(self.now, WorkerId(0), &mut self.output);
        self.seen().contains("\"result\"")
    }

    /// Returns the bytes kept for the sessions of an identity, counted in the tables: those of all data but
    /// the names, and those of the names.
    fn kept_of(&self, identity: Identity) -> (usize, usize) {
        let mut results = Vec::new();
        let (mut kept, mut names) = (0, 0);
        for (_, session) in self.core.sessions.iter().filter(|(_, session)| session.identity == identity) {
            kept += session.params.len() + session.tag.as_ref().map_or(0, |tag| tag.len());
            kept += session.servers.held_bytes();
            names += 2 * session.name.len() + session.agent_name_json.as_ref().map_or(0, |wire| wire.len());
            let result = session.sharing.as_ref().and_then(|sharing| sharing.result());
            if let Some(result) = result.filter(|it| !results.iter().any(|other| Arc::ptr_eq(it, other))) {
                kept += result.len();
                results.push(Arc::clone(result));
            }
        }
        (kept, names)
    }

    #[track_caller]
    fn check_account(&mut self, identity: &str) -> (usize, usize) {
        let identity = self.core.identities.number(identity);
        let (kept, names) = self.core.sessions.held(identity);
        assert_eq!((kept, names), self.kept_of(identity));
        (kept, names)
    }
}

#[test]
fn tags_and_results_of_sessions_leave_room_for_params_and_for_others() {
    let mut bus = bus(PoolProtocol::V1);
    let (one, two) = (bus.open_as("token:one"), bus.open_as("token:two"));
    for number in 0..60 {
        let result = json!({"models": "m".repeat(3_000), "number": number});
        assert!(bus.tagged(one, &format!("one-{number}"), &"t".repeat(4_000), &result));
        bus.check_account("token:one");
    }
    let (kept, _) = bus.check_account("token:one");
    assert!((28 << 10..=64 << 10).contains(&kept), "{kept}");
    let count = |bus: &TestBus, is_it: fn(&super::super::session::Session) -> bool| {
        bus.core.sessions.iter().filter(|(_, session)| is_it(session)).count()
    };
    assert!(count(&bus, |session| session.tag.is_some()) < 10);
    assert!(count(&bus, |session| !session.params.is_empty()) > 40, "params may use the other half");
    assert!(bus.tagged(two, "two", "tag", &json!({"models": "m"})));
    let (kept, _) = bus.check_account("token:two");
    assert!(kept > 0 && count(&bus, |session| *session.name == *"two" && session.tag.is_some()) == 1);
    // The new tag replaces the one that the session had before.
    let ask = r#"{"jsonrpc":"2.0","id":7,"method":"session/prompt","params":{"sessionId":"two","prompt":[]},"sessionId":"a longer tag"}"#;
    bus.line(two, ask);
    assert_eq!(bus.check_account("token:two").0, kept + "a longer tag".len() - "tag".len());
    bus.disconnect(one);
    bus.disconnect(two);
    bus.kill_worker(0);
    bus.advance(3_600.0);
    for identity in ["token:one", "token:two"] {
        assert_eq!(bus.check_account(identity), (0, 0));
    }
}

#[test]
fn sessions_with_equal_results_share_one_copy() {
    let mut bus = bus(PoolProtocol::V1);
    let one = bus.open_as("token:one");
    let result = json!({"models": "m".repeat(20_000)});
    for number in 0..50 {
        assert!(bus.tagged(one, &format!("one-{number}"), "t", &result));
        bus.check_account("token:one");
    }
    let results = |session: &super::super::session::Session| {
        session.sharing.as_ref().is_some_and(|sharing| sharing.result().is_some())
    };
    assert_eq!(bus.core.sessions.iter().filter(|(_, session)| results(session)).count(), 50);
    assert!(bus.check_account("token:one").0 < 60_000);
}

#[test]
fn long_names_of_sessions_are_bounded_for_each_identity() {
    let mut bus = bus(PoolProtocol::JsonRpc);
    let (one, two) = (bus.open_as("token:one"), bus.open_as("token:two"));
    let mut reached = 0;
    for number in 0..100 {
        let name = format!("{number}-{}", "n".repeat(4_000));
        bus.request(one, number, "m", &json!({"sessionId": name}));
        let seen = bus.seen();
        reached += usize::from(seen.contains("w0 < "));
        assert_ne!(seen.contains("w0 < "), seen.contains("-32012"), "{seen}");
        bus.output.waiting.clear();
        bus.check_account("token:one");
    }
    assert!((8..=10).contains(&reached), "{reached}");
    bus.request(two, 1, "m", &json!({"sessionId": "short"}));
    assert!(bus.seen().contains("w0 < "));
    bus.check_account("token:two");
}

fn questions(bus: &TestBus) -> usize {
    let asked = bus.core.clients.iter().flat_map(|(_, state)| state.asked.values());
    asked.map(|asked| 256 + 2 * asked.id.len()).sum()
}

#[test]
fn requests_of_a_worker_to_clients_are_bounded_for_each_identity() {
    let mut bus = bus(PoolProtocol::V1);
    bus.core.limits.unfinished_input = 1 << 20;
    let (one, two) = (bus.open_as("token:one"), bus.open_as("token:two"));
    bus.session(one, 0, "one");
    bus.session(two, 0, "two");
    let held = |bus: &mut TestBus, identity: &str| {
        let identity = bus.core.identities.number(identity);
        bus.core.memory.held(identity)
    };
    let before = held(&mut bus, "token:one");
    let ask = |bus: &mut TestBus, session: &str, id: &str| {
        let params = json!({"sessionId": session, "path": "/x"});
        let line = json!({"jsonrpc": "2.0", "id": id, "method": "fs/read_text_file", "params": params});
        bus.worker_sends(0, &line.to_string());
        let seen = bus.seen();
        assert_ne!(seen.contains("c0 < ") || seen.contains("c1 < "), seen.contains("-32012"), "{seen}");
        !seen.contains("-32012")
    };
    let mut reached = 0;
    for number in 0..500 {
        reached += u64::from(ask(&mut bus, "one", &format!("{number}-{}", "i".repeat(4_000))));
        let (all, own) = held(&mut bus, "token:one");
        assert_eq!((all - before.0, own - before.1), (questions(&bus), questions(&bus)));
    }
    let most = bus.core.limits.held().1;
    assert!(reached > 10 && questions(&bus) <= most + most / 8, "{reached} {}", questions(&bus));
    assert!(!ask(&mut bus, "one", &"i".repeat(4_000)));
    assert!(ask(&mut bus, "two", "short"));
    for number in 1..=reached {
        bus.line(one, &json!({"jsonrpc": "2.0", "id": number, "result": {}}).to_string());
    }
    bus.disconnect(two);
    assert_eq!((questions(&bus), held(&mut bus, "token:one").1), (0, before.1));
}
