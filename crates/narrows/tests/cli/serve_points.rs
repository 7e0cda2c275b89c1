//! The points of AIP-44 that need real processes: stdin, stdout, sockets, and the end of an agent. The other
//! points are in `govern/tests/points`.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::bus_support::Peer;
use crate::serve_support::{Governed, READ, acp, session};
use crate::serve_web::{TOKENS, listening, opened, token};

const NOISY: &str = r#"
[on]
start = [{ stderr = "starting" }]

[[turn]]
steps = [{ stderr = "working" }, { say = "done" }]
"#;

#[test]
fn point_10_stdout_has_only_messages() {
    let governed = Governed::bridge(NOISY);
    let mut stdio = governed.stdio();
    let session = session(&mut stdio, &governed);
    // Fails if a line is not a message.
    let answer = stdio.prompt(&session, "go");
    assert_eq!(
        (answer["result"]["stopReason"].clone(), stdio.agent_text()),
        (json!("end_turn"), "done".to_owned())
    );
    let ended = stdio.end();
    assert!(
        ended.stderr.contains("first use: trusting "),
        "what is for people is on stderr: {}",
        ended.stderr
    );
}

#[test]
fn point_10_over_websocket_a_frame_is_a_message() {
    let governed = Governed::bridge(NOISY);
    let text = acp("bridge", "governance-aware", "    operator: ./OPERATOR.md\n");
    governed.file("ACP.md", &text.replace("transport: stdio", "transport: websocket"));
    let bus = listening(&governed, &[]);
    let mut peer = Peer::web(&bus.at[0], &[]).expect("the connection is accepted");
    let session = opened(&mut peer, &governed);
    peer.prompt(&json!(2), &session, "go");
    let answer = peer.answer(&json!(2));
    assert_eq!((&answer["result"]["stopReason"], peer.agent_text()), (&json!("end_turn"), "done".to_owned()));
    peer.send_binary(br#"{"jsonrpc":"2.0","id":3,"method":"session/list"}"#);
    assert_eq!(peer.closed(), Some(1003), "bytes that are no text are no message");
    bus.stop();
    governed.actions();
}

#[test]
fn point_26_the_identity_of_the_upgrade_is_that_of_the_gate() {
    let governed = Governed::bridge(READ);
    let tokens = [token(&governed, "reader", &["kind:read"]), token(&governed, "writer", &["kind:edit"])];
    let bus = listening(&governed, &TOKENS);
    let before = governed.dir.alive().len();
    for wrong in [vec![], vec![("authorization", "Bearer nrw_wrong")], vec![("authorization", "Basic YQ==")]]
    {
        assert_eq!(Peer::web(&bus.at[0], &wrong).err(), Some(401), "{wrong:?}");
    }
    assert!(governed.dir.alive().len() <= before, "no agent is started for unauthenticated clients");
    for (token, name, allowed) in [(&tokens[0], "reader", true), (&tokens[1], "writer", false)] {
        let mut peer = Peer::web(&bus.at[0], &[("authorization", &format!("Bearer {token}"))])
            .expect("the connection is accepted");
        let session = opened(&mut peer, &governed);
        peer.prompt(&json!(2), &session, "go");
        let answer = peer.answer(&json!(2));
        assert_eq!(answer["result"]["stopReason"] == "end_turn", allowed, "{name}: {answer}");
    }
    bus.stop();
    governed.actions();
    let entries = governed.entries();
    let about = |entry: &serde_json::Value, key: &str| {
        entry["metadata"]["aip44"][key].as_str().unwrap_or("-").to_owned()
    };
    for (name, decision) in [("token:reader", "allow"), ("token:writer", "deny")] {
        let of: Vec<_> = entries.iter().filter(|entry| about(entry, "identity") == name).collect();
        assert!(of.iter().all(|entry| about(entry, "identity_method") == "token"), "{of:?}");
        let decided = of.iter().find(|entry| entry["action"] == "policy.resolved").expect("a decision");
        assert_eq!(decided["policy"]["decision"], decision, "{decided}");
        assert!(of.iter().any(|entry| entry["action"] == "session.closed"), "{of:?}");
    }
    let strangers = entries.iter().filter(|entry| !about(entry, "identity").starts_with("token:"));
    let actions: Vec<_> = strangers.map(|entry| entry["action"].clone()).collect();
    assert_eq!(actions, ["manifest.pinned"], "all other entries belong to an identity");
}

#[test]
fn point_18_an_agent_and_its_processes_end_with_the_client() {
    let stubborn = r#"
[on]
start = [{ ignore_eof = true }, { ignore_sigterm = true }]

[[turn]]
steps = [{ orphan = ["sleep", "600"] }, { say = "done" }]
"#;
    let governed = Governed::bridge(stubborn);
    let mut stdio = governed.stdio();
    let session = session(&mut stdio, &governed);
    stdio.prompt(&session, "go");
    let alive = governed.dir.alive();
    assert!(alive.iter().any(|line| line.contains("sleep")), "what the agent has started: {alive:?}");
    let began = Instant::now();
    stdio.end();
    // Two seconds for its input, five for SIGTERM, then SIGKILL.
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    governed.dir.wait_for(|| governed.dir.alive().is_empty());
}
