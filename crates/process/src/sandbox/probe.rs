//! Tests sandboxes: a mechanism is used only if a program runs in it and forbidden actions fail.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::scratch::Scratch;
use super::{Sandbox, Support};
use crate::{ExitClass, SpawnError, Spec};

const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Exit status of the probe's program. A launcher that fails does not exit with this status.
const PROBE_STATUS: i32 = 42;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ProbeError {
    Lacking(String),
    /// The sandbox could not be tested, because the test lacked a temporary directory, memory, processes or
    /// descriptors.
    Untried(String),
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lacking(why) | Self::Untried(why) => f.write_str(why),
        }
    }
}

pub(super) async fn probe(support: &Support) -> Result<(), ProbeError> {
    try_out(Sandbox::new(support.clone()), PathBuf::from("/"), "").await
}

/// Checks that a protected path cannot be changed.
pub(super) async fn probe_mounts(support: &Support, temp: &Path) -> Result<(), ProbeError> {
    let mut sandbox = Sandbox { temp: temp.to_owned(), ..Sandbox::new(support.clone()) };
    let untried = |error: std::io::Error| {
        ProbeError::Untried(format!("cannot make a temporary directory in {}: {error}", temp.display()))
    };
    let scratch = Scratch::new(temp).map_err(untried)?;
    let sealed = scratch.path().join("sealed");
    std::fs::create_dir(&sealed).map_err(untried)?;
    sandbox.writable = vec![scratch.path().to_owned()];
    sandbox.protected = vec![sealed];
    let attempts = "(: > free) || exit 1; (: > sealed/x) 2>/dev/null && exit 1;";
    try_out(sandbox, scratch.path().to_owned(), attempts).await
}

pub(super) async fn try_out(sandbox: Sandbox, cwd: PathBuf, script: &str) -> Result<(), ProbeError> {
    let temp = sandbox.temp.clone();
    let mut spec = Spec::new("sh");
    spec.args = vec!["-c".into(), format!("{script} exit {PROBE_STATUS}").into()];
    spec.cwd = Some(cwd);
    spec.sandbox = Some(sandbox);
    let child = crate::spawn(spec).await.map_err(|error| {
        let why = match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        };
        let has_no_temp = matches!(&error, SpawnError::SandboxPlace { path, .. } if *path == temp);
        if has_no_temp || error.is_shortage() { ProbeError::Untried(why) } else { ProbeError::Lacking(why) }
    })?;
    match tokio::time::timeout(PROBE_TIMEOUT, child.wait()).await {
        Ok(exit) if exit.class == ExitClass::Failed && exit.code == Some(PROBE_STATUS) => Ok(()),
        Ok(exit) => Err(ProbeError::Lacking(match child.stderr().tail(1) {
            words if words.is_empty() => exit.to_string(),
            words => words,
        })),
        Err(_elapsed) => Err(ProbeError::Lacking("the probe timed out".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_a_temporary_directory_no_weaker_sandbox_is_used() {
        if !Support::landlock().confined().files {
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let missing = temp.path().join("missing");
        let support = Support::namespaces_in(&missing).await;
        // No weaker mechanism replaces the one under test.
        assert!(support.confined().files, "{support}");
        let told = support.to_string();
        assert!(told.contains("cannot make a temporary directory in "), "{told}");
        let mut spec = Spec::new("sh");
        spec.args = vec!["-c".into(), format!("touch {}/ran", temp.path().display()).into()];
        spec.sandbox = Some(Sandbox { writable: vec![temp.path().to_owned()], ..Sandbox::new(support) });
        let error = crate::spawn(spec).await.unwrap_err();
        assert!(matches!(&error, SpawnError::NoSandbox { why } if *why == told), "{error:?}");
        assert!(!temp.path().join("ran").exists());
    }
}
