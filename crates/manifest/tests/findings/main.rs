//! Tests of findings in one file: position, message and hint.
#![expect(clippy::unwrap_used, reason = "these files are all tests")]

mod anything;

use std::path::Path;

use narrows_manifest::{Code, ManifestKind, check};

/// Checks a file in `notes/`, and compares all its findings, one per line.
#[track_caller]
fn check_file(name: &str, front: &str, expected: &[&str]) {
    let path = Path::new("notes").join(name);
    let findings = check(
        ManifestKind::from_path(&path).unwrap(),
        &path,
        format!("---\n{front}\n---\nText.\n").as_bytes(),
    );
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    let lines: Vec<&str> = lines.iter().map(|line| line.strip_prefix("notes/").unwrap()).collect();
    assert_eq!(lines, expected);
}

/// Returns a valid ACP.md. `lines` are added below `aip44`; a line replaces the default line with the same
/// key.
fn acp(lines: &str) -> String {
    let given = |key: &str| lines.lines().any(|line| line.trim_start().starts_with(key));
    let mut text = String::from(
        "name: notes\nid: notes\ndescription: d\nversion: 1.0.0\nkind: client\ntransport: stdio\nmetadata:\n  aip44:",
    );
    for line in ["acp_rev: \"272bf79\"", "tier: basic"] {
        if !given(line.split(':').next().unwrap()) {
            text += &format!("\n    {line}");
        }
    }
    lines.lines().for_each(|line| text += &format!("\n    {line}"));
    text
}

#[track_caller]
fn check_acp(lines: &str, expected: &[&str]) {
    check_file("ACP.md", &acp(lines), expected);
}

#[test]
fn a_valid_file_has_no_findings() {
    check_acp("", &[]);
    check_file("notes.ACP.md", &acp("tier: governance-aware"), &[]);
}

#[test]
fn texts_that_yaml_reads_as_another_type_need_quotes() {
    check_acp(
        "acp_rev: 1234567",
        &[
            "ACP.md:11:14: error[quote-it]: metadata.aip44.acp_rev: `1234567` without quotes is a number, expected a string; quote it: acp_rev: \"1234567\"",
        ],
    );
    check_acp(
        "acp_rev: 12e4567",
        &[
            "ACP.md:11:14: error[quote-it]: metadata.aip44.acp_rev: `12e4567` without quotes is a number, expected a string; quote it: acp_rev: \"12e4567\"",
        ],
    );
    check_acp(
        "acp_rev: \"272BF79\"",
        &[
            "ACP.md:11:14: error[pattern]: metadata.aip44.acp_rev: `272BF79` has the wrong form; expected: revision of the protocol: 7 to 40 lower-case hexadecimal digits, in quotes",
        ],
    );
    check_acp(
        "operator: true",
        &[
            "ACP.md:12:15: error[quote-it]: metadata.aip44.operator: `true` without quotes is true or false, expected a string; quote it: operator: \"true\"",
        ],
    );
    check_acp(
        "operator:",
        &[
            "ACP.md:12:5: error[type]: metadata.aip44.operator: missing value, expected a string; expected: path of the OPERATOR.md, such as ./OPERATOR.md; or remove the key if it is optional",
        ],
    );
}

#[test]
fn the_hint_says_if_quotes_are_not_enough() {
    check_file(
        "ACP.md",
        &acp("").replace("version: 1.0.0", "version: 1.0"),
        &[
            "ACP.md:5:10: error[quote-it]: version: `1.0` without quotes is a number, expected a string; quote it, in its complete form; expected: version of this file: three numbers such as \"1.0.0\"",
        ],
    );
}

#[test]
fn tools_given_as_words_get_a_hint_to_use_ids() {
    let operator = |tools: &str| {
        format!(
            "name: N\nid: nn\npersona_summary: p\nversion: 1.0.0\n\
             profile: {{role: r, voice: v, boundaries: []}}\ntools:\n- {tools}"
        )
    };
    check_file("OPERATOR.md", &operator("read-file"), &[]);
    check_file("OPERATOR.md", &operator("id: read_file"), &[]);
    check_file(
        "OPERATOR.md",
        &operator("read_file"),
        &[
            "OPERATOR.md:8:3: error[pattern]: tools[0]: `read_file` is not allowed here without a key; write `- id: read_file`; only names of lower-case letters, digits and hyphens are allowed without a key",
        ],
    );
    check_file(
        "OPERATOR.md",
        &operator("kind:read"),
        &[
            "OPERATOR.md:8:3: error[pattern]: tools[0]: `kind:read` is not allowed here without a key; write `- id: 'kind:read'`; only names of lower-case letters, digits and hyphens are allowed without a key",
        ],
    );
}

