//! Makes text of an agent visible: every character is shown, and no row looks like another one.
//!
//! The author of a text must not decide where rows begin: otherwise text that the terminal wraps could start
//! a row with `what: git status`. Rows are therefore broken here, and each begins with a label or a mark of
//! the prompt.
//!
//! Escapes are written between `⟨` and `⟩`, and these two characters are themselves always escaped. So a line
//! end, shown as `⟨\n⟩`, never looks like the two characters `\n`, and backslashes in commands and JSON stay
//! as they are.

use narrows_base::text::is_hidden;

use super::marks::is_combining;

/// Maximum length of a run of blanks that is shown as it is. A longer run is replaced by its length, so that
/// the text after the run stays visible.
const MAX_BLANKS: usize = 8;

/// Maximum number of combining marks on one letter. Further marks are escaped, because they would cover the
/// rows around the letter.
const MAX_MARKS: usize = 2;

const MIN_COLUMNS: usize = 20;

/// The beginning of a row that continues the row above.
const CONTINUATION: &str = "  │ ";

/// Returns `text` on one line. Line ends, tabs, long runs of blanks and invisible characters are escaped, so
/// that a command on a second line does not look like part of a comment on the first. Must not be applied
/// twice.
pub(super) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    let mut marks = 0;
    while let Some(letter) = rest.chars().next() {
        let blanks = rest.len() - rest.trim_start_matches(' ').len();
        marks = if is_combining(letter) { marks + 1 } else { 0 };
        match letter {
            ' ' if blanks > MAX_BLANKS => shown.push_str(&format!("⟨{blanks} blanks⟩")),
            '\n' => shown.push_str("⟨\\n⟩"),
            '\r' => shown.push_str("⟨\\r⟩"),
            '\t' => shown.push_str("⟨\\t⟩"),
            letter if is_hidden(letter) || is_bracket(letter) || marks > MAX_MARKS => {
                shown.push_str(&format!("⟨U+{:04X}⟩", u32::from(letter)));
            }
            letter => shown.push(letter),
        }
        let length = if letter == ' ' && blanks > MAX_BLANKS { blanks } else { letter.len_utf8() };
        rest = &rest[length..];
    }
    shown
}

/// Returns at most `max_chars` characters of `text`, with a mark that counts the rest.
pub(super) fn truncate(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        None => text.to_owned(),
        Some((end, _)) => {
            format!("{} ⟨… {} more characters⟩", &text[..end], text[end..].chars().count())
        }
    }
}

fn is_bracket(c: char) -> bool {
    matches!(
        c,
        '⟨' | '⟩' | '\u{2329}' | '\u{232a}' | '\u{276c}'
            ..='\u{2771}' | '\u{29fc}' | '\u{29fd}' | '\u{3008}' | '\u{3009}'
    )
}

/// Rows of a terminal, each with a label or a mark.
pub(super) struct Rows {
    columns: usize,
    text: String,
}

impl Rows {
    pub(super) fn new(columns: usize) -> Self {
        // The last column stays free, because a full row would make some terminals begin another row.
        Self { columns: columns.max(MIN_COLUMNS) - 1, text: String::new() }
    }

    /// Adds `text` after `label`, which is `width` columns wide, in as many rows as needed.
    pub(super) fn add(&mut self, label: &str, width: usize, text: &str) {
        self.text.push_str(label);
        let mut column = width;
        for letter in text.chars() {
            // Some letters are narrower. A row that is broken too early does no harm.
            let cells = if letter.is_ascii() { 1 } else { 2 };
            if column + cells > self.columns {
                self.text.push('\n');
                self.text.push_str(CONTINUATION);
                column = CONTINUATION.chars().count();
            }
            self.text.push(letter);
            column += cells;
        }
        self.text.push('\n');
    }

    pub(super) fn count(&self) -> usize {
        self.text.matches('\n').count()
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn invisible_characters_are_written_out() {
        assert_eq!(visible("ls # all\nrm\tx\r"), "ls # all⟨\\n⟩rm⟨\\t⟩x⟨\\r⟩");
        assert_eq!(visible(&format!("ls{}; rm", " ".repeat(3000))), "ls⟨3000 blanks⟩; rm");
        // An escape never looks like text that an agent can write.
        assert_eq!(visible(r"echo Done\nrm \u{a0}"), r"echo Done\nrm \u{a0}");
        assert_eq!(visible("ls⟨3 blanks⟩"), "ls⟨U+27E8⟩3 blanks⟨U+27E9⟩");
        assert_eq!(visible("〈❬⧼"), "⟨U+3008⟩⟨U+276C⟩⟨U+29FC⟩");
        assert_eq!(visible("é e\u{301} 漢字 हिन्दी — … 🦀"), "é e\u{301} 漢字 हिन्दी — … 🦀");
        assert_eq!(visible("a\u{301}\u{301}\u{301}"), "a\u{301}\u{301}⟨U+0301⟩");
        assert_eq!(visible(&"\u{e49}".repeat(50)).matches('\u{e49}').count(), MAX_MARKS);
        assert_eq!(visible("\u{300}\u{e49}\u{5b4}\u{64b}"), "\u{300}\u{e49}⟨U+05B4⟩⟨U+064B⟩");
        let hidden = "\u{a0}\u{2003}\u{3000}\u{200d}\u{ad}\u{fe0f}\u{3164}\u{2800}\u{34f}\u{115f}\u{17b4}\u{fffa}\u{1d173}\
            \u{1b}\u{9b}\u{202e}\u{2028}\u{feff}\u{e0041}\u{e0100}\u{f0000}\u{e000}\u{ffa0}\u{180e}\u{206a}\u{1d159}";
        for letter in hidden.chars() {
            assert_eq!(visible(&letter.to_string()), format!("⟨U+{:04X}⟩", u32::from(letter)));
        }
    }

    #[test]
    fn a_truncated_text_is_marked() {
        assert_eq!(truncate("äöü", 3), "äöü");
        assert_eq!(truncate("äöüx", 2), "äö ⟨… 2 more characters⟩");
    }

    proptest! {
        /// Assumes the widest cells that a terminal may use.
        #[test]
        fn every_row_has_a_label_and_fits(text in "\\PC{0,200}", columns in 1_usize..60) {
            let mut rows = Rows::new(columns);
            rows.add("  what: ", 8, &visible(&text));
            let count = rows.count();
            let shown = rows.into_text();
            prop_assert_eq!(shown.lines().count(), count);
            for (number, row) in shown.lines().enumerate() {
                prop_assert!(row.starts_with(if number == 0 { "  what: " } else { CONTINUATION }), "{}", row);
                let cells: usize = row.chars().map(|c| if c.is_ascii() { 1 } else { 2 }).sum();
                prop_assert!(cells <= columns.max(MIN_COLUMNS), "{}", row);
            }
        }
    }
}
