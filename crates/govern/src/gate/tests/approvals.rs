//! Tests of approvals: who may give them, and their effects.

use std::sync::{Arc, Mutex};

use insta::assert_snapshot;

use super::*;
use crate::config::Autonomy;
use crate::gate::{ApprovalVote, SignatureValidity, VoteError, VoteSignature};

/// Validity of the key of a counted signature: `None` if the key is valid, otherwise the reason why it is
/// not.
#[derive(Clone, Debug, Default)]
struct KeyState(Arc<Mutex<Option<&'static str>>>);

impl KeyState {
    fn set_invalid(&self, why: &'static str) {
        *self.0.lock().unwrap() = Some(why);
    }

    fn signature(&self) -> VoteSignature {
        VoteSignature { file: "signatures/1.signature.json".into(), validity: Arc::new(self.clone()) }
    }
}

impl SignatureValidity for KeyState {
    fn check(&self) -> Result<(), String> {
        self.0.lock().unwrap().map_or(Ok(()), |why| Err(why.to_owned()))
    }
}

fn ask_permission(fixture: &mut Fixture, id: u64) {
    fixture.agent_requests(
        id,
        "session/request_permission",
        &json!({"sessionId": "s", "toolCall": {"toolCallId": "1", "name": "Bash", "rawInput": {"command": "make"}},
            "options": [{"optionId": "always", "kind": "allow_always"}, {"optionId": "y", "kind": "allow_once"},
                {"optionId": "n", "kind": "reject_once"}]}),
    );
}

fn answer_approval(fixture: &mut Fixture, option: &str) {
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result":
        {"outcome": {"outcome": "selected", "optionId": option}}}));
}

#[test]
fn an_approver_approves_once() {
    let mut fixture = Fixture::with_turn();
    ask_permission(&mut fixture, 7);
    assert_snapshot!(fixture.take_seen(), @r#"
    log policy.resolved require-approval tool="Bash" approval="pending" reason="require-approval `make`: policy `runs` matches"
    log operator.suspended reason="n-1"
    c < {"jsonrpc":"2.0","id":"aip44:n:1","method":"session/request_permission","params":{"sessionId":"s","toolCall":{"toolCallId":"1","title":"Bash","kind":"other","status":"pending","rawInput":{"command":"make"}},"options":[{"optionId":"allow_once","name":"Allow once","kind":"allow_once"},{"optionId":"reject_once","name":"Reject","kind":"reject_once"}],"_meta":{"aip44":{"approval":"n-1","reason":"require-approval `make`: policy `runs` matches"}}}}
    "#);
    answer_approval(&mut fixture, "allow_once");
    fixture.agent_calls("1", "Bash", "in_progress", &json!({"command": "make"}));
    assert_snapshot!(fixture.take_seen(), @r#"
    log policy.resolved allow tool="Bash" approval="user:ada" reason="require-approval `make`: policy `runs` matches"
    log operator.resumed
    a < {"jsonrpc":"2.0","id":7,"result":{"outcome":{"outcome":"selected","optionId":"y"}}}
    log policy.resolved allow tool="Bash" approval="user:ada" reason="require-approval `make`: policy `runs` matches"
    c < {"jsonrpc":"2.0","method":"session/update","params":{"update":{"sessionUpdate":"tool_call","toolCallId":"1","name":"Bash","kind":"execute","status":"in_progress","title":"harmless","rawInput":{"command":"make"}},"sessionId":"s"}}
    "#);
    fixture.agent_calls("1", "Bash", "in_progress", &json!({"command": "make install"}));
    assert_snapshot!(fixture.take_seen(), @r#"
    log policy.resolved require-approval tool="Bash" approval="pending" reason="require-approval `make install`: policy `runs` matches"
    log operator.interrupted reason="it ran `Bash` without an approval (require-approval `make install`: policy `runs` matches)"
    a < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}
    "#);
}

#[test]
fn any_answer_but_an_approval_is_a_rejection() {
    for option in ["reject_once", "y", "always", ""] {
        let mut fixture = Fixture::with_turn();
        ask_permission(&mut fixture, 7);
        fixture.take_seen();
        answer_approval(&mut fixture, option);
        let seen = fixture.take_seen();
        assert!(seen.contains(r#""optionId":"n""#) && seen.contains("log policy.resolved deny"), "{seen}");
    }
}

#[test]
fn an_expired_approval_is_a_refusal() {
    let mut fixture = Fixture::with_turn();
    ask_permission(&mut fixture, 7);
    fixture.take_seen();
    fixture.advance_clock(299);
    assert_eq!(fixture.take_seen(), "");
    assert_eq!(fixture.gate.next_deadline(), Some(Duration::from_secs(300)));
    fixture.advance_clock(1);
    assert_snapshot!(fixture.take_seen(), @r#"
    log request.expired reason="n-1 was not approved within 5 min"
    c < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"aip44:n:1"}}
    log policy.resolved deny tool="Bash" approval={"refused":"not approved in time"} reason="require-approval `make`: policy `runs` matches"
    log operator.resumed
    c < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"\napproval n-1 of `Bash` was refused: not approved in time (require-approval `make`: policy `runs` matches)\n"}}}}
    a < {"jsonrpc":"2.0","id":7,"result":{"outcome":{"outcome":"selected","optionId":"n"},"_meta":{"aip44":{"refused":"not approved in time"}}}}
    "#);
}

