//! Compares an older revision with this tree, in alternating runs of `narrows-bench compare`.
//!
//! The older revision is checked out and built below the target directory, and kept there for the next
//! comparison.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Asked;
use crate::command::{cargo, target, tool};
use crate::step::{Failure, Steps};

/// Builds both revisions and compares the given benches. All of them run, even if one is worse.
pub(super) fn run(revision: &str, asked: &Asked<'_>) -> Result<(), Failure> {
    let mut steps = Steps::new("bench");
    let commit = commit(revision)?;
    let checkout = target().join("against").join(&commit);
    if !checkout.join("Cargo.toml").is_file() {
        let path = checkout.to_string_lossy();
        // Git would refuse to create a deleted checkout again while it is registered.
        steps.run("forget deleted checkouts", tool("git", &["worktree", "prune"]))?;
        steps.run("check out", tool("git", &["worktree", "add", "--detach", &path, &commit]))?;
    }
    let built = checkout.join("target");
    build(&mut steps, "the older revision", |command| {
        command.current_dir(&checkout).env("CARGO_TARGET_DIR", &built);
    })?;
    build(&mut steps, "this tree", |_| {})?;
    let (older, newer) = (program(&built), program(&target()));
    let mut worse = Vec::new();
    for (name, own) in &asked.names {
        let mut words = vec!["compare", "--base", &older];
        words.extend(asked.runs.map_or([].as_slice(), |_| &["--runs"]));
        words.extend(asked.runs);
        words.push(name);
        words.extend(own);
        if let Err(failure) = steps.run(name, tool(&newer, &words)) {
            eprintln!("xtask: {}", failure.message);
            worse.push(*name);
        }
    }
    if worse.is_empty() {
        return Ok(());
    }
    let message = format!("bench: worse than {revision}, or not measured: {}", worse.join(", "));
    Err(Failure { code: 1, message })
}

/// Builds the program and the bench separately, so that the program has the features of a release.
fn build(steps: &mut Steps, title: &str, prepare: impl Fn(&mut Command)) -> Result<(), Failure> {
    for package in ["narrows", "narrows-bench"] {
        let mut command = cargo(&["build", "--profile", "bench", "--package", package]);
        prepare(&mut command);
        steps.run(&format!("build {package} of {title}"), command)?;
    }
    Ok(())
}

fn program(target: &Path) -> String {
    let program: PathBuf = target.join("release/narrows-bench");
    program.to_string_lossy().into_owned()
}

fn commit(revision: &str) -> Result<String, Failure> {
    let name = format!("{revision}^{{commit}}");
    let output = tool("git", &["rev-parse", "--verify", "--quiet", "--end-of-options", &name])
        .stderr(Stdio::inherit())
        .output();
    let commit = output.ok().filter(|output| output.status.success());
    let commit = commit.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    commit.ok_or_else(|| Failure { code: 2, message: format!("git knows no revision `{revision}`") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_that_git_does_not_know_is_refused() {
        for revision in ["no-such-revision", "--help", ""] {
            assert_eq!(commit(revision).err().map(|failure| failure.code), Some(2), "{revision}");
        }
    }
}
