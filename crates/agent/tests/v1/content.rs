//! The model's input for the blocks of a prompt.

use narrows_agent::Settings;
use narrows_testkit::model::{ModelServer, Plan, Reply};
use serde_json::{Value, json};

use crate::common::{Client, chats, last_messages, settings};

const PNG: &str = "iVBORw0KGgo=";

fn server() -> ModelServer {
    ModelServer::start(Reply::text("An answer, and not a short one"))
}

fn model(server: &ModelServer, name: &str) -> Settings {
    let mut settings = settings(server);
    settings.routes[0].model = name.to_owned();
    settings
}

/// Checks the model's input for `blocks` from a client without capabilities.
async fn check(settings: Settings, server: &ModelServer, blocks: Value, expected: Value) {
    let mut client = Client::v1(settings, json!({})).await;
    let session = client.session().await;
    let end = client.prompt_with(&session, blocks.clone()).await.unwrap();
    assert_eq!((&end["stopReason"], end.get("_meta")), (&json!("end_turn"), None), "{blocks}");
    assert_eq!(last_messages(server), json!([{"role": "user", "content": expected}]), "{blocks}");
    assert!(client.requests.is_empty(), "nothing is asked that was not offered: {:?}", client.requests);
    client.leave().await;
}

#[tokio::test]
async fn blocks_have_the_documented_forms() {
    let text = |text: &str| json!({"type": "text", "text": text});
    for (blocks, expected) in [
        (json!([text("Hi")]), "Hi"),
        (json!([text("One"), text("Two")]), "One\nTwo"),
        (
            json!([{"type": "resource_link", "name": "main.rs", "uri": "file:///project/src/main.rs"}]),
            "[Resource: main.rs] file:///project/src/main.rs",
        ),
        (
            json!([text("See"), {"type": "resource_link", "name": "docs", "uri": "https://example.org/a?b#c"}]),
            "See\n[Resource: docs] https://example.org/a?b#c",
        ),
        // One client sends no name, and a plain path.
        (
            json!([text("See"), {"type": "resource_link", "uri": "/project/a b.txt"}]),
            "See\n[Resource: a b.txt] /project/a b.txt",
        ),
        (json!([{"type": "resource_link", "uri": "notes/today.md"}]), "[Resource: today.md] notes/today.md"),
        (
            json!([{"type": "resource_link", "uri": "file:///project/x.png", "mimeType": "image/png", "name": null}]),
            "[Resource: x.png] file:///project/x.png",
        ),
        (
            json!([{"type": "resource", "resource": {"uri": "file:///project/a.rs", "text": "fn a() {}\n", "mimeType": "text/x-rust"}}]),
            "[Resource: file:///project/a.rs]\nfn a() {}\n",
        ),
        (
            json!([{"type": "text", "text": "Hi", "annotations": {"audience": ["user"]}, "_meta": {"x": 1}, "other": 1}]),
            "Hi",
        ),
    ] {
        let server = server();
        check(settings(&server), &server, blocks, json!(expected)).await;
    }
}

#[tokio::test]
async fn images_are_sent_to_models_that_accept_them() {
    let blocks = || {
        json!([
            {"type": "text", "text": "What is this?"},
            {"type": "image", "mimeType": "image/png", "data": PNG},
        ])
    };
    let image = json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{PNG}")}});
    let server = server();
    let as_image = json!([{"type": "text", "text": "What is this?"}, image]);
    check(model(&server, "gpt-4o"), &server, blocks(), as_image.clone()).await;
    check(model(&server, "unheard-of"), &server, blocks(), as_image).await;
    check(model(&server, "gpt-3.5-turbo"), &server, blocks(), json!("What is this?\n[Image: image/png]"))
        .await;
    let alone = json!([{"type": "image", "mimeType": "image/webp", "data": PNG}]);
    check(model(&server, "deepseek-chat"), &server, alone, json!("[Image: image/webp]")).await;
}

