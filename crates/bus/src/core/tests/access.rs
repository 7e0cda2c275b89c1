//! Access of clients to pools, and to the MCP servers that clients name.

use serde_json::{Value, json};

use super::super::{ANYONE, ClientInfo};
use super::{
    Config, ListenerSettings, Pool, PoolProtocol, ShareMode, TestBus, able, config, last_id_in, pool,
};
use crate::config::{ListenAddr, McpAccess, McpTarget, PoolMcpServer};

const REFUSED: &str = "MCP server not allowed by this pool";

fn files() -> PoolMcpServer {
    let env = [("KEY".to_owned(), "s3cret".to_owned())].into();
    PoolMcpServer {
        name: "files".into(),
        target: McpTarget::Command { words: vec!["mcp-files".into(), "/srv".into()], env },
    }
}

/// Opens a client. With `is_owner`, the client is the user of the bus, on a unix socket or stdio.
fn open(bus: &mut TestBus, is_owner: bool) -> u32 {
    let identity = if is_owner { "uid:7" } else { ANYONE };
    let from = ClientInfo { is_owner, ..ClientInfo::new(0, identity) };
    bus.core.client_open(bus.now, from, &mut bus.output).unwrap().0
}

/// Returns a bus with one worker that is initialized for `client`, or shared.
fn bus(pool: Pool, is_owner: bool) -> (TestBus, u32) {
    let is_shared = pool.share == ShareMode::All;
    let mut bus = TestBus::new(&config(vec![pool]));
    bus.up(0);
    if is_shared {
        bus.answer(0, 1, &able());
    }
    let client = open(&mut bus, is_owner);
    bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
    if !is_shared {
        let id = bus.last_id(0);
        bus.answer(0, id, &able());
    }
    bus.seen();
    (bus, client)
}

fn stdio() -> Value {
    json!({"name": "x", "command": "/bin/sh", "args": ["-c", "id"], "env": []})
}

fn reached(seen: &str) -> bool {
    seen.lines().any(|line| line.starts_with('w'))
}

#[test]
fn servers_of_a_client_are_refused_and_nothing_is_sent() {
    for share in [ShareMode::Connection, ShareMode::Session, ShareMode::All] {
        for server in [
            stdio(),
            json!({"type": "stdio", "name": "x", "command": "sh"}),
            json!({"type": "http", "name": "x", "url": "http://127.0.0.1:1/", "headers": []}),
            json!({"type": "sse", "name": "x", "url": "http://127.0.0.1:1/", "headers": []}),
            json!({"type": "later", "name": "x"}),
        ] {
            for method in ["session/new", "session/load", "session/resume", "session/fork"] {
                let (mut bus, client) = bus(pool(share), false);
                let params = json!({"sessionId": "s", "cwd": "/", "mcpServers": [server]});
                bus.request(client, 2, method, &params);
                let seen = bus.seen();
                assert!(seen.contains(REFUSED) && seen.contains("-32015"), "{share:?} {method}: {seen}");
                assert!(!reached(&seen), "{share:?} {method}: {seen}");
                assert_eq!(bus.core.status(bus.now).counters.refused_mcp, 1);
            }
        }
    }
}

#[test]
fn the_user_of_the_bus_may_name_servers_unless_the_pool_says_otherwise() {
    let params = json!({"cwd": "/", "mcpServers": [stdio()]});
    let check = |mcp: Option<McpAccess>, is_owner: bool, passes: bool| {
        let (mut bus, client) = bus(Pool { mcp, ..pool(ShareMode::Connection) }, is_owner);
        bus.request(client, 2, "session/new", &params);
        let seen = bus.seen();
        assert_eq!(seen.contains(&params.to_string()), passes, "{mcp:?} {is_owner}: {seen}");
        assert_eq!(seen.contains(REFUSED), !passes, "{mcp:?} {is_owner}: {seen}");
    };
    check(None, true, true);
    check(None, false, false);
    check(Some(McpAccess::Any), false, true);
    check(Some(McpAccess::Any), true, true);
    check(Some(McpAccess::None), true, false);
    check(Some(McpAccess::Listed), true, false);
}

