//! One run: a bus, its clients and workers, and random choices of the next move.

mod ends;
mod faults;
mod moves;

use std::time::Duration;

use narrows_bus::core::{ClientId, ClientInfo, Core, StuckReason, Time, WorkerExit, WorkerId};
use narrows_wire::View;

use crate::client::{Line, SimClient};
use crate::digest::Digest;
use crate::net::{Net, Port, Proc};
use crate::oracle::{Oracle, WorkerMessage};
use crate::random::Random;
use crate::scenario::Scenario;
use crate::worker::{SimWorker, Store};

/// One run: a bus, its clients and its workers.
pub(crate) struct World {
    core: Core,
    net: Net,
    random: Random,
    scenario: Scenario,
    store: Store,
    now: Time,
    faults: usize,
    draining: bool,
    /// Names of sessions of disconnected clients.
    left: Vec<(usize, String)>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) digest: Digest,
    pub(crate) faults: usize,
    pub(crate) steps: usize,
    pub(crate) served: usize,
    pub(crate) wrongs: Vec<String>,
    pub(crate) trace: Vec<String>,
}

impl World {
    pub(crate) fn new(scenario: Scenario, seed: u64, judged: bool, traced: bool) -> Self {
        let net = Net {
            ports: Vec::new(),
            procs: Vec::new(),
            spawns: Vec::new(),
            stops: Vec::new(),
            oracle: judged.then(|| Oracle::new(scenario.config.keeps_owners())),
            conns: 0,
            workers: 0,
            finished: false,
            limit: scenario.config.limits.queue_bytes,
            digest: Digest::default(),
            trace: traced.then(Vec::new),
        };
        Self {
            core: Core::new(&scenario.config, seed),
            net,
            random: Random::new(seed),
            scenario,
            store: Store::default(),
            now: Time::ZERO,
            faults: 0,
            draining: false,
            left: Vec::new(),
        }
    }

    pub(crate) fn run(mut self) -> Outcome {
        self.core.start(self.now, &mut self.net);
        self.after();
        let mut steps = 0;
        while steps < self.scenario.steps && !self.net.finished && !self.is_wrong() {
            steps += 1;
            if self.scenario.faults > 0 && self.random.one_in(self.scenario.faults) {
                self.fault();
            } else {
                self.step();
            }
        }
        if !self.is_wrong() && !self.net.finished {
            self.settle();
        }
        if !self.is_wrong() && !self.net.finished && !self.draining {
            self.probe();
        }
        if !self.is_wrong() {
            self.finish();
        }
        let (wrongs, served) = self
            .net
            .oracle
            .as_mut()
            .map(|oracle| (std::mem::take(&mut oracle.wrongs), oracle.served))
            .unwrap_or_default();
        Outcome {
            digest: self.net.digest,
            faults: self.faults,
            steps,
            served,
            wrongs,
            trace: self.net.trace.unwrap_or_default(),
        }
    }

    fn is_wrong(&self) -> bool {
        self.net.oracle.as_ref().is_some_and(|oracle| !oracle.wrongs.is_empty())
    }

    fn wrong(&mut self, what: String) {
        if let Some(oracle) = &mut self.net.oracle {
            oracle.wrongs.push(what);
        }
    }

    fn after(&mut self) {
        for (worker, pool) in std::mem::take(&mut self.net.spawns) {
            let name = self.core.pool(pool).name.clone();
            let at = name.trim_start_matches('p').parse().unwrap_or(0);
            let traits = self.scenario.traits_of[at];
            let worker_index = self.net.workers;
            self.net.workers += 1;
            if let Some(oracle) = &mut self.net.oracle {
                oracle.worker_started(traits.kind());
            }
            let slot = worker.0 as usize;
            while self.net.procs.len() <= slot {
                self.net.procs.push(None);
            }
            if self.net.procs[slot].is_some() {
                self.wrong(format!("two workers have slot {slot}"));
            }
            let stop = self.net.stops.iter().find(|(stopped, _)| *stopped == worker).map(|(_, kill)| *kill);
            self.net.stops.retain(|(stopped, _)| *stopped != worker);
            self.net.procs[slot] = Some(Proc {
                worker: SimWorker::new(worker_index, at, traits),
                up: false,
                queue: Vec::new(),
                queued: 0,
                written: 0,
                pipe: Vec::new(),
                read: 0,
                partial: Vec::new(),
                over: false,
                paused: false,
                stop,
                closed: false,
                frozen: false,
            });
        }
        if let Some(oracle) = &mut self.net.oracle {
            oracle.returned();
        }
    }

