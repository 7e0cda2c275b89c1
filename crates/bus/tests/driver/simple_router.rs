//! Minimal routers that report their events.

use std::cell::Cell;
use std::sync::mpsc::SyncSender;

use narrows_bus::config::{Config, Pool};
use narrows_bus::core::{
    ClientCloseReason, ClientId, ClientInfo, CoreAction, CoreOutput, PoolId, StuckReason, Time, WorkerExit,
    WorkerId,
};
use narrows_bus::driver::Router;
use narrows_wire::LineRef;
use rustix::process::{Pid, Signal, kill_process};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Mirror,
    Pairs,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Open(u32),
    Eof(u32),
    Gone(u32),
    Drained(u32),
    Up(u32, u32),
    Stuck(u32, StuckReason),
    Ended(u32, WorkerExit),
    Pressure(bool),
    Reloaded,
    Ticked,
    /// The router was asked for the pending work of a worker that it has stopped (SIGSTOP).
    PendingWorkQueried,
}

pub(crate) struct SimpleRouter {
    mode: Mode,
    pools: Vec<Pool>,
    max: usize,
    /// `true` if the client in this slot is connected, and if its worker is up.
    slots: Vec<(bool, bool)>,
    draining: bool,
    panic_at: Option<String>,
    /// The worker that the router stops at one check of the driver and continues at the next.
    paused: Cell<(Option<Pid>, bool)>,
    events: SyncSender<Event>,
}

impl SimpleRouter {
    pub(crate) fn new(mode: Mode, config: &Config, events: SyncSender<Event>) -> Self {
        let (pools, max) = (config.pools.clone(), config.limits.max_connections);
        Self {
            mode,
            pools,
            max,
            slots: Vec::new(),
            draining: false,
            panic_at: None,
            paused: Cell::default(),
            events,
        }
    }

    fn report(&self, event: Event) {
        self.events.send(event).unwrap();
    }

    fn panic_if_at(&mut self, at: &str) {
        if self.panic_at.as_deref() == Some(at) {
            self.panic_at = None;
            panic!("as asked for");
        }
    }

    fn read_rest(&mut self, out: &mut impl CoreOutput) {
        if self.draining && self.slots.iter().all(|slot| *slot == (false, false)) {
            out.perform(CoreAction::Finished);
        }
    }
}

impl Router for SimpleRouter {
    type Status = usize;

    fn start(&mut self, _: Time, _: &mut impl CoreOutput) {}

    fn client_open(&mut self, _: Time, from: ClientInfo<'_>, out: &mut impl CoreOutput) -> Option<ClientId> {
        assert_eq!(from.listener, 0);
        self.panic_if_at("open");
        if self.slots.iter().filter(|slot| slot.0).count() >= self.max {
            return None;
        }
        let free = self.slots.iter().position(|slot| *slot == (false, false));
        let slot = free.unwrap_or_else(|| {
            self.slots.push((false, false));
            self.slots.len() - 1
        });
        self.slots[slot] = (true, self.mode == Mode::Pairs);
        let slot = u32::try_from(slot).unwrap();
        if self.mode == Mode::Pairs {
            out.perform(CoreAction::Spawn { worker: WorkerId(slot), pool: PoolId(0) });
        }
        self.report(Event::Open(slot));
        Some(ClientId(slot))
    }

    fn client_line(&mut self, _: Time, client: ClientId, line: LineRef<'_>, out: &mut impl CoreOutput) {
        let LineRef::Whole(line) = line else { panic!("too long") };
        assert!(!line.ends_with(b"\"panic\"]"), "as asked for");
        if let Some(panic_at) = line.strip_prefix(b"[\"fuse\",\"") {
            self.panic_at = Some(String::from_utf8(panic_at[..panic_at.len() - 2].to_vec()).unwrap());
            out.to_client(client, &[b"[\"lit\"]"]);
            return;
        }
        if let Some(length) = line.strip_prefix(b"[\"flood\",") {
            let length: usize = std::str::from_utf8(&length[..length.len() - 1]).unwrap().parse().unwrap();
            out.to_client(client, &[&vec![b'x'; length]]);
            return;
        }
        if let Some(count) = line.strip_prefix(b"[\"slow\",") {
            let count: usize = std::str::from_utf8(&count[..count.len() - 1]).unwrap().parse().unwrap();
            for _ in 0..count {
                out.to_client(client, &[&[b'x'; 1000]]);
            }
            out.to_client(client, &[b"[\"reason\"]"]);
            out.perform(CoreAction::Close { client, reason: ClientCloseReason::SlowReader });
            return self.report(Event::Ticked);
        }
        match self.mode {
            Mode::Mirror => out.to_client(client, &[&line[..line.len() / 2], &line[line.len() / 2..]]),
            Mode::Pairs => out.to_worker(WorkerId(client.0), &[line]),
        };
    }

