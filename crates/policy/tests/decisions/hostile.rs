//! Commands that try to look harmless, or to be something else than they are.

use narrows_policy::Verdict::{self, Allow, Ask, Deny};
use narrows_policy::{Access, Action, Because, Command, Confined};

use crate::common::{SANDBOX, decide, policy, shell};

const NO_SANDBOX: Confined = Confined { files: false, network: false, protected: false };

/// What the corpus must not get to run.
const CANARY: &str = r#"
[[rule]]
name = "no canary"
effect = "deny"
command = ["canary", "git push", "rm -rf"]
"#;

/// Every line runs `canary`, `git push` or `rm -rf` somewhere.
const CORPUS: &[&str] = &[
    // Plainly, and with further words.
    "canary",
    "canary --help",
    "git push",
    "git push --dry-run",
    "rm -rf x",
    "rm -r -f x",
    "rm x -fr",
    "rm -v -rf -- x",
    // After something allowed.
    "ls; canary",
    "ls;canary",
    "ls && canary",
    "ls&&canary",
    "ls || canary",
    "ls | canary",
    "ls |& canary",
    "ls & canary",
    "ls &>x canary",
    "ls &>>x sudo git push",
    "ls\ncanary",
    "ls\n\n  canary",
    "ls # comment\ncanary",
    "true && true && true && canary",
    // In the middle of something.
    "echo $(canary)",
    "echo \"$(canary)\"",
    "echo \"a $(ls $(canary)) b\"",
    "echo `canary`",
    "echo \"`canary`\"",
    "echo `echo \\`canary\\``",
    "cat <(canary)",
    "ls > >(canary)",
    "echo ${x:-$(canary)}",
    "echo \"${x:-`canary`}\"",
    "echo $((1 + $(canary)))",
    "x=$(canary)",
    "ls $(canary) src",
    "[ $(canary) ]",
    // In the words of the language.
    "(canary)",
    "{ canary; }",
    "if canary; then ls; fi",
    "if true; then canary; fi",
    "while true; do canary; done",
    "for x in a b; do canary; done",
    "! canary",
    "case x in x) canary;; esac",
    "f() { canary; }; f",
    "function f { canary; }; f",
    "time canary",
    "coproc canary",
    "[[ -f x ]] && canary",
    "trap canary EXIT",
    "trap 'canary' EXIT",
    // Behind other programs.
    "X=1 canary",
    "X=1 Y=2 git push",
    "env canary",
    "env -i X=1 canary",
    "env -S 'git push'",
    "env -S'git push'",
    "env -Scanary",
    "env --split-string=canary",
    "su -ccanary",
    "env --split-string='git push'",
    "sudo canary",
    "sudo -u root -n canary",
    "doas canary",
    "nohup canary",
    "nice -n 10 canary",
    "timeout 5 canary",
    "timeout -k 1 -s KILL 5 git push",
    "command canary",
    "builtin eval canary",
    "exec canary",
    "setsid canary",
    "stdbuf -oL canary",
    "ionice -c 3 canary",
    "xargs canary",
    "ls | xargs -n 1 canary",
    "echo push | xargs git",
    "find . -exec canary {} ;",
    "find . -exec canary {} \\;",
    "find . -execdir sh -c 'canary {}' \\;",
    "find . -name x -ok git push \\;",
    "sudo env X=1 nice timeout 5 canary",
    "busybox canary",
    "watch canary",
    "watch 'git push'",
    "su -c 'git push'",
    "su root -c 'git push'",
    "script -c 'git push' x",
    "flock x -c 'git push'",
    "parallel git ::: push",
    "git -c alias.x='!canary' x",
    "git -c alias.x=!canary x",
    "git rebase --exec 'ls; canary' main",
    "git rebase --exec=canary main",
    "git bisect run canary",
    "git submodule foreach 'git push'",
    "npx canary",
    "ssh host 'ls; canary'",
    "docker run image sh -c 'git push'",
    "eval canary",
    "eval 'git push'",
    "eval git push",
    "eval \"gi\"\"t pu\"\"sh\"",
    // In other shells.
    "sh -c canary",
    "sh -c 'git push'",
    "bash -lc 'ls; canary'",
    "bash -c -l 'git push'",
    "bash -o pipefail -c 'git push'",
    "/bin/bash -c \"sh -c 'canary'\"",
    "zsh -c canary",
    "sudo sh -c 'ls && canary'",
    "bash <<< 'git push'",
    "bash <<EOF\ncanary\nEOF",
    "bash <<'EOF'\nit's\ncanary\nEOF",
    "cat <<EOF\nit's\nEOF\ncanary",
    "cat <<-EOF\n\tx\n\tEOF\ncanary",
    "cmd /c git push",
    // Written another way.
    "/usr/bin/git push",
    "./git push",
    "../../bin/canary",
    "GIT push",
    "'git' push",
    "g''it p\"us\"h",
    "g\\it push",
    "gi\\\nt push",
    "$'git' push",
    "$'\\x67it' $'\\160ush'",
    "git -C /x push",
    "git -c a=b push",
    "git --git-dir=/x/.git push",
    "git --git-dir /x/.git --no-pager push",
    "git-push",
    "git-push -f origin",
    "/usr/lib/git-core/git-push",
    "sudo /usr/lib/git-core/GIT-push x",
    "echo x | xargs git-push",
    "/usr/lib/git-core/git-p*",
    "/usr/lib/git-core/gi*sh",
    "{git,push}",
    "git pu{sh,}",
    "/usr/bin/gi? push",
    "/usr/bin/g*t push",
    "git pus[h]",
    // What only the shell knows.
    "$X",
    "$X push",
    "git $X",
    "git \"$X\"",
    "${X}",
    "g$X push",
    "`true`env -Scanary",
    "${X:-canary x}-i",
    "git ${X:-push x}-i",
    "$' \\' canary",
    "echo canary | sh",
    "echo 'git push' | bash -x",
    "printf 'git push' | sudo sh",
    "a=( f\"\n canary",
    "${X}nice canary",
    "su*o canary",
    "`echo canary`",
    "$(echo git) push",
    "git $(echo push)",
    "X=canary; $X",
    // What does not end.
    "ls; canary '",
    "ls; canary \"",
    "canary $(",
    "echo $(canary",
    "echo `canary",
    "(canary",
    "canary )",
    "canary <<EOF",
    "canary >",
];

