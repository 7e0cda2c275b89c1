//! The fuzz targets as plain functions: each takes any bytes and panics where the code and an oracle disagree.
//!
//! `cargo fuzz` searches with them; the tests here and in the crates run them over known and generated inputs.
#![expect(clippy::panic, reason = "a panic is how a target reports")]

mod audit;
mod manifest;
mod model;
mod redact;

pub use audit::audit;
use bytes::Bytes;
pub use manifest::manifest;
use model::Model;
use narrows_model::{Completion, Finish, Limits, ReplyEvent, read_recorded};
use narrows_wire::{
    Batch, BatchStep, Check, Code, Envelope, Fault, Frame, Kind, Line, MAX_DEPTH, OVERLONG_HEAD_BYTES, Part,
    Splitter, scan, scan_portable,
};
pub use redact::redact;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

/// The scan of one line, against `serde_json`, and everything that can be asked of a frame.
pub fn scanner(text: &[u8]) {
    let (kind, envelope) = scan(text, Check::Grammar);
    assert_same((kind, envelope), scan_portable(text, Check::Grammar), text);
    assert_same(scan(text, Check::Envelope), scan_portable(text, Check::Envelope), text);

    // What is ignored is not checked for it.
    let json = std::str::from_utf8(text).is_ok() && serde_json::from_slice::<IgnoredAny>(text).is_ok();
    match kind {
        Kind::Invalid(Fault::Syntax) => assert!(!json, "refused: {}", text.escape_ascii()),
        Kind::Invalid(Fault::TooDeep) => assert!(depth(text) > MAX_DEPTH, "{}", text.escape_ascii()),
        _ => {
            assert!(json, "taken as {kind:?}: {}", text.escape_ascii());
            assert!(depth(text) <= MAX_DEPTH, "{}", text.escape_ascii());
            assert_same((kind, envelope), scan(text, Check::Envelope), text);
        }
    }

    let frame = Frame::parse(Bytes::copy_from_slice(text));
    match std::str::from_utf8(text) {
        Err(_) => assert_eq!(frame.kind(), Kind::Invalid(Fault::Utf8)),
        Ok(text) => {
            assert_eq!((frame.kind(), frame.envelope()), (kind, &envelope));
            if !matches!(kind, Kind::Invalid(Fault::Syntax | Fault::TooDeep)) {
                Model::of(text).check(text, kind, &envelope);
            }
        }
    }
    ask(&frame);
    splice(&frame);
    head(text);
}

/// An array of messages: every entry is what it would be alone, and answered if it must be.
pub fn batch(text: &[u8]) {
    const MAX: usize = 8;
    let frame = Frame::parse(Bytes::copy_from_slice(text));
    if frame.kind() != Kind::Batch {
        return;
    }
    let entries: Vec<&RawValue> = serde_json::from_slice(text).expect("an array by our own account");
    let (mut batch, steps) = match Batch::open(&frame, MAX) {
        Ok(opened) => opened,
        Err(fault) => {
            assert_eq!(fault == Fault::EmptyBatch, entries.is_empty());
            assert_eq!(fault == Fault::TooManyEntries, entries.len() > MAX);
            return;
        }
    };
    assert_eq!(steps.len(), entries.len());
    let mut asked = Vec::new();
    let mut due = 0;
    let mut answers = Vec::new();
    for (step, entry) in steps.into_iter().zip(entries) {
        let entry = entry.get();
        let kind = match Model::of(entry).kind {
            Kind::Batch => Kind::Invalid(Fault::NotAMessage),
            kind => kind,
        };
        match (step, kind) {
            (BatchStep::Deliver(frame), Kind::Request) => {
                assert_eq!((frame.kind(), &frame.bytes()[..]), (kind, entry.as_bytes()));
                let id = frame.id().expect("a request has one").to_vec();
                assert!(!asked.contains(&id));
                answers.push(narrows_wire::message::response(&id, &1).expect("plain"));
                asked.push(id);
                due += 1;
            }
            (BatchStep::Answer { answer, .. }, Kind::Request) => {
                let refusal = Frame::parse(answer.clone());
                assert!(asked.iter().any(|id| Some(&id[..]) == refusal.id()));
                assert!(refusal.error().is_some_and(|error| error.is(Code::DuplicateId)));
                answers.push(answer);
                due += 1;
            }
            (BatchStep::Answer { answer, .. }, Kind::Invalid(fault)) => {
                assert!(fault.is_answered());
                assert_eq!(Frame::parse(answer.clone()).id(), None);
                answers.push(answer);
                due += 1;
            }
            (BatchStep::Deliver(frame), kind) => {
                assert_eq!((frame.kind(), &frame.bytes()[..]), (kind, entry.as_bytes()));
                assert!(!matches!(kind, Kind::Invalid(fault) if fault.is_answered()));
            }
            (step, kind) => panic!("{kind:?} became {step:?}"),
        }
    }
    assert_eq!(batch.is_silent(), due == 0);
    let whole: Vec<Bytes> = answers.into_iter().filter_map(|answer| batch.answer(answer)).collect();
    assert_eq!(whole.len(), usize::from(due > 0));
    for whole in whole {
        let answers: Vec<&RawValue> = serde_json::from_slice(&whole).expect("an array");
        assert_eq!(answers.len(), due);
    }
}

