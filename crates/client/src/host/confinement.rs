//! What commands run in, and what it keeps them from.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use narrows_base::sync::lock;
use narrows_policy::{Access, Confined, Policy, Protection};
use narrows_process::{Sandbox, Support, is_missing};
use tokio::sync::{OnceCell, Semaphore};

use super::files::WriteMode;
use super::links;
use super::repository::{self, LookupBudget, Named};

/// The most directory entries that are searched for protected paths before a command. The nearest come first. A tree
/// with more is searched incompletely, which is reported: a command could create that many files on purpose.
const MAX_ENTRIES: usize = 100_000;

/// Directories of what was installed or built. Their contents come and go as wholes, and what runs in them is no
/// better protected than the rest of them.
const MADE: [&str; 7] =
    ["node_modules", "bower_components", "vendor", "target", ".venv", "venv", "__pypackages__"];

/// How many searches for protected paths of one session run at once.
const MAX_SEARCHES: usize = 2;

/// The sandbox for the commands of one session. What this machine has of it is found out when it is first needed.
#[derive(Debug, Clone)]
pub struct Confinement {
    policy: Arc<Policy>,
    roots: Vec<PathBuf>,
    support: Option<Arc<OnceCell<Support>>>,
    /// Protected paths that any search of this session has found. They stay protected while they exist, so that a
    /// command cannot hide them from the search before the next one.
    known: Arc<Mutex<BTreeSet<PathBuf>>>,
    /// Searches at the same time: an agent can ask for many commands at once, and each search takes a thread.
    searches: Arc<Semaphore>,
}

impl Confinement {
    /// None: commands do what we may do.
    pub fn none(policy: Arc<Policy>) -> Self {
        Self::with(policy, Vec::new(), None)
    }

    /// For commands that this policy lets run in `roots`, as far as this machine can. What it can is kept in `support`
    /// for others.
    pub fn new(policy: Arc<Policy>, roots: &[PathBuf], support: Arc<OnceCell<Support>>) -> Self {
        // Who may do everything is not held back, unless it is from the network.
        if policy.access() == Access::High && policy.narrowing().network {
            return Self::none(policy);
        }
        Self::with(policy, roots.to_vec(), Some(support))
    }

    fn with(policy: Arc<Policy>, roots: Vec<PathBuf>, support: Option<Arc<OnceCell<Support>>>) -> Self {
        let searches = Arc::new(Semaphore::new(MAX_SEARCHES));
        Self { policy, roots, support, known: Arc::default(), searches }
    }

    /// What a command that starts now runs in, and what that keeps it from. Looks at the disk for what is protected.
    pub async fn now(&self) -> (Option<Sandbox>, Confined) {
        let Some(support) = &self.support else { return (None, Confined::default()) };
        let support = support.get_or_init(Sandbox::support).await.clone();
        let can = support.confined();
        if !can.files {
            return (None, Confined::default());
        }
        // Never closed.
        let permit = Arc::clone(&self.searches).acquire_owned().await;
        let this = self.clone();
        let found = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            this.search(MAX_ENTRIES)
        })
        .await;
        let network = self.policy.narrowing().network;
        let mut sandbox = Sandbox { writable: self.roots.clone(), network, ..Sandbox::new(support) };
        let confined = Confined {
            files: can.files,
            network: can.network && !network,
            // The search fails only if the runtime ends. Then there is nothing to rely on.
            protected: found
                .as_ref()
                .map_or(Protection::NotSearched, |found| found.protection(can.protected)),
        };
        sandbox.protected = found.map(Found::into_all).unwrap_or_default();
        (Some(sandbox), confined)
    }

    /// Searches for protected paths, and adds those that earlier searches of this session found.
    fn search(&self, max_entries: usize) -> Found {
        let Found { paths, closed, is_complete, .. } = protected(&self.policy, &self.roots, max_entries);
        let mut known = lock(&self.known);
        known.extend(paths);
        // A path that cannot be looked at is kept: a command may have changed the mode of a directory around it.
        known.retain(|path| !path.symlink_metadata().is_err_and(|error| is_missing(&error)));
        let has_hard_link = known.iter().any(|path| is_hard_linked(path));
        Found { paths: known.clone(), closed, is_complete, has_hard_link }
    }

    /// Returns how the file at `path`, which has no links in it, is to be written. Blocks.
    ///
    /// A command sees a protected file through a read-only mount. The kernel drops that mount when the file is replaced, and the
    /// command could write the new one. So a protected file is written in place, also if no command runs: one may start.
    pub(crate) fn write_mode(&self, path: &Path) -> WriteMode {
        let is_named = self.roots.iter().any(|root| {
            path.strip_prefix(root).is_ok_and(|inside| self.policy.protects(root, inside, false))
        });
        let id = |path: &Path| path.metadata().ok().map(|file| (file.dev(), file.ino()));
        // A mount on a link is one on the file that it leads to.
        let is_mounted =
            || id(path).is_some_and(|file| lock(&self.known).iter().any(|known| id(known) == Some(file)));
        if is_named || is_mounted() { WriteMode::InPlace } else { WriteMode::Replace }
    }
}

