//! Redirections, and here-documents.

use super::{Document, Input, Lexer, Open};
use crate::command::Word;
use crate::text_pattern::PatternUnit;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Redirect {
    Write,
    Read,
    Copy { reads: bool },
    Document { indented: bool },
    Text,
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) end: String,
    pub(super) indented: bool,
    pub(super) quoted: bool,
    /// Number of open frames at the operator that announces the document.
    pub(super) depth: usize,
    pub(super) receiver: Vec<Word>,
}

impl Lexer {
    /// Reads a redirection operator that begins with `<` or `>`.
    pub(super) fn angle(&mut self, letter: char) {
        match self.frame().word.take() {
            // The word is the number of a descriptor.
            Some(word)
                if !word.quoted && !word.open && word.text.bytes().all(|byte| byte.is_ascii_digit()) =>
            {
                self.frame().raw.sure &= word.text.len() == 1;
                self.frame().descriptor = Some(word.text);
            }
            // Some shells store a new descriptor in the variable of this name; for others the word is a
            // program.
            Some(word)
                if (!word.quoted || word.holes.first().is_some_and(|hole| hole == "{"))
                    && word.text.starts_with('{')
                    && word.text.ends_with('}') =>
            {
                self.broken |= word.text.contains('[');
                self.frame().raw.sure = false;
                self.frame().raw.words.push(Word::unknown(word.text));
            }
            word => {
                self.frame().word = word;
                self.end_word();
            }
        }
        self.done.plain = false;
        let next = self.peek(0);
        if next == Some('(') {
            self.at += 1;
            self.unknown(PatternUnit::Many, if letter == '<' { "<(…)" } else { ">(…)" }, false);
            self.open(Open::Paren);
            return;
        }
        self.broken |= self.frame().open == Open::Array || self.in_pattern();
        let (length, redirect) = match (letter, next, self.peek(1)) {
            ('<', Some('<'), Some('<')) => (2, Redirect::Text),
            ('<', Some('<'), Some('-')) => (2, Redirect::Document { indented: true }),
            ('<', Some('<'), _) => (1, Redirect::Document { indented: false }),
            (_, Some('&'), _) => (1, Redirect::Copy { reads: letter == '<' }),
            ('<', Some('>'), _) | ('>', Some('>' | '|'), _) => (1, Redirect::Write),
            ('<', _, _) => (0, Redirect::Read),
            _ => (0, Redirect::Write),
        };
        self.at += length;
        self.redirect(redirect);
    }

    pub(super) fn redirect(&mut self, redirect: Redirect) {
        self.done.plain = false;
        self.broken |= self.frame().redirect.is_some();
        self.frame().redirect = Some(redirect);
    }

    pub(super) fn redirected(&mut self, redirect: Redirect, word: Word, quoted: bool) {
        let depth = self.frames.len();
        let frame = self.frame();
        let known = word.open.is_none();
        let descriptor = frame.descriptor.take();
        if let Some(input) = input(redirect, descriptor.as_deref(), &word) {
            let worse = frame.raw.input == Input::Unknown;
            frame.raw.input = if worse { Input::Unknown } else { input };
        }
        match redirect {
            Redirect::Write if known && is_sink(&word.text) => {}
            Redirect::Copy { .. }
                if known && word.text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') => {}
            Redirect::Write | Redirect::Copy { .. } => {
                frame.raw.sure = false;
                frame.raw.writes.push(word);
            }
            Redirect::Read => {
                // What a program does can depend on its input.
                frame.raw.sure = false;
                frame.raw.reads.push(word);
            }
            Redirect::Text => {
                frame.raw.sure = false;
                let receiver = frame.raw.words.clone();
                let Word { text, others, .. } = word;
                self.done.documents.push(Document { text, open: !known, others, receiver });
            }
            Redirect::Document { indented } => {
                frame.raw.sure = false;
                let receiver = frame.raw.words.clone();
                self.broken |= !known || word.text.contains(['$', '`', '\\', '\n']);
                self.waiting.push(Waiting { end: word.text, indented, quoted, depth, receiver });
            }
        }
    }

    pub(super) fn documents(&mut self) {
        let depth = self.frames.len();
        for Waiting { end, indented, quoted, depth: announced, receiver } in std::mem::take(&mut self.waiting)
        {
            self.broken |= announced != depth;
            let mut text = String::new();
            let mut ended = false;
            while self.at < self.chars.len() && !ended {
                let rest = &self.chars[self.at..];
                let length = rest.iter().position(|letter| *letter == '\n').unwrap_or(rest.len());
                let line: String = rest[..length].iter().collect();
                self.at = (self.at + length + 1).min(self.chars.len());
                let compared = if indented { line.trim_start_matches('\t') } else { &line };
                ended = compared == end;
                if !ended {
                    text.push_str(&line);
                    text.push('\n');
                }
            }
            self.broken |= !ended;
            let mut open = false;
            let mut others = Vec::new();
            if !quoted && text.contains(['$', '`', '\\']) {
                open = true;
                let (inner, operands) = Self::expansions(&text, self.depth + 1);
                others = operands;
                self.broken |= inner.broken;
                self.done.absorb(inner);
            }
            self.done.documents.push(Document { text, open, others, receiver });
        }
    }
}

/// Returns the new standard input of a command. `None` if the redirection does not change the standard input.
fn input(redirect: Redirect, descriptor: Option<&str>, word: &Word) -> Option<Input> {
    let closed = word.open.is_none() && word.text == "-";
    let empty = word.open.is_none() && word.text == "/dev/null";
    let reads = !matches!(redirect, Redirect::Write | Redirect::Copy { reads: false });
    let zero = descriptor.map_or(reads, |number| number.bytes().all(|digit| digit == b'0'));
    let known = match redirect {
        Redirect::Write => false,
        Redirect::Read => empty,
        Redirect::Copy { .. } => closed,
        Redirect::Document { .. } | Redirect::Text => true,
    };
    zero.then_some(if known { Input::Known } else { Input::Unknown })
}

/// Returns `true` if a write to the path changes no file.
fn is_sink(path: &str) -> bool {
    matches!(path, "/dev/null" | "/dev/stdout" | "/dev/stderr" | "/dev/tty")
        || path
            .strip_prefix("/dev/fd/")
            .is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}
