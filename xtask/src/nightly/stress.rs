//! Repeats the tests that start processes and race tasks, because an occasional failure is an undiscovered
//! bug.

use crate::command::{cargo, root};
use crate::step::{Failure, Steps};
use crate::tools;

/// The crates whose tests depend on timing, by directory.
const CRATES: [&str; 5] = ["process", "link", "rpc", "client", "narrows"];

/// Time for which the tests are repeated. The last round is completed.
const STRESS_DURATION: &str = "20m";

/// Number of repetitions without nextest, which alone can stop by time.
const ROUNDS_WITHOUT_NEXTEST: u32 = 3;

/// Repeats the tests until the first failure.
pub(super) fn run() -> Result<(), Failure> {
    let mut steps = Steps::new("stress");
    let directories = root().join("crates");
    let packages: Vec<String> = CRATES
        .iter()
        .filter(|directory| directories.join(directory).is_dir())
        .flat_map(|directory| ["--package".to_owned(), package(directory)])
        .collect();
    let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
    // An MCP server that tests of other crates start.
    steps.run("build what tests start", cargo(&["build", "--package", "narrows-mcp", "--examples"]))?;
    // Run by plain cargo, which has no time limit for a test.
    steps.run("long tests", cargo(&[&["test"], &packages[..], &["--", "--ignored"]].concat()))?;
    // These tests damage a log tens of thousands of times, so they need optimization.
    let audit = ["test", "--release", "--package", "narrows-audit", "--", "--ignored"];
    steps.run("long tests of the audit log", cargo(&audit))?;
    if tools::has_nextest() {
        let words =
            [&["nextest", "run", "--profile", "ci", "--stress-duration", STRESS_DURATION], &packages[..]]
                .concat();
        return steps.run("repeated tests", cargo(&words));
    }
    let words = [&["test"], &packages[..]].concat();
    for round in 1..=ROUNDS_WITHOUT_NEXTEST {
        steps.run(&format!("round {round} of {ROUNDS_WITHOUT_NEXTEST}"), cargo(&words))?;
    }
    Ok(())
}

fn package(directory: &str) -> String {
    if directory == "narrows" { directory.to_owned() } else { format!("narrows-{directory}") }
}
