//! Conversations that exceed the model's context window.

use narrows_agent::Settings;
use narrows_testkit::model::{ModelServer, Plan, Reply, Seen, Step};
use serde_json::{Value, json};

use crate::common::{Client, chats, last_messages, settings};
use crate::official::{check_v1, check_v2};
use crate::simulated_user::SimulatedUser;

fn answer() -> Reply {
    Reply::text("Hello world, this is an answer")
}

fn overflow() -> Reply {
    let message =
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.";
    Reply::error(
        400,
        &json!({"error": {"message": message, "type": "invalid_request_error", "code": "context_length_exceeded"}}),
    )
}

fn is_summary(seen: &Seen) -> bool {
    let task = seen.body["messages"][0]["content"].as_str();
    task.is_some_and(|text| text.starts_with("Summarise the conversation"))
}

/// Plans `summary` for summary requests, and `replies` for all others.
fn plan(summary: Reply, replies: impl IntoIterator<Item = Reply>) -> Plan {
    Plan::new(replies).unless(move |seen| is_summary(seen).then(|| summary.clone()))
}

fn summary() -> Reply {
    Reply::text("They greeted each other.")
}

/// Returns one letter per chat request: `s` for a summary, `a` for any other.
fn requests(server: &ModelServer) -> String {
    chats(server).iter().map(|seen| if is_summary(seen) { 's' } else { 'a' }).collect()
}

/// Returns a client and a session with `turns` past turns.
async fn after_turns(settings: Settings, capabilities: Value, turns: usize) -> (Client, String) {
    let mut client = Client::v1(settings, capabilities).await;
    let session = client.session().await;
    for turn in 1..=turns {
        client.prompt(&session, &format!("Question {turn}")).await.unwrap();
    }
    client.forget();
    (client, session)
}

fn words(messages: &Value) -> Vec<String> {
    let text = |message: &Value| message["content"].as_str().unwrap_or_default().to_owned();
    messages.as_array().unwrap().iter().map(text).collect()
}

const ANSWER: &str = "Hello world, this is an answer";
const SUMMARY: &str = "Summary of our conversation so far:\n\nThey greeted each other.";

#[tokio::test]
async fn a_conversation_that_overflows_is_summarized_and_sent_again() {
    let server = ModelServer::start(plan(summary(), [answer(), answer(), overflow(), answer()]));
    let (mut client, session) = after_turns(settings(&server), json!({}), 2).await;
    let end = client.prompt(&session, "Question 3").await.unwrap();
    assert_eq!((&end["stopReason"], end.get("_meta")), (&json!("end_turn"), None));
    assert_eq!(requests(&server), "aaasa");
    assert_eq!(client.text(), ANSWER, "the summary is not shown as an answer");
    let taken = &end["usage"]["inputTokens"];
    assert_eq!(taken, 40, "two earlier turns, this one, and the summary");
    let asked = chats(&server)[3].body["messages"][1]["content"].as_str().unwrap().to_owned();
    assert!(asked.contains("User: Question 1") && asked.contains(ANSWER), "{asked}");
    let expected = ["Question 1", SUMMARY, "Question 2", ANSWER, "Question 3"];
    assert_eq!(words(&last_messages(&server)), expected);
    // The conversation stays compacted.
    client.prompt(&session, "Question 4").await.unwrap();
    assert_eq!(words(&last_messages(&server))[..2], ["Question 1", SUMMARY]);
    check_v1(&client);
    client.leave().await;
}

#[tokio::test]
async fn a_second_overflow_is_an_error() {
    let server = ModelServer::start(plan(summary(), [answer(), answer(), overflow()]));
    let (mut client, session) = after_turns(settings(&server), json!({}), 2).await;
    let end = client.prompt(&session, "Question 3").await.unwrap();
    assert_eq!(end["_meta"]["narrows/error"]["kind"], "overflow");
    assert_eq!(requests(&server), "aaasa", "exactly one repetition");
    server.replan(plan(summary(), [answer()]));
    assert_eq!(client.prompt(&session, "Question 4").await.unwrap()["stopReason"], "end_turn");
    client.leave().await;
}

