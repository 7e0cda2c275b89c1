//! Expansions: variables, substitutions, file name patterns, and lists in braces.

use super::{Lexer, Open, Quote, cases, lex_within};
use crate::text_pattern::PatternUnit;

/// Maximum length of all words that a list in braces stands for. A longer list counts as unknown.
const MAX_LIST_BYTES: usize = 64 << 10;

impl Lexer {
    pub(super) fn dollar(&mut self) {
        let quoted = !matches!(self.frame().quotes.last(), None | Some(Quote::Parameter));
        let bare = self.is_bare();
        match self.peek(0) {
            Some('(') => {
                if self.peek(1) == Some('(') {
                    if self.sum() {
                        return;
                    }
                    self.broken = true;
                }
                self.at += 1;
                self.unknown(PatternUnit::Many, "$(…)", bare);
                self.open(Open::Paren);
            }
            Some('{') => {
                self.at += 1;
                let rest = &self.chars[self.at..];
                let rest = &rest[..rest.len().min(256)];
                let end = rest.iter().position(|letter| *letter == '}').unwrap_or(rest.len());
                let several = rest[..end].contains(&'@');
                let length = rest[..end].first() == Some(&'#')
                    && rest[1..end].iter().all(|letter| letter.is_ascii_alphanumeric() || *letter == '_');
                let name: String = rest[..end].iter().collect();
                self.parameter();
                self.unknown(PatternUnit::Many, "${…}", bare || several);
                let hole = match length {
                    true => "$#".to_owned(),
                    false if cases::is_name(&name) => format!("${name}"),
                    false => "${…}".to_owned(),
                };
                let word = self.word();
                word.holes.pop();
                word.holes.push(hole);
                self.frame().push_quote(Quote::Parameter);
                self.open_operand();
            }
            Some('\'') if !quoted => {
                self.at += 1;
                self.escapes();
            }
            Some('"') if !quoted => self.frame().raw.sure = false,
            Some(letter) if letter.is_ascii_alphabetic() || letter == '_' => {
                let mut name = String::from("$");
                while let Some(letter) =
                    self.peek(0).filter(|next| next.is_ascii_alphanumeric() || *next == '_')
                {
                    name.push(letter);
                    self.at += 1;
                }
                self.unknown(PatternUnit::Many, &name, bare);
            }
            Some('[') => {
                // `$[…]` is an old form of an arithmetic expansion, which some shells still evaluate.
                self.broken = true;
                self.at += 1;
                self.unknown(PatternUnit::Many, "$[", bare);
            }
            Some(letter) if letter.is_ascii_digit() || "@*#?-$!".contains(letter) => {
                self.at += 1;
                let number = "#?$!".contains(letter);
                self.unknown(PatternUnit::Many, if number { "$#" } else { "$…" }, bare || letter == '@');
            }
            _ => {
                self.done.plain = false;
                self.plain('$');
            }
        }
    }

