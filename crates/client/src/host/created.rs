//! Detects files that a command creates and that change the behavior of git.
//!
//! A sandbox protects files by mounts, so it can protect only files that exist. A command could create a
//! missing `commondir` or `hooks` of a repository, and the user's next git command would run programs that
//! they name. So these names are checked while a command runs, and again after all of its processes have
//! ended. New entries are moved aside. The command is then stopped, because it could create them again at
//! once. New repositories stay, but they are reported: git in a directory above can run programs that their
//! settings name. Every repository that exists when a command starts is watched.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use narrows_base::sync::lock;
use narrows_process::is_missing;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::files::{Aside, Files};
use super::links;
use super::protected::{Found, MAX_ENTRIES, NewRepositories, ProtectedFiles};

/// Shortest time between two checks while a command runs.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The time between two checks is at least this many times the duration of one check.
const CHECK_INTERVAL_FACTOR: u32 = 20;

/// Maximum number of checks of one command that wait for its thread.
const MAX_WAITING_CHECKS: usize = 4;

/// Maximum number of bytes of the new repositories that are named after one command.
const MAX_NAMED_BYTES: usize = 64 << 10;

/// Repositories before a command starts, and the paths in them that must stay missing.
#[derive(Debug, Default)]
pub(crate) struct Baseline {
    /// Missing paths that git would use.
    absent: BTreeSet<PathBuf>,
    /// Names in git settings, each with the path that it leads to.
    led: BTreeSet<(PathBuf, PathBuf)>,
    /// Missing directories in which a repository can be created.
    missing_repository_parents: BTreeSet<PathBuf>,
    /// Directories, files and links that git treats as a repository.
    repositories: BTreeSet<PathBuf>,
    /// Directories that were not searched completely.
    unsearched: BTreeSet<PathBuf>,
}

impl Baseline {
    pub(super) fn new(found: &mut Found) -> Self {
        Self {
            absent: std::mem::take(&mut found.absent),
            led: std::mem::take(&mut found.led),
            missing_repository_parents: std::mem::take(&mut found.missing_repository_parents),
            repositories: std::mem::take(&mut found.repositories),
            unsearched: std::mem::take(&mut found.unsearched),
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
pub(crate) struct CreationGuard {
    watched: Arc<Watched>,
    /// Thread of the checks. They do not share the threads of the runtime, which the requests of an agent
    /// can occupy. `None` if the system refuses one.
    checks: Option<SyncSender<Check>>,
}

type Check = Box<dyn FnOnce() + Send>;

#[derive(Debug)]
struct Watched {
    files: Files,
    protected: ProtectedFiles,
    baseline: Baseline,
    created: Mutex<Vec<Created>>,
}

impl CreationGuard {
    /// Starts to watch. `baseline` was recorded before the command starts.
    pub(crate) fn new(files: Files, protected: ProtectedFiles, baseline: Baseline) -> Self {
        let watched = Arc::new(Watched { files, protected, baseline, created: Mutex::default() });
        let (checks, waiting) = sync_channel::<Check>(MAX_WAITING_CHECKS);
        let run = move || waiting.into_iter().for_each(|check| check());
        let thread = thread::Builder::new().name("creation-guard".to_owned()).spawn(run);
        Self { watched, checks: thread.is_ok().then_some(checks) }
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
    pub(crate) async fn finish(&self) -> (Vec<Created>, NewRepositories) {
        self.check().await;
        let new = self.run(Watched::new_repositories).await;
        (lock(&self.watched.created).clone(), new)
    }

    /// Moves new paths aside. Returns `true` if there were any, now or earlier.
    async fn check(&self) -> bool {
        self.run(Watched::move_aside).await
    }

    async fn run<T>(&self, work: impl FnOnce(&Watched) -> T + Send + 'static) -> T
    where
        T: Default + Send + 'static,
    {
        let watched = Arc::clone(&self.watched);
        let (sender, outcome) = oneshot::channel();
        let check: Check = Box::new(move || {
            let outcome = work(&watched);
            // The last reference may be dropped here, and the drop blocks.
            drop(watched);
            // Sending fails if the session closes, because then no command waits for the result.
            _ = sender.send(outcome);
        });
        let check = match &self.checks {
            Some(checks) => match checks.try_send(check) {
                Ok(()) => None,
                Err(TrySendError::Full(check) | TrySendError::Disconnected(check)) => Some(check),
            },
            None => Some(check),
        };
        if let Some(check) = check {
            // Fails only while the runtime shuts down.
            _ = tokio::task::spawn_blocking(check).await;
        }
        outcome.await.unwrap_or_default()
    }
}

impl Watched {
    fn move_aside(&self) -> bool {
        let created = self.baseline.absent.iter().filter(|path| exists(path));
        self.move_all_aside(created.filter(|path| !self.protected.is_written(path)));
        // After the paths themselves, so that a link of the user on the way to one stays.
        let led = self.baseline.led.iter().filter(|(name, path)| leads_elsewhere(name, path));
        self.move_all_aside(led.map(|(name, _)| name));
        !lock(&self.created).is_empty()
    }

    fn move_all_aside<'a>(&self, paths: impl Iterator<Item = &'a PathBuf>) {
        for path in paths {
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
    }

    /// Returns new repositories, and directories that can no longer be searched for them.
    fn new_repositories(&self) -> NewRepositories {
        let Baseline { repositories, missing_repository_parents, unsearched, .. } = &self.baseline;
        let found = self.protected.search(MAX_ENTRIES);
        let mut new: BTreeSet<PathBuf> = found.repositories.difference(repositories).cloned().collect();
        new.extend(found.unsearched.difference(unsearched).cloned());
        new.extend(missing_repository_parents.iter().filter(|path| exists(path)).cloned());
        self.protected.add_created(new, MAX_NAMED_BYTES)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.move_aside();
    }
}

/// Returns `true` if `name` leads to an entry that is not `path`.
fn leads_elsewhere(name: &Path, path: &Path) -> bool {
    // git cannot open a name that cannot be followed.
    exists(name) && links::real(name).ok().flatten().is_some_and(|real| real != path && exists(&real))
}

fn exists(path: &Path) -> bool {
    !path.symlink_metadata().is_err_and(|error| is_missing(&error))
}
