//! Tests of the built-in server as an MCP client uses it.

use proptest::prelude::*;

use super::*;
use crate::mcp::fixture::Host;

fn server(offer: Offer) -> (HostServer, Arc<Host>) {
    let host = Arc::new(Host::default());
    (HostServer::new(offer, host.clone(), host.clone()), host)
}

const ALL: Offer = Offer { read: true, write: true, run: true };

async fn ask(server: &HostServer, method: &str, params: Value) -> Result<Value, i64> {
    let Value::Object(params) = params else { panic!("{params} is not an object") };
    server.answer(method, params).await.map_err(|error| error.code)
}

/// Calls a tool. Checks the host's record and the texts of the result, with `!` before the texts of a
/// failure.
async fn check(tool: &str, arguments: Value, asked: &[&str], expected: &[&str]) {
    let (server, host) = server(ALL);
    let params = json!({"name": tool, "arguments": arguments});
    let result = ask(&server, "tools/call", params).await.expect("it is a tool");
    let failed = result["isError"].as_bool().expect("it says whether it failed");
    let texts: Vec<String> = result["content"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|block| {
            assert_eq!(block["type"], "text");
            let text = block["text"].as_str().expect("a text");
            if failed { format!("!{text}") } else { text.to_owned() }
        })
        .collect();
    assert_eq!(texts, expected, "{tool} {arguments}");
    assert_eq!(host.asked(), asked, "{tool} {arguments}");
}

#[tokio::test]
async fn files() {
    check("read_text_file", json!({"path": "/a"}), &["read /a None None"], &["text\n"]).await;
    check(
        "read_text_file",
        json!({"path": "/a", "line": 2, "limit": 3.0}),
        &["read /a Some(2) Some(3)"],
        &["text\n"],
    )
    .await;
    let outside = json!({"path": "/outside/a"});
    check("read_text_file", outside, &["read /outside/a None None"], &["!it is outside"]).await;
    let written = json!({"path": "/a", "content": "ä"});
    check("write_text_file", written, &["write /a \"ä\""], &["2 bytes written"]).await;
    check("read_text_file", json!({"path": ""}), &[], &["!the argument path is empty"]).await;
    check("write_text_file", json!({"path": "/a"}), &[], &["!the argument content is missing"]).await;
    let more = json!({"path": "/a", "content": "", "append": true});
    check("write_text_file", more, &[], &["!unknown argument \"append\""]).await;
}

