//! What a shell puts in for something else: variables, substitutions, patterns, lists in braces.

use super::{Frame, Lexer, Open, Quote};
use crate::shape::Unit;

impl Lexer {
    /// What follows a dollar sign.
    pub(super) fn dollar(&mut self) {
        let quoted = self.frame().quotes.last() == Some(&Quote::Double);
        match self.peek(0) {
            Some('(') => {
                self.at += 1;
                self.unknown(Unit::Many, "$(…)");
                self.frames.push(Frame::new(Open::Paren));
            }
            Some('{') => {
                self.at += 1;
                // Newer shells run commands in `${ …; }`; what ends them is hard to tell.
                self.broken |= matches!(self.peek(0), Some(' ' | '\t' | '\n' | '|'));
                self.unknown(Unit::Many, "${…}");
                self.frame().quotes.push(Quote::Parameter);
            }
            Some('\'') if !quoted => {
                self.at += 1;
                self.escapes();
            }
            Some('"') if !quoted => {}
            Some(letter) if letter.is_ascii_alphabetic() || letter == '_' => {
                let mut name = String::from("$");
                while let Some(letter) =
                    self.peek(0).filter(|next| next.is_ascii_alphanumeric() || *next == '_')
                {
                    name.push(letter);
                    self.at += 1;
                }
                self.unknown(Unit::Many, &name);
            }
            Some(letter) if letter.is_ascii_digit() || "@*#?-$![".contains(letter) => {
                self.at += 1;
                self.unknown(Unit::Many, "$…");
            }
            _ => {
                self.done.plain = false;
                self.plain('$');
            }
        }
    }

    /// The rest of `$'…'`, in which characters can be written as numbers.
    fn escapes(&mut self) {
        self.done.plain = false;
        self.frame().raw.sure = false;
        loop {
            let Some(letter) = self.peek(0) else {
                self.broken = true;
                return;
            };
            self.at += 1;
            match letter {
                '\'' => return,
                '\\' => {
                    if self.peek(0) == Some('\'') {
                        // A shell that does not know these quotes ends the text here.
                        self.broken = true;
                        let rest = self.chars[self.at + 1..].iter().collect();
                        self.done.documents.push(rest);
                    }
                    self.escape();
                }
                other => self.plain(other),
            }
        }
    }

    fn escape(&mut self) {
        let Some(letter) = self.peek(0) else { return };
        self.at += 1;
        let (radix, most) = match letter {
            'x' => (16, 2),
            'u' => (16, 4),
            'U' => (16, 8),
            '0'..='7' => (8, 3),
            'n' => return self.plain('\n'),
            't' => return self.plain('\t'),
            other => return self.plain(other),
        };
        self.at -= usize::from(radix == 8);
        let mut number = 0;
        for _ in 0..most {
            let Some(digit) = self.peek(0).and_then(|next| next.to_digit(radix)) else { break };
            number = number * radix + digit;
            self.at += 1;
        }
        self.plain(char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER));
    }

    /// `[…]` in a word is one of some characters; alone it is a program.
    pub(super) fn bracket(&mut self) {
        let rest = &self.chars[self.at..];
        let end =
            rest.iter().take(64).position(|letter| matches!(letter, ']' | ' ' | '\t' | '\n' | ';' | '/'));
        match end.filter(|end| *end > 0 && rest[*end] == ']') {
            Some(end) => {
                let written: String = rest[..=end].iter().collect();
                self.at += end + 1;
                self.unknown(Unit::One, &format!("[{written}"));
            }
            None => {
                // It may still be the beginning of a pattern that is hard to read.
                let alone = self.frame().word.is_none() && matches!(self.peek(0), Some(' ' | '\t' | '['));
                self.frame().raw.sure &= alone;
                self.plain('[');
            }
        }
    }

    /// `{a,b}` becomes several words.
    pub(super) fn brace(&mut self) {
        let rest = &self.chars[self.at..];
        let end = rest.iter().take(256).position(|letter| matches!(letter, '}' | ' ' | '\t' | '\n' | ';'));
        let Some(end) = end.filter(|end| rest[*end] == '}') else { return self.odd_brace() };
        let inner: String = rest[..end].iter().collect();
        if !inner.contains(',') && !inner.contains("..") {
            return self.plain('{');
        }
        if inner.contains(['\'', '"', '$', '`', '\\', '{', '(', '<', '>']) {
            return self.odd_brace();
        }
        let ends = rest.get(end + 1).is_none_or(|next| " \t\n;&|)<>".contains(*next));
        let whole = ends && self.frame().word.is_none();
        self.at += end + 1;
        self.unknown(Unit::Many, &format!("{{{inner}}}"));
        if whole {
            self.word().several = inner.split(',').map(str::to_owned).collect();
        }
    }

    /// A brace that may be the beginning of several words.
    fn odd_brace(&mut self) {
        let blank = self.peek(0).is_none_or(|next| " \t\n;&|<>()".contains(next));
        if blank {
            self.plain('{');
        } else {
            // What follows is read on, and whatever the word becomes is not known.
            self.unknown(Unit::Many, "{");
        }
    }
}
