//! Commands taken apart: every program that runs, with its words, as far as they can be seen.
//!
//! There are two ways to match them. What permits wants certainty: the words as they are, all of them. What forbids
//! wants a possibility: behind `sudo`, in `sh -c`, with options between the words, with words that only the shell will
//! know.

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

/// One word.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Word {
    /// As it is, or as it was written if a shell makes something else of it.
    pub(crate) text: String,
    /// What can be known of it, if that is not all.
    pub(crate) open: Option<TextPattern>,
    /// How much of `open` there is before the shell may break it into several words.
    pub(crate) splits: Option<usize>,
    /// What a shell puts in, as it was written.
    pub(crate) holes: Vec<String>,
    /// What it may be with the operands of its expansions: `${x:-y}` may be `y`.
    pub(crate) others: Vec<TextPattern>,
}

impl Word {
    /// A word that is known.
    pub(crate) fn known(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// A word of which nothing is known.
    pub(crate) fn unknown(text: impl Into<String>) -> Self {
        Self { text: text.into(), open: Some(TextPattern(vec![PatternUnit::Many])), ..Self::default() }
    }

    /// What it can be.
    pub(crate) fn text_pattern(&self) -> TextPattern {
        self.open.clone().unwrap_or_else(|| TextPattern::exact(&self.text))
    }

    /// Everything it can be: as it is written, and with the operands of its expansions.
    pub(crate) fn text_patterns(&self) -> impl Iterator<Item = TextPattern> {
        std::iter::once(self.text_pattern()).chain(self.others.iter().cloned())
    }

    /// A word that can be this.
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

    /// What it, or the first word that it becomes, can be.
    pub(crate) fn first(&self) -> TextPattern {
        let mut text_pattern = self.text_pattern();
        if let Some(length) = self.splits {
            text_pattern.0.truncate(length);
            text_pattern.0.push(PatternUnit::Many);
        }
        text_pattern
    }

    /// Whether it can be anything.
    pub(crate) fn is_unknown(&self) -> bool {
        self.open.is_some() && self.first().is_unknown()
    }

    /// Returns `true` if a shell puts a variable or what a command prints into it, and not only names that are there.
    pub(crate) fn is_expanded(&self) -> bool {
        self.holes.iter().any(|hole| !matches!(hole.as_str(), "*" | "?") && !hole.starts_with('['))
    }

    /// Returns `true` if a shell puts what a command prints into it.
    fn holds_output(&self) -> bool {
        self.holes.iter().any(|hole| hole.contains("$(") || hole.contains('`'))
    }

    /// Returns `true` if a shell puts the last word of the command before it into it.
    fn holds_last_argument(&self) -> bool {
        self.holes.iter().any(|hole| hole == "$_")
    }

    /// Whether it looks like an option.
    pub(crate) fn is_option(&self) -> bool {
        self.text.len() > 1 && self.text.starts_with('-')
    }

    /// Whether it can be an option.
    pub(crate) fn may_be_option(&self) -> bool {
        let unknown = |text_pattern: TextPattern| !matches!(text_pattern.0.first(), Some(PatternUnit::Char(letter)) if *letter != '-');
        self.is_option() || self.open.is_some() && unknown(self.first())
    }

    /// The name of the program it is, without its directory, in small letters, if it is known.
    pub(crate) fn program(&self) -> Option<String> {
        if self.open.is_some() {
            return None;
        }
        let name = self.text.rsplit(['/', '\\']).next().unwrap_or_default().to_lowercase();
        Some(name.strip_suffix(".exe").map_or_else(|| name.clone(), str::to_owned))
    }

    /// The same, and for a version or a build of a program that runs others the name of that program.
    fn program_family(&self) -> Option<String> {
        let name = self.program()?;
        Some(programs::family(&name).map_or(name, str::to_owned))
    }
}

/// One program that runs, with what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Part {
    /// The program and its arguments; leading assignments included.
    pub(crate) words: Vec<Word>,
    /// Whether the words are exactly what will run.
    pub(crate) sure: bool,
    /// Whether it is a shell that does nothing but run the parts behind it.
    pub(crate) wraps: bool,
    /// Where a program may start: at each of these words.
    pub(crate) starts: Vec<usize>,
    /// Whether another program gives it further words, and nobody knows where.
    pub(crate) fed: bool,
    /// Where the words that count start: behind prefixes that change nothing.
    pub(crate) core: usize,
    /// Files that its redirections write.
    pub(crate) writes: Vec<Word>,
    /// Files that its redirections read.
    pub(crate) reads: Vec<Word>,
    /// Directories that `cd` may have gone to before it.
    pub(crate) after: Vec<Word>,
    /// Whether it may run anything at all: a text is evaluated that nobody can know, or that shells read differently.
    pub(crate) wild: bool,
    /// Whether a shell runs it, so that the first word may be a builtin.
    pub(crate) in_shell: bool,
    /// Where its standard input is from.
    input: Input,
    /// Words in code for another interpreter, each of which may be a program.
    pub(crate) mentions: Vec<Word>,
    /// Words that a command may be given though they stand elsewhere: values of arrays, what is read from a document.
    pub(crate) literals: Vec<Literal>,
}

