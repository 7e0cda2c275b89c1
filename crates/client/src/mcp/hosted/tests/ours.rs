//! Tests with the MCP client of the built-in agent at the other end.

use narrows_mcp::{Bridge, BridgeError, BridgeFuture, Content};

use super::*;

struct Carrier(Peer);

impl Bridge for Carrier {
    fn message(&self, server: String, request: String, method: String, params: Value) -> BridgeFuture {
        let peer = self.0.clone();
        Box::pin(async move {
            let message =
                json!({"serverId": server, "requestId": request, "method": method, "params": params});
            peer.request(MCP_MESSAGE, &message, TEST_TIMEOUT).await.map_err(|error| match error {
                narrows_rpc::CallError::Refused(error) => {
                    BridgeError { code: error.code, message: error.message.into_owned() }
                }
                error => panic!("{error}"),
            })
        })
    }
}

#[tokio::test]
async fn the_built_in_agent_can_use_it() {
    let fixture = Fixture::new();
    let hosting = fixture.host("");
    let servers = ["s", "host"].map(|id| Server::Acp { name: id.into(), id: id.into(), authorizes: false });
    let bridge: Arc<dyn Bridge> = Arc::new(Carrier(fixture.agent.clone()));
    let servers = Servers::start(servers.into(), fixture.options(), Some(bridge));
    servers.wait_until_settled(TEST_TIMEOUT).await;
    assert_eq!(servers.failures(), []);
    let tools: Vec<String> =
        servers.tools().into_iter().map(|tool| format!("{}/{}", tool.server, tool.name)).collect();
    let expected = ["s/echo", "s/more", "host/read_text_file", "host/write_text_file", "host/run_command"];
    assert_eq!(tools, expected);
    let arguments = Map::from_iter([("path".to_owned(), json!("/a"))]);
    let read = servers.call("host", "read_text_file", arguments.clone(), |_| {}).await.expect("it reads");
    assert_eq!((read.content, read.failed), (vec![Content::Text("text\n".into())], false));
    let echoed = servers.call("s", "echo", arguments, |_| {}).await.expect("it echoes");
    assert_eq!(echoed.content, [Content::Text(r#"{"path":"/a"}"#.into())]);
    let failed = servers.call("s", "fail", Map::new(), |_| {}).await.expect("it has an outcome");
    assert!(failed.failed);
    fixture.gate.says(Verdict::No);
    let refused = servers.call("s", "echo", Map::new(), |_| {}).await.expect("it has an outcome");
    assert_eq!(refused.content, [Content::Text("the rule book forbids it".into())]);
    assert!(refused.failed);
    assert_eq!(fixture.host.asked(), ["read /a None None"]);
    servers.close().await;
    hosting.close().await;
}
