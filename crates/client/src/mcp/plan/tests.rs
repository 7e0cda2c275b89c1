//! Tests with agents of different capabilities.

use narrows_acp::{v1, v2};

use super::*;
use crate::mcp::fixture::host_server;

fn servers() -> Vec<ServerConfig> {
    let text = r#"{"mcpServers":{
        "files":{"command":"npx","args":["-y"],"env":{"A":"1"}},
        "web":{"url":"https://h/mcp","headers":{"X-Key":"k"}}}}"#;
    ServerConfig::read(text).expect("it is right")
}

fn sse() -> Vec<ServerConfig> {
    ServerConfig::read(r#"[{"name":"old","type":"sse","url":"https://h/sse"}]"#).expect("it is right")
}

fn can(stdio: bool, http: bool, sse: bool, acp: bool) -> AgentCan {
    AgentCan { mcp_stdio: stdio, mcp_http: http, mcp_sse: sse, mcp_acp: acp, ..AgentCan::default() }
}

#[track_caller]
fn check(version: Version, can: AgentCan, servers: &[ServerConfig], expected: Result<Value, &str>) {
    let planned = plan(version, &can, servers, None);
    let planned = planned.map(|Plan { mut descriptors, hosted }| {
        for descriptor in &descriptors {
            official(version, descriptor);
        }
        let mut ids = hosted.iter().map(|hosted| hosted.id.clone());
        for descriptor in descriptors.iter_mut().filter(|descriptor| descriptor["type"] == "acp") {
            let id = Value::from(ids.next().expect("it runs here"));
            assert_eq!(descriptor["serverId"].take(), id);
            if version == Version::V1 {
                assert_eq!(descriptor["id"].take(), id);
            }
        }
        assert_eq!(ids.next(), None, "every hosted server has a descriptor");
        Value::from(descriptors)
    });
    assert_eq!(planned.map_err(|error| error.to_string()), expected.map_err(str::to_owned));
}

#[track_caller]
fn official(version: Version, descriptor: &Value) {
    let kind = descriptor["type"].as_str().unwrap_or("stdio");
    let understood = match version {
        Version::V1 => match serde_json::from_value(descriptor.clone()).expect("it is one") {
            v1::McpServer::Stdio(_) => "stdio",
            v1::McpServer::Http(_) => "http",
            v1::McpServer::Sse(_) => "sse",
            v1::McpServer::Acp(_) => "acp",
            other => panic!("{other:?} is unknown"),
        },
        Version::V2 => match serde_json::from_value(descriptor.clone()).expect("it is one") {
            v2::McpServer::Stdio(_) => "stdio",
            v2::McpServer::Http(_) => "http",
            v2::McpServer::Acp(_) => "acp",
            other => panic!("{other:?} is unknown"),
        },
    };
    assert_eq!(understood, kind, "{descriptor}");
}

#[test]
fn agents_get_servers_over_supported_transports() {
    let env = json!([{"name": "A", "value": "1"}]);
    let headers = json!([{"name": "X-Key", "value": "k"}]);
    let web = json!({"type": "http", "name": "web", "url": "https://h/mcp", "headers": headers});
    let files = json!({"name": "files", "command": "npx", "args": ["-y"], "env": env});
    check(Version::V1, can(true, true, false, false), &servers(), Ok(json!([files, web])));
    let mut typed = files;
    typed["type"] = "stdio".into();
    check(Version::V2, can(true, true, false, false), &servers(), Ok(json!([typed, web])));
    let meta = json!({"narrows/authorizes": true});
    let acp = |name: &str| json!({"type": "acp", "name": name, "serverId": null, "_meta": meta});
    check(Version::V2, can(true, true, false, true), &servers(), Ok(json!([acp("files"), acp("web")])));
    let old = |name: &str| json!({"type": "acp", "name": name, "serverId": null, "id": null, "_meta": meta});
    check(Version::V1, can(true, false, false, true), &servers(), Ok(json!([old("files"), old("web")])));
    let sent = json!({"type": "sse", "name": "old", "url": "https://h/sse", "headers": []});
    check(Version::V1, can(true, false, true, false), &sse(), Ok(json!([sent])));
    check(Version::V1, can(true, false, true, true), &sse(), Ok(json!([sent])));
    check(Version::V2, can(false, false, false, false), &[], Ok(json!([])));
}

#[test]
fn an_unsupported_transport_is_an_error() {
    let no =
        |transport, server| format!("the agent does not support MCP servers over {transport}: {server:?}");
    check(Version::V1, can(true, false, false, false), &servers(), Err(&no("HTTP", "web")));
    check(Version::V2, can(false, true, false, false), &servers(), Err(&no("stdio", "files")));
    check(Version::V1, can(true, true, false, true), &sse(), Err(&no("SSE", "old")));
    check(Version::V2, can(true, true, true, true), &sse(), Err(&no("SSE", "old")));
}

#[test]
fn the_built_in_server_is_only_for_agents_that_can_reach_it() {
    let host = || Some(host_server());
    let reached = plan(Version::V2, &can(true, true, false, true), &servers(), host()).expect("a plan");
    assert_eq!((reached.descriptors.len(), reached.hosted.len()), (3, 3));
    assert_eq!(reached.descriptors[0]["name"], "narrows");
    assert!(reached.descriptors[0].get("_meta").is_none());
    assert!(matches!(reached.hosted[0].kind, HostedServerKind::Host(_)));
    let not = plan(Version::V2, &can(true, true, false, false), &servers(), host()).expect("a plan");
    assert_eq!((not.descriptors.len(), not.hosted.len()), (2, 0));
    let mut named = servers();
    named[0].name = "narrows".into();
    let taken = plan(Version::V2, &can(true, true, false, true), &named, host());
    assert!(matches!(taken, Err(PlanError::NameTaken)), "{taken:?}");
    assert!(plan(Version::V2, &can(true, true, false, true), &named, None).is_ok());
}

#[test]
fn server_ids_are_unique() {
    let one = || plan(Version::V2, &can(true, true, false, true), &servers(), None).expect("a plan").hosted;
    let ids: std::collections::HashSet<_> = (0..100).flat_map(|_| one()).map(|hosted| hosted.id).collect();
    assert_eq!(ids.len(), 200);
}
