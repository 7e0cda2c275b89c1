//! The last bytes of a worker's stderr, for error messages.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use narrows_base::sync::lock;
use narrows_base::text::multi_line;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::Notify;

/// The last part of a worker's stderr. Clones share it, and it stays readable after the worker's end.
#[derive(Debug, Clone)]
pub struct StderrTail {
    ring: Arc<Mutex<Ring>>,
    appended: Arc<Notify>,
}

#[derive(Debug)]
struct Ring {
    bytes: VecDeque<u8>,
    limit: usize,
    seen: u64,
}

impl StderrTail {
    pub(crate) fn new(limit: usize) -> Self {
        let ring = Ring { bytes: VecDeque::new(), limit, seen: 0 };
        Self { ring: Arc::new(Mutex::new(ring)), appended: Arc::new(Notify::new()) }
    }

    /// Returns at most the last `max_lines` lines that are kept.
    ///
    /// The text is safe to log and to display: invalid UTF-8 is replaced, and control characters, terminal
    /// escapes and direction overrides are escaped as `\u{…}`. A line whose beginning was dropped starts
    /// with `…`.
    pub fn tail(&self, max_lines: usize) -> String {
        let (kept, cut) = {
            let ring = self.lock();
            let kept: Vec<u8> = ring.bytes.iter().copied().collect();
            let cut = ring.seen > kept.len() as u64;
            (kept, cut)
        };
        let text = String::from_utf8_lossy(&kept);
        let lines: Vec<&str> = text.lines().collect();
        let first = lines.len().saturating_sub(max_lines);
        let mut out = String::new();
        for (number, line) in lines.iter().enumerate().skip(first) {
            if number > first {
                out.push('\n');
            }
            if number == 0 && cut {
                out.push('…');
            }
            out.push_str(&multi_line(line));
        }
        out
    }

    /// Returns the kept complete lines after the first `from` bytes, and the position of the next line.
    ///
    /// The lines are escaped as those of [`tail`](Self::tail). A line whose beginning was dropped starts
    /// with `…`. A line without an end is returned when it fills the whole buffer.
    pub fn lines_after(&self, from: u64) -> (Vec<String>, u64) {
        let (kept, first, full) = {
            let ring = self.lock();
            let first = ring.seen - ring.bytes.len() as u64;
            let skipped = usize::try_from(from.saturating_sub(first)).unwrap_or(usize::MAX);
            let kept: Vec<u8> = ring.bytes.iter().skip(skipped).copied().collect();
            (kept, first, ring.bytes.len() == ring.limit)
        };
        let end = match kept.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => last + 1,
            None if full && first >= from => kept.len(),
            None => return (Vec::new(), from),
        };
        let cut = if first > from { "…" } else { "" };
        let text = String::from_utf8_lossy(&kept[..end]);
        let lines = text.lines().enumerate().map(|(number, line)| {
            let mut out = if number == 0 { cut.to_owned() } else { String::new() };
            out.push_str(&multi_line(line));
            out
        });
        (lines.collect(), first.max(from) + end as u64)
    }

    /// Waits until more than `seen` bytes were written. Cancel-safe.
    pub async fn grown(&self, seen: u64) {
        loop {
            let appended = self.appended.notified();
            let mut appended = std::pin::pin!(appended);
            // The wait is registered before the check, so that no notification is missed.
            appended.as_mut().enable();
            if self.bytes_seen() > seen {
                return;
            }
            appended.await;
        }
    }

    /// Returns the number of bytes that the worker has written to stderr.
    pub fn bytes_seen(&self) -> u64 {
        self.lock().seen
    }

    fn push(&self, chunk: &[u8]) {
        let mut ring = self.lock();
        let Ring { bytes, limit, seen } = &mut *ring;
        *seen += chunk.len() as u64;
        let chunk = &chunk[chunk.len().saturating_sub(*limit)..];
        let excess = (bytes.len() + chunk.len()).saturating_sub(*limit);
        bytes.drain(..excess);
        bytes.extend(chunk);
        drop(ring);
        self.appended.notify_waiters();
    }

    /// Reads stderr to its end, so that the worker never blocks on writing.
    pub(crate) async fn drain(self, stderr: Option<pipe::Receiver>) {
        let Some(mut stderr) = stderr else { return };
        let mut chunk = vec![0; 16 * 1024];
        loop {
            match stderr.read(&mut chunk).await {
                Ok(0) => return,
                Ok(read) => self.push(&chunk[..read]),
                Err(error) => {
                    tracing::debug!(%error, "reading worker stderr failed");
                    return;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        // The buffer is consistent after every statement, so a panic of another thread while it held the lock
        // does not matter.
        lock(&self.ring)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail_of(limit: usize, chunks: &[&[u8]]) -> StderrTail {
        let tail = StderrTail::new(limit);
        chunks.iter().for_each(|chunk| tail.push(chunk));
        tail
    }

    #[test]
    fn keeps_the_end_within_the_limit() {
        let tail = tail_of(8, &[b"one\n", b"two\n", b"three\n"]);
        assert_eq!(tail.tail(10), "…o\nthree");
        assert_eq!(tail.tail(1), "three");
        assert_eq!(tail.bytes_seen(), 14);
        assert_eq!(tail_of(4, &[b"much longer"]).tail(10), "…nger");
        assert_eq!(tail_of(0, &[b"x"]).tail(10), "");
    }

    #[test]
    fn shows_lines_whole_when_nothing_was_dropped() {
        let tail = tail_of(64, &[b"a\r\nb", b"b\n\nc"]);
        assert_eq!(tail.tail(10), "a\nbb\n\nc");
        assert_eq!(tail.tail(2), "\nc");
        assert_eq!(tail.tail(0), "");
    }

    #[test]
    fn lines_are_returned_once_and_complete() {
        #[track_caller]
        fn check(tail: &StderrTail, from: u64, lines: &[&str], next: u64) -> u64 {
            let (found, found_next) = tail.lines_after(from);
            assert_eq!(
                (found.iter().map(String::as_str).collect::<Vec<_>>().as_slice(), found_next),
                (lines, next)
            );
            next
        }
        let tail = tail_of(8, &[b"a\nb"]);
        let mut at = check(&tail, 0, &["a"], 2);
        at = check(&tail, at, &[], 2);
        tail.push(b"c\n\x1b\n");
        at = check(&tail, at, &["bc", "\\u{1b}"], 7);
        // A single write has more bytes than are kept.
        tail.push(b"0123456789\nx\n");
        at = check(&tail, at, &["…56789", "x"], 20);
        // The line has no line end.
        tail.push(b"abcd");
        at = check(&tail, at, &[], 20);
        tail.push(b"efgh");
        at = check(&tail, at, &["abcdefgh"], 28);
        tail.push(b"\xff\n");
        check(&tail, at, &["\u{fffd}"], 30);
    }

    #[tokio::test]
    async fn waiting_for_more_output_ends_with_a_write() {
        let tail = tail_of(8, &[b"a"]);
        tail.grown(0).await;
        let other = tail.clone();
        let waiting = tokio::spawn(async move { other.grown(1).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        tail.push(b"b");
        waiting.await.unwrap();
    }

    #[test]
    fn terminal_escapes_are_escaped() {
        let tail = tail_of(64, &["\u{1b}[31mred\u{202e}\u{9b}\t\0".as_bytes(), b"\xff"]);
        assert_eq!(tail.tail(1), "\\u{1b}[31mred\\u{202e}\\u{9b}\t\\u{0}\u{fffd}");
    }
}
