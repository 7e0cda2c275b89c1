//! Checks of clients' lines. Each request gets one response, on its connection, with its id, and with the
//! worker's own bytes.

use narrows_wire::{Kind, View};

use super::text::{is_same, value_of};
use super::{
    Asked, ClientMessage, ConnIndex, Due, Oracle, REPEATABLE, TOO_LONG, Tag, Thing, Told, entries, number_in,
    stripped,
};

impl Oracle {
    pub(crate) fn record_client_line(&mut self, conn: ConnIndex, said: Vec<ClientMessage>, is_array: bool) {
        let array = is_array.then(|| {
            let owed = said
                .iter()
                .filter(|entry| matches!(entry, ClientMessage::Request { .. } | ClientMessage::Broken))
                .count();
            self.arrays.push(owed);
            self.arrays.len() - 1
        });
        for entry in said {
            match entry {
                ClientMessage::Request { tag, id, method, session, text } => {
                    let asked = Asked {
                        conn,
                        method,
                        session,
                        text,
                        array,
                        handed: Vec::new(),
                        truth: None,
                        listed: Vec::new(),
                        hidden: Vec::new(),
                        said: None,
                        late: false,
                        malformed: None,
                        full: None,
                        answered: false,
                    };
                    self.put(tag, Thing::Asked(asked));
                    let state = &mut self.conns[conn];
                    if state.flight.contains_key(&id)
                        || state.doubled.iter().any(|(doubled, _)| *doubled == id)
                    {
                        state.doubled.push((id, tag));
                    } else {
                        state.flight.insert(id, tag);
                    }
                }
                ClientMessage::Notify { tag, session, about, text } => {
                    self.put(tag, Thing::Told(Told { conn, session, about, text, times: 0 }));
                }
                ClientMessage::Answer { id, text } => {
                    let Some(tag) = self.conns[conn].asked.remove(&id) else { continue };
                    if let Some(thing) = self.of_worker(tag)
                        && !thing.answered
                    {
                        thing.said = Some(text);
                        // The worker must get the response at once, even from a batch that has to wait.
                        self.due.push(Due::Returned(tag));
                    }
                }
                ClientMessage::Broken => {
                    self.conns[conn].nameless += 1;
                }
            }
        }
    }

    pub(crate) fn check_client_line(&mut self, conn: ConnIndex, line: &[u8]) {
        if !self.conns[conn].open {
            return;
        }
        if self.conns[conn].dismissed {
            self.wrong(format!("F26 connection {conn} got a line after the reason of its disconnect"));
        }
        let view = View::parse(line);
        match view.kind() {
            Kind::Invalid(fault) => {
                self.wrong(format!("connection {conn} got a line that is not JSON-RPC ({fault:?})"));
            }
            Kind::Batch => self.check_array(conn, line),
            Kind::Response => {
                let array = self.check_response(conn, view);
                if array.is_some() {
                    self.wrong(format!(
                        "F58 an entry of an array was answered outside of one on connection {conn}"
                    ));
                }
            }
            Kind::Request | Kind::Notification => self.check_message(conn, view),
        }
    }

    fn check_array(&mut self, conn: ConnIndex, line: &[u8]) {
        let mut named = None;
        let parts = entries(line);
        for entry in &parts {
            let view = View::parse(entry);
            if view.kind() != Kind::Response {
                self.wrong(format!("connection {conn} got an array with other messages than answers"));
                continue;
            }
            let Some(array) = self.check_response(conn, view) else { continue };
            if *named.get_or_insert(array) != array {
                self.wrong(format!("F58 one array answers several arrays on connection {conn}"));
            }
        }
        if let Some(array) = named
            && self.arrays[array] != parts.len()
        {
            let owed = self.arrays[array];
            self.wrong(format!(
                "F58 an array with {owed} answers due has {} on connection {conn}",
                parts.len()
            ));
        }
    }

    /// Checks a response. Returns the batch of its request.
    fn check_response(&mut self, conn: ConnIndex, view: View<'_>) -> Option<usize> {
        let id = view.id().unwrap_or(b"null").to_vec();
        let code = view.error().map(|error| error.code);
        if id == b"null" {
            if code == Some(-32012) {
                // This is the reason why a slow reader is closed, and its last line.
                self.conns[conn].dismissed = true;
                return None;
            }
            if self.conns[conn].nameless == 0 {
                self.wrong(format!("connection {conn} got an error without id that is not due"));
            } else {
                self.conns[conn].nameless -= 1;
            }
            if !matches!(code, Some(-32700 | -32600 | -32013)) {
                self.wrong(format!("F18 a broken line is answered with {code:?}"));
            }
            return None;
        }
        let state = &mut self.conns[conn];
        // After the first request with the id, the next one is the one that the others duplicate.
        let mut doubles = (0..state.doubled.len()).filter(|at| state.doubled[*at].0 == id);
        let (next, behind) = (doubles.next(), doubles.next());
        let doubled = if state.flight.contains_key(&id) { next } else { behind.or(next) };
        if code == Some(-32014)
            && let Some(at) = doubled
        {
            let (_, tag) = state.doubled.remove(at);
            let asked = self.asked(tag)?;
            asked.answered = true;
            return asked.array;
        }
        // The first request with this id may have ended when the second one is handled.
        let later = next.filter(|_| !state.flight.contains_key(&id));
        let Some(tag) = state.flight.remove(&id).or_else(|| later.map(|at| state.doubled.remove(at).1))
        else {
            let id = String::from_utf8_lossy(&id).into_owned();
            self.wrong(format!(
                "I1 double: connection {conn} is sent an answer with id {id} that nothing waits for"
            ));
            return None;
        };
        self.judge_answer(conn, tag, view, code);
        let asked = self.asked(tag)?;
        asked.answered = true;
        asked.array
    }

