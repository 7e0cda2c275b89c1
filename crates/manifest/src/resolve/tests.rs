//! Tests of resolving an ACP.md with all files that it refers to.

mod rules;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use narrows_policy::{
    Access, Action, BudgetUsage, Class, DefaultApproval, Kind, Narrowing, Policy, RequestContext,
};
use proptest::prelude::*;

use super::*;
use crate::files::MemoryFiles;
use crate::types::runner::Engine;

/// Returns an ACP.md of a kind and tier, with the keys `more` below `aip44`.
fn acp(kind: &str, tier: &str, more: &str) -> String {
    let mut text = format!(
        "---\nname: notes\nid: notes\ndescription: d\nversion: 1.0.0\nkind: {kind}\ntransport: stdio\n\
         metadata:\n  aip44:\n    acp_rev: \"272bf79\"\n    tier: {tier}\n"
    );
    more.lines().for_each(|line| writeln!(text, "    {line}").unwrap());
    text + "---\nbody\n"
}

fn operator(more: &str) -> String {
    format!(
        "---\nname: Notes\nid: notes\npersona_summary: p\nversion: 1.0.0\n\
         profile: {{role: r, voice: v, boundaries: []}}\n{more}\n---\nI keep notes.\n"
    )
}

fn governance(more: &str) -> String {
    format!(
        "---\nschema: governance.workspace/v1\nname: home\ntitle: t\ndescription: d\nversion: 1.0.0\n{more}\n---\n"
    )
}

fn policy(slug: &str, more: &str) -> String {
    format!("---\nschema: agentgovernance/v1\ndoctype: policy\nslug: {slug}\nversion: 1.0.0\n{more}\n---\n")
}

fn agent_cli(more: &str) -> String {
    format!(
        "---\nname: notes\nid: hermes\ndescription: d\nversion: 1.0.0\nbin: hermes\nbin_args: [acp]\n\
         install: [{{method: npm, package: h}}]\nprotocol: acp\nacp: ./hermes.ACP.md\n\
         version_check: {{cmd: hermes --version, parse: '(\\d+\\.\\d+\\.\\d+)', range: '>=1.0.0'}}\n{more}\n---\n"
    )
}

const BOUND: &str = "governance: {audit_log: 'audit:default', autonomy: autonomous}";
const SANDBOX: &str = "---\nprovider: local\nconfig: {}\n---\n";

fn server() -> MemoryFiles {
    MemoryFiles::default()
        .with("notes/ACP.md", acp("server", "governance-aware", "operator: ./OPERATOR.md"))
        .with("notes/OPERATOR.md", operator(BOUND))
        .with("notes/GOVERNANCE.md", governance(""))
}

fn bundle(files: &MemoryFiles) -> Bundle {
    resolve(files, Path::new("notes/ACP.md")).unwrap_or_else(|findings| panic!("{findings}"))
}

#[track_caller]
fn refused(files: &MemoryFiles, code: Code, place: &str) {
    let findings = resolve(files, Path::new("notes/ACP.md")).expect_err("it is refused");
    let found = findings.iter().find(|finding| finding.code == code);
    let found = found.unwrap_or_else(|| panic!("no {code} in\n{findings}"));
    assert_eq!(format!("{}:{}:{}", found.file.display(), found.line, found.column), place, "{findings}");
    assert_eq!(found.severity, crate::Severity::Error, "{findings}");
}

#[track_caller]
fn warned(files: &MemoryFiles, code: Code) {
    let bundle = bundle(files);
    assert!(bundle.warnings.has(code), "no {code} in\n{}", bundle.warnings);
}

/// Returns the decision of a bundle's ruleset on an action.
fn class(files: &MemoryFiles, action: &Action) -> Class {
    let policy =
        Policy::new(Access::High, Narrowing::default()).with_ruleset(bundle(files).ruleset().clone());
    let roots = [PathBuf::from("/ws")];
    policy
        .decide_governed(
            action,
            &RequestContext { roots: &roots, ..RequestContext::default() },
            &BudgetUsage::EMPTY,
        )
        .class
}

