//! Renames an entry that must not stay at its path.

use std::path::{Path, PathBuf};

use rustix::fs::{FileType, renameat};
use rustix::io::Errno;

use super::walk::DeepestDirectory;
use super::{FileError, Files, entry, kind};

const MAX_NAMES: usize = 1000;

impl Files {
    /// Renames the entry at `path` in its directory, or the first link on the way to it. Returns the new
    /// path, or `None` if there is no entry. `path` had no links when it was found missing.
    ///
    /// # Errors
    /// [`FileError`] if the path is in no root, or the entry cannot be renamed.
    pub(crate) fn move_aside(&self, path: &Path) -> Result<Option<PathBuf>, FileError> {
        self.rename_first(path).map_err(|errno| FileError::system(path, errno))
    }

    fn rename_first(&self, path: &Path) -> Result<Option<PathBuf>, Errno> {
        let (root, below) = self.roots.find_containing(path).ok_or(Errno::XDEV)?;
        let mut way = PathBuf::new();
        for name in below {
            let DeepestDirectory { directory, missing, .. } =
                self.roots.resolver().directory(root.fd(), &way)?;
            way.push(name);
            let found = if missing.is_empty() { entry(&directory, &name.to_owned())? } else { None };
            let Some(found) = found else { return Ok(None) };
            if way != below && kind(&found) != FileType::Symlink {
                continue;
            }
            for number in 1..=MAX_NAMES {
                let mut other = name.to_owned();
                other.push(format!(".denied-{number}"));
                if entry(&directory, &other)?.is_none() {
                    // If a command creates this name meanwhile, its file is overwritten.
                    return match renameat(&directory, name, &directory, &other) {
                        Ok(()) => Ok(Some(root.path().join(&way).with_file_name(&other))),
                        Err(Errno::NOENT) => Ok(None),
                        Err(errno) => Err(errno),
                    };
                }
            }
            return Err(Errno::EXIST);
        }
        Ok(None)
    }
}
