//! Manifests: a file by itself, or all of a directory and whether they fit together.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use narrows_manifest::{Bundle, Checked, Finding, Findings, Kind, MAX_MANIFEST_BYTES, Severity};
use serde_json::{Value, json};

use crate::command::serve::preflight;
use crate::failure::Failure;
use crate::output;
use crate::terminal::{Colour, line};

/// Whether `path` is a manifest, or a directory that may have some.
pub(super) fn are_at(path: &Path) -> bool {
    Kind::from_path(path).is_some() || path.is_dir()
}

/// Tells everything about the manifests at `path`, and whether they can be used.
pub(super) fn check(path: &Path, strict: bool, json: bool) -> Result<bool, Failure> {
    let files = match look(path) {
        Ok(files) => files,
        Err(failure) => {
            match json {
                true => print(&super::unread(&shown(path), &failure))?,
                false => output::complain(&failure.render(Colour::of_stderr())),
            }
            return Ok(false);
        }
    };
    let alone = !path.is_dir();
    let mut usable = true;
    for Checked { path, kind, findings } in files {
        let findings = if strict { findings.strict() } else { findings };
        let ok = !findings.has_errors();
        usable &= ok;
        let unfollowed = alone && kind.is_some_and(leads_on);
        match json {
            true => {
                let mut object = object(&path, kind, &findings);
                if unfollowed {
                    object["followed"] = json!(false);
                }
                print(&object)?;
            }
            false => tell(&path, &findings, unfollowed)?,
        }
    }
    Ok(usable)
}

/// Whether manifests of a kind name other files, which only a directory is looked at with.
fn leads_on(kind: Kind) -> bool {
    matches!(kind, Kind::Acp | Kind::Operator | Kind::Governance | Kind::AgentCli)
}

/// The same about all that a manifest leads to, for who serves it.
pub(super) fn check_served(manifest: &Path, strict: bool, json: bool) -> Result<bool, Failure> {
    let findings = preflight::findings(manifest);
    let findings = if strict { findings.strict() } else { findings };
    let base = manifest.parent().unwrap_or(Path::new(""));
    if json {
        print(&object(manifest, Some(Kind::Acp), &findings))?;
        return Ok(!findings.has_errors());
    }
    for finding in &findings {
        let file = base.join(&finding.file);
        tell_one(&file, finding);
    }
    Ok(!findings.has_errors())
}

/// The files at `path`, with what is wrong with each.
fn look(path: &Path) -> Result<Vec<Checked>, Failure> {
    let unreadable = |error: io::Error| Failure::unchecked(path, &error);
    if path.is_dir() {
        let further = |bundle: &Bundle| preflight::survey(path, bundle);
        let mut files = narrows_manifest::check_directory(path, &further).map_err(unreadable)?;
        if files.is_empty() {
            return Err(Failure::no_manifests(path));
        }
        files.iter_mut().for_each(|file| file.path = path.join(&file.path));
        return Ok(files);
    }
    let kind = Kind::from_path(path);
    let findings = kind
        .map(|kind| read(path).map(|bytes| narrows_manifest::check_for_serving(kind, &place(path), &bytes)));
    let findings = findings.transpose().map_err(unreadable)?.unwrap_or_default();
    Ok(vec![Checked { path: path.to_owned(), kind, findings }])
}

/// Where a file is, so far as its name depends on it: also for one that is named from within its directory.
fn place(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// As much of a file as it takes to see that it is too long.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_MANIFEST_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn tell(path: &Path, findings: &Findings, unfollowed: bool) -> Result<(), Failure> {
    for finding in findings {
        tell_one(path, finding);
    }
    if findings.has_errors() {
        return Ok(());
    }
    let mut told = format!("{}: valid", path.display());
    if unfollowed {
        let above = path.parent().filter(|above| *above != Path::new("")).unwrap_or(Path::new("."));
        told.push_str(&format!(
            " by itself; what it leads to was not looked at: narrows check {}",
            above.display()
        ));
    }
    output::print(format!("{}\n", line(&told)).as_bytes())
}

fn tell_one(path: &Path, finding: &Finding) {
    let place = format!("{}:{}:{}", path.display(), finding.line, finding.column);
    let about = if finding.key.is_empty() { String::new() } else { format!("{}: ", finding.key) };
    let what = line(&format!("{place}: {about}{}", finding.message));
    match finding.severity {
        Severity::Error => {
            output::complain(&Failure::finding(what, finding).render(Colour::of_stderr()));
        }
        Severity::Warning => {
            let hint = finding.hint.as_ref().map_or(String::new(), |hint| format!("hint: {}\n", line(hint)));
            output::complain(&format!("warning: {what}\n{hint}"));
        }
    }
}

fn object(path: &Path, kind: Option<Kind>, findings: &Findings) -> Value {
    let those = |severity: Severity| -> Vec<Value> {
        findings.iter().filter(|finding| finding.severity == severity).map(entry).collect()
    };
    json!({
        "file": shown(path),
        "ok": !findings.has_errors(),
        "kind": kind,
        "mistakes": those(Severity::Error),
        "warnings": those(Severity::Warning),
    })
}

fn entry(finding: &Finding) -> Value {
    let Finding { code, line, column, key, value, message, hint, .. } = finding;
    json!({
        "line": line, "column": column, "code": code, "key": key, "value": value, "message": message, "hint": hint,
    })
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn print(object: &Value) -> Result<(), Failure> {
    output::print_json(object)
}
