//! Examples, exit codes and environment variables in the help.

use std::fmt::Write;

use crate::environment;
use crate::failure::ExitStatus;

/// A command line and its description.
pub(super) type Example = (&'static str, &'static str);

pub(super) const MAIN: &[Example] = &[
    ("narrows run \"Hello, who are you?\"", "First turn, without a key or network"),
    ("narrows run --agent \"opencode acp\" \"What is this?\"", "Any other agent that speaks ACP"),
    (
        "OPENAI_BASE_URL=http://localhost:11434/v1 OPENAI_MODEL=llama3.2 narrows acp",
        "Run as an agent in an editor",
    ),
    ("narrows fake-agent --list", "Agents that misbehave, for tests"),
];

pub(super) const RUN: &[Example] = &[
    ("narrows run \"Hello, who are you?\"", "First turn, without a key or network"),
    ("narrows run --base-url http://localhost:11434/v1 --model llama3.2 \"Hi\"", "Model on this machine"),
    ("git diff | narrows run --agent my-agent", "Prompt from another program"),
    ("narrows run --agent wss://bus.example/acp --token-file token \"Hi\"", "Remote agent"),
    ("narrows run --agent my-agent --env MY_KEY \"Hi\"", "Agent that needs one of your keys"),
    ("narrows run --agent my-agent --timeout 5m --output json \"Hi\"", "Script: time limit and JSON output"),
];

pub(super) const CHAT: &[Example] = &[
    ("narrows chat", "First conversation, without a key or network"),
    ("narrows chat --agent \"opencode acp\"", "Any other agent that speaks ACP"),
    ("narrows chat --agent my-agent --continue", "Continue the last session in this directory"),
    ("narrows chat --agent my-agent --access low", "Agent with read-only access"),
    (
        "printf 'Hi\\nWho are you?\\n' | narrows chat --agent my-agent",
        "Messages from another program, one per line",
    ),
];

pub(super) const AGENTS: &[Example] = &[
    ("narrows agents", "Agents of narrows.toml, and whether they are installed"),
    ("narrows agents --probe \"opencode acp\"", "Capabilities of an agent"),
    ("narrows agents --probe my-agent --json", "The same, for a script"),
];

pub(super) const SESSIONS: &[Example] = &[
    ("narrows sessions", "Sessions of the built-in agent in this directory"),
    ("narrows sessions --agent my-agent --all", "All sessions of another agent"),
    ("narrows sessions --cwd ~/project --json", "Sessions in another directory, for a script"),
    ("narrows run --agent my-agent --resume ID \"And now?\"", "Continue a session"),
    ("narrows chat --continue", "Continue the last session in this directory, in the terminal"),
    ("narrows sessions delete ID --agent my-agent", "Delete a session"),
];

pub(super) const POLICY: &[Example] = &[
    ("narrows policy check rules.toml", "Validate rules and run their examples"),
    ("narrows policy explain rules.toml -- git push origin main", "Decision about a command, and the reason"),
    (
        "narrows policy test rules.toml --events run.jsonl",
        "Compare the decisions of a recorded run with those of other rules",
    ),
];

pub(super) const POLICY_EXPLAIN: &[Example] = &[
    ("narrows policy explain rules.toml -- git push origin main", "Program with arguments"),
    ("narrows policy explain rules.toml -- 'make && ./deploy'", "Shell command line"),
    (
        "narrows policy explain --access low --kind edit --path src/main.rs",
        "Change of a file, without a rule file",
    ),
    ("narrows policy explain rules.toml --server github --tool create_issue", "Tool of an MCP server"),
];

pub(super) const POLICY_CHECK: &[Example] =
    &[("narrows policy check rules.toml", "Errors of a rule file, with their position")];

pub(super) const POLICY_TEST: &[Example] = &[
    ("narrows run --agent my-agent --output events \"Hi\" > run.jsonl", "Record a run"),
    ("narrows policy test rules.toml --events run.jsonl", "Decisions of these rules that differ"),
];

pub(super) const BUS: &[Example] = &[
    (
        "narrows bus --listen tcp://127.0.0.1:9000 --instances 4 --share all -- narrows acp",
        "Four agents, shared by all clients",
    ),
    ("narrows bus --stdio --share session -- my-agent", "One process per session, for an editor"),
    ("narrows check bus.toml && narrows bus --config bus.toml", "Everything from a configuration file"),
    ("narrows bus status --watch", "Live status"),
];

