//! Tests of files that the client serves for an agent behind the gate.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use insta::assert_snapshot;
use narrows_base::sync::lock;

use super::*;

/// A disk whose links the test can change.
#[derive(Clone, Debug, Default)]
struct Links(Arc<Mutex<BTreeMap<PathBuf, PathBuf>>>);

impl Links {
    fn set(&self, at: &str, to: &str) {
        lock(&self.0).insert(at.into(), to.into());
    }
}

impl PathResolver for Links {
    fn canonicalize(&self, path: &Path) -> std::io::Result<PathBuf> {
        let links = lock(&self.0);
        let found = links.iter().find_map(|(at, to)| Some(to.join(path.strip_prefix(at).ok()?)));
        Ok(found.unwrap_or_else(|| path.to_path_buf()).components().collect())
    }
}

/// Returns a gate at which file changes and commands need a lead, and `/w/a/finance` is denied.
fn with_links(links: &Links) -> Fixture {
    let capabilities = Capabilities { terminal: true, ..config().capabilities };
    let protected = vec!["/w/a/audit".into()];
    let mut fixture = Fixture::with_config(GateConfig { capabilities, protected, ..config() }, &["lead"]);
    let lead = vec![Signer { role: Some("lead".into()), user_id: None }];
    let ask = |slug: &str, subject: &str| {
        GovernanceRule::new(slug, "tool.call", Class::RequireApproval)
            .with_subject(subject)
            .unwrap()
            .with_signers(lead.clone(), 1)
    };
    let clauses = vec![
        ask("edits", "kind:edit"),
        ask("runs", "kind:execute"),
        GovernanceRule::new("books", "workspace.write", Class::Deny)
            .with_subject("workspace:/finance/**")
            .unwrap(),
    ];
    let ruleset = GovernanceRuleset::new(clauses).with_level(Some(2)).with_default(DefaultApproval::Auto);
    let policy = Policy::new(Access::High, Narrowing::default()).with_ruleset(ruleset);
    fixture.gate.authorizer = crate::authorizer::Authorizer::new(policy, "g");
    fixture.gate.resolver = Box::new(links.clone());
    fixture.open_turn();
    fixture
}

fn approve(fixture: &mut Fixture, question: u64) {
    let outcome = json!({"outcome": {"outcome": "selected", "optionId": "allow_once"}});
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": format!("aip44:n:{question}"), "result": outcome}));
}

