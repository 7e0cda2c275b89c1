//! Compares two builds: runs the same bench of an older program and of this one in turns, and compares the
//! bars.
//!
//! A bar is worse if its median is more than [`TOLERANCE`] worse and also worse than every run of the older
//! program. The second condition prevents that noise of a shared machine counts as a regression.
//!
//! The bars of `wire` are ratios to parsers of other crates, which are compiled into the same program.
//! Their speed depends on the way in which the compiler splits this crate: with `serde_json::from_slice`
//! inlined or not, a message of 131 bytes takes 112 ns or 125 ns. So for `wire` the times of this
//! repository's own code are compared instead.

use std::fmt;
use std::process::Command;

use serde_json::Value;

use crate::measure::median;
use crate::wire;

/// Share by which a median may be worse.
const TOLERANCE: f64 = 0.03;

const DEFAULT_RUNS: usize = 5;
const MAX_RUNS: usize = 50;

/// The revisions and options to compare.
struct Options {
    base: String,
    runs: usize,
    bench: Vec<String>,
}

/// Runs the bench of both programs in turns.
///
/// # Errors
///
/// If the command line is invalid, or a bench does not end with a report.
pub(crate) fn run(words: &[String]) -> Result<Comparison, String> {
    let options = Options::read(words)?;
    let current = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let current = current.to_string_lossy().into_owned();
    let (mut old, mut new) = (Vec::new(), Vec::new());
    for run in 0..options.runs {
        eprintln!("run {} of {}: {}", run + 1, options.runs, options.bench.join(" "));
        // Each program runs first in turn, so a machine that warms up or slows down favors neither.
        if run % 2 == 0 {
            old.push(measure(&options.base, &options.bench)?);
            new.push(measure(&current, &options.bench)?);
        } else {
            new.push(measure(&current, &options.bench)?);
            old.push(measure(&options.base, &options.bench)?);
        }
    }
    Ok(Comparison::new(&old, &new))
}

impl Options {
    fn read(words: &[String]) -> Result<Self, String> {
        let (mut base, mut runs, mut bench) = (None, DEFAULT_RUNS, Vec::new());
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--base" if bench.is_empty() => base = words.next().cloned(),
                "--runs" if bench.is_empty() => {
                    let number = words.next().and_then(|word| word.parse().ok());
                    runs = number
                        .filter(|runs| (1..=MAX_RUNS).contains(runs))
                        .ok_or_else(|| format!("`--runs` takes a number from 1 to {MAX_RUNS}"))?;
                }
                _ => bench.push(word.clone()),
            }
        }
        let base = base.ok_or("`--base` needs the path of an older narrows-bench")?;
        if bench.is_empty() {
            return Err("name the bench to compare".to_owned());
        }
        Ok(Self { base, runs, bench })
    }
}

/// Returns the compared values of one run. Ignores the exit code, which depends on the bars.
fn measure(program: &str, bench: &[String]) -> Result<Vec<Measured>, String> {
    let output = Command::new(program).args(bench).arg("--json").output();
    let output = output.map_err(|error| format!("cannot start {program}: {error}"))?;
    let report: Value = serde_json::from_slice(&output.stdout).map_err(|_| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        format!("{program} {} ended without a report: {}", bench.join(" "), stderr.trim())
    })?;
    if bench.first().is_some_and(|name| name == "wire") {
        let mut measured = times(&report, wire::OWN_COLUMNS);
        measured.extend(bars(&report).into_iter().filter(|bar| bar.name == wire::MEMORY_BAR));
        return Ok(measured);
    }
    Ok(bars(&report))
}

/// One bar of a report, or one figure of its table.
#[derive(Clone, Debug, PartialEq)]
struct Measured {
    name: String,
    value: f64,
    is_better_if_greater: bool,
}

fn bars(report: &Value) -> Vec<Measured> {
    let bars = report["bars"].as_array().map(Vec::as_slice).unwrap_or_default();
    bars.iter()
        .filter_map(|bar| {
            Some(Measured {
                name: bar["bar"].as_str()?.to_owned(),
                value: bar["value"].as_f64()?,
                is_better_if_greater: bar.get("at_least").is_some(),
            })
        })
        .collect()
}

/// Returns the figures of these columns, for each row of the table. Less is better.
fn times(report: &Value, columns: &[&str]) -> Vec<Measured> {
    let rows = report["rows"].as_array().map(Vec::as_slice).unwrap_or_default();
    let figure = |row: &Value, column: &str| {
        Some(Measured {
            name: format!("{}: {column}", row["row"].as_str()?),
            value: row["figures"][column].as_f64()?,
            is_better_if_greater: false,
        })
    };
    rows.iter().flat_map(|row| columns.iter().filter_map(move |column| figure(row, column))).collect()
}

/// The bars of both programs.
pub(crate) struct Comparison {
    rows: Vec<Row>,
    /// Bars that only one of the programs has.
    unmatched: Vec<String>,
}

/// A bar with its values in the runs of both programs.
struct Row {
    name: String,
    old: Spread,
    new: Spread,
    is_better_if_greater: bool,
}

struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn new(values: &[f64]) -> Self {
        Self {
            median: median(values.to_vec()),
            least: values.iter().copied().fold(f64::INFINITY, f64::min),
            most: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9.3} ({:.3} to {:.3})", self.median, self.least, self.most)
    }
}

