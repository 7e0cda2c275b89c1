//! Checks of workers' lines: each line arrives once, comes from a client of this worker, and was sent by that
//! client.

use narrows_wire::{Kind, View};

use super::text::names_in;
use super::{
    About, ConnIndex, Due, FromWorker, Oracle, REPEATABLE, Tag, Thing, Truth, TruthState, WorkerIndex,
    WorkerMessage, entries, number_in, stripped,
};

impl Oracle {
    pub(crate) fn record_worker_line(
        &mut self,
        worker: WorkerIndex,
        said: Vec<WorkerMessage>,
        is_array: bool,
    ) {
        let array = is_array.then(|| {
            self.arrays
                .push(said.iter().filter(|entry| matches!(entry, WorkerMessage::Request { .. })).count());
            self.arrays.len() - 1
        });
        for entry in said {
            match entry {
                WorkerMessage::Answer { id, opens, closes, text } => {
                    self.worker_answered(worker, &id, opens, closes, text);
                }
                WorkerMessage::Full { id, text } => {
                    if let Some(tag) = self.workers[worker].asked.remove(&id)
                        && let Some(asked) = self.asked(tag)
                    {
                        asked.handed.pop();
                        asked.full = Some(text);
                    }
                }
                WorkerMessage::Malformed { id, code } => {
                    if let Some(tag) = self.workers[worker].asked.remove(&id)
                        && let Some(asked) = self.asked(tag)
                        && asked.said.is_none()
                    {
                        asked.malformed = Some(code);
                    }
                }
                WorkerMessage::Request { tag, id, truth, scope, text } => {
                    self.workers[worker].asking.insert(id.clone(), tag);
                    let scope = scope.map(|scope| self.workers[worker].asked.get(&scope).copied());
                    let about = About { scope, taken_back: None, array };
                    self.put_from_worker(worker, tag, Some(id), truth, about, text);
                }
                WorkerMessage::Notify { tag, truth, about, text } => {
                    let taken_back = about.map(|about| self.workers[worker].asking.get(&about).copied());
                    let about = About { scope: None, taken_back, array };
                    self.put_from_worker(worker, tag, None, truth, about, text);
                }
                WorkerMessage::Noise | WorkerMessage::TooLong => {}
            }
        }
    }

    fn put_from_worker(
        &mut self,
        worker: WorkerIndex,
        tag: Tag,
        id: Option<Vec<u8>>,
        truth: Option<Truth>,
        about: About,
        text: Vec<u8>,
    ) {
        let is_tell = id.is_none();
        let thing =
            FromWorker { worker, id, truth, about, text, delivered: None, said: None, answered: false };
        self.put(tag, Thing::FromWorker(thing));
        let Some(truth) = truth else { return };
        let Some(owner) = self.truth(truth).and_then(|state| state.owner) else { return };
        let in_turn = self.conns[owner].flight.values().any(|asked| match &self.things[*asked] {
            Thing::Asked(asked) => {
                asked.method == "session/prompt"
                    && asked.truth == Some(truth)
                    && asked.said.is_none()
                    && asked.malformed.is_none()
                    && asked.handed.last().is_some_and(|(last, _, _)| *last == worker)
            }
            _ => false,
        });
        if in_turn
            && is_tell
            && self.conns[owner].open
            && let Some(state) = self.truth(truth)
        {
            state.undelivered.push_back(tag);
        }
    }

    fn worker_answered(
        &mut self,
        worker: WorkerIndex,
        id: &[u8],
        opens: Option<(Truth, String)>,
        closes: Option<String>,
        text: Vec<u8>,
    ) {
        let tag = self.workers[worker].asked.remove(id);
        let asked =
            tag.and_then(|tag| self.asked(tag)).map(|asked| (asked.conn, asked.method, asked.answered));
        // A session that the bus itself closed had no client, and may be loaded in another worker by now.
        if let Some(name) = closes
            && let Some(truth) = self.workers[worker].sessions.remove(&name)
            && let Some((conn, "session/close" | "session/delete", _)) = asked
            && let Some(state) = self.truth(truth).filter(|state| state.owner == Some(conn))
        {
            state.owner = None;
        }
        if let Some((truth, name)) = opens {
            self.workers[worker].sessions.insert(name, truth);
            while self.truths.len() <= truth {
                self.truths.push(None);
            }
            match (&mut self.truths[truth], asked) {
                (Some(state), _) => state.worker = worker,
                (empty, Some((conn, "session/new" | "session/fork", answered))) => {
                    let identity = self.conns[conn].identity;
                    let owner = (!answered).then_some(conn);
                    *empty = Some(TruthState {
                        identity,
                        owner,
                        taking: None,
                        worker,
                        visible: None,
                        undelivered: [].into(),
                    });
                    let is_new = asked.is_some_and(|(_, method, _)| method == "session/new");
                    self.workers[worker].opened += usize::from(is_new);
                    if self.workers[worker].kind.per_session && self.workers[worker].opened > 1 {
                        self.wrong(format!(
                            "worker {worker} has several sessions though each session has its own"
                        ));
                    }
                }
                _ => {}
            }
            if let Some(tag) = tag
                && let Some(asked) = self.asked(tag)
            {
                asked.truth = Some(truth);
            }
        }
        let Some(tag) = tag else { return };
        if let Some((conn, "session/list", _)) = asked
            && !self.workers[worker].spent
        {
            self.record_list(worker, conn, tag, &text);
        }
        let spent = self.workers[worker].spent;
        if let Some(asked) = self.asked(tag)
            && asked.said.is_none()
            && !asked.answered
            && asked.malformed.is_none()
        {
            asked.said = Some(text);
            asked.late = spent;
            if !spent && !REPEATABLE.contains(&asked.method) {
                self.due.push(Due::Answered(tag));
            }
        }
    }

