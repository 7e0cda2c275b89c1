//! Simulates the gate between an artificial client, an artificial agent, a log that may fail, and a clock. A
//! seed makes a run repeatable.
//!
//! `NARROWS_SIM_SEED=17 cargo nextest run -p narrows-govern --test sim v1` runs one seed of a family and
//! prints the whole run. `NARROWS_SIM_SEEDS=100000` runs more seeds than by default.
//!
//! `NARROWS_SIM_RECORD=FILE` appends `family seed digest` for each run. Sort the files of two trees and
//! compare them: they are equal if both gates send and record the same in the same order.

mod oracle;
mod peers;
mod random;
mod world;

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;

use narrows_govern::Autonomy;
use world::{Family, World};

/// Messages, ticks and disk results in one run.
const STEPS: usize = 250;

#[track_caller]
#[expect(clippy::print_stdout, reason = "a replayed run is shown")]
fn check(family: Family, seeds: u64) {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    if let Some(seed) = number("NARROWS_SIM_SEED") {
        let outcome = World::new(family, seed).run(STEPS);
        println!("{}", outcome.trace.join("\n"));
        assert!(outcome.violations.is_empty(), "seed {seed}: {:#?}", outcome.violations);
        return;
    }
    let (mut digests, mut allowed, mut refused) = (String::new(), 0, 0);
    for seed in 0..number("NARROWS_SIM_SEEDS").unwrap_or(seeds) {
        let first = World::new(family, seed).run(STEPS);
        assert!(first.violations.is_empty(), "NARROWS_SIM_SEED={seed}: {:#?}", first.violations);
        let second = World::new(family, seed).run(STEPS);
        assert_eq!(first.digest, second.digest, "seed {seed} went another way when it came again");
        writeln!(digests, "{} {seed} {:016x}", family.name, first.digest).expect("a String takes everything");
        allowed += first.allowed;
        refused += first.refused;
    }
    assert!(allowed > 0 && refused > 0, "{allowed} calls allowed, {refused} refused: the runs show nothing");
    if let Some(path) = std::env::var_os("NARROWS_SIM_RECORD") {
        let mut file = OpenOptions::new().append(true).create(true).open(path).expect("the file of digests");
        file.write_all(digests.as_bytes()).expect("write the digests");
    }
}

const V1: Family = Family {
    name: "gate-v1",
    version: 1,
    autonomy: Autonomy::Autonomous,
    log_fails: false,
    asks_first: false,
};

#[test]
fn an_agent_of_version_1() {
    check(V1, 300);
}

#[test]
fn an_agent_of_version_2() {
    check(Family { name: "gate-v2", version: 2, ..V1 }, 300);
}

#[test]
fn a_supervised_operator() {
    check(Family { name: "gate-supervised", autonomy: Autonomy::Supervised, ..V1 }, 200);
}

#[test]
fn a_gated_operator() {
    check(Family { name: "gate-gated", autonomy: Autonomy::Gated, ..V1 }, 200);
}

#[test]
fn a_log_that_fails_now_and_then() {
    check(Family { name: "gate-log", log_fails: true, ..V1 }, 300);
}

#[test]
fn the_built_in_agent() {
    check(Family { name: "gate-built-in", asks_first: true, ..V1 }, 200);
}
