//! `narrows acp` compared with the minimum an agent must do, and with other agents.

mod drive;
pub(crate) mod floor;
mod model;
pub(crate) mod usage;

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use drive::{Agent, Failure};
use model::{Server, Stream};

use crate::measure::{Bar, Demand, Report, median};

/// Rounds in which the agents take turns. The median counts.
const ROUNDS: usize = 5;
/// Starts of an agent in a round, to measure the start itself.
const STARTS: usize = 6;
/// Measurements of many concurrent sessions in a round.
const MIXES: usize = 5;
/// Number of contenders of this project. They must not fail.
const OURS: usize = 3;
const SESSIONS: usize = 100;

/// Name of an empty configuration file in the directory of the run.
const CONFIG: &str = "narrows.toml";

const SHORT: Stream = Stream { chunks: 20_000, bytes: 4 };
const LONG: Stream = Stream { chunks: 200_000, bytes: 4 };
/// The text of `LONG` in chunks of the size of `SHORT`.
const DENSE: Stream = Stream { chunks: 20_000, bytes: 40 };
const EACH: Stream = Stream { chunks: 200, bytes: 4 };

#[derive(Clone, Copy)]
enum Figure {
    Start,
    Memory,
    Peak,
    Chunk,
    Rate,
    PeakShort,
    PeakDense,
    PeakLong,
    Open,
    Many,
}

const FIGURES: [(Figure, &str); 10] = [
    (Figure::Start, "spawn to initialize reply, ms"),
    (Figure::Memory, "memory after initialize, MB"),
    (Figure::Peak, "peak until then, MB"),
    (Figure::Chunk, "20,000 chunks: processor µs per chunk"),
    (Figure::Rate, "20,000 chunks: thousand updates per s"),
    (Figure::PeakShort, "peak, 20,000 chunks of 4 bytes, MB"),
    (Figure::PeakDense, "peak, 20,000 chunks of 40 bytes, MB"),
    (Figure::PeakLong, "peak, 200,000 chunks of 4 bytes, MB"),
    (Figure::Open, "opening 100 sessions: processor ms"),
    (Figure::Many, "100 sessions × 200 chunks: processor ms"),
];

struct Contender {
    name: String,
    program: OsString,
    arguments: Vec<OsString>,
    samples: [Vec<f64>; FIGURES.len()],
}

/// Measures the built-in agent, the floor, and `peers`, which are command lines.
pub(crate) fn run(peers: &[String]) -> Result<Report, String> {
    let data = tempfile::tempdir().map_err(|error| format!("no directory for sessions: {error}"))?;
    // An empty file instead of the user's configuration.
    std::fs::write(data.path().join(CONFIG), "").map_err(|error| format!("no configuration: {error}"))?;
    let server = Server::start().map_err(|error| format!("no model server: {error}"))?;
    let mut contenders = vec![
        narrows(data.path())?,
        floor("floor", "agent-floor")?,
        floor("gathering floor", "agent-gathering-floor")?,
    ];
    for peer in peers {
        let named = peer_of(peer, &contenders).ok_or_else(|| format!("`{peer}` is no command"))?;
        contenders.push(named);
    }
    for round in 0..ROUNDS {
        let mut failed = Vec::new();
        for (place, contender) in contenders.iter_mut().enumerate() {
            let outcome = contender.measure(&server, data.path());
            if let Err(failure) = outcome {
                let problem = format!("{} {failure} in round {}", contender.name, round + 1);
                if place < OURS {
                    return Err(problem);
                }
                eprintln!("narrows-bench: {problem}, and is left out");
                failed.push(place);
            }
        }
        for place in failed.into_iter().rev() {
            contenders.remove(place);
        }
    }
    Ok(report(&contenders))
}

