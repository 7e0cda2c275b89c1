//! Fits a repeated table to the terminal, so that its beginning is not scrolled away.

use std::io;

/// Returns the rows and columns of the terminal on stdout. `None` if stdout reports none.
pub(super) fn terminal_size() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    let (rows, columns) = (usize::from(size.ws_row), usize::from(size.ws_col));
    (rows > 0 && columns > 0).then_some((rows, columns))
}

/// Returns the part of `text` that fits, with a last line that counts the rest. The last row has no line end, which
/// would scroll.
pub(super) fn fit_to_terminal(text: &str, (rows, columns): (usize, usize)) -> String {
    let all = text.lines().count();
    let shown = if all <= rows { all } else { rows.saturating_sub(1) };
    let mut lines: Vec<String> = text.lines().take(shown).map(|line| truncate_line(line, columns)).collect();
    if shown < all {
        lines.push(truncate_line(&format!("… {} more", all - shown), columns));
    }
    lines.join("\n")
}

fn truncate_line(line: &str, columns: usize) -> String {
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
    fn omitted_lines_are_counted() {
        #[track_caller]
        fn check(text: &str, size: (usize, usize), expected: &str) {
            assert_eq!(fit_to_terminal(text, size), expected, "{text:?} {size:?}");
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
        fn the_output_fits_the_terminal(text in "(\\PC{0,9}\n){0,9}", rows in 1..9usize, columns in 1..9usize) {
            let fitted = fit_to_terminal(&text, (rows, columns));
            prop_assert!(fitted.lines().count() <= rows && fitted.lines().all(|line| line.chars().count() <= columns), "{fitted:?}");
        }
    }
}
