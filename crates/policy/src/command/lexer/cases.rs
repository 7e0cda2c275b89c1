//! Parentheses, and the branches of `case`. The closing parenthesis after a pattern has no opening one.

use super::{Lexer, Open, Raw};
use crate::command::{Word, listed};
use crate::text_pattern::PatternUnit;

/// Commands whose arguments may be assignments.
pub(in crate::command) const DECLARERS: &str =
    "declare typeset local export readonly integer float nameref global";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    Word,
    In,
    Pattern,
    Commands,
}

impl Lexer {
    pub(super) fn in_pattern(&mut self) -> bool {
        self.frame().cases.last() == Some(&Case::Pattern)
    }

    /// Ends a word. Returns `true` if the word was in a pattern of a `case`, and another pattern follows.
    pub(super) fn goes_on_in_pattern(&mut self) -> bool {
        self.in_pattern() && {
            self.end_word();
            // `esac` ends the last branch, and no further pattern follows.
            self.in_pattern()
        }
    }

    pub(super) fn before_patterns(&mut self) -> bool {
        matches!(self.frame().cases.last(), Some(Case::Word | Case::In))
    }

    /// Adds a word to a `case`. Returns `false` if the word belongs to a command in a branch.
    pub(super) fn add_to_case(&mut self, word: &Word, keyword: bool) -> bool {
        let frame = self.frame();
        match (frame.cases.last().copied(), word.text.as_str()) {
            (Some(Case::Word), _) => {
                frame.cases.pop();
                frame.cases.push(Case::In);
            }
            (Some(Case::In), text) => {
                frame.cases.pop();
                if text != "in" || word.open.is_some() {
                    self.broken = true;
                    return false;
                }
                frame.cases.push(Case::Pattern);
                frame.raw.words.push(word.clone());
                self.done.plain = false;
                self.end_part();
                return true;
            }
            (Some(Case::Pattern | Case::Commands), "esac") if keyword => {
                frame.cases.pop();
            }
            (Some(Case::Pattern), _) => {}
            (_, "case") if keyword => frame.cases.push(Case::Word),
            _ => {}
        }
        false
    }

    /// Reads the end of a branch: `;;`, `;&` or `;;&`.
    pub(super) fn end_branch(&mut self) {
        self.end_word();
        while matches!(self.peek(0), Some(';' | '&')) {
            self.at += 1;
        }
        match self.frame().cases.last_mut() {
            Some(case @ Case::Commands) => *case = Case::Pattern,
            _ => self.broken = true,
        }
        self.done.plain = false;
        self.end_part();
    }

    pub(super) fn open_paren(&mut self) {
        self.done.plain = false;
        self.broken |= self.frame().condition || self.frame().open == Open::Array;
        if self.in_pattern() && self.frame().is_empty() {
            return;
        }
        self.broken |= self.in_pattern() || self.before_patterns();
        if self.peek(0) == Some('(') && self.frame().word.is_none() && self.sum_command() {
            return;
        }
        if self.frame().is_empty() {
            self.end_part();
            self.open(Open::Paren);
            return;
        }
        if self.frame().word.as_ref().is_some_and(|word| word.text.ends_with('=')) {
            return self.open_array();
        }
        let blanks = self.chars[self.at..].iter().take_while(|letter| matches!(letter, ' ' | '\t')).count();
        self.end_word();
        let frame = self.frame();
        let words: Vec<&str> = frame.raw.words.iter().map(|word| word.text.as_str()).collect();
        let named = matches!(words[..], [name] | ["function", name] if is_name(name)) && frame.raw.sure;
        if named && self.peek(blanks) == Some(')') {
            // After the parentheses of a function definition, its commands follow.
            self.at += blanks + 1;
            self.frame().raw.sure = false;
            return self.end_part();
        }
        let leads = self.frame().at_command() && self.frame().word.is_none();
        self.broken |= !leads;
        self.end_part();
        self.open(Open::Paren);
    }

    fn open_array(&mut self) {
        const MAX_WORDS_BEFORE: usize = 64;
        let declares = |word: &Word| listed(DECLARERS, &word.text);
        self.broken |= self.frame().raw.words.len() > MAX_WORDS_BEFORE;
        let frame = self.frame();
        let assigned = frame.raw.words.iter().take(MAX_WORDS_BEFORE).all(|word| is_assignment(&word.text));
        let declared = frame.raw.words.iter().take(MAX_WORDS_BEFORE).any(declares);
        let whole = frame.word.as_ref().is_some_and(|word| is_assignment(&word.text) && !word.quoted);
        self.broken |= !whole || !(assigned || declared);
        self.unknown(PatternUnit::Many, "(…)", false);
        self.open(Open::Array);
    }

    pub(super) fn close_paren(&mut self) {
        self.end_word();
        if self.in_pattern() {
            let frame = self.frame();
            let raw = std::mem::replace(&mut frame.raw, Raw { sure: true, ..Raw::default() });
            frame.cases.pop();
            frame.cases.push(Case::Commands);
            self.done.plain = false;
            self.broken |= raw.words.is_empty() || frame_has_files(&raw);
            return;
        }
        let depth = self.frames.len();
        let frame = self.frame();
        let open = !frame.quotes.is_empty() || !frame.cases.is_empty() || frame.condition;
        // In an array value, the shell evaluates the subscript of `[subscript]=…`.
        let subscript = |word: &Word| {
            let number = word.text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
            word.text.starts_with('[')
                && !number.is_some_and(|(number, _)| number.bytes().all(|byte| byte.is_ascii_digit()))
        };
        let evaluates = frame.open == Open::Array && frame.raw.words.iter().any(subscript);
        self.broken |= open || evaluates || self.waiting.iter().any(|waiting| waiting.depth == depth);
        self.end_part();
        if self.frame().open == Open::Top {
            self.broken = true;
        } else {
            self.frames.pop();
        }
    }
}

fn frame_has_files(raw: &Raw) -> bool {
    !raw.writes.is_empty() || !raw.reads.is_empty()
}

/// Returns `true` if a text begins like an assignment: `name=` or `name[subscript]=`.
pub(in crate::command) fn is_assignment(text: &str) -> bool {
    let Some((name, _)) = text.split_once('=') else { return false };
    let name = name.strip_suffix('+').unwrap_or(name);
    let name = name.split_once('[').map_or(name, |(name, _)| name);
    is_name(name)
}

pub(in crate::command) fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|letter: char| letter.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
