//! Tests of what the agent's description of a call reveals: variables, arguments, diffs, links.

use std::io;
use std::path::{Path, PathBuf};

use narrows_policy::Rules;

use super::*;

/// A disk with three links: `kk` leads to the hooks of git, `out` leads out of the roots, and `loop` cannot
/// be resolved.
#[derive(Debug)]
struct Linked;

impl PathResolver for Linked {
    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        for (link, target) in [("/w/a/kk", "/w/a/.git/hooks"), ("/w/a/out", "/elsewhere")] {
            if let Ok(rest) = path.strip_prefix(link) {
                return Ok(Path::new(target).join(rest));
            }
        }
        match path.starts_with("/w/a/loop") {
            true => Err(io::Error::other("too many links")),
            false => Ok(path.to_path_buf()),
        }
    }
}

fn turn_with_access(access: Access, rules: &str) -> Fixture {
    let mut config = config();
    config.capabilities.terminal = true;
    let (rules, _) = Rules::parse(rules, "rules.toml").expect("rules");
    let policy = Policy::new(access, Narrowing::default())
        .with_rules(rules)
        .with_ruleset(GovernanceRuleset::new(Vec::new()).with_default(DefaultApproval::Auto));
    let who = Principal { id: "user:ada".into(), method: IdentityMethod::Process, ..Principal::default() };
    let start = GateStart { started_at: 1_000_000, nonce: "n".into() };
    let gate = Gate::new(config, who, policy, Box::new(Linked), start);
    let mut fixture =
        Fixture { gate, now: GateTime::ZERO, output: RecordedOutput::default(), settles_at_once: true };
    fixture.open_turn();
    fixture
}

fn is_permitted(access: Access, rules: &str, call: Value) -> bool {
    let mut fixture = turn_with_access(access, rules);
    let options = json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
    let mut call = call;
    call["toolCallId"] = json!("1");
    fixture.agent_requests(
        7,
        "session/request_permission",
        &json!({"sessionId": "s", "toolCall": call, "options": options}),
    );
    let seen = fixture.take_seen();
    assert!(seen.contains("log policy.resolved"), "{seen}");
    seen.contains(r#""optionId":"y""#)
}

/// Returns `true` if a request to run a command reaches the client, with the recorded event.
fn shows_run(access: Access, rules: &str, params: Value) -> (bool, Value) {
    let mut fixture = turn_with_access(access, rules);
    let mut params = params;
    params["sessionId"] = json!("s");
    fixture.agent_requests(7, "terminal/create", &params);
    let event =
        fixture.output.events.iter().rfind(|event| event.action == "policy.resolved").expect("a decision");
    let input = event.input.clone().unwrap_or_default();
    (fixture.take_seen().contains(r#"c < {"jsonrpc":"2.0","id":7,"method":"terminal/create""#), input)
}

const STATUS: &str = "[[rule]]\neffect = 'allow'\ncommand = 'git status'\n";

#[test]
fn variables_are_judged_and_recorded() {
    let command = |env: Value| json!({"command": "git", "args": ["status"], "env": env});
    for (env, expected) in [
        (json!([]), true),
        (json!([{"name": "LANG", "value": "C"}]), true),
        (json!([{"name": "XDG_CONFIG_HOME", "value": "/w/a/x"}]), false),
    ] {
        let (ran, input) = shows_run(Access::Low, STATUS, command(env.clone()));
        assert_eq!(ran, expected, "{env}");
        assert_eq!(input["env"], env);
        let call = json!({"kind": "execute", "rawInput": command(env.clone())});
        assert_eq!(is_permitted(Access::Low, STATUS, call), expected, "{env}");
    }
}

#[test]
fn arguments_of_any_form_are_judged() {
    let deny = "[[rule]]\neffect = 'deny'\ncommand = 'find -delete'\n";
    for args in [json!(". -delete"), json!([".", "-delete", 1]), json!({"0": "-delete"})] {
        let params = json!({"command": "find", "args": args});
        let mut fixture = turn_with_access(Access::High, deny);
        let mut wanted = params.clone();
        wanted["sessionId"] = json!("s");
        fixture.agent_requests(7, "terminal/create", &wanted);
        let seen = fixture.take_seen();
        assert!(seen.starts_with("log method.refused") && !seen.contains("c < "), "{args}: {seen}");
        let call = json!({"kind": "execute", "rawInput": params});
        assert!(!is_permitted(Access::High, deny, call), "{args}");
    }
    assert!(shows_run(Access::High, deny, json!({"command": "find", "args": ["."]})).0);
}

#[test]
fn a_diff_is_judged_by_the_file_that_it_changes() {
    let diff = |path: &str| json!([{"type": "diff", "path": path, "newText": "x"}]);
    let read = |content: Value| json!({"kind": "read", "content": content});
    assert!(is_permitted(Access::Medium, "", read(diff("/w/a/b"))));
    assert!(!is_permitted(Access::Low, "", read(diff("/w/a/b"))));
    assert!(!is_permitted(Access::Medium, "", read(diff("/etc/cron.d/x"))));
    assert!(!is_permitted(Access::Medium, "", read(diff("/w/a/.git/hooks/pre-commit"))));
    let changes =
        json!([{"type": "diff", "changes": [{"operation": "move", "oldPath": "/w/a/b", "path": "/etc/b"}]}]);
    assert!(!is_permitted(Access::Medium, "", read(changes)));
}

/// An approver and an auditor see the changed file, whatever else the input contains.
#[test]
fn approvers_and_the_log_see_the_diff() {
    for is_v2 in [false, true] {
        let diff = |text: &str| match is_v2 {
            false => json!([{"type": "diff", "path": "/w/a/x", "newText": text}]),
            true => {
                json!([{"type": "diff", "changes": [{"operation": "add", "path": "/w/a/x", "newText": text}]}])
            }
        };
        let call = |content: Value| {
            json!({"toolCallId": "1", "kind": "read", "rawInput": {"path": "/w/a/README.md"},
            "content": content})
        };
        let mut fixture = Fixture::with_turn();
        fixture.gate.is_v2 = is_v2;
        let options =
            json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
        let asks = |fixture: &mut Fixture, id: u64| {
            let mut params =
                json!({"sessionId": "s", "toolCall": call(diff("one")), "options": options.clone()});
            if is_v2 {
                params["subject"] = json!({"type": "tool_call", "toolCall": params["toolCall"].take()});
            }
            fixture.agent_requests(id, "session/request_permission", &params);
            fixture.take_seen()
        };
        let seen = asks(&mut fixture, 7);
        let question = seen.lines().find(|line| line.contains("aip44:n:1")).expect(&seen);
        assert!(question.contains(&format!("\"content\":{}", diff("one"))), "{question}");
        assert!(question.contains("it changes `/w/a/x`"), "{question}");
        let logged = |fixture: &Fixture, action: &str| {
            let event = fixture.output.events.iter().rfind(|event| event.action == action).expect("an event");
            event.input.clone().unwrap_or_default()
        };
        let expected =
            json!({"locations": [], "content": diff("one"), "rawInput": {"path": "/w/a/README.md"}});
        assert_eq!(logged(&fixture, "policy.resolved"), expected);
        // The approval is about the change that the approver saw.
        fixture.agent_updates(
            &json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "content": diff("two")}),
        );
        let seen = fixture.take_seen();
        assert!(seen.contains("changed while it waited") && seen.contains(r#""optionId":"n""#), "{seen}");
        fixture.send_client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result":
            {"outcome": {"outcome": "selected", "optionId": "allow_once"}}}));
        assert!(!fixture.take_seen().contains(r#""optionId":"y""#));

        let mut fixture = Fixture::with_turn();
        fixture.gate.is_v2 = is_v2;
        asks(&mut fixture, 7);
        fixture.send_client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result":
            {"outcome": {"outcome": "selected", "optionId": "allow_once"}}}));
        assert!(fixture.take_seen().contains(r#""optionId":"y""#));
        assert_eq!(logged(&fixture, "policy.resolved"), expected);
        // Agents report a change again after they have made it, with other context lines.
        fixture.agent_updates(
            &json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "content": diff("1\n2")}),
        );
        let other = diff("one").to_string().replace("/w/a/x", "/w/a/y");
        let other: Value = serde_json::from_str(&other).unwrap();
        let update = json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "in_progress"});
        fixture.agent_updates(&update);
        assert!(!fixture.take_seen().contains("operator.interrupted"));
        fixture.agent_updates(
            &json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "content": other}),
        );
        assert!(fixture.take_seen().contains("operator.interrupted"));
    }
}

