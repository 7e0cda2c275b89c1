//! Tests of the verifier on logs that were changed.

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::draft::{Draft, LogPosition};
use crate::entry::Algorithm;
use crate::event::{Actor, Event, Subject};
use crate::jcs;
use crate::redact::Redaction;

/// Returns the lines of a log in which each line is a separate write.
fn lines(count: u64) -> Vec<Vec<u8>> {
    let mut place = LogPosition { seq: 0, prev: None };
    let line = |seq| {
        let event = Event {
            actor: Actor { id: "operator:notes".into(), role: None },
            action: "tool.call".into(),
            subject: Subject { kind: "tool".into(), reference: None, path: None },
            input: Some(json!({"n": seq, "é": [1.5, "a\nb"]})),
            ..Event::default()
        };
        let draft = Draft::new(event, &Redaction::default(), 1 << 20).expect("a draft");
        let mut line = Vec::new();
        let ts = crate::clock::format_timestamp(1_731_693_600_000 + i64::try_from(seq).expect("few"));
        let hash = draft.write_line(&place, &ts, Algorithm::Sha256, &mut line);
        place = LogPosition { seq: seq + 1, prev: Some(hash) };
        line
    };
    (0..count).map(line).collect()
}

#[track_caller]
fn check(lines: &[Vec<u8>], expected: &str) {
    let report = bytes(&lines.concat(), &VerifyOptions::default());
    assert_eq!(report.bad.map_or(String::new(), |bad| bad.to_string()), expected);
}

/// Returns the lines with `from` replaced by `to` in one line.
fn changed(at: usize, from: &str, to: &str) -> Vec<Vec<u8>> {
    let mut lines = lines(4);
    let line = String::from_utf8(lines[at].clone()).expect("UTF-8");
    assert!(line.contains(from), "{line}");
    lines[at] = line.replacen(from, to, 1).into_bytes();
    lines
}

#[test]
fn a_good_log_is_good() {
    let report = bytes(&lines(4).concat(), &VerifyOptions::default());
    assert_eq!((report.entries, report.bad), (4, None));
    assert_eq!(bytes(b"", &VerifyOptions::default()), Report { segments: 1, ..Report::default() });
}

#[test]
fn the_first_bad_line_is_named() {
    check(&changed(2, "tool.call", "tool.cull"), "log:3: tampered: its hash does not match its content");
    check(
        &changed(2, "\"action\":", "\"action\": "),
        "log:3: not canonical: there is space between its parts (byte 42)",
    );
    check(
        &changed(2, "1.5", "1.50"),
        "log:3: not canonical: a number is not in its canonical form (byte 224)",
    );
    check(&changed(2, "}\n", "\n"), "log:3: broken: it ends too early (byte 380)");
    check(&changed(2, "\"subject\":", "\"subjects\":"), "log:3: broken: unknown field `subjects`");
    check(
        &changed(2, "tool.call", "tool\u{0}call"),
        "log:3: broken: control character in a string (byte 47)",
    );
    check(&changed(0, "GENESIS", "GENESES"), "log:1: tampered: its hash does not match its content");

    let without = |at: usize| {
        let mut lines = lines(4);
        lines.remove(at);
        lines
    };
    check(&without(2), "log:3: gap: its number is 3, expected 2");
    check(&without(0), "log:1: gap: its number is 1, expected 0");
    let mut swapped = lines(4);
    swapped.swap(1, 2);
    check(&swapped, "log:2: gap: its number is 2, expected 1");
    let mut doubled = lines(4);
    doubled.insert(1, doubled[1].clone());
    check(&doubled, "log:3: gap: its number is 1, expected 2");
}

