//! A simulated worker: handles what it reads and chooses its next message.

use std::collections::{BTreeMap, VecDeque};

use narrows_bus::config::ShareMode;
use narrows_wire::{Kind, View};

use crate::oracle::{Tag, Truth, WorkerIndex, WorkerMessage, entries, number_in, stripped, text_of};
use crate::random::Random;
use crate::scenario::PoolTraits;

/// Maximum number of sessions of a worker that accepts only a few.
const MAX_SESSIONS: usize = 4;

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) id: Vec<u8>,
    pub(crate) tag: Option<Tag>,
    pub(crate) method: String,
    pub(crate) session: Option<String>,
    server: Option<String>,
    pub(crate) cancelled: bool,
    /// `true` if its session was cancelled, not the request.
    pub(crate) stopped: bool,
    /// `true` if the request is answered, but the turn continues.
    pub(crate) begun: bool,
}

/// The sessions that all workers of a pool have on disk, and global counters.
#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) sessions: BTreeMap<(usize, String), Truth>,
    pub(crate) truths: usize,
    pub(crate) tags: usize,
}

impl Store {
    pub(crate) fn tag(&mut self) -> Tag {
        self.tags += 1;
        self.tags
    }
}

#[derive(Debug)]
pub(crate) struct SimWorker {
    pub(crate) worker_index: WorkerIndex,
    pub(crate) pool: usize,
    pub(crate) traits: PoolTraits,
    pub(crate) tasks: Vec<Task>,
    pub(crate) sessions: BTreeMap<String, Truth>,
    /// Announced child sessions, each with the session that it belongs to.
    children: Vec<(String, Truth)>,
    /// The MCP servers of its sessions. They run in clients.
    servers: BTreeMap<String, String>,
    /// Lines that are on their way to the bus, with their meaning.
    pub(crate) out: VecDeque<(Vec<u8>, Vec<WorkerMessage>)>,
    pub(crate) asking: Vec<Vec<u8>>,
    /// Ids that it has answered. It may answer them a second time.
    pub(crate) answered: Vec<Vec<u8>>,
    pub(crate) never_initializes: bool,
    pub(crate) ignores_cancel: bool,
    counter: usize,
}

impl SimWorker {
    pub(crate) fn new(worker_index: WorkerIndex, pool: usize, traits: PoolTraits) -> Self {
        Self {
            worker_index,
            pool,
            traits,
            tasks: Vec::new(),
            sessions: BTreeMap::new(),
            children: Vec::new(),
            servers: BTreeMap::new(),
            out: VecDeque::new(),
            asking: Vec::new(),
            answered: Vec::new(),
            never_initializes: false,
            ignores_cancel: false,
            counter: 0,
        }
    }

    pub(crate) fn read(&mut self, line: &[u8]) {
        let view = View::parse(line);
        match view.kind() {
            Kind::Batch => entries(line).into_iter().for_each(|entry| self.read(entry)),
            Kind::Request => {
                let method = view.method().unwrap_or_default().into_owned();
                let session = view.session().or_else(|| view.top_session()).map(std::borrow::Cow::into_owned);
                // A session that is created later is not deleted.
                let is_meant = |name: &String| method != "session/delete" || self.sessions.contains_key(name);
                self.tasks.push(Task {
                    id: view.id().unwrap_or_default().to_vec(),
                    tag: number_in(line),
                    session: session.filter(is_meant),
                    server: text_of(line, "serverId"),
                    method,
                    cancelled: false,
                    stopped: false,
                    begun: false,
                });
            }
            Kind::Notification => match view.method().as_deref() {
                Some("session/cancel") => {
                    let name = view.session();
                    for task in &mut self.tasks {
                        task.stopped |=
                            task.method == "session/prompt" && task.session.as_deref() == name.as_deref();
                        task.cancelled |= task.stopped;
                    }
                }
                Some("$/cancel_request") => {
                    for task in &mut self.tasks {
                        task.cancelled |= Some(&*task.id) == view.request_id();
                    }
                }
                _ => {}
            },
            Kind::Response => self.asking.retain(|id| Some(&**id) != view.id()),
            Kind::Invalid(_) => {}
        }
    }

    fn send(&mut self, text: String, reply: impl FnOnce(Vec<u8>) -> WorkerMessage) {
        let text = text.into_bytes();
        let reply = reply(stripped(View::parse(&text)));
        self.out.push_back((text, vec![reply]));
    }

