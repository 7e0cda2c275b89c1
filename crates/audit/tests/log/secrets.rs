//! Tests that no secret reaches the disk, in any part of an event.

use narrows_audit::{
    Actor, Event, Fact, Facts, Filter, Log, LogOptions, LogReader, PolicyRef, Redaction, Secret, Subject,
};
use serde_json::json;

use crate::verified;

#[test]
fn secrets_are_nowhere_in_the_log() {
    const CANARY: &str = "canary-4f1c2d";
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    let redaction = Redaction::default().known(Secret::new(CANARY)).name("badge").token("acme_", 6);
    let log = Log::open(&path, LogOptions { redaction, ..LogOptions::default() }).expect("a log");
    let place = json!({
        "known": format!("in {CANARY} of it"),
        "typed": Secret::new("canary"),
        "badge": "canary",
        "apiKey": "canary",
        "headers": {"Authorization": "Bearer canarycanarycanary"},
        "list": ["acme_canary", "curl -u x https://me:canary@example.com", {"password": ["canary"]}],
        CANARY: 1,
        "env": [{"name": "API_TOKEN", "value": "canary"}],
        "command": "API_TOKEN=canary-canary make",
        "pem": "-----BEGIN PRIVATE KEY-----\ncanary\n-----END PRIVATE KEY-----",
        "number": 7,
    });
    let event = Event {
        actor: Actor { id: CANARY.into(), role: Some(CANARY.into()) },
        action: "tool.call".into(),
        subject: Subject {
            kind: "tool".into(),
            reference: Some(CANARY.into()),
            path: Some(format!("/{CANARY}")),
        },
        input: Some(place.clone()),
        output: Some(json!([place.clone()])),
        policy: Some(PolicyRef { reference: "note-sync".into(), decision: None }),
        signatures: vec![CANARY.into()],
        facts: Facts::from([("session", Some(CANARY.to_owned().into())), ("badge", Some("canary".into()))]),
        metadata: [("aip44".to_owned(), place)].into_iter().collect(),
    };
    log.append(event).wait().expect("written");
    log.close();
    let text = std::fs::read_to_string(&path).expect("readable");
    assert!(!text.contains("canary"), "{text}");
    assert!(text.contains("\"number\":7"), "{text}");
    assert!(text.contains("{\"$redacted\":true,\"reason\":\"secret\"}"), "{text}");
    assert_eq!(verified(&path), (1, None));
}

#[test]
fn an_event_cannot_forge_another_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    let log = Log::open(&path, LogOptions::default()).expect("a log");
    let forged = "\"}\n{\"$schema\":\"agentgovernance/v1\",\"seq\":1}\n\r\u{2028}\0";
    let event = Event {
        actor: Actor { id: forged.into(), role: None },
        action: "tool.call".into(),
        subject: Subject { kind: "tool".into(), reference: Some(forged.into()), path: None },
        input: Some(json!({forged: forged})),
        ..Event::default()
    };
    log.append(event).wait().expect("written");
    assert_eq!(verified(&path), (1, None));
    assert_eq!(std::fs::read(&path).expect("readable").iter().filter(|byte| **byte == b'\n').count(), 1);
}

/// A text that was made of an input lacks the quotes and names of that input.
#[test]
fn secrets_of_an_input_are_removed_from_all_texts() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    let log = Log::open(&path, LogOptions::default()).expect("a log");
    let event = Event {
        actor: Actor { id: "operator:x".into(), role: None },
        action: "policy.resolved".into(),
        subject: Subject { kind: "tool".into(), reference: Some("x".into()), path: None },
        input: Some(json!({"command": "mysql --password \"Zq7aa Zq7bb\""})),
        facts: Facts::from([("reason", Some(Fact::peer("deny `mysql --password Zq7aa Zq7bb`")))]),
        ..Event::default()
    };
    log.append(event).wait().expect("written");
    let text = std::fs::read_to_string(&path).expect("a log");
    assert!(!text.contains("Zq7") && text.contains("mysql --password"), "{text}");
    verified(&path);
}

/// A peer that names a fact of the gate as its password must not erase that fact.
#[test]
fn secrets_of_an_input_do_not_erase_facts() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    let log = Log::open(&path, LogOptions::default()).expect("a log");
    let named = [
        "user:root",
        "session-1",
        "policy.resolved",
        "operator:notes",
        "operator",
        "aip44",
        "count",
        "identity",
        "kind:read",
        "few-reads",
        "tool",
        "signatures/1.json",
        "call-7",
        "spent",
        "gate-1",
    ];
    let spent = json!({"gate": "gate-1", "policies": ["few-reads"]});
    let member = |at: usize, text: &str| (format!("{at}_password"), json!(text));
    let secrets: serde_json::Map<_, _> =
        named.iter().enumerate().map(|(at, text)| member(at, text)).collect();
    let event = Event {
        actor: Actor { id: "operator:notes".into(), role: Some("operator".into()) },
        action: "policy.resolved".into(),
        subject: Subject { kind: "tool".into(), reference: Some("kind:read".into()), path: None },
        input: Some(json!(secrets)),
        output: Some(json!({"text": "password=user:root token=session-1"})),
        policy: Some(PolicyRef { reference: "few-reads".into(), decision: None }),
        signatures: vec!["signatures/1.json".into()],
        facts: Facts::from([
            ("identity", Some("user:root".into())),
            ("session", Some("session-1".into())),
            ("toolCallId", Some("call-7".into())),
            ("reason", Some(Fact::peer("user:root asked"))),
            ("spent", Some(spent.clone().into())),
        ]),
        metadata: [("count".to_owned(), json!(7))].into_iter().collect(),
    };
    log.append(event).wait().expect("written");
    let entry = LogReader::open(&path, Filter::default()).expect("a log").next_entry().expect("readable");
    let entry = entry.expect("an entry");
    assert!(
        named
            .iter()
            .all(|text| !json!([entry.input, entry.output]).to_string().contains(&format!(":\"{text}\"")))
    );
    assert_eq!((&*entry.actor.id, entry.actor.role.as_deref()), ("operator:notes", Some("operator")));
    assert_eq!((&*entry.action, entry.subject.reference.as_deref()), ("policy.resolved", Some("kind:read")));
    assert_eq!((&*entry.subject.kind, entry.signatures), ("tool", vec!["signatures/1.json".to_owned()]));
    assert_eq!(entry.metadata["count"], 7);
    let facts = &entry.metadata["aip44"];
    assert_eq!((&facts["identity"], &facts["session"]), (&json!("user:root"), &json!("session-1")));
    assert_eq!((&facts["toolCallId"], &facts["spent"]), (&json!("call-7"), &spent));
    assert_eq!(facts["reason"]["text"], "[redacted] asked");
    assert_eq!(verified(&path), (1, None));
}
