//! Makes small changes to a value, determined by a seed.

use narrows_manifest::ManifestKind;
use serde_json::{Value, json};

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).unwrap()
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

pub(crate) fn mutated(mut value: Value, words: &[String], random: &mut Random) -> Value {
    let mut paths = Vec::new();
    pointers(&value, String::new(), &mut paths);
    let path = random.pick(&paths).clone();
    let target = value.pointer_mut(&path).unwrap();
    match (random.below(5), &mut *target) {
        (0, Value::Object(map)) if !map.is_empty() => {
            let key = map.keys().nth(random.below(map.len())).unwrap().clone();
            map.remove(&key);
        }
        (1, Value::Object(map)) => {
            map.insert(random.pick(words).clone(), some(words, random));
        }
        (2, Value::Object(map)) if !map.is_empty() => {
            let key = map.keys().nth(random.below(map.len())).unwrap().clone();
            let moved = map.remove(&key).unwrap();
            map.insert(format!("{key}x"), moved);
        }
        (0, Value::Array(list)) => list.clear(),
        (1, Value::Array(list)) => {
            let again = if list.is_empty() { some(words, random) } else { random.pick(list).clone() };
            list.push(again);
        }
        (2, Value::Array(list)) => list.push(some(words, random)),
        (0, Value::String(text)) => text.push_str(&"x".repeat(*random.pick(&[1, 30, 80, 300, 2000]))),
        (1, Value::String(text)) => {
            text.truncate(text.char_indices().nth(random.below(3)).map_or(0, |(at, _)| at));
        }
        (2, Value::String(text)) => {
            text.push(*random.pick(&['é', ' ', '-', '.', 'A', '_', '\n', '@', '/', '1', '\u{2028}']));
        }
        (0 | 1, Value::Number(number)) => {
            *target = random
                .pick(&[
                    json!(0),
                    json!(-1),
                    json!(1),
                    json!(3),
                    json!(5),
                    json!(99),
                    json!(1.5),
                    json!(2.0),
                    number.clone().into(),
                ])
                .clone();
        }
        _ => *target = some(words, random),
    }
    value
}

fn some(words: &[String], random: &mut Random) -> Value {
    match random.below(12) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(false),
        3 => json!(1),
        4 => json!(0.5),
        5 => json!([]),
        6 => json!({}),
        7 => json!({random.pick(words).clone(): random.pick(words).clone()}),
        8 => json!([random.pick(words).clone()]),
        9 => json!(*random.pick(&[
            "./x/GOVERNANCE.md",
            "ws://operators/a",
            "policy:a",
            "audit:a",
            "1.0.0",
            "@a/b",
            "/x",
            "2-of-3",
            "days:3",
            "USD",
            "1234567",
            "exit_code:3",
            "PT1H"
        ])),
        _ => json!(random.pick(words).clone()),
    }
}

fn pointers(value: &Value, path: String, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            pointers(value, format!("{path}/{}", key.replace('~', "~0").replace('/', "~1")), found);
        }),
        Value::Array(list) => {
            list.iter()
                .enumerate()
                .for_each(|(number, value)| pointers(value, format!("{path}/{number}"), found));
        }
        _ => {}
    }
    found.push(path);
}

