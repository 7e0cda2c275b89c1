//! Checks lines and approvals against the published schema, if it is available.

use std::path::Path;

use narrows_audit::{
    Actor, Approval, ApprovalDecision, ApprovalSigner, Event, Facts, Log, LogOptions, LoggedDecision,
    PolicyRef, Secret, SigningKey, Subject,
};
use serde_json::{Value, json};

use crate::event;

/// Returns one definition of the schema, if it is available.
fn schema(name: &str) -> Option<jsonschema::Validator> {
    let path = "../../../shared/spec/aip/schemas/aip-7.GOVERNANCE.schema.json";
    let text = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).ok()?;
    let all: Value = serde_json::from_slice(&text).expect("JSON");
    let schema = json!({"$ref": format!("#/$defs/{name}"), "$defs": all["$defs"]});
    Some(jsonschema::validator_for(&schema).expect("a schema"))
}

fn check(validator: &jsonschema::Validator, value: &Value) {
    let errors: Vec<String> = validator.iter_errors(value).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{value}: {errors:?}");
}

#[test]
fn lines_match_the_schema() {
    let Some(validator) = schema("auditEvent") else {
        eprintln!("skipped: the schema is not here");
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    let log = Log::open(&path, LogOptions::default()).expect("a log");
    let long = |length: usize| "\u{1d11e}".repeat(length);
    let longest = Event {
        actor: Actor { id: long(256), role: Some(long(64)) },
        action: "a".repeat(128),
        subject: Subject { kind: long(32), reference: Some(long(256)), path: Some(long(1024)) },
        input: Some(json!([1.5, u64::MAX, null])),
        output: Some(json!(Secret::new("x"))),
        policy: Some(PolicyRef {
            reference: "a".repeat(64),
            decision: Some(LoggedDecision::RequireApproval),
        }),
        signatures: vec!["signatures/a.signature.json".into()],
        facts: Facts::from([("kind", Some("tool-call".into()))]),
        metadata: [("any".to_owned(), json!({"thing": true}))].into_iter().collect(),
    };
    for event in [event(0, 10), longest] {
        log.append(event).wait().expect("written");
    }
    log.close();
    // The log contains a note, too.
    let whole = std::fs::read(&path).expect("readable");
    std::fs::write(&path, [&whole[..], b"{"].concat()).expect("written");
    let log = Log::open(&path, LogOptions::default()).expect("a log");
    log.append(event(1, 10)).wait().expect("written");
    log.close();
    let text = std::fs::read_to_string(&path).expect("readable");
    assert_eq!(text.lines().count(), 4);
    for line in text.lines() {
        check(&validator, &serde_json::from_str(line).expect("JSON"));
    }
}

#[test]
fn approvals_match_the_schema() {
    let Some(validator) = schema("signature") else {
        eprintln!("skipped: the schema is not here");
        return;
    };
    let key = SigningKey::generate().expect("a key");
    let signer =
        ApprovalSigner { id: "ann@example.com".into(), role: Some("founder".into()), display_name: None };
    let mut approval = Approval::new("call_1", ApprovalDecision::Reject, signer, "2026-11-15T18:00:00.000Z");
    approval.reason = Some("too dear".into());
    approval.policy = Some(PolicyRef { reference: "finance-write".into(), decision: None });
    check(&validator, &json!(approval));
    check(&validator, &json!(approval.sign(&key).expect("shallow")));
}
