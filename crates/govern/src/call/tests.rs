use super::*;

#[test]
fn mcp_reads_are_reads_and_file_uris_are_paths() {
    let check = |input: Value, kind: Kind, paths: &[&str]| {
        let action = Call::mcp_read("db".into(), "resources/read", input.clone()).action();
        let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
        assert_eq!((action.kind, action.paths), (kind, paths), "{input}");
    };
    check(json!({"uri": "file:///etc/passwd"}), Kind::Read, &["/etc/passwd"]);
    check(json!({"uri": "FILE:///w/a%20b"}), Kind::Read, &["/w/a b"]);
    check(json!({"uri": "file://localhost/w/a"}), Kind::Read, &["/w/a"]);
    check(json!({"uri": "file:/w/a"}), Kind::Read, &["/w/a"]);
    check(json!({"uri": "db://rows/1"}), Kind::Read, &[]);
    check(json!({"name": "greet"}), Kind::Read, &[]);
    for doubtful in ["file://host/w", "file:w", "file:///w?b", " file:///w", "/w", "fi\nle:/w"] {
        for input in [json!({"uri": doubtful}), json!({"ref": {"type": "ref/resource", "uri": doubtful}})] {
            let action = Call::mcp_read("db".into(), "resources/read", input).action();
            assert_eq!(action.kind, Kind::Other, "{doubtful}");
            assert!(action.paths.contains(&"/w".into()), "{doubtful} {action:?}");
        }
    }
    check(json!({"uri": "rows"}), Kind::Other, &["rows"]);
    check(json!({"uri": 7}), Kind::Other, &[]);
    check(json!({"uri": ["file:///w"]}), Kind::Other, &["/w"]);
}