#[test]
fn the_canary_never_sings() {
    assert!(CORPUS.len() >= 100);
    let high = policy(Access::High, CANARY);
    let medium = policy(Access::Medium, CANARY);
    for line in CORPUS {
        for policy in [&high, &medium] {
            let decision = decide(policy, &shell(line), SANDBOX);
            assert_eq!(decision.verdict, Deny, "{line}: {decision}");
        }
    }
}

#[test]
fn nothing_hostile_only_looks() {
    let low = policy(Access::Low, "");
    for line in CORPUS {
        let decision = decide(&low, &shell(line), SANDBOX);
        assert_eq!(decision.verdict, Deny, "{line}: {decision}");
        assert!(!Command::Shell((*line).to_owned()).is_read_only(), "{line}");
    }
}

/// An allow rule that covers what the corpus pretends to be does not cover what it is.
#[test]
fn nothing_hostile_is_allowed_by_a_rule() {
    let rules = r#"
[[rule]]
effect = "allow"
command = [
  "ls **", "cat **", "echo **", "true", "git status **", "env", "find .", "timeout 5", "git -C *", "x", "[ **",
]
"#;
    let low = policy(Access::Low, rules);
    for line in CORPUS {
        let decision = decide(&low, &shell(line), NO_SANDBOX);
        assert_eq!(decision.verdict, Deny, "{line}: {decision}");
    }
}

