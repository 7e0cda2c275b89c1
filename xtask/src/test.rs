//! `cargo xtask test`: everything a change must pass.
//!
//! All steps share one target directory and the flags of a plain `cargo build`, so nothing is built twice.
//! The tests come last, so that their closing line stays at the end.

use crate::command::cargo;
use crate::step::{Failure, Steps};
use crate::tools;

pub(crate) fn run() -> Result<(), Failure> {
    let mut steps = Steps::new("test");
    tools::prepare(&mut steps)?;
    steps.run("formatting", cargo(&["fmt", "--all", "--check"]))?;
    steps.run("clippy", cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    let mut documentation = cargo(&["doc", "--workspace", "--no-deps"]);
    // Unlike RUSTFLAGS this rebuilds no dependency: only rustdoc reads it.
    documentation.env("RUSTDOCFLAGS", "-D warnings");
    steps.run("documentation", documentation)?;
    if tools::has_nextest() {
        // nextest runs no doc tests.
        steps.run("doc tests", cargo(&["test", "--workspace", "--doc"]))?;
        steps.run("tests", cargo(&["nextest", "run", "--workspace", "--profile", "ci"]))?;
    } else {
        steps.run("tests and doc tests", cargo(&["test", "--workspace"]))?;
    }
    steps.finish();
    Ok(())
}
