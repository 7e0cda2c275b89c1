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
fn at_low_access_no_command_reads_a_whole_root_or_outside_of_it() {
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
        "grep -rn word ./src/",
        "grep -rn word /home/me/project/src",
        "grep -rn --include='*.rs' word .",
        "grep -rn word --include=\"*.rs\" --include='*.toml'",
        "grep -n word README.md",
        "grep -n word /etc/hosts",
        "grep -c x -- src/main.rs",
        "grep -n --regexp=-x src/main.rs",
        "rg --context 3 word",
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
        "diff -u src/a.rs src/b.rs",
        "diff a.txt b.txt",
        "diff -u /dev/null a.txt",
        "diff -ru --no-dereference a b",
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
fn at_low_access_git_diff_compares_no_directories_as_diff_does() {
    let lines = [
        "git diff /home/me/.config /tmp",
        "git diff -- /home/me /tmp",
        "git diff . /home/me",
        "git diff -- . /home/me",
        "git diff /home/me .",
        "git diff --stat -p /root /tmp",
        "git --no-pager diff /etc /tmp",
        "git -P diff ~ x",
        "git diff ~root x",
        "git diff ~- x",
        "git diff ../elsewhere x",
        "git diff src/../../elsewhere x",
        "git diff HEAD ../x",
        "git diff HEAD /etc/hosts",
        "git diff HEAD~1 -- /home/me",
        "git diff -- -S/../../../x -S/../../../y",
        // Without a repository any two operands are compared.
        "git diff . src",
        "git diff -- src .",
        "git diff src -- .",
        "git diff /home/me/project src",
        "git diff .hidden src",
        "git diff src -- .hidden",
        "git diff --no-index src tests",
        "git diff --no-ind src tests",
        "git grep --no-index x ..",
        "git grep x",
        "git grep -O x",
        "git blame --contents ../x src/a.rs",
        "git ls-files -o -X ../x",
        "git ls-files -oX../x",
        "git ls-files --others --exclude-from=../x",
        "git log -O../x",
        "git diff -O../x",
        "git hash-object ../x",
        "git check-ignore ../x",
    ];
    check(Access::Low, "", &lines, Deny);
    let everyday = [
        "git diff",
        "git diff --stat",
        "git diff --cached -- src",
        "git diff HEAD~1",
        "git diff HEAD -- .",
        "git diff HEAD .",
        "git diff -- src/a.rs",
        "git diff -- src tests docs",
        "git diff src/a.rs src/b.rs",
        "git diff main..dev -- docs",
        "git diff main...HEAD -- .github",
        "git diff origin/main -- .",
        "git diff main dev",
        "git diff main -- .github",
        "git diff -- .gitignore Cargo.toml",
        "git diff v1.0 v1.1 -- src",
        "git diff 1a2b3c4 5d6e7f8",
        "git diff HEAD^ HEAD src/a.rs",
        "git diff main -- /home/me/project/src",
        "git diff -U5 --word-diff HEAD -- README.md",
        "git log -p -- src",
        "git log -- ../x",
        "git show HEAD:src/a.rs",
        "git blame -L 1,5 src/a.rs",
        "git ls-files --others --exclude-standard",
    ];
    check(Access::Low, "", &everyday, Allow);
}

#[test]
fn at_low_access_nothing_follows_the_links_below_a_directory() {
    let lines = [
        "grep -R word src",
        "grep -nR word src",
        "grep -Rn --include='*.rs' word src",
        "grep --dereference-recursive word src",
        "grep --dereference-r word src",
        "grep -rR word src",
        "rg -L word src",
        "rg -nL word src",
        "rg --follow word",
        "rg --follow --no-follow word src",
        "diff -r a b",
        "diff -ru a b",
        "diff --recursive a b",
        "diff -qr a b",
        "ls -LR src",
        "ls -R -L src",
        "ls -lRL src",
        "ls --recursive --dereference src",
        "ls --recursive -L src",
        "tree -l src",
        "tree -al src",
        "du -L src",
        "du -sL src",
        "du --dereference src",
        "find -L src",
        "find -H src",
        "find src -follow",
        "find -L src -name '*.rs'",
    ];
    check(Access::Low, "", &lines, Deny);
    let others = [
        "ls -R src",
        "ls -lL src",
        "tree -L 2 src",
        "du -sh src",
        "find src -name '*.rs'",
        "grep -rL word src",
        "rg -l word src",
        "diff -qr --no-dereference a b",
    ];
    check(Access::Low, "", &others, Allow);
}

#[test]
fn at_low_access_no_directory_outside_of_the_roots_is_compared() {
    let lines = [
        "diff -N /home/me/.config /tmp/empty",
        "diff -N /outside /empty",
        "diff /outside sub",
        "diff sub /outside",
        "diff -uN ../x sub",
        "diff -P /outside sub",
        "diff --to-file=/outside sub",
        "diff --from-file /outside sub",
        "diff --from-file=link sub",
        "diff ~root sub",
        "diff -N .hidden sub",
    ];
    check(Access::Low, "", &lines, Deny);
}

#[test]
fn at_low_access_search_patterns_must_exclude_secrets() {
    let lines = [
        "grep -r '--includ=*nv' '--include=*.md' . .",
        "grep -r '--incl=*' '--include=*.md' x .",
        "grep -r --exclude=zzz '--include=*.md' . .",
        "grep -r '--include=*.md' --exclude=zzz . .",
        "grep -r --exclude-from=zzz '--include=*.md' x .",
        "grep -r --excl=zzz '--include=*.md' x .",
        "grep --recursi '--include=*.md' x .",
        "grep -r '--include=*.local' x .",
        "grep -r '--include=*.production' x .",
        "grep -r '--include=?env.local' x .",
        "grep -r '--include=*v' x .",
        "grep -r --include=config.json x .",
        "grep -r --include=credentials x .",
        "grep -r ~root",
        "grep --context -r x .",
        "grep --label -r x .",
        "rg --context --hidden x",
        "grep -r x ~root",
        "grep -r x ~+",
        "rg -g '*.local' x",
        "rg --iglob '*.LOCAL' x",
        "rg --glob='?env.local' x",
        "rg --glob-case-insensitive -g '*.PEM' x",
        "rg -tall -g '*' x",
        "rg x ~root",
    ];
    check(Access::Low, "", &lines, Deny);
    let others = [
        "grep -rn --include='*.rs' --exclude-dir=target word .",
        "grep -rn --exclude='*.min.js' word src",
        "grep -rn --include=Makefile word .",
        "grep -rn --include=package.json word .",
        "grep -rn --include='*_test.go' word .",
        "rg -tpy word",
        "rg --type=rust -g '*.toml' word",
    ];
    check(Access::Low, "", &others, Allow);
}

#[test]
fn at_low_access_a_link_out_of_a_root_is_not_searched() {
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
    // Reading is not changing.
    let edits = "[[rule]]\neffect = 'deny'\nkind = ['edit', 'move', 'delete']\npath = 'data/secrets'\n";
    let reading = ["grep -r '' .", "tar cf - .", "rg x", "find . -exec cat {} +", "zip -r /tmp/x.zip ."];
    check(Access::High, edits, &reading, Allow);
}
