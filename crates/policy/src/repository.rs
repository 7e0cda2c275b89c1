//! Detects which repository git reads in a directory, by its layout.
//!
//! git runs programs that the configuration of a repository names (`core.fsmonitor`, `core.pager`,
//! `diff.external`), also for `git status`. The configuration in a `.git` is protected and no repository can
//! contain one. But a directory that is itself a repository needs no such name, and a `.git` that is a file
//! can lead to one, so files of a workspace are sufficient.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// The entry at a path, without following links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskEntry {
    /// Nothing.
    Missing,
    /// A directory.
    Directory,
    /// A file, with its text.
    File(String),
    /// Another type, or it is inaccessible.
    Unknown,
}

/// Access to the disk.
pub trait RepositoryDisk {
    /// Returns the entry at `path`, without following links.
    fn entry(&self, path: &Path) -> DiskEntry;

    /// Returns `path` with all links followed, if it exists.
    fn real(&self, path: &Path) -> Option<PathBuf>;
}

/// Returns `true` if git in `directory`, which has no links in it, may read a repository that is not a
/// `.git`.
pub fn is_unusual_repository(directory: &Path, disk: &dyn RepositoryDisk) -> bool {
    for place in directory.ancestors() {
        let found = place.join(".git");
        // If git does not accept a `.git`, it examines the directory itself, and then its parents.
        if is_repository(place, disk) {
            return true;
        }
        match disk.entry(&found) {
            DiskEntry::Missing => {}
            DiskEntry::Directory if is_repository(&found, disk) => return false,
            DiskEntry::Directory => {}
            DiskEntry::File(text) => return !leads_into_git(place, &text, disk),
            DiskEntry::Unknown => return disk.real(&found).is_none_or(|real| !is_in_git(&real)),
        }
    }
    false
}

/// Returns `true` if git may treat `place` itself as a repository.
fn is_repository(place: &Path, disk: &dyn RepositoryDisk) -> bool {
    has_repository_layout(|name| disk.entry(&place.join(name)) != DiskEntry::Missing)
}

/// Returns `true` if git may treat a directory that `has` entries with these names as a repository.
pub fn has_repository_layout(has: impl Fn(&str) -> bool) -> bool {
    has("HEAD") && (has("objects") && has("refs") || has("commondir"))
}

/// Returns the path in the text of a `.git` file, relative to the directory of the file. `None` if git does
/// not accept the text.
pub fn git_file_target(text: &[u8]) -> Option<&Path> {
    let mut target = text.strip_prefix(b"gitdir: ")?;
    while let [rest @ .., b'\n' | b'\r'] = target {
        target = rest;
    }
    // git reads it as a C string.
    let target = target.split(|byte| *byte == 0).next().filter(|target| !target.is_empty())?;
    Some(Path::new(OsStr::from_bytes(target)))
}

/// Returns `true` if the `.git` file in `place` names a directory of a `.git`, like those of worktrees and
/// submodules.
fn leads_into_git(place: &Path, text: &str, disk: &dyn RepositoryDisk) -> bool {
    git_file_target(text.as_bytes())
        .and_then(|target| disk.real(&place.join(target)))
        .is_some_and(|real| is_in_git(&real))
}

fn is_in_git(real: &Path) -> bool {
    real.components().any(|name| name == Component::Normal(".git".as_ref()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Paths: with a text for files, otherwise directories; `->` is a link.
    struct Tree(BTreeMap<PathBuf, Option<&'static str>>);

    impl RepositoryDisk for Tree {
        fn entry(&self, path: &Path) -> DiskEntry {
            match self.0.get(path) {
                Some(Some(text)) if text.starts_with("->") => DiskEntry::Unknown,
                Some(Some(text)) => DiskEntry::File((*text).to_owned()),
                Some(None) => DiskEntry::Directory,
                None => DiskEntry::Missing,
            }
        }

        fn real(&self, path: &Path) -> Option<PathBuf> {
            match self.0.get(path)? {
                Some(text) if text.starts_with("->") => Some(text[2..].into()),
                _ => Some(path.to_owned()),
            }
        }
    }

    #[track_caller]
    fn check(files: &[(&str, &'static str)], expected: bool) {
        let mut tree = BTreeMap::new();
        for (path, text) in files {
            let path = Path::new("/h/w").join(path);
            for parent in path.ancestors().skip(1) {
                tree.entry(parent.to_owned()).or_insert(None);
            }
            tree.insert(path, (!text.is_empty()).then_some(*text));
        }
        assert_eq!(is_unusual_repository(Path::new("/h/w"), &Tree(tree)), expected, "{files:?}");
    }

    #[test]
    fn only_a_git_directory_is_a_usual_repository() {
        let own = [(".git/HEAD", "ref: x"), (".git/objects", ""), (".git/refs", "")];
        let bare = [("HEAD", "ref: x"), ("objects", ""), ("refs", ""), ("config", "[core]")];
        check(&[], false);
        check(&own, false);
        check(&bare, true);
        check(&bare[..2], false);
        // git examines the directory itself if it does not accept its `.git`.
        check(&[&bare[..], &own[..]].concat(), true);
        check(&[&bare[..], &[(".git", "")]].concat(), true);
        check(&[("HEAD", "x"), ("commondir", "/evil")], true);
        check(&[("HEAD", "->/evil/HEAD"), ("objects", "->/evil"), ("refs", "->/evil")], true);
    }

    #[test]
    fn the_directories_above_count_up_to_the_first_repository() {
        let above = [("../HEAD", "x"), ("../objects", ""), ("../refs", "")];
        let above = above.map(|(path, text)| (path, text));
        let tree = |files: &[(&str, &'static str)]| {
            let plain = |path: &str| {
                path.strip_prefix("../").map_or_else(|| format!("/h/w/{path}"), |up| format!("/h/{up}"))
            };
            Tree(
                files
                    .iter()
                    .map(|(path, text)| (plain(path).into(), (!text.is_empty()).then_some(*text)))
                    .collect(),
            )
        };
        assert!(is_unusual_repository(Path::new("/h/w"), &tree(&above)));
        let own = [(".git", ""), (".git/HEAD", "x"), (".git/objects", ""), (".git/refs", "")];
        assert!(!is_unusual_repository(Path::new("/h/w"), &tree(&[&above[..], &own[..]].concat())));
    }

    #[test]
    fn a_git_file_or_link_leads_into_a_git_directory() {
        check(&[(".git", "gitdir: .git-main/.git/worktrees/w\n"), (".git-main/.git/worktrees/w", "")], false);
        check(&[(".git", "gitdir: /h/w/sub/.git/modules/a"), ("sub/.git/modules/a", "")], false);
        check(&[(".git", "gitdir: evil\n"), ("evil", "")], true);
        check(&[(".git", "gitdir: missing/.git\n")], true);
        check(&[(".git", "nonsense")], true);
        check(&[(".git", "->/other/.git")], false);
        check(&[(".git", "->/h/w/evil")], true);
    }
}
