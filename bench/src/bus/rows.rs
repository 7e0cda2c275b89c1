//! The loads, and the demands on the bus under each of them.

use super::load::{Load, Outcome};
use super::talk::Habit;
use crate::measure::{Bar, Demand, median};

pub(super) struct Row {
    pub(super) key: &'static str,
    pub(super) name: &'static str,
    pub(super) load: Load,
    /// Unit of processor time, and the number of units that a response counts as.
    pub(super) unit: (&'static str, f64),
    demands: &'static [Mark],
}

/// A demand on a figure, and the figure it relates to.
#[derive(Clone, Copy)]
enum Mark {
    /// Rate as a share of the null router's rate.
    RateOfNull(f64),
    /// Processor time as a multiple of the null router's.
    CpuOfNull(f64),
    /// Rate as a share of the direct connection's rate.
    RateOfDirect(f64),
    P50OfDirect(f64),
    P99OfDirect(f64),
    /// Processor time per unit, in microseconds.
    Cpu(f64),
    /// Rate in thousand units per second.
    Units(f64),
}

const fn echo(clients: u32, text: usize) -> Load {
    Load { clients, habit: Habit { sessions: 1, depth: 1, text, chunks: 0 } }
}

/// The loads of the table. The size in a key is that of the text, which is sent both ways, or for rows of
/// lines that of the whole request.
pub(super) const ROWS: [Row; 7] = [
    Row {
        key: "small",
        name: "100 B × 16 clients",
        load: echo(16, 100),
        unit: ("request", 1.0),
        demands: &[Mark::RateOfNull(0.85), Mark::CpuOfNull(1.4)],
    },
    Row {
        key: "medium",
        name: "4 KiB × 16 clients",
        load: echo(16, 4 << 10),
        unit: ("request", 1.0),
        demands: &[Mark::RateOfNull(0.85), Mark::CpuOfNull(1.4)],
    },
    Row {
        key: "large",
        name: "64 KiB × 16 clients",
        load: echo(16, 64 << 10),
        unit: ("request", 1.0),
        demands: &[Mark::RateOfDirect(0.5)],
    },
    Row {
        key: "crowd",
        name: "100 B × 1000 clients",
        load: echo(1000, 100),
        unit: ("request", 1.0),
        demands: &[Mark::Cpu(12.0), Mark::P99OfDirect(1.8)],
    },
    Row {
        key: "stream",
        name: "100 chunks × 50 B × 16 clients",
        load: Load { clients: 16, habit: Habit { sessions: 1, depth: 1, text: 50, chunks: 100 } },
        unit: ("chunk", 100.0),
        demands: &[Mark::RateOfDirect(0.4), Mark::Cpu(1.0)],
    },
    Row {
        key: "pipeline",
        name: "lines of 160 B, 32 in flight × 8 clients",
        load: Load { clients: 8, habit: Habit { sessions: 32, depth: 32, text: 20, chunks: 0 } },
        unit: ("routed message", 2.0),
        demands: &[Mark::Units(800.0), Mark::Cpu(1.0)],
    },
    Row {
        key: "single",
        name: "100 B × 1 client",
        load: echo(1, 100),
        unit: ("request", 1.0),
        demands: &[Mark::P50OfDirect(1.5), Mark::P99OfDirect(2.0)],
    },
];

/// Key of the row that compares few sessions with many, and the loads of both.
pub(super) const SESSIONS: &str = "sessions";
pub(super) const FEW_SESSIONS: Load = echo(10, 100);
pub(super) const MANY_SESSIONS: Load =
    Load { clients: 10, habit: Habit { sessions: 1000, ..FEW_SESSIONS.habit } };

/// Key of the row of idle connections, and their number.
pub(super) const IDLE: &str = "idle";
pub(super) const IDLE_LOAD: Load =
    Load { clients: 10_000, habit: Habit { sessions: 1, depth: 0, text: 100, chunks: 0 } };

pub(super) fn keys() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|row| row.key).chain([SESSIONS, IDLE])
}

/// The results of one load that its bars compare, by round.
pub(super) struct Measured<'a> {
    pub(super) direct: &'a [Outcome],
    pub(super) null: &'a [Outcome],
    pub(super) narrows: &'a [Outcome],
}

