//! Files as they are read: each once, with its digest, and everything that is wrong with it.

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

/// The most files that one manifest leads to.
const MAX_FILES: usize = 256;

/// What was read so far.
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

    /// Notes what is wrong with a file that was read.
    pub(super) fn find<T>(&mut self, file: &Loaded<T>, draft: Draft) {
        self.findings.push(draft.into_finding(&file.path));
    }

    /// The bytes of a file. What is digested is what is returned, and a second look returns the same.
    pub(super) fn bytes(&mut self, path: &Path) -> Result<Vec<u8>, FilesError> {
        if let Some((_, bytes)) = self.cache.iter().find(|(known, _)| known == path) {
            return Ok(bytes.clone());
        }
        if self.cache.len() == MAX_FILES {
            return Err(FilesError::Other(format!("more than {MAX_FILES} files belong to this manifest")));
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

    /// The file that `reference` means in `from`: from there on, or else, if it does not begin with a dot, from the root on.
    pub(super) fn bytes_at<T>(
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

    /// A manifest at a place that is known, with what is wrong with it noted.
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

    /// The manifest that a key refers to. That it cannot be had is `code`.
    pub(super) fn referred<T: FrontMatter, F>(
        &mut self,
        from: &Loaded<F>,
        reference: &str,
        at: SourcePos,
        key: &str,
        code: Option<Code>,
    ) -> Option<Loaded<T>> {
        match self.bytes_at(from, reference) {
            Ok((path, bytes)) => self.parse(&path, &bytes),
            Err(error) => {
                let code = code.unwrap_or(code_of(&error));
                let message = format!("the file `{}` cannot be had: {error}", quoted(reference, 200));
                let draft = Draft::error(code, at, message).key(key);
                let hint = match error {
                    FilesError::Outside => "keep it below the root of the workspace, or name a wider root",
                    _ => "write a path from the directory of this file on, such as ./FILE.md",
                };
                self.find(from, draft.value(reference).hint(hint));
                None
            }
        }
    }

    /// A manifest that may be there.
    pub(super) fn optional<T: FrontMatter>(&mut self, path: &Path) -> Option<Loaded<T>> {
        match self.bytes(path) {
            Err(FilesError::NotFound) => None,
            _ => self.manifest(path),
        }
    }

    pub(super) fn parse<T: FrontMatter>(&mut self, path: &Path, bytes: &[u8]) -> Option<Loaded<T>> {
        let mut read = document::read_in::<T>(self.files.name(), path, bytes);
        read.findings.for_running();
        self.note(read.findings);
        // What is well formed is looked at further, also if it cannot be run, so that everything is found at once.
        read.document.map(|document| Loaded { path: path.to_path_buf(), document })
    }

    /// A file that two lead to is complained about once.
    pub(super) fn note(&mut self, findings: Findings) {
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
