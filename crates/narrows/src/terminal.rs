//! Colors and echo of the terminal, and text of peers as one line.

use std::borrow::Cow;
use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use narrows_base::text::one_line;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::environment;

const MAX_LINE_CHARS: usize = 400;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Style {
    Error,
    Hint,
    Dim,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Color(bool);

impl Color {
    /// Returns styles for stderr. They are hidden if stderr is no terminal, or a variable disables colors.
    pub(crate) fn for_stderr() -> Self {
        Self(std::io::stderr().is_terminal() && environment::wants_color())
    }

    /// Returns styles that have no effect.
    #[cfg(test)]
    pub(crate) fn off() -> Self {
        Self(false)
    }

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

/// A terminal whose echo of keys was changed. Dropping it restores the terminal.
#[derive(Debug)]
pub(crate) struct Echo {
    terminal: OwnedFd,
    before: Termios,
}

impl Echo {
    /// Hides keys that are typed into stdin during a turn, because they are for the next prompt. Returns
    /// `None` without a terminal.
    pub(crate) fn off() -> Option<Self> {
        Self::set(std::io::stdin().as_fd(), false)
    }

    /// Shows keys typed into `terminal`.
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
        // The terminal may be gone.
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}

/// Returns peer text as one bounded line, safe for terminals and logs.
pub(crate) fn line(text: &str) -> String {
    one_line(text, MAX_LINE_CHARS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_maximum_length() {
        assert_eq!(line(&"x".repeat(1000)).chars().count(), MAX_LINE_CHARS + 1);
    }
}
