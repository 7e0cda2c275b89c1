//! Reads the log from disk: the whole log when it is opened, and later the entries that other processes have
//! appended.

use std::io;
use std::sync::Mutex;

use narrows_base::sync::lock;

use super::commit::Committer;
use super::error::CommitError;
use super::note;
use crate::disk::{FileStatus, LogDirectory, LogFile};
use crate::draft::LogPosition;
use crate::verify::{self, ChainEnd, Source, Start, VerifyProblem};

struct Segment {
    name: String,
    first: Option<u64>,
    /// `None` for a sealed file, which is opened for each read of a piece. A log can have more files than a
    /// process may open.
    handle: Option<Box<dyn LogFile>>,
    seen: FileStatus,
}

/// A segment as input of the verifier.
struct SegmentSource<'a> {
    segment: &'a Segment,
    disk: &'a Mutex<&'a mut Box<dyn LogDirectory>>,
}

impl Source for SegmentSource<'_> {
    fn name(&self) -> &str {
        &self.segment.name
    }

    fn first(&self) -> Option<u64> {
        self.segment.first
    }

    fn length(&self) -> u64 {
        self.segment.seen.length
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(handle) = &self.segment.handle {
            return handle.read_at(offset, buffer);
        }
        let handle = lock(self.disk).open(&self.segment.name)?;
        if handle.status()?.file != self.segment.seen.file {
            return Err(io::Error::other("the log was replaced during verification"));
        }
        handle.read_at(offset, buffer)
    }
}

impl Committer {
    /// Reads and verifies the whole log. The lock is not held, because that may take long.
    pub(super) fn survey(&mut self) -> Result<(), CommitError> {
        let mut parts = self.with_lock(|committer| {
            let sealing = committer.names.sealing();
            if committer.disk.status(&sealing)?.is_some() {
                // A process died while it made this copy, so the copy is incomplete.
                committer.disk.remove(&sealing)?;
            }
            let now = committer.disk.status(committer.names.current())?;
            committer.parts(now)
        })?;
        let end = self.read(&mut parts, false)?;
        self.id = parts.get(end).filter(|part| part.first.is_none()).map(|part| part.seen.file);
        Ok(())
    }

    /// Checks that the log still contains the end that this process knows. Moves to the new end if other
    /// processes have appended lines.
    pub(super) fn catch_up(&mut self) -> Result<(), CommitError> {
        let now = self.disk.status(self.names.current())?;
        let same = now.is_some_and(|now| Some(now.file) == self.id && now.length == self.length);
        if same && (self.file.is_some() || self.is_sync_failed) {
            return Ok(());
        }
        let mut parts = self.parts(now)?;
        let Some(first) = parts.first() else {
            return match self.position.seq {
                0 => Ok(()),
                _ => Err(self.damaged(self.names.current().to_owned(), "the log was removed")),
            };
        };
        // If the active file is still the known one, it contains the known end.
        let known =
            first.first.map_or(first.seen.file == self.id.unwrap_or(first.seen.file), |at| at == self.first);
        if !known && self.length > 0 {
            return Err(self.damaged(first.name.clone(), "the log was replaced"));
        }
        if first.seen.length < self.length {
            return Err(self.damaged(first.name.clone(), "the file became shorter"));
        }
        self.read(&mut parts, true)?;
        if let Some(part) = parts.pop().filter(|part| part.first.is_none()) {
            // The process that created the file may have died before the directory was synced.
            self.renamed |= self.id != Some(part.seen.file);
            self.id = Some(part.seen.file);
            self.file = if self.is_sync_failed { None } else { part.handle };
        } else {
            (self.file, self.id) = (None, None);
        }
        Ok(())
    }

    /// Returns the files from the current one on.
    fn parts(&mut self, now: Option<FileStatus>) -> Result<Vec<Segment>, CommitError> {
        let names = self.disk.list_names()?;
        let sealed = self.names.sealed_among(names).into_iter().filter(|(first, _)| *first >= self.first);
        let mut parts = Vec::new();
        for (first, name) in sealed {
            let seen = self.disk.status(&name)?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            parts.push(Segment { name, first: Some(first), handle: None, seen });
        }
        if now.is_some() {
            let name = self.names.current().to_owned();
            let handle = self.disk.open(&name)?;
            let seen = handle.status()?;
            parts.push(Segment { name, first: None, handle: Some(handle), seen });
        }
        Ok(parts)
    }

    /// Verifies the lines after the known end, and moves there. Returns the index of the file with the new
    /// end. If `cut` is set, removes the part of a line that a crash has left.
    fn read(&mut self, parts: &mut [Segment], cut: bool) -> Result<usize, CommitError> {
        let ts = self.ts.map(|ts| i128::from(ts) * 1_000_000);
        let chain_end = ChainEnd { next: self.position.seq, hash: self.position.prev.clone(), ts };
        let start = Start { chain_end, offset: self.length };
        let outcome = {
            let disk = Mutex::new(&mut self.disk);
            let sources: Vec<_> =
                parts.iter().map(|segment| SegmentSource { segment, disk: &disk }).collect();
            let sources: Vec<&dyn Source> = sources.iter().map(|source| source as &dyn Source).collect();
            verify::check(&sources, &start, &verify::VerifyOptions::default())?
        };
        let mut extents = outcome.extents;
        if let Some(bad) = outcome.bad {
            if bad.why != VerifyProblem::TornTail {
                return Err(CommitError::Damaged(bad));
            }
            if cut {
                let part = &mut parts[outcome.bad_source];
                match &mut part.handle {
                    Some(handle) => handle.truncate(bad.offset)?,
                    None => self.disk.open(&part.name)?.truncate(bad.offset)?,
                }
                let bytes = part.seen.length - bad.offset;
                self.append_note(note::truncation(&bad, bytes));
                // The files after the last verified file are empty.
                extents.resize(parts.len(), (outcome.chain_end.next, 0));
            }
        }
        let ChainEnd { next, hash, ts } = outcome.chain_end;
        self.position = LogPosition { seq: next, prev: hash };
        // Other programs may write times with more digits than milliseconds. The time is rounded up.
        self.ts = ts.and_then(|ts| i64::try_from((ts + 999_999).div_euclid(1_000_000)).ok());
        if let Some(&(first, length)) = extents.last() {
            if extents.len() > 1 || start.offset == 0 {
                self.first = first;
            }
            self.length = length;
        }
        Ok(extents.len().saturating_sub(1))
    }
}
