//! `narrows bus` compared with a direct connection, with a router that only copies, and with other routers.
//!
//! The load and the workers are programs of this crate that check every byte. Routers take turns: in every
//! round each is restarted for each load.

pub(crate) mod buffer;
pub(crate) mod contender;
pub(crate) mod load;
pub(crate) mod message;
pub(crate) mod null;
pub(crate) mod options;
mod rows;
pub(crate) mod talk;
pub(crate) mod worker;

use std::path::Path;

use contender::{Contender, Peer, Running};
use load::{Crowd, Load, Outcome, Way};
use options::{Form, Named, Options};
use rows::{FEW_SESSIONS, IDLE, IDLE_LOAD, MANY_SESSIONS, Measured, ROWS, Row, SESSIONS};

use crate::agent::usage;
use crate::measure::{Bar, Demand, Report, median};

/// Starts of a router in a round, to measure the start itself.
const STARTS: usize = 4;
/// Limit of the rounds with idle connections. Their memory is the same each time.
const IDLE_ROUNDS: usize = 3;
/// Share of the measured time that is spent warming up.
pub(crate) const WARMING: f64 = 0.25;

const COLUMNS: [&str; 6] = ["per s", "of direct", "p50 µs", "p99 µs", "processor µs", "lost"];

/// Runs the measurements that the arguments of `bus` select.
pub(crate) fn run(words: &[String]) -> Result<Report, String> {
    let form = Form {
        bench: "bus",
        contenders: vec![Contender::Direct, Contender::Null, Contender::Narrows],
        rows: rows::keys().collect(),
        peer: |[name, command, config]| Contender::Peer(Peer { name, command, config: config.into() }),
    };
    let options = Options::read(form, words)?;
    warn_if_busy();
    raise_descriptor_limit();
    let place = tempfile::tempdir().map_err(|error| format!("no directory for files: {error}"))?;
    let bench = Bench { options: &options, place: place.path() };
    let mut report = Report {
        title: "bus: narrows bus beside no router and one that only copies; medians of rounds in turns",
        columns: COLUMNS.map(str::to_owned).to_vec(),
        rows: Vec::new(),
        bars: Vec::new(),
    };
    for row in ROWS.iter().filter(|row| options.rows.iter().any(|key| key == row.key)) {
        bench.row(row, &mut report)?;
    }
    if options.contenders.contains(&Contender::Narrows) {
        if options.rows.iter().any(|key| key == SESSIONS) {
            bench.sessions(&mut report)?;
        }
        if options.rows.iter().any(|key| key == IDLE) {
            bench.idle(&mut report)?;
        }
    }
    Ok(report)
}

struct Bench<'a> {
    options: &'a Options<Contender>,
    place: &'a Path,
}