#[test]
fn unknown_members_of_a_location_are_judged() {
    let call = |locations: &str| {
        let mut call = Call::default();
        let told = format!(r#"{{"kind":"read","rawInput":{{"path":"/a"}},"locations":{locations}}}"#);
        assert!(call.apply_update(serde_json::from_str(&told).unwrap()));
        call
    };
    let usual = call(r#"[{"path":"/a","line":3,"_meta":{"x":1}}]"#);
    assert_eq!(usual.action().kinds(), [Kind::Read]);
    let unusual = call(r#"[{"path":"/a","newPath":"/etc/x"}]"#);
    assert!(
        unusual.action().kinds().contains(&Kind::Other) && unusual.action().paths.contains(&"/etc/x".into())
    );
    assert_ne!(usual.digest(), unusual.digest());
    assert!(unusual.permission_tool_call("1")["locations"].to_string().contains("/etc/x"));
    assert!(unusual.approval_input().to_string().contains("/etc/x"));
    let mut changed = usual.clone();
    let told = r#"{"locations":[{"path":"/a","newPath":"/etc/x"}]}"#;
    assert!(changed.apply_update(serde_json::from_str(told).unwrap()));
    for unreadable in [r#"{"locations":[{"line":1}]}"#, r#"{"locations":[{"path":"/a","path":"/b"}]}"#] {
        assert!(serde_json::from_str::<CallUpdate<'_>>(unreadable).is_err(), "{unreadable}");
    }
}

#[track_caller]
fn check(texts: &[&str], tool: &str, bare: bool) {
    let mut call = Call::default();
    for text in texts {
        call.apply_update(serde_json::from_str(text).unwrap());
    }
    assert_eq!((call.tool().as_str(), call.is_bare()), (tool, bare), "{texts:?}");
}

#[test]
fn a_tool_is_known_by_name_or_kind_and_never_by_title() {
    check(&[r#"{"toolCallId":"c","title":"rm -rf"}"#], "kind:other", true);
    check(&[r#"{"toolCallId":"c","title":"x","kind":"edit","rawInput":{}}"#], "kind:edit", true);
    check(&[r#"{"name":"Bash","kind":"execute","rawInput":{"a":1}}"#], "Bash", false);
    check(&[r#"{"_meta":{"claudeCode":{"toolName":"Grep"}}}"#, r#"{"title":"y"}"#], "Grep", true);
    check(&[r#"{"status":"in_progress"}"#], "kind:other", false);
    check(&[r#"{"status":"_x"}"#], "kind:other", false);
    check(&[r#"{"locations":[{"path":"/a"}]}"#], "kind:other", false);
}

#[test]
fn a_reserved_name_is_not_the_name_of_a_tool() {
    for name in
        ["kind:read", "KIND:read", "kind:", "notes/add", "/", "fs/read_text_file", "turn", "session.set_mode"]
    {
        let told = format!(r#"{{"name":"{name}","kind":"execute"}}"#);
        let mut call = Call::default();
        assert!(call.apply_update(serde_json::from_str(&told).unwrap()));
        assert_eq!((call.tool().as_str(), call.claimed_name()), ("kind:execute", Some(name)));
        assert!(!call.apply_update(serde_json::from_str(&told).unwrap()), "nothing new");
        // An announced call with a reserved name does not match a decided call.
        let decided = Call::new(Some("notes".into()), "add", "other", json!({}))
            .with_reported_name("notes__add".into());
        assert!(!decided.is_named_like(&call), "{name}");
        assert!(call.apply_update(serde_json::from_str(r#"{"name":"Bash"}"#).unwrap()));
        assert_eq!((call.tool().as_str(), call.claimed_name()), ("Bash", None));
        assert!(call.apply_update(serde_json::from_str(&told).unwrap()));
        assert_eq!((call.tool().as_str(), call.claimed_name()), ("kind:execute", Some(name)));
    }
    let meta = r#"{"_meta":{"toolName":"kind:read"},"kind":"edit"}"#;
    check(&[meta], "kind:edit", true);
    for name in ["kind", "mcp__notes__add", "return", "Read"] {
        check(&[&format!(r#"{{"name":"{name}"}}"#)], name, true);
    }
}

#[test]
fn a_server_tool_keeps_its_reported_name() {
    let decided =
        Call::new(Some("notes".into()), "add", "other", json!({})).with_reported_name("notes__add".into());
    let check = |told: Option<&str>, same: bool| {
        let mut call = Call::default();
        let said = told.map(|told| format!(r#"{{"name":"{told}"}}"#)).unwrap_or_else(|| "{}".to_owned());
        call.apply_update(serde_json::from_str(&said).unwrap());
        assert_eq!(decided.is_named_like(&call), same, "{told:?}");
        let mut decided = decided.clone();
        assert_eq!(decided.apply_update(serde_json::from_str(&said).unwrap()), !same, "{told:?}");
    };
    check(Some("notes__add"), true);
    check(None, true);
    check(Some("notes__add_2"), false);
}

#[test]
fn updates_that_affect_the_decision_are_reported() {
    let mut call = Call::default();
    let mut hear = |text: &str| call.apply_update(serde_json::from_str(text).unwrap());
    assert!(hear(r#"{"kind":"edit","rawInput":{"path":"/a"}}"#));
    assert!(!hear(r#"{"kind":"edit","title":"","rawInput":{"path":"/a"},"status":"completed"}"#));
    assert!(hear(r#"{"rawInput":{"path":"/b"}}"#));
    assert!(hear(r#"{"name":"x"}"#));
    assert!(!hear(r#"{"rawOutput":{"ok":true}}"#));
    assert_eq!((call.progress, call.output), (CallStatus::Completed, json!({"ok": true})));
}

#[test]
fn a_call_with_a_result_has_run() {
    let check = |statuses: &[&str], begun: bool| {
        let mut call = Call::default();
        for status in statuses {
            call.apply_update(serde_json::from_str(&format!(r#"{{"status":"{status}"}}"#)).unwrap());
        }
        assert_eq!(call.has_begun(), begun, "{statuses:?}");
    };
    check(&["pending"], false);
    check(&["failed"], false);
    check(&["failed", "completed"], true);
    check(&["in_progress", "failed"], true);
    check(&["_levitating"], true);
}

#[test]
fn an_ended_call_that_runs_again_is_a_further_call() {
    let mut call = Call::default();
    call.apply_update(
        serde_json::from_str(r#"{"kind":"edit","rawInput":{"path":"/a"},"status":"completed"}"#).unwrap(),
    );
    let check = |text: &str, is_another: bool| {
        let again = call.new_run(&serde_json::from_str(text).unwrap());
        assert_eq!(again.is_some(), is_another, "{text}");
        assert!(again.is_none_or(|again| again.output.is_null()));
    };
    check(r#"{"status":"completed"}"#, false);
    check(r#"{"content":[]}"#, false);
    check(r#"{"rawInput":{"path":"/a"},"status":"completed"}"#, false);
    check(r#"{"rawInput":{"path":"/b"},"status":"completed"}"#, true);
    check(r#"{"status":"in_progress"}"#, true);
    check(r#"{"status":"pending"}"#, true);
}

#[test]
fn a_shown_diff_is_part_of_the_decision() {
    let diff = |path: &str, new: &str| json!({"type": "diff", "path": path, "newText": new});
    let mut call = Call::default();
    let mut hear = |said: Value| {
        let changed = call.apply_update(serde_json::from_str(&said.to_string()).unwrap());
        (changed, call.action().kinds(), call.action().paths.len())
    };
    assert_eq!(hear(json!({"kind": "read", "rawInput": {"path": "/a"}})), (true, vec![Kind::Read], 1));
    assert_eq!(hear(json!({"content": [{"type": "content"}]})), (false, vec![Kind::Read], 1));
    assert_eq!(hear(json!({"content": [diff("/a", "x")]})), (true, vec![Kind::Edit], 1));
    assert_eq!(hear(json!({"content": [diff("/a", "x")]})), (false, vec![Kind::Edit], 1));
    assert_eq!(hear(json!({"content": [diff("/a", "y")]})), (true, vec![Kind::Edit], 1));
    assert_eq!(hear(json!({"content": diff("/b", "y")})), (true, vec![Kind::Edit], 2));
    // Once a text was shown as a planned change, it is judged, whatever is shown later.
    assert_eq!(hear(json!({"content": [], "status": "completed"})), (false, vec![Kind::Edit], 2));
    assert_eq!(hear(json!({"content": [diff("/c", "")]})), (true, vec![Kind::Edit], 2));
    // After the end of the call, another text is its result.
    assert_eq!(hear(json!({"content": [diff("/c", "z")]})), (false, vec![Kind::Edit], 2));
    let changes = json!([{"type": "diff", "changes": [{"operation": "delete", "path": "/d"}]}]);
    assert_eq!(hear(json!({"content": changes})), (true, vec![Kind::Edit, Kind::Delete], 2));
}

#[test]
fn without_input_a_changed_text_needs_another_decision() {
    let diff = |new: &str| json!({"content": [{"type": "diff", "path": "/a", "newText": new}]}).to_string();
    let mut call = Call::default();
    assert!(call.apply_update(serde_json::from_str(&diff("x")).unwrap()));
    let matter = call.approval_input().into_owned();
    assert!(!call.is_bare());
    assert!(!call.apply_update(serde_json::from_str(&diff("x")).unwrap()));
    assert!(call.apply_update(serde_json::from_str(&diff("y")).unwrap()));
    assert_ne!(*call.approval_input(), matter);
}

#[test]
fn locations_beside_the_input_are_judged_too() {
    let check = |text: &str, expected: Value| {
        let mut call = Call::default();
        call.apply_update(serde_json::from_str(text).unwrap());
        assert_eq!(*call.approval_input(), expected, "{text}");
    };
    check(r#"{"locations":[{"path":"/a"}]}"#, json!({"locations": ["/a"]}));
    check(r#"{"locations":[{"path":"/a"}],"rawInput":{}}"#, json!({"locations": ["/a"]}));
    let both = json!({"locations": ["/a"], "rawInput": {"x": 1}});
    check(r#"{"locations":[{"path":"/a"}],"rawInput":{"x":1}}"#, both);
    check(r#"{"locations":[{"path":"/a"}],"rawInput":{"path":"/a"}}"#, json!({"path": "/a"}));
    check("{}", Value::Null);
}

#[test]
fn ambiguous_and_invalid_updates_are_not_read() {
    let check = |text: &str, reads: bool| {
        let said = serde_json::from_str::<CallUpdate<'_>>(text);
        assert_eq!(said.is_ok(), reads, "{text}");
    };
    let deep = |depth: usize| format!(r#"{{"rawInput":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
    check(r#"{"kind":"read","rawInput":{"path":"/a"}}"#, true);
    check(r#"{"kind":"read","kind":"delete"}"#, false);
    check(r#"{"kind":"read","rawInput":{"command":"rm -rf /","n":1e999}}"#, false);
    check(r#"{"kind":"read","rawInput":{"command":"rm","command":"ls"}}"#, false);
    check(r#"{"rawOutput":{"a":[{"b":1,"\u0062":2}]}}"#, false);
    check(r#"{"content":[{"a":1,"a":2}]}"#, false);
    check(r#"{"_meta":{"toolName":"a","toolName":"b"}}"#, false);
    check(&deep(100), true);
    check(&deep(200), false);
}

#[test]
fn a_failed_call_with_a_result_was_attempted() {
    let check = |texts: &[&str], tried: bool| {
        let mut call = Call::default();
        for text in texts {
            call.apply_update(serde_json::from_str(text).unwrap());
        }
        assert_eq!(call.was_tried(), tried, "{texts:?}");
    };
    check(&[r#"{"status":"failed"}"#], false);
    check(&[r#"{"status":"failed","rawOutput":{},"content":[]}"#], false);
    check(&[r#"{"status":"failed","rawOutput":"x"}"#], true);
    check(&[r#"{"status":"failed","rawOutput":{},"content":[{}]}"#], true);
    check(&[r#"{"status":"failed"}"#, r#"{"content":[{}]}"#], true);
    check(&[r#"{"rawOutput":1}"#, r#"{"status":"failed"}"#], true);
    // The content shows a planned change, not a result.
    check(&[r#"{"content":[{"type":"diff"}]}"#, r#"{"status":"failed"}"#], false);
    check(&[r#"{"status":"completed","rawOutput":"x"}"#], false);
}

#[test]
fn unchanged_parts_of_a_call_are_searched_once() {
    let mut call = Call::reported(None, "read", json!({"path": "/x", "n": "y"}));
    let update = |call: &mut Call, update: Value| {
        let text = update.to_string();
        assert!(call.apply_update(serde_json::from_str(&text).unwrap()), "{text}");
    };
    let before = (call.digest(), call.has_secret());
    update(&mut call, json!({"locations": [{"path": "/w"}]}));
    assert!(
        !call.part_caches.input.is_new()
            && !call.part_caches.changes.is_new()
            && call.part_caches.others.is_new()
    );
    assert_ne!(call.digest(), before.0);
    update(&mut call, json!({"rawInput": {"path": "/x", "password": "hunter2 or so"}}));
    assert!(call.part_caches.input.is_new());
    assert!(call.has_secret() && !before.1);
    let diff = json!([{"type": "diff", "path": "/w/a", "oldText": "", "newText": "b"}]);
    update(&mut call, json!({"content": diff}));
    assert!(call.part_caches.changes.is_new() && !call.part_caches.input.is_new());
    update(&mut call, json!({"rawInput": {}, "locations": [{"path": "/w", "password": "hunter2 or so"}]}));
    assert!(call.has_secret());
}
