//! Words: programs, arguments, assignments, and delimiters of here-documents.

use super::{Parser, RESERVED};
use crate::command::listed;

/// Characters that end a word outside of quotes.
const ENDS: &str = " \t\n;&|<>()";

impl Parser {
    pub(super) fn name(&mut self) -> Option<String> {
        let is_part = |letter: &&char| letter.is_ascii_alphanumeric() || **letter == '_';
        let name: String = self.chars[self.at..].iter().take_while(is_part).collect();
        self.at += name.len();
        crate::command::lexer::is_name(&name).then_some(name)
    }

    /// Reads an assignment, if one follows before a program.
    pub(super) fn assignment(&mut self) -> Option<bool> {
        let at = self.at;
        let Some(value) = self.assigned() else {
            self.at = at;
            return Some(false);
        };
        self.at = value;
        if self.peek(0) == Some('(') {
            self.values()?;
        } else {
            self.value()?;
        }
        Some(true)
    }

    /// Returns the position at which the value of an assignment begins, if an assignment follows.
    fn assigned(&mut self) -> Option<usize> {
        self.name()?;
        if self.peek(0) == Some('[') {
            self.at += 1;
            let digits = self.chars[self.at..].iter().take_while(|letter| letter.is_ascii_digit()).count();
            self.at += digits;
            (digits > 0 && self.skip("]")).then_some(())?;
        }
        self.skip("+");
        self.skip("=").then_some(self.at)
    }

    /// Reads an array assignment `name=(…)` that is an argument, for instance of `declare`.
    pub(super) fn array(&mut self) -> Option<bool> {
        let at = self.at;
        if self.assigned().is_some() && self.peek(0) == Some('(') {
            return self.values().map(|()| true);
        }
        self.at = at;
        Some(false)
    }

    fn values(&mut self) -> Option<()> {
        self.skip("(").then_some(())?;
        loop {
            self.lines()?;
            if self.skip(")") {
                return Some(());
            }
            // The shell evaluates the subscript of `[subscript]=…`.
            if self.peek(0) == Some('[') {
                return None;
            }
            self.argument()?;
        }
    }

    /// Reads a word that names a program and contains no expansions.
    pub(super) fn program(&mut self, first: bool) -> Option<String> {
        let home = self.skip("~/");
        let mut name = String::new();
        let mut quoted = home;
        while let Some(letter) = self.peek(0).filter(|letter| !ENDS.contains(*letter)) {
            self.at += 1;
            match letter {
                '\'' => {
                    quoted = true;
                    name.push_str(&self.single()?);
                }
                '"' => {
                    quoted = true;
                    let rest = &self.chars[self.at..];
                    let length = rest.iter().position(|letter| "\"$`\\".contains(*letter))?;
                    (rest[length] == '"').then_some(())?;
                    name.extend(&rest[..length]);
                    self.at += length + 1;
                }
                '\\' if self.peek(0) == Some('\n') => self.at += 1,
                '\\' => {
                    quoted = true;
                    name.push(self.peek(0).filter(|next| *next != '\n')?);
                    self.at += 1;
                }
                ':' if name.is_empty() && self.is_keyword("") => name.push(':'),
                '[' if name.is_empty() && self.is_keyword("") => name.push('['),
                letter if letter.is_ascii_alphanumeric() || "_./+-".contains(letter) => name.push(letter),
                _ => return None,
            }
        }
        let begins = |letter: char| letter.is_ascii_alphanumeric() || "_./[:".contains(letter);
        let known = quoted || name.starts_with(begins) && !listed(RESERVED, &name);
        // Some shells read a number before `<` or `>` as a descriptor.
        let numbered = name.bytes().all(|byte| byte.is_ascii_digit());
        let ended = self.peek(0) != Some('(') || first;
        (known && !numbered && ended && !name.contains('=')).then_some(name)
    }

