//! The parts of the help that clap does not write.

use std::fmt::Write;

use crate::environment;
use crate::failure::ExitStatus;

/// Something to type, and what it does.
pub(super) type Example = (&'static str, &'static str);

/// Of `narrows`.
pub(super) const MAIN: &[Example] = &[
    ("narrows run \"Hello, who are you?\"", "a first turn, with no key and no network"),
    ("narrows run --agent \"opencode acp\" \"What is this?\"", "with any other agent that speaks ACP"),
    ("OPENAI_BASE_URL=http://localhost:11434/v1 OPENAI_MODEL=llama3.2 narrows acp", "an agent for an editor"),
    ("narrows fake-agent --list", "agents that misbehave, to test with"),
];

/// Of `narrows run`.
pub(super) const RUN: &[Example] = &[
    ("narrows run \"Hello, who are you?\"", "a first turn, with no key and no network"),
    (
        "narrows run --base-url http://localhost:11434/v1 --model llama3.2 \"Hi\"",
        "with a model on this machine",
    ),
    ("git diff | narrows run --agent my-agent", "the prompt from another program"),
    ("narrows run --agent wss://bus.example/acp --token-file token \"Hi\"", "with a remote agent"),
    ("narrows run --agent my-agent --env MY_KEY \"Hi\"", "an agent that needs a key of yours"),
    (
        "narrows run --agent my-agent --timeout 5m --output json \"Hi\"",
        "for a script: a deadline and a JSON object",
    ),
];

/// Of `narrows chat`.
pub(super) const CHAT: &[Example] = &[
    ("narrows chat", "a first conversation, with no key and no network"),
    ("narrows chat --agent \"opencode acp\"", "with any other agent that speaks ACP"),
    ("narrows chat --agent my-agent --continue", "on with the last session in this directory"),
    ("narrows chat --agent my-agent --access low", "with an agent that may look and do nothing else"),
    (
        "printf 'Hi\\nWho are you?\\n' | narrows chat --agent my-agent",
        "messages from another program, a line each",
    ),
];

/// Of `narrows agents`.
pub(super) const AGENTS: &[Example] = &[
    ("narrows agents", "the agents of narrows.toml, and whether they are installed"),
    ("narrows agents --probe \"opencode acp\"", "what an agent is and can do"),
    ("narrows agents --probe my-agent --json", "the same for a script"),
];

/// Of `narrows sessions`.
pub(super) const SESSIONS: &[Example] = &[
    ("narrows sessions", "those of the built-in agent in this directory"),
    ("narrows sessions --agent my-agent --all", "all that another agent keeps"),
    ("narrows sessions --cwd ~/project --json", "those of another directory, for a script"),
    ("narrows run --agent my-agent --resume ID \"And now?\"", "going on with one of them"),
    ("narrows chat --continue", "going on with the last one here, in the terminal"),
    ("narrows sessions delete ID --agent my-agent", "making it forget one"),
];

/// Of `narrows policy`.
pub(super) const POLICY: &[Example] = &[
    ("narrows policy check rules.toml", "whether the rules can be read, and their examples hold"),
    ("narrows policy explain rules.toml -- git push origin main", "whether a command may run, and why"),
    (
        "narrows policy test rules.toml --events run.jsonl",
        "what other rules would have said in a recorded run",
    ),
];

/// Of `narrows policy explain`.
pub(super) const POLICY_EXPLAIN: &[Example] = &[
    ("narrows policy explain rules.toml -- git push origin main", "a program and its arguments"),
    ("narrows policy explain rules.toml -- 'make && ./deploy'", "a line for a shell"),
    (
        "narrows policy explain --access low --kind edit --path src/main.rs",
        "a file that is changed, without rules",
    ),
    ("narrows policy explain rules.toml --server github --tool create_issue", "a tool of an MCP server"),
];

/// Of `narrows policy check`.
pub(super) const POLICY_CHECK: &[Example] =
    &[("narrows policy check rules.toml", "what is wrong with it, and where")];

/// Of `narrows policy test`.
pub(super) const POLICY_TEST: &[Example] = &[
    ("narrows run --agent my-agent --output events \"Hi\" > run.jsonl", "a record"),
    ("narrows policy test rules.toml --events run.jsonl", "what these rules would have said"),
];

/// Of `narrows bus`.
pub(super) const BUS: &[Example] = &[
    (
        "narrows bus --listen tcp://127.0.0.1:9000 --instances 4 --share all -- narrows acp",
        "four agents for any number of clients",
    ),
    ("narrows bus --stdio --share session -- my-agent", "a process for each session, for an editor"),
    ("narrows check bus.toml && narrows bus --config bus.toml", "everything in a file"),
    ("narrows bus status --watch", "how it is"),
];