    fn record_list(&mut self, worker: WorkerIndex, conn: ConnIndex, tag: Tag, text: &[u8]) {
        let identity = self.conns[conn].identity;
        for name in names_in(text) {
            let Some(truth) = self.workers[worker].sessions.get(&name).copied() else { continue };
            let is_hidden = self.truths[truth].as_ref().is_some_and(|state| {
                let holds =
                    |owner: ConnIndex| self.conns[owner].open && self.conns[owner].identity != identity;
                state.identity != identity && (self.strict || state.owner.is_some_and(holds))
            });
            let Some(asked) = self.asked(tag) else { continue };
            asked.hidden.extend(is_hidden.then_some(truth));
            asked.listed.push((name, truth));
        }
    }

    /// Checks a line to a worker. Its first byte is the `start`th of all bytes for this worker.
    pub(crate) fn check_worker_line(&mut self, worker: WorkerIndex, start: u64, line: &[u8]) {
        let view = View::parse(line);
        match view.kind() {
            Kind::Invalid(fault) => {
                self.wrong(format!("worker {worker} got a line that is not JSON-RPC ({fault:?})"));
            }
            Kind::Batch => {
                let parts = entries(line);
                let mut named = None;
                for entry in &parts {
                    let view = View::parse(entry);
                    if view.kind() != Kind::Response {
                        self.wrong(format!(
                            "worker {worker} is sent an array with something else than answers"
                        ));
                        continue;
                    }
                    let array = self.answer_returned(worker, view);
                    if *named.get_or_insert(array) != array || array.is_none() {
                        self.wrong(format!(
                            "F58 worker {worker} got an array of answers to requests of several arrays"
                        ));
                    }
                }
                if let Some(owed) = named.flatten().map(|array| self.arrays[array])
                    && owed != parts.len()
                {
                    self.wrong(format!("F58 worker {worker} got {} of {owed} answers", parts.len()));
                }
            }
            Kind::Response => {
                if self.answer_returned(worker, view).is_some() {
                    self.wrong(format!("F58 worker {worker} got one answer of an array outside of an array"));
                }
            }
            Kind::Request => self.request_handed(worker, start, view),
            Kind::Notification => self.notification_handed(worker, view),
        }
    }

    fn request_handed(&mut self, worker: WorkerIndex, start: u64, view: View<'_>) {
        let method = view.method().unwrap_or_default().into_owned();
        let id = view.id().unwrap_or_default().to_vec();
        let own = |method: &str| REPEATABLE.contains(&method) || method == "session/close";
        let Some(tag) = number_in(view.bytes()).filter(
            |tag| matches!(self.things.get(*tag), Some(Thing::Asked(asked)) if asked.method == method),
        ) else {
            if !own(&method) {
                self.wrong(format!("the bus itself sent the request {method} to worker {worker}"));
            }
            return;
        };
        let Some(asked) = self.asked(tag) else { return };
        let (conn, text, earlier) = (asked.conn, asked.text.clone(), asked.handed.clone());
        let (answered, session, method) = (asked.answered, asked.session.clone(), asked.method);
        let repeatable = REPEATABLE.contains(&method);
        if !repeatable {
            if answered {
                self.wrong(format!("#{tag}# {method} was handed to worker {worker} after it was answered"));
            }
            for (other, at, _) in &earlier {
                if self.workers[*other].alive {
                    self.wrong(format!(
                        "I2 #{tag}# {method} was handed to worker {worker} while worker {other} has it"
                    ));
                } else if self.workers[*other].read > *at {
                    self.wrong(format!(
                        "I2 #{tag}# {method} was sent again though worker {other} had read of it"
                    ));
                }
            }
            let state = &mut self.conns[conn];
            if let Some(at) = state.doubled.iter().position(|(_, doubled)| *doubled == tag) {
                let (id, _) = state.doubled.remove(at);
                if state.flight.insert(id, tag).is_some() {
                    self.wrong(format!("F20 #{tag}# {method} was handed on though its id is in use"));
                }
            }
            if text != stripped(view) {
                self.wrong(format!("#{tag}# {method} was changed on its way to worker {worker}"));
            }
        }
        if self.workers[worker].asked.insert(id.clone(), tag).is_some() {
            self.wrong(format!("worker {worker} got one id for two requests"));
        }
        let is_everybodys = matches!(method, "session/list" | "session/delete");
        if !is_everybodys || self.workers[worker].identity.is_some() {
            // A session is loaded in the worker that has it, even if another identity loads one that was left
            // there.
            let here = view.session().and_then(|name| self.workers[worker].sessions.get(&*name).copied());
            let is_there = matches!(method, "session/load" | "session/resume") && here.is_some();
            // One without a client can also be closed and deleted where it is.
            let is_ended = matches!(method, "session/close" | "session/delete")
                && here.is_some_and(|here| self.is_left_to(here, conn));
            if !is_ended {
                self.used_by(worker, conn, is_there);
            }
        }
        let truth = self.session_used(worker, conn, tag, method, session.as_deref(), view);
        if let Some(asked) = self.asked(tag) {
            asked.handed.push((worker, start, id));
            if truth.is_some() {
                asked.truth = truth;
            }
        }
    }

