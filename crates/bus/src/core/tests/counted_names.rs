//! Random runs of agents that serve several identities and number everything. Sessions, children and servers
//! have equal names in each worker. No message of one identity may reach another.
//!
//! `NARROWS_NAMES_SEED=17` runs one seed and prints all lines. `NARROWS_NAMES_SEEDS` sets the number of
//! seeds.

use std::collections::BTreeMap;

use narrows_wire::Kind;

use super::identities::authenticating;
use super::*;

const IDENTITIES: [&str; 2] = ["token:a", "token:b"];

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

/// The state of an agent. An agent never forgets who owns a name.
#[derive(Default)]
struct Agent {
    owners: BTreeMap<String, usize>,
    /// The owner of each MCP server, by the id that the worker got in the request to open a session.
    servers: BTreeMap<String, usize>,
    pending: Vec<Value>,
    sessions: usize,
    children: usize,
    requests: usize,
}

struct Client {
    identity: usize,
    sessions: Vec<String>,
    /// Names that the client asked to load or resume, by request id.
    opening: BTreeMap<u64, String>,
    next_id: u64,
    asked: Vec<u64>,
}

struct Run {
    bus: TestBus,
    settings: Config,
    random: Random,
    protocol: PoolProtocol,
    agents: BTreeMap<u32, Agent>,
    clients: BTreeMap<u32, Client>,
    reloads: usize,
    trace: Vec<String>,
    delivered: usize,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let protocol = if random.below(2) == 0 { PoolProtocol::V1 } else { PoolProtocol::V2 };
        let instances = 1 + random.below(3) as u32;
        let mut pool = Pool { instances, protocol, mix_identities: true, ..pool(ShareMode::All) };
        if random.below(2) == 0 {
            pool.client_capabilities = json!({"subagents": {}});
        }
        let mut settings = authenticating(vec![pool]);
        settings.limits.restart_budget = 1_000;
        settings.limits.session_grace = Duration::from_secs(30);
        Self {
            bus: TestBus::new(&settings),
            settings,
            random,
            protocol,
            agents: BTreeMap::new(),
            clients: BTreeMap::new(),
            reloads: 0,
            trace: vec![format!("seed {seed}")],
            delivered: 0,
        }
    }

    /// Checks all output of the core, and what it causes, until there is none left.
    fn settle(&mut self) {
        while !self.bus.output.seen.is_empty() {
            for line in std::mem::take(&mut self.bus.output.seen) {
                self.trace.push(line.clone());
                if let Some(worker) = number_after(&line, "Spawn { worker: WorkerId(") {
                    self.agents.insert(worker, Agent::default());
                    self.bus.up(worker);
                } else if let Some(worker) = number_after(&line, "Stop { worker: WorkerId(") {
                    if self.agents.remove(&worker).is_some() {
                        self.bus.kill_worker(worker);
                    }
                } else if let Some((who, text)) = line.split_once(" < ") {
                    let slot: u32 = who[1..].parse().unwrap();
                    let message: Value = serde_json::from_str(text).unwrap();
                    match who.starts_with('c') {
                        true => self.client_hears(slot, &message),
                        false => self.agent_reads(slot, message, text),
                    }
                    self.bus.output.waiting.insert(who.to_owned(), 0);
                }
            }
        }
    }

    fn wrong(&self, what: &str) -> ! {
        panic!("{what}\n{}", self.trace.join("\n"));
    }

    fn client_hears(&mut self, slot: u32, message: &Value) {
        let Some(identity) = self.clients.get(&slot).map(|client| client.identity) else { return };
        if let Some(owner) = message.pointer("/params/_meta/owner").and_then(Value::as_u64) {
            self.delivered += 1;
            if owner != identity as u64 {
                self.wrong(&format!("client {slot} of identity {identity} got a message of {owner}"));
            }
        }
        let Some(client) = self.clients.get_mut(&slot) else { return };
        match (message["id"].as_u64(), message.get("method").is_some()) {
            (Some(id), true) => client.asked.push(id),
            (Some(id), false) => {
                let created = message.pointer("/result/sessionId").and_then(Value::as_str);
                let name = client.opening.remove(&id).or_else(|| created.map(str::to_owned));
                if let Some(name) = name.filter(|_| message.get("result").is_some())
                    && !client.sessions.contains(&name)
                {
                    client.sessions.push(name);
                }
            }
            (None, _) => {}
        }
    }

    fn agent_reads(&mut self, slot: u32, message: Value, text: &str) {
        let Some(agent) = self.agents.get_mut(&slot) else { return };
        if View::parse(text.as_bytes()).kind() != Kind::Request {
            return;
        }
        let mut fault = None;
        let identity = identity_in(&message);
        let name = message.pointer("/params/sessionId").and_then(Value::as_str);
        let owner = name.and_then(|name| agent.owners.get(name)).copied();
        if identity.is_some_and(|identity| owner.is_some_and(|owner| owner != identity)) {
            fault = Some(format!("{text} is for a session of {owner:?} at worker {slot}"));
        }
        let servers = message.pointer("/params/mcpServers").and_then(Value::as_array);
        for (server, identity) in servers.into_iter().flatten().zip(identity.into_iter().cycle()) {
            let server = server["serverId"].as_str().unwrap();
            // If no session has the server's id any more, the id may belong to another client.
            let holder = self.bus.holder_of_server(slot, server);
            if holder.is_some_and(|holder| holder != identity) {
                fault = Some(format!("{text} is with the server of {holder:?} at worker {slot}"));
            }
            agent.servers.insert(server.to_owned(), identity);
        }
        agent.pending.push(message);
        if let Some(fault) = fault {
            self.wrong(&fault);
        }
    }

    fn agent_answers(&mut self, slot: u32) {
        let Some(agent) = self.agents.get_mut(&slot).filter(|agent| !agent.pending.is_empty()) else {
            return;
        };
        let request = agent.pending.remove(self.random.below(agent.pending.len()));
        let id = request["id"].as_u64().unwrap();
        let method = request["method"].as_str().unwrap_or_default();
        let name = request.pointer("/params/sessionId").and_then(Value::as_str);
        let identity = identity_in(&request);
        // The agent may have given the name to another session after it has read the request.
        let known = name.is_some_and(|name| agent.owners.contains_key(name));
        let result = match method {
            "initialize" if self.protocol == PoolProtocol::V2 => {
                Some(json!({"protocolVersion": 2, "capabilities": {"session": {}}}))
            }
            "initialize" => Some(able()),
            "session/new" => {
                let name = loop {
                    agent.sessions += 1;
                    let name = format!("s{}", agent.sessions);
                    if !agent.owners.contains_key(&name) {
                        break name;
                    }
                };
                agent.owners.insert(name.clone(), identity.unwrap());
                Some(json!({"sessionId": name}))
            }
            // Some sessions of the agent are on disk, and were not opened since its start.
            "session/load" | "session/resume" => (known || self.random.below(2) == 0).then(|| {
                agent.owners.entry(name.unwrap().to_owned()).or_insert(identity.unwrap());
                json!({})
            }),
            "session/prompt" => Some(json!({"stopReason": "end_turn"})),
            _ => Some(json!({})),
        };
        match result {
            Some(result) => self.bus.answer(slot, id, &result),
            None => self.bus.fail(slot, id, -32002),
        }
    }

    /// Sends a message of an agent, marked with the identity that may get it.
    fn agent_speaks(&mut self, slot: u32) {
        let Some(agent) = self.agents.get_mut(&slot).filter(|agent| !agent.owners.is_empty()) else { return };
        let at = self.random.below(agent.owners.len());
        let Some((name, owner)) = agent.owners.iter().nth(at).map(|(name, owner)| (name.clone(), *owner))
        else {
            return;
        };
        let meta = json!({"owner": owner});
        let (method, params) = match self.random.below(5) {
            0 => {
                // Agents number children together with the sessions or apart from them.
                let count = if self.random.below(2) == 0 { &mut agent.children } else { &mut agent.sessions };
                *count += 1;
                let child = format!("s{count}");
                if agent.owners.contains_key(&child) {
                    return;
                }
                agent.owners.insert(child.clone(), owner);
                let update = json!({"sessionUpdate": "subagent_update", "sessionId": child});
                ("session/update", json!({"sessionId": name, "update": update, "_meta": meta}))
            }
            1 => ("session/request_permission", json!({"sessionId": name, "options": [], "_meta": meta})),
            2 if !agent.servers.is_empty() => {
                let at = self.random.below(agent.servers.len());
                let Some((server, owner)) = agent.servers.iter().nth(at) else { return };
                ("mcp/message", json!({"serverId": server, "method": "x", "_meta": {"owner": owner}}))
            }
            _ => ("session/update", json!({"sessionId": name, "update": "text", "_meta": meta})),
        };
        let mut line = json!({"jsonrpc": "2.0", "method": method, "params": params});
        if method != "session/update" {
            agent.requests += 1;
            line["id"] = json!(format!("r{}", agent.requests));
        }
        self.trace.push(format!("worker {slot}: {line}"));
        self.bus.worker_sends(slot, &line.to_string());
    }

    fn client_acts(&mut self, slot: u32) {
        let Some(client) = self.clients.get_mut(&slot) else { return };
        client.next_id += 1;
        let id = client.next_id;
        let cwd = format!("/of-{}", client.identity);
        let servers = match self.random.below(2) {
            0 => json!([]),
            _ => json!([{"type": "acp", "name": "files", "serverId": "files"}]),
        };
        // The client sometimes uses an unknown name, or one of another identity.
        let is_guess = client.sessions.is_empty() || self.random.below(6) == 0;
        let name = match is_guess {
            true => format!("s{}", 1 + self.random.below(4)),
            false => client.sessions[self.random.below(client.sessions.len())].clone(),
        };
        let (method, params) = match self.random.below(9) {
            0..=2 => ("session/new", json!({"cwd": cwd, "mcpServers": servers})),
            3 => ("session/load", json!({"sessionId": name, "cwd": cwd, "mcpServers": servers})),
            4 => ("session/resume", json!({"sessionId": name, "cwd": cwd, "mcpServers": servers})),
            5 => ("session/close", json!({"sessionId": name, "cwd": cwd})),
            6 if !client.asked.is_empty() => {
                let asked = client.asked.remove(0);
                let line =
                    json!({"jsonrpc": "2.0", "id": asked, "result": {"outcome": {"outcome": "cancelled"}}});
                self.bus.line(slot, &line.to_string());
                return;
            }
            _ => ("session/prompt", json!({"sessionId": name, "cwd": cwd, "prompt": []})),
        };
        if matches!(method, "session/load" | "session/resume") {
            client.opening.insert(id, name);
        }
        self.trace.push(format!("client {slot}: {id} {method} {params}"));
        self.bus.request(slot, id, method, &params);
    }

    fn step(&mut self) {
        let workers: Vec<u32> = self.agents.keys().copied().collect();
        let clients: Vec<u32> = self.clients.keys().copied().collect();
        let worker = (!workers.is_empty()).then(|| workers[self.random.below(workers.len())]);
        let client = (!clients.is_empty()).then(|| clients[self.random.below(clients.len())]);
        match (self.random.below(100), worker, client) {
            (0..=3, ..) if clients.len() < 6 => {
                let identity = self.random.below(IDENTITIES.len());
                let slot = self.bus.open_as(IDENTITIES[identity]);
                let (opening, asked) = (BTreeMap::new(), Vec::new());
                let client = Client { identity, sessions: Vec::new(), opening, next_id: 0, asked };
                self.clients.insert(slot, client);
                self.trace.push(format!("client {slot} of {identity} comes"));
            }
            (4, _, Some(client)) => {
                self.clients.remove(&client);
                self.trace.push(format!("client {client} leaves"));
                self.bus.disconnect(client);
            }
            (5..=6, Some(worker), _) => {
                self.agents.remove(&worker);
                self.trace.push(format!("worker {worker} dies"));
                self.bus.kill_worker(worker);
            }
            (7, ..) => {
                self.reloads += 1;
                self.trace.push("reload".to_owned());
                self.settings.pools[0].env.insert("X".to_owned(), self.reloads.to_string());
                self.bus.core.reload(self.bus.now, &self.settings, &mut self.bus.output);
            }
            (8..=10, ..) => {
                let seconds = [0.5, 3.0, 40.0][self.random.below(3)];
                self.bus.advance(seconds);
            }
            (11..=35, _, Some(client)) => self.client_acts(client),
            (36..=60, Some(worker), _) => self.agent_speaks(worker),
            (_, Some(worker), _) => self.agent_answers(worker),
            _ => {}
        }
        self.settle();
    }
}

