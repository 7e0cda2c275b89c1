//! Commands in the terminal of the client.

use std::time::Duration;

use narrows_agent::{Limits, Settings};
use narrows_testkit::model::{ModelServer, Reply};
use serde_json::{Value, json};

use crate::common::{Client, chats, last_messages, settings};
use crate::official::check_v1;
use crate::simulated_user::{SimulatedUser, answer_late, calls, ended, methods, statuses};

fn running(arguments: Value) -> ModelServer {
    ModelServer::start([
        Reply::tool_call("run_command", arguments),
        Reply::text("That is all I wanted to run."),
    ])
}

#[tokio::test]
async fn a_command_runs_in_a_terminal_that_is_released() {
    let server = running(json!({"command": "cargo", "args": ["test", "a b"], "cwd": "sub"}));
    let mut client = SimulatedUser::new(&[]).client(settings(&server)).await;
    let session = client.session().await;
    client.prompt(&session, "Go").await.unwrap();
    let expected = [
        "session/request_permission",
        "terminal/create",
        "terminal/wait_for_exit",
        "terminal/output",
        "terminal/release",
    ];
    assert_eq!(methods(&client), expected);
    let created = &client.requests[1].1;
    assert_eq!((&created["command"], &created["args"]), (&json!("cargo"), &json!(["test", "a b"])));
    assert_eq!(created["cwd"], "/project/sub");
    assert!(created["outputByteLimit"].as_u64().unwrap() > 0);
    assert!(client.requests[2..].iter().all(|(_, params)| params["terminalId"] == "t1"));
    let announced = client.update(|update| update["sessionUpdate"] == "tool_call").await;
    let title = json!("`cargo test 'a b'` in `/project/sub`");
    assert_eq!((&announced["kind"], &announced["title"]), (&json!("execute"), &title));
    let call = calls(&client).pop().unwrap();
    assert_eq!(call["content"], json!([{"type": "terminal", "terminalId": "t1"}]));
    assert_eq!(call["rawOutput"], json!({"exitCode": 0, "signal": null, "truncated": false}));
    assert_eq!(statuses(&client), ["pending", "in_progress", "completed"]);
    assert_eq!(last_messages(&server)[2]["content"], "hello\n\n(exit code 0)");
    check_v1(&client);
    client.leave().await;
}

/// A client that authorizes commands asks its user itself, so a permission request would ask twice. Another
/// client that continues the session gets permission requests.
#[tokio::test]
async fn a_client_that_decides_about_commands_itself_is_not_asked_for_permission_first() {
    let authorizes = json!({"narrows/authorizes": true});
    for (can, prompt, first) in [
        (Some(&authorizes), Some(&authorizes), "terminal/create"),
        (Some(&authorizes), None, "session/request_permission"),
        (None, Some(&authorizes), "session/request_permission"),
    ] {
        let server = running(json!({"command": "cargo", "args": ["test"]}));
        let can = json!({"terminal": true, "_meta": can});
        let mut client = SimulatedUser::new(&[]).client_with(settings(&server), can).await;
        let session = client.session().await;
        let blocks = json!([{"type": "text", "text": "Go"}]);
        let params = json!({"sessionId": session, "prompt": blocks, "_meta": prompt});
        client.ask("session/prompt", params).await.unwrap();
        assert_eq!(methods(&client)[0], first, "{prompt:?}");
        assert_eq!(statuses(&client), ["pending", "in_progress", "completed"]);
        check_v1(&client);
        client.leave().await;
    }
}

