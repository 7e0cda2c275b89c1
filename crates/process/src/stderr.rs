//! The last bytes of a worker's stderr, kept so that an error can quote them.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

/// A view of the end of a worker's stderr; clones share it, and it outlives the worker.
#[derive(Debug, Clone)]
pub struct StderrTail {
    ring: Arc<Mutex<Ring>>,
}

#[derive(Debug)]
struct Ring {
    bytes: VecDeque<u8>,
    limit: usize,
    seen: u64,
}

impl StderrTail {
    pub(crate) fn new(limit: usize) -> Self {
        Self { ring: Arc::new(Mutex::new(Ring { bytes: VecDeque::new(), limit, seen: 0 })) }
    }

    /// At most the last `max_lines` lines, as far as they are kept.
    ///
    /// The text is safe to log or to show: invalid UTF-8 is replaced, and control characters, terminal
    /// escapes and direction overrides appear as `\u{…}`. A line whose beginning was dropped starts with
    /// `…`.
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
            push_escaped(&mut out, line);
        }
        out
    }

    /// How many bytes the worker has written to stderr, kept or not.
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
    }

    /// Reads until end-of-file, so that the worker never blocks on stderr however much it writes.
    pub(crate) async fn drain(self, stderr: Option<pipe::Receiver>) {
        let Some(mut stderr) = stderr else { return };
        let mut chunk = vec![0; 16 * 1024];
        loop {
            match stderr.read(&mut chunk).await {
                Ok(0) => return,
                Ok(read) => self.push(&chunk[..read]),
                Err(error) => {
                    tracing::debug!(%error, "reading a worker's stderr failed");
                    return;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        // A ring is consistent after every statement, so a panic elsewhere does not spoil it.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn push_escaped(out: &mut String, line: &str) {
    for character in line.chars() {
        let reorders =
            matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if (character.is_control() && character != '\t') || reorders {
            // Writing into a string cannot fail.
            _ = write!(out, "{}", character.escape_unicode());
        } else {
            out.push(character);
        }
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
    fn escapes_what_a_terminal_would_obey() {
        let tail = tail_of(64, &["\u{1b}[31mred\u{202e}\u{9b}\t\0".as_bytes(), b"\xff"]);
        assert_eq!(tail.tail(1), "\\u{1b}[31mred\\u{202e}\\u{9b}\t\\u{0}\u{fffd}");
    }
}
