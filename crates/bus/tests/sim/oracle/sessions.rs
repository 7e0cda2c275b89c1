//! Checks of sessions: the clients and workers that may use one, its location, and the order of messages.

use narrows_wire::View;

use super::text::{is_same, names_in, text_of};
use super::{About, ConnIndex, Oracle, Tag, Thing, Truth, TruthState, WorkerIndex, number_in, stripped};

impl Oracle {
    /// Checks that a client's message about a session goes to the right worker. Returns the session.
    pub(super) fn session_used(
        &mut self,
        worker: WorkerIndex,
        conn: ConnIndex,
        tag: Tag,
        method: &str,
        name: Option<&str>,
        view: View<'_>,
    ) -> Option<Truth> {
        let name = name?;
        let kind = self.workers[worker].kind;
        if kind.plain {
            self.plain_used(worker, conn, name);
            return None;
        }
        let local = view.session().unwrap_or_default().into_owned();
        let here = self.workers[worker].sessions.get(&local).copied();
        let meant = self.visible.get(name).copied();
        if matches!(method, "session/load" | "session/resume") {
            self.check_open(conn, tag, meant, !kind.per_connection && !kind.per_session);
            return here.or(meant);
        }
        if method == "session/delete" {
            // Workers that do not know the session are asked too.
            let owner = here.and_then(|here| self.truth(here)?.owner).filter(|owner| self.conns[*owner].open);
            if owner.is_some_and(|owner| owner != conn) && !kind.per_connection {
                self.wrong(format!("#{tag}# of connection {conn} deletes a session of {owner:?}"));
            }
            return here;
        }
        let (Some(here), Some(meant)) = (here, meant) else {
            // An exclusive worker may decide itself, and so may a worker that is to load the session.
            if !self.is_exclusive_to(worker, conn) && !self.is_opening_stored(worker, conn, name) {
                self.wrong(format!(
                    "#{tag}# {method} for session {name} was handed to worker {worker}, which has no {local}"
                ));
            }
            return None;
        };
        let held = self.truth(here).and_then(|state| state.owner).is_some_and(|owner| self.conns[owner].open);
        let is_nobodys = method == "session/close" && !held;
        if here != meant && !self.is_exclusive_to(worker, conn) && !is_nobodys {
            self.wrong(format!(
                "#{tag}# {method} for session {name} reached another session, {local} of worker {worker}"
            ));
        }
        let owner = self.truth(here).and_then(|state| state.owner);
        if owner != Some(conn) && !kind.per_connection && method != "session/close" {
            self.wrong(format!("#{tag}# {method} of connection {conn} reached a session of {owner:?}"));
        }
        Some(here)
    }

    fn plain_used(&mut self, worker: WorkerIndex, conn: ConnIndex, name: &str) {
        let (users, at) = self.names.entry(name.to_owned()).or_insert_with(|| (Vec::new(), worker));
        if !users.contains(&conn) {
            users.push(conn);
        }
        let before = std::mem::replace(at, worker);
        let alone = users.len() == 1;
        if before != worker
            && alone
            && self.workers[before].alive
            && !self.workers[before].spent
            && !self.workers[worker].kind.per_connection
        {
            self.wrong(format!("session {name} moved from worker {before} to {worker} for no reason"));
        }
    }

    /// Checks that a client may load or resume a session.
    fn check_open(&mut self, conn: ConnIndex, tag: Tag, meant: Option<Truth>, shared: bool) {
        let Some(truth) = meant else { return };
        let identity = self.conns[conn].identity;
        let strict = self.strict;
        let Some(state) = self.truth(truth) else { return };
        let (owner, whose) = (state.owner, state.identity);
        let held = owner.is_some_and(|owner| owner != conn && self.conns[owner].open);
        if whose != identity && (strict || held) {
            self.wrong(format!("#{tag}#: a session of another user was given to connection {conn}"));
        }
        match owner {
            Some(owner)
                if owner != conn && self.conns[owner].open && !(shared && self.conns[owner].silent) =>
            {
                self.wrong(format!(
                    "#{tag}#: connection {conn} took a session that connection {owner} holds"
                ));
            }
            _ => {
                if let Some(state) = self.truth(truth) {
                    if state.owner != Some(conn) {
                        state.taking = Some(tag);
                    }
                    state.owner = Some(conn);
                    state.undelivered.clear();
                }
            }
        }
    }

    /// Records a refusal: a refused session does not belong to the client.
    pub(super) fn record_refused_open(&mut self, conn: ConnIndex, tag: Tag) {
        for state in self.truths.iter_mut().flatten().filter(|state| state.taking == Some(tag)) {
            state.taking = None;
            state.owner = state.owner.filter(|owner| *owner != conn);
        }
    }

