//! Detects the repository that git reads in a directory, by its layout.
//!
//! Git runs programs that the configuration of a repository names (`core.fsmonitor`, `core.pager`,
//! `diff.external`), even for `git status`. The configuration in a `.git` is protected, and no repository
//! can contain a `.git`. But a directory that is itself a repository needs no such name, and a `.git` that
//! is a file can lead to one. So an agent that only writes unprotected files of a workspace could make git
//! run programs.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// What is at a path. Links are not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskEntry {
    Missing,
    Directory,
    File(String),
    /// An entry of another type, or one that cannot be read.
    Unknown,
}

/// Read access to the disk.
pub trait RepositoryDisk {
    /// Returns the entry at `path`, without following links.
    fn entry(&self, path: &Path) -> DiskEntry;

    /// Returns `path` with all links resolved. `None` if it does not exist.
    fn real(&self, path: &Path) -> Option<PathBuf>;
}

/// Returns `true` if git in `directory` may read a repository that is not named `.git`. The path of
/// `directory` must have no links.
pub fn is_unusual_repository(directory: &Path, disk: &dyn RepositoryDisk) -> bool {
    for place in directory.ancestors() {
        // If git does not accept a `.git` as a repository, it examines the directory itself, and after that
        // the parents.
        if is_repository(place, disk) {
            return true;
        }
        let found = place.join(".git");
        let git = match disk.entry(&found) {
            DiskEntry::Missing => continue,
            DiskEntry::Directory | DiskEntry::Unknown => found,
            // If git cannot read the `.git` file, it stops with an error.
            DiskEntry::File(text) => {
                return git_file_target(text.as_bytes()).is_none_or(|git| !is_usual(&place.join(git), disk));
            }
        };
        if !is_usual(&git, disk) {
            return true;
        }
        if is_accepted(&git, disk) {
            return false;
        }
    }
    false
}

/// Returns `true` if a git directory, and the directory of its configuration, are at paths at which no
/// command can create a directory.
fn is_usual(git: &Path, disk: &dyn RepositoryDisk) -> bool {
    let Some(git) = disk.real(git).filter(|real| is_in_git(real)) else { return false };
    match disk.entry(&git.join("commondir")) {
        DiskEntry::Missing => true,
        DiskEntry::File(text) => common_directory(&git, text.as_bytes())
            .and_then(|common| disk.real(&common))
            .is_some_and(|real| is_in_git(&real)),
        DiskEntry::Directory | DiskEntry::Unknown => false,
    }
}

/// Returns `true` if git certainly accepts `git` as a repository, and searches no further.
fn is_accepted(git: &Path, disk: &dyn RepositoryDisk) -> bool {
    let DiskEntry::File(head) = disk.entry(&git.join("HEAD")) else { return false };
    let is_id = |id: &str| id.len() >= 40 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_head = match head.strip_prefix("ref:") {
        Some(name) => name.trim_start().starts_with("refs/"),
        None => is_id(head.trim_end()),
    };
    is_head && ["objects", "refs"].iter().all(|name| disk.entry(&git.join(name)) == DiskEntry::Directory)
}

/// Returns `true` if git may accept the directory `place` itself as a repository.
fn is_repository(place: &Path, disk: &dyn RepositoryDisk) -> bool {
    has_repository_layout(|name| disk.entry(&place.join(name)) != DiskEntry::Missing)
}

/// Returns `true` if git may accept a directory as a repository. `has` returns `true` for the names that the
/// directory contains.
pub fn has_repository_layout(has: impl Fn(&str) -> bool) -> bool {
    has("HEAD") && (has("objects") && has("refs") || has("commondir"))
}

/// Returns the path that a `.git` file with this text names, relative to the directory of the file. `None` if
/// git does not accept the text.
pub fn git_file_target(text: &[u8]) -> Option<&Path> {
    named_path(text.strip_prefix(b"gitdir: ")?)
}

/// Returns the directory of the configuration of the repository `git`. `text` is the content of the
/// repository's file `commondir`. `None` if git does not accept the text.
pub fn common_directory(git: &Path, text: &[u8]) -> Option<PathBuf> {
    named_path(text).map(|path| git.join(path))
}

