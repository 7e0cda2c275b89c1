//! Writes lines so that no acknowledged line is ever lost.
//!
//! Everything runs under the lock that all processes with this log share. The state of the committer
//! describes data that is known to be on disk. A failed commit does not change the state, and the next commit
//! continues from it.

use std::io;

use super::error::{CommitError, OpenError};
use super::{AppendError, LogOptions, Receipt, note};
use crate::clock::{JumpDetector, format_timestamp};
use crate::disk::{LogDirectory, LogFile};
use crate::draft::{Draft, LogPosition, MAX_POSITION_BYTES};
use crate::segment::LogFileNames;
use crate::verify::{BadLine, VerifyProblem};

const MAX_PENDING_NOTES: usize = 16;

const COPY_CHUNK_BYTES: usize = 1 << 20;

/// Writes batches of lines one after the other.
pub(super) struct Committer {
    pub(super) disk: Box<dyn LogDirectory>,
    pub(super) names: LogFileNames,
    pub(super) options: LogOptions,
    pub(super) file: Option<Box<dyn LogFile>>,
    pub(super) id: Option<(u64, u64)>,
    /// Number of the first entry in the active file.
    pub(super) first: u64,
    /// Length of the active file's valid part.
    pub(super) length: u64,
    pub(super) position: LogPosition,
    /// Time of the last line, in milliseconds since 1970.
    pub(super) ts: Option<i64>,
    /// `true` if a sync of the active file has failed. Nothing more is written to that file. Its valid part
    /// is copied.
    pub(super) is_sync_failed: bool,
    /// `true` if files were renamed, and the directory was not synced since then.
    pub(super) renamed: bool,
    pub(super) notes: Vec<Draft>,
    watch: JumpDetector,
}

impl Committer {
    pub(super) fn open(
        disk: Box<dyn LogDirectory>,
        names: LogFileNames,
        options: LogOptions,
    ) -> Result<Self, OpenError> {
        let mut committer = Self {
            disk,
            names,
            options,
            file: None,
            id: None,
            first: 0,
            length: 0,
            position: LogPosition { seq: 0, prev: None },
            ts: None,
            is_sync_failed: false,
            renamed: false,
            notes: Vec::new(),
            watch: JumpDetector::default(),
        };
        committer.survey()?;
        committer.with_lock(Self::catch_up)?;
        Ok(committer)
    }

    pub(super) fn tip(&self) -> Option<Receipt> {
        let hash = self.position.prev.clone()?;
        Some(Receipt { seq: self.position.seq.checked_sub(1)?, hash })
    }

    /// Writes lines, and returns once all are on disk. After an error, none of the lines is acknowledged.
    pub(super) fn commit(&mut self, drafts: &[&Draft]) -> Result<Vec<Receipt>, AppendError> {
        let receipts = self.with_lock(|committer| {
            committer.catch_up()?;
            if committer.is_sync_failed {
                committer.replace()?;
            }
            match committer.write(drafts) {
                Err(CommitError::Sync(_)) => {
                    committer.mark_sync_failed();
                    committer.replace()?;
                    // The file whose sync failed was replaced by a copy, so the lines are written to the
                    // copy.
                    committer.write(drafts).inspect_err(|trouble| {
                        if matches!(trouble, CommitError::Sync(_)) {
                            committer.mark_sync_failed();
                        }
                    })
                }
                outcome => outcome,
            }
        })?;
        Ok(receipts)
    }

