//! Commands that read files below the directories they name.

use std::path::PathBuf;

use narrows_policy::Verdict::{self, Allow, Deny};
use narrows_policy::{Access, Action, Command, WordLink};

use crate::common::{SANDBOX, decide, policy, shell};

#[track_caller]
fn check(access: Access, rules: &str, lines: &[&str], expected: Verdict) {
    let policy = policy(access, rules);
    let decided = lines.iter().map(|line| (line, decide(&policy, &shell(line), SANDBOX)));
    let wrong = decided.filter(|(_, decision)| decision.verdict != expected);
    let wrong: Vec<String> = wrong.map(|(line, decision)| format!("{line}: {decision}")).collect();
    assert!(wrong.is_empty(), "not {expected:?}:\n{}", wrong.join("\n"));
}

#[test]
fn at_low_access_nothing_reads_a_whole_root_or_what_lies_outside_of_it() {
    let lines = [
        "grep -r '' .",
        "grep -rn '' ./",
        "grep -rn ''",
        "grep '' -r",
        "grep -R '' .",
        "grep -nHr '' .",
        "grep --recursive '' .",
        "grep --recurs '' .",
        "grep --dereference-recursive '' .",
        "grep -d recurse '' .",
        "grep -drecurse '' .",
        "grep --directories=recurse '' .",
        "grep --directories recurse '' .",
        "grep -re '' src/..",
        "grep -r -e x -e y",
        "egrep -r '' .",
        "fgrep -r x .",
        "/usr/bin/grep -r x .",
        "grep -r x src .",
        "grep -r x /home/me/project",
        "grep -r x /home/me",
        "grep -r x ~",
        "grep -r x /",
        "grep -r x /root",
        "grep -r x ..",
        "grep -r x ../elsewhere",
        "grep -r --include='*' x .",
        "grep -r --include='.*' x .",
        "grep -r --include='*.pem' x .",
        "grep -r --include='*.rs' --include='.en*' x .",
        "grep -r --include='*.toml' x ~",
        "grep -r --include=config x /home/me",
        "grep -r x .hidden",
        "grep -r x src/.hidden/y",
        "rg -u k",
        "rg -uuu k .",
        "rg --hidden k",
        "rg -. k",
        "rg --no-ignore k",
        "rg --no-ignore-vcs k",
        "rg --unrestricted k",
        "rg -g '*' k",
        "rg -g '.*' k",
        "rg -g '*env' k",
        "rg --glob='.e?v' k",
        "rg --iglob '.E*' k",
        "rg --type-add 'x:.e*' -tx k",
        "rg k ~",
        "rg k /root",
        "rg k ..",
        "diff -r . /tmp/x",
        "diff -rN sub /root",
        "diff -rN . sub",
        "diff -N . sub",
        "diff . sub",
        "diff --recursive ~ sub",
        "diff -r --from-file=. sub",
    ];
    check(Access::Low, "", &lines, Deny);
}

#[test]
fn at_low_access_directories_of_a_root_are_searched() {
    let lines = [
        "grep -rn word src",
        "grep -rn word src tests",
        "grep -Rn word ./src/",
        "grep -rn word /home/me/project/src",
        "grep -rn --include='*.rs' word .",
        "grep -rn word --include=\"*.rs\" --include='*.toml'",
        "grep -n word README.md",
        "grep -n word /etc/hosts",
        "grep -c x -- src/main.rs",
        "rg word",
        "rg -n word",
        "rg word .",
        "rg -n word src",
        "rg -nA3 -g '*.rs' --no-heading word",
        "rg -g '!target' word",
        "rg -t rust word src",
        "rg -nuu word src",
        "rg --files",
        "rg -e a -e b src",
        "diff a b",
        "diff -u /etc/hosts hosts",
        "diff -ru a b",
        "git log --oneline",
        "git diff",
        "git status",
        "git show HEAD",
        "ls -R .",
        "find . -name '*.rs'",
    ];
    check(Access::Low, "", &lines, Allow);
}

#[test]
fn at_low_access_a_link_to_another_place_is_not_searched() {
    let low = policy(Access::Low, "");
    let mut action = Action::execute(Command::Shell("grep -r x lib".into()), None);
    assert_eq!(decide(&low, &action, SANDBOX).verdict, Allow);
    action.word_links = vec![WordLink { written: "lib".into(), real: "/home/me".into() }];
    assert_eq!(decide(&low, &action, SANDBOX).verdict, Deny);
    let mut action = shell("rg x");
    action.cwd = Some(PathBuf::from("/home/me"));
    assert_eq!(decide(&low, &action, SANDBOX).verdict, Deny);
}

#[test]
fn a_rule_against_reading_a_path_counts_for_programs_that_read_what_lies_below() {
    let rule = "[[rule]]\neffect = 'deny'\nkind = 'read'\npath = 'data/secrets'\n";
    let lines = [
        "cp -r . /tmp/x",
        "grep -r '' .",
        "grep -r ''",
        "grep -r '' data",
        "grep -R '' data",
        "grep -rn --color=never '' ./data/",
        "grep -r -e x -e y",
        "grep --recursive x .",
        "grep -d recurse x .",
        "sudo grep -r x .",
        "cd data && grep -r x .",
        "cd data && grep -r x",
        "zgrep -r x .",
        "tar cf - .",
        "tar czf /tmp/x.tgz data",
        "tar -cf /tmp/x -C data .",
        "tar -C/home/me/project -cf - .",
        "bsdtar -cf - .",
        "diff -r data /tmp/x",
        "diff -rN . /tmp",
        "rg x",
        "rg x .",
        "rg --context 3 x",
        "rg -e x",
        "rg x data",
        "ag x",
        "zip -r x.zip .",
        "zip -qr x.zip data",
        "7z a x.7z data",
        "rsync -a . host:x",
        "rsync -r data host:x",
        "scp -r . host:x",
        "find . -type f -exec cat {} +",
        "find -type f -exec cat {} ;",
        "find data -exec head {} \\;",
        "fd . data -x cat",
        "git grep x",
        "git grep x -- data",
    ];
    check(Access::High, rule, &lines, Deny);
    check(Access::Low, rule, &["rg x", "rg x data", "grep -r --include='*.rs' x ."], Deny);
    let elsewhere = [
        "grep -r x src",
        "grep -rn x src/a src/b",
        "grep x README.md",
        "tar cf - src",
        "tar xzf x.tgz",
        "diff -r src /tmp/x",
        "rg x src",
        "rg -n -A 3 x src",
        "zip -r x.zip src",
        "rsync -a src/ host:x",
        "find . -name '*.rs'",
        "find src -exec cat {} +",
        "git grep x -- src",
        "git status",
        "ls -R .",
        "cargo test",
    ];
    check(Access::High, rule, &elsewhere, Allow);
    // What is only read is not changed.
    let edits = "[[rule]]\neffect = 'deny'\nkind = ['edit', 'move', 'delete']\npath = 'data/secrets'\n";
    let reading = ["grep -r '' .", "tar cf - .", "rg x", "find . -exec cat {} +", "zip -r /tmp/x.zip ."];
    check(Access::High, edits, &reading, Allow);
}
