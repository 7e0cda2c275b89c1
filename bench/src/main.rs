//! The measurements behind all published figures.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program")]

mod agent;
mod bus;
mod client;
mod compare;
mod govern;
mod measure;
mod remote;
mod rpc;
mod wire;

use std::process::ExitCode;

const USAGE: &str = "\
usage: narrows-bench wire|rpc|agent|client|govern [--json] [--peer CMD]...
       narrows-bench bus [--json] [--rows ROW,...] [--only CONTENDER,...] [--seconds S] [--rounds N]
                         [--peer NAME CMD CONFIG]...
       narrows-bench remote [--json] [--rows ROW,...] [--only CONTENDER,...] [--seconds S] [--rounds N]
                            [--peer NAME CMD URL]...
       narrows-bench compare --base OLDER_NARROWS_BENCH [--runs N] BENCH [OPTION]...

CMD and URL of a peer may have {port} in them, which is one that is free.";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.split_first() {
        Some((name, options)) if name == "bus" => return routed(options, bus::run),
        Some((name, options)) if name == "remote" => return routed(options, remote::run),
        Some((name, options)) if name == "compare" => return compared(options),
        // The peer processes of `bus`, for which this program starts itself.
        Some((name, options)) if name == "bus-worker" => return served(&bus::worker::serve(options)),
        Some((name, options)) if name == "bus-null" => return served(&bus::null::serve(options)),
        _ => {}
    }
    let mut bench = None;
    let mut json = false;
    let mut peers = Vec::new();
    let mut arguments = words.into_iter();
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
        Some("govern") => match govern::run() {
            Ok(report) => report,
            Err(problem) => {
                eprintln!("narrows-bench: {problem}");
                return ExitCode::FAILURE;
            }
        },
        Some("agent-floor") => return served(&agent::floor::serve(false)),
        Some("agent-gathering-floor") => return served(&agent::floor::serve(true)),
        // The peer processes of `rpc`, for which this program starts itself.
        Some("rpc-agent") => return served(&rpc::serve()),
        Some("rpc-pour") => return served(&rpc::pour()),
        _ => return usage(),
    };
    print_report(&report, json)
}

fn routed(options: &[String], run: fn(&[String]) -> Result<measure::Report, String>) -> ExitCode {
    if options.iter().any(|option| option == "-h" || option == "--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let (json, options): (Vec<String>, Vec<String>) =
        options.iter().cloned().partition(|option| option == "--json");
    match run(&options) {
        Ok(report) => print_report(&report, !json.is_empty()),
        Err(problem) => {
            eprintln!("narrows-bench: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn compared(options: &[String]) -> ExitCode {
    match compare::run(options) {
        Ok(comparison) => {
            print!("{comparison}");
            if comparison.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(problem) => {
            eprintln!("narrows-bench: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn print_report(report: &measure::Report, json: bool) -> ExitCode {
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