    fn judge_answer(&mut self, conn: ConnIndex, tag: Tag, view: View<'_>, code: Option<i64>) {
        let number = number_in(view.bytes());
        // The bus may answer an entry of a batch in place of its worker, which becomes visible only later.
        let is_ahead = match code {
            None => value_of(view.bytes(), "stopReason") == Some(b"\"cancelled\""),
            Some(code) => matches!(code, -32010 | -32011 | -32016),
        };
        let Some(asked) = self.asked(tag) else { return };
        let method = asked.method;
        let (repeatable, late) =
            (REPEATABLE.contains(&method), asked.late || asked.array.is_some() && is_ahead);
        let full = asked.full.clone().filter(|_| code == Some(-32012) && number.is_some());
        let (said, malformed, handed, truth) =
            (asked.said.clone().or(full), asked.malformed, asked.handed.clone(), asked.truth);
        if number.is_some_and(|number| number != tag) {
            self.wrong(format!("crossed: #{tag}# is answered with {number:?}"));
        }
        match (&said, number) {
            (Some(said), Some(_)) if !repeatable => {
                if !is_same(said, &stripped(view)) {
                    self.wrong(format!("the answer to #{tag}# differs from that of its worker"));
                }
                self.served += 1;
            }
            (Some(_), None) if !repeatable && !late => {
                self.wrong(format!("F3 the worker's answer to #{tag}# was replaced, {code:?}"));
            }
            (None, Some(_)) if !repeatable => self.wrong(format!("no worker sent the answer to #{tag}#")),
            (None, None) => self.check_own_response(tag, method, view, code, malformed, &handed),
            _ => {}
        }
        if method == "session/prompt"
            && let Some(truth) = truth
            && let Some(state) = self.truth(truth)
            && state.owner == Some(conn)
            && !state.undelivered.is_empty()
        {
            let missing = std::mem::take(&mut state.undelivered);
            self.wrong(format!("I3 the turn of #{tag}# ended before {missing:?} were delivered"));
        }
        if method == "session/list" && code.is_none() {
            self.check_list(conn, tag, view);
        }
        match code {
            None => self.session_named(conn, tag, method, view, truth),
            Some(_) => self.record_refused_open(conn, tag),
        }
    }

    /// Checks a response that the bus made itself.
    fn check_own_response(
        &mut self,
        tag: Tag,
        method: &'static str,
        view: View<'_>,
        code: Option<i64>,
        malformed: Option<i64>,
        handed: &[(usize, u64, Vec<u8>)],
    ) {
        let bytes = view.bytes();
        let Some(code) = code else {
            let cancelled =
                method == "session/prompt" && value_of(bytes, "stopReason") == Some(b"\"cancelled\"");
            if !cancelled && method != "session/close" && !REPEATABLE.contains(&method) {
                self.wrong(format!("the bus made a result for #{tag}# {method}"));
            }
            // A lost session is closed without a worker.
            if method == "session/close" && handed.is_empty() {
                self.forgotten(tag);
            }
            return;
        };
        if let Some(due) = malformed
            && code != due
            && handed.len() == 1
            && self.workers[handed[0].0].alive
        {
            self.wrong(format!("F17 F23 an invalid answer to #{tag}# became {code}, not {due}"));
        }
        if method == TOO_LONG && code != -32013 {
            self.wrong(format!("F17 the too long request #{tag}# is refused with {code}"));
        }
        if code == -32002 {
            self.forgotten(tag);
        }
        if REPEATABLE.contains(&method) {
            return;
        }
        let effects = value_of(bytes, "effects");
        let in_array = self.asked(tag).is_some_and(|asked| asked.array.is_some());
        let reached = handed.iter().any(|(worker, start, _)| self.workers[*worker].read > *start);
        let waiting = handed.iter().any(|(worker, _, _)| self.workers[*worker].alive);
        if reached && effects != Some(b"\"possible\"") {
            self.wrong(format!(
                "I2 #{tag}# {method} reached a worker, but its error {code} says {:?}",
                effects.map(String::from_utf8_lossy)
            ));
        }
        // A stopped worker may or may not have read the request, and an entry of a batch was answered while
        // more was pending.
        if !reached && !waiting && !in_array && code != -32011 && effects == Some(b"\"possible\"") {
            self.wrong(format!(
                "F1 #{tag}# {method} reached no worker, but its error {code} says that it may have"
            ));
        }
        if !matches!(code, -32603..=-32600 | -32002 | -32800 | -32022..=-32010) {
            self.wrong(format!("#{tag}# is refused with {code}"));
        }
    }
}