/// A forged line with a correct hash must still match the schema.
#[test]
fn a_line_with_a_right_hash_follows_the_schema() {
    let line = String::from_utf8(lines(1).concat()).expect("UTF-8");
    for (from, to, field) in [
        ("tool.call", "TOOL CALL", "action"),
        ("tool.call", "tool.", "action"),
        ("\"actor\":{\"id\":", "\"actor\":{\"ids\":", "actor"),
        ("\"subject\":{\"kind\":", "\"subject\":{\"kinds\":", "subject"),
    ] {
        assert!(line.contains(from), "{line}");
        let mut entry: Value = serde_json::from_str(&line.replacen(from, to, 1)).expect("a line");
        entry.as_object_mut().and_then(|entry| entry.remove("hash")).expect("a hash");
        let mut text = Vec::new();
        jcs::write(&entry, &mut text).expect("not deep");
        let digest = ring::digest::digest(&ring::digest::SHA256, &text);
        let hash: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        entry["hash"] = hash.into();
        text.clear();
        jcs::write(&entry, &mut text).expect("not deep");
        text.push(b'\n');
        check(&[text], &format!("log:1: broken: invalid `{field}`"));
    }
}

#[test]
fn lines_of_another_log_do_not_follow() {
    let mut mixed = lines(4);
    // This first entry has another content than the replaced one.
    let event = Event {
        actor: Actor { id: "x".into(), role: None },
        action: "tool.call".into(),
        subject: Subject { kind: "tool".into(), ..Subject::default() },
        ..Event::default()
    };
    let draft = Draft::new(event, &Redaction::default(), 1 << 20).expect("a draft");
    mixed[0].clear();
    let _ = draft.write_line(
        &LogPosition { seq: 0, prev: None },
        "2026-11-15T18:00:00.000Z",
        Algorithm::Sha256,
        &mut mixed[0],
    );
    check(&mixed, "log:2: broken: its hash does not continue the previous line");
}

#[test]
fn time_does_not_go_back() {
    let draft = |action: &str| {
        let event = Event {
            actor: Actor { id: "x".into(), role: None },
            action: action.into(),
            subject: Subject { kind: "tool".into(), ..Subject::default() },
            ..Event::default()
        };
        Draft::new(event, &Redaction::default(), 1 << 20).expect("a draft")
    };
    let (mut one, mut other) = (Vec::new(), Vec::new());
    let hash = draft("a.b").write_line(
        &LogPosition { seq: 0, prev: None },
        "2026-11-15T18:00:00.001Z",
        Algorithm::Sha256,
        &mut one,
    );
    let place = LogPosition { seq: 1, prev: Some(hash) };
    let _ = draft("a.c").write_line(&place, "2026-11-15T18:00:00.000Z", Algorithm::Sha256, &mut other);
    check(&[one, other], "log:2: clock: its time is before that of the previous line");
}

#[test]
fn a_torn_tail_is_distinguished_from_damage() {
    let whole = lines(3);
    let last = whole[2].clone();
    for length in 1..last.len() {
        let torn = [&whole[..2], &[last[..length].to_vec()]].concat();
        check(&torn, "log:3: torn tail: the line is incomplete");
    }
    // The last line is complete, so it was acknowledged, even if its line end is damaged.
    let mut damaged = whole.clone();
    *damaged[2].last_mut().expect("a line") = b'\x0b';
    check(&damaged, "log:3: broken: the end of this line is damaged");
}

#[test]
fn sectors_that_were_never_written_are_a_torn_tail() {
    let log = lines(8).concat();
    // `entries` is chosen so that a disk sector begins within the next line.
    let ends = |count: u64| lines(count).concat().len();
    let entries =
        (1..6).find(|&count| ends(count).next_multiple_of(512) < ends(count + 1)).expect("one of them");
    let good = ends(entries);
    let aligned = good.next_multiple_of(512);
    let hole = |from: usize, to: usize, end: usize| {
        let mut log = log[..end].to_vec();
        log[from..to].fill(0);
        let report = bytes(&log, &VerifyOptions::default());
        let bad = report.bad.expect("bad");
        (bad.why, report.entries)
    };
    // The zeros are followed by no complete line, or only by lines of the same write.
    assert_eq!(hole(good, log.len(), log.len()), (VerifyProblem::TornTail, entries));
    assert_eq!(hole(aligned, aligned + 512, aligned + 700), (VerifyProblem::TornTail, entries));
    assert_eq!(hole(good, aligned, aligned + 100), (VerifyProblem::TornTail, entries));
    // The zeros are not aligned to sectors, or are followed by lines of more than one write.
    assert_eq!(hole(good + 1, good + 2, log.len()), (VerifyProblem::Broken, entries));
    assert_eq!(hole(aligned, aligned + 511, log.len()), (VerifyProblem::Broken, entries));
    assert_eq!(hole(aligned, aligned + 512, log.len()), (VerifyProblem::Broken, entries));
}

