//! A bridge of ours in a chain of the official conductor, with the scripted agent at its end: real processes all.
//!
//! `NARROWS` is the binary; `cargo xtask nightly interop` builds it and says so.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// What the agent does: reads, runs what is denied, asks to delete, and says what came of it.
const SCRIPT: &str = r#"
[[turn]]
steps = [
  { tool = { id = "r", title = "Look", kind = "read", path = "a.txt" } },
  { tool_update = { id = "r", status = "completed", text = "seen" } },
  { tool = { id = "x", title = "Run", kind = "execute", input = { command = "rm" } } },
  { tool_update = { id = "x", status = "failed" } },
  { tool = { id = "d", title = "Delete", kind = "delete", path = "a.txt" } },
  { ask = { tool = "d", title = "Delete it?", options = ["allow_once", "reject_once"], on_allow = [
    { tool_update = { id = "d", status = "completed", text = "did" } },
    { say = "allowed" },
  ], on_reject = [
    { tool_update = { id = "d", status = "failed", text = "no" } },
    { say = "rejected" },
  ] } },
]
"#;

fn narrows() -> PathBuf {
    PathBuf::from(std::env::var_os("NARROWS").expect("run this by `cargo xtask nightly interop`"))
}

fn policy(slug: &str, subject: &str, decision: &str) -> String {
    format!(
        "---\nschema: agentgovernance/v1\ndoctype: policy\nslug: {slug}\nversion: 1.0.0\n\
         match: {{action: tool.call, subject: '{subject}'}}\n{decision}\n---\n"
    )
}

/// A workspace with a bridge in it.
fn workspace() -> tempfile::TempDir {
    let home = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = home.path().join("ws").join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        std::fs::write(path, text).expect("a file");
    };
    file(
        "ACP.md",
        "---\nname: ws\nid: tidy\ndescription: d\nversion: 1.0.0\nkind: bridge\ntransport: stdio\n\
        metadata:\n  aip44:\n    acp_rev: \"272bf79\"\n    tier: governance-aware\n    operator: ./OPERATOR.md\n---\n",
    );
    let tools = "{id: 'kind:read'}, {id: 'kind:delete'}, {id: 'kind:execute'}";
    file(
        "OPERATOR.md",
        &format!(
            "---\nname: Tidy\nid: tidy\npersona_summary: p\nversion: 1.0.0\n\
        profile: {{role: Tidy up., voice: Short., boundaries: [Never shout.]}}\ntools: [{tools}]\n\
        governance: {{audit_log: 'audit:default', autonomy: autonomous}}\n---\nbody\n"
        ),
    );
    let user = Command::new("id").arg("-un").output().expect("there is a user");
    let user = String::from_utf8(user.stdout).expect("a name");
    file(
        "GOVERNANCE.md",
        &format!(
            "---\nschema: governance.workspace/v1\nname: home\ntitle: t\ndescription: d\n\
        version: 1.0.0\nautonomy: {{level: 2, defaultApproval: on-mutate}}\npolicies:\n\
        - {{id: looking, ref: ./policies/looking/POLICY.md}}\n- {{id: removing, ref: ./policies/removing/POLICY.md}}\n\
        - {{id: shell, ref: ./policies/shell/POLICY.md}}\napprovers: [{{id: {}, role: owner}}]\n---\n",
            user.trim()
        ),
    );
    file("policies/looking/POLICY.md", &policy("looking", "kind:read", "decision: allow"));
    let signed = "decision: require-approval\nautonomy: 4\nquorum: 1\nsigners: [{role: owner}]";
    file("policies/removing/POLICY.md", &policy("removing", "kind:delete", signed));
    file("policies/shell/POLICY.md", &policy("shell", "kind:execute", "decision: deny"));
    // An agent of its own it never starts: there is none of this version.
    file(
        "AGENT-CLI.md",
        "---\nname: ws\nid: own-agent\ndescription: d\nversion: 1.0.0\nbin: narrows\n\
        bin_args: [fake-agent, echo]\ninstall: [{method: cargo, package: narrows}]\nprotocol: acp\nacp: ./ACP.md\n\
        version_check: {cmd: narrows --version, parse: '(\\d+\\.\\d+\\.\\d+)', range: '>=99.0.0'}\n\
        sandbox: {provider: local, config: {}}\n---\n",
    );
    std::fs::write(home.path().join("agent.toml"), SCRIPT).expect("a file");
    home
}

/// An editor before the conductor.
struct Editor {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    last: u64,
    updates: Vec<Value>,
    asked: Vec<Value>,
}

