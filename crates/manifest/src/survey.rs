//! Checks all manifests of a directory: each file alone, and all files together.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::code::Code;
use crate::document::{self, MAX_MANIFEST_BYTES};
use crate::files::{Files, FilesError, Workspace};
use crate::finding::{Draft, Findings};
use crate::kind::ManifestKind;
use crate::resolve::{Bundle, resolve};
use crate::yaml::SourcePos;

const MAX_DEPTH: usize = 12;

const MAX_MANIFESTS: usize = 1000;

const MAX_NAMES: usize = 100_000;

/// Names of directories that contain files of third parties.
const SKIPPED_DIRECTORIES: &[&str] = &["node_modules", "target"];

/// A checked file.
#[derive(Debug, Clone)]
pub struct CheckedFile {
    /// Path of the file, relative to the checked directory.
    pub path: PathBuf,
    /// Kind of the manifest, by its file name. `None` for a file that is only checked because another file
    /// refers to it.
    pub kind: Option<ManifestKind>,
    pub findings: Findings,
}

/// Checks every manifest below `root`, and resolves every ACP.md. `further` adds findings about each resolved
/// manifest. Hidden directories and links are skipped. An ACP.md that only describes an external runtime is
/// not resolved.
pub fn check_directory(root: &Path, further: &dyn Fn(&Bundle) -> Findings) -> io::Result<Vec<CheckedFile>> {
    let workspace = Workspace::open(root)?;
    let mut checked = Vec::new();
    for (path, kind) in manifests(workspace.root())? {
        let findings = match workspace.read(&path, MAX_MANIFEST_BYTES + 1) {
            Ok(bytes) => document::check_in(workspace.name(), kind, &path, &bytes),
            Err(error) => unreadable(&path, &error),
        };
        checked.push(CheckedFile { path, kind: Some(kind), findings });
    }
    let roots: Vec<PathBuf> =
        checked.iter().filter(|file| leads_on(file)).map(|file| file.path.clone()).collect();
    let mut met = Vec::new();
    for path in roots {
        let findings = match resolve(&workspace, &path) {
            Ok(bundle) => {
                let more = further(&bundle);
                let policies = bundle.policies.iter().map(|bound| &bound.policy.path);
                let is_missed =
                    |path: &&PathBuf| more.iter().any(|it| it.code == Code::Subject && it.file == **path);
                met.extend(policies.filter(|path| !is_missed(path)).cloned());
                bundle.warnings.into_iter().chain(more).collect()
            }
            Err(findings) => findings.into_iter().collect::<Vec<_>>(),
        };
        for finding in findings {
            match checked.iter_mut().find(|file| file.path == finding.file) {
                Some(file) => file.findings.merge(finding),
                None => {
                    let mut findings = Findings::default();
                    let path = finding.file.clone();
                    findings.push(finding);
                    checked.push(CheckedFile { path, kind: None, findings });
                }
            }
        }
    }
    // This applies to files that are not resolved, too, such as NAME.ACP.md.
    let served = checked.iter_mut().filter(|file| file.kind == Some(ManifestKind::Acp));
    served.filter(|file| !file.findings.is_descriptive()).for_each(|file| file.findings.for_running());
    // Several operators may share a policy, and one of them is enough to have the tool that the policy is
    // about.
    let shared = checked.iter_mut().filter(|file| met.contains(&file.path));
    shared.for_each(|file| file.findings.without(Code::Subject));
    checked.iter_mut().for_each(|file| file.findings.sort());
    Ok(checked)
}

/// Returns `true` if a file is probably meant to be run.
fn leads_on(file: &CheckedFile) -> bool {
    let plain = file.path.file_name().is_some_and(|name| name == ManifestKind::Acp.file_name());
    plain && !file.findings.has_errors() && !file.findings.is_descriptive()
}

fn unreadable(path: &Path, error: &FilesError) -> Findings {
    let mut findings = Findings::default();
    let code = if *error == FilesError::TooLong { Code::TooLong } else { Code::Unreadable };
    findings.push(Draft::error(code, SourcePos::START, error.to_string()).into_finding(path));
    findings
}

