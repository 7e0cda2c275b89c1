//! A table that is shown again and again fits the terminal: what is too long for it would scroll away its beginning.

use std::io;

/// As many lines and columns as the terminal of our stdout has, if it says so.
pub(super) fn terminal() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    let (rows, columns) = (usize::from(size.ws_row), usize::from(size.ws_col));
    (rows > 0 && columns > 0).then_some((rows, columns))
}

/// The beginning of `text` that fits, and in the last line how much does not. No line ends the last row: that would scroll.
pub(super) fn fit(text: &str, (rows, columns): (usize, usize)) -> String {
    let all = text.lines().count();
    let shown = if all <= rows { all } else { rows.saturating_sub(1) };
    let mut lines: Vec<String> = text.lines().take(shown).map(|line| cut(line, columns)).collect();
    if shown < all {
        lines.push(cut(&format!("… {} more", all - shown), columns));
    }
    lines.join("\n")
}

fn cut(line: &str, columns: usize) -> String {
    match line.chars().count() {
        count if count <= columns => line.to_owned(),
        _ => line.chars().take(columns.saturating_sub(1)).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_does_not_fit_is_counted() {
        #[track_caller]
        fn check(text: &str, size: (usize, usize), expected: &str) {
            assert_eq!(fit(text, size), expected, "{text:?} {size:?}");
        }
        check("a\nb\nc\n", (3, 9), "a\nb\nc");
        check("a\nb\nc\n", (2, 9), "a\n… 2 more");
        check("a\nb\nc\n", (1, 9), "… 3 more");
        check("long line\nb\n", (9, 5), "long…\nb");
        check("ä\u{2026}b", (9, 3), "ä…b");
        check("", (9, 9), "");
    }

    proptest! {
        #[test]
        fn nothing_is_larger_than_the_terminal(text in "(\\PC{0,9}\n){0,9}", rows in 1..9usize, columns in 1..9usize) {
            let fitted = fit(&text, (rows, columns));
            prop_assert!(fitted.lines().count() <= rows && fitted.lines().all(|line| line.chars().count() <= columns), "{fitted:?}");
        }
    }
}
