//! From a command to the programs that run: prefixes, shells in shells, and commands among arguments.

use super::lexer::{self, Lexed, Raw};
use super::{Part, Script, Word};
use crate::action::Command;

/// How deep a shell may stand in a shell.
const MOST_DEPTH: usize = 8;

/// How many bytes are read in all, everything that is read twice included. Linux gives no program a longer word than
/// half of it.
const MOST_BYTES: usize = 256 << 10;

/// Words before a command: what they take for themselves differs, so a program may start at any word behind them.
const PREFIXES: &str = "\
    ! ash bash builtin bundle busybox catchsegv chpst chroot chrt command coproc cpulimit csh dash \
    dbus-run-session do doas elif else entr env eval exec faketime fakeroot firejail fish flock function \
    gdb gtimeout if ionice ksh ltrace mksh nice nohup nsenter numactl parallel perf pkexec powershell \
    prlimit proxychains pwsh rlwrap runuser script setarch setpriv setsid sh stdbuf strace su sudo \
    systemd-run taskset tcsh then time timeout toybox trap unbuffer unshare until valgrind watch while \
    xargs xvfb-run zsh { cmd direnv nix-shell torsocks torify proxychains4 sshpass expect tmux screen \
    bwrap caffeinate arch \
    docker kubectl mise npx nix pipenv pnpx podman poetry bunx ssh uv uvx";

/// Programs that may hand one of their arguments to a shell.
const TEXT_TAKERS: &str = "\
    ash bash busybox cmd csh dash entr env eval expect firejail fish flock ksh mksh nix-shell nsenter \
    parallel pkexec powershell pwsh runuser screen script sh su systemd-run tcsh tmux toybox trap watch \
    zsh ssh";

/// How many words may follow a prefix.
const MOST_BEHIND: usize = 512;

/// How many programs may run.
const MOST_PARTS: usize = 2000;

/// How many words there may be in all.
const MOST_WORDS: usize = 10_000;

/// How many words may be left to the shell.
const MOST_OPEN: usize = 2000;

/// How often the directory may change.
const MOST_DIRECTORIES: usize = 8;

/// Prefixes after which words come from elsewhere.
const FEEDERS: &str = "xargs parallel entr";

/// Shells whose language is the one that is read here.
const SHELLS: &str = "sh bash dash ash ksh mksh";

/// Words of git behind which a command stands.
const GIT_EXEC: &str = "run foreach --exec -x";

/// `find` and its kin.
const FINDERS: &str = "find gfind bfs fd fdfind";

/// Options of finders behind which a command stands.
const EXEC: &str = "-exec -execdir -ok -okdir -x -X --exec --exec-batch";

/// Whether `word` stands in `list`.
pub(crate) fn listed(list: &str, word: &str) -> bool {
    list.split(' ').any(|known| known == word)
}

/// Takes a command apart.
pub(crate) fn read(command: &Command) -> Script {
    let mut reader = Reader { script: Script { plain: true, ..Script::default() }, left: MOST_BYTES };
    match command {
        Command::Shell(text) => reader.shell(text, 0),
        Command::Argv(words) => reader.argv(words),
        Command::Unknown(text) => {
            let words = vec![Word::unknown(text.clone())];
            reader.script.parts.push(Part { words, starts: vec![0], ..Part::default() });
        }
    }
    reader.spoken();
    let mut script = reader.script;
    let parts = || script.parts.iter().filter(|part| !part.wraps);
    let open = parts().flat_map(|part| &part.words).filter(|word| word.open.is_some()).count();
    let words = script.parts.iter().map(|part| part.words.len()).sum::<usize>();
    script.lost |= open > MOST_OPEN || words > MOST_WORDS || script.parts.len() > MOST_PARTS;
    script.lost |= !follow_directories(&mut script.parts);
    let parts = || script.parts.iter().filter(|part| !part.wraps);
    script.plain &= parts().count() == 1 && parts().all(|part| part.sure) && !script.lost;
    script
}

struct Reader {
    script: Script,
    left: usize,
}

impl Reader {
    fn argv(&mut self, words: &[String]) {
        let length = words.iter().map(String::len).sum::<usize>();
        if length > self.left {
            self.script.lost = true;
            return;
        }
        self.left -= length;
        // A whole line in the place of the program: somebody may hand it to a shell after all.
        if let Some(line) =
            words.first().filter(|word| word.contains(|letter: char| " \t\n;&|<>$`(".contains(letter)))
        {
            self.script.plain = false;
            self.shell(line, 1);
        }
        let words = words.iter().map(Word::known).collect();
        self.part(Raw { words, sure: true, ..Raw::default() }, 0);
    }

