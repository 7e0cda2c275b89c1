//! `narrows check` reports what `narrows serve` would refuse, in the same words.

use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::serve_support::{Governed, acp, policy};
use crate::test_dir::TestDir;

fn check(governed: &Governed, args: &[&str]) -> String {
    governed.dir.output_of(governed.dir.narrows(["check"].iter().chain(args)))
}

/// Returns the errors and hints with this word, which `check` and `serve` must print alike.
#[track_caller]
fn shared_lines(governed: &Governed, word: &str) -> String {
    let is_about =
        |line: &&str| line.contains(word) && (line.starts_with("error:") || line.starts_with("hint:"));
    let lines = |told: String| -> Vec<String> { told.lines().filter(is_about).map(str::to_owned).collect() };
    let checked = check(governed, &["ws"]);
    let served = governed.dir.output_of(governed.serve(&[]));
    assert!(
        checked.ends_with("--- exit 2 ---\n") && served.ends_with("--- exit 2 ---\n"),
        "{checked}{served}"
    );
    assert!(!governed.log().exists(), "nothing was opened");
    let (checked, served) = (lines(checked), lines(served));
    assert_eq!(checked, served);
    checked.join("\n")
}

fn agent_cli(governed: &Governed, sandbox: &str) {
    let text = std::fs::read_to_string(governed.root().join("AGENT-CLI.md")).expect("the file exists");
    let rest: Vec<&str> = text.lines().filter(|line| !line.starts_with("sandbox:")).collect();
    let mut text = rest.join("\n") + "\n";
    text.insert_str(text.len() - 4, &format!("sandbox: {sandbox}\n"));
    governed.file("AGENT-CLI.md", &text);
}

fn sandboxed(more: &str, sandbox: &str) -> Governed {
    let governed = Governed::bridge("");
    let bound = format!("    operator: ./OPERATOR.md\n    sandbox: ./SANDBOX.md\n{more}");
    governed.file("ACP.md", &acp("bridge", "sandboxed", &bound));
    governed.file("SANDBOX.md", &format!("---\nprovider: local\nconfig: {{}}\n{sandbox}---\n"));
    agent_cli(&governed, "./SANDBOX.md");
    governed
}

