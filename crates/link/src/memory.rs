//! Two links that are each other's peer, without any system between them: for tests and for agents in process.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use narrows_wire::Frame;

use crate::close::CloseReason;
use crate::link::{Link, Options, Outgoing, Shared};
use crate::queue;

/// Two connected links. Must be called inside a runtime.
///
/// Frames are scanned on arrival as on any other link, and lines over the limit are refused the same way.
#[must_use]
pub fn pair(options: &Options) -> (Link, Link) {
    let (one, one_writes, one_reads, one_shared) = Link::new(options);
    let (other, other_writes, other_reads, other_shared) = Link::new(options);
    tokio::spawn(carry(
        one_writes,
        other_reads,
        Arc::clone(&one_shared),
        Arc::clone(&other_shared),
        options.max_line,
    ));
    tokio::spawn(carry(other_writes, one_reads, other_shared, one_shared, options.max_line));
    (one, other)
}

async fn carry(
    mut from: queue::Receiver<Outgoing>,
    to: queue::Sender<Frame>,
    sender: Arc<Shared>,
    receiver: Arc<Shared>,
    max_line: usize,
) {
    while let Some(outgoing) = from.recv().await {
        let line = match outgoing {
            Outgoing::Line(line) => line,
            Outgoing::Flush(done) => {
                let _ = done.send(());
                continue;
            }
        };
        sender.frames_out.fetch_add(1, Ordering::Relaxed);
        let frame = if line.len() > max_line {
            receiver.too_long.fetch_add(1, Ordering::Relaxed);
            Frame::too_long(line.slice(..narrows_wire::HEAD.min(max_line)))
        } else {
            Frame::parse(line)
        };
        receiver.frames_in.fetch_add(1, Ordering::Relaxed);
        let size = frame.bytes().len();
        if to.send(frame, size).await.is_err() {
            sender.close_deaf();
            return;
        }
    }
    receiver.close(CloseReason::Eof);
}
