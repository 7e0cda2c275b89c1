//! Parses commands into all programs that run, with their words, as far as they are known.
//!
//! Two ways of matching exist. Rules that permit need certainty: exactly these words. Rules that forbid match
//! whatever is possible: a program after `sudo` or in `sh -c`, options between the words, and words that only
//! the shell can expand.

mod code;
mod code_files;
mod evaluate;
mod git_commands;
mod git_files;
mod lexer;
mod literals;
mod network;
mod pattern;
mod pattern_words;
mod programs;
mod read_only;
mod reduce;
mod strict;
mod subcommands;
mod unknown_code;
mod variables;

pub(crate) use git_files::git_files;
pub(crate) use network::uses_network;
pub(crate) use pattern::CommandPattern;
pub(crate) use pattern_words::split;
pub(crate) use read_only::{
    Depth, Descent, Search, changed_below, depends_on_directory, descent, is_read_only, leaves_files, looks,
    search,
};
pub(crate) use reduce::{listed, read, read_variable};
pub(crate) use variables::{is_git_home, runs_git};

use std::collections::HashMap;

use crate::action::{Command, WordLink};
use crate::text_pattern::{PatternUnit, TextPattern};
use lexer::Input;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Word {
    /// Text of the word. If a shell expands the word, its source text.
    pub(crate) text: String,
    /// The known parts of the word, if a shell expands it.
    pub(crate) open: Option<TextPattern>,
    /// Number of units of `open` before the position at which the shell may split the word. `None` if the
    /// word is not split.
    pub(crate) splits: Option<usize>,
    /// Source texts of the expansions in the word.
    pub(crate) holes: Vec<String>,
    /// Alternatives of the word in which expansions have the value of their operand: `${x:-y}` may be `y`.
    pub(crate) others: Vec<TextPattern>,
}

