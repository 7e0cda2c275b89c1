//! The official SDK as agent of `narrows run`, and as client of `fake-agent` and `acp`.

use std::path::Path;

use insta::assert_snapshot;
use narrows_testkit::sdk;
use rustix::process::Signal;

use crate::test_dir::TestDir;

const NARROWS: &str = env!("CARGO_BIN_EXE_narrows");

/// The agent of `examples/sdk_agent.rs`, which cargo builds for tests beside the binary.
fn agent() -> String {
    let agent = Path::new(NARROWS).with_file_name("examples").join("sdk_agent");
    assert!(agent.exists(), "build it first: cargo build -p narrows --examples");
    agent.to_str().expect("UTF-8").to_owned()
}

#[test]
fn a_turn_with_its_agent() {
    let dir = TestDir::new();
    assert_snapshot!(dir.output_of(dir.run(&agent(), &["--output", "json", "one two"])), @r#"
    {"text":"Hello from the SDK: one two","stopReason":"end_turn","sessionId":"sdk-1","agent":{"name":"sdk-agent","version":"1.0.0"},"protocol":1}
    --- exit 0 ---
    "#);
    assert_snapshot!(dir.output_of(dir.run(&agent(), &["--protocol", "2", "--output", "json", "one two"])), @r#"
    {"text":"Hello from the SDK: one two","stopReason":"end_turn","sessionId":"sdk-1","agent":{"name":"sdk-agent","version":"2.0.0"},"protocol":2}
    --- exit 0 ---
    "#);
}

#[test]
fn an_agent_of_the_sdk_is_refused_permission() {
    for protocol in ["1", "2"] {
        let dir = TestDir::new();
        let told = dir.output_of(dir.run(&agent(), &["--protocol", protocol, "with permission"]));
        insta::allow_duplicates! {
            assert_snapshot!(told, @"
            You said no.
            --- stderr ---
            denied: Do as you asked (cannot ask for permission; no rule matches, and medium access asks before unknown actions)
            error: the agent refused to answer
            --- exit 3 ---
            ");
        }
    }
}

#[test]
fn an_agent_of_the_sdk_is_cancelled() {
    for protocol in ["1", "2"] {
        let dir = TestDir::new();
        let mut running = dir.start(dir.run(&agent(), &["--protocol", protocol, "wait"]));
        running.expect_stdout("Waiting");
        running.signal(Signal::TERM);
        let told = running.finish();
        assert!(told.ends_with("--- stderr ---\nerror: cancelled by SIGTERM\n--- exit 143 ---\n"), "{told}");
    }
}

#[tokio::test]
async fn its_client_drives_our_agent() {
    let command = || ["fake-agent", "echo"].map(str::to_owned).into_iter();
    let command = || std::iter::once(NARROWS.to_owned()).chain(command()).collect::<Vec<_>>();
    let transcripts = [sdk::drive(command(), "one two").await, sdk::drive_v2(command(), "one two").await];
    for transcript in transcripts {
        assert_eq!(transcript.text, "one two", "{transcript:?}");
        assert_eq!(transcript.stop_reason.as_deref(), Some("end_turn"), "{transcript:?}");
        assert_eq!(transcript.error, None);
    }
}

#[tokio::test]
async fn the_client_of_the_sdk_drives_the_built_in_agent() {
    let command = || ["acp", "--base-url", "builtin:demo", "--no-store"].map(str::to_owned).into_iter();
    let command = || std::iter::once(NARROWS.to_owned()).chain(command()).collect::<Vec<_>>();
    let transcripts =
        [sdk::drive(command(), "who are you?").await, sdk::drive_v2(command(), "who are you?").await];
    for transcript in transcripts {
        assert!(transcript.text.starts_with("I am the demo model of Narrows."), "{transcript:?}");
        assert_eq!(transcript.stop_reason.as_deref(), Some("end_turn"), "{transcript:?}");
        assert_eq!(transcript.error, None);
    }
}
