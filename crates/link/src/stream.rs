//! A link over any byte stream: one task reads lines, another writes them.

use std::convert::Infallible;
use std::future::{Future, pending, ready};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use narrows_wire::{Fault, Frame, Kind, Line, Splitter};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::close::CloseReason;
use crate::link::{Link, Options, Outgoing, Sender, Shared};
use crate::queue;

/// Size of a batch of lines for one write. A longer line is written by itself, without a copy.
const GATHER: usize = 64 << 10;

/// How long a peer may take to read the rest after the link is closed.
const GOODBYE: Duration = Duration::from_secs(30);

/// How long a peer that does not speak JSON-RPC may take to read the refusal.
const LINGER: Duration = Duration::from_millis(500);

/// Creates a link that reads lines from `reader` and writes to `writer`. Must be called inside a runtime.
pub fn stream<R, W>(reader: R, writer: W, options: &Options) -> Link
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let signs = Signs { why: ready(CloseReason::Eof), deaf: pending(), hung_up: pending() };
    stream_until(reader, writer, options, signs)
}

/// Events of the peer that a byte stream itself does not show.
pub(crate) struct Signs<F, D, H> {
    /// Returns the close reason at the end of the stream, such as how a process ended.
    pub(crate) why: F,
    /// Completes when the peer no longer reads; otherwise only the next write shows it.
    pub(crate) deaf: D,
    /// Completes when the peer has closed its end; otherwise only the end of the stream shows it. Polled only while
    /// reading must wait.
    pub(crate) hung_up: H,
}

/// Like [`stream`], with events of the peer.
pub(crate) fn stream_until<R, W, F, D, H>(
    reader: R,
    writer: W,
    options: &Options,
    signs: Signs<F, D, H>,
) -> Link
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = CloseReason> + Send + 'static,
    D: Future<Output = ()> + Send + 'static,
    H: Future<Output = ()> + Send + 'static,
{
    let Signs { why, deaf, hung_up } = signs;
    let (link, to_write, was_read, shared) = Link::new(options);
    let guard = options.guard_first_line.then(|| link.sender.clone());
    let splitter = Splitter::new(options.max_line);
    let to_read = Reading { reader, splitter, frames: was_read, guard, shared: Arc::clone(&shared) };
    tokio::spawn(async move {
        // The receiver sees the end when the last frame sender is dropped, so the reason must be set before.
        let (frames, shared, ended) = to_read.run(hung_up).await;
        shared.close(match ended {
            Ended::Stream => why.await,
            Ended::Because(reason) => reason,
        });
        shared.hang_up();
        drop(frames);
    });
    tokio::spawn(write(writer, to_write, shared, deaf));
    link
}

/// How reading ended.
enum Ended {
    /// The stream ended.
    Stream,
    /// For another reason.
    Because(CloseReason),
}

struct Reading<R> {
    reader: R,
    splitter: Splitter,
    frames: queue::Sender<Frame>,
    /// Until the first line is read: where to send the refusal.
    guard: Option<Sender>,
    shared: Arc<Shared>,
}

impl<R: AsyncRead + Unpin> Reading<R> {
    async fn run(mut self, hung_up: impl Future<Output = ()>) -> (queue::Sender<Frame>, Arc<Shared>, Ended) {
        let shared = Arc::clone(&self.shared);
        let watch = async {
            hung_up.await;
            shared.hang_up();
            pending().await
        };
        tokio::pin!(watch);
        let frames = self.frames.clone();
        let abandoned = frames.closed();
        tokio::pin!(abandoned);
        let ended = loop {
            let read = tokio::select! {
                biased;
                // A silent peer must not keep its descriptor open when the receiver is dropped.
                () = &mut abandoned => break Ended::Because(CloseReason::Local),
                () = shared.input_over() => {
                    if let Some(ended) = self.give_up(watch.as_mut()).await {
                        break ended;
                    }
                    continue;
                }
                read = self.reader.read_buf(self.splitter.buffer()) => read,
            };
            match read {
                Ok(0) => break Ended::Stream,
                Ok(_) => {}
                Err(error) => break Ended::Because(error.into()),
            }
            if let Some(ended) = self.deliver(watch.as_mut()).await {
                break ended;
            }
            self.count_input();
        };
        self.shared.count_input(0);
        if self.splitter.partial() > 0 && !self.splitter.is_skipping() {
            self.shared.partial.fetch_add(1, Ordering::Relaxed);
        }
        (self.frames, self.shared, ended)
    }

    fn count_input(&self) {
        let is_held = !self.splitter.is_skipping();
        self.shared.count_input(if is_held { self.splitter.partial() } else { 0 });
    }

    /// Abandons the unfinished line. Its head is delivered as that of an overlong line.
    async fn give_up(&mut self, watch: Pin<&mut impl Future<Output = Infallible>>) -> Option<Ended> {
        let head = self.splitter.abandon_line()?;
        self.shared.too_long.fetch_add(1, Ordering::Relaxed);
        self.hand_on(Frame::too_long(head), watch).await
    }

