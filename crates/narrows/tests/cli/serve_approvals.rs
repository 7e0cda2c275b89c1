//! Approvals as a user of `narrows run` sees them: the notice, the result, and the reason for a stopped turn.

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::serve::asks;
use crate::serve_budget::within_an_hour;
use crate::serve_support::{Governed, policy};
use crate::terminal_user::TerminalUser;
use crate::test_dir::{MARK, Running};

/// Starts `narrows run` with a `narrows serve` agent, in the workspace.
fn run<'a>(governed: &'a Governed, serve: &str, args: &[&str]) -> Running<'a> {
    let agent = format!("narrows serve {serve} {}", governed.root().join("ACP.md").display());
    let first = ["run", "--pass-env", MARK, "--agent", &agent];
    let mut command = governed.dir.narrows(first.iter().chain(args));
    command.current_dir(governed.root()).env("NARROWS_DATA_DIR", governed.dir.path().join("data"));
    command.env("XDG_RUNTIME_DIR", governed.dir.path());
    governed.dir.start(command)
}

/// Creates a workspace in which a lead must approve deletions.
fn governed() -> Governed {
    let governed = Governed::bridge(&asks("delete"));
    governed.with_lead_quorum(1);
    governed.keys(&["ada"]);
    governed
}

/// Returns the id of the pending approval.
fn waiting(governed: &Governed, args: &[&str]) -> String {
    let list = || governed.dir.output_beside_others(governed.approve(&[&["--list"], args].concat()));
    governed.dir.wait_for(|| list().contains("kind:delete"));
    list().split_whitespace().next().expect("an id").to_owned()
}

#[test]
fn a_waiting_client_gets_notices_and_the_reason_of_a_denial() {
    let governed = governed();
    let running = run(&governed, "", &["go"]);
    let id = waiting(&governed, &[]);
    let said = governed.dir.output_beside_others(governed.approve(&[
        &id,
        "--reject",
        "not today",
        "--key",
        "ada.key",
    ]));
    assert!(said.contains("--- exit 0 ---"), "{said}");
    let told = running.finish();
    assert!(told.starts_with("rejected"), "{told}");
    assert!(told.contains("first use: trusting "), "{told}");
    assert!(
        told.contains(&format!("waiting for approval {id} of `kind:delete` by 1 of role lead")),
        "{told}"
    );
    assert!(told.contains(&format!("`narrows approve {id} --key FILE` gives it")), "{told}");
    assert!(
        told.contains(&format!(
            "approval {id} of `kind:delete` was refused: user:ada rejected it: not today"
        )),
        "{told}"
    );
    assert!(told.contains("error: not approved: kind:delete"), "{told}");
    assert!(told.ends_with("--- exit 9 ---\n"), "{told}");
    governed.actions();
}

/// Presets of the client do not replace approvals of a governance.
#[test]
fn a_preset_of_the_client_approves_nothing() {
    let governed = Governed::bridge(&asks("delete"));
    let told = run(&governed, "", &["--access", "high", "go"]).finish();
    assert!(told.starts_with("rejected") && told.ends_with("--- exit 9 ---\n"), "{told}");
    let shown = governed.dir.output_beside_others(governed.dir.narrows(["audit", "show", "ws/audit"]));
    assert!(shown.contains("no user to ask"), "{shown}");
    // A rule in a file of the user can allow the call.
    governed.file("rules.toml", "[[rule]]\nname = \"leave\"\neffect = \"allow\"\nkind = \"delete\"\n");
    let told = run(&governed, "", &["--policy", "rules.toml", "go"]).finish();
    assert!(told.starts_with("allowed") && told.ends_with("--- exit 0 ---\n"), "{told}");
}

#[test]
fn programs_get_events() {
    let governed = governed();
    let running = run(&governed, "", &["--output", "events", "go"]);
    let id = waiting(&governed, &[]);
    let said = governed.dir.output_beside_others(governed.approve(&[&id, "--key", "ada.key"]));
    assert!(said.contains("--- exit 0 ---"), "{said}");
    let told = running.finish();
    assert!(told.ends_with("--- exit 0 ---\n"), "{told}");
    let events = told.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let approvals: Vec<Value> = events
        .filter(|event| event["payload"]["name"] == "approval")
        .map(|event| event["payload"]["data"].clone())
        .collect();
    let states: Vec<&Value> = approvals.iter().map(|told| &told["state"]).collect();
    assert_eq!(states, ["waiting", "given"], "{told}");
    assert!(approvals.iter().all(|told| told["approval"] == id.as_str()), "{told}");
    assert_eq!(approvals[1]["by"][0], "user:ada", "{told}");
}

#[test]
fn an_expired_approval_is_reported_and_recorded() {
    let governed = governed();
    let told = run(&governed, "--deadline permission=300ms", &["go"]).finish();
    assert!(
        told.contains("was refused: not approved in time") && told.ends_with("--- exit 9 ---\n"),
        "{told}"
    );
    assert!(governed.actions().contains(&"request.expired".to_owned()));
    let shown = governed.dir.output_beside_others(governed.dir.narrows(["audit", "show", "ws/audit"]));
    assert!(shown.contains("request.expired") && shown.contains("was not approved within"), "{shown}");
    assert!(shown.contains("not approved: not approved in time") && shown.contains("for user:"), "{shown}");
}

