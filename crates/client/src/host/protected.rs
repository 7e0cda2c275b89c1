//! Finds all names of protected files in the directories of a session.
//!
//! The policy judges names. A protected name can be a link (`AGENTS.md -> docs/guide.md`), or be in a
//! directory that is a link. A request for the link target does not show this. So the disk is searched for
//! protected names, and those that lead to a requested path are judged together with it. The sandbox protects
//! the files found by the same search.

mod search;

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use narrows_base::sync::lock;
use narrows_policy::Policy;
use narrows_process::is_missing;
use tokio::sync::Semaphore;

use super::indirect_git_files::{self, Extent, LookupBudget};
use super::links;
pub(super) use search::Found;
use search::LinkedName;

/// Maximum number of directory entries to search for protected paths before a command, nearest first. The
/// search of a larger tree is incomplete, which is reported: a command could create that many files on
/// purpose.
pub(super) const MAX_ENTRIES: usize = 100_000;

/// Minimum time for which a search result is reused for file requests.
const MIN_SEARCH_INTERVAL: Duration = Duration::from_secs(1);

/// A search result is also reused for this multiple of the search's duration, so that a large tree costs
/// little time.
const SEARCH_INTERVAL_FACTOR: u32 = 20;

/// The protected files in the directories of one session. Clones share their state.
#[derive(Clone, Debug)]
pub struct ProtectedFiles {
    policy: Arc<Policy>,
    roots: Vec<PathBuf>,
    git_settings: Arc<[PathBuf]>,
    known: Arc<Mutex<Known>>,
    /// Time of the next search for file requests. Locked during a search.
    next_search: Arc<Mutex<Option<Instant>>>,
    lookups: Arc<Semaphore>,
}

/// Maximum number of concurrent lookups of files for requests of one session.
const MAX_LOOKUPS: usize = 16;

/// Repositories that a command may have created.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NewRepositories {
    /// New repositories, and directories that can contain one and were not searched.
    pub(crate) paths: Vec<PathBuf>,
    /// Number of further ones, which are named after later commands.
    pub(crate) unnamed: usize,
}

/// Files found by any search of this session, as long as they exist. So a command cannot hide a file from the
/// next search.
#[derive(Debug, Default)]
struct Known {
    paths: BTreeSet<PathBuf>,
    links: BTreeSet<LinkedName>,
    repositories: BTreeSet<PathBuf>,
    /// Created repositories that were named to the user.
    named: BTreeSet<PathBuf>,
    /// Created repositories that are still to be named.
    unnamed: BTreeSet<PathBuf>,
    /// Protected files that the client has written for an agent, with permission.
    written: BTreeSet<PathBuf>,
}

