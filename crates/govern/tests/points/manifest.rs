//! Points 1 to 8, 12, 13 and 21: content of a manifest, and what is refused.

use std::path::Path;

use narrows_manifest::{AuditTarget, Bundle, Code, MemoryFiles, Severity, resolve};
use serde_json::json;

use crate::fixture::{Fixture, config};

const ACP: &str = "---\nname: notes\nid: notes\ndescription: d\nversion: 1.0.0\nkind: server\ntransport: stdio\n\
    metadata:\n  aip44:\n    acp_rev: \"272bf79\"\n    tier: governance-aware\n    operator: ./OPERATOR.md\n---\nbody\n";
const OPERATOR: &str = "---\nname: Notes\nid: notes\npersona_summary: p\nversion: 1.0.0\n\
    profile: {role: r, voice: v, boundaries: []}\n\
    governance: {audit_log: 'audit:default', autonomy: autonomous}\n---\n";
const GOVERNANCE: &str =
    "---\nschema: governance.workspace/v1\nname: home\ntitle: t\ndescription: d\nversion: 1.0.0\n---\n";

fn files() -> MemoryFiles {
    MemoryFiles::default()
        .with("notes/ACP.md", ACP)
        .with("notes/OPERATOR.md", OPERATOR)
        .with("notes/GOVERNANCE.md", GOVERNANCE)
}

/// Returns the files with `old` replaced by `new` in ACP.md.
fn changed(old: &str, new: &str) -> MemoryFiles {
    assert!(ACP.contains(old), "{old}");
    files().with("notes/ACP.md", ACP.replacen(old, new, 1))
}

#[track_caller]
fn loads(files: &MemoryFiles) -> Bundle {
    resolve(files, Path::new("notes/ACP.md")).unwrap_or_else(|findings| panic!("{findings}"))
}

#[track_caller]
fn refused(files: &MemoryFiles, code: Code) {
    let findings = resolve(files, Path::new("notes/ACP.md")).expect_err("it is refused");
    let is_it =
        |finding: &narrows_manifest::Finding| finding.code == code && finding.severity == Severity::Error;
    assert!(findings.iter().any(is_it), "no {code} in\n{findings}");
}

#[test]
fn point_01_declared_capabilities_are_present() {
    let initialize = |can: serde_json::Value| {
        let mut fixture = Fixture::new();
        fixture.client_requests(0, "initialize", &json!({"protocolVersion": 1}));
        fixture.agent_answers(0, &json!({"protocolVersion": 1, "agentCapabilities": can}));
        (fixture.answer_to_client(0), fixture.recorded_actions())
    };
    let (answer, recorded) = initialize(json!({"loadSession": true}));
    assert!(answer["result"].is_object() && recorded.is_empty(), "{answer}");
    for lacking in [json!({}), json!({"loadSession": false}), json!({"loadSession": "true"})] {
        let (answer, recorded) = initialize(lacking);
        assert_eq!(answer["error"]["data"]["code"], "unmet-capability");
        assert_eq!(recorded.last().map(String::as_str), Some("session.refused deny"));
    }
}

#[test]
fn point_02_peers_without_aip_44_still_work() {
    let mut fixture = Fixture::new().with_turn();
    fixture.agent_updates(
        &json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hi"}}),
    );
    fixture.agent_answers(2, &json!({"stopReason": "end_turn"}));
    assert_eq!(fixture.output.client[0]["params"]["update"]["content"]["text"], "hi");
    assert_eq!(fixture.answer_to_client(2)["result"]["stopReason"], "end_turn");
    // A method that only another peer knows passes unchanged if the manifest lists it.
    let theirs = json!({"jsonrpc": "2.0", "id": 3, "method": "_theirs/thing", "params": {"x": [1]}});
    fixture.send_client(&theirs);
    assert_eq!(fixture.output.agent.last(), Some(&theirs));
}

#[test]
fn point_03_front_matter_is_needed() {
    loads(&files());
    for text in ["", "body\n", "---\n---\n", "---\nname: notes\n"] {
        let files = files().with("notes/ACP.md", text);
        assert!(resolve(&files, Path::new("notes/ACP.md")).is_err(), "{text:?}");
    }
}

#[test]
fn point_04_fields_have_their_rules() {
    refused(&changed("id: notes\n", ""), Code::Missing);
    refused(&changed("id: notes", "id: N"), Code::Pattern);
    refused(&changed("version: 1.0.0", "version: one"), Code::Pattern);
    refused(&changed("kind: server", "kind: servant"), Code::Enum);
    refused(&changed("tier: governance-aware", "tier: high"), Code::Enum);
    refused(
        &changed("tier: governance-aware", "tier: governance-aware\n    audit: {kind: 'off', x: 1}"),
        Code::Unknown,
    );
    // The top level may have other keys.
    loads(&changed("kind: server", "theirs: 1\nkind: server"));
}