fn manifests(root: &Path) -> io::Result<Vec<(PathBuf, ManifestKind)>> {
    let mut found = Vec::new();
    let mut open = vec![(PathBuf::new(), 0)];
    let mut names = 0;
    while let Some((directory, depth)) = open.pop() {
        let entries = match fs::read_dir(root.join(&directory)) {
            Ok(entries) => entries,
            // The directory `root` must be readable. Other unreadable directories are skipped.
            Err(error) if depth == 0 => return Err(error),
            Err(_) => continue,
        };
        for entry in entries {
            let entry = entry?;
            names += 1;
            if names > MAX_NAMES || found.len() > MAX_MANIFESTS {
                return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "the directory has too many files"));
            }
            let (name, kind) = (entry.file_name(), entry.file_type()?);
            let text = name.to_string_lossy();
            let path = directory.join(&name);
            if kind.is_dir() {
                if !text.starts_with('.')
                    && !SKIPPED_DIRECTORIES.contains(&text.as_ref())
                    && depth < MAX_DEPTH
                {
                    open.push((path, depth + 1));
                }
            } else if let Some(kind) = ManifestKind::from_path(&path) {
                found.push((path, kind));
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;

    const ACP: &str = "---\nname: notes\nid: notes\ndescription: d\nversion: 1.0.0\nkind: server\ntransport: stdio\n\
                       metadata: {aip44: {acp_rev: \"272bf79\", tier: governance-aware, operator: ./OPERATOR.md}}\n---\n";

    fn rendered_findings(root: &Path) -> Vec<String> {
        let checked = check_directory(root, &|_| Findings::default()).unwrap();
        let lines = checked.iter().flat_map(|file| {
            let findings = file.findings.iter();
            findings.map(|finding| {
                format!("{}:{} {} {}", finding.file.display(), finding.line, finding.severity, finding.code)
            })
        });
        lines.collect()
    }

    #[test]
    fn every_manifest_is_found_and_resolved() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("ACP.md", "---\nname: x\n---\n");
        let first = rendered_findings(root.path());
        assert!(
            first.contains(&"ACP.md:2 warning name-mismatch".to_owned()),
            "the root has a name, too: {first:?}"
        );
        fs::remove_file(root.path().join("ACP.md")).unwrap();
        put("notes/ACP.md", ACP);
        put("notes/RUNNER.md", "---\nengine: x\n---\n");
        put("other.ACP.md", &ACP.replace("notes", "other"));
        put("opaque/ACP.md", &ACP.replace("notes", "opaque").replace(", operator: ./OPERATOR.md", ""));
        put("typo/ACP.md", &ACP.replace("notes", "typo").replace("operator:", "operater:"));
        put(".hidden/RUNNER.md", "");
        put("node_modules/x/RUNNER.md", "");
        put("README.md", "");
        assert_eq!(
            rendered_findings(root.path()),
            [
                "notes/ACP.md:8 error not-found",
                "notes/RUNNER.md:2 error enum",
                "opaque/ACP.md:6 warning unbound",
                "typo/ACP.md:6 error unbound",
                "typo/ACP.md:8 error unbound",
                "typo/ACP.md:8 error unknown-aip44-key",
            ]
        );
        put(
            "notes/OPERATOR.md",
            "---\nname: N\nid: notes\npersona_summary: p\nversion: 1.0.0\nprofile: {role: r, voice: v, boundaries: []}\n---\n",
        );
        put(
            "notes/GOVERNANCE.md",
            "---\nschema: governance.workspace/v1\nname: home\ntitle: t\ndescription: d\nversion: 1.0.0\naudit: {hashAlgo: blake3}\n---\n",
        );
        let checked = check_directory(root.path(), &|_| Findings::default()).unwrap();
        let governance = checked.iter().find(|file| file.kind == Some(ManifestKind::Governance)).unwrap();
        let severities: Vec<Severity> = governance.findings.iter().map(|finding| finding.severity).collect();
        assert_eq!(severities, [Severity::Error], "a warning about the file is an error when it is run");
    }

    #[test]
    fn a_missing_directory_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        assert!(check_directory(root.path(), &|_| Findings::default()).unwrap().is_empty());
        assert!(check_directory(&root.path().join("none"), &|_| Findings::default()).is_err());
    }
}
