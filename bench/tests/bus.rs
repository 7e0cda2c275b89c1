//! Tests of the bench of the bus: it starts all contenders and detects losses.

use std::process::{Command, Output};

use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_narrows-bench"));
    command.args(["bus", "--json", "--rounds", "1", "--seconds", "0.05"]).args(arguments);
    command.output().expect("the bench")
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("a report")
}

#[test]
fn neither_floor_loses_anything() {
    let output = bench(&["--only", "direct,null", "--rows", "small,large,stream,pipeline"]);
    let report = report(&output);
    assert!(output.status.success(), "{report}");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 8);
    for row in rows {
        assert_eq!(row["figures"]["lost"], 0.0, "{row}");
        assert!(row["figures"]["per s"].as_f64() > Some(0.0), "{row}");
    }
}

#[test]
fn a_router_that_drops_everything_fails_the_bench() {
    // The null router learns the clients' numbers from a first request that peers do not get.
    let template = tempfile::NamedTempFile::new().expect("a file");
    let command = format!("{} bus-null 127.0.0.1:{{port}} 1", env!("CARGO_BIN_EXE_narrows-bench"));
    let path = template.path().to_str().expect("a path");
    let output = bench(&["--only", "deaf", "--rows", "single", "--peer", "deaf", &command, path]);
    let report = report(&output);
    assert_eq!(report["rows"][0]["figures"]["lost"], 1.0, "{report}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("deaf lost: 1 missing, 0 doubled"), "{said}");
}

#[test]
fn a_missing_router_is_left_out() {
    let template = tempfile::NamedTempFile::new().expect("a file");
    let path = template.path().to_str().expect("a path");
    let output =
        bench(&["--only", "gone", "--rows", "single", "--peer", "gone", "there-is-no-such-router", path]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("gone cannot be started"), "{said}");
}
