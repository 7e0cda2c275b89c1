//! Our own code in memory: what only the start needed is given back.
#![expect(unsafe_code, reason = "giving pages back has no safe interface")]

use crate::{memory, sys};

/// Lets go of the pages of our own code. The system brings those that are needed again back from its cache of files; those that
/// only the start has touched, and their neighbours that came with them, stay away.
///
/// For programs that run for long and do little of all that they can do.
pub fn release_code() {
    // Without it nothing is lost but some room.
    let Ok(maps) = std::fs::read("/proc/self/maps") else { return };
    if let Some(code) = memory::code_around(&maps, release_code as fn() as usize) {
        // SAFETY: the pages are those of a file that nobody could write to through this mapping: what is read again is the same.
        unsafe { sys::discard(&code) };
    }
}

#[cfg(test)]
mod tests {
    use core::ops::Range;

    use super::*;

    /// How many KiB of our code are in memory.
    fn resident(code: &Range<usize>) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let begin = format!("{:x}-{:x} ", code.start, code.end);
        let of_code = maps.lines().skip_while(|line| !line.starts_with(&begin));
        let size = of_code.into_iter().find_map(|line| line.strip_prefix("Rss:")).unwrap();
        size.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    }

    #[test]
    fn code_goes_and_comes_back_as_it_was() {
        let maps = std::fs::read("/proc/self/maps").unwrap();
        let code = memory::code_around(&maps, release_code as fn() as usize).unwrap();
        // Everything is there.
        let bytes = || {
            let start = core::ptr::with_exposed_provenance::<u8>(code.start);
            // SAFETY: the mapping is readable and stays as it is.
            unsafe { core::slice::from_raw_parts(start, code.len()) }
        };
        let sum = || bytes().iter().fold(0u64, |sum, byte| sum.rotate_left(5) ^ u64::from(*byte));
        let before = sum();
        assert_eq!(resident(&code), code.len() >> 10);
        release_code();
        assert!(resident(&code) < code.len() >> 11, "more than half of it is still there");
        assert_eq!(sum(), before);
    }
}
