//! What an agent or a client may try so that something is done that nobody has approved.

use insta::assert_snapshot;

use super::*;
use crate::gate::{ApprovalVote, VoteError};

fn asks(scene: &mut Scene, id: u64, call: &Value) {
    let options = json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
    let params = json!({"sessionId": "s", "toolCall": call, "options": options});
    scene.wants(id, "session/request_permission", &params);
}

fn make() -> Value {
    json!({"toolCallId": "1", "name": "Bash", "kind": "execute", "rawInput": {"command": "make"}})
}

/// The client answers a request with this id as if it had been asked for a permission.
fn says(scene: &mut Scene, id: &Value, option: &str) {
    let outcome = json!({"outcome": {"outcome": "selected", "optionId": option}});
    scene.client(&json!({"jsonrpc": "2.0", "id": id, "result": outcome}));
}

fn approves(scene: &mut Scene, number: u64) -> Result<(), VoteError> {
    let signer = Principal { id: "user:lead".into(), roles: vec!["lead".into()], ..Principal::default() };
    let vote =
        ApprovalVote { id: format!("n-{number}"), signer, approves: true, reason: None, signature: None };
    let done = scene.gate.vote(scene.now, vote, &mut scene.sight);
    scene.commit();
    done
}

#[test]
fn what_is_changed_while_somebody_is_asked_was_not_approved() {
    let mut scene = Scene::at_work();
    asks(&mut scene, 7, &make());
    scene.seen();
    scene.update(
        &json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "name": "Rm", "kind": "delete",
        "rawInput": {"path": "/w/a"}}),
    );
    assert_snapshot!(scene.seen(), @r#"
    c < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"aip44:n:1"}}
    log policy.resolved deny tool="Bash" approval={"refused":"the call was changed while it waited"} reason="require-approval `make`: policy `runs` says so"
    log operator.resumed
    log policy.resolved deny tool="Rm" approval={"refused":"deny `/w/a`: policy `never` says so"} reason="deny `/w/a`: policy `never` says so"
    a < {"jsonrpc":"2.0","id":7,"result":{"outcome":{"outcome":"selected","optionId":"n"},"_meta":{"aip44":{"refused":"the call was changed while it waited"}}}}
    "#);
    says(&mut scene, &json!("aip44:n:1"), "allow_once");
    assert_eq!(approves(&mut scene, 1), Err(VoteError::NotFound));
    assert_eq!(scene.seen(), "");
    scene.update(&json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "in_progress"}));
    assert!(scene.seen().contains("it ran `Rm`, which was refused"));
}

