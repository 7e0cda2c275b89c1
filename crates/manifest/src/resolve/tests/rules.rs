//! Tests of the effective governance, its inheritance, and the decisions of its policies.

use std::path::PathBuf;

use narrows_policy::{Action, Class, DefaultApproval, Kind};

use super::*;
use crate::types::governance::HashAlgorithm;

const DENY_WRITES: &str =
    "match: {action: workspace.write, subject: 'workspace:/finance/**'}\ndecision: deny";

fn extending(child: &str, parent: &str) -> MemoryFiles {
    server()
        .with("notes/GOVERNANCE.md", governance(&format!("extends: ../org/GOVERNANCE.md\n{child}")))
        .with("org/GOVERNANCE.md", governance(parent))
}

#[test]
fn the_governance_in_effect_is_found() {
    let chain = |files: &MemoryFiles| bundle(files).governance.unwrap().chain;
    let both = server().with("GOVERNANCE.md", governance("")).with("x/GOVERNANCE.md", governance(""));
    assert_eq!(chain(&both), [PathBuf::from("notes/GOVERNANCE.md")]);
    assert_eq!(chain(&both.clone().without("notes/GOVERNANCE.md")), [PathBuf::from("GOVERNANCE.md")]);
    let named = acp("server", "governance-aware", "operator: ./OPERATOR.md\ngovernance: ../x/GOVERNANCE.md");
    assert_eq!(chain(&both.with("notes/ACP.md", named)), [PathBuf::from("x/GOVERNANCE.md")]);
    refused(&server().without("notes/GOVERNANCE.md"), Code::Unbound, "notes/ACP.md:11:5");
}

#[test]
fn a_child_replaces_values_one_by_one() {
    let files = extending(
        "autonomy: {level: 1}\napprovers: [{id: a, canApprove: []}, {id: c}]\nmetadata: {x: {b: 2}}",
        "autonomy: {level: 3, defaultApproval: always}\naudit: {hashAlgo: sha256, appendOnly: true}\n\
         approvers: [{id: a, canApprove: [tool.call]}, {id: b, canApprove: [tool.call], quorum: 2-of-3}]\n\
         metadata: {x: {a: 1, b: 1}}\nwork: w",
    );
    let bundle = bundle(&files);
    let governance = bundle.governance.unwrap();
    let config = &governance.config;
    assert_eq!(governance.chain, [PathBuf::from("notes/GOVERNANCE.md"), PathBuf::from("org/GOVERNANCE.md")]);
    let autonomy = config.autonomy.as_ref().unwrap();
    assert_eq!((autonomy.level, autonomy.default_approval.as_deref()), (Some(1), Some("always")));
    let audit = config.audit.as_ref().unwrap();
    assert_eq!((audit.hash_algo, audit.append_only), (Some(HashAlgorithm::Sha256), Some(true)));
    let ids: Vec<&str> = config.approvers.iter().map(|approver| approver.id.as_str()).collect();
    assert_eq!(ids, ["a", "b", "c"]);
    let may: Vec<(&str, u32)> = governance
        .approvers_of("tool.call")
        .iter()
        .map(|approver| (approver.id.as_str(), approver.needed()))
        .collect();
    assert_eq!(may, [("b", 2), ("c", 1)], "an empty list revokes, an absent one grants");
    assert_eq!(config.metadata["x"], serde_json::json!({"a": 1, "b": 2}));
    assert_eq!(config.work.as_deref(), Some("w"));
    assert_eq!(governance.scope, PathBuf::from("notes"));
}

#[test]
fn children_cannot_loosen_locked_settings() {
    let locked = "audit: {appendOnly: true}\nsigning: {required: true}";
    refused(&extending("audit: {appendOnly: false}", locked), Code::AppendOnly, "notes/GOVERNANCE.md:8:9");
    refused(&extending("signing: {required: false}", locked), Code::Signing, "notes/GOVERNANCE.md:8:11");
    let unlocked = extending("audit: {appendOnly: false}", "audit: {appendOnly: false}");
    assert_eq!(bundle(&unlocked).governance.unwrap().config.audit.unwrap().append_only, Some(false));
    // The parent of the parent locks the settings.
    let deep = extending("audit: {appendOnly: false}", "extends: ../top/GOVERNANCE.md")
        .with("top/GOVERNANCE.md", governance(locked));
    refused(&deep, Code::AppendOnly, "notes/GOVERNANCE.md:8:9");
}

