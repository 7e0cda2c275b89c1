//! Reads each file once, records its digest, and collects findings.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use narrows_base::text::quoted;
use sha2::{Digest, Sha256};

use super::plan::{Loaded, Pin};
use crate::code::Code;
use crate::document::{self, FrontMatter, MAX_MANIFEST_BYTES};
use crate::files::{Files, FilesError, join};
use crate::finding::{Draft, Findings};
use crate::yaml::SourcePos;

const MAX_FILES: usize = 256;

/// Reads files, and keeps their content and their findings.
pub(super) struct ManifestReader<'a> {
    pub(super) files: &'a dyn Files,
    pub(super) pins: Vec<Pin>,
    pub(super) findings: Findings,
    cache: Vec<(PathBuf, Vec<u8>)>,
}

impl<'a> ManifestReader<'a> {
    pub(super) fn new(files: &'a dyn Files) -> Self {
        Self { files, pins: Vec::new(), findings: Findings::default(), cache: Vec::new() }
    }

    pub(super) fn find<T>(&mut self, file: &Loaded<T>, draft: Draft) {
        self.findings.push(draft.into_finding(&file.path));
    }

    /// Reads a file, and records the digest of the returned bytes. Another read of the same file returns the
    /// same bytes.
    pub(super) fn bytes(&mut self, path: &Path) -> Result<Vec<u8>, FilesError> {
        if let Some((_, bytes)) = self.cache.iter().find(|(known, _)| known == path) {
            return Ok(bytes.clone());
        }
        if self.cache.len() == MAX_FILES {
            return Err(FilesError::Other(format!(
                "more than {MAX_FILES} files are referenced by this manifest"
            )));
        }
        let bytes = self.files.read(path, MAX_MANIFEST_BYTES)?;
        let mut sha256 = String::with_capacity(64);
        for byte in Sha256::digest(&bytes) {
            let _ = write!(sha256, "{byte:02x}");
        }
        self.pins.push(Pin { path: path.to_path_buf(), sha256 });
        self.cache.push((path.to_path_buf(), bytes.clone()));
        Ok(bytes)
    }

    /// Reads the file that `reference` in the file `from` names. A reference that begins with a dot is
    /// relative to `from`, any other to the root of the workspace.
    pub(super) fn read_reference<T>(
        &mut self,
        from: &Loaded<T>,
        reference: &str,
    ) -> Result<(PathBuf, Vec<u8>), FilesError> {
        let near = join(&from.directory(), reference).ok_or(FilesError::Outside)?;
        match self.bytes(&near) {
            Err(FilesError::NotFound) if !reference.starts_with('.') => {
                let far = join(Path::new(""), reference).ok_or(FilesError::Outside)?;
                self.bytes(&far).map(|bytes| (far, bytes))
            }
            other => other.map(|bytes| (near, bytes)),
        }
    }

    pub(super) fn manifest<T: FrontMatter>(&mut self, path: &Path) -> Option<Loaded<T>> {
        match self.bytes(path) {
            Ok(bytes) => self.parse(path, &bytes),
            Err(error) => {
                let code = code_of(&error);
                self.findings
                    .push(Draft::error(code, SourcePos::START, format!("{error}")).into_finding(path));
                None
            }
        }
    }

    /// Reads the manifest that a key refers to. If that fails, reports a finding with `code`.
    pub(super) fn read_manifest_reference<T: FrontMatter, F>(
        &mut self,
        from: &Loaded<F>,
        reference: &str,
        at: SourcePos,
        key: &str,
        code: Option<Code>,
    ) -> Option<Loaded<T>> {
        match self.read_reference(from, reference) {
            Ok((path, bytes)) => self.parse(&path, &bytes),
            Err(error) => {
                let code = code.unwrap_or(code_of(&error));
                let message = format!("the file `{}` cannot be read: {error}", quoted(reference, 200));
                let draft = Draft::error(code, at, message).key(key);
                let hint = match error {
                    FilesError::Outside => "keep it below the root of the workspace, or name a wider root",
                    _ => "write a path relative to this file, such as ./FILE.md",
                };
                self.find(from, draft.value(reference).hint(hint));
                None
            }
        }
    }

    pub(super) fn optional<T: FrontMatter>(&mut self, path: &Path) -> Option<Loaded<T>> {
        match self.bytes(path) {
            Err(FilesError::NotFound) => None,
            _ => self.manifest(path),
        }
    }

    pub(super) fn parse<T: FrontMatter>(&mut self, path: &Path, bytes: &[u8]) -> Option<Loaded<T>> {
        let mut read = document::read_in::<T>(self.files.name(), path, bytes);
        read.findings.for_running();
        self.add_findings(read.findings);
        // A well-formed file is resolved even if it cannot be run, so that all problems are found at once.
        read.document.map(|document| Loaded { path: path.to_path_buf(), document })
    }

    /// Adds findings. If a file is read for two references, its findings are added once.
    pub(super) fn add_findings(&mut self, findings: Findings) {
        for finding in findings {
            if !self.findings.iter().any(|known| *known == finding) {
                self.findings.push(finding);
            }
        }
    }
}

pub(super) fn code_of(error: &FilesError) -> Code {
    match error {
        FilesError::NotFound => Code::NotFound,
        FilesError::Outside => Code::Outside,
        FilesError::TooLong => Code::TooLong,
        FilesError::Other(_) => Code::Unreadable,
    }
}
