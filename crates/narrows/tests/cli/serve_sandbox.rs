//! `narrows serve` in the tier `sandboxed`: an agent that tries to escape, and unenforceable manifests.
#![expect(clippy::print_stderr, reason = "a test that cannot be run here says so")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;

use serde_json::{Value, json};

use crate::serve_support::{DEMO, Governed, acp};
use crate::stdio_client::StdioClient;
use crate::test_dir::MARK;

/// Answers `initialize` as the tier requires, and opens sessions.
const AGENT: &str = r#"
while read -r message; do
  id=$(printf '%s' "$message" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$message" in
    *'"method":"initialize"'*) printf '%s\n' "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":{\"protocolVersion\":1,\"agentCapabilities\":{\"loadSession\":true,\"mcpCapabilities\":{\"http\":true,\"sse\":false,\"acp\":true},\"promptCapabilities\":{}}}}" ;;
    *'"method":"session/new"'*) printf '%s\n' "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":{\"sessionId\":\"s\"}}" ;;
  esac
done
"#;

/// An agent script that records the attempts that succeeded.
const NOTES: &str = r#"
try() { if (eval "$2") >/dev/null 2>&1; then echo "$1 worked"; else echo "$1 failed"; fi >> /work/notes; }
"#;

fn agent_cli(sandbox: &str, more: &str) -> String {
    format!(
        "---\nname: ws\nid: tidy-agent\ndescription: d\nversion: 1.0.0\nbin: sh\nbin_args: [agent.sh]\n\
         install: [{{method: apt, package: dash}}]\nprotocol: acp\nacp: ./ACP.md\n\
         version_check: {{cmd: sh -c 'echo 1.2.3', parse: '(\\d+\\.\\d+\\.\\d+)', range: '>=1.0.0'}}\n\
         sandbox: {sandbox}\n{more}---\n"
    )
}

/// Returns a bridge of tier `sandboxed` to an agent that first runs `script`. Both manifests have the same
/// sandbox.
fn sandboxed(sandbox: &str, script: &str) -> Governed {
    let governed = Governed::with_kind("bridge");
    let bound = "    operator: ./OPERATOR.md\n    sandbox: ./SANDBOX.md\n";
    governed.file("ACP.md", &acp("bridge", "sandboxed", bound));
    governed.file(
        "SANDBOX.md",
        &format!("---\nschema: sandbox/v1\nprovider: local\nconfig: {{}}\n{sandbox}---\n"),
    );
    governed.file("AGENT-CLI.md", &agent_cli("./SANDBOX.md", ""));
    governed.file("agent.sh", &format!("{NOTES}\n{script}\n{AGENT}"));
    governed
}

const MOUNTS: &str =
    "mounts: [{source: workspace, at: /work}, {source: {ref: ./docs}, at: /work/docs, mode: read-only}]\n";

/// Starts, initializes and ends the agent. Returns its records.
fn notes(governed: &Governed) -> String {
    let mut stdio = governed.stdio();
    let answer = stdio.call("session/new", &json!({"cwd": governed.root(), "mcpServers": []}));
    assert_eq!(answer["result"]["sessionId"], "s", "{answer}");
    let ended = stdio.end();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    std::fs::read_to_string(governed.root().join("notes")).unwrap_or_default()
}

/// Returns `true` if this machine can restrict visible files and the network.
pub(crate) fn is_available() -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let support = runtime.block_on(narrows_process::Support::namespaces());
    let can = support.confined();
    if !can.view {
        eprintln!("not tried: {support}");
    }
    can.view && can.gateway
}

fn entry(governed: &Governed, action: &str) -> Value {
    governed.entries().into_iter().find(|entry| entry["action"] == action).unwrap_or_default()
}

