//! `narrows serve` with a full disk: nothing happens that cannot be recorded.

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;

use crate::serve_support::{Governed, READ, session};
use crate::stdio_client::StdioClient;

/// Limits the size of files that the process writes.
fn limit(stdio: &StdioClient<'_>, bytes: Option<u64>) {
    let pid = Pid::from_raw(i32::try_from(stdio.pid()).expect("a pid"));
    prlimit(pid, Resource::Fsize, Rlimit { current: bytes, maximum: None }).expect("an own process");
}

#[test]
fn a_full_disk_stops_actions_until_there_is_room() {
    let governed = Governed::bridge(READ);
    let mut stdio = StdioClient::initialized(&governed.dir, governed.serve(&[]));
    let id = session(&mut stdio, &governed);
    let before = std::fs::read(governed.log()).expect("a log");
    limit(&stdio, Some(before.len() as u64));
    let answer = stdio.prompt(&id, "go");
    // The turn ends with a refusal, or with an error if the agent has finished before the gate knew of the
    // failed write. The call was neither shown nor recorded.
    let is_error = answer["error"]["code"] == -32017;
    assert!(is_error || answer["result"]["stopReason"] == "refusal", "{answer}");
    assert!(answer.to_string().contains("audit log unavailable"), "{answer}");
    assert!(!answer.to_string().contains("audit-log.jsonl"), "where it is concerns no client: {answer}");
    let shown = stdio.updates.iter().filter(|update| update["params"]["update"]["toolCallId"] == "c").count();
    assert_eq!(shown, 0, "{:?}", stdio.updates);
    assert_eq!(std::fs::read(governed.log()).expect("a log"), before, "the log is as it was");
    let refused = stdio.call("session/new", &json!({"cwd": "/", "mcpServers": []}));
    assert_eq!(refused["error"]["code"], -32017, "{refused}");
    // Space is available again, and the gate recovers.
    limit(&stdio, None);
    let answer = stdio.prompt(&id, "go");
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    assert!(stdio.agent_text().ends_with("done"));
    let ended = stdio.end();
    assert_eq!(ended.status.code(), Some(0));
    // Three log messages for the administrator: the log, the error, and the end of the failure, each once.
    let told: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("::audit_log: ")).collect();
    assert_eq!(told.len(), 2, "{}", ended.stderr);
    assert!(told[0].contains("cannot write the audit log") && told[0].contains("File too large"), "{told:?}");
    assert!(told[1].contains("audit log writable again"), "{told:?}");
    assert!(told.iter().all(|line| line.contains("audit/audit-log.jsonl")), "{told:?}");
    let actions = governed.actions();
    assert_eq!(actions.iter().filter(|action| *action == "tool.call").count(), 1, "{actions:?}");
}
