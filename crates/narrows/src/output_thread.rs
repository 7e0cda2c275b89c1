//! Streams output in a thread of its own, so that a slow reader of stdout blocks neither signals nor deadlines.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::output;

/// Maximum number of pieces in the queue. When the queue is full, nothing more is read from the agent.
const MAX_QUEUED_PIECES: usize = 16;

/// Maximum size of the queue in bytes. A larger piece waits until the queue is empty.
const MAX_QUEUED_BYTES: u32 = 1 << 20;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OutputPiece {
    /// Answer text, for stdout.
    Text(String),
    /// Ends an open line of text, before other output.
    LineEnd,
    /// A line for stderr.
    Note(String),
    /// A temporary line on a terminal, until the next output.
    Status(String),
    /// A status that may interrupt a line of text.
    Alert(String),
    /// No output. This piece is done when all earlier pieces are on the screen, and the cursor is at the
    /// beginning of a line.
    Rest,
}

impl OutputPiece {
    /// Returns the number of bytes that count towards the limit of the queue.
    fn cost(&self) -> u32 {
        let bytes = match self {
            Self::Text(text) | Self::Note(text) | Self::Status(text) | Self::Alert(text) => text.len(),
            Self::LineEnd => 0,
            // The cost is at least 1, so that the queue can wait for this piece.
            Self::Rest => 1,
        };
        u32::try_from(bytes).map_or(MAX_QUEUED_BYTES, |bytes| bytes.min(MAX_QUEUED_BYTES))
    }
}

type QueuedPiece = (OutputPiece, OwnedSemaphorePermit);

#[derive(Debug)]
pub(crate) struct StdoutFailed;

#[derive(Debug)]
pub(crate) struct OutputThread {
    queue: mpsc::Sender<QueuedPiece>,
    free: Arc<Semaphore>,
    done: oneshot::Receiver<io::Result<()>>,
}

impl OutputThread {
    pub(crate) fn open() -> io::Result<Self> {
        let (queue, pieces) = mpsc::channel(MAX_QUEUED_PIECES);
        let (report, done) = oneshot::channel();
        let writer = Writer {
            stdout: BufWriter::new(output::stdout()?),
            stdout_is_terminal: io::stdout().is_terminal(),
            one_terminal: io::stdout().is_terminal() && io::stderr().is_terminal(),
            line_open: false,
            status_shown: false,
        };
        std::thread::Builder::new().name("screen".to_owned()).spawn(move || {
            // The receiver is gone after an immediate exit.
            let _ = report.send(writer.run(pieces));
        })?;
        let free = Arc::new(Semaphore::new(MAX_QUEUED_BYTES as usize));
        Ok(Self { queue, free, done })
    }

    /// Reserves space for `piece`. Fails if stdout can no longer be written. Cancel-safe.
    pub(crate) async fn reserve(&self, piece: &OutputPiece) -> Result<PieceSlot<'_>, StdoutFailed> {
        let place = self.queue.reserve().await.map_err(|_| StdoutFailed)?;
        let taken =
            Arc::clone(&self.free).acquire_many_owned(piece.cost()).await.map_err(|_| StdoutFailed)?;
        Ok(PieceSlot { place, taken })
    }

    /// Waits until everything is written, so that the terminal is free until the next piece. Fails if stdout
    /// can no longer be written. Cancel-safe.
    pub(crate) async fn flush(&self) -> Result<(), StdoutFailed> {
        self.reserve(&OutputPiece::Rest).await?.send(OutputPiece::Rest);
        // When all space is free, the last piece was written.
        let all = self.free.acquire_many(MAX_QUEUED_BYTES).await.map_err(|_| StdoutFailed)?;
        drop(all);
        if self.queue.is_closed() { Err(StdoutFailed) } else { Ok(()) }
    }

    /// Waits until stdout can no longer be written, even if nothing is queued.
    pub(crate) async fn failed(&self) {
        self.queue.closed().await;
    }

    /// Waits until everything is written and returns the result.
    pub(crate) async fn finish(self) -> io::Result<()> {
        drop(self.queue);
        self.done.await.unwrap_or_else(|_| Err(io::Error::other("the output thread failed")))
    }
}

