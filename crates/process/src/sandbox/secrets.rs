//! Finds system settings that only root can read, to hide them from sandboxes that root starts.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::protected_paths::is_missing;

/// The directory of settings, most of which are public.
const SETTINGS_DIRECTORY: &str = "/etc";

const MAX_DEPTH: usize = 12;

const MAX_NAMES: usize = 100_000;

/// Maximum number of paths that are hidden one by one.
const MAX_HIDDEN_PATHS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hidden {
    pub(crate) path: PathBuf,
    pub(crate) is_directory: bool,
}

/// Returns the paths that only root can read. For a user other than root, returns none, because the user
/// cannot read them anyway.
///
/// # Errors
/// Returns an error if there are too many such paths.
pub(crate) fn hidden() -> io::Result<Vec<Hidden>> {
    if geteuid().is_root() {
        find_hidden(Path::new(SETTINGS_DIRECTORY), MAX_HIDDEN_PATHS)
    } else {
        Ok(Vec::new())
    }
}

fn find_hidden(top: &Path, most: usize) -> io::Result<Vec<Hidden>> {
    let mut found = find_unreadable(top)?;
    if found.len() > most {
        // If only one file of a directory must be hidden, the file is hidden. If several must be, the whole
        // directory is.
        for hidden in &mut found {
            if let Some(above) = hidden.path.parent().filter(|above| *above != top) {
                *hidden = Hidden { path: above.to_owned(), is_directory: true };
            }
        }
        found.sort();
        found.dedup();
        let all = found.clone();
        found.retain(|one| !all.iter().any(|other| other != one && one.path.starts_with(&other.path)));
    }
    if found.len() > most {
        return Err(io::Error::other(format!(
            "more than {most} paths in {} are readable only by root",
            top.display()
        )));
    }
    Ok(found)
}

/// Finds the outermost paths that other users may not read.
fn find_unreadable(top: &Path) -> io::Result<Vec<Hidden>> {
    let mut found = Vec::new();
    let mut open = vec![(top.to_owned(), 0)];
    let mut names = 0;
    while let Some((directory, depth)) = open.pop() {
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            // A path that no longer exists need not be hidden.
            Err(error) if is_missing(&error) => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            names += 1;
            let path = entry.path();
            // The target of a link is examined at its own path.
            let metadata = match path.symlink_metadata() {
                Err(error) if is_missing(&error) => continue,
                metadata => metadata?,
            };
            if metadata.is_symlink() {
                continue;
            }
            let is_directory = metadata.is_dir();
            let needed = if is_directory { 0o005 } else { 0o004 };
            if metadata.mode() & needed != needed || (is_directory && depth == MAX_DEPTH) {
                found.push(Hidden { path, is_directory });
            } else if is_directory {
                open.push((path, depth + 1));
            }
            if names > MAX_NAMES {
                return Err(io::Error::other(format!("{} has too many files", top.display())));
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn only_paths_that_others_may_not_read_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        let make = |name: &str, mode: u32| {
            let path = top.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "x").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        make("passwd", 0o644);
        make("shadow", 0o640);
        make("db/hba", 0o600);
        make("db/ident", 0o600);
        make("db/conf", 0o644);
        make("ssl/private/key", 0o644);
        fs::set_permissions(top.join("ssl/private"), fs::Permissions::from_mode(0o710)).unwrap();
        symlink("shadow", top.join("link")).unwrap();
        let told = |most: usize| {
            let found = find_hidden(&top, most)?;
            let name = |path: &Path| path.strip_prefix(&top).unwrap().display().to_string();
            Ok::<_, io::Error>(found.iter().map(|it| (name(&it.path), it.is_directory)).collect::<Vec<_>>())
        };
        let all = [("db/hba", false), ("db/ident", false), ("shadow", false), ("ssl/private", true)];
        assert_eq!(told(4).unwrap(), all.map(|(name, is)| (name.to_owned(), is)));
        let fewer = [("db", true), ("shadow", false), ("ssl", true)];
        assert_eq!(told(3).unwrap(), fewer.map(|(name, is)| (name.to_owned(), is)));
        assert!(told(2).is_err(), "a directory that cannot be hidden is an error");
    }
}
