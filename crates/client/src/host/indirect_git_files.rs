//! Finds files that git uses under other names: those of a repository that is not called `.git`, and the
//! hooks and configuration files that a repository's configuration names.
//!
//! git runs or reads them automatically, so they are treated like the corresponding files in `.git`.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use narrows_policy::{common_directory, git_file_target, has_repository_layout};
use narrows_process::is_missing;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::git_config::{self, Parsed};
use super::links;

const GIT: &str = ".git";

/// Maximum number of bytes read of a configuration file. The rest counts as unknown.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Maximum number of path settings to follow for one repository. Each hook path is looked up in each work
/// tree.
const MAX_PATHS: usize = 64;

const MAX_CONFIG_FILES: usize = 64;

/// Maximum depth of includes, as in git.
const MAX_INCLUDE_DEPTH: usize = 10;

const MAX_HOOKS: usize = 1000;

const MAX_LOOKUP_FILES: usize = 20_000;

/// Maximum number of bytes of these files. The last file is still read completely.
const MAX_LOOKUP_BYTES: usize = 64 << 20;

/// Maximum number of paths and hook directory entries to follow in one lookup.
const MAX_LOOKUP_PATHS: usize = 20_000;

/// Maximum number of directories above a path that are examined.
pub(super) const MAX_ANCESTORS: usize = 64;

/// Remaining budget of one lookup. An agent can name many paths in many repositories, so bounds per
/// repository are not enough. If the budget is exhausted, the result is incomplete.
#[derive(Debug)]
pub(super) struct LookupBudget {
    files: usize,
    bytes: usize,
    paths: usize,
}

impl LookupBudget {
    pub(super) fn new() -> Self {
        Self { files: MAX_LOOKUP_FILES, bytes: MAX_LOOKUP_BYTES, paths: MAX_LOOKUP_PATHS }
    }

    /// Spends one path. Returns `false` if none is left.
    fn spend_path(&mut self) -> bool {
        spend(&mut self.paths, 1)
    }

    /// Spends one file. Returns `false` if no files or bytes are left.
    fn spend_file(&mut self) -> bool {
        self.bytes > 0 && spend(&mut self.files, 1)
    }
}

fn spend(left: &mut usize, count: usize) -> bool {
    let is_enough = *left >= count;
    *left = left.saturating_sub(count);
    is_enough
}

pub(super) fn is_repository(directory: &Path) -> bool {
    has_layout(directory, None)
}

/// Returns `true` if a directory has the layout of a repository, or would have it with an entry `added`.
fn has_layout(directory: &Path, added: Option<&OsStr>) -> bool {
    has_repository_layout(|name| {
        added.is_some_and(|added| added == name) || directory.join(name).symlink_metadata().is_ok()
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    File,
    /// A directory with all of its content, for example by a move.
    Tree,
}

/// The `.git` paths for which a change counts as well.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Counterparts {
    pub(super) paths: Vec<PathBuf>,
    /// `false` if configuration that may name the path could not be read completely.
    pub(super) is_complete: bool,
}

/// Returns the `.git` paths that a change of `path` is equivalent to. `path` contains no links. Blocks.
pub(super) fn counterparts(
    path: &Path,
    extent: Extent,
    user: UserSettings<'_>,
    budget: &mut LookupBudget,
) -> Counterparts {
    let mut found = Counterparts { paths: Vec::new(), is_complete: true };
    for directory in path.ancestors().skip(1).take(MAX_ANCESTORS) {
        let Ok(rest) = path.strip_prefix(directory) else { continue };
        let is_in_git = path.components().any(|name| name == Component::Normal(GIT.as_ref()));
        let mut places = vec![directory.join(GIT)];
        if is_repository(directory) {
            places.push(directory.to_owned());
            found.paths.extend((!is_in_git).then(|| directory.join(GIT).join(rest)));
        } else if !is_in_git && has_layout(directory, rest.iter().next()) {
            // The new file makes the directory a repository, and its configuration takes effect.
            found.paths.push(directory.join(GIT).join("config"));
        }
        for git in places {
            let settings = read_settings(&git, directory, user, budget);
            found.is_complete &= settings.is_complete;
            for Named { path: named, stands_for, .. } in settings.named {
                match path.strip_prefix(&named) {
                    Ok(rest) if rest.as_os_str().is_empty() => found.paths.push(stands_for),
                    Ok(rest) => found.paths.push(stands_for.join(rest)),
                    Err(_) if extent == Extent::Tree && named.starts_with(path) => {
                        found.paths.push(stands_for);
                    }
                    Err(_) => {}
                }
            }
        }
    }
    let mut known = BTreeSet::from([path.to_owned()]);
    found.paths.retain(|path| known.insert(path.clone()));
    found
}

/// A path that git uses, and the corresponding `.git` path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named {
    /// Target without links.
    pub(super) path: PathBuf,
    /// Path as written in the setting, relative to the root.
    pub(super) spelled: PathBuf,
    pub(super) stands_for: PathBuf,
}

