//! Compares the commands that shells really run with those that the policy assumes, for more lines than the
//! regular tests.

use std::process::{Command, Stdio};
use std::time::SystemTime;

use super::Outcome;
use crate::command::cargo;
use crate::step::{Failure, Steps};

const LINES: &str = "100000";

/// Runs new random lines, unless a seed is given.
pub(super) fn run() -> Result<Outcome, Failure> {
    // Uses the same namespaces as the test, which fails if it still cannot run its lines.
    let mut try_out = Command::new("unshare");
    try_out.args([
        "--user",
        "--map-user=1000",
        "--map-group=1000",
        "--mount",
        "--pid",
        "--net",
        "--ipc",
        "--uts",
    ]);
    try_out.args(["--fork", "--kill-child", "--mount-proc", "true"]);
    if !try_out.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return Ok(Outcome::Skipped("`unshare` cannot make namespaces here".to_owned()));
    }
    let mut steps = Steps::new("differential");
    // Run by plain cargo, which has no time limit for a test and shows its figures.
    let mut lines =
        cargo(&["test", "--package", "narrows-policy", "--test", "differential", "--", "--nocapture"]);
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    lines.env("NARROWS_DIFFERENTIAL_REQUIRED", "1");
    let chosen = [
        ("NARROWS_DIFFERENTIAL_LINES", LINES.to_owned()),
        ("NARROWS_DIFFERENTIAL_SEED", since.as_secs().to_string()),
    ];
    // Numbers set by the user take precedence.
    for (name, value) in chosen {
        if std::env::var_os(name).is_none() {
            lines.env(name, value);
        }
    }
    steps.run("lines", lines).map(Outcome::from)
}
