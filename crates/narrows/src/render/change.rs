//! Summarizes a file change by its first lines.

use serde_json::Value;

use crate::terminal::line;

const MAX_LINES: usize = 12;

pub(super) fn change_lines(change: &Value) -> Vec<String> {
    let text = |key: &str| change[key].as_str().unwrap_or_default();
    let all: Vec<String> = differing(text("oldText"), text("newText"))
        .map(|(sign, text)| format!("{sign}{}", line(text)))
        .collect();
    let more = all.len().saturating_sub(MAX_LINES);
    let mut lines = vec![format!("changed: {}", line(text("path")))];
    lines.extend(all.into_iter().take(MAX_LINES));
    if more > 0 {
        lines.push(format!("… {more} more lines"));
    }
    lines
}

/// Returns the lines that differ: those between the common beginning and end of both texts. Those of `old`
/// come first, and each has its sign.
pub(crate) fn differing<'a>(old: &'a str, new: &'a str) -> impl Iterator<Item = (&'static str, &'a str)> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let same = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let tail =
        old[same..].iter().rev().zip(new[same..].iter().rev()).take_while(|(old, new)| old == new).count();
    let part = |lines: &[&'a str]| lines[same..lines.len() - tail].to_vec();
    let (removed, added) = (part(&old), part(&new));
    removed.into_iter().map(|line| ("- ", line)).chain(added.into_iter().map(|line| ("+ ", line)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(old: Option<&str>, new: &str, expected: &[&str]) {
        let change = json!({"type": "diff", "path": "/a", "oldText": old, "newText": new});
        assert_eq!(change_lines(&change)[1..], *expected, "{old:?} {new:?}");
    }

    #[test]
    fn only_differing_lines_are_shown() {
        check(Some("1\n2\n3"), "1\ntwo\n3", &["- 2", "+ two"]);
        check(None, "new", &["+ new"]);
        check(Some("a\na"), "a\na\na", &["+ a"]);
        check(Some("same"), "same", &[]);
        let many = "x\n".repeat(20);
        assert_eq!(change_lines(&json!({"path": "/a", "newText": many})).last().unwrap(), "… 8 more lines");
    }

    proptest! {
        #[test]
        fn any_change_is_shown_in_bounded_lines(old in "(a|b|\n|\\PC){0,40}", new in "(a|b|\n|\\PC){0,40}") {
            let shown = change_lines(&json!({"path": "/a", "oldText": old, "newText": new}));
            prop_assert!(shown.len() <= MAX_LINES + 2);
            prop_assert_eq!(shown.len() == 1, old.lines().eq(new.lines()));
        }
    }
}
