//! `narrows serve --self-test` of several manifests. The tests also check that no file is left behind.

use std::path::Path;

use serde_json::Value;

use crate::serve_example::{copy, example};
use crate::serve_support::{Governed, acp, policy};
use crate::test_dir::TestDir;

const QUIET: &str = "[[turn]]\nsteps = [{ say = \"done\" }]\n";

/// Returns number, status and evidence of all points in a JSON report.
fn points(told: &str) -> Vec<(u64, String, String)> {
    let line = told.lines().find(|line| line.starts_with('{')).expect("a report");
    let report: Value = serde_json::from_str(line).expect("JSON");
    let text = |point: &Value, key: &str| point[key].as_str().expect("a text").to_owned();
    let points = report["points"].as_array().expect("points").iter();
    points
        .map(|point| {
            (point["point"].as_u64().expect("a number"), text(point, "verdict"), text(point, "evidence"))
        })
        .collect()
}

fn self_test(governed: &Governed) -> (String, Vec<(u64, String, String)>) {
    let told = governed.dir.output_of(governed.serve(&["--self-test", "--format", "json"]));
    let points = points(&told);
    assert_eq!(points.iter().map(|point| point.0).collect::<Vec<_>>(), (1..=30).collect::<Vec<_>>());
    (told, points)
}

#[track_caller]
fn failing(points: &[(u64, String, String)], expected: &[u64]) {
    let failing: Vec<&(u64, String, String)> = points.iter().filter(|point| point.1 == "fail").collect();
    assert_eq!(failing.iter().map(|point| point.0).collect::<Vec<_>>(), expected, "{failing:#?}");
}

