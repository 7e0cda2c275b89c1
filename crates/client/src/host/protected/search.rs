//! Searches the directories of a session for protected paths.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};

use narrows_policy::{Policy, Protection, has_repository_layout, may_begin_protected};
use narrows_process::is_missing;

use super::{ProtectedFiles, real};
use crate::host::indirect_git_files::{self, Extent, LookupBudget, Named, Settings};
use crate::host::links;

/// Directories of installed packages and build results. The search looks only for repositories in them.
/// Package managers replace the rest as a whole, and its programs are not protected either. But git in a
/// directory above runs programs that the configuration of such a repository names.
const INSTALLED: [&str; 7] =
    ["node_modules", "bower_components", "vendor", "target", ".venv", "venv", "__pypackages__"];

/// Maximum number of entries to search for repositories in one such directory, nearest first. This takes
/// about 5 ms.
pub(super) const MAX_INSTALLED_ENTRIES: usize = 5_000;

/// Maximum number of entries of all such directories.
const MAX_ALL_INSTALLED_ENTRIES: usize = 20_000;

/// Directories in a `.git` that only git writes and that name no programs.
const GIT_DATA: [&str; 3] = ["objects", "refs", "logs"];

/// Names in a repository that git uses as soon as they appear. `info` is missing, because git itself creates
/// it.
const GIT_TRIGGER_NAMES: [&str; 7] =
    ["branches", "commondir", "config", "config.worktree", "hooks", "info/attributes", "remotes"];

/// Directories in a repository that contain other repositories. git enters those only from their own work
/// trees.
const REPOSITORY_PARENTS: [&str; 2] = ["modules", "worktrees"];

/// Entries that identify a directory as a work tree or a repository.
const REPOSITORY_NAMES: [&str; 5] = [".git", "HEAD", "commondir", "objects", "refs"];

/// A protected name, or the beginning of one, that leads to another path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LinkedName {
    real: PathBuf,
    /// Path that leads to the file.
    spelled: PathBuf,
    /// Name that the policy judges: `spelled`, or the `.git` path that git treats it as.
    name: PathBuf,
}

impl LinkedName {
    /// Returns `true` if `spelled` still leads to the same file.
    pub(super) fn holds(&self) -> bool {
        real(&self.spelled).is_none_or(|real| real == self.real)
    }

    /// Returns the protected name of `path`, or of a part of it if `extent` covers a tree.
    pub(super) fn name_of(&self, path: &Path, extent: Extent) -> Option<PathBuf> {
        match path.strip_prefix(&self.real) {
            Ok(rest) if rest.as_os_str().is_empty() => Some(self.name.clone()),
            Ok(rest) => Some(self.name.join(rest)),
            Err(_) => (extent == Extent::Tree && self.real.starts_with(path)).then(|| self.name.clone()),
        }
    }
}

pub(in crate::host) struct Found {
    pub(in crate::host) paths: BTreeSet<PathBuf>,
    /// Protected names that are or contain links, and links at the beginning of protected names.
    pub(super) links: BTreeSet<LinkedName>,
    /// Directories that cannot be searched, and are therefore protected as a whole.
    pub(in crate::host) unsearchable: Vec<PathBuf>,
    /// `true` if every directory was searched or is protected as a whole, and all git configuration was read.
    pub(in crate::host) is_complete: bool,
    /// `true` if a protected file has another hard link that is not mounted.
    pub(super) has_hard_link: bool,
    /// Missing paths that git would use if they existed.
    pub(in crate::host) absent: BTreeSet<PathBuf>,
    /// Names in git settings, each with the path that it leads to.
    pub(in crate::host) led: BTreeSet<(PathBuf, PathBuf)>,
    /// Missing directories of repositories that may contain other repositories.
    pub(in crate::host) missing_repository_parents: BTreeSet<PathBuf>,
    /// Repositories, and files and links that lead to them.
    pub(in crate::host) repositories: BTreeSet<PathBuf>,
    /// Directories that were not searched completely, so that they may contain other repositories.
    pub(in crate::host) unsearched: BTreeSet<PathBuf>,
}

