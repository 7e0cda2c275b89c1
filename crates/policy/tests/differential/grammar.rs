//! Random shell lines: nested commands, a canary in many spellings, and lines with random changes.

mod receivers;

use receivers::{RECEIVERS, SHELLS, TEXTS};

pub(crate) struct Grammar {
    state: u64,
}

/// Harmless commands, some of which mention the canary.
const HARMLESS: &[&str] = &[
    "true",
    ":",
    "false",
    "echo a b",
    "echo 'canary'",
    "echo canary",
    "echo \"a canary\"",
    "echo a # canary",
    "ls canary",
    "cat x",
    "[ -f x ]",
    "[[ a == b ]]",
    "test 1 -eq 1",
    "printf '%s' canary",
    "x=1",
    "x=canary",
    "echo $x",
    "echo a{b,c}",
    "cat <<E\nit's (canary\nE",
    "cat <<'E'\n$(canary)\nE",
    "x=5; (( x++ ))",
    "i=1; echo $((i + 1))",
    "case a in b) echo;; esac",
    "for i in 1 2; do echo $((i * 2)); done",
    "echo '$(canary)'",
    "echo \\$\\(canary\\)",
    "env",
    "ls [c]anary",
    "x=(a b)",
    "echo ${x:-canary}",
];

/// Constructs around commands. `%c` is the canary as a word, `%C` a command, `%b` one for backticks, `%q`
/// one in single quotes, `%d` in double quotes, `%s` a quoted subscript that runs one, `%S` a quoted
/// substitution, `%r` a redirection, `%w` a word, `%t` a command that prints the name of the canary, `%B` a
/// shell.
const AROUND: &[&str] = &[
    "%c",
    "%c",
    "%c %w",
    "X=1 %c",
    "x+=1 %c",
    "x[1]=2 %c",
    "x[1 + 1]=2 %c",
    "x[ # ]=1 %c",
    "x=(a b) %c",
    "x=(a # b\n) %c",
    "x=([1]=%C) %c",
    "x=([%s]=1)",
    "%r %c",
    "%c %r",
    "%w %r; %C",
    "{fd}>/dev/null %c",
    "{fd}<x %c",
    "{a[%s]}>/dev/null %c",
    "%C; %C",
    "%C && %C",
    "%C || %C",
    "%C | %C",
    "%C & %C",
    "%C |& %C",
    "%C\n%C",
    "%C # x\n%C",
    "%C &>/dev/null %c",
    "( %C )",
    "(%C)",
    "{ %C; }",
    "! %C",
    "if %C; then %C; fi",
    "if false; then :; else %C; fi",
    "while %C; do %C; break; done",
    "until %C; do %C; break; done",
    "for x in a; do %C; done",
    "for x in $(%C) b; do :; done",
    "set -- a; for x do %C; done",
    "for ((i=0; i<1; i++)); do %C; done",
    "for x in a; { %C; }",
    "select x in a; do %C; done <<< 1",
    "case x in x) %C;; esac",
    "case x in (y|x) %C;; *) %C;; esac",
    "case x\nin\n x) %C\n;;\nesac",
    "case $(%C) in *) :;; esac",
    "case x in y) :;& x) %C;;& *) %C; esac",
    "case x in [%w]) :;; *) %C;; esac",
    "echo $(case x in x) %C;; esac)",
    "echo $(case x in (x) %C;; esac) %w",
    "f() { %C; }; f",
    "f () ( %C ); f",
    "f() { %C\n}\nf",
    "function f { %C; }; f",
    "function f () { %C; }; f",
    "f() { $1; }; f canary",
    "f() { eval \"$1\"; }; f %q",
    "echo() { \"$@\"; }; echo canary",
    "time %C",
    "time -p %C",
    "coproc %C",
    "coproc x { %C; }",
    "echo $(%C)",
    "echo \"$(%C)\"",
    "echo \"a $(%C) b\"",
    "echo `%b`",
    "echo \"`%b`\"",
    "echo \"a\\\"`%b`\"",
    "$(%C) %w",
    "`%b` %c",
    "$(# x\n%C)",
    "echo `# x`; %C",
    "cat <(%C)",
    "echo > >(%C)",
    "x=$(%C)",
    "x=`%b` y=1",
    "x=$(%C) %c",
    "echo ${x:-$(%C)}",
    "echo ${x:-`%b`}",
    "echo \"${x:-$(%C)}\"",
    "echo ${x:='$(%C)'}",
    "echo \"${x:-'$(%C)'}\"",
    "echo \"${x#'\"'}\"; %C; echo \"x\"}\"",
    "echo ${x#'\"'}; %C",
    "echo ${x:-<(%C)}",
    "echo ${x:-a\\}b}; %C",
    "echo ${#x}; %C",
    "echo ${x:$(%C)}",
    "echo ${a[$(%C)]}",
    "echo $((1 + $(%C)))",
    "echo $((a[$(%C)]))",
    "echo $((1<<2)); %C",
    "echo $((2#1)); %C",
    "echo $(( (1) )); %C",
    "echo $((#)); %C",
    "echo $[1]; %C",
    "((#)) || %C",
    "(( 0 )) || %C",
    "((canary))",
    "((%C) )",
    "$((%C) )",
    "(( a[$(%C)] ))",
    "[[ x =~ (#) ]] || %C",
    "[[ a =~ ^(b|#)$ ]] || %C",
    "[[ a < b ]] && %C",
    "[[ ( a == b ) ]] || %C",
    "[[ $(%C) ]]",
    "[[ a == b || canary ]]",
    "[ a = b ] || %C",
    "[ $(%C) ]",
    "eval %q",
    "eval %d",
    "eval \"$(echo %q)\"",
    "eval : %q",
    "builtin eval %q",
    "command eval %q",
    "bash -c %q",
    "dash -c %d",
    "bash -c '$0' canary",
    "bash -c '\"$@\"' x canary",
    "bash -O extglob -c '/bin/ca+(n)ary'",
    "bash -O extglob -c '/bin/c@(an|x)ary'",
    "bash -O extglob -c '/bin/!(x)ary'",
    "bash -o posix -c %q",
    "bash -xc %q",
    "bash -c %q x y",
    "bash <<E\n%C\nE",
    "bash <<'E'\n%C\nE",
    "bash <<-E\n\t%C\n\tE",
    "bash <<\\E\n%C\nE\n%C",
    "bash <<< %q",
    "echo %q | bash",
    "printf %q | dash",
    "echo %q | { bash; }",
    "echo %q | (read x; bash)",
    "cat <<E | bash\n%C\nE",
    "cat <<E\n$(%C)\nE",
    "cat <<E\n'$(%C)'\nE",
    "cat <<E\n\"`%b`\"\nE",
    "cat <<E\n${x:-$(%C)}\nE",
    "cat <<E\nx\\\nE\n%C\nE",
    "cat <<E\nx\nE\n%C",
    "cat <<\"E F\"\nx\nE F\n%C",
    "cat <<$x\nx\n$x\n%C",
    "cat <<E <<F\na\nE\nb\nF\n%C",
    "$(cat <<E\ncanary\nE\n)",
    "echo $(cat <<E\n)\nE\n%C)",
    "cat <<E; %C\nx\nE",
    "env %c",
    "env X=1 %c",
    "env -S canary",
    "env -S%q",
    "nice %c",
    "timeout 1 %c",
    "command %c",
    "exec %c",
    "echo x | xargs %c",
    "echo canary | xargs env",
    "echo canary | xargs -I % %",
    "echo canary | xargs -I{} bash -c {}",
    "echo canary | xargs timeout 1",
    "jobs -x %c",
    "trap %q EXIT",
    "trap %q DEBUG; :",
    "trap -- %q ERR; false",
    "x=canary; $x",
    "x=canary; ${x}",
    "x='canary a'; $x",
    "x=ca; ${x}nary",
    "x=ca y=nary; $x$y",
    "a=(canary); ${a[0]}",
    "a=(: canary); \"${a[@]:1}\"",
    "set -- canary; \"$@\"",
    "set canary; $1",
    "read x <<< canary; $x",
    "IFS=:; x=canary:a; $x",
    "for x in canary; do $x; done",
    "printf -v x canary; $x",
    "mapfile -t a <<< canary; ${a[0]}",
    "x=y y=canary; ${!x}",
    "x=%s; (( x ))",
    "x=%s; echo $((x))",
    "x=%s y=x; echo $((y))",
    "x=%s; echo $(( $x ))",
    "x=%s; let x",
    "x=%s; [[ $x -eq 1 ]]",
    "x=%s; [[ x -gt 1 ]]",
    "x=%s; echo ${y:x}",
    "x=%s; y=abc; echo ${y:0:x}",
    "x=%s; echo ${a[x]}",
    "x=%s; a[x]=1",
    "x=%s; a=([x]=1)",
    "x=%s; echo ${!x}",
    "x=%s; unset $x",
    "x=%s; [ -v $x ]",
    "x='-v '%s; [ $x ]",
    "x=%s; test -v \"$x\"",
    "x=-v y=%s; [ \"$x\" \"$y\" ]",
    "x=%s; printf -v $x a",
    "x=-v%s; printf $x a",
    "x=%s; read $x <<< 1",
    "x=%s; declare $x=1",
    "x=%s; declare -i y=x",
    "declare -i x; x=%s",
    "declare -i x=%s",
    "declare %s=1",
    "declare -a 'x=('%S')'",
    "declare -a x; declare x='('%S')'",
    "declare -n x=y; y=%s; echo $((x))",
    "typeset %s=1",
    "export %s=1",
    "readonly %s=1",
    "let %s",
    "let x=%s",
    "read %s <<< 1",
    "read -a %s <<< 1",
    "printf -v %s a",
    "printf -v%s a",
    "test -v %s",
    "[ -v %s ]",
    "[ ! -v %s ]",
    "[[ -v %s ]]",
    "[[ a == a && -v %s ]]",
    "[[ %s -eq 1 ]]",
    "[[ 1 -lt %s ]]",
    "unset %s",
    "unset -v %s",
    "getopts a %s -a",
    "mapfile -C %q -c 1 <<< x",
    "mapfile %s <<< x",
    "true & wait -n -p %s",
    "RANDOM=%s",
    "SECONDS=%s",
    "LINENO=%s; :",
    "x=%S; echo ${x@P}",
    "PS4=%S; set -x; :",
    "PS4=%S bash -xc :",
    "env PS4=%S bash -xc :",
    "export PS4=%S; bash -xc :",
    "BASH_ENV=%S bash -c :",
    "env 'BASH_FUNC_x%%=() { canary; }' bash -c x",
    "alias a=canary\na",
    "shopt -s expand_aliases\nalias a=%q\na",
    "shopt -s expand_aliases\nalias a='echo $('\na canary)",
    "BASH_ALIASES[a]=canary; shopt -s expand_aliases\na",
    "BASH_CMDS[x]=/bin/canary; x",
    "hash -p /bin/canary x; x",
    "compgen -C %q a",
    "compgen -W %S a",
    "shopt -s nullglob; nothing* %c",
    "shopt -s extglob\n/bin/ca+(n)ary",
    "shopt -s extglob\n/bin/?(x)canary %w",
    "set -o history; history -s canary; fc -s",
    "$x %c",
    "$'' %c",
    "\"\"$x%c",
    "{,%c}",
    "{%c,x}",
    "{canary,x} a",
    "{can{,}ary,x}",
    "{'canary',x}",
    "{can\\ary,x}",
    "{c..c}anary",
    "can{a,}ry",
    "[c]anary",
    "[c]a?ary",
    "c*ry",
    "can['a;']ry",
    "can[a\\ ]ry",
    "can[[:alpha:]]ry",
    "can[]a]ry",
    "can[!b]ry",
    "can[a-z]ry",
    "/bin/can[$'a']ry",
    "=canary",
    "~+/../bin/canary",
    "$'\\x{63}anary'",
    "$'canary\\0xyz'",
    "$'canary\\x00z' a",
    "$'can\\u0000x'ary",
    "$'\\u0063anary'",
    "$'\\cx\\'; %C #'",
    "$\\\nx %c",
    "$\\\n(%C)",
    "%C \\\n %w",
    "ec\\\nho a; %C",
    "cat <\\\n<E\nx\nE\n%C",
    "echo a \\; %C",
    "echo 'a\\'; %C; echo 'b'",
    "echo \"a\\\\\"; %C",
    "echo a\\\\\n%C",
    "echo $\"a\"; %C",
    "echo $'a\\'b'; %C",
    "echo \"`echo \\\"a\\\"`\"; %C",
    "echo `echo \\`%b\\``",
    "echo `echo \"\\$(canary)\"`",
    "echo `echo '\\`canary\\`'`",
    "echo a#b; %C",
    "echo \"#\"; %C",
    "echo a;#b\n%C",
    "exit %s; %C",
    "return 0; %C",
    "12>/dev/null %c",
    "3<x %c",
    "<<<x %c",
    "<<E %c\nx\nE",
    ">/dev/null 2>&1 %c",
    "echo ${x//a/$(%C)}",
    "echo ${x/#\"'\"/b}; %C",
    "echo \"${x/\\\"/b}\"; %C",
    "echo ${x^^}; %C",
    "echo ${x@Q}; %C",
    "echo ${@:-$(%C)}",
    "echo \"$@\"; %C",
    "echo ~; %C",
    "true;canary",
    "true&&canary",
    "true|canary",
    "(true)&canary",
    "{ true;}&&canary",
];