impl Word {
    pub(crate) fn known(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    pub(crate) fn unknown(text: impl Into<String>) -> Self {
        Self { text: text.into(), open: Some(TextPattern(vec![PatternUnit::Many])), ..Self::default() }
    }

    pub(crate) fn text_pattern(&self) -> TextPattern {
        self.open.clone().unwrap_or_else(|| TextPattern::exact(&self.text))
    }

    /// Returns patterns of all possible values of the word, including the operands of its expansions.
    pub(crate) fn text_patterns(&self) -> impl Iterator<Item = TextPattern> {
        std::iter::once(self.text_pattern()).chain(self.others.iter().cloned())
    }

    pub(crate) fn from_text_pattern(text_pattern: TextPattern) -> Self {
        let text = text_pattern.0.iter().map(|unit| match unit {
            PatternUnit::Char(letter) => *letter,
            PatternUnit::One | PatternUnit::Many => '*',
        });
        Self {
            text: text.collect(),
            open: text_pattern.text().is_none().then_some(text_pattern),
            ..Self::default()
        }
    }

    /// Returns the pattern of the first word if the shell splits the word, otherwise of the whole word.
    pub(crate) fn first(&self) -> TextPattern {
        let mut text_pattern = self.text_pattern();
        if let Some(length) = self.splits {
            text_pattern.0.truncate(length);
            text_pattern.0.push(PatternUnit::Many);
        }
        text_pattern
    }

    pub(crate) fn is_unknown(&self) -> bool {
        self.open.is_some() && self.first().is_unknown()
    }

    /// Returns `true` if the word contains a variable or the output of a command. A pattern for names of
    /// existing files does not count.
    pub(crate) fn is_expanded(&self) -> bool {
        self.holes.iter().any(|hole| !matches!(hole.as_str(), "*" | "?") && !hole.starts_with('['))
    }

    fn holds_output(&self) -> bool {
        self.holes.iter().any(|hole| hole.contains("$(") || hole.contains('`'))
    }

    fn holds_last_argument(&self) -> bool {
        self.holes.iter().any(|hole| hole == "$_")
    }

    pub(crate) fn is_option(&self) -> bool {
        self.text.len() > 1 && self.text.starts_with('-')
    }

    pub(crate) fn may_be_option(&self) -> bool {
        let unknown = |text_pattern: TextPattern| !matches!(text_pattern.0.first(), Some(PatternUnit::Char(letter)) if *letter != '-');
        self.is_option() || self.open.is_some() && unknown(self.first())
    }

    /// Returns the name of the program that the word starts, without a directory and in lower case. `None` if
    /// the name is unknown.
    pub(crate) fn program(&self) -> Option<String> {
        if self.open.is_some() {
            return None;
        }
        let name = self.text.rsplit(['/', '\\']).next().unwrap_or_default().to_lowercase();
        Some(name.strip_suffix(".exe").map_or_else(|| name.clone(), str::to_owned))
    }

    /// Returns the listed name of a program that runs other programs if this word is a version or a build of
    /// that program, otherwise the name of the program.
    fn program_family(&self) -> Option<String> {
        let name = self.program()?;
        Some(programs::family(&name).map_or(name, str::to_owned))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Part {
    /// The program and its arguments, including leading assignments.
    pub(crate) words: Vec<Word>,
    /// `true` if exactly these words are run.
    pub(crate) sure: bool,
    /// `true` for a shell that only runs the parts after this one.
    pub(crate) wraps: bool,
    /// Indexes of words at which a program may begin.
    pub(crate) starts: Vec<usize>,
    /// `true` if another program, such as `xargs`, inserts further words at unknown positions.
    pub(crate) fed: bool,
    /// Index of the first word after prefixes that do not change the effect of the command.
    pub(crate) core: usize,
    pub(crate) writes: Vec<Word>,
    pub(crate) reads: Vec<Word>,
    /// Directories that a `cd` before this part may have entered.
    pub(crate) after: Vec<Word>,
    /// `true` if the part may run anything: an unknown text is evaluated, or shells read the text
    /// differently.
    pub(crate) wild: bool,
    /// `true` if a shell runs the part, so that its first word may be a builtin.
    pub(crate) in_shell: bool,
    input: Input,
    /// Words of code for another interpreter. Each of them may name a program.
    pub(crate) mentions: Vec<Word>,
    /// Words that the command may receive indirectly, from an array or a here-document.
    pub(crate) literals: Vec<Literal>,
}

/// A literal text from an array or a here-document, which may become a word of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Literal {
    pub(crate) word: Word,
    /// `true` if the text is code, in which any punctuation may separate paths.
    pub(crate) is_code: bool,
}

impl Part {
    /// Returns the words after all prefixes that do not change the effect of the command.
    pub(crate) fn argv(&self) -> &[Word] {
        self.words.get(self.core..).unwrap_or_default()
    }

    fn all_words(&self) -> impl Iterator<Item = &Word> {
        let literals = self.literals.iter().map(|literal| &literal.word);
        self.words.iter().chain(&self.reads).chain(&self.writes).chain(literals)
    }

    /// Returns `true` if exactly these words are run, and the part cannot run anything else.
    pub(crate) fn knows_its_words(&self) -> bool {
        let redirected = !self.writes.is_empty() || !self.reads.is_empty();
        !self.wild && (self.sure || redirected && self.words.iter().all(|word| word.open.is_none()))
    }

    /// Returns `true` if the word at this index may be a path. A program name without a directory is looked
    /// up in `PATH` and is no path.
    fn may_be_file(&self, at: usize, word: &Word) -> bool {
        word.text.contains('/') || !word.is_option() && self.starts.binary_search(&at).is_err()
    }

    /// Returns the names of all programs that the part may run. For a version or build of a listed program,
    /// also returns the listed name.
    pub(crate) fn programs(&self) -> impl Iterator<Item = String> {
        self.starts.iter().filter_map(|start| self.words.get(*start)).flat_map(|word| {
            let name = word.program();
            let family = word.program_family().filter(|family| name.as_ref() != Some(family));
            name.into_iter().chain(family)
        })
    }

    pub(crate) fn line(&self) -> String {
        let words: Vec<&str> = self.words.iter().map(|word| word.text.as_str()).collect();
        words.join(" ")
    }
}

/// Which words of a command are replaced by their link targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Linked {
    /// Programs only. Programs in system directories keep their names, which are trusted.
    Programs,
    Words,
}

/// Returns `true` if a program is in a directory whose programs are known by their names.
pub(crate) fn is_system_program(text: &str) -> bool {
    SYSTEM_DIRECTORIES.iter().any(|directory| text.starts_with(directory) && !text.contains("/../"))
}

const SYSTEM_DIRECTORIES: [&str; 2] = ["/bin/", "/usr/bin/"];

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Script {
    /// All parts of the command, including those in substitutions.
    pub(crate) parts: Vec<Part>,
    /// `true` if the command is one program with arguments, without other shell syntax.
    pub(crate) plain: bool,
    /// `true` if parsing was abandoned, so that `parts` may not be complete.
    pub(crate) lost: bool,
}

impl Script {
    pub(crate) fn shell_text<'a>(&'a self, command: &'a Command) -> Option<&'a str> {
        match command {
            Command::Shell(text) => Some(text),
            // The outermost shell reads the whole text, and an inner shell only a part of it.
            Command::Argv(argv) => {
                let is_whole = |part: &&Part| part.wraps && part.words.iter().map(|word| &word.text).eq(argv);
                let shell = self.parts.iter().find(is_whole).filter(|part| part.words.len() == 3)?;
                Some(&shell.words[2].text)
            }
            Command::Unknown(_) => None,
        }
    }