/// The end of a command as the client reports it, and its form for the model.
#[tokio::test]
async fn every_end_of_a_command_is_reported() {
    let output = |truncated: bool| Ok(json!({"output": "out", "truncated": truncated}));
    let broken = || Err(json!({"code": -32603, "message": "broken pipe"}));
    for (exit, output, told, status) in [
        (Ok(json!({"exitCode": 1})), output(false), "out\n(exit code 1)", "completed"),
        (Ok(json!({"signal": "SIGKILL"})), output(false), "(ended by signal SIGKILL)", "failed"),
        (Ok(json!({})), output(false), "out\n(ended)", "completed"),
        (Ok(json!({"exitCode": 0})), output(true), "beginning of the output was left out", "completed"),
        (Ok(json!({"exitCode": 0})), broken(), "is not available: broken pipe", "failed"),
        (broken(), output(false), "is unknown: broken pipe", "failed"),
        (
            broken(),
            Ok(json!({"output": "out", "truncated": false, "exitStatus": {"exitCode": 3}})),
            "out\n(exit code 3)",
            "completed",
        ),
    ] {
        let server = running(json!({"command": "true"}));
        let user = SimulatedUser::new(&[]);
        user.reply("terminal/wait_for_exit", Some(exit));
        user.reply("terminal/output", Some(output));
        let mut client = user.client(settings(&server)).await;
        let session = client.session().await;
        client.prompt(&session, "Go").await.unwrap();
        let content = last_messages(&server)[2]["content"].as_str().unwrap().to_owned();
        assert!(content.contains(told), "{content:?} has no {told:?}");
        assert_eq!(ended(&mut client).await["status"], status, "{told}");
        assert_eq!(*methods(&client).last().unwrap(), "terminal/release", "{told}");
        check_v1(&client);
        client.leave().await;
    }
}

#[tokio::test]
async fn a_terminal_that_cannot_be_created_fails_the_call() {
    for reply in [Err(json!({"code": -32603, "message": "no shell"})), Ok(json!({})), Ok(json!(null))] {
        let server = running(json!({"command": "true"}));
        let user = SimulatedUser::new(&[]);
        user.reply("terminal/create", Some(reply));
        let mut client = user.client(settings(&server)).await;
        let session = client.session().await;
        client.prompt(&session, "Go").await.unwrap();
        assert_eq!(ended(&mut client).await["status"], "failed");
        assert_eq!(methods(&client), ["session/request_permission", "terminal/create"]);
        assert!(last_messages(&server)[2]["content"].as_str().unwrap().contains("could not be started"));
        client.leave().await;
    }
}

/// Commands run without a shell, which would pass shell operators as arguments. The model gets an error
/// instead.
#[tokio::test]
async fn shell_operators_are_refused() {
    for (arguments, told) in [
        (json!({"command": "ls | wc"}), "No shell"),
        (json!({"command": "rm -rf $HOME"}), "No shell"),
        (json!({"command": "a; b"}), "No shell"),
        (json!({"command": "cat < /etc/passwd"}), "No shell"),
        (json!({"command": "ls *.rs"}), "No shell"),
        (json!({"command": "echo 'x"}), "quotes"),
        (json!({"command": ""}), "must not be empty"),
        (json!({"command": "ls", "args": [1]}), "array of strings"),
        (json!({"command": "ls", "cwd": "/etc"}), "outside the directories"),
        (json!({"args": ["x"]}), "`command` is missing"),
    ] {
        let server = running(arguments.clone());
        let mut client = SimulatedUser::new(&[]).client(settings(&server)).await;
        let session = client.session().await;
        client.prompt(&session, "Go").await.unwrap();
        let content = last_messages(&server)[2]["content"].as_str().unwrap().to_owned();
        assert!(content.contains(told), "{arguments}: {content}");
        let call = ended(&mut client).await;
        assert_eq!((&call["status"], &call["kind"]), (&json!("failed"), &json!("execute")));
        assert!(client.requests.is_empty(), "{:?}", methods(&client));
        client.leave().await;
    }
}

async fn endless(limit: Option<Duration>) -> (ModelServer, SimulatedUser, Client, String, u64) {
    let server = running(json!({"command": "sleep", "args": ["1000"]}));
    let user = SimulatedUser::new(&[]);
    user.reply("terminal/wait_for_exit", None);
    let mut settings = settings(&server);
    if let Some(tool) = limit {
        settings = Settings { limits: Limits { tool_timeout: tool, ..Limits::default() }, ..settings };
    }
    let mut client = user.client(settings).await;
    let session = client.session().await;
    let prompt = client.begin_prompt(&session, "Go").await;
    client.question("terminal/wait_for_exit").await;
    (server, user, client, session, prompt)
}

