//! Whole conversations with the core, compared with the lines and actions that the core outputs.

mod access;
mod accounts;
mod batches;
mod bounds;
mod cancel_request;
mod capacity;
mod children;
mod corners;
mod costs;
mod counted_names;
mod crossings;
mod edges;
mod faults;
mod governed;
mod identities;
mod identities_at_one_worker;
mod keys;
mod late_restores;
mod limits;
mod memory;
mod name_owners;
mod observers;
mod openings;
mod progress;
mod reloads;
mod routes;
mod sessions;
mod shared_workers;
mod turns;
mod worker_lifecycle;

use std::collections::BTreeMap;
use std::time::Duration;

use narrows_wire::View;
use serde_json::{Value, json};

use crate::config::{AdminConfig, BusLimits, Config, ListenerSettings, Pool, PoolProtocol, ShareMode};

use super::{ANYONE, ClientId, ClientInfo, Core, CoreAction, CoreOutput, Time, WorkerExit, WorkerId};

struct TestBus {
    core: Core,
    now: Time,
    output: Output,
}

/// Collects the lines and actions of the core as text, and counts the bytes queued for each peer.
#[derive(Default)]
struct Output {
    seen: Vec<String>,
    waiting: BTreeMap<String, usize>,
    queued: BTreeMap<u32, Vec<u8>>,
}

impl CoreOutput for Output {
    fn to_client(&mut self, client: ClientId, parts: &[&[u8]]) -> usize {
        self.put(format!("c{}", client.0), parts)
    }

    fn to_worker(&mut self, worker: WorkerId, parts: &[&[u8]]) -> usize {
        let queued = self.queued.entry(worker.0).or_default();
        queued.extend_from_slice(&parts.concat());
        queued.push(b'\n');
        self.put(format!("w{}", worker.0), parts)
    }

    fn perform(&mut self, action: CoreAction) {
        self.seen.push(format!("{action:?}"));
    }
}

impl Output {
    fn put(&mut self, who: String, parts: &[&[u8]]) -> usize {
        let line = parts.concat();
        self.seen.push(format!("{who} < {}", String::from_utf8(line.clone()).unwrap()));
        let waiting = self.waiting.entry(who).or_default();
        *waiting += line.len() + 1;
        *waiting
    }
}

fn config(pools: Vec<Pool>) -> Config {
    Config {
        listen: vec![ListenerSettings::new(crate::config::ListenAddr::Stdio)],
        pools,
        limits: BusLimits::default(),
        admin: AdminConfig::default(),
    }
}

fn pool(share: ShareMode) -> Pool {
    Pool { share, ..Pool::new("p", vec!["agent".into()]) }
}

fn able() -> Value {
    json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true,
        "sessionCapabilities": {"resume": {}, "list": {}, "close": {}}}, "authMethods": [{"id": "x", "name": "X"}]})
}

impl TestBus {
    fn new(config: &Config) -> Self {
        let mut bus = Self { core: Core::new(config, 1), now: Time::ZERO, output: Output::default() };
        bus.core.start(bus.now, &mut bus.output);
        bus
    }

    fn shared(workers: u32) -> Self {
        let mut bus = Self::new(&config(vec![Pool { instances: workers, ..pool(ShareMode::All) }]));
        for worker in 0..workers {
            bus.up(worker);
            bus.answer(worker, 1, &able());
        }
        bus.output.seen.clear();
        bus
    }

    fn open(&mut self) -> u32 {
        let from = ClientInfo::new(0, ANYONE);
        let client = self.core.client_open(self.now, from, &mut self.output).unwrap().0;
        self.initialized(client);
        client
    }

    /// Marks a client as initialized. Only for tests in which all pools are shared.
    fn initialized(&mut self, client: u32) {
        if self.core.pools.iter().all(|pool| pool.is_shared() && pool.is_acp())
            && let Some(state) = self.core.clients.key_at(client).and_then(|client| self.core.client(client))
        {
            state.initialize = Some(b"{\"protocolVersion\":1}".as_slice().into());
        }
    }

    fn line(&mut self, client: u32, line: &str) {
        self.core.client_line(self.now, ClientId(client), View::parse(line.as_bytes()), &mut self.output);
    }

    fn request(&mut self, client: u32, id: u64, method: &str, params: &Value) {
        let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.line(client, &line.to_string());
    }

    fn notify(&mut self, client: u32, method: &str, params: &Value) {
        self.line(client, &json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string());
    }

    fn up(&mut self, worker: u32) {
        self.core.worker_up(self.now, WorkerId(worker), 100 + worker, &mut self.output);
    }

    fn worker_sends(&mut self, worker: u32, line: &str) {
        self.core.worker_line(self.now, WorkerId(worker), View::parse(line.as_bytes()), &mut self.output);
    }

    fn answer(&mut self, worker: u32, id: u64, result: &Value) {
        self.worker_sends(worker, &json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string());
    }

    fn fail(&mut self, worker: u32, id: u64, code: i64) {
        let error = json!({"code": code, "message": "no"});
        self.worker_sends(worker, &json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string());
    }

    fn update(&mut self, worker: u32, session: &str, text: &str) {
        let params = json!({"sessionId": session, "update": text});
        self.worker_sends(
            worker,
            &json!({"jsonrpc": "2.0", "method": "session/update", "params": params}).to_string(),
        );
    }

    /// Ends a worker that has read all lines sent to it.
    fn kill_worker(&mut self, worker: u32) {
        let bytes_read = self.output.queued.remove(&worker).unwrap_or_default().len() as u64;
        self.exit_worker(worker, bytes_read, Vec::new());
    }

    /// Ends a worker that has read `bytes_read` bytes. The lines in `unsent` were never written to it.
    fn exit_worker(&mut self, worker: u32, bytes_read: u64, unsent: Vec<u8>) {
        let end =
            WorkerExit { reason: "killed by SIGKILL".into(), bytes_read, unsent, ..WorkerExit::default() };
        self.output.queued.remove(&worker);
        self.core.worker_gone(self.now, WorkerId(worker), &end, &mut self.output);
    }

    fn disconnect(&mut self, client: u32) {
        self.core.client_gone(self.now, ClientId(client), &mut self.output);
    }

    fn advance(&mut self, seconds: f64) {
        let until = self.now + Duration::from_secs_f64(seconds);
        while let Some(at) = self.core.deadline().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.core.tick(self.now, &mut self.output);
        }
        self.now = until;
    }

    /// Creates a session for `client` that `worker` calls `name`, and discards the output.
    fn session(&mut self, client: u32, worker: u32, name: &str) {
        self.request(client, 1_000, "session/new", &json!({"cwd": "/"}));
        let id = self.last_id(worker);
        self.answer(worker, id, &json!({"sessionId": name}));
        self.output.seen.clear();
    }

    fn last_id(&self, worker: u32) -> u64 {
        last_id_in(&self.output.seen.join("\n"), worker)
    }

    fn seen(&mut self) -> String {
        std::mem::take(&mut self.output.seen).join("\n")
    }
}

fn last_id_in(seen: &str, worker: u32) -> u64 {
    let start = format!("w{worker} < ");
    let line = seen.lines().rev().find_map(|line| line.strip_prefix(&start)).unwrap();
    serde_json::from_str::<Value>(line).unwrap()["id"].as_u64().unwrap()
}

fn prompt(session: &str) -> Value {
    json!({"sessionId": session, "prompt": []})
}
