//! The envelope scan compared with parsers of other crates, and the memory used by an endless line.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::hint::black_box;

use bytes::Bytes;
use narrows_wire::{Check, DEFAULT_MAX_LINE_BYTES, Frame, Kind, Line, Splitter, scan, scan_portable};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use sonic_rs::PointerTree;

use crate::measure::{Bar, Contender, Demand, Report, peak_memory, race, reset_peak_memory};

const COLUMNS: [&str; 7] =
    ["scan", "scan+grammar", "Frame::parse", "portable", "serde borrowed", "sonic get_many", "IgnoredAny"];
/// Columns that time code of this repository.
pub(crate) const OWN_COLUMNS: &[&str] = &["scan", "scan+grammar", "Frame::parse", "portable"];
/// The bar that is not a ratio to another parser.
pub(crate) const MEMORY_BAR: &str = "1 GiB line against a limit of 64 MiB: peak MiB over the start";
const SCAN: usize = 0;
const GRAMMAR: usize = 1;
const BORROWED: usize = 4;
const GET_MANY: usize = 5;
const IGNORED: usize = 6;

/// Times every size and content, then feeds the endless line.
pub(crate) fn run() -> Report {
    // Measured first, while the process is small.
    let memory = endless_line();
    let rows: Vec<(String, Vec<f64>)> =
        messages().into_iter().map(|(name, message)| (name.to_owned(), figures(&message))).collect();
    let mut bars: Vec<Bar> = rows.iter().flat_map(|(name, figures)| demands(name, figures)).collect();
    bars.push(Bar {
        name: MEMORY_BAR.to_owned(),
        value: memory,
        demand: Demand::AtMost(((2 * DEFAULT_MAX_LINE_BYTES) >> 20) as f64),
    });
    Report {
        title: "wire: ns per message, best of the rounds",
        columns: COLUMNS.map(str::to_owned).to_vec(),
        rows,
        bars,
    }
}

fn demands(name: &str, figures: &[f64]) -> Vec<Bar> {
    let rival = figures[BORROWED].min(figures[GET_MANY]);
    let faster = rival / figures[SCAN];
    let slower = figures[GRAMMAR] / figures[IGNORED];
    let scan = |limit| Bar {
        name: format!("{name}: scan faster than the best rival by"),
        value: faster,
        demand: Demand::AtLeast(limit),
    };
    let grammar = |limit| Bar {
        name: format!("{name}: scan+grammar takes this part of IgnoredAny"),
        value: slower,
        demand: Demand::AtMost(limit),
    };
    match name {
        "131 B" => vec![scan(2.5), grammar(1.4)],
        "64 KiB objects" => vec![scan(8.0), grammar(1.0)],
        "4 KiB code" | "64 KiB code" => vec![grammar(1.0 / 1.5)],
        _ => vec![grammar(1.0)],
    }
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<Params<'a>>,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow, rename = "sessionId")]
    session: Option<Cow<'a, str>>,
}

fn figures(message: &[u8]) -> Vec<f64> {
    let line = Bytes::copy_from_slice(message);
    let mut tree = PointerTree::new();
    tree.add_path(&["id"]);
    tree.add_path(&["method"]);
    tree.add_path(&["params", "sessionId"]);
    assert_eq!(Frame::parse(line.clone()).kind(), Kind::Request);
    race(&[
        repeat(|| scan(black_box(message), Check::Envelope)),
        repeat(|| scan(black_box(message), Check::Grammar)),
        repeat(|| Frame::parse(black_box(&line).clone())),
        repeat(|| scan_portable(black_box(message), Check::Grammar)),
        repeat(|| {
            let message: Message<'_> = serde_json::from_slice(black_box(message)).expect("valid");
            (message.id, message.method, message.params.and_then(|params| params.session))
        }),
        repeat(|| sonic_rs::get_many(black_box(message), &tree).expect("valid")),
        repeat(|| serde_json::from_slice::<IgnoredAny>(black_box(message)).expect("valid")),
    ])
}

fn repeat<'a, T>(work: impl Fn() -> T + 'a) -> Contender<'a> {
    Box::new(move |count| {
        for _ in 0..count {
            black_box(work());
        }
    })
}

/// Returns a message of every size with every content. The smallest has room for one content only.
fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let rows = [
        ("131 B", 131, text as fn(&mut String)),
        ("4 KiB text", 4 << 10, text),
        ("4 KiB code", 4 << 10, code),
        ("4 KiB objects", 4 << 10, objects),
        ("64 KiB text", 64 << 10, text),
        ("64 KiB code", 64 << 10, code),
        ("64 KiB objects", 64 << 10, objects),
    ];
    rows.map(|(name, size, content)| (name, message(size, content))).into()
}

/// Returns a request of exactly `size` bytes.
///
/// Its id is at the end, so that a scanner that stops once it has found all fields must read all of it,
/// too.
fn message(size: usize, content: fn(&mut String)) -> Vec<u8> {
    let head =
        r#"{"jsonrpc":"2.0","method":"session/prompt","params":{"sessionId":"sess_8f2c41d07a","prompt":["#;
    let tail = r#"]},"id":42}"#;
    let mut message = head.to_owned();
    let mut piece = String::new();
    loop {
        piece.clear();
        content(&mut piece);
        if message.len() + piece.len() + r#","""#.len() + tail.len() > size {
            break;
        }
        message += &piece;
        message.push(',');
    }
    let fill = size - message.len() - tail.len() - 2;
    let _ = write!(message, "\"{:.>fill$}\"{tail}", "");
    assert_eq!(message.len(), size);
    message.into_bytes()
}

fn text(piece: &mut String) {
    piece.push('"');
    for _ in 0..20 {
        piece.push_str("The quick brown fox jumps over the lazy dog while nobody is watching it. ");
    }
    piece.push('"');
}

fn code(piece: &mut String) {
    piece.push('"');
    for _ in 0..12 {
        piece.push_str(
            r#"fn main() {\n\tlet name = \"world\";\n\tprintln!(\"hello \\\"{}\\\"\", name);\n}\n\n"#,
        );
    }
    piece.push('"');
}

fn objects(piece: &mut String) {
    piece.push_str(r#"{"k":1,"v":[true,null,-2.5],"t":"ab","o":{"x":{},"y":[]}}"#);
}

/// Feeds a line of 1 GiB through a splitter. Returns the peak memory used in MiB.
fn endless_line() -> f64 {
    const READ: usize = 64 << 10;
    let chunk = vec![b'x'; READ];
    let mut splitter = Splitter::new(DEFAULT_MAX_LINE_BYTES);
    reset_peak_memory();
    let start = peak_memory();
    let mut reports = 0;
    for _ in 0..(1 << 30) / READ {
        splitter.buffer().extend_from_slice(&chunk);
        while let Some(line) = splitter.next_line() {
            assert!(matches!(line, Line::TooLong(_)));
            reports += 1;
        }
    }
    assert_eq!(reports, 1);
    peak_memory() - start
}
