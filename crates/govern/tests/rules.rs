//! Tests of every rule that a governance can have, from its files to the decision: what the rule matches, and
//! what it does not match.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use narrows_govern::{GateConfig, Principal, bundle_policy, preview_decision};
use narrows_manifest::{Bundle, MemoryFiles, resolve};
use narrows_policy::Class::{self, Allow, Deny, Escalate, RequireApproval};
use narrows_policy::{Budget, GovernanceDecision};
use serde_json::{Value, json};

const ACP: &str = "---\nname: notes\nid: notes\ndescription: d\nversion: 1.0.0\nkind: server\ntransport: stdio\n\
    metadata:\n  aip44:\n    acp_rev: \"272bf79\"\n    tier: governance-aware\n    operator: ./OPERATOR.md\n---\n";

const TOOLS: [&str; 14] = [
    "pay",
    "payment",
    "repay",
    "Read",
    "kind:read",
    "kind:edit",
    "kind:delete",
    "kind:move",
    "kind:search",
    "kind:execute",
    "kind:fetch",
    "kind:think",
    "kind:other",
    "kind:switch_mode",
];

/// Files of a governance that allows everything without a policy.
#[derive(Clone)]
struct Written {
    operator: String,
    governance: String,
    policies: Vec<String>,
    above: Option<(String, Vec<String>)>,
}

impl Default for Written {
    fn default() -> Self {
        Self {
            operator: "autonomous".into(),
            governance: "autonomy: {level: 3, defaultApproval: auto}".into(),
            policies: Vec::new(),
            above: None,
        }
    }
}

fn policy(slug: &str, text: &str) -> String {
    format!("---\nschema: agentgovernance/v1\ndoctype: policy\nslug: {slug}\nversion: 1.0.0\n{text}\n---\n")
}

fn governance(directory: &str, text: &str, policies: &[String], mut files: MemoryFiles) -> MemoryFiles {
    let mut head = format!(
        "---\nschema: governance.workspace/v1\nname: home\ntitle: t\ndescription: d\nversion: 1.0.0\n{text}\n"
    );
    if !policies.is_empty() {
        head += "policies:\n";
    }
    for (number, policy) in policies.iter().enumerate() {
        let slug = policy.lines().find_map(|line| line.strip_prefix("slug: ")).unwrap();
        head += &format!("- {{id: {slug}, ref: ./p{number}/POLICY.md}}\n");
        files = files.with(format!("{directory}/p{number}/POLICY.md"), policy.clone());
    }
    files.with(format!("{directory}/GOVERNANCE.md"), head + "---\n")
}

impl Written {
    /// Returns files with one more policy.
    fn with(slug: &str, text: &str) -> Self {
        Self { policies: vec![policy(slug, text)], ..Self::default() }
    }

    fn bundle(&self) -> Bundle {
        let operator = format!(
            "---\nname: Notes\nid: notes\npersona_summary: p\nversion: 1.0.0\nprofile: {{role: r, voice: v, boundaries: []}}\n\
             tools: [{}]\ngovernance: {{audit_log: 'audit:default', autonomy: {}}}\n---\n",
            TOOLS.map(|tool| format!("{{id: '{tool}'}}")).join(", "),
            self.operator
        );
        let mut files = MemoryFiles::default().with("notes/ACP.md", ACP).with("notes/OPERATOR.md", operator);
        let mut own = self.governance.clone();
        if let Some((above, policies)) = &self.above {
            files = governance("org", above, policies, files);
            own = format!("extends: ../org/GOVERNANCE.md\n{own}");
        }
        files = governance("notes", &own, &self.policies, files);
        resolve(&files, Path::new("notes/ACP.md")).unwrap_or_else(|findings| panic!("{findings}"))
    }

    fn ruling(&self, (name, kind): (Option<&str>, &str), input: &Value) -> GovernanceDecision {
        let bundle = self.bundle();
        let config = GateConfig::from_bundle(&bundle, vec![PathBuf::from("/ws")]);
        preview_decision(&config, &Principal::default(), &bundle_policy(&bundle), (name, kind), input)
    }

