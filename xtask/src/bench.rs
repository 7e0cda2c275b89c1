//! `cargo xtask bench`: the measurements behind every figure we give.

use crate::command::cargo;
use crate::step::{Failure, Steps};
use crate::usage;

/// What can be measured.
pub(crate) const NAMES: [&str; 2] = ["wire", "rpc"];

/// Measures what is named, one after the other; options such as `--json` go to each.
pub(crate) fn run(words: &[&str]) -> Result<(), Failure> {
    let (options, names): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| word.starts_with('-'));
    if names.is_empty() {
        return Err(usage(&format!("name what to measure: {}", NAMES.join(", "))));
    }
    if let Some(unknown) = names.iter().find(|name| !NAMES.contains(name)) {
        return Err(usage(&format!("there is no measurement `{unknown}`")));
    }
    let mut steps = Steps::new("bench");
    for name in names {
        let program = ["run", "--profile", "bench", "--package", "narrows-bench", "--", name];
        steps.run(name, cargo(&[&program, &options[..]].concat()))?;
    }
    Ok(())
}
