//! Returns memory of this process to the system: code used only at startup, and free heap pages.
#![expect(unsafe_code, reason = "giving pages back has no safe interface")]

use crate::{memory_map, sys};

/// Drops the pages of the program's code from memory. The system loads a page again when it is needed, so
/// that pages used only at startup stay out.
///
/// Meant for long-running programs that use a small part of their code.
pub fn release_code() {
    // If reading fails, the only cost is memory.
    let Ok(maps) = std::fs::read("/proc/self/maps") else { return };
    if let Some(code) = memory_map::code_around(&maps, release_code as fn() as usize) {
        // SAFETY: the pages belong to a file that cannot be written through the mapping, so they are loaded
        // again unchanged.
        unsafe { sys::discard(&code) };
    }
}

/// Returns free heap memory to the system. glibc keeps free pages between used blocks, so after a burst of
/// allocations a process may hold many times the memory that it uses.
///
/// Takes time in proportion to the size of the heap, and blocks other threads that allocate.
pub fn release_heap() {
    sys::trim_heap();
}

#[cfg(test)]
mod tests {
    use core::ops::Range;

    use super::*;

    /// Returns the KiB of this program's code that are in memory.
    fn resident(code: &Range<usize>) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let begin = format!("{:x}-{:x} ", code.start, code.end);
        let of_code = maps.lines().skip_while(|line| !line.starts_with(&begin));
        let size = of_code.into_iter().find_map(|line| line.strip_prefix("Rss:")).unwrap();
        size.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    }

    /// Returns the KiB of this process that are in memory.
    fn resident_all() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        size.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn free_memory_between_used_blocks_is_released() {
        const BLOCKS: usize = 4096;
        let mut blocks: Vec<Option<Box<[u8]>>> =
            (0..BLOCKS).map(|_| Some(vec![1; 16 << 10].into_boxed_slice())).collect();
        // The last block stays allocated, so that the heap cannot shrink by itself.
        blocks[..BLOCKS - 1].fill(None);
        let before = resident_all();
        release_heap();
        let after = resident_all();
        assert!(after + (32 << 10) < before, "{before} KiB before, {after} KiB after");
        assert_eq!(blocks.last().unwrap().as_ref().unwrap()[0], 1);
    }

    #[test]
    fn released_code_is_loaded_again_unchanged() {
        let maps = std::fs::read("/proc/self/maps").unwrap();
        let code = memory_map::code_around(&maps, release_code as fn() as usize).unwrap();
        // The dropped pages are loaded again unchanged.
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