#[test]
fn misspelled_keys_are_recognized() {
    check_acp(
        "govenance: ./GOVERNANCE.md\nx-vendor: 1",
        &[
            "ACP.md:12:5: warning[unknown-aip44-key]: metadata.aip44.govenance: `govenance` is not a key of aip44; did you mean governance?",
            "ACP.md:13:5: warning[unknown-aip44-key]: metadata.aip44.x-vendor: `x-vendor` is not a key of aip44; remove it, or move it out of aip44; keys of aip44 are acp_rev, audit, capabilities, governance, mcp_servers, operator, sandbox, tier",
        ],
    );
    check_file(
        "ACP.md",
        &acp("").replace("kind: client", "kinds: client"),
        &[
            "ACP.md:2:1: error[missing-key]: `kind` is missing; did you mean `kinds`?",
            "ACP.md:6:1: warning[misspelt-key]: kinds: `kinds` is not a known setting; did you mean kind?",
        ],
    );
    check_acp(
        "audit: {knd: off}",
        &[
            "ACP.md:12:13: error[unknown-key]: metadata.aip44.audit.knd: unknown key `knd`; did you mean kind?",
        ],
    );
}

#[test]
fn methods_are_listed_by_exact_names() {
    let with = |lines: &str| format!("{}\n  narrows: {lines}", acp(""));
    check_file(
        "ACP.md",
        &with("{client_methods: [_session/steering, providers/set], agent_methods: []}"),
        &[],
    );
    let form = "expected: additional methods that the client may send: exact names, without duplicates";
    let wrong = |name: &str| {
        format!(
            "ACP.md:12:30: error[pattern]: metadata.narrows.client_methods[0]: `{name}` has the wrong form; {form}"
        )
    };
    check_file("ACP.md", &with("{client_methods: [\"_session/*\"]}"), &[&wrong("_session/*")]);
    let idle = |column: u32, place: &str, name: &str| {
        format!(
            "ACP.md:12:{column}: warning[ignored-key]: metadata.narrows.{place}: listing `{name}` has no effect: the gate handles this method itself; remove it"
        )
    };
    check_file(
        "ACP.md",
        &with(
            "{client_methods: [_x, session/prompt, session/update, _narrows/x], agent_methods: [fs/write_text_file]}",
        ),
        &[
            &idle(34, "client_methods[1]", "session/prompt"),
            &idle(50, "client_methods[2]", "session/update"),
            &idle(95, "agent_methods[0]", "fs/write_text_file"),
        ],
    );
    check_file(
        "ACP.md",
        &with("{client_method: [a]}"),
        &[
            "ACP.md:12:13: error[unknown-key]: metadata.narrows.client_method: unknown key `client_method`; did you mean client_methods?",
        ],
    );
    check_file(
        "ACP.md",
        &with("{}").replace("narrows:", "narows:"),
        &[
            "ACP.md:12:3: warning[misspelt-key]: metadata.narows: `narows` is not a known setting; did you mean narrows?",
        ],
    );
}

#[test]
fn undeclarable_capabilities_are_reported() {
    check_acp(
        "capabilities: {agent: {mcpCapabilities: {acp: true}, sessionCapabilities: {}}}\nmcp_servers: [{name: a, transport: acp}]",
        &[
            "ACP.md:12:46: error[unknown-key]: metadata.aip44.capabilities.agent.mcpCapabilities.acp: unknown key `acp`; remove it: MCP over ACP is implied by http or sse",
            "ACP.md:12:58: error[unknown-key]: metadata.aip44.capabilities.agent.sessionCapabilities: unknown key `sessionCapabilities`; remove it: closing, resuming and listing sessions cannot be declared",
            "ACP.md:13:40: error[enum]: metadata.aip44.mcp_servers[0].transport: `acp` is not allowed here; write one of stdio, http, sse",
        ],
    );
}

