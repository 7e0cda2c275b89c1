//! `test`, `[` and `printf`: builtins of most shells that evaluate some of their arguments.
//!
//! A variable name may have a subscript, and `a[$(command)]` runs the command. bash accepts names after `-v`;
//! ksh and zsh read every number as an expression, which may contain names and subscripts.

const NUMERIC: [&str; 6] = ["-eq", "-ne", "-lt", "-le", "-gt", "-ge"];

/// Returns `true` if `[` evaluates none of these words. `[` is `test` with a closing bracket as the last
/// word.
pub(super) fn bracket_reads(words: &[&str]) -> bool {
    matches!(words.split_last(), Some((&"]", words)) if test_reads(words))
}

pub(super) fn test_reads(words: &[&str]) -> bool {
    let number = |at: Option<usize>| at.and_then(|at| words.get(at)).is_some_and(|word| is_number(word));
    words.iter().enumerate().all(|(at, word)| match *word {
        "-v" | "-R" => false,
        "-t" => number(Some(at + 1)),
        word if NUMERIC.contains(&word) => number(at.checked_sub(1)) && number(Some(at + 1)),
        word => !may_run(word),
    })
}

pub(super) fn printf_reads(words: &[&str]) -> bool {
    let words = words.strip_prefix(&["--"]).unwrap_or(words);
    let Some((format, values)) = words.split_first() else { return false };
    if format.starts_with('-') || may_run(format) {
        return false;
    }
    match takes_texts(format) {
        true => !values.iter().any(|value| may_run(value)),
        false => values.iter().all(|value| is_number(value)),
    }
}

/// Returns `true` if every conversion in a `printf` format takes its argument as a literal text, in all
/// shells.
pub(in crate::command) fn takes_texts(format: &str) -> bool {
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            continue;
        }
        let conversion = letters.find(|letter| !letter.is_ascii_digit() && !"-+ #0.".contains(*letter));
        if !matches!(conversion, Some('s' | 'b' | 'q' | '%')) {
            return false;
        }
    }
    true
}

fn may_run(word: &str) -> bool {
    word.contains('[') && word.contains(['$', '`'])
}

fn is_number(word: &str) -> bool {
    let digits = word.strip_prefix(['-', '+']).unwrap_or(word);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}
