//! Colors and echo of the terminal, and text of peers as one line.

use std::borrow::Cow;
use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use narrows_base::text::one_line;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::environment;

/// The longest quoted line.
const MAX_LINE_CHARS: usize = 400;

/// A colour or weight.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Style {
    /// What went wrong.
    Error,
    /// What to do about it.
    Hint,
    /// What is said beside the answer.
    Dim,
}

/// Whether styles are shown on a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Colour(bool);

impl Colour {
    /// For stderr: only on a terminal, and only if the user does not mind.
    pub(crate) fn of_stderr() -> Self {
        Self(std::io::stderr().is_terminal() && environment::wants_colour())
    }

    /// For nowhere.
    #[cfg(test)]
    pub(crate) fn off() -> Self {
        Self(false)
    }

    /// `text` in `style`.
    pub(crate) fn paint(self, style: Style, text: &str) -> Cow<'_, str> {
        if !self.0 {
            return Cow::Borrowed(text);
        }
        let start = match style {
            Style::Error => "\u{1b}[1;31m",
            Style::Hint => "\u{1b}[1;36m",
            Style::Dim => "\u{1b}[2m",
        };
        Cow::Owned(format!("{start}{text}\u{1b}[0m"))
    }
}

/// Whether a terminal shows what is typed. Dropping it gives the terminal back as it was.
#[derive(Debug)]
pub(crate) struct Echo {
    terminal: OwnedFd,
    before: Termios,
}

impl Echo {
    /// Keys typed into stdin are not shown: they are for the next prompt. `None` if stdin is no terminal.
    pub(crate) fn off() -> Option<Self> {
        Self::set(std::io::stdin().as_fd(), false)
    }

    /// Keys typed into `terminal` are shown.
    pub(crate) fn on(terminal: &impl AsFd) -> Option<Self> {
        Self::set(terminal.as_fd(), true)
    }

    fn set(terminal: BorrowedFd<'_>, is_on: bool) -> Option<Self> {
        let before = tcgetattr(terminal).ok()?;
        let mut wanted = before.clone();
        wanted.local_modes.set(LocalModes::ECHO, is_on);
        tcsetattr(terminal, OptionalActions::Now, &wanted).ok()?;
        Some(Self { terminal: terminal.try_clone_to_owned().ok()?, before })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}

/// Returns `text` of a peer as one line of bounded length, safe for a terminal and for a log.
pub(crate) fn line(text: &str) -> String {
    one_line(text, MAX_LINE_CHARS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_bounded() {
        assert_eq!(line(&"x".repeat(1000)).chars().count(), MAX_LINE_CHARS + 1);
    }
}