    /// Reads a text for a shell; `depth` shells stand around it.
    fn shell(&mut self, text: &str, depth: usize) {
        if depth > MOST_DEPTH || text.len() > self.left {
            self.script.lost = true;
            return;
        }
        self.left -= text.len();
        let Lexed { parts, documents, plain, broken } = lexer::lex(text);
        self.script.plain &= plain;
        for raw in parts {
            self.part(raw, depth);
        }
        for document in documents {
            self.document(&document, depth + 1);
        }
        // A shell that gives up on a line may go on with the next.
        if broken && text.contains('\n') {
            text.lines().for_each(|line| self.shell(line, depth + 1));
        }
    }

    /// A text that is the input of a command may be commands. Its lines are read one by one as well, lest a quote that
    /// is none hide what follows.
    fn document(&mut self, text: &str, depth: usize) {
        self.script.plain = false;
        self.shell(text, depth);
        if text.contains(['\'', '"', '`', '$', '<']) {
            for line in text.lines() {
                self.shell(line, depth);
            }
        }
    }

    /// What is said to a shell that only listens may be what it does.
    fn spoken(&mut self) {
        let listens = |part: &Part| {
            let last = part.words.iter().rposition(|word| !word.is_option()).unwrap_or(0);
            let name = part.words.get(last).and_then(Word::program);
            part.starts.contains(&last) && name.is_some_and(|name| listed(TEXT_TAKERS, &name))
        };
        if !self.script.parts.iter().any(listens) {
            return;
        }
        let speaks = |part: &&Part| part.programs().any(|name| name == "echo" || name == "printf");
        let said = |part: &Part| {
            part.words.iter().skip(1).map(|word| word.text.clone()).collect::<Vec<_>>().join(" ")
        };
        let texts: Vec<String> = self.script.parts.iter().filter(speaks).map(said).collect();
        texts.iter().for_each(|text| self.document(text, 1));
    }

    fn part(&mut self, raw: Raw, depth: usize) {
        let Raw { mut words, writes, reads, starts: more, mut sure } = raw;
        let assignments = words.iter().take_while(|word| is_assignment(word)).count();
        if let Some(script) = whole_script(&words).filter(|_| sure && writes.is_empty() && reads.is_empty()) {
            self.shell(script, depth + 1);
            let starts = vec![0];
            self.script.parts.push(Part { words, sure: true, wraps: true, starts, ..Part::default() });
            return;
        }
        let names: Vec<Option<String>> = words.iter().map(Word::program).collect();
        let is = |at: usize, list: &str| names[at].as_deref().is_some_and(|name| listed(list, name));
        let mut starts = vec![0];
        let mut texts = Vec::new();
        let mut inner = Vec::new();
        // Everything that may run from this word on, unless that is known already.
        let mut explored = usize::MAX;
        let mut explore = |from: usize| {
            if from > explored {
                return;
            }
            starts.push(from);
            // A program that only the shell knows may be any of them.
            let open = words[from].open.is_some();
            if open || is(from, PREFIXES) {
                explored = from;
                starts.extend(from + 1..words.len());
                let mut takers = (from..words.len()).filter(|at| open || is(*at, TEXT_TAKERS));
                if let Some(taker) = takers.next() {
                    texts.extend(inner_texts(&words[taker..]));
                }
            }
        };
        let (mut fed, mut filled) = (false, false);
        for start in more.into_iter().filter(|start| *start < words.len()) {
            sure = false;
            explore(start);
        }
        if assignments < words.len() {
            explore(assignments);
            let finds = (assignments..words.len()).any(|at| is(at, FINDERS));
            let options = assignments + 1..words.len().saturating_sub(1);
            let lists = [(finds, EXEC), (is(assignments, "git"), GIT_EXEC)];
            let runs = |at: &usize| lists.iter().any(|(does, list)| *does && listed(list, &words[*at].text));
            options.filter(runs).for_each(|at| explore(at + 1));
            if is(assignments, "git") {
                inner.extend(git_texts(&words));
            }
            fed = is(assignments, PREFIXES) && (assignments..words.len()).any(|at| is(at, FEEDERS));
            filled = fed || finds;
        }
        starts.sort_unstable();
        starts.dedup();
        self.script.lost |= starts.len() > MOST_BEHIND;
        starts.truncate(MOST_BEHIND);
        if filled {
            starts.retain(|start| words.get(*start).is_none_or(|word| !is_filled_in(word)));
            sure &= !words.iter().any(is_filled_in);
            let filled = words.iter_mut().filter(|word| is_filled_in(word));
            filled.for_each(|word| *word = Word::unknown(std::mem::take(&mut word.text)));
        }
        sure &= assignments == 0 && !fed && !is_keyword(&words);
        let core = transparent(&words);
        self.script.parts.push(Part { words, sure, starts, fed, core, writes, reads, ..Part::default() });
        texts.extend(inner);
        texts.sort_unstable();
        texts.dedup();
        for text in texts {
            self.script.plain = false;
            self.shell(&text, depth + 1);
        }
    }
}

