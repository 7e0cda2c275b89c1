//! Agents whose commands the client runs, according to the user.

use std::sync::{Arc, Mutex};

use narrows_acp::Version;
use narrows_client::{CommandRunner, PermissionReply, PermissionRequest, RunRequest};
use narrows_policy::{Access, Narrowing, Policy, Rules};
use serde_json::Value;

use crate::common::{Driven, Stage, all, payloads};

const TOOL: &str = r#"kind = "execute", input = { command = "echo", args = ["hello"] }"#;
const TERMINAL: &str = r#"{ terminal = { command = ["echo", "hello"] } }"#;
const COMPLETED: &str = r#"{ tool_update = { id = "t", status = "completed" } }"#;

/// A turn that requests permission for `tool`, and then runs `more`.
fn turn(tool: &str, more: &str) -> String {
    format!(
        r#"
        [[turn]]
        steps = [
          {{ tool = {{ id = "t", title = "It", {tool} }} }},
          {{ ask = {{ tool = "t", title = "May I?", on_allow = [{{ say = "Allowed." }}, {more}], on_reject = [{{ say = "Refused." }}] }} }},
        ]
        "#
    )
}

/// Creates an agent whose commands are run by `runner`, and a list of the requests to a user who allows
/// everything.
fn stage(runner: CommandRunner, access: Access) -> (Stage, Arc<Mutex<Vec<PermissionRequest>>>) {
    let asked: Arc<Mutex<Vec<PermissionRequest>>> = Arc::default();
    let heard = Arc::clone(&asked);
    let mut stage =
        Stage::new(Version::V1, access).asking(move |permission_request: Arc<PermissionRequest>| {
            heard.lock().expect("no panic").push((*permission_request).clone());
            async { PermissionReply::Allow }
        });
    stage.agent.commands_run_by = runner;
    stage.config.sandbox = true;
    (stage, asked)
}

async fn warnings(driven: &Driven) -> (String, Vec<Value>) {
    let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
    let events = all(&mut run).await;
    let text = run.result().await.final_text.map(|text| text.to_string()).unwrap_or_default();
    let told = payloads(&events, "other").into_iter().filter(|told| told["name"] == "command.run_by_agent");
    (text, told.collect())
}

async fn has_sandbox() -> bool {
    narrows_process::Sandbox::support().await.confined().files
}

#[tokio::test]
async fn a_request_is_judged_with_the_sandbox_if_the_client_runs_the_command() {
    if !has_sandbox().await {
        return;
    }
    for (runner, expected) in [(CommandRunner::Client, 0), (CommandRunner::Agent, 1)] {
        let (stage, asked) = stage(runner, Access::Medium);
        let driven = stage.open(&turn(TOOL, &format!("{TERMINAL}, {COMPLETED}"))).await;
        let (text, told) = warnings(&driven).await;
        assert_eq!(text, "Allowed.");
        assert_eq!(asked.lock().expect("no panic").len(), expected, "{runner:?}");
        assert!(told.is_empty(), "{runner:?} {told:?}");
        driven.leave().await;
    }
}

/// If a rule asks, the user is asked once: for the request, and not again for the terminal.
#[tokio::test]
async fn a_person_is_asked_once_if_the_client_runs_the_command() {
    let (mut stage, asked) = stage(CommandRunner::Client, Access::Medium);
    let (rules, _) = Rules::parse("[[rule]]\neffect = 'ask'\ncommand = 'echo'\n", "p.toml").expect("rules");
    stage.config.policy = Arc::new(Policy::new(Access::Medium, Narrowing::default()).with_rules(rules));
    let driven = stage.open(&turn(TOOL, &format!("{TERMINAL}, {COMPLETED}"))).await;
    assert_eq!(warnings(&driven).await.1, Vec::<Value>::new());
    assert_eq!(asked.lock().expect("no panic").len(), 1);
    driven.leave().await;
}

#[tokio::test]
async fn an_agent_that_runs_a_command_itself_is_reported_once() {
    if !has_sandbox().await {
        return;
    }
    let running = r#"{ tool_update = { id = "t", status = "in_progress" } }"#;
    let failed = r#"{ tool_update = { id = "t", status = "failed" } }"#;
    for (runner, more, expected) in [
        (CommandRunner::Client, COMPLETED, 1),
        (CommandRunner::Client, running, 1),
        (CommandRunner::Client, failed, 0),
        (CommandRunner::Agent, COMPLETED, 0),
    ] {
        let (stage, _) = stage(runner, Access::Medium);
        let script = turn(TOOL, more);
        let driven = stage.open(&format!("{script}{}", script.replace("\"t\"", "\"u\""))).await;
        let (_, told) = warnings(&driven).await;
        assert_eq!(told.len(), expected, "{runner:?} {more}");
        for told in &told {
            assert_eq!(told["data"]["callId"], "t");
            assert!(
                told["data"]["problem"].as_str().expect("a text").contains("without a sandbox"),
                "{told}"
            );
        }
        let (_, told) = warnings(&driven).await;
        assert!(told.is_empty(), "{runner:?} {more}: reported twice");
        driven.leave().await;
    }
}

/// The setting only concerns commands of the agent. Other actions, and commands without a sandbox, are not
/// allowed by it.
#[tokio::test]
async fn the_setting_does_not_allow_unconfined_commands() {
    let edit = r#"kind = "edit", path = "/elsewhere/x""#;
    let delete = r#"kind = "other", input = { anything = true }"#;
    for (tool, sandbox) in [(TOOL, false), (edit, true), (delete, true)] {
        let (mut stage, _) = stage(CommandRunner::Client, Access::Medium);
        stage.config.on_permission = None;
        stage.config.sandbox = sandbox;
        let driven = stage.open(&turn(tool, COMPLETED)).await;
        let (text, told) = warnings(&driven).await;
        assert_eq!((text.as_str(), told.len()), ("Refused.", 0), "{tool}");
        driven.leave().await;
    }
    // The agent is not offered terminals, so the client cannot run the command.
    let (mut stage, asked) = stage(CommandRunner::Client, Access::Medium);
    stage.offer.run_commands = false;
    let driven = stage.open(&turn(TOOL, COMPLETED)).await;
    warnings(&driven).await;
    assert_eq!(asked.lock().expect("no panic").len(), 1);
    driven.leave().await;
}