pub(super) const BUS_CODES: &[(ExitStatus, &str)] = &[
    (ExitStatus::Success, "stopped by a signal, or its client on stdin disconnected"),
    (ExitStatus::Usage, "invalid arguments or configuration, or an address is in use"),
    (ExitStatus::Start, "the program of a pool is missing or cannot be executed"),
    (ExitStatus::Internal, "internal error"),
    (ExitStatus::Interrupted, "Ctrl-C was pressed twice"),
];

pub(super) const BUS_STATUS_CODES: &[(ExitStatus, &str)] = &[
    (ExitStatus::Success, "the bus answered"),
    (ExitStatus::Agent, "no bus is running, or it does not answer"),
    (ExitStatus::Usage, "invalid arguments, or several buses are running"),
    (ExitStatus::Interrupted, "Ctrl-C was pressed, which ends --watch"),
    (ExitStatus::OutputClosed, "stdout was closed"),
];

/// Environment variables of a bus, as opposed to those of its workers.
pub(super) const BUS_VARIABLES: &[&str] = &[environment::LOG, environment::RUNTIME_DIR, environment::HOME];

pub(super) const BUS_STATUS: &[Example] = &[
    ("narrows bus status --watch", "Pools, workers and rates, every 2 seconds"),
    ("narrows bus status --json | jq .sessions", "For a script"),
];

pub(super) const CHECK: &[Example] = &[
    ("narrows check bus.toml", "Errors of a configuration, with their position"),
    ("narrows check --verbose bus.toml", "All settings, including defaults"),
    ("narrows check notes/", "Manifests of a directory, and the references between them"),
    ("narrows check --print-schema operator", "JSON Schema of an OPERATOR.md"),
];

pub(super) const CHECK_CODES: &[(ExitStatus, &str)] = &[
    (ExitStatus::Success, "all files are valid"),
    (
        ExitStatus::Usage,
        "a file has errors (with --strict, also warnings) or cannot be read, or invalid arguments",
    ),
    (ExitStatus::OutputClosed, "stdout was closed"),
];

pub(super) const AUDIT: &[Example] = &[
    ("narrows audit verify audit/audit-log.jsonl", "Verify the log"),
    ("narrows audit show audit/audit-log.jsonl --decision deny", "Denied actions"),
    (
        "narrows audit head audit/audit-log.jsonl --key me.key > head.json",
        "Sign the current head, to be stored elsewhere",
    ),
];

pub(super) const AUDIT_VERIFY: &[Example] = &[
    ("narrows audit verify audit/audit-log.jsonl", "Verify the log"),
    (
        "narrows audit verify audit/audit-log.jsonl --against head.json --signer me.key.pub",
        "Also detect a truncated or rewritten log",
    ),
];

pub(super) const AUDIT_CODES: &[(ExitStatus, &str)] = &[
    (ExitStatus::Success, "the log is valid"),
    (ExitStatus::Agent, "the log is invalid, or the head has another signer"),
    (ExitStatus::Usage, "invalid arguments, or a file cannot be read"),
];

pub(super) const AUDIT_READ_CODES: &[(ExitStatus, &str)] = &[
    (
        ExitStatus::Success,
        "all matching entries were printed; a warning is printed if the log does not verify",
    ),
    (ExitStatus::Agent, "an entry of the log cannot be read"),
    (ExitStatus::Usage, "invalid arguments, or the log cannot be read"),
    (ExitStatus::Interrupted, "Ctrl-C was pressed, which ends --follow"),
    (ExitStatus::OutputClosed, "stdout was closed"),
];

pub(super) const AUDIT_HEAD_CODES: &[(ExitStatus, &str)] = &[
    (ExitStatus::Success, "the head was printed"),
    (ExitStatus::Agent, "the log is invalid and was not signed"),
    (ExitStatus::Usage, "invalid arguments, the log is empty, or a file cannot be used"),
];

pub(super) const AUDIT_KEYGEN_CODES: &[(ExitStatus, &str)] = &[
    (ExitStatus::Success, "the key was created"),
    (ExitStatus::Usage, "invalid arguments, or a file exists or cannot be written"),
    (ExitStatus::Internal, "no random numbers are available"),
];

pub(super) const AUDIT_VARIABLES: &[&str] = &[environment::LOG];

pub(super) const AUDIT_SHOW: &[Example] = &[
    ("narrows audit show audit/audit-log.jsonl --session ID", "Entries of a session"),
    ("narrows audit show audit/audit-log.jsonl --follow --decision deny", "New denials, as they are written"),
    ("narrows audit show audit/audit-log.jsonl --format aip44 | jq .tool", "Tool calls, for a script"),
];

pub(super) const AUDIT_HEAD: &[Example] = &[(
    "narrows audit head audit/audit-log.jsonl --key me.key > head.json",
    "Signed head, to be stored elsewhere",
)];

