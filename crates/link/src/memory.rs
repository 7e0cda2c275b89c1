//! Two connected links in memory, for tests and for agents in the same process.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use narrows_wire::Frame;

use crate::close::CloseReason;
use crate::link::{Link, Options, Outgoing, Shared};
use crate::queue;

/// Creates two connected links. Must be called inside a runtime.
///
/// Frames are scanned on arrival and limits apply, as on every other link.
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
    let ended = from.ended();
    let overdue = async {
        ended.await;
        receiver.mark_peer_closed();
        sender.abandoned().await;
    };
    let taken = tokio::select! {
        biased;
        taken = carry_all(&mut from, &to, &sender, &receiver, max_line) => taken,
        () = overdue => true,
    };
    sender.writing.store(false, Ordering::Relaxed);
    if taken {
        receiver.close(CloseReason::Eof);
        receiver.mark_peer_closed();
    } else {
        sender.mark_not_reading();
    }
}

/// Moves queued frames until the senders are dropped. Returns `false` if the receiver is dropped first.
async fn carry_all(
    from: &mut queue::Receiver<Outgoing>,
    to: &queue::Sender<Frame>,
    sender: &Shared,
    receiver: &Shared,
    max_line: usize,
) -> bool {
    while let Some(outgoing) = from.recv().await {
        let line = match outgoing {
            Outgoing::Line(line) => line,
            Outgoing::Flush(done) => {
                let _ = done.send(());
                continue;
            }
        };
        let written = line.len() as u64 + 1;
        let frame = if line.len() > max_line {
            receiver.too_long.fetch_add(1, Ordering::Relaxed);
            Frame::too_long(line.slice(..narrows_wire::OVERLONG_HEAD_BYTES.min(max_line)))
        } else {
            Frame::parse(line)
        };
        receiver.frames_in.fetch_add(1, Ordering::Relaxed);
        let size = frame.bytes().len();
        sender.writing.store(true, Ordering::Relaxed);
        if to.send(frame, size).await.is_err() {
            return false;
        }
        sender.writing.store(false, Ordering::Relaxed);
        sender.frames_out.fetch_add(1, Ordering::Relaxed);
        // Counts the line end, which a byte stream would carry.
        sender.bytes_out.fetch_add(written, Ordering::Relaxed);
    }
    true
}
