//! `narrows check`: whether files can be used.

mod manifests;
mod names;

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;

use narrows_base::text::multi_line;
use narrows_bus::config::{self, Config, Here, Inspected, Mistake, Place, Pool, Warning};
use serde_json::{Value, json};

use crate::cli::{CheckFiles, CheckFormat};
use crate::environment;
use crate::failure::{Code, Failure};
use crate::output;
use crate::terminal::{Colour, line};
use names::Names;

/// The longest file.
const LONGEST: u64 = 1 << 20;

/// Reads every file, also behind one that is wrong, and says what is in it or what is wrong with it.
pub(super) fn execute(args: &CheckFiles) -> Result<ExitCode, Failure> {
    if let Some(kind) = args.print_schema {
        output::print(format!("{:#}\n", narrows_manifest::schema(kind)).as_bytes())?;
        return Ok(Code::Success.exit());
    }
    let json = args.json || args.format == CheckFormat::Json;
    let environment: Vec<_> = environment::variables().collect();
    let mut code = Code::Success;
    for path in &args.files {
        if manifests::are_at(path) {
            if !manifests::check(path, args.strict, json)? {
                code = Code::Usage;
            }
            continue;
        }
        if let Some(names) = Names::of(path) {
            if !names.check(path, args.strict, json)? {
                code = Code::Usage;
            }
            continue;
        }
        let outcome = check(path, &environment);
        for pool in governed(&outcome) {
            let manifest = pool.manifest.as_deref();
            let served = manifest.map(|manifest| manifests::check_served(manifest, args.strict, json));
            let identities = pool.identities.as_deref();
            let known = identities.map(|identities| Names::Identities.check(identities, args.strict, json));
            if ![served, known].into_iter().flatten().collect::<Result<Vec<_>, _>>()?.iter().all(|ok| *ok) {
                code = Code::Usage;
            }
        }
        let outcome = outcome.map(with_files);
        if !outcome.as_ref().is_ok_and(|inspected| is_usable(inspected, args.strict)) {
            code = Code::Usage;
        }
        if json {
            let object = object(path, &outcome, args);
            output::print_json(object)?;
        } else {
            complain(&outcome);
            if let Ok(Inspected { config: Some(config), .. }) = &outcome {
                output::print(summary(path, config, args.verbose).as_bytes())?;
            }
        }
    }
    Ok(code.exit())
}

/// The pools that are governed.
fn governed(outcome: &Result<Inspected, Failure>) -> impl Iterator<Item = &Pool> {
    let config = outcome.as_ref().ok().and_then(|inspected| inspected.config.as_ref());
    config.into_iter().flat_map(|config| &config.pools).filter(|pool| pool.manifest.is_some())
}

/// The same with what is wrong with the files that a bus would read at its start.
fn with_files(mut inspected: Inspected) -> Inspected {
    let Some(config) = &inspected.config else { return inspected };
    let (mistakes, strange) = names::of_bus(config, &inspected.files);
    inspected.warnings.extend(strange);
    inspected.warnings.extend(names::strange(config));
    if mistakes.is_empty() { inspected } else { Inspected { config: None, mistakes, ..inspected } }
}

/// Whether a bus would start with it, and with nothing to be said against it if that counts.
fn is_usable(inspected: &Inspected, strict: bool) -> bool {
    inspected.config.is_some() && (!strict || inspected.warnings.is_empty())
}

/// All there is to be said about a file, unless it cannot be read.
fn check(path: &Path, environment: &[(OsString, OsString)]) -> Result<Inspected, Failure> {
    let text = read(path).map_err(|error| Failure::unchecked(path, &error))?;
    let here = Here { environment, ours: "narrows" };
    Ok(config::inspect(&text, path, Some(here)))
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

/// Tells the user what is wrong, and what is strange.
fn complain(outcome: &Result<Inspected, Failure>) {
    let colour = Colour::of_stderr();
    match outcome {
        Ok(Inspected { mistakes, warnings, .. }) => complain_of(mistakes, warnings),
        Err(failure) => output::complain(&failure.render(colour)),
    }
}

fn complain_of(mistakes: &[Mistake], warnings: &[Warning]) {
    for mistake in mistakes {
        output::complain(&Failure::mistake(mistake).render(Colour::of_stderr()));
    }
    for warning in warnings {
        output::complain(&format!("warning: {}\n", line(&warning.to_string())));
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
        true => format!("# {line}\n{}", multi_line(&config::shown::toml(config))),
        false => format!("{line}\n"),
    }
}

fn object(path: &Path, outcome: &Result<Inspected, Failure>, args: &CheckFiles) -> Value {
    let file = path.display().to_string();
    let inspected = match outcome {
        Ok(inspected) => inspected,
        Err(failure) => return unread(&file, failure),
    };
    let warnings: Vec<Value> = inspected.warnings.iter().map(|it| warning(it, &file)).collect();
    let Some(config) = &inspected.config else {
        let mistakes: Vec<Value> = inspected.mistakes.iter().map(|mistake| told(mistake, &file)).collect();
        return json!({"file": file, "ok": false, "mistakes": mistakes, "warnings": warnings});
    };
    let mut object = json!({
        "file": file,
        "ok": is_usable(inspected, args.strict),
        "warnings": warnings,
        "pools": config.pools.len(),
        "listeners": config.listen.len(),
    });
    if args.verbose {
        object["settings"] = config::shown::json(config);
    }
    object
}

/// What cannot be read at all, as a mistake at its beginning.
fn unread(file: &str, failure: &Failure) -> Value {
    let mistake =
        json!({"line": 1, "column": 1, "message": failure.message(), "hint": failure.hints().first()});
    json!({"file": file, "ok": false, "mistakes": [mistake], "warnings": []})
}

fn warning(Warning { place, what }: &Warning, file: &str) -> Value {
    elsewhere(json!({"line": place.line, "column": place.column, "message": what}), place, file)
}

fn told(Mistake { place, what, hint }: &Mistake, file: &str) -> Value {
    let object = json!({"line": place.line, "column": place.column, "message": what, "hint": hint});
    elsewhere(object, place, file)
}

/// The same with the file it is about, if that is another one.
fn elsewhere(mut object: Value, place: &Place, file: &str) -> Value {
    if place.file != file {
        object["file"] = json!(place.file);
    }
    object
}