#[derive(Debug)]
pub(crate) struct PieceSlot<'a> {
    place: mpsc::Permit<'a, QueuedPiece>,
    taken: OwnedSemaphorePermit,
}

impl PieceSlot<'_> {
    pub(crate) fn send(self, piece: OutputPiece) {
        self.place.send((piece, self.taken));
    }
}

struct Writer {
    stdout: BufWriter<File>,
    stdout_is_terminal: bool,
    /// `true` if stdout and stderr are the same terminal.
    one_terminal: bool,
    /// `true` if the last text did not end with a newline.
    line_open: bool,
    /// `true` if a status line must be erased before other output.
    status_shown: bool,
}

impl Writer {
    /// Writes until the queue is closed. Afterwards the text ends with a newline.
    fn run(mut self, mut pieces: mpsc::Receiver<QueuedPiece>) -> io::Result<()> {
        while let Some((piece, taken)) = pieces.blocking_recv() {
            self.clear_status();
            match piece {
                OutputPiece::Text(text) => self.text(&text)?,
                OutputPiece::LineEnd => self.end_line()?,
                OutputPiece::Note(note) => self.print_note(&note)?,
                OutputPiece::Status(status) => self.status(&status),
                OutputPiece::Alert(status) => self.alert(&status)?,
                OutputPiece::Rest if self.one_terminal => self.end_line()?,
                OutputPiece::Rest => {}
            }
            // A reader that keeps up gets each piece at once; a slow one gets many pieces together.
            if self.stdout_is_terminal || pieces.is_empty() {
                self.stdout.flush()?;
            }
            drop(taken);
        }
        self.clear_status();
        self.end_line()?;
        self.stdout.flush()
    }

    /// Shows a status, unless a line of text is open.
    fn status(&mut self, status: &str) {
        if !(self.one_terminal && self.line_open) {
            output::write_stderr(status);
            self.status_shown = true;
        }
    }

    /// Shows a status, if necessary on a new line.
    fn alert(&mut self, status: &str) -> io::Result<()> {
        if self.one_terminal {
            self.end_line()?;
            self.stdout.flush()?;
        }
        self.status(status);
        Ok(())
    }

    fn clear_status(&mut self) {
        if std::mem::take(&mut self.status_shown) {
            output::write_stderr("\r\u{1b}[2K");
        }
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

    fn print_note(&mut self, note: &str) -> io::Result<()> {
        if self.one_terminal {
            self.end_line()?;
            self.stdout.flush()?;
        }
        output::write_stderr(note);
        output::write_stderr("\n");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `true` if the queue has space now.
    async fn accepts(output_thread: &OutputThread, bytes: usize) -> bool {
        let piece = OutputPiece::Text("x".repeat(bytes));
        tokio::select! {
            biased;
            room = output_thread.reserve(&piece) => room.map(|room| room.send(piece)).is_ok(),
            () = std::future::ready(()) => false,
        }
    }

    #[tokio::test]
    async fn queued_output_is_bounded_in_bytes() {
        let (queue, mut pieces) = mpsc::channel(MAX_QUEUED_PIECES);
        let (_report, done) = oneshot::channel();
        let output_thread =
            OutputThread { queue, free: Arc::new(Semaphore::new(MAX_QUEUED_BYTES as usize)), done };
        let most = MAX_QUEUED_BYTES as usize;
        assert!(accepts(&output_thread, most / 2).await);
        assert!(accepts(&output_thread, most / 2).await);
        assert!(!accepts(&output_thread, 1).await);
        assert!(!accepts(&output_thread, 2 * most).await);
        drop(pieces.recv().await);
        assert!(accepts(&output_thread, 1).await);
        assert!(!accepts(&output_thread, 2 * most).await);
        while pieces.try_recv().is_ok() {}
        assert!(accepts(&output_thread, 2 * most).await);
        assert!(!accepts(&output_thread, 1).await);
        drop(pieces);
        assert!(!accepts(&output_thread, 1).await);
    }
}
