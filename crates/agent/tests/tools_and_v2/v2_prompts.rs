//! Prompts in version 2: acknowledged at once, and complete when the session is idle.

use narrows_acp::v2;
use narrows_agent::Settings;
use narrows_testkit::model::{ModelServer, Reply, Step};
use serde_json::{Value, json};

use crate::common::{Client, last_messages, settings};
use crate::official::{check_v2, same};

pub(crate) async fn prompt(client: &mut Client, session: &str, text: &str) -> Value {
    let answer = client.prompt(session, text).await.unwrap();
    same::<v2::PromptResponse>(&answer);
    answer["messageId"].clone()
}

pub(crate) async fn idle(client: &mut Client) -> Value {
    client.update(|update| update["state"] == "idle").await
}

pub(crate) fn states(client: &Client) -> Vec<&str> {
    client.updates.iter().filter_map(|update| update["state"].as_str()).collect()
}

pub(crate) async fn session(client: &mut Client) -> String {
    let answer = client.ask("session/new", json!({"cwd": "/project"})).await.unwrap();
    same::<v2::NewSessionResponse>(&answer);
    client.forget();
    answer["sessionId"].as_str().unwrap().to_owned()
}

pub(crate) async fn assert_quiet(client: &mut Client) {
    let before = client.updates.len();
    client.ask("session/list", json!({})).await.unwrap();
    assert_eq!(client.updates.len(), before, "{:?}", client.updates);
}

#[tokio::test]
async fn a_prompt_begins_with_its_message_and_ends_idle() {
    let server = ModelServer::start(Reply::thinking("hm, so", "Hello world, this is an answer"));
    let mut client = Client::v2(settings(&server)).await;
    let session = session(&mut client).await;
    let message = prompt(&mut client, &session, "Hi").await;
    let end = idle(&mut client).await;
    assert_eq!(end["stopReason"], "end_turn");
    assert!(end["usage"]["totalTokens"].as_u64().unwrap() > 0, "{end}");
    let expected = [
        "user_message",
        "state_update",
        "session_info_update",
        "agent_thought_chunk",
        "agent_message_chunk",
        "state_update",
    ];
    assert_eq!(client.kinds(), expected);
    let said = json!({"sessionUpdate": "user_message", "messageId": message, "content": [{"type": "text", "text": "Hi"}]});
    assert_eq!(client.updates[0], said);
    assert_eq!(states(&client), ["running", "idle"]);
    assert_eq!(
        (client.text().as_str(), client.thoughts().as_str()),
        ("Hello world, this is an answer", "hm, so")
    );
    // Two prompts are two messages.
    client.forget();
    assert_ne!(prompt(&mut client, &session, "And?").await, message);
    idle(&mut client).await;
    assert_eq!(last_messages(&server).as_array().unwrap().len(), 3);
    assert_quiet(&mut client).await;
    check_v2(&client);
    client.leave().await;
}

/// Opens a session whose turn waits for the model until the gate `model` is released.
pub(crate) async fn working() -> (ModelServer, Client, String) {
    let server =
        ModelServer::start(Reply::text("Hello world, this is an answer").before(Step::gate("model")));
    let mut client = Client::v2(settings(&server)).await;
    let session = session(&mut client).await;
    prompt(&mut client, &session, "Hi").await;
    client.update(|update| update["state"] == "running").await;
    (server, client, session)
}

#[tokio::test]
async fn the_response_does_not_wait_for_the_model() {
    let (server, mut client, _) = working().await;
    assert_eq!(states(&client), ["running"]);
    server.release("model");
    assert_eq!(idle(&mut client).await["stopReason"], "end_turn");
    client.leave().await;
}