#[test]
fn names_revisions_and_bindings_are_warned_about() {
    check_file(
        "ACP.md",
        &acp("acp_rev: \"abc1234\"").replace("name: notes", "name: other").replace("client", "server"),
        &[
            "ACP.md:2:7: warning[name-mismatch]: name: the name differs from its directory or file, `notes`; write name: notes, or move the file",
            "ACP.md:6:7: warning[unbound]: kind: a server without an operator describes an external agent and cannot be served; to serve it, add metadata.aip44.operator: ./OPERATOR.md",
            "ACP.md:11:14: warning[unknown-acp-rev]: metadata.aip44.acp_rev: unknown revision of the protocol; the version is negotiated on connection; to pin it, set the commit of a release",
        ],
    );
    check_file(
        "slug.ACP.md",
        &acp("").replace("client", "bridge"),
        &[
            "slug.ACP.md:2:7: warning[name-mismatch]: name: the name differs from its directory or file, `slug`; write name: slug, or move the file",
            "slug.ACP.md:6:7: warning[unbound]: kind: a bridge needs a governance or an operator; add metadata.aip44.governance: ./GOVERNANCE.md, or an operator",
        ],
    );
}

#[test]
fn contradictions_are_errors() {
    check_acp(
        "tier: governance-aware\ncapabilities: {agent: {loadSession: false}}",
        &[
            "ACP.md:12:41: error[contradiction]: metadata.aip44.capabilities.agent.loadSession: the tier governance-aware implies loadSession, but it is false; set it to true, remove it, or use the tier basic",
        ],
    );
    check_acp(
        "tier: sandboxed\nsandbox: ./S.md\ncapabilities: {agent: {mcpCapabilities: {http: false, sse: false}}}",
        &[
            "ACP.md:13:52: error[contradiction]: metadata.aip44.capabilities.agent.mcpCapabilities: the tier sandboxed implies MCP servers, but all transports are false; set http: true, or use the tier governance-aware",
        ],
    );
    check_acp("capabilities: {agent: {loadSession: false}}", &[]);
    check_acp(
        "tier: sandboxed\nsandbox: ./S.md\ncapabilities: {agent: {mcpCapabilities: {http: false, sse: true}}}",
        &[],
    );
    check_acp(
        "tier: sandboxed",
        &["ACP.md:9:3: error[missing-key]: metadata.aip44: `sandbox` is missing; add it"],
    );
}

#[test]
fn unsupported_yaml_is_refused() {
    check_file(
        "ACP.md",
        "a: &x 1\nb: *x",
        &[
            "ACP.md:3:4: error[yaml-alias]: aliases (`*name`) are not supported; write the value in full, or quote a string that begins with `*`",
        ],
    );
    check_file(
        "ACP.md",
        "<<: {a: 1}",
        &["ACP.md:2:1: error[yaml-alias]: merge keys (`<<`) are not supported; write the keys in full"],
    );
    check_file(
        "ACP.md",
        "? [a]\n: 1",
        &["ACP.md:2:3: error[yaml-key]: a key must not be a list or a map; write a string as key"],
    );
    check_file(
        "ACP.md",
        "a: !!python/object x",
        &[
            "ACP.md:2:4: error[yaml-tag]: a tag (`!!python/object`); remove it; quote the value if it is a string",
        ],
    );
    check_file(
        "RUNNER.md",
        "engine: sandbox\nengine: subprocess",
        &[
            "RUNNER.md:3:1: error[duplicate-key]: `engine` is a duplicate key, first on line 2; keep one of them",
        ],
    );
    check_file(
        "RUNNER.md",
        "- a",
        &[
            "RUNNER.md:2:1: error[type]: this is a list, expected a map; expected: the front matter of a RUNNER.md, or a map inside another manifest",
        ],
    );
    check_file(
        "RUNNER.md",
        "# nothing",
        &[
            "RUNNER.md:1:1: error[front-matter]: the front matter is empty; put the keys between the two lines `---`",
        ],
    );
    let deep = format!("a: {}{}", "[".repeat(40), "]".repeat(40));
    check_file(
        "RUNNER.md",
        &deep,
        &["RUNNER.md:2:35: error[yaml-depth]: values are nested more than 32 deep; reduce the nesting"],
    );
}