/// Returns all paths below a directory.
fn tree(directory: &Path) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(next) = waiting.pop() {
        for entry in std::fs::read_dir(next).expect("the file exists").map(|entry| entry.expect("an entry")) {
            found.push(entry.path().display().to_string());
            if entry.path().is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

/// Removes the parts of a report that differ between runs.
fn plain(report: &str) -> String {
    let user = std::process::Command::new("id").arg("-un").output().expect("there is a user");
    let user = format!("user:{}", String::from_utf8(user.stdout).expect("a name").trim());
    let report = report.replace(&user, "user:ada");
    // Only root can connect as a foreign user.
    let known = |line: &str| line.split("; foreign user: ").next().unwrap_or_default().to_owned();
    let report = report.lines().map(known).collect::<Vec<_>>().join("\n");
    let mut plain = String::new();
    for letter in report.chars() {
        match letter.is_ascii_digit() {
            true if plain.ends_with('#') => {}
            true => plain.push('#'),
            false => plain.push(letter),
        }
    }
    plain
}

#[test]
fn the_example_passes_as_its_page_shows_and_leaves_nothing_behind() {
    let dir = TestDir::new();
    let root = dir.path().join("governed");
    copy(&example(), &root);
    let before = tree(dir.path());
    let mut command = dir.narrows(["serve", "--self-test", "ACP.md"]);
    command.current_dir(&root).env("NARROWS_DATA_DIR", dir.path().join("data"));
    let told = dir.output_of(command);
    assert!(told.contains("--- exit 0 ---"), "{told}");
    assert_eq!(tree(dir.path()), before, "neither log nor pins");
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/serve.md"));
    let page = page.expect("a page");
    let shown = page.split("$ narrows serve --self-test ACP.md\n").nth(1).expect("it is shown");
    let shown = shown.split("```").next().expect("a block");
    let printed = told.split("--- ").next().expect("a report");
    assert_eq!(plain(shown), plain(printed), "{told}");
}

#[test]
fn a_bridge_of_every_verdict_passes() {
    let governed = Governed::bridge(QUIET);
    let (told, points) = self_test(&governed);
    failing(&points, &[]);
    assert!(told.contains("--- exit 0 ---"), "{told}");
    for (word, point) in
        [("by `looking`", 22), ("by `shell`", 22), ("by `removing`", 22), ("cwd_outside_root", 27)]
    {
        assert!(points[point - 1].2.contains(word), "{word}: {:?}", points[point - 1]);
    }
    assert!(!governed.log().exists() && !governed.dir.path().join("data/pins").exists());
    let root = std::process::Command::new("id").arg("-u").output().expect("there is a user").stdout == b"0\n";
    let door = if root { "session/new -32000, client.refused in a log" } else { "only root can try" };
    assert!(
        points[25].2.contains(door) || points[25].2.contains("cannot reach a socket"),
        "{:?}",
        points[25]
    );
    let kept = &points[28].2;
    for name in ["initialize 30 s", "silence 600 s", "permission 300 s", "terminate 5 s (needs an agent"] {
        assert!(kept.contains(name), "{name}: {kept}");
    }
}

#[test]
fn a_server_of_the_client_is_tested() {
    let governed = Governed::bridge(&format!("[capabilities]\nmcp_http = true\nmcp_acp = true\n\n{QUIET}"));
    let more = "    operator: ./OPERATOR.md\n    mcp_servers: [{name: notes, transport: stdio}]\n    \
        capabilities: {agent: {mcpCapabilities: {http: true}}}\n";
    governed.file("ACP.md", &acp("bridge", "governance-aware", more));
    let (_, points) = self_test(&governed);
    failing(&points, &[]);
    assert!(
        points[27].2.contains("notes lists its tools, and a call of notes/narrows-self-test-unknown"),
        "{:?}",
        points[27]
    );
}

#[test]
fn absent_approvers_are_simulated() {
    let governed = Governed::bridge(QUIET);
    governed.with_lead_quorum(2);
    let (_, points) = self_test(&governed);
    failing(&points, &[]);
    assert!(points[23].2.contains("client asked 0 times, other processes 2 times"), "{:?}", points[23]);
}

#[test]
fn the_built_in_operator_passes() {
    let governed = Governed::with_kind("server");
    let (_, points) = self_test(&governed);
    failing(&points, &[]);
    assert_eq!(points[17].1, "not_applicable", "no process is started");
}

#[test]
fn a_missing_capability_fails() {
    let governed = Governed::bridge("[capabilities]\nload = false\n\n[[turn]]\nsteps = [{ say = \"x\" }]\n");
    let (told, points) = self_test(&governed);
    failing(&points, &[1]);
    assert!(points[0].2.contains("agent.loadSession") && told.contains("--- exit 1 ---"), "{told}");
    let missing = Governed::bridge(QUIET);
    let cli = std::fs::read_to_string(missing.root().join("AGENT-CLI.md")).expect("the file exists");
    missing.file("AGENT-CLI.md", &cli.replace("bin: narrows", "bin: ./nowhere"));
    let (told, points) = self_test(&missing);
    failing(&points, &[1]);
    assert!(told.contains("--- exit 1 ---"), "{told}");
}

#[test]
fn the_real_log_is_not_changed() {
    let governed = Governed::bridge(QUIET);
    assert!(governed.dir.output_of(governed.serve(&[])).contains("--- exit 0 ---"));
    let (log, data) =
        (std::fs::read(governed.log()).expect("a log"), tree(&governed.dir.path().join("data")));
    let (_, points) = self_test(&governed);
    failing(&points, &[]);
    assert_eq!(std::fs::read(governed.log()).expect("a log"), log);
    assert_eq!(tree(&governed.dir.path().join("data")), data);
}

#[test]
fn an_invalid_manifest_is_not_tested() {
    let governed = Governed::bridge(QUIET);
    governed.file("ACP.md", &acp("brige", "basic", ""));
    let told = governed.dir.output_of(governed.serve(&["--self-test"]));
    assert!(told.contains("did you mean bridge?") && told.contains("--- exit 2 ---"), "{told}");
}

#[test]
fn policies_that_match_no_tool_are_named() {
    let governed = Governed::bridge(QUIET);
    governed.tools("{id: run_command}, {id: read_file}");
    governed.file("policies/shell/POLICY.md", &policy("shell", "run_comand", "decision: deny"));
    let (_, points) = self_test(&governed);
    assert!(points[14].2.ends_with("3 policies; `shell` matches no tool"), "{}", points[14].2);
}
