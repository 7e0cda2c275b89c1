//! Programs that run commands from their input or in a language of their own.
//!
//! These commands are known only if they are a text among the program's words, a literal here-document, or a
//! script in a file. If the commands may come from elsewhere (pipes, descriptors, functions, constructs
//! around the program), the program may run anything. Where its input comes from is then not examined
//! further.

use super::code_files::code_source;
use super::lexer::Input;
use super::programs::{INTERPRETERS, LAUNCHERS, OTHER_SHELLS, SHELLS, STDIN_READERS, has_code, is_one_of};
use super::{Part, Word, listed};
use crate::command::reduce::{RUNNERS, may_be_one_of};

/// Programs for which a single word may be the whole text for a shell.
const WORD_TAKERS: &str = "\
    ash bash csh dash expect fish ksh mksh parallel powershell pwsh cmd sh ssh tcsh trap watch zsh emulate rbash yash posh \
    lksh ksh93 hyperfine mosh autossh rsh pee watchexec nodemon entr";

/// Returns `true` if a program of this part may run unknown commands.
pub(super) fn may_do_anything(part: &Part) -> bool {
    let words = &part.words;
    let told = part.input == Input::Known;
    part.starts.iter().any(|start| {
        let Some((program, rest)) = words.get(*start..).and_then(<[Word]>::split_first) else { return false };
        if program.open.is_some() {
            let list = [SHELLS, OTHER_SHELLS, LAUNCHERS, STDIN_READERS, INTERPRETERS];
            return !program.text.starts_with('-') && list.iter().any(|list| may_be_one_of(program, list));
        }
        // The word stands for a home directory that is unknown, or set by a variable.
        if part.in_shell && program.text.starts_with('~') && !program.text.contains('/') {
            return true;
        }
        let Some(name) = program.program_family() else { return false };
        let told = told && (listed(SHELLS, &name) || has_code(&name));
        let wraps = part.wraps && *start == 0;
        let listens = match name.as_str() {
            _ if wraps => false,
            name if listed(LAUNCHERS, name) => return true,
            name if listed(SHELLS, name) => match shell(rest) {
                Source::Words => false,
                Source::Input => true,
                Source::Unknown => return true,
            },
            name if listed(OTHER_SHELLS, name) => rest.is_empty() || rest.iter().all(Word::is_option),
            "." | "source" if part.in_shell => return rest.first().is_some_and(|file| !is_script(file)),
            "sudo" | "doas" => return starts_shell(rest),
            "env" => return splits(rest),
            "make" | "gmake" => return reads_makefile(rest),
            "git" => return takes_hidden_configuration(rest),
            "exec" if part.in_shell => return rest.is_empty() && part.input != Input::Inherited,
            "ssh" | "slogin" | "rsh" => operands(rest, "BbcDEeFIiJLlmOopQRSWw") == 1,
            "crontab" => !rest.iter().any(|word| word.text == "-l"),
            "gdb" | "lldb" => !rest.iter().any(|word| word.text.trim_start_matches('-') == "batch"),
            name if listed(STDIN_READERS, name) => true,
            name if is_interpreter(name) => interprets_input(rest),
            name => match code_source(name, rest) {
                Source::Words => false,
                Source::Input => true,
                Source::Unknown => return true,
            },
        };
        listens && !told
    }) || takes_name_of_shell(part)
}

fn is_interpreter(name: &str) -> bool {
    is_one_of(INTERPRETERS, name) || name.starts_with("python") || name.starts_with("pypy")
}

/// Where a program reads its commands from.
pub(super) enum Source {
    Words,
    Input,
    Unknown,
}

