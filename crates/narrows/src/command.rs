//! The commands.

mod acp;
mod agents;
mod audit;
mod bus;
mod chat;
mod check;
mod completions;
mod connect;
mod fake_agent;
mod policy;
mod run;
mod serve;
mod sessions;
mod token;
mod web;

use std::process::ExitCode;

use crate::cli::{Cli, Command, LogFormat};
use crate::failure::Failure;
use crate::interrupt::Interrupts;
use crate::logging;

const MAX_COMMAND_CHARS: usize = 4000;

pub(crate) fn execute(cli: Cli) -> Result<ExitCode, Failure> {
    let format = match &cli.command {
        Command::Bus(bus) => bus.log_format,
        _ => LogFormat::default(),
    };
    if writes_to_stdout(&cli.command) && narrows_process::stdout_was_closed() {
        return Err(Failure::output_failed(&std::io::ErrorKind::BrokenPipe.into()));
    }
    logging::start(cli.log.as_deref(), format)?;
    let outcome = match cli.command {
        Command::Run(run) => run::execute(&run),
        Command::Chat(chat) => chat::execute(&chat),
        Command::Agents(agents) => agents::execute(&agents),
        Command::Sessions(sessions) => sessions::execute(&sessions),
        Command::Policy(policy) => policy::execute(&policy),
        Command::Bus(bus) => bus::execute(&bus),
        Command::Token(token) => token::execute(&token),
        Command::Check(check) => check::execute(&check),
        Command::Audit(audit) => audit::execute(&audit),
        Command::Approve(approve) => serve::approve::execute(&approve),
        Command::Serve(serve) => serve::execute(&serve),
        Command::Acp(acp) => acp::execute(*acp),
        Command::Connect(connect) => connect::execute(*connect),
        Command::FakeAgent(fake) => fake_agent::execute(&fake),
        Command::Completions(completions) => completions::execute(&completions),
    };
    logging::finish();
    outcome
}

/// Returns `true` if the command needs stdout. Servers may be started with a closed stdout.
fn writes_to_stdout(command: &Command) -> bool {
    match command {
        Command::Bus(bus) => bus.subcommand.is_some(),
        Command::Serve(serve) => serve.self_test || !serve.prompt.is_empty(),
        Command::FakeAgent(fake) => fake.script.is_none(),
        Command::Acp(_) | Command::Connect(_) => false,
        _ => true,
    }
}

/// Returns the hint for a user who started an agent in a terminal, where it waits for JSON: the command to
/// talk to the agent, with the same arguments.
fn manual_start_hint(what: &str) -> String {
    let join = |words: &[String]| {
        shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" "))
    };
    let own = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let agent: Vec<String> = std::iter::once("narrows".to_owned()).chain(own).collect();
    let command = match &agent[1..] {
        [acp] if acp == "acp" => "narrows run Hello".to_owned(),
        _ => format!("narrows run --agent {} Hello", join(&[join(&agent)])),
    };
    let command = narrows_base::text::one_line(&command, MAX_COMMAND_CHARS);
    format!(
        "this command speaks JSON with an editor; to chat with {what} in a terminal: {command} (Ctrl-D exits)\n"
    )
}

/// Runs `work` on this thread, without waiting for blocking tasks at the end.
fn block_on<T>(work: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::setup("start the runtime", &error))?;
    let outcome = runtime.block_on(work);
    runtime.shutdown_background();
    Ok(outcome)
}

/// Runs `work` until a signal arrives. A signal drops `work` with everything that it holds.
async fn unless_interrupted<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let mut interrupts =
        Interrupts::listen().map_err(|error| Failure::setup("listen for signals", &error))?;
    match interrupts.unless_signal(work).await {
        Ok(outcome) => outcome,
        Err(signal) => Err(Failure::forced_exit(signal)),
    }
}

fn format_columns<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heading[column].len()]).max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in std::iter::once(heading).chain(rows.iter().map(|row| row.each_ref().map(String::as_str))) {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}
