//! Generated messages and streams, compared with the oracles of the fuzz targets.

use narrows_fuzz_targets::{batch, scanner, splitter};
use narrows_wire::{Line, Splitter};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::RngSeed;

/// Uses the same cases in every run; the fuzzer searches for new ones.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(4),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Generates white space between tokens, mostly none.
fn blank() -> impl Strategy<Value = &'static str> {
    prop_oneof![6 => Just(""), 1 => select(vec![" ", "\t", "  \n", "\r\n", "                                 "])]
}

/// Generates a string with its quotes: plain, escaped, or long enough to cross several vectors.
fn string() -> impl Strategy<Value = String> {
    let piece = select(vec![
        "a",
        "b",
        " ",
        "é",
        "☃",
        "𝄞",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "/",
        "sessionId",
        r#"\""#,
        r"\\",
        r"\/",
        r"\n",
        r"\u00e9",
        r"\ud83d\ude00",
        r"\ud800",
        "the quick brown fox jumps over the lazy dog",
    ]);
    vec(piece, 0..12).prop_map(|pieces| format!("\"{}\"", pieces.concat()))
}

fn scalar() -> impl Strategy<Value = String> {
    let fixed = ["null", "true", "false", "0", "-0", "1.5", "-2e10", "1E-7", "9223372036854775808", "1e400"];
    prop_oneof![
        select(fixed.to_vec()).prop_map(str::to_owned),
        any::<i64>().prop_map(|n| n.to_string()),
        string()
    ]
}

/// Generates a key: a routing key, a routing key with an escape, or any other.
fn key() -> impl Strategy<Value = String> {
    let routing =
        ["jsonrpc", "id", "method", "params", "result", "error", "sessionId", "requestId", "pool", "x", ""];
    let plain = select(routing.to_vec());
    prop_oneof![
        4 => plain.clone().prop_map(|key| format!("\"{key}\"")),
        1 => (plain, any::<Index>()).prop_map(|(key, index)| {
            let mut spelled = key.to_owned();
            if !key.is_empty() {
                let at = index.index(key.len());
                spelled.replace_range(at..=at, &format!("\\u{:04x}", key.as_bytes()[at]));
            }
            format!("\"{spelled}\"")
        }),
        1 => string(),
    ]
}

/// Joins members or elements between brackets, with white space wherever it is allowed.
fn joined(open: char, parts: &[(&str, String)], close: char) -> String {
    let inner: Vec<String> = parts.iter().map(|(blank, part)| format!("{blank}{part}{blank}")).collect();
    format!("{open}{}{close}", inner.join(","))
}

fn object(value: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    let member =
        (blank(), key(), blank(), value).prop_map(|(b, key, c, value)| (b, format!("{key}{c}:{b}{value}")));
    vec(member, 0..6).prop_map(|members| joined('{', &members, '}'))
}

fn array(value: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    vec((blank(), value), 0..6).prop_map(|elements| joined('[', &elements, ']'))
}

/// Generates any JSON, a few levels deep.
fn json() -> impl Strategy<Value = String> {
    scalar().prop_recursive(4, 40, 6, |inner| prop_oneof![object(inner.clone()), array(inner)])
}