fn shell(words: &[Word]) -> Source {
    let mut at = 0;
    let mut has_text = false;
    while let Some(word) = words.get(at) {
        let text = word.text.as_str();
        if word.open.is_some() {
            break;
        }
        match text {
            "-" | "--" => {
                at += 1;
                break;
            }
            "-o" | "+o" => at += 1,
            "--login" | "--norc" | "--noprofile" | "--posix" | "--restricted" | "-f" => {}
            "--version" | "--help" => return Source::Words,
            _ => match text.strip_prefix(['-', '+']) {
                Some(letters) if letters.bytes().all(|letter| b"ceiluvxnabhmpEr".contains(&letter)) => {
                    has_text |= text.starts_with('-') && letters.contains('c');
                    // The option letters may be combined: `-eo pipefail`.
                }
                Some(letters)
                    if letters.ends_with('o')
                        && letters.bytes().all(|letter| b"ceiluvxnabhmpEro".contains(&letter)) =>
                {
                    has_text |= letters.contains('c');
                    at += 1;
                }
                Some("s") => return Source::Input,
                Some(_) => return Source::Unknown,
                None => break,
            },
        }
        at += 1;
    }
    match words.get(at) {
        // Another function reads the text of commands.
        Some(word) if has_text => {
            if word.open.is_none() {
                Source::Words
            } else {
                Source::Unknown
            }
        }
        Some(word) if is_script(word) => Source::Words,
        Some(word) if word.open.is_none() => Source::Input,
        Some(_) => Source::Unknown,
        None if has_text => Source::Unknown,
        None => Source::Input,
    }
}

/// Returns `true` if the word certainly names a script file, and not a descriptor or terminal.
pub(super) fn is_script(word: &Word) -> bool {
    let text = word.text.as_str();
    let name = text.rsplit('/').next().unwrap_or_default();
    let special =
        matches!(name, "" | "-" | "." | ".." | "stdin" | "stdout" | "stderr" | "tty" | "ptmx" | "console");
    let numbered = name.bytes().all(|byte| byte.is_ascii_digit());
    let device = text.starts_with('/') && {
        let mut names = text.split('/').filter(|name| !name.is_empty() && *name != ".");
        matches!(names.next(), Some("dev" | "proc" | "run")) || text.contains("..")
    };
    match &word.open {
        None => !special && !numbered && !device,
        // `"$dir/x.sh"` names a script, whatever the directory is.
        Some(_) => word.splits.is_none() && !special && !numbered && ends_plainly(word),
    }
}

/// Returns `true` if a word is a single variable followed by a slash and a literal name.
fn ends_plainly(word: &Word) -> bool {
    let Some((before, name)) = word.text.rsplit_once('/') else { return false };
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
    let variable = |hole: &String| hole.starts_with('$') && !hole.contains(['(', '…']);
    !before.is_empty() && name.chars().all(plain) && word.holes.iter().all(variable)
}

/// Returns the number of words other than options. The option letters in `valued` take a value.
fn operands(words: &[Word], valued: &str) -> usize {
    let mut count = 0;
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let takes = word.text.len() == 2 && word.text.starts_with('-') && valued.contains(&word.text[1..]);
        count += usize::from(!word.is_option());
        at += if takes { 2 } else { 1 };
    }
    count
}

fn starts_shell(words: &[Word]) -> bool {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let text = word.text.as_str();
        if word.open.is_some() {
            return true;
        }
        match text.strip_prefix('-') {
            None => return false,
            Some("l" | "v" | "k" | "K" | "V" | "-list" | "-validate" | "-version" | "-help") => return false,
            Some("u" | "g" | "U" | "p" | "C") => at += 1,
            Some(
                "n" | "E" | "H" | "S" | "b" | "A" | "P" | "nE" | "-" | "-non-interactive" | "-preserve-env",
            ) => {}
            Some(long) if long.starts_with("-user=") || long.starts_with("-preserve-env=") => {}
            Some(_) => return true,
        }
        at += 1;
    }
    true
}

/// Returns `true` if `env` splits one of these words into several words.
fn splits(words: &[Word]) -> bool {
    let option = |word: &&Word| word.may_be_option() || word.text.contains('=');
    words.iter().take_while(option).any(|word| match word.text.strip_prefix('-') {
        Some(long) if long.starts_with('-') => long.starts_with("-s") || long == "-",
        Some(short) => short.contains('S') || word.open.is_some(),
        None => false,
    }) || words.iter().any(|word| word.text.starts_with("-S") || word.text.starts_with("--split"))
}