    pub(crate) fn update(&mut self, name: &str, truth: Option<Truth>, pad: usize, store: &mut Store) {
        let tag = store.tag();
        let pad = "y".repeat(pad);
        let text = if self.traits.is_plain() {
            format!(
                "{{\"jsonrpc\":\"2.0\",\"method\":\"progress\",\"params\":{{\"sessionId\":\"{name}\",\"of\":\"#{tag}#\",\"pad\":\"{pad}\"}}}}"
            )
        } else {
            format!(
                "{{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{{\"sessionId\":\"{name}\",\"update\":{{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{{\"type\":\"text\",\"text\":\"{pad}\"}},\"_meta\":\"#{tag}#\"}}}}}}"
            )
        };
        self.send(text, |text| WorkerMessage::Notify { tag, truth, about: None, text });
    }

    fn announce(&mut self, name: &str, truth: Truth, store: &mut Store) {
        let tag = store.tag();
        let child = format!("k{}", self.children.len());
        let text = format!(
            "{{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{{\"sessionId\":\"{name}\",\"update\":{{\"sessionUpdate\":\"subagent_update\",\"sessionId\":\"{child}\",\"_meta\":\"#{tag}#\"}}}}}}"
        );
        self.children.push((child, truth));
        self.send(text, |text| WorkerMessage::Notify { tag, truth: Some(truth), about: None, text });
    }

    /// Sends a message about the children of a session. Returns `true` if it did.
    fn act_on_children(&mut self, name: &str, truth: Truth, store: &mut Store, random: &mut Random) -> bool {
        if !self.traits.announces || !random.one_in(4) {
            return false;
        }
        let own: Vec<String> = self
            .children
            .iter()
            .filter(|(_, parent)| *parent == truth)
            .map(|(child, _)| child.clone())
            .collect();
        if own.is_empty() || random.one_in(4) && own.len() < 4 {
            // A child may have children too.
            let parent = own.first().filter(|_| random.one_in(2)).cloned();
            self.announce(parent.as_deref().unwrap_or(name), truth, store);
        } else if random.one_in(4) && self.asking.len() < 3 {
            self.question(&own[random.below(own.len())], Some(truth), store);
        } else {
            self.update(&own[random.below(own.len())], Some(truth), 3, store);
        }
        true
    }

    fn state(&mut self, name: &str, state: &str, store: &mut Store) {
        let tag = store.tag();
        let truth = self.sessions.get(name).copied();
        let text = format!(
            "{{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{{\"sessionId\":\"{name}\",\"update\":{{\"sessionUpdate\":\"state_update\",\"state\":{state},\"_meta\":\"#{tag}#\"}}}}}}"
        );
        self.send(text, |text| WorkerMessage::Notify { tag, truth, about: None, text });
    }

    fn own_id(&mut self) -> String {
        self.counter += 1;
        let id = if self.counter.is_multiple_of(2) {
            format!("{}", self.counter / 2)
        } else {
            format!("\"{}\"", self.counter / 2)
        };
        self.asking.push(id.clone().into_bytes());
        id
    }

