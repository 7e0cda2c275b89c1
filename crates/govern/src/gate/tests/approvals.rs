//! Who approves, and what comes of it.

use std::sync::{Arc, Mutex};

use insta::assert_snapshot;

use super::*;
use crate::config::Autonomy;
use crate::gate::{ApprovalVote, SignatureValidity, VoteError, VoteSignature};

/// What the keys say of a signature that was counted: valid, or why not.
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

fn asks(scene: &mut Scene, id: u64) {
    scene.wants(
        id,
        "session/request_permission",
        &json!({"sessionId": "s", "toolCall": {"toolCallId": "1", "name": "Bash", "rawInput": {"command": "make"}},
            "options": [{"optionId": "always", "kind": "allow_always"}, {"optionId": "y", "kind": "allow_once"},
                {"optionId": "n", "kind": "reject_once"}]}),
    );
}

fn says(scene: &mut Scene, option: &str) {
    scene.client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result":
        {"outcome": {"outcome": "selected", "optionId": option}}}));
}

#[test]
fn somebody_who_may_approves_once() {
    let mut scene = Scene::at_work();
    asks(&mut scene, 7);
    assert_snapshot!(scene.seen(), @r#"
    log policy.resolved require-approval tool="Bash" approval="pending" reason="require-approval `make`: policy `runs` says so"
    log operator.suspended reason="n-1"
    c < {"jsonrpc":"2.0","id":"aip44:n:1","method":"session/request_permission","params":{"sessionId":"s","toolCall":{"toolCallId":"1","title":"Bash","kind":"other","status":"pending","rawInput":{"command":"make"}},"options":[{"optionId":"allow_once","name":"Allow once","kind":"allow_once"},{"optionId":"reject_once","name":"Reject","kind":"reject_once"}],"_meta":{"aip44":{"approval":"n-1","reason":"require-approval `make`: policy `runs` says so"}}}}
    "#);
    says(&mut scene, "allow_once");
    scene.tool("1", "Bash", "in_progress", &json!({"command": "make"}));
    assert_snapshot!(scene.seen(), @r#"
    log policy.resolved allow tool="Bash" approval="user:ada" reason="require-approval `make`: policy `runs` says so"
    log operator.resumed
    a < {"jsonrpc":"2.0","id":7,"result":{"outcome":{"outcome":"selected","optionId":"y"}}}
    log policy.resolved allow tool="Bash" approval="user:ada" reason="require-approval `make`: policy `runs` says so"
    c < {"jsonrpc":"2.0","method":"session/update","params":{"update":{"sessionUpdate":"tool_call","toolCallId":"1","name":"Bash","kind":"execute","status":"in_progress","title":"harmless","rawInput":{"command":"make"}},"sessionId":"s"}}
    "#);
    // The approval was for that input.
    scene.tool("1", "Bash", "in_progress", &json!({"command": "make install"}));
    assert_snapshot!(scene.seen(), @r#"
    log policy.resolved require-approval tool="Bash" approval="pending" reason="require-approval `make install`: policy `runs` says so"
    log operator.interrupted reason="it ran `Bash` without an approval (require-approval `make install`: policy `runs` says so)"
    a < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}
    "#);
}

#[test]
fn a_rejection_is_one_and_so_is_anything_that_is_no_approval() {
    for option in ["reject_once", "y", "always", ""] {
        let mut scene = Scene::at_work();
        asks(&mut scene, 7);
        scene.seen();
        says(&mut scene, option);
        let seen = scene.seen();
        assert!(seen.contains(r#""optionId":"n""#) && seen.contains("log policy.resolved deny"), "{seen}");
    }
}

#[test]
fn nobody_in_time_is_a_refusal() {
    let mut scene = Scene::at_work();
    asks(&mut scene, 7);
    scene.seen();
    scene.pass(299);
    assert_eq!(scene.seen(), "");
    assert_eq!(scene.gate.next_deadline(), Some(Duration::from_secs(300)));
    scene.pass(1);
    assert_snapshot!(scene.seen(), @r#"
    log request.expired reason="nobody approved n-1 within 5 min"
    c < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"aip44:n:1"}}
    log policy.resolved deny tool="Bash" approval={"refused":"nobody approved in time"} reason="require-approval `make`: policy `runs` says so"
    log operator.resumed
    c < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"\napproval n-1 of `Bash` was refused: nobody approved in time (require-approval `make`: policy `runs` says so)\n"}}}}
    a < {"jsonrpc":"2.0","id":7,"result":{"outcome":{"outcome":"selected","optionId":"n"},"_meta":{"aip44":{"refused":"nobody approved in time"}}}}
    "#);
}

