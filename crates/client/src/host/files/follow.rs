//! Guesses the target of a path.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

use super::walk::MAX_LINKS;

/// Returns the absolute `path` with its links followed, as far as it exists. The result is only a guess:
/// links may change, so the caller must walk it beneath a root.
pub(crate) fn guess(path: &Path) -> Result<PathBuf, Errno> {
    let mut real = PathBuf::from("/");
    let mut steps: Vec<OsString> = Vec::new();
    push(&mut steps, path);
    let mut links = 0;
    let mut must_be_directory = false;
    while let Some(step) = steps.pop() {
        if step == ".." {
            // Only directories have a parent directory.
            if !real.is_dir() {
                return Err(Errno::NOENT);
            }
            real.pop();
            continue;
        }
        real.push(step);
        // Missing names and names that are not links stay as they are.
        let Ok(target) = std::fs::read_link(&real) else { continue };
        links += 1;
        if links > MAX_LINKS {
            return Err(Errno::LOOP);
        }
        real.pop();
        if target.is_absolute() {
            real = PathBuf::from("/");
        }
        must_be_directory |= steps.is_empty() && names_directory(&target);
        push(&mut steps, &target);
    }
    if must_be_directory && !real.is_dir() {
        return Err(Errno::NOENT);
    }
    Ok(real)
}

/// Returns `true` if the spelling of `path` can only mean a directory.
pub(super) fn names_directory(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes.ends_with(b"/")
        || bytes.ends_with(b"/.")
        || bytes.ends_with(b"/..")
        || bytes == b"."
        || bytes == b".."
}

/// Pushes the names of `path` in reverse order, so that the first is on top.
fn push(steps: &mut Vec<OsString>, path: &Path) {
    steps.extend(path.components().rev().filter_map(|component| match component {
        Component::ParentDir => Some(OsString::from("..")),
        Component::Normal(name) => Some(name.to_owned()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    }));
}
