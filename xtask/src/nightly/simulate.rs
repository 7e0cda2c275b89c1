//! Runs the simulators of the bus and of the gate with more seeds than for every change.

use crate::command::cargo;
use crate::step::{Failure, Steps};

/// Seeds of each family.
const SEEDS: &str = "10000";

/// Runs both simulators with optimization. A failure shows its seed.
pub(super) fn run() -> Result<(), Failure> {
    let mut steps = Steps::new("simulate");
    for package in ["narrows-bus", "narrows-govern"] {
        let mut simulator = cargo(&["test", "--release", "--package", package, "--test", "sim"]);
        if std::env::var_os("NARROWS_SIM_SEEDS").is_none() {
            simulator.env("NARROWS_SIM_SEEDS", SEEDS);
        }
        steps.run(package, simulator)?;
    }
    Ok(())
}
