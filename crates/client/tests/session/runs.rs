//! Runs from their first event to their last.

use narrows_acp::Version;
use narrows_client::{EventBody, Problem, RunRequest, Status};
use narrows_policy::Access;
use serde_json::json;

use crate::common::{Stage, VERSIONS, all, kinds};

#[tokio::test]
async fn a_run_starts_and_completes() {
    for version in VERSIONS {
        let driven = Stage::new(version, Access::Medium).open("hello").await;
        let mut run = driven.session.run(RunRequest::text("Hi")).await.expect("a run");
        let events = all(&mut run).await;
        let kinds = kinds(&events);
        assert_eq!(kinds.first().map(String::as_str), Some("run.started"), "{kinds:?}");
        assert_eq!(kinds.last().map(String::as_str), Some("run.completed"), "{kinds:?}");
        for kind in
            ["assistant.reasoning.delta", "tool.call", "tool.result", "assistant.delta", "assistant.message"]
        {
            assert!(kinds.iter().any(|seen| seen == kind), "{version}: {kind} in {kinds:?}");
        }
        let result = run.result().await;
        assert_eq!((result.status, result.stop_reason.as_deref()), (Status::Success, Some("end_turn")));
        assert!(result.final_text.expect("a text").contains("You said: “Hi”"));
        driven.leave().await;
    }
}

#[tokio::test]
async fn a_result_arrives_without_an_event_reader() {
    const SCRIPT: &str = r#"
        [[turn]]
        steps = [{ flood = { updates = 20000 } }, { say = "Done." }]
    "#;
    let driven = Stage::new(Version::V1, Access::Medium).open(SCRIPT).await;
    let run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
    let result = run.result().await;
    assert_eq!(result.status, Status::Success);
    driven.leave().await;
}

#[tokio::test(start_paused = true)]
async fn runs_are_sequential() {
    const SCRIPT: &str = r#"
        [[turn]]
        steps = [{ pause = "5s" }, { say = "You said {prompt}." }]
    "#;
    let driven = Stage::new(Version::V1, Access::Medium).open(SCRIPT).await;
    let first = driven.session.run(RunRequest::text("one")).await.expect("a run");
    let busy = driven.session.run(RunRequest::text("two")).await.expect_err("one runs");
    assert!(matches!(&*busy.problem, Problem::Busy { run_id } if run_id == first.run_id()), "{busy}");
    assert_eq!(busy.code(), "SESSION_BUSY");
    assert!(first.result().await.final_text.expect("a text").contains("one"));
    let second = driven.session.run(RunRequest::text("two")).await.expect("a run");
    assert!(second.result().await.final_text.expect("a text").contains("two"));
    driven.leave().await;
}

#[tokio::test]
async fn an_answer_that_violates_the_schema_is_requested_once_more() {
    const SCRIPT: &str = r#"
        [[turn]]
        steps = [{ say = "The answer is forty-two." }]
        [[turn]]
        steps = [{ say = '''```json
{"answer": 42}
```''' }]
        [[turn]]
        steps = [{ say = "No." }]
    "#;
    let driven = Stage::new(Version::V1, Access::Medium).open(SCRIPT).await;
    let schema =
        json!({"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]});
    let request = || RunRequest { output_schema: Some(schema.clone()), ..RunRequest::text("What?") };
    let mut run = driven.session.run(request()).await.expect("a run");
    let events = all(&mut run).await;
    assert_eq!(kinds(&events).iter().filter(|kind| *kind == "run.completed").count(), 1);
    let result = run.result().await;
    assert_eq!((result.status, result.structured_output), (Status::Success, Some(json!({"answer": 42}))));
    assert_eq!((result.schema_problems, result.prompts), (Vec::new(), 2));
    // After two violations of the schema, the result has the message but no value.
    let result = driven.session.run(request()).await.expect("a run").result().await;
    assert_eq!((result.status, result.structured_output), (Status::Success, None));
    assert_eq!(result.final_text.as_deref(), Some("No."));
    // The problem and the number of prompts are reported.
    assert_eq!(result.schema_problems, ["there is no JSON object in the message"]);
    assert_eq!(result.prompts, 2);
    driven.leave().await;
}

/// opencode first sends the working directory of a command, and then the command.
#[tokio::test]
async fn a_command_is_reported_with_its_whole_input() {
    const SCRIPT: &str = r#"
        [[turn]]
        steps = [
          { tool = { id = "t", title = "bash", kind = "execute", input = { cwd = "/a" } } },
          { tool_update = { id = "t", input = { cwd = "/a", command = "ls" } } },
          { tool_update = { id = "t", status = "completed" } },
        ]
    "#;
    for version in VERSIONS {
        let driven = Stage::new(version, Access::Medium).open(SCRIPT).await;
        let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
        let inputs: Vec<_> = all(&mut run)
            .await
            .into_iter()
            .filter_map(|event| match event.body {
                EventBody::ToolCall { input, .. } => Some(input.value()),
                _ => None,
            })
            .collect();
        assert_eq!(inputs, [json!({"cwd": "/a", "command": "ls"})], "{version}");
        driven.leave().await;
    }
}