/// Flips every bit in the lines from `from` to `to`. Verification starts one line earlier, because the lines
/// before are known to be good.
fn flips(count: u64, from: usize, to: usize) {
    struct Memory(Vec<u8>);
    impl Source for Memory {
        fn name(&self) -> &'static str {
            "log"
        }
        fn first(&self) -> Option<u64> {
            None
        }
        fn length(&self) -> u64 {
            self.0.len() as u64
        }
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
            let rest = &self.0[usize::try_from(offset).expect("small")..];
            let length = rest.len().min(buffer.len());
            buffer[..length].copy_from_slice(&rest[..length]);
            Ok(length)
        }
    }
    let lines = lines(count);
    let options = VerifyOptions { threads: 1, ..VerifyOptions::default() };
    let mut chain_end = ChainEnd::default();
    for (index, line) in lines.iter().enumerate() {
        // Two lines after the changed line are enough to detect the change.
        let mut memory = Memory(lines[index..lines.len().min(index + 3)].concat());
        let start = Start { chain_end, offset: 0 };
        if (from..to).contains(&index) {
            for at in 0..line.len() {
                for bit in 0..8 {
                    memory.0[at] ^= 1 << bit;
                    let bad = check_source(&memory, &start, &options).bad;
                    memory.0[at] ^= 1 << bit;
                    let bad = bad.unwrap_or_else(|| panic!("bit {bit} of byte {at} of line {index}"));
                    // A flipped bit must not make a line look like a torn tail, which may be removed.
                    assert_ne!(bad.why, VerifyProblem::TornTail, "bit {bit} of byte {at} of line {index}");
                }
            }
        }
        memory.0.truncate(line.len());
        chain_end = check_source(&memory, &start, &options).chain_end;
        assert_eq!(chain_end.next, index as u64 + 1);
    }
}

fn check_source(source: &dyn Source, start: &Start, options: &VerifyOptions) -> Outcome {
    super::check(&[source], start, options).expect("memory can be read")
}

#[test]
fn every_flipped_bit_is_found_in_the_first_lines() {
    flips(100, 0, 25);
}

#[test]
fn every_flipped_bit_is_found_in_the_second_quarter() {
    flips(100, 25, 50);
}

#[test]
fn every_flipped_bit_is_found_in_the_third_quarter() {
    flips(100, 50, 75);
}

#[test]
fn every_flipped_bit_is_found_in_the_last_lines() {
    flips(100, 75, 100);
}

#[test]
#[ignore = "takes long: for the night"]
fn every_flipped_bit_is_found_in_a_thousand_lines() {
    flips(1000, 0, 1000);
}

#[test]
fn some_flipped_bits_are_found_from_the_beginning() {
    let mut log = lines(100).concat();
    for at in (0..log.len()).step_by(211) {
        log[at] ^= 1 << (at % 8);
        assert!(bytes(&log, &VerifyOptions::default()).bad.is_some(), "byte {at}");
        log[at] ^= 1 << (at % 8);
    }
}