    fn notification_handed(&mut self, worker: WorkerIndex, view: View<'_>) {
        let method = view.method().unwrap_or_default().into_owned();
        let told = number_in(view.bytes()).and_then(|tag| match self.things.get_mut(tag) {
            Some(Thing::Told(told)) => {
                told.times += 1;
                Some((tag, told.conn, told.session.clone(), told.about, told.text.clone(), told.times))
            }
            _ => None,
        });
        let Some((tag, conn, session, about, text, times)) = told else {
            if !matches!(&*method, "session/cancel" | "$/cancel_request" | "notifications/initialized") {
                self.wrong(format!("the bus itself sent the notification {method} to worker {worker}"));
            }
            return;
        };
        if times > 1 {
            self.wrong(format!("#{tag}# {method} was sent twice"));
        }
        if text != stripped(view) {
            self.wrong(format!("#{tag}# {method} was changed on its way to worker {worker}"));
        }
        self.used_by(worker, conn, false);
        if let Some(about) = about {
            let id = view.request_id().unwrap_or_default().to_vec();
            let owner = self.workers[worker]
                .asked
                .get(&id)
                .copied()
                .and_then(|tag| self.asked(tag))
                .map(|asked| asked.conn);
            if owner != Some(conn) && !self.was_asked(about, worker, &id) {
                self.wrong(format!("#{tag}# cancelled another request than #{about}# in worker {worker}"));
            }
        } else {
            self.session_used(worker, conn, tag, "", session.as_deref(), view);
        }
    }

    fn was_asked(&mut self, tag: Tag, worker: WorkerIndex, id: &[u8]) -> bool {
        self.asked(tag)
            .is_some_and(|asked| asked.handed.iter().any(|(at, _, given)| *at == worker && given == id))
    }

    fn answer_returned(&mut self, worker: WorkerIndex, view: View<'_>) -> Option<usize> {
        let id = view.id().unwrap_or(b"null").to_vec();
        if id == b"null" {
            return None;
        }
        let Some(tag) = self.workers[worker].asking.remove(&id) else {
            if self.workers[worker].alive {
                let id = String::from_utf8_lossy(&id).into_owned();
                self.wrong(format!(
                    "worker {worker} is given an answer with id {id} that it does not wait for"
                ));
            }
            return None;
        };
        let text = stripped(view);
        let thing = self.of_worker(tag)?;
        thing.answered = true;
        let (said, delivered, array) = (thing.said.clone(), thing.delivered, thing.about.array);
        match said {
            Some(said) if said != text => {
                self.wrong(format!("#{tag}#: worker {worker} got another answer than its client sent"));
            }
            None if number_in(view.bytes()).is_some() => {
                self.wrong(format!(
                    "#{tag}#: worker {worker} is given an answer that its client did not give"
                ));
            }
            _ => {}
        }
        if let Some(conn) = delivered {
            self.conns[conn].asked.retain(|_, asked| *asked != tag);
        }
        array
    }

    /// Returns `true` if a session of the identity of `conn` has no client.
    fn is_left_to(&self, truth: Truth, conn: ConnIndex) -> bool {
        let state = self.truths.get(truth).and_then(Option::as_ref);
        state.is_some_and(|state| {
            let is_held = state.owner.is_some_and(|owner| self.conns[owner].open);
            !is_held && state.identity == self.conns[conn].identity
        })
    }

    fn used_by(&mut self, worker: WorkerIndex, conn: ConnIndex, is_there: bool) {
        let identity = self.conns[conn].identity;
        let open: Vec<bool> = self.workers[worker].users.iter().map(|user| self.conns[*user].open).collect();
        let state = &mut self.workers[worker];
        if state.users.contains(&conn) {
            return;
        }
        state.users.push(conn);
        let first = *state.identity.get_or_insert(identity);
        if first != identity && !state.kind.mixed {
            self.wrong(format!("worker {worker} serves two users"));
        } else if state.kind.per_connection && open.contains(&true) && !is_there {
            self.wrong(format!("worker {worker} serves two connections though each has its own"));
        }
    }
}
