//! `narrows sessions`: lists and deletes the sessions of an agent.

use std::process::ExitCode;

use narrows_client::{Offer, Problem, SessionSummary};
use serde_json::json;

use super::{block_on, format_columns, unless_interrupted};
use crate::agent_source::{self, SelectedAgent};
use crate::cli::{Delete, Output, Sessions, SessionsCommand, SessionsList};
use crate::config::BUILT_IN;
use crate::failure::{ExitStatus, Failure};
use crate::output;
use crate::terminal::line;

pub(super) fn execute(args: &Sessions) -> Result<ExitCode, Failure> {
    match &args.command {
        Some(SessionsCommand::Delete(delete)) => execute_delete(delete),
        Some(SessionsCommand::List(args)) => execute_list(args),
        None => execute_list(&args.list),
    }
}

fn execute_list(args: &SessionsList) -> Result<ExitCode, Failure> {
    let chosen = agent_source::select(&args.agent, Output::Json)?;
    let cwd = (!args.all).then(|| chosen.cwd.to_string_lossy().into_owned());
    let is_ours = args.agent.agent.as_deref().is_none_or(|agent| agent == BUILT_IN);
    let mut sessions = block_on(unless_interrupted(list(chosen, cwd.as_deref())))??;
    let hidden = if args.all { 0 } else { hide_empty(&mut sessions, is_ours) };
    if args.json {
        let text = json!({ "sessions": sessions }).to_string();
        output::print_json(text)?;
    } else if sessions.is_empty() && hidden == 0 {
        output::write_stderr(&match &cwd {
            Some(cwd) => {
                format!("the agent has no session in {cwd} (--all lists those of other directories)\n")
            }
            None => "the agent has no session\n".to_owned(),
        });
    } else if !sessions.is_empty() {
        output::print(table(&sessions).as_bytes())?;
    }
    if hidden > 0 {
        let count = if hidden == 1 { "1 session".to_owned() } else { format!("{hidden} sessions") };
        output::write_stderr(&format!("{count} without a message not shown (--all lists them)\n"));
    }
    Ok(ExitStatus::Success.exit_code())
}

fn execute_delete(args: &Delete) -> Result<ExitCode, Failure> {
    let chosen = agent_source::select(&args.agent, Output::Json)?;
    let was_listed = block_on(unless_interrupted(delete(chosen, &args.id, args.agent.agent.as_deref())))??;
    if args.json {
        output::print_json(json!({ "sessionId": args.id, "wasListed": was_listed }))?;
        return Ok(ExitStatus::Success.exit_code());
    }
    // An agent that cannot list sessions also confirms the deletion of a session that it does not have.
    let unknown = if was_listed { "" } else { ", if the agent had it" };
    output::write_stderr(&format!("deleted session {}{unknown}\n", line(&args.id)));
    Ok(ExitStatus::Success.exit_code())
}

/// Deletes a session. Returns `true` if the agent had listed it.
async fn delete(chosen: SelectedAgent, id: &str, agent: Option<&str>) -> Result<bool, Failure> {
    let name = chosen.agent.name.clone();
    let runtime = chosen.start(Offer::default()).await?;
    let can = runtime.description().can;
    // Agents confirm the deletion of unknown sessions, so the session is first looked up in the list, if the
    // agent has one.
    let known = match can.delete && can.list {
        true => runtime.list_sessions(None).await.map(Some),
        false => Ok(None),
    };
    let outcome = match known {
        Ok(Some(known)) if known.iter().all(|session| session.session_id != id) => {
            Err(Failure::unknown_session(id, agent, known.iter().map(|session| session.session_id.as_str())))
        }
        Ok(known) => {
            runtime.delete_session(id).await.map(|()| known.is_some()).map_err(|error| match *error.problem {
                Problem::Unsupported(_) => Failure::cannot_delete_session(&name),
                _ => Failure::from(error),
            })
        }
        Err(error) => Err(Failure::from(error)),
    };
    runtime.close().await;
    let lost = chosen.finish().await;
    outcome.map_err(|failure| failure.or_connection_failure(lost))
}

/// Returns the sessions of the agent, optionally of one directory.
async fn list(chosen: SelectedAgent, cwd: Option<&str>) -> Result<Vec<SessionSummary>, Failure> {
    let name = chosen.agent.name.clone();
    let runtime = chosen.start(Offer::default()).await?;
    let listed = runtime.list_sessions(cwd).await;
    runtime.close().await;
    let lost = chosen.finish().await;
    let mut sessions = listed.map_err(|error| match *error.problem {
        Problem::Unsupported(_) => Failure::cannot_list_sessions(&name),
        _ => Failure::from(error).or_connection_failure(lost),
    })?;
    // Some agents ignore the requested directory and list all sessions.
    sessions.retain(|session| cwd.is_none_or(|cwd| session.cwd == cwd || session.cwd.is_empty()));
    Ok(sessions)
}

/// Removes sessions without a turn, and returns their number. They are recognized by their missing title. If
/// no session of the agent has a title, none is removed, unless the agent is the built-in one.
fn hide_empty(sessions: &mut Vec<SessionSummary>, is_ours: bool) -> usize {
    if !is_ours && sessions.iter().all(|session| session.title.is_none()) {
        return 0;
    }
    let all = sessions.len();
    sessions.retain(|session| session.title.is_some());
    all - sessions.len()
}

fn table(sessions: &[SessionSummary]) -> String {
    let cells: Vec<[String; 4]> = sessions
        .iter()
        .map(|session| {
            let updated = session.updated_at.as_deref().unwrap_or("-");
            let title = session.title.as_deref().unwrap_or("-");
            [&session.session_id, updated, &session.cwd, title].map(line)
        })
        .collect();
    format_columns(["ID", "UPDATED", "DIRECTORY", "TITLE"], &cells)
}