#[test]
fn a_large_log_is_verified_in_pieces() {
    let event = |length: usize| Event {
        actor: Actor { id: "x".into(), role: None },
        action: "tool.call".into(),
        subject: Subject { kind: "tool".into(), ..Subject::default() },
        input: Some(json!("y".repeat(length))),
        ..Event::default()
    };
    let mut log = Vec::new();
    let mut place = LogPosition { seq: 0, prev: None };
    let mut ends = Vec::new();
    for seq in 0..20 {
        // Line 10 is longer than a piece, and all other lines are shorter.
        let length = if seq == 10 { 5 << 20 } else { 500 << 10 };
        let draft = Draft::new(event(length), &Redaction::default(), 16 << 20).expect("a draft");
        let hash = draft.write_line(&place, "2026-11-15T18:00:00.000Z", Algorithm::Sha512, &mut log);
        place = LogPosition { seq: seq + 1, prev: Some(hash) };
        ends.push(log.len());
    }
    let options = VerifyOptions { threads: 3, ..VerifyOptions::default() };
    let report = bytes(&log, &options);
    assert_eq!((report.entries, &report.hash, &report.bad), (20, &place.prev, &None));
    for line in [0, 10, 11, 19] {
        let at = ends[line] - 5;
        log[at] ^= 1;
        let bad = bytes(&log, &options).bad.expect("bad");
        assert_eq!(bad.line, line as u64 + 1);
        log[at] ^= 1;
    }
    log.drain(ends[5]..ends[6]);
    let bad = bytes(&log, &options).bad.expect("bad");
    assert_eq!((bad.why, bad.line), (VerifyProblem::Gap, 7));
}

/// Returns the directory with test files of another implementation of the format.
fn vectors() -> Option<std::path::PathBuf> {
    let folder = "../../../shared/spec/aip/examples/aip-7-audit";
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    if !folder.is_dir() {
        eprintln!("skipped: the vectors are not here");
        return None;
    }
    Some(folder)
}

#[test]
fn logs_of_another_implementation_are_verified() {
    let Some(folder) = vectors() else { return };
    let any = VerifyOptions { form: LineForm::Any, ..VerifyOptions::default() };
    let verified = |name: &str, options: &VerifyOptions| {
        let report = log(&folder.join(name), options).expect("readable");
        (report.entries, report.bad.map(|bad| (bad.line, bad.why)))
    };
    assert_eq!(verified("derived-chain-valid.jsonl", &any), (4, None));
    assert_eq!(verified("derived-chain-tampered-seq2.jsonl", &any), (2, Some((3, VerifyProblem::Tampered))));
    assert_eq!(verified("derived-chain-gap-seq2.jsonl", &any), (2, Some((3, VerifyProblem::Gap))));
    // The lines of these files are valid, but not canonical.
    let exact = verified("derived-chain-valid.jsonl", &VerifyOptions::default());
    assert_eq!(exact, (0, Some((1, VerifyProblem::NotCanonical))));
}

#[test]
fn keyed_hashes_are_verified_with_the_secret() {
    let Some(folder) = vectors() else { return };
    let vector = std::fs::read(folder.join("derived-refimpl-hmac-vector.json")).expect("readable");
    let vector: Value = serde_json::from_slice(&vector).expect("JSON");
    let mut row = vector["rowWithoutSignature"].clone();
    row["signature"] = vector["signature"].clone();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("log.jsonl");
    let verified = |text: &str, secret: &str| {
        std::fs::write(&path, text).expect("written");
        let options = VerifyOptions { legacy: Some(Secret::new(secret)), ..VerifyOptions::default() };
        let report = log(&path, &options).expect("readable");
        (report.entries, report.bad.map(|bad| (bad.line, bad.why)))
    };
    let secret = vector["secret"].as_str().expect("a text");
    assert_eq!(verified(&format!("{row}\n"), secret), (1, None));
    assert_eq!(verified(&format!("{row}\n"), "another"), (0, Some((1, VerifyProblem::Tampered))));
    assert_eq!(verified(&format!("{row}\n{row}\n"), secret), (1, Some((2, VerifyProblem::Broken))));
    assert_eq!(verified(&format!("{row}\n{row}"), secret), (1, Some((2, VerifyProblem::TornTail))));
    row["action"] = json!("log.started");
    assert_eq!(verified(&format!("{row}\n"), secret), (0, Some((1, VerifyProblem::Tampered))));
    let report = log(&path, &VerifyOptions::default()).expect("readable");
    assert!(report.bad.expect("bad").detail.contains("keyed hashes"));
}