impl Row {
    /// Returns the share by which the new median is worse; negative if it is better.
    fn loss(&self) -> f64 {
        let difference = if self.is_better_if_greater {
            self.old.median - self.new.median
        } else {
            self.new.median - self.old.median
        };
        if difference == 0.0 { 0.0 } else { difference / self.old.median.abs() }
    }

    fn is_worse(&self) -> bool {
        let is_outside = if self.is_better_if_greater {
            self.new.median < self.old.least
        } else {
            self.new.median > self.old.most
        };
        self.loss() > TOLERANCE && is_outside
    }
}

impl Comparison {
    fn new(old: &[Vec<Measured>], new: &[Vec<Measured>]) -> Self {
        let values = |runs: &[Vec<Measured>], name: &str| -> Vec<f64> {
            runs.iter().flatten().filter(|bar| bar.name == name).map(|bar| bar.value).collect()
        };
        let (mut rows, mut unmatched) = (Vec::new(), Vec::new());
        let mut names: Vec<&Measured> = Vec::new();
        for bar in new.iter().chain(old).flatten() {
            if !names.iter().any(|known| known.name == bar.name) {
                names.push(bar);
            }
        }
        for bar in names {
            let (old, new) = (values(old, &bar.name), values(new, &bar.name));
            if old.is_empty() || new.is_empty() {
                unmatched.push(bar.name.clone());
                continue;
            }
            rows.push(Row {
                name: bar.name.clone(),
                old: Spread::new(&old),
                new: Spread::new(&new),
                is_better_if_greater: bar.is_better_if_greater,
            });
        }
        Self { rows, unmatched }
    }

    /// Returns `true` if no bar is worse.
    pub(crate) fn passed(&self) -> bool {
        !self.rows.iter().any(Row::is_worse)
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "median (least to most) of the older program, then of this one; a positive change is a loss\n"
        )?;
        for row in &self.rows {
            let verdict = if row.is_worse() { "WORSE" } else { "ok   " };
            let (old, new, loss) = (row.old.to_string(), row.new.to_string(), row.loss() * 100.0);
            writeln!(f, "{verdict}  {:<64} {old:<30} {new:<30} {loss:+.1} %", row.name)?;
        }
        self.unmatched.iter().try_for_each(|name| writeln!(f, "only in one of them: {name}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns `true` if a bar is worse, given its values of each run.
    fn is_worse(side: &str, old: &[f64], new: &[f64]) -> bool {
        let runs = |values: &[f64]| -> Vec<Vec<Measured>> {
            let report =
                |value: &f64| json!({"bars": [{"bar": "x", "value": value, side: 1.0, "pass": true}]});
            values.iter().map(|value| bars(&report(value))).collect()
        };
        !Comparison::new(&runs(old), &runs(new)).passed()
    }

    #[test]
    fn a_bar_is_worse_only_beyond_the_tolerance_and_the_spread_of_the_older_program() {
        assert!(is_worse("at_most", &[1.0, 1.0, 1.01], &[1.05, 1.05, 1.05]));
        assert!(!is_worse("at_most", &[1.0, 1.0, 1.01], &[1.02, 1.02, 1.02]), "within the tolerance");
        assert!(!is_worse("at_most", &[1.0, 1.0, 1.1], &[1.05, 1.05, 1.05]), "within the spread");
        assert!(!is_worse("at_most", &[1.0], &[0.5]), "better");
        assert!(is_worse("at_least", &[1.0, 1.0, 0.99], &[0.9, 0.9, 0.9]));
        assert!(!is_worse("at_least", &[1.0, 0.8, 1.0], &[0.9, 0.9, 0.9]), "within the spread");
        assert!(!is_worse("at_least", &[1.0], &[2.0]), "better");
        assert!(!is_worse("at_most", &[0.0], &[0.0]));
        assert!(is_worse("at_most", &[0.0], &[0.1]));
    }

    #[test]
    fn a_bar_that_only_one_program_has_is_named_and_not_compared() {
        let bar = |name: &str| Measured { name: name.to_owned(), value: 1.0, is_better_if_greater: true };
        let comparison = Comparison::new(&[vec![bar("gone")]], &[vec![bar("added")]]);
        assert!(comparison.passed());
        assert_eq!(comparison.unmatched, ["added", "gone"]);
    }

    #[test]
    fn times_are_those_of_the_given_columns() {
        let report = json!({"rows": [
            {"row": "131 B", "figures": {"scan": 76.0, "IgnoredAny": 125.0}},
            {"row": "4 KiB", "figures": {"scan": 230.0, "IgnoredAny": 650.0}},
        ]});
        let times = times(&report, &["scan", "added"]);
        let found: Vec<_> = times.iter().map(|time| (time.name.as_str(), time.value)).collect();
        assert_eq!(found, [("131 B: scan", 76.0), ("4 KiB: scan", 230.0)]);
        assert!(times.iter().all(|time| !time.is_better_if_greater));
    }

    #[test]
    fn options_of_the_bench_follow_its_name() {
        let read =
            |line: &str| Options::read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let options =
            read("--base old/narrows-bench --runs 3 bus --rows small --rounds 2").expect("a command line");
        assert_eq!((options.base.as_str(), options.runs), ("old/narrows-bench", 3));
        assert_eq!(options.bench, ["bus", "--rows", "small", "--rounds", "2"]);
        for (line, problem) in [
            ("bus", "`--base` needs"),
            ("--base x", "name the bench"),
            ("--base x --runs 0 bus", "`--runs` takes"),
        ] {
            assert!(read(line).err().is_some_and(|found| found.starts_with(problem)), "{line}");
        }
    }
}