#[test]
fn a_turn_stopped_by_the_gate_has_a_reason() {
    let steps = "[[turn]]\nsteps = [\n  { tool = { id = \"c\", title = \"Look\", kind = \"read\", path = \"a.txt\" } },\n  \
        { tool_update = { id = \"c\", status = \"completed\", text = \"seen\" } },\n  { say = \"done\" },\n]\n";
    within_an_hour(|| {
        let governed = Governed::bridge(steps);
        let more = "decision: allow\nbudget: {max_per_day: 1}";
        governed.file("policies/looking/POLICY.md", &policy("looking", "kind:read", more));
        let told = run(&governed, "", &["go"]).finish();
        assert!(told.starts_with("done") && told.ends_with("--- exit 0 ---\n"), "{told}");
        let told = run(&governed, "", &["go"]).finish();
        let why = "error: the gate stopped the turn: it ran `kind:read` without an approval";
        assert!(told.contains(why), "{told}");
        assert!(told.contains("are exhausted (1 of 1, renewed at 00:00 UTC)"), "{told}");
        assert!(told.ends_with("--- exit 3 ---\n"), "{told}");
    });
}

#[test]
fn an_unasked_denial_is_not_attributed_to_a_user() {
    let governed = Governed::with_agent("client", &asks("delete"));
    let told = governed.dir.output_of(governed.serve(&["--", "go"]));
    assert!(told.starts_with("rejected"), "{told}");
    assert!(told.contains("cannot ask for permission") && !told.contains("by you"), "{told}");
    let log = std::fs::read_to_string(governed.log()).expect("a log");
    assert!(log.contains("no user to ask at the client of user:"), "{log}");
    assert!(told.ends_with("--- exit 9 ---\n"), "{told}");
}

#[test]
fn a_prompt_shows_policy_and_approval_and_a_denial_sets_the_exit_code() {
    let governed = Governed::with_agent("client", &asks("delete"));
    for (answer, said, code) in [("n\r", "rejected", 9), ("y\r", "allowed", 0)] {
        let user = TerminalUser::serve(&governed.dir, &["ws", "--", "go"]);
        user.expect("why asked: governance: ");
        user.expect("policy `removing` matches");
        // The last line of the prompt.
        user.expect("Allow it?");
        let screen = user.screen();
        assert!(!screen.contains("the gate asks") && !screen.contains("about:"), "{screen}");
        let id = waiting(&governed, &[]);
        assert!(
            screen.contains(&format!("approval: {id}; holders of a governance key can approve it elsewhere")),
            "{screen}"
        );
        user.type_text(answer);
        user.expect(said);
        assert_eq!(user.wait_exit(), Some(code), "{answer:?}");
    }
}

#[test]
fn a_session_outside_the_root_is_refused_with_a_hint() {
    let governed = Governed::bridge(&asks("delete"));
    let told = run(&governed, "", &["--cwd", "/", "go"]).finish();
    let because = "the path is outside the operator's directories: \"/\" is not in \"[DIR]/ws\" (-32602)";
    assert!(told.contains(because), "{told}");
    assert!(told.contains("hint: use a directory inside the agent's workspace: --cwd DIR"), "{told}");
}

#[test]
fn an_approver_sees_the_whole_action() {
    let steps = asks("delete")
        .replace("path = \"a.txt\"", "path = \"a.txt\", input = { text = \"one\\ntwo \\u001b[2J\" }");
    let governed = Governed::bridge(&steps);
    governed.with_lead_quorum(2);
    governed.keys(&["ada", "bob"]);
    let running = run(&governed, "", &["go"]);
    let id = waiting(&governed, &[]);
    assert!(
        governed
            .dir
            .output_beside_others(governed.approve(&[&id, "--key", "ada.key"]))
            .contains("--- exit 0 ---")
    );
    let shown = governed.dir.output_beside_others(governed.approve(&[&id, "--show"]));
    for line in [
        "tool      kind:delete\n",
        "needs     2 of role lead\n",
        "given by  user:ada\n",
        "      | one\n      | two \\u{1b}[2J\n",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(
        governed
            .dir
            .output_beside_others(governed.approve(&[&id, "--key", "bob.key"]))
            .contains("--- exit 0 ---")
    );
    assert!(running.finish().starts_with("allowed"));
}

#[test]
fn signers_of_a_group_use_the_admin_socket() {
    let governed = governed();
    let socket = governed.dir.path().join("admin.sock");
    let path = socket.to_str().expect("UTF-8");
    let group = rustix::process::getegid().as_raw().to_string();
    let running = run(&governed, &format!("--admin-socket {path} --admin-group {group}"), &["go"]);
    let id = waiting(&governed, &["--socket", path]);
    assert_eq!(socket.metadata().expect("the file exists").permissions().mode() & 0o777, 0o660);
    let said =
        governed.dir.output_beside_others(governed.approve(&[&id, "--socket", path, "--key", "ada.key"]));
    assert!(said.starts_with("approved: "), "{said}");
    assert!(running.finish().starts_with("allowed"));
    assert!(!socket.exists(), "the socket is removed with its process");
}

#[test]
fn an_admin_socket_is_outside_the_workspace_with_an_existing_group() {
    let governed = governed();
    let inside = governed.root().join("admin.sock");
    let told = governed.dir.output_of(governed.serve(&["--admin-socket", inside.to_str().expect("UTF-8")]));
    assert!(told.contains("is in the workspace") && told.ends_with("--- exit 2 ---\n"), "{told}");
    let told = governed.dir.output_of(governed.serve(&[
        "--admin-socket",
        "x.sock",
        "--admin-group",
        "no such group",
    ]));
    assert!(told.contains("no group \"no such group\"") && told.ends_with("--- exit 2 ---\n"), "{told}");
}
