//! Skipping one byte at a time, with `memchr` inside strings: for every processor, and the reference for tests.

use super::{ContainerFault, Job, Skip, StringEnd, four_hex};

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
    fn strict_string(self, text: &[u8], at: usize) -> Option<StringEnd> {
        let mut at = at;
        let mut escaped = false;
        loop {
            match *text.get(at)? {
                b'"' => return Some(StringEnd { quote: at, escaped }),
                b'\\' => {
                    escaped = true;
                    match *text.get(at + 1)? {
                        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => at += 2,
                        b'u' if four_hex(text, at + 2) => at += 6,
                        _ => return None,
                    }
                }
                0..0x20 => return None,
                _ => at += 1,
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
                // Not JSON out here. Vectors do not see where an escape stands, and all must agree on any bytes.
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
