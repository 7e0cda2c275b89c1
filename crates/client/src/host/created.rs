//! Detects files that a command creates and that change the behavior of git.
//!
//! A sandbox protects files by mounts, so it can protect only files that exist. A command could create a
//! missing `commondir` or `hooks` of a repository, and the user's next git command would run programs that
//! they name. So these names are checked while a command runs, and again after all of its processes have
//! ended. New entries are moved aside. The command is then stopped, because it could create them again at
//! once. New repositories stay, but they are reported: git in a directory above can run programs that their
//! settings name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use narrows_base::sync::lock;
use narrows_process::is_missing;
use tokio::time::{Instant, sleep};

use super::files::{Aside, Files};
use super::protected::{Found, MAX_ENTRIES, ProtectedFiles};

/// Shortest time between two checks while a command runs.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The time between two checks is at least this many times the duration of one check.
const CHECK_INTERVAL_FACTOR: u32 = 20;

/// Repositories before a command starts, and the paths in them that must stay missing.
#[derive(Debug, Default)]
pub(crate) struct Baseline {
    /// Missing paths that git would use, each with its repository.
    absent: BTreeSet<(PathBuf, PathBuf)>,
    /// Missing directories in which a repository can be created.
    missing_repository_parents: BTreeSet<PathBuf>,
    /// Directories, files and links that git treats as a repository.
    repositories: BTreeSet<PathBuf>,
}

impl Baseline {
    pub(super) fn new(found: &mut Found) -> Self {
        Self {
            absent: std::mem::take(&mut found.absent),
            missing_repository_parents: std::mem::take(&mut found.missing_repository_parents),
            repositories: std::mem::take(&mut found.repositories),
        }
    }
}

/// A path that git uses and that a command has created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Created {
    pub(crate) path: PathBuf,
    /// New path after moving it aside, `None` if it was removed instead, or the error.
    pub(crate) moved: Result<Option<PathBuf>, String>,
}

/// Watches the files that one command creates. Checks a last time on drop.
#[derive(Clone, Debug)]
pub(crate) struct CreationGuard(Arc<Watched>);

#[derive(Debug)]
struct Watched {
    files: Files,
    protected: ProtectedFiles,
    baseline: Baseline,
    created: Mutex<Vec<Created>>,
}

impl CreationGuard {
    /// Starts to watch. `baseline` was recorded before the command starts.
    pub(crate) fn new(files: Files, protected: ProtectedFiles, mut baseline: Baseline) -> Self {
        let free = protected.command_starts(&baseline.repositories);
        baseline.absent.retain(|(_, repository)| !free.contains(repository));
        Self(Arc::new(Watched { files, protected, baseline, created: Mutex::default() }))
    }

    /// Waits for the end of the command. Calls `stop` as soon as the command has created a path that git
    /// uses.
    pub(crate) async fn watch<T>(&self, end: impl Future<Output = T>, stop: impl AsyncFnOnce()) -> T {
        let mut end = std::pin::pin!(end);
        let mut interval = MIN_CHECK_INTERVAL;
        loop {
            tokio::select! {
                end = &mut end => return end,
                () = sleep(interval) => {}
            }
            let begun = Instant::now();
            if self.check().await {
                stop().await;
                return end.await;
            }
            interval = begun.elapsed().saturating_mul(CHECK_INTERVAL_FACTOR).max(MIN_CHECK_INTERVAL);
        }
    }

    /// Returns the paths that the command created and git uses, and new repositories. Called after the
    /// command has ended.
    pub(crate) async fn finish(&self) -> (Vec<Created>, Vec<PathBuf>) {
        self.check().await;
        let watched = Arc::clone(&self.0);
        let new = tokio::task::spawn_blocking(move || watched.new_repositories()).await.unwrap_or_default();
        (lock(&self.0.created).clone(), new)
    }

    /// Moves new paths aside. Returns `true` if there were any, now or earlier.
    async fn check(&self) -> bool {
        let watched = Arc::clone(&self.0);
        // Fails only while the runtime shuts down.
        tokio::task::spawn_blocking(move || watched.move_aside()).await.unwrap_or_default()
    }
}

impl Watched {
    fn move_aside(&self) -> bool {
        for (path, _) in self.baseline.absent.iter().filter(|(path, _)| exists(path)) {
            if self.protected.is_written(path) {
                continue;
            }
            let moved = match self.files.move_aside(path) {
                Ok(Aside::Moved(moved)) => Ok(Some(moved)),
                Ok(Aside::Removed) => Ok(None),
                Ok(Aside::Missing) => continue,
                Err(error) => Err(error.to_string()),
            };
            match &moved {
                Ok(moved) => tracing::warn!(?path, ?moved, "command created a path that git uses"),
                Err(error) => tracing::error!(?path, %error, "path that git uses cannot be moved aside"),
            }
            let mut created = lock(&self.created);
            created.retain(|created| created.path != *path);
            created.push(Created { path: path.clone(), moved });
        }
        !lock(&self.created).is_empty()
    }

    fn new_repositories(&self) -> Vec<PathBuf> {
        let Baseline { repositories, missing_repository_parents, .. } = &self.baseline;
        let mut found = self.protected.search(MAX_ENTRIES).repositories;
        found.retain(|path| !repositories.contains(path));
        found.extend(missing_repository_parents.iter().filter(|path| exists(path)).cloned());
        self.protected.add_created(found)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.move_aside();
        self.protected.command_ends();
    }
}

fn exists(path: &Path) -> bool {
    !path.symlink_metadata().is_err_and(|error| is_missing(&error))
}
