//! The end of a run: all requests settle, the bus serves new clients, and then it stops.

use std::time::Duration;

use super::World;
use crate::client::SimClient;

/// Time to settle everything without further faults. The expiry of sessions without a client takes longest.
const SETTLE_TIME: Duration = Duration::from_secs(400);

impl World {
    /// Stops the faults, and lets all peers act until nothing is left to do.
    pub(super) fn settle(&mut self) {
        let end = self.now + SETTLE_TIME;
        self.core.set_pressure(false);
        let mut rounds = 0;
        while self.now < end && !self.is_wrong() && !self.net.finished {
            rounds += 1;
            if rounds > 5_000 {
                return self.wrong(format!("the run does not settle at {:?}", self.now));
            }
            if !self.round() {
                let Some(deadline) = self.core.deadline().filter(|at| *at < end) else { break };
                let time = deadline.saturating_sub(self.now).max(Duration::from_millis(1));
                self.pass(time);
                self.close_stalled_clients(time);
            }
        }
        if let Some(oracle) = &mut self.net.oracle
            && !self.net.finished
        {
            oracle.settle();
        }
    }

    /// Lets each peer act once. Returns `true` if anything happened.
    fn round(&mut self) -> bool {
        let before = self.net.digest;
        let mut moved = false;
        for slot in self.worker_slots() {
            let bytes =
                |world: &Self| world.net.procs[slot].as_ref().map(|proc| (proc.up, proc.written, proc.read));
            let was = bytes(self);
            self.worker_moves(slot, 1 << 20);
            moved |= was != bytes(self) || self.net.proc(slot).is_some_and(|proc| proc.stop.is_some());
            let Some(proc) = self.net.procs[slot].as_mut() else { continue };
            if !proc.frozen {
                for at in (0..proc.worker.tasks.len()).rev() {
                    proc.worker.work(at, true, &mut self.store, &mut self.random);
                }
            }
            while self.net.proc(slot).is_some_and(|proc| !proc.paused && !proc.worker.out.is_empty()) {
                moved = true;
                self.pass_worker_line(slot);
            }
        }
        for slot in self.client_slots() {
            self.client_reads(slot, 1_000);
            while self.is_read(slot)
                && let Some(port) = self.net.port(slot)
                && let Some(id) = port.client.questions.pop()
            {
                moved = true;
                let line = SimClient::answer(self.store.tag(), &id, &mut self.random);
                self.pass_client_line(slot, line);
            }
            if self
                .net
                .port(slot)
                .is_some_and(|port| port.closing || port.ended && !port.client.questions.is_empty())
            {
                moved = true;
                self.client_goes(slot);
            }
        }
        moved || before != self.net.digest
    }

    /// Advances to the core's next deadline, or by a second.
    fn pass_to_deadline(&mut self) {
        let most = Duration::from_secs(1);
        let until = self.core.deadline().map_or(most, |at| at.saturating_sub(self.now).min(most));
        self.pass(until.max(Duration::from_millis(1)));
    }

    /// Checks that a new client of each pool is served.
    pub(super) fn probe(&mut self) {
        for slot in self.client_slots() {
            self.client_goes(slot);
        }
        self.settle();
        if self.draining {
            return;
        }
        let left = self.core.status(self.now);
        if self.scenario.faults == 0 && left.counters.strikes > 0 {
            self.wrong(format!("BW2 protocol violations of workers without a fault: {left:?}"));
        }
        // A worker that ignores cancellations may never answer a prompt of a closed session.
        let deaf = self
            .net
            .procs
            .iter()
            .flatten()
            .any(|proc| proc.worker.ignores_cancel && !proc.worker.tasks.is_empty());
        if left.clients + left.sessions > 0 || left.pending > 0 && !deaf {
            self.wrong(format!("I6 state is kept without clients: {left:?}"));
        }
        for proc in self.net.procs.iter_mut().flatten() {
            proc.worker.never_initializes = false;
            proc.worker.ignores_cancel = false;
        }
        for listener in 0..self.scenario.config.listen.len() {
            let Some(slot) = self.connect(listener, listener) else {
                return self.wrong("the bus accepts no client although none is connected".to_owned());
            };
            let plain = self.net.port(slot).is_some_and(|port| port.client.traits.is_plain());
            let plan: &[&'static str] =
                if plain { &["work", "work"] } else { &["initialize", "session/new", "session/prompt"] };
            for method in plan {
                self.probe_with(slot, listener, method);
                if self.is_wrong() {
                    return;
                }
            }
        }
    }

    fn probe_with(&mut self, slot: usize, listener: usize, method: &'static str) {
        let tag = self.store.tag();
        let Some(port) = self.net.ports[slot].as_mut() else {
            return self.wrong(format!("the last client of listener {listener} was disconnected"));
        };
        let session = (method == "session/prompt").then(|| port.client.sessions.first().cloned()).flatten();
        let line = port.client.request(tag, method, session, 2, &mut self.random);
        let served = self.net.oracle.as_ref().map(|oracle| oracle.served);
        self.pass_client_line(slot, line);
        for _ in 0..200 {
            let moved = self.round();
            if self.net.port(slot).is_none_or(|port| port.client.flight.is_empty()) {
                break;
            }
            if !moved {
                self.pass_to_deadline();
            }
        }
        let greeted =
            self.net.port(slot).is_some_and(|port| port.client.flight.is_empty() && port.client.greeted);
        let worked = method == "initialize"
            || self.net.oracle.as_ref().is_none_or(|oracle| Some(oracle.served) > served);
        if !greeted || !worked {
            self.wrong(format!(
                "the last client of listener {listener} was not served when it said {method}"
            ));
        }
    }

    /// Stops the bus and checks that nothing is left after forty seconds.
    pub(super) fn finish(&mut self) {
        self.drain();
        let end = self.now + Duration::from_secs(40);
        let mut rounds = 0;
        while !self.net.finished && self.now <= end && rounds < 5_000 && !self.is_wrong() {
            rounds += 1;
            if !self.round() {
                self.pass_to_deadline();
            }
        }
        if !self.net.finished {
            return self
                .wrong("F41 the bus has not ended forty seconds after the start of the drain".to_owned());
        }
        for slot in self.client_slots() {
            self.client_goes(slot);
        }
        let left = self.core.status(self.now);
        if left.clients + left.pending > 0 || !self.worker_slots().is_empty() {
            self.wrong(format!("something is left at the end: {left:?}"));
        }
    }

    pub(super) fn drain(&mut self) {
        self.draining = true;
        self.net.trace_line(|| "drain".to_owned());
        self.core.drain(self.now, &mut self.net);
        self.after();
    }
}