/// Returns a command that connects to a port of this machine. It succeeds outside of a sandbox.
fn connect(port: u16) -> String {
    let ways = [
        format!(r#"python3 -c "import socket; socket.create_connection((None, {port}), 5)""#),
        format!(r#"bash -c "exec 3<>/dev/tcp/127.0.0.1/{port}""#),
        format!(r#"perl -MIO::Socket::INET -e "exit !IO::Socket::INET->new(qq(127.0.0.1:{port}))""#),
        format!("curl -s --max-time 5 telnet://127.0.0.1:{port} < /dev/null"),
    ];
    let works = |way: &String| {
        Command::new("sh").args(["-c", way]).output().is_ok_and(|output| output.status.success())
    };
    ways.into_iter().find(works).expect("python3, bash, perl or curl reaches a port of this machine")
}

#[test]
fn an_agent_cannot_leave_its_sandbox() {
    if !is_available() {
        return;
    }
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = server.local_addr().expect("an address").port();
    let connect = connect(port);
    let script = format!(
        r#"
try write-workspace 'echo x > /work/new'
try write-where-it-lies 'echo x > new2'
try read-only-mount 'echo x > /work/docs/new'
try read-only-mount-where-it-lies 'echo x > docs/new'
try read-mount 'cat /work/docs/text'
(echo x > ../new) 2>/dev/null
try write-etc 'echo x > /etc/narrows-test'
try read-outside 'cat "{outside}"'
try manifest 'echo x >> /work/ACP.md'
try governance 'echo x > GOVERNANCE.md'
try log 'echo x >> audit/audit-log.jsonl'
try move-log 'mv /work/audit /work/elsewhere'
try remove-log 'rm -r audit'
try signature 'mkdir -p /work/signatures && echo x > /work/signatures/x.signature.json'
try move-signatures 'mv signatures elsewhere && mkdir signatures'
try revoke 'mkdir -p .well-known; echo "[]" > .well-known/governance-revoked.json'
try move-keys 'mv /work/.well-known /work/elsewhere'
try own-script 'echo x >> agent.sh'
try move-own-script 'mv /work/agent.sh /work/other.sh'
try network '{connect}'
try secret-env 'test -n "$NARROWS_SECRET"'
try named-env 'test -n "$NAMED"'
try supervisor-env 'cat /proc/$PPID/environ'
try init-env 'cat /proc/1/environ'
try private-temp 'echo x > /tmp/mine && echo y > $HOME/mine'
"#,
        outside = "$PWD/../secret"
    );
    let governed = sandboxed(&format!("{MOUNTS}env: {{passthrough: [{MARK}, NAMED]}}\n"), &script);
    std::fs::create_dir_all(governed.root().join("docs")).expect("a directory");
    governed.file("docs/text", "text");
    governed.dir.file("secret", "secret");
    let mut command = governed.serve(&[]);
    command.env("NARROWS_SECRET", "hunter2").env("NAMED", "value");
    let mut stdio = StdioClient::initialized(&governed.dir, command);
    stdio.call("session/new", &json!({"cwd": governed.root(), "mcpServers": []}));
    let ended = stdio.end();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    let notes = std::fs::read_to_string(governed.root().join("notes")).expect("notes");
    insta::assert_snapshot!(notes, @r"
    write-workspace worked
    write-where-it-lies worked
    read-only-mount failed
    read-only-mount-where-it-lies failed
    read-mount worked
    write-etc failed
    read-outside failed
    manifest failed
    governance failed
    log failed
    move-log failed
    remove-log failed
    signature failed
    move-signatures failed
    revoke failed
    move-keys failed
    own-script failed
    move-own-script failed
    network failed
    secret-env failed
    named-env worked
    supervisor-env failed
    init-env failed
    private-temp worked
    ");
    assert!(!governed.dir.path().join("new").exists());
    let applied = entry(&governed, "sandbox.applied");
    let about = &applied["metadata"]["aip44"];
    assert_eq!((&about["enforced"], &about["egress"]), (&json!(true), &json!([])), "{applied}");
    assert_eq!(about["env"], json!(["NAMED", MARK]));
    assert!(!applied.to_string().contains("hunter2") && !applied.to_string().contains("value"));
}

#[test]
fn only_listed_hosts_are_reachable() {
    let has_curl = Command::new("curl").arg("--version").output().is_ok();
    if !is_available() || !has_curl {
        eprintln!("not tried: it takes namespaces, and curl");
        return;
    }
    let listen = || {
        let server = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = server.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            for stream in server.incoming() {
                let Ok(mut stream) = stream else { return };
                let mut told = [0; 4096];
                let _ = stream.read(&mut told);
                let _ = stream
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello");
            }
        });
        port
    };
    let (allowed, other) = (listen(), listen());
    let script = format!(
        r#"
try allowed 'curl -sf --max-time 20 http://127.0.0.1:{allowed}/ | grep -q hello'
try tunnel 'curl -sfp --max-time 20 http://localhost:{allowed}/ | grep -q hello'
try other-port 'curl -sf --max-time 20 http://127.0.0.1:{other}/'
try other-host 'curl -sf --max-time 20 http://other.test/'
try around-the-proxy 'curl -sf --noproxy "*" --max-time 20 http://127.0.0.1:{allowed}/'
try private-tunnel 'curl -sfp --max-time 20 https://169.254.169.254/'
"#
    );
    let hosts = format!("network: {{egress: ['127.0.0.1:{allowed}', 'localhost:{allowed}']}}\n");
    let governed = sandboxed(&format!("{MOUNTS}env: {{passthrough: [{MARK}]}}\n{hosts}"), &script);
    std::fs::create_dir_all(governed.root().join("docs")).expect("a directory");
    insta::assert_snapshot!(notes(&governed), @r"
    allowed worked
    tunnel worked
    other-port failed
    other-host failed
    around-the-proxy failed
    private-tunnel failed
    ");
    let denied: Vec<Value> =
        governed.entries().into_iter().filter(|entry| entry["action"] == "egress.denied").collect();
    let targets: Vec<&Value> = denied.iter().map(|entry| &entry["input"]["target"]).collect();
    assert_eq!(
        targets,
        [&json!(format!("127.0.0.1:{other}")), &json!("other.test:80"), &json!("169.254.169.254:443")]
    );
    assert!(denied.iter().all(|entry| entry["metadata"]["aip44"]["code"] == "egress_denied"), "{denied:?}");
}

#[test]
fn unenforceable_fields_are_refused_by_name() {
    let refused = |sandbox: &str, more: &str| {
        let governed = sandboxed(sandbox, "");
        if !more.is_empty() {
            governed.file("AGENT-CLI.md", &agent_cli("./SANDBOX.md", more));
        }
        let told = governed.dir.output_of(governed.serve(&[]));
        let log = std::fs::read_to_string(governed.log()).unwrap_or_default();
        let last: Value =
            log.lines().last().map_or(Value::Null, |line| serde_json::from_str(line).expect("JSON"));
        (told, last["action"].clone(), last["metadata"]["aip44"]["code"].clone())
    };
    // No sandbox can enforce this field, so the error is reported before anything is opened.
    let (told, action, _) = refused("read_only: true\n", "");
    assert!(
        told.contains(
            "error: ws/ACP.md:13:5: metadata.aip44.sandbox: cannot enforce read_only of SANDBOX.md"
        ),
        "{told}"
    );
    assert!(told.contains("(sandbox_read_only)") && told.contains("exit 2") && action.is_null(), "{told}");
    // The agent could read and forge the files that a rotation adds to its directory.
    let governed = sandboxed("mounts: [{source: workspace, at: /work}]\n", "");
    for log in ["./audit-log.jsonl", "./to-root/audit-log.jsonl"] {
        let audit = format!("    audit: {{kind: external, ref: {log}}}\n");
        let bound = format!("    operator: ./OPERATOR.md\n    sandbox: ./SANDBOX.md\n{audit}");
        governed.file("ACP.md", &acp("bridge", "sandboxed", &bound));
        let _ = std::os::unix::fs::symlink(".", governed.root().join("to-root"));
        for command in [governed.serve(&[]), governed.dir.narrows(["check", "ws"])] {
            let told = governed.dir.output_of(command);
            assert!(
                told.contains("metadata.aip44.audit.ref: the log is in the root of the workspace"),
                "{told}"
            );
            assert!(told.contains("exit 2"), "{told}");
        }
    }
    if !is_available() {
        return;
    }
    let (told, action, code) = refused("mounts: [{source: workspace, at: /usr}]\n", "");
    assert!(told.contains("/usr") && told.contains("the mount point belongs to the system"), "{told}");
    assert_eq!((action, code), (json!("sandbox.refused"), json!("sandbox_unenforceable")));
    let needs =
        "setup: [{kind: cmd, id: log-in, cmd: agent login, skip_if: {cmd: 'test -e /work/logged-in'}}]\n";
    let (told, _, code) = refused("mounts: [{source: workspace, at: /work}]\n", needs);
    assert!(told.contains("\"log-in\"") && told.contains("run: agent login"), "{told}");
    assert_eq!(code, "setup_required");
}

#[test]
fn mcp_servers_of_an_operator_are_sandboxed() {
    if !is_available() {
        return;
    }
    let governed = Governed::with_kind("server");
    let more = "    operator: ./OPERATOR.md\n    sandbox: ./SANDBOX.md\n    \
        mcp_servers: [{name: notes, transport: stdio, ref: ./NOTES.md}]\n";
    governed.file("ACP.md", &acp("server", "sandboxed", more));
    let sandbox = format!("{MOUNTS}env: {{passthrough: [{MARK}]}}\nnetwork: {{egress: ['127.0.0.1:1']}}\n");
    governed.file("SANDBOX.md", &format!("---\nprovider: local\nconfig: {{}}\n{sandbox}---\n"));
    governed.file("NOTES.md", "---\ncommand: sh\nargs: [server.sh]\n---\n");
    let attempts = "try inside 'echo x > /work/new'\ntry outside 'echo x > /etc/narrows-test'\ntry read-only 'echo x > /work/docs/new'\n\
        try key 'test -n \"$OPENAI_API_KEY\"'\ntry proxy 'test -n \"$HTTPS_PROXY\"'\necho over >> /work/notes\nread -r message\n";
    governed.file("server.sh", &format!("{NOTES}{attempts}"));
    std::fs::create_dir_all(governed.root().join("docs")).expect("a directory");
    let mut command = governed.serve(&DEMO);
    command.env("OPENAI_API_KEY", "sk-test");
    let mut stdio = StdioClient::initialized(&governed.dir, command);
    let cwd = governed.root().canonicalize().expect("the file exists");
    stdio.call("session/new", &json!({"cwd": cwd, "mcpServers": []}));
    let notes = || std::fs::read_to_string(governed.root().join("notes")).unwrap_or_default();
    governed.dir.wait_for(|| notes().ends_with("over\n"));
    let notes = notes();
    stdio.end();
    assert!(
        notes
            .starts_with("inside worked\noutside failed\nread-only failed\nkey failed\nproxy worked\nover\n"),
        "{notes}"
    );
    assert_eq!(entry(&governed, "sandbox.applied")["metadata"]["aip44"]["enforced"], true);
}

#[test]
fn commands_of_the_client_are_no_part_of_a_sandbox() {
    let governed = sandboxed("", "");
    let more = "    operator: ./OPERATOR.md\n    sandbox: ./SANDBOX.md\n    capabilities: {client: {terminal: true}}\n";
    governed.file("ACP.md", &acp("bridge", "sandboxed", more));
    let told = governed.dir.output_of(governed.serve(&[]));
    assert!(told.contains("capabilities.client.terminal") && told.contains("exit 2"), "{told}");
    // An agent in a chain cannot be sandboxed either, because the conductor starts it.
    let governed = sandboxed("", "");
    let mut stdio = StdioClient::start(&governed.dir, governed.serve(&[]));
    stdio.send("proxy/initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
    let ended = stdio.wait();
    assert!(ended.stderr.contains("proxy chain") && ended.status.code() == Some(5), "{}", ended.stderr);
}

#[test]
fn an_agent_that_has_been_set_up_starts() {
    if !is_available() {
        return;
    }
    let governed = sandboxed(MOUNTS, "echo started > /work/notes");
    std::fs::create_dir_all(governed.root().join("docs")).expect("a directory");
    let done = "setup: [{kind: cmd, id: log-in, cmd: agent login, skip_if: {cmd: test -e agent.sh}}]\n";
    governed.file("AGENT-CLI.md", &agent_cli("./SANDBOX.md", done));
    assert_eq!(notes(&governed), "started\n");
}

#[test]
fn an_agent_is_stopped_after_the_lifetime_of_its_runner() {
    let governed = sandboxed(MOUNTS, "echo started > /work/notes");
    std::fs::create_dir_all(governed.root().join("docs")).expect("a directory");
    let runner = "runner: {engine: in-process, limits: {timeout_ms: 400, cpu_ms: 60000}}\n";
    // Below the tier `sandboxed` an unavailable sandbox is skipped, but its limits apply.
    governed.file("ACP.md", &acp("bridge", "governance-aware", "    operator: ./OPERATOR.md\n"));
    governed.file("AGENT-CLI.md", &agent_cli("./SANDBOX.md", runner));
    let mut stdio = StdioClient::start(&governed.dir, governed.serve(&[]));
    stdio.send("initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
    let ended = stdio.wait();
    assert!(ended.stderr.contains("limits.timeout_ms"), "{}", ended.stderr);
    let about = entry(&governed, "sandbox.applied")["metadata"]["aip44"].clone();
    assert_eq!(about["limits"], json!({"timeout_ms": 400, "cpu_ms_per_process": 60000}));
    assert_eq!(about["runner"]["downgraded"], true);
}

#[test]
fn a_program_in_a_home_directory_is_mounted_alone() {
    if !is_available() {
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    let script = "#!/bin/sh\ncd /work\n\
        try keyring 'cat \"$NAMED/.local/share/keyrings/secret\"'\n\
        try neighbour 'cat \"$NAMED/.local/bin/other\"'\n\
        try itself 'cat \"$NAMED/.local/bin/agent\"'\n\
        try mounted 'cat /work/text'\n\
        try not-mounted 'cat \"$NAMED/../workspace/hidden\" || cat ../hidden'\n";
    let mounts = "mounts: [{source: {ref: ./docs}, at: /work}]\n";
    let governed = sandboxed(&format!("{mounts}env: {{passthrough: [{MARK}, NAMED]}}\n"), "");
    let home = governed.dir.path().join("person");
    for directory in
        [home.join(".local/bin"), home.join(".local/share/keyrings"), governed.root().join("docs")]
    {
        std::fs::create_dir_all(directory).expect("a directory");
    }
    governed.file("docs/text", "text");
    governed.file("hidden", "hidden");
    let whole = format!("{}{NOTES}{}{AGENT}", &script[..10], &script[10..]);
    let check = |bin: &str, program: &std::path::Path, home: &std::path::Path| {
        std::fs::write(program, &whole).expect("a program");
        std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o755)).expect("a program");
        let cli =
            agent_cli("./SANDBOX.md", "").replace("bin: sh\nbin_args: [agent.sh]", &format!("bin: {bin}"));
        governed.file("AGENT-CLI.md", &cli);
        governed.dir.output_of(governed.serve(&["--approve"]));
        let mut command = governed.serve(&[]);
        let path = format!("{}:/usr/bin:/bin", home.join(".local/bin").display());
        command.env("HOME", home).env("PATH", path).env("NAMED", home);
        let mut stdio = StdioClient::initialized(&governed.dir, command);
        stdio.call("session/new", &json!({"cwd": governed.root().join("docs"), "mcpServers": []}));
        let ended = stdio.end();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
        let notes = governed.root().join("docs/notes");
        let noted = std::fs::read_to_string(&notes).expect("notes");
        std::fs::remove_file(notes).expect("notes");
        noted
    };
    std::fs::write(home.join(".local/share/keyrings/secret"), "secret").expect("a file");
    std::fs::write(home.join(".local/bin/other"), "other").expect("a file");
    let expected = |itself: &str| {
        format!("keyring failed\nneighbour failed\nitself {itself}\nmounted worked\nnot-mounted failed\n")
    };
    assert_eq!(check("agent", &home.join(".local/bin/agent"), &home), expected("worked"));
    std::fs::remove_file(home.join(".local/bin/agent")).expect("the file exists");
    assert_eq!(check("./agent", &governed.root().join("agent"), &home), expected("failed"));
}

#[test]
fn a_script_that_was_changed_is_not_run_for_the_next_client() {
    // Below the tier `sandboxed` the agent can change the script.
    let governed = Governed::bridge("");
    governed.stdio().end();
    governed.file("agent.toml", "# more\n");
    let told = governed.dir.output_of(governed.serve(&[]));
    assert!(told.contains("agent.toml changed") && told.contains("--approve"), "{told}");
    governed.file("agent.toml", "");
    governed.stdio().end();
}

#[test]
fn a_memory_limit_is_enforced_in_every_tier_or_refused() {
    let governed = sandboxed("", "");
    governed.file("ACP.md", &acp("bridge", "governance-aware", "    operator: ./OPERATOR.md\n"));
    let runner = "runner: {engine: in-process, limits: {memory_mb: 512}}\n";
    governed.file("AGENT-CLI.md", &agent_cli("./SANDBOX.md", runner));
    let told = governed.dir.output_of(governed.serve(&[]));
    let refused = entry(&governed, "sandbox.refused")["metadata"]["aip44"].clone();
    let applied = entry(&governed, "sandbox.applied")["metadata"]["aip44"].clone();
    match refused["code"].as_str() {
        Some(code) => {
            assert_eq!((code, &refused["field"]), ("runner_limit_unenforceable", &json!("limits.memory_mb")));
            assert!(told.contains("limits.memory_mb") && applied.is_null(), "{told} {applied}");
        }
        None => assert_eq!(applied["limits"]["memory_mb"], 512, "{told}"),
    }
}
