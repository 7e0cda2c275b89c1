//! `narrows serve` with budgets, across restarts and for all gates with one log.

use std::panic::{RefUnwindSafe, catch_unwind, resume_unwind};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::serve_support::{Governed, READ, policy, session};

/// Creates a workspace with a budget for reading, and an agent that reads a file.
fn governed(budget: &str) -> Governed {
    let governed = Governed::bridge(READ);
    let more = format!("decision: allow\nbudget: {{{budget}}}");
    governed.file("policies/looking/POLICY.md", &policy("looking", "kind:read", &more));
    governed
}

/// Returns the decisions in the log, in order.
fn decisions(governed: &Governed) -> Vec<Value> {
    governed.actions();
    let entries = governed.entries().into_iter().filter(|entry| entry["action"] == "policy.resolved");
    entries.map(|mut entry| entry["policy"]["decision"].take()).collect()
}

/// Runs a test that uses an hourly or daily budget, and repeats it if another hour began meanwhile.
pub(crate) fn within_an_hour(test: impl Fn() + RefUnwindSafe) {
    let hour = || {
        SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock shows a time after 1970").as_secs()
            / 3600
    };
    let began = hour();
    match catch_unwind(&test) {
        Ok(()) => {}
        Err(failed) if hour() == began => resume_unwind(failed),
        Err(_) => test(),
    }
}

#[test]
fn a_restart_does_not_reset_a_budget() {
    within_an_hour(|| {
        let governed = governed("max_per_day: 3");
        for _ in 0..3 {
            let mut stdio = governed.stdio();
            let id = session(&mut stdio, &governed);
            assert_eq!(stdio.prompt(&id, "go")["result"]["stopReason"], "end_turn");
            assert_eq!(stdio.end().status.code(), Some(0));
        }
        assert_eq!(decisions(&governed), ["allow", "allow", "allow"]);
        // The fourth call exceeds the budget. The agent did not ask for it, so its turn was stopped.
        let mut stdio = governed.stdio();
        let id = session(&mut stdio, &governed);
        let answer = stdio.prompt(&id, "go");
        assert_eq!(answer["result"]["stopReason"], "refusal", "{answer}");
        stdio.end();
        assert_eq!(decisions(&governed)[3], "require-approval");
        let entries = governed.entries();
        let last = entries.iter().rfind(|entry| entry["action"] == "policy.resolved").expect("a decision");
        let why = last["metadata"]["aip44"]["reason"].to_string();
        assert!(why.contains("requests of this day") && why.contains("exhausted"), "{why}");
    });
}

#[test]
fn gates_with_one_log_share_its_budgets() {
    within_an_hour(|| {
        let governed = governed("max_per_hour: 4");
        let (mut one, mut other) = (governed.stdio(), governed.stdio());
        let (first, second) = (session(&mut one, &governed), session(&mut other, &governed));
        for _ in 0..2 {
            assert_eq!(one.prompt(&first, "go")["result"]["stopReason"], "end_turn");
            assert_eq!(other.prompt(&second, "go")["result"]["stopReason"], "end_turn");
        }
        assert_eq!(one.prompt(&first, "go")["result"]["stopReason"], "refusal");
        assert_eq!(other.prompt(&second, "go")["result"]["stopReason"], "refusal");
        one.end_with_others_running();
        other.end();
        let decided = decisions(&governed);
        assert_eq!(decided.iter().filter(|decision| *decision == "allow").count(), 4, "{decided:?}");
    });
}