impl Row {
    /// Returns the bars of this load. Those without a measurement are left out.
    pub(super) fn bars(&self, measured: &Measured<'_>) -> Vec<Bar> {
        let ours = measured.narrows;
        let ratio = |others: &[Outcome], figure: fn(&Outcome) -> f64| {
            // Compared within each round: the contenders took turns, so a disturbance affects all of them.
            median(ours.iter().zip(others).map(|(ours, other)| figure(ours) / figure(other)).collect())
        };
        let (unit, parts) = self.unit;
        let bar = |mark: &Mark| {
            let (what, value, demand) = match *mark {
                Mark::RateOfNull(least) => (
                    "rate, of the null router's".to_owned(),
                    ratio(measured.null, rate),
                    Demand::AtLeast(least),
                ),
                Mark::CpuOfNull(most) => {
                    let value = ratio(measured.null, cpu);
                    ("processor time, times the null router's".to_owned(), value, Demand::AtMost(most))
                }
                Mark::RateOfDirect(least) => (
                    "rate, of the direct one".to_owned(),
                    ratio(measured.direct, rate),
                    Demand::AtLeast(least),
                ),
                Mark::P50OfDirect(most) => {
                    ("p50, times direct".to_owned(), ratio(measured.direct, p50), Demand::AtMost(most))
                }
                Mark::P99OfDirect(most) => {
                    ("p99, times direct".to_owned(), ratio(measured.direct, p99), Demand::AtMost(most))
                }
                Mark::Cpu(most) => {
                    let value = middle(ours, cpu) / parts;
                    (format!("processor µs per {unit}"), value, Demand::AtMost(most))
                }
                Mark::Units(least) => {
                    let value = middle(ours, rate) * parts / 1e3;
                    (format!("thousand {unit}s per s"), value, Demand::AtLeast(least))
                }
            };
            Bar { name: format!("{}: {what}", self.key), value, demand }
        };
        self.demands.iter().map(bar).filter(|bar| !bar.value.is_nan()).collect()
    }

    /// Returns the figures of one contender: rate, share of direct, p50, p99, processor time, lost.
    pub(super) fn figures(&self, outcomes: &[Outcome], direct: &[Outcome]) -> Vec<f64> {
        let lost: u64 = outcomes.iter().map(|outcome| outcome.lost.total()).sum();
        let share = median(outcomes.iter().zip(direct).map(|(own, direct)| own.rate / direct.rate).collect());
        let cpu = middle(outcomes, cpu) / self.unit.1;
        vec![middle(outcomes, rate), share, middle(outcomes, p50), middle(outcomes, p99), cpu, lost as f64]
    }
}

fn middle(outcomes: &[Outcome], figure: fn(&Outcome) -> f64) -> f64 {
    median(outcomes.iter().map(figure).collect())
}

fn rate(outcome: &Outcome) -> f64 {
    outcome.rate
}

fn cpu(outcome: &Outcome) -> f64 {
    outcome.cpu
}

fn p50(outcome: &Outcome) -> f64 {
    outcome.p50
}

fn p99(outcome: &Outcome) -> f64 {
    outcome.p99
}

#[cfg(test)]
mod tests {
    use super::super::load::Lost;
    use super::super::message::{Dialect, Tag, Template, session};
    use super::*;

    fn outcome(rate: f64, cpu: f64) -> Outcome {
        Outcome { rate, p50: 10.0, p99: 20.0, cpu, tree: cpu, lost: Lost::default() }
    }

    #[test]
    fn bars_compare_within_rounds_and_count_by_units() {
        let (direct, null) =
            ([outcome(9.0, 1.0); 3], [outcome(8.0, 1.0), outcome(4.0, 2.0), outcome(8.0, 1.0)]);
        let narrows = [outcome(4.0, 2.0), outcome(2.0, 4.0), outcome(8.0, 3.0)];
        let measured = Measured { direct: &direct, null: &null, narrows: &narrows };
        let values = |row: &Row| {
            row.bars(&measured).iter().map(|bar| (bar.name.clone(), bar.value)).collect::<Vec<_>>()
        };
        let small = values(&ROWS[0]);
        assert_eq!(small[0], ("small: rate, of the null router's".to_owned(), 0.5));
        assert_eq!(small[1], ("small: processor time, times the null router's".to_owned(), 2.0));
        let pipeline = values(&ROWS[5]);
        assert_eq!(pipeline[1], ("pipeline: processor µs per routed message".to_owned(), 1.5));
        assert!(ROWS[0].bars(&Measured { null: &[], ..measured }).is_empty());
    }

    #[test]
    fn loads_fit_their_names() {
        let session = session(b'b', 1, 1);
        let tag = Tag { client: 1, request: 1, chunk: 0 };
        let pipeline = &ROWS[5];
        let text = vec![b'a'; pipeline.load.habit.text - super::super::message::TAG];
        assert_eq!(Template::prompt(Dialect::Acp, &text).filled(1, &session, tag).len(), 160);
        for row in &ROWS {
            assert!(row.load.habit.depth <= row.load.habit.sessions, "{}", row.key);
        }
    }
}
