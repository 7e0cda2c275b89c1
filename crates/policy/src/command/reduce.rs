//! Reduces a command to the programs that run: after prefixes, in nested shells, and among arguments.

use super::code::{MAX_MENTIONS, git_texts, mention, mention_code};
use super::evaluate::evaluates;
use super::git_commands::runner_starts;
use super::lexer::{self, Document, Lexed, Raw, is_assignment, is_name};
use super::literals::from_documents;
use super::pattern::base;
use super::programs::{
    CALLERS, CALLS, COMMAND_VARIABLES, EXEC, FEEDERS, FINDERS, GIT_EXEC, LEADS, LISTENERS, OTHER_SHELLS,
    PREFIXES, SHELLS, SOURCERS, SUBCOMMAND_PREFIXES, TEXT_TAKERS, has_code,
};
use super::strict::is_recognized;
use super::subcommands::may_mean;
use super::unknown_code::{is_filled_program, may_do_anything};
use super::variables::{Value, Variables, moves_git_home};
use super::{Literal, Part, Script, Word};
use crate::action::Command;
use crate::text_pattern::{Case, TextPattern};

const MAX_DEPTH: usize = 8;

/// Maximum number of bytes that are read for one command. A text that is read twice counts twice. On Linux, a
/// single argument has at most half as many bytes.
const MAX_READ_BYTES: usize = 256 << 10;

/// Maximum length of a command's text. It is the maximum length of an argument on Linux.
const MAX_TEXT_BYTES: usize = 128 << 10;

pub(super) const MAX_PREFIXED_WORDS: usize = 512;

/// Maximum number of pairs, in the whole command, of a word at which a program may begin and a word after it.
const MAX_BEHIND_PAIRS: usize = 2 * MAX_PREFIXED_WORDS * MAX_PREFIXED_WORDS;

const MAX_ALL_MENTIONS: usize = 4 * MAX_MENTIONS;

const MAX_PARTS: usize = 500;

const MAX_WORDS: usize = 10_000;

const MAX_REDIRECTIONS: usize = 1000;

const MAX_OPEN_WORDS: usize = 2000;

const MAX_DIRECTORY_CHANGES: usize = 8;

/// Programs after which another program may follow.
pub(super) const RUNNERS: [&str; 3] = [PREFIXES, SHELLS, OTHER_SHELLS];

/// Programs that may pass one of their arguments to a shell, including shells.
const TAKERS: [&str; 3] = [TEXT_TAKERS, SHELLS, OTHER_SHELLS];

pub(crate) fn listed(list: &str, word: &str) -> bool {
    list.split(' ').any(|known| known == word)
}

pub(crate) fn read(command: &Command) -> Script {
    let mut reader = Reader {
        script: Script { plain: true, ..Script::default() },
        left: MAX_READ_BYTES,
        mentions_left: MAX_ALL_MENTIONS,
        behind_left: MAX_BEHIND_PAIRS,
        ..Reader::default()
    };
    match command {
        Command::Shell(text) => reader.shell(text, 0),
        Command::Argv(words) => reader.argv(words),
        Command::Unknown(text) => {
            let words = vec![Word::unknown(text.clone())];
            reader.script.parts.push(Part { words, starts: vec![0], ..Part::default() });
        }
    }
    reader.read_documents();
    if reader.script.lost {
        return unreadable();
    }
    reader.evaluate();
    let mut script = reader.script;
    let parts = || script.parts.iter().filter(|part| !part.wraps);
    let open = parts().flat_map(|part| &part.words).filter(|word| word.open.is_some()).count();
    if open > MAX_OPEN_WORDS || !follow_directories(&mut script.parts) {
        return unreadable();
    }
    let parts = || script.parts.iter().filter(|part| !part.wraps);
    script.plain &= parts().count() == 1 && parts().all(|part| part.sure);
    script
}

