//! Runs every fuzz target for a while with the address sanitizer, mainly because of the vector code.

use std::process::{Command, Stdio};

use super::Outcome;
use crate::command::{root, tool};
use crate::step::{Failure, Steps};
use crate::tools;

/// Seconds per target.
const DEFAULT_SECONDS: u32 = 60;

/// Runs all fuzz targets, or returns the reason for skipping them.
pub(super) fn run() -> Result<Outcome, Failure> {
    if !tools::has_nightly() {
        let reason = "it needs a nightly toolchain; `rustup toolchain install nightly` brings one";
        return Ok(Outcome::Skipped(reason.to_owned()));
    }
    let mut steps = Steps::new("fuzz");
    tools::installed(&mut steps, "cargo-fuzz", cargo_fuzz(&["--version"]))?;
    let limit = format!("-max_total_time={DEFAULT_SECONDS}");
    for target in targets()? {
        // New inputs go to the first folder; the second contains the samples of the repository, and is only
        // read.
        let found = format!("fuzz/target/found/{target}");
        let samples = format!("fuzz/corpus/{target}");
        if let Err(error) = std::fs::create_dir_all(root().join(&found)) {
            return Err(Failure { code: 1, message: format!("fuzz: cannot create {found}: {error}") });
        }
        steps
            .run(&format!("fuzz {target}"), cargo_fuzz(&["run", &target, &found, &samples, "--", &limit]))?;
    }
    steps.finish();
    Ok(Outcome::Passed)
}

/// Returns `cargo fuzz` with these arguments, of the nightly toolchain: the sanitizers are not in the
/// stable one.
fn cargo_fuzz(words: &[&str]) -> Command {
    let mut command = tool("rustup", &["run", "nightly", "cargo", "fuzz"]);
    command.args(words);
    command
}

fn targets() -> Result<Vec<String>, Failure> {
    let output = cargo_fuzz(&["list"]).stderr(Stdio::inherit()).output();
    let listed = match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        _ => return Err(Failure { code: 1, message: "fuzz: `cargo fuzz list` failed".to_owned() }),
    };
    let targets: Vec<String> = listed.lines().map(str::to_owned).collect();
    if targets.is_empty() {
        return Err(Failure { code: 1, message: "fuzz: there are no targets in fuzz/".to_owned() });
    }
    Ok(targets)
}
