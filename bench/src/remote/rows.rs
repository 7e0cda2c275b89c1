//! The loads, and the demands under each of them.

use crate::bus::load::{Load, Outcome};
use crate::bus::talk::Habit;
use crate::measure::{Bar, Demand, median};

pub(crate) const SMALL: &str = "small";
pub(crate) const STREAM: &str = "stream";
pub(crate) const FIRST: &str = "first";
pub(crate) const IDLE: &str = "idle";
pub(crate) const KEYS: [&str; 4] = [SMALL, STREAM, FIRST, IDLE];

/// Share of a peer's processor time that `narrows bus` may use.
const OF_PEER: f64 = 1.0 / 3.0;

pub(crate) struct Row {
    pub(crate) key: &'static str,
    pub(crate) name: &'static str,
    pub(crate) load: Load,
    /// Unit of processor time, and the number of units that a response counts as.
    pub(crate) unit: (&'static str, f64),
}

/// Loads that are measured over WebSocket and over TCP.
pub(crate) const ROWS: [Row; 2] = [
    Row {
        key: SMALL,
        name: "100 B × 16 clients",
        load: Load { clients: 16, habit: Habit { sessions: 1, depth: 1, text: 100, chunks: 0 } },
        unit: ("request", 1.0),
    },
    Row {
        key: STREAM,
        name: "100 chunks × 50 B × 16 clients",
        load: Load { clients: 16, habit: CHUNKS },
        unit: ("chunk", 100.0),
    },
];

const CHUNKS: Habit = Habit { sessions: 1, depth: 1, text: 50, chunks: 100 };

/// The behavior of the single client that waits for its first update.
pub(crate) const FIRST_HABIT: Habit = CHUNKS;
pub(crate) const FIRST_NAME: &str = "first of 100 chunks × 50 B × 1 client";

pub(crate) const IDLE_LOAD: Load =
    Load { clients: 5000, habit: Habit { sessions: 1, depth: 0, text: 100, chunks: 0 } };

pub(crate) fn middle(outcomes: &[Outcome], figure: fn(&Outcome) -> f64) -> f64 {
    median(outcomes.iter().map(figure).collect())
}

/// Returns the median of the ratios within each round: the contenders took turns, so a disturbance affects
/// both.
pub(crate) fn ratio(ours: &[Outcome], others: &[Outcome], figure: fn(&Outcome) -> f64) -> f64 {
    median(ours.iter().zip(others).map(|(ours, other)| figure(ours) / figure(other)).collect())
}

impl Row {
    /// Returns the bars for WebSocket relative to TCP.
    pub(crate) fn bars(&self, tcp: &[Outcome], ws: &[Outcome]) -> Vec<Bar> {
        let (what, value, demand) = match self.key {
            SMALL => (
                "rate, of our own TCP listener's".to_owned(),
                ratio(ws, tcp, |outcome| outcome.rate),
                Demand::AtLeast(0.6),
            ),
            _ => {
                let value = middle(ws, |outcome| outcome.cpu) / self.unit.1;
                (format!("processor µs per {}", self.unit.0), value, Demand::AtMost(3.0))
            }
        };
        let bar = Bar { name: format!("{}: {what}", self.key), value, demand };
        if bar.value.is_nan() { Vec::new() } else { vec![bar] }
    }

    /// Returns the bar relative to a server whose agents run in its own process, so the agents of `narrows
    /// bus` are included.
    pub(crate) fn beside(&self, name: &str, ws: &[Outcome], peer: &[Outcome]) -> Option<Bar> {
        let value = ratio(ws, peer, |outcome| outcome.tree);
        let name = format!("{}: processor time with agents, times that of {name}", self.key);
        (!value.is_nan()).then_some(Bar { name, value, demand: Demand::AtMost(OF_PEER) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::load::Lost;

    fn outcome(rate: f64, cpu: f64) -> Outcome {
        Outcome { rate, p50: 1.0, p99: 1.0, cpu, tree: 2.0 * cpu, lost: Lost::default() }
    }

    #[test]
    fn bars_compare_within_rounds_and_count_by_units() {
        let tcp = [outcome(10.0, 1.0), outcome(20.0, 1.0), outcome(10.0, 1.0)];
        let ws = [outcome(7.0, 200.0), outcome(14.0, 200.0), outcome(1.0, 900.0)];
        let values = |row: &Row| row.bars(&tcp, &ws).iter().map(|bar| bar.value).collect::<Vec<_>>();
        assert_eq!(values(&ROWS[0]), [0.7]);
        assert_eq!(values(&ROWS[1]), [2.0]);
        let peer = [outcome(1.0, 800.0); 3];
        assert_eq!(ROWS[0].beside("x", &ws, &peer).map(|bar| bar.value), Some(0.25));
        assert!(ROWS[0].bars(&[], &ws).is_empty() && ROWS[0].beside("x", &ws, &[]).is_none());
    }
}
