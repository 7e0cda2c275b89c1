//! `cargo xtask nightly`: the tests, and checks that take too long for every change.
//!
//! The parts are independent: a failed one does not prevent the others.

mod agents;
mod browser;
mod chaos;
mod cuts;
mod differential;
mod fuzz;
mod model;
mod nginx;
mod simulate;
mod stress;

use std::time::Instant;

use crate::command::{cargo, target, tool};
use crate::step::{Failure, Steps};
use crate::{bench, test, tools, usage};

pub(crate) struct Part {
    pub(crate) name: &'static str,
    run: fn() -> Result<Outcome, Failure>,
}

/// The result of a part that did not fail.
enum Outcome {
    Passed,
    /// The part did not run, for this reason. Counts neither as a failure nor as a success.
    Skipped(String),
}

impl From<()> for Outcome {
    fn from((): ()) -> Self {
        Self::Passed
    }
}

pub(crate) const PARTS: [Part; 15] = [
    Part { name: "test", run: || test::run().map(Outcome::from) },
    Part { name: "deny", run: deny },
    Part { name: "typos", run: typos },
    Part { name: "fuzz", run: fuzz::run },
    Part { name: "differential", run: differential::run },
    Part { name: "model", run: model::run },
    Part { name: "agents", run: agents::run },
    Part { name: "interop", run: interop },
    Part { name: "browser", run: browser::run },
    Part { name: "nginx", run: nginx::run },
    Part { name: "bench", run: measure },
    Part { name: "simulate", run: || simulate::run().map(Outcome::from) },
    Part { name: "chaos", run: || chaos::run().map(Outcome::from) },
    Part { name: "cuts", run: || cuts::run().map(Outcome::from) },
    Part { name: "stress", run: || stress::run().map(Outcome::from) },
];

pub(crate) fn run(names: &[&str]) -> Result<(), Failure> {
    if let Some(unknown) = names.iter().find(|name| !PARTS.iter().any(|part| part.name == **name)) {
        return Err(usage(&format!("nightly has no part `{unknown}`")));
    }
    let chosen = PARTS.iter().filter(|part| names.is_empty() || names.contains(&part.name));
    let outcomes: Vec<_> = chosen
        .map(|part| {
            let started = Instant::now();
            let outcome = (part.run)();
            let minutes = started.elapsed().as_secs_f64() / 60.0;
            match &outcome {
                Err(failure) => {
                    eprintln!("\n==> {} FAILED after {minutes:.1} min: {}", part.name, failure.message);
                }
                Ok(Outcome::Skipped(reason)) => eprintln!("\n==> {} SKIPPED: {reason}", part.name),
                Ok(Outcome::Passed) => eprintln!("\n==> {} passed in {minutes:.1} min", part.name),
            }
            (part.name, outcome)
        })
        .collect();
    let verdict = verdict(&outcomes)?;
    eprintln!("\n==> nightly: {verdict}");
    Ok(())
}

fn verdict(outcomes: &[(&str, Result<Outcome, Failure>)]) -> Result<String, Failure> {
    let mut code = None;
    let (mut passed, mut failed, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
    for (name, outcome) in outcomes {
        match outcome {
            Ok(Outcome::Passed) => passed.push(*name),
            Ok(Outcome::Skipped(_)) => skipped.push(*name),
            Err(failure) => {
                code = Some(failure.code);
                failed.push(*name);
            }
        }
    }
    let skipped = match skipped[..] {
        [] => String::new(),
        _ => format!("; SKIPPED, so not known to work: {}", skipped.join(", ")),
    };
    if let Some(code) = code {
        let message = format!("nightly: these parts failed: {}{skipped}", failed.join(", "));
        return Err(Failure { code, message });
    }
    if skipped.is_empty() {
        return Ok("every part passed".to_owned());
    }
    let passed = if passed.is_empty() { "nothing".to_owned() } else { passed.join(", ") };
    Ok(format!("passed: {passed}{skipped}"))
}

/// Checks licenses, advisories, sources and banned crates with `deny.toml`.
fn deny() -> Result<Outcome, Failure> {
    let mut steps = Steps::new("deny");
    tools::installed(&mut steps, "cargo-deny", cargo(&["deny", "--version"]))?;
    steps.run("licences, bans, sources", cargo(&["deny", "check", "licenses", "bans", "sources"]))?;
    // Fetched separately: without a network, a failed fetch must not look like an advisory.
    if steps.run("fetch the advisory database", cargo(&["deny", "fetch", "db"])).is_err() {
        let reason = "licences, bans and sources passed, but the advisory database could not be fetched; \
                      with a copy of it, run `cargo deny --offline check advisories`";
        return Ok(Outcome::Skipped(reason.to_owned()));
    }
    steps.run("advisories", cargo(&["deny", "--offline", "check", "advisories"])).map(Outcome::from)
}

fn typos() -> Result<Outcome, Failure> {
    let mut steps = Steps::new("typos");
    tools::installed(&mut steps, "typos-cli", tool("typos", &["--version"]))?;
    steps.run("typos", tool("typos", &[])).map(Outcome::from)
}

/// Runs the official conductor and the official HTTP transport as peers. They are in a separate workspace.
fn interop() -> Result<Outcome, Failure> {
    let mut steps = Steps::new("interop");
    steps.run("build narrows", cargo(&["build", "--package", "narrows"]))?;
    let mut tests = cargo(&["test", "--locked", "--manifest-path", "interop/Cargo.toml"]);
    tests.env("NARROWS", target().join("debug/narrows")).env("CARGO_TARGET_DIR", target().join("interop"));
    steps.run("conductor and HTTP transport", tests).map(Outcome::from)
}

fn measure() -> Result<Outcome, Failure> {
    bench::run(&bench::NAMES).map(Outcome::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the verdict on parts: `+` passed, `-` was skipped, a digit failed with that code.
    #[track_caller]
    fn check(parts: &[(&'static str, char)], expected: Result<&str, (u8, &str)>) {
        let outcomes: Vec<_> = parts
            .iter()
            .map(|&(name, end)| {
                let outcome = match end {
                    '+' => Ok(Outcome::Passed),
                    '-' => Ok(Outcome::Skipped("it rains".to_owned())),
                    digit => Err(Failure { code: digit as u8 - b'0', message: "broken".to_owned() }),
                };
                (name, outcome)
            })
            .collect();
        let verdict = verdict(&outcomes);
        let verdict = verdict.as_deref().map_err(|failure| (failure.code, failure.message.as_str()));
        assert_eq!(verdict, expected);
    }

    #[test]
    fn skipped_parts_do_not_count_as_passed() {
        check(&[("a", '+'), ("b", '+')], Ok("every part passed"));
        check(&[("a", '+'), ("b", '-')], Ok("passed: a; SKIPPED, so not known to work: b"));
        check(&[("b", '-')], Ok("passed: nothing; SKIPPED, so not known to work: b"));
        check(&[("a", '+'), ("b", '3'), ("c", '7')], Err((7, "nightly: these parts failed: b, c")));
        check(
            &[("a", '1'), ("b", '-')],
            Err((1, "nightly: these parts failed: a; SKIPPED, so not known to work: b")),
        );
    }
}