/// Texts that git hands to a shell: behind words such as `--exec`, and aliases that begin with an exclamation mark.
fn git_texts(words: &[Word]) -> Vec<String> {
    let behind =
        words.windows(2).filter(|pair| listed(GIT_EXEC, &pair[0].text)).map(|pair| pair[1].text.as_str());
    let within = words.iter().filter_map(|word| {
        word.text.split_once("=!").or_else(|| word.text.strip_prefix("--exec=").map(|text| ("", text)))
    });
    let texts = behind
        .filter(|text| text.contains([' ', ';', '&', '|', '$', '`']))
        .chain(within.map(|(_, text)| text));
    texts.map(str::to_owned).collect()
}

/// Whether another program fills in what it finds here.
fn is_filled_in(word: &Word) -> bool {
    word.text == "{}" || word.text.starts_with(":::")
}

/// Whether a word gives a variable a value.
fn is_assignment(word: &Word) -> bool {
    let Some((name, _)) = word.text.split_once('=') else { return false };
    let name = name.strip_suffix('+').unwrap_or(name);
    let name = name.split_once('[').map_or(name, |(name, _)| name);
    !name.is_empty()
        && !name.starts_with(|letter: char| letter.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The text of `sh -c text`, if there is nothing else to it.
fn whole_script(words: &[Word]) -> Option<&str> {
    let [shell, option, script] = words else { return None };
    let name = shell.program()?;
    let usual = shell.text == name || shell.text.starts_with("/bin/") || shell.text.starts_with("/usr/bin/");
    let letters = option.text.strip_prefix('-')?;
    let harmless = letters.contains('c') && letters.chars().all(|letter| "clexu".contains(letter));
    (listed(SHELLS, &name) && usual && harmless && script.open.is_none() && !script.text.trim().is_empty())
        .then_some(&script.text)
}

/// Texts among the words behind a prefix that a shell may read: all with a blank or a sign in them, and all of them
/// together.
fn inner_texts(words: &[Word]) -> Vec<String> {
    let mut texts = Vec::new();
    for word in words.iter().skip(1) {
        let text = word.text.as_str();
        // `--option=text`, and `-Stext` or `-ctext` even if it is a single word.
        let long = text.strip_prefix("--").and_then(|rest| rest.split_once('=')).map(|(_, text)| text);
        let glued = text.strip_prefix("-S").or_else(|| text.strip_prefix("-c"));
        texts.extend(long.into_iter().chain(glued).filter(|text| !text.is_empty()).map(str::to_owned));
        if text.contains(|letter: char| " \t\n;&|<>$`({'\"\\=".contains(letter)) {
            texts.push(text.to_owned());
            let short = text.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
            texts.extend(short.and_then(|rest| rest.get(1..)).map(str::to_owned));
        }
    }
    if words
        .iter()
        .any(|word| matches!(word.program().as_deref(), Some("eval" | "cmd" | "powershell" | "pwsh")))
    {
        let all: Vec<&str> = words.iter().skip(1).map(|word| word.text.as_str()).collect();
        texts.push(all.join(" "));
    }
    texts
}

/// Whether the first word belongs to the shell's own language.
fn is_keyword(words: &[Word]) -> bool {
    const KEYWORDS: &str = "\
    ! case coproc do done elif else esac fi for function if in select then until while { } [[ ]] alias \
    unalias eval source . trap hash enable";
    words.first().is_some_and(|word| listed(KEYWORDS, &word.text))
}

/// How many words at the beginning change nothing about what the rest does: `timeout 5`, `nice`, `time`, `command`.
fn transparent(words: &[Word]) -> usize {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let number = |ahead: usize| {
            words.get(at + ahead).is_some_and(|word| {
                word.text.starts_with(|letter: char| letter.is_ascii_digit())
                    && word.text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.')
            })
        };
        let option = |ahead: usize, name: &str| words.get(at + ahead).is_some_and(|word| word.text == name);
        let length = match word.text.as_str() {
            "timeout" | "gtimeout" if number(1) => 2,
            "nice" if option(1, "-n") && number(2) => 3,
            "nice" | "time" | "command" if words.get(at + 1).is_some_and(|next| !next.is_option()) => 1,
            _ => break,
        };
        if words.len() <= at + length {
            break;
        }
        at += length;
    }
    at
}

/// Tells every part where `cd` may have gone before it, or says that it went to too many places.
fn follow_directories(parts: &mut [Part]) -> bool {
    let mut after: Vec<Word> = Vec::new();
    for part in parts {
        part.after.clone_from(&after);
        if part.programs().any(|name| matches!(name.as_str(), "cd" | "pushd" | "chdir")) {
            after.extend(part.words.iter().skip(1).find(|word| !word.is_option()).cloned());
        }
    }
    after.len() <= MOST_DIRECTORIES
}
