//! Lists the configured agents, and checks if they can be started.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use narrows_process::{SpawnError, Spec, find};
use serde::Serialize;

use crate::cli::{AgentArgs, AgentsList};
use crate::command::format_columns;
use crate::config::{self, AgentEntry, BUILT_IN, ConfigError, Variables};
use crate::failure::{ExitStatus, Failure};
use crate::terminal::line;
use crate::{agent_source, environment, output};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: String,
    command: Vec<String>,
    built_in: bool,
    installed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    searched: Vec<PathBuf>,
}

pub(super) fn execute(args: &AgentsList) -> Result<ExitCode, Failure> {
    let (entries, wrong) = agent_source::agents(args.config.as_deref())?;
    let mut rows = entries.iter().map(row).collect::<Result<Vec<_>, _>>()?;
    rows.extend(wrong.into_iter().map(|(name, error)| invalid_row(name, &error)));
    rows.push(built_in()?);
    if args.json {
        let text = serde_json::json!({ "agents": rows }).to_string();
        output::print_json(text)?;
        return Ok(ExitStatus::Success.exit_code());
    }
    let cells: Vec<[String; 3]> = rows.iter().map(cells).collect();
    output::print(format_columns(["NAME", "COMMAND", "FOUND"], &cells).as_bytes())?;
    if rows.len() == 1 {
        output::write_stderr(&how_to_add_one(args.config.as_deref()));
    }
    Ok(ExitStatus::Success.exit_code())
}

pub(super) fn require(name: &str, spec: &Spec) -> Result<(), Failure> {
    match find(spec) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::not_installed(name, &spec.program.to_string_lossy(), &error)),
    }
}

fn row(entry: &AgentEntry) -> Result<Row, Failure> {
    let chosen = agent_source::from_command(
        entry,
        &AgentArgs::default(),
        agent_source::absolute_dir(Path::new("."))?,
    )?;
    let (path, problem, searched) = match find(&chosen.agent.spec) {
        Ok(path) => (Some(path), None, Vec::new()),
        Err(error) => (None, Some(problem(&error)), searched(&error)),
    };
    let (name, command, installed) = (entry.name.clone(), entry.command.clone(), path.is_some());
    Ok(Row { name, command, built_in: false, installed, path, problem, searched })
}

fn invalid_row(name: String, error: &ConfigError) -> Row {
    Row {
        name,
        command: Vec::new(),
        built_in: false,
        installed: false,
        path: None,
        problem: Some(error.to_string()),
        searched: Vec::new(),
    }
}

fn built_in() -> Result<Row, Failure> {
    let path = std::env::current_exe().map_err(|error| Failure::setup("find this program", &error))?;
    Ok(Row {
        name: BUILT_IN.to_owned(),
        command: vec!["narrows".to_owned(), "acp".to_owned()],
        built_in: true,
        installed: true,
        path: Some(path),
        problem: None,
        searched: Vec::new(),
    })
}

fn problem(error: &SpawnError) -> String {
    match error {
        SpawnError::NotFound { program, searched: Some(_) } => format!("there is no {program:?} in PATH"),
        SpawnError::NotFound { program, searched: None } => format!("there is no file {program:?}"),
        error => error.to_string(),
    }
}

fn searched(error: &SpawnError) -> Vec<PathBuf> {
    match error {
        SpawnError::NotFound { searched: Some(path), .. } => std::env::split_paths(path).collect(),
        _ => Vec::new(),
    }
}

fn cells(row: &Row) -> [String; 3] {
    let words = row.command.iter().map(String::as_str);
    let command = shlex::try_join(words).unwrap_or_else(|_| row.command.join(" "));
    let found = match (&row.path, &row.problem) {
        _ if row.built_in => "this program; it is used without --agent".to_owned(),
        (Some(path), _) => path.display().to_string(),
        (None, Some(problem)) if row.command.is_empty() => format!("error: {problem}"),
        (None, problem) => format!("not installed: {}", problem.as_deref().unwrap_or_default()),
    };
    [row.name.clone(), command, found].map(|cell| line(&cell))
}

fn how_to_add_one(config: Option<&Path>) -> String {
    let variables = Variables::of_process();
    let default = || config::default_file(&variables);
    let file = match (config.map(Path::to_owned), variables.get(environment::CONFIG)) {
        (Some(path), _) => Some(path),
        (None, Some(path)) => Some(path.into()),
        (None, None) => default(),
    };
    let file = file.map_or_else(|| "narrows.toml".to_owned(), |path| path.display().to_string());
    format!(
        "no agent has a name yet; to give one a name, write in {file}:\n\n  [agents.opencode]\n  command = \"opencode acp\"\n"
    )
}