#[track_caller]
fn is_refused(seen: &str) {
    assert!(!seen.contains(r#""method":"fs/"#) && !seen.contains(r#""method":"terminal/"#), "{seen}");
    assert!(seen.contains("the path now leads elsewhere"), "{seen}");
}

const REQUESTS: [(&str, &str, &str); 3] = [
    ("fs/read_text_file", "path", "/w/a/chan/x"),
    ("fs/write_text_file", "path", "/w/a/chan/x"),
    ("terminal/create", "cwd", "/w/a/chan/x"),
];

fn file_request(method: &str, place: &str, path: &str) -> Value {
    let mut params = json!({"sessionId": "s", place: path});
    match method {
        "fs/write_text_file" => params["content"] = json!("x"),
        "terminal/create" => params["command"] = json!("make"),
        _ => {}
    }
    params
}

#[test]
fn a_path_that_leads_elsewhere_when_it_is_approved_is_refused() {
    for target in ["/w/a/finance/book", "/w/a/audit/log", "/etc", "/w/a/chan/y"] {
        for (method, place, path) in &REQUESTS[1..] {
            let links = Links::default();
            let mut fixture = with_links(&links);
            fixture.agent_requests(5, method, &file_request(method, place, path));
            assert!(fixture.take_seen().contains("session/request_permission"));
            links.set(path, target);
            approve(&mut fixture, 1);
            is_refused(&fixture.take_seen());
        }
    }
}

#[test]
fn a_path_that_leads_elsewhere_when_it_is_sent_is_refused_and_recorded() {
    for (method, place, path) in REQUESTS {
        let links = Links::default();
        let mut fixture = with_links(&links);
        fixture.agent_requests(5, method, &file_request(method, place, path));
        fixture.take_seen();
        fixture.settles_at_once = false;
        approve(&mut fixture, 1);
        if method == "fs/read_text_file" {
            fixture.agent_requests(6, method, &file_request(method, place, path));
        }
        links.set(path, "/w/a/finance/book");
        fixture.settles_at_once = true;
        fixture.settle_events();
        let seen = fixture.take_seen();
        if method == "fs/read_text_file" {
            assert!(seen.contains("code=\"path_moved\"") && !seen.contains(r#""id":6,"method""#), "{seen}");
            continue;
        }
        is_refused(&seen);
        assert!(seen.contains("log tool.refused deny code=\"path_moved\""), "{seen}");
        fixture.agent_requests(7, method, &file_request(method, place, path));
        assert!(method == "terminal/create" || fixture.take_seen().contains("policy `books` matches"));
    }
}

#[test]
fn the_client_gets_the_resolved_path_and_must_not_follow_links() {
    let links = Links::default();
    links.set("/w/a/in", "/w/a/real");
    for (method, place, _) in REQUESTS {
        let mut fixture = with_links(&links);
        fixture.agent_requests(5, method, &file_request(method, place, "/w/a/in/x"));
        if method != "fs/read_text_file" {
            let question = fixture.output.raw.last().unwrap();
            assert!(question.contains("/w/a/in/x") && question.contains("/w/a/real/x"), "{question}");
            approve(&mut fixture, 1);
        }
        let sent: Value = serde_json::from_str(fixture.output.raw.last().unwrap()).unwrap();
        assert_eq!((&sent["method"], &sent["params"][place]), (&json!(method), &json!("/w/a/real/x")));
        assert_eq!(sent["params"]["_meta"], json!({"narrows": {"noLinks": true}}), "{sent}");
    }
    // A `_meta.narrows` that the agent sends is replaced.
    let mut fixture = with_links(&links);
    let mut params = file_request("fs/read_text_file", "path", "/w/a/x");
    params["_meta"] = json!({"a": 1, "narrows": {"noLinks": false}});
    fixture.agent_requests(5, "fs/read_text_file", &params);
    let sent: Value = serde_json::from_str(fixture.output.raw.last().unwrap()).unwrap();
    assert_eq!(sent["params"]["_meta"], json!({"a": 1, "narrows": {"noLinks": true}}));
    links.set("/w/a/finance/old", "/w/a/x");
    fixture.agent_requests(
        6,
        "fs/write_text_file",
        &file_request("fs/write_text_file", "path", "/w/a/finance/old"),
    );
    assert!(fixture.take_seen().contains("policy `books` matches"));
}

#[test]
fn a_command_without_a_directory_runs_in_that_of_the_session() {
    let links = Links::default();
    let mut fixture = with_links(&links);
    links.set("/w/a", "/w/elsewhere");
    let params = json!({"sessionId": "s", "command": "make"});
    fixture.agent_requests(5, "terminal/create", &params);
    is_refused(&fixture.take_seen());
    links.set("/w/a", "/w/a");
    fixture.agent_requests(6, "terminal/create", &params);
    fixture.take_seen();
    links.set("/w/a", "/w/elsewhere");
    approve(&mut fixture, 1);
    is_refused(&fixture.take_seen());
}

#[test]
fn files_are_served_within_the_roots_and_the_declared_capabilities() {
    let mut fixture = Fixture::with_turn();
    fixture.agent_requests(1, "fs/read_text_file", &json!({"sessionId": "s", "path": "/w/a/b"}));
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": 1, "result": {"content": "x"}}));
    assert_snapshot!(fixture.take_seen(), @r#"
    log policy.resolved allow tool="fs/read_text_file" approval="auto" reason="allow `/w/a/b`: no policy matches"
    c < {"jsonrpc":"2.0","id":1,"method":"fs/read_text_file","params":{"sessionId":"s","path":"/w/a/b"}}
    log tool.call allow tool="fs/read_text_file" approval="auto"
    a < {"jsonrpc":"2.0","id":1,"result":{"content":"x"}}
    "#);
    fixture.agent_requests(2, "fs/read_text_file", &json!({"sessionId": "s", "path": "/w/other"}));
    fixture.agent_requests(3, "terminal/create", &json!({"sessionId": "s", "command": "ls"}));
    assert_snapshot!(fixture.take_seen(), @r#"
    log tool.refused deny code="path_outside_root"
    a < {"jsonrpc":"2.0","id":2,"error":{"code":-32602,"message":"the path is outside the operator's directories","data":{"condition":"invalid_params","retryable":false,"effects":"none","code":"path_outside_root"}}}
    a < {"jsonrpc":"2.0","id":3,"error":{"code":-32601,"message":"the manifest does not declare this capability","data":{"condition":"method_not_found","retryable":false,"effects":"none"}}}
    "#);
}

#[test]
fn read_only_paths_are_not_written_by_the_client_either() {
    let roots = ["/w/a", "/w/a/docs", "/w/a/docs/drafts"].map(Into::into).to_vec();
    let mut fixture = Fixture::with_config(
        GateConfig { roots, read_only: vec!["/w/a/docs".into()], ..config() },
        &["lead"],
    );
    fixture.open_turn();
    let code = |fixture: &mut Fixture, id: u64, method: &str, path: &str| {
        let mut params = json!({"sessionId": "s", "path": path});
        if method == "fs/write_text_file" {
            params["content"] = json!("x");
        }
        fixture.agent_requests(id, method, &params);
        fixture.take_seen().contains("sandbox_read_only")
    };
    assert!(code(&mut fixture, 2, "fs/write_text_file", "/w/a/docs/x"));
    assert!(code(&mut fixture, 3, "fs/write_text_file", "/w/a/docs"));
    assert!(!code(&mut fixture, 4, "fs/write_text_file", "/w/a/x"));
    assert!(!code(&mut fixture, 5, "fs/write_text_file", "/w/a/docs/drafts/x"));
    assert!(!code(&mut fixture, 6, "fs/read_text_file", "/w/a/docs/x"));
}

#[test]
fn requests_to_the_client_have_only_the_members_of_their_method() {
    let capabilities = Capabilities { terminal: true, ..config().capabilities };
    let mut fixture = Fixture::with_config(GateConfig { capabilities, ..config() }, &["lead"]);
    fixture.gate.authorizer =
        crate::authorizer::Authorizer::new(Policy::new(Access::High, Narrowing::default()), "g");
    fixture.open_turn();
    let mut id = 1;
    let mut passes = |method: &str, more: Value| {
        id += 1;
        let mut params = match method {
            "terminal/create" => json!({"sessionId": "s", "command": "ls"}),
            _ => json!({"sessionId": "s", "path": "/w/a/b"}),
        };
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fixture.agent_requests(id, method, &params);
        let seen = fixture.take_seen();
        let is_refused = seen.starts_with("log method.refused deny code=\"unknown_member\"\na < ");
        assert_ne!(is_refused, seen.contains("c < "), "{params} {seen}");
        !is_refused
    };
    for (method, more) in [
        ("fs/read_text_file", json!({"line": 1, "limit": 2, "_meta": {"a": 1}})),
        ("fs/write_text_file", json!({"content": "x", "_meta": {"command": "ls"}, "command": null})),
        ("terminal/create", json!({"args": ["-l"], "cwd": "/w/a", "env": [], "outputByteLimit": 9})),
    ] {
        assert!(passes(method, more.clone()));
        for (name, value) in [
            ("cmd", json!("ls")),
            ("script", json!(["ls"])),
            ("file", json!("/etc/passwd")),
            ("kind", json!("read")),
            ("rawInput", json!({"command": "ls"})),
            ("append", json!(true)),
            ("", json!("x")),
        ] {
            let mut with = more.clone();
            with[name] = value;
            assert!(!passes(method, with.clone()), "{method} {with}");
        }
    }
    assert!(!passes("fs/write_text_file", json!({"content": "x", "command": "ls"})));
}

#[test]
fn a_written_file_is_judged_by_its_path_and_not_by_its_text() {
    let protected = vec!["/w/a/GOVERNANCE.md".into()];
    let mut fixture = Fixture::with_config(GateConfig { protected, ..config() }, &["lead"]);
    fixture.gate.authorizer =
        crate::authorizer::Authorizer::new(Policy::new(Access::High, Narrowing::default()), "g");
    fixture.open_turn();
    let patch = "*** Begin Patch\n*** Update File: /w/a/GOVERNANCE.md\n@@\n-a\n+b\n*** End Patch\n";
    fixture.agent_requests(
        2,
        "fs/write_text_file",
        &json!({"sessionId": "s", "path": "/w/a/x.patch", "content": patch}),
    );
    assert!(fixture.take_seen().contains("c < "));
    let meta = json!({"command": "ls"});
    let params = json!({"sessionId": "s", "path": "/w/a/GOVERNANCE.md", "content": "x", "_meta": meta});
    fixture.agent_requests(3, "fs/write_text_file", &params);
    let seen = fixture.take_seen();
    assert!(seen.contains("governs the agent") && !seen.contains("c < "), "{seen}");
}
