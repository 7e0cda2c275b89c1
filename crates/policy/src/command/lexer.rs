//! The text of a command, read as the shells of the Bourne family read it.
//!
//! One pass without recursion: what is open stands on a stack. In doubt a word is open, a part is not sure, and what
//! may be a command is one.

mod expand;

use super::Word;
use crate::shape::{Shape, Unit};

/// One simple command, not yet reduced.
#[derive(Debug, Default)]
pub(super) struct Raw {
    pub(super) words: Vec<Word>,
    pub(super) writes: Vec<Word>,
    pub(super) reads: Vec<Word>,
    /// Words at which another program may start.
    pub(super) starts: Vec<usize>,
    pub(super) sure: bool,
}

/// What a text consists of.
#[derive(Debug, Default)]
pub(super) struct Lexed {
    pub(super) parts: Vec<Raw>,
    /// Texts handed to commands as their input, which may be commands themselves.
    pub(super) documents: Vec<String>,
    /// Whether there is one part, and nothing in it but words.
    pub(super) plain: bool,
    /// Whether something was found that cannot be, so that nothing is certain.
    pub(super) broken: bool,
}

/// What a frame was opened by, and is closed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Top,
    Paren,
    Backtick { escaped: bool },
}

/// What a word stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quote {
    Double,
    Parameter,
}

/// What the next word is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Redirect {
    Write,
    Read,
    Copy,
    Document { indented: bool },
    Text,
}

/// A list of commands that is being read.
#[derive(Debug)]
struct Frame {
    open: Open,
    quotes: Vec<Quote>,
    word: Option<Building>,
    raw: Raw,
    redirect: Option<Redirect>,
}

impl Frame {
    fn new(open: Open) -> Self {
        Self {
            open,
            quotes: Vec::new(),
            word: None,
            raw: Raw { sure: true, ..Raw::default() },
            redirect: None,
        }
    }
}

/// A word that is being read.
#[derive(Debug, Default)]
struct Building {
    text: String,
    units: Vec<Unit>,
    /// Whether some of it is not known.
    open: bool,
    /// Whether some of it was quoted.
    quoted: bool,
    /// Where the shell may break it.
    splits: Option<usize>,
    /// A list in braces that is the whole word: what it becomes.
    several: Vec<String>,
}

/// Reads `text`.
pub(super) fn lex(text: &str) -> Lexed {
    let mut lexer = Lexer {
        chars: text.trim_matches([' ', '\t', '\n']).chars().collect(),
        at: 0,
        frames: vec![Frame::new(Open::Top)],
        waiting: Vec::new(),
        done: Lexed { plain: true, ..Lexed::default() },
        broken: false,
    };
    while lexer.at < lexer.chars.len() {
        lexer.step();
    }
    lexer.finish()
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    frames: Vec<Frame>,
    /// The ends of documents that begin with the next line.
    waiting: Vec<(String, bool)>,
    done: Lexed,
    /// Whether something was found that cannot be, so that nothing is certain.
    broken: bool,
}

impl Lexer {
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

    /// Adds a character that stands for itself.
    fn plain(&mut self, letter: char) {
        let word = self.word();
        word.text.push(letter);
        word.units.push(Unit::Char(letter));
    }

    /// Adds something of which only the shell knows what it will be.
    fn unknown(&mut self, unit: Unit, written: &str) {
        self.done.plain = false;
        // Outside of quotes, what is put in for `$` and backticks is broken at blanks.
        let breaks =
            written.starts_with(['$', '`']) && self.frame().quotes.is_empty() || written.starts_with("$…");
        if breaks {
            let word = self.word();
            let length = word.units.len();
            word.splits.get_or_insert(length);
        }
        let word = self.word();
        word.text.push_str(written);
        word.open = true;
        if word.units.last() != Some(&Unit::Many) || unit != Unit::Many {
            word.units.push(unit);
        }
    }

    fn step(&mut self) {
        let letter = self.chars[self.at];
        if letter == '\0' {
            // No program can be given one; what stands around it may be joined.
            self.broken = true;
            self.at += 1;
            return;
        }
        if letter == '\\' && self.peek(1) == Some('`') && self.in_backticks() {
            self.at += 2;
            return self.backtick(true);
        }
        match self.frame().quotes.last() {
            Some(Quote::Double) => self.in_double(letter),
            Some(Quote::Parameter) => self.in_parameter(letter),
            None => self.in_command(letter),
        }
    }

