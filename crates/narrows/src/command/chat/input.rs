//! What the user says: lines that are edited in a terminal, or lines of a pipe.

use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio::sync::mpsc;

use super::editor::Editor;
use crate::text_input;

/// What has come.
#[derive(Debug)]
pub(super) enum Typed {
    /// A message or a command.
    Line(String),
    /// Ctrl-C, on a line that was empty or was not.
    Interrupted { was_empty: bool },
    /// There is nothing more.
    End,
    /// It cannot be read.
    Failed(io::Error),
}

/// What Tab can complete, from the beginning of a line.
pub(super) type Words = Arc<Mutex<Vec<String>>>;

/// Where the user's words come from.
pub(super) enum Input {
    /// Somebody sits there.
    Person(Editor),
    /// Another program writes.
    Program(mpsc::Receiver<Typed>),
}

impl Input {
    /// Finds out who it is. What is typed is kept in `history`.
    pub(super) fn open(history: Option<PathBuf>, words: Words) -> io::Result<Self> {
        if io::stdin().is_terminal() {
            return Ok(Self::Person(Editor::open(history, words)?));
        }
        let (lines, typed) = mpsc::channel(1);
        let read = move || {
            let mut stdin = io::stdin().lock();
            loop {
                let typed = next(&mut stdin);
                let is_last = !matches!(typed, Typed::Line(_));
                if lines.blocking_send(typed).is_err() || is_last {
                    break;
                }
            }
        };
        std::thread::Builder::new().name("stdin".to_owned()).spawn(read)?;
        Ok(Self::Program(typed))
    }

    /// Whether somebody sits there.
    pub(super) fn is_person(&self) -> bool {
        matches!(self, Self::Person(_))
    }

    /// What comes next. Safe to cancel: what was begun goes on.
    pub(super) async fn next(&mut self) -> Typed {
        match self {
            Self::Person(editor) => editor.next().await,
            Self::Program(typed) => typed.recv().await.unwrap_or(Typed::End),
        }
    }

    /// Writes whole lines beside the one that is being edited.
    pub(super) fn note(&self, lines: &str) {
        match self {
            Self::Person(editor) => editor.note(lines),
            Self::Program(_) => crate::output::complain(lines),
        }
    }
}

/// The next line, or the end.
fn next(input: &mut impl BufRead) -> Typed {
    match text_input::read_line(input) {
        Ok(Some(line)) => Typed::Line(line),
        Ok(None) => Typed::End,
        Err(error) => Typed::Failed(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(input: &[u8], expected: &[&str], last: &str) {
        let mut input = input;
        for line in expected {
            match next(&mut input) {
                Typed::Line(found) => assert_eq!(found.trim_end_matches('\n'), *line),
                other => panic!("{other:?}"),
            }
        }
        let end = format!("{:?}", next(&mut input));
        assert!(end.contains(last), "{end}");
    }

    #[test]
    fn a_pipe_has_lines() {
        check(b"", &[], "End");
        check(b"a\n\nb", &["a", "", "b"], "End");
        check(b"a\n\xff\n", &["a"], "not UTF-8");
        check(&vec![b'x'; text_input::MAX_INPUT_BYTES + 1], &[], "longer than 16 MiB");
    }
}
