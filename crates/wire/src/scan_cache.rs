//! A cache of the last scan of a source. In a text stream, consecutive lines differ in one string that does
//! not affect routing.
//!
//! Such a line is compared with the last one, and only the changed string is checked. Every other line is
//! scanned, so the result always equals that of [`View::parse`].

use std::ops::Range;

use crate::envelope::{Envelope, Kind, Span};
use crate::skip::{self, Job, Skip};
use crate::view::View;

/// Limit of a cached line. Comparing a longer one costs as much as scanning, and it is no chunk of a text
/// stream.
const MAX_CACHED_LINE_BYTES: usize = 4 << 10;

/// Length of the prefix that two lines must share before they are compared in full.
const SHARED_PREFIX_BYTES: usize = 32;

/// The last line of one source, and its scan.
#[derive(Clone, Debug, Default)]
pub struct ScanCache {
    line: Vec<u8>,
    kind: Option<Kind>,
    envelope: Envelope,
    /// Content of the string that changes. `None` until two similar lines have shown it.
    text: Option<Range<usize>>,
}

impl ScanCache {
    /// Returns the same as [`View::parse`], without a scan if the cache allows it.
    pub fn view<'a>(&mut self, line: &'a [u8]) -> View<'a> {
        if let Some(view) = self.recognize(line) {
            return view;
        }
        let view = View::parse(line);
        self.learn(&view);
        view
    }

    /// Returns the scan of `line` if it equals the last line except for the known string.
    #[inline]
    fn recognize<'a>(&self, line: &'a [u8]) -> Option<View<'a>> {
        let text = self.text.as_ref()?;
        let (head, tail) = (&self.line[..text.start], &self.line[text.end..]);
        let new = text.start..line.len().checked_sub(tail.len())?;
        if new.start > new.end
            || !line.starts_with(head)
            || !line.ends_with(tail)
            || valid_string_end(line, new.start) != Some(new.end)
        {
            return None;
        }
        // If the string has the same length as before, no position moves.
        let shifted = match new.end == text.end {
            true => self.envelope,
            false => self.envelope.shifted(text.end, new.end),
        };
        Some(View::from_parts(line, self.kind?, shifted))
    }

    /// Stores a line and the string in which it differs from the last one.
    fn learn(&mut self, view: &View<'_>) {
        let line = view.bytes();
        self.text = None;
        if line.len() > MAX_CACHED_LINE_BYTES
            || !matches!(view.kind(), Kind::Notification | Kind::Request | Kind::Response)
        {
            self.kind = None;
            return;
        }
        if self.kind == Some(view.kind())
            && line.get(..SHARED_PREFIX_BYTES) == self.line.get(..SHARED_PREFIX_BYTES)
        {
            self.text = changed_string(&self.line, line).filter(|text| view.envelope().has_no_field_in(text));
        }
        self.line.clear();
        self.line.extend_from_slice(line);
        self.kind = Some(view.kind());
        self.envelope = *view.envelope();
    }
}

/// Returns the content of the only string value in which `line` differs from `last`.
fn changed_string(last: &[u8], line: &[u8]) -> Option<Range<usize>> {
    let shared = last.iter().zip(line).take_while(|(one, other)| one == other).count();
    // The start of the string is in the shared prefix, unless the lines differ outside of strings.
    let start = memchr::memrchr(b'"', &line[..shared])? + 1;
    // The string must be a value, not a key. Its quote must open it, because a string may also end in a
    // colon.
    if line.get(start.checked_sub(2)?) != Some(&b':') || ends_inside_string(&line[..start - 1]) {
        return None;
    }
    let (end, last_end) = (valid_string_end(line, start)?, valid_string_end(last, start)?);
    (line[end..] == last[last_end..]).then_some(start..end)
}

fn ends_inside_string(text: &[u8]) -> bool {
    let (mut inside, mut escaped) = (false, false);
    for &byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = inside,
            b'"' => inside = !inside,
            _ => {}
        }
    }
    inside
}

/// Returns the position of the closing quote of the string that begins at `at`, if the string is valid.
#[inline]
fn valid_string_end(line: &[u8], at: usize) -> Option<usize> {
    struct End<'a>(&'a [u8], usize);
    impl Job for End<'_> {
        type Out = Option<usize>;

        #[inline(always)]
        fn run<S: Skip>(self, skip: S) -> Self::Out {
            Some(skip.strict_string(self.0, self.1)?.quote)
        }
    }
    skip::run(End(line, at))
}

impl Envelope {
    fn spans(&self) -> [Span; 10] {
        let Self {
            version,
            id,
            method,
            params,
            result,
            error,
            session,
            request_id,
            top_session,
            pool,
            ambiguous: _,
            has_other_members: _,
        } = *self;
        [version, id, method, params, result, error, session, request_id, top_session, pool]
    }

