//! Tests of the bench of network transports: every message is checked, over every transport.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const BENCH: &str = env!("CARGO_BIN_EXE_narrows-bench");

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(BENCH);
    command.args(["remote", "--json", "--rounds", "1", "--seconds", "0.05"]).args(arguments);
    command.output().expect("the bench")
}

#[test]
fn nothing_is_lost_over_any_transport() {
    if !Path::new(BENCH).with_file_name("narrows").is_file() {
        eprintln!("skipped: there is no `narrows` beside the bench; `cargo build -p narrows` makes one");
        return;
    }
    let output = bench(&["--rows", "small,stream,first"]);
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}"));
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 6, "{report}");
    for row in rows {
        assert_eq!(row["figures"]["lost"], 0.0, "{row}");
        assert!(row["figures"]["p50 µs"].as_f64() > Some(0.0), "{row}");
    }
    let bars: Vec<&str> =
        report["bars"].as_array().expect("bars").iter().filter_map(|bar| bar["bar"].as_str()).collect();
    assert_eq!(
        bars,
        [
            "small: rate, of our own TCP listener's",
            "small: lost by ours",
            "stream: processor µs per chunk",
            "stream: lost by ours",
            "first: p50 over HTTP, times WebSocket's",
            "first: lost by ours"
        ]
    );
}

#[test]
fn a_missing_server_is_left_out() {
    let output = bench(&[
        "--only",
        "gone",
        "--rows",
        "small,first,idle",
        "--peer",
        "gone",
        "there-is-no-such-server {port}",
        "ws://127.0.0.1:{port}/acp",
    ]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("gone cannot be started"), "{said}");
}

#[test]
fn an_invalid_url_is_reported() {
    let output = bench(&["--only", "x", "--rows", "small", "--peer", "x", "true", "tcp://127.0.0.1:1"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("`tcp://127.0.0.1:1` is not like ws://127.0.0.1:{port}/acp"), "{said}");
}
