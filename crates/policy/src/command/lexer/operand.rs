//! Literal operands between `${` and `}`, which are inserted if a variable is not set, or in place of a part
//! of its value.
//!
//! The value of a variable is unknown, but an operand is literal. A word gets one alternative for every
//! operand, and one with all operands, so that a path in an operand counts like a path in a word.

use super::{Building, Lexer};
use crate::text_pattern::{PatternUnit, TextPattern};

/// Maximum number of units in all operands of one word. Every operand is examined together with the whole
/// word.
const MAX_OPERAND_UNITS: usize = 4096;

/// Maximum number of expansions with an operand in one word.
const MAX_OPERANDS: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// The operand is inserted unchanged: `${x:-y}`.
    Whole,
    /// The part of the operand after the slash is inserted: `${x/pattern/text}`.
    BehindSlash,
    /// The operand is a pattern to remove or a number, and is never inserted: `${x%y}`, `${x:1:2}`.
    Never,
}

#[derive(Debug)]
pub(super) struct Operand {
    /// Position at which the operand begins, after the name and the operator.
    from: usize,
    usage: Use,
    units: Vec<PatternUnit>,
}

/// An operand, with the position of its expansion in the word.
#[derive(Debug)]
pub(super) struct Filling {
    at: usize,
    texts: Vec<Vec<PatternUnit>>,
    /// `true` if the operand is part of another operand.
    nested: bool,
}

impl Lexer {
    pub(super) fn open_operand(&mut self) {
        let rest = &self.chars[self.at..];
        let is_name = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '_';
        let mut at = rest.iter().take_while(|letter| "!#^=~+".contains(**letter)).count();
        let name = rest[at..].iter().take_while(|letter| is_name(letter)).count();
        at += name;
        if name == 0 {
            // The name is a special parameter: `${@:-x}`, or `${#:-x}`, whose `#` was skipped already.
            at += usize::from(rest.get(at).is_some_and(|letter| "@*?-$".contains(*letter)));
        }
        if rest.get(at) == Some(&'[') {
            at += rest[at..].iter().position(|letter| *letter == ']').map_or(0, |end| end + 1);
        }
        let is_value = |letter: Option<&char>| letter.is_some_and(|letter| "-=+?".contains(*letter));
        let (length, usage) = match rest.get(at) {
            Some(':') if is_value(rest.get(at + 1)) => (2, Use::Whole),
            Some('/') => {
                let all = rest.get(at + 1).is_some_and(|letter| "/#%".contains(*letter));
                (1 + usize::from(all), Use::BehindSlash)
            }
            Some('%' | '#' | '^' | ',' | '@' | ':' | '}') if name > 0 => (1, Use::Never),
            letter => (usize::from(is_value(letter)), Use::Whole),
        };
        let from = self.at + at + length;
        self.frame().operands.push(Operand { from, usage, units: Vec::new() });
    }

    pub(super) fn close_operand(&mut self) {
        let Some(Operand { usage, mut units, .. }) = self.frame().operands.pop() else { return };
        units.truncate(MAX_OPERAND_UNITS);
        let texts: Vec<Vec<PatternUnit>> = match usage {
            Use::Whole => vec![units],
            Use::BehindSlash => {
                let slashes = units.iter().enumerate().filter(|(_, unit)| **unit == PatternUnit::Char('/'));
                let texts = slashes.map(|(at, _)| units[at + 1..].to_vec());
                texts.take(MAX_OPERANDS).collect()
            }
            Use::Never => Vec::new(),
        };
        let Some(text) = texts.first().filter(|text| !text.is_empty()) else { return };
        let outer = self.frame().operands.last_mut();
        let nested = outer.is_some();
        outer.into_iter().for_each(|outer| {
            // The operand replaces the unknown value that was added for its expansion.
            outer.units.pop_if(|unit| *unit == PatternUnit::Many);
            outer.units.extend_from_slice(text);
        });
        let word = self.word();
        let at = word.units.len().saturating_sub(1);
        word.fillings.push(Filling { at, texts, nested });
    }