/// Returns the result for a command whose parsing was abandoned: a single part that may be anything. Judging
/// such a result is cheap.
fn unreadable() -> Script {
    let words = vec![Word::unknown("…")];
    let part = Part { words, starts: vec![0], wild: true, ..Part::default() };
    Script { parts: vec![part], plain: false, lost: true }
}

/// Returns the programs that a command may run because of an environment variable. `None` if it may run any
/// program.
pub(crate) fn read_variable(name: &str, value: &str) -> Option<Vec<Part>> {
    is_name(name).then_some(())?;
    let script = read(&Command::Shell(format!("{name}='{}' :", value.replace('\'', "'\\''"))));
    (!script.lost).then_some(script.parts)
}

#[derive(Default)]
struct Reader {
    script: Script,
    left: usize,
    mentions_left: usize,
    /// Remaining number of pairs of a word at which a program may begin and a word after it.
    behind_left: usize,
    words: usize,
    redirections: usize,
    documents: Vec<Document>,
    sums: Vec<String>,
    assigned: Vec<String>,
    followed: Vec<String>,
    /// `true` if a part of the text is not in the syntax that all shells share.
    unrecognized: bool,
}

impl Reader {
    fn argv(&mut self, words: &[String]) {
        let length = words.iter().map(String::len).sum::<usize>();
        if length > self.left {
            self.script.lost = true;
            return;
        }
        self.left -= length;
        // If the program name is a complete command line, it may be passed to a shell.
        if let Some(line) =
            words.first().filter(|word| word.contains(|letter: char| " \t\n;&|<>$`(".contains(letter)))
        {
            self.script.plain = false;
            self.shell(line, 1);
        }
        let words = words.iter().map(Word::known).collect();
        self.part(Raw { words, sure: true, ..Raw::default() }, 0, Part::default());
    }

    fn shell(&mut self, text: &str, depth: usize) {
        if self.script.lost || depth > MAX_DEPTH || text.len() > self.left.min(MAX_TEXT_BYTES) {
            self.script.lost = true;
            return;
        }
        self.left -= text.len();
        self.unrecognized |= !is_recognized(text);
        let Lexed { mut parts, documents, sums, assigned, followed, plain, broken, lost } = lexer::lex(text);
        self.script.lost |= lost;
        self.script.plain &= plain;
        if parts.is_empty() && (broken || !sums.is_empty() || !followed.is_empty()) {
            parts.push(Raw { words: vec![Word::known(text)], ..Raw::default() });
        }
        for raw in parts {
            self.part(raw, depth, Part { wild: broken, in_shell: true, ..Part::default() });
        }
        self.documents.extend(documents);
        self.sums.extend(sums);
        self.assigned.extend(assigned);
        self.followed.extend(followed);
        // Some shells continue with the next line after they have failed to read a line.
        if broken && text.contains('\n') {
            text.lines().for_each(|line| self.shell(line, depth + 1));
        }
    }

    /// Reads here-documents as commands, if one of the programs may run its input.
    fn read_documents(&mut self) {
        let runs = |part: &Part, lists: &[&str]| {
            part.programs().any(|name| lists.iter().any(|list| listed(list, &name)))
        };
        let mut depth = 1;
        while !self.documents.is_empty() {
            let documents = std::mem::take(&mut self.documents);
            // Relative paths in these texts count in every directory that earlier commands may have entered.
            let literals = from_documents(&documents, &self.script.parts);
            if let Some(part) = self.script.parts.iter_mut().rfind(|part| !part.wraps) {
                part.literals.extend(literals);
            }
            let listens = self.script.parts.iter().any(|part| runs(part, &[LISTENERS, SHELLS, OTHER_SHELLS]));
            self.script.plain = false;
            if listens && documents.iter().any(|document| document.open) {
                self.script.parts.iter_mut().for_each(Part::run_anything);
            }
            let mut code = Vec::new();
            documents.iter().for_each(|document| mention(&document.text, &mut code));
            let coded = |part: &&mut Part| part.programs().any(|name| has_code(&name));
            for part in self.script.parts.iter_mut().filter(coded) {
                // Words of code beyond the limit count as unknown.
                if code.len() > self.mentions_left.min(MAX_MENTIONS) {
                    part.run_anything();
                } else {
                    self.mentions_left -= code.len();
                    part.mentions.extend_from_slice(&code);
                }
            }
            for Document { text, .. } in documents {
                if listens {
                    self.shell(&text, depth);
                }
            }
            depth += 1;
        }
    }

