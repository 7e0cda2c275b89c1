//! Tests of the search for protected paths, and of the names of a file.

use std::fs;
use std::os::unix::fs::symlink;

use narrows_policy::{Access, Narrowing, Protection, Rules};

use super::*;

fn medium() -> Policy {
    Policy::new(Access::Medium, Narrowing::default())
}

fn protected_files(policy: Policy, root: &Path) -> ProtectedFiles {
    ProtectedFiles::new(Arc::new(policy), &[root.to_owned()], &[])
}

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
    let found = protected_files(policy, root).search(most).paths;
    let expected: BTreeSet<PathBuf> = expected.iter().map(|name| root.join(name)).collect();
    assert_eq!(found, expected);
}

#[test]
fn git_settings_are_found_under_every_name() {
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
fn no_directory_layout_hides_its_files() {
    let root = tree(&[
        "HEAD",
        "config",
        "objects/x/.vscode/tasks.json",
        "refs/AGENTS.md",
        "sub/.vscode/tasks.json",
        "sub/proj/.git/HEAD",
        "sub/proj/.git/hooks/pre-commit",
        "sub/proj/.git/logs/AGENTS.md",
        "sub/proj/.git/objects/aa/AGENTS.md",
        "sub/proj/.git/other/AGENTS.md",
        "sub/proj/.git/refs/AGENTS.md",
    ]);
    let all = [
        "config",
        "objects/x/.vscode",
        "refs/AGENTS.md",
        "sub/.vscode",
        "sub/proj/.git/hooks",
        "sub/proj/.git/other/AGENTS.md",
    ];
    check(root.path(), "", usize::MAX, &all);
}

#[test]
fn repositories_in_installed_packages_are_protected() {
    let root = tree(&[
        ".git/HEAD",
        ".git/modules/vendor/sub/hooks/x",
        ".venv/src/package/.git/config",
        "node_modules/@scope/a/node_modules/b/.git/hooks/post-checkout",
        "node_modules/plain/.envrc",
        "node_modules/plain/.git.js",
        "scripts/push",
        "target/AGENTS.md",
        "target/cache/bare/HEAD",
        "target/cache/bare/config",
        "target/cache/bare/objects/x",
        "target/cache/bare/refs/x",
        "vendor/AGENTS.md",
        "vendor/group/copy/.envrc",
        "vendor/group/copy/.git/hooks/x",
        "vendor/group/copy/src/main.c",
        "vendor/group/copy/vendor/deep/.git/config",
        "vendor/sub/.vscode/tasks.json",
    ]);
    let top = root.path().canonicalize().unwrap();
    fs::write(top.join("vendor/sub/.git"), "gitdir: ../../.git/modules/vendor/sub\n").unwrap();
    symlink("../../../../../scripts/push", top.join(".git/modules/vendor/sub/hooks/pre-push")).unwrap();
    let all = [
        ".git/modules",
        ".git/modules/vendor/sub/hooks",
        ".git/modules/vendor/sub/hooks/pre-push",
        ".venv/src/package/.git/config",
        "node_modules/@scope/a/node_modules/b/.git/hooks",
        "scripts/push",
        "target/cache/bare/config",
        "vendor/group/copy/.envrc",
        "vendor/group/copy/.git/hooks",
        "vendor/group/copy/vendor/deep/.git/config",
        "vendor/sub/../../.git/modules/vendor/sub/hooks/pre-push",
        "vendor/sub/.git",
        "vendor/sub/.vscode",
    ];
    check(&top, "", usize::MAX, &all);
}

#[test]
fn only_the_nearest_installed_packages_are_searched() {
    let root = tree(&["vendor/a/b/.git/config", "AGENTS.md"]);
    let top = root.path().canonicalize().unwrap();
    for number in 0..=search::MAX_INSTALLED_ENTRIES {
        fs::write(top.join("vendor").join(number.to_string()), "").unwrap();
    }
    let found = protected_files(medium(), &top).search(100);
    assert_eq!((found.paths, found.is_complete), (BTreeSet::from([top.join("AGENTS.md")]), true));
}

#[test]
fn targets_of_linked_hooks_are_protected() {
    let root =
        tree(&[".git/HEAD", ".git/hooks/x", "scripts/pre-commit", "hk/x", "tools/push", "tools/other"]);
    let top = root.path().canonicalize().unwrap();
    symlink("../../scripts/pre-commit", top.join(".git/hooks/pre-commit")).unwrap();
    symlink("../tools/push", top.join("hk/pre-push")).unwrap();
    fs::write(top.join(".git/config"), "[core]\nhooksPath = hk\n").unwrap();
    let links = [".git/hooks/pre-commit", "hk/pre-push"];
    let all = [".git/config", ".git/hooks", "hk", "scripts/pre-commit", "tools/push"];
    check(&top, "", usize::MAX, &[&all[..], &links[..]].concat());
    let rule = "[[rule]]\neffect = 'allow'\npath = ['hk/**', 'hk', '.git/hooks/**', '.git/hooks']\n";
    check(&top, rule, usize::MAX, &[".git/config"]);
}

#[test]
fn targets_of_protected_links_are_protected() {
    let root = tree(&[
        "docs/guide.md",
        "docs/other.md",
        "dirv/tasks.json",
        "ordinary.json",
        "ci/workflows/build.yml",
        "ci/other",
        ".husky/pre-push",
        "scripts/husky",
    ]);
    let top = root.path().canonicalize().unwrap();
    for (target, link) in [
        ("docs/guide.md", "AGENTS.md"),
        ("dirv", ".zed"),
        ("../ordinary.json", "dirv/settings.json"),
        ("../scripts/husky", ".husky/pre-commit"),
        ("..", ".husky/up"),
        (".", "here"),
        ("ci", ".github"),
        ("other", "ci/link"),
    ] {
        symlink(target, top.join(link)).unwrap();
    }
    fs::remove_file(top.join(".husky/up")).unwrap();
    let all = [".github/workflows", ".husky", ".husky/pre-commit", ".zed", ".zed/settings.json", "AGENTS.md"];
    check(&top, "", usize::MAX, &all);
    let files = protected_files(medium(), &top);
    let names = |path: &str, extent: Extent| -> Vec<String> {
        let names = files.linked_names(&top.join(path), extent);
        names.iter().map(|name| name.strip_prefix(&top).unwrap().display().to_string()).collect()
    };
    assert_eq!(names("docs/guide.md", Extent::File), ["AGENTS.md"]);
    assert_eq!(names("docs/other.md", Extent::File), [""; 0]);
    assert_eq!(names("docs", Extent::File), [""; 0]);
    assert_eq!(names("docs", Extent::Tree), ["AGENTS.md"]);
    assert_eq!(names("dirv/new/x", Extent::File), [".zed/new/x"]);
    assert_eq!(names("ordinary.json", Extent::File), [".zed/settings.json"]);
    assert_eq!(names("ci/workflows/new.yml", Extent::File), [".github/workflows/new.yml"]);
    // If a directory contains the root, the root is protected as a whole.
    symlink("..", top.join(".husky/up")).unwrap();
    assert!(files.search(usize::MAX).paths.contains(&top));
}

#[test]
fn a_dangling_protected_link_is_not_kept() {
    let root = tree(&["docs/x", ".vscode/x"]);
    let top = root.path().canonicalize().unwrap();
    let files = protected_files(medium(), &top);
    for target in ["none", "../../none"] {
        symlink(target, top.join(".vscode/link")).unwrap();
        assert_eq!(files.search(100).protection(true), Protection::Kept, "{target}");
        fs::remove_file(top.join(".vscode/link")).unwrap();
    }
    symlink("docs/none", top.join("AGENTS.md")).unwrap();
    assert_eq!(files.search(100).protection(true), Protection::NotSearched);
    fs::write(top.join("docs/none"), "").unwrap();
    assert_eq!(files.search(100).protection(true), Protection::Kept);
}

#[test]
fn hooks_that_settings_of_the_user_or_the_system_name_are_protected() {
    let root = tree(&["hk/pre-push", "own/gitconfig", ".git/HEAD", "rel/x"]);
    let top = root.path().canonicalize().unwrap();
    let files =
        |settings: &[PathBuf]| ProtectedFiles::new(Arc::new(medium()), std::slice::from_ref(&top), settings);
    let settings = top.join("own/gitconfig");
    for (value, hooks) in [(top.join("hk").display().to_string(), "hk"), ("rel".to_owned(), "rel")] {
        fs::write(&settings, format!("[core]\nhooksPath = {value}\n")).unwrap();
        let found = files(std::slice::from_ref(&settings)).search(100);
        assert!(found.is_complete);
        assert_eq!(found.paths, BTreeSet::from([top.join(hooks), settings.clone()]));
    }
    fs::write(&settings, "[core").unwrap();
    assert_eq!(files(&[settings]).search(100).protection(true), Protection::NotSearched);
    let outside = tempfile::NamedTempFile::new().unwrap();
    assert_eq!(files(&[outside.path().to_owned()]).search(100).into_all(), [""; 0].map(PathBuf::from));
}

#[test]
fn protected_files_are_found_at_any_depth() {
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
fn the_nearest_protected_files_are_found_first() {
    let root = tree(&["a/a/a/.env", "b/.env", ".env"]);
    check(root.path(), "", 3, &[".env"]);
    check(root.path(), "", 5, &[".env", "b/.env"]);
    check(root.path(), "", 100, &[".env", "a/a/a/.env", "b/.env"]);
}

#[test]
fn a_found_file_stays_protected_if_a_later_search_is_incomplete() {
    let root = tree(&["a/.git/config", "a/b/AGENTS.md"]);
    let files = protected_files(medium(), root.path());
    let first = files.search(100);
    assert_eq!((first.paths.len(), first.is_complete), (2, true));
    for number in 0..100 {
        fs::write(root.path().join(number.to_string()), "").unwrap();
    }
    let second = files.search(100);
    assert_eq!((second.paths, second.is_complete), (first.paths, false));
    fs::remove_file(root.path().join("a/b/AGENTS.md")).unwrap();
    assert_eq!(files.search(1000).into_all(), [root.path().join("a/.git/config")]);
}

#[test]
fn the_reason_for_missing_protection_is_reported() {
    let root = tree(&["AGENTS.md", "other"]);
    let files = protected_files(medium(), root.path());
    assert_eq!(files.search(100).protection(true), Protection::Kept);
    assert_eq!(files.search(100).protection(false), Protection::Unsupported);
    assert_eq!(files.search(1).protection(true), Protection::NotSearched);
    fs::hard_link(root.path().join("AGENTS.md"), root.path().join("second")).unwrap();
    assert_eq!(files.search(100).protection(true), Protection::HardLinked);
    fs::remove_file(root.path().join("second")).unwrap();
    // The git configuration cannot be read, which is not a lack of the sandbox.
    fs::create_dir(root.path().join(".git")).unwrap();
    let pipe = root.path().join(".git/config");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for can_protect in [true, false] {
        assert_eq!(files.search(100).protection(can_protect), Protection::NotSearched);
    }
}

#[test]
fn a_directory_that_cannot_be_read_is_protected_as_a_whole() {
    let root = tree(&["file"]);
    // Root can read every directory, but a file instead of a directory fails for every user.
    let unreadable = root.path().join("file");
    let found = protected_files(medium(), &unreadable).search(100);
    assert_eq!((found.unsearchable, found.is_complete), (vec![unreadable.join("")], true));
}

#[test]
fn a_known_repository_is_not_hidden_by_other_entries() {
    let root = tree(&["vendor/lib/.git/HEAD", "vendor/lib/.git/config"]);
    let top = root.path().canonicalize().unwrap();
    let files = protected_files(medium(), &top);
    let (git, vendor) = (top.join("vendor/lib/.git"), top.join("vendor"));
    let first = files.search(MAX_ENTRIES);
    assert_eq!((&first.repositories, &first.unsearched), (&BTreeSet::from([git.clone()]), &BTreeSet::new()));
    fs::create_dir(vendor.join("more")).unwrap();
    for number in 0..=search::MAX_INSTALLED_ENTRIES {
        fs::create_dir(vendor.join("more").join(number.to_string())).unwrap();
        fs::create_dir(vendor.join(number.to_string())).unwrap();
    }
    let second = files.search(MAX_ENTRIES);
    assert_eq!((second.repositories, second.unsearched), (first.repositories, BTreeSet::from([vendor])));
    assert_eq!((&second.absent, second.paths), (&first.absent, first.paths));
    assert!(second.absent.contains(&git.join("commondir")));
    fs::remove_dir_all(&git).unwrap();
    assert!(files.search(MAX_ENTRIES).repositories.is_empty());
}

#[test]
fn repositories_in_protected_directories_are_found() {
    let root = tree(&[".husky/.git/HEAD", ".vscode/a/.git", ".zed/node_modules/b/.git/HEAD"]);
    for name in ["HEAD", "objects", "refs"] {
        fs::create_dir_all(root.path().join(".husky/bare").join(name)).unwrap();
    }
    let top = root.path().canonicalize().unwrap();
    let found = protected_files(medium(), &top).search(MAX_ENTRIES).repositories;
    let all = [".husky/.git", ".husky/bare", ".vscode/a/.git", ".zed/node_modules/b/.git"];
    assert_eq!(found, all.map(|name| top.join(name)).into());
}

#[test]
fn names_in_settings_are_watched_besides_what_they_lead_to() {
    let root = tree(&[".git/HEAD", "s2/x", "conf/local.inc"]);
    let top = root.path().canonicalize().unwrap();
    symlink("s2", top.join("scripts")).unwrap();
    symlink("real-hk", top.join("hk")).unwrap();
    let check = |settings: &str, absent: &[&str], led: &[(&str, &str)]| {
        fs::write(top.join(".git/config"), settings).unwrap();
        let found = protected_files(medium(), &top).search(MAX_ENTRIES);
        let in_root = |path: &PathBuf| !path.starts_with(top.join(".git"));
        let is_led: Vec<_> = found.led.into_iter().filter(|(name, _)| in_root(name)).collect();
        let expected: Vec<_> = led.iter().map(|(name, path)| (top.join(name), top.join(path))).collect();
        assert_eq!(is_led, expected, "{settings}");
        for path in absent {
            assert!(found.absent.contains(&top.join(path)), "{settings}: {path}");
        }
    };
    check("[core]\nhooksPath = scripts/hooks\n", &["s2/hooks"], &[("scripts/hooks", "s2/hooks")]);
    check("[core]\nhooksPath = hk\n", &["real-hk"], &[("hk", "real-hk")]);
    let raw = |path: &str| format!("[include]\npath = {}\n", top.join(path).display());
    check(&raw("conf/../none"), &["none"], &[("conf/../none", "none")]);
    check(&raw("missing/../none"), &["none"], &[("missing/../none", "none")]);
    check(&raw("conf/x/../local.inc"), &[], &[("conf/x/../local.inc", "conf/local.inc")]);
}

#[test]
fn each_created_repository_is_named_once_and_within_a_bound() {
    let files = protected_files(medium(), Path::new("/none"));
    let set = |names: &[&str]| names.iter().map(PathBuf::from).collect::<BTreeSet<_>>();
    let new = |names: &[&str], unnamed| NewRepositories { paths: set(names).into_iter().collect(), unnamed };
    assert_eq!(files.add_created(set(&["/aa", "/bb", "/cc"]), 6), new(&["/aa", "/bb"], 1));
    assert_eq!(files.add_created(set(&["/aa"]), 6), new(&["/cc"], 0));
    assert_eq!(files.add_created(set(&["/aa", "/long name"]), 6), new(&["/long name"], 0));
    assert_eq!(files.add_created(set(&[]), 6), new(&[], 0));
}

#[tokio::test]
async fn lookups_are_bounded() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let files = protected_files(medium(), Path::new("/none"));
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut lookups = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let (files, running, most) = (files.clone(), Arc::clone(&running), Arc::clone(&most));
        lookups.spawn(async move {
            let work = move || {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                // sleep: so that more lookups would run at once if they could.
                std::thread::sleep(Duration::from_millis(2));
                running.fetch_sub(1, Ordering::SeqCst);
            };
            files.look_up(work).await;
        });
    }
    lookups.join_all().await;
    let most = most.load(Ordering::SeqCst);
    assert!((2..=MAX_LOOKUPS).contains(&most), "{most}");
}