#[tokio::test]
async fn a_request_with_a_refused_image_is_repeated_without_it() {
    let plan = Plan::new([Reply::text("An answer, and not a short one")]).unless(|seen| {
        let has_image = seen.body.to_string().contains("image_url");
        has_image.then(|| Reply::refused(400, "This model does not support image input"))
    });
    let server = ModelServer::start(plan);
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    let image = json!([{"type": "image", "mimeType": "image/png", "data": PNG}]);
    let end = client.prompt_with(&session, image.clone()).await.unwrap();
    assert_eq!((&end["stopReason"], end.get("_meta")), (&json!("end_turn"), None), "never an error");
    assert_eq!(last_messages(&server), json!([{"role": "user", "content": "[Image: image/png]"}]));
    assert_eq!(chats(&server).len(), 2);
    client.prompt_with(&session, image).await.unwrap();
    assert_eq!(chats(&server).len(), 3, "refusals are remembered");
    client.leave().await;
}

#[tokio::test]
async fn an_image_stays_in_the_history_for_models_that_accept_it() {
    let plan = Plan::new([Reply::text("An answer, and not a short one")])
        .models(Reply::models(&["gpt-4o", "gpt-3.5-turbo"]));
    let server = ModelServer::start(plan);
    let mut client = Client::v1(model(&server, "gpt-4o"), json!({})).await;
    let session = client.session().await;
    client
        .prompt_with(&session, json!([{"type": "image", "mimeType": "image/png", "data": PNG}]))
        .await
        .unwrap();
    client.ask("session/set_model", json!({"sessionId": session, "modelId": "gpt-3.5-turbo"})).await.unwrap();
    client.prompt(&session, "And now?").await.unwrap();
    assert_eq!(last_messages(&server)[0]["content"], "[Image: image/png]");
    client.ask("session/set_model", json!({"sessionId": session, "modelId": "gpt-4o"})).await.unwrap();
    client.prompt(&session, "And now?").await.unwrap();
    assert_eq!(last_messages(&server)[0]["content"][0]["type"], "image_url");
    client.leave().await;
}

/// Answers file requests of the agent: every existing file contains its own path.
fn files(method: &str, params: &Value) -> Option<Result<Value, Value>> {
    assert_eq!(method, "fs/read_text_file");
    let path = params["path"].as_str().unwrap();
    Some(match path {
        "/project/missing.rs" => Err(json!({"code": -32002, "message": "no such file"})),
        "/project/odd.rs" => Ok(json!({"content": 7})),
        path => Ok(json!({"content": format!("text of {path}")})),
    })
}

#[tokio::test]
async fn links_are_read_through_the_client_where_it_offers_that() {
    for (uri, expected, asked) in [
        ("/project/a.rs", "[Resource: /project/a.rs]\ntext of /project/a.rs", Some("/project/a.rs")),
        (
            "file:///project/a%20b.rs",
            "[Resource: file:///project/a%20b.rs]\ntext of /project/a b.rs",
            Some("/project/a b.rs"),
        ),
        ("src/a.rs", "[Resource: src/a.rs]\ntext of /project/src/a.rs", Some("/project/src/a.rs")),
        ("/more/a.rs", "[Resource: /more/a.rs]\ntext of /more/a.rs", Some("/more/a.rs")),
        ("/project/missing.rs", "[Resource: it] /project/missing.rs", Some("/project/missing.rs")),
        ("/project/odd.rs", "[Resource: it] /project/odd.rs", Some("/project/odd.rs")),
        ("/etc/passwd", "[Resource: it] /etc/passwd", None),
        ("/project/../etc/passwd", "[Resource: it] /project/../etc/passwd", None),
        ("../etc/passwd", "[Resource: it] ../etc/passwd", None),
        ("file://elsewhere/project/a.rs", "[Resource: it] file://elsewhere/project/a.rs", None),
        ("https://example.org/project/a.rs", "[Resource: it] https://example.org/project/a.rs", None),
        ("zed:///agent/thread/1", "[Resource: it] zed:///agent/thread/1", None),
        ("mailto:someone@example.org", "[Resource: it] mailto:someone@example.org", None),
    ] {
        let server = server();
        let mut client = Client::v1(settings(&server), json!({"fs": {"readTextFile": true}})).await;
        client.host(files);
        let params = json!({"cwd": "/project", "mcpServers": [], "additionalDirectories": ["/more"]});
        let session =
            client.ask("session/new", params).await.unwrap()["sessionId"].as_str().unwrap().to_owned();
        let blocks = json!([{"type": "resource_link", "name": "it", "uri": uri}]);
        assert_eq!(client.prompt_with(&session, blocks).await.unwrap()["stopReason"], "end_turn");
        assert_eq!(last_messages(&server)[0]["content"], expected);
        let paths: Vec<&Value> = client.requests.iter().map(|(_, params)| &params["path"]).collect();
        assert_eq!(paths, asked.iter().collect::<Vec<_>>(), "{uri}");
        assert!(client.requests.iter().all(|(_, params)| params["sessionId"] == json!(session)));
        client.leave().await;
    }
}

