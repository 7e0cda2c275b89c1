//! Variants of the manifest with errors, to check that they are found. Nothing on disk is changed.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use narrows_manifest::types::acp::{Role, Tier};
use narrows_manifest::{
    Bundle, Code, Files, FilesError, Finding, MAX_MANIFEST_BYTES, MemoryFiles, Workspace, resolve,
};

use super::point::{PointResult, fails, not_applicable, passes};
use crate::command::serve::manifest::LoadedManifest;

/// Files in memory, with the name of their directory.
struct NamedFiles {
    files: MemoryFiles,
    name: Option<OsString>,
}

impl Files for NamedFiles {
    fn read(&self, path: &Path, most: u64) -> Result<Vec<u8>, FilesError> {
        self.files.read(path, most)
    }

    fn has_directory(&self, path: &Path) -> bool {
        self.files.has_directory(path)
    }

    fn name(&self) -> Option<&OsStr> {
        self.name.as_deref()
    }
}

pub(super) struct BrokenManifests {
    files: MemoryFiles,
    text: String,
    kind_and_tier: (Role, Tier),
    manifest: PathBuf,
    name: Option<OsString>,
    governed: bool,
}

/// Keys below `aip44`, and misspellings of them.
const TYPOS: [(&str, &str); 4] =
    [("governance", "govenance"), ("operator", "opertor"), ("sandbox", "sanbox"), ("audit", "audti")];

type LoadError = String;

impl BrokenManifests {
    pub(super) fn from_manifest(manifest: &LoadedManifest) -> Result<Self, LoadError> {
        let LoadedManifest { bundle, root, .. } = manifest;
        let workspace =
            Workspace::open(root).map_err(|error| format!("cannot open the workspace: {error}"))?;
        let mut files = MemoryFiles::default();
        for pin in &bundle.pins {
            let bytes = workspace
                .read(&pin.path, MAX_MANIFEST_BYTES)
                .map_err(|error| format!("{}: {error}", pin.path.display()))?;
            files = files.with(&pin.path, bytes);
        }
        let manifest = bundle.acp.path.clone();
        let text = workspace.read(&manifest, MAX_MANIFEST_BYTES).map_err(|error| error.to_string())?;
        let text = String::from_utf8(text).map_err(|_| "not UTF-8".to_owned())?;
        let governed = bundle.operator.as_ref().is_some_and(|operator| operator.front.governance.is_some());
        let broken = Self {
            files,
            text,
            kind_and_tier: (bundle.role, bundle.acp.front.metadata.aip44.tier),
            manifest,
            name: root.file_name().map(OsStr::to_owned),
            governed,
        };
        broken.load(&broken.text).map_err(|code| format!("a copy of its files is invalid ({code})"))?;
        Ok(broken)
    }

    fn load(&self, text: &str) -> Result<Bundle, Code> {
        let files =
            NamedFiles { files: self.files.clone().with(&self.manifest, text), name: self.name.clone() };
        resolve(&files, Path::new(&self.manifest)).map_err(|findings| {
            findings
                .iter()
                .find(|finding| finding.severity == narrows_manifest::Severity::Error)
                .map_or(Code::Unreadable, |it| it.code)
        })
    }

    /// Returns the text with every line that begins with `key` changed, or `None` if nothing changed.
    fn with_lines(&self, key: &str, change: impl Fn(&str, &str) -> Option<String>) -> Option<String> {
        let line = |line: &str| {
            let rest = line.trim_start();
            match rest.strip_prefix(key).filter(|rest| rest.starts_with(':')) {
                Some(_) => change(&line[..line.len() - rest.len()], line),
                None => Some(line.to_owned()),
            }
        };
        let text: Vec<String> = self.text.lines().filter_map(line).collect();
        let text = text.join("\n") + "\n";
        (text != self.text).then_some(text)
    }

    /// Passes if a manifest with this text is refused.
    fn refuses(&self, what: &str, text: Option<String>) -> PointResult {
        let Some(text) = text else { return not_applicable_form() };
        match self.load(&text) {
            Err(code) => passes(format!("the file is valid; {what} is refused ({code})")),
            Ok(_) => fails(format!("{what} is accepted")),
        }
    }

    /// Passes if a manifest with this text causes a new warning or is refused.
    fn warns(&self, what: &str, text: Option<String>) -> PointResult {
        let Some(text) = text else { return not_applicable_form() };
        // Warnings of the unchanged manifest do not count.
        let before = self.load(&self.text).map(|bundle| bundle.warnings).unwrap_or_default();
        let is_new = |finding: &Finding| !before.iter().any(|known| known == finding);
        match self.load(&text) {
            Ok(bundle) if bundle.warnings.iter().any(is_new) => passes(format!("{what} causes a warning")),
            Err(code) => passes(format!("{what} is refused ({code})")),
            Ok(_) => fails(format!("{what} causes no warning")),
        }
    }

