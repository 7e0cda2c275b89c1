//! MCP servers that are processes or HTTP endpoints: calls, failures, and their end with the session.

use std::time::{Duration, Instant};

use narrows_agent::Settings;
use narrows_process::Environment;
use narrows_testkit::model::{ModelServer, Reply, nobody};
use narrows_testkit::wait::{alive_with_marker, wait_until};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{Client, SOON, chats, last_messages, settings};
use crate::endpoint::Endpoint;
use crate::official::check_v1;
use crate::simulated_user::{calls, ended, statuses};

/// `examples/mcp_server.rs` of the crate `mcp`, which cargo builds beside the tests.
fn program() -> String {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    let path = path.join("examples/mcp_server");
    assert!(path.exists(), "`cargo build -p narrows-mcp --examples` builds what this test talks to");
    path.into_os_string().into_string().unwrap()
}

/// A unique directory. Its path appears in the command line of every server that runs in it.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    /// Returns the descriptor of a server process with this fault; empty for no fault.
    fn server(&self, fault: &str) -> Value {
        let notes = format!("{}/notes", self.path());
        let env = json!([{"name": "MINE", "value": "from the descriptor"}]);
        json!({"type": "stdio", "name": "s", "command": program(), "args": [fault, notes], "env": env})
    }

    fn params(&self, server: &Value) -> Value {
        json!({"cwd": self.path(), "mcpServers": [server]})
    }

    fn alive(&self) -> Vec<u32> {
        alive_with_marker(self.path())
    }

    async fn started(&self) {
        assert!(wait_until(SOON, || !self.alive().is_empty()).await, "the server was started");
    }

    async fn emptied(&self) {
        assert!(wait_until(SOON, || self.alive().is_empty()).await, "still there: {:?}", self.alive());
    }
}

fn with_path(server: &ModelServer) -> Settings {
    let mut env = Environment::empty();
    env.extend([("PATH", "/usr/bin:/bin")]);
    Settings { server_env: env, ..settings(server) }
}

async fn noticing(settings: Settings) -> Client {
    Client::v1(settings, json!({"session": {"notices": {}}})).await
}

async fn open(client: &mut Client, params: Value) -> String {
    client.ask("session/new", params).await.unwrap()["sessionId"].as_str().unwrap().to_owned()
}

fn notices(client: &Client) -> Vec<&str> {
    let notices = client.updates.iter().filter(|update| update["sessionUpdate"] == "notice");
    notices.filter_map(|notice| notice["title"].as_str()).collect()
}

fn done() -> Reply {
    Reply::text("That is all I wanted to do.")
}

#[tokio::test]
async fn a_tool_of_a_process_is_called() {
    let place = Place::new();
    let server = ModelServer::start([Reply::tool_call("s__echo", json!({"a": [1, "ä"]})), done()]);
    let mut client = noticing(with_path(&server)).await;
    let session = open(&mut client, place.params(&place.server(""))).await;
    client.prompt(&session, "Go").await.unwrap();
    let tools = chats(&server)[0].body["tools"].clone();
    let names: Vec<&Value> = tools.as_array().unwrap().iter().map(|tool| &tool["function"]["name"]).collect();
    assert_eq!(names, ["s__echo", "s__more", "update_plan"]);
    let call = calls(&client).pop().unwrap();
    assert_eq!((&call["title"], &call["kind"]), (&json!("echo (s)"), &json!("read")));
    assert_eq!(call["rawOutput"], json!({"a": [1, "ä"]}));
    assert_eq!(statuses(&client), ["pending", "in_progress", "completed"]);
    let said: Value = serde_json::from_str(last_messages(&server)[2]["content"].as_str().unwrap()).unwrap();
    assert_eq!(said, json!({"a": [1, "ä"]}));
    assert!(notices(&client).is_empty());
    check_v1(&client);
    client.leave().await;
    place.emptied().await;
}

/// The server sees the session's directory and its own variables in either form, but no others.
#[tokio::test]
async fn a_process_gets_only_its_own_environment() {
    for env in
        [json!([{"name": "MINE", "value": "from the descriptor"}]), json!({"MINE": "from the descriptor"})]
    {
        let place = Place::new();
        let server = ModelServer::start(done());
        let mut client = noticing(with_path(&server)).await;
        let mut described = place.server("");
        described["env"] = env;
        let session = open(&mut client, place.params(&described)).await;
        client.prompt(&session, "Go").await.unwrap();
        let [id] = place.alive()[..] else { panic!("{:?} is not one", place.alive()) };
        assert_eq!(
            std::fs::read_link(format!("/proc/{id}/cwd")).unwrap(),
            place.0.path().canonicalize().unwrap()
        );
        let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap();
        let environment = String::from_utf8(environment).unwrap();
        let mut variables: Vec<&str> = environment.split_terminator('\0').collect();
        variables.sort_unstable();
        assert_eq!(variables, ["MINE=from the descriptor", "PATH=/usr/bin:/bin"]);
        client.leave().await;
    }
}

