//! Tests that protected paths in a sandbox stay unchanged, for every known attempt and every user.
#![expect(clippy::unwrap_used, reason = "what goes wrong in a role or a helper fails the test")]
#![expect(clippy::print_stderr, reason = "a test that cannot be run here says so")]

#[path = "common/cage.rs"]
mod cage;
mod common;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cage::{as_nobody, confined, directory, launches, mechanisms, output};
use common::{Mark, QUICK, STEP_TIMEOUT, read_until};
use narrows_process::{Support, spawn};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use tokio::time::timeout;

const ROLE: &str = "NARROWS_TEST_ROLE";
/// Number of commands that start while a directory is exchanged for a link.
const EXCHANGED_STARTS: u32 = 60;

/// Runs the role that the environment names; passes at once if there is none.
#[test]
fn role() {
    if std::env::var_os(ROLE).is_some() {
        say_support();
    }
}

fn say_support() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let support = runtime.block_on(Support::namespaces());
    std::io::stdout().write_all(format!("\n@{support}\n").as_bytes()).unwrap();
}

/// Commands that try to change a protected path. The text before `|` is the directory in which they run.
const ATTEMPTS: &[&str] = &[
    "| echo x > .git/hooks/new",
    "| echo x > .git/hooks/old",
    "| rm .git/hooks/old",
    "| chmod 777 .git/hooks/old",
    "| touch -d @0 .git/hooks/old",
    "| mv .git/hooks .git/h",
    "| mv .git g",
    "| rm -r .git",
    "| mkdir n && mv -T n .git/hooks",
    "| echo x > .env",
    "| rm .env",
    "| mv .env e",
    "| echo x > n; mv n .env",
    "| echo x > n; ln -f n .env",
    "| ln .env e && echo x > e",
    "| ln -s .env e && echo x > e",
    "| cd a/b && echo x > .npmrc",
    "| mv a/b a/c",
    "| mv a c",
    "| umount .git/hooks",
    "| umount -l .env",
    "| mount -o remount,bind,rw .env",
    "| unshare -Ur umount .env",
    "| unshare -Urm umount -l .git/hooks",
    "| unshare -Urm mount -o remount,bind,rw .env",
    "| unshare -Urm sh -c 'mount --bind . a && echo x > a/.env'",
    "| unshare -Urm sh -c 'mount -t tmpfs none .git'",
    "| nsenter -t $PPID -m sh -c 'echo x > .env'",
    "| echo x > /proc/$PPID/cwd/.env",
    "| echo x > /proc/$PPID/root$PWD/.env",
    ".git| echo x > hooks/new",
    ".git| mv hooks h",
    ".git| cd .. && mv .git g",
    ".git/hooks| echo x > old",
    "a/b| echo x > .npmrc",
    "a/b| cd .. && mv b c",
];

#[tokio::test]
async fn protected_paths_stay_unchanged() {
    for support in mechanisms().await.into_iter().filter(|support| support.confined().protected) {
        let root = directory();
        let at = |path: &str| root.path().join(path);
        fs::create_dir_all(at(".git/hooks")).unwrap();
        fs::create_dir_all(at("a/b")).unwrap();
        for (path, text) in [(".git/hooks/old", "old"), (".env", "SECRET=1"), ("a/b/.npmrc", "token=1")] {
            fs::write(at(path), text).unwrap();
        }
        let protected = [".git/hooks", ".env", ".vscode", "a/b/.npmrc"].map(at).to_vec();
        for attempt in ATTEMPTS {
            let (cwd, command) = attempt.split_once('|').unwrap();
            let script = format!("if ({command}) 2>/dev/null; then echo escaped; else echo held; fi");
            let mut spec = confined(&support, &Mark::new(), root.path(), &script);
            spec.cwd = Some(at(cwd));
            spec.sandbox.as_mut().unwrap().protected = protected.clone();
            assert_eq!(output(spec).await, "held\n", "{support}: {attempt}");
            for path in
                ["e", "n", ".git/h"].map(at).into_iter().filter(|path| path.symlink_metadata().is_ok())
            {
                fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)).unwrap();
            }
        }
        let mut spec =
            confined(&support, &Mark::new(), root.path(), "echo x > .git/HEAD && echo y > a/b/new");
        spec.sandbox.as_mut().unwrap().protected = protected;
        assert_eq!(output(spec).await, "", "{support}: what lies beside can be changed");
        let read = |path| fs::read_to_string(at(path)).unwrap();
        let texts = [".git/hooks/old", ".env", "a/b/.npmrc", ".git/HEAD", "a/b/new"].map(read);
        assert_eq!(texts, ["old", "SECRET=1", "token=1", "x\n", "y\n"]);
        let mut names: Vec<_> =
            fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, [".env", ".git", "a"]);
    }
}