/// Generates a text close to a message: each usual field is present or not, in any order, with other
/// members.
fn message() -> impl Strategy<Value = String> {
    let id = prop_oneof![4 => scalar(), 1 => json()];
    let fields = vec![
        Just(r#""jsonrpc":"2.0""#.to_owned()).boxed(),
        id.prop_map(|id| format!("\"id\":{id}")).boxed(),
        string().prop_map(|method| format!("\"method\":{method}")).boxed(),
        json().prop_map(|params| format!("\"params\":{params}")).boxed(),
        object(json()).prop_map(|params| format!("\"params\":{params}")).boxed(),
        object(json()).prop_map(|result| format!("\"result\": {result}")).boxed(),
        json().prop_map(|error| format!("\"error\":{error}")).boxed(),
        string().prop_map(|pool| format!("\"pool\" :{pool}")).boxed(),
        (key(), json()).prop_map(|(key, value)| format!("{key}:{value}")).boxed(),
    ];
    (fields, any::<[bool; 9]>(), any::<bool>(), Just(()).prop_perturb(|(), mut rng| rng.random::<u64>()))
        .prop_map(|(fields, wanted, good, order)| {
            // Most cases get the fields of a valid message; otherwise hardly any message would be valid.
            let mut wanted: Vec<bool> = wanted.to_vec();
            if good {
                wanted[0] = true;
                wanted[2] = true;
                wanted[3] = false;
                wanted[5] = false;
                wanted[6] = false;
            }
            let mut members: Vec<String> = fields
                .into_iter()
                .zip(wanted)
                .filter_map(|(field, wanted)| wanted.then_some(field))
                .collect();
            if !members.is_empty() {
                let turn = order as usize % members.len();
                members.rotate_left(turn);
            }
            format!("{{{}}}", members.join(","))
        })
}

/// A change to a text. The result may or may not be valid JSON.
fn damage() -> impl Strategy<Value = (Index, Index, Vec<u8>)> {
    let piece =
        prop_oneof![vec(any::<u8>(), 0..3), select(b"\"\\{}[],: \0\n0e-".to_vec()).prop_map(|b| vec![b])];
    (any::<Index>(), any::<Index>(), piece)
}

fn damaged(text: &str, (at, to, piece): (Index, Index, Vec<u8>)) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    let at = at.index(bytes.len() + 1);
    let to = (at + to.index(3)).min(bytes.len());
    bytes.splice(at..to, piece);
    bytes
}

/// Generates lines of many lengths around a limit, with all kinds of line ends.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        select(vec!["", " ", "\t ", "{}", "12345678", "123456789", "\u{feff}", "\0", "é", "\r"])
            .prop_map(|line| line.as_bytes().to_vec()),
        vec(any::<u8>(), 0..20),
    ];
    vec((line, select(vec!["\n", "\r\n", "\r\r\n", "\n\n", ""])), 0..6).prop_map(|lines| {
        lines.into_iter().flat_map(|(line, end)| [line, end.as_bytes().to_vec()]).flatten().collect()
    })
}

fn split(pieces: &[&[u8]], limit: usize) -> (Vec<Line>, usize, bool) {
    let mut splitter = Splitter::new(limit);
    let mut lines = Vec::new();
    for piece in pieces {
        splitter.buffer().extend_from_slice(piece);
        while let Some(line) = splitter.next_line() {
            lines.push(line);
        }
    }
    (lines, splitter.partial(), splitter.is_skipping())
}

proptest! {
    #![proptest_config(config(600))]

    #[test]
    fn a_message_agrees_with_serde_json(text in message()) {
        scanner(text.as_bytes());
    }

    #[test]
    fn any_json_agrees_with_serde_json(text in json(), before in blank(), after in blank()) {
        scanner(format!("{before}{text}{after}").as_bytes());
    }

    #[test]
    fn a_damaged_message_agrees_with_serde_json(text in message(), change in damage()) {
        scanner(&damaged(&text, change));
    }

    #[test]
    fn a_batch_is_the_sum_of_its_entries(text in array(prop_oneof![message(), json()]), change in damage()) {
        batch(text.as_bytes());
        batch(&damaged(&text, change));
    }
}

proptest! {
    #![proptest_config(config(60))]

    #[test]
    fn every_prefix_of_a_message_agrees_with_serde_json(text in message()) {
        for end in 0..text.len() {
            scanner(&text.as_bytes()[..end]);
        }
    }
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn lines_do_not_depend_on_where_reads_end(stream in stream(), limit in 0..12_usize) {
        let whole = split(&[&stream], limit);
        for cut in 0..=stream.len() {
            let (before, after) = stream.split_at(cut);
            prop_assert_eq!(&split(&[before, after], limit), &whole, "cut at {}", cut);
        }
        for (step, seed) in [(0, 0), (1, 7), (5, 100)] {
            splitter(&[&[limit as u8 + step, seed], &stream[..]].concat());
        }
    }
}