#[test]
fn keyed_hashes_are_recognized_in_any_order_of_fields() {
    for line in [
        r#"{"action":"a","prevSignature":"0","signature":"1"}"#,
        r#"{"signature": "1", "prevSignature": "0", "action": "a"}"#,
    ] {
        let report = bytes(format!("{line}\n").as_bytes(), &VerifyOptions::default());
        let bad = report.bad.expect("bad");
        assert_eq!((bad.why, bad.detail.contains("keyed hashes")), (VerifyProblem::Broken, true), "{line}");
    }
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e9_f64..1e9).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[\\x00-\\x7f]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Returns the value with its integers as every JSON reader sees them.
fn rounded(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.iter().map(rounded).collect(),
        Value::Object(members) => {
            Value::Object(members.iter().map(|(key, value)| (key.clone(), rounded(value))).collect())
        }
        other => other.clone(),
    }
}

proptest! {
    /// The verifier accepts the writer's output as canonical, and reads the same value from it.
    #[test]
    fn the_writer_and_the_checker_agree(value in values()) {
        let text = jcs::to_vec(&value).expect("shallow");
        prop_assert_eq!(is_canonical(&text), Ok(()));
        let read: Value = serde_json::from_slice(&text).expect("JSON");
        prop_assert_eq!(rounded(&read), rounded(&value));
        // The conversion for logs of other programs leads to the same text.
        let tree: render::Tree = serde_json::from_slice(&text).expect("JSON");
        prop_assert_eq!(tree.to_string().into_bytes(), text);
    }

    /// Each value has exactly one canonical text, and any other text is refused.
    #[test]
    fn only_the_writers_text_is_canonical(value in values()) {
        let text = jcs::to_vec(&value).expect("shallow");
        for other in [serde_json::to_vec(&value), serde_json::to_vec_pretty(&value)] {
            let other = other.expect("JSON");
            prop_assert_eq!(is_canonical(&other).is_ok(), other == text);
        }
    }

    /// A text with some changed bytes is refused, unless it is the canonical text of another value.
    #[test]
    fn the_checker_accepts_only_the_writers_output(
        value in values(),
        at: prop::sample::Index,
        byte in prop::sample::select(b"\"\\{}[],:0123456789.eE+-untrfalsb /\x7f\xc3".to_vec()),
    ) {
        let mut text = jcs::to_vec(&value).expect("shallow");
        let at = at.index(text.len());
        text[at] = byte;
        if is_canonical(&text).is_ok() {
            let read: Value = serde_json::from_slice(&text).expect("JSON");
            prop_assert_eq!(jcs::to_vec(&read).expect("shallow"), text);
        } else if let Ok(read) = serde_json::from_slice::<Value>(&text) {
            prop_assert_ne!(jcs::to_vec(&read).expect("shallow"), text);
        }
    }

    #[test]
    fn no_input_causes_a_panic(log in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = bytes(&log, &VerifyOptions::default());
        let _ = bytes(&log, &VerifyOptions { form: LineForm::Any, ..VerifyOptions::default() });
    }
}

/// A very large file that contains no line end.
struct Endless {
    first: u8,
    largest_read: std::sync::atomic::AtomicUsize,
}

impl Source for Endless {
    fn name(&self) -> &'static str {
        "log"
    }
    fn first(&self) -> Option<u64> {
        None
    }
    fn length(&self) -> u64 {
        8 << 30
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.largest_read.fetch_max(buffer.len(), std::sync::atomic::Ordering::Relaxed);
        buffer.fill(b'x');
        if offset == 0 {
            buffer[0] = self.first;
        }
        Ok(buffer.len())
    }
}

#[test]
fn a_line_without_an_end_is_read_up_to_a_limit() {
    for first in [b'{', b'x'] {
        let source = Endless { first, largest_read: Default::default() };
        let outcome =
            super::check(&[&source], &Start::default(), &VerifyOptions::default()).expect("it is read");
        assert!(outcome.bad.is_some());
        assert!(source.largest_read.into_inner() as u64 <= pieces::MAX_LINE_BYTES);
    }
}