/// Both the link and its target are protected: the target could be written, and the link could be replaced.
#[tokio::test]
async fn a_protected_link_stays_unchanged() {
    for support in mechanisms().await.into_iter().filter(|support| support.confined().protected) {
        let (root, outside) = (directory(), directory());
        let at = |path: &str| root.path().join(path);
        fs::create_dir(at("conf")).unwrap();
        fs::write(at("conf/env"), "SECRET=1").unwrap();
        symlink("conf/env", at(".env")).unwrap();
        symlink(outside.path(), at(".vscode")).unwrap();
        symlink("nowhere", at(".idea")).unwrap();
        for attempt in [
            "echo x > .env",
            "echo x > conf/env",
            "mv conf c",
            "rm .env",
            "ln -sfn other .env",
            "rm .vscode",
            "mv .vscode v",
            "rm .idea",
        ] {
            let script = format!("if ({attempt}) 2>/dev/null; then echo escaped; else echo held; fi");
            let mut spec = confined(&support, &Mark::new(), root.path(), &script);
            spec.sandbox.as_mut().unwrap().protected = [".env", ".vscode", ".idea"].map(at).to_vec();
            assert_eq!(output(spec).await, "held\n", "{support}: {attempt}");
        }
        assert_eq!(fs::read_to_string(at(".env")).unwrap(), "SECRET=1");
        assert_eq!(fs::read_link(at(".vscode")).unwrap(), outside.path());
    }
}