#[test]
fn settings_for_the_agent_in_meta_are_refused_and_nothing_is_sent() {
    let claude = json!({"claudeCode": {"options": {"pathToClaudeCodeExecutable": "/bin/sh"}}});
    let opening = json!({"sessionId": "s", "cwd": "/", "mcpServers": [], "_meta": claude});
    let nested = json!({"cwd": "/", "mcpServers": [], "additionalDirectories": [{"_meta": claude}]});
    for share in [ShareMode::Connection, ShareMode::Session, ShareMode::All] {
        for (method, params) in [
            ("session/new", &opening),
            ("session/new", &nested),
            ("session/load", &opening),
            ("session/resume", &opening),
            ("session/fork", &opening),
            ("_own/method", &opening),
        ] {
            let (mut bus, client) = bus(pool(share), false);
            bus.request(client, 2, method, params);
            let seen = bus.seen();
            assert!(!reached(&seen) && seen.contains("-32015"), "{share:?} {method}: {seen}");
        }
    }
}

#[test]
fn listed_and_protocol_members_of_meta_are_permitted() {
    let passes = |pool: Pool, is_owner: bool, meta: &Value| {
        let (mut bus, client) = bus(pool, is_owner);
        let params = json!({"cwd": "/", "mcpServers": [], "_meta": meta});
        bus.request(client, 2, "session/new", &params);
        bus.seen().contains(&params.to_string())
    };
    let usual = || pool(ShareMode::Connection);
    let claude = json!({"claudeCode": {}});
    assert!(passes(usual(), false, &json!({"traceparent": "00", "narrows": {"x": 1}})));
    assert!(!passes(usual(), false, &claude));
    assert!(passes(usual(), true, &claude));
    assert!(passes(Pool { client_meta: vec!["claudeCode".into()], ..usual() }, false, &claude));
    assert!(!passes(Pool { client_meta: vec!["claude".into()], ..usual() }, false, &claude));
    assert!(passes(Pool { mcp: Some(McpAccess::Any), ..usual() }, false, &claude));
    assert!(!passes(Pool { mcp: Some(McpAccess::None), ..usual() }, true, &claude));
}

#[test]
fn a_governed_pool_leaves_servers_to_its_gate() {
    let governed = pool(ShareMode::Connection).with_manifest("/w/ACP.md".into(), None);
    let (mut bus, client) = bus(governed, false);
    let params = json!({"cwd": "/", "mcpServers": [stdio()]});
    bus.request(client, 2, "session/new", &params);
    assert!(bus.seen().contains(&params.to_string()));
}

#[test]
fn servers_in_the_client_are_permitted() {
    let (mut bus, client) = bus(pool(ShareMode::All), false);
    let params = json!({"cwd": "/", "mcpServers": [{"type": "acp", "name": "a", "id": "1"}]});
    bus.request(client, 2, "session/new", &params);
    assert!(bus.seen().contains(&params.to_string()));
}

#[test]
fn servers_in_batches_extensions_and_notifications_are_refused_too() {
    let (mut bus, client) = bus(pool(ShareMode::All), false);
    let open =
        json!({"jsonrpc": "2.0", "id": 5, "method": "session/new", "params": {"mcpServers": [stdio()]}});
    bus.line(client, &format!("[{open}]"));
    let seen = bus.seen();
    assert!(seen.contains(REFUSED) && !reached(&seen), "{seen}");
    bus.request(client, 6, "_agent/open", &json!({"cwd": "/", "mcpServers": [stdio()]}));
    bus.request(
        client,
        7,
        "proxy/successor",
        &json!({"method": "session/new", "params": {"mcpServers": [stdio()]}}),
    );
    bus.request(
        client,
        8,
        "session/new",
        &json!({"_meta": {"narrows": {"mcpServers": {"a": {"command": "sh"}}}}}),
    );
    let seen = bus.seen();
    assert_eq!((seen.matches(REFUSED).count(), reached(&seen)), (3, false), "{seen}");
    bus.notify(client, "session/new", &json!({"cwd": "/", "mcpServers": [stdio()]}));
    let seen = bus.seen();
    assert!(!reached(&seen), "{seen}");
    // Parameters of other extension methods, and the content of prompts, are not checked.
    bus.request(client, 9, "_agent/open", &json!({"cwd": "mcpServers"}));
    assert!(reached(&bus.seen()));
}

