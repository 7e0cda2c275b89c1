use super::*;
use crate::action::Command;

/// Returns the parts of a line as texts: words joined by `·`, a `?` before a part that is not sure, and `>`
/// or `<` before a file.
fn parts(line: &str) -> Vec<String> {
    let script = read(&Command::Shell(line.to_owned()));
    let show = |part: &Part| {
        let words: Vec<&str> = part.words.iter().map(|word| word.text.as_str()).collect();
        let files = |mark: char, files: &[Word]| {
            files.iter().map(|file| format!(" {mark}{}", file.text)).collect::<String>()
        };
        let sure = if part.sure { "" } else { "? " };
        format!("{sure}{}{}{}", words.join("·"), files('>', &part.writes), files('<', &part.reads))
    };
    script.parts.iter().filter(|part| !part.wraps).map(show).collect()
}

#[track_caller]
fn check(line: &str, expected: &[&str]) {
    assert_eq!(parts(line), expected, "{line}");
}

#[test]
fn words_are_split_as_a_shell_splits_them() {
    check("ls -la", &["ls·-la"]);
    check("echo 'a b' \"c d\" e\\ f", &["echo·a b·c d·e f"]);
    check("echo a'b'\"c\"d", &["echo·abcd"]);
    check("echo '' \"\"", &["echo··"]);
    check("echo \"a\\\"b\\$c\\d\"", &["echo·a\"b$c\\d"]);
    check("ec\\\nho a", &["echo·a"]);
    check("echo a#b #c", &["echo·a#b"]);
    check("echo {} {a} a@{0}", &["echo·{}·{a}·a@{0}"]);
    check("echo a{", &["? echo·a{"]);
    check("echo ~/x", &["echo·~/x"]);
    check("[ -f x ]", &["[·-f·x·]"]);
}

#[test]
fn expansions_leave_a_word_open() {
    check("echo $X ${Y} \"$Z\"", &["? echo·$X·${…}·$Z"]);
    check("echo *.rs a?b [ab]c", &["? echo·*.rs·a?b·[ab]c"]);
    check("echo x{a,b}", &["? echo·xa·xb"]);
    check("echo {.,x}env a{1..3} {a,b}{c,d}", &["? echo·.env·xenv·a{1..3}·{a,b}{c,d}"]);
    check("{git,push}", &["? git·push"]);
    check("echo $'a\\x62\\143'", &["? echo·abc"]);
    check("echo '$X' '*'", &["echo·$X·*"]);
    check("echo \"*\" \\$X", &["echo·*·$X"]);
}

#[test]
fn commands_are_found_in_every_position() {
    check("a; b && c || d | e & f", &["a", "b", "c", "d", "e", "f"]);
    check("a\nb", &["a", "b"]);
    check("(a; b); c", &["a", "b", "c"]);
    check("(a; b) c", &["? a", "? b", "? c"]);
    check("echo $(a b) c", &["a·b", "? echo·$(…)·c"]);
    check("echo \"x $(a \"b c\") y\"", &["a·b c", "? echo·x $(…) y"]);
    check("echo `a` `b`", &["a", "b", "? echo·`…`·`…`"]);
    check("echo `a \\`b\\``", &["? b", "? a·`…`", "? echo·`…`"]);
    check("diff <(a) >(b)", &["a", "b", "? diff·<(…)·>(…)"]);
    check("${x:-$(a)}", &["? a", "? ${…}$(…)"]);
    check("f() { a; }", &["? f", "? {·a", "? }"]);
    check("function f () { a; }", &["? function·f", "? {·a", "? }"]);
    check("case x in y) a;; esac", &["? case·x·in", "a", "? esac"]);
    check("case x\nin\n(y|z) a; b;;\n*) c\nesac; d", &["? case·x·in", "a", "b", "c", "? esac", "d"]);
    check("echo $(case x in x) a;; esac) b", &["? case·x·in", "a", "? esac", "? echo·$(…)·b"]);
    check("x=(a b) c", &["? x=(…)·c"]);
    check("for x do a; done", &["? for·x·do·a", "? done"]);
}

#[test]
fn redirections_are_files() {
    check("a > x", &["? a >x"]);
    check("a >> x 2> y", &["? a >x >y"]);
    check("a &> x", &["? a >x"]);
    check("a >& x", &["? a >x"]);
    check("a <> x", &["? a >x"]);
    check("a >| x", &["? a >x"]);
    check("a < x", &["? a <x"]);
    check("> x", &["?  >x"]);
    check("a 2>&1 > /dev/null 2>&-", &["a"]);
    check("a 5", &["a·5"]);
    check("a >$X", &["? a >$X"]);
}

#[test]
fn here_documents_are_read() {
    check("sh <<E\nb c\nE\nd", &["? sh", "d", "b·c"]);
    check("sh <<-E\n\tb\n\tE\nd", &["? sh", "d", "b"]);
    check("sh <<< 'b c'", &["? sh", "b·c"]);
    check("sh <<E\nb", &["? sh", "? sh", "? b", "? b"]);
    // A program that is not a shell gets the document as a text, but the shell runs the expansions in it.
    check("a <<E\nb c\nE\nd", &["? a", "d"]);
    check("a <<E\nb '$(c)' `d`\nE", &["? a", "c", "d"]);
    check("a <<'E'\nb $(c)\nE", &["? a"]);
}