#[tokio::test]
async fn an_overflow_without_past_turns_is_an_error() {
    let server = ModelServer::start(plan(summary(), [overflow()]));
    let (mut client, session) = after_turns(settings(&server), json!({}), 0).await;
    let end = client.prompt(&session, "Question 1").await.unwrap();
    assert_eq!(end["_meta"]["narrows/error"]["kind"], "overflow");
    assert_eq!(requests(&server), "a");
    client.leave().await;
}

/// The window is known, so no request needs to fail first.
#[tokio::test]
async fn a_conversation_is_compacted_at_four_fifths_of_the_window() {
    // 2000 tokens are about 8000 bytes. Four fifths of them are 6400.
    for (length, expected) in [(2500, "aaa"), (4000, "aasa")] {
        let server = ModelServer::start(plan(summary(), [answer()]));
        let mut settings = settings(&server);
        settings.routes[0].endpoint.context_window = Some(2000);
        let mut client = Client::v1(settings, json!({})).await;
        let session = client.session().await;
        client.prompt(&session, &"x".repeat(length)).await.unwrap();
        client.prompt(&session, "y").await.unwrap();
        client.prompt(&session, &"z".repeat(length)).await.unwrap();
        assert_eq!(requests(&server), expected, "{length}");
        client.leave().await;
    }
}

#[tokio::test]
async fn a_summary_is_stored_and_the_replay_is_complete() {
    let place = tempfile::tempdir().unwrap();
    let server = ModelServer::start(plan(summary(), [answer()]));
    let with_place = || Settings { data_dir: Some(place.path().to_owned()), ..settings(&server) };
    let (mut client, session) = after_turns(with_place(), json!({}), 3).await;
    client.prompt(&session, "/compact").await.unwrap();
    assert!(client.text().contains("replaced by a summary"), "{}", client.text());
    assert_eq!(requests(&server), "aaas");
    client.leave().await;
    let mut client = Client::v1(with_place(), json!({})).await;
    client
        .ask("session/load", json!({"sessionId": session, "cwd": "/project", "mcpServers": []}))
        .await
        .unwrap();
    let shown = client.updates.iter().filter(|update| update["sessionUpdate"] == "user_message_chunk");
    let shown: Vec<&Value> = shown.map(|update| &update["content"]["text"]).collect();
    assert_eq!(shown, ["Question 1", "Question 2", "Question 3"]);
    client.prompt(&session, "Question 4").await.unwrap();
    let expected = ["Question 1", SUMMARY, "Question 3", ANSWER, "Question 4"];
    assert_eq!(words(&last_messages(&server)), expected);
    client.leave().await;
}

#[tokio::test]
async fn compact_reports_when_there_is_nothing_to_compact() {
    let server = ModelServer::start(plan(summary(), [answer()]));
    let (mut client, session) = after_turns(settings(&server), json!({}), 0).await;
    client.prompt(&session, "/compact").await.unwrap();
    assert!(client.text().contains("nothing to compact"), "{}", client.text());
    assert_eq!(requests(&server), "");
    // A command is not part of the conversation.
    client.prompt(&session, "Question 1").await.unwrap();
    assert_eq!(words(&last_messages(&server)), ["Question 1"]);
    client.leave().await;
}

#[tokio::test]
async fn a_summary_can_be_summarized_again() {
    let server = ModelServer::start(plan(summary(), [answer()]));
    let (mut client, session) = after_turns(settings(&server), json!({}), 2).await;
    client.prompt(&session, "/compact").await.unwrap();
    client.prompt(&session, "/compact").await.unwrap();
    assert_eq!(requests(&server), "aass");
    client.prompt(&session, "Question 3").await.unwrap();
    assert_eq!(words(&last_messages(&server)), ["Question 1", SUMMARY, "Question 2", ANSWER, "Question 3"]);
    client.leave().await;
}

