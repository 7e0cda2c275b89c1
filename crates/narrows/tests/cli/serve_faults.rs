//! `narrows serve` with faults in the manifest, its agent, its log, or its pins.

use std::os::unix::fs::PermissionsExt;

use insta::assert_snapshot;
use rustix::process::Signal;

use crate::serve_support::{Governed, acp, session};
use crate::stdio_client::StdioClient;
use crate::terminal_user::TerminalUser;
use crate::test_dir::TestDir;

const QUIET: &str = "[[turn]]\nsteps = [{ say = \"done\" }]\n";

/// Returns the output of a failed start.
fn output(governed: &Governed, args: &[&str]) -> String {
    let told = governed.dir.output_of(governed.serve(args));
    // The warning depends on the machine.
    let lines = told.lines().filter(|line| !line.starts_with("warning: the agent is not sandboxed"));
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    text.strip_prefix("--- stderr ---\n--- exit").map_or(text.clone(), |rest| format!("--- exit{rest}"))
}

#[test]
fn an_invalid_manifest_is_not_served() {
    let dir = TestDir::new();
    std::fs::create_dir(dir.path().join("ws")).expect("a directory");
    dir.file("ws/ACP.md", &acp("brige", "basic", ""));
    assert_snapshot!(dir.output_of(dir.narrows(["serve", "ws"])), @r"
    --- stderr ---
    error: ws/ACP.md:6:7: kind: `brige` is not allowed here
    hint: did you mean bridge? It is one of client, server, bridge
    --- exit 2 ---
    ");
    let nowhere = dir.output_of(dir.narrows(["serve", "nowhere/ACP.md"]));
    assert!(
        nowhere.contains("no manifest at \"nowhere/ACP.md\"") && nowhere.ends_with("--- exit 2 ---\n"),
        "{nowhere}"
    );
}

#[test]
fn a_changed_manifest_is_refused_until_approved() {
    let governed = Governed::bridge(QUIET);
    assert_snapshot!(output(&governed, &[]), @r"
    --- stderr ---
    first use: trusting [DIR]/ws/ACP.md and all files it refers to, 8 files; approve later changes with `narrows serve --approve`
    --- exit 0 ---
    ");
    // The manifest is trusted as long as it is unchanged.
    assert_snapshot!(output(&governed, &[]), @"--- exit 0 ---");
    let path = governed.root().join("OPERATOR.md");
    let text = std::fs::read_to_string(&path).expect("the file exists");
    governed.file("OPERATOR.md", &text.replace("Short.", "Shorx."));
    assert_snapshot!(output(&governed, &[]), @r"
    --- stderr ---
    error: [DIR]/ws/ACP.md has untrusted changes: [DIR]/ws/OPERATOR.md changed
    hint: check the changes, then run: narrows serve --approve [DIR]/ws/ACP.md
    --- exit 2 ---
    ");
    assert_snapshot!(without_digests(&output(&governed, &["--approve"])), @r"
    --- stderr ---
    approved: [DIR]/ws/OPERATOR.md changed: sha256 [OLD] -> [NEW]
    [DIR]/ws/ACP.md is trusted, 8 files
    --- exit 0 ---
    ");
    assert!(output(&governed, &[]).contains("--- exit 0 ---"));
    assert_eq!(
        governed.actions(),
        ["manifest.pinned", "sandbox.applied", "sandbox.applied", "manifest.approved", "sandbox.applied"]
    );
    let entries = governed.entries();
    let changed = &entries[3]["input"]["changed"][0];
    assert!(changed["path"].as_str().expect("a text").ends_with("OPERATOR.md"));
    assert_ne!(changed["before"], changed["now"]);
}

/// Replaces digests, which depend on the version of the test.
fn without_digests(told: &str) -> String {
    let Some((before, rest)) = told.split_once("sha256 ") else { return told.to_owned() };
    let (_, after) = rest.split_once('\n').unwrap_or_default();
    format!("{before}sha256 [OLD] -> [NEW]\n{after}")
}

#[test]
fn a_program_in_the_workspace_is_pinned() {
    let governed = Governed::bridge(QUIET);
    let path = governed.root().join("AGENT-CLI.md");
    let text = std::fs::read_to_string(&path).expect("the file exists");
    governed.file("AGENT-CLI.md", &text.replace("bin: narrows\n", "bin: ./agent.sh\n"));
    governed.file("agent.sh", "#!/bin/sh\nexit 0\n");
    assert!(output(&governed, &[]).contains("it refers to, 9 files; "));
    governed.file("agent.sh", "#!/bin/sh\nexit 1\n");
    let said = output(&governed, &[]);
    assert!(said.contains("agent.sh changed") && said.contains("--- exit 2 ---"), "{said}");
}

#[test]
fn a_user_at_the_terminal_is_asked_about_changes() {
    let governed = Governed::with_agent("client", QUIET);
    assert!(output(&governed, &["--", "go"]).contains("--- exit 0 ---"));
    governed.file(
        "OPERATOR.md",
        &std::fs::read_to_string(governed.root().join("OPERATOR.md"))
            .expect("the file exists")
            .replace("Short.", "Shorx."),
    );
    for (answer, code) in [("no\r", 2), ("\r", 2), ("y\r", 0)] {
        let user = TerminalUser::serve(&governed.dir, &["ws", "--", "go"]);
        user.expect("OPERATOR.md changed: sha256 ");
        user.expect("Trust the changes? [y/N]");
        user.type_text(answer);
        assert_eq!(user.wait_exit(), Some(code), "{answer:?}");
    }
    // Now it is trusted, also without a terminal.
    assert!(output(&governed, &["--", "go"]).contains("--- exit 0 ---"));
    let actions = governed.actions();
    assert_eq!(actions.iter().filter(|action| action.starts_with("manifest.")).count(), 2, "{actions:?}");
}

#[test]
fn unreadable_pins_prevent_the_start() {
    let governed = Governed::bridge(QUIET);
    output(&governed, &[]);
    let pins = governed.dir.path().join("data/pins");
    let file = std::fs::read_dir(pins).expect("pins").next().expect("a pin file").expect("a pin file").path();
    std::fs::write(file, "{}").expect("the file is writable");
    let told = output(&governed, &[]);
    assert!(told.contains("the pins of this manifest") && told.contains("--- exit 2 ---"), "{told}");
}

#[test]
fn an_unwritable_log_prevents_the_start() {
    let governed = Governed::bridge(QUIET);
    // The log is a directory, because root could write to any file.
    std::fs::create_dir_all(governed.log()).expect("a directory");
    let said = output(&governed, &[]);
    assert!(
        said.contains("not serving: cannot write the audit log") && said.contains("--- exit 70 ---"),
        "{said}"
    );
    assert!(
        !governed.dir.path().join("data/pins").exists(),
        "the manifest is not trusted unless that is recorded"
    );
}

#[test]
fn a_full_disk_prevents_the_start() {
    let governed = Governed::bridge(QUIET);
    let serve = governed.serve(&[]);
    // The file size limit is 0, so that every write fails like on a full disk.
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -f 0; exec \"$@\"", "sh"]);
    command.arg(serve.get_program()).args(serve.get_args()).current_dir(governed.dir.path());
    command.env_clear().envs(serve.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(std::process::Stdio::null());
    let said = governed.dir.output_of(command);
    assert!(said.contains("the disk is full") && said.contains("--- exit 70 ---"), "{said}");
    assert!(
        !governed.dir.path().join("data/pins").exists(),
        "the manifest is not trusted unless that is recorded"
    );
}

#[test]
fn a_damaged_log_prevents_the_start() {
    let governed = Governed::bridge(QUIET);
    output(&governed, &[]);
    let text = std::fs::read_to_string(governed.log()).expect("a log");
    std::fs::write(governed.log(), text.replace("manifest.pinned", "manifest.pinnex"))
        .expect("the file is writable");
    let said = output(&governed, &[]);
    assert!(said.contains("the audit log is damaged") && said.contains("narrows audit verify"), "{said}");
}

#[test]
fn a_log_outside_the_workspace_is_refused() {
    let governed = Governed::bridge(QUIET);
    std::os::unix::fs::symlink(governed.dir.path(), governed.root().join("audit")).expect("a link");
    let said = output(&governed, &[]);
    assert!(said.contains("outside the operator's directories") && said.contains("--- exit 2 ---"), "{said}");
    assert!(!governed.dir.path().join("audit-log.jsonl").exists());
}

#[test]
fn a_governed_manifest_needs_a_log() {
    let governed = Governed::bridge(QUIET);
    let more = "    operator: ./OPERATOR.md\n    audit: {kind: 'off'}\n";
    governed.file("ACP.md", &acp("bridge", "governance-aware", more));
    let said = output(&governed, &[]);
    assert!(said.contains("--- exit 2 ---"), "{said}");
}

#[test]
fn an_agent_of_another_version_is_not_started() {
    let governed = Governed::bridge(QUIET);
    governed.demand(">=99.0.0");
    assert_snapshot!(output(&governed, &[]), @r#"
    --- stderr ---
    first use: trusting [DIR]/ws/ACP.md and all files it refers to, 8 files; approve later changes with `narrows serve --approve`
    error: not starting the agent "tidy-agent": version check "narrows --version" failed
      because: version [VERSION] is not in >=99.0.0
    hint: install a version in version_check.range of its AGENT-CLI.md
    --- exit 5 ---
    "#);
}

#[test]
fn an_exited_agent_is_reported() {
    let script =
        "[[turn]]\nsteps = [{ stderr = \"first\" }, { stderr = \"no \\u001b[2J room\" }, { exit = 3 }]\n";
    let governed = Governed::bridge(script);
    let mut stdio = governed.stdio();
    let session = session(&mut stdio, &governed);
    let answer = stdio.prompt(&session, "go");
    assert_eq!(answer["error"]["code"], -32010, "{answer}");
    let message = answer["error"]["message"].as_str().expect("a text");
    assert_eq!(message, "agent lost: exited with status 3; stderr: first | no \\u{1b}[2J room");
    let ended = stdio.wait();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("the agent \"tidy-agent\" exited"), "{}", ended.stderr);
    assert_eq!(governed.actions().last().map(String::as_str), Some("session.closed"));
}

#[test]
fn an_agent_that_does_not_stop_is_ended() {
    let governed = Governed::bridge(
        "[[turn]]\nsteps = [\n  { ignore_cancel = true },\n  { tool = { id = \"c\", title = \"x\", kind = \"execute\", \
         status = \"in_progress\", input = { command = \"rm\" } } },\n  { hang = true },\n]\n",
    );
    let mut stdio = StdioClient::initialized(&governed.dir, governed.serve(&["--deadline", "cancel=1s"]));
    let session = session(&mut stdio, &governed);
    let answer = stdio.prompt(&session, "go");
    assert_eq!(answer["error"]["code"], -32010, "{answer}");
    let ended = stdio.wait();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("it continued a stopped turn"), "{}", ended.stderr);
    governed.actions();
}

#[test]
fn a_signal_closes_the_log_completely() {
    let governed = Governed::bridge(QUIET);
    let mut stdio = governed.stdio();
    session(&mut stdio, &governed);
    stdio.signal(Signal::TERM);
    assert_eq!(stdio.wait().status.code(), Some(143));
    assert_eq!(
        governed.actions(),
        ["manifest.pinned", "sandbox.applied", "operator.invoked", "session.closed"]
    );
}

#[test]
fn pin_files_are_private() {
    let governed = Governed::bridge(QUIET);
    output(&governed, &[]);
    let pins = governed.dir.path().join("data/pins");
    let file =
        std::fs::read_dir(&pins).expect("pins").next().expect("a pin file").expect("a pin file").path();
    let mode =
        |path: &std::path::Path| path.metadata().expect("the file exists").permissions().mode() & 0o777;
    assert_eq!((mode(&pins), mode(&file)), (0o700, 0o600));
}