/// Returns `true` if git takes its settings, which may contain aliases, from a variable or a file.
fn takes_hidden_configuration(words: &[Word]) -> bool {
    let is_include = |text: &str| text.to_ascii_lowercase().starts_with("include");
    let includes = |pair: &[Word]| listed("-c --config", &pair[0].text) && is_include(&pair[1].text);
    words.windows(2).any(includes)
        || words.iter().any(|word| {
            let text = word.text.as_str();
            let glued = text.strip_prefix("-c").or_else(|| text.strip_prefix("--config="));
            text == "--config-env" || text.starts_with("--config-env=") || glued.is_some_and(is_include)
        })
}

fn reads_makefile(words: &[Word]) -> bool {
    words.iter().enumerate().any(|(at, word)| {
        let text = word.text.as_str();
        let long = text.strip_prefix("--file=").or_else(|| text.strip_prefix("--makefile="));
        let file = match text {
            "-f" | "--file" | "--makefile" => words.get(at + 1).cloned(),
            _ => long.or_else(|| text.strip_prefix("-f")).map(Word::known),
        };
        let dashed = text.strip_prefix('-').filter(|letters| !letters.starts_with(['-', 'f', 'C', 'j']));
        file.is_some_and(|file| file.open.is_some() || !is_script(&file))
            || text.starts_with("--ev")
            || dashed.is_some_and(|letters| letters.contains(['E', 'f']))
    })
}

fn interprets_input(words: &[Word]) -> bool {
    const IDLE: &str = "-i -u -s -q -w -W -B -I -S -b -l -n -p -a --interactive --no-warnings";
    let idle = |word: &&Word| word.open.is_none() && listed(IDLE, &word.text);
    match words.iter().find(|word| !idle(word)) {
        None => true,
        Some(word) if word.is_option() => false,
        Some(word) => word.open.is_none() && !is_script(word),
    }
}

/// Returns `true` if the text for a shell is only the name of a shell or of a similar program.
fn takes_name_of_shell(part: &Part) -> bool {
    let takes = |at: &usize| {
        let name = part.words.get(*at).and_then(Word::program_family);
        name.is_some_and(|name| [WORD_TAKERS, SHELLS, OTHER_SHELLS].iter().any(|list| listed(list, &name)))
    };
    let Some(taker) = part.starts.iter().copied().find(takes) else { return false };
    !part.wraps
        && part.words.iter().skip(taker + 1).filter_map(Word::program_family).any(|name| {
            [SHELLS, OTHER_SHELLS, LAUNCHERS, STDIN_READERS].iter().any(|list| listed(list, &name))
                || is_interpreter(&name)
                || name == "xargs"
        })
}

/// Returns `true` if the word at index `at` may be the program that `find` or `xargs` starts. The program is
/// inserted into that word, and only prefixes and their options precede it.
pub(super) fn is_filled_program(words: &[Word], at: usize, exec: &str) -> bool {
    let Some(before) = at.checked_sub(1).map(|before| &words[before]) else { return true };
    let name = before.program_family();
    // The word before sets the placeholder, and is an option.
    if words[at].is_option() || listed("-I -J", &before.text) {
        return false;
    }
    listed(exec, &before.text)
        || name.is_some_and(|name| RUNNERS.iter().any(|list| listed(list, &name)))
        || before.may_be_option()
        || before.text.contains('=')
        || before.text.starts_with(|letter: char| letter.is_ascii_digit())
        || at >= 2 && takes_value(&words[at - 2]) && !listed(exec, &words[at - 2].text)
}

fn takes_value(option: &Word) -> bool {
    let text = option.text.as_str();
    let alone = text.len() == 2 || text.starts_with("--") && !text.contains('=');
    option.open.is_some() || option.is_option() && alone && !listed("-0 -r -t -x", text)
}