    /// Records that the bus no longer knows a session: its owner loses it.
    pub(super) fn forgotten(&mut self, tag: Tag) {
        let Some(asked) = self.asked(tag) else { return };
        let (conn, name) = (asked.conn, asked.session.clone());
        let truth = name.and_then(|name| self.visible.get(&name).copied());
        if let Some(state) =
            truth.and_then(|truth| self.truth(truth)).filter(|state| state.owner == Some(conn))
        {
            state.owner = None;
        }
    }

    pub(super) fn session_named(
        &mut self,
        conn: ConnIndex,
        tag: Tag,
        method: &str,
        view: View<'_>,
        truth: Option<Truth>,
    ) {
        let Some(truth) = truth else { return };
        match method {
            "session/new" | "session/fork" => {
                let Some(name) = view.session().map(std::borrow::Cow::into_owned) else {
                    return self.wrong(format!("#{tag}#: the new session has no name"));
                };
                if let Some(other) = self.visible.insert(name.clone(), truth)
                    && other != truth
                    && let Some(state) = self.truth(other)
                {
                    let (owner, worker) = (state.owner.filter(|_| state.taking.is_none()), state.worker);
                    if self.workers[worker].alive && owner.is_some_and(|owner| self.conns[owner].open) {
                        self.wrong(format!("#{tag}#: two sessions are called {name}"));
                    }
                }
                if let Some(state) = self.truth(truth) {
                    state.visible = Some(name);
                }
            }
            "session/load" | "session/resume" => {
                // The owner stays if another client has requested the session since.
                let is_last = |state: &&mut TruthState| state.taking.is_none_or(|taking| taking == tag);
                if let Some(state) = self.truth(truth).filter(is_last) {
                    state.owner = Some(conn);
                    state.taking = None;
                }
            }
            _ => {}
        }
    }

    pub(super) fn check_message(&mut self, conn: ConnIndex, view: View<'_>) {
        let Some(tag) = number_in(view.bytes()) else {
            return self.own_message(conn, view);
        };
        let text = stripped(view);
        let Some(Thing::FromWorker(thing)) = self.things.get_mut(tag) else {
            return self.wrong(format!("connection {conn} got #{tag}#, which no worker sent"));
        };
        let again = thing.delivered.replace(conn).is_some();
        let (worker, truth, is_ask, about) = (thing.worker, thing.truth, thing.id.is_some(), thing.about);
        let changed = !is_same(&thing.text, &text);
        if again {
            self.wrong(format!("#{tag}# was delivered twice"));
        }
        if changed {
            self.wrong(format!("#{tag}# was changed on its way to connection {conn}"));
        }
        if is_ask {
            let id = view.id().unwrap_or_default().to_vec();
            if self.conns[conn].asked.insert(id, tag).is_some() {
                self.wrong(format!("connection {conn} got one id for two requests of workers"));
            }
        }
        if about.scope.is_some() || about.taken_back.is_some() {
            return self.check_reference(conn, tag, about, view);
        }
        if let Some(server) = text_of(view.bytes(), "serverId") {
            if !server.starts_with(&format!("m{conn}-")) {
                self.wrong(format!("crossed: #{tag}# to server {server} went to connection {conn}"));
            }
            return;
        }
        let kind = self.workers[worker].kind;
        if kind.plain && truth.is_none() {
            let name = view.session().or_else(|| view.top_session()).unwrap_or_default().into_owned();
            if !self.names.get(&name).is_some_and(|(users, _)| users.contains(&conn))
                && !self.is_exclusive_to(worker, conn)
            {
                self.wrong(format!(
                    "crossed: #{tag}# of session {name} went to connection {conn}, which never used it"
                ));
            }
            return;
        }
        let Some(truth) = truth else {
            // The client may already have the session, or wait for this worker to load or resume it. Messages
            // of the worker during the load are for the client that requested it, under the requested name.
            let name = view.session().unwrap_or_default();
            let own = self.visible.get(&*name).filter(|truth| {
                self.truths[**truth]
                    .as_ref()
                    .is_some_and(|state| state.owner == Some(conn) && state.worker == worker)
            });
            if own.is_none()
                && !self.is_exclusive_to(worker, conn)
                && !self.is_opening(worker, conn)
                && !self.is_opening_stored(worker, conn, &name)
            {
                self.wrong(format!(
                    "BW2 #{tag}#: worker {worker} sent a message in a session that it does not have"
                ));
            }
            return;
        };
        let owner = self.truth(truth).and_then(|state| state.owner);
        if owner != Some(conn) && !self.is_exclusive_to(worker, conn) {
            self.wrong(format!("crossed: #{tag}# went to connection {conn}, not to the owner {owner:?}"));
        }
        if !is_ask {
            self.in_order(conn, tag, truth);
        }
    }