    /// Returns `true` if the output of one program may become a word of another.
    pub(crate) fn uses_output(&self) -> bool {
        let is_output = |word: &Word| word.holds_output() || word.holds_last_argument();
        let is_fed = |part: &Part| part.fed || part.all_words().any(is_output);
        self.parts.iter().any(is_fed)
    }

    /// Returns the words that may name files: programs with a directory, arguments, redirected files.
    pub(crate) fn file_words(&self) -> impl Iterator<Item = &str> {
        let words = self.parts.iter().flat_map(|part| {
            let own = part.words.iter().enumerate().filter(|(at, word)| part.may_be_file(*at, word));
            own.map(|(_, word)| word).chain(&part.writes).chain(&part.reads)
        });
        words.filter(|word| word.open.is_none() && !word.text.is_empty()).map(|word| word.text.as_str())
    }

    /// Replaces words of this kind by their link targets. Returns `None` if the script contains no such word.
    pub(crate) fn with_links(&self, links: &[WordLink], linked: Linked) -> Option<Self> {
        let mut script = self.clone();
        let mut is_changed = false;
        // If a word has several targets, the first one counts.
        let real: HashMap<&str, &str> =
            links.iter().rev().map(|link| (link.written.as_str(), link.real.as_str())).collect();
        let mut replace = |word: &mut Word| {
            if let Some(real) = real.get(word.text.as_str()).filter(|_| word.open.is_none()) {
                (*real).clone_into(&mut word.text);
                is_changed = true;
            }
        };
        for part in &mut script.parts {
            let (starts, files): (Vec<usize>, Vec<bool>) = (
                part.starts.clone(),
                part.words.iter().enumerate().map(|(at, word)| part.may_be_file(at, word)).collect(),
            );
            for (at, word) in part.words.iter_mut().enumerate().filter(|(at, _)| files[*at]) {
                match linked {
                    Linked::Programs
                        if starts.binary_search(&at).is_err() || is_system_program(&word.text) => {}
                    Linked::Programs | Linked::Words => replace(word),
                }
            }
            if linked == Linked::Words {
                part.writes.iter_mut().chain(&mut part.reads).for_each(&mut replace);
            }
        }
        is_changed.then_some(script)
    }

    /// Returns the words of the script if it is a single program whose words no shell changes.
    pub(crate) fn plain_words(&self) -> Option<Vec<&str>> {
        let mut parts = self.parts.iter().filter(|part| !part.wraps);
        let (Some(part), None) = (parts.next(), parts.next()) else { return None };
        let known = part.words.iter().all(|word| word.open.is_none());
        let alone = part.writes.is_empty() && part.reads.is_empty();
        (self.plain && !self.lost && part.sure && known && alone)
            .then(|| part.words.iter().map(|word| word.text.as_str()).collect())
    }
}

#[cfg(test)]
mod tests;
