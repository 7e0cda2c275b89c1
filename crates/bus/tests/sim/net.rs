//! Simulated queues, pipes and processes of a driver.

use narrows_bus::core::{ClientCloseReason, ClientId, CoreAction, CoreOutput, PoolId, WorkerId};

use crate::client::SimClient;
use crate::digest::Digest;
use crate::oracle::{ConnIndex, Oracle, WorkerIndex};
use crate::worker::SimWorker;

#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) client: SimClient,
    pub(crate) queue: Vec<u8>,
    /// `true` if its queue was full and has not been half empty since.
    pub(crate) over: bool,
    pub(crate) paused: bool,
    pub(crate) closing: bool,
    pub(crate) ended: bool,
    /// `true` if the bus drains when the input of this client ends.
    pub(crate) ends_bus: bool,
    pub(crate) stalled: u32,
}

#[derive(Debug)]
pub(crate) struct Proc {
    pub(crate) worker: SimWorker,
    pub(crate) up: bool,
    pub(crate) queue: Vec<u8>,
    /// Number of bytes that were ever queued, including those written to the pipe.
    pub(crate) queued: u64,
    pub(crate) written: u64,
    pub(crate) pipe: Vec<u8>,
    pub(crate) read: u64,
    pub(crate) partial: Vec<u8>,
    pub(crate) over: bool,
    pub(crate) paused: bool,
    /// Set if the worker is to be stopped. `true`: it is killed.
    pub(crate) stop: Option<bool>,
    pub(crate) closed: bool,
    pub(crate) frozen: bool,
}

/// All clients and workers, in the slots of the core.
#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) ports: Vec<Option<Port>>,
    pub(crate) procs: Vec<Option<Proc>>,
    pub(crate) spawns: Vec<(WorkerId, PoolId)>,
    /// Workers to stop before their process is started. `true`: to kill.
    pub(crate) stops: Vec<(WorkerId, bool)>,
    /// `None` in the second run, which only has to produce an equal digest.
    pub(crate) oracle: Option<Oracle>,
    pub(crate) conns: usize,
    pub(crate) workers: usize,
    pub(crate) finished: bool,
    pub(crate) limit: usize,
    pub(crate) digest: Digest,
    pub(crate) trace: Option<Vec<String>>,
}

impl Net {
    pub(crate) fn trace_line(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(what());
        }
    }

    pub(crate) fn port(&mut self, slot: usize) -> Option<&mut Port> {
        self.ports.get_mut(slot).and_then(Option::as_mut)
    }

    pub(crate) fn proc(&mut self, slot: usize) -> Option<&mut Proc> {
        self.procs.get_mut(slot).and_then(Option::as_mut)
    }

    pub(crate) fn conn(&mut self, client: ClientId) -> Option<ConnIndex> {
        self.port(client.0 as usize).map(|port| port.client.conn)
    }

    pub(crate) fn worker_index(&mut self, worker: WorkerId) -> Option<WorkerIndex> {
        self.proc(worker.0 as usize).map(|proc| proc.worker.worker_index)
    }

    fn wrong(&mut self, what: String) {
        if let Some(oracle) = &mut self.oracle {
            oracle.wrongs.push(what);
        }
    }
}

impl CoreOutput for Net {
    fn to_client(&mut self, client: ClientId, parts: &[&[u8]]) -> usize {
        self.digest.client_line(client.0, parts);
        let line = parts.concat();
        self.trace_line(|| format!("  -> client {} {}", client.0, String::from_utf8_lossy(&line)));
        let limit = self.limit;
        let Some(port) = self.port(client.0 as usize) else {
            self.wrong(format!("a line for client {}, which is not connected", client.0));
            return 0;
        };
        if port.closing {
            return port.queue.len();
        }
        port.queue.extend_from_slice(&line);
        port.queue.push(b'\n');
        let (waits, conn) = (port.queue.len(), port.client.conn);
        port.over |= waits > limit;
        // A full queue still accepts messages that were in progress: the rest of a batch, and errors for all
        // pending requests.
        if waits > limit + line.len() + 24_000 {
            self.wrong(format!("I6 {waits} bytes wait for connection {conn}"));
        }
        if let Some(oracle) = &mut self.oracle {
            oracle.check_client_line(conn, &line);
        }
        waits
    }

    fn to_worker(&mut self, worker: WorkerId, parts: &[&[u8]]) -> usize {
        self.digest.worker_line(worker.0, parts);
        let line = parts.concat();
        self.trace_line(|| format!("  -> worker {} {}", worker.0, String::from_utf8_lossy(&line)));
        let limit = self.limit;
        let Some(proc) = self.proc(worker.0 as usize) else {
            self.wrong(format!("a line for worker {}, which does not run", worker.0));
            return 0;
        };
        let (start, worker_index) = (proc.queued, proc.worker.worker_index);
        proc.queue.extend_from_slice(&line);
        proc.queue.push(b'\n');
        proc.queued += line.len() as u64 + 1;
        let waits = proc.queue.len();
        proc.over |= waits > limit;
        if waits > limit + line.len() + 24_000 {
            self.wrong(format!("I6 {waits} bytes wait for worker {worker_index}"));
        }
        if let Some(oracle) = &mut self.oracle {
            oracle.check_worker_line(worker_index, start, &line);
        }
        waits
    }

    fn perform(&mut self, action: CoreAction) {
        self.trace_line(|| format!("  => {action:?}"));
        self.digest.action(&action);
        match action {
            CoreAction::Spawn { worker, pool } => {
                self.spawns.push((worker, pool));
            }
            CoreAction::Stop { worker, kill } => {
                let worker_index = self.worker_index(worker);
                if self.spawns.iter().any(|(spawned, _)| *spawned == worker) {
                    // The start was ordered in the same call, so the process does not exist yet.
                    self.stops.push((worker, kill));
                } else if let Some(proc) = self.proc(worker.0 as usize) {
                    proc.stop = Some(kill || proc.stop == Some(true));
                }
                if let (Some(oracle), Some(worker_index)) = (&mut self.oracle, worker_index) {
                    oracle.worker_given_up(worker_index);
                }
            }
            CoreAction::PauseWorker(worker) => {
                self.proc(worker.0 as usize).into_iter().for_each(|proc| proc.paused = true);
            }
            CoreAction::ResumeWorker(worker) => {
                self.proc(worker.0 as usize).into_iter().for_each(|proc| proc.paused = false);
            }
            CoreAction::PauseClient(client) => {
                self.port(client.0 as usize).into_iter().for_each(|port| port.paused = true);
            }
            CoreAction::ResumeClient(client) => {
                self.port(client.0 as usize).into_iter().for_each(|port| port.paused = false);
            }
            CoreAction::Close { client, reason } => {
                let conn = self.conn(client);
                if let Some(port) = self.port(client.0 as usize) {
                    port.closing = true;
                }
                if let (Some(oracle), Some(conn)) = (&mut self.oracle, conn) {
                    oracle.conn_closed(conn, reason != ClientCloseReason::SlowReader);
                }
            }
            CoreAction::Log(_) | CoreAction::RecordOwner { .. } | CoreAction::DeleteOwner { .. } => {}
            CoreAction::Finished => self.finished = true,
        }
    }
}
