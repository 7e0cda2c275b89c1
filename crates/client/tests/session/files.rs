//! Files and commands that the agent uses through us.

use narrows_acp::Version;
use narrows_client::RunRequest;
use narrows_policy::Access;
use serde_json::json;

use crate::common::{Stage, all, payloads};

#[tokio::test]
async fn files_and_commands_are_the_sessions_own() {
    let driven = Stage::new(Version::V1, Access::High).open("files").await;
    let mut run = driven.session.run(RunRequest::text("three words here")).await.expect("a run");
    let events = all(&mut run).await;
    let text = run.result().await.final_text.expect("a text");
    assert!(text.contains("The file says: You said: three words here"), "{text}");
    assert!(text.contains("The command ended with 0 and said: 5 note.txt"), "{text}");
    let note = std::fs::read_to_string(driven.path("note.txt")).expect("the file");
    assert_eq!(note, "You said: three words here\n");
    let methods: Vec<_> =
        payloads(&events, "permission.requested").iter().map(|asked| asked["method"].clone()).collect();
    assert_eq!(methods, ["fs/write_text_file", "fs/read_text_file", "terminal/create"]);
    driven.leave().await;
}

#[tokio::test]
async fn what_the_policy_forbids_is_not_done() {
    const ESCAPE: &str = r#"
        [[turn]]
        steps = [
          { write = { path = "../outside.txt", content = "x" } },
          { say = "{last}" },
        ]
    "#;
    let driven = Stage::new(Version::V1, Access::Medium).open(ESCAPE).await;
    let outside = driven.path("../outside.txt");
    let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
    let resolved = payloads(&all(&mut run).await, "permission.resolved");
    assert_eq!(
        (&resolved[0]["outcome"], &resolved[0]["decision"]["by"]),
        (&json!("refused"), &json!("policy"))
    );
    assert!(!outside.exists());
    driven.leave().await;

    let driven = Stage::new(Version::V1, Access::Low).open("files").await;
    driven.session.run(RunRequest::text("Go")).await.expect("a run").result().await;
    assert!(!driven.path("note.txt").exists());
    driven.leave().await;
}