#[test]
fn who_may_not_approve_is_not_asked_and_does_not_count() {
    let mut scene = Scene::with(config(), &["intern"]);
    scene.opened();
    asks(&mut scene, 7);
    assert_snapshot!(scene.seen(), @r#"
    log policy.resolved require-approval tool="Bash" approval="pending" reason="require-approval `make`: policy `runs` says so"
    log operator.suspended reason="n-1"
    c < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"\nwaiting for approval n-1 of `Bash` by 1 of role lead (require-approval `make`: policy `runs` says so); `narrows approve n-1 --key FILE` gives it, and without it the call is refused in 5 min\n"}}}}
    "#);
    says(&mut scene, "allow_once");
    assert_snapshot!(scene.seen(), @"");
    let vote = |role: &str| ApprovalVote {
        id: "n-1".into(),
        signer: Principal { id: format!("user:{role}"), roles: vec![role.into()], ..Principal::default() },
        approves: true,
        reason: None,
        signature: Some(KeyState::default().signature()),
    };
    assert_eq!(scene.gate.vote(scene.now, ballot("intern"), &mut scene.sight), Err(VoteError::NotASigner));
    assert_eq!(scene.gate.pending_approvals().len(), 1);
    assert_eq!(scene.gate.vote(scene.now, ballot("lead"), &mut scene.sight), Ok(()));
    scene.commit();
    assert_snapshot!(scene.seen(), @r#"
    log policy.resolved allow tool="Bash" approval="user:lead" reason="require-approval `make`: policy `runs` says so"
    log operator.resumed
    c < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"\napproval n-1 of `Bash` was given by user:lead\n"}}}}
    a < {"jsonrpc":"2.0","id":7,"result":{"outcome":{"outcome":"selected","optionId":"y"}}}
    "#);
    assert_eq!(scene.gate.vote(scene.now, ballot("lead"), &mut scene.sight), Err(VoteError::NotFound));
}

#[test]
fn a_cancelled_turn_approves_nothing() {
    let mut scene = Scene::at_work();
    asks(&mut scene, 7);
    scene.seen();
    scene.client(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}}));
    scene.answer(2, &json!({"stopReason": "cancelled"}));
    assert_snapshot!(scene.seen(), @r#"
    c < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"aip44:n:1"}}
    log policy.resolved deny tool="Bash" approval={"refused":"the turn was cancelled"} reason="require-approval `make`: policy `runs` says so"
    log operator.resumed
    a < {"jsonrpc":"2.0","id":7,"result":{"outcome":{"outcome":"selected","optionId":"n"},"_meta":{"aip44":{"refused":"the turn was cancelled"}}}}
    a < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}
    log operator.interrupted reason="cancelled"
    c < {"jsonrpc":"2.0","id":2,"result":{"stopReason":"cancelled"}}
    "#);
}

