//! Cancelling a turn at every stage, in every way that clients use.

use narrows_testkit::model::{ModelServer, Plan, Reply, Step};
use serde_json::{Value, json};

use crate::common::{Client, chats, chats_asked, last_messages, settings};

/// Way in which the client cancels.
#[derive(Clone, Copy, Debug)]
enum Way {
    Notification,
    Request,
    CancelRequest,
}

const WAYS: [Way; 3] = [Way::Notification, Way::Request, Way::CancelRequest];

/// Time at which the client cancels.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// The model has received the request, but has not answered.
    BeforeTheHead,
    /// Only the head of the response has arrived.
    BeforeTheFirstEvent,
    /// Some text has arrived, but too little to be shown.
    HeldBack,
    Middle,
    Thinking,
    /// Everything except the end has arrived.
    BeforeTheEnd,
    Calling,
}

const STAGES: [Stage; 7] = [
    Stage::BeforeTheHead,
    Stage::BeforeTheFirstEvent,
    Stage::HeldBack,
    Stage::Middle,
    Stage::Thinking,
    Stage::BeforeTheEnd,
    Stage::Calling,
];

const LONG: &str = "An answer of which not all is ever said";

fn reply(stage: Stage) -> Reply {
    match stage {
        Stage::BeforeTheHead => Reply::hang(),
        Stage::BeforeTheFirstEvent => Reply::text(LONG).after(0, Step::Hang),
        Stage::HeldBack => Reply::text(LONG).after(2, Step::Hang),
        Stage::Middle => Reply::text(LONG).after(7, Step::Hang),
        Stage::Thinking => Reply::thinking("These thoughts do not come to an end", LONG).after(7, Step::Hang),
        // The answer has a role, ten words, and the finish.
        Stage::BeforeTheEnd => Reply::text(LONG).without_usage().after(10, Step::Hang),
        Stage::Calling => {
            Reply::text_and_calls("I shall look at it, shall I", &[("read_file", json!({"path": "a.txt"}))])
                .after(9, Step::Hang)
        }
    }
}

async fn cancel(client: &mut Client, session: &str, turn: u64, way: Way) {
    match way {
        Way::Notification => client.notify("session/cancel", json!({"sessionId": session})).await,
        Way::Request => {
            assert_eq!(client.ask("session/cancel", json!({"sessionId": session})).await.unwrap(), json!({}));
        }
        Way::CancelRequest => client.notify("$/cancel_request", json!({"requestId": turn})).await,
    }
}

async fn check(stage: Stage, way: Way) {
    let server = ModelServer::start(Plan::new([
        Reply::text("The first answer"),
        reply(stage),
        Reply::text("The last answer"),
    ]));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    client.prompt(&session, "One").await.unwrap();
    client.forget();
    let turn = client.begin_prompt(&session, "Two").await;
    match stage {
        Stage::Middle | Stage::BeforeTheEnd | Stage::Calling => {
            client.update(|update| update["sessionUpdate"] == "agent_message_chunk").await;
        }
        Stage::Thinking => {
            client.update(|update| update["sessionUpdate"] == "agent_thought_chunk").await;
        }
        // Expected requests: the list of models, queries about the model, and two answers.
        _ => {
            chats_asked(&server, 2).await;
        }
    }
    cancel(&mut client, &session, turn, way).await;
    let end = client.answer(turn).await.unwrap_or_else(|error| panic!("{stage:?} {way:?}: {error}"));
    assert_eq!(end["stopReason"], "cancelled", "{stage:?} {way:?}");
    assert!(end.get("_meta").is_none(), "a cancellation is no failure");
    server.hung_up().await;
    // No update of the turn follows its end.
    let place = client
        .messages
        .iter()
        .position(|message| message["id"] == turn && message.get("result").is_some())
        .unwrap();
    client.prompt(&session, "Three").await.unwrap();
    let after: Vec<&Value> = client.messages[place + 1..]
        .iter()
        .filter(|message| message["params"]["update"]["sessionUpdate"] == "agent_message_chunk")
        .map(|message| &message["params"]["update"]["content"]["text"])
        .collect();
    let after: String = after.iter().filter_map(|text| text.as_str()).collect();
    assert_eq!(after, "The last answer", "{stage:?} {way:?}");
    assert_eq!(
        last_messages(&server),
        json!([
            {"role": "user", "content": "One"},
            {"role": "assistant", "content": "The first answer"},
            {"role": "user", "content": "Three"},
        ]),
        "{stage:?} {way:?}"
    );
    // The turn is not replayed either when the session is loaded.
    client.forget();
    client.ask("session/load", json!({"sessionId": session, "cwd": "/project"})).await.unwrap();
    assert_eq!(client.text(), "The first answerThe last answer");
    client.leave().await;
}

#[tokio::test]
async fn a_turn_can_be_cancelled_at_every_stage_and_in_every_way() {
    for stage in STAGES {
        for way in WAYS {
            check(stage, way).await;
        }
    }
}

#[tokio::test]
async fn held_back_text_is_shown_before_the_end() {
    let server = ModelServer::start(reply(Stage::Middle));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    let turn = client.begin_prompt(&session, "Hi").await;
    client.update(|update| update["sessionUpdate"] == "agent_message_chunk").await;
    client.notify("session/cancel", json!({"sessionId": session})).await;
    client.answer(turn).await.unwrap();
    assert!(LONG.starts_with(&client.text()) && client.text().len() >= 16, "{}", client.text());
    client.leave().await;
}