/// Across two requests, the tools that were already offered keep their order, for prefix caches.
#[tokio::test]
async fn the_tools_of_a_session_keep_their_order() {
    let place = Place::new();
    let server = ModelServer::start([Reply::tool_call("s__echo", json!({})), done()]);
    let mut client = noticing(with_path(&server)).await;
    let session = open(&mut client, place.params(&place.server(""))).await;
    client.prompt(&session, "Go").await.unwrap();
    client.prompt(&session, "Again").await.unwrap();
    let chats = chats(&server);
    assert!(chats.len() == 3 && chats.iter().all(|chat| chat.body["tools"] == chats[0].body["tools"]));
    client.leave().await;
}

/// No failing server delays or fails the turn. Each failure is reported once, and the other servers work.
#[tokio::test]
async fn a_failing_server_is_reported_once_and_omitted() {
    let place = Place::new();
    let page = Endpoint::html().await;
    let (nowhere, _) = nobody();
    let named = |mut server: Value| {
        server["name"] = "bad".into();
        server
    };
    let http = |url: &str| json!({"type": "http", "name": "bad", "url": url, "headers": []});
    for bad in [
        named(place.server("exit")),
        named(place.server("only-garbage")),
        named(place.server("silent")),
        json!({"name": "bad", "command": "/no/such/program", "args": [], "env": []}),
        json!({"name": "bad", "command": "no-such-program"}),
        http(&nowhere),
        http(&page.url()),
        http("no address at all"),
        json!({"type": "sse", "name": "bad", "url": nowhere, "headers": []}),
        json!({"type": "carrier-pigeon", "name": "bad"}),
    ] {
        let server = ModelServer::start(done());
        let mut settings = with_path(&server);
        settings.limits.server_start_timeout = Duration::from_secs(1);
        let mut client = noticing(settings).await;
        let params = json!({"cwd": place.path(), "mcpServers": [bad, place.server("")]});
        let session = open(&mut client, params).await;
        let started = Instant::now();
        for _ in 0..3 {
            assert_eq!(client.prompt(&session, "Go").await.unwrap()["stopReason"], "end_turn", "{bad}");
        }
        assert!(started.elapsed() < Duration::from_secs(4), "{bad}: {:?}", started.elapsed());
        let told = notices(&client);
        assert!(told.len() == 1 && told[0].contains("\"bad\""), "{bad}: {told:?}");
        assert!(!told[0].contains(['\n', '\u{1b}']), "{bad}: {told:?}");
        let tools = &chats(&server)[2].body["tools"];
        assert_eq!(tools[0]["function"]["name"], "s__echo", "{bad}");
        check_v1(&client);
        client.leave().await;
    }
    place.emptied().await;
}

/// Clients without notices get a thought instead, which is not replayed.
#[tokio::test]
async fn clients_without_notices_get_warnings_as_thoughts() {
    let server = ModelServer::start(done());
    let mut client = Client::v1(with_path(&server), json!({})).await;
    let place = Place::new();
    let session = open(&mut client, place.params(&json!({"name": "bad", "command": "/no/such"}))).await;
    client.prompt(&session, "Go").await.unwrap();
    assert!(client.thoughts().contains("\"bad\""), "{}", client.thoughts());
    assert_eq!(client.text(), "That is all I wanted to do.");
    client.forget();
    let params = json!({"sessionId": session, "cwd": place.path(), "mcpServers": []});
    client.ask("session/load", params).await.unwrap();
    client.prompt(&session, "Go").await.unwrap();
    assert_eq!(client.thoughts(), "");
    check_v1(&client);
    client.leave().await;
}

/// A slow server delays a session only once, not in every turn.
#[tokio::test]
async fn a_server_that_hangs_is_waited_for_once() {
    let place = Place::new();
    let server = ModelServer::start(done());
    let mut client = noticing(with_path(&server)).await;
    let session = open(&mut client, place.params(&place.server("silent"))).await;
    let started = Instant::now();
    for _ in 0..3 {
        client.prompt(&session, "Go").await.unwrap();
    }
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    assert!(notices(&client).is_empty(), "it has not failed yet");
    client.leave().await;
    place.emptied().await;
}