#[tokio::test]
async fn every_finish_has_a_stop_reason() {
    for (finish, reason, kept) in
        [("stop", "end_turn", true), ("length", "max_tokens", true), ("content_filter", "refusal", false)]
    {
        let server = ModelServer::start(Reply::text("Hello world, this is an answer").finishing(finish));
        let mut client = Client::v2(settings(&server)).await;
        let session = session(&mut client).await;
        prompt(&mut client, &session, "Hi").await;
        assert_eq!(idle(&mut client).await["stopReason"], reason);
        client.forget();
        prompt(&mut client, &session, "And?").await;
        idle(&mut client).await;
        assert_eq!(last_messages(&server).as_array().unwrap().len() == 3, kept, "{finish}");
        check_v2(&client);
        client.leave().await;
    }
}

#[tokio::test]
async fn a_turn_can_be_cancelled() {
    let half = Reply::text("Hello world, this is an answer that goes on").after(6, Step::Hang);
    for reply in [half, Reply::hang()] {
        for method in ["session/cancel", "session/cancel with _meta"] {
            let server = ModelServer::start(reply.clone());
            let mut client = Client::v2(settings(&server)).await;
            let session = session(&mut client).await;
            let before = server.seen().len();
            prompt(&mut client, &session, "Hi").await;
            server.seen_count(before + 1).await;
            let mut params = json!({"sessionId": session});
            if method.ends_with("_meta") {
                params["_meta"] = json!({"a": 1});
            }
            client.notify("session/cancel", params).await;
            let end = idle(&mut client).await;
            assert_eq!((&end["stopReason"], end.get("error")), (&json!("cancelled"), None));
            server.hung_up().await;
            assert_quiet(&mut client).await;
            assert_eq!(states(&client), ["running", "idle"]);
            client.forget();
            server.replan(Reply::text("A new beginning for us both."));
            prompt(&mut client, &session, "Hello").await;
            assert_eq!(idle(&mut client).await["stopReason"], "end_turn");
            assert_eq!(last_messages(&server), json!([{"role": "user", "content": "Hello"}]));
            check_v2(&client);
            client.leave().await;
        }
    }
}

/// There is no turn to cancel, so no update is sent.
#[tokio::test]
async fn cancelling_an_idle_session_sends_no_update() {
    let server = ModelServer::start(Reply::text("Hello world, this is an answer"));
    let mut client = Client::v2(settings(&server)).await;
    let session = session(&mut client).await;
    for id in [session.as_str(), "no such session"] {
        client.notify("session/cancel", json!({"sessionId": id})).await;
    }
    client.notify("session/cancel", json!(7)).await;
    assert_quiet(&mut client).await;
    prompt(&mut client, &session, "Hi").await;
    assert_eq!(idle(&mut client).await["stopReason"], "end_turn", "the next turn is not affected");
    client.leave().await;
}

/// After its message is in the conversation, a prompt cannot fail any more. Only its turn fails.
#[tokio::test]
async fn a_failure_is_sent_as_text_and_state() {
    for (reply, kind, code, words) in [
        (Reply::refused(401, "bad key"), "auth", -32000, "Authentication error (HTTP 401)"),
        (Reply::refused(500, "oh no"), "server", -32018, "Server error (HTTP 500)"),
        (Reply::close(), "network", -32018, "Network error"),
        (Reply::document(200, "text/html", "<h1>Hi</h1>"), "garbage", -32018, "Unusable answer"),
        (Reply::text("Half of an answer that was").only(4).then(Step::Cut), "cut", -32018, "Network error"),
    ] {
        let server = ModelServer::start(reply);
        let mut client = Client::v2(settings(&server)).await;
        let session = session(&mut client).await;
        prompt(&mut client, &session, "Hi").await;
        let end = idle(&mut client).await;
        assert_eq!(end["stopReason"], "error", "{end}");
        let error = &end["error"];
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
        assert_eq!((&error["data"]["kind"], &error["code"]), (&json!(kind), &json!(code)), "{error}");
        assert!(client.text().contains(words), "{}", client.text());
        let told = |update: &Value| update["_meta"]["narrows/error"]["kind"] == kind;
        assert!(client.updates.iter().any(told), "{:?}", client.updates);
        assert_eq!(states(&client), ["running", "idle"]);
        client.forget();
        server.replan(Reply::text("Here I am again, all well."));
        prompt(&mut client, &session, "Hello?").await;
        assert_eq!(idle(&mut client).await["stopReason"], "end_turn");
        assert_eq!(last_messages(&server), json!([{"role": "user", "content": "Hello?"}]));
        check_v2(&client);
        client.leave().await;
    }
}

