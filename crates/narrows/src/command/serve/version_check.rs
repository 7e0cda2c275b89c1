//! The version check of an installed agent.

use std::path::Path;
use std::time::Duration;

use narrows_manifest::Agent;
use narrows_process::Spec;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::agent;
use crate::failure::Failure;

const MAX_OUTPUT_BYTES: u64 = 64 << 10;

/// Returns the command that prints the version. It runs without a shell.
pub(super) fn command(agent: &Agent, beside: &Path) -> Result<Spec, Failure> {
    let check = &agent.cli.front.version_check;
    let words = shlex::split(&check.cmd).filter(|words| !words.is_empty());
    let Some([named, args @ ..]) = words.as_deref() else {
        return Err(Failure::version_check_invalid(&check.cmd));
    };
    let mut spec = Spec::new(agent::resolve_program(named, beside)?);
    spec.args = args.iter().map(Into::into).collect();
    // Some programs print their version to stderr.
    spec.merge_stderr = true;
    Ok(spec)
}

/// Runs the command and compares the version with the range of the manifest.
pub(super) async fn check(agent: &Agent, command: Spec) -> Result<(), Failure> {
    let check = &agent.cli.front.version_check;
    let named = command.program.to_string_lossy().into_owned();
    let printed = timeout(Duration::from_millis(check.timeout_ms), read_output(command)).await;
    let printed = match printed {
        Ok(printed) => {
            printed.map_err(|error| Failure::not_installed(&agent.cli.front.id, &named, &error))?
        }
        Err(_) => return Err(Failure::version_check_timeout(&check.cmd, check.timeout_ms)),
    };
    agent
        .judge_version(&printed)
        .map(|_| ())
        .map_err(|error| Failure::agent_version_mismatch(&agent.cli.front.id, &check.cmd, &error))
}

/// Returns the output of a program up to its end or the limit.
async fn read_output(spec: Spec) -> Result<String, narrows_process::SpawnError> {
    let mut child = narrows_process::spawn(spec).await?;
    drop(child.take_stdin());
    let mut text = Vec::new();
    if let Some(stdout) = child.take_stdout() {
        // Output that cannot be read has no version.
        let _ = stdout.take(MAX_OUTPUT_BYTES).read_to_end(&mut text).await;
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}