/// Returns the program of this workspace. It was built into the same directory as this program.
fn narrows(data: &Path) -> Result<Contender, String> {
    let program = own()?.with_file_name("narrows");
    if !program.is_file() {
        return Err(
            "there is no `narrows` beside this program: `cargo xtask bench agent` builds it".to_owned()
        );
    }
    let arguments = vec!["acp".into(), "--data-dir".into(), data.join("sessions").into_os_string()];
    Ok(Contender::new("narrows".to_owned(), program.into_os_string(), arguments))
}

fn floor(name: &str, argument: &str) -> Result<Contender, String> {
    Ok(Contender::new(name.to_owned(), own()?.into_os_string(), vec![argument.into()]))
}

fn own() -> Result<std::path::PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("this program cannot find itself: {error}"))
}

/// Parses the command line of a peer. The peer is named after its program, with a suffix if `others` has
/// that name.
fn peer_of(command: &str, others: &[Contender]) -> Option<Contender> {
    let words = shlex::split(command)?;
    let (program, arguments) = words.split_first()?;
    let bare: String = Path::new(program).file_name()?.to_string_lossy().chars().take(11).collect();
    let is_free = |name: &String| others.iter().all(|other| other.name != *name);
    let name = (2..).map(|number| format!("{bare} {number}"));
    let name = std::iter::once(bare.clone()).chain(name).find(is_free)?;
    Some(Contender::new(name, program.into(), arguments.iter().map(Into::into).collect()))
}

impl Contender {
    fn new(name: String, program: OsString, arguments: Vec<OsString>) -> Self {
        Self { name, program, arguments, samples: Default::default() }
    }

    /// Returns the agent's command, with a model that answers with `stream` and without the user's
    /// configuration.
    fn command(&self, server: &Server, stream: Stream, data: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .env("OPENAI_BASE_URL", server.url(stream))
            .env("OPENAI_API_KEY", "bench")
            .env("OPENAI_MODEL", "bench");
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("NARROWS_")) {
                command.env_remove(name);
            }
        }
        command.env("NARROWS_CONFIG", data.join(CONFIG));
        command
    }

    fn record(&mut self, figure: Figure, value: f64) {
        self.samples[figure as usize].push(value);
    }

    fn median(&self, figure: Figure) -> f64 {
        median(self.samples[figure as usize].clone())
    }

    fn least(&self, figure: Figure) -> f64 {
        self.samples[figure as usize].iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn measure(&mut self, server: &Server, data: &Path) -> Result<(), Failure> {
        for _ in 0..STARTS {
            let command = self.command(server, EACH, data);
            let before = Instant::now();
            let agent = Agent::start(command)?;
            self.record(Figure::Start, before.elapsed().as_secs_f64() * 1e3);
            self.record(Figure::Memory, usage::memory(agent.process(), "VmRSS"));
            self.record(Figure::Peak, usage::memory(agent.process(), "VmHWM"));
        }
        self.stream(server, SHORT, data, Figure::PeakShort)?;
        self.stream(server, DENSE, data, Figure::PeakDense)?;
        self.stream(server, LONG, data, Figure::PeakLong)?;
        // Each run is short and depends on how the sessions happen to interleave, so it is repeated.
        (0..MIXES).try_for_each(|_| self.sessions(server, data))
    }

    fn stream(&mut self, server: &Server, stream: Stream, data: &Path, peak: Figure) -> Result<(), Failure> {
        let mut agent = Agent::start(self.command(server, stream, data))?;
        let session = [agent.open()?];
        let cpu = usage::processor_time(agent.process());
        let before = Instant::now();
        let heard = agent.prompt(&session)?;
        let took = before.elapsed().as_secs_f64();
        let cpu = usage::processor_time(agent.process()) - cpu;
        complete(heard.text, stream.text())?;
        self.record(peak, usage::memory(agent.process(), "VmHWM"));
        if stream == SHORT {
            self.record(Figure::Chunk, cpu / stream.chunks as f64);
            self.record(Figure::Rate, heard.updates as f64 / took / 1e3);
        }
        Ok(())
    }

    fn sessions(&mut self, server: &Server, data: &Path) -> Result<(), Failure> {
        let mut agent = Agent::start(self.command(server, EACH, data))?;
        let begun = usage::processor_time(agent.process());
        let sessions = (0..SESSIONS).map(|_| agent.open()).collect::<Result<Vec<_>, _>>()?;
        let opened = usage::processor_time(agent.process());
        let heard = agent.prompt(&sessions)?;
        let ended = usage::processor_time(agent.process());
        complete(heard.text, SESSIONS * EACH.text())?;
        self.record(Figure::Open, (opened - begun) / 1e3);
        self.record(Figure::Many, (ended - opened) / 1e3);
        Ok(())
    }
}