#[test]
fn point_05_common_mistakes_are_reported() {
    refused(&changed("\"272bf79\"", "1234567"), Code::QuoteIt);
    refused(&changed("\"272bf79\"", "12e4567"), Code::QuoteIt);
    // A misspelled key would be ignored, so the rule that it names would not apply.
    refused(&changed("    tier:", "    govenance: ./G.md\n    tier:"), Code::UnknownAip44);
    let other = loads(&changed("    tier:", "    vendor: ./G.md\n    tier:"));
    assert!(!other.warnings.is_empty(), "{}", other.warnings);
    assert!(loads(&files()).warnings.is_empty());
}

#[test]
fn point_06_a_name_is_that_of_its_directory() {
    assert!(!loads(&changed("name: notes", "name: others")).warnings.is_empty());
    assert!(loads(&changed("name: notes", "name: others")).warnings.strict().has_errors());
}

#[test]
fn point_07_a_server_needs_an_operator_and_a_bridge_one_or_a_governance() {
    refused(&changed("    operator: ./OPERATOR.md\n", ""), Code::Unbound);
    let bridge =
        ACP.replacen("kind: server", "kind: bridge", 1).replacen("    operator: ./OPERATOR.md\n", "", 1);
    refused(&files().without("notes/GOVERNANCE.md").with("notes/ACP.md", bridge), Code::Unbound);
    let client =
        ACP.replacen("kind: server", "kind: client", 1).replacen("    operator: ./OPERATOR.md\n", "", 1);
    let found = resolve(&files().with("notes/ACP.md", client), Path::new("notes/ACP.md"));
    assert!(!found.is_err_and(|findings| findings.has(Code::Unbound)), "a client needs none");
}

#[test]
fn point_08_a_revision_means_a_version() {
    assert_eq!(loads(&files()).protocol_version, Some(1));
    let unknown = loads(&changed("\"272bf79\"", "\"fffffff\""));
    assert_eq!(unknown.protocol_version, None);
    assert!(!unknown.warnings.is_empty());
}

#[test]
fn point_12_declared_values_override_those_of_the_tier() {
    let offered = |more: &str| {
        let bundle = loads(&changed("    operator:", &format!("{more}    operator:")));
        let capabilities = bundle.capabilities;
        let mut fixture = Fixture::with_config(narrows_govern::GateConfig { capabilities, ..config() }, &[]);
        fixture.client_requests(0, "initialize", &json!({"protocolVersion": 1}));
        let everything = json!({"loadSession": true, "promptCapabilities": {"image": true, "audio": true,
            "embeddedContext": true}, "mcpCapabilities": {"http": true, "sse": true, "acp": true}});
        fixture.agent_answers(0, &json!({"protocolVersion": 1, "agentCapabilities": everything}));
        fixture.answer_to_client(0)["result"]["agentCapabilities"].clone()
    };
    let usual = offered("");
    assert_eq!((&usual["loadSession"], &usual["promptCapabilities"]["image"]), (&json!(true), &json!(false)));
    assert_eq!(usual["mcpCapabilities"], json!({"http": false, "sse": false, "acp": false}));
    let more = offered("    capabilities: {agent: {promptCapabilities: {image: true}}}\n");
    assert_eq!(
        (&more["promptCapabilities"]["image"], &more["promptCapabilities"]["audio"]),
        (&json!(true), &json!(false))
    );
}

#[test]
fn point_13_contradictions_are_errors() {
    refused(&changed("tier: governance-aware", "tier: basic"), Code::Contradiction);
    let more = |text: &str| changed("    operator:", &format!("    {text}\n    operator:"));
    refused(&more("capabilities: {agent: {loadSession: false}}"), Code::Contradiction);
    loads(&more("capabilities: {agent: {loadSession: true}}"));
    assert!(
        resolve(&changed("tier: governance-aware", "tier: sandboxed"), Path::new("notes/ACP.md")).is_err()
    );
}

#[test]
fn point_21_the_log_is_in_the_directory_of_the_governance() {
    assert_eq!(loads(&files()).audit, AuditTarget::Log("notes/audit/audit-log.jsonl".into()));
    let more = |text: &str| changed("    operator:", &format!("    {text}\n    operator:"));
    assert_eq!(
        loads(&more("audit: {kind: external, ref: ./x.jsonl}")).audit,
        AuditTarget::Log("notes/x.jsonl".into())
    );
    refused(&more("audit: {kind: 'off'}"), Code::AuditOff);
    refused(&more("audit: {kind: external, ref: ../../x.jsonl}"), Code::Outside);
}
