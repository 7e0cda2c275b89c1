//! Which ends of a log are what a crash leaves behind, and not damage: only these may be cut.

use memchr::memchr;

use super::line::Reader;
use super::{Form, Why};

/// What is behind the last end of a line: a write that was cut short, unless a whole line is in it. A line is whole
/// before it is acknowledged, so one that lacks nothing but its end, and has something else in its place, was damaged.
pub(super) fn unended(rest: &[u8]) -> (Why, &'static str) {
    let whole = rest.split_last().is_some_and(|(_, line)| Reader::default().read(line, Form::Exact).is_ok());
    match whole {
        true => (Why::Broken, "the end of this line is damaged"),
        false => (Why::TornTail, "the line is incomplete"),
    }
}

/// The smallest piece that a disk writes whole.
const SECTOR_BYTES: u64 = 512;

/// Whether `rest`, which begins at `offset` of its file behind the last good line, is what a power cut leaves of one
/// write that was not acknowledged: some of its sectors were never written and read as zeros. Canonical JSON has no
/// zeros in it. A flipped bit, or a few, does not look like this. Lines of more than one time are more than one
/// write, the first of which was acknowledged.
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
    rest.split(|&byte| byte == b'\n').all(|line| match reader.read(line, Form::Exact) {
        Ok(facts) => *time.get_or_insert(facts.ts) == facts.ts,
        Err(_) => true,
    })
}
