//! `narrows acp`: runs the built-in agent on stdio.
//!
//! SIGTERM, SIGINT and SIGHUP end the program, as a supervisor expects. Before it exits, the program shuts
//! down as at the end of its input, so that turns that wait for disk space are stored. A second signal exits
//! immediately. Every child has a guardian and ends with the program, and the store survives an exit at any
//! moment.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use narrows_agent::Settings;
use narrows_base::suggest::nearest;
use narrows_link::{CloseReason, Sender};
use narrows_rpc::Peer;
use tokio::time::{sleep, timeout};

use super::connect::report_to_editor;
use crate::agent_source::Remote;
use crate::cli::{Acp, Cli, McpChoice, ModelArgs, RemoteArgs, target};
use crate::config::{self, EndpointSettings, Flags, Variables};
use crate::environment;
use crate::failure::{ExitStatus, Failure};
use crate::interrupt::Interrupts;
use crate::output;

/// The time for a client that closed its output to read the last responses, as long as it keeps reading.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The time without progress after which the client counts as gone.
const DRAIN_STALL_TIMEOUT: Duration = Duration::from_millis(200);

const TURN_END_TIMEOUT: Duration = Duration::from_millis(200);

pub(super) fn execute(args: Acp) -> Result<ExitCode, Failure> {
    if !args.ignored.is_empty() {
        tracing::warn!(arguments = %ignored_arguments_text(&args.ignored), "unknown arguments ignored");
    }
    if let Some(remote) = report_to_editor(remote_agent(&args))? {
        return super::connect::serve(&remote);
    }
    let settings = report_to_editor(settings(args))?;
    if std::io::stdin().is_terminal() {
        output::write_stderr(&super::manual_start_hint("the model"));
    }
    super::block_on(async {
        let link = narrows_link::stdio::take(&narrows_link::Options::default())
            .map_err(|error| Failure::setup("open stdin and stdout", &error))?;
        let output = link.sender.clone();
        let (peer, inbox) = narrows_rpc::start(link, narrows_agent::options());
        let mut signals =
            Interrupts::listen().map_err(|error| Failure::setup("listen for signals", &error))?;
        let mut signal = None;
        let serving = narrows_agent::run(peer.clone(), inbox, settings);
        tokio::pin!(serving);
        let served = tokio::select! {
            biased;
            served = &mut serving => served,
            // A client that closed the stdout of this process gets no more answers.
            () = wait_for_closed_output(&output) => Ok(()),
            first = signals.next() => {
                signal = Some(first);
                peer.close();
                let end = timeout(DRAIN_TIMEOUT, &mut serving);
                signals.unless_signal(end).await.unwrap_or(Ok(Ok(()))).unwrap_or(Ok(()))
            }
        };
        if let Some(signal) = signal {
            narrows_process::end_by_signal(signal.number());
        }
        served.map_err(|error| Failure::endpoint_settings(&error))?;
        let reason = output.reason();
        if !drain_output(&peer, &output).await {
            tracing::warn!("client stopped reading, last responses lost");
        }
        match reason {
            CloseReason::Eof | CloseReason::NotReading => Ok(ExitStatus::Success.exit_code()),
            reason => Err(Failure::client_connection_lost(&reason)),
        }
    })?
}

/// Waits until stdout is closed and active turns had time to be stored.
async fn wait_for_closed_output(output: &Sender) {
    output.written().await;
    sleep(TURN_END_TIMEOUT).await;
}

/// Writes the remaining output for a client that may still read. Returns `true` if all of it was written.
async fn drain_output(peer: &Peer, output: &Sender) -> bool {
    let all_written = async {
        tokio::select! {
            biased;
            () = peer.finish() => true,
            // A long line may take longer than this timeout while the client keeps reading.
            () = output.standstill(DRAIN_STALL_TIMEOUT) => false,
        }
    };
    timeout(DRAIN_TIMEOUT, all_written).await.unwrap_or(false)
}

/// Returns the remote agent that a variable or narrows.toml names, unless a flag selects a local one.
fn remote_agent(args: &Acp) -> Result<Option<Remote>, Failure> {
    let Acp { model, errors, data_dir, no_store, mcp, local, ignored: _ } = args;
    let others = ModelArgs { config: None, ..model.clone() };
    let is_kept = errors.is_some() || data_dir.is_some() || *no_store || mcp.is_some();
    if *local || others != ModelArgs::default() || is_kept {
        return Ok(None);
    }
    let variables = Variables::of_process();
    // NARROWS_CONNECT is for editors that can set nothing but variables, so it works even if narrows.toml is
    // invalid.
    let said = variables.text(environment::CONNECT)?.map(str::to_owned);
    let loaded = config::load(model.config.as_deref(), &variables);
    let (file, said) = match (loaded, said) {
        (Ok(loaded), said) => (loaded.file.map(|file| file.acp).unwrap_or_default(), said),
        (Err(error), Some(said)) => {
            tracing::warn!(%error, "narrows.toml ignored");
            (config::Acp::default(), Some(said))
        }
        (Err(error), None) => return Err(error.into()),
    };
    let target = match said {
        Some(said) => target(&said).map_err(|reason| Failure::invalid_connect_variable(&said, &reason))?,
        None => match file.connect.clone() {
            Some(target) => target,
            None => return Ok(None),
        },
    };
    let mut remote = file.remote;
    if file.connect.is_some_and(|meant| meant != target) {
        // Credentials of one agent are not sent to another.
        (remote.token_file, remote.cert, remote.key) = (None, None, None);
    }
    let remote = RemoteArgs::from_variables(&variables, &target).or(remote);
    Ok(Some(Remote::new(target, &remote)?))
}

pub(super) fn settings(args: Acp) -> Result<Settings, Failure> {
    let variables = Variables::of_process();
    let loaded = config::load(args.model.config.as_deref(), &variables)?;
    let accepts_servers = args.mcp != Some(McpChoice::None);
    let Acp { model, errors, data_dir, no_store, .. } = args;
    let flags = Flags { model, errors, data_dir, no_store };
    let mut resolved = config::resolve(&flags, loaded.file, &variables)?;
    let settings = resolved.settings(&flags.model)?;
    for warning in loaded.warnings.iter().chain(&resolved.warnings).chain(&resolved.deferred_warnings) {
        tracing::warn!("{warning}");
    }
    if settings.routes.is_empty() && flags.model.endpoint_settings() != EndpointSettings::default() {
        tracing::warn!("model options ignored, no endpoint is configured and --base-url is not set");
    }
    Ok(Settings { accepts_servers, ..settings })
}

/// Lists ignored arguments with suggestions.
fn ignored_arguments_text(ignored: &[String]) -> String {
    let command = Cli::full_command();
    let known = command.find_subcommand("acp").map_or_else(Vec::new, |acp| {
        acp.get_arguments().filter_map(clap::Arg::get_long).map(|long| format!("--{long}")).collect()
    });
    let explain = |word: &String| {
        let flag = word.split('=').next().unwrap_or_default();
        match nearest(flag, known.iter().map(String::as_str)) {
            Some(near) => format!("{word} (did you mean {near}?)"),
            None => word.clone(),
        }
    };
    // The list is bounded, because a program may pass any number of arguments.
    let words: Vec<String> = ignored.iter().take(16).map(explain).collect();
    crate::terminal::line(&words.join(" "))
}