/// How `narrows bus` ends.
pub(super) const BUS_CODES: &[(ExitStatus, &str)] = &[
    (ExitStatus::Success, "it was told to stop, or its client on stdin has gone"),
    (ExitStatus::Usage, "the arguments or the settings are wrong, or a place to listen is taken"),
    (ExitStatus::Start, "the program of a pool is missing or cannot be run"),
    (ExitStatus::Internal, "something failed on this side"),
    (ExitStatus::Interrupted, "Ctrl-C was pressed twice"),
];

/// How `narrows bus status` ends.
pub(super) const BUS_STATUS_CODES: &[(ExitStatus, &str)] = &[
    (ExitStatus::Success, "the bus has answered"),
    (ExitStatus::Agent, "no bus runs, or it does not answer"),
    (ExitStatus::Usage, "the arguments are wrong, or several buses run"),
    (ExitStatus::Interrupted, "Ctrl-C was pressed, which is how --watch ends"),
    (ExitStatus::OutputClosed, "stdout was closed"),
];

/// What matters to a bus itself, rather than to its workers.
pub(super) const BUS_VARIABLES: &[&str] = &[environment::LOG, environment::RUNTIME_DIR, environment::HOME];

/// Of `narrows bus status`.
pub(super) const BUS_STATUS: &[Example] = &[
    ("narrows bus status --watch", "pools, workers and rates, every 2 seconds"),
    ("narrows bus status --json | jq .sessions", "for a script"),
];

/// Of `narrows check`.
pub(super) const CHECK: &[Example] = &[
    ("narrows check bus.toml", "what is wrong with it, and where"),
    ("narrows check --verbose bus.toml", "every setting, defaults included"),
    ("narrows check notes/", "whether its manifests are right, and fit together"),
    ("narrows check --print-schema operator", "what may stand in an OPERATOR.md"),
];

/// How `narrows check` ends.
pub(super) const CHECK_CODES: &[(ExitStatus, &str)] = &[
    (ExitStatus::Success, "every file can be used"),
    (
        ExitStatus::Usage,
        "one has a mistake in it, or a warning with --strict, or cannot be read, or the arguments are wrong",
    ),
    (ExitStatus::OutputClosed, "stdout was closed"),
];

/// Of `narrows audit`.
pub(super) const AUDIT: &[Example] = &[
    ("narrows audit verify audit/audit-log.jsonl", "whether it is what was written"),
    ("narrows audit show audit/audit-log.jsonl --decision deny", "what was refused"),
    (
        "narrows audit head audit/audit-log.jsonl --key me.key > head.json",
        "what it contains today, to be kept elsewhere",
    ),
];

/// Of `narrows audit verify`.
pub(super) const AUDIT_VERIFY: &[Example] = &[
    ("narrows audit verify audit/audit-log.jsonl", "whether it is what was written"),
    (
        "narrows audit verify audit/audit-log.jsonl --against head.json --signer me.key.pub",
        "also whether it has been cut, or written anew",
    ),
];

/// How `narrows audit verify` ends.
pub(super) const AUDIT_CODES: &[(ExitStatus, &str)] = &[
    (ExitStatus::Success, "the log is what was written"),
    (ExitStatus::Agent, "it is not, or the head is not signed by whom it should be"),
    (ExitStatus::Usage, "the arguments are wrong, or a file cannot be read"),
];

/// How `narrows audit show` ends.
pub(super) const AUDIT_READ_CODES: &[(ExitStatus, &str)] = &[
    (
        ExitStatus::Success,
        "all entries were printed, also if there are none, and with a warning if the log does not verify",
    ),
    (ExitStatus::Agent, "a line of the log cannot be read"),
    (ExitStatus::Usage, "the arguments are wrong, or the log cannot be read"),
    (ExitStatus::Interrupted, "Ctrl-C was pressed, which is how --follow ends"),
    (ExitStatus::OutputClosed, "nobody reads the output any more"),
];

/// How `narrows audit head` ends.
pub(super) const AUDIT_HEAD_CODES: &[(ExitStatus, &str)] = &[
    (ExitStatus::Success, "the head was printed"),
    (ExitStatus::Agent, "the log is not what was written, so nothing is signed"),
    (ExitStatus::Usage, "the arguments are wrong, the log is empty, or a file cannot be used"),
];

/// How `narrows audit keygen` ends.
pub(super) const AUDIT_KEYGEN_CODES: &[(ExitStatus, &str)] = &[
    (ExitStatus::Success, "the key was made"),
    (ExitStatus::Usage, "the arguments are wrong, or a file is there already or cannot be written"),
    (ExitStatus::Internal, "no random numbers can be had"),
];

/// What matters to `narrows audit`.
pub(super) const AUDIT_VARIABLES: &[&str] = &[environment::LOG];

