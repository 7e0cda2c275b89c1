//! The example of a governed agent, run by exactly the commands that its page tells people to type.

use std::path::{Path, PathBuf};

use crate::support::Place;

pub(crate) fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/governed")
}

/// Everything of the example, so that no log ends up in the repository.
pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("it is there").map(|entry| entry.expect("an entry")) {
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true if ["audit", "signatures"].iter().any(|left| entry.file_name() == *left) => {}
            true => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).expect("a file")),
        }
    }
}

/// The commands of the page: each is the only line of its block.
fn commands() -> Vec<Vec<String>> {
    let page = std::fs::read_to_string(example().join("README.md")).expect("a page");
    let blocks = page.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap_or_default());
    blocks.map(|block| shlex::split(block.trim()).expect("words")).collect()
}

#[test]
fn the_example_runs_and_its_log_verifies() {
    let place = Place::new();
    let root = place.path().join("governed");
    copy(&example(), &root);
    let commands = commands();
    assert_eq!(commands.len(), 2);
    let told: Vec<String> = commands
        .iter()
        .map(|words| {
            assert_eq!(words[0], "narrows");
            let mut command = place.narrows(&words[1..]);
            command.current_dir(&root).env("NARROWS_DATA_DIR", place.path().join("data"));
            command.env("XDG_RUNTIME_DIR", place.path());
            place.told(command)
        })
        .collect();
    assert!(
        told[0].contains("I have looked at README.md.") && told[0].contains("I may not run commands."),
        "{}",
        told[0]
    );
    assert!(
        told[0].contains("I have left the old notes where they are."),
        "nobody could be asked: {}",
        told[0]
    );
    assert!(
        told[1].contains("this is what was written") && told[1].contains("--- exit 0 ---"),
        "{}",
        told[1]
    );
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
fn the_example_has_no_mistakes() {
    let place = Place::new();
    let mut command = place.narrows(["check", "--strict"]);
    command.arg(example());
    let told = place.told(command);
    assert!(told.contains("--- exit 0 ---"), "{told}");
}