    /// Adds a unit to the current operand. Returns `false` if no operand is being read.
    pub(super) fn add_to_operand(&mut self, unit: PatternUnit) -> bool {
        let at = self.at;
        let Some(operand) = self.frame().operands.last_mut() else { return false };
        if at > operand.from {
            operand.units.push(unit);
        }
        true
    }

    /// Adds an unquoted character of an operand. The character may be part of a file name pattern.
    pub(super) fn add_bare_to_operand(&mut self, letter: char) {
        const MAX_LETTERS: usize = 32;
        let class = || {
            let rest = &self.chars[self.at..];
            let is_listed = |letter: &char| letter.is_ascii_alphanumeric() || "!^-_".contains(*letter);
            let length = rest.iter().take(MAX_LETTERS).take_while(|letter| is_listed(letter)).count();
            (length > 0 && rest.get(length) == Some(&']')).then_some(length + 1)
        };
        let unit = match letter {
            '*' => PatternUnit::Many,
            '?' => PatternUnit::One,
            '[' => match class() {
                Some(length) => {
                    self.add_to_operand(PatternUnit::One);
                    self.at += length;
                    return;
                }
                None => PatternUnit::Char('['),
            },
            other => PatternUnit::Char(other),
        };
        self.add_to_operand(unit);
    }
}

impl Building {
    /// Returns all alternatives of the word in which expansions have the value of their operand. `None` if
    /// there are too many.
    pub(super) fn with_operands(&self) -> Option<Vec<TextPattern>> {
        if self.fillings.is_empty() {
            return Some(Vec::new());
        }
        let length = |filling: &Filling| filling.texts.iter().map(Vec::len).sum::<usize>();
        let all = self.fillings.iter().map(length).sum::<usize>();
        if self.fillings.len() > MAX_OPERANDS || all + self.units.len() > MAX_OPERAND_UNITS {
            return None;
        }
        let mut text_patterns = vec![self.filled(|filling| filling.texts.first().map(Vec::as_slice))];
        for filling in &self.fillings {
            let (before, behind) = (&self.units[..filling.at], self.units.get(filling.at + 1..));
            for text in &filling.texts {
                // The other expansions of the word may have any value, also an empty one.
                let unknown: &[PatternUnit] = if self.holes.len() > 1 { &[PatternUnit::Many] } else { &[] };
                text_patterns.push([before, unknown, text, unknown, behind.unwrap_or_default()].concat());
                let is_blank = |unit: &PatternUnit| matches!(unit, PatternUnit::Char(' ' | '\t' | '\n'));
                if text.iter().any(is_blank) {
                    text_patterns.extend(text.split(is_blank).map(<[PatternUnit]>::to_vec));
                }
                // A part of the word was not understood, so the position of the expansion is unknown.
                if self.swallows {
                    text_patterns.push(text.clone());
                }
            }
        }
        text_patterns.retain(|text_pattern| !text_pattern.is_empty());
        text_patterns.sort_by_key(Vec::len);
        text_patterns.dedup();
        Some(text_patterns.into_iter().map(TextPattern).collect())
    }

    pub(super) fn operands(self) -> Vec<TextPattern> {
        self.fillings.into_iter().flat_map(|filling| filling.texts).map(TextPattern).collect()
    }

    /// Returns the word in which `text` replaces each expansion for which it returns a text.
    fn filled<'a>(&'a self, text: impl Fn(&'a Filling) -> Option<&'a [PatternUnit]>) -> Vec<PatternUnit> {
        let mut units = Vec::new();
        for (at, unit) in self.units.iter().enumerate() {
            let mut here =
                self.fillings.iter().filter(|filling| filling.at == at && !filling.nested).peekable();
            match here.peek() {
                Some(_) => here.filter_map(&text).for_each(|text| units.extend_from_slice(text)),
                None => units.push(*unit),
            }
        }
        units
    }
}
