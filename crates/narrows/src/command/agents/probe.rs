//! Starts an agent, reads its capabilities, and ends it.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use narrows_client::{EventBody, Events, Offer, Payload, Problem, Runtime, Session, SessionConfig, Snapshot};
use narrows_policy::{Access, Narrowing, Policy};
use narrows_remote::client::Target;
use tokio::time::timeout;

use super::list;
use super::report::{Report, SessionOpening};
use crate::agent_source::{self, SelectedAgent};
use crate::cli::{AgentArgs, Agents, ModelArgs, Output, Variable};
use crate::command::{block_on, unless_interrupted};
use crate::environment;
use crate::failure::{ExitStatus, Failure};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The time for an agent to send its commands after it opened a session.
const COMMANDS_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) fn execute(args: &Agents, wanted: &str) -> Result<ExitCode, Failure> {
    if Target::looks_like(wanted) {
        return Err(Failure::remote_probe_unsupported(wanted));
    }
    let made = tempfile::tempdir().and_then(|place| {
        let (cwd, data) = (place.path().join("work"), place.path().join("data"));
        std::fs::create_dir(&cwd)?;
        Ok((place, cwd, data))
    });
    let (place, cwd, data) = made.map_err(|error| Failure::setup("make a directory", &error))?;
    // The built-in agent stores its session in `data`, a temporary directory that is removed afterwards.
    let keeping = Variable { name: environment::DATA_DIR.into(), value: Some(data.into()) };
    let limit = args.timeout.unwrap_or(ANSWER_TIMEOUT);
    let agent = AgentArgs {
        agent: (!wanted.is_empty()).then(|| wanted.to_owned()),
        cwd: Some(cwd),
        env: vec![keeping],
        protocol: args.protocol,
        initialize_timeout: Some(limit),
        session_timeout: Some(limit),
        model: ModelArgs { config: args.list.config.clone(), ..ModelArgs::default() },
        ..AgentArgs::default()
    };
    let chosen = agent_source::select(&agent, Output::Json)?;
    list::require(&chosen.agent.name, &chosen.agent.spec)?;
    let (report, failure) = block_on(unless_interrupted(query(chosen)))??;
    drop(place);
    report.print(args.list.json, failure.as_ref())?;
    match failure {
        Some(failure) => Err(failure.into_reported()),
        None => Ok(ExitStatus::Success.exit_code()),
    }
}

/// Returns the report, and the failure if one occurred after initialization.
async fn query(chosen: SelectedAgent) -> Result<(Report, Option<Failure>), Failure> {
    let SelectedAgent { agent, cwd, .. } = chosen;
    let mut report = Report::new(&agent);
    let runtime = Runtime::start(agent, Offer::default()).await.map_err(Failure::from_probe)?;
    report.introduce(runtime.description());
    // The probe has the strictest access preset, and answers no request of the agent.
    let policy = Policy::new(Access::Low, Narrowing { network: false, web_search: false });
    let mut config = SessionConfig::new(cwd, Arc::new(policy));
    // No prompt is sent, so the mode does not matter.
    config.restrict_mode = false;
    config.sandbox = false;
    config.log_in = false;
    let mut failure = None;
    match runtime.open_session(config).await {
        Ok(mut session) => {
            report.opened = SessionOpening::Session(Box::new(final_snapshot(&mut session).await));
            session.close().await;
        }
        Err(error) if matches!(*error.problem, Problem::LoginNeeded(_)) => {
            report.opened = SessionOpening::LoginNeeded;
        }
        Err(error) => failure = Some(Failure::from_probe(error)),
    }
    let seen = runtime.close().await;
    (report.stray_lines, report.strays) = (seen.stray_lines, seen.strays);
    Ok((report, failure))
}

/// Returns the session state after the agent has sent its commands, or after a timeout.
async fn final_snapshot(session: &mut Session) -> Snapshot {
    if let Some(events) = session.events() {
        // An agent without commands sends no list of commands, so this wait may time out.
        let _ = timeout(COMMANDS_TIMEOUT, wait_for_commands(events)).await;
    }
    session.snapshot()
}

async fn wait_for_commands(mut events: Events) {
    while let Some(event) = events.next().await {
        if let EventBody::Provider { payload: Payload::Update { update, .. }, .. } = &event.body
            && update.value().get("sessionUpdate").is_some_and(|kind| kind == "available_commands_update")
        {
            return;
        }
    }
}