    /// Reads the rest of `$'…'`. Numeric escapes are decoded.
    fn escapes(&mut self) {
        self.done.plain = false;
        self.frame().raw.sure = false;
        self.word().quoted = true;
        loop {
            let Some(letter) = self.peek(0) else {
                self.broken = true;
                return;
            };
            self.at += 1;
            match letter {
                '\'' => return,
                '\\' => {
                    // A shell that does not know `$'…'` ends the text at this quote.
                    self.broken |= self.peek(0) == Some('\'');
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
            '\\' | '\'' | '"' | '?' => return self.plain(letter),
            'a' | 'b' | 'e' | 'E' | 'f' | 'r' | 'v' => return self.plain('\u{1}'),
            // Shells decode other escapes differently.
            _ => return self.swallow(),
        };
        self.at -= usize::from(radix == 8);
        let mut number = 0;
        for _ in 0..most {
            let Some(digit) = self.peek(0).and_then(|next| next.to_digit(radix)) else { break };
            number = number * radix + digit;
            self.at += 1;
        }
        match number {
            // A zero ends the text, and `\x{…}` counts as zero, because it has no digits. A byte of 0x80 or
            // more is only a part of a character.
            0 | 0x80.. => self.swallow(),
            number => self.plain(char::from_u32(number).unwrap_or_default()),
        }
    }

    /// Marks the rest of the word as unknown.
    fn swallow(&mut self) {
        self.unknown(PatternUnit::Many, "…", false);
        self.word().swallows = true;
    }

    /// Reads the text up to the next backtick. The text without its escaping backslashes is a command.
    pub(super) fn backtick(&mut self) {
        let quoted = !self.is_bare();
        let mut text = String::new();
        loop {
            let letter = self.peek(0);
            self.at += 1;
            match (letter, self.peek(0)) {
                (Some('`'), _) => break,
                (Some('\\'), Some(next @ ('`' | '\\' | '$'))) => {
                    self.at += 1;
                    text.push(next);
                }
                (Some('\\'), Some('"')) if quoted => {
                    self.broken = true;
                    self.at += 1;
                    text.push('"');
                }
                (Some(letter), _) => text.push(letter),
                (None, _) => {
                    self.broken = true;
                    break;
                }
            }
        }
        self.unknown(PatternUnit::Many, "`…`", !quoted);
        let inner = lex_within(&text, self.depth + 1);
        self.broken |= inner.broken;
        self.done.absorb(inner);
    }

    /// Reads `[…]`, which is a character class in a word, or the program `[`.
    pub(super) fn bracket(&mut self) {
        let rest = &self.chars[self.at..];
        let blank = |letter: Option<&char>| letter.is_none_or(|letter| " \t\n;&|<>()".contains(*letter));
        let first = self.frames.last().is_none_or(|frame| frame.word.is_none());
        let double = rest.first() == Some(&'[');
        if first && blank(rest.get(usize::from(double))) {
            self.plain('[');
            if double {
                self.at += 1;
                self.plain('[');
            }
            return;
        }
        let end = rest.iter().position(|letter| !letter.is_ascii_alphanumeric() && !"!^-_".contains(*letter));
        let end = end.filter(|end| *end > 0 && rest[*end] == ']' && !"!^".contains(rest[*end - 1]));
        let simple: Option<String> = end.map(|end| rest[..=end].iter().collect());
        let assigns = end.is_some_and(|end| matches!(rest.get(end + 1), Some('=' | '+')));
        let named = self
            .frame()
            .word
            .as_ref()
            .is_some_and(|word| !word.open && !word.quoted && cases::is_name(&word.text));
        if let Some(written) = simple {
            if named && assigns {
                self.done.sums.push(written.trim_end_matches(']').to_owned());
            }
            self.at += written.chars().count();
            // A range such as `a-z` may contain other characters, too, depending on the locale.
            self.unknown(PatternUnit::One, &format!("[{written}"), false);
            return;
        }
        // The word may be an assignment whose subscript contains blanks and other characters.
        self.broken |= named;
        self.unknown(PatternUnit::Many, "[", false);
        self.word().swallows = true;
    }

    /// Reads a list such as `{a,b}`, which stands for several words.
    pub(super) fn brace(&mut self) {
        let rest = &self.chars[self.at..];
        let is_plain = |letter: char| letter.is_alphanumeric() || "_-+./=:@%".contains(letter);
        let end = rest.iter().position(|letter| !is_plain(*letter) && *letter != ',');
        let stop = end.map_or(' ', |end| rest[end]);
        let inner: String = rest[..end.unwrap_or(rest.len())].iter().collect();
        let lists = inner.contains(',') || inner.contains("..");
        if stop == '}' && !lists {
            return self.plain('{');
        }
        if stop == '}' {
            let length = inner.chars().count() + 1;
            let behind: String = rest[length..].iter().take_while(|letter| is_plain(**letter)).collect();
            let ends =
                rest.get(length + behind.chars().count()).is_none_or(|next| " \t\n;&|)<>".contains(*next));
            let before =
                self.frame().word.as_ref().map_or(Some(String::new()), |word| {
                    (!word.open && !word.quoted).then(|| word.text.clone())
                });
            self.at += length;
            self.unknown(PatternUnit::Many, &format!("{{{inner}}}"), true);
            let listed = |before: &String| {
                let length = before.len() + behind.len() + 1;
                length * (inner.matches(',').count() + 1) <= MAX_LIST_BYTES
            };
            if let Some(before) = before.filter(|before| ends && !inner.contains("..") && listed(before)) {
                self.at += behind.chars().count();
                behind.chars().for_each(|letter| self.plain(letter));
                let words = inner.split(',').map(|word| format!("{before}{word}{behind}"));
                self.word().several = words.filter(|word| !word.is_empty()).collect();
            }
            return;
        }
        if rest.first().is_none_or(|next| " \t\n;&|<>()".contains(*next)) {
            return self.plain('{');
        }
        // The list is too long. Its text is still read, but the resulting words are unknown.
        self.unknown(PatternUnit::Many, "{", true);
        self.word().swallows = true;
    }
}
