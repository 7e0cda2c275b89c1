//! Texts that a shell evaluates as numbers: `$((…))`, `((…))`, subscripts and substring positions.
//!
//! Only the simplest forms are read. A text of any other form may end at another position, or run a command.

use super::{Lexer, lex_within};
use crate::text_pattern::PatternUnit;

const MAX_PARAMETER_CHARS: usize = 256;

impl Lexer {
    /// Reads `$((…))` from the first parenthesis on. Returns `false` if the text is no arithmetic expansion.
    pub(super) fn sum(&mut self) -> bool {
        let Some(length) = self.simple_sum(2, false) else { return false };
        self.take_sum(2, length);
        let bare = self.is_bare();
        self.unknown(PatternUnit::Many, "$((…))", bare);
        true
    }

    /// Reads the command `((…))` after its first parenthesis. Returns `false` if the text is no such command.
    pub(super) fn sum_command(&mut self) -> bool {
        let frame = self.frame();
        let counts = matches!(&frame.raw.words[..], [word] if word.text == "for" && word.open.is_none());
        let command = frame.at_command();
        if !(command || counts) {
            return false;
        }
        let Some(length) = self.simple_sum(1, counts) else {
            self.broken = true;
            return false;
        };
        let text = self.take_sum(1, length);
        if counts {
            self.frame().raw.sure = false;
            self.end_part();
            return true;
        }
        // Shells without `((…))` read the text as a list of commands.
        let inner = lex_within(&text, self.depth + 1);
        self.broken |= inner.broken && self.depth == super::MAX_DEPTH;
        self.done.absorb(super::Lexed { broken: false, ..inner });
        self.frame().raw.sure = false;
        self.end_part();
        true
    }

    fn take_sum(&mut self, skip: usize, length: usize) -> String {
        let from = self.at + skip;
        let text: String = self.chars[from..from + length].iter().collect();
        self.at = from + length + 2;
        self.done.plain = false;
        self.done.sums.push(text.clone());
        text
    }

    /// Returns the length of the simple expression that begins `skip` characters ahead. Two parentheses end
    /// the expression.
    fn simple_sum(&self, skip: usize, several: bool) -> Option<usize> {
        const MAX_SUM_CHARS: usize = 1024;
        let rest = self.chars.get(self.at + skip..)?;
        let rest = &rest[..rest.len().min(MAX_SUM_CHARS)];
        let (mut depth, mut at) = (0_usize, 0);
        while let Some(letter) = rest.get(at) {
            let next = rest.get(at + 1).copied();
            at += match letter {
                '(' => {
                    depth += 1;
                    1
                }
                ')' if depth > 0 => {
                    depth -= 1;
                    1
                }
                ')' => return (next == Some(')')).then_some(at),
                ';' if several => 1,
                '$' if next.is_some_and(|next| next.is_ascii_alphanumeric() || "_?#$!".contains(next)) => 2,
                '$' if next == Some('{') => {
                    let is_name = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '_';
                    let from = at + 2 + usize::from(rest.get(at + 2) == Some(&'#'));
                    let end = from
                        + rest[from.min(rest.len())..].iter().take_while(|letter| is_name(letter)).count();
                    if end == from || rest.get(end) != Some(&'}') {
                        return None;
                    }
                    end + 1 - at
                }
                letter if is_simple(*letter) => 1,
                _ => return None,
            };
        }
        None
    }

    /// Reads those parts between `${` and `}` that are evaluated or change something.
    pub(super) fn parameter(&mut self) {
        let rest: String = self.chars[self.at..].iter().take(MAX_PARAMETER_CHARS).collect();
        // If the closing brace is beyond the limit, the text cannot be read.
        self.broken |= !rest.contains('}');
        // Newer shells run the commands in `${ …; }`, and zsh has flags in `${(…)…}`.
        self.broken |= rest.starts_with([' ', '\t', '\n', '|', '(', '<', '>', '&', ';']);
        let indirect = rest.starts_with('!');
        let begun = rest.trim_start_matches(['!', '#', '^', '=', '~', '+']);
        let name: String =
            begun.chars().take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_').collect();
        let mut behind = &begun[name.len()..];
        if name.is_empty() {
            behind = behind.strip_prefix(['@', '*', '#', '?', '-', '$', '!']).unwrap_or(behind);
        }
        if let Some(subscript) = behind.strip_prefix('[') {
            let Some((inside, after)) = subscript.split_once(']') else {
                self.broken = true;
                return;
            };
            match inside {
                "@" | "*" => {}
                inside if inside.chars().all(|letter| is_simple(letter) || letter == '$') => {
                    self.done.sums.push(inside.to_owned());
                }
                _ => self.broken = true,
            }
            behind = after;
        }
        let lists = behind.starts_with(['@', '*']) && behind[1..].starts_with('}');
        self.broken |= indirect && name.is_empty();
        if indirect && !lists {
            self.done.followed.push(name.clone());
        }
        match behind.strip_prefix(':') {
            Some(word) if word.starts_with(['-', '?', '+']) => {}
            Some(word) if word.starts_with('=') => self.done.assigned.push(name),
            Some(numbers) => match numbers.split_once('}') {
                Some((numbers, _))
                    if numbers.chars().all(|letter| is_simple(letter) || letter == '$' || letter == ':') =>
                {
                    self.done.sums.push(numbers.to_owned());
                }
                _ => self.broken = true,
            },
            None if behind.starts_with('=') => self.done.assigned.push(name),
            // `${x@P}` evaluates the value as a prompt, which may run commands.
            None if behind.starts_with('@') => {
                self.broken |= !behind[1..].starts_with(['Q', 'U', 'u', 'L', 'a', 'k', 'K', 'E', '}']);
            }
            None => {}
        }
    }
}

fn is_simple(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || " \t\n_+-*/%<>=!&|^~?:,()[]".contains(letter)
}
