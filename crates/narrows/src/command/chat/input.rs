//! User input: edited lines of a terminal, or lines of a pipe.

use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio::sync::mpsc;

use super::editor::Editor;
use crate::text_input;

#[derive(Debug)]
pub(super) enum Typed {
    Line(String),
    Interrupted { was_empty: bool },
    End,
    Failed(io::Error),
}

/// The words that complete the beginning of a line.
pub(super) type Words = Arc<Mutex<Vec<String>>>;

pub(super) enum Input {
    Person(Editor),
    Program(mpsc::Receiver<Typed>),
}

impl Input {
    /// Opens stdin as a terminal or as a pipe. Messages typed by a user are stored in `history`.
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

    pub(super) fn is_person(&self) -> bool {
        matches!(self, Self::Person(_))
    }

    /// Waits for the next input. Cancel-safe.
    pub(super) async fn next(&mut self) -> Typed {
        match self {
            Self::Person(editor) => editor.next().await,
            Self::Program(typed) => typed.recv().await.unwrap_or(Typed::End),
        }
    }

    /// Prints whole lines above the line that is being edited.
    pub(super) fn print_above(&self, lines: &str) {
        match self {
            Self::Person(editor) => editor.print_above(lines),
            Self::Program(_) => crate::output::write_stderr(lines),
        }
    }
}

/// Reads the next line.
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
    fn a_pipe_is_read_by_lines() {
        check(b"", &[], "End");
        check(b"a\n\nb", &["a", "", "b"], "End");
        check(b"a\n\xff\n", &["a"], "not UTF-8");
        check(&vec![b'x'; text_input::MAX_INPUT_BYTES + 1], &[], "longer than 16 MiB");
    }
}
