//! `cargo xtask bench`: the measurements behind every figure we give.

use crate::command::cargo;
use crate::step::{Failure, Steps};
use crate::usage;

/// What can be measured.
pub(crate) const NAMES: [&str; 2] = ["wire", "rpc"];

/// Measures what is named.
pub(crate) fn run(names: &[&str]) -> Result<(), Failure> {
    if names.is_empty() {
        return Err(usage(&format!("name what to measure: {}", NAMES.join(", "))));
    }
    let mut words = vec!["run", "--profile", "bench", "--package", "narrows-bench", "--"];
    words.extend(names);
    let mut steps = Steps::new("bench");
    steps.run("measurements", cargo(&words))
}
