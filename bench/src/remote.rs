//! WebSocket and Streamable HTTP of `narrows bus` compared with its TCP listener, and with other servers.
//!
//! The load and the agents are those of `bus`: every byte is checked. Servers take turns: in every round
//! each is restarted for each load.

mod contender;
mod first;
pub(crate) mod frames;
mod rows;
mod streams;

use std::path::Path;

use contender::{Contender, Peer, Server};
use first::Speech;
use rows::{FIRST, FIRST_HABIT, FIRST_NAME, IDLE, IDLE_LOAD, KEYS, ROWS, Row, middle, ratio};

use crate::agent::usage;
use crate::bus::load::{Crowd, Load, Outcome};
use crate::bus::options::{Form, Named, Options};
use crate::bus::{self, WARMING};
use crate::measure::{Bar, Demand, Report, median};

/// Limit of the rounds with idle connections. Their memory is the same each time.
const IDLE_ROUNDS: usize = 3;

const COLUMNS: [&str; 7] = ["per s", "of tcp", "p50 µs", "p99 µs", "processor µs", "with agents µs", "lost"];

/// Runs the measurements that the arguments of `remote` select.
pub(crate) fn run(words: &[String]) -> Result<Report, String> {
    let form = Form {
        bench: "remote",
        contenders: vec![Contender::Tcp, Contender::WebSocket, Contender::Http],
        rows: KEYS.to_vec(),
        peer: |[name, command, url]| Contender::Peer(Peer { name, command, url }),
    };
    let options = Options::read(form, words)?;
    bus::warn_if_busy();
    bus::raise_descriptor_limit();
    let place = tempfile::tempdir().map_err(|error| format!("no directory for files: {error}"))?;
    let bench = Bench { options: &options, place: place.path() };
    let mut report = Report {
        title: "remote: WebSocket and HTTP beside TCP of the same bus; medians of rounds in turns",
        columns: COLUMNS.map(str::to_owned).to_vec(),
        rows: Vec::new(),
        bars: Vec::new(),
    };
    for row in ROWS.iter().filter(|row| options.rows.iter().any(|key| key == row.key)) {
        bench.row(row, &mut report)?;
    }
    if options.rows.iter().any(|key| key == FIRST) {
        bench.first(&mut report)?;
    }
    if options.rows.iter().any(|key| key == IDLE) {
        bench.idle(&mut report)?;
    }
    Ok(report)
}

struct Measured<'a> {
    /// Name of the contender. A peer may be measured over WebSocket and over HTTP.
    name: String,
    contender: &'a Contender,
    outcomes: Vec<Outcome>,
}

fn outcomes<'m>(measured: &'m [Measured<'_>], wanted: &Contender) -> &'m [Outcome] {
    measured.iter().find(|one| one.contender == wanted).map_or(&[], |one| &one.outcomes)
}

struct Bench<'a> {
    options: &'a Options<Contender>,
    place: &'a Path,
}

