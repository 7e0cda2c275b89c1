//! Reads a log from its first entry on. Can wait for entries that are appended later.

mod since;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memchr::memmem;

use crate::entry::Entry;
use crate::event::LoggedDecision;
use crate::files;
use crate::segment::LogFileNames;

const MAX_LINE_BYTES: u64 = 64 << 20;

/// Initial and maximum pause between two reads at the end of the log.
const FOLLOW_PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// Selects entries that meet all conditions. A condition that is `None` is met by every entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub session: Option<String>,
    pub tool: Option<String>,
    pub decision: Option<LoggedDecision>,
    /// Text that the line must contain. A line without it is not parsed, which saves time.
    pub text: Option<&'static str>,
}

impl Filter {
    /// Returns `true` if the entry matches.
    pub fn matches(&self, entry: &Entry) -> bool {
        let same = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
        };
        same(&self.session, entry.session())
            && same(&self.tool, entry.tool())
            && self.decision.is_none_or(|wanted| entry.decision() == Some(wanted))
    }
}

/// The reason why an entry cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("{segment}: {source}")]
    Io { segment: String, source: io::Error },
    #[error("{segment}:{line}: invalid entry: {source}")]
    Line {
        segment: String,
        /// Number of the line in the file. The first is 1.
        line: u64,
        source: serde_json::Error,
    },
}

/// Reads the entries of a log in order, without verifying the chain.
#[derive(Debug)]
pub struct LogReader {
    directory: PathBuf,
    names: LogFileNames,
    filter: Filter,
    open: Option<OpenSegment>,
    next: u64,
}

#[derive(Debug)]
struct OpenSegment {
    name: String,
    file: BufReader<File>,
    /// Number of the first entry in the current file.
    first: u64,
    /// Offset of the next line in the current file.
    offset: u64,
    lines: u64,
}

impl LogReader {
    /// Opens the log whose active file has this path.
    pub fn open(path: &Path, filter: Filter) -> Result<Self, ReadError> {
        let told = |source| ReadError::Io { segment: path.display().to_string(), source };
        let (directory, names) = files::resolve(path).map_err(told)?;
        let mut reader = Self { directory, names, filter, open: None, next: 0 };
        reader.next_segment()?;
        if reader.open.is_none() {
            // No file of the log exists, so this call returns the error of the operating system.
            files::open_regular(path).map_err(told)?;
        }
        Ok(reader)
    }

    /// Returns the next entry that the filter selects. Returns `None` at the current end of the log.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, ReadError> {
        loop {
            if let Some(entry) = self.read_line()? {
                // Entries are numbered without gaps, so counting lines is enough.
                self.next += 1;
                if let Some(entry) = entry.filter(|entry| self.filter.matches(entry)) {
                    return Ok(Some(entry));
                }
            } else if !self.next_segment()? {
                return Ok(None);
            }
        }
    }

    /// Waits for the next entry that the filter selects.
    pub fn follow(&mut self) -> Result<Entry, ReadError> {
        let mut pause = FOLLOW_PAUSES.0;
        loop {
            if let Some(entry) = self.next_entry()? {
                return Ok(entry);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(FOLLOW_PAUSES.1);
        }
    }

    /// Reads the next complete line of the current file. The inner value is `None` if the filter does not
    /// select the line.
    fn read_line(&mut self) -> Result<Option<Option<Entry>>, ReadError> {
        let Some(open) = &mut self.open else { return Ok(None) };
        let OpenSegment { name, file, offset, lines, .. } = open;
        let mut line = Vec::new();
        let read = io::Read::take(&mut *file, MAX_LINE_BYTES).read_until(b'\n', &mut line);
        let failed = |source| ReadError::Io { segment: name.clone(), source };
        read.map_err(failed)?;
        if line.pop() != Some(b'\n') {
            // The line is incomplete. The next read starts again at the beginning of the line.
            file.seek(SeekFrom::Start(*offset)).map_err(failed)?;
            return Ok(None);
        }
        *offset += line.len() as u64 + 1;
        *lines += 1;
        if self.filter.text.is_some_and(|text| memmem::find(&line, text.as_bytes()).is_none()) {
            return Ok(Some(None));
        }
        let wrong = |source| ReadError::Line { segment: name.clone(), line: *lines, source };
        let entry: Entry = serde_json::from_slice(&line).map_err(wrong)?;
        self.next = entry.seq;
        Ok(Some(Some(entry)))
    }

    /// Opens the file in which the log continues. Returns `false` if the log continues in the current file or
    /// ends with it.
    fn next_segment(&mut self) -> Result<bool, ReadError> {
        let shown = self.directory.display().to_string();
        let failed = |source| ReadError::Io { segment: shown.clone(), source };
        let names = files::list_names(&self.directory).map_err(failed)?;
        let sealed = self.names.sealed_among(names);
        // The next entry is in the last file that begins at or before it. But if the current file was read to
        // its end, the next entry is in a later file.
        let found = sealed.into_iter().rev().find(|(first, _)| *first <= self.next);
        let current = self.directory.join(self.names.current());
        match (&self.open, found) {
            (None, Some((first, name))) => self.open_segment(first, name, 0).map(|()| true),
            (None, None) if current.exists() => {
                self.open_segment(0, self.names.current().to_owned(), 0).map(|()| true)
            }
            (None, None) => Ok(false),
            (Some(open), found) => {
                let (first, name, offset, whole) = (open.first, open.name.clone(), open.offset, self.next);
                let growing = name == self.names.current();
                match found {
                    // The current file was the active file. It was sealed since then, perhaps with more
                    // entries, and has another name now.
                    Some((sealed, sealed_name)) if growing && sealed == first && !self.is_open(&current) => {
                        self.open_segment(sealed, sealed_name, offset).map(|()| true)
                    }
                    Some((sealed, sealed_name)) if sealed == whole && sealed_name != name => {
                        self.open_segment(sealed, sealed_name, 0).map(|()| true)
                    }
                    _ if !growing && current.exists() => {
                        self.open_segment(whole, self.names.current().to_owned(), 0).map(|()| true)
                    }
                    _ => Ok(false),
                }
            }
        }
    }

    fn is_open(&self, path: &Path) -> bool {
        let id = |found: std::fs::Metadata| (found.dev(), found.ino());
        let ours = self.open.as_ref().and_then(|open| open.file.get_ref().metadata().ok()).map(id);
        ours.is_some() && ours == std::fs::metadata(path).ok().map(id)
    }

    fn open_segment(&mut self, first: u64, name: String, offset: u64) -> Result<(), ReadError> {
        let open = || -> io::Result<BufReader<File>> {
            let mut file =
                BufReader::with_capacity(1 << 16, files::open_regular(&self.directory.join(&name))?);
            file.seek(SeekFrom::Start(offset))?;
            Ok(file)
        };
        let file = open().map_err(|source| ReadError::Io { segment: name.clone(), source })?;
        let lines = if offset == 0 { 0 } else { self.open.as_ref().map_or(0, |open| open.lines) };
        self.open = Some(OpenSegment { name, file, first, offset, lines });
        Ok(())
    }
}
