//! Patterns for commands, and the two ways to match them.

use std::cell::OnceCell;

use super::subcommands::may_mean;
use super::{Part, Word};
use crate::text_pattern::{Case, PatternUnit, TextPattern};

/// Directories whose programs are known by their names.
const TRUSTED: [&str; 7] = [
    "/bin/",
    "/usr/bin/",
    "/usr/local/bin/",
    "/sbin/",
    "/usr/sbin/",
    "/opt/homebrew/bin/",
    "/opt/local/bin/",
];

/// Maximum number of words after a program that are examined if all of them may be options and their values.
const MAX_NAME_DISTANCE: usize = 256;

/// The words of a part, in which a pattern is searched from several starts.
struct Line<'a> {
    words: &'a [Word],
    /// Result of [`CommandPattern::last_option`], computed once for all starts.
    last_option: OnceCell<Option<usize>>,
}

impl<'a> Line<'a> {
    fn new(words: &'a [Word]) -> Self {
        Self { words, last_option: OnceCell::new() }
    }
}

/// A command in a rule: words in which `*` stands for any text. `**` at the end stands for any further words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommandPattern {
    words: Vec<TextPattern>,
    texts: Vec<String>,
    open_end: bool,
}

impl CommandPattern {
    pub(crate) fn new(mut words: Vec<String>) -> Result<Self, &'static str> {
        let open_end = words.last().is_some_and(|word| word == "**");
        if open_end {
            words.pop();
        }
        if words.is_empty() {
            return Err("a command pattern needs a program");
        }
        if words.iter().any(|word| word == "**") {
            return Err("`**` can only be the last word");
        }
        Ok(Self {
            words: words.iter().map(|word| TextPattern::glob(word, false)).collect(),
            texts: words,
            open_end,
        })
    }

    /// Returns `true` if the part is certainly this command: all its words match, or only the first ones if
    /// `begins` is set.
    pub(crate) fn covers(&self, part: &Part, begins: bool) -> bool {
        let fits = |argv: &[Word]| {
            let enough = if self.open_end || begins {
                argv.len() >= self.words.len()
            } else {
                argv.len() == self.words.len()
            };
            let Some((program, rest)) = argv.split_first() else { return false };
            enough
                && self.is_program(program)
                && rest.iter().zip(&self.words[1..]).all(|(word, pattern)| is_word(word, pattern))
        };
        part.sure && !part.wild && (fits(&part.words) || fits(part.argv()))
    }

    /// Returns `true` if `word` certainly runs the program of this pattern. A program with the same name in
    /// another directory does not count.
    fn is_program(&self, word: &Word) -> bool {
        let name = TRUSTED
            .iter()
            .find_map(|directory| word.text.strip_prefix(directory))
            .filter(|name| !self.texts[0].contains('/') && !name.contains('/'))
            .unwrap_or(&word.text);
        // A `*` in a pattern of a program name does not match a slash.
        (!name.contains('/') || self.texts[0].contains('/')) && is_word(&Word::known(name), &self.words[0])
    }

    /// Returns `true` if the part may be this command. Further words, options between the words, and programs
    /// around the command do not matter.
    pub(crate) fn touches(&self, part: &Part) -> bool {
        if part.wild {
            return true;
        }
        let names = self.names();
        let mentioned = Line::new(&part.mentions);
        if (0..part.mentions.len()).any(|at| self.may_start(&mentioned, at, &names)) {
            return true;
        }
        let line = Line::new(&part.words);
        part.starts.iter().any(|start| match part.words.get(*start) {
            Some(program) if part.fed => {
                program.is_unknown()
                    || self.may_be_program(program)
                    || self.may_be_joined(program, names.first())
            }
            _ => self.may_start(&line, *start, &names),
        })
    }

    /// Returns `true` if the words from index `start` on may be this command. `names` contains the indexes of
    /// words in the pattern that are not options.
    fn may_start(&self, line: &Line<'_>, start: usize, names: &[usize]) -> bool {
        let Some((program, rest)) = line.words.get(start..).and_then(<[Word]>::split_first) else {
            return false;
        };
        if program.is_unknown() {
            return true;
        }
        let is_program = self.may_be_program(program);
        if program.splits.is_some() && is_program {
            return true;
        }
        let has_options = || {
            // `last` is the last index from which on all options of the pattern are found, so they follow
            // every earlier start.
            let last = *line.last_option.get_or_init(|| self.last_option(line.words));
            last.is_none_or(|last| start < last)
        };
        let behind = names.get(1..).unwrap_or_default();
        is_program && self.may_have_names(rest, names) && has_options()
            || self.may_be_joined(program, names.first())
                && self.may_have_names(rest, behind)
                && has_options()
    }

    /// Returns the indexes of the pattern's words other than the program and options.
    fn names(&self) -> Vec<usize> {
        (1..self.words.len()).filter(|at| !self.is_option(*at)).collect()
    }

    fn is_option(&self, at: usize) -> bool {
        self.texts[at].len() > 1 && self.texts[at].starts_with('-')
    }

    /// Returns `true` if the program accepts `typed` instead of the word at index `at`, which is the
    /// subcommand with the number `position`.
    fn has_other_name(&self, at: usize, position: usize, typed: &str) -> bool {
        let program = self.texts[0].rsplit('/').next().unwrap_or_default();
        may_mean(&program.to_ascii_lowercase(), typed, &self.texts[at], position)
    }

    fn may_be_program(&self, program: &Word) -> bool {
        base(&self.words[0]).meets(&run(program), Case::Same)
    }

    /// Returns `true` if the program may be the pattern's program joined with the next word, such as
    /// `git-push`. For git this is known. For other programs it is assumed if a program has this name.
    fn may_be_joined(&self, program: &Word, name: Option<&usize>) -> bool {
        let mut joined = base(&self.words[0]);
        let git = joined.text().is_some_and(|text| text.eq_ignore_ascii_case("git"));
        joined.0.push(PatternUnit::Char('-'));
        match name {
            Some(at) => joined.0.extend(self.words[*at].0.iter().copied()),
            None if git => joined.0.push(PatternUnit::Many),
            None => return false,
        }
        joined.meets(&run(program), Case::Same)
    }

    /// Returns the last index from which on all options of this pattern are found. `None` if an option is
    /// missing.
    fn last_option(&self, words: &[Word]) -> Option<usize> {
        let options = (1..self.words.len()).filter(|at| self.is_option(*at));
        options.map(|at| self.last_of_option(words, at).unwrap_or(0)).min()
    }

    /// Returns the index of the last of `words` that may be the option at index `at` of this pattern. The
    /// option may be abbreviated, have a value, or be one of several letters.
    fn last_of_option(&self, words: &[Word], at: usize) -> Option<usize> {
        let (wanted, pattern) = (&self.texts[at], &self.words[at]);
        let short: Option<Vec<char>> = wanted
            .strip_prefix('-')
            .filter(|letters| letters.len() <= 3 && letters.chars().all(char::is_alphanumeric))
            .map(|letters| letters.chars().collect());
        let last_letter = |letter: &char| {
            words.iter().rposition(|word| {
                word.open.is_some() && word.may_be_option()
                    || word.text.starts_with('-')
                        && !word.text.starts_with("--")
                        && word.text.contains(*letter)
            })
        };
        let is_option = |word: &Word| {
            let name = word.text.split_once('=').map_or(word.text.as_str(), |(name, _)| name);
            word.is_unknown()
                || pattern.meets(&word.first(), Case::Different)
                || pattern.meets(&TextPattern::exact(name), Case::Different)
                || name.len() > 3 && name.starts_with("--") && wanted.starts_with(name)
        };
        // The option letters may be in several words. The smallest of their last indexes is the last index
        // from which on all of them are found.
        let letters = short.and_then(|letters| letters.iter().map(last_letter).min().flatten());
        words.iter().rposition(is_option).max(letters)
    }

    /// Returns `true` if the words with the indexes `names` may occur in `rest` in this order, with only
    /// options and their values between them.
    fn may_have_names(&self, rest: &[Word], names: &[usize]) -> bool {
        // `found[n]` is `true` if the first `n` names may have been found up to the current word.
        let mut found = vec![false; names.len() + 1];
        found[0] = true;
        for (at, word) in rest.iter().enumerate() {
            if word.is_unknown() {
                return found.contains(&true);
            }
            if !found.contains(&true) {
                return false;
            }
            // Words at a greater distance are not examined, and count as possible matches.
            if at > MAX_NAME_DISTANCE || found[names.len()] {
                return true;
            }
            let skips = word.may_be_option()
                || at > 0 && rest[at - 1].may_be_option() && !rest[at - 1].text.contains('=');
            let text_pattern = word.first();
            for count in (0..names.len()).rev() {
                let is_name = || {
                    self.words[names[count]].meets(&text_pattern, Case::Different)
                        || word.open.is_none() && self.has_other_name(names[count], count, &word.text)
                };
                if found[count] && is_name() {
                    found[count + 1] = true;
                }
                found[count] &= skips;
            }
            // The shell may split the word. Then only its first part would have to match.
            if word.splits.is_some() && found.contains(&true) {
                return true;
            }
        }
        found[names.len()]
    }
}

pub(super) fn base(program: &TextPattern) -> TextPattern {
    let slash = |unit: &PatternUnit| matches!(unit, PatternUnit::Char('/' | '\\'));
    let from = program.0.iter().rposition(slash).map_or(0, |at| at + 1);
    TextPattern(program.0[from..].to_vec())
}

fn run(word: &Word) -> TextPattern {
    word.program().map_or_else(|| base(&word.first()), |name| TextPattern::exact(&name))
}

/// Returns `true` if `word` certainly matches the pattern. A `*` at the beginning does not match an option.
fn is_word(word: &Word, pattern: &TextPattern) -> bool {
    let sneaks = pattern.0.first() == Some(&PatternUnit::Many) && word.text.starts_with('-');
    word.open.is_none() && !sneaks && pattern.meets(&TextPattern::exact(&word.text), Case::Different)
}