#[test]
fn a_pool_of_another_protocol_refuses_servers_of_the_session_methods() {
    let jsonrpc = Pool { protocol: PoolProtocol::JsonRpc, ..pool(ShareMode::All) };
    let mut bus = TestBus::new(&config(vec![jsonrpc]));
    bus.up(0);
    let client = open(&mut bus, false);
    bus.seen();
    bus.request(client, 2, "session/new", &json!({"sessionId": "s", "mcpServers": [stdio()]}));
    let seen = bus.seen();
    assert!(seen.contains(REFUSED) && !reached(&seen), "{seen}");
    bus.request(client, 3, "session/new", &json!({"sessionId": "s", "mcpServers": []}));
    assert!(reached(&bus.seen()));
}

#[test]
fn listed_servers_get_the_description_of_the_pool() {
    let listed = Pool { mcp: Some(McpAccess::Listed), mcp_servers: vec![files()], ..pool(ShareMode::All) };
    let (mut bus, client) = bus(listed, true);
    let evil = json!({"name": "files", "command": "/bin/sh", "args": ["-c", "id"], "env": []});
    bus.request(client, 2, "session/new", &json!({"cwd": "/", "mcpServers": [evil]}));
    let seen = bus.seen();
    let described = r#""mcpServers":[{"name":"files","command":"mcp-files","args":["/srv"],"env":[{"name":"KEY","value":"s3cret"}]}]"#;
    assert!(seen.contains(described) && !seen.contains("/bin/sh"), "{seen}");
    bus.request(client, 3, "session/new", &json!({"cwd": "/", "mcpServers": [{"name": "other"}]}));
    let seen = bus.seen();
    assert!(seen.contains(REFUSED) && !seen.contains("s3cret") && !seen.contains("files"), "{seen}");
}

