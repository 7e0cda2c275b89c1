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

/// Size of a batch of lines for one write. A longer line is written alone, without a copy.
const WRITE_BATCH_BYTES: usize = 64 << 10;

/// Time for a peer to read the remaining lines after the link is closed.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for a peer that does not speak JSON-RPC to read the refusal.
const REFUSAL_LINGER_TIMEOUT: Duration = Duration::from_millis(500);

/// Creates a link that reads lines from `reader` and writes to `writer`. Must be called inside a runtime.
pub fn stream<R, W>(reader: R, writer: W, options: &Options) -> Link
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let signs = PeerSignals { why: ready(CloseReason::Eof), reader_gone: pending(), peer_closed: pending() };
    stream_until(reader, writer, options, signs)
}

/// Events of the peer that the byte stream itself does not show.
pub(crate) struct PeerSignals<F, D, H> {
    /// Returns the close reason at the end of the stream, such as the exit of a process.
    pub(crate) why: F,
    /// Completes when the peer stopped reading. Without this signal, only the next write fails.
    pub(crate) reader_gone: D,
    /// Completes when the peer has closed its end. Without this signal, only the end of the stream shows the
    /// close. Polled only while reading must wait.
    pub(crate) peer_closed: H,
}

/// Creates a link as [`stream`] does, with events of the peer.
pub(crate) fn stream_until<R, W, F, D, H>(
    reader: R,
    writer: W,
    options: &Options,
    signs: PeerSignals<F, D, H>,
) -> Link
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = CloseReason> + Send + 'static,
    D: Future<Output = ()> + Send + 'static,
    H: Future<Output = ()> + Send + 'static,
{
    let PeerSignals { why, reader_gone, peer_closed } = signs;
    let (link, to_write, was_read, shared) = Link::new(options);
    let guard = options.guard_first_line.then(|| link.sender.clone());
    let splitter = Splitter::new(options.max_line);
    let to_read = LineReader { reader, splitter, frames: was_read, guard, shared: Arc::clone(&shared) };
    tokio::spawn(async move {
        // The reason must be set before the last frame sender is dropped, because that drop shows the
        // receiver the end.
        let (frames, shared, ended) = to_read.run(peer_closed).await;
        shared.close(match ended {
            ReadEnd::Stream => why.await,
            ReadEnd::Because(reason) => reason,
        });
        shared.mark_peer_closed();
        drop(frames);
    });
    tokio::spawn(write(writer, to_write, shared, reader_gone));
    link
}

enum ReadEnd {
    Stream,
    /// Reading ended for this reason, before the end of the stream.
    Because(CloseReason),
}