/// Without a summary, nothing of the conversation is lost.
#[tokio::test]
async fn without_a_summary_the_conversation_is_unchanged() {
    for failing in
        [Reply::refused(401, "bad key"), Reply::close(), Reply::text(""), Reply::refused(500, "no")]
    {
        let server = ModelServer::start(plan(failing.clone(), [answer()]));
        let (mut client, session) =
            after_turns(settings(&server), json!({"session": {"compaction": {}}}), 2).await;
        let end = client.prompt(&session, "/compact").await.unwrap();
        assert_eq!(end["stopReason"], "end_turn");
        assert!(!client.text().contains("has been replaced"), "{}", client.text());
        let statuses: Vec<&Value> = compactions(&client).iter().map(|update| &update["status"]).collect();
        assert_eq!(statuses, ["in_progress", "failed"]);
        assert!(compactions(&client)[1]["error"].is_string());
        client.prompt(&session, "Question 3").await.unwrap();
        let expected = ["Question 1", ANSWER, "Question 2", ANSWER, "Question 3"];
        assert_eq!(words(&last_messages(&server)), expected);
        check_v1(&client);
        client.leave().await;
    }
}

/// The current turn continues without the old turns. The next turn has them again.
#[tokio::test]
async fn a_turn_that_does_not_fit_continues_without_a_summary() {
    let server =
        ModelServer::start(plan(Reply::refused(400, "no"), [answer(), answer(), overflow(), answer()]));
    let (mut client, session) = after_turns(settings(&server), json!({}), 2).await;
    assert_eq!(client.prompt(&session, "Question 3").await.unwrap()["stopReason"], "end_turn");
    let sent = words(&last_messages(&server));
    assert!(sent[1].contains("left out"), "{sent:?}");
    assert_eq!((sent[0].as_str(), sent.len()), ("Question 1", 5));
    client.prompt(&session, "Question 4").await.unwrap();
    assert_eq!(words(&last_messages(&server)).len(), 7);
    client.leave().await;
}

fn compactions(client: &Client) -> Vec<&Value> {
    client.updates.iter().filter(|update| update["sessionUpdate"] == "compaction_update").collect()
}

#[tokio::test]
async fn clients_that_support_it_get_compaction_updates() {
    for (capabilities, told) in [(json!({"session": {"compaction": {}}}), true), (json!({}), false)] {
        let server = ModelServer::start(plan(summary(), [answer()]));
        let (mut client, session) = after_turns(settings(&server), capabilities, 2).await;
        client.prompt(&session, "/compact").await.unwrap();
        let seen = compactions(&client);
        assert_eq!(seen.len(), if told { 2 } else { 0 });
        if told {
            assert_eq!(seen[0]["compactionId"], seen[1]["compactionId"]);
            assert_eq!(
                (&seen[0]["status"], &seen[1]["status"]),
                (&json!("in_progress"), &json!("completed"))
            );
            assert_eq!(seen[1]["summary"], json!([{"type": "text", "text": "They greeted each other."}]));
        }
        check_v1(&client);
        client.leave().await;
    }
}

#[tokio::test]
async fn version_2_always_gets_compaction_updates() {
    let server = ModelServer::start(plan(summary(), [answer()]));
    let mut client = Client::v2(settings(&server)).await;
    let session = crate::v2_prompts::session(&mut client).await;
    for text in ["Question 1", "/compact"] {
        client.forget();
        crate::v2_prompts::prompt(&mut client, &session, text).await;
        crate::v2_prompts::idle(&mut client).await;
    }
    assert_eq!(compactions(&client).len(), 2);
    check_v2(&client);
    client.leave().await;
}

