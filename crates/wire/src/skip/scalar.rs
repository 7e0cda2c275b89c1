//! Skipping without vector instructions, for every processor.

use super::{ContainerFault, Job, Skip, StringEnd, has_four_hex_digits};
use crate::utf8::is_utf8;

#[derive(Clone, Copy)]
pub(crate) struct Scalar;

impl Skip for Scalar {
    #[inline]
    fn string(self, text: &[u8], at: usize) -> Option<StringEnd> {
        let mut at = at;
        let mut escaped = false;
        loop {
            at += memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
            if text[at] == b'"' {
                return Some(StringEnd { quote: at, escaped });
            }
            escaped = true;
            at += 2;
        }
    }

    #[inline]
    fn strict_string(self, text: &[u8], start: usize) -> Option<StringEnd> {
        let mut at = start;
        let mut escaped = false;
        loop {
            at = find_string_stop(text, at)?;
            match text[at] {
                b'"' => return is_utf8(&text[start..at]).then_some(StringEnd { quote: at, escaped }),
                b'\\' => {
                    escaped = true;
                    match *text.get(at + 1)? {
                        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => at += 2,
                        b'u' if has_four_hex_digits(text, at + 2) => at += 6,
                        _ => return None,
                    }
                }
                _ => return None,
            }
        }
    }

    #[inline]
    fn container(self, text: &[u8], at: usize, levels: u32) -> Result<usize, ContainerFault> {
        if levels == 0 {
            return Err(ContainerFault::TooDeep);
        }
        let mut at = at;
        let mut open = 1;
        loop {
            match *text.get(at).ok_or(ContainerFault::Unclosed)? {
                b'"' => at = self.string(text, at + 1).ok_or(ContainerFault::Unclosed)?.quote,
                // Outside of strings a backslash is not JSON. It is handled only because all
                // implementations must agree on any bytes, and the vector code does not check where an
                // escape is.
                b'\\' if matches!(text.get(at + 1), Some(b'"' | b'\\')) => at += 1,
                b'{' | b'[' => {
                    open += 1;
                    if open > levels {
                        return Err(ContainerFault::TooDeep);
                    }
                }
                b'}' | b']' => {
                    open -= 1;
                    if open == 0 {
                        return Ok(at + 1);
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }

    #[inline]
    fn run<J: Job>(self, job: J) -> J::Out {
        job.run(self)
    }
}

/// Returns the first quote, backslash or control character from `at` on, searching eight bytes at a time.
#[inline]
fn find_string_stop(text: &[u8], at: usize) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const TOPS: u64 = ONES << 7;
    let mut at = at;
    while let Some(bytes) = text.get(at..)?.first_chunk() {
        let word = u64::from_le_bytes(*bytes);
        // Subtracting borrows from the top bit of a byte that is too small. A borrow may spill over into the
        // bytes above it, but never below, so the lowest bit is right.
        let below = |word: u64, limit: u8| word.wrapping_sub(ONES * u64::from(limit)) & !word & TOPS;
        let equal = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
        let stops = equal(b'"') | equal(b'\\') | below(word, 0x20);
        if stops != 0 {
            return Some(at + stops.trailing_zeros() as usize / 8);
        }
        at += bytes.len();
    }
    let rest = text[at..].iter().position(|&byte| matches!(byte, b'"' | b'\\' | 0..0x20))?;
    Some(at + rest)
}
