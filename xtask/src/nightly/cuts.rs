//! A longer run of the tests that cut connections again and again.

use crate::command::cargo;
use crate::step::{Failure, Steps};

const CUTS: &str = "2000";

/// Cuts connections, and checks that no message is lost, duplicated or out of order.
pub(super) fn run() -> Result<(), Failure> {
    let mut steps = Steps::new("cuts");
    // Run by plain cargo, which has no time limit for a test.
    let mut cuts =
        cargo(&["test", "--package", "narrows-remote", "--test", "reconnect", "--test", "together"]);
    // A number set by the user takes precedence.
    if std::env::var_os("NARROWS_CUTS").is_none() {
        cuts.env("NARROWS_CUTS", CUTS);
    }
    steps.run("cuts", cuts)
}