impl Bench<'_> {
    fn row(&self, row: &Row, report: &mut Report) -> Result<(), String> {
        let contenders = self.options.contenders.iter().filter(|contender| **contender != Contender::Http);
        let mut measured: Vec<_> = contenders.map(|contender| Measured::new(contender, "")).collect();
        self.rounds(row.name, &mut measured, |contender, _, server| self.load(contender, server, row.load))?;
        let (tcp, ws) = (outcomes(&measured, &Contender::Tcp), outcomes(&measured, &Contender::WebSocket));
        report.bars.extend(row.bars(tcp, ws));
        for peer in measured.iter().filter(|one| !one.contender.is_ours()) {
            report.bars.extend(row.beside(&peer.name, ws, &peer.outcomes));
        }
        report_figures(row.key, row.name, row.unit.1, &measured, report);
        Ok(())
    }

    fn first(&self, report: &mut Report) -> Result<(), String> {
        let mut measured = Vec::new();
        for contender in self.options.contenders.iter().filter(|contender| **contender != Contender::Tcp) {
            measured.push(Measured::new(contender, ""));
            if !contender.is_ours() {
                measured.push(Measured::new(contender, OVER_HTTP));
            }
        }
        self.rounds(FIRST_NAME, &mut measured, |contender, name, server| {
            let (address, path) = server.at();
            let over_http = *contender == Contender::Http || name.ends_with(OVER_HTTP);
            let opened: std::io::Result<Box<dyn Speech>> = if over_http {
                streams::Streams::open(address, path).map(|speech| Box::new(speech) as _)
            } else {
                frames::Socket::open(address, path).map(|speech| Box::new(speech) as _)
            };
            let mut speech = opened.map_err(|error| format!("{name}: {error}"))?;
            let time = self.options.time;
            let outcome =
                first::run(&mut *speech, server.process(), FIRST_HABIT, time.mul_f64(WARMING), time);
            outcome.map_err(|problem| format!("{name} {problem}"))
        })?;
        let (ws, http) = (outcomes(&measured, &Contender::WebSocket), outcomes(&measured, &Contender::Http));
        let value = ratio(http, ws, |outcome| outcome.p50);
        if !value.is_nan() {
            let name = format!("{FIRST}: p50 over HTTP, times WebSocket's");
            report.bars.push(Bar { name, value, demand: Demand::AtMost(2.0) });
        }
        report_figures(FIRST, FIRST_NAME, 1.0, &measured, report);
        Ok(())
    }

    /// Runs rounds in which every contender has a turn.
    fn rounds(
        &self,
        row: &str,
        measured: &mut [Measured<'_>],
        turn: impl Fn(&Contender, &str, &Server) -> Result<Outcome, String>,
    ) -> Result<(), String> {
        for _ in 0..self.options.rounds {
            for one in measured.iter_mut() {
                let server = one.contender.start(self.place);
                match server.and_then(|server| turn(one.contender, &one.name, &server)) {
                    Ok(outcome) => {
                        if outcome.lost.total() > 0 {
                            eprintln!("narrows-bench: {row}: {} lost: {}", one.name, outcome.lost);
                        }
                        one.outcomes.push(outcome);
                    }
                    Err(problem) if one.contender.is_ours() => return Err(format!("{row}: {problem}")),
                    Err(problem) => eprintln!("narrows-bench: {row}: {problem}"),
                }
            }
        }
        Ok(())
    }

    fn load(&self, contender: &Contender, server: &Server, load: Load) -> Result<Outcome, String> {
        let crowd = gather(contender, server, load)?;
        let time = self.options.time;
        let outcome = crowd.run(server.process(), time.mul_f64(WARMING), time);
        outcome.map_err(|problem| format!("{}: {problem}", contender.name()))
    }

    fn idle(&self, report: &mut Report) -> Result<(), String> {
        let contenders = self.options.contenders.iter();
        let idlers = contenders.filter(|one| matches!(one, Contender::WebSocket | Contender::Peer(_)));
        let mut found: Vec<(&Contender, [f64; 2])> = Vec::new();
        for contender in idlers {
            let mut samples: [Vec<f64>; 2] = Default::default();
            for _ in 0..self.options.rounds.min(IDLE_ROUNDS) {
                match self.idle_memory(contender) {
                    Ok(each) => samples.iter_mut().zip(each).for_each(|(samples, each)| samples.push(each)),
                    Err(problem) if contender.is_ours() => return Err(format!("{IDLE}: {problem}")),
                    Err(problem) => eprintln!("narrows-bench: {IDLE}: {problem}"),
                }
            }
            found.push((contender, samples.map(median)));
        }
        let Some((_, ours)) = found.iter().find(|(one, _)| **one == Contender::WebSocket) else {
            return Ok(());
        };
        let name = format!("{IDLE}: KiB for each of {} WebSockets", IDLE_LOAD.clients);
        report.bars.push(Bar { name, value: ours[0], demand: Demand::AtMost(40.0) });
        for (peer, theirs) in found.iter().filter(|(one, _)| !one.is_ours()) {
            let name = format!(
                "{IDLE}: KiB with agents, times that of {} ({:.1}, {:.1} KiB)",
                peer.name(),
                ours[1],
                theirs[1]
            );
            report.bars.push(Bar { name, value: ours[1] / theirs[1], demand: Demand::AtMost(1.0) });
        }
        Ok(())
    }

    /// Returns the KiB of memory per connection: of the server alone, and with its child processes.
    fn idle_memory(&self, contender: &Contender) -> Result<[f64; 2], String> {
        let server = contender.start(self.place)?;
        // The first session shows that the agents are ready.
        drop(gather(contender, &server, Load { clients: 1, ..IDLE_LOAD })?);
        let used = || {
            let process = server.process();
            [bus::memory(process), usage::memory(process, "VmRSS") * 1e6 / 1024.0]
        };
        let before = used();
        let crowd = gather(contender, &server, IDLE_LOAD)?;
        let after = used();
        drop(crowd);
        Ok([0, 1].map(|place| (after[place] - before[place]) / f64::from(IDLE_LOAD.clients)))
    }
}

/// Suffix of the name of a peer that is also measured over HTTP.
const OVER_HTTP: &str = " over HTTP";

impl<'a> Measured<'a> {
    fn new(contender: &'a Contender, added: &str) -> Self {
        Self { name: format!("{}{added}", contender.name()), contender, outcomes: Vec::new() }
    }
}

fn gather(contender: &Contender, server: &Server, load: Load) -> Result<Crowd, String> {
    Crowd::gather(server.way(), load).map_err(|problem| format!("{}: {problem}", contender.name()))
}

/// Reports all figures, and checks that `narrows bus` lost nothing.
fn report_figures(key: &str, row: &str, parts: f64, measured: &[Measured<'_>], report: &mut Report) {
    let tcp = outcomes(measured, &Contender::Tcp);
    let mut lost_by_ours = 0;
    for Measured { name, contender, outcomes } in measured {
        let lost: u64 = outcomes.iter().map(|outcome| outcome.lost.total()).sum();
        if contender.is_ours() {
            lost_by_ours += lost;
        }
        let figures = vec![
            middle(outcomes, |outcome| outcome.rate),
            ratio(outcomes, tcp, |outcome| outcome.rate),
            middle(outcomes, |outcome| outcome.p50),
            middle(outcomes, |outcome| outcome.p99),
            middle(outcomes, |outcome| outcome.cpu) / parts,
            middle(outcomes, |outcome| outcome.tree) / parts,
            lost as f64,
        ];
        report.rows.push((format!("{row}: {name}"), figures));
    }
    let name = format!("{key}: lost by ours");
    report.bars.push(Bar { name, value: lost_by_ours as f64, demand: Demand::AtMost(0.0) });
}
