//! Choosing a model and its thinking effort by `session/set_config_option` and the older `session/set_model`.

use narrows_acp::v1;
use narrows_agent::{ModelRoute, Settings};
use narrows_testkit::model::{ModelServer, Plan, Reply};
use serde_json::{Value, json};

use crate::common::{Client, chats, chats_asked, route, settings};

fn server() -> ModelServer {
    let models = Reply::models(&["test-model", "other", "gpt-oss:20b", "gpt-oss:120b"]);
    ModelServer::start(Plan::new([Reply::text("Hello there")]).models(models))
}

fn asked_model(server: &ModelServer) -> Value {
    chats(server).last().unwrap().body["model"].clone()
}

#[tokio::test]
async fn a_model_is_chosen_by_either_method() {
    let server = server();
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    client.prompt(&session, "Hi").await.unwrap();
    assert_eq!(asked_model(&server), "test-model");

    let set = json!({"sessionId": session, "configId": "model", "value": "other"});
    let answer = client.ask("session/set_config_option", set).await.unwrap();
    assert_eq!(answer["configOptions"][0]["currentValue"], "other");
    serde_json::from_value::<v1::SetSessionConfigOptionResponse>(answer).unwrap();
    client.prompt(&session, "Hi").await.unwrap();
    assert_eq!(asked_model(&server), "other");

    let set = json!({"sessionId": session, "modelId": "test-model"});
    assert_eq!(client.ask("session/set_model", set).await.unwrap(), json!({}), "an object, never null");
    // Clients that show options are notified of a change by the older method.
    let update = client.update(|update| update["sessionUpdate"] == "config_option_update").await;
    assert_eq!(update["configOptions"][0]["currentValue"], "test-model");
    client.prompt(&session, "Hi").await.unwrap();
    assert_eq!(asked_model(&server), "test-model");

    let other = client.session().await;
    client.prompt(&other, "Hi").await.unwrap();
    assert_eq!(asked_model(&server), "test-model", "a choice is the session's own");
    client.leave().await;
}

#[tokio::test]
async fn thinking_is_chosen_where_the_model_has_levels() {
    let server = server();
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    let level = |value: &str| json!({"sessionId": session, "configId": "thought_level", "value": value});
    let model = |value: &str| json!({"sessionId": session, "configId": "model", "value": value});
    let refused = client.ask("session/set_config_option", level("high")).await.unwrap_err();
    assert_eq!((&refused["code"], &refused["data"]["field"]), (&json!(-32602), &json!("value")));

    let answer = client.ask("session/set_config_option", model("gpt-oss:20b")).await.unwrap();
    let option = &answer["configOptions"][1];
    let told = (&option["id"], &option["category"], &option["currentValue"]);
    assert_eq!(told, (&json!("thought_level"), &json!("thought_level"), &json!("auto")));
    let values: Vec<&Value> =
        option["options"].as_array().unwrap().iter().map(|level| &level["value"]).collect();
    assert_eq!(values, ["auto", "low", "medium", "high"]);
    client.prompt(&session, "Hi").await.unwrap();
    assert_eq!(chats(&server).last().unwrap().body.get("reasoning_effort"), None);

    let answer = client.ask("session/set_config_option", level("high")).await.unwrap();
    assert_eq!(answer["configOptions"][1]["currentValue"], "high");
    client.prompt(&session, "Hi").await.unwrap();
    assert_eq!(chats(&server).last().unwrap().body["reasoning_effort"], "high");
    let refused = client.ask("session/set_config_option", level("extreme")).await.unwrap_err();
    assert_eq!((&refused["code"], &refused["data"]["field"]), (&json!(-32602), &json!("value")));

    // Another model that supports this level keeps it.
    let answer = client.ask("session/set_config_option", model("gpt-oss:120b")).await.unwrap();
    assert_eq!(answer["configOptions"][1]["currentValue"], "high");
    // A model without levels drops it, and gets no effort in its requests.
    client.ask("session/set_config_option", model("other")).await.unwrap();
    client.prompt(&session, "Hi").await.unwrap();
    assert_eq!(chats(&server).last().unwrap().body.get("reasoning_effort"), None);
    client.leave().await;
}

