//! Times contenders in turns, and defines the report of every bench.

use std::fmt;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Number of timings per contender. They take turns, so a busy moment of the machine affects all of them.
const ROUNDS: usize = 15;
const TURN: Duration = Duration::from_millis(4);

/// One way to do the job. The argument is the number of repetitions.
pub(crate) type Contender<'a> = Box<dyn Fn(u32) + 'a>;

/// Returns the nanoseconds per run of each contender: the best of all rounds, because it was disturbed
/// least.
pub(crate) fn race(contenders: &[Contender<'_>]) -> Vec<f64> {
    let counts: Vec<u32> = contenders.iter().map(turn_length).collect();
    let mut best = vec![f64::INFINITY; contenders.len()];
    for _ in 0..ROUNDS {
        for ((contender, &count), best) in contenders.iter().zip(&counts).zip(&mut best) {
            *best = best.min(time(contender, count).as_secs_f64() * 1e9 / f64::from(count));
        }
    }
    best
}

/// Warms the contender up. Returns the number of runs that fill a turn.
fn turn_length(contender: &Contender<'_>) -> u32 {
    let mut count = 1;
    loop {
        // The best of three, so that one interruption does not look like slowness.
        let elapsed = (0..3).map(|_| time(contender, count)).min().unwrap_or_default();
        if elapsed >= TURN / 4 {
            return (f64::from(count) * TURN.as_secs_f64() / elapsed.as_secs_f64()).ceil() as u32;
        }
        count *= 2;
    }
}

fn time(contender: &Contender<'_>, count: u32) -> Duration {
    let start = Instant::now();
    contender(count);
    start.elapsed()
}

/// Returns the median; NaN without samples.
pub(crate) fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    let middle = samples.len() / 2;
    match samples.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => samples[middle],
        _ => f64::midpoint(samples[middle - 1], samples[middle]),
    }
}

pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) demand: Demand,
}

/// The limit of a figure, and the side on which the figure must be.
#[derive(Clone, Copy)]
pub(crate) enum Demand {
    AtLeast(f64),
    AtMost(f64),
}

impl Bar {
    fn holds(&self) -> bool {
        match self.demand {
            Demand::AtLeast(limit) => self.value >= limit,
            Demand::AtMost(limit) => self.value <= limit,
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, limit) = match self.demand {
            Demand::AtLeast(limit) => ('≥', limit),
            Demand::AtMost(limit) => ('≤', limit),
        };
        let verdict = if self.holds() { "PASS" } else { "miss" };
        write!(f, "{verdict}  {:<64} {:>8.2}  {sign} {limit:.2}", self.name, self.value)
    }
}

/// The result of a bench: a table of figures, and the bars that they must meet.
pub(crate) struct Report {
    pub(crate) title: &'static str,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<(String, Vec<f64>)>,
    pub(crate) bars: Vec<Bar>,
}

impl Report {
    /// Returns `true` if every bar holds.
    pub(crate) fn passed(&self) -> bool {
        self.bars.iter().all(Bar::holds)
    }

    pub(crate) fn json(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|(name, figures)| {
                let figures: serde_json::Map<_, _> = self
                    .columns
                    .iter()
                    .zip(figures)
                    .map(|(column, &figure)| (column.clone(), figure.into()))
                    .collect();
                json!({"row": name, "figures": figures})
            })
            .collect();
        let bars: Vec<Value> = self
            .bars
            .iter()
            .map(|bar| {
                let (side, limit) = match bar.demand {
                    Demand::AtLeast(limit) => ("at_least", limit),
                    Demand::AtMost(limit) => ("at_most", limit),
                };
                json!({"bar": bar.name, "value": bar.value, side: limit, "pass": bar.holds()})
            })
            .collect();
        json!({"title": self.title, "rows": rows, "bars": bars})
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.title)?;
        let widest = self.rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max(16);
        write!(f, "{:<widest$}", "")?;
        for column in &self.columns {
            write!(f, " {column:>15}")?;
        }
        writeln!(f)?;
        for (name, figures) in &self.rows {
            write!(f, "{name:<widest$}")?;
            for figure in figures {
                let decimals = if *figure < 10.0 { 3 } else { 1 };
                write!(f, " {figure:>15.decimals$}")?;
            }
            writeln!(f)?;
        }
        writeln!(f)?;
        self.bars.iter().try_for_each(|bar| writeln!(f, "{bar}"))
    }
}

/// Resets the recorded peak of this process's memory to the current use.
pub(crate) fn reset_peak_memory() {
    // If that is not permitted, the peak of the whole run counts, which is at least as high.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Returns the peak memory of this process since the last reset, in MiB; NaN if unknown.
pub(crate) fn peak_memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.and_then(|peak| peak.trim().trim_end_matches(" kB").parse::<f64>().ok()).unwrap_or(f64::NAN) / 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
    }
}