#[test]
fn whatever_changes_what_is_decided_is_asked_about_anew() {
    let check = |change: Value, is_other: bool| {
        let mut scene = Scene::at_work();
        asks(&mut scene, 7, &make());
        scene.seen();
        let mut update = json!({"sessionUpdate": "tool_call_update", "toolCallId": "1"});
        update.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        scene.update(&update);
        let seen = scene.seen();
        assert_eq!(
            seen.contains(r#""id":7,"result":{"outcome":{"outcome":"selected","optionId":"n"}"#),
            is_other,
            "{seen}"
        );
        assert_eq!(approves(&mut scene, 1).is_err(), is_other, "{change}");
        assert_eq!(scene.seen().contains(r#""optionId":"y""#), !is_other, "{change}");
        // It can be asked for as it is now, and an approval answers one request.
        asks(&mut scene, 8, &json!({"toolCallId": "1"}));
        assert_eq!(scene.gate.pending_approvals().len(), 1, "{change}");
    };
    check(json!({"title": "make it", "content": []}), false);
    check(json!({"rawInput": {"command": "make"}}), false);
    check(json!({"rawInput": {"command": "make install"}}), true);
    check(json!({"name": "Write"}), true);
}

#[test]
fn one_request_after_another_about_one_call_approves_only_what_it_shows() {
    let mut scene = Scene::at_work();
    asks(&mut scene, 7, &make());
    let mut other = make();
    other["rawInput"]["command"] = json!("make install");
    asks(&mut scene, 8, &other);
    let open = scene.gate.pending_approvals();
    assert_eq!(open.iter().map(|open| &open.input["command"]).collect::<Vec<_>>(), ["make install"]);
    scene.seen();
    assert_eq!(approves(&mut scene, 2), Ok(()));
    let seen = scene.seen();
    assert!(seen.contains(r#"a < {"jsonrpc":"2.0","id":8"#) && !seen.contains(r#""id":7"#), "{seen}");
}

#[test]
fn a_refusal_is_not_lifted_by_another_answer() {
    let mut scene = Scene::at_work();
    asks(&mut scene, 7, &make());
    asks(&mut scene, 8, &make());
    says(&mut scene, &json!("aip44:n:1"), "reject_once");
    scene.seen();
    says(&mut scene, &json!("aip44:n:2"), "allow_once");
    let seen = scene.seen();
    assert!(seen.contains("log policy.resolved deny") && seen.contains(r#""optionId":"n""#), "{seen}");
}

#[test]
fn a_client_answers_only_what_it_was_shown_and_once() {
    let mut scene = Scene::with(config(), &["intern"]);
    scene.opened();
    asks(&mut scene, 7, &make());
    scene.wants(8, "fs/write_text_file", &json!({"sessionId": "s", "path": "/w/a/b", "content": ""}));
    scene.wants(9, "_ask", &json!({"sessionId": "s"}));
    scene.seen();
    says(&mut scene, &json!(7), "y");
    says(&mut scene, &json!(8), "y");
    says(&mut scene, &json!(10), "y");
    assert_snapshot!(scene.seen(), @r#"
    log tool.refused deny code="unasked_answer"
    log tool.refused deny code="unasked_answer"
    "#);
    assert_eq!(scene.sight.events.last().unwrap().input, Some(json!({"id": 8})));
    says(&mut scene, &json!(9), "x");
    assert!(scene.seen().starts_with(r#"a < {"jsonrpc":"2.0","id":9"#));
    says(&mut scene, &json!(9), "x");
    assert_eq!(scene.seen(), "");
    assert_eq!(scene.gate.pending_approvals().len(), 2);
    assert_eq!(approves(&mut scene, 1), Ok(()));
    assert!(scene.seen().contains(r#"a < {"jsonrpc":"2.0","id":7"#));
}

#[test]
fn an_answer_is_known_however_its_id_is_spelled() {
    let mut scene = Scene::at_work();
    let line = r#"{"jsonrpc":"2.0","id":"\u00e9","method":"_ask","params":{"sessionId":"s"}}"#;
    scene.gate.handle_agent_message(scene.now, View::parse(line.as_bytes()), &mut scene.sight);
    scene.seen();
    says(&mut scene, &json!("é"), "x");
    assert!(scene.seen().starts_with("a < "));
    // Nor is one of ours anybody else's.
    let line = r#"{"jsonrpc":"2.0","id":"\u0061ip44:n:1","method":"_ask","params":{"sessionId":"s"}}"#;
    scene.gate.handle_agent_message(scene.now, View::parse(line.as_bytes()), &mut scene.sight);
    let seen = scene.seen();
    assert!(seen.starts_with("a < ") && seen.contains("still unanswered"), "{seen}");
}

#[test]
fn ids_that_may_come_back_in_another_form_are_refused() {
    let mut scene = Scene::at_work();
    for id in ["3.0", "3e0", "-0"] {
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"_ask","params":{{"sessionId":"s"}}}}"#);
        scene.gate.handle_agent_message(scene.now, View::parse(line.as_bytes()), &mut scene.sight);
        let seen = scene.seen();
        assert!(seen.starts_with("a < ") && seen.contains("the id must be"), "{id}: {seen}");
        scene.gate.handle_client_message(scene.now, View::parse(line.as_bytes()), &mut scene.sight);
        let seen = scene.seen();
        assert!(seen.starts_with("c < ") && seen.contains("the id must be"), "{id}: {seen}");
    }
}

#[test]
fn what_is_shown_without_end_is_refused_in_the_end() {
    let mut scene = Scene::at_work();
    for id in 0..5_000 {
        scene.wants(id, "_ask", &json!({"sessionId": "s"}));
    }
    assert!(scene.seen().contains("too many requests are unanswered"));
    assert_eq!(scene.gate.pending_at_client.len(), crate::gate::MAX_OPEN);
}

#[test]
fn a_permission_for_a_call_that_has_ended_is_for_another() {
    let mut scene = Scene::at_work();
    let ends = |scene: &mut Scene| {
        scene.update(&json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "completed"}));
    };
    asks(&mut scene, 7, &make());
    says(&mut scene, &json!("aip44:n:1"), "allow_once");
    ends(&mut scene);
    scene.seen();
    asks(&mut scene, 8, &make());
    assert_eq!(scene.gate.pending_approvals().len(), 1);
    let seen = scene.seen();
    assert!(seen.starts_with("log policy.resolved require-approval") && !seen.contains("a < "), "{seen}");
    says(&mut scene, &json!("aip44:n:2"), "allow_once");
    ends(&mut scene);
    assert!(scene.seen().contains("log tool.call allow"));
    // The same where nobody has to be asked, and whatever it says of how far it is.
    for (id, status) in [(10, "pending"), (11, "completed")] {
        let read = json!({"toolCallId": "2", "name": "Read", "kind": "read", "status": status,
            "rawInput": {"path": "/w/a/b"}});
        asks(&mut scene, id, &read);
        let seen = scene.seen();
        assert!(
            seen.starts_with("log policy.resolved allow") && seen.contains(r#""optionId":"y""#),
            "{seen}"
        );
        scene.update(&json!({"sessionUpdate": "tool_call_update", "toolCallId": "2", "status": "completed"}));
        assert!(scene.seen().contains("log tool.call allow"));
    }
}

#[test]
fn an_agent_does_not_name_what_it_wants_of_the_client() {
    let mut scene = Scene::at_work();
    let write = json!({"sessionId": "s", "path": "/w/a/b", "content": "x"});
    scene.wants(5, "fs/write_text_file", &write);
    scene.seen();
    for id in ["request 5", "call request 5"] {
        scene.tool(id, "Read", "in_progress", &json!({"path": "/w/a/c"}));
        let seen = scene.seen();
        assert!(
            seen.starts_with(r#"log policy.resolved allow tool="Read""#) && seen.contains("c < "),
            "{seen}"
        );
    }
    assert_eq!(scene.gate.pending_approvals()[0].input["path"], "/w/a/b");
    // The id is taken while somebody is asked.
    scene.wants(5, "fs/read_text_file", &json!({"sessionId": "s", "path": "/w/a/c"}));
    asks(&mut scene, 5, &make());
    let seen = scene.seen();
    assert_eq!(seen.matches("still unanswered").count(), 2, "{seen}");
    assert_eq!(approves(&mut scene, 1), Ok(()));
    scene.client(&json!({"jsonrpc": "2.0", "id": 5, "result": {}}));
    let seen = scene.seen();
    assert!(seen.contains(r#"log tool.call allow tool="fs/write_text_file""#), "{seen}");
    let call = scene.sight.events.iter().rfind(|event| event.action == "tool.call").unwrap();
    assert_eq!(call.input, Some(json!({"path": "/w/a/b", "content": "x"})));
}

/// An agent may put a harmless command beside anything.
#[test]
fn a_command_that_only_reads_excuses_no_change_beside_it() {
    let sealed = vec!["/w/a/GOVERNANCE.md".into()];
    let clause = Clause::new("no", "mutates", Class::Deny).on("workspace:/finance/**").unwrap();
    let charter = Charter::new(vec![clause]).with_default(DefaultApproval::Auto);
    for (path, is_refused) in [
        ("/w/a/GOVERNANCE.md", true),
        ("/w/a/finance/x", true),
        ("/w/a/.git/hooks/pre-commit", true),
        ("/w/a/x", false),
    ] {
        for kind in ["edit", "execute", "read", "other"] {
            let mut scene = Scene::with(GateConfig { sealed: sealed.clone(), ..config() }, &["lead"]);
            let policy = Policy::new(Access::High, Narrowing::default()).with_charter(charter.clone());
            scene.gate.authorizer = crate::authorizer::Authorizer::new(policy, "g");
            scene.opened();
            let diff = json!({"type": "diff", "path": path, "oldText": "a", "newText": "b"});
            for (number, call) in (10..).zip([
                json!({"rawInput": {"path": path, "content": "x", "command": "ls"}}),
                json!({"rawInput": {"command": "ls"}, "content": [diff]}),
            ]) {
                let mut call = call;
                (call["toolCallId"], call["kind"]) = (json!(number.to_string()), json!(kind));
                asks(&mut scene, number, &call);
                let seen = scene.seen();
                assert_eq!(seen.contains(r#""optionId":"n""#), is_refused, "{call} {seen}");
                assert_eq!(seen.contains(r#""optionId":"y""#), !is_refused, "{call} {seen}");
            }
        }
    }
}
