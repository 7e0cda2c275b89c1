//! A UTF-8 check with a fast path for ASCII.

use crate::skip::{Job, Skip, run};

/// Texts shorter than this are checked without vector instructions, because the dispatch would cost more.
const MIN_VECTOR_BYTES: usize = 256;
const STEP_BYTES: usize = 128;

#[inline]
pub(crate) fn is_utf8(text: &[u8]) -> bool {
    // The first byte that is not ASCII begins a character, so the prefix before it can be cut off.
    let plain = if text.len() < MIN_VECTOR_BYTES { 0 } else { run(AsciiPrefix(text)) };
    std::str::from_utf8(&text[plain..]).is_ok()
}

/// Counts the bytes of an ASCII prefix, in whole steps.
struct AsciiPrefix<'a>(&'a [u8]);

impl Job for AsciiPrefix<'_> {
    type Out = usize;

    #[inline(always)]
    fn run<S: Skip>(self, _: S) -> usize {
        let (steps, _) = self.0.as_chunks::<STEP_BYTES>();
        // The fold has no early exit, so that it compiles to a few wide instructions.
        let plain = |step: &[u8; STEP_BYTES]| step.iter().fold(0, |all, byte| all | byte) < 0x80;
        steps.iter().position(|step| !plain(step)).unwrap_or(steps.len()) * STEP_BYTES
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_wrong_byte_is_found_at_any_position() {
        for length in [0, 1, 127, 128, 255, 256, 257, 1000] {
            let mut text = vec![b'a'; length];
            assert!(is_utf8(&text));
            for at in 0..length {
                text[at] = 0xff;
                assert!(!is_utf8(&text), "{at} of {length}");
                text[at] = b'a';
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn the_result_agrees_with_the_standard_library(
            text in "[a-z]{0,300}[äöü€😀]{0,40}[a-z]{0,300}",
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        ) {
            let mut bytes = text.into_bytes();
            for (at, byte) in changes {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
            }
            prop_assert_eq!(is_utf8(&bytes), std::str::from_utf8(&bytes).is_ok());
        }
    }
}