#[test]
fn only_approvers_are_asked_and_counted() {
    let mut fixture = Fixture::with_config(config(), &["intern"]);
    fixture.open_turn();
    ask_permission(&mut fixture, 7);
    assert_snapshot!(fixture.take_seen(), @r#"
    log policy.resolved require-approval tool="Bash" approval="pending" reason="require-approval `make`: policy `runs` matches"
    log operator.suspended reason="n-1"
    c < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"\nwaiting for approval n-1 of `Bash` by 1 of role lead (require-approval `make`: policy `runs` matches); `narrows approve n-1 --key FILE` gives it, and without it the call is refused in 5 min\n"}}}}
    "#);
    answer_approval(&mut fixture, "allow_once");
    assert_snapshot!(fixture.take_seen(), @"");
    let vote_as = |role: &str| ApprovalVote {
        id: "n-1".into(),
        signer: Principal { id: format!("user:{role}"), roles: vec![role.into()], ..Principal::default() },
        approves: true,
        reason: None,
        signature: Some(KeyState::default().signature()),
    };
    assert_eq!(
        fixture.gate.vote(fixture.now, vote_as("intern"), &mut fixture.output),
        Err(VoteError::NotASigner)
    );
    assert_eq!(fixture.gate.pending_approvals().len(), 1);
    assert_eq!(fixture.gate.vote(fixture.now, vote_as("lead"), &mut fixture.output), Ok(()));
    fixture.settle_events();
    assert_snapshot!(fixture.take_seen(), @r#"
    log policy.resolved allow tool="Bash" approval="user:lead" reason="require-approval `make`: policy `runs` matches"
    log operator.resumed
    c < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"\napproval n-1 of `Bash` was given by user:lead\n"}}}}
    a < {"jsonrpc":"2.0","id":7,"result":{"outcome":{"outcome":"selected","optionId":"y"}}}
    "#);
    assert_eq!(
        fixture.gate.vote(fixture.now, vote_as("lead"), &mut fixture.output),
        Err(VoteError::NotFound)
    );
}

#[test]
fn a_cancelled_turn_approves_nothing() {
    let mut fixture = Fixture::with_turn();
    ask_permission(&mut fixture, 7);
    fixture.take_seen();
    fixture.send_client(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}}));
    fixture.agent_answers(2, &json!({"stopReason": "cancelled"}));
    assert_snapshot!(fixture.take_seen(), @r#"
    c < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"aip44:n:1"}}
    log policy.resolved deny tool="Bash" approval={"refused":"the turn was cancelled"} reason="require-approval `make`: policy `runs` matches"
    log operator.resumed
    a < {"jsonrpc":"2.0","id":7,"result":{"outcome":{"outcome":"selected","optionId":"n"},"_meta":{"aip44":{"refused":"the turn was cancelled"}}}}
    a < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}
    log operator.interrupted reason="cancelled"
    c < {"jsonrpc":"2.0","id":2,"result":{"stopReason":"cancelled"}}
    "#);
}