#[test]
fn a_server_is_resolved_with_its_operator_and_governance() {
    let bundle = bundle(&server());
    assert_eq!(bundle.operator.as_ref().unwrap().front.id, "notes");
    assert_eq!(bundle.operator.as_ref().unwrap().body, "I keep notes.\n");
    assert_eq!(bundle.governance.as_ref().unwrap().chain, [PathBuf::from("notes/GOVERNANCE.md")]);
    assert_eq!(bundle.audit, AuditTarget::Log("notes/audit/audit-log.jsonl".into()));
    assert_eq!(bundle.protocol_version, Some(1));
    assert!(bundle.capabilities.load_session && bundle.agent.is_none() && !bundle.per_turn_approval);
    assert!(bundle.warnings.is_empty(), "{}", bundle.warnings);
}

#[test]
fn every_file_is_pinned_by_the_bytes_that_were_parsed() {
    let pins = bundle(&server()).pins;
    let paths: Vec<&str> = pins.iter().filter_map(|pin| pin.path.to_str()).collect();
    assert_eq!(paths, ["notes/ACP.md", "notes/OPERATOR.md", "notes/GOVERNANCE.md"]);
    let changed = bundle(&server().with("notes/GOVERNANCE.md", governance("metadata: {a: 1}"))).pins;
    assert_eq!(pins[..2], changed[..2]);
    assert_ne!(pins[2], changed[2]);
    assert_eq!(pins[2].sha256, Sha256Hex::of(governance("").as_bytes()), "the digest of exactly these bytes");
}

struct Sha256Hex;