impl Found {
    /// Returns how well a sandbox protects these files. `can_protect` is `true` if it can protect files
    /// inside a root.
    pub(in crate::host) fn protection(&self, can_protect: bool) -> Protection {
        if !self.is_complete {
            Protection::NotSearched
        } else if !can_protect && !self.is_empty() {
            Protection::Unsupported
        } else if self.has_hard_link {
            Protection::HardLinked
        } else {
            Protection::Kept
        }
    }

    fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.unsearchable.is_empty()
    }

    pub(in crate::host) fn into_all(self) -> Vec<PathBuf> {
        let Self { paths, unsearchable, .. } = self;
        paths.into_iter().chain(unsearchable).collect()
    }
}

/// The names to search for in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Area {
    Plain,
    /// The rest of protected names whose beginning is a link to this directory. All others are found at the
    /// directory's own path.
    AfterLink,
    /// Links out of the directory, which itself is protected as a whole.
    Protected,
    /// Repositories. Each one is then searched like any other directory.
    Installed,
}

/// A directory in the queue, by its path in a root.
struct QueuedDirectory<'a> {
    root: &'a Path,
    inside: PathBuf,
    area: Area,
}

struct Search<'a> {
    policy: &'a Policy,
    roots: &'a [PathBuf],
    user: indirect_git_files::UserSettings<'a>,
    budget: LookupBudget,
    open: VecDeque<QueuedDirectory<'a>>,
    /// Protected directories, to search after `open`.
    protected: VecDeque<QueuedDirectory<'a>>,
    /// Directories of installed packages and build results, to search last.
    installed: VecDeque<QueuedDirectory<'a>>,
    /// Opened directories, by path without links, because links can form cycles.
    seen: BTreeSet<PathBuf>,
    found: Found,
}

/// Searches at most `most` directory entries for protected paths.
///
/// A directory that the current permissions do not allow to examine is protected as a whole. Otherwise a
/// command that owns it could change its mode, and write files that were not found. No name or layout of
/// files in the workspace can end the search. In the directories named in [`INSTALLED`], it finds only
/// repositories. Repositories that are `known` are examined wherever they are, so that a command cannot hide
/// one behind other entries.
pub(super) fn search(files: &ProtectedFiles, most: usize, known: &BTreeSet<PathBuf>) -> Found {
    let mut search = Search {
        policy: files.policy(),
        roots: files.roots(),
        user: files.git(),
        budget: LookupBudget::new(),
        open: VecDeque::new(),
        protected: VecDeque::new(),
        installed: VecDeque::new(),
        seen: BTreeSet::new(),
        found: Found {
            paths: BTreeSet::new(),
            links: BTreeSet::new(),
            unsearchable: Vec::new(),
            is_complete: true,
            has_hard_link: false,
            absent: BTreeSet::new(),
            led: BTreeSet::new(),
            missing_repository_parents: BTreeSet::new(),
            repositories: BTreeSet::new(),
            unsearched: BTreeSet::new(),
        },
    };
    search.run(most);
    search.add_known(known);
    search.found
}

impl<'a> Search<'a> {
    fn run(&mut self, mut most: usize) {
        for root in self.roots {
            let mut settings = indirect_git_files::read_user_settings(root, self.user, &mut self.budget);
            let is_inside = |path: &Path| self.roots.iter().any(|root| path.starts_with(root));
            settings.named.retain(|named| is_inside(&named.path) || is_inside(&named.spelled));
            self.add_settings(root, settings);
            self.add_named_above(root);
            self.open.push_back(QueuedDirectory {
                root: root.as_path(),
                inside: PathBuf::new(),
                area: Area::Plain,
            });
        }
        let mut most_installed = MAX_ALL_INSTALLED_ENTRIES;
        loop {
            while let Some(next) = self.open.pop_front().or_else(|| self.protected.pop_front()) {
                if !self.look_through(&next, &mut most) {
                    tracing::debug!(roots = ?self.roots, "search for protected paths incomplete");
                    self.found.is_complete = false;
                    self.found.unsearched.extend(self.roots.iter().cloned());
                    return;
                }
            }
            let Some(next) = self.installed.pop_front() else { return };
            self.find_repositories(next, &mut most_installed);
        }
    }

