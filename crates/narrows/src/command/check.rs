//! `narrows check`: whether files can be used.

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;

use narrows_bus::config::{self, Config, Inspected, Mistake, Warning};
use serde_json::{Value, json};

use crate::cli::CheckFiles;
use crate::environment;
use crate::failure::{Code, Failure};
use crate::output;
use crate::terminal::{Colour, line, text};

/// The longest file.
const LONGEST: u64 = 1 << 20;

/// Reads every file, also behind one that is wrong, and says what is in it or what is wrong with it.
pub(super) fn execute(args: &CheckFiles) -> Result<ExitCode, Failure> {
    let environment: Vec<_> = environment::variables().collect();
    let mut code = Code::Success;
    for path in &args.files {
        let outcome = check(path, &environment);
        if outcome.is_err() {
            code = Code::Usage;
        }
        if args.json {
            let object = object(path, &outcome, args.verbose);
            output::print(format!("{object}\n").as_bytes())?;
        } else {
            complain(&outcome);
            if let Ok(Inspected { config, .. }) = &outcome {
                output::print(summary(path, config, args.verbose).as_bytes())?;
            }
        }
    }
    Ok(code.exit())
}

/// Why a file cannot be used.
enum Wrong {
    /// It cannot be read.
    Unreadable(Failure),
    /// There are mistakes in it.
    Mistaken(Vec<Mistake>),
}

fn check(path: &Path, environment: &[(OsString, OsString)]) -> Result<Inspected, Wrong> {
    let text = read(path).map_err(|error| Wrong::Unreadable(Failure::unreadable("check", path, &error)))?;
    let inspected = config::inspect(&text, path).map_err(Wrong::Mistaken)?;
    let missing = missing(&inspected, environment);
    if missing.is_empty() { Ok(inspected) } else { Err(Wrong::Mistaken(missing)) }
}

/// The text of a file that is not too long to be one.
pub(super) fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(LONGEST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LONGEST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is longer than 1 MiB"));
    }
    Ok(text)
}

/// The commands for which there is no program.
fn missing(inspected: &Inspected, environment: &[(OsString, OsString)]) -> Vec<Mistake> {
    let pools = inspected.config.pools.iter().zip(&inspected.commands);
    let mistake = |(pool, place): (&config::Pool, &config::Place)| {
        if pool.command.first().is_some_and(|program| program == "narrows") {
            // Ourselves, installed or not.
            return None;
        }
        let error = pool.program(environment).err()?;
        let hint =
            "install it, or give the path to it; a relative path is meant from `cwd`, or else from here";
        let what = format!("`command` cannot be started: {error}");
        Some(Mistake { place: place.clone(), what, hint: Some(hint.to_owned()) })
    };
    pools.filter_map(mistake).collect()
}

/// Tells the user what is strange, or wrong.
fn complain(outcome: &Result<Inspected, Wrong>) {
    let colour = Colour::of_stderr();
    match outcome {
        Ok(inspected) => {
            for warning in &inspected.warnings {
                output::complain(&format!("warning: {}\n", line(&warning.to_string())));
            }
        }
        Err(Wrong::Unreadable(failure)) => output::complain(&failure.render(colour)),
        Err(Wrong::Mistaken(mistakes)) => {
            for mistake in mistakes {
                output::complain(&Failure::mistake(mistake).render(colour));
            }
        }
    }
}

/// What is in a file, in one line; then the settings, if they are wanted, in a form that is such a file again.
fn summary(path: &Path, config: &Config, verbose: bool) -> String {
    let many = |count: usize, one: &str| match count {
        1 => format!("1 {one}"),
        count => format!("{count} {one}s"),
    };
    let (pools, places) = (many(config.pools.len(), "pool"), many(config.listen.len(), "listener"));
    let line = line(&format!("{}: {pools}, {places}", path.display()));
    match verbose {
        true => format!("# {line}\n{}", text(&config::shown::toml(config))),
        false => format!("{line}\n"),
    }
}

fn object(path: &Path, outcome: &Result<Inspected, Wrong>, verbose: bool) -> Value {
    let file = path.display().to_string();
    match outcome {
        Ok(Inspected { config, warnings, .. }) => {
            let mut object = json!({
                "file": file,
                "ok": true,
                "warnings": warnings.iter().map(warning).collect::<Vec<_>>(),
                "pools": config.pools.len(),
                "listeners": config.listen.len(),
            });
            if verbose {
                object["settings"] = config::shown::json(config);
            }
            object
        }
        Err(Wrong::Unreadable(failure)) => json!({"file": file, "ok": false, "error": failure.message()}),
        Err(Wrong::Mistaken(mistakes)) => {
            json!({"file": file, "ok": false, "mistakes": mistakes.iter().map(mistake).collect::<Vec<_>>()})
        }
    }
}

fn warning(Warning { place, what }: &Warning) -> Value {
    json!({"line": place.line, "column": place.column, "message": what})
}

fn mistake(Mistake { place, what, hint }: &Mistake) -> Value {
    json!({"line": place.line, "column": place.column, "message": what, "hint": hint})
}
