//! Stored sessions: they outlive the agent, and are open in one agent at a time.

use std::path::Path;

use narrows_agent::Settings;
use narrows_testkit::model::{ModelServer, Plan, Reply, Step};
use serde_json::{Value, json};

use crate::common::{Client, chats, last_messages, settings};

fn kept(server: &ModelServer, directory: &Path) -> Settings {
    Settings { data_dir: Some(directory.to_owned()), ..settings(server) }
}

#[tokio::test]
async fn a_session_can_be_loaded_by_a_new_agent() {
    let server = ModelServer::start(
        Plan::new([Reply::text("The first answer"), Reply::text("The second answer")])
            .models(Reply::models(&["test-model", "gpt-oss:20b"])),
    );
    let directory = tempfile::tempdir().unwrap();
    let mut client = Client::v1(kept(&server, directory.path()), json!({})).await;
    let session = client.session().await;
    for (id, value) in [("model", "gpt-oss:20b"), ("thought_level", "low")] {
        let set = json!({"sessionId": session, "configId": id, "value": value});
        client.ask("session/set_config_option", set).await.unwrap();
    }
    client.prompt(&session, "Remember me").await.unwrap();
    client.leave().await;

    let mut client = Client::v1(kept(&server, directory.path()), json!({})).await;
    let listed = client.ask("session/list", json!({"cwd": "/project"})).await.unwrap();
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 1);
    assert_eq!(listed["sessions"][0]["title"], "Remember me");
    let loaded = client
        .ask("session/load", json!({"sessionId": session, "cwd": "/project", "mcpServers": []}))
        .await
        .unwrap();
    assert_eq!(loaded["models"]["currentModelId"], "gpt-oss:20b");
    assert_eq!(loaded["configOptions"][1]["currentValue"], "low");
    assert_eq!(client.text(), "The first answer");
    client.forget();
    client.prompt(&session, "What did I say?").await.unwrap();
    assert_eq!(
        last_messages(&server),
        json!([
            {"role": "user", "content": "Remember me"},
            {"role": "assistant", "content": "The first answer"},
            {"role": "user", "content": "What did I say?"},
        ])
    );
    assert!(!client.kinds().contains(&"session_info_update".to_owned()), "the session already has a title");
    client.leave().await;

    let mut client = Client::v1(kept(&server, directory.path()), json!({})).await;
    client.ask("session/delete", json!({"sessionId": session})).await.unwrap();
    client.leave().await;
    let mut client = Client::v1(kept(&server, directory.path()), json!({})).await;
    assert_eq!(client.ask("session/list", json!({})).await.unwrap()["sessions"], json!([]));
    client.leave().await;
}

#[tokio::test]
async fn two_agents_share_a_directory_but_not_a_session() {
    let server = ModelServer::start(Reply::text("An answer, and not a short one"));
    let directory = tempfile::tempdir().unwrap();
    let mut first = Client::v1(kept(&server, directory.path()), json!({})).await;
    let mut second = Client::v1(kept(&server, directory.path()), json!({})).await;
    let session = first.session().await;
    first.prompt(&session, "One").await.unwrap();
    let own = second.session().await;
    let named = json!({"sessionId": session, "cwd": "/project", "mcpServers": []});
    for method in ["session/load", "session/resume", "session/delete"] {
        let error = second.ask(method, named.clone()).await.unwrap_err();
        let told = (&error["code"], &error["data"]["condition"], &error["data"]["sessionId"]);
        assert_eq!(told, (&json!(-32602), &json!("session_in_use"), &json!(session)), "{method}: {error}");
    }
    assert_eq!(second.text(), "", "it is not shown");
    // A fork does not affect the agent in which the session is open.
    let forked =
        second.ask("session/fork", named.clone()).await.unwrap()["sessionId"].as_str().unwrap().to_owned();
    second.prompt(&forked, "Mine").await.unwrap();
    assert_eq!(last_messages(&server)[0]["content"], "One");
    second.ask("session/delete", json!({"sessionId": forked})).await.unwrap();
    assert_eq!(second.prompt(&session, "Mine?").await.unwrap_err()["code"], -32002);
    // Each client lists both sessions and can use them.
    for client in [&mut first, &mut second] {
        assert_eq!(
            client.ask("session/list", json!({})).await.unwrap()["sessions"].as_array().unwrap().len(),
            2
        );
    }
    second.prompt(&own, "Two").await.unwrap();
    first.prompt(&session, "Three").await.unwrap();
    assert_eq!(last_messages(&server).as_array().unwrap().len(), 3);
    // A session that one agent closes can be opened by the other.
    first.ask("session/close", json!({"sessionId": session})).await.unwrap();
    second.ask("session/load", named.clone()).await.unwrap();
    assert_eq!(
        first.ask("session/load", named.clone()).await.unwrap_err()["data"]["condition"],
        "session_in_use"
    );
    // A session of an agent that has ended can be opened by the other too.
    second.leave().await;
    first.ask("session/load", named).await.unwrap();
    first.prompt(&session, "Four").await.unwrap();
    assert_eq!(last_messages(&server).as_array().unwrap().len(), 5);
    first.leave().await;
}