#[tokio::test]
async fn linked_files_are_not_read_from_clients_that_do_not_offer_it() {
    for capabilities in [
        json!({}),
        json!({"terminal": false}),
        json!({"fs": {"readTextFile": false, "writeTextFile": true}}),
        json!({"fs": {}, "terminal": true}),
        json!({"fs": null}),
    ] {
        let server = server();
        let mut client = Client::v1(settings(&server), capabilities.clone()).await;
        let session = client.session().await;
        let blocks = json!([{"type": "resource_link", "name": "a.rs", "uri": "/project/a.rs"}]);
        client.prompt_with(&session, blocks).await.unwrap();
        assert_eq!(last_messages(&server)[0]["content"], "[Resource: a.rs] /project/a.rs");
        assert!(client.requests.is_empty(), "{capabilities}: {:?}", client.requests);
        client.leave().await;
    }
}

#[tokio::test]
async fn an_unsupported_block_is_named_and_the_session_continues() {
    let server = server();
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    let good = json!({"type": "text", "text": "Hi"});
    for (prompt, field) in [
        (Value::Null, "prompt"),
        (json!("Hi"), "prompt"),
        (json!({"type": "text", "text": "Hi"}), "prompt"),
        (json!([]), "prompt"),
        (json!([good, "Hi"]), "prompt[1]"),
        (json!([good, {"type": "video", "data": ""}]), "prompt[1].type"),
        (json!([{"text": "Hi"}]), "prompt[0].type"),
        (json!([{"type": 7}]), "prompt[0].type"),
        (json!([{"type": "text"}]), "prompt[0].text"),
        (json!([{"type": "text", "text": 7}]), "prompt[0].text"),
        (json!([{"type": "image", "mimeType": "image/png"}]), "prompt[0].data"),
        (json!([{"type": "image", "data": PNG}]), "prompt[0].mimeType"),
        (json!([{"type": "image", "mimeType": "image/png", "data": "no base64!"}]), "prompt[0].data"),
        (json!([{"type": "audio", "mimeType": "audio/wav"}]), "prompt[0].data"),
        (json!([{"type": "resource_link", "name": "a"}]), "prompt[0].uri"),
        (json!([{"type": "resource", "resource": "a"}]), "prompt[0].resource"),
        (json!([{"type": "resource", "resource": {"text": "a"}}]), "prompt[0].resource.uri"),
        (json!([{"type": "resource", "resource": {"uri": "a", "text": 7}}]), "prompt[0].resource.text"),
        (json!([{"type": "resource", "resource": {"uri": "a"}}]), "prompt[0].resource.blob"),
    ] {
        let error = client.prompt_with(&session, prompt.clone()).await.unwrap_err();
        assert_eq!(
            (&error["code"], &error["data"]["field"]),
            (&json!(-32602), &json!(field)),
            "{prompt}: {error}"
        );
        assert!(error["message"].as_str().unwrap().contains(field), "{error}");
    }
    assert_eq!(chats(&server).len(), 0);
    assert_eq!(client.prompt(&session, "Hi").await.unwrap()["stopReason"], "end_turn");
    assert_eq!(last_messages(&server), json!([{"role": "user", "content": "Hi"}]));
    client.leave().await;
}