    fn client_slots(&self) -> Vec<usize> {
        (0..self.net.ports.len()).filter(|slot| self.net.ports[*slot].is_some()).collect()
    }

    fn worker_slots(&self) -> Vec<usize> {
        (0..self.net.procs.len()).filter(|slot| self.net.procs[*slot].is_some()).collect()
    }

    fn connect(&mut self, listener: usize, wanted: usize) -> Option<usize> {
        let ends_bus = self.scenario.faults > 0 && self.random.one_in(80);
        let identity = u32::try_from(self.random.below(self.scenario.identities as usize)).unwrap_or(0);
        let name = format!("token:{identity}");
        let arrival = ClientInfo { ends_bus, ..ClientInfo::new(listener, &name) };
        self.net.trace_line(|| {
            format!("{:?} connect listener {listener} pool {wanted} identity {identity} {ends_bus}", self.now)
        });
        let client = self.core.client_open(self.now, arrival, &mut self.net)?;
        let slot = client.0 as usize;
        let conn = self.net.conns;
        self.net.conns += 1;
        if let Some(oracle) = &mut self.net.oracle {
            oracle.conn_open(identity);
        }
        while self.net.ports.len() <= slot {
            self.net.ports.push(None);
        }
        let mut client = SimClient::new(conn, wanted, self.scenario.traits_of[wanted], &mut self.random);
        client.chooses = wanted != listener;
        let port = Port {
            client,
            queue: Vec::new(),
            over: false,
            paused: false,
            closing: false,
            ended: false,
            ends_bus,
            stalled: 0,
        };
        if self.net.ports[slot].replace(port).is_some() {
            self.wrong(format!("two clients have slot {slot}"));
        }
        self.after();
        Some(slot)
    }

    /// Passes a client's line to the core, unless the client is paused.
    fn pass_client_line(&mut self, slot: usize, line: Line) {
        let Some(port) = self.net.port(slot) else { return };
        let conn = port.client.conn;
        self.net.trace_line(|| {
            format!("{:?} client {slot} ({conn}) says {}", self.now, String::from_utf8_lossy(&line.text))
        });
        if let Some(oracle) = &mut self.net.oracle {
            oracle.record_client_line(conn, line.said, line.array);
        }
        let view = if line.long { View::too_long(&line.text) } else { View::parse(&line.text) };
        self.core.client_line(self.now, client_at(slot), view, &mut self.net);
        self.after();
    }

    /// Returns `true` if the core would get a line of this client now.
    fn is_read(&mut self, slot: usize) -> bool {
        self.net.port(slot).is_some_and(|port| !port.paused && !port.closing && !port.ended)
    }

    fn client_goes(&mut self, slot: usize) {
        let Some(port) = self.net.port(slot) else { return };
        let (conn, pool, sessions) =
            (port.client.conn, port.client.pool, std::mem::take(&mut port.client.sessions));
        self.draining |= port.ends_bus;
        self.net.trace_line(|| format!("{:?} client {slot} ({conn}) is gone", self.now));
        self.left.extend(sessions.into_iter().map(|name| (pool, name)));
        if let Some(oracle) = &mut self.net.oracle {
            oracle.conn_closed(conn, false);
        }
        // The slot becomes free only when the core has returned.
        self.core.client_gone(self.now, client_at(slot), &mut self.net);
        self.net.ports[slot] = None;
        self.after();
    }

    fn client_reads(&mut self, slot: usize, most: usize) {
        let limit = self.net.limit;
        let Some(port) = self.net.port(slot) else { return };
        let mut at = 0;
        for _ in 0..most {
            let Some(end) = memchr::memchr(b'\n', &port.queue[at..]) else { break };
            let line = at..at + end;
            at += end + 1;
            port.client.receive(&port.queue[line]);
        }
        port.queue.drain(..at);
        if at > 0 {
            port.stalled = 0;
        }
        if port.over && port.queue.len() < limit / 2 {
            port.over = false;
            self.core.client_drained(self.now, client_at(slot), &mut self.net);
            self.after();
        }
    }

    fn pass_worker_line(&mut self, slot: usize) {
        let Some(proc) = self.net.proc(slot) else { return };
        let worker_index = proc.worker.worker_index;
        let Some((text, said)) = proc.worker.out.pop_front() else { return };
        let long = said.iter().any(|reply| {
            matches!(reply, WorkerMessage::TooLong | WorkerMessage::Malformed { code: -32013, .. })
        });
        self.net.trace_line(|| {
            format!("{:?} worker {slot} ({worker_index}) says {}", self.now, String::from_utf8_lossy(&text))
        });
        if let Some(oracle) = &mut self.net.oracle {
            oracle.record_worker_line(worker_index, said, text.first() == Some(&b'['));
        }
        let view = if long { View::too_long(&text) } else { View::parse(&text) };
        self.core.worker_line(self.now, worker_at(slot), view, &mut self.net);
        self.after();
    }