    fn client_eof(&mut self, _: Time, client: ClientId, out: &mut impl CoreOutput) {
        self.panic_if_at("eof");
        self.report(Event::Eof(client.0));
        match self.mode {
            Mode::Mirror => out.perform(CoreAction::Close { client, reason: ClientCloseReason::Served }),
            Mode::Pairs => out.perform(CoreAction::Stop { worker: WorkerId(client.0), kill: false }),
        }
    }

    fn client_gone(&mut self, _: Time, client: ClientId, out: &mut impl CoreOutput) {
        self.panic_if_at("gone");
        self.report(Event::Gone(client.0));
        let slot = &mut self.slots[client.0 as usize];
        slot.0 = false;
        if slot.1 {
            out.perform(CoreAction::Stop { worker: WorkerId(client.0), kill: true });
        }
        self.read_rest(out);
    }

    fn client_drained(&mut self, _: Time, client: ClientId, _: &mut impl CoreOutput) {
        self.report(Event::Drained(client.0));
    }

    fn worker_up(&mut self, _: Time, worker: WorkerId, pid: u32, _: &mut impl CoreOutput) {
        self.panic_if_at("up");
        self.paused.set((Pid::from_raw(i32::try_from(pid).unwrap()), false));
        self.report(Event::Up(worker.0, pid));
    }

    fn worker_line(&mut self, _: Time, worker: WorkerId, line: LineRef<'_>, out: &mut impl CoreOutput) {
        let LineRef::Whole(line) = line else { panic!("too long") };
        out.to_client(ClientId(worker.0), &[line]);
    }

    fn worker_drained(&mut self, _: Time, _: WorkerId, _: &mut impl CoreOutput) {}

    fn has_pending_work(&self, _: WorkerId) -> bool {
        let (Some(pid), is_paused) = self.paused.get() else { return true };
        if self.panic_at.as_deref() == Some("pause") {
            kill_process(pid, if is_paused { Signal::CONT } else { Signal::STOP }).unwrap();
            let is_done = || {
                let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
                stat.rsplit_once(") ").unwrap().1.starts_with('T') != is_paused
            };
            while !is_done() {
                std::thread::yield_now();
            }
            // Each happens once.
            self.paused.set((if is_paused { None } else { Some(pid) }, true));
            self.report(Event::PendingWorkQueried);
        }
        true
    }

    fn worker_stuck(&mut self, _: Time, worker: WorkerId, why: StuckReason, out: &mut impl CoreOutput) {
        self.report(Event::Stuck(worker.0, why));
        out.perform(CoreAction::Stop { worker, kill: true });
    }

    fn worker_gone(&mut self, _: Time, worker: WorkerId, end: &WorkerExit, out: &mut impl CoreOutput) {
        self.panic_if_at("ended");
        self.report(Event::Ended(worker.0, end.clone()));
        self.slots[worker.0 as usize].1 = false;
        out.perform(CoreAction::Close { client: ClientId(worker.0), reason: ClientCloseReason::Served });
        self.read_rest(out);
    }

    fn tick(&mut self, _: Time, _: &mut impl CoreOutput) {
        self.report(Event::Ticked);
        // The router panics at every tick.
        assert_ne!(self.panic_at.as_deref(), Some("tick"), "as asked for");
    }

    fn deadline(&self) -> Option<Time> {
        (self.panic_at.as_deref() == Some("tick")).then_some(Time::ZERO)
    }

    fn drain(&mut self, _: Time, out: &mut impl CoreOutput) {
        self.draining = true;
        self.panic_if_at("drain");
        for slot in 0..u32::try_from(self.slots.len()).unwrap() {
            out.perform(CoreAction::Close { client: ClientId(slot), reason: ClientCloseReason::Draining });
        }
        self.read_rest(out);
    }

    fn reload(&mut self, _: Time, config: &Config, _: &mut impl CoreOutput) {
        self.panic_if_at("reload");
        self.pools.clone_from(&config.pools);
        self.report(Event::Reloaded);
    }

    fn set_pressure(&mut self, on: bool) {
        self.report(Event::Pressure(on));
    }

    fn status(&self, _: Time) -> usize {
        assert_ne!(self.panic_at.as_deref(), Some("status"), "as asked for");
        self.slots.iter().filter(|slot| slot.0).count()
    }

    fn pool(&self, pool: PoolId) -> Option<&Pool> {
        self.pools.get(pool.0 as usize)
    }
}
