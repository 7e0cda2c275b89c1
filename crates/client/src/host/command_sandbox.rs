//! Determines the sandbox of commands, and the protection that it provides.

use std::path::Path;
use std::sync::Arc;

use narrows_policy::{Access, Confined, Protection};
use narrows_process::{Sandbox, Support};
use tokio::sync::{OnceCell, Semaphore};

use super::created::Baseline;
use super::files::WriteMode;
use super::protected::{MAX_ENTRIES, ProtectedFiles};

/// Maximum number of concurrent searches for protected paths in one session.
const MAX_SEARCHES: usize = 2;

/// Sandbox for the commands of one session. Probes the capabilities of this machine on first use.
#[derive(Debug, Clone)]
pub struct CommandSandbox {
    files: ProtectedFiles,
    support: Option<Arc<OnceCell<Support>>>,
    /// Limits concurrent searches: an agent can request many commands at once, and each search occupies a
    /// thread.
    searches: Arc<Semaphore>,
}

impl CommandSandbox {
    /// Creates a value without a sandbox: commands have the rights of this process.
    pub fn none(files: ProtectedFiles) -> Self {
        Self::with(files, None)
    }

    /// Creates the sandbox for commands in the directories of `files`, as far as this machine supports it.
    /// `support` holds the probed capabilities for all sessions.
    pub fn new(files: ProtectedFiles, support: Arc<OnceCell<Support>>) -> Self {
        // High access is not confined, unless the network is disabled.
        if files.policy().access() == Access::High && files.policy().narrowing().network {
            return Self::none(files);
        }
        Self::with(files, Some(support))
    }

    fn with(files: ProtectedFiles, support: Option<Arc<OnceCell<Support>>>) -> Self {
        Self { files, support, searches: Arc::new(Semaphore::new(MAX_SEARCHES)) }
    }

    /// Searches for protected files, and returns the sandbox for a command that starts now, with its
    /// protection.
    pub async fn prepare(&self) -> (Option<Sandbox>, Confined) {
        let (sandbox, confined, _) = self.prepare_with_baseline().await;
        (sandbox, confined)
    }

