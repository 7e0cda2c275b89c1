//! Splits a file into its front matter and its text.

use super::SourcePos;
use crate::code::Code;
use crate::finding::Draft;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Front<'a> {
    pub(crate) yaml: &'a str,
    pub(crate) body: &'a str,
}

const FENCE: &str = "---";

/// Splits a file at the two fences around the front matter. The YAML begins on line 2.
pub(crate) fn split(text: &str) -> Result<Front<'_>, Draft> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (first, rest) = split_line(text);
    if first.trim_end() != FENCE {
        let draft = Draft::error(Code::FrontMatter, SourcePos::START, "the file does not begin with `---`");
        return Err(draft.hint("put the keys between two lines `---` at the top of the file"));
    }
    let mut end = 0;
    loop {
        if end == rest.len() {
            let draft = Draft::error(Code::FrontMatter, SourcePos::START, "the front matter is not closed");
            return Err(draft.hint("add a line `---` after the last key"));
        }
        let (line, after) = split_line(&rest[end..]);
        if line.trim_end() == FENCE {
            return Ok(Front { yaml: &rest[..end], body: after });
        }
        end = rest.len() - after.len();
    }
}

fn split_line(text: &str) -> (&str, &str) {
    let (line, rest) = text.split_once('\n').unwrap_or((text, ""));
    (line.strip_suffix('\r').unwrap_or(line), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<(&str, &str)>) {
        let front = split(text).ok();
        assert_eq!(front.map(|front| (front.yaml, front.body)), expected, "{text:?}");
    }

    #[test]
    fn fences_are_lines_of_three_dashes() {
        check("---\na: 1\n---\nbody\n", Some(("a: 1\n", "body\n")));
        check("---\n---", Some(("", "")));
        check("\u{feff}---\r\na: 1\r\n---\r\nb", Some(("a: 1\r\n", "b")));
        check("---  \na: |\n  ---\n--- \n", Some(("a: |\n  ---\n", "")));
        check("", None);
        check("a: 1\n", None);
        check("\n---\na: 1\n---\n", None);
        check("---\na: 1\n", None);
        check("---\na: 1\n----\n", None);
        check("---", None);
    }
}
