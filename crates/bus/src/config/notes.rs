//! The file that is read, and all that has been noticed in it.

use std::cell::RefCell;

use super::mistake::{Mistake, Place, Warning};

/// The file, its mistakes and its warnings. Reading goes on after a mistake, so that all of them are told at once.
pub(super) struct Notes<'a> {
    file: &'a str,
    text: &'a str,
    mistakes: RefCell<Vec<(usize, Mistake)>>,
    warnings: RefCell<Vec<(usize, Warning)>>,
}

impl<'a> Notes<'a> {
    /// Of `text`, which stands in `file`.
    pub(super) fn new(file: &'a str, text: &'a str) -> Self {
        Self { file, text, mistakes: RefCell::default(), warnings: RefCell::default() }
    }

    /// The text.
    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    /// The place of a byte; that of the last line if it is behind everything.
    pub(super) fn place(&self, at: usize) -> Place {
        let mut end = at.min(self.text.trim_end().len());
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let before = &self.text[..end];
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Place { file: self.file.to_owned(), line, column }
    }

    /// Something is wrong with what stands at `at`.
    pub(super) fn mistake(&self, at: usize, what: impl Into<String>, hint: Option<String>) {
        let mistake = Mistake { place: self.place(at), what: what.into(), hint };
        self.mistakes.borrow_mut().push((at, mistake));
    }

    /// Something is strange about what stands at `at`.
    pub(super) fn warning(&self, at: usize, what: impl Into<String>) {
        let warning = Warning { place: self.place(at), what: what.into() };
        self.warnings.borrow_mut().push((at, warning));
    }

    /// All mistakes and all warnings, each in the order of the file.
    pub(super) fn finish(self) -> (Vec<Mistake>, Vec<Warning>) {
        let mut mistakes = self.mistakes.into_inner();
        let mut warnings = self.warnings.into_inner();
        mistakes.sort_by_key(|(at, _)| *at);
        warnings.sort_by_key(|(at, _)| *at);
        (
            mistakes.into_iter().map(|(_, mistake)| mistake).collect(),
            warnings.into_iter().map(|(_, warning)| warning).collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_inside_the_file() {
        #[track_caller]
        fn check(text: &str, at: usize, expected: (usize, usize)) {
            let place = Notes::new("f", text).place(at);
            assert_eq!((place.line, place.column), expected, "{text:?} {at}");
        }
        check("", 0, (1, 1));
        check("", 9, (1, 1));
        check("a\nbc\n", 0, (1, 1));
        check("a\nbc\n", 3, (2, 2));
        check("a\nbc\n\n\n", 7, (2, 3));
        check("ä = 1", 2, (1, 2));
        check("ä = 1", 1, (1, 1));
    }
}