#[tokio::test]
async fn without_an_endpoint_a_prompt_says_how_to_configure_one() {
    let mut client = Client::v2(Settings::default()).await;
    let session = session(&mut client).await;
    prompt(&mut client, &session, "Hi").await;
    let end = idle(&mut client).await;
    assert_eq!(
        (&end["stopReason"], &end["error"]["data"]["kind"]),
        (&json!("error"), &json!("unconfigured"))
    );
    assert!(client.text().contains("OPENAI_BASE_URL"), "{}", client.text());
    check_v2(&client);
    client.leave().await;
}

#[tokio::test]
async fn a_second_prompt_waits_for_the_first_or_is_refused() {
    let server =
        ModelServer::start(Reply::text("Hello world, this is an answer").before(Step::gate("model")));
    let mut client = Client::v2(settings(&server)).await;
    let first = session(&mut client).await;
    let message = prompt(&mut client, &first, "Hi").await;
    let error = client.prompt(&first, "And this").await.unwrap_err();
    assert_eq!((&error["code"], &error["data"]["condition"]), (&json!(-32600), &json!("session_busy")));
    // Another session is not affected.
    let other = client.ask("session/new", json!({"cwd": "/project"})).await.unwrap()["sessionId"].clone();
    prompt(&mut client, other.as_str().unwrap(), "Hi").await;
    server.release("model");
    assert_eq!(idle(&mut client).await["stopReason"], "end_turn");
    let users = client.updates.iter().filter(|update| update["sessionUpdate"] == "user_message");
    assert_eq!(users.filter(|update| update["messageId"] == message).count(), 1);
    check_v2(&client);
    client.leave().await;
}

/// A refused prompt is never in the conversation.
#[tokio::test]
async fn an_invalid_prompt_is_refused() {
    let text = json!([{"type": "text", "text": "Hi"}]);
    let server = ModelServer::start(Reply::text("Hello world, this is an answer"));
    let mut client = Client::v2(settings(&server)).await;
    let session = session(&mut client).await;
    for (params, code) in [
        (json!({"sessionId": session}), -32602),
        (json!({"sessionId": session, "prompt": "Hi"}), -32602),
        (json!({"sessionId": session, "prompt": [{"type": "text"}]}), -32602),
        (json!({"sessionId": session, "prompt": [{"type": "hologram", "data": ""}]}), -32602),
        (json!({"sessionId": session, "prompt": [7]}), -32602),
        (json!({"prompt": text}), -32602),
        (json!({"sessionId": 7, "prompt": text}), -32602),
        (json!({"sessionId": "none", "prompt": text}), -32002),
    ] {
        let error = client.ask("session/prompt", params.clone()).await.unwrap_err();
        assert_eq!(error["code"], code, "{params}: {error}");
        if code == -32002 {
            assert_eq!(error["data"]["sessionId"], "none");
        }
    }
    assert_quiet(&mut client).await;
    assert!(client.updates.is_empty());
    prompt(&mut client, &session, "Hi").await;
    assert_eq!(idle(&mut client).await["stopReason"], "end_turn");
    client.leave().await;
}

#[tokio::test]
async fn methods_of_version_1_are_not_supported() {
    let server = ModelServer::start(Reply::text("Hello world, this is an answer"));
    let mut client = Client::v2(settings(&server)).await;
    let session = session(&mut client).await;
    for method in ["session/load", "session/set_model", "session/set_mode", "authenticate", "no/such"] {
        let params = json!({"sessionId": session, "cwd": "/project", "mcpServers": [], "modelId": "m", "methodId": "m"});
        let error = client.ask(method, params).await.unwrap_err();
        assert_eq!(error["code"], -32601, "{method}");
    }
    client.leave().await;
}
