//! Runs the commands of the governed example's page.

use std::path::{Path, PathBuf};

use crate::serve_sandbox::is_available;
use crate::test_dir::TestDir;

pub(crate) fn example() -> PathBuf {
    named("governed")
}

fn named(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

/// Copies the example, so that no log ends up in the repository.
pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("the file exists").map(|entry| entry.expect("an entry")) {
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true if ["audit", "signatures"].iter().any(|left| entry.file_name() == *left) => {}
            true => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).expect("a file")),
        }
    }
}

/// Returns the commands of a page: each is the only line of its block.
fn commands(page: &str) -> Vec<Vec<String>> {
    let blocks = page.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap_or_default());
    blocks.map(|block| shlex::split(block.trim()).expect("words")).collect()
}

/// Runs both commands of an example's page in a copy of it. Returns their outputs, the page, and the directory.
fn run(dir: &TestDir, name: &str) -> (Vec<String>, String, PathBuf) {
    let root = dir.path().join(name);
    copy(&named(name), &root);
    let page = std::fs::read_to_string(named(name).join("README.md")).expect("a page");
    let commands = commands(&page);
    assert_eq!(commands.len(), 2);
    let told = commands.iter().map(|words| {
        assert_eq!(words[0], "narrows");
        let mut command = dir.narrows(&words[1..]);
        command.current_dir(&root).env("NARROWS_DATA_DIR", dir.path().join("data"));
        command.env("XDG_RUNTIME_DIR", dir.path());
        dir.output_of(command)
    });
    (told.collect(), page, root)
}

#[test]
fn the_sandboxed_example_cannot_leave_its_sandbox() {
    if !is_available() {
        return;
    }
    let dir = TestDir::new();
    let (told, page, root) = run(&dir, "sandboxed");
    let promised = page.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block");
    assert!(told[0].starts_with(promised) && told[0].contains("--- exit 0 ---"), "{}", told[0]);
    assert!(told[1].contains("sandbox.applied"), "{}", told[1]);
    assert_eq!(std::fs::read_to_string(root.join("out/note")).expect("a note"), "somebody was here\n");
    assert!(!root.join("new").exists());
}

#[test]
fn the_example_runs_and_its_log_verifies() {
    let dir = TestDir::new();
    let (told, _, root) = run(&dir, "governed");
    assert!(
        told[0].contains("I have looked at README.md.") && told[0].contains("I may not run commands."),
        "{}",
        told[0]
    );
    assert!(
        told[0].contains("I have left the old notes where they are."),
        "without a user the request is denied: {}",
        told[0]
    );
    assert!(told[1].contains(": OK, ") && told[1].contains("--- exit 0 ---"), "{}", told[1]);
    let log = std::fs::read_to_string(root.join("audit/audit-log.jsonl")).expect("a log");
    for word in [
        "manifest.pinned",
        "sandbox.applied",
        "\"ref\":\"looking\"",
        "\"ref\":\"shell\"",
        "operator.suspended",
        "session.closed",
    ] {
        assert!(log.contains(word), "{word} is not in\n{log}");
    }
}

#[test]
fn the_example_has_no_findings() {
    let dir = TestDir::new();
    for name in ["governed", "sandboxed"] {
        let mut command = dir.narrows(["check", "--strict"]);
        command.arg(named(name));
        let told = dir.output_of(command);
        assert!(told.contains("--- exit 0 ---"), "{told}");
    }
}