#[test]
fn a_restored_session_has_the_servers_that_its_pool_permits_now() {
    let listed = |env: &str| {
        let mut server = files();
        server.target = McpTarget::Command { words: vec![env.to_owned()], env: Default::default() };
        Pool { instances: 2, mcp: Some(McpAccess::Listed), mcp_servers: vec![server], ..pool(ShareMode::All) }
    };
    let mut bus = TestBus::new(&config(vec![listed("old")]));
    for worker in 0..2 {
        bus.up(worker);
        bus.answer(worker, 1, &able());
    }
    let client = open(&mut bus, false);
    bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
    bus.request(client, 2, "session/new", &json!({"cwd": "/", "mcpServers": [{"name": "files"}]}));
    bus.answer(0, 2, &json!({"sessionId": "s"}));
    bus.seen();
    // Only settings that do not concern running workers have changed, so the workers stay.
    bus.core.reload(bus.now, &config(vec![listed("new")]), &mut bus.output);
    assert_eq!(bus.seen(), "");
    bus.kill_worker(0);
    bus.seen();
    bus.request(client, 3, "session/prompt", &super::prompt("s"));
    let seen = bus.seen();
    assert!(seen.contains("session/resume") && seen.contains(r#""command":"new""#), "{seen}");
    // A session is not restored without its MCP server.
    bus.answer(1, 2, &json!({}));
    let none = Pool { mcp: Some(McpAccess::None), mcp_servers: Vec::new(), ..listed("new") };
    bus.core.reload(bus.now, &config(vec![none]), &mut bus.output);
    bus.advance(2.0);
    bus.up(0);
    bus.answer(0, 1, &able());
    bus.kill_worker(1);
    bus.seen();
    bus.request(client, 4, "session/prompt", &super::prompt("s"));
    let seen = bus.seen();
    assert!(seen.contains(REFUSED) && !seen.contains("\"command\""), "{seen}");
}

fn two_pools(listen: Vec<ListenerSettings>) -> TestBus {
    let named = |name: &str| Pool { name: name.into(), ..pool(ShareMode::All) };
    let config = Config { listen, ..config(vec![named("one"), named("two")]) };
    let mut bus = TestBus::new(&config);
    for worker in 0..2 {
        bus.up(worker);
        bus.answer(worker, 1, &able());
    }
    bus.seen();
    bus
}

fn listener(pool: Option<&str>, pools: Option<&[&str]>) -> ListenerSettings {
    let pools = pools.map(|pools| pools.iter().map(|&name| name.to_owned()).collect());
    ListenerSettings { pool: pool.map(str::to_owned), pools, ..ListenerSettings::new(ListenAddr::Stdio) }
}

/// Opens a client at a listener, with a token that permits these pools.
fn enter(bus: &mut TestBus, listener: usize, pools: Option<&[&str]>) -> u32 {
    let pools: Option<Vec<String>> = pools.map(|pools| pools.iter().map(|&name| name.to_owned()).collect());
    let from = ClientInfo { pools: pools.as_deref(), ..ClientInfo::new(listener, "token:bob") };
    bus.core.client_open(bus.now, from, &mut bus.output).unwrap().0
}

#[test]
fn a_client_gets_only_the_pools_of_its_listener_and_its_token() {
    #[track_caller]
    fn check(
        listen: ListenerSettings,
        token: Option<&[&str]>,
        wanted: Option<&str>,
        expected: Result<u32, ()>,
    ) {
        let mut bus = two_pools(vec![listen]);
        let client = enter(&mut bus, 0, token);
        let mut params = json!({"protocolVersion": 1});
        if let Some(wanted) = wanted {
            params["_meta"] = json!({"narrows/pool": wanted});
        }
        bus.request(client, 1, "initialize", &params);
        let seen = bus.seen();
        assert_eq!(seen.contains("-32015"), expected.is_err(), "{seen}");
        bus.request(client, 2, "session/new", &json!({"cwd": "/"}));
        let seen = bus.seen();
        match expected {
            Ok(worker) => assert!(seen.contains(&format!("w{worker} < ")), "{seen}"),
            Err(()) => assert!(!reached(&seen), "{seen}"),
        }
    }
    check(listener(None, None), None, None, Ok(0));
    check(listener(None, None), None, Some("two"), Ok(1));
    check(listener(Some("two"), None), None, None, Ok(1));
    check(listener(Some("two"), None), None, Some("two"), Ok(1));
    check(listener(Some("two"), None), None, Some("one"), Err(()));
    // The error for a pool that does not exist equals that for a pool that the client may not use.
    check(listener(Some("two"), None), None, Some("three"), Err(()));
    check(listener(None, Some(&["two"])), None, None, Ok(1));
    check(listener(None, Some(&["two"])), None, Some("one"), Err(()));
    check(listener(Some("two"), Some(&["one", "two"])), None, None, Ok(1));
    check(listener(Some("two"), Some(&["one", "two"])), None, Some("one"), Ok(0));
    check(listener(None, None), Some(&["two"]), None, Ok(1));
    check(listener(None, None), Some(&["two"]), Some("one"), Err(()));
    check(listener(Some("one"), None), Some(&["two"]), None, Err(()));
    check(listener(Some("one"), None), Some(&["two"]), Some("two"), Err(()));
}

#[test]
fn a_session_in_a_pool_that_a_client_may_not_use_does_not_exist_for_it() {
    let mut bus = two_pools(vec![listener(None, None), listener(Some("two"), None)]);
    let (all, two) = (enter(&mut bus, 0, None), enter(&mut bus, 1, None));
    for client in [all, two] {
        bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
    }
    bus.session(all, 0, "secret");
    let unknown = {
        bus.request(two, 9, "session/prompt", &super::prompt("nothing"));
        bus.seen()
    };
    for method in ["session/prompt", "session/close", "session/cancel_it"] {
        bus.request(two, 9, method, &json!({"sessionId": "secret"}));
        assert_eq!(bus.seen(), unknown, "{method}");
    }
    for method in ["session/load", "session/resume"] {
        bus.request(two, 9, method, &json!({"sessionId": "secret", "cwd": "/", "mcpServers": []}));
        assert_eq!(bus.seen(), unknown, "{method}");
    }
    bus.request(two, 10, "session/list", &json!({}));
    let id = bus.last_id(1);
    bus.answer(1, id, &json!({"sessions": [{"sessionId": "secret"}, {"sessionId": "old"}]}));
    let seen = bus.seen();
    assert!(
        seen.contains("old") && !seen.lines().any(|line| line.starts_with('c') && line.contains("secret")),
        "{seen}"
    );
}

#[test]
fn a_reload_can_forbid_a_pool_to_connected_clients() {
    let mut bus = two_pools(vec![listener(None, None)]);
    let client = enter(&mut bus, 0, None);
    bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
    bus.session(client, 0, "s");
    let named = |name: &str| Pool { name: name.into(), ..pool(ShareMode::All) };
    let listen = vec![listener(Some("two"), None)];
    let config = Config { listen, ..config(vec![named("one"), named("two")]) };
    bus.core.reload(bus.now, &config, &mut bus.output);
    bus.seen();
    bus.request(client, 2, "session/prompt", &super::prompt("s"));
    bus.request(client, 3, "session/new", &json!({"cwd": "/"}));
    let seen = bus.seen();
    assert!(!reached(&seen) && seen.matches("-32015").count() == 2, "{seen}");
}

/// Returns a bus whose two listeners permit all pools, and a client at each of them.
fn two_listeners(protocol: PoolProtocol) -> (TestBus, [u32; 2]) {
    let listen = vec![network_listener(None), network_listener(None)];
    let mut bus = TestBus::new(&Config { listen, ..config(pools_of(protocol)) });
    for worker in 0..2 {
        bus.up(worker);
        let v2 = json!({"protocolVersion": 2, "capabilities": {}});
        bus.answer(worker, 1, &if protocol == PoolProtocol::V2 { v2 } else { able() });
    }
    let clients = [0, 1].map(|listener| enter(&mut bus, listener, None));
    for client in clients {
        let version = if protocol == PoolProtocol::V2 { 2 } else { 1 };
        bus.request(client, 1, "initialize", &json!({"protocolVersion": version}));
    }
    (bus, clients)
}

fn pools_of(protocol: PoolProtocol) -> Vec<Pool> {
    ["one", "two"].map(|name| Pool { name: name.into(), protocol, ..pool(ShareMode::All) }).into()
}

fn network_listener(pools: Option<&[&str]>) -> ListenerSettings {
    ListenerSettings {
        pools: listener(None, pools).pools,
        ..ListenerSettings::parse("http://127.0.0.1:1/acp").unwrap()
    }
}

/// Takes all pools but `two` from one of the listeners.
fn restrict(bus: &mut TestBus, listener: usize, protocol: PoolProtocol) {
    let permitted = |number| (number == listener).then_some(["two"].as_slice());
    let listen = [0, 1].map(|number| network_listener(permitted(number))).into();
    let config = Config { listen, ..config(pools_of(protocol)) };
    bus.core.reload(bus.now, &config, &mut bus.output);
}

const PERMISSION: &str = r#"{"jsonrpc":"2.0","id":"p","method":"session/request_permission","params":{"sessionId":"s","options":[]}}"#;
const YES: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"outcome":{"outcome":"selected","optionId":"yes"}}}"#;

