//! Connections that are cut again and again, more often than at every change.

use crate::command::cargo;
use crate::step::{Failure, Steps};

/// Cuts of each test.
const CUTS: &str = "2000";

/// Cuts, and looks for anything lost, doubled or out of order.
pub(super) fn run() -> Result<(), Failure> {
    let mut steps = Steps::new("cuts");
    // By cargo itself, which has no limit of time for it.
    let mut cuts =
        cargo(&["test", "--package", "narrows-remote", "--test", "reconnect", "--test", "together"]);
    // A number set by the user takes precedence.
    if std::env::var_os("NARROWS_CUTS").is_none() {
        cuts.env("NARROWS_CUTS", CUTS);
    }
    steps.run("cuts", cuts)
}
