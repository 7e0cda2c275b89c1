//! Tests of the SDK in one role, with the fake agent or the SDK itself in the other, over streams in
//! memory.

use narrows_fake::{Ended, Script, options, run};
use narrows_testkit::peer::stage;
use narrows_testkit::sdk::{Streams, Transcript, agent_on, drive, drive_on, drive_v2_on, streams};
use narrows_testkit::wait::{alive_with_marker, wait_until};
use serde_json::json;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Starts the fake agent with a built-in script. Returns its task and the streams for the SDK.
fn fake(script: &str) -> (JoinHandle<Ended>, Streams) {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let (reader, writer) = tokio::io::split(ours);
    let link = narrows_link::stream(reader, writer, &narrows_link::Options::default());
    let (peer, inbox) = narrows_rpc::start(link, options());
    let script = Script::builtin(script).expect("a built-in script");
    (tokio::spawn(run(peer, inbox, Box::new(std::io::sink()), script)), streams(theirs))
}

#[track_caller]
fn check(transcript: &Transcript, text: &str, stop: &str) {
    assert_eq!(transcript.error, None);
    assert_eq!(transcript.text, text);
    assert_eq!(transcript.stop_reason.as_deref(), Some(stop));
}

#[tokio::test]
async fn a_client_of_the_sdk_understands_the_fake_agent() {
    let (agent, transport) = fake("echo");
    let transcript = drive_on(transport, "one two three").await;
    check(&transcript, "one two three", "end_turn");
    assert_eq!(transcript.updates, 3);
    assert_eq!(agent.await.unwrap(), Ended::PeerLeft);
}

#[tokio::test]
async fn a_v2_client_of_the_sdk_understands_the_fake_agent() {
    let (agent, transport) = fake("echo");
    let transcript = drive_v2_on(transport, "one two three").await;
    check(&transcript, "one two three", "end_turn");
    assert_eq!(agent.await.unwrap(), Ended::PeerLeft);
}

#[tokio::test]
async fn what_the_fake_agent_asks_permission_for_is_granted() {
    for version in [1, 2] {
        let (_agent, transport) = fake("ask");
        let transcript = match version {
            1 => drive_on(transport, "go").await,
            _ => drive_v2_on(transport, "go").await,
        };
        check(&transcript, "I would like to clean up. Done, with your leave (allow_once).", "end_turn");
        assert_eq!(transcript.permissions, ["Remove build output?"]);
    }
}

/// Both ends come from the SDK. They are useful as peers of this project only if they understand each other.
#[tokio::test]
async fn the_sdk_understands_itself() {
    for version in [1, 2] {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let agent = tokio::spawn(agent_on(streams(ours)));
        let prompt = "with permission";
        let transcript = match version {
            1 => drive_on(streams(theirs), prompt).await,
            _ => drive_v2_on(streams(theirs), prompt).await,
        };
        check(&transcript, "Hello from the SDK: with permission", "end_turn");
        assert_eq!(transcript.permissions, ["Do as you asked"]);
        // The agent's result does not matter here.
        let _ = agent.await.unwrap();
    }
}

#[tokio::test]
async fn a_command_that_cannot_be_started_is_an_error() {
    let transcript = drive(vec!["/nonexistent/agent".to_owned()], "hello").await;
    assert!(transcript.error.is_some());
}

#[tokio::test]
async fn the_scripted_client_sees_every_line() {
    let stage = stage();
    let (peer, inbox) = narrows_rpc::start(stage.link, options());
    let script = Script::parse("on.start = [{ pollute = 'no JSON' }]").unwrap();
    let agent = tokio::spawn(run(peer, inbox, stage.raw, script));
    let mut client = stage.client;
    assert_eq!(client.line().await.unwrap(), b"no JSON");
    let answer = client.ask("initialize", &json!({"protocolVersion": 1})).await;
    assert_eq!(answer["result"]["protocolVersion"], 1);
    client.hang_up();
    assert_eq!(agent.await.unwrap(), Ended::PeerLeft);
    assert_eq!(client.line().await, None);
}

#[tokio::test]
async fn a_process_is_found_by_its_marker() {
    let marker = format!("narrows-testkit-{}", std::process::id());
    let mut child = std::process::Command::new("sh")
        .args(["-c", "read line", &marker])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    assert!(wait_until(Duration::from_secs(10), || alive_with_marker(&marker) == [child.id()]).await);
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(alive_with_marker(&marker), [0; 0]);
}
