//! Sizes of the write backlog, for administrators.

use std::collections::BTreeMap;

use serde::Serialize;

use super::connections::Connections;

/// Numbers of bytes that wait to be written to clients and workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Queues {
    pub clients: u64,
    pub longest: u64,
    pub full: usize,
    /// Bytes for each worker that has a queue, by the number of the worker.
    pub workers: BTreeMap<u32, u64>,
}

impl Queues {
    pub(super) fn measure(conns: &Connections) -> Self {
        let mut queues = Self::default();
        for conn in conns.clients.iter().flatten() {
            let waiting = conn.outflow.outbox.waiting() as u64;
            queues.clients += waiting;
            queues.longest = queues.longest.max(waiting);
            queues.full += usize::from(conn.outflow.is_full);
        }
        for (number, conn) in (0..).zip(&conns.workers) {
            let waiting = conn.as_ref().map_or(0, |conn| conn.outflow.outbox.waiting() as u64);
            if waiting > 0 {
                queues.workers.insert(number, waiting);
            }
        }
        queues
    }
}