/// Returns `true` if the file has other names. One that cannot be looked at may have.
fn is_hard_linked(path: &Path) -> bool {
    match path.metadata() {
        Ok(file) => !file.is_dir() && file.nlink() > 1,
        Err(error) => !is_missing(&error),
    }
}

/// The result of a search for protected paths.
struct Found {
    /// Paths that the policy protects.
    paths: BTreeSet<PathBuf>,
    /// Directories that cannot be looked through, so that all of them is protected. This holds as long as they are so.
    closed: Vec<PathBuf>,
    /// Every directory was searched, or is protected as a whole, and all settings of git were read.
    is_complete: bool,
    /// A protected file has a name that is not mounted.
    has_hard_link: bool,
}

impl Found {
    /// What of it a sandbox keeps that `can_protect` files in a root or not.
    fn protection(&self, can_protect: bool) -> Protection {
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
        self.paths.is_empty() && self.closed.is_empty()
    }

    /// Adds the hooks and settings that the settings of a repository name. `git` is its directory, or a file or link that
    /// leads there.
    fn add_named_by_settings(&mut self, policy: &Policy, root: &Path, git: &Path, budget: &mut LookupBudget) {
        let worktree = git.parent().filter(|_| git.ends_with(".git")).unwrap_or(git);
        let settings = repository::read_settings(git, worktree, policy.home(), budget);
        if !settings.is_complete {
            tracing::debug!(?git, "git settings not readable as a whole");
            self.is_complete = false;
        }
        for Named { path, spelled, stands_for } in settings.named {
            let is_there = path.symlink_metadata().is_ok() || spelled.symlink_metadata().is_ok();
            if is_there && policy.protects(root, &stands_for, path.is_dir()) {
                // A link on the way is as good as what it leads to.
                self.paths.extend((links::plain(&spelled) != path).then_some(spelled));
                self.paths.insert(path);
            }
        }
    }

    /// Adds the same for the repositories around a root: git in the root obeys their settings.
    fn add_named_above(&mut self, policy: &Policy, root: &Path, budget: &mut LookupBudget) {
        for directory in root.ancestors().skip(1).take(repository::MAX_ANCESTORS) {
            self.add_named_by_settings(policy, root, &directory.join(".git"), budget);
            if repository::is_repository(directory) {
                self.add_named_by_settings(policy, root, directory, budget);
            }
        }
    }

    /// Everything that a command must not change.
    fn into_all(self) -> Vec<PathBuf> {
        let Self { paths, closed, .. } = self;
        paths.into_iter().chain(closed).collect()
    }
}

