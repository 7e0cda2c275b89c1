//! What a command creates under names that git obeys.
//!
//! A mount needs something to lie on, so a sandbox keeps only what exists: a command could create the missing `commondir` or `hooks`
//! of a repository, and the next git of the user would run what they name. So these names are looked at while a command runs and when
//! all its processes are gone. What has appeared is moved aside, and the command is ended: it could create the same again at once.
//! New repositories stay. git in a directory above can run what their settings name, so they are reported.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use narrows_base::sync::lock;
use narrows_process::is_missing;
use tokio::time::{Instant, sleep};

use super::files::Files;
use super::protected::{Found, MAX_ENTRIES, ProtectedFiles};

/// How long nothing is looked at while a command runs.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// How many times as long as one look nothing is looked at.
const CHECK_INTERVAL_FACTOR: u32 = 20;

/// What git would obey of the repositories that exist, and what of it is missing.
#[derive(Debug, Default)]
pub(crate) struct Baseline {
    /// Paths that must stay missing, each with the repository that it would belong to.
    absent: BTreeSet<(PathBuf, PathBuf)>,
    /// Missing directories in which a repository can be created.
    unborn: BTreeSet<PathBuf>,
    /// Every directory, file or link that git takes for a repository.
    repositories: BTreeSet<PathBuf>,
}

impl Baseline {
    pub(super) fn new(found: &mut Found) -> Self {
        Self {
            absent: std::mem::take(&mut found.absent),
            unborn: std::mem::take(&mut found.unborn),
            repositories: std::mem::take(&mut found.repositories),
        }
    }
}

/// A path that appeared where git obeys it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Created {
    pub(crate) path: PathBuf,
    /// Where it is now, or why it is still there.
    pub(crate) moved: Result<PathBuf, String>,
}

/// Watches what one command creates. Looks a last time when it is dropped.
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
    /// Watches from now on. `baseline` is from before the command starts.
    pub(crate) fn new(files: Files, protected: ProtectedFiles, mut baseline: Baseline) -> Self {
        let free = protected.command_starts(&baseline.repositories);
        baseline.absent.retain(|(_, repository)| !free.contains(repository));
        Self(Arc::new(Watched { files, protected, baseline, created: Mutex::default() }))
    }

    /// Waits for the end of the command, and calls `stop` as soon as it has created what git obeys.
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

    /// Returns what the command created, once it has ended: paths that git obeys, and new repositories.
    pub(crate) async fn finish(&self) -> (Vec<Created>, Vec<PathBuf>) {
        self.check().await;
        let watched = Arc::clone(&self.0);
        let new = tokio::task::spawn_blocking(move || watched.new_repositories()).await.unwrap_or_default();
        (lock(&self.0.created).clone(), new)
    }

    /// Moves aside what has appeared. Returns `true` if something has.
    async fn check(&self) -> bool {
        let watched = Arc::clone(&self.0);
        // It fails only if the runtime ends.
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
                Ok(Some(moved)) => Ok(moved),
                Ok(None) => continue,
                Err(error) => Err(error.to_string()),
            };
            tracing::warn!(?path, ?moved, "command created what git obeys, moved aside");
            let mut created = lock(&self.created);
            created.retain(|created| created.path != *path);
            created.push(Created { path: path.clone(), moved });
        }
        !lock(&self.created).is_empty()
    }

    fn new_repositories(&self) -> Vec<PathBuf> {
        let Baseline { repositories, unborn, .. } = &self.baseline;
        let mut found = self.protected.search(MAX_ENTRIES).repositories;
        found.retain(|path| !repositories.contains(path));
        found.extend(unborn.iter().filter(|path| exists(path)).cloned());
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