#[tokio::test]
async fn a_compaction_can_be_cancelled() {
    let half = Reply::text("They greeted each other for long").after(3, Step::Hang);
    for hanging in [Reply::hang(), half] {
        let server = ModelServer::start(plan(hanging, [answer()]));
        let (mut client, session) =
            after_turns(settings(&server), json!({"session": {"compaction": {}}}), 2).await;
        let before = server.seen().len();
        let prompt = client.begin_prompt(&session, "/compact").await;
        server.seen_count(before + 1).await;
        client.notify("session/cancel", json!({"sessionId": session})).await;
        assert_eq!(client.answer(prompt).await.unwrap()["stopReason"], "cancelled");
        assert_eq!(compactions(&client).last().unwrap()["status"], "cancelled");
        server.hung_up().await;
        client.prompt(&session, "Question 3").await.unwrap();
        assert_eq!(words(&last_messages(&server)).len(), 5, "nothing is lost");
        check_v1(&client);
        client.leave().await;
    }
}

/// The first turn has no past turns to remove, but its tool results can be cut.
#[tokio::test]
async fn long_results_are_cut_before_a_turn_fails() {
    let long = format!("begin {} end", "x".repeat(100_000));
    let read = Reply::tool_call("read_file", json!({"path": "a.txt"}));
    let server = ModelServer::start(plan(summary(), [read, overflow(), answer()]));
    let mut client = SimulatedUser::new(&[("/project/a.txt", &long)]).client(settings(&server)).await;
    let session = client.session().await;
    let end = client.prompt(&session, "Go").await.unwrap();
    assert_eq!((&end["stopReason"], end.get("_meta")), (&json!("end_turn"), None));
    assert_eq!(requests(&server), "aaa");
    let result = |at: usize| chats(&server)[at].body["messages"][2]["content"].as_str().unwrap().to_owned();
    assert_eq!(result(1), long);
    let cut = result(2);
    assert!(cut.len() < 5000 && cut.starts_with("begin ") && cut.ends_with(" end"), "{}", cut.len());
    assert!(cut.contains("bytes left out"));
    client.leave().await;
}

/// The model gets a bounded part of any tool result.
#[tokio::test]
async fn long_results_are_cut_for_the_model() {
    let endless = format!("begin {} end", "x".repeat(1 << 20));
    let read = Reply::tool_call("read_file", json!({"path": "a.txt"}));
    let server = ModelServer::start([read, answer()]);
    let mut client = SimulatedUser::new(&[("/project/a.txt", &endless)]).client(settings(&server)).await;
    let session = client.session().await;
    client.prompt(&session, "Go").await.unwrap();
    let given = last_messages(&server)[2]["content"].as_str().unwrap().to_owned();
    assert!(given.len() < 140_000 && given.ends_with(" end"), "{}", given.len());
    let shown = client.updates.iter().find(|update| update["status"] == "completed").unwrap();
    assert!(shown["content"][0]["content"]["text"].as_str().unwrap().len() < 40_000);
    client.leave().await;
}

/// The endpoint's count replaces the agent's estimate.
#[tokio::test]
async fn the_token_count_of_the_endpoint_decides() {
    let full = answer().using(3900, 50);
    let server = ModelServer::start(plan(summary(), [full]));
    let mut settings = settings(&server);
    settings.routes[0].endpoint.context_window = Some(4096);
    let (mut client, session) = after_turns(settings, json!({}), 1).await;
    client.prompt(&session, "Question 2").await.unwrap();
    assert_eq!(requests(&server), "asa");
    client.leave().await;
}

#[tokio::test]
async fn the_system_prompt_counts_towards_the_window() {
    let server = ModelServer::start(plan(summary(), [answer().without_usage()]));
    let mut settings = settings(&server);
    settings.routes[0].endpoint.context_window = Some(4096);
    settings.system = Some("Be brief. ".repeat(1400));
    let (mut client, session) = after_turns(settings, json!({}), 1).await;
    client.prompt(&session, "Question 2").await.unwrap();
    assert_eq!(requests(&server), "asa");
    client.leave().await;
}