/// A text that is written out and may become a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Literal {
    pub(crate) word: Word,
    /// Whether it is code, in which paths may stand between any signs.
    pub(crate) is_code: bool,
}

impl Part {
    /// The words that count.
    pub(crate) fn argv(&self) -> &[Word] {
        self.words.get(self.core..).unwrap_or_default()
    }

    /// Its words, those that are given elsewhere, and the files of its redirections.
    fn all_words(&self) -> impl Iterator<Item = &Word> {
        let literals = self.literals.iter().map(|literal| &literal.word);
        self.words.iter().chain(&self.reads).chain(&self.writes).chain(literals)
    }

    /// Whether its words are what will run, whatever else is done to it.
    pub(crate) fn knows_its_words(&self) -> bool {
        let redirected = !self.writes.is_empty() || !self.reads.is_empty();
        !self.wild && (self.sure || redirected && self.words.iter().all(|word| word.open.is_none()))
    }

    /// Returns `true` if the word at this place may be a path. A program without a directory is looked up elsewhere.
    fn may_be_file(&self, at: usize, word: &Word) -> bool {
        word.text.contains('/') || !word.is_option() && self.starts.binary_search(&at).is_err()
    }

    /// The names of programs that it may run, and those of which they are versions or builds.
    pub(crate) fn programs(&self) -> impl Iterator<Item = String> {
        self.starts.iter().filter_map(|start| self.words.get(*start)).flat_map(|word| {
            let name = word.program();
            let family = word.program_family().filter(|family| name.as_ref() != Some(family));
            name.into_iter().chain(family)
        })
    }

    /// As one line, for people.
    pub(crate) fn line(&self) -> String {
        let words: Vec<&str> = self.words.iter().map(|word| word.text.as_str()).collect();
        words.join(" ")
    }
}

/// Which words of a command are replaced by what they lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Linked {
    /// Programs, but not those of the system: what a link there leads to is what its name says.
    Programs,
    /// All of them.
    Words,
}

/// Returns `true` if a program is named by a directory whose programs are what their names say.
pub(crate) fn is_system_program(text: &str) -> bool {
    SYSTEM_DIRECTORIES.iter().any(|directory| text.starts_with(directory) && !text.contains("/../"))
}

/// Directories whose programs are what their names say.
const SYSTEM_DIRECTORIES: [&str; 2] = ["/bin/", "/usr/bin/"];

/// A whole command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Script {
    /// All parts, those in substitutions included.
    pub(crate) parts: Vec<Part>,
    /// Whether it is one program and its arguments, without anything else a shell does.
    pub(crate) plain: bool,
    /// Whether reading was given up.
    pub(crate) lost: bool,
}

impl Script {
    /// The text that a shell reads if `command`, of which this was made, is run.
    pub(crate) fn shell_text<'a>(&'a self, command: &'a Command) -> Option<&'a str> {
        match command {
            Command::Shell(text) => Some(text),
            // The outermost shell: one within its text may run only a part of it.
            Command::Argv(argv) => {
                let is_whole = |part: &&Part| part.wraps && part.words.iter().map(|word| &word.text).eq(argv);
                let shell = self.parts.iter().find(is_whole).filter(|part| part.words.len() == 3)?;
                Some(&shell.words[2].text)
            }
            Command::Unknown(_) => None,
        }
    }

    /// Returns `true` if what one of its programs prints may become a word of another.
    pub(crate) fn uses_output(&self) -> bool {
        let is_output = |word: &Word| word.holds_output() || word.holds_last_argument();
        let is_fed = |part: &Part| part.fed || part.all_words().any(is_output);
        self.parts.iter().any(is_fed)
    }

    /// The words that may name files: programs with a directory, arguments, files of redirections.
    pub(crate) fn file_words(&self) -> impl Iterator<Item = &str> {
        let words = self.parts.iter().flat_map(|part| {
            let own = part.words.iter().enumerate().filter(|(at, word)| part.may_be_file(*at, word));
            own.map(|(_, word)| word).chain(&part.writes).chain(&part.reads)
        });
        words.filter(|word| word.open.is_none() && !word.text.is_empty()).map(|word| word.text.as_str())
    }

    /// The same with what these words lead to, or `None` if it has none of them.
    pub(crate) fn with_links(&self, links: &[WordLink], linked: Linked) -> Option<Self> {
        let mut script = self.clone();
        let mut is_changed = false;
        // The first of several for one word counts.
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

    /// The words of the one program that this is, if no shell does anything to them.
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