impl Sha256Hex {
    fn of(bytes: &[u8]) -> String {
        use sha2::Digest as _;
        sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[test]
fn a_reference_must_name_a_file_in_the_workspace() {
    let to = |path: &str| {
        server().with("notes/ACP.md", acp("server", "governance-aware", &format!("operator: {path}")))
    };
    refused(&to("./NOBODY.md"), Code::NotFound, "notes/ACP.md:12:5");
    refused(&to("../../OPERATOR.md"), Code::Outside, "notes/ACP.md:12:5");
    refused(&to("/etc/passwd"), Code::Outside, "notes/ACP.md:12:5");
    // A reference without a leading dot is relative to the root of the workspace.
    let far = to("people/OPERATOR.md")
        .with("people/OPERATOR.md", operator(BOUND))
        .with("GOVERNANCE.md", governance(""));
    assert_eq!(bundle(&far).operator.unwrap().path, PathBuf::from("people/OPERATOR.md"));
}

#[test]
fn problems_in_referenced_files_are_reported_there() {
    refused(
        &server().with("notes/OPERATOR.md", operator("rolle: x")),
        Code::Unknown,
        "notes/OPERATOR.md:7:1",
    );
    refused(&MemoryFiles::default(), Code::NotFound, "notes/ACP.md:1:1");
}

#[test]
fn tier_and_operator_must_agree() {
    let basic = |more| server().with("notes/ACP.md", acp("server", "basic", more));
    refused(&basic("operator: ./OPERATOR.md"), Code::Contradiction, "notes/ACP.md:11:5");
    let free = basic("operator: ./OPERATOR.md").with("notes/OPERATOR.md", operator(""));
    assert!(bundle(&free).operator.is_some());
    refused(&basic(""), Code::Unbound, "notes/ACP.md:6:7");
    refused(&server().with("notes/ACP.md", acp("bridge", "basic", "")), Code::Unbound, "notes/ACP.md:6:7");
}

#[test]
fn the_log_is_at_the_location_of_point_21() {
    let log = |files: &MemoryFiles| bundle(files).audit;
    let named = |slug: &str| {
        server().with(
            "notes/OPERATOR.md",
            operator(&format!("governance: {{audit_log: 'audit:{slug}', autonomy: autonomous}}")),
        )
    };
    assert_eq!(log(&named("calls")), AuditTarget::Log("notes/audit/calls/audit-log.jsonl".into()));
    for outside in ["../x", "a/../../b", "..", "a//b", "/a"] {
        refused(&named(outside), Code::Outside, "notes/OPERATOR.md:7:14");
    }
    let audit = |more: &str| {
        server().with(
            "notes/ACP.md",
            acp("server", "governance-aware", &format!("operator: ./OPERATOR.md\naudit: {more}")),
        )
    };
    assert_eq!(log(&audit("{kind: external, ref: ./log.jsonl}")), AuditTarget::Log("notes/log.jsonl".into()));
    assert_eq!(
        log(&audit("{kind: external, ref: 'file://./log.jsonl'}")),
        AuditTarget::Log("notes/log.jsonl".into())
    );
    refused(&audit("{kind: external, ref: /var/log/x}"), Code::Outside, "notes/ACP.md:13:29");
    refused(&audit("{kind: external, ref: 's3://x'}"), Code::AuditRef, "notes/ACP.md:13:29");
    refused(&audit("{kind: external}"), Code::AuditRef, "notes/ACP.md:13:19");
    refused(&audit("{kind: off}"), Code::AuditOff, "notes/ACP.md:13:19");
    let free = server()
        .with("notes/ACP.md", acp("server", "basic", "operator: ./OPERATOR.md\naudit: {kind: 'off'}"))
        .with("notes/OPERATOR.md", operator(""));
    assert_eq!(log(&free), AuditTarget::Off);
}

#[test]
fn skills_and_tools_are_those_of_the_operator() {
    let files = server()
        .with(
            "notes/OPERATOR.md",
            operator(&format!(
                "{BOUND}\nskills: [writing, {{id: far, source: ../lib/far, allow: [grep]}}]\n\
                 tools: [append-to-notes, {{id: x.y}}, {{kind: mcp, server: bank, allow: [read]}}, {{kind: mcp, server: web}}]"
            )),
        )
        .with("notes/skills/writing/SKILL.md", "---\nname: writing\ndescription: Writes.\n---\nWrite well.\n")
        .with("lib/far/SKILL.md", "---\nname: far\ndescription: Looks.\n---\n");
    let bundle = bundle(&files);
    let skills: Vec<(&str, &str)> =
        bundle.skills.iter().map(|skill| (skill.id.as_str(), skill.body.as_str())).collect();
    assert_eq!(skills, [("writing", "Write well.\n"), ("far", "")]);
    for (server, tool, expected) in [
        (None, "append-to-notes", true),
        (None, "x.y", true),
        (None, "grep", true),
        (None, "rm", false),
        (None, "read", false),
        (Some("bank"), "read", true),
        (Some("bank"), "pay", false),
        (Some("web"), "anything", true),
        (Some("other"), "read", false),
        (Some("other"), "append-to-notes", false),
    ] {
        assert_eq!(bundle.tools.has(server, tool), expected, "{server:?} {tool}");
    }
    refused(&files.clone().without("lib/far/SKILL.md"), Code::Skill, "notes/OPERATOR.md:8:19");
    refused(&files.with("lib/far/SKILL.md", "no front matter"), Code::Skill, "notes/OPERATOR.md:8:19");
}

fn bridge() -> MemoryFiles {
    server()
        .with("notes/ACP.md", acp("bridge", "governance-aware", "operator: ./OPERATOR.md"))
        .with("notes/AGENT-CLI.md", agent_cli("sandbox: ./SANDBOX.md"))
        .with("notes/SANDBOX.md", SANDBOX)
        .with(
            "notes/hermes.ACP.md",
            acp("server", "governance-aware", "").replace("name: notes", "name: hermes"),
        )
}

#[test]
fn a_bridge_finds_its_agent() {
    let agent = bundle(&bridge()).agent.unwrap();
    assert_eq!(
        (agent.launch.program.as_str(), agent.launch.args.as_slice()),
        ("hermes", &["acp".to_owned()][..])
    );
    assert_eq!(agent.acp.unwrap().name, "hermes");
    assert!(agent.cli.front.version_check.argv().is_some());
    refused(&bridge().without("notes/AGENT-CLI.md"), Code::AgentCli, "notes/ACP.md:6:1");
    let elsewhere = |reference: &str, config: &str| {
        let runtime = format!("{BOUND}\nruntime: {{kind: agent-cli, ref: {reference}, config: {config}}}");
        bridge().without("notes/AGENT-CLI.md").with("notes/OPERATOR.md", operator(&runtime)).with(
            "agents/notes/AGENT-CLI.md",
            agent_cli("sandbox: {provider: local, config: {}}\nmodes: [{id: plan, bin_args_append: [-p]}]"),
        )
    };
    let found = bundle(&elsewhere("../agents/notes", "{mode: plan}"));
    assert_eq!(found.agent.unwrap().launch.args, ["acp", "-p"]);
    assert!(found.warnings.has(Code::AgentCli), "a missing ACP.md of the agent is only a warning");
    refused(&elsewhere("../agents/notes", "{mode: act}"), Code::Config, "notes/OPERATOR.md:8:50");
    refused(
        &elsewhere("'@agentproto/adapter-hermes#hermes'", "{}"),
        Code::AgentCli,
        "notes/OPERATOR.md:8:28",
    );
}

#[test]
fn agents_with_unsupported_protocols_have_their_own_errors() {
    let with = |more: &str, protocol: &str| {
        let cli = agent_cli(&format!("sandbox: ./SANDBOX.md\n{more}"))
            .replace("protocol: acp", &format!("protocol: {protocol}"));
        bridge().with("notes/AGENT-CLI.md", cli)
    };
    refused(&with("mcp: {transport: stdio}", "mcp"), Code::ProtocolMcp, "notes/AGENT-CLI.md:9:11");
    refused(&with("adapter: x", "proprietary"), Code::ProtocolProprietary, "notes/AGENT-CLI.md:9:11");
}

#[test]
fn a_sandbox_is_planned_as_plain_data() {
    let with = |more: &str| {
        let text = format!("---\nprovider: local\nconfig: {{cwd: ./work}}\n{more}\n---\n");
        server()
            .with(
                "notes/ACP.md",
                acp("server", "sandboxed", "operator: ./OPERATOR.md\nsandbox: ./SANDBOX.md"),
            )
            .with("notes/SANDBOX.md", text)
            .with("notes/data/x", "")
            .with("notes/STORAGE.md", "---\nprovider: local\nconfig: {path: ./data}\n---\n")
    };
    let plan = bundle(&with(
        "mounts:\n- {source: workspace, at: /w, mode: read-only}\n- {source: {ref: ./data}, at: /d}\n\
         - {source: {file: ./STORAGE.md}, at: /s}\n- {source: {inline: {provider: local, config: {path: data}}}, at: /i}\n\
         network: {egress: [api.example.com]}\nenv: {passthrough: [LANG], auth: {state: {env: [KEY, LANG]}}}",
    ))
    .sandbox
    .unwrap();
    let mounts: Vec<String> = plan
        .mounts
        .iter()
        .map(|mount| format!("{}>{}:{}", mount.source.display(), mount.at.display(), mount.writable))
        .collect();
    assert_eq!(mounts, [">/w:false", "notes/data>/d:true", "notes/data>/s:true", "notes/data>/i:true"]);
    assert_eq!(plan.env, ["KEY", "LANG"]);
    assert_eq!(
        (plan.egress.as_slice(), plan.cwd),
        (&["api.example.com".to_owned()][..], Some("notes/work".into()))
    );
    let closed = bundle(&with("read_only: true\nmounts: [{source: workspace, at: /w}]")).sandbox.unwrap();
    assert!(closed.read_only && !closed.mounts[0].writable);
    let place = "notes/SANDBOX.md:4:1";
    refused(&with("mounts: [{source: {ref: '@acme/data'}, at: /d}]"), Code::Sandbox, place);
    refused(&with("mounts: [{source: {ref: ../../x}, at: /d}]"), Code::Sandbox, place);
    refused(&with("mounts: [{source: workspace, at: /a/../b}]"), Code::Sandbox, place);
    refused(&with("policy: {ref: x}"), Code::UnusableValue, place);
    warned(&with("lifecycle: {destroy_on: x}"), Code::Ignored);
    refused(&with("network: {egress: ['https://x']}"), Code::UnusableValue, "notes/SANDBOX.md:4:20");
    refused(&with("").without("notes/SANDBOX.md"), Code::Sandbox, "notes/ACP.md:13:5");
    let remote = with("").with("notes/SANDBOX.md", "---\nprovider: mastra-modal\nconfig: {}\n---\n");
    refused(&remote, Code::Provider, "notes/SANDBOX.md:2:11");
}

#[test]
fn a_runner_is_read_in_five_forms() {
    let with = |runner: &str| {
        bridge()
            .with("notes/AGENT-CLI.md", agent_cli(&format!("sandbox: ./SANDBOX.md\n{runner}")))
            .with("notes/run/RUNNER.md", "---\nlimits: {memory_mb: 7}\n---\n")
    };
    let memory =
        |runner: &str| bundle(&with(runner)).agent.unwrap().runner.unwrap().effective_limits().memory_mb;
    assert_eq!(memory("runner: ./run/RUNNER.md"), Some(7));
    assert_eq!(memory("runner: {ref: ./run/RUNNER.md}"), Some(7));
    assert_eq!(memory("runner: {file: ./run/RUNNER.md}"), Some(7));
    assert_eq!(memory("runner: {limits: {memory_mb: 8}}"), Some(8));
    assert_eq!(memory("runner: {runtime: {limits: {memory_mb: 9}}}"), Some(9));
    assert_eq!(memory("runner: {}"), Some(256));
    let beside = with("").with("notes/RUNNER.md", "---\nengine: in-process\n---\n");
    let plan = bundle(&beside).agent.unwrap().runner.unwrap();
    assert!(plan.downgraded && plan.engine == Engine::Subprocess);
    assert!(bundle(&with("")).agent.unwrap().runner.is_none());
    refused(&with("runner: {ref: 5}"), Code::Runner, "notes/AGENT-CLI.md:13:1");
    refused(&with("runner: ./none.md"), Code::Runner, "notes/AGENT-CLI.md:13:1");
    refused(&with("runner: {limits: {memory: 8}}"), Code::Unknown, "notes/AGENT-CLI.md:13:19");
    warned(&with("runner: {runtime: {}}"), Code::Legacy);
}

#[test]
fn a_client_needs_no_governance() {
    let files = MemoryFiles::default()
        .with("notes/ACP.md", acp("client", "governance-aware", ""))
        .with("notes/AGENT-CLI.md", agent_cli("sandbox: {provider: local, config: {}}"));
    let bundle = bundle(&files);
    assert_eq!(bundle.audit, AuditTarget::Log("notes/audit/audit-log.jsonl".into()));
    assert_eq!(*bundle.ruleset().default_approval(), DefaultApproval::OnMutate);
    assert_eq!(class(&files, &Action::new(Kind::Edit)), Class::RequireApproval);
}

#[test]
fn a_manifest_is_loaded_from_disk_and_stays_in_its_root() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("notes");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("ACP.md"), acp("server", "governance-aware", "operator: ../OPERATOR.md"))
        .unwrap();
    std::fs::write(root.path().join("OPERATOR.md"), operator(BOUND)).unwrap();
    std::fs::write(root.path().join("GOVERNANCE.md"), governance("")).unwrap();
    let path = directory.join("ACP.md");
    let narrow = load(&path, None).expect_err("the operator lies outside");
    assert!(narrow.has(Code::Outside), "{narrow}");
    let bundle = load(&path, Some(root.path())).unwrap_or_else(|findings| panic!("{findings}"));
    assert_eq!(bundle.acp.path, PathBuf::from("notes/ACP.md"));
    assert_eq!(bundle.governance.unwrap().chain, [PathBuf::from("GOVERNANCE.md")]);
    assert!(load(&path, Some(Path::new("/usr"))).expect_err("another root").has(Code::Outside));
    assert!(load(&directory.join("NONE.md"), None).expect_err("nothing").has(Code::NotFound));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_files_are_resolved_or_refused(
        changes in prop::collection::vec((0_usize..6, any::<prop::sample::Index>(), "[a-z:{}./\\[\\]\\n -]{0,9}"), 1..5)
    ) {
        let mut texts: Vec<(&str, String)> = vec![
            ("notes/ACP.md", acp("bridge", "sandboxed", "operator: ./OPERATOR.md\nsandbox: ./SANDBOX.md")),
            ("notes/OPERATOR.md", operator(BOUND)),
            ("notes/GOVERNANCE.md", governance("extends: ../org/GOVERNANCE.md\npolicies: [{id: p, ref: ./POLICY.md}]")),
            ("org/GOVERNANCE.md", governance("audit: {appendOnly: true}")),
            ("notes/POLICY.md", policy("p-q", "match: {action: tool.call}\ndecision: deny")),
            ("notes/AGENT-CLI.md", agent_cli("sandbox: ./SANDBOX.md\nrunner: {limits: {}}")),
            ("notes/SANDBOX.md", "---\nprovider: local\nconfig: {}\nmounts: [{source: workspace, at: /w}]\n---\n".into()),
        ];
        for (file, place, piece) in changes {
            let text = &mut texts[file].1;
            let at = place.index(text.len());
            let to = (at + piece.len()).min(text.len());
            text.replace_range(at..to, &piece);
        }
        let files = texts.iter().fold(MemoryFiles::default(), |files, (path, text)| files.with(*path, text.clone()));
        match resolve(&files, Path::new("notes/ACP.md")) {
            Ok(bundle) => prop_assert!(!bundle.warnings.has_errors() && !bundle.pins.is_empty()),
            Err(findings) => {
                prop_assert!(findings.has_errors());
                for finding in &findings {
                    let text = texts.iter().find(|(path, _)| Path::new(path) == finding.file);
                    prop_assert!(text.is_some_and(|(_, text)| finding.line <= text.lines().count()), "{finding}");
                }
            }
        }
    }
}