/// Characters and words that are inserted into lines.
const SIGNS: &[&str] = &[
    "'",
    "\"",
    "\\",
    "`",
    "$",
    "(",
    ")",
    "((",
    "))",
    "{",
    "}",
    "[",
    "]",
    "[[",
    "]]",
    "#",
    " # ",
    ";",
    ";;",
    "&",
    "|",
    "<",
    ">",
    "<<",
    "<<<",
    "\n",
    " ",
    "\t",
    "=",
    "!",
    "*",
    "?",
    "~",
    "@",
    "%",
    "$(",
    "${",
    "$'",
    "\\\n",
    "<(",
    "E",
    "esac",
    "in",
    "case",
    "canary",
    "canary ",
    "; canary",
    "\ncanary\n",
    "|canary",
    "&canary ",
    "$((",
    "+(",
    "x=",
    "x=(",
    "a[",
    "0",
    " x ",
    "then",
    "do",
    "done",
    "fi",
];

impl Grammar {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn number(&mut self, below: usize) -> usize {
        // The generator is SplitMix64.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % below as u64) as usize
    }

    fn choose(&mut self, list: &[&'static str]) -> &'static str {
        list[self.number(list.len())]
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = self.command(3);
        if self.number(3) == 0 {
            for _ in 0..=self.number(3) {
                line = self.changed(&line);
            }
        }
        line
    }

    fn command(&mut self, depth: usize) -> String {
        if depth == 0 || self.number(4) == 0 {
            return match self.number(3) {
                0 => self.canary(),
                _ => self.choose(HARMLESS).to_owned(),
            };
        }
        let receives = self.number(4) == 0;
        let around = self.choose(if receives { RECEIVERS } else { AROUND });
        let mut line = String::new();
        let mut letters = around.chars();
        while let Some(letter) = letters.next() {
            if letter != '%' {
                line.push(letter);
                continue;
            }
            match letters.next() {
                Some('c') => line.push_str(&self.canary()),
                Some('C') => line.push_str(&self.command(depth - 1)),
                Some('b') => {
                    let inner = self.command(depth - 1);
                    line.push_str(&inner.replace('\\', "\\\\").replace('`', "\\`"));
                }
                Some('q') => {
                    let inner = self.command(depth - 1);
                    line.push_str(&quoted(&inner));
                }
                Some('d') => {
                    let inner = self.command(depth - 1);
                    let escaped: String = inner
                        .chars()
                        .flat_map(|letter| {
                            "\\\"$`".contains(letter).then_some('\\').into_iter().chain([letter])
                        })
                        .collect();
                    line.push_str(&format!("\"{escaped}\""));
                }
                Some('s') => {
                    let inner = self.command(0);
                    line.push_str(&quoted(&format!("a[$({inner})]")));
                }
                Some('S') => {
                    let inner = self.command(0);
                    line.push_str(&quoted(&format!("$({inner})")));
                }
                Some('r') => line.push_str(self.choose(&[
                    ">/dev/null",
                    "2>/dev/null",
                    "</work/x",
                    "2>&1",
                    "3>&1",
                    ">&2",
                    "<>/work/x",
                    "<<<a",
                    "{x}>/dev/null",
                    ">|/dev/null",
                    "&>/dev/null",
                ])),
                Some('w') => line.push_str(self.choose(&[
                    "a", "'b c'", "\"$x\"", "$x", "-x", "*", "{a,b}", "$((1))", "a=b", "[a]", "\\;", "''",
                    "#", "~", "{}", "!",
                ])),
                Some('t') => line.push_str(self.choose(TEXTS)),
                Some('B') => line.push_str(self.choose(SHELLS)),
                Some(other) => line.extend(['%', other]),
                None => line.push('%'),
            }
        }
        line
    }

    /// Returns the canary as a word for a shell, possibly with a directory.
    fn canary(&mut self) -> String {
        if self.number(2) == 0 {
            return "canary".to_owned();
        }
        let mut word = if self.number(3) == 0 { "/bin/".to_owned() } else { String::new() };
        for letter in "canary".chars() {
            let code = u32::from(letter);
            match self.number(40) {
                0 => word.push_str(&format!("\\{letter}")),
                1 => word.push_str(&format!("'{letter}'")),
                2 => word.push_str(&format!("\"{letter}\"")),
                3 => word.push_str(&format!("$'\\x{code:x}'")),
                4 => word.push_str(&format!("$'\\{code:o}'")),
                5 => word.push_str(&format!("$'\\u{code:04x}'")),
                6 => word.push_str(&format!("${{z:-{letter}}}")),
                7 => word.push_str(&format!("$(echo {letter})")),
                8 => word.push_str(&format!("`echo {letter}`")),
                9 => word.push_str(&format!("{letter}$z")),
                10 => word.push_str(&format!("''{letter}\"\"")),
                11 => word.push_str(&format!("\\\n{letter}")),
                12 => word.push_str(&format!("[{letter}]")),
                13 => word.push('?'),
                14 => word.push_str(&format!("{letter}*")),
                15 => word.push_str(&format!("$'{letter}'")),
                16 => word.push_str(&format!("{letter}${{z}}")),
                17 => word.push_str(&format!("{{{letter},x}}")),
                18 => word.push_str(&format!("$'{letter}\\0x'")),
                19 => word.push_str(&format!("[[:alpha:]{letter}]")),
                20 => word.push_str(&format!("{letter}$\"\"")),
                _ => word.push(letter),
            }
        }
        word
    }

    fn changed(&mut self, line: &str) -> String {
        let mut letters: Vec<char> = line.chars().collect();
        let at = self.number(letters.len() + 1);
        match self.number(4) {
            0 if at < letters.len() => {
                letters.remove(at);
            }
            1 if at + 1 < letters.len() => letters.swap(at, at + 1),
            _ => {
                let sign = self.choose(SIGNS);
                letters.splice(at..at, sign.chars());
            }
        }
        letters.into_iter().collect()
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