#[test]
fn a_broken_chain_is_a_warning_and_an_invalid_one_an_error() {
    warned(&extending("", "").without("org/GOVERNANCE.md"), Code::Extends);
    warned(&extending("", "extends: ../notes/GOVERNANCE.md"), Code::Extends);
    let mut deep = extending("", "extends: ../p0/GOVERNANCE.md");
    for number in 0..7 {
        let next = format!("extends: ../p{}/GOVERNANCE.md", number + 1);
        deep = deep.with(format!("p{number}/GOVERNANCE.md"), governance(&next));
    }
    let deep = deep.with("p7/GOVERNANCE.md", governance(""));
    warned(&deep, Code::Extends);
    assert_eq!(bundle(&deep).governance.unwrap().chain.len(), 8);
    refused(&extending("", "autonomy: {level: 9}"), Code::Workspace, "notes/GOVERNANCE.md:7:1");
}

#[test]
fn the_target_of_applies_to_must_exist() {
    assert!(bundle(&extending("appliesTo: ['ws://operators/notes']", "")).warnings.is_empty());
    assert!(bundle(&extending("appliesTo: ['../org']", "")).warnings.is_empty());
    refused(
        &extending("appliesTo: ['ws://operators/ghost']", ""),
        Code::AppliesTo,
        "notes/GOVERNANCE.md:8:1",
    );
    refused(&extending("appliesTo: ['../ghost']", ""), Code::AppliesTo, "notes/GOVERNANCE.md:8:1");
}

#[test]
fn unsupported_algorithms_are_refused() {
    let with = |more: &str| server().with("notes/GOVERNANCE.md", governance(more));
    refused(&with("audit: {hashAlgo: blake3}"), Code::Hash, "notes/GOVERNANCE.md:7:19");
    refused(&with("audit: {hashAlgo: sha512}"), Code::Hash, "notes/GOVERNANCE.md:7:19");
    refused(&with("signing: {algo: ecdsa-p256}"), Code::Algorithm, "notes/GOVERNANCE.md:7:17");
    assert!(bundle(&with("audit: {hashAlgo: sha256}\nsigning: {algo: ed25519}")).warnings.is_empty());
}

#[test]
fn policies_become_a_ruleset() {
    let files = server()
        .with(
            "notes/GOVERNANCE.md",
            governance(
                "policies: [{id: fin, ref: ./policies/finance/POLICY.md}]\nautonomy: {defaultApproval: auto}",
            ),
        )
        .with("notes/policies/finance/POLICY.md", policy("finance", DENY_WRITES));
    assert_eq!(class(&files, &Action::file(Kind::Edit, "/ws/finance/a")), Class::Deny);
    assert_eq!(class(&files, &Action::file(Kind::Edit, "/ws/a")), Class::Allow);
    let bound = files.clone().with(
        "notes/GOVERNANCE.md",
        governance("policies: [{id: fin, ref: ./policies/finance/POLICY.md, severity: warn}]\nautonomy: {defaultApproval: auto}"),
    );
    assert_eq!(class(&bound, &Action::file(Kind::Edit, "/ws/finance/a")), Class::Allow);
    let elsewhere = files.with(
        "notes/GOVERNANCE.md",
        governance("policies: [{id: fin, ref: ./policies/finance/POLICY.md, appliesTo: network.fetch}]\nautonomy: {defaultApproval: auto}"),
    );
    assert_eq!(class(&elsewhere, &Action::file(Kind::Edit, "/ws/finance/a")), Class::Allow);
}

#[test]
fn the_path_of_a_policy_is_relative_to_the_file_that_names_it() {
    let files =
        extending("", "policies: [{id: fin, ref: ./finance/POLICY.md}]\nautonomy: {defaultApproval: auto}")
            .with("org/finance/POLICY.md", policy("finance", DENY_WRITES));
    assert_eq!(class(&files, &Action::file(Kind::Edit, "/ws/finance/a")), Class::Deny);
    let replaced = files
        .with(
            "notes/GOVERNANCE.md",
            governance("extends: ../org/GOVERNANCE.md\npolicies: [{id: fin, ref: ./fin/POLICY.md}]"),
        )
        .with("notes/fin/POLICY.md", policy("fin", "match: {action: tool.call}\ndecision: escalate"));
    assert_eq!(class(&replaced, &Action::file(Kind::Read, "/ws/a")), Class::Escalate);
    refused(
        &extending("", "policies: [{id: fin, ref: ./none/POLICY.md}]"),
        Code::Policy,
        "org/GOVERNANCE.md:7:27",
    );
}