/// An allowed call is judged again when it shows that it changes another file.
#[test]
fn a_later_diff_is_judged_too() {
    for update in [
        json!({"sessionUpdate": "tool_call_update", "toolCallId": "1",
            "content": [{"type": "diff", "path": "/etc/x", "newText": ""}]}),
        json!({"sessionUpdate": "tool_call_content_chunk", "toolCallId": "1",
            "content": {"type": "diff", "changes": [{"operation": "add", "path": "/etc/x"}]}}),
    ] {
        let mut fixture = turn_with_access(Access::Medium, "");
        fixture.agent_calls("1", "Edit", "in_progress", &json!({"path": "/w/a/b"}));
        assert!(fixture.take_seen().contains("policy.resolved allow"));
        fixture.agent_updates(&update);
        let seen = fixture.take_seen();
        assert!(seen.contains("policy.resolved deny") && seen.contains("operator.interrupted"), "{seen}");
    }
}

#[test]
fn a_path_is_judged_by_where_its_links_lead() {
    let edit = |path: &str| json!({"kind": "edit", "rawInput": {"path": path}});
    for (path, expected) in [
        ("/w/a/b", true),
        ("/w/a/kk/pre-commit", false),
        ("/w/a/out/x", false),
        ("/w/a/loop/x", false),
        ("kk/pre-commit", false),
    ] {
        assert_eq!(is_permitted(Access::Medium, "", edit(path)), expected, "{path}");
    }
    let read = json!({"kind": "read", "locations": [{"path": "/w/a/out/x"}]});
    let deny = "[[rule]]\neffect = 'deny'\npath = '/elsewhere/**'\n";
    assert!(is_permitted(Access::Medium, "", read.clone()) && !is_permitted(Access::Medium, deny, read));
}

/// The gate removes the capability `narrows/authorizes`, because the agent must ask first even if its client
/// would decide by itself.
#[test]
fn the_authorizes_capability_is_not_passed_on() {
    for place in ["clientCapabilities", "capabilities"] {
        let mut fixture = Fixture::new();
        let can = json!({"terminal": true, "_meta": {"narrows/authorizes": true, "other": 1}});
        fixture.client_requests(0, "initialize", &json!({"protocolVersion": 1, place: can}));
        let seen = fixture.take_seen();
        assert!(seen.contains(r#""_meta":{"other":1}"#) && !seen.contains("authorizes"), "{place}: {seen}");
    }
}