#[test]
fn unterminated_syntax_is_not_sure() {
    for line in ["a '", "a \"", "a \\", "a $(b", "a `b", "(a", "a)", "a <", "a ${x", "a\0b"] {
        let script = read(&Command::Shell(line.to_owned()));
        assert!(script.parts.iter().all(|part| !part.sure) && !script.plain, "{line}: {script:?}");
        assert!(!script.parts.is_empty(), "{line}");
    }
}

#[test]
fn commands_of_nested_shells_are_found() {
    check("sh -c 'a; b'", &["a", "b"]);
    check("bash -lc \"sh -c 'a b'\"", &["a·b"]);
    check("bash -i -c 'a b'", &["bash·-i·-c·a b", "a·b"]);
    check("./bash -c 'a b'", &["./bash·-c·a b", "a·b"]);
    check("eval 'a b' c", &["? eval·a b·c", "a·b", "a·b·c"]);
    check("sudo ls", &["sudo·ls"]);
}

#[track_caller]
fn check_starts(line: &str, expected: &[usize]) {
    let script = read(&Command::Shell(line.to_owned()));
    assert_eq!(script.parts[0].starts, expected, "{line}");
}

#[test]
fn programs_start_behind_prefixes() {
    check_starts("ls a b", &[0]);
    check_starts("X=1 Y=2 ls a", &[0, 2]);
    check_starts("sudo -u me ls", &[0, 1, 2, 3]);
    check_starts("find . -exec rm {} +", &[0, 3]);
    check_starts("find . -exec env rm {} +", &[0, 3, 4, 6]);
    check_starts("git bisect run make", &[0, 3]);
}

#[test]
fn prefixes_that_change_nothing_are_skipped() {
    let core = |line: &str| read(&Command::Shell(line.to_owned())).parts[0].core;
    assert_eq!(core("ls"), 0);
    assert_eq!(core("timeout 5 ls"), 2);
    assert_eq!(core("timeout 5s nice -n 3 time ls"), 6);
    assert_eq!(core("timeout -k 1 5 ls"), 0);
    assert_eq!(core("timeout 5"), 0);
    assert_eq!(core("command -v ls"), 0);
    assert_eq!(core("nohup ls"), 0);
}

/// Checks whether a pattern certainly matches a line, and whether it may match.
#[track_caller]
fn check_pattern(pattern: &str, line: &str, covers: bool, touches: bool) {
    let pattern = split(pattern).and_then(CommandPattern::new).unwrap();
    let script = read(&Command::Shell(line.to_owned()));
    let part = &script.parts[0];
    assert_eq!((pattern.covers(part, false), pattern.touches(part)), (covers, touches), "{pattern:?} {line}");
}

#[test]
fn patterns_cover_or_touch_a_command() {
    check_pattern("git push", "git push", true, true);
    check_pattern("git push", "git push origin", false, true);
    check_pattern("git push **", "git push origin", true, true);
    check_pattern("git push **", "git push", true, true);
    check_pattern("git push", "git pull", false, false);
    check_pattern("git push", "git stash push", false, false);
    check_pattern("git push", "git --paginate push", false, true);
    check_pattern("git push", "git -C x push", false, true);
    check_pattern("git push", "git log -- push", false, false);
    check_pattern("git *", "git push", true, true);
    check_pattern("git *", "git -v", false, true);
    check_pattern("git p*", "git push", true, true);
    check_pattern("*", "anything", true, true);
    check_pattern("*", "./anything", false, true);
    check_pattern("./x", "./x", true, true);
    check_pattern("./x", "x", false, true);
    check_pattern("x", "./x", false, true);
    check_pattern("rm -rf", "rm -rf", true, true);
    check_pattern("rm -rf", "rm -r a -f", false, true);
    check_pattern("rm -rf", "rm -r a", false, false);
    check_pattern("a --force", "a x --force=y", false, true);
    check_pattern("a --force", "a --for", false, true);
    check_pattern("a --force", "a --forced", false, false);
    // Some programs accept abbreviations or aliases of a subcommand.
    check_pattern("npm publish", "npm publ", false, true);
    check_pattern("npm publish", "npm --tag x pub --dry-run", false, true);
    check_pattern("npm install", "npm isntall x", false, true);
    check_pattern("npm publish", "npm run publ", false, false);
    check_pattern("npm run deploy:all", "npm run deploy", false, false);
    check_pattern("git push", "git pus", false, false);
    check_pattern("hg push", "hg pus", false, true);
    check_pattern("gradle publish", "gradle :app:publ", false, true);
    check_pattern("./gradlew publish", "./gradlew publ", false, true);
    check_pattern("git push", "npm exe -- git push", false, true);
}
