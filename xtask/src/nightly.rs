//! `cargo xtask nightly`: the tests, and what takes too long to run at every change.
//!
//! The parts do not depend on each other: one that fails does not keep the others from running.

mod fuzz;
mod stress;

use crate::command::{cargo, tool};
use crate::step::{Failure, Steps};
use crate::{bench, test, tools, usage};

/// One part of the night.
pub(crate) struct Part {
    /// What it is called on the command line.
    pub(crate) name: &'static str,
    run: fn() -> Result<(), Failure>,
}

/// All of them, in the order they run.
pub(crate) const PARTS: [Part; 6] = [
    Part { name: "test", run: test::run },
    Part { name: "deny", run: deny },
    Part { name: "typos", run: typos },
    Part { name: "fuzz", run: fuzz::run },
    Part { name: "bench", run: measure },
    Part { name: "stress", run: stress::run },
];

/// Runs the parts named, or all.
pub(crate) fn run(names: &[&str]) -> Result<(), Failure> {
    if let Some(unknown) = names.iter().find(|name| !PARTS.iter().any(|part| part.name == **name)) {
        return Err(usage(&format!("nightly has no part `{unknown}`")));
    }
    let chosen = PARTS.iter().filter(|part| names.is_empty() || names.contains(&part.name));
    let mut code = 0;
    let mut failed = Vec::new();
    for part in chosen {
        if let Err(failure) = (part.run)() {
            eprintln!("xtask: {}", failure.message);
            code = failure.code;
            failed.push(part.name);
        }
    }
    if failed.is_empty() {
        eprintln!("\n==> nightly: every part passed");
        return Ok(());
    }
    Err(Failure { code, message: format!("nightly: these parts failed: {}", failed.join(", ")) })
}

/// Licences, advisories, sources and banned crates, by `deny.toml`.
fn deny() -> Result<(), Failure> {
    let mut steps = Steps::new("deny");
    tools::installed(&mut steps, "cargo-deny", cargo(&["deny", "--version"]))?;
    steps.run("licences, bans, sources", cargo(&["deny", "check", "licenses", "bans", "sources"]))?;
    // Last, since it alone needs the network.
    steps.run("advisories", cargo(&["deny", "check", "advisories"]))
}

/// Spelling, by `typos.toml`.
fn typos() -> Result<(), Failure> {
    let mut steps = Steps::new("typos");
    tools::installed(&mut steps, "typos-cli", tool("typos", &["--version"]))?;
    steps.run("typos", tool("typos", &[]))
}

fn measure() -> Result<(), Failure> {
    bench::run(&bench::NAMES)
}