    /// Like [`prepare`](Self::prepare), and also returns the paths that the command must not create.
    pub(crate) async fn prepare_with_baseline(&self) -> (Option<Sandbox>, Confined, Baseline) {
        let none = (None, Confined::default(), Baseline::default());
        let Some(support) = &self.support else { return none };
        let support = support.get_or_init(Sandbox::support).await.clone();
        let can = support.confined();
        if !can.files {
            return none;
        }
        // The semaphore is never closed.
        let permit = Arc::clone(&self.searches).acquire_owned().await;
        let files = self.files.clone();
        let found = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            files.search(MAX_ENTRIES)
        })
        .await;
        let network = self.files.policy().narrowing().network;
        let writable = self.files.roots().to_vec();
        let mut sandbox = Sandbox { writable, network, ..Sandbox::new(support) };
        let confined = Confined {
            files: can.files,
            network: can.network && !network,
            // The search fails only while the runtime shuts down. Protection is then not assumed.
            protected: found
                .as_ref()
                .map_or(Protection::NotSearched, |found| found.protection(can.protected)),
        };
        let mut baseline = Baseline::default();
        if let Ok(mut found) = found {
            // Without mounts, a command can change existing files as well, and was permitted to.
            if confined.protected != Protection::Unsupported {
                baseline = Baseline::new(&mut found);
            }
            sandbox.protected = found.into_all();
        }
        (Some(sandbox), confined, baseline)
    }

    /// Returns how to write the file at `path`, which must not contain links. Blocks.
    ///
    /// A command sees a protected file through a read-only mount. If the file were replaced, the kernel would
    /// drop that mount, and the command could write the new file. So a protected file is written in place.
    /// This also applies while no command runs, because one may start.
    pub(crate) fn write_mode(&self, path: &Path) -> WriteMode {
        let is_named = self.files.roots().iter().any(|root| {
            path.strip_prefix(root).is_ok_and(|inside| self.files.policy().protects(root, inside, false))
        });
        if is_named {
            self.files.add_written(path);
        }
        if is_named || self.files.is_mounted(path) { WriteMode::InPlace } else { WriteMode::Replace }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::Command;

    use narrows_policy::{Narrowing, Policy};

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

    #[tokio::test]
    async fn an_unprotecting_sandbox_is_reported() {
        let policy = Arc::new(Policy::new(Access::Medium, Narrowing::default()));
        let root = tree(&["src/main.rs"]);
        let roots = [root.path().canonicalize().unwrap()];
        let files = ProtectedFiles::new(policy, &roots, &[]);
        let having = |support| Arc::new(OnceCell::new_with(Some(support)));
        let alone = CommandSandbox::new(files.clone(), having(Support::landlock()));
        let (sandbox, confined) = alone.prepare().await;
        if sandbox.is_none() {
            assert_eq!(confined, Confined::default());
            return;
        }
        assert_eq!(confined, Confined { files: true, network: false, protected: Protection::Kept });
        fs::write(root.path().join(".env"), "").unwrap();
        let (sandbox, confined) = alone.prepare().await;
        assert_eq!(confined, Confined { files: true, network: false, protected: Protection::Unsupported });
        assert_eq!(sandbox.unwrap().protected, [roots[0].join(".env")]);
        let better = CommandSandbox::new(files, having(Support::namespaces().await));
        let (sandbox, confined) = better.prepare().await;
        assert_eq!(confined.protected == Protection::Kept, sandbox.is_some());
    }

    #[test]
    fn only_protected_files_are_overwritten_in_place() {
        let policy = Arc::new(Policy::new(Access::Medium, Narrowing::default()));
        let root = tree(&["AGENTS.md", "notes", "plain"]);
        symlink("notes", root.path().join("CLAUDE.md")).unwrap();
        let files = ProtectedFiles::new(policy, &[root.path().to_owned()], &[]);
        let command_sandbox = CommandSandbox::new(files, Arc::default());
        let check = |name: &str, expected: WriteMode| {
            assert_eq!(command_sandbox.write_mode(&root.path().join(name)), expected, "{name}");
        };
        check("AGENTS.md", WriteMode::InPlace);
        check("plain", WriteMode::Replace);
        // A command mounts the target of a protected link as well.
        check("notes", WriteMode::Replace);
        command_sandbox.files.search(100);
        check("notes", WriteMode::InPlace);
        check("plain", WriteMode::Replace);
    }

    /// Runs a test of this module as a user other than root. Returns its output, or `None` if this is not
    /// possible here.
    fn run_as_nobody(test: &str) -> Option<String> {
        const NOBODY: &str = "65534";
        let setpriv = Path::new("/usr/bin/setpriv");
        if !rustix::process::geteuid().is_root() || !setpriv.exists() {
            return None;
        }
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // Copied by another program: a fork for another test would keep a copy by this process open for
        // writing.
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

    /// Root ignores modes, so only [`an_ordinary_user_cannot_remove_protection_by_modes`] can fail here.
    #[tokio::test]
    async fn directory_modes_do_not_remove_protection() {
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
                let command_sandbox = CommandSandbox::new(
                    ProtectedFiles::new(Arc::clone(&policy), &roots, &[]),
                    Arc::default(),
                );
                // In half of the cases, files are searched for only after the mode has changed.
                if mode % 2 == 0 && command_sandbox.prepare().await.1.protected != Protection::Kept {
                    return;
                }
                set_mode(&path.join(closed), mode);
                let (sandbox, confined) = command_sandbox.prepare().await;
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
    fn an_ordinary_user_cannot_remove_protection_by_modes() {
        for test in [
            "host::command_sandbox::tests::directory_modes_do_not_remove_protection",
            "host::files::tests::an_entry_is_moved_aside_whatever_the_modes_of_its_directories",
        ] {
            let Some(text) = run_as_nobody(test) else { return };
            assert!(text.contains("1 passed"), "{text}");
        }
    }
}
