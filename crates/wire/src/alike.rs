//! Lines like the one before: a stream of text differs from line to line in one string, and in nothing that routes it.
//!
//! Such a line need not be scanned: it is compared with the last one, and the string is checked. Whatever is not surely
//! alike is scanned as ever, so the outcome never differs from [`View::parse`], only its price.

use std::ops::Range;

use crate::envelope::{Envelope, Kind, Span};
use crate::skip::{self, Job, Skip};
use crate::view::View;

/// Longer lines are not remembered: to compare them is no longer cheap, and they are no chunks of a stream.
const LONGEST: usize = 4 << 10;

/// How much of the beginning two lines must share to be worth a closer look.
const SHARED: usize = 32;

/// What is remembered of the last line of one source.
#[derive(Clone, Debug, Default)]
pub struct Alike {
    line: Vec<u8>,
    kind: Option<Kind>,
    envelope: Envelope,
    /// The content of the string that changes, if two lines have shown which that is.
    text: Option<Range<usize>>,
}

impl Alike {
    /// The same as [`View::parse`].
    pub fn view<'a>(&mut self, line: &'a [u8]) -> View<'a> {
        if let Some(view) = self.recognise(line) {
            return view;
        }
        let view = View::parse(line);
        self.learn(&view);
        view
    }

    /// `line` if it is the last one with another text in it.
    #[inline]
    fn recognise<'a>(&self, line: &'a [u8]) -> Option<View<'a>> {
        let text = self.text.as_ref()?;
        let (head, tail) = (&self.line[..text.start], &self.line[text.end..]);
        let new = text.start..line.len().checked_sub(tail.len())?;
        if new.start > new.end
            || !line.starts_with(head)
            || !line.ends_with(tail)
            || string_end(line, new.start) != Some(new.end)
        {
            return None;
        }
        let moved = self.envelope.moved(text.end, new.end);
        Some(View::known(line, self.kind?, moved))
    }

    /// Remembers a line, and where it differs from the one before.
    fn learn(&mut self, view: &View<'_>) {
        let line = view.bytes();
        self.text = None;
        if line.len() > LONGEST || !matches!(view.kind(), Kind::Notification | Kind::Request | Kind::Response)
        {
            self.kind = None;
            return;
        }
        if self.kind == Some(view.kind()) && line.get(..SHARED) == self.line.get(..SHARED) {
            self.text = changed(&self.line, line).filter(|text| view.envelope().leaves_alone(text));
        }
        self.line.clear();
        self.line.extend_from_slice(line);
        self.kind = Some(view.kind());
        self.envelope = *view.envelope();
    }
}

/// The content of the one string value of `line` in which it differs from `last`.
fn changed(last: &[u8], line: &[u8]) -> Option<Range<usize>> {
    let shared = last.iter().zip(line).take_while(|(one, other)| one == other).count();
    // The beginning of the string is in what they share, unless they differ outside of any string.
    let start = memchr::memrchr(b'"', &line[..shared])? + 1;
    // A value's, not a key's; and a beginning, not the end of a string that ends in a colon.
    if line.get(start.checked_sub(2)?) != Some(&b':') || is_inside(&line[..start - 1]) {
        return None;
    }
    let (end, last_end) = (string_end(line, start)?, string_end(last, start)?);
    (line[end..] == last[last_end..]).then_some(start..end)
}

/// Whether the beginning `text` of a line ends within a string.
fn is_inside(text: &[u8]) -> bool {
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

/// The end of the string that begins at `at`, if it is one.
#[inline]
fn string_end(line: &[u8], at: usize) -> Option<usize> {
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

    /// Whether no field that is looked at lies in `text`; one that contains more than it may be there.
    fn leaves_alone(&self, text: &Range<usize>) -> bool {
        self.spans().into_iter().filter(|span| span.is_some()).all(|span| {
            let place = span.range();
            // The quotes are part of a span, and not of the text.
            place.end < text.start
                || place.start > text.end
                || place.start + 1 < text.start && place.end > text.end + 1
        })
    }

    /// The same with all that ends behind `from` moved as far as `from` is from `to`. What is absent stands before everything.
    #[inline]
    fn moved(&self, from: usize, to: usize) -> Self {
        let [version, id, method, params, result, error, session, request_id, top_session, pool] =
            self.spans().map(|span| span.moved(from, to));
        // The keys are the same, and so are the flags about them.
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

    /// Whether the second line was known by the first two.
    #[track_caller]
    fn check(lines: &[&str], known: bool) {
        let mut alike = Alike::default();
        let (last, before) = lines.split_last().unwrap();
        for line in before {
            same(&mut alike, line.as_bytes());
        }
        assert_eq!(alike.recognise(last.as_bytes()).is_some(), known, "{last}");
        same(&mut alike, last.as_bytes());
    }

    #[track_caller]
    fn same(alike: &mut Alike, line: &[u8]) {
        let (seen, real) = (alike.view(line), View::parse(line));
        assert_eq!((seen.kind(), seen.envelope()), (real.kind(), real.envelope()), "{}", line.escape_ascii());
        assert_eq!(seen.bytes(), line);
    }

    fn chunk(session: &str, text: &str) -> String {
        format!(
            r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{session}","update":{{"content":{{"type":"text","text":"{text}"}},"messageId":"m"}}}}}}"#
        )
    }

    #[test]
    fn chunks_of_one_stream_are_alike() {
        let [one, two, three] = ["one", "other", ""].map(|text| chunk("s", text));
        check(&[&one, &two, &three], true);
        check(&[&one, &two, &chunk("s", "ünï")], true);
        check(&[&one, &two], false);
        // Another session, and another after it.
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
    fn what_routes_is_never_taken_for_text() {
        let line =
            |id: &str| format!(r#"{{"jsonrpc":"2.0","params":{{"x":{{}}}},"method":"m","id":"{id}"}}"#);
        check(&[&line("a"), &line("b"), &line("c")], false);
        let line = |key: &str| format!(r#"{{"jsonrpc":"2.0","method":"m","params":{{"{key}":"x","z":1}}}}"#);
        check(&[&line("aa"), &line("bb"), &line("sessionId")], false);
        // Between two strings, the first of which ends in a colon.
        let line =
            |rest: &str| format!(r#"{{"jsonrpc":"2.0","method":"m","params":{{"a":"b:"{rest}"c":1}}}}"#);
        check(&[&line(", "), &line(" ,"), &line("x")], false);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Whatever comes, in whatever order, it is what a scan says.
        #[test]
        fn it_is_always_what_a_scan_says(picks in prop::collection::vec((0usize..7, "[a-c\"\\\\:{}, é\u{1}]{0,4}"), 1..12)) {
            let mut alike = Alike::default();
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
                same(&mut alike, line.as_bytes());
            }
        }
    }
}