pub(super) const AUDIT_KEYGEN: &[Example] =
    &[("narrows audit keygen me.key", "Private key in me.key, public key in me.key.pub")];

pub(super) const TOKEN: &[Example] = &[
    (
        "narrows token new laptop --file tokens.toml --out laptop.token",
        "Token in a file that only you can read",
    ),
    ("narrows token list --file tokens.toml", "List tokens"),
    ("narrows token revoke laptop --file tokens.toml", "Revoke a token"),
];

pub(super) const TOKEN_NEW: &[Example] = &[
    (
        "narrows token new laptop --file tokens.toml --out laptop.token",
        "Token in a file that only you can read",
    ),
    ("narrows token new ci --scope kind:read --file tokens.toml", "Token with a scope"),
];

pub(super) const TOKEN_LIST: &[Example] = &[("narrows token list --file tokens.toml", "List tokens")];

pub(super) const TOKEN_REVOKE: &[Example] = &[(
    "narrows token revoke laptop --file tokens.toml",
    "Revoke a token; its connections are closed within seconds",
)];

pub(super) const SERVE: &[Example] = &[
    ("narrows serve governed/ACP.md", "On stdio, for an editor"),
    (
        "narrows serve --listen unix:/run/user/1000/notes.sock governed/ACP.md",
        "On a unix socket; each client has its own agent",
    ),
    (
        "narrows serve --listen ws://127.0.0.1:8787/acp --tokens ~/tokens.toml governed/ACP.md",
        "On WebSocket, for clients with a token",
    ),
    ("narrows serve --approve governed/ACP.md", "Trust files that were changed on purpose"),
    (
        "narrows serve --admin-socket /run/tidy/admin.sock --admin-group signers governed/ACP.md",
        "Admin socket for approvers with their own accounts",
    ),
    ("narrows serve --self-test governed/ACP.md", "Test against the points of AIP-44"),
    ("narrows check governed", "Validate the manifest without starting anything"),
    ("narrows audit verify governed/audit/audit-log.jsonl", "Verify the audit log"),
];

pub(super) const SERVE_CODES: &[(ExitStatus, &str)] = &[
    (
        ExitStatus::Success,
        "the client disconnected, a listening server was stopped, or the turn was answered",
    ),
    (
        ExitStatus::Agent,
        "the agent exited or was stopped because of a fault, or a point of --self-test failed",
    ),
    (ExitStatus::Usage, "invalid arguments, manifest or keys, or files are not trusted"),
    (ExitStatus::Refusal, "kind client: the agent refused to answer, or the gate stopped the turn"),
    (ExitStatus::Limit, "kind client: the answer is incomplete; or the agent reached limits.timeout_ms"),
    (ExitStatus::Start, "the agent cannot be started, or its version is not accepted"),
    (ExitStatus::Protocol, "kind client: protocol error, invalid ACP or unsupported version"),
    (ExitStatus::Timeout, "a time limit was exceeded"),
    (ExitStatus::Denied, "kind client: the agent finished, but a request was denied by an approver"),
    (ExitStatus::Internal, "the audit log or a memory cannot be written, or another internal error"),
    (ExitStatus::HungUp, "SIGHUP, on stdio"),
    (ExitStatus::Interrupted, "Ctrl-C, on stdio"),
    (ExitStatus::Terminated, "SIGTERM, on stdio"),
];

pub(super) const APPROVE_CODES: &[(ExitStatus, &str)] = &[
    (
        ExitStatus::Success,
        "the approval or rejection was accepted; or --list or --show succeeded, even if nothing \
                           is pending",
    ),
    (ExitStatus::Usage, "invalid arguments, no pending approval with this ID, or the key cannot be used"),
    (ExitStatus::Start, "a gate does not answer on its socket"),
    (ExitStatus::Denied, "not accepted: unknown key, key not authorized for this call, or duplicate"),
];

pub(super) const APPROVE_VARIABLES: &[&str] =
    &[environment::LOG, environment::RUNTIME_DIR, environment::HOME];

pub(super) const APPROVE: &[Example] = &[
    ("narrows approve --list", "Pending approvals, their reasons and approvers"),
    ("narrows approve ID --show", "Full details of a pending approval"),
    ("narrows approve ID --key lead.key", "Approve"),
    ("narrows approve ID --reject \"not on a Friday\" --key lead.key", "Reject"),
    (
        "narrows approve --list --socket /run/tidy/admin.sock",
        "Pending approvals of another user's server, with \
                                                              --admin-socket",
    ),
];

