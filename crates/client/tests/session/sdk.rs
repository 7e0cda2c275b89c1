//! Whole turns with an agent of the official SDK, which is an independent implementation.

use std::sync::Arc;

use narrows_acp::Version;
use narrows_client::{PermissionReply, PermissionRequest, RunRequest, Status};
use narrows_policy::Access;
use narrows_testkit::sdk::agent_on_link;

use crate::common::{Driven, Stage, VERSIONS, all, kinds, payloads};

async fn open(stage: Stage) -> Driven {
    stage.open_on(agent_on_link(), tokio::spawn(async {})).await
}

#[tokio::test]
async fn a_turn_from_its_beginning_to_its_end() {
    for version in VERSIONS {
        let driven = open(Stage::new(version, Access::Medium)).await;
        assert_eq!(driven.runtime.description().version, version);
        for prompt in ["first", "second"] {
            let mut run = driven.session.run(RunRequest::text(prompt)).await.expect("a run");
            let kinds = kinds(&all(&mut run).await);
            assert_eq!(kinds.first().map(String::as_str), Some("run.started"), "{version}: {kinds:?}");
            assert_eq!(kinds.last().map(String::as_str), Some("run.completed"), "{version}: {kinds:?}");
            let result = run.result().await;
            assert_eq!((result.status, result.stop_reason.as_deref()), (Status::Success, Some("end_turn")));
            assert_eq!(result.final_text.as_deref(), Some(&*format!("Hello from the SDK: {prompt}")));
        }
        driven.leave().await;
    }
}

#[tokio::test]
async fn an_sdk_agent_receives_the_offered_capabilities() {
    for version in VERSIONS {
        for (reply, status) in
            [(PermissionReply::Allow, Status::Success), (PermissionReply::Reject, Status::Error)]
        {
            let decide = move |_: Arc<PermissionRequest>| std::future::ready(reply.clone());
            let driven = open(Stage::new(version, Access::Medium).asking(decide)).await;
            let mut run = driven.session.run(RunRequest::text("with permission")).await.expect("a run");
            let events = all(&mut run).await;
            assert_eq!(payloads(&events, "permission.requested")[0]["title"], "Do as you asked");
            assert_eq!(payloads(&events, "permission.resolved").len(), 1);
            assert_eq!(run.result().await.status, status, "{version}");
            driven.leave().await;
        }
    }
}

#[tokio::test]
async fn an_sdk_agent_reads_files_and_can_be_cancelled() {
    let driven = open(Stage::new(Version::V1, Access::Medium)).await;
    std::fs::write(driven.path("note.txt"), "remember").expect("a file");
    let run = driven.session.run(RunRequest::text("read note.txt please")).await.expect("a run");
    let said = run.result().await.final_text.expect("a text");
    assert!(said.contains("The file says: remember"), "{said}");
    driven.leave().await;
    for version in VERSIONS {
        let driven = open(Stage::new(version, Access::Medium)).await;
        let mut run = driven.session.run(RunRequest::text("wait")).await.expect("a run");
        while run.next().await.expect("it begins").name() != "assistant.delta" {}
        run.cancel();
        assert_eq!(run.result().await.status, Status::Cancelled, "{version}");
        driven.leave().await;
    }
}
