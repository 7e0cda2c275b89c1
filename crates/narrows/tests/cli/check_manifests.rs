//! `narrows check` of single manifests and of directories.

use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::test_dir::TestDir;

const ACP: &str = r#"---
name: notes
id: notes
description: Notes over ACP.
version: 1.0.0
kind: server
transport: stdio
metadata:
  aip44:
    acp_rev: "272bf79"
    tier: governance-aware
    operator: ./OPERATOR.md
---
"#;

const OPERATOR: &str = r#"---
name: Notes
id: notes
persona_summary: Keeps notes.
version: 1.0.0
profile: {role: Keep notes., voice: Short., boundaries: []}
governance: {audit_log: "audit:default", autonomy: supervised}
---
"#;

const GOVERNANCE: &str = r#"---
schema: governance.workspace/v1
name: home
title: Home
description: Rules.
version: 1.0.0
---
"#;

fn check(dir: &TestDir, args: &[&str]) -> String {
    dir.output_of(dir.narrows(["check"].iter().chain(args)))
}

/// Creates a directory `notes` with these files.
fn notes(files: &[(&str, &str)]) -> TestDir {
    let dir = TestDir::new();
    std::fs::create_dir(dir.path().join("notes")).expect("a directory");
    for (name, text) in files {
        dir.file(&format!("notes/{name}"), text);
    }
    dir
}

