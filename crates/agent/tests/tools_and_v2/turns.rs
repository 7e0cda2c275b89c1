//! The turn loop with tools: several calls, limits, plans, the gate, and keepalives.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use narrows_agent::{Limits, Settings, ToolDecision, ToolDecisionFuture, ToolGate, ToolRequest};
use narrows_testkit::model::{ModelServer, Reply, delta, finish};
use serde_json::{Value, json};

use crate::common::{Client, chats, last_messages, settings};
use crate::official::check_v1;
use crate::simulated_user::{SimulatedUser, calls, methods};

fn done() -> Reply {
    Reply::text("That is all I wanted to do.")
}

fn read(path: &str) -> (&'static str, Value) {
    ("read_file", json!({"path": path}))
}

/// Checks that every call in `messages` is followed by its result, in order, and that every result has a
/// call.
#[track_caller]
fn assert_paired(messages: &Value) {
    let mut open: Vec<&Value> = Vec::new();
    for message in messages.as_array().unwrap() {
        if message["role"] == "tool" {
            assert!(!open.is_empty() && *open.remove(0) == message["tool_call_id"], "{messages}");
            continue;
        }
        assert!(open.is_empty(), "{messages}");
        open = message["tool_calls"].as_array().into_iter().flatten().map(|call| &call["id"]).collect();
    }
    assert!(open.is_empty(), "{messages}");
}

#[tokio::test]
async fn several_calls_run_one_after_the_other() {
    let wanted = [read("a.txt"), read("none.txt"), ("write_file", json!({"path": "c.txt", "content": "c"}))];
    let server =
        ModelServer::start([Reply::text_and_calls("I will look at the files first.", &wanted), done()]);
    let mut client = SimulatedUser::new(&[("/project/a.txt", "A")]).client(settings(&server)).await;
    let session = client.session().await;
    client.prompt(&session, "Go").await.unwrap();
    let statuses: Vec<Value> = calls(&client).iter().map(|call| call["status"].clone()).collect();
    assert_eq!(statuses, ["completed", "failed", "completed"], "a failing one does not stop the others");
    let messages = last_messages(&server);
    assert_paired(&messages);
    assert_eq!(messages[1]["content"], "I will look at the files first.");
    let results: Vec<&str> = (2..5).map(|at| messages[at]["content"].as_str().unwrap()).collect();
    assert_eq!(results, ["A", "The file could not be read: no such file", "/project/c.txt is written."]);
    // The text before a call and the text after it are separate messages.
    let ids: Vec<&Value> = client
        .updates
        .iter()
        .filter(|update| update["sessionUpdate"] == "agent_message_chunk")
        .map(|update| &update["messageId"])
        .collect();
    assert!(ids.first() != ids.last() && ids.iter().all(|id| id.is_string()));
    check_v1(&client);
    client.leave().await;
}