/// Paths that the configuration of a repository names.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) named: Vec<Named>,
    /// `false` if a part could not be read or interpreted.
    pub(super) is_complete: bool,
}

/// Git configuration outside of repositories.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UserSettings<'a> {
    /// Home directory, for `~` in a setting.
    pub(super) home: Option<&'a Path>,
    /// Configuration files for every repository. A missing file counts as empty.
    pub(super) files: &'a [PathBuf],
}

/// Reads the paths that the user's configuration names for every repository: its files, their includes, and
/// hooks at absolute paths. They count as parts of the `.git` of `worktree`. Blocks.
pub(super) fn read_user_settings(
    worktree: &Path,
    user: UserSettings<'_>,
    budget: &mut LookupBudget,
) -> Settings {
    let mut search = Search::new(worktree, user, budget);
    for file in user.files {
        search.add(file.clone(), search.config.clone());
        search.read_config(file, 0);
    }
    for directory in std::mem::take(&mut search.hook_paths) {
        if directory.is_absolute() {
            search.add_hooks(directory);
        }
    }
    search.found
}

/// Reads the paths that a repository's configuration names: hooks and other configuration files. `git` is the
/// repository, or a file or link that leads to it, as in worktrees and submodules. `worktree` contains its
/// files. Blocks.
pub(super) fn read_settings(
    git: &Path,
    worktree: &Path,
    user: UserSettings<'_>,
    budget: &mut LookupBudget,
) -> Settings {
    let mut search = Search::new(worktree, user, budget);
    if let Some(git) = search.git_directory(git) {
        search.read_repository(&git, worktree);
    }
    search.found
}

/// State of reading configuration.
struct Search<'a> {
    user: UserSettings<'a>,
    budget: &'a mut LookupBudget,
    /// `.git` path that configuration files count as.
    config: PathBuf,
    /// `.git` path that hook directories count as.
    hooks: PathBuf,
    hook_paths: Vec<PathBuf>,
    worktrees: Vec<PathBuf>,
    files: usize,
    paths: usize,
    found: Settings,
}

impl<'a> Search<'a> {
    fn new(worktree: &Path, user: UserSettings<'a>, budget: &'a mut LookupBudget) -> Self {
        Self {
            user,
            budget,
            config: worktree.join(GIT).join("config"),
            hooks: worktree.join(GIT).join("hooks"),
            hook_paths: Vec::new(),
            worktrees: Vec::new(),
            files: 0,
            paths: 0,
            found: Settings { named: Vec::new(), is_complete: true },
        }
    }

    /// Returns the directory that `git` is or leads to.
    fn git_directory(&mut self, git: &Path) -> Option<PathBuf> {
        match git.metadata() {
            Ok(found) if found.is_dir() => Some(git.to_owned()),
            Ok(found) if found.is_file() => {
                let text = self.read(git)?;
                Some(git.parent()?.join(git_file_target(&text)?))
            }
            Ok(_) => None,
            Err(error) => {
                self.found.is_complete &= is_missing(&error);
                None
            }
        }
    }

    fn read_repository(&mut self, git: &Path, worktree: &Path) {
        let shared = self.read(&git.join("commondir"));
        let common = shared.and_then(|text| common_directory(git, &text)).unwrap_or_else(|| git.to_owned());
        for file in self.user.files {
            self.read_config(file, 0);
        }
        for file in [common.join("config"), git.join("config.worktree")] {
            self.add(file.clone(), self.config.clone());
            self.read_config(&file, 0);
        }
        let worktrees = self.worktrees.iter().map(|path| git.join(path));
        // A repository that receives a push runs hooks from its own directory.
        let starts: Vec<PathBuf> =
            [worktree, git, &common].into_iter().map(Path::to_owned).chain(worktrees).collect();
        let mut hooks = vec![common.join("hooks")];
        for path in std::mem::take(&mut self.hook_paths) {
            hooks.extend(starts.iter().map(|start| start.join(&path)));
        }
        hooks.dedup();
        for directory in hooks {
            self.add_hooks(directory);
        }
    }

    /// Adds a directory of hooks, and the targets of links in it.
    fn add_hooks(&mut self, directory: PathBuf) {
        let mut entries = match directory.read_dir() {
            Ok(entries) => Some(entries),
            Err(error) => {
                self.found.is_complete &= is_missing(&error);
                None
            }
        };
        for entry in entries.iter_mut().flatten().take(MAX_HOOKS).flatten() {
            if !self.budget.spend_path() {
                self.found.is_complete = false;
                return;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                self.add(entry.path(), self.hooks.join(entry.file_name()));
            }
        }
        self.found.is_complete &= entries.is_none_or(|mut entries| entries.next().is_none());
        self.add(directory, self.hooks.clone());
    }

