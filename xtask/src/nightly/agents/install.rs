//! Installs each agent into a separate directory, with the tools and from the sources that its
//! documentation names.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::bounded;
use super::catalogue::{Kit, Source};
use crate::command::{tool, works};

const INSTALL_TIMEOUT: Duration = Duration::from_secs(600);

/// Versions of Python to try, the newest first. The last one means any `python3`.
const PYTHONS: [&str; 4] = ["3.14", "3.13", "3.12", "3"];

/// Returns the program of an agent and installs it if needed, or returns the reason why that is impossible
/// here.
pub(super) fn program(kit: &Kit, place: &Path) -> Result<PathBuf, String> {
    let program = match kit.source {
        Source::Npm(_) => place.join("node_modules/.bin").join(kit.program),
        Source::Pip(..) => place.join("bin").join(kit.program),
    };
    if program.exists() {
        return Ok(program);
    }
    fs::create_dir_all(place).map_err(|error| format!("{} cannot be made: {error}", place.display()))?;
    match kit.source {
        Source::Npm(package) => npm(package, place)?,
        Source::Pip(wanted, older) => pip(wanted, older, place)?,
    }
    if program.exists() { Ok(program) } else { Err(format!("the package has no `{}`", kit.program)) }
}

fn npm(package: &str, place: &Path) -> Result<(), String> {
    if !works(tool("node", &["--version"])) || !works(tool("npm", &["--version"])) {
        return Err("there is no Node.js with npm".to_owned());
    }
    let mut command = tool("npm", &["install", "--no-audit", "--no-fund", "--no-save", "--loglevel=error"]);
    command.arg("--prefix").arg(place).arg(package);
    bounded_run(command, place, "npm install")
}

fn pip(wanted: &str, older: &str, place: &Path) -> Result<(), String> {
    let mut reason = "there is no Python".to_owned();
    for version in PYTHONS {
        let Some(python) = python(version) else { continue };
        match environment(python, wanted, older, place) {
            Ok(()) => return Ok(()),
            Err(problem) => reason = format!("Python {version}: {problem}"),
        }
    }
    Err(reason)
}

fn environment(mut python: Command, wanted: &str, older: &str, place: &Path) -> Result<(), String> {
    python.args(["-m", "venv", "--clear"]).arg(place);
    bounded_run(python, place, "venv")?;
    let inner = place.join("bin/python");
    let install = |package| {
        let words = ["-m", "pip", "install", "--quiet", package];
        bounded_run(tool(&inner.to_string_lossy(), &words), place, "pip install")
    };
    // A mirror may lack dependencies of the newest release.
    install(wanted).or_else(|problem| install(older).map_err(|_| problem))
}

/// Finds a Python of this version by its name or through pyenv.
fn python(version: &str) -> Option<Command> {
    let name = format!("python{version}");
    if works(tool(&name, &["--version"])) {
        return Some(tool(&name, &[]));
    }
    let latest =
        tool("pyenv", &["latest", version]).output().ok().filter(|output| output.status.success())?;
    let latest = String::from_utf8_lossy(&latest.stdout).trim().to_owned();
    let with = |words: &[&str]| {
        let mut command = tool(&name, words);
        command.env("PYENV_VERSION", &latest);
        command
    };
    works(with(&["--version"])).then(|| with(&[]))
}

fn bounded_run(command: Command, place: &Path, what: &str) -> Result<(), String> {
    // The log is beside the directory, because the directory is cleared when an environment is created.
    let logs = place.parent().unwrap_or(place);
    let end = bounded::run(command, logs, INSTALL_TIMEOUT).map_err(|error| format!("{what}: {error}"))?;
    match end.code {
        Some(0) => Ok(()),
        _ if end.is_late => Err(format!("{what} took longer than {} s", INSTALL_TIMEOUT.as_secs())),
        _ => Err(format!("{what}: {}", end.last_words().chars().take(160).collect::<String>())),
    }
}
