//! What of a turn is shown, and how: the answer on stdout, the rest beside it.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::io::IsTerminal;
use std::sync::Arc;

use crate::cli::Output;
use crate::drive::Event;
use crate::screen::Piece;
use crate::terminal::{Colour, Style, line, text as safe_text};

/// How much text one JSON object may hold.
const MOST_TEXT: usize = 64 << 20;

/// How many messages are remembered, so that one that is sent again as a whole is not shown twice.
const REMEMBERED: usize = 64;

/// How much of a thought is shown.
const THOUGHT: usize = 100;

/// The answer is too long to be kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

/// Turns events into what is shown.
#[derive(Debug)]
pub(crate) struct Presenter {
    /// The text is kept for the end instead of shown as it comes.
    keep: bool,
    /// The text goes to a terminal.
    make_safe: bool,
    /// Somebody watches stderr.
    watched: bool,
    colour: Colour,
    /// The text, if it is kept.
    kept: String,
    /// The message that was shown last.
    current: Option<Arc<str>>,
    /// Something else has happened since the last text.
    interrupted: bool,
    /// The text does not end with a line end.
    line_open: bool,
    shown: VecDeque<Shown>,
    thought: String,
    last_tool: String,
}

/// What was shown of one message: enough to tell whether something is its continuation.
#[derive(Debug)]
struct Shown {
    message: Arc<str>,
    length: usize,
    hash: DefaultHasher,
}

impl Presenter {
    /// For this format, and for what stdout and stderr are.
    pub(crate) fn new(output: Output) -> Self {
        let keep = output == Output::Json;
        Self {
            keep,
            make_safe: !keep && std::io::stdout().is_terminal(),
            watched: std::io::stderr().is_terminal(),
            colour: Colour::of_stderr(),
            kept: String::new(),
            current: None,
            interrupted: false,
            line_open: false,
            shown: VecDeque::new(),
            thought: String::new(),
            last_tool: String::new(),
        }
    }

    /// The text of the answer, if it was kept.
    pub(crate) fn into_text(self) -> String {
        self.kept
    }

    /// Adds what is to be shown of `event` to `pieces`.
    pub(crate) fn show(&mut self, event: Event, pieces: &mut VecDeque<Piece>) -> Result<(), TooLong> {
        if !matches!(event, Event::Thought(_)) {
            self.end_thought(pieces);
        }
        match event {
            Event::Text { message, text } => self.say(message, &text, pieces)?,
            Event::Message { message, text } => self.message(message, &text, pieces)?,
            Event::Thought(thought) => self.think(&thought),
            Event::Tool(title) => {
                self.interrupted = true;
                let title = line(&title);
                if self.watched && title != self.last_tool {
                    pieces.push_back(self.aside(&format!("tool: {title}")));
                }
                self.last_tool = title;
            }
            Event::Unshown(what) => pieces.push_back(self.aside(&format!("(the answer has {what} in it)"))),
            Event::Refused(refusal) => {
                self.interrupted = true;
                pieces.push_back(self.aside(&format!("permission refused: {}", refusal.wanted)));
            }
        }
        Ok(())
    }

    /// Ends what was not ended.
    pub(crate) fn finish(&mut self, pieces: &mut VecDeque<Piece>) {
        self.end_thought(pieces);
    }

    /// More of a message.
    fn say(
        &mut self,
        message: Option<Arc<str>>,
        text: &str,
        pieces: &mut VecDeque<Piece>,
    ) -> Result<(), TooLong> {
        if text.is_empty() {
            return Ok(());
        }
        // Two messages must not run into each other.
        if self.line_open && (self.interrupted || self.current != message) {
            self.end_line(pieces)?;
        }
        self.interrupted = false;
        if let Some(message) = &message {
            self.note_shown(message, text);
        }
        self.current = message;
        self.put(text, pieces)
    }

    /// The whole of a message: what is new of it, or all of it if what was shown has been rewritten.
    fn message(
        &mut self,
        message: Arc<str>,
        text: &str,
        pieces: &mut VecDeque<Piece>,
    ) -> Result<(), TooLong> {
        let Some(at) = self.shown.iter().position(|shown| shown.message == message) else {
            return self.say(Some(message), text, pieces);
        };
        let shown = &self.shown[at];
        let continued =
            text.get(..shown.length).is_some_and(|beginning| hash(beginning).finish() == shown.hash.finish());
        if continued {
            let rest = shown.length;
            return self.say(Some(message), &text[rest..], pieces);
        }
        self.shown.remove(at);
        self.interrupted = true;
        self.say(Some(message), text, pieces)
    }

    fn note_shown(&mut self, message: &Arc<str>, text: &str) {
        if let Some(shown) = self.shown.iter_mut().find(|shown| shown.message == *message) {
            shown.length += text.len();
            shown.hash.write(text.as_bytes());
            return;
        }
        if self.shown.len() == REMEMBERED {
            self.shown.pop_front();
        }
        self.shown.push_back(Shown { message: Arc::clone(message), length: text.len(), hash: hash(text) });
    }