#[tokio::test]
async fn cancelling_an_idle_session_has_no_effect() {
    let server = ModelServer::start(Reply::text("An answer, and not a short one"));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    for session in [json!(session), json!("nobody"), json!(7), Value::Null] {
        client.notify("session/cancel", json!({"sessionId": session})).await;
    }
    client.notify("session/cancel", json!({})).await;
    for id in [json!(4711), json!("x"), Value::Null, json!([1])] {
        client.notify("$/cancel_request", json!({"requestId": id})).await;
    }
    assert_eq!(client.ask("session/cancel", json!({"sessionId": session})).await.unwrap(), json!({}));
    assert_eq!(client.ask("session/cancel", json!({"sessionId": "nobody"})).await.unwrap(), json!({}));
    let error = client.ask("session/cancel", json!({})).await.unwrap_err();
    assert_eq!((&error["code"], &error["data"]["field"]), (&json!(-32602), &json!("sessionId")));
    // A cancellation before a turn does not affect the turn.
    let end = client.prompt(&session, "Hi").await.unwrap();
    assert_eq!(end["stopReason"], "end_turn");
    client.notify("session/cancel", json!({"sessionId": session})).await;
    assert_eq!(client.prompt(&session, "Hi").await.unwrap()["stopReason"], "end_turn");
    assert_eq!(last_messages(&server).as_array().unwrap().len(), 3);
    client.leave().await;
}

#[tokio::test]
async fn a_cancellation_affects_one_session() {
    let held = || Reply::text(LONG).after(7, Step::gate("on"));
    let server = ModelServer::start(held());
    let mut client = Client::v1(settings(&server), json!({})).await;
    let (first, second) = (client.session().await, client.session().await);
    let stays = client.begin_prompt(&first, "Stay").await;
    let goes = client.begin_prompt(&second, "Go").await;
    chats_asked(&server, 2).await;
    client.notify("session/cancel", json!({"sessionId": second})).await;
    assert_eq!(client.answer(goes).await.unwrap()["stopReason"], "cancelled");
    server.release("on");
    assert_eq!(client.answer(stays).await.unwrap()["stopReason"], "end_turn");
    client.leave().await;
}

#[tokio::test]
async fn a_prompt_right_after_a_cancelled_turn_is_accepted() {
    let server = ModelServer::start(Plan::new([reply(Stage::Middle), Reply::text("The next answer")]));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    let turn = client.begin_prompt(&session, "Hi").await;
    client.update(|update| update["sessionUpdate"] == "agent_message_chunk").await;
    client.notify("session/cancel", json!({"sessionId": session})).await;
    assert_eq!(client.answer(turn).await.unwrap()["stopReason"], "cancelled");
    // After the response the session is free at once, so that no client must retry.
    assert_eq!(client.prompt(&session, "Next").await.unwrap()["stopReason"], "end_turn");
    client.leave().await;
}

#[tokio::test]
async fn a_summary_can_be_cancelled() {
    let server = ModelServer::start(Plan::new([
        Reply::text("The first answer"),
        Reply::text("A summary without end").after(2, Step::Hang),
        Reply::text("The last answer"),
    ]));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    client.prompt(&session, "One").await.unwrap();
    let turn = client.begin_prompt(&session, "/compact").await;
    chats_asked(&server, 2).await;
    client.notify("session/cancel", json!({"sessionId": session})).await;
    assert_eq!(client.answer(turn).await.unwrap()["stopReason"], "cancelled");
    server.hung_up().await;
    client.prompt(&session, "Two").await.unwrap();
    assert_eq!(last_messages(&server)[0]["content"], "One", "the history is unchanged");
    assert_eq!(last_messages(&server).as_array().unwrap().len(), 3);
    client.leave().await;
}

#[tokio::test]
async fn a_file_that_is_being_read_for_a_prompt_is_not_waited_for() {
    let server = ModelServer::start(Reply::text("An answer, and not a short one"));
    let mut client = Client::v1(settings(&server), json!({"fs": {"readTextFile": true}})).await;
    client.host(|_, _| None);
    let session = client.session().await;
    let blocks = json!([{"type": "resource_link", "uri": "/project/a.rs", "name": "a.rs"}]);
    let turn = client.begin("session/prompt", json!({"sessionId": session, "prompt": blocks})).await;
    client.question("fs/read_text_file").await;
    client.notify("session/cancel", json!({"sessionId": session})).await;
    assert_eq!(client.answer(turn).await.unwrap()["stopReason"], "cancelled");
    assert_eq!(chats(&server).len(), 0);
    client.leave().await;
}

#[tokio::test]
async fn a_turn_can_be_cancelled_right_after_its_prompt() {
    for way in WAYS {
        let server = ModelServer::start(Reply::text("An answer, and not a short one"));
        let mut client = Client::v1(settings(&server), json!({})).await;
        let session = client.session().await;
        let turn = client.begin_prompt(&session, "Hi").await;
        cancel(&mut client, &session, turn, way).await;
        assert_eq!(client.answer(turn).await.unwrap()["stopReason"], "cancelled", "{way:?}");
        assert_eq!(client.text(), "");
        assert_eq!(client.prompt(&session, "Next").await.unwrap()["stopReason"], "end_turn");
        assert_eq!(last_messages(&server), json!([{"role": "user", "content": "Next"}]));
        client.leave().await;
    }
}

#[tokio::test]
async fn a_cancelled_request_other_than_a_prompt_is_answered() {
    let server = ModelServer::start(Plan::new([Reply::text("Hello")]).models(Reply::hang()));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let opening = client.begin("session/new", json!({"cwd": "/project"})).await;
    client.notify("$/cancel_request", json!({"requestId": opening})).await;
    match client.answer(opening).await {
        Ok(opened) => assert!(opened["sessionId"].is_string()),
        Err(error) => assert_eq!(error["code"], -32800),
    }
    client.leave().await;
}