    pub(super) fn front_matter(&self) -> PointResult {
        self.refuses("a file without front matter", Some("# Nothing\n".to_owned()))
    }

    pub(super) fn fields(&self) -> PointResult {
        self.refuses("a file without `id`", self.with_lines("id", |_, _| None))
    }

    pub(super) fn traps(&self) -> PointResult {
        let number = self.with_lines("acp_rev", |indent, _| Some(format!("{indent}acp_rev: 1234567")));
        let quoted = self.refuses("an `acp_rev` without quotes", number);
        // The manifest may contain one of the misspellings already.
        let is_absent = |(key, _): &&(&str, &str)| self.with_lines(key, |_, _| None).is_none();
        let Some((_, typo)) = TYPOS.iter().find(is_absent) else { return quoted };
        let text = self.with_lines("acp_rev", |indent, line| Some(format!("{line}\n{indent}{typo}: ./X.md")));
        match text.map(|text| self.load(&text)) {
            Some(Err(code)) => quoted.with(&passes(format!("`{typo}` is refused as a misspelling ({code})"))),
            Some(Ok(_)) => fails(format!("`{typo}` is accepted without a warning")),
            None => quoted,
        }
    }

    pub(super) fn name(&self) -> PointResult {
        self.warns(
            "a `name` that differs from the directory",
            self.with_lines("name", |indent, _| Some(format!("{indent}name: another-name"))),
        )
    }

    pub(super) fn binding(&self) -> PointResult {
        let (kind, _) = self.kind_and_tier;
        if kind == Role::Client {
            return not_applicable("a client manifest needs no operator");
        }
        let without = self.with_lines("operator", |_, _| None);
        let Some(text) = without.or_else(|| self.with_lines("governance", |_, _| None)) else {
            return not_applicable_form();
        };
        let text: Vec<&str> =
            text.lines().filter(|line| !line.trim_start().starts_with("governance:")).collect();
        self.refuses(
            &format!("a {} without operator and governance", kind.name()),
            Some(text.join("\n") + "\n"),
        )
    }

    pub(super) fn revision(&self, known: Option<u16>) -> PointResult {
        let text = self.with_lines("acp_rev", |indent, _| Some(format!("{indent}acp_rev: \"fffffff\"")));
        let unknown = self.warns("an unknown `acp_rev`", text);
        match known {
            Some(version) => passes(format!("its `acp_rev` means version {version}")).with(&unknown),
            None => unknown,
        }
    }

    pub(super) fn contradiction(&self) -> PointResult {
        let (_, tier) = self.kind_and_tier;
        let other = if tier > Tier::Basic && self.governed { "basic" } else { "sandboxed" };
        if tier == Tier::Sandboxed && other == "sandboxed" {
            return not_applicable("the operator is not governed, so no tier contradicts it");
        }
        self.refuses(
            &format!("tier {other}"),
            self.with_lines("tier", |indent, _| Some(format!("{indent}tier: {other}"))),
        )
    }
}

fn not_applicable_form() -> PointResult {
    not_applicable("the manifest cannot be varied line by line; narrows check applies the same rules")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_other_than_its_directory_is_a_warning() {
        for name in ["n", "not-that-of-the-directory"] {
            let text = format!(
                "---\nname: {name}\nid: nn\ndescription: d\nversion: 1.0.0\nkind: server\ntransport: stdio\nmetadata:\n  aip44:\n    acp_rev: \"272bf79\"\n    tier: governance-aware\n    operator: ./OPERATOR.md\n---\n"
            );
            let files = MemoryFiles::default()
                .with("n/OPERATOR.md", "---\nname: N\nid: nn\npersona_summary: p\nversion: 1.0.0\nprofile: {role: r, voice: v, boundaries: []}\ntools: []\ngovernance: {audit_log: 'audit:default', autonomy: autonomous}\n---\n")
                .with("n/GOVERNANCE.md", "---\nschema: governance.workspace/v1\nname: home\ntitle: t\ndescription: d\nversion: 1.0.0\nautonomy: {level: 2}\npolicies: []\n---\n");
            let broken = BrokenManifests {
                files,
                text,
                kind_and_tier: (Role::Server, Tier::GovernanceAware),
                manifest: PathBuf::from("n/ACP.md"),
                name: None,
                governed: false,
            };
            let warned = broken.load(&broken.text).map(|bundle| bundle.warnings.len());
            assert_eq!(warned.ok(), Some(usize::from(name != "n")));
            assert_eq!(broken.name(), passes("a `name` that differs from the directory causes a warning"));
        }
    }
}
