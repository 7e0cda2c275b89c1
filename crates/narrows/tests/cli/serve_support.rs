//! A governed workspace for tests: a bridge to the scripted agent, with policies for every decision.

use std::path::{Path, PathBuf};
use std::process::Command;

use narrows_audit::SigningKey;
use serde_json::{Value, json};

use crate::stdio_client::StdioClient;
use crate::test_dir::{MARK, TestDir};

/// A workspace with a manifest, and a data directory.
pub(crate) struct Governed {
    pub(crate) dir: TestDir,
}

/// Returns a manifest with additional keys below `aip44`.
pub(crate) fn acp(kind: &str, tier: &str, more: &str) -> String {
    format!(
        "---\nname: ws\nid: tidy\ndescription: d\nversion: 1.0.0\nkind: {kind}\ntransport: stdio\n\
         metadata:\n  aip44:\n    acp_rev: \"272bf79\"\n    tier: {tier}\n{more}---\n"
    )
}

fn operator(tools: &str, more: &str) -> String {
    format!(
        "---\nname: Tidy\nid: tidy\npersona_summary: p\nversion: 1.0.0\n\
         profile: {{role: Tidy up., voice: Short., boundaries: [Never shout.]}}\ntools: [{tools}]\n{more}\n---\nbody\n"
    )
}

/// The tools of the operator.
const TOOLS: &str = "{id: 'kind:read'}, {id: 'kind:edit'}, {id: 'kind:delete'}, {id: 'kind:execute'}, \
    {id: 'kind:search'}, {id: fs/read_text_file}, {id: read_file}, {id: run_command}";

/// The user who runs the tests owns the workspace.
fn governance() -> String {
    let id = Command::new("id").arg("-un").output().expect("there is a user");
    let name = String::from_utf8(id.stdout).expect("a name");
    let approver = format!("approvers: [{{id: {}, role: owner}}]\n---\n", name.trim());
    format!("{GOVERNANCE}{approver}")
}

const GOVERNANCE: &str = "---\nschema: governance.workspace/v1\nname: home\ntitle: t\ndescription: d\nversion: 1.0.0\n\
    autonomy: {level: 2, defaultApproval: on-mutate}\npolicies:\n\
    - {id: looking, ref: ./policies/looking/POLICY.md}\n\
    - {id: removing, ref: ./policies/removing/POLICY.md}\n\
    - {id: shell, ref: ./policies/shell/POLICY.md}\n";

pub(crate) fn policy(slug: &str, subject: &str, more: &str) -> String {
    format!(
        "---\nschema: agentgovernance/v1\ndoctype: policy\nslug: {slug}\nversion: 1.0.0\n\
         match: {{action: tool.call, subject: '{subject}'}}\n{more}\n---\n"
    )
}

/// Returns an AGENT-CLI.md for the scripted agent, with the script as its argument.
fn agent_cli(range: &str) -> String {
    format!(
        "---\nname: ws\nid: tidy-agent\ndescription: d\nversion: 1.0.0\nbin: narrows\nbin_args: [fake-agent, agent.toml]\n\
         install: [{{method: cargo, package: narrows}}]\nprotocol: acp\nacp: ./ACP.md\n\
         version_check: {{cmd: narrows --version, parse: '(\\d+\\.\\d+\\.\\d+)', range: '{range}'}}\n\
         sandbox: {{provider: local, config: {{}}, env: {{passthrough: [{MARK}]}}}}\n---\n"
    )
}

impl Governed {
    /// Creates a bridge to a scripted agent.
    pub(crate) fn bridge(script: &str) -> Self {
        Self::with_agent("bridge", script)
    }

    /// Creates a manifest of a kind with a scripted agent.
    pub(crate) fn with_agent(kind: &str, script: &str) -> Self {
        let governed = Self::with_kind(kind);
        governed.file("AGENT-CLI.md", &agent_cli(">=0.1.0"));
        governed.file("agent.toml", script);
        governed
    }

    pub(crate) fn with_kind(kind: &str) -> Self {
        let governed = Self { dir: TestDir::new() };
        for slug in ["looking", "removing", "shell"] {
            std::fs::create_dir_all(governed.root().join("policies").join(slug)).expect("a directory");
        }
        governed.file("ACP.md", &acp(kind, "governance-aware", "    operator: ./OPERATOR.md\n"));
        governed.tools(TOOLS);
        governed.file("GOVERNANCE.md", &governance());
        governed.file("policies/looking/POLICY.md", &policy("looking", "kind:read", "decision: allow"));
        let signers = "decision: require-approval\nautonomy: 4\nquorum: 1\nsigners: [{role: owner}]";
        governed.file("policies/removing/POLICY.md", &policy("removing", "kind:delete", signers));
        governed.file("policies/shell/POLICY.md", &policy("shell", "kind:execute", "decision: deny"));
        governed
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("ws")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.root().join("audit/audit-log.jsonl")
    }