/// Searches at most `most` directory entries in `roots` for protected paths.
///
/// Whatever can be told of a directory only with permissions that it does not give closes it: a command that owns it could
/// change its mode, and write what was not found.
fn protected(policy: &Policy, roots: &[PathBuf], mut most: usize) -> Found {
    let mut found =
        Found { paths: BTreeSet::new(), closed: Vec::new(), is_complete: true, has_hard_link: false };
    let mut budget = LookupBudget::new();
    roots.iter().for_each(|root| found.add_named_above(policy, root, &mut budget));
    let mut open: VecDeque<(&Path, PathBuf)> =
        roots.iter().map(|root| (root.as_path(), PathBuf::new())).collect();
    while let Some((root, inside)) = open.pop_front() {
        let directory = root.join(&inside);
        let entries = match directory.read_dir() {
            Ok(entries) if can_search(&directory) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Ok(_) | Err(_) => {
                found.closed.push(directory);
                continue;
            }
        };
        // Of a repository only the first level counts; below lie its objects.
        let is_git = inside.file_name().is_some_and(|name| name == ".git");
        let is_repository = is_git || repository::is_repository(&directory);
        if is_repository {
            found.add_named_by_settings(policy, root, &directory, &mut budget);
        }
        for entry in entries {
            let Ok(entry) = entry else {
                found.closed.push(directory);
                break;
            };
            if most == 0 {
                tracing::debug!(?roots, "search for protected paths incomplete");
                found.is_complete = false;
                return found;
            }
            most -= 1;
            let name = entry.file_name();
            let path = inside.join(&name);
            let is_directory = match entry.file_type() {
                Ok(kind) => kind.is_dir(),
                Err(error) if is_missing(&error) => continue,
                Err(_) => {
                    found.closed.push(root.join(path));
                    continue;
                }
            };
            if !is_directory && name == ".git" {
                found.add_named_by_settings(policy, root, &root.join(&path), &mut budget);
            }
            let is_protected = |path: &Path| policy.protects(root, path, is_directory);
            if is_protected(&path)
                || !is_git && is_repository && is_protected(&inside.join(".git").join(&name))
            {
                found.paths.insert(root.join(path));
            } else if is_directory && !is_repository && !MADE.iter().any(|made| name == *made) {
                open.push_back((root, path));
            }
        }
    }
    found
}

