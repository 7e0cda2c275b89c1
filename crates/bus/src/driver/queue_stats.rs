//! Sizes of the write backlog, for administrators.

use std::collections::BTreeMap;

use serde::Serialize;

use super::connections::Connections;

/// What waits to be written, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Queues {
    /// For all clients.
    pub clients: u64,
    /// For the client for whom most waits.
    pub longest: u64,
    /// How many clients have a queue that is full.
    pub full: usize,
    /// For each worker, by its number; those for whom nothing waits are left out.
    pub workers: BTreeMap<u32, u64>,
}

impl Queues {
    pub(super) fn measure(ports: &Connections) -> Self {
        let mut queues = Self::default();
        for conn in ports.clients.iter().flatten() {
            let waiting = conn.outflow.outbox.waiting() as u64;
            queues.clients += waiting;
            queues.longest = queues.longest.max(waiting);
            queues.full += usize::from(conn.outflow.over);
        }
        for (number, hand) in (0..).zip(&ports.workers) {
            let waiting = hand.as_ref().map_or(0, |hand| hand.outflow.outbox.waiting() as u64);
            if waiting > 0 {
                queues.workers.insert(number, waiting);
            }
        }
        queues
    }
}
