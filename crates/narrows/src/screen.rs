//! Where the answer appears while it comes: a thread of its own, so that a slow reader of our stdout blocks neither
//! signals nor deadlines.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::output;

/// How many pieces, and how many bytes, may wait for a slow reader; then nothing more is taken from the agent. A larger piece has to wait
/// until it is the only one.
const PIECES: usize = 16;
const BYTES: u32 = 1 << 20;

/// One piece of what is shown.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Of the answer, to stdout.
    Text(String),
    /// The end of its line, if it has not ended: something else follows.
    LineEnd,
    /// A line beside it, to stderr.
    Note(String),
    /// What goes on, on a terminal, until something else is shown.
    Status(String),
    /// The same, though it tears a line of the answer.
    Alert(String),
    /// Nothing: what stands before it is to be on the screen, and the cursor at the beginning of a line.
    Rest,
}

impl Piece {
    /// How much of the room it takes.
    fn cost(&self) -> u32 {
        let bytes = match self {
            Self::Text(text) | Self::Note(text) | Self::Status(text) | Self::Alert(text) => text.len(),
            Self::LineEnd => 0,
            // Something, so that it can be waited for.
            Self::Rest => 1,
        };
        u32::try_from(bytes).map_or(BYTES, |bytes| bytes.min(BYTES))
    }
}

/// A piece, with the room it takes until it is written.
type Placed = (Piece, OwnedSemaphorePermit);

/// Our stdout does not take any more.
#[derive(Debug)]
pub(crate) struct Failed;

/// The handle of the thread.
#[derive(Debug)]
pub(crate) struct Screen {
    queue: mpsc::Sender<Placed>,
    free: Arc<Semaphore>,
    done: oneshot::Receiver<io::Result<()>>,
}

impl Screen {
    /// Starts the thread.
    pub(crate) fn open() -> io::Result<Self> {
        let (queue, pieces) = mpsc::channel(PIECES);
        let (report, done) = oneshot::channel();
        let writer = Writer {
            stdout: BufWriter::new(output::stdout()?),
            stdout_is_terminal: io::stdout().is_terminal(),
            one_terminal: io::stdout().is_terminal() && io::stderr().is_terminal(),
            line_open: false,
            status_shown: false,
        };
        std::thread::Builder::new().name("screen".to_owned()).spawn(move || {
            // Nobody listens any more when we leave at once.
            let _ = report.send(writer.run(pieces));
        })?;
        let free = Arc::new(Semaphore::new(BYTES as usize));
        Ok(Self { queue, free, done })
    }

    /// Waits for room for `piece`. Fails when stdout does. Safe to cancel.
    pub(crate) async fn room(&self, piece: &Piece) -> Result<Room<'_>, Failed> {
        let place = self.queue.reserve().await.map_err(|_| Failed)?;
        let taken = Arc::clone(&self.free).acquire_many_owned(piece.cost()).await.map_err(|_| Failed)?;
        Ok(Room { place, taken })
    }

    /// Waits until everything is written, so that somebody else can use the terminal until the next piece. Safe to
    /// cancel. Fails when stdout does.
    pub(crate) async fn rest(&self) -> Result<(), Failed> {
        self.room(&Piece::Rest).await?.send(Piece::Rest);
        // All room is free again when the last piece was written.
        let all = self.free.acquire_many(BYTES).await.map_err(|_| Failed)?;
        drop(all);
        if self.queue.is_closed() { Err(Failed) } else { Ok(()) }
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

/// Room for one piece.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    place: mpsc::Permit<'a, Placed>,
    taken: OwnedSemaphorePermit,
}

impl Room<'_> {
    /// Puts the piece there for which it was asked.
    pub(crate) fn send(self, piece: Piece) {
        self.place.send((piece, self.taken));
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
    /// A line on stderr is to be taken away again.
    status_shown: bool,
}

impl Writer {
    /// Writes until there is nothing more to come. The text always ends with a line end.
    fn run(mut self, mut pieces: mpsc::Receiver<Placed>) -> io::Result<()> {
        while let Some((piece, taken)) = pieces.blocking_recv() {
            self.take_status_away();
            match piece {
                Piece::Text(text) => self.text(&text)?,
                Piece::LineEnd => self.end_line()?,
                Piece::Note(note) => self.note(&note)?,
                Piece::Status(status) => self.status(&status),
                Piece::Alert(status) => self.alert(&status)?,
                Piece::Rest if self.one_terminal => self.end_line()?,
                Piece::Rest => {}
            }
            // A program that reads along gets what there is; one that lags gets it in large pieces.
            if self.stdout_is_terminal || pieces.is_empty() {
                self.stdout.flush()?;
            }
            drop(taken);
        }
        self.take_status_away();
        self.end_line()?;
        self.stdout.flush()
    }

    /// Shows what goes on, unless it would tear a line of the answer.
    fn status(&mut self, status: &str) {
        if !(self.one_terminal && self.line_open) {
            output::complain(status);
            self.status_shown = true;
        }
    }

    /// Shows what has to be known, if need be on a line of its own.
    fn alert(&mut self, status: &str) -> io::Result<()> {
        if self.one_terminal {
            self.end_line()?;
            self.stdout.flush()?;
        }
        self.status(status);
        Ok(())
    }

    fn take_status_away(&mut self) {
        if std::mem::take(&mut self.status_shown) {
            output::complain("\r\u{1b}[2K");
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether there is room now.
    async fn puts(screen: &Screen, bytes: usize) -> bool {
        let piece = Piece::Text("x".repeat(bytes));
        tokio::select! {
            biased;
            room = screen.room(&piece) => room.map(|room| room.send(piece)).is_ok(),
            () = std::future::ready(()) => false,
        }
    }

    #[tokio::test]
    async fn what_waits_is_bounded_in_bytes() {
        let (queue, mut pieces) = mpsc::channel(PIECES);
        let (_report, done) = oneshot::channel();
        let screen = Screen { queue, free: Arc::new(Semaphore::new(BYTES as usize)), done };
        let most = BYTES as usize;
        assert!(puts(&screen, most / 2).await);
        assert!(puts(&screen, most / 2).await);
        assert!(!puts(&screen, 1).await);
        assert!(!puts(&screen, 2 * most).await);
        drop(pieces.recv().await);
        assert!(puts(&screen, 1).await);
        assert!(!puts(&screen, 2 * most).await);
        while pieces.try_recv().is_ok() {}
        assert!(puts(&screen, 2 * most).await);
        assert!(!puts(&screen, 1).await);
        drop(pieces);
        assert!(!puts(&screen, 1).await);
    }
}