    /// Queues the work trees and repositories in a directory of installed packages. Subtracts the number of
    /// entries read from `left`. Compares only names, because there are many directories and few
    /// repositories.
    fn find_repositories(&mut self, top: QueuedDirectory<'a>, left: &mut usize) {
        let mut most = MAX_INSTALLED_ENTRIES.min(*left);
        *left -= most;
        let path = top.root.join(&top.inside);
        let mut queue = VecDeque::from([top]);
        while let Some(open) = queue.pop_front() {
            if most == 0 {
                self.found.unsearched.insert(path);
                return;
            }
            let directory = open.root.join(&open.inside);
            let entries = match directory.read_dir() {
                Ok(entries) => entries,
                Err(error) if is_missing(&error) => continue,
                Err(_) => {
                    self.add_unsearchable(directory, open.area);
                    continue;
                }
            };
            let mut names = BTreeSet::new();
            let mut directories = Vec::new();
            for entry in entries.flatten() {
                if most == 0 {
                    self.found.unsearched.insert(path.clone());
                    break;
                }
                most -= 1;
                let name = entry.file_name();
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    directories.push(open.inside.join(&name));
                }
                names.extend(REPOSITORY_NAMES.into_iter().find(|known| name == *known));
            }
            if names.contains(".git") || has_repository_layout(|name| names.contains(name)) {
                self.open.push_back(QueuedDirectory { area: Area::Plain, ..open });
            } else {
                let open = |inside| QueuedDirectory { root: open.root, inside, area: Area::Installed };
                queue.extend(directories.into_iter().map(open));
            }
        }
        *left += most;
    }

    /// Searches one directory. Returns `false` at the limit of entries.
    fn look_through(&mut self, open: &QueuedDirectory<'a>, most: &mut usize) -> bool {
        let (root, inside, area) = (open.root, &open.inside, open.area);
        let directory = root.join(inside);
        let entries = match directory.read_dir() {
            Ok(entries) if can_search(&directory) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return true,
            // The link leads to a file, not to a directory.
            Err(error) if area == Area::AfterLink && is_missing(&error) => return true,
            Ok(_) | Err(_) => {
                self.add_unsearchable(directory, area);
                return true;
            }
        };
        let is_git = inside.file_name().is_some_and(|name| name == ".git");
        let is_in_git = is_git || area == Area::Protected && inside.iter().any(|name| name == ".git");
        let is_repository = area == Area::Plain && (is_git || indirect_git_files::is_repository(&directory));
        if is_repository {
            self.add_repository(root, inside);
        } else if area == Area::Protected && indirect_git_files::is_repository(&directory) {
            self.found.repositories.insert(directory.clone());
        }
        for entry in entries {
            let Ok(entry) = entry else {
                self.add_unsearchable(directory, area);
                break;
            };
            if *most == 0 {
                return false;
            }
            *most -= 1;
            let name = entry.file_name();
            let path = inside.join(&name);
            let kind = match entry.file_type() {
                Ok(kind) => kind,
                Err(error) if is_missing(&error) => continue,
                Err(_) => {
                    self.add_unsearchable(root.join(path), area);
                    continue;
                }
            };
            let is_git_data = is_in_git && GIT_DATA.iter().any(|data| name == *data);
            let is_installed = kind.is_dir() && INSTALLED.iter().any(|installed| name == *installed);
            // The directories in `.git/modules` have the names of the submodules.
            let is_searched = kind.is_dir() && !is_git_data && (is_in_git || !is_installed);
            if area == Area::Protected {
                if name == ".git" {
                    self.found.repositories.insert(root.join(&path));
                }
                if kind.is_symlink() {
                    if !real(&root.join(&path)).is_some_and(|real| self.is_kept(&real)) {
                        self.add_protected(root, path);
                    }
                } else if is_searched {
                    self.open_protected(root, path);
                } else if is_installed {
                    self.installed.push_back(QueuedDirectory { root, inside: path, area: Area::Installed });
                }
                continue;
            }
            if !kind.is_dir() && name == ".git" {
                self.found.repositories.insert(root.join(&path));
                self.add_named_by_settings(root, &root.join(&path));
            }
            let is_protected = |path: &Path| self.policy.protects(root, path, kind.is_dir());
            if is_protected(&path)
                || !is_git && is_repository && is_protected(&inside.join(".git").join(&name))
            {
                // If `.git` is a link or file, the configuration at its target is read.
                match name == ".git" {
                    true => self.add_link(root, &path),
                    false => self.add_protected(root, path.clone()),
                }
                self.found.paths.insert(root.join(path));
            } else if kind.is_symlink() && may_begin_protected(&path) {
                self.add_link(root, &path);
                self.open.push_back(QueuedDirectory { root, inside: path, area: Area::AfterLink });
            } else if is_installed && area == Area::Plain {
                self.installed.push_back(QueuedDirectory { root, inside: path, area: Area::Installed });
            } else if is_searched && (area == Area::Plain || may_begin_protected(&path)) {
                self.open.push_back(QueuedDirectory { root, inside: path, area });
            }
        }
        true
    }

    /// Records a directory that cannot be searched. A protected one cannot be changed, but may contain links.
    fn add_unsearchable(&mut self, directory: PathBuf, area: Area) {
        self.found.unsearched.insert(directory.clone());
        match area {
            Area::Protected => self.found.is_complete = false,
            Area::Plain | Area::AfterLink | Area::Installed => self.found.unsearchable.push(directory),
        }
    }

    /// Returns `true` if `path`, which contains no links, is inside a protected path.
    fn is_kept(&self, path: &Path) -> bool {
        path.ancestors().any(|above| self.found.paths.contains(above))
    }

    /// Adds a protected name. Its target and its content become protected.
    fn add_protected(&mut self, root: &'a Path, path: PathBuf) {
        self.add_link(root, &path);
        self.found.paths.insert(root.join(&path));
        self.open_protected(root, path);
    }

    /// Queues a protected directory, to search it for links.
    fn open_protected(&mut self, root: &'a Path, path: PathBuf) {
        let name = root.join(&path);
        let Some(real) = real(&name) else { return };
        // If a protected directory contains a root, the whole root is protected.
        let around: Vec<PathBuf> =
            self.roots.iter().filter(|root| root.starts_with(&real)).cloned().collect();
        self.found.paths.extend(around);
        if self.roots.iter().any(|root| real.starts_with(root)) && name.is_dir() && self.seen.insert(real) {
            self.protected.push_back(QueuedDirectory { root, inside: path, area: Area::Protected });
        }
    }

    fn add_link(&mut self, root: &Path, path: &Path) {
        let name = root.join(path);
        if let Some(real) = real(&name).filter(|real| *real != name) {
            // A command can create the target, unless it is in a protected directory.
            let can_be_made = self.roots.iter().any(|root| real.starts_with(root)) && !self.is_kept(&real);
            if can_be_made && real.symlink_metadata().is_err_and(|error| is_missing(&error)) {
                self.found.is_complete = false;
            }
            self.found.links.insert(LinkedName { real, spelled: name.clone(), name });
        }
    }

    /// Adds the hooks and configuration files that a repository's configuration names. `git` is the
    /// repository, or a file or link that leads to it.
    fn add_named_by_settings(&mut self, root: &Path, git: &Path) {
        let worktree = git.parent().filter(|_| git.ends_with(".git")).unwrap_or(git);
        let settings = indirect_git_files::read_settings(git, worktree, self.user, &mut self.budget);
        if !settings.is_complete {
            tracing::debug!(?git, "git settings unreadable");
        }
        self.add_settings(root, settings);
    }

    fn add_settings(&mut self, root: &Path, settings: Settings) {
        self.found.is_complete &= settings.is_complete;
        for Named { path, spelled, stands_for } in settings.named {
            if path != stands_for {
                let (real, spelled, name) = (path.clone(), spelled.clone(), stands_for.clone());
                self.found.links.insert(LinkedName { real, spelled, name });
            }
            if !self.policy.protects_change(root, &stands_for) {
                continue;
            }
            let is_there = |path: &Path| !path.symlink_metadata().is_err_and(|error| is_missing(&error));
            // Links on the way must not be changed either. A missing name cannot be sealed, and a directory
            // before a `..` is not: so what the name leads to is watched as well.
            let is_inside = |path: &Path| self.roots.iter().any(|root| path.starts_with(root));
            if spelled != path && is_inside(&spelled) {
                self.found.led.insert((spelled.clone(), path.clone()));
            }
            let is_behind_link = links::plain(&spelled) != path;
            self.found.paths.extend((is_behind_link && is_there(&spelled)).then_some(spelled));
            if is_there(&path) {
                self.found.paths.insert(path);
            } else if is_inside(&path) {
                self.found.absent.insert(path);
            }
        }
    }

    /// Adds repositories that an earlier search has found, if this one has not.
    fn add_known(&mut self, known: &BTreeSet<PathBuf>) {
        for path in known {
            let root = self.roots.iter().find(|root| path.starts_with(root));
            let Some(root) = root.filter(|_| !self.found.repositories.contains(path)) else { continue };
            let Ok(inside) = path.strip_prefix(root) else { continue };
            match path.symlink_metadata() {
                Ok(found) if found.is_dir() => self.add_repository(root, inside),
                Ok(_) => self.add_named_by_settings(root, path),
                Err(_) => {}
            }
        }
    }

    /// Adds a repository, what its configuration names, and the missing paths in it that git would use.
    fn add_repository(&mut self, root: &Path, inside: &Path) {
        let directory = root.join(inside);
        self.add_named_by_settings(root, &directory);
        let is_git = inside.file_name().is_some_and(|name| name == ".git");
        let named = if is_git { inside.to_owned() } else { inside.join(".git") };
        let is_missing = |name: &str| {
            let is_missing = directory.join(name).symlink_metadata().is_err_and(|error| is_missing(&error));
            is_missing && self.policy.protects_change(root, &named.join(name))
        };
        for name in GIT_TRIGGER_NAMES.into_iter().filter(|name| is_missing(name)) {
            self.found.absent.insert(directory.join(name));
        }
        self.found.missing_repository_parents.extend(
            REPOSITORY_PARENTS.iter().filter(|name| is_missing(name)).map(|name| directory.join(name)),
        );
        self.found.repositories.insert(directory);
    }

    /// Like [`Self::add_named_by_settings`], for the repositories above a root: git in the root uses their
    /// configuration.
    fn add_named_above(&mut self, root: &Path) {
        for directory in root.ancestors().skip(1).take(indirect_git_files::MAX_ANCESTORS) {
            self.add_named_by_settings(root, &directory.join(".git"));
            if indirect_git_files::is_repository(directory) {
                self.add_named_by_settings(root, directory);
            }
        }
    }
}

/// Returns `true` if the entries of a directory can be examined. The right to list it is not enough.
fn can_search(directory: &Path) -> bool {
    rustix::fs::accessat(
        rustix::fs::CWD,
        directory,
        rustix::fs::Access::EXEC_OK,
        rustix::fs::AtFlags::EACCESS,
    )
    .is_ok()
}