    fn evaluate(&mut self) {
        let variables = Variables::new(&self.script.parts, &self.assigned, &self.sums);
        let unsafe_sum = self.sums.iter().any(|sum| !variables.is_safe_sum(sum));
        let followed = self.followed.iter().any(|name| variables.named(name) == Value::Unknown);
        let parts = &mut self.script.parts;
        let does =
            |part: &Part| evaluates(part, &variables) || variables.is_hook(part) || may_do_anything(part);
        let anything = self.unrecognized
            || unsafe_sum
            || followed
            || moves_git_home(parts)
            || self.assigned.iter().any(|name| Variables::is_special(name))
            || parts.iter().any(does);
        // A part that may be anything may also provide the input of other parts, or redefine their programs.
        if anything {
            parts.iter_mut().filter(|part| !part.wraps).for_each(Part::run_anything);
        }
    }

    /// Adds the programs of a simple command. `part` contains what is already known about them.
    fn part(&mut self, raw: Raw, depth: usize, part: Part) {
        let Raw { mut words, writes, reads, starts: more, literals, mut sure, input } = raw;
        let is_code = false;
        let literals = literals.into_iter().map(|word| Literal { word, is_code }).collect();
        let part = Part { input, ..part };
        self.words += words.len();
        self.redirections += writes.len() + reads.len();
        self.script.lost |= self.words > MAX_WORDS
            || self.redirections > MAX_REDIRECTIONS
            || self.script.parts.len() >= MAX_PARTS;
        if self.script.lost {
            return;
        }
        let assignments = words.iter().take_while(|word| is_assignment(&word.text)).count();
        if let Some(script) = whole_script(&words).filter(|_| sure && writes.is_empty() && reads.is_empty()) {
            self.shell(script, depth + 1);
            let starts = vec![0];
            self.script.parts.push(Part { words, sure: true, wraps: true, starts, ..part });
            return;
        }
        let mut wild = part.wild;
        let names: Vec<Option<String>> = words.iter().map(Word::program_family).collect();
        let is = |at: usize, list: &str| names[at].as_deref().is_some_and(|name| listed(list, name));
        let is_git =
            |at: usize| is(at, "git") || names[at].as_deref().is_some_and(|name| name.starts_with("git-"));
        let is_any = |at: usize, lists: &[&str]| lists.iter().any(|list| is(at, list));
        let mut starts = vec![0];
        let mut is_start = vec![false; words.len()];
        let mut texts = Vec::new();
        // Every word at which a program may begin is examined, unless an earlier start covers it.
        let mut explored = usize::MAX;
        let mut explore = |mut from: usize| {
            if from > explored {
                return;
            }
            starts.push(from);
            let leads =
                |word: &Word| word.open.is_none() && listed(LEADS, &word.text) || is_assignment(&word.text);
            while leads(&words[from])
                && from + 1 < words.len()
                && !std::mem::replace(&mut is_start[from], true)
            {
                from += 1;
                starts.push(from);
            }
            // If the name of the program contains an expansion, it may be any of the listed names.
            let open = words[from].open.is_some();
            let by_subcommand = || {
                let program = names[from].as_deref().unwrap_or_default();
                let is_one = |list: &str, typed: &str| {
                    listed(list, typed)
                        || typed.len() > 1 && list.split(' ').any(|name| may_mean(program, typed, name, 0))
                };
                subcommands_of(program)
                    .is_some_and(|list| words[from + 1..].iter().any(|word| is_one(list, &word.text)))
            };
            if open || is_any(from, &RUNNERS) || is(from, SOURCERS) || by_subcommand() {
                explored = from;
                starts.extend(from + 1..words.len());
                let takes = |at: &usize| match &words[*at].open {
                    Some(_) => TAKERS.iter().any(|list| may_be_one_of(&words[*at], list)),
                    None => is_any(*at, &TAKERS),
                };
                if let Some(taker) = (from..words.len()).find(takes) {
                    texts.extend(inner_texts(&words[taker..]));
                    wild |= takes_unknown_text(&words[taker..], is(taker, SHELLS), is(taker, OTHER_SHELLS));
                }
                if let Some(caller) = (from..words.len()).find(|at| is(*at, CALLERS))
                    && words[caller + 1..].iter().any(calls_shell)
                {
                    texts.extend(inner_texts(&words[caller..]));
                    wild |= takes_unknown_text(&words[caller..], false, false);
                }
            }
        };
        for start in more.into_iter().filter(|start| *start < words.len()) {
            sure = false;
            explore(start);
        }
        // In `for name do`, a command follows the third word.
        if matches!(&words[..], [first, _, third, _, ..] if ["for", "select"].contains(&first.text.as_str()) && third.text == "do")
        {
            explore(3);
        }
        let finds = (assignments..words.len()).any(|at| is(at, FINDERS));
        let mut runs_git = false;
        if assignments < words.len() {
            explore(assignments);
            let lead = |at: &usize| listed(LEADS, &words[*at].text) || is_assignment(&words[*at].text);
            let first = (assignments..words.len()).find(|at| !lead(at)).unwrap_or(assignments);
            runs_git = is_git(first);
            let lists = [(finds, EXEC), (runs_git, GIT_EXEC)];
            let runs = |at: &usize| lists.iter().any(|(does, list)| *does && listed(list, &words[*at].text));
            (first + 1..words.len().saturating_sub(1)).filter(runs).for_each(|at| explore(at + 1));
            if runs_git {
                runner_starts(&words).for_each(&mut explore);
            }
        }
        starts.sort_unstable();
        starts.dedup();
        let pairs = starts.iter().map(|start| words.len().saturating_sub(*start)).sum::<usize>();
        self.script.lost |= starts.len() > MAX_PREFIXED_WORDS || starts.len() > 1 && pairs > self.behind_left;
        if self.script.lost {
            return;
        }
        self.behind_left -= if starts.len() > 1 { pairs } else { 0 };
        let fed = starts.iter().any(|at| *at < words.len() && is(*at, FEEDERS));
        let filled = fed || finds;
        runs_git |= starts.iter().any(|at| *at < words.len() && is_git(*at));
        if runs_git {
            texts.extend(git_texts(&words));
        }
        texts.extend(words.iter().filter_map(command_of).map(str::to_owned));
        wild |= fed && feeds_program(&words, &names);
        if filled {
            let place = placeholder(&words);
            let is_filled = |word: &Word| {
                is_filled_in(word) || place.as_ref().is_some_and(|place| word.text.contains(place))
            };
            let shells = starts.iter().any(|at| *at < words.len() && is_any(*at, &TAKERS));
            wild |= shells
                && words.iter().enumerate().any(|(at, word)| {
                    let text = is_filled_in(word) && at > 0 && words[at - 1].may_be_option();
                    text || word.text.len() > 2
                        && (word.text.contains("{}") || is_filled(word) && !is_filled_in(word))
                });
            starts.retain(|start| {
                words
                    .get(*start)
                    .is_none_or(|word| !is_filled(word) || is_filled_program(&words, *start, EXEC))
            });
            sure &= !words.iter().any(is_filled);
            let filled = words.iter_mut().filter(|word| is_filled(word));
            filled.for_each(|word| *word = Word::unknown(std::mem::take(&mut word.text)));
        }
        sure &= assignments == 0 && !fed && !wild && !is_keyword(&words);
        let core = transparent(&words);
        let mut mentions = part.mentions.clone();
        mention_code(&words, &starts, runs_git, &mut mentions);
        // Words of code beyond the limit count as unknown.
        if mentions.len() > self.mentions_left.min(MAX_MENTIONS) {
            wild = true;
            mentions.clear();
        }
        self.mentions_left -= mentions.len();
        self.script.parts.push(Part {
            words,
            sure,
            starts,
            fed,
            core,
            writes,
            reads,
            wild,
            mentions,
            literals,
            ..part
        });
        texts.sort_unstable();
        texts.dedup();
        for text in texts {
            self.script.plain = false;
            self.shell(&text, depth + 1);
        }
    }
}

