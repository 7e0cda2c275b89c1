//! Splits a log into pieces of complete lines, and checks the pieces on several threads.

use std::io;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use memchr::memrchr;
use narrows_base::sync::lock;

use super::Source;
use super::chunk::Checked;

/// Size of a piece. A piece that contains a longer line is larger.
const PIECE_BYTES: usize = 4 << 20;

pub(super) const MAX_LINE_BYTES: u64 = 64 << 20;

/// Iterates over the pieces of several sources, in order, each with the index of its source. Data after the
/// last line end of a source is left out.
pub(super) struct Pieces<'a> {
    sources: &'a [&'a dyn Source],
    source: usize,
    offset: u64,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(sources: &'a [&'a dyn Source], offset: u64) -> Self {
        Self { sources, source: 0, offset }
    }

    /// Checks the pieces on several threads, and stops after a bad piece. Returns the results in order.
    pub(super) fn each(
        &mut self,
        threads: usize,
        look: impl Fn(&[u8]) -> Checked + Sync,
    ) -> io::Result<Vec<(usize, Checked)>> {
        let small = self.sources.iter().map(|source| source.length()).sum::<u64>() <= PIECE_BYTES as u64;
        let threads = if small { 1 } else { threads.clamp(1, 64) };
        let pieces = Mutex::new((0, self));
        let results = Mutex::new(Vec::new());
        let bad = AtomicBool::new(false);
        let work = || -> io::Result<()> {
            while !bad.load(Ordering::Relaxed) {
                let next = {
                    let mut pieces = lock(&pieces);
                    pieces.0 += 1;
                    let number = pieces.0;
                    pieces.1.next().map(|(source, bytes)| (number, source, bytes))
                };
                let Some((number, source, bytes)) = next else { break };
                let checked = look(&bytes?);
                if checked.flaw.is_some() {
                    // Other threads already check all pieces before this one, and the pieces after it do not
                    // matter.
                    bad.store(true, Ordering::Relaxed);
                }
                lock(&results).push((number, source, checked));
            }
            Ok(())
        };
        if threads == 1 {
            work()?;
        } else {
            std::thread::scope(|scope| {
                let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
                let mine = work();
                others.into_iter().fold(mine, |outcome, other| {
                    outcome.and(
                        other
                            .join()
                            .unwrap_or_else(|_| Err(io::Error::other("a verification thread panicked"))),
                    )
                })
            })?;
        }
        let mut results: Vec<(u64, usize, Checked)> = results.into_inner().unwrap_or_default();
        results.sort_unstable_by_key(|(number, ..)| *number);
        Ok(results.into_iter().map(|(_, source, checked)| (source, checked)).collect())
    }
}

impl Iterator for Pieces<'_> {
    type Item = (usize, io::Result<Vec<u8>>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let source = *self.sources.get(self.source)?;
            let mut length = PIECE_BYTES as u64;
            loop {
                let end = (self.offset + length).min(source.length());
                let mut bytes = match read(source, self.offset..end.max(self.offset)) {
                    Ok(bytes) => bytes,
                    Err(error) => {
                        self.source = self.sources.len();
                        return Some((self.source, Err(error)));
                    }
                };
                if let Some(last) = memrchr(b'\n', &bytes) {
                    bytes.truncate(last + 1);
                    self.offset += bytes.len() as u64;
                    return Some((self.source, Ok(bytes)));
                }
                // A log begins with a brace. In another file, the search for the end of the first line could
                // need much memory.
                let is_other = self.offset == 0 && bytes.first().is_some_and(|first| *first != b'{');
                if end >= source.length() || length >= MAX_LINE_BYTES || is_other {
                    break;
                }
                length = (length * 2).min(MAX_LINE_BYTES);
            }
            self.source += 1;
            self.offset = 0;
        }
    }
}

pub(super) fn read(source: &dyn Source, part: Range<u64>) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(part.end.saturating_sub(part.start)).map_err(io::Error::other)?];
    let mut done = 0;
    while done < bytes.len() {
        match source.read_at(part.start + done as u64, &mut bytes[done..]) {
            Ok(0) => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the log became shorter during verification",
                ));
            }
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}