/// Returns valid values with every existing key, so that mutations reach all keys.
pub(crate) fn full() -> Vec<(ManifestKind, Value)> {
    let policy = json!({
        "schema": "policy/v1", "id": "@a/b", "version": "1.0.0", "default": "deny",
        "grants": [{
            "principal": {"name": "n", "email": "e"}, "actions": [{"action": "read", "scope": "x"}],
            "conditions": [{"kind": "k", "more": 1}], "ttl_seconds": 5, "granted_at": "2026-01-01T00:00:00Z",
            "granted_by": "somebody", "revoked": false,
        }],
        "defaults": {"a": {"b": 1}}, "limits": [{"kind": "k", "value": 1.5, "per": "hour", "applies_to": ["x"], "scope": "s"}],
        "requirements": [{"kind": "k", "applies_to": ["x"]}], "metadata": {"a": 1},
    });
    let storage = json!({
        "schema": "storage/v1", "id": "@a/b", "version": "1.0.0", "provider": "local", "config": {"path": "x"},
        "sync": {
            "mode": "watch", "pull": {"on": "start", "ttl_seconds": 5},
            "commit": {"on": "turn", "batch_window_ms": 0, "message_template": "m"},
            "push": {"on": "turn", "branch_policy": "per-turn", "pr_policy": "auto"}, "conflict": {"policy": "rebase"},
        },
        "auth": {"ref": "r", "state": {"env": ["A"]}}, "identity": [{"ref": "x", "role": "y"}], "policy": {"file": "p"},
        "exclude": ["x"], "read_only": true, "metadata": {},
    });
    let sandbox = json!({
        "schema": "sandbox/v1", "id": "@a/b", "version": "1.0.0", "provider": "local", "config": {"cwd": "x"},
        "limits": {"timeout_ms": 1, "memory_mb": 1, "cpu_ms": 1},
        "env": {"auth": {"ref": "r", "state": {"env": ["A"]}}, "passthrough": ["B"]}, "network": {"egress": ["a.b"]},
        "mounts": [
            {"source": "workspace", "at": "/w", "mode": "read-only"}, {"source": {"ref": "r"}, "at": "/r"},
            {"source": {"file": "f"}, "at": "/f"}, {"source": {"inline": storage}, "at": "/i", "mode": "read-write"},
        ],
        "identity": {"name": "n", "email": "e", "avatar": "a", "gpg_key": "k", "role": "r", "metadata": {}},
        "policy": [policy, {"ref": "x"}], "lifecycle": {"pause_after_idle": "idle-600", "destroy_on": "close"},
        "read_only": false, "metadata": {"x": 1},
    });
    let runner = json!({
        "engine": "sandbox", "image": "i", "limits": {"memory_mb": 1, "timeout_ms": 2, "cpu_ms": 3},
        "needs": {"language": "node", "native": ["git"], "npm": ["@a/b@1", "c"], "pip": ["d"]},
    });
    let agent_cli = json!({
        "name": "full", "id": "full", "description": "d", "version": "1.0.0", "bin": "a/b", "bin_args": ["x"],
        "install": [
            {"method": "brew", "package": "p", "experimental": true}, {"method": "npm", "package": "p", "global": true},
            {"method": "pip", "package": "p", "user": true}, {"method": "curl", "url": "https://a.b", "verify_sha256": "0".repeat(64)},
            {"method": "download", "url": "https://a.b", "extract_bin": "x"}, {"method": "vendored", "path": "p"},
            {"method": "apt", "package": "p"}, {"method": "cargo", "package": "p"},
        ],
        "version_check": {"cmd": "a --version", "parse": "(.*)", "range": "*", "timeout_ms": 100},
        "setup": [
            {"id": "a", "kind": "cmd", "cmd": "c", "description": "d", "skip_if": {"cmd": "c", "exit_code": 1, "timeout_ms": 100}, "timeout_ms": 100, "interactive": true, "persist": {"env": "E"}},
            {"id": "b", "kind": "prompt", "prompt": "p", "type": "select", "default": "d", "options": ["x"], "persist": {"secret_slug": "ss"}},
            {"id": "c", "kind": "prompt", "prompt": "p", "options": {"cmd": "c", "timeout_ms": 100}, "persist": {"cmd": "c"}},
            {"id": "d", "kind": "oauth", "secret_slug": "ss"}, {"id": "e", "kind": "external", "url": "https://a.b", "callback": {"param": "p", "timeout_ms": 1000}},
        ],
        "auth": {
            "ref": "r", "state": {"paths": ["p"], "env": ["E"]}, "refresh": {"cmd": "c", "every": "PT1H"}, "expiry": {"detect": "exit_code:3"},
            "login": {"cmd": "c", "interactive": true, "requires_callback_url": false, "completes_when": {"cmd": "c", "exit_code": 0}},
        },
        "sandbox": {"provider": "local"}, "runner": "./RUNNER.md", "protocol": "acp", "acp": "./ACP.md",
        "mcp": {"command": "c", "args": ["a"], "transport": "stdio", "url": "https://a.b"}, "adapter": "@a/b",
        "session": {"mode": "resumable", "idle_timeout_ms": 1000, "max_turns": 1, "context_carryover": true},
        "models": {"default": "m", "allowed": ["m"], "env": {"a": "B"}},
        "capabilities": {"streaming": true, "tool_calls": true, "sub_agents": true, "file_io": true, "multimodal": true, "resumable": true, "bidirectional": true},
        "modes": [{"id": "m", "description": "d", "bin_args_append": ["x"], "env": {"A": "b"}}],
        "options": [
            {"id": "o", "type": "enum", "description": "d", "enum": ["a"], "default": "a", "bin_args_template": ["{value}"], "env": {"A": "{value}"}},
            {"id": "p", "type": "integer", "min": 1, "max": 2, "bin_args_append_when_true": ["x"]},
        ],
        "continuation": {"default": "native-resume", "supported": ["native-resume", "none"], "pinned_session": {"idle_timeout_ms": 1000, "key_scope": ["user"]}},
        "requires": {"os": ["linux"], "arch": ["x64"], "min_disk_mb": 0, "min_memory_mb": 1}, "tags": ["a"], "metadata": {},
    });
    let operator = json!({
        "name": "Full", "id": "full", "persona_summary": "p", "version": "1.0.0", "entry": "e",
        "profile": {"role": "r", "voice": "v", "boundaries": ["b"]},
        "skills": ["notes", {"id": "other", "source": "s", "version": "v", "allow": ["x"]}],
        "tools": ["tool-a", {"id": "b", "source": "s", "scope": {"workspace": "w", "network": ["n"], "secrets": ["s"]}}, {"kind": "mcp", "server": "s", "allow": ["x"]}],
        "memory": {"kind": "external", "policy": "redactable", "share_with": ["ab"], "external": {"uri": "u", "namespace": "n"}},
        "governance": {"policies": ["policy:a"], "audit_log": "audit:default", "autonomy": "gated"},
        "capabilities": ["c"], "participation": {"mode": "silent", "pass_when": "p", "reactions": true},
        "runtime": {"kind": "agent-cli", "ref": "./AGENT-CLI.md", "session": {"mode": "persistent", "idle_timeout_ms": 1000}, "config": {"mode": "m", "options": {"a": 1}, "continuation": "none"}},
        "tags": ["t"], "metadata": {},
    });
    let governance = json!({
        "schema": "governance.workspace/v1", "name": "full", "title": "t", "description": "d", "version": "1.0.0",
        "extends": "../x/GOVERNANCE.md", "appliesTo": ["ws://operators/a", "../b"],
        "autonomy": {"level": 3, "defaultApproval": "policy:a", "approvalEscalation": {"from": "a", "to": "b"}},
        "signing": {"algo": "ed25519", "keyring": "k", "required": true},
        "audit": {"retention": "days:3", "hashAlgo": "sha256", "appendOnly": true, "storage": "s", "headPointerSign": true},
        "policies": [{"id": "a", "ref": "r", "appliesTo": "*", "severity": "warn", "params": {"x": 1}}],
        "approvers": [{"id": "a", "role": "r", "canApprove": ["tool.call"], "quorum": "2-of-3"}],
        "executor": "ws://operators/a", "escalateTo": "ws://operators/b", "work": "w", "knowledge": "k",
        "display": {"defaultDashboard": "ab", "showRetentionWarnings": true}, "metadata": {"a": {"b": 1}},
    });
    let rule = json!({
        "schema": "agentgovernance/v1", "doctype": "policy", "slug": "full", "version": "1.0.0",
        "match": {"action": "tool.*", "subject": "s", "risk_level_min": 1}, "decision": "require-approval",
        "signers": [{"role": "r"}, {"userId": "u"}, {"role": "r", "userId": "u"}], "quorum": 1, "autonomy": 4,
        "budget": {"max_per_hour": 1, "max_per_day": 2, "max_amount_cents": 3, "currency": "EUR"}, "metadata": {},
    });
    let acp = json!({
        "name": "full", "id": "full", "description": "d", "version": "1.0.0", "kind": "bridge", "transport": ["stdio", "websocket"],
        "tags": ["a"], "other": 1,
        "metadata": {"x": 1, "aip44": {
            "acp_rev": "abc1234", "tier": "sandboxed", "operator": "o", "governance": "g", "sandbox": "s",
            "capabilities": {
                "client": {"fs": {"readTextFile": true, "writeTextFile": false}, "terminal": true},
                "agent": {
                    "loadSession": true, "promptCapabilities": {"image": true, "audio": false, "embeddedContext": true},
                    "mcpCapabilities": {"http": true, "sse": false},
                },
            },
            "audit": {"ref": "r", "kind": "external"}, "mcp_servers": [{"name": "n", "transport": "http", "ref": "r"}],
        }},
    });
    vec![
        (ManifestKind::Acp, acp),
        (ManifestKind::Sandbox, sandbox),
        (ManifestKind::Runner, runner),
        (ManifestKind::AgentCli, agent_cli),
        (ManifestKind::Operator, operator),
        (ManifestKind::Governance, governance),
        (ManifestKind::Policy, rule),
    ]
}
