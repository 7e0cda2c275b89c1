//! Tests of aborted runs.

use std::time::Duration;

use narrows_acp::Version;
use narrows_client::{RunRequest, Status};
use narrows_policy::Access;
use tokio::time::Instant;

use crate::common::{Stage, VERSIONS, all, kinds};

#[tokio::test(start_paused = true)]
async fn a_cancelled_turn_ends_and_the_next_one_works() {
    for version in VERSIONS {
        let driven = Stage::new(version, Access::Medium).open("slow").await;
        let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
        while run.next().await.is_some_and(|event| event.name() != "assistant.delta") {}
        run.cancel();
        let kinds = kinds(&all(&mut run).await);
        assert!(!kinds.iter().any(|kind| kind == "error"), "{kinds:?}");
        let result = run.result().await;
        assert_eq!((result.status, result.error), (Status::Cancelled, None), "{version}");
        let second = driven.session.run(RunRequest::text("Again")).await.expect("a run");
        assert_eq!(second.result().await.status, Status::Success, "{version}");
        driven.leave().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_ignores_cancellation_is_killed() {
    for (script, code) in [("hang", Some("timeout")), ("stubborn", Some("timeout"))] {
        let mut stage = Stage::new(Version::V1, Access::Medium);
        stage.agent.deadlines.cancel = Duration::from_secs(10);
        let driven = stage.open(script).await;
        let before = Instant::now();
        let request = RunRequest { timeout: Some(Duration::from_secs(30)), ..RunRequest::text("Go") };
        let result = driven.session.run(request).await.expect("a run").result().await;
        assert_eq!(result.status, Status::Error, "{script}");
        assert_eq!(result.error.map(|error| error.code).as_deref(), code, "{script}");
        assert!(before.elapsed() >= Duration::from_secs(30), "{script}: {:?}", before.elapsed());
        assert!(before.elapsed() < Duration::from_secs(45), "{script}: {:?}", before.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_takes_too_long_ends_within_five_seconds_more() {
    let limit = Duration::from_secs(2);
    for version in VERSIONS {
        for (script, most) in [("slow", 1), ("hang", 5), ("stubborn", 5)] {
            let driven = Stage::new(version, Access::Medium).open(script).await;
            let before = Instant::now();
            let request = RunRequest { timeout: Some(limit), ..RunRequest::text("Go") };
            let result = driven.session.run(request).await.expect("a run").result().await;
            let took = before.elapsed();
            assert_eq!(result.error.map(|error| error.code).as_deref(), Some("timeout"), "{script}");
            assert!(took >= limit && took <= limit + Duration::from_secs(most), "{script}: {took:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_uses_the_configured_grace() {
    let mut stage = Stage::new(Version::V1, Access::Medium);
    stage.agent.deadlines.cancel_late = Duration::from_secs(60);
    let driven = stage.open("hang").await;
    let before = Instant::now();
    let request = RunRequest { timeout: Some(Duration::from_secs(2)), ..RunRequest::text("Go") };
    driven.session.run(request).await.expect("a run").result().await;
    assert!(before.elapsed() >= Duration::from_secs(62), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn silence_ends_the_turn() {
    let mut stage = Stage::new(Version::V1, Access::Medium);
    stage.agent.deadlines.silence = Duration::from_secs(60);
    let driven = stage.open("hang").await;
    let result = driven.session.run(RunRequest::text("Go")).await.expect("a run").result().await;
    let error = result.error.expect("a reason");
    assert_eq!((result.status, error.code.as_str()), (Status::Error, "silence"), "{error:?}");
}