    fn end_line(&mut self, pieces: &mut VecDeque<Piece>) -> Result<(), TooLong> {
        if self.keep {
            return self.put("\n", pieces);
        }
        pieces.push_back(Piece::LineEnd);
        Ok(())
    }

    fn put(&mut self, text: &str, pieces: &mut VecDeque<Piece>) -> Result<(), TooLong> {
        self.line_open = !text.ends_with('\n');
        if !self.keep {
            let text = if self.make_safe { safe_text(text) } else { Cow::Borrowed(text) };
            match pieces.back_mut() {
                Some(Piece::Text(last)) => last.push_str(&text),
                _ => pieces.push_back(Piece::Text(text.into_owned())),
            }
        } else if self.kept.len() + text.len() > MOST_TEXT {
            return Err(TooLong);
        } else {
            self.kept.push_str(text);
        }
        Ok(())
    }

    /// A thought comes in many pieces; its beginning is enough.
    fn think(&mut self, thought: &str) {
        self.interrupted = true;
        if self.watched && self.thought.len() < 8 * THOUGHT {
            self.thought.extend(thought.chars().take(2 * THOUGHT));
        }
    }

    fn end_thought(&mut self, pieces: &mut VecDeque<Piece>) {
        let thought = std::mem::take(&mut self.thought);
        let mut words = thought.split_whitespace().collect::<Vec<_>>().join(" ");
        if words.is_empty() {
            return;
        }
        if let Some((end, _)) = words.char_indices().nth(THOUGHT) {
            words.truncate(end);
            words.push('…');
        }
        pieces.push_back(self.aside(&format!("thinking: {}", line(&words))));
    }

    /// A line beside the answer.
    fn aside(&self, text: &str) -> Piece {
        Piece::Note(self.colour.paint(Style::Dim, text).into_owned())
    }
}

fn hash(text: &str) -> DefaultHasher {
    let mut hash = DefaultHasher::new();
    hash.write(text.as_bytes());
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presenter() -> Presenter {
        // Whatever the tests run in, what they say must not depend on it.
        Presenter { make_safe: true, watched: true, ..Presenter::new(Output::Text) }
    }

    fn text(message: Option<&str>, text: &str) -> Event {
        Event::Text { message: message.map(Arc::from), text: text.to_owned() }
    }

    fn whole(message: &str, text: &str) -> Event {
        Event::Message { message: message.into(), text: text.to_owned() }
    }

    #[track_caller]
    fn check(events: impl IntoIterator<Item = Event>, expected: &str) {
        let (mut presenter, mut pieces) = (presenter(), VecDeque::new());
        presenter.colour = Colour::off();
        for event in events {
            presenter.show(event, &mut pieces).unwrap();
        }
        presenter.finish(&mut pieces);
        let shown: String = pieces
            .into_iter()
            .map(|piece| match piece {
                Piece::Text(text) => text,
                Piece::LineEnd => "\n".to_owned(),
                Piece::Note(note) => format!("[{note}]"),
            })
            .collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn chunks_run_on_and_messages_do_not() {
        check([text(None, "a"), text(None, "b")], "ab");
        check([text(Some("1"), "a"), text(Some("1"), "b"), text(Some("2"), "c")], "ab\nc");
        check([text(None, "a"), Event::Tool("t".to_owned()), text(None, "b")], "a[tool: t]\nb");
        check([text(None, "a\n"), Event::Tool("t".to_owned()), text(None, "b")], "a\n[tool: t]b");
        check([text(Some("1"), "a"), text(Some("2"), ""), text(Some("1"), "b")], "ab");
    }

    #[test]
    fn a_message_sent_again_is_not_shown_again() {
        check([text(Some("1"), "ab"), whole("1", "ab")], "ab");
        check([text(Some("1"), "a"), text(Some("1"), "ü"), whole("1", "aüc")], "aüc");
        check([whole("1", "ab"), whole("1", "abc"), text(Some("1"), "d")], "abcd");
        check([text(Some("1"), "ab"), whole("1", "xy"), text(Some("1"), "z")], "ab\nxyz");
        check([text(Some("1"), "ab"), whole("1", "")], "ab");
    }

    #[test]
    fn what_stands_beside_is_short_and_safe() {
        let thought = |text: &str| Event::Thought(text.to_owned());
        check([thought("I wonder\n"), thought(" why "), text(None, "a")], "[thinking: I wonder why]a");
        check([thought(&"x".repeat(1000))], &format!("[thinking: {}…]", "x".repeat(THOUGHT)));
        let tool = || Event::Tool("\u{1b}[2J\nx".to_owned());
        check([tool(), tool()], "[tool: \\u{1b}[2J x]");
        check([text(None, "\u{7}a")], "\\u{7}a");
    }

    #[test]
    fn kept_text_is_bounded() {
        let mut presenter = Presenter { keep: true, ..presenter() };
        let mut pieces = VecDeque::new();
        let half = "x".repeat(MOST_TEXT / 2);
        assert_eq!(presenter.show(text(None, &half), &mut pieces), Ok(()));
        assert_eq!(presenter.show(text(None, &half), &mut pieces), Ok(()));
        assert_eq!(presenter.show(text(None, "x"), &mut pieces), Err(TooLong));
        assert!(pieces.is_empty());
    }
}