/// A stream: its first two bytes set the limit and where it is cut, the rest is split in both ways.
pub fn splitter(data: &[u8]) {
    let [limit, cut, stream @ ..] = data else { return };
    let (limit, mut step) = (usize::from(*limit), usize::from(*cut));
    let expected = lines(stream, limit);
    let mut splitter = Splitter::new(limit);
    let mut found = Vec::new();
    let mut rest = stream;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at((step % 17 + 1).min(rest.len()));
        splitter.buffer().extend_from_slice(piece);
        while let Some(line) = splitter.next_line() {
            found.push(line);
        }
        rest = after;
        step = step % 251 * 5 + 3;
    }
    assert_eq!(found, expected.lines);
    assert_eq!((splitter.partial(), splitter.is_skipping()), (expected.partial, expected.skipping));
}

/// A recorded answer of a model: its first byte sets where it is cut, and cuts change nothing.
pub fn answer(data: &[u8]) {
    let [cut, body @ ..] = data else { return };
    let limits = Limits { max_line: 4096, max_reply: 1 << 16, ..Limits::default() };
    let whole = read_recorded([Bytes::copy_from_slice(body)], limits);
    let size = usize::from(*cut) % 61 + 1;
    let pieces = read_recorded(body.chunks(size).map(Bytes::copy_from_slice), limits);
    match (&whole, &pieces) {
        (Ok((_, whole)), Ok((_, pieces))) => assert_eq!(said(whole), said(pieces)),
        (Err(whole), Err(pieces)) => assert_eq!(whole.kind, pieces.kind),
        // Which of two limits is met first depends on the pieces.
        _ if body.len() > limits.max_line => {}
        _ => panic!("{whole:?} in one piece, {pieces:?} in pieces of {size}"),
    }
    let Ok((events, completion)) = whole else { return };
    let shown: String = events
        .iter()
        .filter_map(|event| match event {
            ReplyEvent::Text(text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    // What is remembered is what was shown.
    assert_eq!(shown, completion.message.text);
    assert!(completion.message.calls.iter().all(|call| !call.id.is_empty() && !call.name.is_empty()));
}

/// What a completion says, without the ids that are made up where none came.
fn said(completion: &Completion) -> (&str, &str, Vec<(&str, &str)>, Finish) {
    let calls = completion.message.calls.iter().map(|call| (&*call.name, &*call.arguments)).collect();
    (&completion.message.text, &completion.message.reasoning, calls, completion.finish)
}

/// What a splitter should find.
struct Lines {
    lines: Vec<Line>,
    partial: usize,
    skipping: bool,
}

fn lines(stream: &[u8], limit: usize) -> Lines {
    let mut lines = Vec::new();
    let mut pieces: Vec<&[u8]> = stream.split(|&byte| byte == b'\n').collect();
    let last = pieces.pop().unwrap_or_default();
    let skipping = last.strip_suffix(b"\r").unwrap_or(last).len() > limit;
    let head = |line: &[u8]| Line::TooLong(Bytes::copy_from_slice(&line[..limit.min(OVERLONG_HEAD_BYTES)]));
    for piece in pieces {
        let line = piece.strip_suffix(b"\r").unwrap_or(piece);
        if line.len() > limit {
            lines.push(head(line));
        } else if !line.iter().all(|byte| b" \t\r".contains(byte)) {
            lines.push(Line::Whole(Bytes::copy_from_slice(line)));
        }
    }
    if skipping {
        lines.push(head(last));
    }
    Lines { lines, partial: if skipping { 0 } else { last.len() }, skipping }
}

/// How many containers are open at once at most, for what may not be JSON up to where it goes wrong.
fn depth(text: &[u8]) -> u32 {
    let (mut open, mut most, mut in_string, mut escaped) = (0u32, 0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => open += 1,
            b'}' | b']' if !in_string => open = open.saturating_sub(1),
            _ => {}
        }
        most = most.max(open);
    }
    most
}

#[track_caller]
fn assert_same(one: (Kind, Envelope), other: (Kind, Envelope), text: &[u8]) {
    assert_eq!(one, other, "{}", text.escape_ascii());
}

/// Nothing that can be asked of a frame panics, and its refusal is one line with a valid response.
fn ask(frame: &Frame) {
    let _ = (frame.id(), frame.method(), frame.session(), frame.top_session(), frame.pool(), frame.error());
    let _ = (frame.params(), frame.result(), frame.request_id(), format!("{frame:?}"));
    if matches!(frame.kind(), Kind::Request | Kind::Notification) {
        assert!(frame.method().is_some());
    }
    if frame.kind() == Kind::Request {
        assert!(frame.id().is_some());
    }
    let refusal = frame.refusal();
    let answered = matches!(frame.kind(), Kind::Invalid(fault) if fault.is_answered());
    assert_eq!(refusal.is_some(), answered);
    if let Some(refusal) = refusal {
        let response = Frame::parse(refusal.clone());
        assert_eq!(response.kind(), Kind::Response);
        assert!(response.error().is_some());
        assert!(response.id().is_none() || response.id() == frame.id());
        assert!(!refusal.contains(&b'\n'));
    }
}

/// A replaced field is what it was replaced with, all other fields and bytes are what they were.
fn splice(frame: &Frame) {
    let span = |frame: &Frame, part| match part {
        Part::Id => frame.envelope().id,
        Part::RequestId => frame.envelope().request_id,
        Part::Session => frame.envelope().session,
    };
    for part in [Part::Id, Part::RequestId, Part::Session] {
        let raw = br#""a new one, and longer than most""#;
        let Some(old) = span(frame, part).slice(frame.bytes()) else {
            assert_eq!(frame.splice(part, raw), None);
            continue;
        };
        let line = frame.splice(part, raw).expect("it is there");
        let spliced = Frame::parse(line);
        if matches!(frame.kind(), Kind::Request | Kind::Notification | Kind::Response) {
            assert_eq!(spliced.kind(), frame.kind());
            assert_eq!(span(&spliced, part).slice(spliced.bytes()), Some(&raw[..]));
            // And back again.
            assert_eq!(spliced.splice(part, old).as_ref(), Some(frame.bytes()));
        }
    }
}

/// The line cut anywhere, as if it had been longer than allowed: no id is made up.
fn head(text: &[u8]) {
    let whole = Frame::parse(Bytes::copy_from_slice(text));
    let valid = matches!(whole.kind(), Kind::Request | Kind::Notification | Kind::Response);
    let step = text.len() / 6 + 1;
    for cut in (0..=text.len()).step_by(step) {
        let frame = Frame::too_long(Bytes::copy_from_slice(&text[..cut]));
        ask(&frame);
        if valid && frame.id().is_some() {
            assert_eq!(frame.id(), whole.id(), "cut at {cut}: {}", text.escape_ascii());
        }
    }
}