#[test]
fn a_reload_removes_observers_that_may_no_longer_use_the_pool() {
    let (mut bus, [one, two]) = two_listeners(PoolProtocol::V1);
    bus.session(one, 0, "s");
    bus.request(two, 2, "session/resume", &json!({"sessionId": "s"}));
    bus.request(one, 3, "session/prompt", &super::prompt("s"));
    bus.worker_sends(0, PERMISSION);
    assert_eq!(bus.seen().matches("session/request_permission").count(), 2);
    restrict(&mut bus, 1, PoolProtocol::V1);
    assert_eq!(
        bus.seen(),
        "c1 < {\"jsonrpc\":\"2.0\",\"method\":\"$/cancel_request\",\"params\":{\"requestId\":1}}"
    );
    bus.line(two, YES);
    bus.update(0, "s", "secret");
    bus.worker_sends(0, &PERMISSION.replace("\"p\"", "\"q\""));
    let seen = bus.seen();
    assert!(!seen.contains("c1 <") && !reached(&seen), "{seen}");
    // It does not become the controller either.
    bus.core.client_gone(bus.now, super::super::ClientId(one), &mut bus.output);
    bus.update(0, "s", "secret");
    let seen = bus.seen();
    assert!(!seen.contains("c1 <"), "{seen}");
}

