//! Several clients in one session, with random moves and a model that predicts the output.

mod model;
mod moves;

use std::collections::BTreeMap;

use narrows_bus::config::{
    AdminConfig, BusLimits, Config, ListenAddr, ListenerAuth, ListenerSettings, Pool, ShareMode,
};
use narrows_bus::core::{ClientId, ClientInfo, Core, CoreAction, CoreOutput, PoolId, Time, WorkerId};
use narrows_wire::View;
use serde_json::{Value, json};

use crate::digest::Digest;
use crate::random::Random;
use model::{Ask, Session};

/// Number of occurrences of each move, over all runs.
pub(crate) type MoveCounts = BTreeMap<&'static str, usize>;

#[derive(Default)]
struct Net {
    to_clients: Vec<(u32, Vec<u8>)>,
    to_worker: Vec<Value>,
    spawned: Vec<(WorkerId, PoolId)>,
    digest: Digest,
}

impl CoreOutput for Net {
    fn to_client(&mut self, client: ClientId, parts: &[&[u8]]) -> usize {
        self.digest.client_line(client.0, parts);
        self.to_clients.push((client.0, parts.concat()));
        0
    }

    fn to_worker(&mut self, worker: WorkerId, parts: &[&[u8]]) -> usize {
        self.digest.worker_line(worker.0, parts);
        self.to_worker.push(serde_json::from_slice(&parts.concat()).expect("JSON"));
        0
    }

    fn perform(&mut self, action: CoreAction) {
        self.digest.action(&action);
        if let CoreAction::Spawn { worker, pool } = action {
            self.spawned.push((worker, pool));
        }
    }
}

struct ConnectedClient {
    identity: usize,
    next: u64,
    /// Requests that the client no longer has to answer.
    stale: Vec<Value>,
}

pub(crate) struct Watched<'a> {
    core: Core,
    net: Net,
    random: Random,
    worker: WorkerId,
    /// `true` if the worker can replay the history of a session.
    tells: bool,
    /// Maximum number of bytes kept per session.
    limit: usize,
    clients: BTreeMap<u32, ConnectedClient>,
    sessions: BTreeMap<String, Session>,
    asks: BTreeMap<u64, Ask>,
    counter: u64,
    seed: u64,
    counts: &'a mut MoveCounts,
}

fn config(limit: usize) -> Config {
    let Ok(ListenerSettings { addr: ListenAddr::Web(mut web), .. }) =
        ListenerSettings::parse("http://127.0.0.1:1/acp")
    else {
        unreachable!("it is a place")
    };
    web.auth = ListenerAuth::Token;
    let mut pool = Pool::new("p0", vec!["agent".to_owned()]);
    pool.client_meta = vec!["n".to_owned()];
    (pool.share, pool.mix_identities, pool.max_instances) = (ShareMode::All, true, 1);
    Config {
        listen: vec![ListenerSettings::new(ListenAddr::Web(web))],
        pools: vec![pool],
        limits: BusLimits { replay_bytes: limit, ..BusLimits::default() },
        admin: AdminConfig::default(),
    }
}

impl<'a> Watched<'a> {
    pub(crate) fn new(seed: u64, counts: &'a mut MoveCounts) -> Self {
        let mut random = Random::new(seed);
        let (limit, tells) = (random.pick(&[400, 1 << 20]), random.one_in(2));
        let (mut core, mut net) = (Core::new(&config(limit), seed), Net::default());
        core.start(Time::ZERO, &mut net);
        let (worker, _) = net.spawned.pop().expect("a worker");
        core.worker_up(Time::ZERO, worker, 1, &mut net);
        let mut watched = Self {
            core,
            net,
            random,
            worker,
            tells,
            limit,
            clients: BTreeMap::new(),
            sessions: BTreeMap::new(),
            asks: BTreeMap::new(),
            counter: 0,
            seed,
            counts,
        };
        let asked = watched.net.to_worker.pop().expect("initialize");
        let can =
            json!({"loadSession": tells, "sessionCapabilities": {"resume": {}, "list": {}, "close": {}}});
        watched.worker_answers(&asked["id"], &json!({"protocolVersion": 1, "agentCapabilities": can}));
        watched
    }

    /// Runs this many random steps, and returns the digest of the run.
    pub(crate) fn run(mut self, steps: usize) -> Digest {
        for _ in 0..steps {
            self.step();
            assert!(self.net.to_clients.is_empty() && self.net.to_worker.is_empty(), "seed {}", self.seed);
        }
        self.net.digest
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn number(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    fn connect_client(&mut self, identity: usize) -> u32 {
        let name = format!("token:{identity}");
        let from = ClientInfo::new(0, &name);
        let client = self.core.client_open(Time::ZERO, from, &mut self.net).expect("there is room").0;
        self.clients.insert(client, ConnectedClient { identity, next: 0, stale: Vec::new() });
        let id = self.request(client, "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
        let answer = self.only_answer(client, &id);
        assert_eq!(answer["result"]["protocolVersion"], 1, "seed {}: {answer}", self.seed);
        client
    }

    fn request(&mut self, client: u32, method: &str, params: &Value) -> Value {
        let client_state = self.clients.get_mut(&client).expect("it is there");
        client_state.next += 1;
        let id = json!(client_state.next);
        self.says(client, &json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    fn says(&mut self, client: u32, message: &Value) {
        let line = message.to_string();
        self.core.client_line(Time::ZERO, ClientId(client), View::parse(line.as_bytes()), &mut self.net);
    }

    fn worker_says(&mut self, message: &Value) {
        let line = message.to_string();
        self.core.worker_line(Time::ZERO, self.worker, View::parse(line.as_bytes()), &mut self.net);
    }

    fn worker_answers(&mut self, id: &Value, result: &Value) {
        self.worker_says(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
    }

    fn client_lines(&mut self) -> Vec<(u32, Value)> {
        let lines = std::mem::take(&mut self.net.to_clients);
        lines
            .into_iter()
            .map(|(client, line)| (client, serde_json::from_slice(&line).expect("JSON")))
            .collect()
    }

    fn worker_lines(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.net.to_worker)
    }

    /// Returns the only line sent to the worker. It must have this method.
    #[track_caller]
    fn only_request_to_worker(&mut self, method: &str) -> Value {
        let handed = self.worker_lines();
        assert!(
            handed.len() == 1 && handed[0]["method"] == method,
            "seed {}: {method}: {handed:?}",
            self.seed
        );
        handed.into_iter().next().unwrap_or_default()
    }

    /// Returns the response to a request. It must be the only line sent to any client.
    #[track_caller]
    fn only_answer(&mut self, client: u32, id: &Value) -> Value {
        let heard = self.client_lines();
        let is_it = heard.len() == 1 && heard[0].0 == client && heard[0].1["id"] == *id;
        assert!(
            is_it && heard[0].1.get("method").is_none(),
            "seed {}: {id} of {client}: {heard:?}",
            self.seed
        );
        heard.into_iter().next().map(|(_, answer)| answer).unwrap_or_default()
    }

    /// Checks that a request was refused with this code and did not reach the worker.
    #[track_caller]
    fn check_refused(&mut self, client: u32, id: &Value, code: i64) {
        let answer = self.only_answer(client, id);
        assert_eq!(answer["error"]["code"], code, "seed {}: {answer}", self.seed);
        assert_eq!(self.worker_lines(), Vec::<Value>::new(), "seed {}", self.seed);
    }
}