#[tokio::test]
async fn interleaved_calls_run_in_the_order_of_their_indexes() {
    let piece = |index: usize, id: Option<&str>, arguments: &str| {
        let mut call = json!({"index": index, "function": {"arguments": arguments}});
        if let Some(id) = id {
            call["id"] = id.into();
            call["type"] = "function".into();
            call["function"]["name"] = "read_file".into();
        }
        delta(&json!({"tool_calls": [call]}))
    };
    let mixed = Reply::sse([
        piece(1, Some("second"), r#"{"path": "#),
        piece(0, Some("first"), r#"{"pa"#),
        piece(1, None, r#""b.txt"}"#),
        piece(0, None, r#"th": "a.txt"}"#),
        finish("tool_calls"),
    ]);
    let server = ModelServer::start([mixed, done()]);
    let user = SimulatedUser::new(&[("/project/a.txt", "A"), ("/project/b.txt", "B")]);
    let mut client = user.client(settings(&server)).await;
    let session = client.session().await;
    client.prompt(&session, "Go").await.unwrap();
    let paths: Vec<&Value> = client.requests.iter().map(|(_, params)| &params["path"]).collect();
    assert_eq!(paths, ["/project/a.txt", "/project/b.txt"]);
    let messages = last_messages(&server);
    assert_paired(&messages);
    assert_eq!((&messages[2]["tool_call_id"], &messages[2]["content"]), (&json!("first"), &json!("A")));
    assert_eq!((&messages[3]["tool_call_id"], &messages[3]["content"]), (&json!("second"), &json!("B")));
    client.leave().await;
}

/// The turn is cancelled during the first of several calls. The others are never announced.
#[tokio::test]
async fn cancelling_a_turn_skips_its_remaining_calls() {
    let server = ModelServer::start([Reply::tool_calls(&[read("a.txt"), read("b.txt")]), done()]);
    let user = SimulatedUser::new(&[]);
    let (mut client, session, prompt) = user.stuck("fs/read_text_file", settings(&server)).await;
    client.notify("session/cancel", json!({"sessionId": session})).await;
    assert_eq!(client.answer(prompt).await.unwrap()["stopReason"], "cancelled");
    assert_eq!((calls(&client).len(), client.requests.len()), (1, 1));
    client.leave().await;
}

#[tokio::test]
async fn the_number_of_requests_per_turn_is_limited() {
    let server = ModelServer::start(Reply::tool_calls(&[read("a.txt")]));
    let limits = Limits { requests_per_turn: 3, ..Limits::default() };
    let mut client =
        SimulatedUser::new(&[("/project/a.txt", "A")]).client(Settings { limits, ..settings(&server) }).await;
    let session = client.session().await;
    let end = client.prompt(&session, "Go").await.unwrap();
    assert_eq!(end["stopReason"], "max_turn_requests");
    assert_eq!((chats(&server).len(), calls(&client).len()), (3, 3));
    assert_eq!(end["usage"]["inputTokens"], 30, "all requests are counted");
    // The next turn contains the call.
    server.replan(done());
    client.prompt(&session, "Go on").await.unwrap();
    let messages = last_messages(&server);
    assert_eq!(messages.as_array().unwrap().len(), 1 + 3 * 2 + 1);
    assert_paired(&messages);
    client.leave().await;
}

/// A call that the answer's limit cut off is not run, and leaves no gap in the history.
#[tokio::test]
async fn a_call_that_was_cut_off_is_not_run() {
    let cut = Reply::text_and_calls("I will read the file now.", &[read("a.txt")]).finishing("length");
    let cut = cut.map_events(|event| {
        if let Some(arguments) = event.pointer_mut("/choices/0/delta/tool_calls/0/function/arguments")
            && arguments.as_str().is_some_and(|text| text.ends_with('}'))
        {
            *arguments = json!("");
        }
    });
    let server = ModelServer::start([cut, done()]);
    let mut client = SimulatedUser::new(&[("/project/a.txt", "A")]).client(settings(&server)).await;
    let session = client.session().await;
    let end = client.prompt(&session, "Go").await.unwrap();
    assert_eq!(end["stopReason"], "max_tokens");
    assert!(client.requests.is_empty());
    client.prompt(&session, "Go on").await.unwrap();
    assert_paired(&last_messages(&server));
    client.leave().await;
}

#[tokio::test]
async fn a_plan_is_shown_completely_and_replayed_once() {
    let entry = |status: &str| json!({"content": "Look around", "priority": "high", "status": status});
    let plan = |status: &str| {
        Reply::tool_call("update_plan", json!({"entries": [entry(status), {"content": "Act"}]}))
    };
    let server = ModelServer::start([plan("in_progress"), plan("completed"), done()]);
    let mut client = SimulatedUser::new(&[]).client(settings(&server)).await;
    let session = client.session().await;
    client.prompt(&session, "Go").await.unwrap();
    let rest = json!({"content": "Act", "priority": "medium", "status": "pending"});
    let plans = |client: &Client| -> Vec<Value> {
        let plans = client.updates.iter().filter(|update| update["sessionUpdate"] == "plan");
        plans.map(|plan| plan["entries"].clone()).collect()
    };
    assert_eq!(plans(&client), [json!([entry("in_progress"), rest]), json!([entry("completed"), rest])]);
    assert!(
        calls(&client).is_empty() && client.requests.is_empty(),
        "it is not shown and needs no permission"
    );
    assert_eq!(last_messages(&server)[2]["content"], "The plan is shown.");
    client.forget();
    client
        .ask("session/load", json!({"sessionId": session, "cwd": "/project", "mcpServers": []}))
        .await
        .unwrap();
    assert_eq!(plans(&client), [json!([entry("completed"), rest])]);
    check_v1(&client);
    client.leave().await;
}

#[tokio::test]
async fn an_invalid_plan_is_reported_to_the_model() {
    for arguments in [
        json!({}),
        json!({"entries": "everything"}),
        json!({"entries": [{"status": "pending"}]}),
        json!({"entries": [{"content": "x", "status": "half"}]}),
    ] {
        let server = ModelServer::start([Reply::tool_call("update_plan", arguments.clone()), done()]);
        let mut client = SimulatedUser::new(&[]).client(settings(&server)).await;
        let session = client.session().await;
        client.prompt(&session, "Go").await.unwrap();
        assert!(!client.kinds().contains(&"plan".to_owned()), "{arguments}");
        let told = last_messages(&server)[2]["content"].as_str().unwrap().to_owned();
        assert!(told.contains("plan is invalid"), "{told}");
        client.leave().await;
    }
}

/// A gate that denies the listed tools and records its requests. It never decides about `slow`.
#[derive(Debug, Default)]
struct Gate(Mutex<Vec<ToolRequest>>);

impl ToolGate for Gate {
    fn check<'a>(&'a self, request: &'a ToolRequest) -> ToolDecisionFuture<'a> {
        self.0.lock().unwrap().push(request.clone());
        let path = request.arguments["path"].as_str().unwrap_or_default().to_owned();
        Box::pin(async move {
            match path.as_str() {
                "secret.txt" => ToolDecision::Deny("it is secret".to_owned()),
                "slow.txt" => std::future::pending().await,
                _ => ToolDecision::Allow,
            }
        })
    }
}

#[tokio::test]
async fn a_call_that_the_gate_denies_is_not_announced() {
    let server = ModelServer::start([Reply::tool_calls(&[read("secret.txt"), read("a.txt")]), done()]);
    let gate = Arc::new(Gate::default());
    let settings = Settings { gate: gate.clone(), ..settings(&server) };
    let mut client =
        SimulatedUser::new(&[("/project/a.txt", "A"), ("/project/secret.txt", "S")]).client(settings).await;
    let session = client.session().await;
    client.prompt(&session, "Go").await.unwrap();
    let shown = calls(&client);
    assert_eq!((shown.len(), &shown[0]["title"]), (1, &json!("Read a.txt")));
    assert_eq!(methods(&client), ["fs/read_text_file"]);
    let messages = last_messages(&server);
    assert_eq!(messages[2]["content"], "The call is not allowed: it is secret");
    assert_eq!(messages[3]["content"], "A");
    let (tool, arguments) = read("secret.txt");
    let (tool, name) = (tool.to_owned(), tool.to_owned());
    let asked = gate.0.lock().unwrap().clone();
    let request = ToolRequest { session, id: asked[0].id.clone(), server: None, tool, name, arguments };
    assert_eq!(asked[0], request);
    // The call is announced with the id that the gate has checked.
    assert_eq!((&shown[0]["toolCallId"], asked[0].id != asked[1].id), (&json!(asked[1].id), true));
    client.leave().await;
}

#[tokio::test]
async fn a_turn_can_be_cancelled_while_the_gate_decides() {
    let server = ModelServer::start([Reply::tool_calls(&[read("slow.txt")]), done()]);
    let gate = Arc::new(Gate::default());
    let settings = Settings { gate: gate.clone(), ..settings(&server) };
    let mut client = SimulatedUser::new(&[]).client(settings).await;
    let session = client.session().await;
    let prompt = client.begin_prompt(&session, "Go").await;
    let thinking = || !gate.0.lock().unwrap().is_empty();
    assert!(narrows_testkit::wait::wait_until(crate::common::SOON, thinking).await);
    client.notify("session/cancel", json!({"sessionId": session})).await;
    assert_eq!(client.answer(prompt).await.unwrap()["stopReason"], "cancelled");
    assert!(calls(&client).is_empty());
    client.leave().await;
}

async fn beat(client: &mut Client) -> Value {
    let before = client.updates.len();
    tokio::time::pause();
    for _ in 0..60 {
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    client.receive_message().await;
    // Updates are deferred only for a limited time.
    if client.updates.last().is_some_and(|update| update["sessionUpdate"] == "available_commands_update") {
        client.updates.pop();
        client.receive_message().await;
    }
    tokio::time::resume();
    assert_eq!(client.updates.len(), before + 1);
    client.updates.pop().unwrap()
}

#[tokio::test]
async fn keepalives_are_sent_during_a_call() {
    let server =
        ModelServer::start([Reply::tool_calls(&[("run_command", json!({"command": "sleep"}))]), done()]);
    let user = SimulatedUser::new(&[]);
    user.reply("session/request_permission", None);
    user.reply("terminal/wait_for_exit", None);
    let mut client = user.client(settings(&server)).await;
    let session = client.session().await;
    let prompt = client.begin_prompt(&session, "Go").await;
    client.question("session/request_permission").await;
    let call = calls(&client).pop().unwrap()["toolCallId"].clone();
    // The update repeats that the call exists, but not that it runs.
    for _ in 0..2 {
        assert_eq!(beat(&mut client).await, json!({"sessionUpdate": "tool_call_update", "toolCallId": call}));
    }
    user.choose("allow_once");
    let yes = json!({"outcome": {"outcome": "selected", "optionId": "allow_once"}});
    crate::simulated_user::answer_late(&client, "session/request_permission", yes).await;
    client.question("terminal/wait_for_exit").await;
    assert_eq!(beat(&mut client).await["toolCallId"], call);
    client.notify("session/cancel", json!({"sessionId": session})).await;
    assert_eq!(client.answer(prompt).await.unwrap()["stopReason"], "cancelled");
    check_v1(&client);
    client.leave().await;
}

#[tokio::test]
async fn keepalives_are_sent_while_the_model_is_silent() {
    let server = ModelServer::start(Reply::hang());
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    let before = server.seen().len();
    let prompt = client.begin_prompt(&session, "Go").await;
    client.update(|update| update["sessionUpdate"] == "session_info_update").await;
    server.seen_count(before + 1).await;
    let said = beat(&mut client).await;
    assert_eq!(said["sessionUpdate"], "session_info_update");
    client.notify("session/cancel", json!({"sessionId": session})).await;
    assert_eq!(client.answer(prompt).await.unwrap()["stopReason"], "cancelled");
    check_v1(&client);
    client.leave().await;
}

fn agent_text(client: &Client) -> String {
    let texts = client.updates.iter().filter(|update| update["sessionUpdate"] == "agent_message_chunk");
    texts.filter_map(|update| update["content"]["text"].as_str()).collect()
}

#[tokio::test]
async fn too_large_arguments_are_refused_and_the_turn_continues() {
    let long = ("write_file", json!({"path": "c.txt", "content": "x".repeat(1 << 20)}));
    let many = ("write_file", json!({"path": "c.txt", "content": "x", "more": vec![0; 20_000]}));
    let server = ModelServer::start([Reply::text_and_calls("", &[long, many, read("a.txt")]), done()]);
    let mut client = SimulatedUser::new(&[("/project/a.txt", "A")]).client(settings(&server)).await;
    let session = client.session().await;
    let end = client.prompt(&session, "Go").await.unwrap();
    assert_eq!(end["stopReason"], "end_turn");
    let messages = last_messages(&server);
    assert_paired(&messages);
    let results: Vec<&str> = (2..5).map(|at| messages[at]["content"].as_str().unwrap()).collect();
    assert!(results[0].contains("at most 1048576 are allowed. The tool was not run."), "{results:?}");
    assert!(results[1].contains("more than 20000 JSON values. The tool was not run."), "{results:?}");
    assert_eq!(results[2], "A");
    assert!(messages.to_string().len() < 100_000, "too large arguments are not sent back to the model");
    client.leave().await;
}

#[tokio::test]
async fn an_answer_with_too_many_bytes_ends_the_turn() {
    let limits = Limits { answer_bytes: 1000, ..Limits::default() };
    let server = ModelServer::start([Reply::text(&"word ".repeat(300))]);
    let settings = Settings { limits, ..settings(&server) };
    let mut client = SimulatedUser::new(&[]).client(settings).await;
    let session = client.session().await;
    let end = client.prompt(&session, "Go").await.unwrap();
    assert_eq!(end["stopReason"], "max_tokens");
    assert!(
        agent_text(&client).ends_with("It is not kept, and the turn ends here."),
        "{}",
        agent_text(&client)
    );
    client.leave().await;
}

#[tokio::test]
async fn a_turn_with_too_many_bytes_runs_no_more_calls_and_ends() {
    let limits = Limits { turn_bytes: 3000, ..Limits::default() };
    let wanted = [read("a.txt"), read("a.txt"), read("a.txt"), read("a.txt")];
    let server = ModelServer::start([Reply::text_and_calls("", &wanted), done()]);
    let settings = Settings { limits, ..settings(&server) };
    let text = "x".repeat(1000);
    let mut client = SimulatedUser::new(&[("/project/a.txt", &text)]).client(settings).await;
    let session = client.session().await;
    let end = client.prompt(&session, "Go").await.unwrap();
    assert_eq!(end["stopReason"], "max_tokens");
    assert!(agent_text(&client).ends_with("It ends here."), "{}", agent_text(&client));
    let statuses: Vec<Value> = calls(&client).iter().map(|call| call["status"].clone()).collect();
    assert!(statuses.contains(&json!("completed")) && statuses.contains(&json!("failed")), "{statuses:?}");
    // The next turn has the complete history.
    client.prompt(&session, "Again").await.unwrap();
    assert_paired(&last_messages(&server));
    client.leave().await;
}

#[tokio::test]
async fn a_session_with_too_many_bytes_takes_no_more_prompts() {
    let limits = Limits { session_bytes: 100, ..Limits::default() };
    let server = ModelServer::start([done()]);
    let settings = Settings { limits, ..settings(&server) };
    let mut client = SimulatedUser::new(&[]).client(settings).await;
    let session = client.session().await;
    assert_eq!(client.prompt(&session, "Go").await.unwrap()["stopReason"], "end_turn");
    assert_eq!(client.prompt(&session, "Again").await.unwrap()["stopReason"], "max_tokens");
    assert!(
        agent_text(&client).ends_with("takes no more prompts. Begin a new one."),
        "{}",
        agent_text(&client)
    );
    assert_eq!(chats(&server).len(), 1, "the model was not asked");
    client.leave().await;
}