    pub(super) fn argument(&mut self) -> Option<()> {
        if self.peek(0) == Some('=') && self.peek(1).is_some_and(|next| !"=~ \t\n".contains(next)) {
            return None;
        }
        let at = self.at;
        self.value()?;
        // Some shells read a number, or a name in braces, before `<` or `>` as a descriptor.
        let redirects = matches!(self.peek(0), Some('<' | '>')) && self.at > at;
        let word = &self.chars[at..self.at];
        let described = word.iter().all(char::is_ascii_digit) || word.last() == Some(&'}');
        (self.at > at && !(redirects && described)).then_some(())
    }

    /// Reads the parts of a word up to its end.
    fn value(&mut self) -> Option<()> {
        let mut braces = 0_usize;
        let begun = self.at;
        while let Some(letter) = self.peek(0) {
            match letter {
                '<' | '>' if self.peek(1) == Some('(') => {
                    // This character is allowed only at the beginning of a word.
                    (self.at == begun).then_some(())?;
                    self.at += 2;
                    self.parenthesis()?;
                }
                letter if ENDS.contains(letter) => break,
                '\'' => {
                    self.at += 1;
                    self.single()?;
                }
                '"' => {
                    self.at += 1;
                    self.double()?;
                }
                '\\' => {
                    self.peek(1)?;
                    self.at += 2;
                }
                '$' => self.dollar(false)?,
                '`' => self.backtick()?,
                '{' => {
                    braces += 1;
                    self.at += 1;
                }
                '}' => {
                    braces = braces.checked_sub(1)?;
                    self.at += 1;
                }
                '[' => self.bracket(begun)?,
                _ => self.at += 1,
            }
        }
        // Shells read a parenthesis within a word differently.
        (braces == 0 && self.peek(0) != Some('(')).then_some(())
    }

    /// Reads `[`, which is a separate word, or begins a character class.
    fn bracket(&mut self, begun: usize) -> Option<()> {
        self.at += 1;
        let alone = self.at == begun + 1 && self.is_keyword("");
        if alone || self.at > begun + 1 && self.chars[begun] == '~' {
            return alone.then_some(());
        }
        let rest = &self.chars[self.at..];
        let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || "!^-_.,".contains(*letter);
        let length = rest.iter().position(|letter| !is_plain(letter))?;
        (length > 0 && rest[length] == ']').then_some(())?;
        self.at += length + 1;
        Some(())
    }

    pub(super) fn single(&mut self) -> Option<String> {
        let rest = &self.chars[self.at..];
        let length = rest.iter().position(|letter| *letter == '\'')?;
        let text: String = rest[..length].iter().collect();
        self.at += length + 1;
        (self.documents.is_empty() || !text.contains('\n')).then_some(text)
    }

    fn double(&mut self) -> Option<()> {
        loop {
            let letter = self.peek(0)?;
            match letter {
                '"' => {
                    self.at += 1;
                    return Some(());
                }
                '\\' => {
                    self.peek(1)?;
                    self.at += 2;
                }
                '$' => self.dollar(true)?,
                '`' => self.backtick()?,
                '\n' if !self.documents.is_empty() => return None,
                _ => self.at += 1,
            }
        }
    }

    pub(super) fn expansions(&mut self) -> Option<()> {
        while let Some(letter) = self.peek(0) {
            match letter {
                '\\' => {
                    self.peek(1).filter(|next| *next != '\n')?;
                    self.at += 2;
                }
                '$' => self.dollar(true)?,
                '`' => self.backtick()?,
                _ => self.at += 1,
            }
        }
        Some(())
    }

    pub(super) fn delimiter(&mut self) -> Option<(String, bool)> {
        let quote = self.peek(0).filter(|letter| *letter == '\'' || *letter == '"');
        self.at += usize::from(quote.is_some());
        let is_part = |letter: &&char| letter.is_ascii_alphanumeric() || "_-.!".contains(**letter);
        let end: String = self.chars[self.at..].iter().take_while(is_part).collect();
        self.at += end.len();
        if let Some(quote) = quote {
            self.skip(quote.encode_utf8(&mut [0; 4])).then_some(())?;
        }
        let ended = self.peek(0).is_none_or(|letter| ENDS.contains(letter));
        (ended && !end.is_empty()).then_some((end, quote.is_some()))
    }
}