    pub(super) fn with_lock<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, CommitError>,
    ) -> Result<T, CommitError> {
        self.disk.lock(self.options.lock_timeout).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => CommitError::Locked,
            _ => CommitError::Io(error),
        })?;
        let outcome = work(self);
        self.disk.unlock();
        outcome
    }

    fn write(&mut self, drafts: &[&Draft]) -> Result<Vec<Receipt>, CommitError> {
        if self.file.is_some() && self.length >= self.options.segment_bytes {
            self.seal()?;
        }
        self.begin()?;
        let (now, jump) = self.watch.observe(&*self.options.clock, self.ts);
        self.append_note(jump.and_then(note::clock_jump));
        let ts = self.ts.map_or(now, |last| last.max(now));
        let time = format_timestamp(ts);

        let mut position = self.position.clone();
        let all = self.notes.iter().chain(drafts.iter().copied());
        let mut lines = Vec::with_capacity(all.clone().map(|draft| draft.len() + MAX_POSITION_BYTES).sum());
        let mut receipts = Vec::with_capacity(self.notes.len() + drafts.len());
        for draft in all {
            let hash = draft.write_line(&position, &time, self.options.algorithm, &mut lines);
            receipts.push(Receipt { seq: position.seq, hash: hash.clone() });
            position = LogPosition { seq: position.seq + 1, prev: Some(hash) };
        }
        let Some(file) = self.file.as_mut() else {
            return Err(CommitError::Io(io::ErrorKind::NotFound.into()));
        };
        if let Err(error) = file.append(&lines) {
            if file.truncate(self.length).is_err() {
                // The next commit reads the file again, and finds out which lines are complete.
                self.file = None;
            }
            return Err(CommitError::Io(error));
        }
        file.sync().map_err(CommitError::Sync)?;
        if self.renamed {
            self.disk.sync_directory()?;
            self.renamed = false;
        }
        self.length += lines.len() as u64;
        (self.position, self.ts) = (position, Some(ts));
        receipts.drain(..self.notes.len());
        self.notes.clear();
        Ok(receipts)
    }

    /// Makes sure that there is an active file.
    pub(super) fn begin(&mut self) -> Result<(), CommitError> {
        if self.file.is_some() {
            return Ok(());
        }
        self.renamed = true;
        let file = self.disk.create(self.names.current())?;
        self.id = Some(file.status()?.file);
        self.file = Some(file);
        (self.first, self.length) = (self.position.seq, 0);
        Ok(())
    }

    /// Seals the active file by renaming it. The next file continues the chain.
    fn seal(&mut self) -> Result<(), CommitError> {
        // The file may contain data that was never synced: lines of a failed write or of a process that died,
        // or a truncation. A sealed file is never written or synced again, so it is synced now.
        if let Some(file) = self.file.as_mut() {
            file.sync().map_err(CommitError::Sync)?;
        }
        let sealed = self.unused_name()?;
        self.renamed = true;
        self.disk.rename(self.names.current(), &sealed)?;
        (self.file, self.id) = (None, None);
        Ok(())
    }

    fn unused_name(&mut self) -> Result<String, CommitError> {
        let sealed = self.names.sealed(self.first);
        match self.disk.status(&sealed)? {
            None => Ok(sealed),
            Some(_) => Err(self.damaged(sealed, "another file has this name")),
        }
    }

    /// Records that a sync failed, so that it is unknown how much of the last write is on disk.
    fn mark_sync_failed(&mut self) {
        self.is_sync_failed = true;
        if let Some(mut file) = self.file.take() {
            // The truncation keeps readers from treating the lines as written. If it fails, the
            // unacknowledged lines stay in the log.
            let _ = file.truncate(self.length);
        }
    }

    /// Replaces the active file by a copy of its valid part, seals the copy, and starts another file. The
    /// replaced file is never synced again, because the system would wrongly report success.
    fn replace(&mut self) -> Result<(), CommitError> {
        let (current, copy) = (self.names.current().to_owned(), self.names.sealing());
        if self.disk.status(&copy)?.is_some() {
            self.disk.remove(&copy)?;
        }
        let sealed = self.names.sealed(self.first);
        let name = if self.disk.status(&current)?.is_some() { &current } else { &sealed };
        let old = self.disk.open(name)?;
        let mut new = self.disk.create(&copy)?;
        let mut buffer = vec![0; COPY_CHUNK_BYTES];
        let mut done = 0;
        while done < self.length {
            let part = usize::try_from(self.length - done)
                .map_or(COPY_CHUNK_BYTES, |left| left.min(COPY_CHUNK_BYTES));
            let count = old.read_at(done, &mut buffer[..part])?;
            if count == 0 {
                return Err(self.damaged(name.clone(), "the file became shorter"));
            }
            new.append(&buffer[..count])?;
            done += count as u64;
        }
        new.sync()?;
        self.renamed = true;
        if self.length == 0 {
            // A copy without entries becomes the active file instead of being sealed.
            self.disk.rename(&copy, &current)?;
            self.id = Some(new.status()?.file);
            self.file = Some(new);
        } else {
            if *name == current {
                let unused_name = self.unused_name()?;
                self.disk.rename(&current, &unused_name)?;
            }
            self.disk.rename(&copy, &sealed)?;
            (self.file, self.id) = (None, None);
        }
        self.is_sync_failed = false;
        self.append_note(note::replacement(&sealed));
        self.begin()
    }

    /// Adds a note, which is written with the next lines.
    pub(super) fn append_note(&mut self, note: Option<Draft>) {
        if self.notes.len() < MAX_PENDING_NOTES {
            self.notes.extend(note);
        }
    }

    /// Returns the error that another program has changed the log.
    pub(super) fn damaged(&self, segment: String, detail: &str) -> CommitError {
        let (seq, offset) = (self.position.seq, self.length);
        CommitError::Damaged(BadLine {
            segment,
            line: 0,
            offset,
            seq,
            why: VerifyProblem::Broken,
            detail: detail.to_owned(),
        })
    }
}