    fn class(&self, tool: &str, path: &str) -> Class {
        let (name, kind) = match tool.strip_prefix("kind:") {
            Some(kind) => (None, kind),
            None => (Some(tool), "read"),
        };
        let input = match kind {
            "execute" => json!({"command": path}),
            "fetch" => json!({"url": path}),
            _ => json!({"path": path}),
        };
        self.ruling((name, kind), &input).class
    }
}

/// Checks a policy that denies, with calls that it matches and calls that it does not. A call is a tool and
/// its input.
#[track_caller]
fn matches(r#match: &str, about: &[(&str, &str)], not: &[(&str, &str)]) {
    let written = Written::with("rule", &format!("match: {{{match}}}\ndecision: deny", r#match = r#match));
    for (tool, with) in about {
        assert_eq!(written.class(tool, with), Deny, "{match} is about {tool} {with}", r#match = r#match);
    }
    for (tool, with) in not {
        assert_eq!(written.class(tool, with), Allow, "{match} is not about {tool} {with}", r#match = r#match);
    }
}

#[test]
fn an_action_is_matched_part_by_part() {
    matches("action: tool.call", &[("pay", "/ws/a"), ("kind:think", "/ws/a")], &[]);
    matches("action: 'tool.*'", &[("pay", "/ws/a")], &[]);
    matches(
        "action: workspace.read",
        &[("kind:read", "/ws/a"), ("kind:search", "/ws/a")],
        &[("kind:edit", "/ws/a")],
    );
    matches(
        "action: workspace.write",
        &[("kind:edit", "/ws/a"), ("kind:delete", "/ws/a")],
        &[("kind:read", "/ws/a")],
    );
    matches("action: 'workspace.w*'", &[("kind:edit", "/ws/a")], &[("kind:read", "/ws/a")]);
    matches(
        "action: 'workspace.*'",
        &[("kind:edit", "/ws/a"), ("kind:read", "/ws/a")],
        &[("kind:fetch", "http://x/")],
    );
    matches("action: workspace.delete", &[("kind:delete", "/ws/a")], &[("kind:edit", "/ws/a")]);
    matches("action: command.run", &[("kind:execute", "make")], &[("kind:edit", "/ws/a")]);
    matches(
        "action: network.fetch",
        &[("kind:fetch", "http://x/"), ("kind:execute", "curl x")],
        &[("kind:read", "/ws/a")],
    );
    matches("action: tool", &[], &[("pay", "/ws/a")]);
    matches("action: tool.call.more", &[], &[("pay", "/ws/a")]);
    matches("action: deploy.night", &[], &[("pay", "/ws/a"), ("kind:edit", "/ws/a")]);
}

#[test]
fn a_subject_is_a_name_a_pattern_or_a_path() {
    matches(
        "action: tool.call, subject: pay",
        &[("pay", "/ws/a")],
        &[("payment", "/ws/a"), ("kind:read", "/ws/pay")],
    );
    matches(
        "action: tool.call, subject: 'pay*'",
        &[("pay", "/ws/a"), ("payment", "/ws/a")],
        &[("repay", "/ws/a")],
    );
    matches("action: tool.call, subject: '*'", &[("pay", "/ws/a"), ("kind:edit", "/ws/a")], &[]);
    matches("action: tool.call, subject: 'kind:edit'", &[("kind:edit", "/ws/a")], &[("kind:read", "/ws/a")]);
    for path in ["/finance/**", "workspace:/finance/**"] {
        matches(
            &format!("action: workspace.write, subject: '{path}'"),
            &[
                ("kind:edit", "/ws/finance/a/b"),
                ("kind:edit", "finance/a"),
                ("kind:delete", "/ws/x/../finance/a"),
            ],
            &[
                ("kind:edit", "/ws/finances"),
                ("kind:edit", "/ws/a/finance/b"),
                ("kind:read", "/ws/finance/a"),
            ],
        );
    }
    matches(
        "action: workspace.write, subject: '/a/*.md'",
        &[("kind:edit", "/ws/a/x.md")],
        &[("kind:edit", "/ws/a/x.txt"), ("kind:edit", "/ws/a/b/x.md")],
    );
    // A command may have any effect on the path that it names.
    matches(
        "action: workspace.write, subject: '/finance/**'",
        &[("kind:execute", "touch finance/a")],
        &[("kind:execute", "touch public/a")],
    );
}

#[test]
fn a_rule_applies_from_its_risk_on() {
    let kinds =
        ["think", "read", "search", "edit", "move", "fetch", "execute", "switch_mode", "other", "delete"];
    // A move whose destination is not shown can be anything.
    let risks = [0, 0, 0, 1, 2, 1, 2, 2, 2, 3];
    for least in 0..=3 {
        let written = Written::with(
            "rule",
            &format!("match: {{action: tool.call, risk_level_min: {least}}}\ndecision: deny"),
        );
        for (kind, risk) in kinds.iter().zip(risks) {
            let class = written.class(&format!("kind:{kind}"), "/ws/a");
            assert_eq!(class == Deny, risk >= least, "{kind} has risk {risk}, and {least} is the least");
        }
    }
}

#[test]
fn each_decision_decides_and_the_strictest_wins() {
    let text = |decision: &str| {
        let signers = if decision == "require-approval" { "\nsigners: [{role: lead}]" } else { "" };
        format!("match: {{action: tool.call, subject: pay}}\ndecision: {decision}\nautonomy: 4{signers}")
    };
    let all =
        [("allow", Allow), ("require-approval", RequireApproval), ("escalate", Escalate), ("deny", Deny)];
    for (name, class) in all {
        let written = Written::with("rule", &text(name));
        assert_eq!(
            (written.class("pay", "/ws/a"), written.class("repay", "/ws/a")),
            (class, Allow),
            "{name}"
        );
        for (other, second) in all {
            let policies = vec![policy("first", &text(name)), policy("second", &text(other))];
            let both = Written { policies, ..Written::default() };
            assert_eq!(both.class("pay", "/ws/a"), class.max(second), "{name} and {other}");
        }
    }
}

#[test]
fn signers_and_quorum_are_those_of_the_policy() {
    let written = Written::with(
        "rule",
        "match: {action: tool.call, subject: pay}\ndecision: require-approval\nautonomy: 4\nquorum: 2\n\
         signers: [{role: lead}, {userId: ada}]",
    );
    let approvals = written.ruling((Some("pay"), "read"), &json!({"path": "/ws/a"})).approvals;
    assert_eq!((approvals.len(), approvals[0].quorum, approvals[0].signers.len()), (1, 2, 2));
    assert_eq!(approvals[0].signers[0].role.as_deref(), Some("lead"));
    assert_eq!(approvals[0].signers[1].user_id.as_deref(), Some("ada"));
    assert!(written.ruling((Some("repay"), "read"), &json!({"path": "/ws/a"})).approvals.is_empty());
}

#[test]
fn a_level_above_the_ceiling_of_a_rule_escalates() {
    for ceiling in 1..=4_u8 {
        for level in 0..=3_u8 {
            let written = Written {
                governance: format!("autonomy: {{level: {level}, defaultApproval: auto}}"),
                ..Written::with(
                    "rule",
                    &format!(
                        "match: {{action: tool.call, subject: pay}}\ndecision: allow\nautonomy: {ceiling}"
                    ),
                )
            };
            let expected = if level > ceiling { Escalate } else { Allow };
            assert_eq!(written.class("pay", "/ws/a"), expected, "level {level}, ceiling {ceiling}");
        }
    }
    // Actions that each level allows without an approval: reading, the same, changes that can be undone, all.
    for (level, edit, delete) in [
        (0, Escalate, Escalate),
        (1, RequireApproval, RequireApproval),
        (2, Allow, RequireApproval),
        (3, Allow, Allow),
    ] {
        let governance = format!("autonomy: {{level: {level}, defaultApproval: auto}}");
        let written = Written { governance, ..Written::default() };
        let classes = ["read", "edit", "delete"].map(|kind| written.class(&format!("kind:{kind}"), "/ws/a"));
        assert_eq!(classes, [Allow, edit, delete], "level {level}");
    }
}

#[test]
fn only_a_declared_budget_limits_calls() {
    let budget = |text: &str| {
        let written = Written::with(
            "rule",
            &format!("match: {{action: tool.call}}\ndecision: allow\nautonomy: 4\n{text}"),
        );
        written.bundle().ruleset().rules()[0].budget().cloned()
    };
    assert_eq!(budget(""), None);
    let all = "budget: {max_per_hour: 2, max_per_day: 3, max_amount_cents: 4, currency: EUR}";
    let expected =
        Budget { per_hour: Some(2), per_day: Some(3), amount_cents: Some(4), currency: Some("EUR".into()) };
    assert_eq!(budget(all), Some(expected));
    assert_eq!(budget("budget: {max_per_day: 3}"), Some(Budget { per_day: Some(3), ..Budget::default() }));
}

#[test]
fn unmatched_calls_are_decided_by_the_default() {
    let written = |default: &str| Written {
        governance: format!("autonomy: {{level: 3{default}}}"),
        ..Written::with("night", "match: {action: deploy.night}\ndecision: escalate\nautonomy: 4")
    };
    let check = |default: &str, read: Class, edit: Class| {
        let written = written(default);
        let found = (written.class("kind:read", "/ws/a"), written.class("kind:edit", "/ws/a"));
        assert_eq!(found, (read, edit), "{default}");
    };
    check("", Allow, RequireApproval);
    check(", defaultApproval: auto", Allow, Allow);
    check(", defaultApproval: always", RequireApproval, RequireApproval);
    check(", defaultApproval: on-mutate", Allow, RequireApproval);
    check(", defaultApproval: 'policy:night'", Escalate, Escalate);
}

#[test]
fn inherited_governances_are_merged_by_leaf_and_by_policy() {
    let deny = |slug: &str, subject: &str| {
        policy(slug, &format!("match: {{action: tool.call, subject: {subject}}}\ndecision: deny"))
    };
    let allow = policy("money", "match: {action: tool.call, subject: pay}\ndecision: allow\nautonomy: 4");
    let above = (
        "autonomy: {level: 3, defaultApproval: always}".to_owned(),
        vec![deny("money", "pay"), deny("reads", "Read")],
    );
    let check = |governance: &str, policies: Vec<String>, pay: Class, read: Class, other: Class| {
        let written = Written {
            governance: governance.into(),
            policies,
            above: Some(above.clone()),
            ..Written::default()
        };
        let found = ["pay", "Read", "kind:edit"].map(|tool| written.class(tool, "/ws/a"));
        assert_eq!(found, [pay, read, other], "{governance}");
    };
    check("work: w", Vec::new(), Deny, Deny, RequireApproval);
    check("autonomy: {defaultApproval: auto}", Vec::new(), Deny, Deny, Allow);
    check("autonomy: {level: 0}", Vec::new(), Deny, Deny, Escalate);
    check("work: w", vec![allow], Allow, Deny, RequireApproval);
    check("work: w", vec![deny("edits", "'kind:edit'")], Deny, Deny, Deny);
}

#[test]
fn autonomy_limits_an_operator() {
    let check = |autonomy: &str, read: Class, edit: Class, per_turn: bool| {
        let written = Written { operator: autonomy.into(), ..Written::default() };
        let found = (written.class("kind:read", "/ws/a"), written.class("kind:edit", "/ws/a"));
        assert_eq!((found, written.bundle().per_turn_approval), ((read, edit), per_turn), "{autonomy}");
    };
    check("autonomous", Allow, Allow, false);
    check("supervised", Allow, RequireApproval, false);
    check("gated", Allow, RequireApproval, true);
    // A policy that allows does not change this.
    let written = Written {
        operator: "supervised".into(),
        ..Written::with(
            "rule",
            "match: {action: tool.call, subject: 'kind:edit'}\ndecision: allow\nautonomy: 4",
        )
    };
    assert_eq!(written.class("kind:edit", "/ws/a"), RequireApproval);
}