/// Returns the path that a file with this text names. Git ignores line ends at the end, and everything after
/// a NUL.
fn named_path(mut text: &[u8]) -> Option<&Path> {
    while let [rest @ .., b'\n' | b'\r'] = text {
        text = rest;
    }
    let text = text.split(|byte| *byte == 0).next().filter(|text| !text.is_empty())?;
    Some(Path::new(OsStr::from_bytes(text)))
}

/// Returns `true` if a path is a `.git`, or is in one of the directories in it that worktrees and submodules
/// use. Elsewhere in a `.git`, a command can create directories.
fn is_in_git(real: &Path) -> bool {
    let mut names = real.components().peekable();
    let mut is_in_git = false;
    while let Some(name) = names.next() {
        if name == Component::Normal(".git".as_ref()) {
            let is_known =
                |next: &Component| ["modules", "worktrees"].iter().any(|known| next.as_os_str() == *known);
            if !names.peek().is_none_or(is_known) {
                return false;
            }
            is_in_git = true;
        }
    }
    is_in_git
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A disk. The value of a path is the text of a file, `None` for a directory, and a text with `->` for a
    /// link.
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
            let mut plain = PathBuf::new();
            for part in path.components() {
                match part {
                    Component::ParentDir => drop(plain.pop()),
                    part => plain.push(part),
                }
            }
            match self.0.get(&plain)? {
                Some(text) if text.starts_with("->") => Some(text[2..].into()),
                _ => Some(plain),
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
        let own = [(".git/HEAD", "ref: refs/heads/x"), (".git/objects", ""), (".git/refs", "")];
        let bare = [("HEAD", "ref: x"), ("objects", ""), ("refs", ""), ("config", "[core]")];
        check(&[], false);
        check(&own, false);
        check(&bare, true);
        check(&bare[..2], false);
        // If git does not accept the `.git` of a directory, it examines the directory itself.
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
        let own = [(".git", ""), (".git/HEAD", "ref: refs/heads/x"), (".git/objects", ""), (".git/refs", "")];
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

    #[test]
    fn the_directory_with_the_configuration_has_to_be_a_git_directory_too() {
        let own = [(".git/HEAD", "ref: refs/heads/x"), (".git/objects", ""), (".git/refs", ""), ("d", "")];
        let check_with =
            |more: &[(&str, &'static str)], expected| check(&[&own[..], more].concat(), expected);
        for text in ["../d", "../d\n", "/h/w/d", "/missing", "", "\n", "\0.", "objects", "objects/d", ".."] {
            // An entry without a text is a directory.
            check_with(&[(".git/commondir", text), (".git/objects/d", "")], true);
        }
        check_with(&[(".git/commondir", ".\n")], false);
        check_with(&[(".git/commondir", "->/h/w/d")], true);
        let link = [(".git", "gitdir: /m/.git/worktrees/w\n"), ("/m/.git/HEAD", "x")];
        let linked = |text: &'static str, expected| {
            check(&[&link[..], &[("/m/.git/worktrees/w/commondir", text), ("d", "")]].concat(), expected);
        };
        linked("../..\n", false);
        linked("../../../.git", false);
        linked("/h/w/d", true);
        linked("../../objects", true);
    }

    #[test]
    fn a_repository_that_commands_can_create_in_a_git_directory_is_unusual() {
        check(&[(".git", "gitdir: .x/.git/objects/d"), (".x/.git/objects/d", "")], true);
        check(&[(".git", "gitdir: .x/.git/objects/.git"), (".x/.git/objects/.git", "")], true);
        check(&[(".git", "->/m/.git/refs")], true);
    }

    #[test]
    fn a_git_directory_that_git_may_not_accept_does_not_end_the_search() {
        let above = [("/h/HEAD", "ref: refs/heads/x"), ("/h/objects", ""), ("/h/refs", "")];
        for head in ["x", "ref: x", "", "->/h/HEAD"] {
            let own = [(".git/HEAD", head), (".git/objects", ""), (".git/refs", "")];
            check(&[&above[..], &own[..]].concat(), true);
            check(&own, false);
        }
    }
}