/// Lines that change something, tell something or run something by options of programs that otherwise only look.
#[test]
fn looking_has_its_limits() {
    for line in [
        "",
        "   ",
        "find . -delete",
        "find . -fprint x",
        "find . -fls x",
        "find . -exec rm {} +",
        "find . -name *.rs",
        "sort -o x y",
        "uniq a b",
        "tree -o x",
        "date -s tomorrow",
        "date --set=tomorrow",
        "date --se=tomorrow",
        "hostname evil",
        "file -C -m x",
        "file -z x",
        "file --compile",
        "test -v x",
        "test -v 'a[$(canary)]'",
        "[ -v 'a[$(canary)]' ]",
        "[ -R 'a[$(canary)]' ]",
        "[ 'a[$(canary)]' -eq 1 ]",
        "[ 1 -lt 'a[`canary`]' ]",
        "[ x -eq y ]",
        "test -t 'a[$(canary)]'",
        "test ! -v x",
        "[ 1 -eq 1",
        "[",
        "printf -v 'a[$(canary)]' x",
        "printf -v x y",
        "printf -vx y",
        "printf",
        "printf %d 'a[$(canary)]'",
        "printf '%*s' 'a[`canary`]' x",
        "printf %n 'a[$(canary)]'",
        "printf '%s %i' x y",
        "printf '%(%F)T' x",
        "timeout 5 printf -v x y",
        "git -C evil status",
        "git -Cevil status",
        "git --git-dir=evil status",
        "git --git-dir evil status",
        "git --work-tree=evil status",
        "git --namespace=x status",
        "git --exec-path status",
        "git -c core.fsmonitor=./x status",
        "git --config-env=core.pager=X log",
        "git -p log",
        "git --bare status",
        "git log --show-signature",
        "git log --format=%G?",
        "git log --pretty='%H %GK'",
        "git diff -O./x",
        "git log --textconv",
        "git shortlog --output=x",
        "git rev-list --unknown",
        "git status --no-such-option",
        "git ls-files --recurse-submodules",
        "git cat-file --batch --textconv",
        "git cat-file -p --filters",
        "git remote update",
        "git remote -v update",
        "git tag -v x",
        "git tag -d x",
        "git branch --edit-description",
        "git grep -Ovi x",
        "date 010100002030",
        "date -s12:00",
        "date -us 12:00",
        "date -d yesterday",
        "date -f x",
        "date +%s 010100002030",
        "hostname -F/tmp/x",
        "hostname -F /tmp/x",
        "hostname --file=x",
        "hostname -b x",
        "hostname -",
        "tree -R",
        "tree -L 1 -R -H .",
        "tree -ao x",
        "tree -aox",
        "tree --output x",
        "tree --fromfile",
        "uniq a b",
        "uniq - b",
        "uniq -c a b",
        "uniq -- a b",
        "uniq -f 1 a b",
        "find . -fprintf x y",
        "find . -fprint0 x",
        "find . -okdir canary ;",
        "find . -files0-from x",
        "find -D exec .",
        "find . -no-such-test",
        "diff -l a b",
        "diff --paginate a b",
        "diff --no-such-option a b",
        "cut --output-file=x",
        "df --sync",
        "uname -S evil",
        "uname evil",
        "pwd x",
        "cat -l",
        "rg --pre-glob=x y",
        "rg -nz x",
        "rg --hostname-bin x y",
        "rg --generate man",
        "which --skip-alias -i x",
        "less x",
        "more x",
        "man ls",
        "man -P canary ls",
        "sort x",
        "xxd x",
        "xxd -r x y",
        "tee x",
        "rg --pre ./x y",
        "rg --pre=./x y",
        "rg -z x",
        "rg --hostname-bin=./x y",
        "git diff --output=x",
        "git diff --outp=x",
        "git diff --output x",
        "git log -o x",
        "git log -p --ext-diff",
        "git show --textconv x",
        "git -c core.pager=./x log",
        "git --exec-path=. status",
        "git branch new",
        "git branch -D old",
        "git tag v1",
        "git remote add x y",
        "git remote show origin",
        "git stash",
        "git stash drop",
        "git config user.name x",
        "git commit -m x",
        "git reflog expire --all",
        "git",
        "sed -n 1p x",
        "awk 1 x",
        "env",
        "printenv",
        "python3 x.py",
        "./ls",
        "bin/ls",
        "/srv/ls",
        "ls > x",
        "ls >> x",
        "ls 2>&1",
        "ls 2> /dev/null",
        "ls < x",
        "ls *",
        "ls $HOME",
        "ls ~/{a,b}",
        "X=1 ls",
        "LD_PRELOAD=./x.so ls",
        "sudo ls",
        "env ls",
        "xargs cat",
        "ls;",
        "ls &",
        "ls |",
        "! ls",
        "(ls)",
        "ls\0",
        "ls # x",
        "alias ls=rm",
        "curl x",
        "which ls | sh",
    ] {
        assert!(!Command::Shell(line.to_owned()).is_read_only(), "{line}");
    }
    for line in [
        "ls",
        "ls -la 'some where'",
        "  ls src  ",
        "cat \"a b\" c",
        "head -n 5 x",
        "grep -rn 'fn main' src",
        "rg -n TODO src",
        "find . -name '*.rs' -type f",
        "git status",
        "git --no-pager log --oneline -n 5",
        "git diff HEAD~1 -- src",
        "git show HEAD:src/main.rs",
        "git branch -a",
        "git remote -v",
        "git stash list",
        "/bin/ls",
        "/usr/bin/git status",
        "timeout 5 ls",
        "nice -n 5 cat x",
        "bash -lc 'ls -la'",
        "sh -c \"git status\"",
        "pwd",
        "wc -l x",
        "echo 'a; b'",
        "[ -f x ]",
        "test -d 'a b'",
        "[ 3 -lt 5 ]",
        "[ a = b -o -e x ]",
        "[ '$(x)' = 'a[0]' ]",
        "printf '%s\\n' 'a b' 'a[0]'",
        "printf -- %s x",
        "printf '%05d %x' 1 -2",
        "date",
        "date -u +%s",
        "date --date=yesterday +%F",
        "hostname",
        "tree -L 2 -a src",
        "tree --dirsfirst -I target",
        "uniq -c x",
        "uniq -f 1 x",
        "find . -mtime -7 -size +10k -not -path './x/*'",
        "find . '(' -name a -o -name b ')' -print0",
        "diff -ru a b",
        "diff -U3 --color=never a b",
        "rg -nA3 -g '*.rs' --no-heading x",
        "git log -5 --format=%H --since=yesterday -- x",
        "git log -S'x y' -p",
        "git diff --stat --cached",
        "git status --porcelain=v2 --branch",
        "git rev-parse --show-toplevel",
        "git -P tag -l",
        "git cat-file -p HEAD",
        "du -sh .",
        "df -h",
        "file -b --mime-type x",
        "uname -a",
        "which -a ls",
    ] {
        assert!(Command::Shell(line.to_owned()).is_read_only(), "{line}");
    }
}