struct LineReader<R> {
    reader: R,
    splitter: Splitter,
    frames: queue::Sender<Frame>,
    /// The sender for the refusal of a peer whose first line is not JSON. `None` once the first line was
    /// read.
    guard: Option<Sender>,
    shared: Arc<Shared>,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    async fn run(
        mut self,
        peer_closed: impl Future<Output = ()>,
    ) -> (queue::Sender<Frame>, Arc<Shared>, ReadEnd) {
        let shared = Arc::clone(&self.shared);
        let watch = async {
            peer_closed.await;
            shared.mark_peer_closed();
            pending().await
        };
        tokio::pin!(watch);
        let frames = self.frames.clone();
        let abandoned = frames.closed();
        tokio::pin!(abandoned);
        let ended = loop {
            let read = tokio::select! {
                biased;
                // When the receiver is dropped, a silent peer must not keep its descriptor open.
                () = &mut abandoned => break ReadEnd::Because(CloseReason::Local),
                () = shared.input_abandoned() => {
                    if let Some(ended) = self.abandon_line(watch.as_mut()).await {
                        break ended;
                    }
                    continue;
                }
                read = self.reader.read_buf(self.splitter.buffer()) => read,
            };
            match read {
                Ok(0) => break ReadEnd::Stream,
                Ok(_) => {}
                Err(error) => break ReadEnd::Because(error.into()),
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

    /// Abandons the unfinished line. The first bytes of the line are delivered as those of an overlong line.
    async fn abandon_line(&mut self, watch: Pin<&mut impl Future<Output = Infallible>>) -> Option<ReadEnd> {
        let head = self.splitter.abandon_line()?;
        self.shared.too_long.fetch_add(1, Ordering::Relaxed);
        self.forward(Frame::too_long(head), watch).await
    }

    /// Delivers complete lines. Waits while the queue is full, which stops reading.
    async fn deliver(&mut self, mut watch: Pin<&mut impl Future<Output = Infallible>>) -> Option<ReadEnd> {
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
                // Closing a socket with unread input would reset it, and the peer would lose the answer.
                let _ = timeout(REFUSAL_LINGER_TIMEOUT, self.discard()).await;
                return Some(ReadEnd::Because(CloseReason::NotJson));
            }
            let ended = self.forward(frame, watch.as_mut()).await;
            if ended.is_some() {
                return ended;
            }
        }
        None
    }

    async fn forward(
        &mut self,
        frame: Frame,
        mut watch: Pin<&mut impl Future<Output = Infallible>>,
    ) -> Option<ReadEnd> {
        self.shared.frames_in.fetch_add(1, Ordering::Relaxed);
        let size = frame.bytes().len();
        let sent = tokio::select! {
            biased;
            sent = self.frames.send(frame, size) => sent,
            never = &mut watch => match never {},
        };
        // The receiver is dropped, so reading can end.
        sent.is_err().then_some(ReadEnd::Because(CloseReason::Local))
    }

    /// Reads and discards the rest of a short message.
    async fn discard(&mut self) {
        let mut rest = [0; 16 << 10];
        while matches!(self.reader.read(&mut rest).await, Ok(1..)) {}
    }
}

/// Writes queued lines until the senders are dropped or the peer stopped reading.
async fn write<W: AsyncWrite + Unpin>(
    mut writer: W,
    mut queue: queue::Receiver<Outgoing>,
    shared: Arc<Shared>,
    reader_gone: impl Future<Output = ()>,
) {
    let ended = queue.ended();
    let overdue = async {
        ended.await;
        let _ = timeout(FINAL_WRITE_TIMEOUT, shared.abandoned()).await;
    };
    tokio::select! {
        biased;
        result = write_all(&mut writer, &mut queue, &shared) => match result {
            // After an orderly end, the writer is shut down, so that the peer sees the end of the stream.
            Ok(()) => drop(timeout(FINAL_WRITE_TIMEOUT, writer.shutdown()).await),
            Err(error) => shared.close_writing(error),
        },
        () = overdue => {}
        () = reader_gone => {
            tracing::debug!("peer stopped reading");
            shared.mark_not_reading();
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
    let mut writing =
        LineWriter { writer, batch: BytesMut::with_capacity(WRITE_BATCH_BYTES), frames: 0, shared };
    while queue.recv_all(&mut waiting).await {
        shared.writing.store(true, Ordering::Relaxed);
        for outgoing in waiting.drain(..) {
            match outgoing {
                Outgoing::Line(line) => writing.line(&line).await?,
                Outgoing::Flush(done) => {
                    writing.flush_batch().await?;
                    // A caller that has dropped its flush needs no reply.
                    let _ = done.send(());
                }
            }
        }
        writing.flush_batch().await?;
        shared.writing.store(false, Ordering::Relaxed);
    }
    Ok(())
}

struct LineWriter<'a, W> {
    writer: &'a mut W,
    /// The batch for the next write.
    batch: BytesMut,
    /// Number of lines that end in `batch`.
    frames: u64,
    shared: &'a Shared,
}

impl<W: AsyncWrite + Unpin> LineWriter<'_, W> {
    async fn line(&mut self, line: &[u8]) -> io::Result<()> {
        if line.len() < WRITE_BATCH_BYTES {
            self.batch.extend_from_slice(line);
        } else {
            self.flush_batch().await?;
            write_counted(self.writer, line, self.shared).await?;
        }
        self.batch.put_u8(b'\n');
        self.frames += 1;
        if self.batch.len() >= WRITE_BATCH_BYTES {
            self.flush_batch().await?;
        }
        Ok(())
    }

    async fn flush_batch(&mut self) -> io::Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        write_counted(self.writer, &self.batch, self.shared).await?;
        self.batch.clear();
        self.writer.flush().await?;
        self.shared.frames_out.fetch_add(std::mem::take(&mut self.frames), Ordering::Relaxed);
        Ok(())
    }
}

/// Writes `bytes`, and counts them as soon as the operating system accepts them.
async fn write_counted<W: AsyncWrite + Unpin>(
    writer: &mut W,
    mut bytes: &[u8],
    shared: &Shared,
) -> io::Result<()> {
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