#[test]
fn files_that_are_not_manifests_are_errors() {
    let code = |bytes: &[u8]| {
        let findings = check(ManifestKind::Acp, Path::new("ACP.md"), bytes);
        findings.iter().map(|finding| finding.code).collect::<Vec<_>>()
    };
    assert_eq!(code(b""), [Code::FrontMatter]);
    assert_eq!(code(b"# Title\n"), [Code::FrontMatter]);
    assert_eq!(code(b"---\na: 1\n"), [Code::FrontMatter]);
    assert_eq!(code(b"---\na: \xff\n---\n"), [Code::Encoding]);
    assert_eq!(code(b"---\na: [\n---\n"), [Code::Syntax]);
    assert_eq!(code("x".repeat(300 << 10).as_bytes()), [Code::TooLong]);
    assert_eq!(code(format!("---\na: [{}]\n---\n", "1,".repeat(30_000)).as_bytes()), [Code::TooLong]);
}

#[test]
fn forms_are_recognized_by_their_keys() {
    let cli = |more: &str| {
        format!(
            "name: notes\nid: notes\ndescription: d\nversion: 1.0.0\nbin: x\nsandbox: ./S.md\nprotocol: acp\nacp: x\n\
             version_check: {{cmd: x, parse: (x), range: '*'}}\n{more}"
        )
    };
    let npm = "install: [{method: npm, package: x}]";
    check_file(
        "AGENT-CLI.md",
        &cli("install: [{method: nmp, package: x}, {method: npm, pakage: x}, {method: curl}]"),
        &[
            "AGENT-CLI.md:11:20: error[enum]: install[0].method: `nmp` is not allowed here; did you mean npm? It is one of brew, apt, dnf, pacman, choco, scoop, npm, pip, cargo, go, curl, download, vendored",
            "AGENT-CLI.md:11:38: error[missing-key]: install[1]: `package` is missing; did you mean `pakage`?",
            "AGENT-CLI.md:11:52: error[unknown-key]: install[1].pakage: unknown key `pakage`; did you mean package?",
            "AGENT-CLI.md:11:64: error[missing-key]: install[2]: `url` is missing; add it: address",
        ],
    );
    check_file(
        "AGENT-CLI.md",
        &cli(&format!("{npm}\nsession: {{mode: resumable}}")),
        &["AGENT-CLI.md:2:1: error[missing-key]: `capabilities` is missing; add it"],
    );
    check_file(
        "AGENT-CLI.md",
        &cli(&format!(
            "{npm}\nrunner: {{limits: {{memory_mb: 0}}}}\noptions: [{{id: a, type: integer, default: x}}]"
        ))
        .replace("(x)", "x"),
        &[
            "AGENT-CLI.md:10:32: warning[unusable-value]: version_check.parse: invalid pattern: it has no group; write a pattern with a group around the version",
            "AGENT-CLI.md:12:30: warning[range]: runner.limits.memory_mb: `0` is out of range; write a number 1 or more",
            "AGENT-CLI.md:13:34: warning[agent-cli-config]: options[0].default: this default is not allowed: expected an integer; write a value that the option accepts",
        ],
    );
    check_file(
        "RUNNER.md",
        "runtime: {engine: sandbox}",
        &[
            "RUNNER.md:2:1: warning[legacy-key]: runtime: `runtime` is the former name of `runner`; rename it to runner, or move its keys to the top level",
        ],
    );
    check_file("RUNNER.md", "runner: {engine: sandbox}", &[]);
}

#[test]
fn strict_turns_warnings_into_errors() {
    let path = Path::new("notes/ACP.md");
    let text = format!("---\n{}\n---\n", acp("govenance: x").replace("name: notes", "name: other"));
    let findings = check(ManifestKind::Acp, path, text.as_bytes());
    assert!(!findings.has_errors());
    assert!(findings.strict().has_errors());
}
