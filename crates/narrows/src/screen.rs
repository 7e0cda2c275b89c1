//! Where the answer appears while it comes: a thread of its own, so that a slow reader of our stdout blocks neither
//! signals nor deadlines.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};

use tokio::sync::{mpsc, oneshot};

use crate::output;

/// How many pieces may wait for a slow reader; then nothing more is taken from the agent.
const WAITING: usize = 16;

/// One piece of what is shown.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Of the answer, to stdout.
    Text(String),
    /// The end of its line, if it has not ended: something else follows.
    LineEnd,
    /// A line beside it, to stderr.
    Note(String),
}

/// The handle of the thread.
#[derive(Debug)]
pub(crate) struct Screen {
    queue: mpsc::Sender<Piece>,
    done: oneshot::Receiver<io::Result<()>>,
}

impl Screen {
    /// Starts the thread.
    pub(crate) fn open() -> io::Result<Self> {
        let (queue, pieces) = mpsc::channel(WAITING);
        let (report, done) = oneshot::channel();
        let writer = Writer {
            stdout: BufWriter::new(output::stdout()?),
            stdout_is_terminal: io::stdout().is_terminal(),
            one_terminal: io::stdout().is_terminal() && io::stderr().is_terminal(),
            line_open: false,
        };
        std::thread::Builder::new().name("screen".to_owned()).spawn(move || {
            // Nobody listens any more when we leave at once.
            let _ = report.send(writer.run(pieces));
        })?;
        Ok(Self { queue, done })
    }

    /// Waits for room for one piece. Fails when stdout does. Safe to cancel.
    pub(crate) async fn room(&self) -> Result<mpsc::Permit<'_, Piece>, mpsc::error::SendError<()>> {
        self.queue.reserve().await
    }

    /// Waits until stdout fails, be it that nobody reads it any more.
    pub(crate) async fn failed(&self) {
        self.queue.closed().await;
    }

    /// Waits until everything is written, and says whether it was.
    pub(crate) async fn finish(self) -> io::Result<()> {
        drop(self.queue);
        self.done.await.unwrap_or_else(|_| Err(io::Error::other("the thread that writes to stdout has died")))
    }
}

/// What the thread works with.
struct Writer {
    stdout: BufWriter<File>,
    stdout_is_terminal: bool,
    /// Text and notes end up in the same place.
    one_terminal: bool,
    /// The last line of the text has no end yet.
    line_open: bool,
}

impl Writer {
    /// Writes until there is nothing more to come. The text always ends with a line end.
    fn run(mut self, mut pieces: mpsc::Receiver<Piece>) -> io::Result<()> {
        while let Some(piece) = pieces.blocking_recv() {
            match piece {
                Piece::Text(text) => self.text(&text)?,
                Piece::LineEnd => self.end_line()?,
                Piece::Note(note) => self.note(&note)?,
            }
            // A program that reads along gets what there is; one that lags gets it in large pieces.
            if self.stdout_is_terminal || pieces.is_empty() {
                self.stdout.flush()?;
            }
        }
        self.end_line()?;
        self.stdout.flush()
    }

    fn end_line(&mut self) -> io::Result<()> {
        if self.line_open { self.text("\n") } else { Ok(()) }
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        if !text.is_empty() {
            self.line_open = !text.ends_with('\n');
        }
        self.stdout.write_all(text.as_bytes())
    }

    fn note(&mut self, note: &str) -> io::Result<()> {
        if self.one_terminal {
            self.end_line()?;
            self.stdout.flush()?;
        }
        output::complain(note);
        output::complain("\n");
        Ok(())
    }
}