fn complete(heard: usize, sent: usize) -> Result<(), Failure> {
    if heard == sent {
        return Ok(());
    }
    Err(Failure::Strange(format!("{heard} bytes of text, where the model sent {sent}")))
}

fn report(contenders: &[Contender]) -> Report {
    let [narrows, floor, others @ ..] = contenders else { unreachable!("these two are always there") };
    let mut columns: Vec<String> = vec!["narrows".into(), "floor".into(), "times the floor".into()];
    columns.extend(others.iter().map(|other| other.name.clone()));
    let row = |(figure, name): (Figure, &str)| {
        let (ours, least) = (narrows.median(figure), floor.median(figure));
        let figures =
            [ours, least, ours / least].into_iter().chain(others.iter().map(|other| other.median(figure)));
        (name.to_owned(), figures.collect())
    };
    let ratio = |figure| narrows.median(figure) / floor.median(figure);
    let bar = |name: &str, value, demand| Bar { name: name.to_owned(), value, demand };
    // Chance can only raise a peak, for instance by a late thread. Growth with the number of chunks is in
    // every sample, so the least sample shows it.
    let growth = narrows.least(Figure::PeakLong) - narrows.least(Figure::PeakDense);
    Report {
        title: "agent: narrows acp beside an agent that only copies; medians of rounds in turns",
        columns,
        rows: FIGURES.into_iter().map(row).collect(),
        bars: vec![
            bar("spawn to initialize reply, times the floor", ratio(Figure::Start), Demand::AtMost(3.0)),
            bar("memory after initialize, MB", narrows.median(Figure::Memory), Demand::AtMost(15.0)),
            bar("20,000 chunks: processor µs per chunk", narrows.median(Figure::Chunk), Demand::AtMost(4.0)),
            bar(
                "20,000 chunks: updates per s, times the floor",
                ratio(Figure::Rate),
                Demand::AtLeast(1.0 / 3.0),
            ),
            bar("peak for ten times the chunks with the same text: MB more", growth, Demand::AtMost(1.0)),
            bar(
                "100 sessions × 200 chunks: processor time, times the floor",
                ratio(Figure::Many),
                Demand::AtMost(4.0),
            ),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_in_the_order_of_the_table() {
        for (place, (figure, name)) in FIGURES.into_iter().enumerate() {
            assert_eq!(figure as usize, place, "{name}");
        }
        assert_eq!(DENSE.text(), LONG.text());
        for stream in [SHORT, LONG, DENSE, EACH] {
            assert_eq!(stream.chunks % model::BLOCK, 0);
        }
    }

    #[test]
    fn peers_have_distinct_names() {
        let mut all = Vec::new();
        for (command, expected) in [
            ("node agent.js --stdio", "node"),
            ("/usr/bin/node 'other agent.js'", "node 2"),
            ("node", "node 3"),
            ("a-very-long-name-of-a-program", "a-very-long"),
        ] {
            let peer = peer_of(command, &all).expect("a command");
            assert_eq!(peer.name, expected);
            all.push(peer);
        }
        assert_eq!(all[1].arguments, ["other agent.js"]);
        assert!(peer_of("  ", &all).is_none());
        assert!(peer_of("'open", &all).is_none());
    }
}
