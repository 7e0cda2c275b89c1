//! `session/new` as clients send it, and with endpoints that list no models.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use narrows_acp::v1;
use narrows_agent::Settings;
use narrows_testkit::model::{Framing, ModelServer, Plan, Reply, Step, nobody};
use serde_json::{Value, json};

use crate::common::{Client, SOON, demo, route, settings};

/// Returns the ids that `session/new` offers in its two forms, and the current one.
fn offered(opened: &Value) -> (Vec<&str>, &str) {
    let option = &opened["configOptions"][0];
    let values: Vec<&str> =
        option["options"].as_array().unwrap().iter().map(|model| model["value"].as_str().unwrap()).collect();
    let models = &opened["models"]["availableModels"];
    let legacy: Vec<&str> =
        models.as_array().unwrap().iter().map(|model| model["modelId"].as_str().unwrap()).collect();
    assert_eq!(values, legacy, "both forms have equal ids");
    assert_eq!(option["currentValue"], opened["models"]["currentModelId"]);
    (values, option["currentValue"].as_str().unwrap())
}

#[tokio::test]
async fn disabled_servers_are_refused_except_those_of_the_client() {
    let mut client = Client::start(Settings { accepts_servers: false, ..demo() });
    client.ask("initialize", json!({"protocolVersion": 1})).await.unwrap();
    for server in [
        json!({"name": "x", "command": "/bin/false", "args": [], "env": []}),
        json!({"type": "http", "name": "x", "url": "http://127.0.0.1:1/", "headers": []}),
        json!({"type": "sse", "name": "x", "url": "http://127.0.0.1:1/", "headers": []}),
    ] {
        let error = client.ask("session/new", json!({"cwd": "/", "mcpServers": [server]})).await.unwrap_err();
        assert_eq!(error["code"], -32015, "{error}");
    }
    let within = json!({"cwd": "/", "mcpServers": [{"type": "acp", "name": "x", "id": "1"}]});
    assert!(client.ask("session/new", within).await.is_ok());
}

#[tokio::test]
async fn models_are_offered_in_both_forms() {
    let plan = Plan::new([Reply::text("Hello")]).models(Reply::models(&[
        "a",
        "test-model",
        "default",
        "b",
        "a",
        "",
    ]));
    let server = ModelServer::start(plan);
    let mut client = Client::v1(settings(&server), json!({})).await;
    let opened = client.ask("session/new", json!({"cwd": "/project", "mcpServers": []})).await.unwrap();
    // `default` means "none" to clients, and two models never share an id.
    assert_eq!(offered(&opened), (vec!["a", "test-model", "b"], "test-model"));
    let option = &opened["configOptions"][0];
    let kind = (&option["id"], &option["category"], &option["type"]);
    assert_eq!(kind, (&json!("model"), &json!("model"), &json!("select")));
    assert_eq!(opened["configOptions"].as_array().unwrap().len(), 1, "this model has no levels of thinking");
    let read: v1::NewSessionResponse = serde_json::from_value(opened.clone()).unwrap();
    assert_eq!(read.config_options.unwrap().len(), 1);
    let commands = client.update(|update| update["sessionUpdate"] == "available_commands_update").await;
    let names: Vec<&Value> =
        commands["availableCommands"].as_array().unwrap().iter().map(|command| &command["name"]).collect();
    assert_eq!(names, ["compact", "status"]);
    client.leave().await;
}

#[tokio::test]
async fn a_model_that_is_not_listed_is_offered_first() {
    let plan = Plan::new([Reply::text("Hello")]).models(Reply::models(&["a", "b"]));
    let server = ModelServer::start(plan);
    let mut client = Client::v1(settings(&server), json!({})).await;
    let opened = client.ask("session/new", json!({"cwd": "/project"})).await.unwrap();
    assert_eq!(offered(&opened), (vec!["test-model", "a", "b"], "test-model"));
    client.leave().await;
}

#[tokio::test]
async fn without_an_endpoint_a_placeholder_model_is_the_only_choice() {
    let mut client = Client::v1(Settings::default(), json!({})).await;
    let opened = client.ask("session/new", json!({"cwd": "/project", "mcpServers": []})).await.unwrap();
    assert_eq!(offered(&opened), (vec!["gpt-4o"], "gpt-4o"));
    let session = opened["sessionId"].as_str().unwrap();
    let set = json!({"sessionId": session, "configId": "model", "value": "x"});
    assert_eq!(client.ask("session/set_config_option", set).await.unwrap_err()["code"], -32602);
    client.leave().await;
}