    /// Delivers complete lines. Waits while the queue is full, which stops reading.
    async fn deliver(&mut self, mut watch: Pin<&mut impl Future<Output = Infallible>>) -> Option<Ended> {
        while let Some(line) = self.splitter.next_line() {
            let frame = match line {
                Line::Whole(line) => Frame::parse(line),
                Line::TooLong(head) => {
                    self.shared.too_long.fetch_add(1, Ordering::Relaxed);
                    Frame::too_long(head)
                }
            };
            if let Some(sender) = self.guard.take()
                && let Kind::Invalid(Fault::Syntax | Fault::Utf8 | Fault::TooDeep | Fault::NotAMessage) =
                    frame.kind()
            {
                self.shared.close(CloseReason::NotJson);
                if let Some(refusal) = frame.refusal() {
                    let _ = sender.push(refusal);
                }
                sender.close();
                // Closing a socket with unread input resets it, and the answer would be lost.
                let _ = timeout(LINGER, self.discard()).await;
                return Some(Ended::Because(CloseReason::NotJson));
            }
            let ended = self.hand_on(frame, watch.as_mut()).await;
            if ended.is_some() {
                return ended;
            }
        }
        None
    }

    async fn hand_on(
        &mut self,
        frame: Frame,
        mut watch: Pin<&mut impl Future<Output = Infallible>>,
    ) -> Option<Ended> {
        self.shared.frames_in.fetch_add(1, Ordering::Relaxed);
        let size = frame.bytes().len();
        let sent = tokio::select! {
            biased;
            sent = self.frames.send(frame, size) => sent,
            never = &mut watch => match never {},
        };
        // The receiver is dropped, so input is ignored.
        sent.is_err().then_some(Ended::Because(CloseReason::Local))
    }

    /// Reads and discards the rest of a short message.
    async fn discard(&mut self) {
        let mut rest = [0; 16 << 10];
        while matches!(self.reader.read(&mut rest).await, Ok(1..)) {}
    }
}

/// Writes queued lines until the senders are dropped or the peer no longer reads.
async fn write<W: AsyncWrite + Unpin>(
    mut writer: W,
    mut queue: queue::Receiver<Outgoing>,
    shared: Arc<Shared>,
    deaf: impl Future<Output = ()>,
) {
    let ended = queue.ended();
    let overdue = async {
        ended.await;
        let _ = timeout(GOODBYE, shared.abandoned()).await;
    };
    tokio::select! {
        biased;
        result = write_all(&mut writer, &mut queue, &shared) => match result {
            // The final write needs no receiver.
            Ok(()) => drop(timeout(GOODBYE, writer.shutdown()).await),
            Err(error) => shared.close_writing(error),
        },
        () = overdue => {}
        () = deaf => {
            tracing::debug!("the peer no longer reads");
            shared.close_deaf();
        }
    }
    shared.writing.store(false, Ordering::Relaxed);
}

/// Writes queued lines, as many at a time as are available.
async fn write_all<W: AsyncWrite + Unpin>(
    writer: &mut W,
    queue: &mut queue::Receiver<Outgoing>,
    shared: &Shared,
) -> io::Result<()> {
    let mut waiting = Vec::new();
    let mut writing = Writing { writer, gathered: BytesMut::with_capacity(GATHER), frames: 0, shared };
    while queue.recv_all(&mut waiting).await {
        shared.writing.store(true, Ordering::Relaxed);
        for outgoing in waiting.drain(..) {
            match outgoing {
                Outgoing::Line(line) => writing.line(&line).await?,
                Outgoing::Flush(done) => {
                    writing.send_off().await?;
                    // A flush that was dropped needs no reply.
                    let _ = done.send(());
                }
            }
        }
        writing.send_off().await?;
        shared.writing.store(false, Ordering::Relaxed);
    }
    Ok(())
}

struct Writing<'a, W> {
    writer: &'a mut W,
    /// The batch for the next write.
    gathered: BytesMut,
    /// Number of lines that end in it.
    frames: u64,
    shared: &'a Shared,
}

impl<W: AsyncWrite + Unpin> Writing<'_, W> {
    async fn line(&mut self, line: &[u8]) -> io::Result<()> {
        if line.len() < GATHER {
            self.gathered.extend_from_slice(line);
        } else {
            self.send_off().await?;
            put(self.writer, line, self.shared).await?;
        }
        self.gathered.put_u8(b'\n');
        self.frames += 1;
        if self.gathered.len() >= GATHER {
            self.send_off().await?;
        }
        Ok(())
    }

    /// Writes the batch.
    async fn send_off(&mut self) -> io::Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        put(self.writer, &self.gathered, self.shared).await?;
        self.gathered.clear();
        self.writer.flush().await?;
        self.shared.frames_out.fetch_add(std::mem::take(&mut self.frames), Ordering::Relaxed);
        Ok(())
    }
}

/// Writes `bytes` and counts them as the system accepts them.
async fn put<W: AsyncWrite + Unpin>(writer: &mut W, mut bytes: &[u8], shared: &Shared) -> io::Result<()> {
    while !bytes.is_empty() {
        let length = writer.write(bytes).await?;
        if length == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        shared.bytes_out.fetch_add(length as u64, Ordering::Relaxed);
        bytes = &bytes[length..];
    }
    Ok(())
}
