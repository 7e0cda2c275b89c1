//! Slash commands: `/compact` and `/status`.

use narrows_agent::Settings;
use narrows_testkit::model::{ModelServer, Plan, Reply};
use serde_json::{Value, json};

use crate::common::{Client, chats, last_messages, settings};

fn contents(server: &ModelServer) -> Vec<String> {
    let messages = last_messages(server);
    let texts =
        messages.as_array().unwrap().iter().map(|message| message["content"].as_str().unwrap().to_owned());
    texts.collect()
}

#[tokio::test]
async fn compact_replaces_the_conversation_by_a_summary() {
    let server = ModelServer::start(Plan::new([
        Reply::text("The first answer"),
        Reply::text("The second answer"),
        Reply::text("We spoke of two things."),
        Reply::text("The third answer"),
    ]));
    let directory = tempfile::tempdir().unwrap();
    let kept = || Settings { data_dir: Some(directory.path().to_owned()), ..settings(&server) };
    let mut client = Client::v1(kept(), json!({"session": {"compaction": {}}})).await;
    let session = client.session().await;
    client.prompt(&session, "One").await.unwrap();
    client.prompt(&session, "Two").await.unwrap();
    client.forget();
    let end = client.prompt(&session, "/compact").await.unwrap();
    assert_eq!(end["stopReason"], "end_turn");
    assert_eq!(client.text(), "The earlier part of this conversation has been replaced by a summary.");
    let steps: Vec<&Value> = client
        .updates
        .iter()
        .filter(|update| update["sessionUpdate"] == "compaction_update")
        .map(|update| &update["status"])
        .collect();
    assert_eq!(steps, ["in_progress", "completed"]);
    let asked = chats(&server).pop().unwrap();
    assert!(asked.body.to_string().contains("The first answer"), "the model gets the turns to summarize");

    client.prompt(&session, "Three").await.unwrap();
    let now = contents(&server);
    assert_eq!(now[0], "One", "the first message is kept");
    assert!(now[1].contains("We spoke of two things."), "{now:?}");
    assert_eq!(now.last().unwrap(), "Three");
    assert!(!now.iter().any(|text| text.contains("/compact")), "{now:?}");
    client.leave().await;

    // The model continues from the summary, but the user still sees the whole history.
    let mut client = Client::v1(kept(), json!({})).await;
    client.ask("session/load", json!({"sessionId": session, "cwd": "/project"})).await.unwrap();
    assert_eq!(client.text(), "The first answerThe second answerThe third answer");
    client.prompt(&session, "Four").await.unwrap();
    let later = contents(&server);
    assert_eq!(later[..now.len()], now[..]);
    assert_eq!(later.len(), now.len() + 2);
    client.leave().await;
}

#[tokio::test]
async fn compact_reports_when_there_is_nothing_to_compact() {
    let server = ModelServer::start(Reply::text("unused"));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    assert_eq!(client.prompt(&session, "/compact").await.unwrap()["stopReason"], "end_turn");
    assert_eq!(client.text(), "There is nothing to compact yet.");
    assert_eq!(chats(&server).len(), 0);
    client.leave().await;
}

#[tokio::test]
async fn the_session_continues_if_there_is_no_summary() {
    let server = ModelServer::start(Plan::new([
        Reply::text("The first answer"),
        Reply::refused(500, "no"),
        Reply::text("The last answer"),
    ]));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    client.prompt(&session, "One").await.unwrap();
    assert_eq!(client.prompt(&session, "/compact").await.unwrap()["stopReason"], "end_turn");
    client.forget();
    assert_eq!(client.prompt(&session, "Two").await.unwrap()["stopReason"], "end_turn");
    assert_eq!(client.text(), "The last answer");
    assert_eq!(contents(&server)[0], "One");
    client.leave().await;
}

#[tokio::test]
async fn status_shows_model_tools_and_window() {
    let server = ModelServer::start(Reply::text("An answer, and not a short one"));
    let mut settings = settings(&server);
    settings.routes[0].endpoint.context_window = Some(4096);
    let mut client = Client::v1(settings, json!({"fs": {"readTextFile": true}})).await;
    let session = client.session().await;
    client.prompt(&session, "One").await.unwrap();
    client.forget();
    let end = client.prompt(&session, " /status\n").await.unwrap();
    assert_eq!(end["stopReason"], "end_turn");
    let used = 10 + 7;
    let expected = format!(
        "- Model: test-model\n- Endpoint: {} (test)\n- Context window: 4096 tokens, used: {used} tokens\n\
         - Turns in memory: 1\n- Tools: read_file, update_plan\n- Directory: /project",
        server.base_url()
    );
    assert_eq!(client.text(), expected);
    // The command and its output are not part of the conversation.
    client.prompt(&session, "Two").await.unwrap();
    assert_eq!(contents(&server), ["One", "An answer, and not a short one", "Two"]);
    client.leave().await;
}

#[tokio::test]
async fn text_that_only_looks_like_a_command_is_a_prompt() {
    let server = ModelServer::start(Reply::text("An answer, and not a short one"));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    for text in ["/etc/passwd is what?", "/unknown", "compact", "/compact the log files"] {
        client.prompt(&session, text).await.unwrap();
        assert_eq!(contents(&server).last().unwrap(), text);
    }
    client.leave().await;
}

/// A conversation that exceeds the window is compacted automatically, once.
#[tokio::test]
async fn a_conversation_that_overflows_is_compacted() {
    let server = ModelServer::start(Plan::new([
        Reply::text("The first answer"),
        Reply::text("The second answer"),
        Reply::refused(
            400,
            "This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens.",
        ),
        Reply::text("We spoke of two things."),
        Reply::text("The third answer"),
    ]));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    client.prompt(&session, "One").await.unwrap();
    client.prompt(&session, "Two").await.unwrap();
    client.forget();
    let end = client.prompt(&session, "Three").await.unwrap();
    assert_eq!((&end["stopReason"], end.get("_meta")), (&json!("end_turn"), None));
    assert_eq!(client.text(), "The third answer");
    assert!(contents(&server).iter().any(|text| text.contains("We spoke of two things.")));
    assert_eq!(contents(&server).last().unwrap(), "Three");
    client.leave().await;
}
