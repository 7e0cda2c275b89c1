//! The bus behind a real nginx, as `docs/guides/remote-agents.md` configures it.
//!
//! The regular tests include this one, but it passes there without nginx; here a missing nginx is reported.

use super::Outcome;
use crate::command::{cargo, tool, works};
use crate::step::{Failure, Steps};

/// Runs the test that starts nginx, if it is installed.
pub(super) fn run() -> Result<Outcome, Failure> {
    if !works(tool("nginx", &["-v"])) {
        let reason = "there is no nginx; `apt-get install nginx` brings one";
        return Ok(Outcome::Skipped(reason.to_owned()));
    }
    let mut steps = Steps::new("nginx");
    let words =
        ["test", "--package", "narrows", "--test", "cli", "remote_page::behind_nginx", "--", "--nocapture"];
    steps.run("the bus behind nginx", cargo(&words)).map(Outcome::from)
}
