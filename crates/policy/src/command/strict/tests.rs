use super::is_recognized;

#[test]
fn usual_lines_are_recognized() {
    for line in [
        "",
        "ls -la",
        "ls; ls & ls && ls || ls | ls |& ls",
        "ls |\n  # x\n  wc",
        "X=1 Y=\"$Z\" make -j4 > log 2>&1 < /dev/null",
        "if [ -f x ]; then ls; elif true; then ls; else ls; fi > x",
        "while read -r x; do echo \"$x\"; done < x",
        "for x in a $b *.rs; do ls; done",
        "for ((i = 0; i < 3; i++)); do ls; done",
        "case \"$1\" in a|b) ls;; (c) ls ;; *) ls\nesac",
        "f() { ls; }\nf a",
        "[[ -n \"$x\" && $y == z* ]] && ls",
        "echo $(ls | wc) `ls` \"$(ls \"a b\")\" ${x:-a} ${x%.rs} ${#x} ${x[@]} $((1 + x))",
        "cat <<E > x\na $(ls) 'b\nE\nls",
        "cat <<'E'\n$( ` \" '\nE",
        "diff <(ls a) <(ls b)",
        "git show HEAD~1^ stash@{0} x{a,b}",
        "~/bin/x a#b # c",
        "grep 'a$' \"b$\" c$",
    ] {
        assert!(is_recognized(line), "{line}");
    }
}

#[test]
fn other_syntax_is_not() {
    for line in [
        "{canary}",
        "{ canary}",
        "{ : } always { canary }",
        "if [[ -n x ]] canary",
        "while [[ -n x ]] { canary; break }",
        "for x in 1; canary",
        ">! /dev/null canary",
        "&>! /dev/null canary",
        "1=x canary",
        "x.y=2 canary",
        "é=1 canary",
        "$x",
        "~",
        "~x a",
        "ca*y",
        "{a,b}",
        "/bin/canary@()",
        "ls *(x)",
        "coproc bash",
        "() { canary }",
        "f() canary",
        "echo $path[b]",
        "echo ${!@}",
        "echo ${x@P}",
        "x[1+y]=2",
        "a=([1+x]=1)",
        "{fd}>x canary",
        "echo $[x]",
        "ls &! canary",
        "a ' b",
        "cat <<E\na",
        "echo $(cat <<E)\nE",
        "canary\r",
        "ls )",
        "then ls",
        "a\0",
    ] {
        assert!(!is_recognized(line), "{line}");
    }
}
