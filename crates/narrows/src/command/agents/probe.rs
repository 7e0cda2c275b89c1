//! Asks an agent what it is and what it can do, and ends it again.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use narrows_client::{EventBody, Events, Offer, Payload, Problem, Runtime, Session, SessionConfig, Snapshot};
use narrows_policy::{Access, Narrowing, Policy};
use narrows_remote::client::Target;
use tokio::time::timeout;

use super::list;
use super::report::{Opened, Report};
use crate::cli::{AgentArgs, Agents, ModelArgs, Output, Variable};
use crate::command::{block_on, uninterrupted};
use crate::drive::{self, Chosen};
use crate::environment;
use crate::failure::{Code, Failure};

/// How long an agent may take for each of its answers.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long commands are waited for, which agents tell after they have opened a session.
const ARRIVAL: Duration = Duration::from_secs(1);

/// Asks the agent that is meant by `wanted`; none is the built-in one.
pub(super) fn execute(args: &Agents, wanted: &str) -> Result<ExitCode, Failure> {
    if Target::looks_like(wanted) {
        return Err(Failure::no_probe(wanted));
    }
    let made = tempfile::tempdir().and_then(|place| {
        let (cwd, data) = (place.path().join("work"), place.path().join("data"));
        std::fs::create_dir(&cwd)?;
        Ok((place, cwd, data))
    });
    let (place, cwd, data) = made.map_err(|error| Failure::setup("make a directory", &error))?;
    // Our own agent keeps the session with the rest of the directory, and that goes.
    let keeping = Variable { name: environment::DATA_DIR.into(), value: Some(data.into()) };
    let limit = args.timeout.unwrap_or(PATIENCE);
    let agent = AgentArgs {
        agent: (!wanted.is_empty()).then(|| wanted.to_owned()),
        cwd: Some(cwd),
        env: vec![keeping],
        protocol: args.protocol,
        initialize_timeout: Some(limit),
        session_timeout: Some(limit),
        model: ModelArgs { config: args.config.clone(), ..ModelArgs::default() },
        ..AgentArgs::default()
    };
    let chosen = drive::choose(&agent, Output::Json)?;
    list::require(&chosen.agent.name, &chosen.agent.spec)?;
    let (report, failure) = block_on(uninterrupted(ask(chosen)))??;
    drop(place);
    report.print(args.json, failure.as_ref())?;
    match failure {
        Some(failure) => Err(failure.reported()),
        None => Ok(Code::Success.exit()),
    }
}

/// What the agent says, and what went wrong after it had introduced itself.
async fn ask(chosen: Chosen) -> Result<(Report, Option<Failure>), Failure> {
    let Chosen { agent, cwd, .. } = chosen;
    let mut report = Report::new(&agent);
    let runtime = Runtime::start(agent, Offer::default()).await.map_err(Failure::of_probe)?;
    report.introduce(runtime.introduced());
    // What an agent may do unasked is little, and nobody answers what it asks.
    let policy = Policy::new(Access::Low, Narrowing { network: false, web_search: false });
    let mut config = SessionConfig::new(cwd, Arc::new(policy));
    // Nothing is asked of it.
    config.restrict_mode = false;
    config.sandbox = false;
    config.log_in = false;
    let mut failure = None;
    match runtime.open_session(config).await {
        Ok(mut session) => {
            report.opened = Opened::Session(Box::new(known(&mut session).await));
            session.close().await;
        }
        Err(error) if matches!(*error.problem, Problem::LoginNeeded(_)) => {
            report.opened = Opened::LoginNeeded;
        }
        Err(error) => failure = Some(Failure::of_probe(error)),
    }
    let seen = runtime.close().await;
    (report.stray_lines, report.strays) = (seen.stray_lines, seen.strays);
    Ok((report, failure))
}

/// What is known of a session once the agent has told its commands, or had the time to.
async fn known(session: &mut Session) -> Snapshot {
    if let Some(events) = session.events() {
        // Agents without commands tell none.
        let _ = timeout(ARRIVAL, commands(events)).await;
    }
    session.snapshot()
}

/// Waits until commands are told, or nothing more will be.
async fn commands(mut events: Events) {
    while let Some(event) = events.next().await {
        if let EventBody::Provider { payload: Payload::Update { update, .. }, .. } = &event.body
            && update.value().get("sessionUpdate").is_some_and(|kind| kind == "available_commands_update")
        {
            return;
        }
    }
}
