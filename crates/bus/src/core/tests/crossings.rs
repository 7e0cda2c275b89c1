//! Names that one client chooses and that mean something of another client's.

use super::*;

/// The client that is asked to connect chooses the name of the connection.
#[test]
fn the_name_of_a_connection_is_no_id_of_a_server() {
    let mut bus = TestBus::new(&config(vec![Pool { mix_identities: true, ..pool(Share::All) }]));
    bus.up(0);
    bus.answer(0, 1, &able());
    let clients = ["alice", "bob"].map(|name| bus.open_as(&format!("token:{name}")));
    for (client, name) in clients.into_iter().zip(["a", "b"]) {
        let server = json!({"type": "acp", "name": "n", "serverId": format!("files-{name}")});
        bus.request(client, 1, "session/new", &json!({"cwd": "/", "mcpServers": [server]}));
        let id = bus.last_id(0);
        bus.answer(0, id, &json!({"sessionId": name}));
    }
    bus.seen();
    let call = |id: u64, method: &str, params: Value| {
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
    };
    bus.worker_sends(0, &call(1, "mcp/connect", json!({"acpId": "files-a"})));
    assert!(bus.seen().starts_with(&format!("c{} < ", clients[0])));
    bus.line(clients[0], r#"{"jsonrpc":"2.0","id":1,"result":{"connectionId":"files-b"}}"#);
    bus.seen();
    for (id, method) in [(2, "mcp/message"), (3, "mcp/disconnect")] {
        bus.worker_sends(0, &call(id, method, json!({"connectionId": "files-b", "method": "tools/call"})));
        let seen = bus.seen();
        assert!(seen.starts_with("w0 < ") && seen.contains("-32601"), "{seen}");
    }
    bus.request(clients[0], 4, "mcp/message", &json!({"connectionId": "files-a"}));
    assert!(bus.seen().contains("-32602"));
}