#[test]
fn a_gated_operator_asks_for_every_turn() {
    let mut fixture = Fixture::with_config(GateConfig { autonomy: Autonomy::Gated, ..config() }, &[]);
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    fixture.agent_answers(1, &json!({"sessionId": "s"}));
    fixture.take_seen();
    fixture.client_requests(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    assert_snapshot!(fixture.take_seen(), @r#"
    log operator.suspended reason="n-1"
    c < {"jsonrpc":"2.0","id":"aip44:n:1","method":"session/request_permission","params":{"sessionId":"s","toolCall":{"toolCallId":"turn 2","title":"turn","kind":"other","status":"pending","rawInput":{"prompt":"","bytes":2,"sha256":"4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"}},"options":[{"optionId":"allow_once","name":"Allow once","kind":"allow_once"},{"optionId":"reject_once","name":"Reject","kind":"reject_once"}],"_meta":{"aip44":{"approval":"n-1","reason":"a gated operator needs approval for every turn"}}}}
    "#);
    answer_approval(&mut fixture, "allow_once");
    assert_snapshot!(fixture.take_seen(), @r#"
    log policy.resolved allow tool="turn" approval="user:ada" reason="require-approval: no policy matches"
    log operator.resumed
    a < {"jsonrpc":"2.0","id":2,"method":"session/prompt","params":{"sessionId":"s","prompt":[]}}
    "#);
    fixture.agent_answers(2, &json!({"stopReason": "end_turn"}));
    fixture.client_requests(3, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    fixture.take_seen();
    fixture.send_client(
        &json!({"jsonrpc": "2.0", "id": "aip44:n:2", "result": {"outcome": {"outcome": "cancelled"}}}),
    );
    assert_snapshot!(fixture.take_seen(), @r#"
    log policy.resolved deny tool="turn" approval={"refused":"user:ada rejected it"} reason="require-approval: no policy matches"
    log operator.resumed
    log operator.interrupted reason="user:ada rejected it"
    c < {"jsonrpc":"2.0","id":3,"result":{"stopReason":"refusal","_meta":{"aip44":{"interrupted":"user:ada rejected it"}}}}
    "#);
}

#[test]
fn an_unrecorded_approval_has_no_effect() {
    let mut fixture = Fixture::with_turn();
    ask_permission(&mut fixture, 7);
    fixture.take_seen();
    fixture.settles_at_once = false;
    answer_approval(&mut fixture, "allow_once");
    for seq in std::mem::take(&mut fixture.output.unsettled) {
        fixture.gate.handle_audit_result(fixture.now, seq, false, &mut fixture.output);
    }
    assert_snapshot!(fixture.take_seen(), @r#"
    log policy.resolved allow tool="Bash" approval="user:ada" reason="require-approval `make`: policy `runs` matches"
    log operator.resumed
    a < {"jsonrpc":"2.0","id":7,"error":{"code":-32017,"message":"audit log unavailable, nothing was done","data":{"condition":"audit_unavailable","retryable":true,"effects":"none"}}}
    log operator.interrupted reason="the audit log could not be written"
    a < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}
    "#);
}

#[test]
fn a_turn_cancelled_before_its_approval_is_reported_as_cancelled() {
    let mut fixture = Fixture::with_config(GateConfig { autonomy: Autonomy::Gated, ..config() }, &[]);
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    fixture.agent_answers(1, &json!({"sessionId": "s"}));
    fixture.client_requests(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    fixture.take_seen();
    fixture.send_client(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}}));
    let seen = fixture.take_seen();
    assert!(seen.contains(r#""id":2,"result":{"stopReason":"cancelled""#), "{seen}");
    assert!(seen.contains("log operator.interrupted"), "{seen}");
}

#[test]
fn without_input_an_approval_covers_the_locations() {
    let mut fixture = Fixture::with_turn();
    let tell = |fixture: &mut Fixture, path: &str, status: &str| {
        fixture.agent_updates(
            &json!({"sessionUpdate": "tool_call", "toolCallId": "1", "kind": "edit", "status": status,
            "locations": [{"path": path}]}),
        );
    };
    tell(&mut fixture, "/w/a/one", "pending");
    fixture.agent_requests(
        7,
        "session/request_permission",
        &json!({"sessionId": "s", "toolCall": {"toolCallId": "1"},
            "options": [{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]}),
    );
    assert!(fixture.take_seen().contains(r#""rawInput":{"locations":["/w/a/one"]}"#));
    answer_approval(&mut fixture, "allow_once");
    tell(&mut fixture, "/w/a/one", "pending");
    assert!(!fixture.take_seen().contains("interrupted"));
    tell(&mut fixture, "/w/a/two", "in_progress");
    assert!(fixture.take_seen().contains("it ran `kind:edit` without an approval"));
}

#[test]
fn a_reused_call_id_needs_another_approval() {
    let mut fixture = Fixture::with_turn();
    ask_permission(&mut fixture, 7);
    answer_approval(&mut fixture, "allow_once");
    fixture.agent_calls("1", "Bash", "in_progress", &json!({"command": "make"}));
    fixture.agent_updates(
        &json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "completed"}),
    );
    assert!(fixture.take_seen().contains("log tool.call allow"));
    fixture.agent_calls("1", "Bash", "in_progress", &json!({"command": "make"}));
    assert!(fixture.take_seen().contains("it ran `Bash` without an approval"));
}

#[test]
fn without_signers_in_the_policy_the_responsible_approvers_decide() {
    use narrows_manifest::types::governance::Approver;
    let approver = |id: &str, can: Option<&[&str]>, quorum: Option<&str>| Approver {
        id: id.into(),
        role: Some(format!("{id}s")),
        can_approve: can.map(|can| can.iter().map(|action| (*action).to_owned()).collect()),
        quorum: quorum.map(str::to_owned),
    };
    let check =
        |approvers: Vec<Approver>, roles: &[&str], votes: &[(&str, Result<(), VoteError>)], allowed: bool| {
            let mut fixture = Fixture::with_config(GateConfig { approvers, ..config() }, roles);
            fixture.open_turn();
            let write =
                json!({"toolCallId": "1", "name": "Write", "kind": "edit", "rawInput": {"path": "/w/a/b"}});
            let options =
                json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
            fixture.agent_requests(
                7,
                "session/request_permission",
                &json!({"sessionId": "s", "toolCall": write, "options": options}),
            );
            for (number, (role, counts)) in votes.iter().enumerate() {
                let signer = Principal {
                    id: format!("user:{number}"),
                    roles: vec![(*role).into()],
                    ..Principal::default()
                };
                let vote =
                    ApprovalVote { id: "n-1".into(), signer, approves: true, reason: None, signature: None };
                assert_eq!(fixture.gate.vote(fixture.now, vote, &mut fixture.output), *counts, "{role}");
                fixture.settle_events();
            }
            let seen = fixture.take_seen();
            assert_eq!(seen.contains(r#""optionId":"y"}"#), allowed, "{seen}");
            seen.contains("session/request_permission")
        };
    let not = Err(VoteError::NotASigner);
    assert!(
        check(Vec::new(), &[], &[("anybody", Ok(()))], true),
        "without approvers, any client that is asked may approve"
    );
    let board = || {
        vec![
            approver("board", Some(&["workspace.write"]), Some("2-of-3")),
            approver("cook", Some(&["dinner"]), None),
        ]
    };
    assert!(!check(board(), &[], &[("cooks", not.clone()), ("boards", Ok(())), ("boards", Ok(()))], true));
    assert!(!check(board(), &[], &[("boards", Ok(()))], false), "one of two is not enough");
    assert!(
        check(vec![approver("lead", None, None)], &["leads"], &[], false),
        "the responsible approver is asked"
    );
    let unknown = Err(VoteError::NotFound);
    assert!(
        !check(vec![approver("lead", Some(&[]), None)], &["leads"], &[("leads", unknown)], false),
        "no signer may approve"
    );
}

#[test]
fn a_turn_begins_once_the_approval_is_recorded_and_ends_once_its_interruption_is() {
    let gated = || Fixture::with_config(GateConfig { autonomy: Autonomy::Gated, ..config() }, &[]);
    for written in [true, false] {
        let mut fixture = gated();
        fixture.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
        fixture.agent_answers(1, &json!({"sessionId": "s"}));
        fixture.client_requests(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
        fixture.take_seen();
        fixture.settles_at_once = false;
        answer_approval(&mut fixture, "allow_once");
        assert!(!fixture.take_seen().contains("session/prompt"));
        for seq in std::mem::take(&mut fixture.output.unsettled) {
            fixture.gate.handle_audit_result(fixture.now, seq, written, &mut fixture.output);
        }
        let seen = fixture.take_seen();
        assert_eq!((seen.contains("session/prompt"), seen.contains("-32017")), (written, !written), "{seen}");
        assert_eq!(
            fixture.gate.pending_at_agent.len(),
            usize::from(written),
            "what never began is not waited for"
        );
    }
    let mut fixture = Fixture::with_turn();
    fixture.settles_at_once = false;
    fixture.agent_calls("1", "Rm", "in_progress", &json!({"path": "/w/a"}));
    fixture.agent_answers(2, &json!({"stopReason": "cancelled"}));
    assert!(!fixture.take_seen().contains("refusal"));
    fixture.settles_at_once = true;
    fixture.settle_events();
    assert!(fixture.take_seen().contains("refusal"));
}

#[test]
fn an_unanswerable_request_is_not_reported_as_rejected() {
    let check = |meta: Value, expected: &str| {
        let mut fixture = Fixture::with_turn();
        let tool = json!({"toolCallId": "1", "name": "Bash", "rawInput": {"command": "make"}});
        let options = json!([{"optionId": "n", "kind": "reject_once"}]);
        let params = json!({"sessionId": "s", "toolCall": tool, "options": options});
        fixture.agent_requests(7, "session/request_permission", &params);
        let result = json!({"outcome": {"outcome": "cancelled"}, "_meta": meta});
        fixture.send_client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result": result}));
        let seen = fixture.take_seen();
        assert!(seen.contains(&format!("approval={{\"refused\":\"{expected}\"}}")), "{meta}: {seen}");
    };
    check(json!(null), "user:ada rejected it");
    check(json!({"narrows/by": "answer"}), "user:ada rejected it");
    check(json!({"narrows/by": "nobody to ask"}), "no user to ask at the client of user:ada");
    check(json!({"narrows/by": "timed out"}), "no answer at the client of user:ada");
}

#[test]
fn a_prompt_that_is_not_a_list_starts_no_turn() {
    for autonomy in [Autonomy::Gated, Autonomy::Autonomous] {
        for prompt in [json!("rm -rf /"), json!({"type": "image", "data": "A"}), json!(null), json!(7)] {
            let mut fixture = Fixture::with_config(GateConfig { autonomy, ..config() }, &[]);
            fixture.client_requests(1, "session/new", &json!({"cwd": "/w/a", "mcpServers": []}));
            fixture.agent_answers(1, &json!({"sessionId": "s"}));
            fixture.take_seen();
            fixture.client_requests(2, "session/prompt", &json!({"sessionId": "s", "prompt": prompt}));
            let seen = fixture.take_seen();
            assert!(seen.contains("-32602") && !seen.contains("a < "), "{prompt} {seen}");
            assert!(fixture.gate.pending_approvals().is_empty(), "{prompt}");
        }
    }
}

/// Returns a gate at which two leads must approve `Bash`. One lead is the client. The other has signed
/// already.
fn half_approved() -> (Fixture, KeyState) {
    let lead = vec![Signer { role: Some("lead".into()), user_id: None }];
    let clause =
        GovernanceRule::new("runs", "tool.call", Class::RequireApproval).with_subject("Bash").unwrap();
    let ruleset = GovernanceRuleset::new(vec![clause.with_signers(lead, 2)]).with_level(Some(2));
    let policy = Policy::new(Access::High, Narrowing::default()).with_ruleset(ruleset);
    let mut fixture = Fixture::new();
    fixture.gate.authorizer = crate::authorizer::Authorizer::new(policy, "n");
    fixture.open_turn();
    ask_permission(&mut fixture, 7);
    let keys = KeyState::default();
    assert_eq!(vote_signed(&mut fixture, "mallory", &keys, true), Ok(()));
    fixture.take_seen();
    (fixture, keys)
}

fn vote_signed(fixture: &mut Fixture, name: &str, keys: &KeyState, approves: bool) -> Result<(), VoteError> {
    let signer = Principal { id: format!("user:{name}"), roles: vec!["lead".into()], ..Principal::default() };
    let signature = Some(keys.signature());
    let vote = ApprovalVote { id: "n-1".into(), signer, approves, reason: None, signature };
    let counted = fixture.gate.vote(fixture.now, vote, &mut fixture.output);
    fixture.settle_events();
    counted
}

#[test]
fn a_client_cannot_complete_a_quorum_with_a_revoked_signature() {
    let (mut fixture, _) = half_approved();
    answer_approval(&mut fixture, "allow_once");
    assert!(fixture.take_seen().contains(r#""optionId":"y""#), "a valid one counts");
    for why in ["a key was revoked", "the keys cannot be read"] {
        let (mut fixture, keys) = half_approved();
        keys.set_invalid(why);
        answer_approval(&mut fixture, "allow_once");
        let seen = fixture.take_seen();
        assert!(seen.contains(r#""optionId":"n""#) && !seen.contains(r#""optionId":"y""#), "{seen}");
        assert!(seen.contains(&format!(r#"approval={{"refused":"{why}"}}"#)), "{seen}");
        assert!(fixture.gate.pending_approvals().is_empty());
    }
}

#[test]
fn an_approval_with_a_revoked_signature_can_only_be_rejected() {
    let (mut fixture, keys) = half_approved();
    keys.set_invalid("a key was revoked");
    let refused = Err(VoteError::SignatureInvalid("a key was revoked".into()));
    assert_eq!(vote_signed(&mut fixture, "cem", &KeyState::default(), true), refused);
    assert_eq!(fixture.take_seen(), "");
    assert_eq!(vote_signed(&mut fixture, "cem", &KeyState::default(), false), Ok(()));
    assert!(fixture.take_seen().contains("user:cem rejected it"));
    let (mut fixture, keys) = half_approved();
    keys.set_invalid("the keys cannot be read");
    answer_approval(&mut fixture, "reject_once");
    assert!(fixture.take_seen().contains("user:ada rejected it"));
}

#[test]
fn a_request_cancelled_by_the_agent_leaves_no_approval() {
    let mut fixture = Fixture::with_turn();
    fixture.agent_requests(
        7,
        "fs/write_text_file",
        &json!({"sessionId": "s", "path": "/w/a/b", "content": "x"}),
    );
    assert!(fixture.take_seen().contains("session/request_permission"));
    let cancel =
        |id: Value| json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": id}});
    fixture.send_agent(&cancel(json!(8)));
    assert_eq!(fixture.gate.pending_approvals().len(), 1, "that is another request");
    fixture.take_seen();
    fixture.send_agent(&cancel(json!(7)));
    let seen = fixture.take_seen();
    assert!(fixture.gate.pending_approvals().is_empty());
    assert!(
        seen.contains("the agent cancelled its request")
            && seen.contains(r#"a < {"jsonrpc":"2.0","id":7,"error""#),
        "{seen}"
    );
    assert!(!seen.contains(r#""requestId":7"#), "the client was not asked for it: {seen}");
    let allow = json!({"outcome": {"outcome": "selected", "optionId": "allow_once"}});
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result": allow}));
    assert!(!fixture.take_seen().contains("fs/write_text_file"));
}
