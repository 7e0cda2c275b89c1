//! Permission requests: what the user is shown, and which answers approve.

use narrows_testkit::model::{ModelServer, Plan, Reply};
use serde_json::{Value, json};

use crate::common::{Client, chats, last_messages, settings};
use crate::official::check_v1;
use crate::simulated_user::{SimulatedUser, ended, methods, statuses};

fn write(path: &str) -> Reply {
    Reply::tool_call("write_file", json!({"path": path, "content": "new"}))
}

fn run(command: &str) -> Reply {
    Reply::tool_call("run_command", json!({"command": command}))
}

fn done() -> Reply {
    Reply::text("That is all I wanted to do.")
}

fn permission_requests(client: &Client) -> usize {
    methods(client).iter().filter(|method| **method == "session/request_permission").count()
}

#[tokio::test]
async fn the_user_is_shown_the_call() {
    let server = ModelServer::start([write("a.txt"), done()]);
    let mut client = SimulatedUser::new(&[]).client(settings(&server)).await;
    let session = client.session().await;
    client.prompt(&session, "Go").await.unwrap();
    let asked = client.question("session/request_permission").await;
    assert_eq!(asked["sessionId"], session);
    let announced = client.update(|update| update["sessionUpdate"] == "tool_call").await;
    assert_eq!(asked["toolCall"]["toolCallId"], announced["toolCallId"]);
    assert_eq!(asked["toolCall"]["rawInput"], json!({"path": "a.txt", "content": "new"}));
    let kinds: Vec<&Value> =
        asked["options"].as_array().unwrap().iter().map(|option| &option["kind"]).collect();
    assert_eq!(kinds, ["allow_once", "allow_always", "reject_once"]);
    // The call is announced before the permission request, and runs after the approval.
    let order: Vec<&str> = client
        .messages
        .iter()
        .filter_map(|message| {
            let update = &message["params"]["update"];
            update["status"]
                .as_str()
                .or_else(|| message["method"].as_str().filter(|method| *method != "session/update"))
        })
        .collect();
    assert_eq!(
        order,
        [
            "fs/read_text_file",
            "pending",
            "session/request_permission",
            "in_progress",
            "fs/read_text_file",
            "fs/write_text_file",
            "completed"
        ]
    );
    check_v1(&client);
    client.leave().await;
}

/// Only a clear approval counts. For any other answer the call is not run, and the model gets an error.
#[tokio::test]
async fn only_a_clear_approval_counts() {
    let outcome = |outcome: Value| Some(Ok(json!({"outcome": outcome})));
    for answer in [
        outcome(json!({"outcome": "selected", "optionId": "reject_once"})),
        outcome(json!({"outcome": "cancelled"})),
        outcome(json!({"outcome": "selected", "optionId": "never_offered"})),
        outcome(json!({"outcome": "selected"})),
        outcome(json!({"outcome": "selected", "optionId": 0})),
        outcome(json!({"outcome": "_approved", "optionId": "allow_once"})),
        outcome(json!("allow_once")),
        outcome(json!(null)),
        Some(Ok(json!({}))),
        Some(Ok(json!(null))),
        Some(Ok(json!("allow_once"))),
        Some(Ok(json!({"optionId": "allow_once"}))),
        Some(Err(json!({"code": -32601, "message": "what is a permission?"}))),
    ] {
        let server = ModelServer::start([write("a.txt"), done()]);
        let user = SimulatedUser::new(&[]);
        user.reply("session/request_permission", answer.clone());
        let mut client = user.client(settings(&server)).await;
        let session = client.session().await;
        let end = client.prompt(&session, "Go").await.unwrap();
        assert_eq!(end["stopReason"], "end_turn", "{answer:?}");
        assert_eq!(statuses(&client), ["pending", "failed"], "{answer:?}");
        assert_eq!(user.file("/project/a.txt"), None, "{answer:?}");
        assert_eq!(
            last_messages(&server)[2]["content"],
            "This call was not allowed, by the user or by a policy of the client."
        );
        client.leave().await;
    }
}

#[tokio::test]
async fn allow_once_covers_one_call() {
    let server = ModelServer::start([write("a.txt"), write("b.txt"), done()]);
    let user = SimulatedUser::new(&[]);
    let mut client = user.client(settings(&server)).await;
    let session = client.session().await;
    client.prompt(&session, "Go").await.unwrap();
    assert_eq!(permission_requests(&client), 2);
    assert!(user.file("/project/b.txt").is_some());
    client.leave().await;
}

