//! Line editing in the terminal, with history and completion.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use narrows_base::sync::lock;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::completion::{Completer, Pair};
use rustyline::error::{ReadlineError, Signal};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{Behavior, CompletionType, Config, Context, ExternalPrinter, Helper};
use tokio::sync::mpsc;

use super::input::{Typed, Words};
use crate::output;

const PROMPT: &str = "> ";

const CONTINUATION_PROMPT: &str = "… ";

const MAX_HISTORY: usize = 1000;

const MAX_QUEUED_NOTES: usize = 256;

/// Turns bracketed paste off, which the editor may have turned on.
const RESET_SEQUENCE: &[u8] = b"\x1b[?2004l\n";

pub(super) struct Editor {
    begin: SyncSender<()>,
    typed: mpsc::Receiver<Typed>,
    notes: Option<SyncSender<String>>,
    is_reading: bool,
    /// The terminal settings before the editor started.
    before: Option<Termios>,
}

impl Editor {
    pub(super) fn open(history: Option<PathBuf>, words: Words) -> io::Result<Self> {
        let config = Config::builder()
            .behavior(Behavior::PreferTerm)
            .completion_type(CompletionType::List)
            .auto_add_history(false)
            .max_history_size(MAX_HISTORY)
            .and_then(|config| config.history_ignore_dups(true))
            .map_err(io::Error::other)?
            .build();
        let mut editor = rustyline::Editor::with_config(config).map_err(io::Error::other)?;
        let is_empty = Arc::new(AtomicBool::new(true));
        editor.set_helper(Some(Assistant { words, is_empty: Arc::clone(&is_empty) }));
        let notes = editor.create_external_printer().ok().map(print_notes).transpose()?;
        let (begin, begun) = sync_channel(1);
        let (lines, typed) = mpsc::channel(1);
        let before = tcgetattr(io::stdin()).ok();
        let mut thread = Thread { editor, history: history.and_then(History::open), is_empty };
        if let Some(history) = &thread.history {
            // If the history file cannot be read, the history starts empty.
            let _ = thread.editor.load_history(&history.0);
        }
        std::thread::Builder::new().name("editor".to_owned()).spawn(move || {
            while begun.recv().is_ok() {
                if lines.blocking_send(thread.read()).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { begin, typed, notes, is_reading: false, before })
    }

    /// Waits for the next input. Cancel-safe: a line in progress is kept.
    pub(super) async fn next(&mut self) -> Typed {
        if !self.is_reading {
            // The channel has room, because each request for a line is followed by a line.
            let _ = self.begin.try_send(());
            self.is_reading = true;
        }
        let typed = self.typed.recv().await.unwrap_or(Typed::End);
        self.is_reading = false;
        typed
    }

    /// Prints whole lines above the line that is being edited.
    pub(super) fn print_above(&self, lines: &str) {
        match &self.notes {
            Some(notes) if self.is_reading => match notes.try_send(lines.to_owned()) {
                Ok(()) => {}
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                    tracing::warn!("notice dropped, too many are queued");
                }
            },
            _ => output::write_stderr(lines),
        }
    }
}

impl Drop for Editor {
    /// Restores the terminal, also in the middle of a line.
    fn drop(&mut self) {
        let (true, Some(before)) = (self.is_reading, &self.before) else { return };
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        if let Ok(mut terminal) = OpenOptions::new().write(true).open("/dev/tty") {
            let _ = terminal.write_all(RESET_SEQUENCE);
        }
    }
}

/// Starts a thread that prints notes, because the editor accepts notes only while a line is edited.
fn print_notes(mut printer: impl ExternalPrinter + Send + 'static) -> io::Result<SyncSender<String>> {
    let (notes, waiting): (_, Receiver<String>) = sync_channel(MAX_QUEUED_NOTES);
    std::thread::Builder::new().name("notes".to_owned()).spawn(move || {
        for note in waiting {
            if printer.print(note).is_err() {
                break;
            }
        }
    })?;
    Ok(notes)
}

struct Thread {
    editor: rustyline::Editor<Assistant, DefaultHistory>,
    history: Option<History>,
    is_empty: Arc<AtomicBool>,
}

impl Thread {
    /// Reads a message: a line, and the following ones after a backslash.
    fn read(&mut self) -> Typed {
        let mut message = String::new();
        loop {
            let prompt = if message.is_empty() { PROMPT } else { CONTINUATION_PROMPT };
            self.is_empty.store(true, Ordering::Relaxed);
            let line = match self.editor.readline(prompt) {
                Ok(line) => line,
                // End of input ends a continued message.
                Err(ReadlineError::Eof) if !message.is_empty() => String::new(),
                Err(ReadlineError::Eof) => return Typed::End,
                Err(ReadlineError::Interrupted | ReadlineError::Signal(Signal::Interrupt)) => {
                    let was_empty = message.is_empty() && self.is_empty.load(Ordering::Relaxed);
                    return Typed::Interrupted { was_empty };
                }
                Err(ReadlineError::Signal(_)) => continue,
                Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    output::write_stderr("the input is not UTF-8\n");
                    continue;
                }
                Err(ReadlineError::Io(error)) => return Typed::Failed(error),
                Err(error) => return Typed::Failed(io::Error::other(error)),
            };
            if let Some(begun) = line.strip_suffix('\\') {
                message.push_str(begun);
                message.push('\n');
                continue;
            }
            message.push_str(&line);
            self.remember(message.trim());
            return Typed::Line(message);
        }
    }