/// git runs what its configuration says, so it only reads where the repository is that of a root.
#[test]
fn low_access_runs_git_in_a_root_only() {
    let low = policy(Access::Low, "");
    for (line, cwd, expected) in [
        ("git status", None, Allow),
        ("git status", Some("/home/me/project"), Allow),
        ("git status", Some("/home/me/project/"), Allow),
        ("git status", Some("/home/me/other"), Allow),
        ("git status", Some("/home/me/project/evil"), Deny),
        ("git status", Some("evil"), Deny),
        ("git status", Some("/tmp"), Deny),
        ("timeout 5 /usr/bin/git log", Some("evil"), Deny),
        ("sh -c 'git diff'", Some("evil"), Deny),
        ("ls", Some("evil"), Allow),
    ] {
        let action = Action::execute(Command::Shell(line.to_owned()), cwd.map(Into::into));
        let decision = decide(&low, &action, NO_SANDBOX);
        assert_eq!(decision.verdict, expected, "{line} in {cwd:?}: {decision}");
    }
}

/// The same words as an argv are what they are: no shell, no surprises.
#[test]
fn an_argv_has_no_syntax() {
    let argv = |words: &[&str]| Command::Argv(words.iter().map(|word| (*word).to_owned()).collect());
    assert!(argv(&["grep", "a;b", "$(x)", "*"]).is_read_only());
    assert!(argv(&["echo", "`x`"]).is_read_only());
    assert!(!argv(&["ls; canary"]).is_read_only());
    assert!(!argv(&["ls -la"]).is_read_only());
    assert!(!argv(&[]).is_read_only());
    assert!(!argv(&[""]).is_read_only());
    let high = policy(Access::High, CANARY);
    for words in [
        &["ls; canary"][..],
        &["git push"],
        &["git", "push"],
        &["git-push"],
        &["/usr/lib/git-core/git-push", "--force"],
        &["bash", "-lc", "git push"],
        &["sudo", "bash", "-c", "ls && canary"],
        &["env", "X=1", "git", "push"],
        &["find", ".", "-exec", "canary", "{}", "+"],
    ] {
        let decision = decide(&high, &Action::execute(argv(words), None), SANDBOX);
        assert_eq!(decision.verdict, Deny, "{words:?}: {decision}");
    }
    let grep = Action::execute(argv(&["grep", "git push; canary", "x"]), None);
    assert_eq!(decide(&high, &grep, SANDBOX).verdict, Allow);
}