#[test]
fn a_controller_that_may_no_longer_use_the_pool_is_replaced_after_its_turn() {
    let (mut bus, [one, two]) = two_listeners(PoolProtocol::V1);
    bus.session(one, 0, "s");
    bus.request(two, 2, "session/resume", &json!({"sessionId": "s"}));
    bus.request(one, 3, "session/prompt", &super::prompt("s"));
    let turn = bus.last_id(0);
    bus.seen();
    restrict(&mut bus, 0, PoolProtocol::V1);
    bus.update(0, "s", "of its turn");
    assert!(bus.seen().contains("c0 <"), "the turn goes on");
    bus.worker_sends(0, PERMISSION);
    bus.seen();
    bus.answer(0, turn, &json!({"stopReason": "end_turn"}));
    bus.seen();
    // The request that was sent to it first is now that of the other client alone.
    bus.line(one, YES);
    bus.update(0, "s", "secret");
    let seen = bus.seen();
    assert!(!seen.contains("c0 <") && seen.contains("c1 <") && !reached(&seen), "{seen}");
    bus.line(two, YES);
    assert!(reached(&bus.seen()));
}

#[test]
fn in_version_2_the_controller_gets_the_end_of_its_turn_before_it_is_replaced() {
    let (mut bus, [one, two]) = two_listeners(PoolProtocol::V2);
    bus.session(one, 0, "s");
    bus.request(two, 2, "session/resume", &json!({"sessionId": "s"}));
    bus.request(one, 3, "session/prompt", &super::prompt("s"));
    let turn = bus.last_id(0);
    bus.answer(0, turn, &json!({}));
    let state = |bus: &mut TestBus, state: &str| {
        let params = json!({"sessionId": "s", "update": {"sessionUpdate": "state_update", "state": state}});
        let line = json!({"jsonrpc": "2.0", "method": "session/update", "params": params});
        bus.worker_sends(0, &line.to_string());
    };
    state(&mut bus, "running");
    restrict(&mut bus, 0, PoolProtocol::V2);
    bus.seen();
    state(&mut bus, "idle");
    let seen = bus.seen();
    assert!(seen.contains("c0 <") && seen.contains("c1 <"), "{seen}");
    bus.advance(0.1);
    bus.update(0, "s", "secret");
    let seen = bus.seen();
    assert!(!seen.contains("c0 <") && seen.contains("c1 <"), "{seen}");
}

#[test]
fn positional_parameters_are_refused_in_every_session_and_share_mode() {
    for share in [ShareMode::Connection, ShareMode::Session, ShareMode::All] {
        for method in ["session/new", "session/prompt", "session/load", "_x/y"] {
            let (mut bus, client) = bus(pool(share), true);
            bus.request(client, 2, method, &json!(["/tmp", [], [stdio()]]));
            let seen = bus.seen();
            assert!(
                !reached(&seen) && seen.contains("params must be an object"),
                "{share:?} {method}: {seen}"
            );
            bus.notify(client, method, &json!(["/tmp", [], [stdio()]]));
            let seen = bus.seen();
            assert!(!reached(&seen), "{share:?} {method}: {seen}");
        }
    }
}

#[test]
fn a_connection_message_that_names_a_session_is_not_sent_to_a_shared_worker() {
    let (mut bus, client) = bus(pool(ShareMode::All), true);
    bus.session(client, 0, "own");
    bus.seen();
    for method in ["initialize", "authenticate", "logout"] {
        let params =
            json!({"sessionId": "own", "protocolVersion": 1, "methodId": "m", "clientCapabilities": {}});
        bus.request(client, 9, method, &params);
        bus.notify(client, method, &params);
        let seen = bus.seen();
        assert!(!reached(&seen), "{method}: {seen}");
    }
}