/// A running command can exchange a directory around a protected file for a link while the next command
/// starts. The link's target must not be mounted.
#[tokio::test]
async fn a_directory_that_is_exchanged_for_a_link_opens_nothing_outside() {
    for support in mechanisms().await {
        let (root, outside) = (directory(), directory());
        let [new, link] = ["new", "link"].map(|name| root.path().join(name));
        fs::create_dir(&new).unwrap();
        fs::write(new.join(".bashrc"), "").unwrap();
        fs::write(outside.path().join(".bashrc"), "").unwrap();
        symlink(outside.path(), &link).unwrap();
        let target = outside.path().join("target");
        let is_over = Arc::new(AtomicBool::new(false));
        let exchanging = std::thread::spawn({
            let (new, link, is_over) = (new.clone(), link.clone(), is_over.clone());
            move || {
                while !is_over.load(Ordering::Relaxed) {
                    renameat_with(CWD, &new, CWD, &link, RenameFlags::EXCHANGE).unwrap();
                    std::thread::sleep(Duration::from_micros(300)); // sleep: gives commands time to see both states
                }
            }
        });
        for _ in 0..EXCHANGED_STARTS {
            let script = format!("echo x > {} || echo x > new/target; true", target.display());
            let mut spec =
                confined(&support, &Mark::new(), root.path(), &format!("exec 2>/dev/null; {script}"));
            spec.sandbox.as_mut().unwrap().protected = vec![new.join(".bashrc")];
            // A command that does not start is safe, too.
            if let Ok(child) = spawn(spec).await {
                timeout(STEP_TIMEOUT, child.wait()).await.unwrap();
            }
            if target.exists() {
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
        exchanging.join().unwrap();
        assert!(!target.exists(), "{support}");
    }
}

/// A directory that may not be searched hides its content, and its owner can change that mode. For root the
/// modes have no effect, so only [`an_unprivileged_user_has_protected_paths`] can fail here.
#[tokio::test]
async fn protected_paths_in_directories_of_any_mode_stay_unchanged() {
    for support in mechanisms().await.into_iter().filter(|support| support.confined().protected) {
        let root = directory();
        let at = |path: &str| root.path().join(path);
        fs::create_dir_all(at("d/e/f/hooks")).unwrap();
        fs::create_dir_all(at("l/e/f")).unwrap();
        for path in ["d/e/f/config", "d/e/f/hooks/old", "l/e/f/config"] {
            fs::write(at(path), "old").unwrap();
        }
        symlink("l/e/f/config", at("link")).unwrap();
        let protected = ["d/e/f/config", "d/e/f/hooks", "link"].map(at).to_vec();
        let set_modes = |directories: &[&str], mode: u32| {
            for directory in directories {
                for top in ["d", "l"] {
                    let path = at(&format!("{top}{directory}"));
                    fs::set_permissions(path, fs::Permissions::from_mode(mode << 6)).unwrap();
                }
            }
        };
        for (closed, mode) in [&["/e/f"][..], &["/e"], &[""], &["/e/f", "/e", ""]]
            .into_iter()
            .flat_map(|closed| (0..8).map(move |mode| (closed, mode)))
        {
            set_modes(closed, mode);
            let script = "
                chmod 755 d d/e d/e/f l l/e l/e/f
                echo x >> d/e/f/config; echo x > d/e/f/hooks/new; echo x >> l/e/f/config; echo x >> link
                mv d/e/f/hooks d/e/f/h; mv d/e/f d/e/g; mv d/e d/g; mv d g; mv l g
                true";
            let mut spec =
                confined(&support, &Mark::new(), root.path(), &format!("exec 2>/dev/null\n{script}"));
            spec.sandbox.as_mut().unwrap().protected = protected.clone();
            assert_eq!(output(spec).await, "", "{support}: {closed:?} {mode}");
            for directory in ["", "/e", "/e/f"] {
                set_modes(&[directory], 7);
            }
            for path in ["d/e/f/config", "d/e/f/hooks/old", "l/e/f/config"] {
                let text = fs::read_to_string(at(path)).unwrap_or_default();
                assert_eq!(text, "old", "{support}: {path} with {closed:?} of mode {mode}");
            }
            assert!(!at("d/e/f/hooks/new").exists(), "{support}: {closed:?} of mode {mode}");
        }
    }
}

/// Runs the tests as a user other than root, who needs a user namespace.
#[tokio::test]
async fn an_unprivileged_user_has_protected_paths() {
    let tests = [
        "protected_paths_stay_unchanged",
        "a_protected_link_stays_unchanged",
        "protected_paths_in_directories_of_any_mode_stay_unchanged",
        "role",
    ];
    let Some(text) = as_nobody(&tests, &[(ROLE, "plain")]).await else { return };
    assert!(text.contains("4 passed"), "{text}");
    let support = Support::landlock();
    if support.confined().files && !text.contains("are unavailable") {
        let told = ["a user, a mount and a PID namespace", "a user and a mount namespace"];
        assert!(text.contains("@Landlock") && told.iter().any(|told| text.contains(told)), "{text}");
    }
}

/// The script makes changes that Landlock does not cover: modes, owners and times.
#[tokio::test]
async fn nothing_outside_changes_in_any_way() {
    let has_mounts = |support: &Support| support.confined().protected || launches(support);
    for support in mechanisms().await.into_iter().filter(has_mounts) {
        let (root, outside) = (directory(), directory());
        let file = outside.path().join("file");
        fs::write(&file, "x").unwrap();
        for attempt in ["chmod 777", "touch -d @0"] {
            let script = format!("{attempt} {} 2>/dev/null || echo held", file.display());
            let text = output(confined(&support, &Mark::new(), root.path(), &script)).await;
            assert_eq!(text, "held\n", "{support}: {attempt}");
        }
    }
}

/// A set-user-id program would give the rights of the user to every user who starts it, outside any
/// sandbox.
#[tokio::test]
async fn nothing_is_left_that_runs_as_its_owner_or_group() {
    for support in mechanisms().await {
        let root = directory();
        for attempt in [
            "cp /bin/true helper; chmod 4755 helper",
            "cp /bin/true helper; chmod u+s helper",
            "cp /bin/true helper; chmod 2755 helper",
            "install -m 4755 /bin/true helper",
            "umask 0; perl -e 'use Fcntl; sysopen(F, \"helper\", O_CREAT | O_WRONLY, 04755)'",
            "mknod -m 4755 helper p",
        ] {
            let script = format!("{{ {attempt}; }} 2>/dev/null; true");
            output(confined(&support, &Mark::new(), root.path(), &script)).await;
            let helper = root.path().join("helper");
            if let Ok(metadata) = fs::metadata(&helper) {
                assert_eq!(metadata.mode() & 0o6000, 0, "{support}: {attempt}");
                fs::remove_file(&helper).unwrap();
            }
        }
        let script =
            "cp /bin/true plain && chmod 1755 plain && mkdir -m 700 d && chmod 777 d && stat -c %a plain d";
        assert_eq!(
            output(confined(&support, &Mark::new(), root.path(), script)).await,
            "1755\n777\n",
            "{support}"
        );
    }
}

#[tokio::test]
async fn a_sandbox_shows_nothing_outside_and_leaves_no_mounts() {
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap();
    for support in mechanisms().await {
        let root = directory();
        fs::write(root.path().join(".env"), "").unwrap();
        let before = mounts();
        let mut spec = confined(&support, &Mark::new(), root.path(), "echo ready; exec sleep 1000");
        spec.sandbox.as_mut().unwrap().protected = vec![root.path().join(".env")];
        let mut child = spawn(spec).await.unwrap();
        read_until(&mut child.take_stdout().unwrap(), "ready\n").await;
        assert_eq!(mounts(), before, "{support}");
        child.stop(QUICK).await;
        fs::remove_file(root.path().join(".env")).unwrap();
    }
}
