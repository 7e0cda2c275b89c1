//! Distinguishes data that a crash has left at the end of a log from damage. Only the former may be removed.

use memchr::memchr;

use super::line::Reader;
use super::{LineForm, VerifyProblem};

/// Classifies data after the last line end: either an interrupted write, or damage if it contains a complete
/// line. A line is acknowledged only after it was written with its line end. So a complete line with another
/// byte in place of its line end was damaged later.
pub(super) fn unended(rest: &[u8]) -> (VerifyProblem, &'static str) {
    let whole =
        rest.split_last().is_some_and(|(_, line)| Reader::default().read(line, LineForm::Exact).is_ok());
    match whole {
        true => (VerifyProblem::Broken, "the end of this line is damaged"),
        false => (VerifyProblem::TornTail, "the line is incomplete"),
    }
}

/// Size of the smallest unit that a disk writes atomically.
const SECTOR_BYTES: u64 = 512;

/// Returns `true` if a power loss during one unacknowledged write has left `rest`, which begins at `offset`
/// after the last valid line. Sectors that were not written are read as zeros, which canonical JSON never
/// contains. Lines with different times are from several writes, and the first of those writes was
/// acknowledged.
pub(super) fn unwritten(rest: &[u8], offset: u64) -> bool {
    let mut at = 0;
    let mut holes = 0;
    while let Some(start) = memchr(0, &rest[at..]).map(|found| at + found) {
        let end =
            rest[start..].iter().position(|&byte| byte != 0).map_or(rest.len(), |length| start + length);
        let aligned = |at: usize| (offset + at as u64).is_multiple_of(SECTOR_BYTES);
        if !(start == 0 || aligned(start)) || !(end == rest.len() || aligned(end)) {
            return false;
        }
        holes += 1;
        at = end;
    }
    if holes == 0 {
        return false;
    }
    let mut reader = Reader::default();
    let mut time = None;
    rest.split(|&byte| byte == b'\n').all(|line| match reader.read(line, LineForm::Exact) {
        Ok(facts) => *time.get_or_insert(facts.ts) == facts.ts,
        Err(_) => true,
    })
}
