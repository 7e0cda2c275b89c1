//! Test of pages in a real browser that use the bus. Too slow for every change.

use super::Outcome;
use crate::command::{cargo, tool, works};
use crate::step::{Failure, Steps};

/// Names of the browser in Debian and other distributions.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Runs the test that starts a browser, if one is installed.
pub(super) fn run() -> Result<Outcome, Failure> {
    if !NAMES.iter().any(|name| works(tool(name, &["--version"]))) {
        let reason = "there is no chromium; `apt-get install chromium` brings one";
        return Ok(Outcome::Skipped(reason.to_owned()));
    }
    let mut steps = Steps::new("browser");
    let words =
        ["test", "--package", "narrows", "--test", "cli", "browser::", "--", "--ignored", "--nocapture"];
    steps.run("pages in a browser", cargo(&words)).map(Outcome::from)
}
