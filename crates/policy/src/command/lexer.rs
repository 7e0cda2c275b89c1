//! Lexer for the common syntax of Bourne-like shells.
//!
//! The lexer makes one pass with a stack of open constructs; only text in backticks is read separately. In
//! doubt, a word counts as open, a part as not sure, and a text that may be a command as a command. A text
//! that shells may read differently is `broken`: every part of the text may then be any program.

mod arithmetic;
mod cases;
mod expand;
mod operand;
mod redirect;

use super::Word;
use crate::text_pattern::{PatternUnit, TextPattern};
use cases::Case;
pub(super) use cases::{DECLARERS, is_assignment, is_name};
use operand::{Filling, Operand};
use redirect::{Redirect, Waiting};

/// One simple command. Its prefixes, and commands in nested shells, are not resolved yet.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Raw {
    pub(super) words: Vec<Word>,
    pub(super) writes: Vec<Word>,
    pub(super) reads: Vec<Word>,
    /// Indexes of words at which another program may begin.
    pub(super) starts: Vec<usize>,
    /// Values of arrays. Another command may receive them as words.
    pub(super) literals: Vec<Word>,
    pub(super) sure: bool,
    pub(super) input: Input,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Input {
    /// The same input as the construct around the command.
    #[default]
    Inherited,
    /// A literal here-document, or no input.
    Known,
    /// A file, a descriptor, or the output of another command.
    Unknown,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Document {
    pub(super) text: String,
    pub(super) open: bool,
    /// Alternatives of the text in which expansions have the value of their operand.
    pub(super) others: Vec<TextPattern>,
    /// Words before the here-document of the command that receives the document.
    pub(super) receiver: Vec<Word>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Lexed {
    pub(super) parts: Vec<Raw>,
    /// Here-documents and other input texts of commands. A text may contain commands itself.
    pub(super) documents: Vec<Document>,
    pub(super) sums: Vec<String>,
    /// Variables that expansions such as `${x:=…}` assign.
    pub(super) assigned: Vec<String>,
    /// Variables whose value is used as the name of another variable.
    pub(super) followed: Vec<String>,
    /// `true` if the text is a single command that consists of words only.
    pub(super) plain: bool,
    /// `true` if shells may read the text differently.
    pub(super) broken: bool,
    /// `true` if reading stopped early because too many constructs were open.
    pub(super) lost: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Top,
    Paren,
    Array,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quote {
    Double,
    Parameter,
    /// A here-document in which the shell expands variables.
    Document,
}

#[derive(Debug)]
struct Frame {
    open: Open,
    quotes: Vec<Quote>,
    /// Number of open quotes outside of `${…}`.
    strict_quotes: usize,
    operands: Vec<Operand>,
    word: Option<Building>,
    raw: Raw,
    redirect: Option<Redirect>,
    descriptor: Option<String>,
    cases: Vec<Case>,
    condition: bool,
}

impl Frame {
    fn new(open: Open) -> Self {
        Self {
            open,
            quotes: Vec::new(),
            strict_quotes: 0,
            operands: Vec::new(),
            word: None,
            raw: Raw { sure: true, ..Raw::default() },
            redirect: None,
            descriptor: None,
            cases: Vec::new(),
            condition: false,
        }
    }

    fn push_quote(&mut self, quote: Quote) {
        self.strict_quotes += usize::from(quote != Quote::Parameter);
        self.quotes.push(quote);
    }

    fn pop_quote(&mut self) -> Option<Quote> {
        let quote = self.quotes.pop()?;
        self.strict_quotes -= usize::from(quote != Quote::Parameter);
        Some(quote)
    }

    /// Returns `true` if the next word may be a keyword of the shell.
    fn at_command(&self) -> bool {
        const LEADS: &str = "! { if then else elif do while until time -p coproc";
        const MAX_LEADING_WORDS: usize = 16;
        let leads = |word: &Word| word.open.is_none() && super::listed(LEADS, &word.text);
        self.raw.words.len() <= MAX_LEADING_WORDS
            && self.raw.words.iter().all(leads)
            && self.raw.writes.is_empty()
            && self.raw.reads.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.word.is_none() && self.raw.words.is_empty()
    }
}

#[derive(Debug, Default)]
struct Building {
    text: String,
    units: Vec<PatternUnit>,
    open: bool,
    quoted: bool,
    /// `true` if a construct was understood only partly, and the rest of the word belongs to it.
    swallows: bool,
    /// Position at which the shell may split the word.
    splits: Option<usize>,
    holes: Vec<String>,
    /// Words of a list in braces. Empty unless the whole word is such a list.
    several: Vec<String>,
    fillings: Vec<Filling>,
}

/// Maximum nesting depth of texts that are read separately, such as backticks within backticks.
const MAX_DEPTH: usize = 8;

/// Maximum number of open constructs. The work for each construct, and at the end of a text, grows with this
/// number.
const MAX_OPEN: usize = 256;

pub(super) fn lex(text: &str) -> Lexed {
    lex_within(text, 0)
}

fn lex_within(text: &str, depth: usize) -> Lexed {
    if depth > MAX_DEPTH {
        return Lexed { broken: true, ..Lexed::default() };
    }
    let text = text.trim_matches([' ', '\t', '\n']);
    let mut lexed = Lexer::new(text, depth).run();
    // A shell removes line continuations before it reads the text. Each nested level doubles the work, so
    // texts at deeper levels are not read with their continuations removed.
    if text.contains("\\\n") && depth > 1 {
        lexed.broken = true;
    } else if text.contains("\\\n") {
        let joined = Lexer::new(&text.replace("\\\n", ""), depth).run();
        if joined != lexed {
            lexed.broken = true;
            lexed.plain = false;
            lexed.absorb(joined);
            lexed.parts.iter_mut().for_each(|part| part.sure = false);
        }
    }
    lexed
}

impl Lexed {
    fn absorb(&mut self, other: Self) {
        self.parts.extend(other.parts);
        self.documents.extend(other.documents);
        self.sums.extend(other.sums);
        self.assigned.extend(other.assigned);
        self.followed.extend(other.followed);
        self.broken |= other.broken;
        self.lost |= other.lost;
    }
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    frames: Vec<Frame>,
    waiting: Vec<Waiting>,
    done: Lexed,
    broken: bool,
    depth: usize,
}

impl Lexer {
    fn new(text: &str, depth: usize) -> Self {
        Self {
            chars: text.chars().collect(),
            at: 0,
            frames: vec![Frame::new(Open::Top)],
            waiting: Vec::new(),
            done: Lexed { plain: true, ..Lexed::default() },
            broken: false,
            depth,
        }
    }

    fn run(mut self) -> Lexed {
        self.read_on();
        self.finish()
    }

    /// Reads to the end of the text, or until too many constructs are open.
    fn read_on(&mut self) {
        while self.at < self.chars.len() && !self.done.lost {
            self.step();
            let quotes = self.frame().quotes.len();
            self.done.lost |= self.frames.len().max(quotes).max(self.waiting.len()) > MAX_OPEN;
        }
    }

    /// Reads the expansions in a here-document, in which quotes have no meaning.
    fn expansions(text: &str, depth: usize) -> (Lexed, Vec<TextPattern>) {
        if depth > MAX_DEPTH {
            return (Lexed { broken: true, ..Lexed::default() }, Vec::new());
        }
        let mut lexer = Self::new(text, depth);
        lexer.frame().push_quote(Quote::Document);
        lexer.read_on();
        let frame = lexer.frame();
        lexer.broken |= frame.pop_quote() != Some(Quote::Document);
        let operands = lexer.frame().word.take().map(Building::operands);
        (lexer.finish(), operands.unwrap_or_default())
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn frame(&mut self) -> &mut Frame {
        if self.frames.is_empty() {
            self.frames.push(Frame::new(Open::Top));
        }
        let last = self.frames.len() - 1;
        &mut self.frames[last]
    }

    fn word(&mut self) -> &mut Building {
        self.frame().word.get_or_insert_default()
    }

    fn plain(&mut self, letter: char) {
        let is_operand = self.add_to_operand(PatternUnit::Char(letter));
        let word = self.word();
        word.text.push(letter);
        if !word.swallows && !is_operand {
            word.units.push(PatternUnit::Char(letter));
        }
    }

    /// Adds an expansion with an unknown value. `breaks` is `true` if the value may be several words.
    fn unknown(&mut self, unit: PatternUnit, written: &str, breaks: bool) {
        self.done.plain = false;
        let is_operand = self.add_to_operand(unit);
        let word = self.word();
        if breaks {
            let length = word.units.len();
            word.splits.get_or_insert(length);
        }
        word.text.push_str(written);
        word.holes.push(written.to_owned());
        word.open = true;
        if !word.swallows
            && !is_operand
            && (word.units.last() != Some(&PatternUnit::Many) || unit != PatternUnit::Many)
        {
            word.units.push(unit);
        }
    }

    fn open(&mut self, open: Open) {
        self.frames.push(Frame::new(open));
    }

    /// Returns `true` if the shell splits the value of an expansion at this position.
    fn is_bare(&mut self) -> bool {
        self.frame().quotes.is_empty()
    }

    fn step(&mut self) {
        let letter = self.chars[self.at];
        if letter == '\0' {
            // A program cannot receive a NUL, and some shells join the text around it.
            self.broken = true;
            self.at += 1;
            return;
        }
        match self.frame().quotes.last() {
            Some(Quote::Double) => self.in_double(letter),
            Some(Quote::Document) => self.in_document(letter),
            Some(Quote::Parameter) => self.in_parameter(letter),
            None => self.in_command(letter),
        }
    }

    fn in_double(&mut self, letter: char) {
        if letter == '"' {
            self.at += 1;
            self.frame().pop_quote();
            return;
        }
        self.in_document(letter);
    }

    fn in_document(&mut self, letter: char) {
        self.at += 1;
        match letter {
            '\\' => match self.peek(0) {
                Some('\n') => self.at += 1,
                Some(next @ ('$' | '`' | '"' | '\\')) => {
                    self.at += 1;
                    self.plain(next);
                }
                _ => self.plain('\\'),
            },
            '$' => self.dollar(),
            '`' => self.backtick(),
            other => self.plain(other),
        }
    }

    /// Reads a character between `${` and `}`. The value is unknown, but the text may contain commands.
    fn in_parameter(&mut self, letter: char) {
        self.at += 1;
        // Shells read quotes within quotes differently.
        let nested = self.frame().strict_quotes > 0;
        match letter {
            '}' => {
                self.frame().pop_quote();
                self.close_operand();
            }
            '"' => {
                self.broken |= nested;
                self.frame().push_quote(Quote::Double);
            }
            '\'' if nested => self.broken = true,
            '\'' => self.single(),
            '\\' => {
                self.broken |= nested;
                let next = self.peek(0);
                self.at += 1;
                next.map(|next| self.add_to_operand(PatternUnit::Char(next)));
            }
            '$' => self.dollar(),
            '`' => self.backtick(),
            '<' | '>' if self.peek(0) == Some('(') => self.broken = true,
            other => self.add_bare_to_operand(other),
        }
    }

    fn in_command(&mut self, letter: char) {
        self.at += 1;
        if self.frame().open == Open::Array && ";&|".contains(letter) {
            self.broken = true;
        }
        match letter {
            ' ' | '\t' => self.end_word(),
            '\n' => self.end_line(),
            ';' if matches!(self.peek(0), Some(';' | '&')) => self.end_branch(),
            '|' if self.goes_on_in_pattern() => {}
            '|' | '&' if self.peek(0) == Some(letter) => {
                self.at += 1;
                self.separate();
                self.go_on(letter);
            }
            '|' | ';' => {
                self.separate();
                self.go_on(letter);
            }
            '&' if self.peek(0) == Some('>') => {
                self.end_word();
                self.at += 1;
                self.at += usize::from(self.peek(0) == Some('>'));
                // Some shells read a separator and a redirection here, after which a program may begin.
                let words = self.frame().raw.words.len();
                self.frame().raw.starts.push(words);
                self.redirect(Redirect::Write);
            }
            '&' => {
                self.separate();
                self.go_on(letter);
            }
            '#' if self.frame().word.is_none() => self.comment(),
            '\'' => {
                self.word().quoted = true;
                self.single();
            }
            '"' => {
                self.word().quoted = true;
                self.frame().push_quote(Quote::Double);
            }
            '\\' => match self.peek(0) {
                Some('\n') => self.at += 1,
                Some(next) => {
                    self.at += 1;
                    self.word().quoted = true;
                    self.plain(next);
                }
                None => self.broken = true,
            },
            '$' => self.dollar(),
            '`' => self.backtick(),
            '(' => self.open_paren(),
            ')' => self.close_paren(),
            '<' | '>' => self.angle(letter),
            '*' => self.unknown(PatternUnit::Many, "*", false),
            '?' => self.unknown(PatternUnit::One, "?", false),
            '[' => self.bracket(),
            '{' => self.brace(),
            // zsh replaces `=program` by the path of the program.
            '=' if self.frame().word.is_none() && self.peek(0).is_some_and(char::is_alphanumeric) => {
                self.unknown(PatternUnit::Many, "=", false);
            }
            other => self.plain(other),
        }
    }

    fn comment(&mut self) {
        self.done.plain = false;
        self.broken |= self.frame().condition;
        let nested = self.frames.len() > 1;
        while let Some(next) = self.peek(0).filter(|next| *next != '\n') {
            // Older shells end a command substitution at this parenthesis.
            self.broken |= nested && next == ')';
            self.at += 1;
        }
    }

    fn single(&mut self) {
        self.word();
        loop {
            let letter = self.peek(0);
            self.at += 1;
            match letter {
                Some('\'') => return,
                Some(letter) => self.plain(letter),
                None => {
                    self.broken = true;
                    return;
                }
            }
        }
    }

    fn end_word(&mut self) {
        let frame = self.frame();
        let Some(built) = frame.word.take() else { return };
        let redirect = frame.redirect.take();
        let with_operands = built.with_operands();
        self.done.lost |= with_operands.is_none();
        let frame = self.frame();
        let Building { text, units, open, quoted, splits, holes, several, .. } = built;
        let others = with_operands.unwrap_or_default();
        let word = Word { open: open.then_some(TextPattern(units)), text, splits, holes, others };
        let known = word.open.is_none();
        let Some(redirect) = redirect else {
            frame.raw.sure &= known;
            return match several.is_empty() {
                true => self.add(word, quoted),
                false => frame.raw.words.extend(several.into_iter().map(Word::known)),
            };
        };
        self.redirected(redirect, word, quoted);
    }

    /// Adds a word to the current command. Handles keywords.
    fn add(&mut self, word: Word, quoted: bool) {
        let frame = self.frame();
        let keyword = !quoted && word.open.is_none() && frame.at_command();
        match word.text.as_str() {
            "[[" if keyword => frame.condition = true,
            "]]" if !quoted => frame.condition = false,
            _ => {}
        }
        if self.add_to_case(&word, keyword) {
            return;
        }
        self.frame().raw.words.push(word);
    }

    fn separate(&mut self) {
        self.done.plain = false;
        self.end_word();
        self.broken |= self.in_pattern() || self.before_patterns();
        self.end_part();
    }

    /// Continues a condition after an operator. In a shell without `[[`, a program begins after the operator.
    /// After `&&` no program is run, because the command `[[` has failed.
    fn go_on(&mut self, operator: char) {
        if self.frame().condition {
            let negated =
                self.done.parts.last().is_some_and(|part| part.words.iter().any(|word| word.text == "!"));
            let frame = self.frame();
            frame.raw.words.push(Word::known("[["));
            frame.raw.starts.extend((operator != '&' || negated).then_some(1));
        }
    }

    fn end_part(&mut self) {
        self.end_word();
        let frame = self.frame();
        let unfinished = frame.redirect.take().is_some();
        let mut raw = std::mem::replace(&mut frame.raw, Raw { sure: true, ..Raw::default() });
        raw.sure &= !unfinished;
        self.broken |= unfinished;
        let empty = raw.words.is_empty() && raw.writes.is_empty() && raw.reads.is_empty();
        if self.frame().open == Open::Array {
            let parent = self.frames.len().checked_sub(2).and_then(|at| self.frames.get_mut(at));
            parent.into_iter().for_each(|frame| frame.raw.literals.append(&mut raw.words));
        } else if !empty {
            self.done.parts.push(raw);
        }
    }

    fn end_line(&mut self) {
        self.end_word();
        match self.frame().open == Open::Array || self.before_patterns() {
            true => self.done.plain = false,
            false if self.in_pattern() => self.broken |= !self.frame().raw.words.is_empty(),
            false => self.separate(),
        }
        self.documents();
    }

    fn finish(mut self) -> Lexed {
        self.end_word();
        let frame = self.frame();
        let open = !frame.quotes.is_empty() || !frame.cases.is_empty() || frame.condition;
        self.broken |= self.frames.len() != 1 || open || !self.waiting.is_empty();
        while !self.frames.is_empty() {
            self.end_part();
            self.frames.pop();
        }
        let mut done = self.done;
        done.broken |= self.broken;
        done.plain &= !done.broken && done.parts.len() == 1 && done.parts.iter().all(|part| part.sure);
        if done.broken {
            done.parts.iter_mut().for_each(|part| part.sure = false);
        }
        done
    }
}
