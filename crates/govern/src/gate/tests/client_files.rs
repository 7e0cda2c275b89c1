//! Files that the client serves for an agent behind the gate.

use insta::assert_snapshot;

use super::*;

#[test]
fn files_are_served_within_the_roots_and_the_declared_capabilities() {
    let mut scene = Scene::at_work();
    scene.wants(1, "fs/read_text_file", &json!({"sessionId": "s", "path": "/w/a/b"}));
    scene.client(&json!({"jsonrpc": "2.0", "id": 1, "result": {"content": "x"}}));
    assert_snapshot!(scene.seen(), @r#"
    log policy.resolved allow tool="fs/read_text_file" approval="auto" reason="allow `/w/a/b`: no policy matches"
    c < {"jsonrpc":"2.0","id":1,"method":"fs/read_text_file","params":{"sessionId":"s","path":"/w/a/b"}}
    log tool.call allow tool="fs/read_text_file" approval="auto"
    a < {"jsonrpc":"2.0","id":1,"result":{"content":"x"}}
    "#);
    scene.wants(2, "fs/read_text_file", &json!({"sessionId": "s", "path": "/w/other"}));
    scene.wants(3, "terminal/create", &json!({"sessionId": "s", "command": "ls"}));
    assert_snapshot!(scene.seen(), @r#"
    log tool.refused deny code="path_outside_root"
    a < {"jsonrpc":"2.0","id":2,"error":{"code":-32602,"message":"the path lies outside the directories of the operator","data":{"condition":"invalid_params","retryable":false,"effects":"none","code":"path_outside_root"}}}
    a < {"jsonrpc":"2.0","id":3,"error":{"code":-32601,"message":"the manifest does not declare this capability","data":{"condition":"method_not_found","retryable":false,"effects":"none"}}}
    "#);
}

#[test]
fn what_a_sandbox_shows_read_only_is_not_written_by_the_client_either() {
    let roots = ["/w/a", "/w/a/docs", "/w/a/docs/drafts"].map(Into::into).to_vec();
    let mut scene =
        Scene::with(Mandate { roots, read_only: vec!["/w/a/docs".into()], ..mandate() }, &["lead"]);
    scene.opened();
    let code = |scene: &mut Scene, id: u64, method: &str, path: &str| {
        let mut params = json!({"sessionId": "s", "path": path});
        if method == "fs/write_text_file" {
            params["content"] = json!("x");
        }
        scene.wants(id, method, &params);
        scene.seen().contains("sandbox_read_only")
    };
    assert!(code(&mut scene, 2, "fs/write_text_file", "/w/a/docs/x"));
    assert!(code(&mut scene, 3, "fs/write_text_file", "/w/a/docs"));
    assert!(!code(&mut scene, 4, "fs/write_text_file", "/w/a/x"));
    assert!(!code(&mut scene, 5, "fs/write_text_file", "/w/a/docs/drafts/x"));
    assert!(!code(&mut scene, 6, "fs/read_text_file", "/w/a/docs/x"));
}

#[test]
fn a_request_to_the_client_has_the_members_of_its_method_and_no_others() {
    let capabilities = Capabilities { terminal: true, ..mandate().capabilities };
    let mut scene = Scene::with(Mandate { capabilities, ..mandate() }, &["lead"]);
    scene.gate.desk = crate::desk::Desk::new(Policy::new(Access::High, Narrowing::default()), "g");
    scene.opened();
    let mut id = 1;
    let mut passes = |method: &str, more: Value| {
        id += 1;
        let mut params = match method {
            "terminal/create" => json!({"sessionId": "s", "command": "ls"}),
            _ => json!({"sessionId": "s", "path": "/w/a/b"}),
        };
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        scene.wants(id, method, &params);
        let seen = scene.seen();
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
    let sealed = vec!["/w/a/GOVERNANCE.md".into()];
    let mut scene = Scene::with(Mandate { sealed, ..mandate() }, &["lead"]);
    scene.gate.desk = crate::desk::Desk::new(Policy::new(Access::High, Narrowing::default()), "g");
    scene.opened();
    let patch = "*** Begin Patch\n*** Update File: /w/a/GOVERNANCE.md\n@@\n-a\n+b\n*** End Patch\n";
    scene.wants(
        2,
        "fs/write_text_file",
        &json!({"sessionId": "s", "path": "/w/a/x.patch", "content": patch}),
    );
    assert!(scene.seen().contains("c < "));
    let meta = json!({"command": "ls"});
    let params = json!({"sessionId": "s", "path": "/w/a/GOVERNANCE.md", "content": "x", "_meta": meta});
    scene.wants(3, "fs/write_text_file", &params);
    let seen = scene.seen();
    assert!(seen.contains("decides about the agent") && !seen.contains("c < "), "{seen}");
}
