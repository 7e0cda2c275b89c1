//! Tests of attempts of an agent or a client to bypass an approval.

use insta::assert_snapshot;

use super::*;
use crate::gate::{ApprovalVote, VoteError};

fn ask_permission(fixture: &mut Fixture, id: u64, call: &Value) {
    let options = json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
    let params = json!({"sessionId": "s", "toolCall": call, "options": options});
    fixture.agent_requests(id, "session/request_permission", &params);
}

fn make_command() -> Value {
    json!({"toolCallId": "1", "name": "Bash", "kind": "execute", "rawInput": {"command": "make"}})
}

/// The client answers a request with this id as if the request were a permission request.
fn answer_approval(fixture: &mut Fixture, id: &Value, option: &str) {
    let outcome = json!({"outcome": {"outcome": "selected", "optionId": option}});
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": id, "result": outcome}));
}

fn approve(fixture: &mut Fixture, number: u64) -> Result<(), VoteError> {
    let signer = Principal { id: "user:lead".into(), roles: vec!["lead".into()], ..Principal::default() };
    let vote =
        ApprovalVote { id: format!("n-{number}"), signer, approves: true, reason: None, signature: None };
    let done = fixture.gate.vote(fixture.now, vote, &mut fixture.output);
    fixture.settle_events();
    done
}

#[test]
fn a_call_that_changes_while_it_waits_is_not_approved() {
    let mut fixture = Fixture::with_turn();
    ask_permission(&mut fixture, 7, &make_command());
    fixture.take_seen();
    fixture.agent_updates(
        &json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "name": "Rm", "kind": "delete",
        "rawInput": {"path": "/w/a"}}),
    );
    assert_snapshot!(fixture.take_seen(), @r#"
    c < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"aip44:n:1"}}
    log policy.resolved deny tool="Bash" approval={"refused":"the call changed while it waited for approval"} reason="require-approval `make`: policy `runs` matches"
    log operator.resumed
    log policy.resolved deny tool="Rm" approval={"refused":"deny `/w/a`: policy `never` matches"} reason="deny `/w/a`: policy `never` matches"
    a < {"jsonrpc":"2.0","id":7,"result":{"outcome":{"outcome":"selected","optionId":"n"},"_meta":{"aip44":{"refused":"the call changed while it waited for approval"}}}}
    "#);
    answer_approval(&mut fixture, &json!("aip44:n:1"), "allow_once");
    assert_eq!(approve(&mut fixture, 1), Err(VoteError::NotFound));
    assert_eq!(fixture.take_seen(), "");
    fixture.agent_updates(
        &json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "in_progress"}),
    );
    assert!(fixture.take_seen().contains("it ran `Rm`, which was refused"));
}