impl Part {
    fn run_anything(&mut self) {
        self.wild = true;
        self.sure = false;
    }
}

/// Returns `true` if a shell, or a program that passes texts to a shell, gets a text that is partly unknown.
fn takes_unknown_text(words: &[Word], shell: bool, other: bool) -> bool {
    let quotes = |word: &Word| word.text.contains(['\'', '"', '`', '\\']);
    words.iter().enumerate().skip(1).any(|(at, word)| {
        let file = shell
            && word.splits.is_none()
            && words[1..at].iter().all(|word| word.open.is_none() && !word.is_option());
        let assigned = !shell && is_assignment(&word.text);
        word.open.is_some() && !word.is_unknown() && !file && !assigned
            || word.open.is_some() && shell && !file
            || other && quotes(word)
    })
}

fn subcommands_of(program: &str) -> Option<&'static str> {
    SUBCOMMAND_PREFIXES.iter().find(|(name, _)| *name == program).map(|(_, words)| *words)
}

/// Returns `true` for an option that makes a package runner pass a text to a shell: `-c`, `-yc`, `--call=…`.
fn calls_shell(word: &Word) -> bool {
    let name = word.text.split_once('=').map_or(word.text.as_str(), |(name, _)| name);
    let letters = word.text.strip_prefix('-').filter(|letters| !letters.starts_with('-'));
    listed(CALLS, name) || letters.is_some_and(|letters| letters.contains('c')) || word.is_unknown()
}

