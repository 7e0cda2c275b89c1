//! Finds secrets in documents: after names with markup such as `**password**: …`, and in tables.

use std::ops::Range;

use super::name::{self, NamedValueKind};
use super::pair::behind_last;
use super::token_patterns;
use super::value::is_given;

const MARKS: [char; 3] = ['*', '`', '~'];

/// Finds the secrets of a line after names with markup: `` `password`: … ``, `**password:** …`.
pub(super) fn marked_names(
    line: &str,
    begin: usize,
    named: impl Fn(&str) -> Option<NamedValueKind>,
    found: &mut Vec<Range<usize>>,
) {
    for (at, sign) in line.match_indices(':') {
        let (before, after) = (&line[..at], &line[at + sign.len()..]);
        let name = before.trim_end_matches(MARKS);
        let rest = after.trim_start_matches(['*', '`', '~', '_']);
        let is_marked = name.len() < before.len() || rest.len() < after.len();
        if !is_marked || !rest.starts_with(' ') {
            continue;
        }
        let name = name::end_of(name);
        let name = &name[behind_last(name, |letter| MARKS.contains(&letter))..];
        let rest = rest.trim_start_matches(' ');
        if let Some(named) = classify(name, &named) {
            let value = &rest[..rest.find(char::is_whitespace).unwrap_or(rest.len())];
            find_value(value, begin + line.len() - rest.len(), Some(named), found);
        }
    }
}

/// Finds the secrets of tables: the cell after the name of a secret, and all cells of a column with such a
/// name.
pub(super) fn tables(
    text: &str,
    named: impl Fn(&str) -> Option<NamedValueKind>,
    found: &mut Vec<Range<usize>>,
) {
    if !text.contains('|') {
        return;
    }
    let (mut header, mut columns): (&str, Vec<Option<NamedValueKind>>) = ("", Vec::new());
    let mut begin = 0;
    for line in text.split('\n') {
        let start = begin;
        begin += line.len() + 1;
        let is_ruler = line.contains('-')
            && line.chars().all(|letter| letter.is_whitespace() || matches!(letter, '|' | '+' | '-' | ':'));
        if is_ruler {
            // In a table for terminals, the header is between two ruled lines. Another table may follow.
            columns = cells(header, 0).map(|(_, cell)| classify(cell, &named)).collect();
            header = "";
            continue;
        }
        header = line;
        if columns.iter().any(Option::is_some) {
            match cells(line, start).count() == columns.len() {
                true => cells(line, start)
                    .zip(&columns)
                    .for_each(|((at, cell), column)| find_cell(cell, at, *column, found)),
                false => columns.clear(),
            }
        }
        // Lines without a leading bar may be commands joined by a pipe.
        if line.trim_start().starts_with('|') {
            let mut cells = cells(line, start);
            let mut name = cells.next().and_then(|(_, cell)| classify(cell, &named));
            for (at, cell) in cells {
                find_value(cell, at, name, found);
                name = classify(cell, &named);
            }
        }
    }
}

/// Returns the trimmed cells of a table line, and their positions in the text.
fn cells(line: &str, begin: usize) -> impl Iterator<Item = (usize, &str)> {
    let inner = line.trim();
    let inner = inner.strip_prefix('|').unwrap_or(inner);
    let inner = inner.strip_suffix('|').unwrap_or(inner);
    let mut at = begin + inner.as_ptr().addr() - line.as_ptr().addr();
    inner.split('|').map(move |cell| {
        let start = at + cell.len() - cell.trim_start().len();
        at += cell.len() + 1;
        (start, cell.trim())
    })
}

fn classify(name: &str, named: impl Fn(&str) -> Option<NamedValueKind>) -> Option<NamedValueKind> {
    named(name::end_of(name)).filter(|named| named.is_secret() || *named == NamedValueKind::TokenLike)
}

/// Finds the secret in a value that only its name indicates. If the name has no markup, the value may be a
/// word of a sentence.
fn find_value(value: &str, begin: usize, named: Option<NamedValueKind>, found: &mut Vec<Range<usize>>) {
    let (offset, shown) = inner(value);
    if offset > 0 || name::is_token_like(shown) {
        find_cell(value, begin, named, found);
    }
}

/// Finds the secret of a table cell, which contains only a value.
fn find_cell(cell: &str, begin: usize, named: Option<NamedValueKind>, found: &mut Vec<Range<usize>>) {
    let (offset, shown) = inner(cell);
    let is_secret = named.is_some_and(|named| named.accepts(shown))
        && NamedValueKind::UnlessPattern.accepts(shown)
        && token_patterns::can_be_value(shown.as_bytes(), usize::MAX)
        && !shown.contains("://")
        && is_given(shown.as_bytes());
    if is_secret {
        found.push(begin + offset..begin + offset + shown.len());
    }
}

/// Returns a value without markup, quotes and the end of a sentence, with its start position.
fn inner(value: &str) -> (usize, &str) {
    let is_around = |letter: char| MARKS.contains(&letter) || matches!(letter, '"' | '\'');
    let shown = value.trim_start_matches(is_around);
    let end = |letter: char| is_around(letter) || matches!(letter, '.' | ',' | ';');
    (value.len() - shown.len(), shown.trim_end_matches(end))
}