    /// Sends a request that belongs to a request of a client.
    fn elicit(&mut self, scope: Vec<u8>, store: &mut Store) {
        let tag = store.tag();
        let (id, about) = (self.own_id(), String::from_utf8_lossy(&scope).into_owned());
        let text = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"elicitation/create\",\"params\":{{\"requestId\":{about},\"mode\":\"form\",\"message\":\"#{tag}#\"}}}}"
        );
        let id = id.into_bytes();
        self.send(text, |text| WorkerMessage::Request { tag, id, truth: None, scope: Some(scope), text });
    }

    fn call(&mut self, server: &str, store: &mut Store) {
        let (tag, id) = (store.tag(), self.own_id());
        let text = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"mcp/message\",\"params\":{{\"serverId\":\"{server}\",\"message\":\"#{tag}#\"}}}}"
        );
        let id = id.into_bytes();
        self.send(text, |text| WorkerMessage::Request { tag, id, truth: None, scope: None, text });
    }

    /// Cancels its last request, or another id.
    pub(crate) fn cancel(&mut self, store: &mut Store) -> Option<()> {
        let about = self.asking.last()?.clone();
        let (tag, id) = (store.tag(), String::from_utf8_lossy(&about).into_owned());
        let text = format!(
            "{{\"jsonrpc\":\"2.0\",\"method\":\"$/cancel_request\",\"params\":{{\"requestId\":{id},\"_meta\":\"#{tag}#\"}}}}"
        );
        self.send(text, |text| WorkerMessage::Notify { tag, truth: None, about: Some(about), text });
        Some(())
    }

    pub(crate) fn question(&mut self, name: &str, truth: Option<Truth>, store: &mut Store) {
        let tag = store.tag();
        let id = self.own_id();
        let text = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"session/request_permission\",\"params\":{{\"sessionId\":\"{name}\",\"toolCall\":{{\"toolCallId\":\"#{tag}#\"}},\"options\":[]}}}}"
        );
        self.send(text, |text| WorkerMessage::Request { tag, id: id.into_bytes(), truth, scope: None, text });
    }

    fn truth_of(&self, name: &str) -> Option<Truth> {
        self.sessions.get(name).copied()
    }

    pub(crate) fn work(&mut self, at: usize, hurry: bool, store: &mut Store, random: &mut Random) {
        let task = &self.tasks[at];
        let name = task.session.clone();
        let known = name.as_deref().and_then(|name| self.truth_of(name));
        // A worker that ignores cancellations still knows which sessions exist.
        if self.never_initializes && task.method == "initialize"
            || self.ignores_cancel && task.stopped && known.is_some()
        {
            return;
        }
        let in_turn = matches!(&*task.method, "session/prompt" | "work") && !task.cancelled;
        if let Some(name) = &name
            && in_turn
            && (known.is_some() || self.traits.is_plain())
            && !hurry
            && !random.one_in(3)
        {
            if known.is_some_and(|truth| self.act_on_children(name, truth, store, random)) {
                return;
            }
            let task = &self.tasks[at];
            let scope = task.tag.is_some().then(|| task.id.clone()).filter(|_| !task.begun);
            if random.one_in(3) && self.asking.len() < 3 {
                match (scope.filter(|_| random.one_in(3)), self.servers.get(name).cloned()) {
                    (Some(scope), _) => self.elicit(scope, store),
                    (None, Some(server)) if random.one_in(2) => self.call(&server, store),
                    _ => self.question(name, known, store),
                }
            } else {
                let pad = if random.one_in(12) { 600 } else { 3 };
                self.update(name, known, pad, store);
            }
            return;
        }
        if task.begun {
            let reason = if task.cancelled {
                "\"idle\",\"stopReason\":\"cancelled\""
            } else {
                "\"idle\",\"stopReason\":\"end_turn\""
            };
            self.tasks.remove(at);
            return self.state(&name.unwrap_or_default(), reason, store);
        }
        self.finish(at, store, random);
    }

    fn finish(&mut self, at: usize, store: &mut Store, random: &mut Random) {
        let task = self.tasks.remove(at);
        let (mut opens, mut closes) = (None, None);
        let name = task.session.clone().unwrap_or_default();
        let meta =
            task.tag.map_or_else(|| "\"z\":0".to_owned(), |tag| format!("\"_meta\":{{\"n\":\"#{tag}#\"}}"));
        let missing = format!("\"error\":{{\"code\":-32002,\"message\":\"no session\",\"data\":{{{meta}}}}}");
        let body = match &*task.method {
            "initialize" => self.greeting(&meta),
            "session/new" if self.is_full() => {
                let id = task.id.clone();
                let text = format!(
                    "{{\"jsonrpc\":\"2.0\",\"id\":{},\"error\":{{\"code\":-32012,\"message\":\"full\",\"data\":{{{meta}}}}}}}",
                    String::from_utf8_lossy(&id)
                );
                return self.send(text, |text| WorkerMessage::Full { id, text });
            }
            "session/new" => {
                let name = self.minted(store);
                opens = Some((store.truths, name.clone()));
                store.truths += 1;
                format!("\"result\":{{\"sessionId\":\"{name}\",{meta}}}")
            }
            "session/load" | "session/resume" => match store.sessions.get(&(self.pool, name.clone())) {
                Some(truth) => {
                    opens = Some((*truth, name.clone()));
                    format!("\"result\":{{{meta}}}")
                }
                None => missing,
            },
            "session/list" => {
                let names: Vec<String> = self
                    .sessions
                    .keys()
                    .map(|name| format!("{{\"sessionId\":\"{name}\",\"cwd\":\"/w\"}}"))
                    .collect();
                format!("\"result\":{{\"sessions\":[{}],{meta}}}", names.join(","))
            }
            "session/fork" if self.truth_of(&name).is_none() => missing,
            "session/fork" => {
                let name = self.minted(store);
                opens = Some((store.truths, name.clone()));
                store.truths += 1;
                format!("\"result\":{{\"sessionId\":\"{name}\",{meta}}}")
            }
            "session/close" | "session/delete" => {
                closes = Some(name.clone());
                format!("\"result\":{{{meta}}}")
            }
            "session/prompt" if !self.traits.is_plain() && self.truth_of(&name).is_none() => missing,
            _ if task.cancelled && random.one_in(3) => {
                format!("\"error\":{{\"code\":-32800,\"message\":\"cancelled\",\"data\":{{{meta}}}}}")
            }
            "session/prompt" if self.traits.version() == 2 => {
                format!("\"result\":{{\"messageId\":\"m\",{meta}}}")
            }
            "session/prompt" if task.cancelled => {
                format!("\"result\":{{\"stopReason\":\"cancelled\",{meta}}}")
            }
            "session/prompt" => format!("\"result\":{{\"stopReason\":\"end_turn\",{meta}}}"),
            _ if random.one_in(5) => {
                format!("\"error\":{{\"code\":-32601,\"message\":\"no\",\"data\":{{{meta}}}}}")
            }
            _ => format!("\"result\":{{{meta}}}"),
        };
        if let Some((truth, name)) = &opens {
            self.sessions.insert(name.clone(), *truth);
            self.servers.remove(name);
            self.servers.extend(task.server.clone().map(|server| (name.clone(), server)));
            if task.method == "session/load" {
                for _ in 0..random.below(3) {
                    self.update(name, Some(*truth), 2, store);
                }
            }
            if self.traits.version() == 2 && task.method == "session/resume" {
                self.state(name, "\"idle\"", store);
            }
        }
        if let Some(name) = &closes {
            let closed = self.sessions.remove(name);
            // Names of children are not reused.
            for (_, truth) in self.children.iter_mut().filter(|(_, truth)| Some(*truth) == closed) {
                *truth = Truth::MAX;
            }
        }
        let id = String::from_utf8_lossy(&task.id).into_owned();
        let text = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{body}}}");
        self.answered.push(task.id.clone());
        self.send(text, |text| WorkerMessage::Answer { id: id.into_bytes(), opens, closes, text });
        if task.method == "session/prompt"
            && self.traits.version() == 2
            && self.truth_of(&name).is_some()
            && body.contains("messageId")
        {
            self.state(&name, "\"running\"", store);
            self.tasks.push(Task { begun: true, ..task });
        }
    }

    fn greeting(&self, meta: &str) -> String {
        if self.traits.version() == 2 {
            return format!(
                "\"result\":{{\"protocolVersion\":2,\"info\":{{\"name\":\"w\",\"version\":\"1\"}},\"capabilities\":{{\"session\":{{}}}},{meta}}}"
            );
        }
        let resume = if self.traits.resume { "\"resume\":{}," } else { "" };
        format!(
            "\"result\":{{\"protocolVersion\":1,\"agentCapabilities\":{{\"loadSession\":{},\"sessionCapabilities\":{{{resume}\"list\":{{}},\"close\":{{}}}}}},{meta}}}",
            self.traits.load
        )
    }

    fn is_full(&self) -> bool {
        self.traits.narrow && self.traits.share == ShareMode::All && self.sessions.len() >= MAX_SESSIONS
    }

    /// Returns a name for a new session. Workers that can load sessions use unique names, others count from
    /// one.
    fn minted(&mut self, store: &mut Store) -> String {
        if self.traits.load || self.traits.resume {
            let name = (1..)
                .map(|at| format!("s{at}"))
                .find(|name| !store.sessions.contains_key(&(self.pool, name.clone())))
                .unwrap_or_default();
            store.sessions.insert((self.pool, name.clone()), store.truths);
            name
        } else {
            self.counter += 1;
            format!("s{}", self.counter)
        }
    }
}
