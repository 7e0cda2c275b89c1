//! Thoughts that a model writes between `<think>` and `</think>` at the start of its answer.
//!
//! The tags may be split over chunks in any way. White space around the thought belongs to neither side. A tag
//! anywhere else is text.

/// Whose words a piece of text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Voice {
    Text,
    Thought,
}

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// The most that is held back. Nobody writes that much white space before a tag, and looking at it again with every
/// piece would take for ever.
const HELD: usize = 256;

/// Tells thoughts from the answer as it comes.
#[derive(Debug, Default)]
pub(crate) struct Think {
    state: State,
    /// What may become a tag, or white space that may have to go.
    held: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Nothing but white space and the beginning of a tag has come.
    #[default]
    Start,
    /// Within the tags, before the first word.
    Opened,
    /// Within the tags.
    Inside,
    /// Behind them, before the first word.
    Closed,
    /// In the answer.
    Plain,
}

impl Think {
    /// Whether all that still comes is text and need not be looked at.
    pub(crate) fn is_plain(&self) -> bool {
        self.state == State::Plain
    }

    /// Takes a piece of the answer and says it, as far as it is known what it is.
    pub(crate) fn feed(&mut self, text: &str, mut say: impl FnMut(Voice, &str)) {
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
                State::Inside => self.inside(rest, &mut say),
                State::Plain => {
                    say(Voice::Text, rest);
                    ""
                }
            };
        }
    }

    /// Says what was held back, for nothing more comes.
    pub(crate) fn finish(&mut self, mut say: impl FnMut(Voice, &str)) {
        let held = std::mem::take(&mut self.held);
        if !held.is_empty() {
            say(if self.state == State::Inside { Voice::Thought } else { Voice::Text }, &held);
        }
    }

    /// Looks for the opening tag.
    fn start<'a>(&mut self, text: &'a str) -> &'a str {
        let words = text.trim_start();
        if let Some(rest) = words.strip_prefix(OPEN) {
            self.state = State::Opened;
            return rest;
        }
        if OPEN.starts_with(words) && text.len() <= HELD {
            self.held.push_str(text);
            return "";
        }
        self.state = State::Plain;
        text
    }

    /// Looks for the closing tag.
    fn inside<'a>(&mut self, text: &'a str, say: &mut impl FnMut(Voice, &str)) -> &'a str {
        let (thought, rest) = match text.find(CLOSE) {
            Some(end) => {
                self.state = State::Closed;
                (text[..end].trim_end(), &text[end + CLOSE.len()..])
            }
            None => {
                // White space before a tag that may come next is not part of the thought.
                let sure = &text[..text.len() - beginning_of(CLOSE, text)];
                let words = sure.trim_end();
                let thought = if text.len() - words.len() <= HELD { words } else { sure };
                self.held.push_str(&text[thought.len()..]);
                (thought, "")
            }
        };
        if !thought.is_empty() {
            say(Voice::Thought, thought);
        }
        rest
    }
}

/// How many bytes at the end of `text` are the beginning of `tag`.
fn beginning_of(tag: &str, text: &str) -> usize {
    (1..tag.len()).rev().find(|length| text.ends_with(&tag[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What is said as a thought and as text.
    fn split(pieces: &[&str]) -> (String, String) {
        let (mut thought, mut text) = (String::new(), String::new());
        let mut say = |voice, piece: &str| {
            assert!(!piece.is_empty());
            match voice {
                Voice::Text => text.push_str(piece),
                Voice::Thought => thought.push_str(piece),
            }
        };
        let mut think = Think::default();
        for piece in pieces {
            think.feed(piece, &mut say);
        }
        think.finish(&mut say);
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
    fn thoughts_stand_at_the_start() {
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
    fn elsewhere_a_tag_is_text() {
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
    fn a_thought_without_end_is_one() {
        check("<think>a b", "a b", "");
        check("<think>a </thi", "a </thi", "");
        check("<thi", "", "<thi");
    }

    #[test]
    fn the_answer_is_plain_after_its_first_word() {
        let mut think = Think::default();
        think.feed("\n", |_, _| panic!("white space may precede a tag"));
        assert!(!think.is_plain());
        think.feed("a", |voice, text| assert_eq!((voice, text), (Voice::Text, "\na")));
        assert!(think.is_plain());
    }

    proptest! {
        #[test]
        fn any_split_says_the_same(
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
