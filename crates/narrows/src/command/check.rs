//! `narrows check`: validates configuration files and manifests.

mod file_kind;
mod identity_files;
mod manifests;

use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;

use narrows_base::text::multi_line;
use narrows_bus::config::{self, Config, InspectedConfig, Machine, Pool};
use narrows_config::{Finding, Severity, SourcePos};
use narrows_policy::Rules;
use serde_json::{Value, json};

use crate::cli::{CheckFiles, CheckFormat};
use crate::command::serve::identities;
use crate::config::NarrowsToml;
use crate::environment;
use crate::failure::{ExitStatus, Failure};
use crate::output;
use crate::terminal::{Color, line};
use file_kind::FileKind;

const MAX_FILE_BYTES: u64 = 1 << 20;

/// Checks all files, also after an error, and prints a summary or the findings.
pub(super) fn execute(args: &CheckFiles) -> Result<ExitCode, Failure> {
    if let Some(kind) = args.print_schema {
        output::print(format!("{:#}\n", narrows_manifest::schema(kind)).as_bytes())?;
        return Ok(ExitStatus::Success.exit_code());
    }
    let json = args.json || args.format == CheckFormat::Json;
    let environment: Vec<_> = environment::variables().collect();
    let mut code = ExitStatus::Success;
    for path in &args.files {
        if manifests::is_manifest_path(path) {
            if !manifests::check(path, args.strict, json)? {
                code = ExitStatus::Usage;
            }
            continue;
        }
        let text = read(path).map_err(|error| Failure::check_target_unreadable(path, &error));
        let kind = text.as_ref().map(|text| FileKind::detect(path, text));
        if let (Ok(kind), Ok(text)) = (&kind, &text)
            && *kind != Some(FileKind::Bus)
        {
            let (errors, warnings) = findings(*kind, path, text);
            if !print_file(path, (errors, warnings), args.strict, json)? {
                code = ExitStatus::Usage;
            }
            continue;
        }
        let machine = Machine { environment: &environment, own_program: "narrows" };
        let home = environment::home();
        let outcome = text.map(|text| config::inspect(&text, path, home.as_deref(), Some(machine)));
        for pool in governed(&outcome) {
            let manifest = pool.manifest.as_deref();
            let served = manifest.map(|manifest| manifests::check_served(manifest, args.strict, json));
            let identities = pool.identities.as_deref();
            let known = identities.map(|path| {
                let errors = identities::first_error(path).into_iter().collect();
                print_file(path, (errors, Vec::new()), args.strict, json)
            });
            if ![served, known].into_iter().flatten().collect::<Result<Vec<_>, _>>()?.iter().all(|ok| *ok) {
                code = ExitStatus::Usage;
            }
        }
        let outcome = outcome.map(|inspected| with_file_findings(inspected, path));
        if !outcome.as_ref().is_ok_and(|inspected| is_usable(inspected, args.strict)) {
            code = ExitStatus::Usage;
        }
        if json {
            let object = file_json(path, &outcome, args);
            output::print_json(object)?;
        } else {
            print_problems(&outcome);
            if let Ok(InspectedConfig { config: Some(config), .. }) = &outcome {
                output::print(summary(path, config, args.verbose).as_bytes())?;
            }
        }
    }
    Ok(code.exit_code())
}

fn governed(outcome: &Result<InspectedConfig, Failure>) -> impl Iterator<Item = &Pool> {
    let config = outcome.as_ref().ok().and_then(|inspected| inspected.config.as_ref());
    config.into_iter().flat_map(|config| &config.pools).filter(|pool| pool.manifest.is_some())
}

/// Adds the findings of the files that the bus reads when it starts.
fn with_file_findings(mut inspected: InspectedConfig, path: &Path) -> InspectedConfig {
    let Some(config) = &inspected.config else { return inspected };
    let (errors, strange) = identity_files::bus_findings(config, path, &inspected.files);
    inspected.warnings.extend(strange);
    inspected.warnings.extend(identity_files::identity_warnings(config));
    if errors.is_empty() { inspected } else { InspectedConfig { config: None, errors, ..inspected } }
}

/// Returns `true` if a bus would start with the file; with `strict`, without warnings.
fn is_usable(inspected: &InspectedConfig, strict: bool) -> bool {
    inspected.config.is_some() && (!strict || inspected.warnings.is_empty())
}

