//! Expansions: variables, arithmetic, and output of commands.

use super::Parser;

/// Characters of an arithmetic expression that all shells interpret equally.
const SUM: &str = " \t\n_+-*/%<>=!&|?:,";

/// Characters that are literal between the operator and the closing brace of `${x…}`.
const PLAIN: &str = " _./:,+@%*?=~^-[]";

impl Parser {
    /// Reads an expansion that begins with a dollar sign. `quoted` is `true` between double quotes.
    pub(super) fn dollar(&mut self, quoted: bool) -> Option<()> {
        self.at += 1;
        match self.peek(0) {
            Some('(') if self.peek(1) == Some('(') => {
                self.at += 2;
                self.sum(")", false)?;
            }
            Some('(') => {
                self.at += 1;
                self.parenthesis()?;
            }
            Some('{') => {
                self.at += 1;
                self.parameter()?;
            }
            Some('\'') if !quoted => {
                self.at += 1;
                return self.escapes();
            }
            Some('"') if !quoted => return None,
            Some('[') => return None,
            Some(letter) if letter.is_ascii_alphabetic() || letter == '_' => {
                self.name()?;
            }
            Some(letter) if letter.is_ascii_digit() || "@*#?$!-".contains(letter) => self.at += 1,
            Some('\\') if self.peek(1) == Some('\n') => return None,
            // The dollar sign is literal, for example at the end of a regular expression.
            _ => return Some(()),
        }
        // zsh evaluates a subscript after a variable.
        (self.peek(0) != Some('[')).then_some(())
    }

    /// Reads `$'…'` after its opening quote.
    fn escapes(&mut self) -> Option<()> {
        loop {
            let letter = self.peek(0)?;
            self.at += 1;
            match letter {
                '\'' => return Some(()),
                '\\' => {
                    self.peek(0).filter(|next| matches!(next, 'n' | 't' | '\\'))?;
                    self.at += 1;
                }
                _ => {}
            }
        }
    }

    /// Reads an arithmetic expression up to `end`, after the opening parentheses. `several` allows three
    /// expressions, as in `for ((…))`.
    pub(super) fn sum(&mut self, end: &str, several: bool) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            let letter = self.peek(0)?;
            match letter {
                '(' => depth += 1,
                ')' if depth == 0 => {
                    self.at += 1;
                    return self.skip(end).then_some(());
                }
                ')' => depth -= 1,
                ';' if several => {}
                '$' => {
                    // A variable is allowed. Another module checks which values it can have.
                    let next = self.peek(1)?;
                    let plain = next.is_ascii_alphanumeric() || "_#?{(".contains(next);
                    plain.then_some(())?;
                    self.dollar(true)?;
                    continue;
                }
                letter if letter.is_ascii_alphanumeric() || SUM.contains(letter) => {}
                _ => return None,
            }
            self.at += 1;
        }
    }

    /// Reads `${…}` after its opening brace.
    fn parameter(&mut self) -> Option<()> {
        let length = self.peek(0) == Some('#') && self.peek(1) != Some('}');
        self.at += usize::from(length);
        match self.peek(0)? {
            letter if letter.is_ascii_digit() || "@*#?".contains(letter) => {
                let is_digit = |letter: &&char| letter.is_ascii_digit();
                self.at += self.chars[self.at..].iter().take_while(is_digit).count().max(1);
            }
            _ => {
                self.name()?;
            }
        }
        if self.peek(0) == Some('[') {
            let rest = &self.chars[self.at + 1..];
            let end = rest.iter().position(|letter| *letter == ']')?;
            let whole = matches!(rest[..end], ['@' | '*']);
            (end > 0 && (whole || rest[..end].iter().all(char::is_ascii_digit))).then_some(())?;
            self.at += end + 2;
        }
        if self.skip("}") {
            return Some(());
        }
        if length {
            return None;
        }
        const OPERATORS: [&str; 18] = [
            ":-", ":+", ":?", ":=", "##", "%%", "//", "/#", "/%", ",,", "^^", "-", "+", "?", "=", "#", "%",
            "/",
        ];
        let operator = OPERATORS.iter().find(|operator| self.follows(operator));
        match operator {
            Some(operator) => self.at += operator.len(),
            None if matches!(self.peek(0), Some(',' | '^')) => self.at += 1,
            None => return self.piece(),
        }
        loop {
            match self.peek(0)? {
                '}' => {
                    self.at += 1;
                    return Some(());
                }
                '$' => self.dollar(true)?,
                '`' => self.backtick()?,
                letter if letter.is_alphanumeric() || PLAIN.contains(letter) => self.at += 1,
                _ => return None,
            }
        }
    }

    /// Reads the rest of a substring expansion: `:2}` or `:2:3}`.
    fn piece(&mut self) -> Option<()> {
        for _ in 0..2 {
            let digits =
                self.chars.get(self.at + 1..)?.iter().take_while(|letter| letter.is_ascii_digit()).count();
            if self.peek(0) != Some(':') || digits == 0 {
                break;
            }
            self.at += digits + 1;
        }
        self.skip("}").then_some(())
    }

    /// Reads a command in backticks that contains no backslashes.
    pub(super) fn backtick(&mut self) -> Option<()> {
        self.at += 1;
        let rest = &self.chars[self.at..];
        let length = rest.iter().position(|letter| *letter == '`')?;
        let inner: String = rest[..length].iter().collect();
        (!inner.contains('\\') && self.documents.is_empty()).then_some(())?;
        let mut parser = self.nested(&inner);
        parser.list(&[])?;
        (parser.at == parser.chars.len() && parser.documents.is_empty()).then_some(())?;
        self.at += length + 1;
        Some(())
    }
}