impl ProtectedFiles {
    /// Creates the set of files that `policy` protects in `roots`. `git_settings` are git configuration files
    /// in addition to those of repositories and of the home directory of the policy.
    pub fn new(policy: Arc<Policy>, roots: &[PathBuf], git_settings: &[PathBuf]) -> Self {
        let of_home = |home: &Path| [home.join(".gitconfig"), home.join(".config/git/config")];
        let mut files: Vec<PathBuf> = policy.home().map(of_home).into_iter().flatten().collect();
        files.extend(git_settings.iter().filter(|file| !files.contains(file)).cloned().collect::<Vec<_>>());
        Self {
            policy,
            roots: roots.to_vec(),
            git_settings: files.into(),
            known: Arc::default(),
            next_search: Arc::default(),
            lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)),
        }
    }

    pub(super) fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(super) fn roots(&self) -> &[PathBuf] {
        &self.roots
    }

    pub(super) fn git(&self) -> indirect_git_files::UserSettings<'_> {
        indirect_git_files::UserSettings { home: self.policy.home(), files: &self.git_settings }
    }

    /// Searches for protected paths, and adds the paths that earlier searches of this session found. Blocks.
    pub(super) fn search(&self, max_entries: usize) -> Found {
        let repositories = lock(&self.known).repositories.clone();
        let mut found = search::search(self, max_entries, &repositories);
        let mut known = lock(&self.known);
        // A later search may have ended first.
        known.repositories.append(&mut found.repositories);
        known.repositories.retain(|path| !path.symlink_metadata().is_err_and(|error| is_missing(&error)));
        known.paths.append(&mut found.paths);
        known.links.append(&mut found.links);
        // Keeps inaccessible paths: a command may have changed the mode of a directory above.
        known.paths.retain(|path| !path.symlink_metadata().is_err_and(|error| is_missing(&error)));
        known.links.retain(LinkedName::holds);
        found.has_hard_link = known.paths.iter().any(|path| is_hard_linked(path));
        Found { paths: known.paths.clone(), repositories: known.repositories.clone(), ..found }
    }

    /// Adds repositories that a command may have created. Returns those to name now, at most `max_bytes` of
    /// paths: the rest is named after later commands.
    pub(super) fn add_created(&self, repositories: BTreeSet<PathBuf>, max_bytes: usize) -> NewRepositories {
        let known = &mut *lock(&self.known);
        known.unnamed.extend(repositories.into_iter().filter(|path| !known.named.contains(path)));
        let mut new = NewRepositories::default();
        let mut bytes = 0;
        while let Some(path) = known.unnamed.first() {
            bytes += path.as_os_str().len();
            if bytes > max_bytes && !new.paths.is_empty() {
                break;
            }
            new.paths.extend(known.unnamed.pop_first());
        }
        known.named.extend(new.paths.iter().cloned());
        new.unnamed = known.unnamed.len();
        new
    }

    /// Runs `work`, which blocks, on another thread. At most [`MAX_LOOKUPS`] run at once in a session: an
    /// agent can send any number of requests, and each lookup holds a thread and descriptors.
    pub(crate) async fn look_up<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        // The semaphore is never closed.
        let permit = Arc::clone(&self.lookups).acquire_owned().await;
        let work = move || {
            let _permit = permit;
            work()
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(outcome) => outcome,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime shuts down, and drops this future.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// Returns `true` if the client has written the file at `path`, or a file below it.
    pub(super) fn is_written(&self, path: &Path) -> bool {
        lock(&self.known).written.iter().any(|written| written.starts_with(path))
    }

    /// Records that the client writes a protected file.
    pub(super) fn add_written(&self, path: &Path) {
        lock(&self.known).written.insert(path.to_owned());
    }

    /// Returns the protected names that are links to `path`, which contains no links. Blocks.
    fn linked_names(&self, path: &Path, extent: Extent) -> BTreeSet<PathBuf> {
        self.search_if_due();
        let known = lock(&self.known);
        known.links.iter().filter_map(|link| link.name_of(path, extent)).collect()
    }

    fn search_if_due(&self) {
        if self.roots.is_empty() {
            return;
        }
        let mut next = lock(&self.next_search);
        let begun = Instant::now();
        if next.is_none_or(|next| next <= begun) {
            self.search(MAX_ENTRIES);
            let taken = begun.elapsed().saturating_mul(SEARCH_INTERVAL_FACTOR);
            *next = Some(Instant::now() + taken.max(MIN_SEARCH_INTERVAL));
        }
    }

    /// Returns the protected names that a change of `path` affects, and `false` if there may be more. `path`
    /// contains no links. Blocks.
    pub(super) fn names_of(
        &self,
        path: &Path,
        extent: Extent,
        budget: &mut LookupBudget,
    ) -> indirect_git_files::Counterparts {
        let mut found = indirect_git_files::counterparts(path, extent, self.git(), budget);
        for name in self.linked_names(path, extent) {
            if !found.paths.contains(&name) {
                found.paths.push(name);
            }
        }
        found
    }

    /// Returns `true` if a command sees the file at `path` through its own mount. `path` contains no links.
    pub(super) fn is_mounted(&self, path: &Path) -> bool {
        let id = |path: &Path| path.metadata().ok().map(|file| (file.dev(), file.ino()));
        // A mount on a link is a mount on its target.
        id(path).is_some_and(|file| lock(&self.known).paths.iter().any(|known| id(known) == Some(file)))
    }
}

fn is_hard_linked(path: &Path) -> bool {
    match path.metadata() {
        Ok(file) => !file.is_dir() && file.nlink() > 1,
        Err(error) => !is_missing(&error),
    }
}

/// Returns the path without links, if it can be resolved.
fn real(path: &Path) -> Option<PathBuf> {
    links::real(path).ok().flatten()
}

#[cfg(test)]
mod tests;
