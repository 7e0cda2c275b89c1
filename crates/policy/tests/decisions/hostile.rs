//! Commands that look harmless, or like another command.

use narrows_policy::Verdict::{self, Allow, Ask, Deny};
use narrows_policy::{Access, Action, Command, Confined, DecisionReason, Variable};

use crate::common::{SANDBOX, decide, policy, shell};
use crate::{corpus, evasions, everyday};

const NO_SANDBOX: Confined =
    Confined { files: false, network: false, protected: narrows_policy::Protection::Unsupported };

const CANARY: &str = r#"
[[rule]]
name = "no canary"
effect = "deny"
command = ["canary", "git push", "rm -rf"]
"#;

/// Every line runs `canary`, `git push` or `rm -rf` somewhere.
const CORPUS: &[&str] = &[
    // Directly, and with further words.
    "canary",
    "canary --help",
    "git push",
    "git push --dry-run",
    "rm -rf x",
    "rm -r -f x",
    "rm x -fr",
    "rm -v -rf -- x",
    // Through a git setting in a variable or a file.
    "GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=alias.x GIT_CONFIG_VALUE_0=push git x",
    "env GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=alias.x GIT_CONFIG_VALUE_0=pu\"\"sh git x",
    "export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=alias.x GIT_CONFIG_VALUE_0=$A; git x",
    "export GIT_CONFIG_GLOBAL=evil; git x",
    "GIT_CONFIG_GLOBAL=evil git x",
    "GIT_CONFIG_SYSTEM=evil git x",
    "GIT_CONFIG_PARAMETERS=\"'alias.x'='push'\" git x",
    "HOME=/tmp/evil git x",
    "XDG_CONFIG_HOME=evil git x",
    "export HOME=/tmp/evil; git x",
    "env HOME=/tmp/evil git x",
    "git --config-env=alias.x=FOO x",
    "git --config-env alias.x=FOO x",
    "FOO=push git --config-env=alias.x=FOO x",
    "git -c alias.x=push x",
    "git -c alias.x='push -f' x",
    "git -c alias.x='!git push' x",
    "git -c include.path=../evil x",
    "git -c includeIf.gitdir:/.path=../evil x",
    "git -c Include.path=evil x",
    // After an allowed command.
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
    // Inside of another construct.
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
    // In shell keywords.
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
    // After other programs.
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
    // In another spelling.
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
    // Expanded by the shell.
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
    // Unterminated.
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
fn hostile_lines_never_run_the_canary() {
    let high = policy(Access::High, CANARY);
    let medium = policy(Access::Medium, CANARY);
    let mut sang = Vec::new();
    for line in CORPUS.iter().chain(corpus::LINES).chain(evasions::LINES).chain(evasions::PUSHES) {
        for policy in [&high, &medium] {
            let decision = decide(policy, &shell(line), SANDBOX);
            if decision.verdict != Deny {
                sang.push(format!("{line}: {decision}"));
            }
        }
    }
    assert!(sang.is_empty(), "{}", sang.join("\n"));
}

/// A name that is too long to be examined is not harmless.
#[test]
fn a_long_name_hides_nothing() {
    let high = policy(Access::High, CANARY);
    for length in [200, 255, 256, 300, 1000] {
        let name = "a".repeat(length);
        let line = format!("{name}='$(canary)'; echo \"${{{name}@P}}\"");
        assert_eq!(decide(&high, &shell(&line), SANDBOX).verdict, Deny, "{length}");
    }
}

/// A deny rule about one program does not affect ordinary work with others.
#[test]
fn ordinary_lines_are_not_hit_by_other_rules() {
    let rules =
        "[[rule]]\neffect = 'deny'\ncommand = ['canary', 'git push', 'npm publish', 'terraform apply']\n";
    let high = policy(Access::High, rules);
    let verdicts = everyday::LINES
        .iter()
        .chain(corpus::HARMLESS)
        .map(|line| (line, decide(&high, &shell(line), SANDBOX)));
    let hit: Vec<String> = verdicts
        .filter(|(_, decision)| decision.verdict != Allow)
        .map(|(line, decision)| format!("{line}: {decision}"))
        .collect();
    assert!(hit.is_empty(), "{}", hit.join("\n"));
    assert!(everyday::LINES.len() >= 150);
}

#[test]
fn no_hostile_line_is_read_only() {
    let low = policy(Access::Low, "");
    for line in CORPUS.iter().chain(corpus::LINES).chain(evasions::LINES) {
        let decision = decide(&low, &shell(line), SANDBOX);
        assert_eq!(decision.verdict, Deny, "{line}: {decision}");
        assert!(!Command::Shell((*line).to_owned()).is_read_only(), "{line}");
    }
}

/// An allow rule for the harmless part of a line does not allow the whole line.
#[test]
fn nothing_hostile_is_allowed_by_a_rule() {
    let rules = r#"
[[rule]]
effect = "allow"
command = [
  "ls **", "cat **", "echo **", "true", "git status **", "env", "find .", "timeout 5", "git -C *", "x", "[ **",
  "test **", "[[ **", "printf **", "declare **", "read **", "let **", "unset **", "export **", "set **", "exit **", ": **",
  "cat", "x=1", "y=1", "readonly **", "wait **", "getopts **", "for **", "case **",
]
"#;
    let low = policy(Access::Low, rules);
    for line in CORPUS.iter().chain(corpus::LINES).chain(evasions::LINES) {
        let decision = decide(&low, &shell(line), NO_SANDBOX);
        assert_eq!(decision.verdict, Deny, "{line}: {decision}");
    }
}

/// An argv has exactly these words, without a shell.
#[test]
fn an_argv_is_not_read_as_shell_text() {
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

/// A separate program for a subcommand counts as the subcommand for rules that forbid, and as another
/// program for rules that permit.
#[test]
fn a_dash_does_not_evade_a_rule() {
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

/// A line that only mentions the canary is allowed.
#[test]
fn arguments_are_not_commands() {
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
        "find . -name canary",
        "find . | xargs grep x .",
        "awk '{ print $1 }' canary",
        "perl -ne 'print if /x/' canary",
        "python3 -c 'print(1)' canary",
        "sed -n 1p canary",
        "tar czf x.tgz canary",
        "tar -xzf x.tgz canary",
        "gcc -o canary x.c",
        "install -m 755 a canary",
        "less canary",
        "echo x # canary",
        "git status && echo push",
        "cat <<EOF\nnothing\nEOF",
    ]
    .iter()
    .chain(corpus::HARMLESS)
    {
        let decision = decide(&high, &shell(line), SANDBOX);
        assert_eq!(decision.verdict, Allow, "{line}: {decision}");
    }
}

/// A command that is too deep or too long to be parsed completely is denied by every access preset.
#[test]
fn unreadable_commands_are_denied() {
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
        assert_eq!(decision.because, DecisionReason::Unreadable, "{}…: {decision}", &line[..40]);
    }
    // Deep nesting of parentheses is denied without much work.
    let parens = format!("{}canary{}", "$(".repeat(30_000), ")".repeat(30_000));
    assert_eq!(decide(&policy(Access::High, CANARY), &shell(&parens), SANDBOX).verdict, Deny);
}

#[test]
fn ordinary_lines_touch_no_protected_path() {
    let high = policy(Access::High, "");
    let verdicts = everyday::LINES.iter().map(|line| (line, decide(&high, &shell(line), SANDBOX)));
    let hit: Vec<String> = verdicts
        .filter(|(_, decision)| decision.verdict != Allow)
        .map(|(line, decision)| format!("{line}: {decision}"))
        .collect();
    assert!(hit.is_empty(), "{}", hit.join("\n"));
}

/// Variables of a request count like those of a line.
#[test]
fn a_variable_of_the_request_that_configures_git_makes_it_any_command() {
    let high = policy(Access::High, CANARY);
    for (name, value, expected) in [
        ("GIT_CONFIG_COUNT", "1", Deny),
        ("GIT_CONFIG_PARAMETERS", "'alias.x'='push'", Deny),
        ("GIT_CONFIG_GLOBAL", "evil", Deny),
        ("HOME", "/tmp/evil", Deny),
        ("XDG_CONFIG_HOME", "evil", Deny),
        ("GIT_CONFIG_NOSYSTEM", "1", Allow),
        ("RUST_LOG", "debug", Allow),
    ] {
        let action = Action { env: vec![Variable::new(name, value)], ..shell("git x") };
        let decision = decide(&high, &action, SANDBOX);
        assert_eq!(decision.verdict, expected, "{name}={value}: {decision}");
    }
    let action = Action { env: vec![Variable::new("HOME", "/tmp/x")], ..shell("npm test") };
    assert_eq!(decide(&high, &action, SANDBOX).verdict, Allow);
}
