//! The bus among workers and clients that die, for longer than at every change.

use crate::command::cargo;
use crate::step::{Failure, Steps};

/// Workers to kill.
const KILLS: &str = "5000";

/// Kills, and looks for anything lost, doubled, crossed or left behind.
pub(super) fn run() -> Result<(), Failure> {
    let mut steps = Steps::new("chaos");
    steps.run("build what the test starts", cargo(&["build", "--package", "narrows-bus", "--examples"]))?;
    // By cargo itself, which has no limit of time for it; with its figures.
    let mut chaos = cargo(&["test", "--package", "narrows-bus", "--test", "chaos", "--", "--nocapture"]);
    // A number set by the user takes precedence.
    if std::env::var_os("NARROWS_CHAOS_KILLS").is_none() {
        chaos.env("NARROWS_CHAOS_KILLS", KILLS);
    }
    steps.run("chaos", chaos)
}