/// Of `narrows audit show`.
pub(super) const AUDIT_SHOW: &[Example] = &[
    ("narrows audit show audit/audit-log.jsonl --session ID", "what happened in a session"),
    ("narrows audit show audit/audit-log.jsonl --follow --decision deny", "refusals, as they come"),
    ("narrows audit show audit/audit-log.jsonl --format aip44 | jq .tool", "calls of tools, for a script"),
];

/// Of `narrows audit head`.
pub(super) const AUDIT_HEAD: &[Example] =
    &[("narrows audit head audit/audit-log.jsonl --key me.key > head.json", "to be kept elsewhere")];

/// Of `narrows audit keygen`.
pub(super) const AUDIT_KEYGEN: &[Example] =
    &[("narrows audit keygen me.key", "me.key, and me.key.pub to give away")];

/// Of `narrows token`.
pub(super) const TOKEN: &[Example] = &[
    ("narrows token new laptop --file tokens.toml --out laptop.token", "a token, in a file of yours alone"),
    ("narrows token list --file tokens.toml", "who has one"),
    ("narrows token revoke laptop --file tokens.toml", "and has none any more"),
];

/// Of `narrows token new`.
pub(super) const TOKEN_NEW: &[Example] = &[
    ("narrows token new laptop --file tokens.toml --out laptop.token", "a token, in a file of yours alone"),
    ("narrows token new ci --scope kind:read --file tokens.toml", "one that is narrowed"),
];

/// Of `narrows token list`.
pub(super) const TOKEN_LIST: &[Example] = &[("narrows token list --file tokens.toml", "who has a token")];

/// Of `narrows token revoke`.
pub(super) const TOKEN_REVOKE: &[Example] =
    &[("narrows token revoke laptop --file tokens.toml", "its connections end within seconds")];

/// Of `narrows serve`.
pub(super) const SERVE: &[Example] = &[
    ("narrows serve governed/ACP.md", "what an editor starts in place of the agent"),
    (
        "narrows serve --listen unix:/run/user/1000/notes.sock governed/ACP.md",
        "for many clients, each with an agent of its own",
    ),
    (
        "narrows serve --listen ws://127.0.0.1:8787/acp --tokens ~/tokens.toml governed/ACP.md",
        "over WebSocket, for who has a token",
    ),
    ("narrows serve --approve governed/ACP.md", "after its files were changed on purpose"),
    (
        "narrows serve --admin-socket /run/tidy/admin.sock --admin-group signers governed/ACP.md",
        "for signers with accounts of their own",
    ),
    ("narrows serve --self-test governed/ACP.md", "whether it does what AIP-44 asks of it, point by point"),
    ("narrows check governed", "what is wrong with the manifest, without starting anything"),
    ("narrows audit verify governed/audit/audit-log.jsonl", "whether its log is as it was written"),
];

/// How `narrows serve` ends.
pub(super) const SERVE_CODES: &[(ExitStatus, &str)] = &[
    (
        ExitStatus::Success,
        "its client has gone, it was told to stop while it listens, or the turn was answered",
    ),
    (ExitStatus::Agent, "the agent has gone, had to be ended, or a point of --self-test fails"),
    (ExitStatus::Usage, "the arguments, the manifest or its keys are wrong, or it is not what was trusted"),
    (ExitStatus::Refusal, "kind client: the agent refused, or the gate stopped the turn"),
    (ExitStatus::Limit, "kind client: the answer is incomplete; or the agent has lived as long as it may"),
    (ExitStatus::Start, "the agent cannot be started, or is of a version that will not do"),
    (ExitStatus::Protocol, "kind client: the agent does not speak ACP as we know it"),
    (ExitStatus::Timeout, "a deadline has passed"),
    (
        ExitStatus::Denied,
        "kind client: the agent has answered, but who was asked refused something it wanted",
    ),
    (ExitStatus::Internal, "the log or a memory cannot be written, or something else failed on this side"),
    (ExitStatus::HungUp, "SIGHUP, on stdin and stdout"),
    (ExitStatus::Interrupted, "Ctrl-C, on stdin and stdout"),
    (ExitStatus::Terminated, "SIGTERM, on stdin and stdout"),
];

/// How `narrows approve` ends.
pub(super) const APPROVE_CODES: &[(ExitStatus, &str)] = &[
    (ExitStatus::Success, "the word counts; or with --list and --show, all was told, also if nothing waits"),
    (ExitStatus::Usage, "the arguments are wrong, nothing of this name waits, or the key cannot be used"),
    (ExitStatus::Start, "a gate does not answer at its socket"),
    (
        ExitStatus::Denied,
        "the word does not count: the key is none of the governance, or not for this, or it came twice",
    ),
];

