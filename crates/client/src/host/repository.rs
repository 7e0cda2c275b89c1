//! Files that git obeys and that are not known by their names: those of a repository that is not called `.git`, and the
//! hooks and settings that the settings of a repository name.
//!
//! git runs them without being asked to, so they are treated like the files of a `.git` that they stand for.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use super::links;

const GIT: &str = ".git";

/// The longest file of settings that is read.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// How many directories above a path are looked at.
const MAX_ANCESTORS: usize = 64;

/// Returns `true` if git takes a directory for a repository.
pub(super) fn is_repository(directory: &Path) -> bool {
    has_layout(directory, None)
}

/// Returns `true` if a directory has the layout of a repository, or would have it with an entry of the name `added`.
fn has_layout(directory: &Path, added: Option<&OsStr>) -> bool {
    let has = |name: &str| {
        added.is_some_and(|added| added == name) || directory.join(name).symlink_metadata().is_ok()
    };
    has("HEAD") && (has("objects") && has("refs") || has("commondir"))
}

/// Returns the paths in a `.git` that a change of `path` amounts to, which has no links in it. Blocks.
pub(super) fn counterparts(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if path.components().any(|name| name == Component::Normal(GIT.as_ref())) {
        return found;
    }
    for directory in path.ancestors().skip(1).take(MAX_ANCESTORS) {
        let Ok(rest) = path.strip_prefix(directory) else { continue };
        if is_repository(directory) {
            found.push(directory.join(GIT).join(rest));
        } else if has_layout(directory, rest.iter().next()) {
            // With this file it becomes a repository, and its settings come into force.
            found.push(directory.join(GIT).join("config"));
        }
        let git = directory.join(GIT);
        for Named { path: named, stands_for } in named_by_settings(&git, directory) {
            if let Ok(rest) = path.strip_prefix(&named) {
                found.push(if rest.as_os_str().is_empty() { stands_for } else { stands_for.join(rest) });
            }
        }
    }
    found
}

/// A path that the settings of a repository name, and the path in the repository that it stands for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) path: PathBuf,
    pub(super) stands_for: PathBuf,
}

/// Returns what the settings in the directory `git` of a repository name: the directory of its hooks, and more files of
/// settings. Relative paths of hooks start in `worktree`. Blocks.
pub(super) fn named_by_settings(git: &Path, worktree: &Path) -> Vec<Named> {
    let mut found = Vec::new();
    for name in ["config", "config.worktree"] {
        let file = git.join(name);
        let is_short = file.metadata().is_ok_and(|found| found.is_file() && found.len() <= MAX_CONFIG_BYTES);
        let Some(text) = is_short.then(|| std::fs::read_to_string(&file).ok()).flatten() else { continue };
        for (key, value) in paths_in(&text) {
            let (start, stands_for) = match key {
                PathKey::Hooks => (worktree, "hooks"),
                PathKey::Include => (git, "config"),
            };
            let path = start.join(value);
            // A file that does not exist yet is named by another path than the one it is written by.
            let path = links::real(&path).ok().flatten().unwrap_or(path);
            found.push(Named { path, stands_for: git.join(stands_for) });
        }
    }
    found
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathKey {
    Hooks,
    Include,
}

/// The paths in a file of settings.
fn paths_in(text: &str) -> Vec<(PathKey, String)> {
    let mut section = String::new();
    let mut found = Vec::new();
    for line in text.lines() {
        let mut line = line.trim();
        if let Some(rest) = line.strip_prefix('[') {
            let (name, behind) = rest.split_once(']').unwrap_or((rest, ""));
            section = name.split_whitespace().next().unwrap_or_default().to_ascii_lowercase();
            line = behind.trim();
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let key = match (section.as_str(), key.trim().to_ascii_lowercase().as_str()) {
            ("core", "hookspath") => PathKey::Hooks,
            ("include" | "includeif", "path") => PathKey::Include,
            _ => continue,
        };
        let value = value.trim();
        let value = match value.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next().unwrap_or_default(),
            None => value.split([';', '#']).next().unwrap_or_default().trim_end(),
        };
        if !value.is_empty() {
            found.push((key, value.to_owned()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
        let place = tempfile::tempdir().expect("a directory");
        let top = place.path().canonicalize().expect("it is there");
        for (file, text) in files {
            let path = top.join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, text).expect("a file");
        }
        (place, top)
    }

    #[test]
    fn files_of_a_repository_by_any_name_count_as_those_of_a_git_directory() {
        let (_place, top) = tree(&[
            ("r/x.git/HEAD", ""),
            ("r/x.git/objects/a", ""),
            ("r/x.git/refs/a", ""),
            ("r/y/HEAD", ""),
        ]);
        let check = |path: &str, expected: &[&str]| {
            let expected: Vec<PathBuf> = expected.iter().map(|name| top.join(name)).collect();
            assert_eq!(counterparts(&top.join(path)), expected, "{path}");
        };
        check("r/x.git/config", &["r/x.git/.git/config"]);
        check("r/x.git/hooks/pre-commit", &["r/x.git/.git/hooks/pre-commit"]);
        check("r/y/config", &[]);
        check("r/y/objects/x", &[]);
        check("r/main.rs", &[]);
        check("r/.git/config", &[]);
    }

    #[test]
    fn the_file_that_makes_a_directory_a_repository_counts_as_its_settings() {
        let (_place, top) =
            tree(&[("d/HEAD", ""), ("d/config", ""), ("d/objects/x", ""), ("w/commondir", "")]);
        assert_eq!(counterparts(&top.join("d/refs/x")), [top.join("d/.git/config")]);
        assert_eq!(counterparts(&top.join("w/HEAD")), [top.join("w/.git/config")]);
        assert_eq!(counterparts(&top.join("d/other")), [] as [PathBuf; 0]);
    }

    #[test]
    fn hooks_and_settings_that_settings_name_count_as_those_of_the_repository() {
        let config = "[core]\n\thooksPath = scripts/hooks ; ours\n[include] path = \"../team.conf\"\n\
            [includeIf \"gitdir:~/x\"]\n\tpath=more.conf\n[remote \"path\"]\n\tpath = src\n[core]\n\tbare = false\n";
        let (_place, top) = tree(&[("r/.git/config", config), ("r/scripts/hooks/pre-commit", "")]);
        let check = |path: &str, expected: &[&str]| {
            let expected: Vec<PathBuf> = expected.iter().map(|name| top.join(name)).collect();
            assert_eq!(counterparts(&top.join(path)), expected, "{path}");
        };
        check("r/scripts/hooks/pre-commit", &["r/.git/hooks/pre-commit"]);
        check("r/scripts/hooks", &["r/.git/hooks"]);
        check("r/team.conf", &["r/.git/config"]);
        check("r/scripts/build", &[]);
        check("r/src", &[]);
        assert_eq!(
            paths_in(config),
            [
                (PathKey::Hooks, "scripts/hooks".to_owned()),
                (PathKey::Include, "../team.conf".to_owned()),
                (PathKey::Include, "more.conf".to_owned()),
            ]
        );
    }
}