    /// Returns `true` if no recorded field lies within `text`. A field may contain all of `text`.
    fn has_no_field_in(&self, text: &Range<usize>) -> bool {
        self.spans().into_iter().filter(|span| span.is_some()).all(|span| {
            let range = span.range();
            // A span includes the quotes; `text` does not.
            range.end < text.start
                || range.start > text.end
                || range.start + 1 < text.start && range.end > text.end + 1
        })
    }

    /// Returns the envelope with every position after `from` moved by `to - from`. Absent spans are at 0
    /// and stay.
    #[inline]
    fn shifted(&self, from: usize, to: usize) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the limit of a line is far below 4 GiB")]
        let (from, to) = (from as u32, to as u32);
        let [version, id, method, params, result, error, session, request_id, top_session, pool] =
            self.spans().map(|span| span.shifted(from, to));
        // The keys are unchanged, and so are the flags that depend on keys.
        Self {
            version,
            id,
            method,
            params,
            result,
            error,
            session,
            request_id,
            top_session,
            pool,
            ambiguous: self.ambiguous,
            has_other_members: self.has_other_members,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Checks that the last line is recognized from the cache (`known`), or scanned.
    #[track_caller]
    fn check(lines: &[&str], known: bool) {
        let mut cache = ScanCache::default();
        let (last, before) = lines.split_last().unwrap();
        for line in before {
            check_view(&mut cache, line.as_bytes());
        }
        assert_eq!(cache.recognize(last.as_bytes()).is_some(), known, "{last}");
        check_view(&mut cache, last.as_bytes());
    }

    #[track_caller]
    fn check_view(cache: &mut ScanCache, line: &[u8]) {
        let (seen, real) = (cache.view(line), View::parse(line));
        assert_eq!((seen.kind(), seen.envelope()), (real.kind(), real.envelope()), "{}", line.escape_ascii());
        assert_eq!(seen.bytes(), line);
    }

    fn chunk(session: &str, text: &str) -> String {
        format!(
            r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{session}","update":{{"content":{{"type":"text","text":"{text}"}},"messageId":"m"}}}}}}"#
        )
    }

    #[test]
    fn chunks_of_one_stream_are_recognized() {
        let [one, two, three] = ["one", "other", ""].map(|text| chunk("s", text));
        check(&[&one, &two, &three], true);
        check(&[&one, &two, &chunk("s", "ünï")], true);
        check(&[&one, &two], false);
        // Lines of a second and a third session.
        check(&[&one, &two, &chunk("t", "x")], false);
        check(&[&one, &chunk("t", "one"), &chunk("u", "one")], false);
        for escaped in
            [r"a\n", r#"say \"x\""#, r"\\", r"\u00e9 and so on, as long as it takes to fill a vector \n"]
        {
            check(&[&one, &two, &chunk("s", escaped)], true);
            check(&[&one, &chunk("s", escaped), &two], true);
        }
        for odd in [r#"a","x":"b"#, "a\u{1}", r"\", r"\x", r"\u00g0", r#"a"}}}}"#] {
            check(&[&one, &two, &chunk("s", odd)], false);
        }
        let cut = &two[..two.len() - 1];
        check(&[&one, &two, cut], false);
    }

    #[test]
    fn changed_routing_fields_are_never_recognized() {
        let line =
            |id: &str| format!(r#"{{"jsonrpc":"2.0","params":{{"x":{{}}}},"method":"m","id":"{id}"}}"#);
        check(&[&line("a"), &line("b"), &line("c")], false);
        let line = |key: &str| format!(r#"{{"jsonrpc":"2.0","method":"m","params":{{"{key}":"x","z":1}}}}"#);
        check(&[&line("aa"), &line("bb"), &line("sessionId")], false);
        // The cursor between two strings, the first of which ends in a colon.
        let line =
            |rest: &str| format!(r#"{{"jsonrpc":"2.0","method":"m","params":{{"a":"b:"{rest}"c":1}}}}"#);
        check(&[&line(", "), &line(" ,"), &line("x")], false);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// For any order of lines, the result equals that of a scan.
        #[test]
        fn the_result_always_equals_a_scan(picks in prop::collection::vec((0usize..7, "[a-c\"\\\\:{}, é\u{1}]{0,4}"), 1..12)) {
            let mut cache = ScanCache::default();
            for (shape, text) in picks {
                let line = match shape {
                    0 => chunk("s", &text),
                    1 => chunk(&text, "x"),
                    2 => format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"{text}":"x"}}}}"#),
                    3 => format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"a":"x"}},"id":"{text}"}}"#),
                    6 => format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"a":"x:"{text}"b":1}}}}"#),
                    4 => format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"a":"x"}},"{text}":"y"}}"#),
                    _ => format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"a":["{text}",{{"b":"{text}"}}]}}}}"#),
                };
                check_view(&mut cache, line.as_bytes());
            }
        }
    }
}