    /// Checks a list: it has each session once, none of another identity, and all sessions of the client that
    /// workers listed.
    pub(super) fn check_list(&mut self, conn: ConnIndex, tag: Tag, view: View<'_>) {
        let Some(asked) = self.asked(tag) else { return };
        let (listed, hidden, handed) = (asked.listed.clone(), asked.hidden.clone(), asked.handed.clone());
        let kinds = handed.iter().map(|(worker, _, _)| self.workers[*worker].kind);
        if kinds.into_iter().any(|kind| kind.per_connection || kind.per_session || kind.plain) {
            return;
        }
        let mut names = names_in(view.bytes());
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            self.wrong(format!("#{tag}# lists a session twice: {names:?}"));
        }
        // Another worker may have listed a session of the same name.
        let stranger =
            hidden.iter().filter_map(|truth| self.truths[*truth].as_ref()?.visible.clone()).find(|name| {
                names.contains(name) && !listed.iter().any(|(told, at)| told == name && !hidden.contains(at))
            });
        if let Some(name) = stranger {
            self.wrong(format!("CB4 #{tag}# lists {name} of another user"));
        }
        // A session that the bus does not know has its worker's name.
        let missing = listed.iter().find(|(told, truth)| {
            self.truths[*truth].as_ref().is_some_and(|state| {
                let is_own = state.owner == Some(conn) && state.taking.is_none() && state.visible.is_some();
                is_own && !state.visible.iter().chain([told]).any(|name| names.contains(name))
            })
        });
        if let Some((told, _)) = missing {
            self.wrong(format!("#{tag}# does not list {told}"));
        }
    }

    /// Checks a message about a request: one of the client, or one to the client, by the id that the client
    /// knows.
    fn check_reference(&mut self, conn: ConnIndex, tag: Tag, about: About, view: View<'_>) {
        let id = view.request_id().unwrap_or_default();
        let state = &self.conns[conn];
        let known = match (about.scope, about.taken_back) {
            (Some(scope), _) => scope.is_some() && state.flight.get(id).copied() == scope,
            (None, taken_back) => {
                taken_back.is_some() && state.asked.get(id).copied() == taken_back.flatten()
            }
        };
        if !known {
            let id = String::from_utf8_lossy(id).into_owned();
            self.wrong(format!("#{tag}# is about {about:?}, but connection {conn} got {id}"));
        }
    }

    /// Returns `true` if only this client uses the worker.
    fn is_exclusive_to(&self, worker: WorkerIndex, conn: ConnIndex) -> bool {
        let state = &self.workers[worker];
        (state.kind.per_connection || state.kind.per_session) && state.users.contains(&conn)
    }

    /// Returns `true` if this client waits for the worker to load or resume a session.
    fn is_opening_stored(&self, worker: WorkerIndex, conn: ConnIndex, name: &str) -> bool {
        self.conns[conn].flight.values().any(|tag| match &self.things[*tag] {
            Thing::Asked(asked) => {
                matches!(asked.method, "session/load" | "session/resume")
                    && asked.session.as_deref() == Some(name)
                    && asked.handed.last().is_some_and(|(at, _, _)| *at == worker)
            }
            _ => false,
        })
    }

    /// Returns `true` if the worker may mention a session that this client waits for.
    fn is_opening(&self, worker: WorkerIndex, conn: ConnIndex) -> bool {
        self.conns[conn].flight.values().any(|tag| match &self.things[*tag] {
            Thing::Asked(asked) => {
                matches!(asked.method, "session/new" | "session/fork")
                    && asked.handed.last().is_some_and(|(at, _, _)| *at == worker)
            }
            _ => false,
        })
    }

    fn in_order(&mut self, conn: ConnIndex, tag: Tag, truth: Truth) {
        if self.conns[conn].last.insert(truth, tag).is_some_and(|last| last > tag) {
            self.wrong(format!("I3 #{tag}# was overtaken"));
        }
        let Some(state) = self.truth(truth) else { return };
        if let Some(at) = state.undelivered.iter().position(|due| *due == tag) {
            let missing: Vec<Tag> = state.undelivered.drain(..=at).filter(|due| *due != tag).collect();
            if !missing.is_empty() {
                self.wrong(format!("I3 {missing:?} were not delivered before #{tag}#"));
            }
        }
    }

    fn own_message(&mut self, conn: ConnIndex, view: View<'_>) {
        let method = view.method().unwrap_or_default().into_owned();
        if !matches!(&*method, "session/update" | "$/cancel_request") {
            return self.wrong(format!("the bus itself sent {method} to connection {conn}"));
        }
        let Some(name) = view.session() else { return };
        // The order also applies while the response that names a new session is part of an incomplete batch.
        // The client must know the name before the bus mentions the session.
        let owner = self
            .visible
            .get(&*name)
            .copied()
            .and_then(|truth| self.truth(truth))
            .and_then(|state| state.owner);
        if owner != Some(conn) {
            self.wrong(format!(
                "crossed: the bus sent connection {conn} a message about a session of {owner:?}"
            ));
        }
    }
}