impl Editor {
    fn start(home: &Path, bridges: usize) -> Self {
        let bridge = format!("{} serve {}", narrows().display(), home.join("ws").display());
        let agent = format!("{} fake-agent {}", narrows().display(), home.join("agent.toml").display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_conductor"));
        command.arg("agent").args(vec![bridge; bridges]).arg(agent).current_dir(home);
        command.env("NARROWS_DATA_DIR", home.join("data")).env("XDG_RUNTIME_DIR", home);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the conductor starts");
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().expect("piped")));
        Self { child, input, output, last: 0, updates: Vec::new(), asked: Vec::new() }
    }

    fn say(&mut self, message: &Value) {
        let line = format!("{message}\n");
        self.input.as_mut().expect("it is open").write_all(line.as_bytes()).expect("it reads");
    }

    /// The next message that is an answer; what is asked is allowed, and what is told is kept.
    fn step(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it can be read");
        let message: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        if message["method"].is_null() {
            return Some(message);
        }
        if let Some(id) = message.get("id") {
            let outcome = json!({"outcome": {"outcome": "selected", "optionId": "allow_once"}});
            self.say(&json!({"jsonrpc": "2.0", "id": id, "result": outcome}));
            self.asked.push(message);
        } else {
            self.updates.push(message);
        }
        None
    }

    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.last += 1;
        let id = self.last;
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        loop {
            if let Some(answer) = self.step() {
                assert_eq!(answer["id"], id, "{answer}");
                return answer;
            }
        }
    }

    fn open(&mut self, home: &Path, version: u8) -> String {
        let info = json!({"name": "editor", "version": "1"});
        let params = match version {
            1 => json!({"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": info}),
            _ => json!({"protocolVersion": 2, "capabilities": {}, "info": info}),
        };
        let answer = self.ask("initialize", &params);
        assert_eq!(answer["result"]["protocolVersion"], version, "{answer}");
        assert_eq!(answer["result"]["_meta"]["aip44"]["operator"], "tidy", "{answer}");
        let outside = self.ask("session/new", &json!({"cwd": "/", "mcpServers": []}));
        assert_eq!(outside["error"]["data"]["code"], "cwd_outside_root", "{outside}");
        let cwd = home.join("ws").canonicalize().expect("it is there");
        let answer = self.ask("session/new", &json!({"cwd": cwd, "mcpServers": []}));
        answer["result"]["sessionId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    /// One turn, to its end.
    fn turn(&mut self, session: &str, version: u8) {
        let prompt = json!([{"type": "text", "text": "go"}]);
        let answer = self.ask("session/prompt", &json!({"sessionId": session, "prompt": prompt}));
        if version == 1 {
            assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
            return;
        }
        assert!(answer["result"]["messageId"].is_string(), "{answer}");
        while !self.updates.iter().any(|update| update["params"]["update"]["state"] == "idle") {
            assert_eq!(self.step(), None);
        }
    }

    fn said(&self) -> String {
        let updates = self.updates.iter().map(|update| &update["params"]["update"]);
        let chunks = updates.filter(|update| update["sessionUpdate"] == "agent_message_chunk");
        chunks.filter_map(|update| update["content"]["text"].as_str()).collect()
    }

    fn end(mut self) -> String {
        drop(self.input.take());
        let mut stderr = String::new();
        self.child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("UTF-8");
        self.child.wait().expect("it ends");
        stderr
    }
}

/// The actions in the log, which must verify.
fn actions(home: &Path) -> Vec<String> {
    let log = home.join("ws/audit/audit-log.jsonl");
    let verified = Command::new(narrows()).args(["audit", "verify"]).arg(&log).output().expect("it starts");
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
    let text = std::fs::read_to_string(log).expect("there is a log");
    let entries = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    entries.map(|entry| entry["action"].as_str().expect("a text").to_owned()).collect()
}

fn check(bridges: usize, version: u8) {
    let home = workspace();
    let mut editor = Editor::start(home.path(), bridges);
    let session = editor.open(home.path(), version);
    editor.turn(&session, version);
    assert_eq!(editor.said(), "allowed", "{:?}", editor.updates);
    // However many gates there are, each asks the one before it, and the first asks the editor.
    assert_eq!(editor.asked.len(), 1, "{:?}", editor.asked);
    let calls = editor.updates.iter().map(|update| &update["params"]["update"]["toolCallId"]);
    let calls: Vec<&str> = calls.filter_map(Value::as_str).collect();
    assert!(calls.contains(&"r") && calls.contains(&"d") && !calls.contains(&"x"), "{calls:?}");
    let stderr = editor.end();
    assert!(!stderr.contains("not started"), "{stderr}");
    let actions = actions(home.path());
    for action in
        ["operator.invoked", "operator.suspended", "operator.resumed", "tool.call", "operator.completed"]
    {
        assert!(actions.iter().filter(|it| *it == action).count() >= bridges, "{action} {actions:?}");
    }
    assert_eq!(actions.iter().filter(|action| *action == "session.refused").count(), 1, "{actions:?}");
}

#[test]
fn a_bridge_governs_an_agent_of_the_conductor() {
    check(1, 1);
}

#[test]
fn a_bridge_governs_an_agent_of_the_conductor_in_version_2() {
    check(1, 2);
}

#[test]
fn two_bridges_govern_one_after_the_other() {
    check(2, 1);
}

#[test]
fn an_agent_that_runs_what_is_denied_is_stopped_through_the_conductor() {
    let home = workspace();
    let script = "[[turn]]\nsteps = [\n  { tool = { id = \"x\", title = \"x\", kind = \"execute\", status = \"in_progress\", \
         input = { command = \"rm\" } } },\n  { wait_cancel = true },\n]\n";
    std::fs::write(home.path().join("agent.toml"), script).expect("a file");
    let mut editor = Editor::start(home.path(), 1);
    let session = editor.open(home.path(), 1);
    let prompt = json!([{"type": "text", "text": "go"}]);
    let answer = editor.ask("session/prompt", &json!({"sessionId": session, "prompt": prompt}));
    assert_eq!(answer["result"]["stopReason"], "refusal", "{answer}");
    assert!(editor.updates.iter().all(|update| update["params"]["update"]["toolCallId"] != "x"));
    editor.end();
    assert!(actions(home.path()).contains(&"operator.interrupted".to_owned()));
}

#[test]
fn the_last_of_a_chain_is_an_agent_as_ever() {
    let home = workspace();
    let mut editor = Editor::start(home.path(), 0);
    let info = json!({"name": "editor", "version": "1"});
    let answer = editor
        .ask("initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": info}));
    assert_eq!(answer["result"]["protocolVersion"], 1, "{answer}");
    editor.end();
}
