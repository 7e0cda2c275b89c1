//! `narrows sessions`: what an agent remembers.

use std::process::ExitCode;

use narrows_client::{Listed, Offer, Problem, Runtime};
use serde_json::json;

use super::{block_on, columns, uninterrupted};
use crate::cli::{Output, Sessions};
use crate::drive::{self, Chosen};
use crate::failure::{Code, Failure};
use crate::output;
use crate::terminal::line;

/// Lists the sessions.
pub(super) fn execute(args: &Sessions) -> Result<ExitCode, Failure> {
    let chosen = drive::choose(&args.agent, Output::Json)?;
    let cwd = (!args.all).then(|| chosen.cwd.to_string_lossy().into_owned());
    let sessions = block_on(uninterrupted(ask(chosen, cwd.as_deref())))??;
    if args.json {
        let text = json!({ "sessions": sessions }).to_string();
        output::print(format!("{text}\n").as_bytes())?;
    } else if sessions.is_empty() {
        output::complain(&match &cwd {
            Some(cwd) => {
                format!("the agent keeps no session of {cwd}; --all lists those of other directories\n")
            }
            None => "the agent keeps no session\n".to_owned(),
        });
    } else {
        output::print(table(&sessions).as_bytes())?;
    }
    Ok(Code::Success.exit())
}

/// The sessions of the agent: those of `cwd`, or all of them.
async fn ask(chosen: Chosen, cwd: Option<&str>) -> Result<Vec<Listed>, Failure> {
    let name = chosen.agent.name.clone();
    let runtime = Runtime::start(chosen.agent, Offer::default()).await?;
    let listed = runtime.list_sessions(cwd).await;
    runtime.close().await;
    let mut sessions = listed.map_err(|error| match *error.problem {
        Problem::Unsupported(_) => Failure::cannot_list(&name),
        _ => error.into(),
    })?;
    // Some agents list all of them, whatever they are asked.
    sessions.retain(|session| cwd.is_none_or(|cwd| session.cwd == cwd || session.cwd.is_empty()));
    Ok(sessions)
}

fn table(sessions: &[Listed]) -> String {
    let cells: Vec<[String; 4]> = sessions
        .iter()
        .map(|session| {
            let updated = session.updated_at.as_deref().unwrap_or("-");
            let title = session.title.as_deref().unwrap_or("-");
            [&session.session_id, updated, &session.cwd, title].map(line)
        })
        .collect();
    columns(["ID", "UPDATED", "DIRECTORY", "TITLE"], &cells)
}