#[test]
fn a_gated_operator_asks_for_every_turn() {
    let mut scene = Scene::with(GateConfig { autonomy: Autonomy::Gated, ..config() }, &[]);
    scene.ask(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    scene.answer(1, &json!({"sessionId": "s"}));
    scene.seen();
    scene.ask(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    assert_snapshot!(scene.seen(), @r#"
    log operator.suspended reason="n-1"
    c < {"jsonrpc":"2.0","id":"aip44:n:1","method":"session/request_permission","params":{"sessionId":"s","toolCall":{"toolCallId":"turn 2","title":"turn","kind":"other","status":"pending","rawInput":{"prompt":"","bytes":2,"sha256":"4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"}},"options":[{"optionId":"allow_once","name":"Allow once","kind":"allow_once"},{"optionId":"reject_once","name":"Reject","kind":"reject_once"}],"_meta":{"aip44":{"approval":"n-1","reason":"a gated operator asks for every turn"}}}}
    "#);
    says(&mut scene, "allow_once");
    assert_snapshot!(scene.seen(), @r#"
    log policy.resolved allow tool="turn" approval="user:ada" reason="require-approval: no policy matches"
    log operator.resumed
    a < {"jsonrpc":"2.0","id":2,"method":"session/prompt","params":{"sessionId":"s","prompt":[]}}
    "#);
    scene.answer(2, &json!({"stopReason": "end_turn"}));
    scene.ask(3, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    scene.seen();
    scene.client(
        &json!({"jsonrpc": "2.0", "id": "aip44:n:2", "result": {"outcome": {"outcome": "cancelled"}}}),
    );
    assert_snapshot!(scene.seen(), @r#"
    log policy.resolved deny tool="turn" approval={"refused":"user:ada rejected it"} reason="require-approval: no policy matches"
    log operator.resumed
    log operator.interrupted reason="user:ada rejected it"
    c < {"jsonrpc":"2.0","id":3,"result":{"stopReason":"refusal","_meta":{"aip44":{"interrupted":"user:ada rejected it"}}}}
    "#);
}

#[test]
fn what_could_not_be_recorded_is_not_approved() {
    let mut scene = Scene::at_work();
    asks(&mut scene, 7);
    scene.seen();
    scene.records = false;
    says(&mut scene, "allow_once");
    for seq in std::mem::take(&mut scene.sight.unsettled) {
        scene.gate.handle_audit_result(scene.now, seq, false, &mut scene.sight);
    }
    assert_snapshot!(scene.seen(), @r#"
    log policy.resolved allow tool="Bash" approval="user:ada" reason="require-approval `make`: policy `runs` says so"
    log operator.resumed
    a < {"jsonrpc":"2.0","id":7,"error":{"code":-32017,"message":"the audit log could not be written, so nothing was done","data":{"condition":"audit_unavailable","retryable":true,"effects":"none"}}}
    log operator.interrupted reason="the audit log could not be written"
    a < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}
    "#);
}

#[test]
fn a_turn_that_is_cancelled_before_it_began_was_cancelled_and_not_refused() {
    let mut scene = Scene::with(GateConfig { autonomy: Autonomy::Gated, ..config() }, &[]);
    scene.ask(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    scene.answer(1, &json!({"sessionId": "s"}));
    scene.ask(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    scene.seen();
    scene.client(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}}));
    let seen = scene.seen();
    assert!(seen.contains(r#""id":2,"result":{"stopReason":"cancelled""#), "{seen}");
    assert!(seen.contains("log operator.interrupted"), "{seen}");
}

#[test]
fn an_approval_is_for_the_places_too_where_they_are_all_there_is() {
    let mut scene = Scene::at_work();
    let tell = |scene: &mut Scene, path: &str, status: &str| {
        scene.update(
            &json!({"sessionUpdate": "tool_call", "toolCallId": "1", "kind": "edit", "status": status,
            "locations": [{"path": path}]}),
        );
    };
    tell(&mut scene, "/w/a/one", "pending");
    scene.wants(
        7,
        "session/request_permission",
        &json!({"sessionId": "s", "toolCall": {"toolCallId": "1"},
            "options": [{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]}),
    );
    assert!(scene.seen().contains(r#""rawInput":{"locations":["/w/a/one"]}"#));
    says(&mut scene, "allow_once");
    tell(&mut scene, "/w/a/one", "pending");
    assert!(!scene.seen().contains("interrupted"));
    tell(&mut scene, "/w/a/two", "in_progress");
    assert!(scene.seen().contains("it ran `kind:edit` without an approval"));
}

#[test]
fn an_approval_is_for_one_call_and_not_for_its_id() {
    let mut scene = Scene::at_work();
    asks(&mut scene, 7);
    says(&mut scene, "allow_once");
    scene.tool("1", "Bash", "in_progress", &json!({"command": "make"}));
    scene.update(&json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "completed"}));
    assert!(scene.seen().contains("log tool.call allow"));
    scene.tool("1", "Bash", "in_progress", &json!({"command": "make"}));
    assert!(scene.seen().contains("it ran `Bash` without an approval"));
}

#[test]
fn where_no_policy_names_signers_those_who_are_responsible_approve() {
    use narrows_manifest::types::governance::Approver;
    let approver = |id: &str, can: Option<&[&str]>, quorum: Option<&str>| Approver {
        id: id.into(),
        role: Some(format!("{id}s")),
        can_approve: can.map(|can| can.iter().map(|action| (*action).to_owned()).collect()),
        quorum: quorum.map(str::to_owned),
    };
    let check =
        |approvers: Vec<Approver>, roles: &[&str], votes: &[(&str, Result<(), VoteError>)], allowed: bool| {
            let mut scene = Scene::with(GateConfig { approvers, ..config() }, roles);
            scene.opened();
            let write =
                json!({"toolCallId": "1", "name": "Write", "kind": "edit", "rawInput": {"path": "/w/a/b"}});
            let options =
                json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
            scene.wants(
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
                assert_eq!(scene.gate.vote(scene.now, vote, &mut scene.sight), *counts, "{role}");
                scene.commit();
            }
            let seen = scene.seen();
            assert_eq!(seen.contains(r#""optionId":"y"}"#), allowed, "{seen}");
            seen.contains("session/request_permission")
        };
    let not = Err(VoteError::NotASigner);
    assert!(check(Vec::new(), &[], &[("anybody", Ok(()))], true), "without approvers whoever is asked");
    let board = || {
        vec![
            approver("board", Some(&["workspace.write"]), Some("2-of-3")),
            approver("cook", Some(&["dinner"]), None),
        ]
    };
    assert!(!check(board(), &[], &[("cooks", not.clone()), ("boards", Ok(())), ("boards", Ok(()))], true));
    assert!(!check(board(), &[], &[("boards", Ok(()))], false), "one of two is not enough");
    assert!(check(vec![approver("lead", None, None)], &["leads"], &[], false), "who is responsible is asked");
    let unknown = Err(VoteError::NotFound);
    assert!(
        !check(vec![approver("lead", Some(&[]), None)], &["leads"], &[("leads", unknown)], false),
        "nobody may"
    );
}

#[test]
fn a_turn_begins_once_the_approval_is_recorded_and_ends_once_its_interruption_is() {
    let gated = || Scene::with(GateConfig { autonomy: Autonomy::Gated, ..config() }, &[]);
    for written in [true, false] {
        let mut scene = gated();
        scene.ask(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
        scene.answer(1, &json!({"sessionId": "s"}));
        scene.ask(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
        scene.seen();
        scene.records = false;
        says(&mut scene, "allow_once");
        assert!(!scene.seen().contains("session/prompt"));
        for seq in std::mem::take(&mut scene.sight.unsettled) {
            scene.gate.handle_audit_result(scene.now, seq, written, &mut scene.sight);
        }
        let seen = scene.seen();
        assert_eq!((seen.contains("session/prompt"), seen.contains("-32017")), (written, !written), "{seen}");
        assert_eq!(
            scene.gate.pending_at_agent.len(),
            usize::from(written),
            "what never began is not waited for"
        );
    }
    let mut scene = Scene::at_work();
    scene.records = false;
    scene.tool("1", "Rm", "in_progress", &json!({"path": "/w/a"}));
    scene.answer(2, &json!({"stopReason": "cancelled"}));
    assert!(!scene.seen().contains("refusal"));
    scene.records = true;
    scene.commit();
    assert!(scene.seen().contains("refusal"));
}

#[test]
fn nobody_is_said_to_have_rejected_what_nobody_was_asked() {
    let check = |meta: Value, expected: &str| {
        let mut scene = Scene::at_work();
        let tool = json!({"toolCallId": "1", "name": "Bash", "rawInput": {"command": "make"}});
        let options = json!([{"optionId": "n", "kind": "reject_once"}]);
        let params = json!({"sessionId": "s", "toolCall": tool, "options": options});
        scene.wants(7, "session/request_permission", &params);
        let result = json!({"outcome": {"outcome": "cancelled"}, "_meta": meta});
        scene.client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result": result}));
        let seen = scene.seen();
        assert!(seen.contains(&format!("approval={{\"refused\":\"{expected}\"}}")), "{meta}: {seen}");
    };
    check(json!(null), "user:ada rejected it");
    check(json!({"narrows/by": "answer"}), "user:ada rejected it");
    check(json!({"narrows/by": "nobody to ask"}), "nobody could be asked at the client of user:ada");
    check(json!({"narrows/by": "timed out"}), "nobody answered at the client of user:ada");
}

#[test]
fn a_prompt_that_is_no_list_of_blocks_starts_no_turn() {
    for autonomy in [Autonomy::Gated, Autonomy::Autonomous] {
        for prompt in [json!("rm -rf /"), json!({"type": "image", "data": "A"}), json!(null), json!(7)] {
            let mut scene = Scene::with(GateConfig { autonomy, ..config() }, &[]);
            scene.ask(1, "session/new", &json!({"cwd": "/w/a", "mcpServers": []}));
            scene.answer(1, &json!({"sessionId": "s"}));
            scene.seen();
            scene.ask(2, "session/prompt", &json!({"sessionId": "s", "prompt": prompt}));
            let seen = scene.seen();
            assert!(seen.contains("-32602") && !seen.contains("a < "), "{prompt} {seen}");
            assert!(scene.gate.pending_approvals().is_empty(), "{prompt}");
        }
    }
}

/// A gate at which two leads have to approve `Bash`, one of whom is the client. The other has signed.
fn half_approved() -> (Scene, KeyState) {
    let lead = vec![Signer { role: Some("lead".into()), user_id: None }];
    let clause = Clause::new("runs", "tool.call", Class::RequireApproval).on("Bash").unwrap();
    let charter = Charter::new(vec![clause.signed_by(lead, 2)]).with_level(Some(2));
    let policy = Policy::new(Access::High, Narrowing::default()).with_charter(charter);
    let mut scene = Scene::new();
    scene.gate.authorizer = crate::authorizer::Authorizer::new(policy, "n");
    scene.opened();
    asks(&mut scene, 7);
    let keys = KeyState::default();
    assert_eq!(signs(&mut scene, "mallory", &keys, true), Ok(()));
    scene.seen();
    (scene, keys)
}

fn signs(scene: &mut Scene, name: &str, keys: &KeyState, approves: bool) -> Result<(), VoteError> {
    let signer = Principal { id: format!("user:{name}"), roles: vec!["lead".into()], ..Principal::default() };
    let signature = Some(keys.signature());
    let vote = ApprovalVote { id: "n-1".into(), signer, approves, reason: None, signature };
    let counted = scene.gate.vote(scene.now, vote, &mut scene.sight);
    scene.commit();
    counted
}

#[test]
fn a_client_completes_no_quorum_with_a_signature_that_is_not_valid_any_more() {
    let (mut scene, _) = half_approved();
    says(&mut scene, "allow_once");
    assert!(scene.seen().contains(r#""optionId":"y""#), "a valid one counts");
    for why in ["a key was revoked", "the keys cannot be read"] {
        let (mut scene, keys) = half_approved();
        keys.set_invalid(why);
        says(&mut scene, "allow_once");
        let seen = scene.seen();
        assert!(seen.contains(r#""optionId":"n""#) && !seen.contains(r#""optionId":"y""#), "{seen}");
        assert!(seen.contains(&format!(r#"approval={{"refused":"{why}"}}"#)), "{seen}");
        assert!(scene.gate.pending_approvals().is_empty());
    }
}

#[test]
fn what_waits_with_a_signature_that_is_not_valid_any_more_can_only_be_rejected() {
    let (mut scene, keys) = half_approved();
    keys.set_invalid("a key was revoked");
    let refused = Err(VoteError::SignatureInvalid("a key was revoked".into()));
    assert_eq!(signs(&mut scene, "cem", &KeyState::default(), true), refused);
    assert_eq!(scene.seen(), "");
    assert_eq!(signs(&mut scene, "cem", &KeyState::default(), false), Ok(()));
    assert!(scene.seen().contains("user:cem rejected it"));
    let (mut scene, keys) = half_approved();
    keys.set_invalid("the keys cannot be read");
    says(&mut scene, "reject_once");
    assert!(scene.seen().contains("user:ada rejected it"));
}

#[test]
fn a_request_that_the_agent_cancels_waits_no_more() {
    let mut scene = Scene::at_work();
    scene.wants(7, "fs/write_text_file", &json!({"sessionId": "s", "path": "/w/a/b", "content": "x"}));
    assert!(scene.seen().contains("session/request_permission"));
    let cancel =
        |id: Value| json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": id}});
    scene.agent(&cancel(json!(8)));
    assert_eq!(scene.gate.pending_approvals().len(), 1, "that is another request");
    scene.seen();
    scene.agent(&cancel(json!(7)));
    let seen = scene.seen();
    assert!(scene.gate.pending_approvals().is_empty());
    assert!(
        seen.contains("the agent cancelled its request")
            && seen.contains(r#"a < {"jsonrpc":"2.0","id":7,"error""#),
        "{seen}"
    );
    assert!(!seen.contains(r#""requestId":7"#), "the client was not asked for it: {seen}");
    let allow = json!({"outcome": {"outcome": "selected", "optionId": "allow_once"}});
    scene.client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result": allow}));
    assert!(!scene.seen().contains("fs/write_text_file"));
}
