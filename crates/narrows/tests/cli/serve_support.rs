//! A governed workspace for the tests: a bridge to the scripted agent, with policies for every verdict.

use std::path::{Path, PathBuf};
use std::process::Command;

use narrows_audit::SigningKey;
use serde_json::{Value, json};

use crate::support::{MARK, Place};
use crate::talk::Talk;

/// A workspace with a manifest in it, and a place for what is trusted.
pub(crate) struct Governed {
    pub(crate) place: Place,
}

/// The manifest of a kind with more keys below `aip44`.
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

/// Everything the scripted agent may use at all.
const TOOLS: &str = "{id: 'kind:read'}, {id: 'kind:edit'}, {id: 'kind:delete'}, {id: 'kind:execute'}, \
    {id: 'kind:search'}, {id: fs/read_text_file}, {id: read_file}, {id: run_command}";

/// Whoever runs the tests owns the workspace.
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

/// A policy about calls of what matches.
pub(crate) fn policy(slug: &str, subject: &str, more: &str) -> String {
    format!(
        "---\nschema: agentgovernance/v1\ndoctype: policy\nslug: {slug}\nversion: 1.0.0\n\
         match: {{action: tool.call, subject: '{subject}'}}\n{more}\n---\n"
    )
}

/// The script is the only argument of the scripted agent.
fn agent_cli(range: &str) -> String {
    format!(
        "---\nname: ws\nid: tidy-agent\ndescription: d\nversion: 1.0.0\nbin: narrows\nbin_args: [fake-agent, agent.toml]\n\
         install: [{{method: cargo, package: narrows}}]\nprotocol: acp\nacp: ./ACP.md\n\
         version_check: {{cmd: narrows --version, parse: '(\\d+\\.\\d+\\.\\d+)', range: '{range}'}}\n\
         sandbox: {{provider: local, config: {{}}, env: {{passthrough: [{MARK}]}}}}\n---\n"
    )
}

impl Governed {
    /// A bridge to an agent that plays this script.
    pub(crate) fn bridge(script: &str) -> Self {
        Self::with_agent("bridge", script)
    }

    /// A manifest of this kind whose agent plays this script.
    pub(crate) fn with_agent(kind: &str, script: &str) -> Self {
        let governed = Self::of(kind);
        governed.file("AGENT-CLI.md", &agent_cli(">=0.1.0"));
        governed.file("agent.toml", script);
        governed
    }

    /// A manifest of this kind.
    pub(crate) fn of(kind: &str) -> Self {
        let governed = Self { place: Place::new() };
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

    /// The workspace.
    pub(crate) fn root(&self) -> PathBuf {
        self.place.path().join("ws")
    }

    /// Where the log is.
    pub(crate) fn log(&self) -> PathBuf {
        self.root().join("audit/audit-log.jsonl")
    }

    /// Writes a file of the workspace.
    pub(crate) fn file(&self, name: &str, text: &str) {
        std::fs::write(self.root().join(name), text).expect("a file");
    }

    /// The operator has these tools.
    pub(crate) fn tools(&self, tools: &str) {
        let bound = "governance: {audit_log: 'audit:default', autonomy: autonomous}";
        self.file("OPERATOR.md", &operator(tools, bound));
    }

    /// The agent must be of this version.
    pub(crate) fn demand(&self, range: &str) {
        self.file("AGENT-CLI.md", &agent_cli(range));
    }

    /// `narrows serve` with these arguments behind the manifest.
    pub(crate) fn serve(&self, args: &[&str]) -> Command {
        let mut command = self.place.narrows(["serve", "ws"].iter().chain(args));
        command.env("NARROWS_DATA_DIR", self.place.path().join("data"));
        command.env("XDG_RUNTIME_DIR", self.place.path());
        command
    }

    /// `narrows approve` with these arguments.
    pub(crate) fn approve(&self, args: &[&str]) -> Command {
        let mut command = self.place.narrows(["approve"].iter().chain(args));
        command.env("XDG_RUNTIME_DIR", self.place.path());
        command
    }

    /// What removes something needs the words of so many leads.
    pub(crate) fn leads(&self, quorum: u32) {
        let signers =
            format!("decision: require-approval\nautonomy: 4\nquorum: {quorum}\nsigners: [{{role: lead}}]");
        self.file("policies/removing/POLICY.md", &policy("removing", "kind:delete", &signers));
    }

    /// Makes keys of these people, all of whom are leads, and names them in the governance.
    pub(crate) fn keys(&self, people: &[&str]) {
        let mut ring = Vec::new();
        for person in people {
            let key = SigningKey::generate().expect("a key");
            narrows_audit::key::write_new(&self.place.path().join(format!("{person}.key")), &key)
                .expect("a file");
            let subject = json!({"id": person, "role": "lead"});
            ring.push(json!({"id": key.public().to_string(), "alg": "Ed25519", "subject": subject}));
        }
        std::fs::create_dir_all(self.root().join(".well-known")).expect("a directory");
        let ring = json!({"$schema": "agentgovernance/v1", "doctype": "keyring", "keys": ring});
        self.file(".well-known/governance-keys.json", &ring.to_string());
    }

    /// A client of it that has introduced itself.
    pub(crate) fn talk(&self) -> Talk<'_> {
        Talk::initialized(&self.place, self.serve(&[]))
    }

    /// The actions in the log, which must verify, without those that precede every session and prompt.
    #[track_caller]
    pub(crate) fn actions(&self) -> Vec<String> {
        let verified =
            self.place.told_of(self.place.narrows(["audit", "verify", "ws/audit/audit-log.jsonl"]));
        assert!(verified.contains("--- exit 0 ---"), "{verified}");
        let entries = self.entries();
        let actions = entries.iter().map(|entry| entry["action"].as_str().expect("a text").to_owned());
        actions.filter(|action| !["session.requested", "prompt.accepted"].contains(&&**action)).collect()
    }

    /// The entries of the log.
    pub(crate) fn entries(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.log()).expect("there is a log");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

/// Opens a session in this directory and returns the answer.
pub(crate) fn open(talk: &mut Talk<'_>, cwd: &Path) -> Value {
    talk.ask("session/new", &json!({"cwd": cwd, "mcpServers": []}))
}

/// Opens a session in the workspace and returns its id.
pub(crate) fn session(talk: &mut Talk<'_>, governed: &Governed) -> String {
    let cwd = governed.root().canonicalize().expect("it is there");
    let answer = open(talk, &cwd);
    assert!(answer["result"]["sessionId"].is_string(), "{answer}");
    answer["result"]["sessionId"].as_str().expect("a text").to_owned()
}

/// An agent that reads a file and says so.
pub(crate) const READ: &str = r#"
[[turn]]
steps = [
  { tool = { id = "c", title = "Look", kind = "read", path = "a.txt" } },
  { tool_update = { id = "c", status = "completed", text = "seen" } },
  { say = "done" },
]
"#;

/// What the built-in agent needs to answer without a model.
pub(crate) const DEMO: [&str; 4] = ["--base-url", "builtin:demo", "--model", "m"];

/// A server of the built-in agent, whose sessions outlive it and their connections.
pub(crate) fn server() -> Governed {
    let governed = Governed::of("server");
    governed.file("ACP.md", &acp("server", "governance-aware", "    operator: ./OPERATOR.md\n"));
    governed
}