#[tokio::test]
async fn a_permission_for_the_session_lasts_until_it_ends() {
    let server =
        ModelServer::start([write("a.txt"), write("b.txt"), run("ls"), run("ls"), run("ls -l"), done()]);
    let user = SimulatedUser::new(&[]);
    user.choose("allow_session");
    let mut client = user.client(settings(&server)).await;
    let session = client.session().await;
    client.prompt(&session, "Go").await.unwrap();
    // Files are approved once, and each command separately.
    assert_eq!(permission_requests(&client), 3);
    let edits = Plan::new([write("c.txt"), done()]);
    server.replan(edits);
    client.prompt(&session, "And again").await.unwrap();
    assert_eq!(permission_requests(&client), 3, "the next turn of the session knows");
    server.replan([write("d.txt"), done()]);
    let other = client.session().await;
    client.prompt(&other, "Go").await.unwrap();
    assert_eq!(permission_requests(&client), 4, "another session does not");
    client.ask("session/close", json!({"sessionId": session})).await.unwrap();
    client
        .ask("session/load", json!({"sessionId": session, "cwd": "/project", "mcpServers": []}))
        .await
        .unwrap();
    server.replan([write("e.txt"), done()]);
    client.prompt(&session, "Go").await.unwrap();
    assert_eq!(permission_requests(&client), 5, "the permission ends with the session");
    check_v1(&client);
    client.leave().await;
}

#[tokio::test]
async fn a_turn_can_be_cancelled_during_a_permission_request() {
    for as_request in [false, true] {
        let server = ModelServer::start([write("a.txt"), done()]);
        let user = SimulatedUser::new(&[]);
        let (mut client, session, prompt) = user.stuck("session/request_permission", settings(&server)).await;
        let params = json!({"sessionId": session});
        match as_request {
            true => assert_eq!(client.ask("session/cancel", params).await.unwrap(), json!({})),
            false => client.notify("session/cancel", params).await,
        }
        assert_eq!(client.answer(prompt).await.unwrap()["stopReason"], "cancelled");
        assert_eq!(ended(&mut client).await["status"], "failed");
        assert_eq!(user.file("/project/a.txt"), None);
        assert_eq!(chats(&server).len(), 1);
        let question =
            client.messages.iter().find(|message| message["method"] == "session/request_permission").unwrap();
        let given_up =
            client.messages.iter().find(|message| message["method"] == "$/cancel_request").unwrap();
        assert_eq!(given_up["params"]["requestId"], question["id"]);
        check_v1(&client);
        client.leave().await;
    }
}

/// An answer after the timeout has no effect.
#[tokio::test]
async fn a_late_approval_has_no_effect() {
    let server = ModelServer::start([write("a.txt"), done()]);
    let user = SimulatedUser::new(&[]);
    let (mut client, session, prompt) = user.stuck("session/request_permission", settings(&server)).await;
    client.notify("session/cancel", json!({"sessionId": session})).await;
    client.answer(prompt).await.unwrap();
    let yes = json!({"outcome": {"outcome": "selected", "optionId": "allow_session"}});
    crate::simulated_user::answer_late(&client, "session/request_permission", yes).await;
    server.replan([write("b.txt"), done()]);
    user.choose("reject_once");
    client.prompt(&session, "Go").await.unwrap();
    assert_eq!(permission_requests(&client), 2);
    assert_eq!((user.file("/project/a.txt"), user.file("/project/b.txt")), (None, None));
    client.leave().await;
}

#[tokio::test]
async fn the_agent_ends_with_its_client_during_a_permission_request() {
    let server = ModelServer::start([write("a.txt"), done()]);
    let user = SimulatedUser::new(&[]);
    let (client, _, _) = user.stuck("session/request_permission", settings(&server)).await;
    client.leave().await;
    assert_eq!(user.file("/project/a.txt"), None);
}

/// A pending permission delays no other session.
#[tokio::test]
async fn sessions_do_not_wait_for_each_other() {
    let server = ModelServer::start([write("a.txt"), done()]);
    let user = SimulatedUser::new(&[]);
    user.reply("session/request_permission", None);
    let mut client = user.client(settings(&server)).await;
    let (first, second) = (client.session().await, client.session().await);
    let prompt = client.begin_prompt(&first, "Go").await;
    client.question("session/request_permission").await;
    for _ in 0..3 {
        assert_eq!(client.prompt(&second, "Hello").await.unwrap()["stopReason"], "end_turn");
    }
    let yes = json!({"outcome": {"outcome": "selected", "optionId": "allow_once"}});
    crate::simulated_user::answer_late(&client, "session/request_permission", yes).await;
    assert_eq!(client.answer(prompt).await.unwrap()["stopReason"], "end_turn");
    assert_eq!(user.file("/project/a.txt").as_deref(), Some("new"));
    client.leave().await;
}
