//! `narrows run` compared with the agent it drives: the cost of an update on its way to a printed event,
//! and the time of a turn with nearly no output.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::json;

use crate::agent::usage;
use crate::measure::{Bar, Demand, Report, median};

/// Number of rounds. The median counts.
const ROUNDS: usize = 5;
const TURNS: usize = 4;
/// Number of updates in a long turn, and in a short one.
const MANY: usize = 200_000;
const FEW: usize = 20_000;

/// Measures `narrows run`, which was built into the same directory as this program.
pub(crate) fn run() -> Result<Report, String> {
    let place = tempfile::tempdir().map_err(|error| format!("no directory: {error}"))?;
    let own = std::env::current_exe().map_err(|error| format!("this program cannot find itself: {error}"))?;
    let program = own.with_file_name("narrows");
    if !program.is_file() {
        return Err(
            "there is no `narrows` beside this program: `cargo xtask bench client` builds it".to_owned()
        );
    }
    let bench = Bench { program: &program, place: place.path() };
    let mut samples: [Vec<f64>; 6] = Default::default();
    for _ in 0..ROUNDS {
        let (many, few) = (bench.stream(MANY)?, bench.stream(FEW)?);
        for (samples, value) in samples.iter_mut().zip([many.0, many.1, few.1, many.2]) {
            samples.push(value);
        }
        for _ in 0..TURNS {
            samples[4].push(bench.turn()?);
            samples[5].push(bench.initialize()?);
        }
    }
    let [cost, peak, less, rate, turn, start] = samples.map(median);
    let row = |name: &str, value: f64| (name.to_owned(), vec![value]);
    let bar = |name: &str, value, demand| Bar { name: name.to_owned(), value, demand };
    Ok(Report {
        title: "client: narrows run --output events beside the agent it drives; medians",
        columns: vec!["narrows".into()],
        rows: vec![
            row("200,000 updates: processor µs per update", cost),
            row("200,000 updates: thousand per s", rate),
            row("peak, 200,000 updates, MB", peak),
            row("peak, 20,000 updates, MB", less),
            row("a whole turn with the scripted agent, ms", turn),
            row("that agent alone, spawn to initialize reply, ms", start),
        ],
        bars: vec![
            bar("processor µs per update", cost, Demand::AtMost(5.0)),
            bar("peak for ten times the updates: MB more", peak - less, Demand::AtMost(4.0)),
            bar("a whole turn, times the agent's own start", turn / start, Demand::AtMost(4.0)),
        ],
    })
}

struct Bench<'a> {
    program: &'a Path,
    place: &'a Path,
}

impl Bench<'_> {
    fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        command
            .current_dir(self.place)
            .env("NARROWS_CONFIG", "/dev/null")
            .env("NARROWS_DATA_DIR", self.place);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Measures a turn with this many updates. Returns the processor time per update from the agent to an
    /// output line, the peak memory, and thousands of updates per second.
    fn stream(&self, updates: usize) -> Result<(f64, f64, f64), String> {
        let script = self.place.join("flood.toml");
        // The process keeps running after the turn, so that its usage can be read.
        let steps = format!(
            "[[turn]]\nsteps = [{{ flood = {{ updates = {updates}, bytes = 100 }} }}, {{ pause = \"1h\" }}]\n"
        );
        std::fs::write(&script, steps).map_err(|error| error.to_string())?;
        let agent = format!("narrows fake-agent {}", script.display());
        let mut command = self.command();
        command.args(["run", "--output", "events", "--agent", &agent, "Go"]).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let outcome = read(&mut child, updates);
        // The process's guardian ends the agent.
        let _ = child.kill();
        let _ = child.wait();
        outcome
    }

    /// Returns the milliseconds of a turn with nearly no output.
    fn turn(&self) -> Result<f64, String> {
        let mut command = self.command();
        command.args(["run", "--agent", "narrows fake-agent echo", "Hi"]).stdout(Stdio::null());
        let before = Instant::now();
        let status = command.status().map_err(|error| error.to_string())?;
        let took = before.elapsed().as_secs_f64() * 1e3;
        if status.success() { Ok(took) } else { Err(format!("narrows run ended with {status}")) }
    }

    /// Returns the milliseconds until the agent alone has answered `initialize`.
    fn initialize(&self) -> Result<f64, String> {
        let mut command = self.command();
        command.args(["fake-agent", "echo"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let request =
            json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}});
        let before = Instant::now();
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("no pipes".to_owned());
        };
        let mut line = String::new();
        let answered = stdin
            .write_all(format!("{request}\n").as_bytes())
            .and_then(|()| BufReader::new(stdout).read_line(&mut line));
        let took = before.elapsed().as_secs_f64() * 1e3;
        drop(stdin);
        let _ = child.wait();
        match answered {
            Ok(1..) => Ok(took),
            _ => Err("the scripted agent did not answer".to_owned()),
        }
    }
}

/// Reads lines until this number of updates has arrived.
fn read(child: &mut Child, updates: usize) -> Result<(f64, f64, f64), String> {
    let mut stdout = child.stdout.take().ok_or("no pipe")?;
    let mut buffer = vec![0; 256 << 10];
    let mut lines = 0;
    let mut began = None;
    // The first line, the beginning of the run, is no update.
    while lines < updates + 1 {
        let count = stdout.read(&mut buffer).map_err(|error| error.to_string())?;
        if count == 0 {
            return Err(format!("narrows run ended after {lines} events"));
        }
        let before = usage::own_time(child.id());
        began.get_or_insert_with(|| (Instant::now(), before));
        lines += memchr::memchr_iter(b'\n', &buffer[..count]).count();
    }
    let (at, before) = began.unwrap_or_else(|| (Instant::now(), 0.0));
    let cost = (usage::own_time(child.id()) - before) / updates as f64;
    let rate = updates as f64 / at.elapsed().as_secs_f64() / 1e3;
    Ok((cost, usage::own_memory(child.id(), "VmHWM"), rate))
}