/// Returns the errors and the warnings of a file that is not for a bus.
fn findings(kind: Option<FileKind>, path: &Path, text: &str) -> (Vec<Finding>, Vec<Finding>) {
    let file = path.display().to_string();
    match kind {
        Some(FileKind::Tokens) => identity_files::token_findings(path, None),
        Some(FileKind::Identities) => (identities::first_error(path).into_iter().collect(), Vec::new()),
        Some(FileKind::Rules) => (Rules::parse(text, &file).err().into_iter().collect(), Vec::new()),
        Some(FileKind::Settings) => NarrowsToml::inspect(path, text, environment::home().as_deref()),
        Some(FileKind::Bus) | None => {
            let error = Finding::error(file, SourcePos::START, "unknown kind of file")
                .with_hint("a bus.toml has [[pool]], a narrows.toml [endpoint.NAME] or [agents.NAME], a file of rules [[rule]]");
            (vec![error], Vec::new())
        }
    }
}

/// Prints the findings of one file. Returns `true` if the file can be used.
fn print_file(
    path: &Path,
    (errors, warnings): (Vec<Finding>, Vec<Finding>),
    strict: bool,
    json: bool,
) -> Result<bool, Failure> {
    let ok = errors.is_empty() && (!strict || warnings.is_empty());
    let file = path.display().to_string();
    if json {
        let [mistakes, warnings] = [&errors, &warnings].map(|it| findings_json(it, &file));
        output::print_json(json!({"file": file, "ok": ok, "mistakes": mistakes, "warnings": warnings}))?;
    } else {
        print_findings(&errors, &warnings);
        if errors.is_empty() {
            output::print(format!("{}\n", line(&format!("{file}: valid"))).as_bytes())?;
        }
    }
    Ok(ok)
}

pub(super) fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the file is longer than 1 MiB"));
    }
    Ok(text)
}

fn print_problems(outcome: &Result<InspectedConfig, Failure>) {
    let color = Color::for_stderr();
    match outcome {
        Ok(InspectedConfig { errors, warnings, .. }) => print_findings(errors, warnings),
        Err(failure) => output::write_stderr(&failure.render(color)),
    }
}

fn print_findings(errors: &[Finding], warnings: &[Finding]) {
    for error in errors {
        output::write_stderr(&Failure::config_finding(error).render(Color::for_stderr()));
    }
    for warning in warnings {
        output::warn(&warning.to_string());
    }
}

/// Returns a summary in one line. With `verbose`, the effective settings follow in the format of `bus.toml`.
fn summary(path: &Path, config: &Config, verbose: bool) -> String {
    let many = |count: usize, one: &str| match count {
        1 => format!("1 {one}"),
        count => format!("{count} {one}s"),
    };
    let (pools, places) = (many(config.pools.len(), "pool"), many(config.listen.len(), "listener"));
    let line = line(&format!("{}: {pools}, {places}", path.display()));
    match verbose {
        true => format!("# {line}\n{}", multi_line(&config::render::toml(config))),
        false => format!("{line}\n"),
    }
}

fn file_json(path: &Path, outcome: &Result<InspectedConfig, Failure>, args: &CheckFiles) -> Value {
    let file = path.display().to_string();
    let inspected = match outcome {
        Ok(inspected) => inspected,
        Err(failure) => return unreadable_json(&file, failure),
    };
    let warnings = findings_json(&inspected.warnings, &file);
    let Some(config) = &inspected.config else {
        let mistakes = findings_json(&inspected.errors, &file);
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
        object["settings"] = config::render::json(config);
    }
    object
}

/// Returns the finding for a file that cannot be read, at its first position.
fn unreadable_json(file: &str, failure: &Failure) -> Value {
    let mistake =
        json!({"line": 1, "column": 1, "message": failure.message(), "hint": failure.hints().first()});
    json!({"file": file, "ok": false, "mistakes": [mistake], "warnings": []})
}

/// Converts findings to JSON. A finding about another file than `file` includes the name of that file.
fn findings_json(findings: &[Finding], file: &str) -> Value {
    let object = |finding: &Finding| {
        let Finding { pos, message, hint, .. } = finding;
        let mut object = json!({"line": pos.line, "column": pos.column, "message": message});
        if finding.severity == Severity::Error {
            object["hint"] = json!(hint);
        }
        if finding.file != file {
            object["file"] = json!(finding.file);
        }
        object
    };
    findings.iter().map(object).collect()
}
