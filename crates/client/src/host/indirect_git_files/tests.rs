//! Tests of files that git uses: names, configuration, links and bounds.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;

/// A cloned repository can contain such a directory.
#[test]
fn settings_of_a_hostile_repository_take_bounded_memory() {
    let long = format!("[includeif \"{}\"]\n{}", "a".repeat(400_000), "path=\n".repeat(100_000));
    let names = format!("[{}]\n{}", "a".repeat(500_000), "b\n".repeat(250_000));
    let paths = format!("[core]\n{}{}", "worktree=a\n".repeat(40_000), "hookspath=b\n".repeat(40_000));
    for (text, is_complete) in [(&long, true), (&names, true), (&paths, false)] {
        let (_place, root) = tree(&[(".git/config", text), (".git/HEAD", "ref: refs/heads/main\n")]);
        let settings =
            read_settings(&root.join(".git"), &root, UserSettings::default(), &mut LookupBudget::new());
        assert_eq!(settings.is_complete, is_complete);
        assert!(settings.named.len() <= MAX_PATHS * MAX_PATHS);
    }
}

/// Every hook path is looked up in every work tree, and each can have many links.
#[test]
fn hooks_of_a_hostile_repository_are_followed_up_to_a_bound() {
    let up = |count: usize| "d/../".repeat(count);
    let worktrees: String = (0..30).map(|count| format!("worktree=../{}\n", up(count))).collect();
    let hooks: String = (0..30).map(|count| format!("hookspath={}hooks\n", up(count))).collect();
    let config = format!("[core]\n{worktrees}{hooks}");
    let (_place, root) = tree(&[(".git/config", &config), ("d/x", ""), ("hooks/x", "")]);
    for number in 0..50 {
        symlink("x", root.join(format!("hooks/{number}"))).expect("a link");
    }
    let settings =
        read_settings(&root.join(".git"), &root, UserSettings::default(), &mut LookupBudget::new());
    assert!(!settings.is_complete && settings.named.len() <= MAX_LOOKUP_PATHS);
}

#[test]
fn the_settings_of_many_repositories_are_read_up_to_a_bound() {
    let files: Vec<String> = (0..20).map(|number| format!("{}.git/config", "r/".repeat(number))).collect();
    let comment = "#".repeat(1000);
    let files: Vec<(&str, &str)> = files.iter().map(|file| (file.as_str(), comment.as_str())).collect();
    let (_place, root) = tree(&files);
    let deepest = root.join("r/".repeat(19)).join("x");
    let look_up = |mut budget: LookupBudget| {
        let found = counterparts(&deepest, Extent::File, UserSettings::default(), &mut budget);
        (found.is_complete, budget)
    };
    let (is_complete, rest) = look_up(LookupBudget::new());
    assert!(is_complete && rest.files < MAX_LOOKUP_FILES && rest.bytes <= MAX_LOOKUP_BYTES - 20_000);
    for scarce in [
        LookupBudget { files: 10, ..LookupBudget::new() },
        LookupBudget { bytes: 5000, ..LookupBudget::new() },
        LookupBudget { paths: 10, ..LookupBudget::new() },
    ] {
        assert!(!look_up(scarce).0);
    }
}

fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().expect("a directory");
    let top = place.path().canonicalize().expect("it is there");
    for (file, text) in files {
        let path = top.join(file);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("a file");
    }
    (place, top)
}

fn with_home(top: &Path, path: &str) -> Counterparts {
    let files = [top.join("home/.gitconfig")];
    let user = UserSettings { home: Some(&top.join("home")), files: &files };
    counterparts(&top.join(path), Extent::File, user, &mut LookupBudget::new())
}

#[track_caller]
fn check(top: &Path, path: &str, expected: &[&str]) {
    let expected: Vec<PathBuf> = expected.iter().map(|name| top.join(name)).collect();
    let found = with_home(top, path);
    assert_eq!(found, Counterparts { paths: expected, is_complete: true }, "{path}");
}

