//! Finds a point in time in a log without reading all earlier entries.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;

use super::{Filter, LogReader, MAX_LINE_BYTES, ReadError};

/// Size of a range that is read line by line instead of being searched by bisection.
const SCAN_BYTES: u64 = 64 << 10;

/// The members of a line that the search for a time needs.
struct Stamp {
    seq: u64,
    ts: Timestamp,
}

impl Stamp {
    fn read(line: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Line {
            seq: u64,
            ts: String,
        }
        let Line { seq, ts } = serde_json::from_slice(line).ok()?;
        Some(Self { seq, ts: ts.parse().ok()? })
    }
}

impl LogReader {
    /// Opens the log whose active file has this path, shortly before `moment`: all later entries follow, and
    /// few earlier ones precede them.
    pub fn since(path: &Path, filter: Filter, moment: Timestamp) -> Result<Self, ReadError> {
        let mut reader = Self::open(path, filter)?;
        let told = |source| ReadError::Io { segment: path.display().to_string(), source };
        let names = crate::files::list_names(&reader.directory).map_err(told)?;
        let mut files: Vec<(Option<u64>, String)> =
            reader.names.sealed_among(names).into_iter().map(|(first, name)| (Some(first), name)).collect();
        files.push((None, reader.names.current().to_owned()));
        for (first, name) in files.into_iter().rev() {
            let failed = |source| ReadError::Io { segment: name.clone(), source };
            let file = match crate::files::open_regular(&reader.directory.join(&name)) {
                Ok(file) => file,
                // The file is missing, or was sealed since the directory was read. Reading starts in an
                // earlier file.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            };
            let mut file = BufReader::new(file);
            if let Some(place) = find_position(&mut file, moment).map_err(failed)? {
                reader.next = place.seq;
                reader.open_segment(first.unwrap_or(place.first), name.clone(), place.offset)?;
                return Ok(reader);
            }
        }
        Ok(reader)
    }
}

struct LinePosition {
    first: u64,
    seq: u64,
    offset: u64,
}

/// Finds a line shortly before `moment`. Returns `None` if there is none.
fn find_position(file: &mut BufReader<File>, moment: Timestamp) -> io::Result<Option<LinePosition>> {
    let mut end = file.seek(SeekFrom::End(0))?;
    let Some((_, first)) = line_from(file, 0)?.filter(|(_, stamp)| stamp.ts < moment) else {
        return Ok(None);
    };
    let mut found = LinePosition { first: first.seq, seq: first.seq, offset: 0 };
    while end - found.offset > SCAN_BYTES {
        let middle = found.offset + (end - found.offset) / 2;
        match line_from(file, middle)? {
            Some((at, stamp)) if at < end && stamp.ts < moment => {
                (found.seq, found.offset) = (stamp.seq, at);
            }
            _ => end = middle,
        }
    }
    Ok(Some(found))
}

/// Returns the first line that begins at or after `offset`, and its position.
fn line_from(file: &mut BufReader<File>, offset: u64) -> io::Result<Option<(u64, Stamp)>> {
    let mut at = offset;
    let mut line = Vec::new();
    if offset > 0 {
        // A line begins at `offset` if the byte before is a line end.
        file.seek(SeekFrom::Start(offset - 1))?;
        at = offset - 1 + file.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)? as u64;
        line.clear();
    } else {
        file.seek(SeekFrom::Start(0))?;
    }
    file.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Ok(None);
    }
    Ok(Stamp::read(&line).map(|stamp| (at, stamp)))
}