#[tokio::test]
async fn a_turn_can_be_cancelled_while_a_server_starts() {
    let place = Place::new();
    let server = ModelServer::start(done());
    let mut client = noticing(with_path(&server)).await;
    let session = open(&mut client, place.params(&place.server("silent"))).await;
    let started = Instant::now();
    let prompt = client.begin_prompt(&session, "Go").await;
    client.update(|update| update["sessionUpdate"] == "session_info_update").await;
    client.notify("session/cancel", json!({"sessionId": session})).await;
    assert_eq!(client.answer(prompt).await.unwrap()["stopReason"], "cancelled");
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert!(chats(&server).is_empty());
    client.leave().await;
}

#[tokio::test]
async fn a_server_that_exits_between_turns_is_reported() {
    let place = Place::new();
    let server = ModelServer::start([done(), Reply::tool_call("s__echo", json!({})), done()]);
    let mut client = noticing(with_path(&server)).await;
    let session = open(&mut client, place.params(&place.server(""))).await;
    client.prompt(&session, "Go").await.unwrap();
    for id in place.alive() {
        let killed = std::process::Command::new("kill").args(["-9", &id.to_string()]).status();
        assert!(killed.unwrap().success());
    }
    place.emptied().await;
    assert_eq!(client.prompt(&session, "Go").await.unwrap()["stopReason"], "end_turn");
    assert_eq!(ended(&mut client).await["status"], "failed");
    client.prompt(&session, "Go").await.unwrap();
    let told = notices(&client);
    assert!(told.len() == 1 && told[0].contains("\"s\""), "{told:?}");
    assert!(chats(&server).last().unwrap().body.get("tools").is_none());
    client.leave().await;
}

/// Every kind of end of a session also ends its servers and all their processes.
#[tokio::test]
async fn servers_end_with_their_session() {
    for method in ["session/close", "session/delete"] {
        let place = Place::new();
        let server = ModelServer::start(done());
        let mut client = noticing(with_path(&server)).await;
        let session = open(&mut client, place.params(&place.server("daemon"))).await;
        client.prompt(&session, "Go").await.unwrap();
        assert!(place.alive().len() > 1, "it has started others");
        client.ask(method, json!({"sessionId": session})).await.unwrap();
        assert_eq!(place.alive(), [0_u32; 0], "{method}: they are gone before the answer");
        client.leave().await;
    }
}

#[tokio::test]
async fn servers_end_with_the_connection() {
    let place = Place::new();
    let server = ModelServer::start(Reply::hang());
    let mut client = noticing(with_path(&server)).await;
    let session = open(&mut client, place.params(&place.server("daemon"))).await;
    let before = server.seen().len();
    client.begin_prompt(&session, "Go").await;
    server.seen_count(before + 1).await;
    place.started().await;
    client.leave().await;
    place.emptied().await;
}

/// The servers given with `session/load` replace the earlier ones.
#[tokio::test]
async fn servers_are_not_inherited() {
    let (old, new) = (Place::new(), Place::new());
    let server = ModelServer::start(done());
    let mut client = noticing(with_path(&server)).await;
    let session = open(&mut client, old.params(&old.server(""))).await;
    old.started().await;
    let mut named = new.server("");
    named["name"] = "n".into();
    let params = json!({"sessionId": session, "cwd": old.path(), "mcpServers": [named]});
    client.ask("session/load", params).await.unwrap();
    client.prompt(&session, "Go").await.unwrap();
    assert_eq!(chats(&server)[0].body["tools"][0]["function"]["name"], "n__echo");
    old.emptied().await;
    client.leave().await;
    new.emptied().await;
}

#[tokio::test]
async fn a_tool_of_an_endpoint_is_called() {
    let endpoint = Endpoint::new().await;
    let server = ModelServer::start([Reply::tool_call("web__add", json!({"n": 2})), done()]);
    let mut client = noticing(with_path(&server)).await;
    let mut usual = crate::bridge::host(Some("allow_once"));
    client.host(move |method, params| usual(method, params));
    let headers = json!([{"name": "X-Key", "value": "hunter2"}]);
    let web = json!({"type": "http", "name": "web", "url": endpoint.url(), "headers": headers});
    let session = open(&mut client, json!({"cwd": "/project", "mcpServers": [web]})).await;
    client.prompt(&session, "Go").await.unwrap();
    assert_eq!(ended(&mut client).await["status"], "completed");
    assert_eq!(last_messages(&server)[2]["content"], r#"added {"n":2}"#);
    let seen = endpoint.seen();
    assert!(seen.iter().all(|(headers, _)| headers.contains("hunter2")), "{seen:?}");
    assert!(seen.iter().any(|(_, body)| body["method"] == "tools/call"));
    assert!(notices(&client).is_empty());
    client.leave().await;
}
