//! Tools that the steps need: detected, and installed if that is cheap.

use std::process::Command;

use crate::command::{cargo, tool, works};
use crate::step::{Failure, Steps};

/// Installs missing components of the toolchain, and mentions missing optional tools.
pub(crate) fn prepare(steps: &mut Steps) -> Result<(), Failure> {
    component(steps, "rustfmt", cargo(&["fmt", "--version"]))?;
    component(steps, "clippy", cargo(&["clippy", "--version"]))?;
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    if !works(tool(&compiler, &["--version"])) {
        eprintln!(
            "xtask: no C compiler answers as `{compiler}`; if a build fails, install gcc or clang, or set CC"
        );
    }
    Ok(())
}

/// Returns `true` if cargo-nextest is installed. It is optional and never installed here.
pub(crate) fn has_nextest() -> bool {
    works(cargo(&["nextest", "--version"]))
}

pub(crate) fn has_nightly() -> bool {
    works(tool("rustup", &["run", "nightly", "cargo", "--version"]))
}

/// Installs `package` unless `probe` works.
pub(crate) fn installed(steps: &mut Steps, package: &str, probe: Command) -> Result<(), Failure> {
    if works(probe) {
        return Ok(());
    }
    steps.run(&format!("install {package}"), cargo(&["install", "--locked", package]))
}

fn component(steps: &mut Steps, name: &str, probe: Command) -> Result<(), Failure> {
    if works(probe) {
        return Ok(());
    }
    if !works(tool("rustup", &["--version"])) {
        let message =
            format!("{name} is missing, and there is no rustup to add it with: install it and try again");
        return Err(Failure { code: 1, message });
    }
    steps.run(&format!("add {name}"), tool("rustup", &["component", "add", name]))
}