/// Returns the shortest of three times of `session/new` with this endpoint, because the machine may be busy.
async fn opening_takes(base_url: &str) -> Duration {
    let mut best = SOON;
    for _ in 0..3 {
        let settings = Settings { routes: vec![route(base_url)], ..Settings::default() };
        let mut client = Client::v1(settings, json!({})).await;
        let started = Instant::now();
        let opened = client.ask("session/new", json!({"cwd": "/project", "mcpServers": []})).await.unwrap();
        best = best.min(started.elapsed());
        assert_eq!(offered(&opened), (vec!["test-model"], "test-model"), "{base_url}");
        client.leave().await;
        if best < Duration::from_secs(1) {
            break;
        }
    }
    best
}

#[tokio::test]
async fn endpoints_without_a_model_list_cause_no_delay() {
    let endless = Reply::stream([&b"{\"data\":["[..]])
        .content_type("application/json")
        .framing(Framing::Chunked)
        .then(Step::Forever(br#"{"id":"x"},"#.to_vec(), Duration::from_millis(1)));
    let cases = [
        ("silent", Reply::hang()),
        ("slow", Reply::models(&["late"]).before(Step::Pause(Duration::from_secs(30)))),
        ("slow in the middle", Reply::models(&["late"]).after(0, Step::Hang)),
        ("endless", endless),
        ("cut", Reply::cut()),
        ("closed", Reply::close()),
        ("a web page", Reply::document(200, "text/html", "<html><body>Welcome</body></html>")),
        ("no JSON", Reply::document(200, "application/json", "{\"data\": [")),
        ("no list", Reply::json(200, &json!({"data": {"id": 7}}))),
        ("entries that are none", Reply::json(200, &json!({"data": [7, null, {"id": 7}, {}, "x", []]}))),
        ("empty", Reply::models(&[])),
        ("nothing", Reply::document(200, "application/json", "")),
        ("not there", Reply::refused(404, "no such thing")),
        ("not allowed", Reply::refused(401, "no")),
        ("failing", Reply::refused(500, "oh")),
        ("elsewhere", Reply::json(302, &json!({})).header("location", "/v1/models")),
    ];
    for (name, reply) in cases {
        let server = ModelServer::start(Plan::new([Reply::text("Hello")]).models(reply));
        let took = opening_takes(&server.base_url()).await;
        assert!(took < Duration::from_secs(1), "{name}: {took:?}");
    }
}

#[tokio::test]
async fn unreachable_endpoints_cause_no_delay() {
    let (url, _) = nobody();
    assert!(opening_takes(&url).await < Duration::from_secs(1));
    // The server never accepts: the system establishes the connection, but no data follows.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", deaf.local_addr().unwrap());
    assert!(opening_takes(&url).await < Duration::from_secs(1));
}

#[tokio::test]
async fn many_silent_endpoints_delay_no_more_than_one() {
    let server = ModelServer::start(Plan::new([Reply::text("Hello")]).models(Reply::hang()));
    let mut routes = vec![route(&server.base_url()); 5];
    for (number, route) in routes.iter_mut().enumerate() {
        route.endpoint.name = format!("e{number}");
    }
    let mut client = Client::v1(Settings { routes, ..Settings::default() }, json!({})).await;
    let started = Instant::now();
    let first = client.begin("session/new", json!({"cwd": "/project"})).await;
    let second = client.begin("session/new", json!({"cwd": "/project"})).await;
    let opened = client.answer(first).await.unwrap();
    client.answer(second).await.unwrap();
    // One after the other, five endpoints would take four seconds, and two sessions at least 1.6.
    assert!(started.elapsed() < Duration::from_millis(1500), "{:?}", started.elapsed());
    let (ids, current) = offered(&opened);
    assert_eq!(current, "test-model");
    assert_eq!(ids, ["test-model", "e1/test-model", "e2/test-model", "e3/test-model", "e4/test-model"]);
    client.leave().await;
}

/// Clients send params of all these forms, and each is accepted.
#[tokio::test]
async fn sessions_are_opened_with_params_as_clients_send_them() {
    let dead = |extra: Value| {
        let mut server = json!({"name": "dead", "command": "/nonexistent/narrows-test", "args": ["mcp"]});
        server.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        json!([server])
    };
    let mut client = Client::v1(demo(), json!({})).await;
    for params in [
        json!({"cwd": "/project", "mcpServers": []}),
        json!({"cwd": "/project"}),
        json!({"cwd": "/project", "mcpServers": null}),
        json!({"cwd": "relative/../dir"}),
        json!({"cwd": "."}),
        json!({"cwd": "/project", "_meta": {"x": 1}, "unknown": [1, 2]}),
        json!({"cwd": "/project", "additionalDirectories": ["/a", "/b"]}),
        json!({"cwd": "/project", "mcpServers": dead(json!({}))}),
        json!({"cwd": "/project", "mcpServers": dead(json!({"type": "stdio"}))}),
        json!({"cwd": "/project", "mcpServers": dead(json!({"env": [{"name": "K", "value": "V"}]}))}),
        json!({"cwd": "/project", "mcpServers": dead(json!({"type": "stdio", "env": {"K": "V"}}))}),
        json!({"cwd": "/project", "mcpServers": dead(json!({"env": {}, "args": null}))}),
        json!({"cwd": "/project", "mcpServers": [{"type": "sse", "name": "s", "url": "http://localhost/", "headers": []}]}),
        json!({"cwd": "/project", "mcpServers": [{"type": "carrier-pigeon", "name": "s"}]}),
    ] {
        let started = Instant::now();
        let opened = client.ask("session/new", params.clone()).await;
        let opened = opened.unwrap_or_else(|error| panic!("{params}: {error}"));
        assert!(started.elapsed() < Duration::from_secs(2), "{params}");
        let session = opened["sessionId"].as_str().unwrap().to_owned();
        client.forget();
        assert_eq!(client.prompt(&session, "hello").await.unwrap()["stopReason"], "end_turn", "{params}");
    }
    client.leave().await;
}

#[tokio::test]
async fn a_relative_directory_starts_in_the_agents_directory() {
    let mut client = Client::v1(demo(), json!({})).await;
    client.ask("session/new", json!({"cwd": "some/./deep/../place"})).await.unwrap();
    let listed = client.ask("session/list", json!({})).await.unwrap();
    let expected = std::env::current_dir().unwrap().join("some/place");
    assert_eq!(listed["sessions"][0]["cwd"], json!(expected));
    client.leave().await;
}

#[tokio::test]
async fn invalid_session_params_are_named() {
    let mut client = Client::v1(demo(), json!({})).await;
    for (params, field) in [
        (json!({}), "cwd"),
        (json!({"cwd": null}), "cwd"),
        (json!({"cwd": ["/project"]}), "cwd"),
        (json!({"cwd": ""}), "cwd"),
        (json!({"cwd": "/a\u{0}b"}), "cwd"),
        (json!({"cwd": "/".repeat(5000)}), "cwd"),
        (json!({"cwd": "/w", "mcpServers": "none"}), "mcpServers"),
        (json!({"cwd": "/w", "mcpServers": [{"command": "x"}]}), "mcpServers[0].name"),
        (
            json!({"cwd": "/w", "mcpServers": [{"name": "a", "command": "x", "args": "y"}]}),
            "mcpServers[0].args",
        ),
        (
            json!({"cwd": "/w", "mcpServers": [{"name": "a", "command": "x", "env": {"K": 1}}]}),
            "mcpServers[0].env",
        ),
        (json!({"cwd": "/w", "mcpServers": [{"type": "http", "name": "a"}]}), "mcpServers[0].url"),
        (json!({"cwd": "/w", "mcpServers": [{"type": 7, "name": "a"}]}), "mcpServers[0].type"),
        (json!({"cwd": "/w", "additionalDirectories": "x"}), "additionalDirectories"),
    ] {
        let error = client.ask("session/new", params.clone()).await.unwrap_err();
        assert_eq!(
            (&error["code"], &error["data"]["field"]),
            (&json!(-32602), &json!(field)),
            "{params}: {error}"
        );
        assert!(error["message"].as_str().unwrap().contains(field), "{error}");
    }
    assert_eq!(client.ask("session/list", json!({})).await.unwrap()["sessions"], json!([]), "none was made");
    client.leave().await;
}

#[tokio::test]
async fn session_ids_are_unique() {
    let mut client = Client::v1(demo(), json!({})).await;
    let mut ids = std::collections::HashSet::new();
    let mut open = Vec::new();
    for _ in 0..150 {
        open.push(client.begin("session/new", json!({"cwd": "/project", "mcpServers": []})).await);
    }
    for id in open {
        let opened = client.answer(id).await.unwrap();
        assert!(ids.insert(opened["sessionId"].as_str().unwrap().to_owned()));
    }
    assert_eq!(ids.len(), 150);
    client.leave().await;
}
