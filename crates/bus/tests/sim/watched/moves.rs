//! Random moves and their expected output.

use narrows_bus::core::{ClientId, Time};
use serde_json::{Value, json};

use super::Watched;
use super::model::{Ask, Session};

/// The code for a session that does not exist for this client.
const UNKNOWN: i64 = -32002;
/// The code for a session that another client has.
const IN_USE: i64 = -32602;

/// Removes the mark of a replay. Returns `true` if it was there.
fn unmarked(mut message: Value) -> (Value, bool) {
    let Some(params) = message["params"].as_object_mut() else { return (message, false) };
    let marked = params.get("_meta").is_some_and(|meta| meta["narrows"]["replay"] == true);
    if marked {
        params.remove("_meta");
    }
    (message, marked)
}

impl Watched<'_> {
    pub(super) fn step(&mut self) {
        match self.random.below(20) {
            0 | 1 if self.clients.len() < 6 => {
                let identity = usize::from(self.random.one_in(4));
                self.connect_client(identity);
                self.count("came");
            }
            2 if self.sessions.len() < 3 => self.open_session(),
            3 => self.disconnect_client(),
            4..=6 => self.join_session(),
            7 => self.leave_session(),
            8 | 9 => self.send_prompt(),
            10 | 11 => self.worker_sends_update(),
            12 | 13 => self.worker_sends_request(),
            14 | 15 => self.answer_request(),
            16 => self.end_turn(),
            17 => self.use_foreign_session(),
            18 if self.random.one_in(2) => self.answer_late(),
            18 => self.worker_cancels_request(),
            _ if self.random.one_in(6) => self.close_session(),
            _ => self.send_other_request(),
        }
    }

    fn some_client(&mut self) -> Option<u32> {
        let all: Vec<u32> = self.clients.keys().copied().collect();
        (!all.is_empty()).then(|| self.random.pick(&all))
    }

    fn some_session(&mut self, fits: impl Fn(&Session) -> bool) -> Option<String> {
        let fitting = self.sessions.iter().filter(|(_, session)| fits(session)).map(|(name, _)| name.clone());
        let all: Vec<String> = fitting.collect();
        (!all.is_empty()).then(|| all[self.random.below(all.len())].clone())
    }

    fn session(&mut self, name: &str) -> &mut Session {
        self.sessions.get_mut(name).expect("it is there")
    }

    fn open_session(&mut self) {
        let Some(client) = self.some_client() else { return };
        let id = self.request(client, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
        let asked = self.only_request_to_worker("session/new");
        let name = format!("s{}", self.number());
        self.worker_answers(&asked["id"], &json!({"sessionId": name}));
        assert_eq!(self.only_answer(client, &id)["result"]["sessionId"], json!(name));
        let identity = self.clients[&client].identity;
        self.sessions.insert(name, Session { identity, owner: Some(client), ..Session::default() });
        self.count("opened");
    }

    /// A client joins a session that another client has, or none.
    fn join_session(&mut self) {
        let Some(client) = self.some_client() else { return };
        let identity = self.clients[&client].identity;
        let Some(name) =
            self.some_session(|session| session.identity == identity && session.owner != Some(client))
        else {
            return;
        };
        let load = self.random.one_in(2);
        let session = &self.sessions[&name];
        let (is_held, is_busy) = (session.owner.is_some(), session.turn.is_some());
        if !is_held && (is_busy || load && !self.tells) {
            return;
        }
        let method = if load { "session/load" } else { "session/resume" };
        let id = self.request(client, method, &json!({"sessionId": name, "cwd": "/w", "mcpServers": []}));
        if !is_held || load && self.tells && !is_busy {
            return self.check_replay(client, &id, &name, load);
        }
        assert_eq!(self.worker_lines(), Vec::<Value>::new(), "seed {}", self.seed);
        let mut heard = self.client_lines();
        assert!(heard.iter().all(|(by, _)| *by == client), "seed {}: {heard:?}", self.seed);
        let (_, answer) = heard.pop().expect("an answer");
        let session = self.session(&name);
        assert_eq!(answer["id"], id);
        assert_eq!(answer["result"]["_meta"]["narrows"]["replay"]["complete"], !session.gone, "{answer}");
        let kept: Vec<Value> = session.ring.iter().map(|(line, _)| line.clone()).collect();
        if !session.observers.contains(&client) {
            session.observers.push(client);
        }
        // The kept updates come first, then the pending requests.
        let asked = heard.split_off(kept.len().min(heard.len()));
        let told: Vec<Value> = heard
            .into_iter()
            .map(|(_, message)| {
                let (message, marked) = unmarked(message);
                assert!(marked, "a replayed message is marked as a replay: {message}");
                message
            })
            .collect();
        assert_eq!(told, kept, "seed {}", self.seed);
        let mut due: Vec<u64> = Vec::new();
        for (number, ask) in &self.asks {
            let is_new = ask.takers.iter().all(|(taker, _)| *taker != client);
            due.extend((ask.session == name && ask.for_all && is_new).then_some(*number));
        }
        assert_eq!(asked.len(), due.len(), "seed {}: {asked:?}", self.seed);
        for (_, message) in asked {
            let number = message["params"]["number"].as_u64().expect("a number");
            assert!(due.contains(&number), "seed {}: {message}", self.seed);
            self.asks.get_mut(&number).expect("it is open").takers.push((client, message["id"].clone()));
        }
        self.count("attached");
    }

    /// The worker replays the history to the requester only.
    fn check_replay(&mut self, client: u32, id: &Value, name: &str, load: bool) {
        let asked = self.only_request_to_worker(if load { "session/load" } else { "session/resume" });
        assert_eq!(asked["params"]["sessionId"], json!(name));
        let limit = self.limit;
        let session = self.session(name);
        let is_watching = session.owner.is_some();
        let history = if load { session.history.clone() } else { Vec::new() };
        if !is_watching {
            (session.ring, session.gone) = (Default::default(), !load);
        }
        for line in &history {
            self.worker_says(line);
            let length = self.net.to_clients.first().map_or(0, |(_, line)| line.len());
            assert_eq!(self.client_lines(), [(client, line.clone())], "seed {}", self.seed);
            if !is_watching {
                self.session(name).keep(line.clone(), length, limit);
            }
        }
        self.worker_answers(&asked["id"], &json!({}));
        let answer = self.only_answer(client, id);
        assert!(answer["result"].is_object(), "seed {}: {answer}", self.seed);
        let session = self.session(name);
        if !is_watching {
            session.owner = Some(client);
            self.count("taken up");
        } else {
            if !session.observers.contains(&client) {
                session.observers.push(client);
            }
            self.count("told a history");
        }
    }

    fn leave_session(&mut self) {
        let Some(name) = self.some_session(|session| !session.observers.is_empty()) else { return };
        let observers = self.sessions[&name].observers.clone();
        let client = self.random.pick(&observers);
        let id = self.request(client, "session/close", &json!({"sessionId": name}));
        let mut withdrawn = Vec::new();
        for ask in self.asks.values_mut().filter(|ask| ask.session == name) {
            withdrawn
                .extend(ask.takers.iter().filter(|(taker, _)| *taker == client).map(|(_, id)| id.clone()));
            ask.takers.retain(|(taker, _)| *taker != client);
        }
        let mut heard = self.client_lines();
        let at = heard.iter().position(|(_, message)| message["id"] == id && message.get("method").is_none());
        let (_, answer) = heard.remove(at.expect("an answer"));
        assert!(answer["result"].is_object(), "seed {}: {answer}", self.seed);
        self.check_withdrawn(heard, withdrawn.into_iter().map(|id| (client, id)).collect());
        assert_eq!(self.worker_lines(), Vec::<Value>::new(), "the worker gets no line");
        self.session(&name).observers.retain(|observer| *observer != client);
        self.count("detached");
    }

    #[track_caller]
    fn check_withdrawn(&mut self, heard: Vec<(u32, Value)>, mut due: Vec<(u32, Value)>) {
        for (client, message) in heard {
            assert_eq!(message["method"], "$/cancel_request", "seed {}: {client} {message}", self.seed);
            let told = (client, message["params"]["requestId"].clone());
            let at = due.iter().position(|one| *one == told);
            assert!(at.is_some(), "seed {}: {told:?} is none of {due:?}", self.seed);
            let (client, id) = due.swap_remove(at.unwrap_or(0));
            self.clients.get_mut(&client).expect("it is there").stale.push(id);
        }
        assert!(due.is_empty(), "seed {}: {due:?} were not told", self.seed);
    }

    fn send_prompt(&mut self) {
        let Some(client) = self.some_client() else { return };
        let identity = self.clients[&client].identity;
        let Some(name) = self.some_session(|session| session.identity == identity && session.owner.is_some())
        else {
            return;
        };
        let session = &self.sessions[&name];
        let (is_on, is_owner) = (session.all().contains(&client), session.owner == Some(client));
        let is_busy = session.turn.is_some();
        if is_owner && is_busy {
            return;
        }
        let prompt = json!({"sessionId": name, "prompt": [{"type": "text", "text": "go"}]});
        let id = self.request(client, "session/prompt", &prompt);
        if !is_on || is_busy {
            self.check_refused(client, &id, IN_USE);
            return self.count("was refused a turn");
        }
        let asked = self.only_request_to_worker("session/prompt");
        assert_eq!(self.client_lines(), [], "seed {}", self.seed);
        let session = self.session(&name);
        session.turn = Some((asked["id"].clone(), Some((client, id))));
        if is_owner {
            self.count("began a turn");
        } else {
            session.swap(client);
            self.count("took over");
        }
    }

    /// The worker sends an update in a turn: all clients of the session get it.
    fn worker_sends_update(&mut self) {
        let Some(name) = self.some_session(|session| session.turn.is_some() && session.owner.is_some())
        else {
            return;
        };
        let text = format!("{} {}", self.number(), "x".repeat(self.random.below(80)));
        let content = json!({"type": "text", "text": text});
        let update = json!({"sessionUpdate": "agent_message_chunk", "content": content});
        let line = json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": name, "update": update}});
        self.worker_says(&line);
        let length = self.net.to_clients.first().map_or(0, |(_, line)| line.len());
        let mut heard = self.client_lines();
        heard.sort_by_key(|(client, _)| *client);
        let limit = self.limit;
        let session = self.session(&name);
        let mut all = session.all();
        all.sort_unstable();
        let expected: Vec<(u32, Value)> = all.into_iter().map(|client| (client, line.clone())).collect();
        let count = expected.len();
        session.history.push(line.clone());
        session.keep(line, length, limit);
        assert_eq!(heard, expected, "seed {}", self.seed);
        self.count(if count > 1 { "said to several" } else { "said" });
    }

    /// The worker sends a request in a turn: a permission request to all clients, a file request to the
    /// controller.
    fn worker_sends_request(&mut self) {
        let Some(name) = self.some_session(|session| session.turn.is_some() && session.owner.is_some())
        else {
            return;
        };
        let number = self.number();
        let for_all = !self.random.one_in(4);
        let params = json!({"sessionId": name, "number": number, "path": "/w/a", "toolCall": {"toolCallId": "t"}, "options": []});
        let method = if for_all { "session/request_permission" } else { "fs/read_text_file" };
        self.worker_says(&json!({"jsonrpc": "2.0", "id": number, "method": method, "params": params}));
        let heard = self.client_lines();
        let session = &self.sessions[&name];
        let mut due = if for_all { session.all() } else { session.owner.into_iter().collect() };
        let mut takers = Vec::new();
        for (client, message) in heard {
            assert_eq!((&message["method"], &message["params"]), (&json!(method), &params));
            takers.push((client, message["id"].clone()));
        }
        let mut asked: Vec<u32> = takers.iter().map(|(client, _)| *client).collect();
        asked.sort_unstable();
        due.sort_unstable();
        assert_eq!(asked, due, "seed {}", self.seed);
        let count = takers.len();
        self.asks.insert(number, Ask { session: name, for_all, takers });
        self.count(if count > 1 { "asked several" } else { "asked one" });
    }

    fn some_ask(&mut self) -> Option<u64> {
        let all: Vec<u64> = self.asks.keys().copied().collect();
        (!all.is_empty()).then(|| self.random.pick(&all))
    }

    /// One client answers: the worker gets the answer, and the request is withdrawn from the others.
    fn answer_request(&mut self) {
        let Some(number) = self.some_ask() else { return };
        let Ask { takers, .. } = self.asks.remove(&number).expect("it is open");
        let at = self.random.below(takers.len());
        let (client, id) = takers[at].clone();
        let result = json!({"outcome": {"outcome": "selected", "optionId": format!("by {client}")}});
        self.says(client, &json!({"jsonrpc": "2.0", "id": id, "result": result}));
        assert_eq!(self.worker_lines(), [json!({"jsonrpc": "2.0", "id": number, "result": result})]);
        let heard = self.client_lines();
        let others: Vec<_> = takers.into_iter().filter(|taker| *taker != (client, id.clone())).collect();
        let several = !others.is_empty();
        self.check_withdrawn(heard, others);
        self.clients.get_mut(&client).expect("it is there").stale.push(id);
        self.count(if several { "answered first" } else { "answered" });
    }

    /// A client answers a request that is already answered or unknown.
    fn answer_late(&mut self) {
        let Some(client) = self.some_client() else { return };
        let client_state = self.clients.get_mut(&client).expect("it is there");
        let id = client_state.stale.pop().unwrap_or_else(|| json!(1_000_000));
        self.says(
            client,
            &json!({"jsonrpc": "2.0", "id": id, "result": {"outcome": {"outcome": "cancelled"}}}),
        );
        assert_eq!(
            (self.client_lines(), self.worker_lines()),
            (Vec::new(), Vec::new()),
            "seed {}",
            self.seed
        );
        self.count("answered late");
    }

    /// The worker cancels its request, which is withdrawn from all clients.
    fn worker_cancels_request(&mut self) {
        let Some(number) = self.some_ask() else { return };
        self.worker_says(
            &json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": number}}),
        );
        let mut told: Vec<(u32, String)> = self
            .client_lines()
            .into_iter()
            .map(|(client, message)| (client, message["params"]["requestId"].to_string()))
            .collect();
        let mut due: Vec<(u32, String)> =
            self.asks[&number].takers.iter().map(|(client, id)| (*client, id.to_string())).collect();
        told.sort();
        due.sort();
        assert_eq!(told, due, "seed {}", self.seed);
        // The first client has to answer the cancellation. For the others, the request is withdrawn.
        let ask = self.asks.get_mut(&number).expect("it is open");
        ask.for_all = false;
        for (client, id) in ask.takers.split_off(1) {
            self.clients.get_mut(&client).expect("it is there").stale.push(id);
        }
        self.count("took back");
    }

    fn end_turn(&mut self) {
        let Some(name) = self.some_session(|session| session.turn.is_some()) else { return };
        if self.asks.values().any(|ask| ask.session == name) {
            return;
        }
        let Some((asked, asker)) = self.session(&name).turn.take() else { return };
        self.worker_answers(&asked, &json!({"stopReason": "end_turn"}));
        match asker {
            Some((client, id)) => {
                assert_eq!(self.only_answer(client, &id)["result"]["stopReason"], "end_turn");
            }
            None => assert_eq!(self.client_lines(), [], "seed {}", self.seed),
        }
        self.count("ended a turn");
    }

    /// A client disconnects and gets nothing more. The oldest observer becomes the controller.
    fn disconnect_client(&mut self) {
        let Some(client) = self.some_client() else { return };
        self.core.client_gone(Time::ZERO, ClientId(client), &mut self.net);
        // The grace period is zero, but only a timer ends the turn.
        self.core.tick(Time::ZERO, &mut self.net);
        self.clients.remove(&client);
        assert_eq!(self.client_lines(), [], "seed {}", self.seed);
        let mut alone = Vec::new();
        for (number, ask) in &mut self.asks {
            ask.takers.retain(|(taker, _)| *taker != client);
            alone.extend(ask.takers.is_empty().then_some(*number));
        }
        self.asks.retain(|_, ask| !ask.takers.is_empty());
        let mut left = Vec::new();
        let mut promoted = 0;
        for (name, session) in &mut self.sessions {
            let had = session.owner == Some(client);
            session.leave(client);
            promoted += usize::from(had && session.owner.is_some());
            left.extend((had && session.owner.is_none() && session.turn.is_some()).then(|| name.clone()));
        }
        // No client is left to answer a request or to wait for the turn.
        let (stopped, answered): (Vec<Value>, Vec<Value>) =
            self.worker_lines().into_iter().partition(|line| line["method"] == "session/cancel");
        let mut numbers: Vec<u64> = answered.iter().filter_map(|line| line["id"].as_u64()).collect();
        numbers.sort_unstable();
        assert_eq!(
            (numbers, answered.len()),
            (alone.clone(), alone.len()),
            "seed {}: {answered:?}",
            self.seed
        );
        let mut names: Vec<String> = stopped
            .iter()
            .filter_map(|line| Some(line["params"]["sessionId"].as_str()?.to_owned()))
            .collect();
        names.sort();
        assert_eq!(names, left, "seed {}", self.seed);
        for name in left {
            let Some((asked, _)) = self.session(&name).turn.take() else { continue };
            self.worker_answers(&asked, &json!({"stopReason": "cancelled"}));
            assert_eq!(self.client_lines(), [], "seed {}", self.seed);
        }
        self.count(if promoted > 0 { "left to another" } else { "left" });
    }

    /// A client of another identity, or one that has not joined the session, or one that uses an unknown
    /// name.
    fn use_foreign_session(&mut self) {
        let Some(client) = self.some_client() else { return };
        let identity = self.clients[&client].identity;
        let foreign = self.some_session(|session| session.identity != identity);
        let method = self.random.pick(&["session/load", "session/resume", "session/prompt", "session/close"]);
        let is_foreign = foreign.is_some();
        // A request for an unknown session goes to the worker.
        if !is_foreign && method != "session/prompt" {
            return;
        }
        let name = foreign.unwrap_or_else(|| "nowhere".to_owned());
        let params = json!({"sessionId": name, "cwd": "/w", "mcpServers": [], "prompt": []});
        let id = self.request(client, method, &params);
        self.check_refused(client, &id, UNKNOWN);
        self.count(if is_foreign { "intruded" } else { "named none" });
    }

    /// The controller may send other requests, and only it gets the response. Other clients may not send
    /// them.
    fn send_other_request(&mut self) {
        let Some(name) = self.some_session(|session| session.owner.is_some()) else { return };
        let all = self.sessions[&name].all();
        let client = self.random.pick(&all);
        let id = self.request(client, "_x/custom", &json!({"sessionId": name}));
        if self.sessions[&name].owner != Some(client) {
            self.check_refused(client, &id, IN_USE);
            return self.count("was not let steer");
        }
        let asked = self.only_request_to_worker("_x/custom");
        let number = self.number();
        self.worker_answers(&asked["id"], &json!({"number": number}));
        assert_eq!(self.only_answer(client, &id)["result"]["number"], number);
        self.count("did something else");
    }

    fn close_session(&mut self) {
        let Some(name) = self.some_session(|session| session.owner.is_some() && session.turn.is_none())
        else {
            return;
        };
        let Some(client) = self.sessions[&name].owner else { return };
        let id = self.request(client, "session/close", &json!({"sessionId": name}));
        let asked = self.only_request_to_worker("session/close");
        self.worker_answers(&asked["id"], &json!({}));
        assert!(self.only_answer(client, &id)["result"].is_object());
        self.sessions.remove(&name);
        self.count("closed");
    }
}
