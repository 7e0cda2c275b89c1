//! `narrows audit`: verifying, showing and signing logs.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use insta::assert_snapshot;
use narrows_audit::{Actor, Clock, Event, Log, LogOptions, LoggedDecision, PolicyRef, Subject, Timestamp};
use serde_json::{Value, json};

use crate::test_dir::TestDir;

/// A clock that always returns the same time, so that hashes are constant.
struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    fn running(&self) -> Duration {
        Duration::ZERO
    }
}

fn open(dir: &TestDir, segment_bytes: u64) -> Log {
    let options = LogOptions { clock: Arc::new(Stopped), segment_bytes, ..LogOptions::default() };
    Log::open(&file(dir), options).expect("a log")
}

fn file(dir: &TestDir) -> PathBuf {
    dir.path().join("audit/audit-log.jsonl")
}

/// Returns the event of a tool call with its decision.
fn call(session: &str, tool: &str, decision: LoggedDecision) -> Event {
    let aip44 = json!({
        "kind": "tool-call", "operator": "notes", "session": session, "tool": tool, "toolCallId": "call_1",
        "approval": "auto",
    });
    Event {
        actor: Actor { id: "operator:notes".into(), role: Some("operator".into()) },
        action: "tool.call".into(),
        subject: Subject { kind: "tool".into(), reference: Some(tool.into()), path: None },
        input: Some(json!({"line": "caf\u{e9} \u{1b}[2J"})),
        output: Some(if decision == LoggedDecision::Deny {
            json!({"error": "policy-denied"})
        } else {
            json!("done")
        }),
        policy: Some(PolicyRef { reference: "note-sync".into(), decision: Some(decision) }),
        metadata: [("aip44".to_owned(), aip44)].into_iter().collect(),
        ..Event::default()
    }
}

fn session_event(session: &str) -> Event {
    Event {
        actor: Actor { id: "operator:notes\u{1b}[2J".into(), role: None },
        action: "operator.invoked".into(),
        subject: Subject { kind: "session".into(), reference: Some(session.into()), path: None },
        ..Event::default()
    }
}

/// Creates a directory with a log of three entries.
fn dir() -> TestDir {
    let dir = TestDir::new();
    let log = open(&dir, 1 << 20);
    for event in [
        session_event("s1"),
        call("s1", "append", LoggedDecision::Allow),
        call("s2", "delete", LoggedDecision::Deny),
    ] {
        log.append(event).wait().expect("written");
    }
    log.close();
    dir
}

fn audit(dir: &TestDir, args: &[&str]) -> String {
    dir.output_of(dir.narrows(["audit"].iter().chain(args)))
}

fn change(dir: &TestDir, from: &str, to: &str) {
    let text = std::fs::read_to_string(file(dir)).expect("readable");
    assert!(text.contains(from), "{text}");
    std::fs::write(file(dir), text.replacen(from, to, 1)).expect("written");
}

