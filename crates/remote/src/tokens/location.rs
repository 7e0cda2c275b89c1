//! Resolves, locks and atomically replaces a token file.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// Resolves symlinks, because replacing a symlink would leave the file behind it unchanged.
pub(super) fn resolve(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(path).is_err() => {
            Ok(path.to_owned())
        }
        found => found,
    }
}

/// Locks the directory against concurrent changes. A lock on the token file would be lost when the file is
/// replaced.
pub(super) fn lock_directory(path: &Path) -> io::Result<File> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let lock = File::open(directory)?;
    lock.lock()?;
    Ok(lock)
}

/// Replaces the file atomically. The new file is readable by the same users as the old one.
pub(super) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let old = match fs::metadata(path) {
        Ok(old) => Some(old),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    let written =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).and_then(|mut file| {
            if let Some(old) = &old {
                copy_ownership(&file, old)?;
            }
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
    let renamed = written.and_then(|()| fs::rename(&new, path));
    if renamed.is_err() {
        _ = fs::remove_file(&new);
    }
    renamed
}

/// Copies owner, group and mode of another file, as far as permitted.
fn copy_ownership(file: &File, old: &fs::Metadata) -> io::Result<()> {
    let now = file.metadata()?;
    // Only root can change the owner. Without that, the new file is still readable for members of the group.
    if now.uid() != old.uid() && fchown(file, Some(old.uid()), None).is_err() {
        tracing::debug!(owner = old.uid(), "token file owner not preserved");
    }
    let in_group = now.gid() == old.gid() || fchown(file, None, Some(old.gid())).is_ok();
    // Permissions of the old group are not granted to another group.
    let mode = old.mode() & if in_group { 0o777 } else { 0o707 };
    file.set_permissions(Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};
    use std::time::SystemTime;

    use super::super::{Digest, TokenError, Tokens, add, remove};
    use super::*;

    #[test]
    fn a_replaced_file_keeps_owner_group_and_mode() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.toml");
        add(&path, "one", None, SystemTime::UNIX_EPOCH).unwrap();
        let about = || {
            let about = fs::metadata(&path).unwrap();
            (about.uid(), about.gid(), about.mode() & 0o7777)
        };
        // Only root can change the owner, and not everywhere. The mode is checked in any case.
        _ = chown(&path, Some(1234), Some(2345));
        for mode in [0o640, 0o444, 0o600] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let before = about();
            add(&path, "two", None, SystemTime::UNIX_EPOCH).unwrap();
            assert_eq!(about(), before);
            remove(&path, "two").unwrap();
            assert_eq!((about(), before.2), (before, mode));
        }
    }

    #[test]
    fn a_symlink_is_kept_and_its_target_changed() {
        let directory = tempfile::tempdir().unwrap();
        let [path, link, nowhere] =
            ["real.toml", "link.toml", "none.toml"].map(|name| directory.path().join(name));
        let token = add(&path, "one", None, SystemTime::UNIX_EPOCH).unwrap();
        symlink("real.toml", &link).unwrap();
        let other = add(&link, "two", None, SystemTime::UNIX_EPOCH).unwrap();
        remove(&link, "one").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let tokens = Tokens::read(&path).unwrap();
        assert!(tokens.find(&Digest::new(&token)).is_none() && tokens.find(&Digest::new(&other)).is_some());
        symlink("gone.toml", &nowhere).unwrap();
        assert!(matches!(add(&nowhere, "one", None, SystemTime::UNIX_EPOCH), Err(TokenError::Io { .. })));
        assert!(fs::symlink_metadata(&nowhere).unwrap().is_symlink());
    }
}
