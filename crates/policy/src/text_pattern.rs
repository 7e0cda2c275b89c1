//! Texts with unknown parts, and tests if two of them can be equal.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum PatternUnit {
    Char(char),
    One,
    /// Any text, also an empty one.
    Many,
}

/// A text with unknown parts: a pattern of a rule, or a word that a shell expands.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct TextPattern(pub(crate) Vec<PatternUnit>);

impl TextPattern {
    pub(crate) fn exact(text: &str) -> Self {
        Self(text.chars().map(PatternUnit::Char).collect())
    }

    /// Parses a pattern in which `*` stands for any text and, if `one` is set, `?` for any character.
    pub(crate) fn glob(text: &str, one: bool) -> Self {
        Self(units(text, one).collect())
    }

    /// Returns `true` if no part of the text is known.
    pub(crate) fn is_unknown(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(|unit| *unit == PatternUnit::Many)
    }

    pub(crate) fn text(&self) -> Option<String> {
        let mut text = String::with_capacity(self.0.len());
        for unit in &self.0 {
            let PatternUnit::Char(letter) = unit else { return None };
            text.push(*letter);
        }
        Some(text)
    }

    /// Returns `true` if the pattern matches this text. Faster than [`meets`](Self::meets) with a pattern for
    /// exactly this text.
    pub(crate) fn describes(&self, text: &str, case: Case) -> bool {
        // Fast path: most texts that do not match differ in their last character.
        let ends_otherwise = match (self.0.last(), text.chars().next_back()) {
            (Some(PatternUnit::Char(wanted)), Some(letter)) => !case.same(*wanted, letter),
            _ => false,
        };
        !ends_otherwise && describes(self.0.iter().copied(), text, case)
    }

    /// Returns `true` if at least one text matches both patterns.
    pub(crate) fn meets(&self, other: &Self, case: Case) -> bool {
        let fits = |a: &PatternUnit, b: &PatternUnit| match (a, b) {
            (PatternUnit::Char(a), PatternUnit::Char(b)) => case.same(*a, *b),
            _ => true,
        };
        let many = |unit: &PatternUnit| *unit == PatternUnit::Many;
        // Fast path: most words that do not match differ at one end, so single units are compared from both
        // ends first.
        let (mut a, mut b) = (&self.0[..], &other.0[..]);
        while let ([x, behind_a @ ..], [y, behind_b @ ..]) = (a, b) {
            if many(x) || many(y) {
                break;
            }
            if !fits(x, y) {
                return false;
            }
            (a, b) = (behind_a, behind_b);
        }
        while let ([before_a @ .., x], [before_b @ .., y]) = (a, b) {
            if many(x) || many(y) {
                break;
            }
            if !fits(x, y) {
                return false;
            }
            (a, b) = (before_a, before_b);
        }
        meet(a, b, many, many, fits)
    }
}

fn units(text: &str, one: bool) -> impl Iterator<Item = PatternUnit> + Clone {
    text.chars().map(move |letter| match letter {
        '*' => PatternUnit::Many,
        '?' if one => PatternUnit::One,
        other => PatternUnit::Char(other),
    })
}

/// Returns `true` if a text matches a pattern in which `*` is any text.
pub(crate) fn is_like(text: &str, pattern: &str, case: Case) -> bool {
    describes(units(pattern, false), text, case)
}

fn describes(pattern: impl Iterator<Item = PatternUnit> + Clone, text: &str, case: Case) -> bool {
    let (mut units, mut letters) = (pattern, text.chars());
    // The pattern after the last `Many`, and the position in the text at which it was last tried.
    let mut last = None;
    loop {
        let unit = units.next();
        if unit == Some(PatternUnit::Many) {
            last = Some((units.clone(), letters.clone()));
            continue;
        }
        let fits = match (unit, letters.next()) {
            (None, None) => return true,
            (Some(_), None) => return false,
            (Some(PatternUnit::Char(wanted)), Some(letter)) => case.same(wanted, letter),
            (Some(PatternUnit::One), Some(_)) => true,
            (Some(PatternUnit::Many) | None, Some(_)) => false,
        };
        if fits {
            continue;
        }
        // The last `Many` stands for one more character.
        let Some((behind, from)) = &mut last else { return false };
        from.next();
        (units, letters) = (behind.clone(), from.clone());
    }
}