#[tokio::test]
async fn invalid_choices_are_named_and_change_nothing() {
    let server = server();
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    for (method, params, code, field) in [
        ("session/set_config_option", json!({"configId": "model", "value": "nothing"}), -32602, "value"),
        ("session/set_config_option", json!({"configId": "model", "value": 7}), -32602, "value"),
        (
            "session/set_config_option",
            json!({"configId": "model", "value": true, "type": "boolean"}),
            -32602,
            "value",
        ),
        ("session/set_config_option", json!({"configId": "model"}), -32602, "value"),
        ("session/set_config_option", json!({"configId": "mode", "value": "x"}), -32602, "configId"),
        ("session/set_config_option", json!({"value": "x"}), -32602, "configId"),
        ("session/set_config_option", json!({"configId": 1, "value": "x"}), -32602, "configId"),
        ("session/set_model", json!({"modelId": "nothing"}), -32602, "modelId"),
        ("session/set_model", json!({"modelId": ["other"]}), -32602, "modelId"),
        ("session/set_model", json!({}), -32602, "modelId"),
    ] {
        let mut params = params;
        params["sessionId"] = json!(session);
        let error = client.ask(method, params.clone()).await.unwrap_err();
        assert_eq!(
            (&error["code"], &error["data"]["field"]),
            (&json!(code), &json!(field)),
            "{method} {params}: {error}"
        );
    }
    for method in ["session/set_config_option", "session/set_model"] {
        let params =
            json!({"sessionId": "nobody", "configId": "model", "value": "other", "modelId": "other"});
        let error = client.ask(method, params).await.unwrap_err();
        assert_eq!((&error["code"], &error["data"]["sessionId"]), (&json!(-32002), &json!("nobody")));
        let error = client
            .ask(method, json!({"modelId": "other", "configId": "model", "value": "other"}))
            .await
            .unwrap_err();
        assert_eq!((&error["code"], &error["data"]["field"]), (&json!(-32602), &json!("sessionId")));
    }
    client.prompt(&session, "Hi").await.unwrap();
    assert_eq!(asked_model(&server), "test-model");
    client.leave().await;
}

fn named(server: &ModelServer, name: &str) -> ModelRoute {
    let mut route = route(&server.base_url());
    route.endpoint.name = name.to_owned();
    route
}

#[tokio::test]
async fn models_of_further_endpoints_have_the_endpoint_name_as_prefix() {
    let (first, second) = (server(), server());
    let routes =
        vec![named(&first, "first"), ModelRoute { model: "own".to_owned(), ..named(&second, "second") }];
    let mut client = Client::v1(Settings { routes, ..Settings::default() }, json!({})).await;
    let opened = client.ask("session/new", json!({"cwd": "/project"})).await.unwrap();
    let session = opened["sessionId"].as_str().unwrap().to_owned();
    let ids: Vec<&Value> = opened["configOptions"][0]["options"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| &model["value"])
        .collect();
    assert_eq!(
        ids,
        [
            "test-model",
            "other",
            "gpt-oss:20b",
            "gpt-oss:120b",
            "second/own",
            "second/test-model",
            "second/other",
            "second/gpt-oss:20b",
            "second/gpt-oss:120b"
        ]
    );
    let set = json!({"sessionId": session, "modelId": "second/other"});
    client.ask("session/set_model", set).await.unwrap();
    client.prompt(&session, "Hi").await.unwrap();
    assert_eq!(asked_model(&second), "other");
    assert_eq!(chats(&first).len(), 0);
    client.leave().await;
}

/// A model of the first endpoint may have the id under which a model of another endpoint is offered.
#[tokio::test]
async fn an_id_means_the_same_model_after_a_restart() {
    let first = ModelServer::start(Plan::new([Reply::text("Hello")]).models(Reply::models(&["second/own"])));
    let second = ModelServer::start(Plan::new([Reply::text("Hello")]).models(Reply::models(&["own"])));
    let directory = tempfile::tempdir().unwrap();
    let settings = || Settings {
        routes: vec![
            named(&first, "first"),
            ModelRoute { model: "own".to_owned(), ..named(&second, "second") },
        ],
        data_dir: Some(directory.path().to_owned()),
        ..Settings::default()
    };
    let mut client = Client::v1(settings(), json!({})).await;
    let opened = client.ask("session/new", json!({"cwd": "/project"})).await.unwrap();
    let session = opened["sessionId"].as_str().unwrap().to_owned();
    let ids: Vec<&Value> = opened["configOptions"][0]["options"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| &model["value"])
        .collect();
    assert_eq!(ids, ["test-model", "second/own"]);
    client.ask("session/set_model", json!({"sessionId": session, "modelId": "second/own"})).await.unwrap();
    client.prompt(&session, "Hi").await.unwrap();
    assert_eq!(asked_model(&first), "second/own");
    client.leave().await;

    let mut client = Client::v1(settings(), json!({})).await;
    let resumed =
        client.ask("session/resume", json!({"sessionId": session, "cwd": "/project"})).await.unwrap();
    assert_eq!(resumed["models"]["currentModelId"], "second/own");
    client.prompt(&session, "Hi").await.unwrap();
    assert_eq!(chats(&first).len(), 2);
    assert_eq!(chats(&second).len(), 0);
    client.leave().await;
}

#[tokio::test]
async fn a_choice_during_a_turn_applies_to_the_next_turn() {
    let server = ModelServer::start(
        Plan::new([
            Reply::text("The first answer is long").after(3, narrows_testkit::model::Step::gate("on")),
            Reply::text("The second answer"),
        ])
        .models(Reply::models(&["test-model", "other"])),
    );
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    let turn = client.begin_prompt(&session, "Hi").await;
    chats_asked(&server, 1).await;
    client.ask("session/set_model", json!({"sessionId": session, "modelId": "other"})).await.unwrap();
    server.release("on");
    assert_eq!(client.answer(turn).await.unwrap()["stopReason"], "end_turn");
    client.prompt(&session, "And?").await.unwrap();
    let models: Vec<Value> = chats(&server).iter().map(|seen| seen.body["model"].clone()).collect();
    assert_eq!(models, ["test-model", "other"]);
    client.leave().await;
}
