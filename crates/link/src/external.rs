//! A link whose transport is implemented in another crate.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use narrows_wire::Frame;
use tokio::sync::oneshot;

use crate::close::CloseReason;
use crate::link::{Link, Options, Outgoing, Shared};
use crate::queue::{self, Closed};

/// Creates a link for a transport of the caller. Returns the link, the lines to transport, and the queue
/// for received frames.
#[must_use]
pub fn external_link(options: &Options) -> (Link, OutgoingLines, IncomingFrames) {
    let (link, to_write, was_read, shared) = Link::new(options);
    let outgoing = OutgoingLines {
        queue: to_write,
        taken: Vec::new(),
        waiting: Vec::new(),
        shared: Arc::clone(&shared),
    };
    (link, outgoing, IncomingFrames { queue: was_read, shared })
}

/// The lines that the holder of an external link sends. [`Sender::written`](crate::Sender::written) waits
/// until this value is dropped.
pub struct OutgoingLines {
    queue: queue::Receiver<Outgoing>,
    /// Lines that were taken from the queue, but not yet returned to the transport.
    taken: Vec<Outgoing>,
    /// Flushes that complete when the lines taken so far are written.
    waiting: Vec<oneshot::Sender<()>>,
    shared: Arc<Shared>,
}

impl OutgoingLines {
    /// Moves all available lines to `lines`, waiting for the first. Returns `false` at the end. Cancel-safe.
    pub async fn recv_lines(&mut self, lines: &mut Vec<Bytes>) -> bool {
        loop {
            if !self.queue.recv_all(&mut self.taken).await {
                return false;
            }
            self.split_lines(lines);
            if !lines.is_empty() || !self.waiting.is_empty() {
                return true;
            }
        }
    }

    /// Moves all available lines to `lines` without waiting.
    pub fn try_recv_lines(&mut self, lines: &mut Vec<Bytes>) {
        self.taken.extend(std::iter::from_fn(|| self.queue.try_recv()));
        self.split_lines(lines);
    }

    fn split_lines(&mut self, lines: &mut Vec<Bytes>) {
        for outgoing in self.taken.drain(..) {
            match outgoing {
                Outgoing::Line(line) => lines.push(line),
                Outgoing::Flush(done) => self.waiting.push(done),
            }
        }
    }

    /// Marks the link as writing, so that a lack of progress counts as a standstill.
    pub fn mark_writing(&self) {
        self.shared.writing.store(true, Ordering::Relaxed);
    }

    /// Counts a line as written.
    pub fn count_written(&self, line: &[u8]) {
        self.shared.frames_out.fetch_add(1, Ordering::Relaxed);
        self.shared.bytes_out.fetch_add(line.len() as u64 + 1, Ordering::Relaxed);
    }

    /// Completes the flushes of all lines received so far. To be called once the operating system has these
    /// lines.
    pub fn mark_flushed(&mut self) {
        self.shared.writing.store(false, Ordering::Relaxed);
        for done in self.waiting.drain(..) {
            // A caller that has dropped its flush needs no reply.
            let _ = done.send(());
        }
    }

    /// Waits until the holder of the link will send nothing more. Lines may still be queued.
    pub fn ended(&self) -> impl Future<Output = ()> + use<> {
        self.queue.ended()
    }

    /// Waits until the link is abandoned. Queued lines must not be written then.
    pub fn abandoned(&self) -> impl Future<Output = ()> + use<> {
        let shared = Arc::clone(&self.shared);
        async move { shared.abandoned().await }
    }
}

impl std::fmt::Debug for OutgoingLines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outlet").finish_non_exhaustive()
    }
}

/// The queue for frames that the transport has received.
pub struct IncomingFrames {
    queue: queue::Sender<Frame>,
    shared: Arc<Shared>,
}

impl IncomingFrames {
    /// Queues a frame, waiting for room. Cancel-safe: a dropped call has not queued it.
    ///
    /// # Errors
    /// If the receiver is dropped.
    pub async fn send(&self, frame: Frame) -> Result<(), Closed> {
        let size = frame.bytes().len();
        self.queue.send(frame, size).await?;
        self.shared.frames_in.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the link with `reason`, after the receiver has read the queued frames.
    pub fn close(self, reason: CloseReason) {
        self.shared.close(reason);
        self.shared.mark_peer_closed();
    }
}

impl std::fmt::Debug for IncomingFrames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inlet").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_and_frames_pass_an_external_link() {
        let (mut link, mut outgoing, incoming) = external_link(&Options::default());
        let mut lines = Vec::new();
        link.sender.push("1".into()).unwrap();
        link.sender.push("2".into()).unwrap();
        let sender = link.sender.clone();
        let flush = tokio::spawn(async move { sender.flush().await });
        while lines.len() < 2 || outgoing.waiting.is_empty() {
            assert!(outgoing.recv_lines(&mut lines).await);
        }
        assert_eq!(lines, ["1", "2"]);
        assert!(!flush.is_finished());
        outgoing.mark_writing();
        outgoing.count_written(b"1");
        outgoing.mark_flushed();
        flush.await.unwrap().unwrap();
        incoming.send(Frame::parse("{}".into())).await.unwrap();
        incoming.close(CloseReason::NotJson);
        assert_eq!(link.receiver.recv().await.unwrap().bytes(), "{}");
        assert!(link.receiver.recv().await.is_none());
        assert_eq!(link.receiver.reason(), CloseReason::NotJson);
        let stats = link.sender.stats();
        assert_eq!((stats.frames_in, stats.frames_out, stats.bytes_out), (1, 1, 2));
        link.sender.push("3".into()).unwrap();
        link.sender.close();
        outgoing.ended().await;
        outgoing.try_recv_lines(&mut lines);
        assert_eq!(lines, ["1", "2", "3"]);
        assert!(!outgoing.recv_lines(&mut lines).await);
        drop(outgoing);
        link.sender.written().await;
    }
}