impl Bench<'_> {
    fn row(&self, row: &Row, report: &mut Report) -> Result<(), String> {
        let contenders = &self.options.contenders;
        let mut outcomes: Vec<Vec<Outcome>> = vec![Vec::new(); contenders.len()];
        for _ in 0..self.options.rounds {
            for (contender, outcomes) in contenders.iter().zip(&mut outcomes) {
                match self.measure(contender, row.load) {
                    Ok(outcome) => {
                        if outcome.lost.total() > 0 {
                            eprintln!(
                                "narrows-bench: {}: {} lost: {}",
                                row.name,
                                contender.name(),
                                outcome.lost
                            );
                        }
                        outcomes.push(outcome);
                    }
                    Err(problem) if contender.is_ours() => return Err(format!("{}: {problem}", row.name)),
                    Err(problem) => eprintln!("narrows-bench: {}: {problem}", row.name),
                }
            }
        }
        let of = |wanted: &Contender| {
            let place = contenders.iter().position(|contender| contender == wanted);
            place.map_or(&[][..], |place| &outcomes[place])
        };
        let direct = of(&Contender::Direct);
        for (contender, outcomes) in contenders.iter().zip(&outcomes) {
            let name = format!("{}: {}", row.name, contender.name());
            report.rows.push((name, row.figures(outcomes, direct)));
        }
        let measured = Measured { direct, null: of(&Contender::Null), narrows: of(&Contender::Narrows) };
        let ours = [measured.direct, measured.null, measured.narrows].into_iter().flatten();
        let lost: u64 = ours.map(|outcome| outcome.lost.total()).sum();
        report.bars.extend(row.bars(&measured));
        let name = format!("{}: lost by ours", row.key);
        report.bars.push(Bar { name, value: lost as f64, demand: Demand::AtMost(0.0) });
        Ok(())
    }

    fn measure(&self, contender: &Contender, load: Load) -> Result<Outcome, String> {
        let mut running = contender.start(self.place)?;
        if *contender == Contender::Narrows {
            running = running.staffed(self.place).map_err(|problem| format!("narrows {problem}"))?;
        }
        let crowd = self.gather(contender, &running, load)?;
        let outcome = crowd.run(running.process(), self.options.time.mul_f64(WARMING), self.options.time);
        outcome.map_err(|problem| format!("{}: {problem}", contender.name()))
    }

    fn gather(&self, contender: &Contender, running: &Running, load: Load) -> Result<Crowd, String> {
        let way = Way { address: running.address, dialect: contender.dialect(), web_socket: None };
        let crowd = Crowd::gather(way, load);
        crowd.map_err(|problem| format!("{}: {problem}", contender.name()))
    }

    fn sessions(&self, report: &mut Report) -> Result<(), String> {
        let mut samples: [Vec<f64>; 3] = Default::default();
        let mut lost = 0;
        for _ in 0..self.options.rounds {
            let few = self.measure(&Contender::Narrows, FEW_SESSIONS)?;
            let many = self.measure(&Contender::Narrows, MANY_SESSIONS)?;
            lost += few.lost.total() + many.lost.total();
            for (samples, value) in samples.iter_mut().zip([few.cpu, many.cpu, many.cpu / few.cpu]) {
                samples.push(value);
            }
        }
        let [few, many, ratio] = samples.map(median);
        let name = format!("{SESSIONS}: processor time in 10,000, times that in 10 ({many:.1}, {few:.1} µs)");
        report.bars.push(Bar { name, value: ratio, demand: Demand::AtMost(1.3) });
        let name = format!("{SESSIONS}: lost by ours");
        report.bars.push(Bar { name, value: lost as f64, demand: Demand::AtMost(0.0) });
        Ok(())
    }

    fn idle(&self, report: &mut Report) -> Result<(), String> {
        let mut samples: [Vec<f64>; 3] = Default::default();
        let one = Load { clients: 1, ..IDLE_LOAD };
        for _ in 0..self.options.rounds.min(IDLE_ROUNDS) {
            for _ in 0..STARTS {
                let running = Contender::Narrows.start(self.place)?;
                samples[0].push(running.took.as_secs_f64() * 1e3);
            }
            let running = Contender::Narrows.start(self.place)?;
            // Its first session shows that its workers are ready.
            drop(self.gather(&Contender::Narrows, &running, one)?);
            let without = memory(running.process());
            let crowd = self.gather(&Contender::Narrows, &running, IDLE_LOAD)?;
            let with = memory(running.process());
            drop(crowd);
            samples[1].push(without / 1024.0);
            samples[2].push((with - without) / f64::from(IDLE_LOAD.clients));
        }
        let names =
            ["start to first accept, ms", "memory without clients, MiB", "memory per connection, KiB"];
        for ((name, samples), most) in names.into_iter().zip(samples).zip([15.0, 12.0, 8.0]) {
            let name = format!("{IDLE}: {name}");
            report.bars.push(Bar { name, value: median(samples), demand: Demand::AtMost(most) });
        }
        Ok(())
    }
}

pub(crate) fn memory(process: u32) -> f64 {
    usage::own_memory(process, "VmRSS") * 1e6 / 1024.0
}

/// Warns if the machine is busy, because then the rates also depend on the other load. Losses and processor
/// time are reported anyway.
pub(crate) fn warn_if_busy() {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or_default();
    if load > processors as f64 / 2.0 {
        eprintln!(
            "narrows-bench: this machine is busy (load {load} on {processors} processors): \
             rates and latencies will say little"
        );
    }
}

/// Raises the limit of descriptors to the maximum, because every client needs one.
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If that fails, a connection fails with an error.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