    fn remember(&mut self, message: &str) {
        if message.is_empty() || !matches!(self.editor.add_history_entry(message), Ok(true)) {
            return;
        }
        let Some(history) = &self.history else { return };
        if let Err(error) = self.editor.append_history(&history.0) {
            tracing::warn!(%error, "cannot write the message history, disabled");
            self.history = None;
        }
    }
}

struct History(PathBuf);

impl History {
    /// Creates the history file, accessible to its owner only. Returns `None` if that fails.
    fn open(path: PathBuf) -> Option<Self> {
        match make(&path) {
            Ok(()) => Some(Self(path)),
            Err(error) => {
                tracing::debug!(%error, "message history disabled");
                None
            }
        }
    }
}

fn make(path: &Path) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))
}

struct Assistant {
    words: Words,
    is_empty: Arc<AtomicBool>,
}

impl Completer for Assistant {
    type Candidate = Pair;

    fn complete(&self, line: &str, pos: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let begun = &line[..pos];
        let words = lock(&self.words);
        Ok((0, completions_of(&words, begun)))
    }
}

/// Returns the completions of `begun`, one word at a time.
fn completions_of(words: &[String], begun: &str) -> Vec<Pair> {
    if !begun.starts_with('/') {
        return Vec::new();
    }
    let has_space = begun.contains(' ');
    words
        .iter()
        .filter(|word| word.starts_with(begun) && word.contains(' ') == has_space)
        .map(|word| Pair { display: word.clone(), replacement: word.clone() })
        .collect()
}

impl Hinter for Assistant {
    type Hint = String;

    /// Gives no hints. The editor calls this function after every change, so it also tracks whether the line
    /// is empty.
    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        self.is_empty.store(line.is_empty(), Ordering::Relaxed);
        None
    }
}

impl Highlighter for Assistant {}
impl Validator for Assistant {}
impl Helper for Assistant {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_complete_word_by_word() {
        let words: Vec<String> =
            ["/mode", "/model", "/model a b", "/model c", "/quit"].map(Into::into).into();
        let check = |begun: &str, expected: &[&str]| {
            let found: Vec<String> =
                completions_of(&words, begun).into_iter().map(|pair| pair.replacement).collect();
            assert_eq!(found, expected, "{begun}");
        };
        check("/q", &["/quit"]);
        check("/mo", &["/mode", "/model"]);
        check("/model ", &["/model a b", "/model c"]);
        check("/model a", &["/model a b"]);
        check("q", &[]);
        check("", &[]);
    }

    #[test]
    fn a_history_is_private_and_optional() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a/b/chat_history");
        assert!(History::open(path.clone()).is_some());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(History::open(path.join("below/a/file")).is_none());
    }
}
