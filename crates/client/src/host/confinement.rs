//! What commands run in, and what it keeps them from.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use narrows_policy::{Access, Confined, Policy};
use narrows_process::{Sandbox, Support};
use tokio::sync::OnceCell;

/// The most directory entries that are searched for protected paths before a command. The nearest come first. A tree
/// with more is searched incompletely, which is reported: a command could create that many files on purpose.
const MAX_ENTRIES: usize = 100_000;

/// Directories of what was installed or built. Their contents come and go as wholes, and what runs in them is no
/// better protected than the rest of them.
const MADE: [&str; 7] =
    ["node_modules", "bower_components", "vendor", "target", ".venv", "venv", "__pypackages__"];

/// The sandbox for the commands of one session. What this machine has of it is found out when it is first needed.
#[derive(Debug, Clone)]
pub struct Confinement {
    policy: Arc<Policy>,
    roots: Vec<PathBuf>,
    support: Option<Arc<OnceCell<Support>>>,
    /// Protected paths that any search of this session has found. They stay protected while they exist, so that a
    /// command cannot hide them from the search before the next one.
    known: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl Confinement {
    /// None: commands do what we may do.
    pub fn none(policy: Arc<Policy>) -> Self {
        Self { policy, roots: Vec::new(), support: None, known: Arc::default() }
    }

    /// For commands that this policy lets run in `roots`, as far as this machine can. What it can is kept in `support`
    /// for others.
    pub fn new(policy: Arc<Policy>, roots: &[PathBuf], support: Arc<OnceCell<Support>>) -> Self {
        // Who may do everything is not held back, unless it is from the network.
        if policy.access() == Access::High && policy.narrowing().network {
            return Self::none(policy);
        }
        Self { policy, roots: roots.to_vec(), support: Some(support), known: Arc::default() }
    }

    /// What a command that starts now runs in, and what that keeps it from. Looks at the disk for what is protected.
    pub async fn now(&self) -> (Option<Sandbox>, Confined) {
        let Some(support) = &self.support else { return (None, Confined::default()) };
        let support = support.get_or_init(Sandbox::support).await.clone();
        let can = support.confined();
        if !can.files {
            return (None, Confined::default());
        }
        let this = self.clone();
        let found = tokio::task::spawn_blocking(move || this.search(MAX_ENTRIES)).await;
        let network = self.policy.narrowing().network;
        let mut sandbox = Sandbox { writable: self.roots.clone(), network, ..Sandbox::new(support) };
        let confined = Confined {
            files: can.files,
            network: can.network && !network,
            // The search fails only if the runtime ends. Then there is nothing to rely on.
            protected: found
                .as_ref()
                .is_ok_and(|found| found.is_complete && (can.protected || found.paths.is_empty())),
        };
        sandbox.protected = found.map(|found| found.paths).unwrap_or_default();
        (Some(sandbox), confined)
    }

    /// Searches for protected paths, and adds those that earlier searches of this session found.
    fn search(&self, max_entries: usize) -> Found {
        let Found { paths, is_complete } = protected(&self.policy, &self.roots, max_entries);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(paths);
        known.retain(|path| path.symlink_metadata().is_ok());
        Found { paths: known.iter().cloned().collect(), is_complete }
    }
}

/// The result of a search for protected paths.
struct Found {
    paths: Vec<PathBuf>,
    /// Every directory was searched.
    is_complete: bool,
}

/// Searches at most `most` directory entries in `roots` for protected paths.
fn protected(policy: &Policy, roots: &[PathBuf], mut most: usize) -> Found {
    let mut found = Vec::new();
    let mut open: VecDeque<(&Path, PathBuf)> =
        roots.iter().map(|root| (root.as_path(), PathBuf::new())).collect();
    while let Some((root, inside)) = open.pop_front() {
        let entries = match root.join(&inside).read_dir() {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            // What is in it cannot be known, so all of it is protected: a command could change its mode and write.
            Err(_) => {
                found.push(root.join(inside));
                continue;
            }
        };
        // Of a repository only the first level counts; below lie its objects.
        let is_repository = inside.file_name().is_some_and(|name| name == ".git");
        for entry in entries.flatten() {
            if most == 0 {
                tracing::debug!(?roots, "search for protected paths incomplete");
                return Found { paths: found, is_complete: false };
            }
            most -= 1;
            let name = entry.file_name();
            let path = inside.join(&name);
            let directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if policy.protects(root, &path, directory) {
                found.push(root.join(path));
            } else if directory && !is_repository && !MADE.iter().any(|made| name == *made) {
                open.push_back((root, path));
            }
        }
    }
    Found { paths: found, is_complete: true }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

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
        let mut found = protected(&policy, &[root.to_owned()], most).paths;
        found.sort();
        let expected: Vec<PathBuf> = expected.iter().map(|name| root.join(name)).collect();
        assert_eq!(found, expected);
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
        assert_eq!(confined, Confined { files: true, network: false, protected: true });
        fs::write(root.path().join(".env"), "").unwrap();
        let (sandbox, confined) = alone.now().await;
        assert_eq!(confined, Confined { files: true, network: false, protected: false });
        assert_eq!(sandbox.unwrap().protected, [roots[0].join(".env")]);
        let better = Confinement::new(policy, &roots, having(Support::namespaces().await));
        let (sandbox, confined) = better.now().await;
        assert_eq!(confined.protected, sandbox.is_some());
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
        assert_eq!(confinement.search(1000).paths, [root.path().join("a/.git/config")]);
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_protected_as_a_whole() {
        let policy = Policy::new(Access::Medium, Narrowing::default());
        let root = tree(&["file"]);
        // Root can read every directory. A file in its place fails for every user.
        let unreadable = root.path().join("file");
        let found = protected(&policy, std::slice::from_ref(&unreadable), 100);
        assert_eq!((found.paths, found.is_complete), (vec![unreadable.join("")], true));
    }
}