/// How upper and lower case are compared. Some disks ignore case. So rules that forbid ignore case, and rules
/// that permit do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    Same,
    Different,
}

impl Case {
    fn same(self, a: char, b: char) -> bool {
        match self {
            _ if a == b => true,
            Self::Different => false,
            Self::Same if a.is_ascii() && b.is_ascii() => a.eq_ignore_ascii_case(&b),
            Self::Same => a.to_lowercase().eq(b.to_lowercase()),
        }
    }
}

/// Returns `true` if two sequences can be equal. An element that `many_a` or `many_b` accepts stands for any
/// number of elements.
pub(crate) fn meet<A, B>(
    a: &[A],
    b: &[B],
    many_a: impl Fn(&A) -> bool,
    many_b: impl Fn(&B) -> bool,
    same: impl Fn(&A, &B) -> bool,
) -> bool {
    // After round `i`, `row[j]` is `true` if the first `i` elements of `a` can equal the first `j` of `b`.
    let mut row = vec![false; b.len() + 1];
    row[0] = true;
    for (at, y) in b.iter().enumerate() {
        row[at + 1] = row[at] && many_b(y);
    }
    for x in a {
        let wide = many_a(x);
        let mut diagonal = row[0];
        row[0] &= wide;
        for (at, y) in b.iter().enumerate() {
            let above = row[at + 1];
            row[at + 1] = if wide || many_b(y) { above || row[at] } else { diagonal && same(x, y) };
            diagonal = above;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(a: &str, b: &str, expected: bool) {
        let (a, b) = (TextPattern::glob(a, true), TextPattern::glob(b, true));
        assert_eq!(a.meets(&b, Case::Different), expected, "{a:?} {b:?}");
        assert_eq!(b.meets(&a, Case::Different), expected, "{b:?} {a:?}");
    }

    #[test]
    fn patterns_meet_if_one_text_matches_both() {
        check("", "", true);
        check("", "*", true);
        check("", "a", false);
        check("push", "push", true);
        check("push", "pu*", true);
        check("pu*", "*sh", true);
        check("a*", "b*", false);
        check("*.o", "*.pem", false);
        check("?", "", false);
        check("?", "*", true);
        check("a?c", "ab*", true);
        check("**", "x", true);
        check("Push", "push", false);
        check("ab", "ab*ab", false);
        check("ab*ab", "abab", true);
        check("aba", "ab*ba", false);
        assert!(TextPattern::exact(".GIT").meets(&TextPattern::exact(".git"), Case::Same));
    }

    proptest! {
        /// If one side has no unknown parts, the result equals that of a naive implementation of matching.
        #[test]
        fn matching_agrees_with_a_naive_implementation(pattern in "[ab*?]{0,8}", text in "[ab]{0,8}") {
            fn slow(pattern: &[char], text: &[char]) -> bool {
                match pattern.split_first() {
                    None => text.is_empty(),
                    Some(('*', rest)) => (0..=text.len()).any(|from| slow(rest, &text[from..])),
                    Some(('?', rest)) => !text.is_empty() && slow(rest, &text[1..]),
                    Some((letter, rest)) => text.first() == Some(letter) && slow(rest, &text[1..]),
                }
            }
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            let expected = slow(&chars(&pattern), &chars(&text));
            let met = TextPattern::glob(&pattern, true).meets(&TextPattern::exact(&text), Case::Different);
            prop_assert_eq!(met, expected);
        }

        #[test]
        fn describing_a_text_agrees_with_meeting_it(pattern in "[aAéÉ*?]{0,8}", text in "[aAéÉK\u{212a}*]{0,8}") {
            for case in [Case::Different, Case::Same] {
                let met = |one: bool| TextPattern::glob(&pattern, one).meets(&TextPattern::exact(&text), case);
                prop_assert_eq!(TextPattern::glob(&pattern, true).describes(&text, case), met(true));
                prop_assert_eq!(is_like(&text, &pattern, case), met(false));
            }
        }
    }
}
