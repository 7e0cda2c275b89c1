//! The points of AIP-44 that need processes: stdin and stdout, and how an agent ends. The others are in `govern/tests/points`.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::serve_support::{Governed, session};

const NOISY: &str = r#"
[on]
start = [{ stderr = "starting" }]

[[turn]]
steps = [{ stderr = "working" }, { say = "done" }]
"#;

#[test]
fn point_10_stdout_has_nothing_but_messages() {
    let governed = Governed::bridge(NOISY);
    let mut talk = governed.talk();
    let session = session(&mut talk, &governed);
    // Every line is read as a message, or this fails.
    let answer = talk.prompt(&session, "go");
    assert_eq!((answer["result"]["stopReason"].clone(), talk.said()), (json!("end_turn"), "done".to_owned()));
    let ended = talk.end();
    assert!(
        ended.stderr.contains("are trusted from now on"),
        "what is for people is on stderr: {}",
        ended.stderr
    );
}

#[test]
fn point_18_an_agent_ends_with_all_it_started_when_its_client_has_gone() {
    let stubborn = r#"
[on]
start = [{ ignore_eof = true }, { ignore_sigterm = true }]

[[turn]]
steps = [{ orphan = ["sleep", "600"] }, { say = "done" }]
"#;
    let governed = Governed::bridge(stubborn);
    let mut talk = governed.talk();
    let session = session(&mut talk, &governed);
    talk.prompt(&session, "go");
    let alive = governed.place.alive();
    assert!(alive.iter().any(|line| line.contains("sleep")), "what the agent has started: {alive:?}");
    let began = Instant::now();
    talk.end();
    // Two seconds for its input, five for SIGTERM, then SIGKILL.
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    governed.place.wait_for(|| governed.place.alive().is_empty());
}
