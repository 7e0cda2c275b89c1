//! Patterns for commands, and the two ways to match them.

use std::cell::OnceCell;

use super::subcommands::may_mean;
use super::{Part, Word};
use crate::text_pattern::{Case, PatternUnit, TextPattern};

/// Directories whose program names are trusted.
const TRUSTED: [&str; 7] = [
    "/bin/",
    "/usr/bin/",
    "/usr/local/bin/",
    "/sbin/",
    "/usr/sbin/",
    "/opt/homebrew/bin/",
    "/opt/local/bin/",
];

/// Maximum number of words that are examined after a program if all of them may be options and their
/// values.
const MAX_NAME_DISTANCE: usize = 256;

/// Words in which a command is searched from several starts.
struct Line<'a> {
    words: &'a [Word],
    /// See [`CommandPattern::last_option`]. Computed once for all starts.
    last_option: OnceCell<Option<usize>>,
}

impl<'a> Line<'a> {
    fn new(words: &'a [Word]) -> Self {
        Self { words, last_option: OnceCell::new() }
    }
}

/// Words with `*` in them; `**` at the end matches any further words.
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

    /// Returns `true` if the part is certainly this command: all its words match, or the first of them if
    /// `begins`.
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

    /// Returns `true` if `word` runs the program of this pattern, and not a program of the same name in
    /// another directory.
    fn is_program(&self, word: &Word) -> bool {
        let name = TRUSTED
            .iter()
            .find_map(|directory| word.text.strip_prefix(directory))
            .filter(|name| !self.texts[0].contains('/') && !name.contains('/'))
            .unwrap_or(&word.text);
        // A `*` in a program name does not match a slash.
        (!name.contains('/') || self.texts[0].contains('/')) && is_word(&Word::known(name), &self.words[0])
    }

    /// Returns `true` if the part may be this command. There may be further words, options between its
    /// words, and programs around it.
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

    /// Returns `true` if the words from `start` on may begin as this command. `names` are the indexes of
    /// the pattern's names.
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
            // For every start before the last word from which all options are found, all options follow.
            let last = *line.last_option.get_or_init(|| self.last_option(line.words));
            last.is_none_or(|last| start < last)
        };
        let behind = names.get(1..).unwrap_or_default();
        is_program && self.may_have_names(rest, names) && has_options()
            || self.may_be_joined(program, names.first())
                && self.may_have_names(rest, behind)
                && has_options()
    }

    /// Returns the indexes of the pattern's words that are neither the program nor options.
    fn names(&self) -> Vec<usize> {
        (1..self.words.len()).filter(|at| !self.is_option(*at)).collect()
    }

    fn is_option(&self, at: usize) -> bool {
        self.texts[at].len() > 1 && self.texts[at].starts_with('-')
    }

    /// Returns `true` if the program accepts `typed` for the word at `at`, which is the name at `position`.
    fn has_other_name(&self, at: usize, position: usize, typed: &str) -> bool {
        let program = self.texts[0].rsplit('/').next().unwrap_or_default();
        may_mean(&program.to_ascii_lowercase(), typed, &self.texts[at], position)
    }

    fn may_be_program(&self, program: &Word) -> bool {
        base(&self.words[0]).meets(&run(program), Case::Same)
    }

    /// Returns `true` if the program may be this pattern's program joined with the following word, as in
    /// `git-push`. For git this is known; for other programs it is assumed if one has this name.
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

    /// Returns the last index from which all options of this pattern are found. `None` if they are not
    /// found.
    fn last_option(&self, words: &[Word]) -> Option<usize> {
        let options = (1..self.words.len()).filter(|at| self.is_option(*at));
        options.map(|at| self.last_of_option(words, at).unwrap_or(0)).min()
    }

    /// Returns the last of `words` that may be the option of this pattern. The option may be abbreviated,
    /// have a value, or be among others.
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
        // The letters may be in several words, so the first missing one decides.
        let letters = short.and_then(|letters| letters.iter().map(last_letter).min().flatten());
        words.iter().rposition(is_option).max(letters)
    }

    /// Returns `true` if the other words may occur in this order, with only options and their values
    /// between them.
    fn may_have_names(&self, rest: &[Word], names: &[usize]) -> bool {
        // `found[n]` is `true` if the first n names may have been found so far.
        let mut found = vec![false; names.len() + 1];
        found[0] = true;
        for (at, word) in rest.iter().enumerate() {
            if word.is_unknown() {
                return found.contains(&true);
            }
            if !found.contains(&true) {
                return false;
            }
            // Words further away are not examined for each start, so they count as possible matches.
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
            // The word may be split into several, of which only the first matches.
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

/// Returns `true` if `word` certainly matches the pattern. A leading `*` does not match an option.
fn is_word(word: &Word, pattern: &TextPattern) -> bool {
    let sneaks = pattern.0.first() == Some(&PatternUnit::Many) && word.text.starts_with('-');
    word.open.is_none() && !sneaks && pattern.meets(&TextPattern::exact(&word.text), Case::Different)
}