#[test]
fn every_relevant_change_needs_a_new_approval() {
    let check = |change: Value, is_other: bool| {
        let mut fixture = Fixture::with_turn();
        ask_permission(&mut fixture, 7, &make_command());
        fixture.take_seen();
        let mut update = json!({"sessionUpdate": "tool_call_update", "toolCallId": "1"});
        update.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        fixture.agent_updates(&update);
        let seen = fixture.take_seen();
        assert_eq!(
            seen.contains(r#""id":7,"result":{"outcome":{"outcome":"selected","optionId":"n"}"#),
            is_other,
            "{seen}"
        );
        assert_eq!(approve(&mut fixture, 1).is_err(), is_other, "{change}");
        assert_eq!(fixture.take_seen().contains(r#""optionId":"y""#), !is_other, "{change}");
        ask_permission(&mut fixture, 8, &json!({"toolCallId": "1"}));
        assert_eq!(fixture.gate.pending_approvals().len(), 1, "{change}");
    };
    check(json!({"title": "make it", "content": []}), false);
    check(json!({"rawInput": {"command": "make"}}), false);
    check(json!({"rawInput": {"command": "make install"}}), true);
    check(json!({"name": "Write"}), true);
}

#[test]
fn each_request_about_a_call_approves_only_what_it_shows() {
    let mut fixture = Fixture::with_turn();
    ask_permission(&mut fixture, 7, &make_command());
    let mut other = make_command();
    other["rawInput"]["command"] = json!("make install");
    ask_permission(&mut fixture, 8, &other);
    let open = fixture.gate.pending_approvals();
    assert_eq!(open.iter().map(|open| &open.input["command"]).collect::<Vec<_>>(), ["make install"]);
    fixture.take_seen();
    assert_eq!(approve(&mut fixture, 2), Ok(()));
    let seen = fixture.take_seen();
    assert!(seen.contains(r#"a < {"jsonrpc":"2.0","id":8"#) && !seen.contains(r#""id":7"#), "{seen}");
}

#[test]
fn a_later_answer_does_not_undo_a_refusal() {
    let mut fixture = Fixture::with_turn();
    ask_permission(&mut fixture, 7, &make_command());
    ask_permission(&mut fixture, 8, &make_command());
    answer_approval(&mut fixture, &json!("aip44:n:1"), "reject_once");
    fixture.take_seen();
    answer_approval(&mut fixture, &json!("aip44:n:2"), "allow_once");
    let seen = fixture.take_seen();
    assert!(seen.contains("log policy.resolved deny") && seen.contains(r#""optionId":"n""#), "{seen}");
}

#[test]
fn a_client_can_answer_a_shown_request_once() {
    let mut fixture = Fixture::with_config(config(), &["intern"]);
    fixture.open_turn();
    ask_permission(&mut fixture, 7, &make_command());
    fixture.agent_requests(
        8,
        "fs/write_text_file",
        &json!({"sessionId": "s", "path": "/w/a/b", "content": ""}),
    );
    fixture.agent_requests(9, "_ask", &json!({"sessionId": "s"}));
    fixture.take_seen();
    answer_approval(&mut fixture, &json!(7), "y");
    answer_approval(&mut fixture, &json!(8), "y");
    answer_approval(&mut fixture, &json!(10), "y");
    assert_snapshot!(fixture.take_seen(), @r#"
    log tool.refused deny code="unasked_answer"
    log tool.refused deny code="unasked_answer"
    "#);
    assert_eq!(fixture.output.events.last().unwrap().input, Some(json!({"id": 8})));
    answer_approval(&mut fixture, &json!(9), "x");
    assert!(fixture.take_seen().starts_with(r#"a < {"jsonrpc":"2.0","id":9"#));
    answer_approval(&mut fixture, &json!(9), "x");
    assert_eq!(fixture.take_seen(), "");
    assert_eq!(fixture.gate.pending_approvals().len(), 2);
    assert_eq!(approve(&mut fixture, 1), Ok(()));
    assert!(fixture.take_seen().contains(r#"a < {"jsonrpc":"2.0","id":7"#));
}

#[test]
fn answers_are_matched_whatever_the_spelling_of_their_id() {
    let mut fixture = Fixture::with_turn();
    let line = r#"{"jsonrpc":"2.0","id":"\u00e9","method":"_ask","params":{"sessionId":"s"}}"#;
    fixture.gate.handle_agent_message(fixture.now, View::parse(line.as_bytes()), &mut fixture.output);
    fixture.take_seen();
    answer_approval(&mut fixture, &json!("é"), "x");
    assert!(fixture.take_seen().starts_with("a < "));
    // The agent cannot use the id of a request that the gate sends.
    let line = r#"{"jsonrpc":"2.0","id":"\u0061ip44:n:1","method":"_ask","params":{"sessionId":"s"}}"#;
    fixture.gate.handle_agent_message(fixture.now, View::parse(line.as_bytes()), &mut fixture.output);
    let seen = fixture.take_seen();
    assert!(seen.starts_with("a < ") && seen.contains("still unanswered"), "{seen}");
}

#[test]
fn ids_that_a_peer_may_write_back_differently_are_refused() {
    let mut fixture = Fixture::with_turn();
    for id in ["3.0", "3e0", "-0"] {
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"_ask","params":{{"sessionId":"s"}}}}"#);
        fixture.gate.handle_agent_message(fixture.now, View::parse(line.as_bytes()), &mut fixture.output);
        let seen = fixture.take_seen();
        assert!(seen.starts_with("a < ") && seen.contains("the id must be"), "{id}: {seen}");
        fixture.gate.handle_client_message(fixture.now, View::parse(line.as_bytes()), &mut fixture.output);
        let seen = fixture.take_seen();
        assert!(seen.starts_with("c < ") && seen.contains("the id must be"), "{id}: {seen}");
    }
}

#[test]
fn the_number_of_pending_requests_is_limited() {
    let mut fixture = Fixture::with_turn();
    for id in 0..5_000 {
        fixture.agent_requests(id, "_ask", &json!({"sessionId": "s"}));
    }
    assert!(fixture.take_seen().contains("too many unanswered requests"));
    assert_eq!(fixture.gate.pending_at_client.len(), crate::gate::MAX_OPEN);
}

#[test]
fn a_permission_request_about_an_ended_call_is_a_further_call() {
    let mut fixture = Fixture::with_turn();
    let ends = |fixture: &mut Fixture| {
        fixture.agent_updates(
            &json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "completed"}),
        );
    };
    ask_permission(&mut fixture, 7, &make_command());
    answer_approval(&mut fixture, &json!("aip44:n:1"), "allow_once");
    ends(&mut fixture);
    fixture.take_seen();
    ask_permission(&mut fixture, 8, &make_command());
    assert_eq!(fixture.gate.pending_approvals().len(), 1);
    let seen = fixture.take_seen();
    assert!(seen.starts_with("log policy.resolved require-approval") && !seen.contains("a < "), "{seen}");
    answer_approval(&mut fixture, &json!("aip44:n:2"), "allow_once");
    ends(&mut fixture);
    assert!(fixture.take_seen().contains("log tool.call allow"));
    // Calls that the policy allows behave in the same way, whatever status the request reports.
    for (id, status) in [(10, "pending"), (11, "completed")] {
        let read = json!({"toolCallId": "2", "name": "Read", "kind": "read", "status": status,
            "rawInput": {"path": "/w/a/b"}});
        ask_permission(&mut fixture, id, &read);
        let seen = fixture.take_seen();
        assert!(
            seen.starts_with("log policy.resolved allow") && seen.contains(r#""optionId":"y""#),
            "{seen}"
        );
        fixture.agent_updates(
            &json!({"sessionUpdate": "tool_call_update", "toolCallId": "2", "status": "completed"}),
        );
        assert!(fixture.take_seen().contains("log tool.call allow"));
    }
}

#[test]
fn ids_of_client_requests_do_not_collide_with_calls() {
    let mut fixture = Fixture::with_turn();
    let write = json!({"sessionId": "s", "path": "/w/a/b", "content": "x"});
    fixture.agent_requests(5, "fs/write_text_file", &write);
    fixture.take_seen();
    for id in ["request 5", "call request 5"] {
        fixture.agent_calls(id, "Read", "in_progress", &json!({"path": "/w/a/c"}));
        let seen = fixture.take_seen();
        assert!(
            seen.starts_with(r#"log policy.resolved allow tool="Read""#) && seen.contains("c < "),
            "{seen}"
        );
    }
    assert_eq!(fixture.gate.pending_approvals()[0].input["path"], "/w/a/b");
    // A second request cannot use the id of a request that waits for an approval.
    fixture.agent_requests(5, "fs/read_text_file", &json!({"sessionId": "s", "path": "/w/a/c"}));
    ask_permission(&mut fixture, 5, &make_command());
    let seen = fixture.take_seen();
    assert_eq!(seen.matches("still unanswered").count(), 2, "{seen}");
    assert_eq!(approve(&mut fixture, 1), Ok(()));
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": 5, "result": {}}));
    let seen = fixture.take_seen();
    assert!(seen.contains(r#"log tool.call allow tool="fs/write_text_file""#), "{seen}");
    let call = fixture.output.events.iter().rfind(|event| event.action == "tool.call").unwrap();
    assert_eq!(call.input, Some(json!({"path": "/w/a/b", "content": "x"})));
}

/// An agent may put a harmless command beside any other effect.
#[test]
fn a_command_that_only_reads_does_not_allow_a_diff_beside_it() {
    let protected = vec!["/w/a/GOVERNANCE.md".into()];
    let clause =
        GovernanceRule::new("no", "mutates", Class::Deny).with_subject("workspace:/finance/**").unwrap();
    let ruleset = GovernanceRuleset::new(vec![clause]).with_default(DefaultApproval::Auto);
    for (path, is_refused) in [
        ("/w/a/GOVERNANCE.md", true),
        ("/w/a/finance/x", true),
        ("/w/a/.git/hooks/pre-commit", true),
        ("/w/a/x", false),
    ] {
        for kind in ["edit", "execute", "read", "other"] {
            let mut fixture =
                Fixture::with_config(GateConfig { protected: protected.clone(), ..config() }, &["lead"]);
            let policy = Policy::new(Access::High, Narrowing::default()).with_ruleset(ruleset.clone());
            fixture.gate.authorizer = crate::authorizer::Authorizer::new(policy, "g");
            fixture.open_turn();
            let diff = json!({"type": "diff", "path": path, "oldText": "a", "newText": "b"});
            for (number, call) in (10..).zip([
                json!({"rawInput": {"path": path, "content": "x", "command": "ls"}}),
                json!({"rawInput": {"command": "ls"}, "content": [diff]}),
            ]) {
                let mut call = call;
                (call["toolCallId"], call["kind"]) = (json!(number.to_string()), json!(kind));
                ask_permission(&mut fixture, number, &call);
                let seen = fixture.take_seen();
                assert_eq!(seen.contains(r#""optionId":"n""#), is_refused, "{call} {seen}");
                assert_eq!(seen.contains(r#""optionId":"y""#), !is_refused, "{call} {seen}");
            }
        }
    }
}
