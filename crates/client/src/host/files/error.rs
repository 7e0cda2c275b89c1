//! Errors of reading and writing files.

use std::path::{Path, PathBuf};

use narrows_wire::{Code, Effects, RpcError};
use rustix::io::Errno;
use serde_json::json;

use super::MAX_PATH_BYTES;

/// Maximum number of characters of a path that are quoted.
const MAX_QUOTED_CHARS: usize = 300;

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}: {kind}", quoted(.path))]
pub(crate) struct FileError {
    path: PathBuf,
    kind: FileErrorKind,
    effects: Effects,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FileErrorKind {
    #[error("`path` must be absolute")]
    Relative,
    /// The path cannot be a valid path.
    #[error("`path` is too long or contains a NUL character")]
    Malformed,
    #[error("the path is outside the session's directories")]
    Outside,
    #[error("file not found")]
    NotFound,
    /// The path names something other than a regular file.
    #[error("the path names {0}, not a regular file")]
    NotRegular(&'static str),
    /// The file or the text is too long.
    #[error("the file exceeds the limit of {limit} bytes")]
    TooLarge {
        /// In bytes.
        limit: usize,
    },
    #[error("the file is not UTF-8 text")]
    NotText,
    /// The path contains a link, but links are not followed for this request.
    #[error("the path contains a symbolic link")]
    Link,
    #[error("the path contains too many symbolic links")]
    Links,
    #[error("the file was changed concurrently")]
    Changed,
    #[error("access denied: {0}")]
    Denied(Errno),
    #[error("{0}")]
    System(Errno),
}

impl FileError {
    pub(crate) fn new(path: &Path, kind: FileErrorKind) -> Self {
        Self { path: path.to_owned(), kind, effects: Effects::None }
    }

    pub(super) fn system(path: &Path, errno: Errno) -> Self {
        let kind = match errno {
            Errno::NOENT | Errno::NOTDIR => FileErrorKind::NotFound,
            Errno::XDEV => FileErrorKind::Outside,
            Errno::ISDIR => FileErrorKind::NotRegular("a directory"),
            Errno::NAMETOOLONG | Errno::ILSEQ => FileErrorKind::Malformed,
            Errno::LOOP => FileErrorKind::Links,
            Errno::AGAIN => FileErrorKind::Changed,
            Errno::ACCESS | Errno::PERM | Errno::ROFS => FileErrorKind::Denied(errno),
            errno => FileErrorKind::System(errno),
        };
        Self::new(path, kind)
    }

    pub(super) fn io(path: &Path, error: &std::io::Error) -> Self {
        Self::system(path, Errno::from_io_error(error).unwrap_or(Errno::IO))
    }

    pub(super) fn effects(self, effects: Effects) -> Self {
        Self { effects, ..self }
    }

    pub(crate) fn kind(&self) -> &FileErrorKind {
        &self.kind
    }

    pub(crate) fn to_rpc(&self) -> RpcError {
        let (code, condition) = match &self.kind {
            FileErrorKind::NotFound => (Code::NotFound, "not_found"),
            FileErrorKind::Relative => (Code::InvalidParams, "path_not_absolute"),
            FileErrorKind::Malformed => (Code::InvalidParams, "path_malformed"),
            FileErrorKind::Outside => (Code::InvalidParams, "path_outside_workspace"),
            FileErrorKind::NotRegular(_) => (Code::InvalidParams, "not_a_regular_file"),
            FileErrorKind::TooLarge { .. } => (Code::InvalidParams, "file_too_large"),
            FileErrorKind::NotText => (Code::InvalidParams, "not_text"),
            FileErrorKind::Link => (Code::InvalidParams, "path_has_link"),
            FileErrorKind::Links => (Code::InvalidParams, "too_many_links"),
            FileErrorKind::Changed => (Code::Internal, "file_changed"),
            FileErrorKind::Denied(_) => (Code::Internal, "permission_denied"),
            FileErrorKind::System(_) => (Code::Internal, "io_error"),
        };
        let path: String = self.path.to_string_lossy().chars().take(MAX_PATH_BYTES).collect();
        let uri = file_uri(&self.path);
        let message = match &self.kind {
            // Same message as in the official SDKs, which agents may recognize.
            FileErrorKind::NotFound => {
                format!("Resource not found: {uri}")
            }
            _ => self.to_string(),
        };
        let error = RpcError::new(code, message)
            .effects(self.effects)
            .with("condition", condition.into())
            .with("path", path.into());
        match &self.kind {
            FileErrorKind::NotFound => error.with("uri", uri.into()),
            FileErrorKind::Relative | FileErrorKind::Malformed => error.with("field", "path".into()),
            FileErrorKind::TooLarge { limit } => error.with("limit", json!(limit)),
            FileErrorKind::Changed => error.with("retryable", true.into()),
            _ => error,
        }
    }
}

/// Returns the `file:` URI of a path, percent-encoded.
fn file_uri(path: &Path) -> String {
    let mut uri = "file://".to_owned();
    for byte in path.as_os_str().as_encoded_bytes().iter().take(MAX_PATH_BYTES) {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => uri.push(char::from(*byte)),
            b'-' | b'.' | b'_' | b'~' | b'/' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+'
            | b',' | b';' | b'=' | b':' | b'@' => uri.push(char::from(*byte)),
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

/// Quotes a path for people. Escapes it, because the agent chose its characters.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    match text.char_indices().nth(MAX_QUOTED_CHARS) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