#[test]
fn impossible_sandboxes_are_reported() {
    assert_snapshot!(shared_lines(&sandboxed("", "read_only: true\n"), "error:"), @"
    error: ws/ACP.md:13:5: metadata.aip44.sandbox: cannot enforce read_only of SANDBOX.md on this machine: a read-only sandbox cannot run programs, and the agent is a program (sandbox_read_only)
    ");
    let terminal = "    capabilities: {client: {terminal: true}}\n";
    assert_snapshot!(shared_lines(&sandboxed(terminal, ""), "error:"), @"
    error: ws/ACP.md:14:39: metadata.aip44.capabilities.client.terminal: the tier sandboxed has no terminal: commands would run in the client, outside the sandbox
    ");
    let governed = sandboxed("", "network: {egress: [example.com]}\nenv: {passthrough: [KEY]}\n");
    agent_cli(&governed, "{provider: local, config: {}}");
    assert_snapshot!(shared_lines(&governed, ""), @"
    error: ws/AGENT-CLI.md:12:1: sandbox.network: missing `network`, which disables that of ./SANDBOX.md: the stricter of two sandboxes applies
    hint: use sandbox: ./SANDBOX.md for both, or network: {egress: []} to deny everything
    error: ws/AGENT-CLI.md:12:1: sandbox.env: missing `env`, which disables that of ./SANDBOX.md: the stricter of two sandboxes applies
    hint: use sandbox: ./SANDBOX.md for both, or env: {} to deny everything
    ");
    // The error names the setting that causes it.
    agent_cli(&governed, "{provider: local, config: {}, network: {egress: []}, env: {}}");
    let told = check(&governed, &["ws"]);
    assert!(told.ends_with("--- exit 0 ---\n"), "{told}");
}

#[test]
fn misspelled_keys_below_aip44_are_reported() {
    let governed = Governed::bridge("");
    governed.file(
        "ACP.md",
        &acp("bridge", "governance-aware", "    operator: ./OPERATOR.md\n    govenance: ./GOVERNANCE.md\n"),
    );
    assert_snapshot!(shared_lines(&governed, ""), @"
    error: ws/ACP.md:13:5: metadata.aip44.govenance: `govenance` is not a key of aip44
    hint: did you mean governance?
    ");
}

#[test]
fn an_operator_with_a_misspelled_key_is_reported() {
    let governed = Governed::with_kind("server");
    governed.file("ACP.md", &acp("server", "governance-aware", "    operater: ./OPERATOR.md\n"));
    let told = shared_lines(&governed, "");
    assert_snapshot!(told, @"
    error: ws/ACP.md:6:7: kind: a server without an operator describes an external agent and cannot be served
    hint: to serve it, add metadata.aip44.operator: ./OPERATOR.md
    error: ws/ACP.md:12:5: metadata.aip44.operater: `operater` is not a key of aip44
    hint: did you mean operator?
    ");
    // A single file is refused with the same message.
    let alone = check(&governed, &["ws/ACP.md"]);
    assert_eq!(alone, format!("--- stderr ---\n{told}\n--- exit 2 ---\n"));
    // A manifest that only describes an agent is valid, but cannot be served.
    governed.file("ACP.md", &acp("server", "governance-aware", ""));
    let told = check(&governed, &["ws", "ws/ACP.md"]);
    assert!(told.contains("warning: ws/ACP.md:6:7: kind: ") && told.ends_with("--- exit 0 ---\n"), "{told}");
}

#[test]
fn unknown_tool_kinds_are_reported() {
    let governed = Governed::bridge("");
    governed.tools("{id: 'kind:read'}, {id: 'kind:exec'}");
    assert_snapshot!(shared_lines(&governed, ""), @"
    error: ws/OPERATOR.md:7:33: tools[1]: no tool has the kind `exec`
    hint: did you mean kind:execute?
    ");
}

#[test]
fn policies_about_unknown_tools_are_reported() {
    let governed = Governed::bridge("");
    let path = "policies/shell/POLICY.md";
    governed.tools("{id: run_command}, {id: read_file}");
    governed.file(path, &policy("shell", "run_comand", "decision: deny"));
    let told = check(&governed, &["ws"]);
    assert_snapshot!(told.split_once("--- stderr ---\n").expect("a warning").1, @"
    warning: ws/policies/shell/POLICY.md:6:28: match.subject: `run_comand` matches no tool of the operator, so this policy has no effect
    hint: did you mean `run_command`?
    --- exit 0 ---
    ");
    let strict = check(&governed, &["--strict", "ws"]);
    assert!(
        strict.contains("error: ws/policies/shell/POLICY.md:6:") && strict.ends_with("--- exit 2 ---\n"),
        "{strict}"
    );
    governed.file(path, &policy("shell", "pay", "decision: deny"));
    let told = check(&governed, &["ws"]);
    assert!(told.contains("hint: use one of read_file, run_command, or add it to `tools`"), "{told}");
    // A bus that serves the manifest is checked with it.
    governed.dir.file("bus.toml", "[[listen]]\nurl = \"stdio:\"\n[[pool]]\nmanifest = \"ws/ACP.md\"\n");
    let told = check(&governed, &["bus.toml"]);
    assert!(told.contains("`pay` matches no tool of the operator"), "{told}");
    // Another operator, to which the policy also applies, has the tool.
    std::fs::create_dir(governed.root().join("other")).expect("a directory");
    let copied = |name: &str| std::fs::read_to_string(governed.root().join(name)).expect("the file exists");
    let acp = copied("ACP.md").replace("name: ws", "name: other").replace("kind: bridge", "kind: server");
    governed.file(
        "other/ACP.md",
        &format!("{}    governance: ../GOVERNANCE.md\n---\n", acp.trim_end_matches("---\n")),
    );
    governed.file("other/OPERATOR.md", &copied("OPERATOR.md").replace("{id: read_file}", "{id: pay}"));
    let told = check(&governed, &["ws"]);
    assert!(!told.contains("matches no tool") && told.ends_with("--- exit 0 ---\n"), "{told}");
    // The built-in agent that runs the operator does not have the tool.
    assert!(
        told.contains("warning: ws/other/OPERATOR.md:7:28: tools[1]: `pay` is not a tool of the built-in"),
        "{told}"
    );
}

#[test]
fn a_dangling_reference_names_target_and_policy() {
    let governed = Governed::bridge("");
    std::fs::remove_file(governed.root().join("policies/shell/POLICY.md")).expect("the file exists");
    assert_snapshot!(shared_lines(&governed, ""), @"
    error: ws/GOVERNANCE.md:11:20: policies.shell.ref: the file `./policies/shell/POLICY.md` cannot be read: no such file
    hint: write a path relative to this file, such as ./FILE.md
    ");
}

#[test]
fn unreadable_keyrings_are_reported() {
    let governed = Governed::bridge("");
    governed.keys(&["ada"]);
    let path = ".well-known/governance-keys.json";
    governed.file(path, "{\"keys\": [\n  {\"id\": 5}\n]}");
    assert_snapshot!(shared_lines(&governed, ""), @r#"
    error: ws/.well-known/governance-keys.json:2:3: invalid signing keys: keys[0]: invalid type: integer `5`, expected a string
    hint: write {"keys": [{"id": "did:key:z6Mk…", "subject": {"id": "ada", "role": "lead"}}]}; `narrows audit keygen FILE` prints the id of a new key
    "#);
    governed.file(path, "keys");
    assert_snapshot!(shared_lines(&governed, "error:"), @"
    error: ws/.well-known/governance-keys.json:1:1: invalid signing keys: expected value
    ");
    let governed = Governed::bridge("");
    let text = std::fs::read_to_string(governed.root().join("GOVERNANCE.md")).expect("the file exists");
    governed
        .file("GOVERNANCE.md", &text.replace("policies:\n", "signing: {keyring: ./keys.json}\npolicies:\n"));
    assert_snapshot!(shared_lines(&governed, ""), @r#"
    error: ws/GOVERNANCE.md:8:11: signing.keyring: missing file keys.json, so no approval can be signed
    hint: create it: write {"keys": [{"id": "did:key:z6Mk…", "subject": {"id": "ada", "role": "lead"}}]}; `narrows audit keygen FILE` prints the id of a new key
    "#);
}

#[test]
fn unreadable_revocations_are_reported() {
    let governed = Governed::bridge("");
    governed.keys(&["ada"]);
    let path = ".well-known/governance-revoked.json";
    governed.file(path, "did:key:z6Mk");
    assert_snapshot!(shared_lines(&governed, ""), @r#"
    error: ws/.well-known/governance-revoked.json:1:1: cannot read the revoked keys: invalid JSON: expected value
    hint: write {"revoked": ["did:key:z6Mk…"]}; keys have the same form as in the keys file
    "#);
    governed.file(path, "{\"lost\": []}");
    assert_snapshot!(shared_lines(&governed, "error:"), @"
    error: ws/.well-known/governance-revoked.json:1:1: cannot read the revoked keys: missing member `revoked`
    ");
    governed.file(path, "{\"revoked\": [\n  {\"id\": \"ada\"}\n]}");
    assert_snapshot!(shared_lines(&governed, "error:"), @"
    error: ws/.well-known/governance-revoked.json:2:10: revoked[0].id: cannot read this revoked key: it is not an Ed25519 public key, so what it revokes is unknown
    ");
    std::fs::remove_file(governed.root().join(path)).expect("the file exists");
    std::os::unix::fs::symlink("gone.json", governed.root().join(path)).expect("a link");
    assert_snapshot!(shared_lines(&governed, "error:"), @"
    error: ws/.well-known/governance-revoked.json:1:1: cannot read the signing keys: no such file
    ");
}

#[test]
fn impossible_approvals_are_reported() {
    let governed = Governed::bridge("");
    let warned = |governed: &Governed| {
        let told = check(governed, &["ws"]);
        assert!(told.ends_with("--- exit 0 ---\n"), "{told}");
        assert!(
            check(governed, &["--strict", "ws"]).ends_with("--- exit 2 ---\n") == told.contains("warning")
        );
        told.lines()
            .filter(|line| line.starts_with("warning") || line.starts_with("hint"))
            .collect::<Vec<_>>()
            .join("\n")
    };
    assert_eq!(warned(&governed), "", "the owner of the workspace is an approver, and may be the client");
    governed.with_lead_quorum(1);
    assert_snapshot!(warned(&governed), @r#"
    warning: ws/policies/removing/POLICY.md:9:1: signers: this approval is impossible, so every action that needs it is denied: no approver or key is role "lead"
    hint: add keys to .well-known/governance-keys.json (`narrows audit keygen`), or name other signers
    "#);
    governed.keys(&["ada"]);
    assert_eq!(warned(&governed), "");
    governed.with_lead_quorum(2);
    assert_snapshot!(warned(&governed), @r#"
    warning: ws/policies/removing/POLICY.md:9:1: signers: this approval is impossible, so every action that needs it is denied: it needs 2, and only 1 of role "lead" are available
    hint: add keys to .well-known/governance-keys.json (`narrows audit keygen`), or name other signers
    "#);
    governed.file(
        "policies/removing/POLICY.md",
        &policy(
            "removing",
            "kind:delete",
            "decision: require-approval\nquorum: 2\nsigners: [{role: lead}, {userId: zoe}]",
        ),
    );
    assert_eq!(warned(&governed), "", "zoe, an approver without a key, may be the client");
    // An invalid key does not count.
    governed.file(
        ".well-known/governance-keys.json",
        "{\"keys\": [{\"id\": \"did:key:zNone\", \"subject\": {\"id\": \"ada\", \"role\": \"lead\"}}]}",
    );
    assert_snapshot!(warned(&governed), @r#"
    warning: ws/policies/removing/POLICY.md:8:1: signers: this approval is impossible, so every action that needs it is denied: it needs 2, and only 1 of role "lead" or user "zoe" are available
    hint: add keys to .well-known/governance-keys.json (`narrows audit keygen`), or name other signers
    warning: ws/.well-known/governance-keys.json:1:11: keys[0].id: invalid key: it is not an Ed25519 public key (`did:key:z6Mk…`, or PEM)
    hint: use the output of `narrows audit keygen FILE`, or the content of FILE.pub
    "#);
}

#[test]
fn a_missing_program_is_a_warning() {
    let governed = Governed::bridge("");
    let text = std::fs::read_to_string(governed.root().join("AGENT-CLI.md")).expect("the file exists");
    governed.file("AGENT-CLI.md", &text.replace("bin: narrows\n", "bin: no-such-agent\n"));
    assert_snapshot!(check(&governed, &["ws"]), @r#"
    ws/ACP.md: valid
    ws/AGENT-CLI.md: valid
    ws/GOVERNANCE.md: valid
    ws/OPERATOR.md: valid
    ws/policies/looking/POLICY.md: valid
    ws/policies/removing/POLICY.md: valid
    ws/policies/shell/POLICY.md: valid
    --- stderr ---
    warning: ws/AGENT-CLI.md:6:1: bin: cannot start the agent on this machine: program "no-such-agent" not found
    hint: install it as described in `install`, or use its full path
    --- exit 0 ---
    "#);
    let shims = governed.dir.path().join(".pyenv/shims");
    std::fs::create_dir_all(&shims).expect("a directory");
    std::fs::copy("/bin/sh", shims.join("no-such-agent")).expect("a program");
    let mut command = governed.dir.narrows(["check", "ws"]);
    command.env("PATH", format!("{}:/usr/bin:/bin", shims.display()));
    let told = governed.dir.output_of(command);
    assert!(told.contains("is a shim of pyenv") && told.contains("`pyenv which no-such-agent`"), "{told}");
}

const BUS: &str = "[[listen]]\nurl = \"http://127.0.0.1:0/acp\"\nauth = \"token\"\ntokens = \"tokens.toml\"\n\
    [[pool]]\nmanifest = \"ws/ACP.md\"\nidentities = \"who.toml\"\n";

#[test]
fn identity_files_are_checked_with_their_bus_and_alone() {
    let governed = Governed::bridge("");
    governed.dir.file("bus.toml", BUS);
    let made = governed.dir.output_of(governed.dir.narrows([
        "token",
        "new",
        "a",
        "--scope",
        "kind:exec",
        "--file",
        "tokens.toml",
    ]));
    assert_snapshot!(made, @"
    --- stderr ---
    error: no tool is of the kind `exec`; did you mean kind:execute?
    --- exit 2 ---
    ");
    let made = governed.dir.output_of(governed.dir.narrows([
        "token",
        "new",
        "a",
        "--scope",
        "kind:read",
        "--file",
        "tokens.toml",
    ]));
    assert!(made.ends_with("--- exit 0 ---\n"), "{made}");
    governed.dir.file("who.toml", "[[identity]]\nwho = \"bus:token:a\"\nscopes = [\"kind:read\"]\n");
    assert!(check(&governed, &["bus.toml"]).ends_with("--- exit 0 ---\n"));
    assert_snapshot!(check(&governed, &["tokens.toml", "who.toml"]), @"
    tokens.toml: valid
    who.toml: valid
    --- exit 0 ---
    ");
    governed.dir.file("who.toml", "[[identity]]\nwho = \"token:a\"\n");
    let told = check(&governed, &["bus.toml"]);
    let warning = "who.toml:2:7: who = \"token:a\" never matches behind a bus: write \"bus:token:a\" for a client that shows it to the bus\n";
    assert!(told.contains(warning) && told.ends_with("--- exit 0 ---\n"), "{told}");
    let tokens = std::fs::read_to_string(governed.dir.path().join("tokens.toml")).expect("the file exists");
    governed.dir.file("tokens.toml", &tokens.replace("kind:read", "kind:exec"));
    governed.dir.file("who.toml", "[[identity]]\nwho = \"bus:token:a\"\nscopes = [\"kind:serach\"]\n");
    assert_snapshot!(check(&governed, &["bus.toml"]), @r#"
    --- stderr ---
    error: [DIR]/who.toml:3:11: no tool is of the kind `serach`; did you mean kind:search?
    hint: use this form: [[identity]] who = "user:bob" scopes = ["kind:read"]
    error: tokens.toml:5:11: no tool is of the kind `exec`; did you mean kind:execute?
    --- exit 2 ---
    "#);
    let bus = governed.dir.output_of(governed.dir.narrows(["bus", "--config", "bus.toml"]));
    assert!(
        bus.contains("who.toml:3:11: no tool is of the kind `serach`") && bus.ends_with("--- exit 2 ---\n"),
        "{bus}"
    );
    let told = check(&governed, &["--json", "bus.toml", "tokens.toml"]);
    let objects: Vec<Value> = told.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(
        objects[2]["mistakes"][0]["file"].as_str().is_some_and(|file| file.ends_with("tokens.toml")),
        "{told}"
    );
    assert_eq!((&objects[2]["mistakes"][0]["line"], &objects[3]["ok"]), (&json!(5), &json!(false)), "{told}");
}

#[test]
fn all_errors_of_a_token_file_are_reported() {
    let dir = TestDir::new();
    let check = |args: &[&str]| dir.output_of(dir.narrows(["check"].iter().chain(args)));
    let bus = "[[listen]]\nurl = \"http://127.0.0.1:0/acp\"\nauth = \"token\"\ntokens = \"who.toml\"\n\
               [[pool]]\ncommand = [\"sh\"]\n";
    dir.file("bus.toml", bus);
    for args in [["token", "new", "a", "--file", "who.toml"], ["token", "revoke", "a", "--file", "who.toml"]]
    {
        assert!(dir.output_of(dir.narrows(args)).ends_with("--- exit 0 ---\n"));
    }
    assert_snapshot!(check(&["bus.toml", "who.toml"]), @"
    bus.toml: 1 pool, 1 listener
    who.toml: valid
    --- stderr ---
    warning: bus.toml:4:10: no client can connect without a token: `narrows token new NAME --file who.toml` creates one
    warning: who.toml:1:1: no client can connect without a token: `narrows token new NAME --file who.toml` creates one
    --- exit 0 ---
    ");
    assert!(check(&["--strict", "who.toml"]).ends_with("--- exit 2 ---\n"));
    dir.file(
        "who.toml",
        "[[token]]\nnmae = \"a\"\nhash = \"x\"\n[[token]]\nname = \"a b\"\nscopes = [\"foo bar\"]\n",
    );
    assert_snapshot!(check(&["bus.toml"]), @r#"
    --- stderr ---
    error: who.toml:1:1: `name` is missing in [token]
    error: who.toml:2:1: unknown setting `nmae` in [token]
    hint: did you mean `name`?
    error: who.toml:3:8: the hash is not a SHA-256 in base64url
    error: who.toml:4:1: `hash` is missing in [token]
    error: who.toml:5:8: invalid token name "a b"
    warning: who.toml:6:11: `foo bar` names no tool; write the name of a tool, SERVER/TOOL, SERVER/* or kind:read
    --- exit 2 ---
    "#);
    assert_eq!(check(&["who.toml"]), check(&["bus.toml"]));
}

#[test]
fn a_name_has_one_token_in_all_files_of_a_bus() {
    let dir = TestDir::new();
    let listen = |port: u16, file: &str| {
        format!("[[listen]]\nurl = \"http://127.0.0.1:{port}/acp\"\nauth = \"token\"\ntokens = \"{file}\"\n")
    };
    let bus = format!("{}{}[[pool]]\ncommand = [\"sh\"]\n", listen(0, "a.toml"), listen(1, "b.toml"));
    dir.file("bus.toml", &bus);
    for file in ["a.toml", "b.toml"] {
        assert!(
            dir.output_of(dir.narrows(["token", "new", "alice", "--file", file]))
                .ends_with("--- exit 0 ---\n")
        );
    }
    assert_snapshot!(dir.output_of(dir.narrows(["check", "bus.toml"])), @r#"
    --- stderr ---
    error: b.toml:3:8: the name "alice" has another token in a.toml
    hint: rename one of the tokens, or use one file for both listeners
    --- exit 2 ---
    "#);
    let told = dir.output_of(dir.narrows(["bus", "--config", "bus.toml"]));
    assert!(told.contains("the name \"alice\" has another token in"), "{told}");
    assert!(told.ends_with("--- exit 2 ---\n"), "{told}");
    std::fs::copy(dir.path().join("a.toml"), dir.path().join("b.toml")).unwrap();
    assert!(dir.output_of(dir.narrows(["check", "bus.toml"])).ends_with("--- exit 0 ---\n"));
}

#[test]
fn a_file_checked_alone_is_marked() {
    let dir = TestDir::new();
    dir.file("POLICY.md", &policy("removing", "kind:delete", "decision: deny"));
    let told = dir.output_of(dir.narrows(["check", "POLICY.md"]));
    assert!(told.contains("POLICY.md: valid\n"), "{told}");
    let governed = Governed::bridge("");
    let told = check(&governed, &["ws/ACP.md", "--json"]);
    assert!(told.contains("\"followed\":false"), "{told}");
    assert!(check(&governed, &["ws/ACP.md"]).contains("narrows check ws\n"));
}