#[tokio::test]
async fn a_command_ends_at_its_limit_and_the_turn_continues() {
    let (server, _user, mut client, _, prompt) = endless(Some(Duration::from_millis(50))).await;
    assert_eq!(client.answer(prompt).await.unwrap()["stopReason"], "end_turn");
    assert!(methods(&client).ends_with(&["terminal/kill", "terminal/output", "terminal/release"]));
    let content = last_messages(&server)[2]["content"].as_str().unwrap().to_owned();
    assert!(content.contains("did not end within") && content.contains("hello"), "{content}");
    assert_eq!(ended(&mut client).await["status"], "failed");
    check_v1(&client);
    client.leave().await;
}

#[tokio::test]
async fn a_command_is_killed_when_the_turn_is_cancelled() {
    let (server, _user, mut client, session, prompt) = endless(None).await;
    client.notify("session/cancel", json!({"sessionId": session})).await;
    assert_eq!(client.answer(prompt).await.unwrap()["stopReason"], "cancelled");
    assert!(methods(&client).ends_with(&["terminal/kill", "terminal/output", "terminal/release"]));
    let call = ended(&mut client).await;
    assert_eq!(call["status"], "failed", "version 1 has no status for a cancelled call");
    assert_eq!(
        call["content"],
        json!([{"type": "terminal", "terminalId": "t1"}]),
        "what it said stays to be seen"
    );
    assert_eq!(chats(&server).len(), 1);
    check_v1(&client);
    client.leave().await;
}

/// A client that does not respond must not delay the end of a cancelled turn.
#[tokio::test]
async fn cancelling_does_not_wait_for_an_unresponsive_client() {
    let (_server, user, mut client, session, prompt) = endless(None).await;
    for method in ["terminal/kill", "terminal/output", "terminal/release"] {
        user.reply(method, None);
    }
    client.notify("session/cancel", json!({"sessionId": session})).await;
    let end = tokio::time::timeout(Duration::from_secs(5), client.answer(prompt)).await;
    assert_eq!(end.expect("soon").unwrap()["stopReason"], "cancelled");
    assert_eq!(*methods(&client).last().unwrap(), "terminal/kill");
    client.leave().await;
}

/// A terminal that is created late must not keep running.
#[tokio::test]
async fn a_terminal_that_is_created_too_late_is_killed() {
    let server = running(json!({"command": "sleep", "args": ["1000"]}));
    let user = SimulatedUser::new(&[]);
    let (mut client, session, prompt) = user.stuck("terminal/create", settings(&server)).await;
    client.notify("session/cancel", json!({"sessionId": session})).await;
    assert_eq!(client.answer(prompt).await.unwrap()["stopReason"], "cancelled");
    answer_late(&client, "terminal/create", json!({"terminalId": "late"})).await;
    assert_eq!(client.question("terminal/kill").await["terminalId"], "late");
    assert_eq!(client.question("terminal/release").await["terminalId"], "late");
    check_v1(&client);
    client.leave().await;
}

#[tokio::test]
async fn the_agent_ends_with_its_client_in_the_middle_of_a_command() {
    let (server, _user, client, ..) = endless(None).await;
    client.leave().await;
    assert_eq!(chats(&server).len(), 1);
}

/// The terminal does not exist any more in a replay, so its output is replayed as text.
#[tokio::test]
async fn the_output_is_replayed() {
    let server = running(json!({"command": "true"}));
    let mut client = SimulatedUser::new(&[]).client(settings(&server)).await;
    let session = client.session().await;
    client.prompt(&session, "Go").await.unwrap();
    client.forget();
    let params = json!({"sessionId": session, "cwd": "/project", "mcpServers": []});
    client.ask("session/load", params).await.unwrap();
    let call = calls(&client).pop().unwrap();
    assert_eq!((&call["sessionUpdate"], &call["status"]), (&json!("tool_call"), &json!("completed")));
    assert_eq!(
        call["content"],
        json!([{"type": "content", "content": {"type": "text", "text": "```\nhello\n```"}}])
    );
    check_v1(&client);
    client.leave().await;
}