#[test]
fn ambiguous_servers_of_a_client_are_refused() {
    let (mut bus, client) = bus(Pool { mix_identities: true, ..pool(ShareMode::All) }, true);
    let ask = |bus: &mut TestBus, server: &str, more: &str| {
        bus.line(
            client,
            &format!(
                r#"{{"jsonrpc":"2.0","id":9,"method":"session/new","params":{{"cwd":"/","mcpServers":[{server}]{more}}}}}"#
            ),
        );
        bus.seen()
    };
    for (server, more) in [
        (r#"{"type":"acp","name":"n","serverId":"srv"}"#, r#","_meta":{"x":1e999}"#),
        (r#"{"type":"acp","name":"n","serverId":"srv","_meta":{"x":1e999}}"#, ""),
        (r#"{"type":"acp","name":"n","id":"srv","serverId":"mine"}"#, ""),
        (r#"{"type":"acp","name":"n","serverId":"mine","id":"srv"}"#, ""),
        (r#"{"type":"acp","name":"n","serverId":"mine","id":"Mine"}"#, ""),
        (r#"{"type":"acp","name":"n","serverId":"7","id":7}"#, ""),
        (r#"{"type":"acp","name":"n","serverId":"mine","id":null}"#, ""),
        (r#"{"type":"acp","name":"n","serverId":"mine","acpId":"mine"}"#, ""),
        (r#"{"type":"acp","name":"n","serverId":"mine","id":"mine","Id":"mine"}"#, ""),
        (r#"{"type":"acp","name":"n","serverId":"mine","ServerID":"srv"}"#, ""),
        (r#"{"type":"acp","name":"n","serverId":"mine","serverId":"srv"}"#, ""),
        (r#"{"type":"http","type":"acp","name":"n","serverId":"srv"}"#, ""),
        (r#"{"type":"ACP","name":"n","serverId":"srv"}"#, ""),
        (r#"{"type":"acp","name":"n","serverId":7}"#, ""),
        (r#"{"type":"acp","name":"n"}"#, ""),
        (r#"{"type":"acp","name":"n","serverId":"mine"}"#, r#","mcpServers":[]"#),
    ] {
        let seen = ask(&mut bus, server, more);
        assert!(!reached(&seen) && seen.contains("-32602"), "{server} {more}: {seen}");
    }
    // The escaped server is recognized. When another client names a server with the same id, the worker gets
    // another id for that one.
    let seen = ask(&mut bus, r#"{"type":"\u0061cp","name":"n","serverId":"sr\u0076"}"#, "");
    assert!(reached(&seen), "{seen}");
    let id = last_id_in(&seen, 0);
    bus.answer(0, id, &json!({"sessionId": "a"}));
    let other = open(&mut bus, true);
    bus.request(other, 1, "initialize", &json!({"protocolVersion": 1}));
    bus.seen();
    let server = json!({"type": "acp", "name": "n", "serverId": "srv"});
    bus.request(other, 2, "session/new", &json!({"cwd": "/", "mcpServers": [server]}));
    let seen = bus.seen();
    assert!(seen.contains(r#""serverId":"srv~2""#), "{seen}");
}

#[test]
fn a_server_of_a_client_may_have_the_same_id_under_both_keys() {
    for share in [ShareMode::Connection, ShareMode::Session, ShareMode::All] {
        for is_owner in [true, false] {
            for ids in [r#""serverId":"srv","id":"srv""#, r#""id":"srv","serverId":"s\u0072v""#] {
                let (mut bus, client) = bus(pool(share), is_owner);
                bus.line(
                    client,
                    &format!(
                        r#"{{"jsonrpc":"2.0","id":9,"method":"session/new","params":{{"cwd":"/","mcpServers":[{{"type":"acp","name":"n",{ids}}}]}}}}"#
                    ),
                );
                let seen = bus.seen();
                assert!(reached(&seen) && !seen.contains("error"), "{share:?} {is_owner} {ids}: {seen}");
            }
        }
    }
}