#[test]
fn repository_files_count_as_git_files_under_any_name() {
    let (_place, top) =
        tree(&[("r/x.git/HEAD", ""), ("r/x.git/objects/a", ""), ("r/x.git/refs/a", ""), ("r/y/HEAD", "")]);
    check(&top, "r/x.git/config", &["r/x.git/.git/config"]);
    check(&top, "r/x.git/hooks/pre-commit", &["r/x.git/.git/hooks/pre-commit"]);
    check(&top, "r/y/config", &[]);
    check(&top, "r/y/objects/x", &[]);
    check(&top, "r/main.rs", &[]);
    check(&top, "r/.git/config", &[]);
}

#[test]
fn a_file_that_completes_a_repository_counts_as_settings() {
    let (_place, top) = tree(&[("d/HEAD", ""), ("d/config", ""), ("d/objects/x", ""), ("w/commondir", "")]);
    check(&top, "d/refs/x", &["d/.git/config"]);
    check(&top, "w/HEAD", &["w/.git/config"]);
    check(&top, "d/other", &[]);
}

#[test]
fn hooks_and_settings_named_by_settings_count() {
    let config = "[core]\n\thooksPath = scripts/hooks ; ours\n[include] path = \"../team.conf\"\n\
        [includeIf \"gitdir:~/x\"]\n\tpath=more.conf\n[remote \"path\"]\n\tpath = src\n[core]\n\tbare = false\n";
    let (_place, top) = tree(&[("r/.git/config", config), ("r/scripts/hooks/pre-commit", "")]);
    check(&top, "r/scripts/hooks/pre-commit", &["r/.git/hooks/pre-commit"]);
    check(&top, "r/scripts/hooks", &["r/.git/hooks"]);
    check(&top, "r/team.conf", &["r/.git/config"]);
    check(&top, "r/.git/more.conf", &["r/.git/config"]);
    check(&top, "r/scripts/build", &[]);
    check(&top, "r/src", &[]);
    // Moving a directory also moves the hooks in it.
    check(&top, "r/scripts", &[]);
    let moved =
        counterparts(&top.join("r/scripts"), Extent::Tree, UserSettings::default(), &mut LookupBudget::new());
    assert_eq!(moved.paths, [top.join("r/.git/hooks")]);
}

#[test]
fn hooks_are_found_in_every_configuration_form() {
    let named = [".git/hooks/pre-commit"];
    let nested = "[core]\nhooksPath = hooks";
    let beside = |config: &'static str| {
        let (place, top) = tree(&[("r/.git/config", config), ("r/team.conf", nested)]);
        fs::create_dir_all(top.join("home")).expect("a directory");
        (place, top)
    };
    for config in [
        "\u{feff}[core]\nhooksPath = hooks",
        "[core]\nhooksPath = ho\"oks\"",
        "[core]\nhooksPath = ho\\\noks",
        "[include]\npath = ../team.conf",
        "[includeIf \"onbranch:none\"]\npath = ../team.conf",
        "[core]\nhooksPath = ~/../r/hooks",
        "[core]\nhooksPath = ../r/hooks",
    ] {
        let (_place, top) = beside(config);
        let found = with_home(&top, "r/hooks/pre-commit");
        assert_eq!(found.paths, named.map(|name| top.join("r").join(name)), "{config}");
        assert!(found.is_complete, "{config}");
    }
    let (_place, top) = beside("");
    fs::write(top.join("r/.git/config"), b"[user]\nname = J\xf6rg\n[core]\nhooksPath = hooks")
        .expect("a file");
    check(&top, "r/hooks/pre-commit", &["r/.git/hooks/pre-commit"]);
    fs::remove_file(top.join("r/.git/config")).expect("a file");
    fs::write(top.join("home/.gitconfig"), nested).expect("a file");
    check(&top, "r/hooks/pre-commit", &["r/.git/hooks/pre-commit"]);
    check(&top, "other/hooks/pre-commit", &[]);
}