pub(super) const ACP: &[Example] = &[
    ("OPENAI_API_KEY=… narrows acp", "In an editor, with OpenAI's gpt-4o"),
    ("narrows acp --base-url http://localhost:11434/v1 --model llama3.2", "Model on this machine"),
    ("narrows acp --endpoint work --log debug", "Endpoint of narrows.toml, with debug messages in the log"),
];

pub(super) const CONNECT: &[Example] = &[
    ("narrows connect ws://127.0.0.1:8787/acp", "In an editor, for a bus on this machine"),
    ("narrows connect wss://bus.example/acp --token-file ~/.config/narrows/token", "Bus on another machine"),
    ("narrows connect unix:/run/narrows/bus.sock", "Bus on a unix socket"),
    ("NARROWS_CONNECT=wss://bus.example/acp narrows acp", "For editors that only start `narrows acp`"),
];

pub(super) const CONNECT_CODES: &[(ExitStatus, &str)] = &[
    (ExitStatus::Success, "the editor disconnected"),
    (ExitStatus::Agent, "the connection was lost and not re-established"),
    (ExitStatus::Usage, "invalid arguments, or a file cannot be used"),
    (ExitStatus::Start, "no connection: the server is unreachable, or refuses the client"),
    (ExitStatus::Internal, "internal error"),
    (ExitStatus::Interrupted, "Ctrl-C was pressed"),
    (ExitStatus::Terminated, "ended by SIGTERM"),
];

pub(super) const CONNECT_VARIABLES: &[&str] = &[
    environment::LOG,
    environment::TOKEN_FILE,
    environment::CERT_FILE,
    environment::KEY_FILE,
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

pub(super) const FAKE_AGENT: &[Example] = &[
    ("narrows fake-agent --list", "List the built-in scripts"),
    ("narrows fake-agent --print echo > mine.toml", "Start your own script from a built-in one"),
    ("narrows run --agent \"narrows fake-agent mine.toml\" \"Hi\"", "Run a turn with it"),
];

pub(super) const COMPLETIONS: &[Example] = &[
    (
        "mkdir -p ~/.local/share/bash-completion/completions && \\\n  narrows completions bash > ~/.local/share/bash-completion/completions/narrows",
        "bash",
    ),
    ("mkdir -p ~/.zfunc && narrows completions zsh > ~/.zfunc/_narrows", "zsh"),
    (
        "mkdir -p ~/.config/fish/completions && \\\n  narrows completions fish > ~/.config/fish/completions/narrows.fish",
        "fish",
    ),
];

/// Returns the section of examples.
pub(super) fn examples(examples: &[Example]) -> String {
    let mut text = String::from("Examples:");
    for (line, meaning) in examples {
        _ = write!(text, "\n  # {meaning}\n  {line}");
    }
    text
}

/// Returns the sections of a long help: examples, exit codes, environment.
pub(super) fn reference(of: &[Example]) -> String {
    let codes = ExitStatus::ALL.map(|code| (code, code.meaning()));
    examples(of) + &exit_codes(&codes) + &variables(|_| true)
}

/// Like [`reference()`], with only these exit codes and environment variables.
pub(super) fn short_reference(of: &[Example], codes: &[(ExitStatus, &str)], names: &[&str]) -> String {
    examples(of) + &exit_codes(codes) + &variables(|name| names.contains(&name))
}

/// Returns the sections of a long help without environment variables.
pub(super) fn with_codes(of: &[Example], codes: &[(ExitStatus, &str)]) -> String {
    examples(of) + &exit_codes(codes)
}

/// Returns the sections for an agent command with its own exit codes.
pub(super) fn settings_with_codes(of: &[Example], codes: &[(ExitStatus, &str)]) -> String {
    examples(of) + &exit_codes(codes) + &variables(|_| true)
}

/// Returns the sections for an agent command without exit codes, which rarely matter there.
pub(super) fn settings(of: &[Example]) -> String {
    examples(of) + &variables(|_| true)
}

fn exit_codes(codes: &[(ExitStatus, &str)]) -> String {
    let mut text = String::from("\n\nExit codes:");
    for (code, meaning) in codes {
        _ = write!(text, "\n  {:>3}  {meaning}", code.number());
    }
    text
}

fn variables(wanted: impl Fn(&str) -> bool) -> String {
    let mut text = String::from("\n\nEnvironment:");
    let wanted = environment::ALL.iter().filter(|(name, _)| wanted(name));
    let width = wanted.clone().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, meaning) in wanted {
        _ = write!(text, "\n  {name:width$}  {meaning}");
    }
    text
}