/// Returns `true` if what is in a directory can be looked at, which takes more than the right to list it.
fn can_search(directory: &Path) -> bool {
    rustix::fs::accessat(
        rustix::fs::CWD,
        directory,
        rustix::fs::Access::EXEC_OK,
        rustix::fs::AtFlags::EACCESS,
    )
    .is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::Command;

    use narrows_policy::{Narrowing, Rules};

    use super::*;

    fn tree(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        dir
    }

    #[track_caller]
    fn check(root: &Path, rules: &str, most: usize, expected: &[&str]) {
        let (rules, _) = Rules::parse(rules, "policy.toml").unwrap();
        let policy = Policy::new(Access::Medium, Narrowing::default()).with_rules(rules);
        let found = protected(&policy, &[root.to_owned()], most).paths;
        let expected: BTreeSet<PathBuf> = expected.iter().map(|name| root.join(name)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn what_git_obeys_is_found_whatever_it_is_called() {
        let root = tree(&[
            "bare.git/HEAD",
            "bare.git/config",
            "bare.git/description",
            "bare.git/hooks/pre-push",
            "bare.git/objects/x",
            "bare.git/refs/x",
            ".git/HEAD",
            "scripts/hooks/pre-commit",
            "scripts/build",
            "team.conf",
        ]);
        let settings =
            "[core]\nhooksPath = scripts/hooks\n[include]\npath = ../team.conf\n[include]\npath = ../none\n";
        fs::write(root.path().join(".git/config"), settings).unwrap();
        let top = root.path().canonicalize().unwrap();
        let all = [".git/config", "bare.git/config", "bare.git/hooks", "scripts/hooks", "team.conf"];
        check(&top, "", usize::MAX, &all);
    }

    #[test]
    fn what_is_protected_is_found_wherever_it_lies() {
        let root = tree(&[
            ".env",
            ".env.local",
            ".env.example",
            ".git/HEAD",
            ".git/config",
            ".git/hooks/pre-commit",
            ".git/objects/aa/.env",
            ".vscode/tasks.json",
            "AGENTS.md",
            "a/b/CLAUDE.md",
            "a/b/main.rs",
            "a/server.key",
            "node_modules/x/.npmrc",
            "sub/.git",
        ]);
        symlink("AGENTS.md", root.path().join("CLAUDE.md")).unwrap();
        symlink("a", root.path().join("link")).unwrap();
        let all = [
            ".env",
            ".env.local",
            ".git/config",
            ".git/hooks",
            ".vscode",
            "AGENTS.md",
            "CLAUDE.md",
            "a/b/CLAUDE.md",
            "a/server.key",
            "sub/.git",
        ];
        check(root.path(), "", 1000, &all);
        let rule = "[[rule]]\neffect = 'allow'\npath = ['**/*.md', '.vscode/**']\n";
        let rest = [".env", ".env.local", ".git/config", ".git/hooks", "a/server.key", "sub/.git"];
        check(root.path(), rule, 1000, &rest);
        check(root.path(), "", 0, &[]);
    }

    #[test]
    fn the_nearest_are_found_first() {
        let root = tree(&["a/a/a/.env", "b/.env", ".env"]);
        check(root.path(), "", 3, &[".env"]);
        check(root.path(), "", 5, &[".env", "b/.env"]);
        check(root.path(), "", 100, &[".env", "a/a/a/.env", "b/.env"]);
    }

    #[tokio::test]
    async fn a_sandbox_that_cannot_protect_is_told_as_such() {
        let policy = Arc::new(Policy::new(Access::Medium, Narrowing::default()));
        let root = tree(&["src/main.rs"]);
        let roots = [root.path().canonicalize().unwrap()];
        let having = |support| Arc::new(OnceCell::new_with(Some(support)));
        let alone = Confinement::new(Arc::clone(&policy), &roots, having(Support::landlock()));
        let (sandbox, confined) = alone.now().await;
        if sandbox.is_none() {
            assert_eq!(confined, Confined::default());
            return;
        }
        assert_eq!(confined, Confined { files: true, network: false, protected: Protection::Kept });
        fs::write(root.path().join(".env"), "").unwrap();
        let (sandbox, confined) = alone.now().await;
        assert_eq!(confined, Confined { files: true, network: false, protected: Protection::Unsupported });
        assert_eq!(sandbox.unwrap().protected, [roots[0].join(".env")]);
        let better = Confinement::new(policy, &roots, having(Support::namespaces().await));
        let (sandbox, confined) = better.now().await;
        assert_eq!(confined.protected == Protection::Kept, sandbox.is_some());
    }

    #[test]
    fn what_was_found_once_stays_protected_though_the_search_ends_before_it() {
        let policy = Arc::new(Policy::new(Access::Medium, Narrowing::default()));
        let root = tree(&["a/.git/config", "a/b/AGENTS.md"]);
        let roots = [root.path().to_owned()];
        let confinement = Confinement::new(policy, &roots, Arc::default());
        let first = confinement.search(100);
        assert_eq!((first.paths.len(), first.is_complete), (2, true));
        for number in 0..100 {
            fs::write(root.path().join(number.to_string()), "").unwrap();
        }
        let second = confinement.search(100);
        assert_eq!((second.paths, second.is_complete), (first.paths, false));
        fs::remove_file(root.path().join("a/b/AGENTS.md")).unwrap();
        assert_eq!(confinement.search(1000).into_all(), [root.path().join("a/.git/config")]);
    }

    #[test]
    fn the_reason_why_protected_files_are_not_kept_is_told() {
        let policy = Arc::new(Policy::new(Access::Medium, Narrowing::default()));
        let root = tree(&["AGENTS.md", "other"]);
        let roots = [root.path().to_owned()];
        let confinement = Confinement::new(policy, &roots, Arc::default());
        assert_eq!(confinement.search(100).protection(true), Protection::Kept);
        assert_eq!(confinement.search(100).protection(false), Protection::Unsupported);
        assert_eq!(confinement.search(1).protection(true), Protection::NotSearched);
        fs::hard_link(root.path().join("AGENTS.md"), root.path().join("second")).unwrap();
        assert_eq!(confinement.search(100).protection(true), Protection::HardLinked);
        fs::remove_file(root.path().join("second")).unwrap();
        // The settings of git cannot be read, and no sandbox is to blame.
        fs::create_dir(root.path().join(".git")).unwrap();
        let pipe = root.path().join(".git/config");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        for can_protect in [true, false] {
            assert_eq!(confinement.search(100).protection(can_protect), Protection::NotSearched);
        }
    }

    #[test]
    fn only_protected_files_are_written_in_place() {
        let policy = Arc::new(Policy::new(Access::Medium, Narrowing::default()));
        let root = tree(&["AGENTS.md", "notes", "plain"]);
        symlink("notes", root.path().join("CLAUDE.md")).unwrap();
        let confinement = Confinement::new(policy, &[root.path().to_owned()], Arc::default());
        let check = |name: &str, expected: WriteMode| {
            assert_eq!(confinement.write_mode(&root.path().join(name)), expected, "{name}");
        };
        check("AGENTS.md", WriteMode::InPlace);
        check("plain", WriteMode::Replace);
        // A command mounts what a link of a protected name leads to.
        check("notes", WriteMode::Replace);
        confinement.search(100);
        check("notes", WriteMode::InPlace);
        check("plain", WriteMode::Replace);
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_protected_as_a_whole() {
        let policy = Policy::new(Access::Medium, Narrowing::default());
        let root = tree(&["file"]);
        // Root can read every directory. A file in its place fails for every user.
        let unreadable = root.path().join("file");
        let found = protected(&policy, std::slice::from_ref(&unreadable), 100);
        assert_eq!((found.closed, found.is_complete), (vec![unreadable.join("")], true));
    }

    /// Runs a test of this module again as a user who is not root. Returns what it printed, or `None` where that cannot be
    /// tried.
    fn run_as_nobody(test: &str) -> Option<String> {
        const NOBODY: &str = "65534";
        let setpriv = Path::new("/usr/bin/setpriv");
        if !rustix::process::geteuid().is_root() || !setpriv.exists() {
            return None;
        }
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // Not copied by this process: a fork for another test would hold the copy open for writing.
        let program = place.path().join("program");
        let copied = Command::new("cp").args([&std::env::current_exe().unwrap(), &program]).status().unwrap();
        assert!(copied.success());
        let output = Command::new(setpriv)
            .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"])
            .arg(&program)
            .args([test, "--exact", "--nocapture"])
            .current_dir("/")
            .output()
            .unwrap();
        Some(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    }

    /// Modes mean nothing to root; [`a_plain_user_cannot_take_protection_away_by_modes`] is where this can fail.
    #[tokio::test]
    async fn modes_of_directories_take_no_protection_away() {
        let set_mode = |path: &Path, mode: u32| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode << 6)).unwrap();
        };
        let policy = Arc::new(Policy::new(Access::Medium, Narrowing::default()));
        let files = [".git/config", ".git/hooks/old", "sub/AGENTS.md", "sub/deep/CLAUDE.md"];
        for closed in [".git", "sub", "sub/deep", ""] {
            for mode in 0..8 {
                let root = tree(&files);
                let path = root.path().canonicalize().unwrap();
                let work = tempfile::tempdir().unwrap();
                let roots = [work.path().canonicalize().unwrap(), path.clone()];
                let confinement = Confinement::new(Arc::clone(&policy), &roots, Arc::default());
                // Half of them are searched for only when the mode has changed.
                if mode % 2 == 0 && confinement.now().await.1.protected != Protection::Kept {
                    return;
                }
                set_mode(&path.join(closed), mode);
                let (sandbox, confined) = confinement.now().await;
                if confined.protected != Protection::Kept {
                    return;
                }
                let mut spec = narrows_process::Spec::new("sh");
                let script = "for d in . .git sub sub/deep; do chmod 755 $d; done
                    for f in .git/config .git/hooks/old sub/AGENTS.md sub/deep/CLAUDE.md; do echo x >> $f; done
                    mv .git g; mv sub s; touch $1/done";
                let script = format!("cd \"$0\" || {{ chmod 755 \"$0\"; cd \"$0\"; }}\n{script}");
                let words = ["-c".into(), script.into(), path.clone().into(), roots[0].clone().into()];
                spec.args = words.to_vec();
                spec.cwd = Some(roots[0].clone());
                spec.sandbox = sandbox;
                narrows_process::spawn(spec).await.unwrap().wait().await;
                assert!(roots[0].join("done").exists(), "the command ran");
                for directory in ["", ".git", "sub", "sub/deep"] {
                    set_mode(&path.join(directory), 7);
                }
                for file in files {
                    let text = fs::read_to_string(path.join(file)).unwrap();
                    assert_eq!(text, "", "{file} with {closed:?} of mode {mode}");
                }
            }
        }
    }

    #[test]
    fn a_plain_user_cannot_take_protection_away_by_modes() {
        let test = "host::confinement::tests::modes_of_directories_take_no_protection_away";
        let Some(text) = run_as_nobody(test) else { return };
        assert!(text.contains("1 passed"), "{text}");
    }
}
