//! What each command does.

mod acp;
mod chat;
mod completions;
mod fake_agent;
mod run;

use std::process::ExitCode;

use crate::cli::{Cli, Command};
use crate::failure::Failure;
use crate::logging;

/// Does what was asked for.
pub(crate) fn execute(cli: Cli) -> Result<ExitCode, Failure> {
    logging::start(cli.log.as_deref())?;
    let outcome = match cli.command {
        Command::Run(run) => run::execute(*run),
        Command::Chat(chat) => chat::execute(*chat),
        Command::Acp(acp) => acp::execute(*acp),
        Command::FakeAgent(fake) => fake_agent::execute(&fake),
        Command::Completions(completions) => completions::execute(&completions),
    };
    logging::finish();
    outcome
}

/// Runs `work` on this thread and waits for nothing it has left behind.
fn block_on<T>(work: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::setup("start the runtime", &error))?;
    let outcome = runtime.block_on(work);
    runtime.shutdown_background();
    Ok(outcome)
}