#[test]
fn policies_named_by_an_operator_must_exist() {
    let names =
        "governance: {audit_log: 'audit:default', autonomy: autonomous, policies: ['policy:finance']}";
    let files = server().with("notes/OPERATOR.md", operator(names));
    refused(&files, Code::Policy, "notes/OPERATOR.md:7:64");
    let there = files
        .with("policies/finance/POLICY.md", policy("finance", DENY_WRITES))
        .with("notes/GOVERNANCE.md", governance("autonomy: {defaultApproval: auto}"));
    assert_eq!(class(&there, &Action::file(Kind::Edit, "/ws/finance/a")), Class::Deny);
}

#[test]
fn the_default_decision_is_that_of_the_governance() {
    let with = |more: &str| {
        bundle(&server().with("notes/GOVERNANCE.md", governance(more))).ruleset().default_approval().clone()
    };
    assert_eq!(with(""), DefaultApproval::OnMutate);
    assert_eq!(with("autonomy: {defaultApproval: auto}"), DefaultApproval::Auto);
    assert_eq!(with("autonomy: {defaultApproval: always}"), DefaultApproval::Always);
    let named = server()
        .with(
            "notes/GOVERNANCE.md",
            governance(
                "autonomy: {defaultApproval: 'policy:fin'}\npolicies: [{id: fin, ref: ./p/POLICY.md}]",
            ),
        )
        .with("notes/p/POLICY.md", policy("finance", DENY_WRITES));
    assert_eq!(*bundle(&named).ruleset().default_approval(), DefaultApproval::Rule("finance".into()));
    let unknown = server().with("notes/GOVERNANCE.md", governance("autonomy: {defaultApproval: 'policy:x'}"));
    refused(&unknown, Code::Policy, "notes/GOVERNANCE.md:7:12");
}

#[test]
fn autonomy_is_the_lower_of_both() {
    use crate::types::operator::Autonomy::{Autonomous, Gated, Supervised};
    for (level, autonomy, expected) in [
        (None, None, None),
        (Some(3), None, Some(3)),
        (None, Some(Autonomous), None),
        (Some(3), Some(Autonomous), Some(3)),
        (None, Some(Supervised), Some(1)),
        (Some(3), Some(Supervised), Some(1)),
        (Some(0), Some(Supervised), Some(0)),
        (Some(3), Some(Gated), Some(1)),
    ] {
        assert_eq!(policies::lower(level, autonomy), expected, "{level:?} {autonomy:?}");
    }
    let gated = operator("governance: {audit_log: 'audit:default', autonomy: gated}");
    assert!(bundle(&server().with("notes/OPERATOR.md", gated)).per_turn_approval);
}

#[test]
fn an_invalid_policy_is_refused() {
    let with = |more: &str| {
        server()
            .with("notes/GOVERNANCE.md", governance("policies: [{id: p, ref: ./p/POLICY.md}]"))
            .with("notes/p/POLICY.md", policy("p-q", more))
    };
    let place = "notes/p/POLICY.md";
    refused(
        &with("match: {action: tool.call}\ndecision: allow\nautonomy: 0"),
        Code::AllowWithoutAutonomy,
        &format!("{place}:8:11"),
    );
    refused(
        &with("match: {action: tool.call}\ndecision: require-approval\nsigners: []"),
        Code::Signers,
        &format!("{place}:8:1"),
    );
    refused(
        &with("match: {action: tool.call, subject: /a/../b}\ndecision: deny"),
        Code::UnusableValue,
        &format!("{place}:6:28"),
    );
}

#[test]
fn key_files_are_relative_to_the_file_that_names_them() {
    let keyring = |files: &MemoryFiles| {
        bundle(files).governance.unwrap().keyring().map(|(_, path)| path.display().to_string())
    };
    assert_eq!(keyring(&server()), None);
    let above = extending("", "signing: {keyring: ./keys.json}");
    assert_eq!(keyring(&above).as_deref(), Some("org/keys.json"));
    let both = extending("signing: {keyring: keys/a.json}", "signing: {keyring: ./keys.json}");
    assert_eq!(keyring(&both).as_deref(), Some("notes/keys/a.json"));
    refused(&extending("signing: {keyring: ../../keys}", ""), Code::Outside, "notes/GOVERNANCE.md:8:11");
}