impl TestBus {
    /// Returns the identity whose server a worker knows by this id, if its client is connected.
    fn holder_of_server(&self, worker: u32, server: &str) -> Option<usize> {
        let state = self.core.workers.get(self.core.workers.key_at(worker)?)?;
        let client = self.core.clients.get(state.servers.get(server)?.client)?;
        let name = self.core.identities.name(client.identity);
        IDENTITIES.iter().position(|identity| *identity == &*name)
    }
}

/// Returns the identity that a message names in its working directory. Clients encode their identity there,
/// and the bus repeats the directory when it restores a session.
fn identity_in(message: &Value) -> Option<usize> {
    message.pointer("/params/cwd").and_then(Value::as_str)?.strip_prefix("/of-")?.parse().ok()
}

fn number_after(line: &str, start: &str) -> Option<u32> {
    let rest = line.strip_prefix(start)?;
    rest[..rest.find(')')?].parse().ok()
}

#[test]
fn nothing_of_one_identity_reaches_another() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let one = number("NARROWS_NAMES_SEED");
    let seeds = one.map_or(0..number("NARROWS_NAMES_SEEDS").unwrap_or(150), |seed| seed..seed + 1);
    let mut delivered = 0;
    for seed in seeds {
        let mut run = Run::new(seed);
        run.settle();
        for _ in 0..400 {
            run.step();
        }
        delivered += run.delivered;
        if one.is_some() {
            println!("{}", run.trace.join("\n"));
        }
    }
    assert!(one.is_some() || delivered > 1_000, "{delivered}");
}
