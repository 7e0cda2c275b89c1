//! `narrows serve` with budgets: spent across restarts, and by all who share a log.

use serde_json::Value;

use crate::serve_support::{Governed, policy, session};

/// Looks at a file, and says so.
const READ: &str = r#"
[[turn]]
steps = [
  { tool = { id = "c", title = "Look", kind = "read", path = "a.txt" } },
  { tool_update = { id = "c", status = "completed", text = "seen" } },
  { say = "done" },
]
"#;

/// A workspace where so much may be read.
fn governed(budget: &str) -> Governed {
    let governed = Governed::bridge(READ);
    let more = format!("decision: allow\nbudget: {{{budget}}}");
    governed.file("policies/looking/POLICY.md", &policy("looking", "kind:read", &more));
    governed
}

/// The decisions in the log, in their order.
fn decisions(governed: &Governed) -> Vec<Value> {
    governed.actions();
    let entries = governed.entries().into_iter().filter(|entry| entry["action"] == "policy.resolved");
    entries.map(|mut entry| entry["policy"]["decision"].take()).collect()
}

#[test]
fn a_restart_gives_nothing_back() {
    let governed = governed("max_per_day: 3");
    for _ in 0..3 {
        let mut talk = governed.talk();
        let id = session(&mut talk, &governed);
        assert_eq!(talk.prompt(&id, "go")["result"]["stopReason"], "end_turn");
        assert_eq!(talk.end().status.code(), Some(0));
    }
    assert_eq!(decisions(&governed), ["allow", "allow", "allow"]);
    // The fourth is more than there is: it ran unasked, so its turn was stopped.
    let mut talk = governed.talk();
    let id = session(&mut talk, &governed);
    let answer = talk.prompt(&id, "go");
    assert_eq!(answer["result"]["stopReason"], "refusal", "{answer}");
    talk.end();
    assert_eq!(decisions(&governed)[3], "require-approval");
    let entries = governed.entries();
    let last = entries.iter().rfind(|entry| entry["action"] == "policy.resolved").expect("a decision");
    let why = last["metadata"]["aip44"]["reason"].to_string();
    assert!(why.contains("requests of this day") && why.contains("used up"), "{why}");
}

#[test]
fn two_on_one_log_spend_of_one_budget() {
    let governed = governed("max_per_hour: 4");
    let (mut one, mut other) = (governed.talk(), governed.talk());
    let (first, second) = (session(&mut one, &governed), session(&mut other, &governed));
    for _ in 0..2 {
        assert_eq!(one.prompt(&first, "go")["result"]["stopReason"], "end_turn");
        assert_eq!(other.prompt(&second, "go")["result"]["stopReason"], "end_turn");
    }
    assert_eq!(one.prompt(&first, "go")["result"]["stopReason"], "refusal");
    assert_eq!(other.prompt(&second, "go")["result"]["stopReason"], "refusal");
    one.end_beside();
    other.end();
    let decided = decisions(&governed);
    assert_eq!(decided.iter().filter(|decision| *decision == "allow").count(), 4, "{decided:?}");
}