    fn add(&mut self, spelled: PathBuf, stands_for: PathBuf) {
        if !self.budget.spend_path() {
            self.found.is_complete = false;
            return;
        }
        // A missing path is followed as far as it exists.
        let path = links::real(&spelled).ok().flatten().unwrap_or_else(|| links::plain(&spelled));
        self.found.named.push(Named { path, spelled, stands_for });
    }

    /// Reads a configuration file and its includes. Treats every condition of an include as met.
    fn read_config(&mut self, file: &Path, depth: usize) {
        if self.files >= MAX_CONFIG_FILES || depth > MAX_INCLUDE_DEPTH {
            self.found.is_complete = false;
            return;
        }
        self.files += 1;
        let Some(text) = self.read(file) else { return };
        let Parsed { settings, is_valid } = git_config::parse(&text, PathKey::new);
        self.found.is_complete &= is_valid;
        for setting in settings {
            let Some(value) = setting.value.filter(|value| !value.is_empty()) else { continue };
            self.paths += 1;
            if self.paths > MAX_PATHS {
                self.found.is_complete = false;
                return;
            }
            let Some(path) = self.expand(&value) else {
                self.found.is_complete = false;
                continue;
            };
            match setting.key {
                PathKey::Hooks => self.hook_paths.push(path),
                PathKey::Worktree => self.worktrees.push(path),
                PathKey::Include => {
                    let included = file.parent().unwrap_or(Path::new("/")).join(path);
                    self.add(included.clone(), self.config.clone());
                    self.read_config(&included, depth + 1);
                }
            }
        }
    }

    /// Returns the path that a setting names; `None` if it cannot be determined.
    fn expand(&self, value: &[u8]) -> Option<PathBuf> {
        let value = value.strip_prefix(b":(optional)").unwrap_or(value);
        if value.starts_with(b"%(prefix)/") {
            return None;
        }
        let Some(rest) = value.strip_prefix(b"~") else {
            return Some(OsStr::from_bytes(value).into());
        };
        let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
        let home = match &rest[..end] {
            b"" => self.user.home?.to_owned(),
            user => home_of(user)?,
        };
        Some(home.join(OsStr::from_bytes(rest.get(end + 1..).unwrap_or_default())))
    }

    /// Returns the beginning of a file; `None` if it is missing.
    fn read(&mut self, file: &Path) -> Option<Vec<u8>> {
        if !self.budget.spend_file() {
            self.found.is_complete = false;
            return None;
        }
        match read_file(file) {
            Ok(text) => {
                spend(&mut self.budget.bytes, text.len());
                self.found.is_complete &= text.len() as u64 <= MAX_CONFIG_BYTES;
                Some(text)
            }
            Err(error) => {
                self.found.is_complete &= is_missing(&error);
                None
            }
        }
    }
}

/// Returns the beginning of a file: one byte more than [`MAX_CONFIG_BYTES`] if it is longer. A directory
/// counts as empty.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    // Opening a pipe or a device has effects, and a repository can name any path. So the path is opened
    // without its file, and the file only if it is a regular one.
    let named = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let named = File::from(named);
    let found = named.metadata()?;
    let mut text = Vec::new();
    if found.is_dir() {
        return Ok(text);
    }
    if !found.is_file() && path != Path::new("/dev/null") {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let file = File::open(format!("/proc/self/fd/{}", named.as_raw_fd()))?;
    file.take(MAX_CONFIG_BYTES + 1).read_to_end(&mut text)?;
    Ok(text)
}

fn home_of(user: &[u8]) -> Option<PathBuf> {
    let users = read_file(Path::new("/etc/passwd")).ok()?;
    let fields = |line: &[u8]| line.split(|byte| *byte == b':').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let mut lines = users.split(|byte| *byte == b'\n').map(fields);
    let found = lines.find(|fields| fields.first().is_some_and(|name| name == user))?;
    found.get(5).map(|home| OsString::from_vec(home.clone()).into())
}

/// A setting whose value is a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathKey {
    Hooks,
    Include,
    Worktree,
}

impl PathKey {
    fn new(name: &[u8]) -> Option<Self> {
        match name {
            b"core.hookspath" => Some(Self::Hooks),
            b"core.worktree" => Some(Self::Worktree),
            b"include.path" => Some(Self::Include),
            name if name.starts_with(b"includeif.") && name.ends_with(b".path") => Some(Self::Include),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