/// Returns `true` if the word is an unknown program that may be in the list.
pub(super) fn may_be_one_of(word: &Word, list: &str) -> bool {
    let text_pattern = base(&word.first());
    word.is_unknown() || list.split(' ').any(|name| text_pattern.meets(&TextPattern::exact(name), Case::Same))
}

/// Returns `true` if words that `xargs` or a similar program inserts may be a program, or a text for a shell.
fn feeds_program(words: &[Word], names: &[Option<String>]) -> bool {
    let is = |at: usize, list: &str| names[at].as_deref().is_some_and(|name| listed(list, name));
    if (0..words.len()).any(|at| is(at, SHELLS) || is(at, OTHER_SHELLS) || is(at, "eval")) {
        return true;
    }
    (0..words.len()).any(|at| RUNNERS.iter().any(|list| is(at, list)) && !is(at, FEEDERS))
}

/// Returns the placeholder that an option sets for inserted words.
fn placeholder(words: &[Word]) -> Option<String> {
    let after = |word: &&Word| word.text == "-I" || word.text == "-J" || word.text == "--replace";
    let next = words
        .iter()
        .position(|word| after(&word))
        .and_then(|at| words.get(at + 1))
        .map(|word| word.text.clone());
    let glued = words.iter().find_map(|word| {
        let text = &word.text;
        text.strip_prefix("--replace=")
            .or_else(|| text.strip_prefix("-I"))
            .or_else(|| text.strip_prefix("-J"))
            .map(str::to_owned)
    });
    next.or(glued).filter(|place| !place.is_empty())
}

pub(super) fn assigned(word: &Word) -> Option<(&str, &str)> {
    let (name, value) = word.text.split_once('=').filter(|_| is_assignment(&word.text))?;
    Some((name.strip_suffix('+').unwrap_or(name), value))
}

