//! Manifests: a single file, or a directory as a whole.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use narrows_manifest::{Bundle, CheckedFile, Finding, Findings, MAX_MANIFEST_BYTES, ManifestKind, Severity};
use serde_json::{Value, json};

use crate::command::serve::preflight;
use crate::failure::Failure;
use crate::output;
use crate::terminal::{Color, line};

/// Returns `true` if `path` is a manifest, or a directory, which may contain some.
pub(super) fn is_manifest_path(path: &Path) -> bool {
    ManifestKind::from_path(path).is_some() || path.is_dir()
}

/// Prints all findings at `path`. Returns `true` if the manifests can be used.
pub(super) fn check(path: &Path, strict: bool, json: bool) -> Result<bool, Failure> {
    let files = match check_all(path) {
        Ok(files) => files,
        Err(failure) => {
            match json {
                true => print(&super::unreadable_json(&display_path(path), &failure))?,
                false => output::write_stderr(&failure.render(Color::for_stderr())),
            }
            return Ok(false);
        }
    };
    let alone = !path.is_dir();
    let mut usable = true;
    for CheckedFile { path, kind, findings } in files {
        let findings = if strict { findings.strict() } else { findings };
        let ok = !findings.has_errors();
        usable &= ok;
        let unfollowed = alone && kind.is_some_and(names_other_files);
        match json {
            true => {
                let mut object = manifest_json(&path, kind, &findings);
                if unfollowed {
                    object["followed"] = json!(false);
                }
                print(&object)?;
            }
            false => print_findings(&path, &findings, unfollowed)?,
        }
    }
    Ok(usable)
}

/// Returns `true` for kinds that refer to other files. Those are checked only together with their directory.
fn names_other_files(kind: ManifestKind) -> bool {
    matches!(
        kind,
        ManifestKind::Acp | ManifestKind::Operator | ManifestKind::Governance | ManifestKind::AgentCli
    )
}

/// Prints the findings of a manifest as it would be served.
pub(super) fn check_served(manifest: &Path, strict: bool, json: bool) -> Result<bool, Failure> {
    let findings = preflight::findings(manifest);
    let findings = if strict { findings.strict() } else { findings };
    let base = manifest.parent().unwrap_or(Path::new(""));
    if json {
        print(&manifest_json(manifest, Some(ManifestKind::Acp), &findings))?;
        return Ok(!findings.has_errors());
    }
    for finding in &findings {
        let file = base.join(&finding.file);
        print_finding(&file, finding);
    }
    Ok(!findings.has_errors())
}

fn check_all(path: &Path) -> Result<Vec<CheckedFile>, Failure> {
    let unreadable = |error: io::Error| Failure::check_target_unreadable(path, &error);
    if path.is_dir() {
        let further = |bundle: &Bundle| preflight::survey(path, bundle);
        let mut files = narrows_manifest::check_directory(path, &further).map_err(unreadable)?;
        if files.is_empty() {
            return Err(Failure::no_manifests(path));
        }
        files.iter_mut().for_each(|file| file.path = path.join(&file.path));
        return Ok(files);
    }
    let kind = ManifestKind::from_path(path);
    let findings = kind.map(|kind| {
        read(path).map(|bytes| narrows_manifest::check_for_serving(kind, &resolved_path(path), &bytes))
    });
    let findings = findings.transpose().map_err(unreadable)?.unwrap_or_default();
    Ok(vec![CheckedFile { path: path.to_owned(), kind, findings }])
}

/// Returns the path with its directory, because the expected name of a manifest depends on the directory.
fn resolved_path(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Reads a file up to a little over the maximum size of a manifest.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_MANIFEST_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn print_findings(path: &Path, findings: &Findings, unfollowed: bool) -> Result<(), Failure> {
    for finding in findings {
        print_finding(path, finding);
    }
    if findings.has_errors() {
        return Ok(());
    }
    let mut told = format!("{}: valid", path.display());
    if unfollowed {
        let above = path.parent().filter(|above| *above != Path::new("")).unwrap_or(Path::new("."));
        told.push_str(&format!(
            " by itself; the files that it refers to were not checked: narrows check {}",
            above.display()
        ));
    }
    output::print(format!("{}\n", line(&told)).as_bytes())
}

fn print_finding(path: &Path, finding: &Finding) {
    let place = format!("{}:{}:{}", path.display(), finding.line, finding.column);
    let about = if finding.key.is_empty() { String::new() } else { format!("{}: ", finding.key) };
    let what = line(&format!("{place}: {about}{}", finding.message));
    match finding.severity {
        Severity::Error => {
            output::write_stderr(&Failure::manifest_finding(what, finding).render(Color::for_stderr()));
        }
        Severity::Warning => {
            let hint = finding.hint.as_ref().map_or(String::new(), |hint| format!("hint: {}\n", line(hint)));
            output::write_stderr(&format!("warning: {what}\n{hint}"));
        }
    }
}

fn manifest_json(path: &Path, kind: Option<ManifestKind>, findings: &Findings) -> Value {
    let those = |severity: Severity| -> Vec<Value> {
        findings.iter().filter(|finding| finding.severity == severity).map(finding_json).collect()
    };
    json!({
        "file": display_path(path),
        "ok": !findings.has_errors(),
        "kind": kind,
        "mistakes": those(Severity::Error),
        "warnings": those(Severity::Warning),
    })
}

fn finding_json(finding: &Finding) -> Value {
    let Finding { code, line, column, key, value, message, hint, .. } = finding;
    json!({
        "line": line, "column": column, "code": code, "key": key, "value": value, "message": message, "hint": hint,
    })
}

fn display_path(path: &Path) -> String {
    path.display().to_string()
}

fn print(object: &Value) -> Result<(), Failure> {
    output::print_json(object)
}