    pub(crate) fn file(&self, name: &str, text: &str) {
        std::fs::write(self.root().join(name), text).expect("a file");
    }

    /// Replaces the tools of the operator.
    pub(crate) fn tools(&self, tools: &str) {
        let bound = "governance: {audit_log: 'audit:default', autonomy: autonomous}";
        self.file("OPERATOR.md", &operator(tools, bound));
    }

    /// Sets the version range of the agent.
    pub(crate) fn demand(&self, range: &str) {
        self.file("AGENT-CLI.md", &agent_cli(range));
    }

    pub(crate) fn serve(&self, args: &[&str]) -> Command {
        let mut command = self.dir.narrows(["serve", "ws"].iter().chain(args));
        command.env("NARROWS_DATA_DIR", self.dir.path().join("data"));
        command.env("XDG_RUNTIME_DIR", self.dir.path());
        command
    }

    pub(crate) fn approve(&self, args: &[&str]) -> Command {
        let mut command = self.dir.narrows(["approve"].iter().chain(args));
        command.env("XDG_RUNTIME_DIR", self.dir.path());
        command
    }

    /// Requires approvals of this many leads for deleting.
    pub(crate) fn with_lead_quorum(&self, quorum: u32) {
        let signers =
            format!("decision: require-approval\nautonomy: 4\nquorum: {quorum}\nsigners: [{{role: lead}}]");
        self.file("policies/removing/POLICY.md", &policy("removing", "kind:delete", &signers));
    }

    /// Creates keys of these leads and adds them to the governance.
    pub(crate) fn keys(&self, people: &[&str]) {
        let mut ring = Vec::new();
        for user in people {
            let key = SigningKey::generate().expect("a key");
            narrows_audit::key::write_new(&self.dir.path().join(format!("{user}.key")), &key)
                .expect("a file");
            let subject = json!({"id": user, "role": "lead"});
            ring.push(json!({"id": key.public().to_string(), "alg": "Ed25519", "subject": subject}));
        }
        std::fs::create_dir_all(self.root().join(".well-known")).expect("a directory");
        let ring = json!({"$schema": "agentgovernance/v1", "doctype": "keyring", "keys": ring});
        self.file(".well-known/governance-keys.json", &ring.to_string());
    }

    /// Starts a client and initializes it.
    pub(crate) fn stdio(&self) -> StdioClient<'_> {
        StdioClient::initialized(&self.dir, self.serve(&[]))
    }

    /// Returns the logged actions without those that precede every session and prompt. Verifies the log.
    #[track_caller]
    pub(crate) fn actions(&self) -> Vec<String> {
        let verified =
            self.dir.output_beside_others(self.dir.narrows(["audit", "verify", "ws/audit/audit-log.jsonl"]));
        assert!(verified.contains("--- exit 0 ---"), "{verified}");
        let entries = self.entries();
        let actions = entries.iter().map(|entry| entry["action"].as_str().expect("a text").to_owned());
        actions.filter(|action| !["session.requested", "prompt.accepted"].contains(&&**action)).collect()
    }

    pub(crate) fn entries(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.log()).expect("there is a log");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

pub(crate) fn open(stdio: &mut StdioClient<'_>, cwd: &Path) -> Value {
    stdio.call("session/new", &json!({"cwd": cwd, "mcpServers": []}))
}

pub(crate) fn session(stdio: &mut StdioClient<'_>, governed: &Governed) -> String {
    let cwd = governed.root().canonicalize().expect("the file exists");
    let answer = open(stdio, &cwd);
    assert!(answer["result"]["sessionId"].is_string(), "{answer}");
    answer["result"]["sessionId"].as_str().expect("a text").to_owned()
}

/// An agent that reads a file.
pub(crate) const READ: &str = r#"
[[turn]]
steps = [
  { tool = { id = "c", title = "Look", kind = "read", path = "a.txt" } },
  { tool_update = { id = "c", status = "completed", text = "seen" } },
  { say = "done" },
]
"#;

/// Flags of the demo model.
pub(crate) const DEMO: [&str; 4] = ["--base-url", "builtin:demo", "--model", "m"];

/// Creates a server with the built-in agent, which stores its sessions.
pub(crate) fn server() -> Governed {
    let governed = Governed::with_kind("server");
    governed.file("ACP.md", &acp("server", "governance-aware", "    operator: ./OPERATOR.md\n"));
    governed
}