#[test]
fn worktrees_and_submodules_are_followed_to_their_settings() {
    let (_place, top) = tree(&[
        ("r/.git/config", "[core]\nhooksPath = hooks"),
        ("r/.git/worktrees/w/commondir", "../..\n"),
        ("r/.git/worktrees/w/config.worktree", "[include]\npath = w.conf"),
        ("w/.git", "gitdir: ../r/.git/worktrees/w\n"),
        ("r/.git/modules/sub/config", "[core]\nworktree = ../../../sub\nhooksPath = scripts"),
        ("r/sub/.git", "gitdir: ../.git/modules/sub"),
        ("s/HEAD", ""),
        ("s/commondir", "../c"),
        ("c/config", "[core]\nhooksPath = ../d"),
    ]);
    check(&top, "w/hooks/pre-commit", &["w/.git/hooks/pre-commit"]);
    check(&top, "r/.git/worktrees/w/w.conf", &[]);
    check(&top, "r/sub/scripts/x", &["r/sub/.git/hooks/x"]);
    symlink("../r/.git", top.join("s/.git")).expect("a link");
    check(&top, "s/hooks/x", &["s/.git/hooks/x"]);
}

#[test]
fn links_among_hooks_and_settings_are_followed() {
    let (_place, top) = tree(&[("r/.git/hooks/x", ""), ("r/team.conf", ""), ("r/scripts/check", "")]);
    symlink("../team.conf", top.join("r/.git/config")).expect("a link");
    symlink("../../scripts/check", top.join("r/.git/hooks/pre-commit")).expect("a link");
    check(&top, "r/team.conf", &["r/.git/config"]);
    check(&top, "r/scripts/check", &["r/.git/hooks/pre-commit"]);
    check(&top, "r/scripts/other", &[]);
}

#[test]
fn settings_that_cannot_be_read_as_a_whole_are_incomplete() {
    let is_complete = |files: &[(&str, &str)]| {
        let (_place, top) = tree(files);
        counterparts(&top.join("r/src"), Extent::File, UserSettings::default(), &mut LookupBudget::new())
            .is_complete
    };
    assert!(is_complete(&[("r/.git/config", "[include]\npath = missing")]));
    assert!(!is_complete(&[("r/.git/config", &"#".repeat(1 + (1 << 20)))]));
    assert!(!is_complete(&[("r/.git/config", "[include]\npath = config")]));
    assert!(!is_complete(&[("r/.git/config", "[core")]));
    assert!(!is_complete(&[("r/.git/config", "[core]\nhooksPath = ~/hooks")]));
    assert!(!is_complete(&[("r/.git/config", "[core]\nhooksPath = ~nobody-has-this-name/hooks")]));
    assert!(!is_complete(&[("r/.git/config", "[core]\nhooksPath = %(prefix)/hooks")]));
}

/// A cloned repository can name a pipe or a device outside of the roots.
#[test]
fn settings_that_are_no_regular_files_are_not_opened() {
    let (_place, root) = tree(&[(".git/HEAD", "ref: refs/heads/main\n")]);
    let pipe = root.join("pipe");
    rustix::fs::mknodat(CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
    fs::write(root.join(".git/config"), "[include]\npath = ../pipe\n").expect("a file");
    let opened = root.join("opened");
    let waiting = pipe.clone();
    // A writer waits until the pipe has a reader.
    let mut writer = std::process::Command::new("sh");
    writer.args(["-c", "exec 3> \"$0\"; touch \"$1\""]).arg(&waiting).arg(&opened);
    let mut writer = writer.spawn().expect("a shell");
    for _ in 0..20 {
        let settings =
            read_settings(&root.join(".git"), &root, UserSettings::default(), &mut LookupBudget::new());
        assert!(!settings.is_complete);
        // sleep: the writer has no sign that it waits.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let is_opened = opened.exists();
    writer.kill().expect("it is killed");
    writer.wait().expect("it ends");
    assert!(!is_opened, "the pipe was opened");
    assert!(read_file(Path::new("/dev/null")).expect("a device").is_empty());
}