#[tokio::test]
async fn commands() {
    let run = |program: &str, rest: &str, ms: &str| {
        format!("run Run {{ program: \"{program}\", {rest}, time_limit: {ms}, output_limit: 131072 }}")
    };
    let bare = "args: [], env: [], cwd: None";
    check("run_command", json!({"command": "make"}), &[&run("make", bare, "120s")], &["out", "exit code 1"])
        .await;
    check(
        "run_command",
        json!({"command": "x", "args": ["-a b"], "env": {"A": "1"}, "cwd": "/d", "timeoutMs": 1500}),
        &[&run("x", r#"args: ["-a b"], env: [("A", "1")], cwd: Some("/d")"#, "1.5s")],
        &["out", "exit code 1"],
    )
    .await;
    let long = json!({"command": "slow", "timeoutMs": 999_999_999});
    let killed = "!killed: it had not ended after 600s";
    check("run_command", long, &[&run("slow", bare, "600s")], &["!half", killed]).await;
    let end = "ended by SIGKILL; the beginning of the output is missing";
    check("run_command", json!({"command": "killed"}), &[&run("killed", bare, "120s")], &["", end]).await;
    let forbidden = json!({"command": "forbidden"});
    check("run_command", forbidden, &[&run("forbidden", bare, "120s")], &["!the rule book forbids it"]).await;
    check("run_command", json!({"command": " "}), &[], &["!the argument command is empty"]).await;
    check("run_command", json!({"command": "x", "cwd": ""}), &[], &["!the argument cwd is empty"]).await;
    check("run_command", json!({"command": "x", "shell": true}), &[], &["!unknown argument \"shell\""]).await;
}

#[tokio::test]
async fn only_offered_tools_are_listed() {
    for bits in 0..8 {
        let offer = Offer { read: bits & 1 != 0, write: bits & 2 != 0, run: bits & 4 != 0 };
        let (server, host) = server(offer);
        let list = ask(&server, "tools/list", json!({})).await.expect("it lists");
        let names: Vec<&str> = list["tools"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|tool| tool["name"].as_str())
            .collect();
        for (tool, offered, arguments) in [
            ("read_text_file", offer.read, json!({"path": "/a"})),
            ("write_text_file", offer.write, json!({"path": "/a", "content": ""})),
            ("run_command", offer.run, json!({"command": "x"})),
        ] {
            assert_eq!(names.contains(&tool), offered);
            let called = ask(&server, "tools/call", json!({"name": tool, "arguments": arguments})).await;
            assert_eq!(called.is_ok(), offered, "{tool} {offer:?}");
            assert_eq!(host.asked().len(), usize::from(offered));
        }
    }
}

#[tokio::test]
async fn handshakes_old_and_new() {
    let (server, _) = server(ALL);
    for (asked, agreed) in [
        ("2025-06-18", "2025-06-18"),
        ("2024-11-05", "2024-11-05"),
        ("2099-01-01", "2025-11-25"),
        ("", "2025-11-25"),
    ] {
        let answer = ask(&server, "initialize", json!({"protocolVersion": asked})).await.expect("it answers");
        assert_eq!(answer["protocolVersion"], agreed);
        assert_eq!(answer["serverInfo"]["name"], "narrows");
        assert_eq!(answer["capabilities"], json!({"tools": {}}));
    }
    let found = ask(&server, "server/discover", json!({})).await.expect("it answers");
    assert_eq!(found["supportedVersions"][0], "2026-07-28");
    assert_eq!(ask(&server, "ping", json!({})).await, Ok(json!({})));
    let modern = json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}});
    assert_eq!(ask(&server, "ping", modern.clone()).await, Ok(json!({"resultType": "complete"})));
    let list = ask(&server, "tools/list", modern).await.expect("it lists");
    assert_eq!((&list["resultType"], &list["cacheScope"]), (&json!("complete"), &json!("private")));
    for (method, params, code) in [
        ("resources/list", json!({}), -32601),
        ("tools/call", json!({}), -32602),
        ("tools/call", json!({"name": "rm"}), -32602),
        ("tools/call", json!({"name": "run_command", "arguments": []}), -32602),
    ] {
        assert_eq!(ask(&server, method, params).await, Err(code), "{method}");
    }
}

#[test]
fn results_fit_the_schemas() {
    for tool in tools::list(ALL) {
        for key in ["inputSchema", "outputSchema"] {
            if let Some(schema) = tool.get(key) {
                jsonschema::meta::validate(schema).expect("it is a schema");
            }
        }
    }
    let tools = tools::list(ALL);
    let schema = |tool: &str, key: &str| {
        let tool = tools.iter().find(|known| known["name"] == tool).expect("it is a tool");
        jsonschema::validator_for(&tool[key]).expect("it is a schema")
    };
    assert!(
        schema("run_command", "inputSchema").is_valid(&json!({"command": "x", "args": [], "timeoutMs": 5}))
    );
    assert!(!schema("run_command", "inputSchema").is_valid(&json!({"command": "x", "shell": true})));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    for program in ["make", "killed"] {
        let call = json!({"name": "run_command", "arguments": {"command": program}});
        let result = runtime.block_on(ask(&server(ALL).0, "tools/call", call)).expect("it ran");
        let valid = schema("run_command", "outputSchema").is_valid(&result["structuredContent"]);
        assert!(valid, "{result}");
    }
}

proptest! {
    #[test]
    fn any_request_is_answered_without_panic(text in "[\\[\\]{}:,\"a-z0-9_/]{0,60}", tool in "(read_text_file|run_command)") {
        let value: Value = serde_json::from_str(&text).unwrap_or(Value::String(text));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (server, _) = server(ALL);
        for params in [json!({"name": tool, "arguments": value.clone()}), json!({"arguments": {"path": value}})] {
            _ = runtime.block_on(ask(&server, "tools/call", params));
        }
    }
}
