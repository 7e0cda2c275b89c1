//! `narrows acp`: the built-in agent on our own stdin and stdout.
//!
//! Signals keep their meaning: the program dies of SIGTERM, SIGINT and SIGHUP, as a supervisor expects. Before, it does what it does at
//! the end of its input, so that turns which wait for room on the disk are stored. A second signal ends it at once. Children end with
//! the program, because every child has a guardian, and the store is written so that dying at any moment is safe.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use narrows_agent::Settings;
use narrows_base::suggest::nearest;
use narrows_link::{CloseReason, Sender};
use narrows_rpc::Peer;
use tokio::time::{sleep, timeout};

use super::connect::told;
use crate::cli::{Acp, Cli, McpChoice, ModelArgs, RemoteArgs, target};
use crate::config::{self, Flags, Layer, Variables};
use crate::drive::Remote;
use crate::environment;
use crate::failure::{Code, Failure};
use crate::interrupt::Interrupts;
use crate::output;

/// How long a client that has closed its end may take to read what it was answered, as long as it reads.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long it may read nothing before it counts as gone.
const STANDSTILL: Duration = Duration::from_millis(200);

/// How long turns may take to end when nobody reads.
const PARTING: Duration = Duration::from_millis(200);

/// Serves until the client has gone.
pub(super) fn execute(args: Acp) -> Result<ExitCode, Failure> {
    if !args.ignored.is_empty() {
        tracing::warn!("arguments that mean nothing here are ignored: {}", explained(&args.ignored));
    }
    if let Some(remote) = told(elsewhere(&args))? {
        return super::connect::serve(&remote);
    }
    let settings = told(settings(args))?;
    if std::io::stdin().is_terminal() {
        output::complain(&super::by_hand("the model"));
    }
    super::block_on(async {
        let link = narrows_link::stdio::take(&narrows_link::Options::default())
            .map_err(|error| Failure::setup("take stdin and stdout", &error))?;
        let output = link.sender.clone();
        let (peer, inbox) = narrows_rpc::start(link, narrows_agent::options());
        let mut signals = Interrupts::take().map_err(|error| Failure::setup("listen to signals", &error))?;
        let mut signal = None;
        let serving = narrows_agent::run(peer.clone(), inbox, settings);
        tokio::pin!(serving);
        let served = tokio::select! {
            biased;
            served = &mut serving => served,
            // Whatever a client still asks that has closed our stdout, it cannot be answered.
            () = deaf(&output) => Ok(()),
            first = signals.next() => {
                signal = Some(first);
                peer.close();
                let end = timeout(PATIENCE, &mut serving);
                signals.unless(end).await.unwrap_or(Ok(Ok(()))).unwrap_or(Ok(()))
            }
        };
        if let Some(signal) = signal {
            narrows_process::end_by_signal(signal.number());
        }
        served.map_err(|error| Failure::endpoint_setting(&error))?;
        let reason = output.reason();
        if !finish(&peer, &output).await {
            tracing::warn!("the client no longer reads; what it was answered last is lost");
        }
        match reason {
            CloseReason::Eof | CloseReason::NotReading => Ok(Code::Success.exit()),
            reason => Err(Failure::client_lost(&reason)),
        }
    })?
}

/// Waits until nothing can be written any more, and what is under way has had time to be stored.
async fn deaf(output: &Sender) {
    output.written().await;
    sleep(PARTING).await;
}

/// Writes what is left, for a client that has nothing more to ask may still read what it was answered. Whether all of
/// it was written.
async fn finish(peer: &Peer, output: &Sender) -> bool {
    let all_written = async {
        tokio::select! {
            biased;
            () = peer.finish() => true,
            // A long line may take its time, as long as it goes on.
            () = output.standstill(STANDSTILL) => false,
        }
    };
    timeout(PATIENCE, all_written).await.unwrap_or(false)
}

/// The remote agent that this is, if a variable or narrows.toml says so and no flag says otherwise.
fn elsewhere(args: &Acp) -> Result<Option<Remote>, Failure> {
    let Acp { model, errors, data_dir, no_store, mcp, local, ignored: _ } = args;
    let others = ModelArgs { config: None, ..model.clone() };
    let is_kept = errors.is_some() || data_dir.is_some() || *no_store || mcp.is_some();
    if *local || others != ModelArgs::default() || is_kept {
        return Ok(None);
    }
    let variables = Variables::of_process();
    // A variable for whoever can set nothing else must not depend on a file that is about something else.
    let said = variables.text(environment::CONNECT)?.map(str::to_owned);
    let loaded = config::load(model.config.as_deref(), &variables);
    let (file, said) = match (loaded, said) {
        (Ok(loaded), said) => (loaded.file.map(|file| file.acp).unwrap_or_default(), said),
        (Err(error), Some(said)) => {
            tracing::warn!("narrows.toml is not used: {error}");
            (config::Acp::default(), Some(said))
        }
        (Err(error), None) => return Err(error.into()),
    };
    let target = match said {
        Some(said) => target(&said).map_err(|reason| Failure::bad_connect(&said, &reason))?,
        None => match file.connect.clone() {
            Some(target) => target,
            None => return Ok(None),
        },
    };
    let mut remote = file.remote;
    if file.connect.is_some_and(|meant| meant != target) {
        // What shows one agent who we are is not shown to another.
        (remote.token_file, remote.cert, remote.key) = (None, None, None);
    }
    let remote = RemoteArgs::of_variables(&variables, &target).or(remote);
    Ok(Some(Remote::new(target, &remote)?))
}

/// What the agent is told when it starts.
pub(super) fn settings(args: Acp) -> Result<Settings, Failure> {
    let variables = Variables::of_process();
    let loaded = config::load(args.model.config.as_deref(), &variables)?;
    let accepts_servers = args.mcp != Some(McpChoice::None);
    let Acp { model, errors, data_dir, no_store, .. } = args;
    let flags = Flags { model, errors, data_dir, no_store };
    let mut resolved = config::resolve(&flags, loaded.file, &variables)?;
    let settings = resolved.settings(&flags.model)?;
    for warning in loaded.warnings.iter().chain(&resolved.warnings).chain(&resolved.left_out) {
        tracing::warn!("{warning}");
    }
    if settings.routes.is_empty() && flags.model.layer() != Layer::default() {
        tracing::warn!(
            "the flags about the model mean nothing: no endpoint is configured, and --base-url is not given"
        );
    }
    Ok(Settings { accepts_servers, ..settings })
}

/// The arguments, and what may have been meant by them.
fn explained(ignored: &[String]) -> String {
    let command = Cli::whole();
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
    // Whatever a program adds, one line is enough.
    let words: Vec<String> = ignored.iter().take(16).map(explain).collect();
    crate::terminal::line(&words.join(" "))
}
