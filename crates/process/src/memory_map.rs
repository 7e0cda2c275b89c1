//! Finds memory that can be returned to the system. A guardian needs almost no memory of the program from
//! which it was forked, and a program needs little of its code after startup.
//!
//! Otherwise the guardian of a large supervisor would keep a copy of every page that the supervisor changes
//! later.

use core::ops::Range;

/// Minimum size of a released region. Smaller regions are not worth a system call, and may hold the state of
/// loaders and C libraries.
const MIN_REGION_BYTES: usize = 1 << 20;

/// Alignment of released ranges: a multiple of every page size in use.
const GRANULE_BYTES: usize = 64 << 10;

/// Parses lines in the format of `/proc/<pid>/maps` piece by piece, and reports the private, anonymous,
/// writable ranges outside of `keep`.
pub(crate) struct MapsParser<'a> {
    keep: &'a [Range<usize>],
    line: [u8; 192],
    len: usize,
    /// End of the last file mapping. A region directly after it is the `.bss` section of a library.
    file_end: usize,
}

impl<'a> MapsParser<'a> {
    pub(crate) fn new(keep: &'a [Range<usize>]) -> Self {
        Self { keep, line: [0; 192], len: 0, file_end: 0 }
    }

    pub(crate) fn feed(&mut self, chunk: &[u8], release: &mut impl FnMut(Range<usize>)) {
        for &byte in chunk {
            if byte == b'\n' {
                self.finish_line(release);
                self.len = 0;
            } else if let Some(slot) = self.line.get_mut(self.len) {
                // A line that exceeds the buffer loses only the end of its file name, which is not needed.
                *slot = byte;
                self.len += 1;
            }
        }
    }

    fn finish_line(&mut self, release: &mut impl FnMut(Range<usize>)) {
        let Some(mapping) = self.line.get(..self.len).and_then(Mapping::parse) else { return };
        if mapping.file || (mapping.anonymous && mapping.range.start == self.file_end) {
            self.file_end = mapping.range.end;
            return;
        }
        if !mapping.anonymous || !mapping.writable_private {
            return;
        }
        // Kept ranges are cut out of the region, lowest first. The kernel merges neighboring mappings, so one
        // region can hold both a thread's stack and a heap.
        let mut start = mapping.range.start;
        while start < mapping.range.end {
            let mut end = mapping.range.end;
            let mut next = end;
            for keep in self.keep {
                if keep.end > start && keep.start < end {
                    end = keep.start.max(start);
                    next = keep.end;
                }
            }
            let from = start.saturating_add(GRANULE_BYTES - 1) & !(GRANULE_BYTES - 1);
            let to = end & !(GRANULE_BYTES - 1);
            if to.saturating_sub(from) >= MIN_REGION_BYTES {
                release(from..to);
            }
            start = next;
        }
    }
}

struct Mapping {
    range: Range<usize>,
    writable_private: bool,
    /// `true` if the mapping holds program code, which cannot be written.
    code: bool,
    file: bool,
    anonymous: bool,
}

impl Mapping {
    /// Parses `start-end perms offset device inode [path]`.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
        let mut bounds = fields.next()?.split(|byte| *byte == b'-');
        let start = hex(bounds.next()?)?;
        let end = hex(bounds.next()?)?;
        let perms = fields.next()?;
        let inode = fields.nth(2)?;
        let name = fields.next().unwrap_or_default();
        let file = inode != b"0";
        let anonymous = !file && (name.is_empty() || name == b"[heap]" || name.starts_with(b"[anon:"));
        Some(Self {
            range: start..end,
            writable_private: perms.starts_with(b"rw") && perms.ends_with(b"p"),
            code: perms == b"r-xp",
            file,
            anonymous,
        })
    }
}

/// Returns the code mapping that contains `address`, from the content of `/proc/<pid>/maps`.
pub(crate) fn code_around(maps: &[u8], address: usize) -> Option<Range<usize>> {
    let mut mappings = maps.split(|byte| *byte == b'\n').filter_map(Mapping::parse);
    let found = mappings.find(|mapping| mapping.range.contains(&address))?;
    (found.code && found.file).then_some(found.range)
}

fn hex(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0usize, |value, digit| {
        let digit = (*digit as char).to_digit(16)?;
        Some((value << 4) | digit as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn released(maps: &str, keep: &[Range<usize>], step: usize) -> Vec<Range<usize>> {
        let mut parser = MapsParser::new(keep);
        let mut ranges = Vec::new();
        for chunk in maps.as_bytes().chunks(step) {
            parser.feed(chunk, &mut |range| ranges.push(range));
        }
        ranges
    }

    const MAPS: &str = "\
10000000-10400000 r--p 00000000 08:01 77   /bin/program with spaces
10400000-10800000 rw-p 00400000 08:01 77   /bin/program with spaces
10800000-10c00000 rw-p 00000000 00:00 0
20000000-20400000 rw-p 00000000 00:00 0    [heap]
30000000-30010000 rw-p 00000000 00:00 0
40000000-40400000 r--p 00000000 00:00 0
50000000-50400000 rw-s 00000000 00:01 9    /dev/zero (deleted)
60000000-60400000 rw-p 00000000 00:00 0    [anon:malloc]
70000000-70400000 rw-p 00000000 00:00 0
7f000000-7f400000 rw-p 00000000 00:00 0    [stack]
";

    #[test]
    fn code_is_a_file_mapping_without_write_permission() {
        let maps = b"1000-2000 r--p 0 08:01 7 /a\n2000-5000 r-xp 1000 08:01 7 /a\n5000-6000 r-xp 0 00:00 0\n6000-7000 rwxp 0 08:01 7 /a\n";
        let check = |maps: &[u8], address, expected| {
            assert_eq!(code_around(maps, address), expected, "{address:x}");
        };
        check(maps, 0x2000, Some(0x2000..0x5000));
        check(maps, 0x4fff, Some(0x2000..0x5000));
        check(maps, 0x1000, None);
        check(maps, 0x5000, None);
        check(maps, 0x6000, None);
        check(maps, 0x7000, None);
        check(b"", 0, None);
    }

    #[test]
    fn only_large_private_anonymous_memory_is_released() {
        let expected = [0x2000_0000..0x2040_0000, 0x6000_0000..0x6040_0000, 0x7000_0000..0x7040_0000];
        for step in [1, 7, 4096] {
            assert_eq!(released(MAPS, &[], step), expected, "chunks of {step}");
        }
    }

    #[test]
    fn kept_ranges_are_cut_out() {
        let keep = [0x7018_0000..0x7019_0001, 0x6fff_0000..0x7000_1000, 0x2010_0000..0x2038_0000];
        assert_eq!(
            released(MAPS, &keep, 4096),
            // The upper rest of the heap is too small to be released. Starts and ends shrink to whole
            // granules.
            [
                0x2000_0000..0x2010_0000,
                0x6000_0000..0x6040_0000,
                0x7001_0000..0x7018_0000,
                0x701a_0000..0x7040_0000
            ]
        );
    }
}
