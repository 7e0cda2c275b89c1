//! The files of a workspace. No path and no link can lead out of the directory of a workspace.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use thiserror::Error;

/// The reason why a file cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FilesError {
    #[error("no such file")]
    NotFound,
    /// The path leads out of the workspace, or a link on the path does.
    #[error("the path is outside the workspace")]
    Outside,
    #[error("the file is too large")]
    TooLong,
    #[error("reading failed: {0}")]
    Other(String),
}

/// A workspace from which files are read. Paths are relative to the root of the workspace.
pub trait Files {
    /// Reads a whole file. Fails if the file has more than `most` bytes.
    fn read(&self, path: &Path, most: u64) -> Result<Vec<u8>, FilesError>;

    /// Returns `true` if the directory exists.
    fn has_directory(&self, path: &Path) -> bool;

    /// Returns the name of the root directory, if it has one.
    fn name(&self) -> Option<&OsStr> {
        None
    }
}

/// A workspace on disk. A link is followed if its target is in the workspace.
#[derive(Debug)]
pub struct Workspace {
    root: PathBuf,
    directory: OwnedFd,
}

impl Workspace {
    /// Opens the workspace with this root.
    pub fn open(root: &Path) -> io::Result<Self> {
        let root = root.canonicalize()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&root, flags, Mode::empty())?;
        Ok(Self { root, directory })
    }

    /// Returns the absolute path of the root, with all links resolved.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn find(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, FilesError> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = flags | OFlags::CLOEXEC;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(&self.directory, path, flags, Mode::empty(), beneath) {
            Ok(found) => Ok(found),
            Err(Errno::NOSYS | Errno::PERM) => self.find_by_name(path, flags),
            Err(error) => Err(reason(error)),
        }
    }

    /// Like `find`, for kernels without `openat2`. Resolves and checks the path, and opens the result without
    /// following links.
    fn find_by_name(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, FilesError> {
        let resolved = self.root.join(path).canonicalize().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => FilesError::NotFound,
            _ => FilesError::Other(error.kind().to_string()),
        })?;
        let inside = resolved.strip_prefix(&self.root).map_err(|_| FilesError::Outside)?;
        let mut at: Option<OwnedFd> = None;
        let mut names = inside.components().peekable();
        while let Some(name) = names.next() {
            let step = if names.peek().is_some() { OFlags::PATH | OFlags::DIRECTORY } else { flags };
            let from = at.as_ref().unwrap_or(&self.directory);
            at = Some(
                rustix::fs::openat(from, name.as_os_str(), step | OFlags::NOFOLLOW, Mode::empty())
                    .map_err(reason)?,
            );
        }
        match at {
            Some(found) => Ok(found),
            None => rustix::fs::openat(&self.directory, ".", flags, Mode::empty()).map_err(reason),
        }
    }
}

fn reason(error: Errno) -> FilesError {
    match error {
        Errno::NOENT | Errno::NOTDIR => FilesError::NotFound,
        Errno::XDEV | Errno::LOOP => FilesError::Outside,
        other => FilesError::Other(io::Error::from(other).kind().to_string()),
    }
}

impl Files for Workspace {
    fn read(&self, path: &Path, most: u64) -> Result<Vec<u8>, FilesError> {
        let other = |error: io::Error| FilesError::Other(error.kind().to_string());
        let file = File::from(self.find(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?);
        // Only regular files are read, because reading a pipe could block.
        if !file.metadata().map_err(other)?.is_file() {
            return Err(FilesError::Other("the path is not a regular file".into()));
        }
        let mut bytes = Vec::new();
        file.take(most + 1).read_to_end(&mut bytes).map_err(other)?;
        if bytes.len() as u64 > most { Err(FilesError::TooLong) } else { Ok(bytes) }
    }

    fn has_directory(&self, path: &Path) -> bool {
        self.find(path, OFlags::PATH | OFlags::DIRECTORY).is_ok()
    }

    fn name(&self) -> Option<&OsStr> {
        self.root.file_name()
    }
}

/// A workspace in memory.
#[derive(Debug, Clone, Default)]
pub struct MemoryFiles {
    files: BTreeMap<PathBuf, Vec<u8>>,
    directories: BTreeSet<PathBuf>,
}

impl MemoryFiles {
    /// Adds a file.
    #[must_use]
    pub fn with(mut self, path: impl Into<PathBuf>, bytes: impl Into<Vec<u8>>) -> Self {
        let path = path.into();
        self.directories.extend(path.ancestors().skip(1).map(Path::to_path_buf));
        self.files.insert(path, bytes.into());
        self
    }

    /// Removes a file.
    #[must_use]
    pub fn without(mut self, path: impl AsRef<Path>) -> Self {
        self.files.remove(path.as_ref());
        self
    }
}

impl Files for MemoryFiles {
    fn read(&self, path: &Path, most: u64) -> Result<Vec<u8>, FilesError> {
        let bytes = self.files.get(path).ok_or(FilesError::NotFound)?;
        if bytes.len() as u64 > most { Err(FilesError::TooLong) } else { Ok(bytes.clone()) }
    }

