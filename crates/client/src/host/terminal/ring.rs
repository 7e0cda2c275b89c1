//! The last bytes of a command's output, as text.

use std::collections::VecDeque;

/// Keeps the end of the pushed bytes.
#[derive(Debug)]
pub(super) struct Ring {
    bytes: VecDeque<u8>,
    limit: usize,
    truncated: bool,
}

impl Ring {
    pub(super) fn new(limit: usize) -> Self {
        Self { bytes: VecDeque::new(), limit, truncated: false }
    }

    pub(super) fn push(&mut self, chunk: &[u8]) {
        let excess = (self.bytes.len() + chunk.len()).saturating_sub(self.limit);
        self.truncated |= excess > 0;
        let kept = chunk.get(chunk.len().saturating_sub(self.limit)..).unwrap_or_default();
        self.bytes.drain(..excess.min(self.bytes.len()));
        self.bytes.extend(kept);
    }

    /// Returns at most `limit` bytes of text, and `true` if text before it is missing.
    ///
    /// Omits a character whose beginning was cut off, and an incomplete character at the end unless
    /// `complete` is set. Replaces invalid UTF-8.
    pub(super) fn text(&mut self, complete: bool) -> (String, bool) {
        let mut bytes: &[u8] = self.bytes.make_contiguous();
        if self.truncated {
            let cut = bytes.iter().take(3).take_while(|byte| is_continuation(**byte)).count();
            bytes = bytes.get(cut..).unwrap_or_default();
        }
        if !complete {
            bytes = bytes.get(..bytes.len() - unfinished(bytes)).unwrap_or_default();
        }
        let mut text = String::from_utf8_lossy(bytes).into_owned();
        let mut truncated = self.truncated;
        // A replacement character is longer than the byte that it replaces.
        if text.len() > self.limit {
            let excess = text.len() - self.limit;
            text.drain(..(excess..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len()));
            truncated = true;
        }
        (text, truncated)
    }
}

fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

/// Returns the number of bytes at the end that belong to an incomplete character.
fn unfinished(bytes: &[u8]) -> usize {
    for length in 1..=bytes.len().min(3) {
        let (_, end) = bytes.split_at(bytes.len() - length);
        if !end.first().is_some_and(|byte| is_continuation(*byte)) {
            let more = std::str::from_utf8(end).is_err_and(|error| error.error_len().is_none());
            return if more { length } else { 0 };
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(limit: usize, chunks: &[&[u8]], running: &str, ended: &str, truncated: bool) {
        let mut ring = Ring::new(limit);
        chunks.iter().for_each(|chunk| ring.push(chunk));
        assert_eq!(ring.text(false), (running.to_owned(), truncated));
        assert_eq!(ring.text(true), (ended.to_owned(), truncated));
    }

    #[test]
    fn the_ring_keeps_the_end() {
        check(8, &[b"one ", b"two"], "one two", "one two", false);
        check(8, &[b"one ", b"two "], "one two ", "one two ", false);
        check(8, &[b"one ", b"two ", b"3"], "ne two 3", "ne two 3", true);
        check(4, &[b"much longer"], "nger", "nger", true);
        check(0, &[b"x"], "", "", true);
        check(0, &[], "", "", false);
    }

    #[test]
    fn the_ring_cuts_between_characters() {
        check(4, &["aéé".as_bytes()], "éé", "éé", true);
        check(3, &["éé".as_bytes()], "é", "é", true);
        check(3, &["😀😀".as_bytes()], "", "", true);
        check(6, &["😀x😀".as_bytes()], "x😀", "x😀", true);
    }

    #[test]
    fn an_incomplete_character_is_held_back() {
        let smile = "😀".as_bytes();
        check(9, &[b"a", &smile[..1]], "a", "a\u{fffd}", false);
        check(9, &[b"a", &smile[..3]], "a", "a\u{fffd}", false);
        check(9, &[b"a", &smile[..3], &smile[3..]], "a😀", "a😀", false);
        // Nothing can complete these bytes.
        check(9, b"\xffa".chunks(1).collect::<Vec<_>>().as_slice(), "\u{fffd}a", "\u{fffd}a", false);
        check(9, &[b"a\x80"], "a\u{fffd}", "a\u{fffd}", false);
        check(9, &[b"a\xc0"], "a\u{fffd}", "a\u{fffd}", false);
    }

    #[test]
    fn replacement_characters_count_towards_the_limit() {
        check(4, &[b"\xff\xff"], "\u{fffd}", "\u{fffd}", true);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn the_text_is_the_end_of_the_input(text in "(?s).{0,40}", limit in 0usize..60, step in 1usize..7) {
            let mut ring = Ring::new(limit);
            for (index, chunk) in text.as_bytes().chunks(step).enumerate() {
                ring.push(chunk);
                let (shown, _) = ring.text(false);
                let so_far = &text.as_bytes()[..((index + 1) * step).min(text.len())];
                let whole = std::str::from_utf8(so_far).map_or_else(|error| error.valid_up_to(), str::len);
                prop_assert!(text[..whole].ends_with(&shown), "{shown:?} of {:?}", &text[..whole]);
            }
            let (shown, truncated) = ring.text(true);
            prop_assert!(text.ends_with(&shown) && shown.len() <= limit);
            prop_assert_eq!(truncated, text.len() > limit);
            prop_assert!(shown.len() + 4 > limit.min(text.len()), "no more is cut than necessary");
        }

        #[test]
        fn the_limit_holds_for_any_input(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..20),
            limit in 0usize..40,
            complete: bool,
        ) {
            let mut ring = Ring::new(limit);
            for chunk in &chunks {
                ring.push(chunk);
                prop_assert!(ring.bytes.len() <= limit);
                prop_assert!(ring.text(complete).0.len() <= limit);
            }
        }
    }
}
