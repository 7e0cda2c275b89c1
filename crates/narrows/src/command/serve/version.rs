//! Whether the agent that is installed is one that its manifest is about.

use std::path::Path;
use std::time::Duration;

use narrows_manifest::Agent;
use narrows_process::Spec;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::agent;
use crate::failure::Failure;

/// The most that is read of what it prints.
const MOST: u64 = 64 << 10;

/// The command that prints the version. No shell sees it.
pub(super) fn command(agent: &Agent, beside: &Path) -> Result<Spec, Failure> {
    let check = &agent.cli.front.version_check;
    let words = shlex::split(&check.cmd).filter(|words| !words.is_empty());
    let Some([named, args @ ..]) = words.as_deref() else {
        return Err(Failure::unreadable_check(&check.cmd));
    };
    let mut spec = Spec::new(agent::program(named, beside)?);
    spec.args = args.iter().map(Into::into).collect();
    // Some print it there.
    spec.merge_stderr = true;
    Ok(spec)
}

/// Runs that command, and judges what it prints.
pub(super) async fn check(agent: &Agent, command: Spec) -> Result<(), Failure> {
    let check = &agent.cli.front.version_check;
    let named = command.program.to_string_lossy().into_owned();
    let printed = timeout(Duration::from_millis(check.timeout_ms), print(command)).await;
    let printed = match printed {
        Ok(printed) => {
            printed.map_err(|error| Failure::not_installed(&agent.cli.front.id, &named, &error))?
        }
        Err(_) => return Err(Failure::silent_check(&check.cmd, check.timeout_ms)),
    };
    agent
        .judge_version(&printed)
        .map(|_| ())
        .map_err(|error| Failure::unfit_version(&agent.cli.front.id, &check.cmd, &error))
}

/// What a program prints until it closes its output.
async fn print(spec: Spec) -> Result<String, narrows_process::SpawnError> {
    let mut child = narrows_process::spawn(spec).await?;
    drop(child.take_stdin());
    let mut text = Vec::new();
    if let Some(stdout) = child.take_stdout() {
        // What cannot be read is no version.
        let _ = stdout.take(MOST).read_to_end(&mut text).await;
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}
