//! A longer run of the bus while its workers and clients are killed.

use crate::command::cargo;
use crate::step::{Failure, Steps};

const KILLS: &str = "5000";

/// Kills workers and clients, and checks that no message is lost, duplicated or misrouted and no process is
/// left behind.
pub(super) fn run() -> Result<(), Failure> {
    let mut steps = Steps::new("chaos");
    steps.run("build what the test starts", cargo(&["build", "--package", "narrows-bus", "--examples"]))?;
    // Run by plain cargo, which has no time limit for a test and shows its figures.
    let mut chaos = cargo(&["test", "--package", "narrows-bus", "--test", "chaos", "--", "--nocapture"]);
    // A number set by the user takes precedence.
    if std::env::var_os("NARROWS_CHAOS_KILLS").is_none() {
        chaos.env("NARROWS_CHAOS_KILLS", KILLS);
    }
    steps.run("chaos", chaos)
}
