//! The core with simulated clients, workers and faults, checked line by line. A seed reproduces a run.
//!
//! `NARROWS_SIM_SEED=17 cargo nextest run -p narrows-bus --test sim shared` runs one seed of a family and
//! prints its trace. `NARROWS_SIM_SEEDS=100000` sets the number of seeds.
//!
//! `NARROWS_SIM_RECORD=FILE` appends `family seed digest` for each run. Sort and compare the files of two
//! source trees: they are equal if both cores send and order the same.

mod client;
mod digest;
mod net;
mod oracle;
mod random;
mod scenario;
mod watched;
mod worker;
mod world;

use std::collections::BTreeMap;

use digest::Record;
use narrows_bus::config::{PoolProtocol, ShareMode};
use scenario::{Family, Scenario};
use world::World;

const ACP: &[PoolProtocol] = &[PoolProtocol::V1, PoolProtocol::V1, PoolProtocol::V2];
const ALL: &[PoolProtocol] = &[PoolProtocol::V1, PoolProtocol::V2, PoolProtocol::JsonRpc];

/// Runs seeds of a family until enough faults have happened. Runs each seed twice.
#[track_caller]
#[expect(clippy::print_stdout, reason = "a replayed run is shown, and the figures are wanted")]
fn check(name: &'static str, family: Family, calm: bool, seeds: u64) {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    if let Some(seed) = number("NARROWS_SIM_SEED") {
        let outcome = World::new(Scenario::new(family, seed, calm), seed, true, true).run();
        println!("{}\n{} faults", outcome.trace.join("\n"), outcome.faults);
        assert!(outcome.wrongs.is_empty(), "seed {seed}: {:#?}", outcome.wrongs);
        return;
    }
    let (mut faults, mut served) = (0, 0);
    let mut wrongs: BTreeMap<String, (usize, usize, u64, String)> = BTreeMap::new();
    let mut record = Record::new(name);
    let began = std::time::Instant::now();
    for seed in 0..number("NARROWS_SIM_SEEDS").unwrap_or(seeds) {
        let first = World::new(Scenario::new(family, seed, calm), seed, true, false).run();
        if let Some(wrong) = first.wrongs.first() {
            // The shortest run of each kind of violation is reported.
            let kind: String = wrong.chars().filter(|char| !char.is_ascii_digit()).take(60).collect();
            let entry = wrongs.entry(kind).or_insert_with(|| (0, usize::MAX, seed, String::new()));
            entry.0 += 1;
            if first.steps < entry.1 {
                (entry.1, entry.2, entry.3) = (first.steps, seed, first.wrongs.join("; "));
            }
            continue;
        }
        let second = World::new(Scenario::new(family, seed, calm), seed, false, false).run();
        assert_eq!(first.digest, second.digest, "seed {seed} gave another digest in its second run");
        record.add(seed, first.digest);
        faults += first.faults;
        served += first.served;
    }
    record.write();
    println!("{faults} faults, {served} answers served, {:.1} s", began.elapsed().as_secs_f64());
    let found: Vec<String> = wrongs
        .values()
        .map(|(times, steps, seed, wrong)| {
            format!("{times} times, at best after {steps} steps with NARROWS_SIM_SEED={seed}: {wrong}")
        })
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(served > 0, "no client got a response from a worker");
}

#[test]
fn shared_by_all() {
    check("shared", Family { shares: &[ShareMode::All], protocols: ALL }, false, 850);
}

#[test]
fn one_worker_for_each_connection() {
    check("connection", Family { shares: &[ShareMode::Connection], protocols: ALL }, false, 850);
}

#[test]
fn one_worker_for_each_session() {
    check("session", Family { shares: &[ShareMode::Session], protocols: ACP }, false, 850);
}

#[test]
fn pools_of_all_kinds() {
    check(
        "mixed",
        Family { shares: &[ShareMode::All, ShareMode::Connection, ShareMode::Session], protocols: ACP },
        false,
        850,
    );
}

#[test]
fn runs_without_faults() {
    check(
        "calm",
        Family { shares: &[ShareMode::All, ShareMode::Connection, ShareMode::Session], protocols: ACP },
        true,
        50,
    );
}

#[test]
fn several_clients_on_one_session() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let mut counts = watched::MoveCounts::new();
    if let Some(seed) = number("NARROWS_SIM_SEED") {
        watched::Watched::new(seed, &mut counts).run(400);
        return;
    }
    let mut record = Record::new("observers");
    for seed in 0..number("NARROWS_SIM_SEEDS").unwrap_or(300) {
        record.add(seed, watched::Watched::new(seed, &mut counts).run(400));
    }
    record.write();
    println!("{counts:?}");
    for deed in [
        "attached",
        "told a history",
        "taken up",
        "detached",
        "took over",
        "was refused a turn",
        "said to several",
        "asked several",
        "asked one",
        "answered first",
        "answered late",
        "took back",
        "left to another",
        "intruded",
        "was not let steer",
    ] {
        assert!(counts.get(deed).is_some_and(|times| *times > 50), "{deed}: {counts:?}");
    }
}