#[test]
fn a_valid_log_verifies() {
    let dir = dir();
    assert_snapshot!(audit(&dir, &["verify", "audit/audit-log.jsonl"]), @"
    audit/audit-log.jsonl: OK, 3 entries verified (1 file)
    --- exit 0 ---
    ");
    assert_snapshot!(audit(&dir, &["verify", "audit", "--json"]), @r#"
    {"file":"audit/audit-log.jsonl","ok":true,"entries":3,"segments":1,"log":"edc8a7d37b145bc9244aff4404fb70771633a2e5c82d35fc4808e99d6e685ae9","hash":"f315ab012c1f485d3f94caadae5fea6e708f6950479d22f20206354d67f1234c","head":null,"bad":null}
    --- exit 0 ---
    "#);
}

#[test]
fn the_first_invalid_line_is_reported() {
    let output = |from: &str, to: &str| {
        let dir = dir();
        change(&dir, from, to);
        audit(&dir, &["verify", "audit"])
    };
    assert_snapshot!(output("\"done\"", "\"gone\""), @"
    --- stderr ---
    error: audit/audit-log.jsonl:2: entry 1: tampered: its hash does not match its content
    hint: entry 0 is valid
    hint: move the changed log to another directory and keep it: no gate will write to it; `narrows audit show` prints entry numbers
    --- exit 1 ---
    ");
    assert_snapshot!(output("\"seq\":0", "\"seq\": 0"), @"
    --- stderr ---
    error: audit/audit-log.jsonl:1: entry 0: not canonical: there is space between its parts (byte 246)
    hint: if another program wrote the log, add --any-form
    --- exit 1 ---
    ");
    assert_snapshot!(output("\"prevHash\":\"GENESIS\"", "\"prevHash\":\"GENESIS"), @"
    --- stderr ---
    error: audit/audit-log.jsonl:1: entry 0: broken: it is not JSON (byte 240)
    --- exit 1 ---
    ");
    let dir = dir();
    let text = std::fs::read_to_string(file(&dir)).expect("readable");
    std::fs::write(file(&dir), &text[..text.len() - 30]).expect("written");
    assert_snapshot!(audit(&dir, &["verify", "audit"]), @"
    --- stderr ---
    error: audit/audit-log.jsonl:3: entry 2: torn tail: the line is incomplete
    hint: entries 0 to 1 are valid
    hint: a crash left this entry incomplete, and it was never acknowledged; the next writer removes it and records that
    --- exit 1 ---
    ");
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    std::fs::write(file(&dir), [lines[0], lines[2]].concat()).expect("written");
    assert_snapshot!(audit(&dir, &["verify", "audit"]), @"
    --- stderr ---
    error: audit/audit-log.jsonl:2: entry 1: gap: its number is 2, expected 1
    hint: entry 0 is valid
    hint: move the changed log to another directory and keep it: no gate will write to it; `narrows audit show` prints entry numbers
    --- exit 1 ---
    ");
    let told = audit(&dir, &["verify", "audit", "--json"]);
    let object: Value = serde_json::from_str(told.lines().next().expect("a line")).expect("JSON");
    assert_eq!(
        (&object["ok"], &object["entries"], &object["bad"]["why"]),
        (&json!(false), &json!(1), &json!("gap"))
    );
    assert_eq!((&object["bad"]["segment"], &object["bad"]["line"]), (&json!("audit-log.jsonl"), &json!(2)));
}

#[test]
fn a_missing_log() {
    assert_snapshot!(audit(&TestDir::new(), &["verify", "audit-log.jsonl"]), @r#"
    --- stderr ---
    error: the audit log: cannot read "audit-log.jsonl"
      because: No such file or directory (os error 2)
    hint: use the current file of the log, such as audit/audit-log.jsonl, or its directory
    --- exit 2 ---
    "#);
    assert_snapshot!(audit(&TestDir::new(), &["show", "audit-log.jsonl"]), @r#"
    --- stderr ---
    error: the audit log: cannot read "audit-log.jsonl"
      because: No such file or directory (os error 2)
    hint: use the current file of the log, such as audit/audit-log.jsonl, or its directory
    --- exit 2 ---
    "#);
}

#[test]
fn entries_are_shown() {
    let dir = dir();
    assert_snapshot!(audit(&dir, &["show", "audit"]), @r#"
         0  1970-01-01T00:00:00.000Z  operator.invoked  session s1  operator:notes\u{1b}[2J
         1  1970-01-01T00:00:00.000Z  tool.call  tool append  operator:notes  allow (note-sync)  by policy  session s1
         2  1970-01-01T00:00:00.000Z  tool.call  tool delete  operator:notes  deny (note-sync)  by policy  session s2  error "policy-denied"
    --- exit 0 ---
    "#);
    assert_snapshot!(audit(&dir, &["show", "audit", "--session", "s2", "--format", "aip44"]), @r#"
    {"approval":"auto","arguments":{"line":"café \u001b[2J"},"audit-event-kind":"tool-call","operator":"notes","result":{"error":"policy-denied"},"session":"s2","tool":"delete"}
    --- exit 0 ---
    "#);
    assert_snapshot!(audit(&dir, &["show", "audit", "--decision", "allow", "--tool", "append"]), @"
         1  1970-01-01T00:00:00.000Z  tool.call  tool append  operator:notes  allow (note-sync)  by policy  session s1
    --- exit 0 ---
    ");
    assert_snapshot!(audit(&dir, &["show", "audit", "--decision", "escalate"]), @"--- exit 0 ---");
    let told = audit(&dir, &["show", "audit", "--format", "json"]);
    let lines = std::fs::read_to_string(file(&dir)).expect("readable");
    assert_eq!(told, format!("{lines}--- exit 0 ---\n"));
    assert_snapshot!(audit(&dir, &["show", "audit", "--decision", "maybe"]), @"
    --- stderr ---
    error: invalid value 'maybe' for '--decision <DECISION>'
      [possible values: allow, deny, require-approval, escalate]

    For more information, try '--help'.
    --- exit 2 ---
    ");
}

#[test]
fn a_log_that_does_not_verify_is_shown_with_a_warning() {
    let dir = dir();
    change(&dir, "\"done\"", "\"gone\"");
    let told = audit(&dir, &["show", "audit"]);
    let warning = "warning: audit/audit-log.jsonl: the log does not verify from entry 1 on (tampered: its hash does not match \
                   its content); run `narrows audit verify` for details\n";
    assert_eq!(told.matches("warning:").count(), 1, "{told}");
    assert!(told.contains(warning) && told.ends_with("--- exit 0 ---\n"), "{told}");
    assert_eq!(told.lines().filter(|line| line.contains("1970-01-01")).count(), 3, "{told}");
}

#[test]
fn a_file_that_is_not_a_log_is_reported_as_such() {
    let dir = TestDir::new();
    dir.file("ACP.md", "---\nname: x\n---\n");
    assert_snapshot!(audit(&dir, &["verify", "ACP.md"]), @r#"
    --- stderr ---
    error: "ACP.md" is not an audit log: its first line is not an entry
    hint: use the current file of the log, such as audit/audit-log.jsonl, or its directory
    --- exit 1 ---
    "#);
}

#[test]
fn a_pipe_is_refused_as_a_log_without_waiting() {
    let dir = dir();
    let pipe = file(&dir).with_file_name("pipe.jsonl");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    for command in ["verify", "show"] {
        let shown = audit(&dir, &[command, pipe.to_str().unwrap()]);
        assert!(shown.contains("not a regular file"), "{shown}");
    }
}

#[test]
fn a_log_is_followed() {
    let dir = TestDir::new();
    let log = open(&dir, 700);
    log.append(session_event("s0")).wait().expect("written");
    let mut command = dir.narrows(["audit", "show", "audit", "--follow"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    for number in 0..6 {
        let line = lines.next().expect("a line").expect("readable");
        assert!(line.contains(&format!("session s{number}")), "{line}");
        log.append(session_event(&format!("s{}", number + 1))).wait().expect("written");
    }
    child.kill().expect("a child process");
    child.wait().expect("a child process");
}

#[test]
fn a_head_reveals_a_truncated_or_rewritten_log() {
    let dir = dir();
    let key = audit(&dir, &["keygen", "me.key"]);
    let public = key.strip_suffix("\n--- exit 0 ---\n").expect("a key").to_owned();
    assert!(public.starts_with("did:key:z6Mk"), "{public}");
    let head = audit(&dir, &["head", "audit", "--key", "me.key"]);
    let head = head.strip_suffix("--- exit 0 ---\n").expect("a head");
    dir.file("head.json", head);
    let mut object: Value = serde_json::from_str(head).expect("JSON");
    assert_eq!((&object["headSeq"], &object["count"]), (&json!(2), &json!(3)));
    assert_eq!(object["signature"]["publicKeyRef"], json!(public));

    let time = object["pinnedAt"].as_str().expect("a time").to_owned();
    let against = |more: &[&str]| {
        let told = audit(&dir, &[&["verify", "audit", "--against", "head.json"], more].concat());
        let told = told.replace(&public, "[KEY]");
        // The time of the signature differs in every run.
        told.replace(&time, "[TIME]")
    };
    assert_snapshot!(against(&[]), @"
    audit/audit-log.jsonl: OK, 3 entries verified (1 file); contains the head of [TIME], signed by [KEY] (signer not checked; add --signer KEY)
    --- exit 0 ---
    ");
    // With a signer, the note about the unchecked signer is missing.
    let known = against(&[]).replace(" (signer not checked; add --signer KEY)", "");
    assert_eq!(against(&["--signer", "me.key.pub"]), known);
    assert_eq!(against(&["--signer", &public]), known);
    assert!(against(&["--json"]).contains("\"signerChecked\":false"));
    assert!(against(&["--json", "--signer", &public]).contains("\"signerChecked\":true"));
    audit(&dir, &["keygen", "other.key"]);
    assert_snapshot!(against(&["--signer", "other.key.pub"]), @r#"
    --- stderr ---
    error: --against: invalid signature of "head.json"
      because: the signature was made with another key
    hint: the head was signed by [KEY]
    --- exit 1 ---
    "#);

    // The head is found in a log with one more entry, but not in one that lost two entries.
    let log = open(&dir, 1 << 20);
    log.append(session_event("s3")).wait().expect("written");
    log.close();
    assert!(against(&[]).contains("4 entries"), "{}", against(&[]));
    let text = std::fs::read_to_string(file(&dir)).expect("readable");
    let one = text.split_inclusive('\n').next().expect("a line");
    std::fs::write(file(&dir), one).expect("written");
    assert_snapshot!(against(&[]), @"
    --- stderr ---
    error: audit/audit-log.jsonl: truncated: 1 of at least 3 entries are there
    hint: the chain is unbroken, but the log is an older copy, or entries at its end were removed
    --- exit 1 ---
    ");
    let log = open(&dir, 1 << 20);
    for session in ["s1", "s2", "s3"] {
        log.append(session_event(session)).wait().expect("written");
    }
    log.close();
    assert_snapshot!(against(&[]), @"
    --- stderr ---
    error: audit/audit-log.jsonl: rewritten: entry 2 is another than it was
    hint: the chain is unbroken, but this is another log, or the log was rewritten
    --- exit 1 ---
    ");
    std::fs::remove_file(file(&dir)).expect("removed");
    let log = open(&dir, 1 << 20);
    for session in ["s2", "s2", "s3"] {
        log.append(session_event(session)).wait().expect("written");
    }
    log.close();
    assert_snapshot!(against(&[]), @"
    --- stderr ---
    error: audit/audit-log.jsonl: rewritten: its first entry is another
    hint: the chain is unbroken, but this is another log, or the log was rewritten
    --- exit 1 ---
    ");
    object["count"] = json!(2);
    dir.file("head.json", &object.to_string());
    assert_snapshot!(against(&[]), @r#"
    --- stderr ---
    error: --against: invalid signature of "head.json"
      because: the signature does not match the content
    hint: the head was changed after it was signed
    --- exit 1 ---
    "#);
    dir.file("head.json", "{}");
    assert_snapshot!(against(&[]), @r#"
    --- stderr ---
    error: --against: "head.json" is not a head: missing field `signature` at line 1 column 2
    hint: create one with `narrows audit head LOG --key FILE`
    --- exit 2 ---
    "#);
}

#[test]
fn key_files_are_private() {
    let dir = dir();
    audit(&dir, &["keygen", "me.key"]);
    assert_snapshot!(audit(&dir, &["keygen", "me.key"]), @r#"
    --- stderr ---
    error: the key: cannot use "me.key"
      because: File exists (os error 17)
    hint: use another file; existing keys are never overwritten
    --- exit 2 ---
    "#);
    assert_snapshot!(audit(&dir, &["head", "audit", "--key", "me.key.pub"]), @r#"
    --- stderr ---
    error: --key: "me.key.pub" is a public key, and signing needs a private key
    hint: use the file without .pub: --key me.key
    --- exit 2 ---
    "#);
    std::fs::copy(dir.path().join("me.key.pub"), dir.path().join("odd.key")).expect("the file can be copied");
    assert_snapshot!(audit(&dir, &["head", "audit", "--key", "odd.key"]), @r#"
    --- stderr ---
    error: --key: cannot use "odd.key"
      because: other users can read the key file: its mode is 644, expected 600
    hint: chmod 600 odd.key
    --- exit 2 ---
    "#);
    std::fs::set_permissions(dir.path().join("odd.key"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .expect("the file is writable");
    assert_snapshot!(audit(&dir, &["head", "audit", "--key", "odd.key"]), @r#"
    --- stderr ---
    error: --key: cannot use "odd.key"
      because: the key is not an Ed25519 private key in PEM format
    hint: create one with `narrows audit keygen FILE`
    --- exit 2 ---
    "#);
    assert_snapshot!(audit(&dir, &["head", "audit", "--key", "no.key"]), @r#"
    --- stderr ---
    error: --key: cannot use "no.key"
      because: No such file or directory (os error 2)
    hint: create a key with `narrows audit keygen FILE`
    --- exit 2 ---
    "#);
    let empty = TestDir::new();
    empty.file("audit-log.jsonl", "");
    audit(&empty, &["keygen", "me.key"]);
    assert_snapshot!(audit(&empty, &["head", ".", "--key", "me.key"]), @r#"
    --- stderr ---
    error: "./audit-log.jsonl" has no entries to sign
    --- exit 2 ---
    "#);
    assert_snapshot!(audit(&empty, &["verify", "."]), @"
    ./audit-log.jsonl: OK, the log is empty
    --- exit 0 ---
    ");
}

/// A log in the older format, chained with the secret `secret of ours`.
const LEGACY: &str = r#"{"action":"log.initialized","actorId":null,"actorKind":"system","createdAt":"2026-01-01T00:00:00.000Z","doctype":"audit-event","entityId":"test:genesis","entityType":"audit-event","prevSignature":"0000000000000000000000000000000000000000000000000000000000000000","schema":"agentgovernance/v1","signature":"SIGNATURE"}
"#;

#[test]
fn the_older_form_is_verified_with_its_secret() {
    let dir = TestDir::new();
    let signature = "264d822aca04c4b40a4dfac86d4856c988ed6bcc0725730437511734a79c6a38";
    dir.file("log.jsonl", &LEGACY.replace("SIGNATURE", signature));
    dir.file("secret", "another\n");
    assert_snapshot!(audit(&dir, &["verify", "log.jsonl"]), @"
    --- stderr ---
    error: log.jsonl:1: entry 0: broken: it is in the form with keyed hashes, which needs the secret
    hint: verify the log with its secret: --legacy-secret FILE
    --- exit 1 ---
    ");
    assert_snapshot!(audit(&dir, &["verify", "log.jsonl", "--legacy-secret", "secret"]), @"
    --- stderr ---
    error: log.jsonl:1: entry 0: tampered: its signature is not that of its content, or the secret is another
    hint: move the changed log to another directory and keep it: no gate will write to it; `narrows audit show` prints entry numbers
    --- exit 1 ---
    ");
    dir.file("secret", "secret of ours\n");
    assert_snapshot!(audit(&dir, &["verify", "log.jsonl", "--legacy-secret", "secret"]), @"
    log.jsonl: OK, 1 entry verified (1 file)
    --- exit 0 ---
    ");
}

#[test]
fn other_forms_are_accepted_with_a_flag() {
    let dir = dir();
    change(&dir, "{\"$schema\":", "{ \"$schema\":");
    let told = audit(&dir, &["verify", "audit", "--any-form"]);
    assert!(told.contains(": OK, "), "{told}");
}
