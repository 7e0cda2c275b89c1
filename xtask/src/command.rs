//! Commands to run: always from the root of the workspace, and without cargo's variables for this program.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Returns `cargo` with these arguments, of the toolchain that runs this program.
pub(crate) fn cargo(words: &[&str]) -> Command {
    plain(&std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), words)
}

pub(crate) fn tool(program: &str, words: &[&str]) -> Command {
    plain(&program.into(), words)
}

/// Returns `true` if `command` starts and succeeds. Its output is not shown.
pub(crate) fn works(mut command: Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Returns the root of the workspace.
///
/// Cargo determines it at run time: if several clones share a target directory, the root at build time may
/// be another one.
pub(crate) fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let mut root = PathBuf::from(here);
    root.pop();
    root
}

pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |target| root().join(target))
}

fn plain(program: &OsString, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(words).current_dir(root());
    // `cargo run` describes xtask in these variables. Build scripts that watch them would run again for
    // every command started here, and again for the next one typed by hand.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(describes_this_package) {
            command.env_remove(name);
        }
    }
    command
}

fn describes_this_package(variable: &str) -> bool {
    variable.starts_with("CARGO_PKG_") || variable.starts_with("CARGO_MANIFEST_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_variables_that_describe_xtask_are_removed() {
        for variable in
            ["CARGO_PKG_NAME", "CARGO_PKG_VERSION_PRE", "CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH"]
        {
            assert!(describes_this_package(variable), "{variable}");
        }
        for variable in ["CARGO_TARGET_DIR", "CARGO_HOME", "CARGO_TERM_COLOR", "CARGO_BUILD_JOBS", "CARGO"] {
            assert!(!describes_this_package(variable), "{variable}");
        }
    }

    #[test]
    fn commands_run_in_the_root_of_the_workspace() {
        assert!(root().join("clippy.toml").is_file());
    }

    #[test]
    fn a_missing_program_does_not_work() {
        assert!(!works(tool("there-is-no-such-program", &[])));
        assert!(works(cargo(&["--version"])));
    }
}