/// What matters to `narrows approve`.
pub(super) const APPROVE_VARIABLES: &[&str] =
    &[environment::LOG, environment::RUNTIME_DIR, environment::HOME];

/// Of `narrows approve`.
pub(super) const APPROVE: &[Example] = &[
    ("narrows approve --list", "what waits, why, and who has to approve it"),
    ("narrows approve ID --show", "all of what is to be done"),
    ("narrows approve ID --key lead.key", "approving it"),
    ("narrows approve ID --reject \"not on a Friday\" --key lead.key", "rejecting it"),
    ("narrows approve --list --socket /run/tidy/admin.sock", "what another user serves, with --admin-socket"),
];

/// Of `narrows acp`.
pub(super) const ACP: &[Example] = &[
    ("OPENAI_API_KEY=… narrows acp", "what an editor starts, with OpenAI's gpt-4o"),
    ("narrows acp --base-url http://localhost:11434/v1 --model llama3.2", "with a model on this machine"),
    ("narrows acp --endpoint work --log debug", "with an endpoint of narrows.toml, and more in the log"),
];

/// Of `narrows connect`.
pub(super) const CONNECT: &[Example] = &[
    ("narrows connect ws://127.0.0.1:8787/acp", "what an editor starts, for a bus on this machine"),
    ("narrows connect wss://bus.example/acp --token-file ~/.config/narrows/token", "for one far away"),
    ("narrows connect unix:/run/narrows/bus.sock", "over a socket of this machine"),
    ("NARROWS_CONNECT=wss://bus.example/acp narrows acp", "for hosts that can start nothing else"),
];

/// How `narrows connect` ends.
pub(super) const CONNECT_CODES: &[(ExitStatus, &str)] = &[
    (ExitStatus::Success, "the editor has gone"),
    (ExitStatus::Agent, "the connection is lost, and could not be had again"),
    (ExitStatus::Usage, "the arguments are wrong, or a file cannot be used"),
    (ExitStatus::Start, "there is no connection: nobody is there, or nobody that lets us in"),
    (ExitStatus::Internal, "something failed on this side"),
    (ExitStatus::Interrupted, "Ctrl-C was pressed"),
    (ExitStatus::Terminated, "told to end by SIGTERM"),
];

/// What matters to `narrows connect`.
pub(super) const CONNECT_VARIABLES: &[&str] = &[
    environment::LOG,
    environment::TOKEN_FILE,
    environment::CERT_FILE,
    environment::KEY_FILE,
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// Of `narrows fake-agent`.
pub(super) const FAKE_AGENT: &[Example] = &[
    ("narrows fake-agent --list", "the built-in scripts"),
    ("narrows fake-agent --print echo > mine.toml", "a script of your own to start from"),
    ("narrows run --agent \"narrows fake-agent mine.toml\" \"Hi\"", "a turn with it"),
];

/// Of `narrows completions`.
pub(super) const COMPLETIONS: &[Example] = &[
    (
        "mkdir -p ~/.local/share/bash-completion/completions && \\\n  narrows completions bash > ~/.local/share/bash-completion/completions/narrows",
        "for bash",
    ),
    ("mkdir -p ~/.zfunc && narrows completions zsh > ~/.zfunc/_narrows", "for zsh"),
    (
        "mkdir -p ~/.config/fish/completions && \\\n  narrows completions fish > ~/.config/fish/completions/narrows.fish",
        "for fish",
    ),
];

/// The section of examples.
pub(super) fn examples(examples: &[Example]) -> String {
    let mut text = String::from("Examples:");
    for (line, meaning) in examples {
        _ = write!(text, "\n  # {meaning}\n  {line}");
    }
    text
}

/// The sections of a long help: examples, exit codes, environment.
pub(super) fn reference(of: &[Example]) -> String {
    let codes = ExitStatus::ALL.map(|code| (code, code.meaning()));
    examples(of) + &exit_codes(&codes) + &variables(|_| true)
}

/// The same of a command that ends in few ways and reads few variables.
pub(super) fn short_reference(of: &[Example], codes: &[(ExitStatus, &str)], names: &[&str]) -> String {
    examples(of) + &exit_codes(codes) + &variables(|name| names.contains(&name))
}

/// The sections of the long help of a command that no variable changes.
pub(super) fn with_codes(of: &[Example], codes: &[(ExitStatus, &str)]) -> String {
    examples(of) + &exit_codes(codes)
}

/// The sections of the long help of what is an agent to others and ends in few ways.
pub(super) fn settings_with_codes(of: &[Example], codes: &[(ExitStatus, &str)]) -> String {
    examples(of) + &exit_codes(codes) + &variables(|_| true)
}

/// The sections of the long help of an agent, whose exit code hardly matters.
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
