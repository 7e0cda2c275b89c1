//! The measurements behind every figure we give.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program")]

mod agent;
mod client;
mod measure;
mod rpc;
mod wire;

use std::process::ExitCode;

const USAGE: &str = "usage: narrows-bench wire|rpc|agent|client [--json] [--peer CMD]...";

fn main() -> ExitCode {
    let mut bench = None;
    let mut json = false;
    let mut peers = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => json = true,
            "--peer" => match arguments.next() {
                Some(command) => peers.push(command),
                None => return usage(),
            },
            "-h" | "--help" => {
                println!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            _ if bench.is_none() && !argument.starts_with('-') => bench = Some(argument),
            _ => return usage(),
        }
    }
    if !peers.is_empty() && bench.as_deref() != Some("agent") {
        return usage();
    }
    let report = match bench.as_deref() {
        Some("wire") => wire::run(),
        Some("rpc") => rpc::run(),
        Some(name @ ("agent" | "client")) => {
            let outcome = if name == "agent" { agent::run(&peers) } else { client::run() };
            match outcome {
                Ok(report) => report,
                Err(problem) => {
                    eprintln!("narrows-bench: {problem}");
                    return ExitCode::FAILURE;
                }
            }
        }
        Some("agent-floor") => return served(&agent::floor::serve(false)),
        Some("agent-gathering-floor") => return served(&agent::floor::serve(true)),
        // The other ends of `rpc`, which starts itself.
        Some("rpc-agent") => return served(&rpc::serve()),
        Some("rpc-pour") => return served(&rpc::pour()),
        _ => return usage(),
    };
    if json {
        println!("{}", report.json());
    } else {
        print!("{report}");
    }
    if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn served(result: &std::io::Result<()>) -> ExitCode {
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