    fn in_backticks(&self) -> bool {
        self.frames.iter().any(|frame| matches!(frame.open, Open::Backtick { .. }))
    }

    fn in_double(&mut self, letter: char) {
        self.at += 1;
        match letter {
            '"' => {
                self.frame().quotes.pop();
            }
            '\\' => match self.peek(0) {
                Some('\n') => self.at += 1,
                Some(next @ ('$' | '`' | '"' | '\\')) => {
                    self.at += 1;
                    self.plain(next);
                }
                _ => self.plain('\\'),
            },
            '$' => self.dollar(),
            '`' => self.backtick(false),
            other => self.plain(other),
        }
    }

    /// Between `${` and `}`: nothing of it is known, but commands may stand in it.
    fn in_parameter(&mut self, letter: char) {
        self.at += 1;
        match letter {
            '}' => {
                self.frame().quotes.pop();
            }
            '"' => self.frame().quotes.push(Quote::Double),
            '\'' if !self.frame().quotes.contains(&Quote::Double) => self.single(),
            '\\' => self.at += 1,
            '$' => self.dollar(),
            '`' => self.backtick(false),
            _ => {}
        }
    }

    fn in_command(&mut self, letter: char) {
        self.at += 1;
        match letter {
            ' ' | '\t' => self.end_word(),
            '\n' => {
                self.separate();
                self.documents();
            }
            ';' | '|' => self.separate(),
            '&' if self.peek(0) == Some('>') => {
                self.end_word();
                self.at += 1;
                self.at += usize::from(self.peek(0) == Some('>'));
                // Some shells read a separator and a redirection here: a program may follow.
                let words = self.frame().raw.words.len();
                self.frame().raw.starts.push(words);
                self.redirect(Redirect::Write);
            }
            '&' => self.separate(),
            '#' if self.frame().word.is_none() => {
                self.done.plain = false;
                while self.peek(0).is_some_and(|next| next != '\n') {
                    self.at += 1;
                }
            }
            '\'' => {
                self.word().quoted = true;
                self.single();
            }
            '"' => {
                self.word().quoted = true;
                self.frame().quotes.push(Quote::Double);
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
            '`' => self.backtick(false),
            '(' => self.open_paren(),
            ')' => self.close_paren(),
            '<' | '>' => self.angle(letter),
            '*' => self.unknown(Unit::Many, "*"),
            '?' => self.unknown(Unit::One, "?"),
            '[' => self.bracket(),
            '{' => self.brace(),
            other => self.plain(other),
        }
    }

    /// The rest of a text in single quotes.
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

    /// A backtick opens what the same kind of backtick closes.
    fn backtick(&mut self, escaped: bool) {
        let open = Open::Backtick { escaped };
        match self.frames.iter().rposition(|frame| frame.open == open) {
            Some(at) => {
                self.broken |= at + 1 != self.frames.len();
                while self.frames.len() > at {
                    self.end_part();
                    self.frames.pop();
                }
            }
            None => {
                self.unknown(Unit::Many, "`…`");
                self.frames.push(Frame::new(open));
            }
        }
    }

    fn open_paren(&mut self) {
        let frame = self.frame();
        // `name()` or a list of values: what follows may still be a command.
        let odd = frame.word.is_some() || !frame.raw.words.is_empty();
        self.broken |= odd;
        self.end_part();
        self.done.plain = false;
        self.frames.push(Frame::new(Open::Paren));
    }

    fn close_paren(&mut self) {
        self.broken |= !self.frame().quotes.is_empty();
        self.end_part();
        if self.frame().open == Open::Paren {
            self.frames.pop();
        } else {
            self.broken = true;
        }
    }

    /// `<` or `>` and what belongs to it.
    fn angle(&mut self, letter: char) {
        let digits = |word: &Building| {
            !word.quoted && !word.open && word.text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if self.frame().word.as_ref().is_some_and(digits) {
            self.frame().word = None;
        } else {
            self.end_word();
        }
        self.done.plain = false;
        let next = self.peek(0);
        if next == Some('(') {
            self.at += 1;
            self.unknown(Unit::Many, if letter == '<' { "<(…)" } else { ">(…)" });
            self.frames.push(Frame::new(Open::Paren));
            return;
        }
        let (length, redirect) = match (letter, next, self.peek(1)) {
            ('<', Some('<'), Some('<')) => (2, Redirect::Text),
            ('<', Some('<'), Some('-')) => (2, Redirect::Document { indented: true }),
            ('<', Some('<'), _) => (1, Redirect::Document { indented: false }),
            (_, Some('&'), _) => (1, Redirect::Copy),
            ('<', Some('>'), _) | ('>', Some('>' | '|'), _) => (1, Redirect::Write),
            ('<', _, _) => (0, Redirect::Read),
            _ => (0, Redirect::Write),
        };
        self.at += length;
        self.redirect(redirect);
    }

    fn redirect(&mut self, redirect: Redirect) {
        self.done.plain = false;
        self.broken |= self.frame().redirect.is_some();
        self.frame().redirect = Some(redirect);
    }

    fn end_word(&mut self) {
        let frame = self.frame();
        let Some(built) = frame.word.take() else { return };
        let redirect = frame.redirect.take();
        let splits = built.splits;
        let word = Word { open: built.open.then_some(Shape(built.units)), text: built.text, splits };
        let known = word.open.is_none();
        let Some(redirect) = redirect else {
            frame.raw.sure &= known;
            if built.several.is_empty() {
                frame.raw.words.push(word);
            } else {
                frame.raw.words.extend(built.several.into_iter().map(Word::known));
            }
            return;
        };
        match redirect {
            Redirect::Write if known && is_sink(&word.text) => {}
            Redirect::Copy
                if known && word.text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') => {}
            Redirect::Write | Redirect::Copy => {
                frame.raw.sure = false;
                frame.raw.writes.push(word);
            }
            Redirect::Read => {
                // What a program is told may be what it does.
                frame.raw.sure = false;
                frame.raw.reads.push(word);
            }
            Redirect::Text => {
                frame.raw.sure = false;
                self.done.documents.push(word.text);
            }
            Redirect::Document { indented } => {
                frame.raw.sure = false;
                self.waiting.push((word.text, indented));
            }
        }
    }

    /// Ends one command of several.
    fn separate(&mut self) {
        self.done.plain = false;
        self.end_part();
    }

    /// Ends the command that is being read.
    fn end_part(&mut self) {
        self.end_word();
        let frame = self.frame();
        let unfinished = frame.redirect.take().is_some();
        let mut raw = std::mem::replace(&mut frame.raw, Raw { sure: true, ..Raw::default() });
        raw.sure &= !unfinished;
        if !(raw.words.is_empty() && raw.writes.is_empty() && raw.reads.is_empty()) {
            self.done.parts.push(raw);
        }
        self.broken |= unfinished;
    }

    /// Takes the documents that begin on this line.
    fn documents(&mut self) {
        for (end, indented) in std::mem::take(&mut self.waiting) {
            let mut document = String::new();
            while self.at < self.chars.len() {
                let rest = &self.chars[self.at..];
                let length = rest.iter().position(|letter| *letter == '\n').unwrap_or(rest.len());
                let line: String = rest[..length].iter().collect();
                self.at = (self.at + length + 1).min(self.chars.len());
                let compared = if indented { line.trim_start_matches('\t') } else { &line };
                if compared == end {
                    break;
                }
                document.push_str(&line);
                document.push('\n');
            }
            self.done.documents.push(document);
        }
    }

    fn finish(mut self) -> Lexed {
        self.broken |= self.frames.len() != 1 || !self.frame().quotes.is_empty();
        while !self.frames.is_empty() {
            self.end_part();
            self.frames.pop();
        }
        let mut done = self.done;
        done.plain &= !self.broken && done.parts.len() == 1 && done.parts.iter().all(|part| part.sure);
        done.broken = self.broken;
        if self.broken {
            done.parts.iter_mut().for_each(|part| part.sure = false);
        }
        done
    }
}

/// Whether writing there changes no file.
fn is_sink(path: &str) -> bool {
    matches!(path, "/dev/null" | "/dev/stdout" | "/dev/stderr" | "/dev/tty")
        || path
            .strip_prefix("/dev/fd/")
            .is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}
