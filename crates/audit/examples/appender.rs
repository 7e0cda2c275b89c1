//! Appends to a log until it is killed, and prints the acknowledged entries. Used by tests that kill it.
#![expect(clippy::print_stdout, reason = "its only duty")]

use std::path::PathBuf;
use std::time::Duration;

use narrows_audit::{Actor, Event, Log, LogOptions, Subject};
use serde_json::json;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = PathBuf::from(std::env::args_os().nth(1).ok_or("the path of a log, please")?);
    let options = LogOptions {
        segment_bytes: 256 << 10,
        lock_timeout: Duration::from_secs(30),
        ..LogOptions::default()
    };
    let log = Log::open(&path, options)?;
    for number in 0.. {
        let appends: Vec<_> = (0..number % 7 + 1).map(|part| log.append(event(number, part))).collect();
        for append in appends {
            let receipt = append.wait()?;
            println!("{} {}", receipt.seq, receipt.hash);
        }
    }
    Ok(())
}

fn event(number: usize, part: usize) -> Event {
    Event {
        actor: Actor { id: format!("process:{}", std::process::id()), role: None },
        action: "tool.call".into(),
        subject: Subject { kind: "tool".into(), reference: None, path: None },
        input: Some(json!({"number": number, "part": part, "text": "x ".repeat(number * 31 % 700)})),
        ..Event::default()
    }
}