#[test]
fn every_finding_has_a_position_and_a_fix() {
    let bad = ACP
        .replace("\"272bf79\"", "1234567")
        .replace("kind: server", "kind: sever")
        .replace("    operator", "    govenance: x\n    operator");
    let dir = notes(&[("ACP.md", &bad)]);
    assert_snapshot!(check(&dir, &["notes/ACP.md"]), @r#"
    --- stderr ---
    error: notes/ACP.md:6:7: kind: `sever` is not allowed here
    hint: did you mean server? It is one of client, server, bridge
    error: notes/ACP.md:10:14: metadata.aip44.acp_rev: `1234567` without quotes is a number, expected a string
    hint: quote it: acp_rev: "1234567"
    error: notes/ACP.md:12:5: metadata.aip44.govenance: `govenance` is not a key of aip44
    hint: did you mean governance?
    --- exit 2 ---
    "#);
}

#[test]
fn a_directory_is_checked_as_a_whole() {
    let dir = notes(&[("ACP.md", ACP), ("OPERATOR.md", OPERATOR), ("GOVERNANCE.md", GOVERNANCE)]);
    assert_snapshot!(check(&dir, &["notes"]), @r"
    notes/ACP.md: valid
    notes/GOVERNANCE.md: valid
    notes/OPERATOR.md: valid
    --- exit 0 ---
    ");
    // The file alone is valid, but a file that it refers to is missing.
    let dir = notes(&[("ACP.md", ACP), ("GOVERNANCE.md", GOVERNANCE)]);
    assert_snapshot!(check(&dir, &["notes/ACP.md", "notes"]), @"
    notes/ACP.md: valid by itself; the files that it refers to were not checked: narrows check notes
    notes/GOVERNANCE.md: valid
    --- stderr ---
    error: notes/ACP.md:12:5: metadata.aip44.operator: the file `./OPERATOR.md` cannot be read: no such file
    hint: write a path relative to this file, such as ./FILE.md
    --- exit 2 ---
    ");
    std::fs::create_dir(dir.path().join("empty")).expect("a directory");
    assert_snapshot!(check(&dir, &["empty", "missing/ACP.md"]), @r#"
    --- stderr ---
    error: check: no manifests in "empty"
    hint: manifests are named ACP.md, OPERATOR.md, GOVERNANCE.md, POLICY.md, SANDBOX.md, RUNNER.md or AGENT-CLI.md
    error: check: cannot read "missing/ACP.md"
      because: No such file or directory (os error 2)
    hint: use an existing file, or a directory with manifests
    --- exit 2 ---
    "#);
}

#[test]
fn warnings_are_errors_with_strict() {
    let other = ACP.replace("name: notes", "name: other");
    let dir = notes(&[("ACP.md", &other)]);
    assert_snapshot!(check(&dir, &["notes/ACP.md"]), @"
    notes/ACP.md: valid by itself; the files that it refers to were not checked: narrows check notes
    --- stderr ---
    warning: notes/ACP.md:2:7: name: the name differs from its directory or file, `notes`
    hint: write name: notes, or move the file
    --- exit 0 ---
    ");
    assert_snapshot!(check(&dir, &["--strict", "notes/ACP.md"]), @r"
    --- stderr ---
    error: notes/ACP.md:2:7: name: the name differs from its directory or file, `notes`
    hint: write name: notes, or move the file
    --- exit 2 ---
    ");
    // A bus reports the same.
    dir.file(
        "bus.toml",
        "[[listen]]\nurl = \"stdio:\"\n[[pool]]\ncommand = [\"sh\"]\nmix_identities = true\n",
    );
    assert!(check(&dir, &["bus.toml"]).ends_with("--- exit 0 ---\n"));
    assert!(check(&dir, &["--strict", "bus.toml"]).ends_with("--- exit 2 ---\n"));
}

#[test]
fn a_name_is_known_from_within_its_directory() {
    let dir = notes(&[("ACP.md", ACP)]);
    let mut command = dir.narrows(["check", "ACP.md"]);
    command.current_dir(dir.path().join("notes"));
    assert_snapshot!(dir.output_of(command), @"
    ACP.md: valid by itself; the files that it refers to were not checked: narrows check .
    --- exit 0 ---
    ");
}

#[test]
fn json_output_has_one_object_per_file() {
    let bad = ACP.replace("\"272bf79\"", "12e4567").replace("name: notes", "name: other");
    let dir = notes(&[("ACP.md", &bad), ("GOVERNANCE.md", GOVERNANCE)]);
    for format in [&["--json"][..], &["--format", "json"]] {
        let told = check(&dir, &[format, &["notes", "missing/ACP.md"]].concat());
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!((lines.len(), lines[3]), (4, "--- exit 2 ---"), "{told}");
        let objects: Vec<Value> =
            lines[..3].iter().map(|line| serde_json::from_str(line).expect(line)).collect();
        let expected = json!({
            "file": "notes/ACP.md",
            "ok": false,
            "kind": "acp",
            "mistakes": [{
                "line": 10,
                "column": 14,
                "code": "quote-it",
                "key": "metadata.aip44.acp_rev",
                "value": "12e4567",
                "message": "`12e4567` without quotes is a number, expected a string",
                "hint": "quote it: acp_rev: \"12e4567\"",
            }],
            "warnings": [{
                "line": 2,
                "column": 7,
                "code": "name-mismatch",
                "key": "name",
                "value": "other",
                "message": "the name differs from its directory or file, `notes`",
                "hint": "write name: notes, or move the file",
            }],
        });
        assert_eq!(objects[0], expected);
        assert_eq!((&objects[1]["kind"], &objects[1]["ok"]), (&"governance".into(), &true.into()));
        assert!(
            objects[2]["mistakes"][0]["message"]
                .as_str()
                .is_some_and(|error| error.contains("missing/ACP.md")),
            "{told}"
        );
    }
}

#[test]
fn schemas_are_printed() {
    let dir = TestDir::new();
    for kind in ["acp", "operator", "governance", "policy", "sandbox", "runner", "agent-cli", "ACP.md"] {
        let told = check(&dir, &["--print-schema", kind]);
        let schema = told.strip_suffix("--- exit 0 ---\n").expect(&told);
        let schema: Value = serde_json::from_str(schema).expect(kind);
        assert_eq!(schema["type"], "object", "{kind}");
    }
    let told = check(&dir, &["--print-schema", "agent"]);
    assert!(
        told.contains("[possible values: acp, operator,") && told.ends_with("--- exit 2 ---\n"),
        "{told}"
    );
    assert!(check(&dir, &["--print-schema", "acp", "x"]).ends_with("--- exit 2 ---\n"));
    assert!(check(&dir, &[]).ends_with("--- exit 2 ---\n"));
}
