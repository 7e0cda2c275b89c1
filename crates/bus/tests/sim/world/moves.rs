//! Random moves without faults.

use std::time::Duration;

use super::World;
use crate::client::{Line, SimClient};
use crate::net::Proc;

impl World {
    pub(super) fn step(&mut self) {
        match self.random.below(24) {
            0 => {
                if self.client_slots().len() < self.scenario.clients {
                    let pool = self.random.below(self.scenario.config.listen.len());
                    let other = self.random.below(self.scenario.config.listen.len());
                    let wanted = if self.random.one_in(5) { other } else { pool };
                    self.connect(pool, wanted);
                }
            }
            1..=5 => self.client_speaks(),
            6..=9 => {
                let most = 1 + self.random.below(6);
                if let Some(slot) = self.some_client()
                    && !self.net.port(slot).is_some_and(|port| port.client.asleep)
                {
                    self.client_reads(slot, most);
                }
            }
            10..=13 => {
                let most = if self.random.one_in(3) { self.random.below(60) } else { 2_000 };
                if let Some(slot) = self.some_worker() {
                    self.worker_moves(slot, most);
                }
            }
            14..=17 => self.worker_works(),
            18..=22 => {
                let Some(slot) = self.worker_with(|proc| !proc.worker.out.is_empty()) else { return };
                for _ in 0..=self.random.below(3) {
                    if self.net.proc(slot).is_some_and(|proc| !proc.paused) {
                        self.pass_worker_line(slot);
                    }
                }
            }
            _ => {
                let time = Duration::from_millis(self.random.pick(&[1, 10, 100, 1_000]));
                self.pass(time);
                self.close_stalled_clients(time);
            }
        }
    }

    pub(super) fn some_client(&mut self) -> Option<usize> {
        let slots = self.client_slots();
        (!slots.is_empty()).then(|| self.random.pick(&slots))
    }

    pub(super) fn some_worker(&mut self) -> Option<usize> {
        let slots = self.worker_slots();
        (!slots.is_empty()).then(|| self.random.pick(&slots))
    }

    fn worker_with(&mut self, has: impl Fn(&Proc) -> bool) -> Option<usize> {
        let mut slots = self.worker_slots();
        slots.retain(|slot| self.net.procs[*slot].as_ref().is_some_and(&has));
        (!slots.is_empty()).then(|| self.random.pick(&slots))
    }

    /// Performs the driver's part for a worker, and lets the worker read.
    pub(super) fn worker_moves(&mut self, slot: usize, most: usize) {
        let Some(proc) = self.net.proc(slot) else { return };
        match (proc.up, proc.stop) {
            (_, Some(true)) => self.end_worker(slot, 1_000),
            (false, Some(false)) => self.end_worker(slot, 0),
            (true, Some(false)) => {
                if self.random.one_in(2) {
                    self.end_worker(slot, 1_000);
                } else {
                    self.worker_reads(slot, most);
                }
            }
            (false, None) => self.start_worker(slot),
            (true, None) => self.worker_reads(slot, most),
        }
    }

    fn worker_works(&mut self) {
        let Some(slot) = self.worker_with(|proc| !proc.worker.tasks.is_empty() && !proc.frozen) else {
            return;
        };
        let Some(proc) = self.net.procs[slot].as_mut() else { return };
        let at = self.random.below(proc.worker.tasks.len());
        proc.worker.work(at, false, &mut self.store, &mut self.random);
    }

    fn client_speaks(&mut self) {
        let Some(slot) = self.some_client() else { return };
        if !self.is_read(slot) {
            return;
        }
        let Some(line) = self.client_line(slot, false) else { return };
        self.pass_client_line(slot, line);
    }

    /// Returns the next line of a client, if it has one.
    pub(super) fn client_line(&mut self, slot: usize, in_array: bool) -> Option<Line> {
        let random = &mut self.random;
        let client = &mut self.net.ports[slot].as_mut()?.client;
        if !client.greeted {
            if client.greeting {
                return None;
            }
            client.greeting = true;
            return Some(client.request(self.store.tag(), "initialize", None, 0, random));
        }
        if !client.questions.is_empty() && random.one_in(2) {
            let at = random.below(client.questions.len());
            let id = client.questions.remove(at);
            return Some(SimClient::answer(self.store.tag(), &id, random));
        }
        if client.flight.len() > 6 {
            return None;
        }
        let pad = if random.one_in(10) { 900 } else { 2 };
        if client.traits.is_plain() {
            let session = (!random.one_in(4)).then(|| format!("c{}-{}", client.conn, random.below(3)));
            return Some(client.request(self.store.tag(), "work", session, pad, random));
        }
        if client.sessions.is_empty() || random.one_in(12) && client.sessions.len() < 4 {
            if client.flight.iter().filter(|waiting| waiting.method == "session/new").count() > 1 {
                return None;
            }
            return Some(client.request(self.store.tag(), "session/new", None, 0, random));
        }
        let at = random.below(client.sessions.len());
        let name = client.sessions[at].clone();
        let busy = client
            .flight
            .iter()
            .any(|waiting| waiting.method == "session/prompt" && waiting.session.as_ref() == Some(&name));
        Some(match random.below(14) {
            0 if busy => SimClient::notification(self.store.tag(), "session/cancel", &name),
            1 => client.request(self.store.tag(), "session/list", None, 0, random),
            2 => client.request(self.store.tag(), "_x/custom", Some(name), 0, random),
            3 if !in_array => {
                client.sessions.swap_remove(at);
                client.request(self.store.tag(), "session/close", Some(name), 0, random)
            }
            12 if client.sessions.len() < 4 => {
                client.request(self.store.tag(), "session/fork", Some(name), 0, random)
            }
            13 if !in_array && random.one_in(3) => {
                client.sessions.swap_remove(at);
                client.request(self.store.tag(), "session/delete", Some(name), 0, random)
            }
            4 => SimClient::notification(self.store.tag(), "_x/note", &name),
            _ if busy => return None,
            _ => client.request(self.store.tag(), "session/prompt", Some(name), pad, random),
        })
    }

    /// Closes stalled clients, and clients that the core has closed.
    pub(super) fn close_stalled_clients(&mut self, time: Duration) {
        let millis = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        for slot in self.client_slots() {
            let Some(port) = self.net.port(slot) else { continue };
            port.stalled = if port.over { port.stalled.saturating_add(millis) } else { 0 };
            if port.closing || port.stalled > 30_000 {
                self.client_goes(slot);
            }
        }
    }
}