    fn has_directory(&self, path: &Path) -> bool {
        path.as_os_str().is_empty() || self.directories.contains(path)
    }
}

/// Returns the normalized path of `reference`, which is relative to `directory`. Returns `None` if the path
/// leads out of the workspace, or `reference` is not a path.
pub(crate) fn join(directory: &Path, reference: &str) -> Option<PathBuf> {
    if reference.is_empty() || reference.contains('\0') {
        return None;
    }
    let mut plain: Vec<&OsStr> = Vec::new();
    for component in directory.components().chain(Path::new(reference).components()) {
        match component {
            Component::CurDir => {}
            Component::Normal(name) => plain.push(name),
            Component::ParentDir => {
                plain.pop()?;
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(plain.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn references_stay_inside() {
        let check = |directory: &str, reference: &str, expected: Option<&str>| {
            assert_eq!(
                join(Path::new(directory), reference),
                expected.map(PathBuf::from),
                "{directory} {reference}"
            );
        };
        check("", "./OPERATOR.md", Some("OPERATOR.md"));
        check("a/b", "../c/X.md", Some("a/c/X.md"));
        check("a", "..", Some(""));
        check("a", "../..", None);
        check("a", "b/../../../c", None);
        check("", "../x", None);
        check("", "/etc/passwd", None);
        check("", "", None);
        check("", "a\0b", None);
    }

    /// Returns the result of reading a file, after checking that it is the same with and without `openat2`.
    fn both(workspace: &Workspace, path: &str) -> Result<Vec<u8>, FilesError> {
        let by_kernel = workspace.read(Path::new(path), 100);
        let by_name = workspace.find_by_name(Path::new(path), OFlags::RDONLY);
        assert_eq!(by_kernel.is_ok(), by_name.is_ok(), "{path}: {by_kernel:?} {by_name:?}");
        by_kernel
    }

    #[test]
    fn replacing_a_directory_by_a_link_does_not_leave_the_workspace() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let home = tempfile::tempdir().unwrap();
        let (root, outside) = (home.path().join("root"), home.path().join("outside"));
        for (directory, text) in [(root.join("d"), "inside"), (outside.clone(), "outside")] {
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("X.md"), text).unwrap();
        }
        let workspace = Workspace::open(&root).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::fs::rename(root.join("d"), root.join("kept")).unwrap();
                    symlink(&outside, root.join("d")).unwrap();
                    std::fs::remove_file(root.join("d")).unwrap();
                    std::fs::rename(root.join("kept"), root.join("d")).unwrap();
                }
            });
            for _ in 0..2_000 {
                let path = Path::new("d/X.md");
                if let Ok(bytes) = workspace.read(path, 100) {
                    assert_eq!(bytes, b"inside");
                }
                if let Ok(found) = workspace.find_by_name(path, OFlags::RDONLY) {
                    let mut text = String::new();
                    File::from(found).read_to_string(&mut text).unwrap();
                    assert_eq!(text, "inside");
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn links_within_the_workspace_are_followed() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        let inside = tempfile::tempdir().unwrap();
        let root = inside.path();
        std::fs::create_dir(root.join("d")).unwrap();
        std::fs::write(root.join("d/a"), "x").unwrap();
        symlink("d/a", root.join("good")).unwrap();
        symlink(outside.path().join("secret"), root.join("bad")).unwrap();
        symlink(outside.path(), root.join("out")).unwrap();
        symlink("../..", root.join("d/up")).unwrap();
        let workspace = Workspace::open(root).unwrap();
        assert_eq!(both(&workspace, "good"), Ok(b"x".to_vec()));
        assert_eq!(both(&workspace, "d/a"), Ok(b"x".to_vec()));
        assert_eq!(both(&workspace, "bad"), Err(FilesError::Outside));
        assert_eq!(both(&workspace, "out/secret"), Err(FilesError::Outside));
        assert_eq!(both(&workspace, "none"), Err(FilesError::NotFound));
        assert_eq!(both(&workspace, "d/a/b"), Err(FilesError::NotFound));
        assert!(both(&workspace, "d/up/x").is_err());
        assert!(workspace.read(Path::new("d"), 100).is_err());
        assert_eq!(workspace.read(Path::new("d/a"), 0), Err(FilesError::TooLong));
        assert!(workspace.has_directory(Path::new("d")) && workspace.has_directory(Path::new("")));
        assert!(!workspace.has_directory(Path::new("out")) && !workspace.has_directory(Path::new("d/a")));
    }

    #[test]
    fn reading_a_pipe_does_not_block() {
        let directory = tempfile::tempdir().unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            directory.path().join("p"),
            rustix::fs::FileType::Fifo,
            Mode::RUSR,
            0,
        )
        .unwrap();
        let workspace = Workspace::open(directory.path()).unwrap();
        assert!(matches!(workspace.read(Path::new("p"), 10), Err(FilesError::Other(_))));
    }

    proptest! {
        #[test]
        fn joined_paths_stay_in_the_workspace(directory in "[a-c/.]{0,12}", reference in "[a-c/.~\\\\ ]{0,16}") {
            if let Some(inner) = join(Path::new("a"), &directory)
                && let Some(path) = join(&inner, &reference)
            {
                prop_assert!(path.components().all(|component| matches!(component, Component::Normal(_))), "{path:?}");
            }
        }
    }
}