#[tokio::test]
async fn a_turn_cut_short_by_the_end_leaves_no_trace() {
    let server = ModelServer::start(Plan::new([
        Reply::text("The first answer"),
        Reply::text("This one never comes to its end").after(6, Step::Hang),
        Reply::text("The third answer"),
    ]));
    let directory = tempfile::tempdir().unwrap();
    let mut client = Client::v1(kept(&server, directory.path()), json!({})).await;
    let session = client.session().await;
    client.prompt(&session, "One").await.unwrap();
    client.begin_prompt(&session, "Two").await;
    client
        .update(|update| update["content"]["text"].as_str().is_some_and(|text| text.starts_with("This one")))
        .await;
    client.leave().await;
    server.hung_up().await;

    let mut client = Client::v1(kept(&server, directory.path()), json!({})).await;
    client.ask("session/load", json!({"sessionId": session, "cwd": "/project"})).await.unwrap();
    assert_eq!(client.text(), "The first answer");
    client.prompt(&session, "Three").await.unwrap();
    let contents: Vec<Value> =
        last_messages(&server).as_array().unwrap().iter().map(|message| message["content"].clone()).collect();
    assert_eq!(contents, ["One", "The first answer", "Three"]);
    client.leave().await;
}

#[tokio::test]
async fn without_a_usable_disk_sessions_live_in_memory() {
    let server = ModelServer::start(Reply::text("Hello"));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a-file");
    std::fs::write(&file, "not a directory").unwrap();
    let mut client = Client::v1(kept(&server, &file), json!({})).await;
    let session = client.session().await;
    client.prompt(&session, "One").await.unwrap();
    assert!(client.thoughts().contains("will not be kept"), "{}", client.thoughts());
    client.forget();
    client.prompt(&session, "Two").await.unwrap();
    assert_eq!(client.thoughts(), "", "it is reported once");
    let contents = last_messages(&server);
    assert_eq!(contents.as_array().unwrap().len(), 3, "the history is kept while the session is open");
    client.ask("session/close", json!({"sessionId": session})).await.unwrap();
    let error =
        client.ask("session/load", json!({"sessionId": session, "cwd": "/project"})).await.unwrap_err();
    assert_eq!((&error["code"], &error["data"]["condition"]), (&json!(-32603), &json!("store_unavailable")));
    client.leave().await;
}

/// A client that lost the response to a request may send the request again.
#[tokio::test]
async fn a_session_may_be_opened_twice_at_once() {
    let server = ModelServer::start(Reply::text("An answer, and not a short one"));
    let directory = tempfile::tempdir().unwrap();
    let mut client = Client::v1(kept(&server, directory.path()), json!({})).await;
    let session = client.session().await;
    client.prompt(&session, "One").await.unwrap();
    client.ask("session/close", json!({"sessionId": session})).await.unwrap();
    let params = json!({"sessionId": session, "cwd": "/project", "mcpServers": []});
    for _ in 0..10 {
        let mut opening = Vec::new();
        for method in ["session/load", "session/resume", "session/load"] {
            opening.push(client.begin(method, params.clone()).await);
        }
        for id in opening {
            client.answer(id).await.unwrap();
        }
        client.ask("session/close", json!({"sessionId": session})).await.unwrap();
    }
    client.ask("session/load", params.clone()).await.unwrap();
    client.prompt(&session, "Two").await.unwrap();
    assert_eq!(last_messages(&server).as_array().unwrap().len(), 3);
    client.leave().await;
}

#[tokio::test]
async fn a_session_may_be_closed_while_it_is_opened() {
    let server = ModelServer::start(Reply::text("An answer, and not a short one"));
    let directory = tempfile::tempdir().unwrap();
    let mut client = Client::v1(kept(&server, directory.path()), json!({})).await;
    let session = client.session().await;
    client.ask("session/close", json!({"sessionId": session})).await.unwrap();
    let params = json!({"sessionId": session, "cwd": "/project", "mcpServers": []});
    let opening = client.begin("session/load", params.clone()).await;
    let deleting = client.begin("session/delete", json!({"sessionId": session})).await;
    client.answer(opening).await.unwrap();
    client.answer(deleting).await.unwrap();
    assert_eq!(client.ask("session/load", params).await.unwrap_err()["code"], -32002);
    client.leave().await;
}

#[tokio::test]
async fn a_turn_that_cannot_be_stored_is_reported_and_the_session_continues() {
    let server = ModelServer::start(Reply::text("An answer, and not a short one"));
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let mut client = Client::v1(kept(&server, &data), json!({"session": {"notices": {}}})).await;
    let session = client.session().await;
    client.prompt(&session, "One").await.unwrap();
    std::fs::remove_dir_all(&data).unwrap();
    assert_eq!(client.prompt(&session, "Two").await.unwrap()["stopReason"], "end_turn");
    client.forget();
    assert_eq!(client.prompt(&session, "Three").await.unwrap()["stopReason"], "end_turn");
    let notice = client.update(|update| update["sessionUpdate"] == "notice").await;
    assert!(notice["title"].as_str().unwrap().contains("could not be stored"), "{notice}");
    assert_eq!(last_messages(&server).as_array().unwrap().len(), 5, "the history is still known");
    client.leave().await;
}

/// Without a stored choice, the current settings apply, and the user is told the new endpoint.
#[tokio::test]
async fn a_session_uses_a_changed_endpoint_and_reports_it() {
    let (first, second) = (ModelServer::start(Reply::text("One")), ModelServer::start(Reply::text("Two")));
    let directory = tempfile::tempdir().unwrap();
    let mut client = Client::v1(kept(&first, directory.path()), json!({})).await;
    let session = client.session().await;
    client.prompt(&session, "Hi").await.unwrap();
    client.leave().await;
    for (server, model, told) in [(&first, "other", false), (&second, "third", true)] {
        let mut settings = kept(server, directory.path());
        settings.routes[0].model = model.to_owned();
        let mut client = Client::v1(settings, json!({})).await;
        client.ask("session/load", json!({"sessionId": session, "cwd": "/project"})).await.unwrap();
        client.prompt(&session, "And?").await.unwrap();
        assert_eq!(chats(server).last().unwrap().body["model"], model);
        assert_eq!(client.thoughts().contains(&server.base_url()), told, "{}", client.thoughts());
        client.leave().await;
    }
}