/// A subcommand as a program of its own is the same to what forbids, and another to what permits.
#[test]
fn a_dash_is_no_way_around_a_rule() {
    let rule = |effect: &str, command: &str| {
        policy(Access::Medium, &format!("[[rule]]\neffect = '{effect}'\ncommand = '{command}'\n"))
    };
    let check = |effect: &str, command: &str, line: &str, expected: Verdict| {
        let decision = decide(&rule(effect, command), &shell(line), SANDBOX);
        assert_eq!(decision.verdict, expected, "{effect} {command}: {line}: {decision}");
    };
    for (effect, verdict) in [("deny", Deny), ("ask", Ask)] {
        check(effect, "git push", "git-push origin", verdict);
        check(effect, "git push --force", "git-push -x --force", verdict);
        check(effect, "git push --force", "git-push -x", Allow);
        check(effect, "git remote add", "git-remote -v add x", verdict);
        check(effect, "git ls-remote", "git-ls-remote", verdict);
        check(effect, "git", "/usr/lib/git-core/git-push", verdict);
        check(effect, "git", "git-lfs pull", verdict);
        check(effect, "docker compose", "docker-compose up", verdict);
        check(effect, "docker", "docker-compose up", Allow);
        check(effect, "rm", "rm-nothing", Allow);
    }
    let permitted = decide(&rule("allow", "git push"), &shell("git-push"), NO_SANDBOX);
    assert_eq!(permitted.verdict, Ask, "{permitted}");
}

/// What only mentions the canary may go on.
#[test]
fn words_are_no_commands() {
    let high = policy(Access::High, CANARY);
    for line in [
        "echo git push",
        "echo 'canary'",
        "git commit -m 'git push; canary'",
        "git log --grep=push",
        "grep canary x",
        "ls canary",
        "git stash push",
        "git-stash push",
        "git-pull",
        "git-pusher",
        "mygit-push",
        "cargo test -- canary",
        "rm -r x",
        "rm x",
        "echo x # canary",
        "git status && echo push",
        "cat <<EOF\nnothing\nEOF",
    ] {
        let decision = decide(&high, &shell(line), SANDBOX);
        assert_eq!(decision.verdict, Allow, "{line}: {decision}");
    }
}

/// However deep or long: what cannot be read to its end is refused, by whatever access.
#[test]
fn what_cannot_be_read_is_refused() {
    let high = policy(Access::High, "");
    let mut nested = "canary".to_owned();
    for _ in 0..12 {
        nested = format!("sudo sh -c {nested:?}");
        if nested.len() > 100_000 {
            break;
        }
    }
    let long = format!("ls {}", "x ".repeat(200_000));
    let open = "ls *a ".repeat(3_000);
    let wandering = "cd x; ".repeat(40);
    let many = "ls; ".repeat(3_000);
    let behind = format!("sudo {}", "ls ".repeat(600));
    let named: String = (0..11_000).map(|number| format!("a{number} ")).collect();
    let program = format!("python3 -c '{named}'");
    for line in [nested, long, open, wandering, many, behind, format!("ls {named}"), program] {
        let decision = decide(&high, &shell(&line), SANDBOX);
        assert_eq!(decision.because, Because::Unreadable, "{}…: {decision}", &line[..40]);
    }
    // Depth of another kind costs nothing.
    let parens = format!("{}canary{}", "$(".repeat(30_000), ")".repeat(30_000));
    assert_eq!(decide(&policy(Access::High, CANARY), &shell(&parens), SANDBOX).verdict, Deny);
}
