//! Separates the reasoning that a model writes between `<think>` and `</think>` at the start of its answer.
//!
//! The tags may be split over chunks in any way. White space around the reasoning is dropped. A tag anywhere
//! else counts as text.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextKind {
    Text,
    Thought,
}

const OPEN_TAG: &str = "<think>";
const CLOSE_TAG: &str = "</think>";

/// Maximum number of bytes held back. No model writes that much white space before a tag, and checking it
/// again with every piece would take quadratic time.
const MAX_HELD_BYTES: usize = 256;

/// Separates reasoning from the answer while it arrives.
#[derive(Debug, Default)]
pub(crate) struct ThinkTags {
    state: State,
    /// Text that is held back: the possible start of a tag, or white space that may be dropped.
    held: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Only white space and the beginning of a tag have arrived.
    #[default]
    Start,
    /// The opening tag has arrived, but no word of the reasoning.
    Opened,
    /// Words of the reasoning have arrived, but no closing tag.
    Inside,
    /// The closing tag has arrived, but no word of the answer.
    Closed,
    Plain,
}

impl ThinkTags {
    /// Returns `true` if everything that follows is plain text.
    pub(crate) fn is_plain(&self) -> bool {
        self.state == State::Plain
    }

    /// Handles a piece of the answer. Emits text once it certainly belongs to the reasoning or to the answer.
    pub(crate) fn feed(&mut self, text: &str, mut emit: impl FnMut(TextKind, &str)) {
        let held;
        let mut rest = text;
        if !self.held.is_empty() {
            self.held.push_str(text);
            held = std::mem::take(&mut self.held);
            rest = &held;
        }
        while !rest.is_empty() {
            rest = match self.state {
                State::Start => self.start(rest),
                State::Opened | State::Closed => {
                    let words = rest.trim_start();
                    if !words.is_empty() {
                        self.state = if self.state == State::Opened { State::Inside } else { State::Plain };
                    }
                    words
                }
                State::Inside => self.inside(rest, &mut emit),
                State::Plain => {
                    emit(TextKind::Text, rest);
                    ""
                }
            };
        }
    }

    /// Emits the text that is still held back.
    pub(crate) fn finish(&mut self, mut emit: impl FnMut(TextKind, &str)) {
        let held = std::mem::take(&mut self.held);
        if !held.is_empty() {
            emit(if self.state == State::Inside { TextKind::Thought } else { TextKind::Text }, &held);
        }
    }

    fn start<'a>(&mut self, text: &'a str) -> &'a str {
        let words = text.trim_start();
        if let Some(rest) = words.strip_prefix(OPEN_TAG) {
            self.state = State::Opened;
            return rest;
        }
        if OPEN_TAG.starts_with(words) && text.len() <= MAX_HELD_BYTES {
            self.held.push_str(text);
            return "";
        }
        self.state = State::Plain;
        text
    }

    fn inside<'a>(&mut self, text: &'a str, emit: &mut impl FnMut(TextKind, &str)) -> &'a str {
        let (thought, rest) = match text.find(CLOSE_TAG) {
            Some(end) => {
                self.state = State::Closed;
                (text[..end].trim_end(), &text[end + CLOSE_TAG.len()..])
            }
            None => {
                // White space before the closing tag is dropped.
                let sure = &text[..text.len() - beginning_of(CLOSE_TAG, text)];
                let words = sure.trim_end();
                let thought = if text.len() - words.len() <= MAX_HELD_BYTES { words } else { sure };
                self.held.push_str(&text[thought.len()..]);
                (thought, "")
            }
        };
        if !thought.is_empty() {
            emit(TextKind::Thought, thought);
        }
        rest
    }
}

/// Returns the length of the longest beginning of `tag` at the end of `text`, in bytes.
fn beginning_of(tag: &str, text: &str) -> usize {
    (1..tag.len()).rev().find(|length| text.ends_with(&tag[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(pieces: &[&str]) -> (String, String) {
        let (mut thought, mut text) = (String::new(), String::new());
        let mut emit = |voice, piece: &str| {
            assert!(!piece.is_empty());
            match voice {
                TextKind::Text => text.push_str(piece),
                TextKind::Thought => thought.push_str(piece),
            }
        };
        let mut think = ThinkTags::default();
        for piece in pieces {
            think.feed(piece, &mut emit);
        }
        think.finish(&mut emit);
        (thought, text)
    }

    #[track_caller]
    fn check(answer: &str, thought: &str, text: &str) {
        let expected = (thought.to_owned(), text.to_owned());
        assert_eq!(split(&[answer]), expected, "in one piece");
        for at in (0..=answer.len()).filter(|at| answer.is_char_boundary(*at)) {
            assert_eq!(split(&[&answer[..at], &answer[at..]]), expected, "cut at {at}");
        }
        let letters: Vec<&str> = answer.split_inclusive(|_: char| true).collect();
        assert_eq!(split(&letters), expected, "letter by letter");
    }

    #[test]
    fn reasoning_is_tagged_at_the_start() {
        check("<think>why</think>because", "why", "because");
        check("\n <think>\nwhy\n\nso\n</think>\n\nbe cause ", "why\n\nso", "be cause ");
        check("<think>\n\n</think>\n\nbecause", "", "because");
        check("<think></think>", "", "");
        check("<think>a < b </thin> </ think></think>c", "a < b </thin> </ think>", "c");
        check("<think>a</think>b<think>c</think>", "a", "b<think>c</think>");
        check("<think>a</think><think>b</think>", "a", "<think>b</think>");
        check("<think>ä<</think>é", "ä<", "é");
    }

    #[test]
    fn a_tag_elsewhere_is_text() {
        check("so <think>a</think>", "", "so <think>a</think>");
        check("a</think>b", "", "a</think>b");
        check("<thinking>a", "", "<thinking>a");
        check("< think>a", "", "< think>a");
        check("  indented", "", "  indented");
        check("<", "", "<");
        check(" \n", "", " \n");
        check("", "", "");
    }

    #[test]
    fn reasoning_without_a_closing_tag_is_kept() {
        check("<think>a b", "a b", "");
        check("<think>a </thi", "a </thi", "");
        check("<thi", "", "<thi");
    }

    #[test]
    fn the_answer_is_plain_after_its_first_word() {
        let mut think = ThinkTags::default();
        think.feed("\n", |_, _| panic!("white space may precede a tag"));
        assert!(!think.is_plain());
        think.feed("a", |voice, text| assert_eq!((voice, text), (TextKind::Text, "\na")));
        assert!(think.is_plain());
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_result(
            parts in proptest::collection::vec(
                prop_oneof![
                    Just("<think>"), Just("</think>"), Just("<"), Just("</"), Just("think>"), Just(" "), Just("\n"),
                    Just("a"), Just("é"),
                ],
                0..16,
            ),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let answer = parts.concat();
            let mut cuts: Vec<usize> = cuts
                .iter()
                .map(|cut| cut.index(answer.len() + 1))
                .filter(|at| answer.is_char_boundary(*at))
                .chain([0, answer.len()])
                .collect();
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|pair| &answer[pair[0]..pair[1]]).collect();
            prop_assert_eq!(split(&pieces), split(&[&answer]));
        }
    }
}
