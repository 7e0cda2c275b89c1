//! All kinds of sandboxes that work on this machine, and scripts in them.
#![allow(dead_code, reason = "every test file uses another part of it")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use narrows_process::{Sandbox, Spec, Support, spawn};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::common::{Mark, STEP_TIMEOUT, read_all};

/// Variable with the path of a bubblewrap outside of the usual install paths.
pub(crate) const LAUNCHER: &str = "NARROWS_TEST_BWRAP";
/// Variable with the path of a directory in which an unprivileged user may create directories.
pub(crate) const PLACE: &str = "NARROWS_TEST_PLACE";

pub(crate) async fn mechanisms() -> Vec<Support> {
    let launcher = match std::env::var_os(LAUNCHER) {
        Some(path) => Support::bubblewrap_at(path).await,
        None => Support::bubblewrap().await,
    };
    let namespaces = Support::namespaces().await;
    // Reproduces machines without PID namespaces.
    let fewer = namespaces.clone().without_pid_namespace();
    let (mut usable, missing): (Vec<_>, Vec<_>) = [launcher, namespaces, fewer, Support::landlock()]
        .into_iter()
        .partition(|support| support.confined().files);
    usable.dedup();
    for support in missing {
        eprintln!("not tried: {support}");
    }
    usable
}

pub(crate) async fn with_pid_namespace() -> Option<Support> {
    let support = Support::namespaces().await;
    if !has_pid_namespace(&support) {
        eprintln!("not tried: it takes a PID namespace, and there is {support}");
        return None;
    }
    Some(support)
}

/// Returns `true` if the sandbox starts a launcher, with a PID namespace and private temporary directories.
pub(crate) fn launches(support: &Support) -> bool {
    support.to_string().starts_with("bubblewrap")
}

/// Returns `true` if a tree has its own process ids in the sandbox.
pub(crate) fn has_pid_namespace(support: &Support) -> bool {
    launches(support) || support.to_string().contains("a PID namespace")
}

/// Creates a directory below the build directory, because `/tmp` may be the sandbox's own. Its path is free
/// of links.
pub(crate) fn directory() -> TempDir {
    let place = std::env::var_os(PLACE).unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    tempfile::tempdir_in(fs::canonicalize(place).unwrap()).unwrap()
}

/// Returns a copy of this program in a directory that a sandbox shows.
///
/// Copied by another process: a fork for another test would inherit the descriptor that is open for writing,
/// and the program could not be executed.
pub(crate) fn copy_itself(root: &Path) -> PathBuf {
    let program = root.join("program");
    let copied = Command::new("cp").args([&std::env::current_exe().unwrap(), &program]).status().unwrap();
    assert!(copied.success());
    program
}

/// Returns a script in a sandbox with one writable directory, in which it starts.
pub(crate) fn confined(support: &Support, mark: &Mark, root: &Path, script: &str) -> Spec {
    let mut spec = mark.shell(script);
    spec.cwd = Some(root.to_owned());
    spec.merge_stderr = true;
    spec.sandbox = Some(Sandbox { writable: vec![root.to_owned()], ..Sandbox::new(support.clone()) });
    spec
}

pub(crate) async fn output(spec: Spec) -> String {
    let mut child = spawn(spec).await.unwrap();
    let text = read_all(&mut child).await;
    timeout(STEP_TIMEOUT, child.wait()).await.unwrap();
    text
}

/// Runs these tests of this program as `nobody` and returns their output; `None` if that is impossible on
/// this machine.
pub(crate) async fn as_nobody(tests: &[&str], env: &[(&str, &str)]) -> Option<String> {
    const NOBODY: u32 = 65534;
    let setpriv = Path::new("/usr/bin/setpriv");
    if !rustix::process::geteuid().is_root() || !setpriv.exists() {
        eprintln!("not tried: it takes root, and setpriv");
        return None;
    }
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let [program, home] = ["program", "home"].map(|name| place.path().join(name));
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(&home).unwrap();
    chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    let mut spec = Mark::new().shell("");
    spec.program = setpriv.into();
    let id = |name: &str| format!("--{name}={NOBODY}").into();
    spec.args = vec![id("reuid"), id("regid"), "--clear-groups".into(), program.into()];
    spec.args.extend(tests.iter().chain(&["--exact", "--nocapture"]).map(Into::into));
    spec.env.set(PLACE, &home);
    for (name, value) in env {
        spec.env.set(name, value);
    }
    spec.cwd = Some(home);
    spec.merge_stderr = true;
    Some(output(spec).await)
}