    fn start_worker(&mut self, slot: usize) {
        let Some(proc) = self.net.proc(slot) else { return };
        proc.up = true;
        self.net.trace_line(|| format!("{:?} worker {slot} is up", self.now));
        self.core.worker_up(self.now, worker_at(slot), 1, &mut self.net);
        self.after();
    }

    /// Writes the queue of a worker to its pipe, and lets it read up to `most` bytes.
    fn worker_reads(&mut self, slot: usize, most: usize) {
        let (limit, room) = (self.net.limit, self.scenario.pipe);
        let Some(proc) = self.net.proc(slot) else { return };
        let go = proc.queue.len().min(room - proc.pipe.len().min(room));
        proc.pipe.extend(proc.queue.drain(..go));
        proc.written += go as u64;
        let taken = most.min(proc.pipe.len());
        if !proc.frozen && !proc.closed && taken > 0 {
            proc.partial.extend(proc.pipe.drain(..taken));
            proc.read += taken as u64;
            let mut at = 0;
            while let Some(end) = memchr::memchr(b'\n', &proc.partial[at..]) {
                proc.worker.read(&proc.partial[at..at + end]);
                at += end + 1;
            }
            proc.partial.drain(..at);
        }
        let (worker_index, read) = (proc.worker.worker_index, proc.read);
        let drained = proc.over && proc.queue.len() < limit / 2;
        proc.over &= !drained;
        if let Some(oracle) = &mut self.net.oracle {
            oracle.worker_read(worker_index, read);
        }
        if drained {
            self.core.worker_drained(self.now, worker_at(slot), &mut self.net);
            self.after();
        }
    }

    /// Ends a worker. Its output up to the last line end still arrives.
    fn end_worker(&mut self, slot: usize, last_words: usize) {
        for _ in 0..last_words {
            self.pass_worker_line(slot);
        }
        let Some(proc) = self.net.proc(slot) else { return };
        // If the pipe cannot be inspected, all written bytes count as read.
        let bytes_read = if self.random.one_in(4) && !proc.closed { proc.written } else { proc.read };
        let end = WorkerExit {
            reason: "killed".to_owned(),
            bytes_read,
            unsent: std::mem::take(&mut proc.queue),
            ..WorkerExit::default()
        };
        let worker_index = proc.worker.worker_index;
        self.net.trace_line(|| {
            format!("{:?} worker {slot} ({worker_index}) is gone, read {bytes_read}", self.now)
        });
        if let Some(oracle) = &mut self.net.oracle {
            oracle.worker_exited(worker_index, bytes_read);
        }
        self.net.procs[slot] = None;
        self.core.worker_gone(self.now, worker_at(slot), &end, &mut self.net);
        self.after();
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.net.trace_line(|| format!("{:?} tick", self.now));
        self.core.tick(self.now, &mut self.net);
        self.after();
    }

    fn report_stuck(&mut self, slot: usize, why: StuckReason) {
        let Some(proc) = self.net.proc(slot) else { return };
        let worker_index = proc.worker.worker_index;
        self.net.trace_line(|| format!("{:?} worker {slot} is stuck: {why:?}", self.now));
        if let Some(oracle) = &mut self.net.oracle {
            oracle.worker_given_up(worker_index);
        }
        self.core.worker_stuck(self.now, worker_at(slot), why, &mut self.net);
        self.after();
    }

    fn client_ends(&mut self, slot: usize) {
        let Some(port) = self.net.port(slot) else { return };
        port.ended = true;
        self.draining |= port.ends_bus;
        let (conn, ends_bus) = (port.client.conn, port.ends_bus);
        if let Some(oracle) = self.net.oracle.as_mut().filter(|_| !ends_bus) {
            oracle.conn_silent(conn);
        }
        self.net.trace_line(|| format!("{:?} client {slot} ends its input", self.now));
        self.core.client_eof(self.now, client_at(slot), &mut self.net);
        self.after();
    }

    fn reload(&mut self) {
        self.net.trace_line(|| format!("{:?} reload {:?}", self.now, self.scenario.config.pools));
        self.core.reload(self.now, &self.scenario.config, &mut self.net);
        self.after();
    }
}

fn client_at(slot: usize) -> ClientId {
    ClientId(u32::try_from(slot).unwrap_or(u32::MAX))
}

fn worker_at(slot: usize) -> WorkerId {
    WorkerId(u32::try_from(slot).unwrap_or(u32::MAX))
}