/// Returns the value of an assignment to a variable that contains a command. Options, and the text for a
/// shell, are not included: both are read elsewhere.
fn command_of(word: &Word) -> Option<&str> {
    let (name, value) = assigned(word).filter(|(name, _)| listed(COMMAND_VARIABLES, name))?;
    let plain = value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_./+-".contains(&byte));
    let other = value.is_empty() || value.starts_with('-') || name == "SHELL" && plain;
    (!other).then_some(value)
}

/// Returns `true` if another program inserts text into this word.
fn is_filled_in(word: &Word) -> bool {
    word.text == "{}" || word.text.starts_with(":::")
}

fn whole_script(words: &[Word]) -> Option<&str> {
    let [shell, option, script] = words else { return None };
    let name = shell.program()?;
    let usual = shell.text == name || shell.text.starts_with("/bin/") || shell.text.starts_with("/usr/bin/");
    let letters = option.text.strip_prefix('-')?;
    let harmless = letters.contains('c') && letters.chars().all(|letter| "clexu".contains(letter));
    (listed(SHELLS, &name) && usual && harmless && script.open.is_none() && !script.text.trim().is_empty())
        .then_some(&script.text)
}

/// Returns the texts after a prefix that a shell may read: each word with a blank or punctuation, and all
/// words joined.
fn inner_texts(words: &[Word]) -> Vec<String> {
    let mut texts = Vec::new();
    for word in words.iter().skip(1) {
        let text = word.text.as_str();
        // The text may be the value of an option: `--option=text`, or `-Stext` and `-ctext`, even as a single
        // word.
        let long = text.strip_prefix("--").and_then(|rest| rest.split_once('=')).map(|(_, text)| text);
        let glued = text.strip_prefix("-S").or_else(|| text.strip_prefix("-c"));
        texts.extend(long.into_iter().chain(glued).filter(|text| !text.is_empty()).map(str::to_owned));
        let signs = match word.open {
            // The values of expansions are unknown, so only the literal text of the word counts.
            Some(_) => text.contains([' ', '\t', '\n', ';', '&', '|', '<', '>', '(']),
            None => text.contains(|letter: char| !letter.is_alphanumeric() && !"_-./:@%+,".contains(letter)),
        };
        if signs {
            texts.push(text.to_owned());
            let short = text.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
            texts.extend(short.and_then(|rest| rest.get(1..)).map(str::to_owned));
        }
    }
    if words
        .iter()
        .any(|word| matches!(word.program_family().as_deref(), Some("eval" | "cmd" | "powershell" | "pwsh")))
    {
        let all: Vec<&str> = words.iter().skip(1).map(|word| word.text.as_str()).collect();
        texts.push(all.join(" "));
    }
    texts
}

fn is_keyword(words: &[Word]) -> bool {
    const KEYWORDS: &str = "\
    ! case coproc do done elif else esac fi for function if in select then until while { } [[ ]] alias \
    unalias eval source . trap hash enable let declare typeset local export readonly read mapfile readarray unset set shopt";
    words.first().is_some_and(|word| listed(KEYWORDS, &word.text))
}

/// Returns the number of leading words that do not change the effect of the words after them: `timeout 5`,
/// `nice`, `time`, `command`.
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

/// Adds to every part the directories that a `cd` before it may have entered. Returns `false` if there are
/// too many.
fn follow_directories(parts: &mut [Part]) -> bool {
    let mut after: Vec<Word> = Vec::new();
    for part in parts {
        if after.len() > MAX_DIRECTORY_CHANGES {
            return false;
        }
        part.after.clone_from(&after);
        // A `cd` after `command`, `builtin` or assignments also counts.
        let changes = |at: &&usize| {
            let name = part.words.get(**at).and_then(Word::program);
            name.is_some_and(|name| matches!(name.as_str(), "cd" | "pushd" | "chdir"))
        };
        let goes_to = |at: &usize| part.words.iter().skip(at + 1).find(|word| !word.is_option());
        after.extend(
            part.starts.iter().filter(changes).filter_map(goes_to).take(MAX_DIRECTORY_CHANGES + 1).cloned(),
        );
    }
    after.len() <= MAX_DIRECTORY_CHANGES
}
