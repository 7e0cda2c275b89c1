//! An oracle for the input and output of a bus: plain maps, written from the specification and not from the
//! router.
//!
//! It gets each line before the core does, and each line that the core sends. Every generated message
//! contains a unique number, `#17#`, by which the oracle recognizes the message.

mod clients;
mod sessions;
#[cfg(test)]
mod tests;
mod text;
mod workers;

pub(crate) use text::{entries, number_in, stripped, text_of};

use std::collections::{HashMap, VecDeque};

/// The number of a connection. Never reused.
pub(crate) type ConnIndex = usize;
/// The number of a worker. Never reused.
pub(crate) type WorkerIndex = usize;
/// The number of a session, independent of its names.
pub(crate) type Truth = usize;
pub(crate) type Tag = usize;

/// Requests that the bus may send to several workers, and repeatedly.
pub(crate) const REPEATABLE: [&str; 6] =
    ["initialize", "authenticate", "session/list", "session/load", "session/resume", "session/delete"];

/// The method of a request that is too long to be parsed.
pub(crate) const TOO_LONG: &str = "(too long)";

/// A line of a client, as the oracle understands it.
#[derive(Debug)]
pub(crate) enum ClientMessage {
    Request {
        tag: Tag,
        id: Vec<u8>,
        method: &'static str,
        session: Option<String>,
        text: Vec<u8>,
    },
    /// A notification. `about`: the request that it cancels.
    Notify {
        tag: Tag,
        session: Option<String>,
        about: Option<Tag>,
        text: Vec<u8>,
    },
    /// A response to a worker, valid or not.
    Answer {
        id: Vec<u8>,
        text: Vec<u8>,
    },
    /// A line that is answered by an error without an id.
    Broken,
}

/// A line of a worker, as the oracle understands it.
#[derive(Debug)]
pub(crate) enum WorkerMessage {
    /// A response. `opens`: the session that is now in this worker, and its name in the worker.
    Answer {
        id: Vec<u8>,
        opens: Option<(Truth, String)>,
        closes: Option<String>,
        text: Vec<u8>,
    },
    /// A session is refused for lack of room. The request may be repeated in this or another worker.
    Full {
        id: Vec<u8>,
        text: Vec<u8>,
    },
    /// An invalid response with a pending id, and the code that the client gets.
    Malformed {
        id: Vec<u8>,
        code: i64,
    },
    /// A request. `scope`: the request of a client that it belongs to.
    Request {
        tag: Tag,
        id: Vec<u8>,
        truth: Option<Truth>,
        scope: Option<Vec<u8>>,
        text: Vec<u8>,
    },
    /// A notification. `about`: the request that it cancels.
    Notify {
        tag: Tag,
        truth: Option<Truth>,
        about: Option<Vec<u8>>,
        text: Vec<u8>,
    },
    /// An invalid message, or a response to no request.
    Noise,
    TooLong,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) per_connection: bool,
    pub(crate) per_session: bool,
    /// `true` if sessions in workers have the names that clients use.
    pub(crate) plain: bool,
    pub(crate) mixed: bool,
}

#[derive(Debug)]
struct Asked {
    conn: ConnIndex,
    method: &'static str,
    session: Option<String>,
    text: Vec<u8>,
    array: Option<usize>,
    handed: Vec<(WorkerIndex, u64, Vec<u8>)>,
    truth: Option<Truth>,
    /// For a list: the sessions that workers listed, by their names in those workers.
    listed: Vec<(String, Truth)>,
    /// The sessions in `listed` that belonged to another identity at that time.
    hidden: Vec<Truth>,
    said: Option<Vec<u8>>,
    /// `true` if the bus gave the worker up. Its response may or may not be forwarded.
    late: bool,
    malformed: Option<i64>,
    full: Option<Vec<u8>>,
    answered: bool,
}

#[derive(Debug)]
struct Told {
    conn: ConnIndex,
    session: Option<String>,
    about: Option<Tag>,
    text: Vec<u8>,
    times: u32,
}

/// The other request that a worker's message is about. The bus may have forgotten it.
#[derive(Clone, Copy, Debug)]
struct About {
    scope: Option<Option<Tag>>,
    taken_back: Option<Option<Tag>>,
    array: Option<usize>,
}

#[derive(Debug)]
struct FromWorker {
    worker: WorkerIndex,
    id: Option<Vec<u8>>,
    truth: Option<Truth>,
    about: About,
    text: Vec<u8>,
    delivered: Option<ConnIndex>,
    said: Option<Vec<u8>>,
    answered: bool,
}

#[derive(Debug)]
enum Thing {
    Asked(Asked),
    Told(Told),
    FromWorker(FromWorker),
    Other,
}

#[derive(Debug)]
struct ConnState {
    open: bool,
    /// `true` if the client has ended its input. Another client of its identity may take over its sessions in
    /// a shared worker.
    silent: bool,
    identity: u32,
    flight: HashMap<Vec<u8>, Tag>,
    doubled: Vec<(Vec<u8>, Tag)>,
    /// Number of errors without an id that are due.
    nameless: usize,
    /// `true` if the client got the reason why it is closed.
    dismissed: bool,
    /// Requests of workers, by the id with which the client got them.
    asked: HashMap<Vec<u8>, Tag>,
    /// The last message of each session that arrived.
    last: HashMap<Truth, Tag>,
}

#[derive(Debug)]
struct WorkerRecord {
    kind: Kind,
    alive: bool,
    /// `true` if the bus gave the worker up.
    spent: bool,
    read: u64,
    /// The sessions in this worker, by their names in it.
    sessions: HashMap<String, Truth>,
    /// Requests to the worker, by the id with which it got them.
    asked: HashMap<Vec<u8>, Tag>,
    asking: HashMap<Vec<u8>, Tag>,
    users: Vec<ConnIndex>,
    identity: Option<u32>,
    opened: usize,
}

#[derive(Debug)]
struct TruthState {
    identity: u32,
    owner: Option<ConnIndex>,
    /// The pending request with which its owner loads or resumes it.
    taking: Option<Tag>,
    worker: WorkerIndex,
    visible: Option<String>,
    /// Messages of a turn that must arrive before the turn's end.
    undelivered: VecDeque<Tag>,
}

#[derive(Debug, Default)]
pub(crate) struct Oracle {
    /// `true` if only their identity sees sessions without a client.
    strict: bool,
    things: Vec<Thing>,
    conns: Vec<ConnState>,
    workers: Vec<WorkerRecord>,
    truths: Vec<Option<TruthState>>,
    visible: HashMap<String, Truth>,
    /// For pools without a known protocol: the users of a session name, and its worker.
    names: HashMap<String, (Vec<ConnIndex>, WorkerIndex)>,
    arrays: Vec<usize>,
    /// Events that must have happened when the core returns.
    due: Vec<Due>,
    pub(crate) wrongs: Vec<String>,
    /// Number of workers' responses that reached their clients.
    pub(crate) served: usize,
}

#[derive(Clone, Copy, Debug)]
enum Due {
    Answered(Tag),
    Returned(Tag),
}

impl Oracle {
    fn wrong(&mut self, what: impl Into<String>) {
        self.wrongs.push(what.into());
    }

    fn put(&mut self, tag: Tag, thing: Thing) {
        while self.things.len() <= tag {
            self.things.push(Thing::Other);
        }
        self.things[tag] = thing;
    }

    fn asked(&mut self, tag: Tag) -> Option<&mut Asked> {
        match self.things.get_mut(tag) {
            Some(Thing::Asked(asked)) => Some(asked),
            _ => None,
        }
    }

    fn of_worker(&mut self, tag: Tag) -> Option<&mut FromWorker> {
        match self.things.get_mut(tag) {
            Some(Thing::FromWorker(thing)) => Some(thing),
            _ => None,
        }
    }

    fn truth(&mut self, truth: Truth) -> Option<&mut TruthState> {
        self.truths.get_mut(truth).and_then(Option::as_mut)
    }

    pub(crate) fn new(strict: bool) -> Self {
        Self { strict, ..Self::default() }
    }

    pub(crate) fn conn_open(&mut self, identity: u32) -> ConnIndex {
        self.conns.push(ConnState {
            open: true,
            silent: false,
            identity,
            flight: HashMap::new(),
            doubled: Vec::new(),
            nameless: 0,
            dismissed: false,
            asked: HashMap::new(),
            last: HashMap::new(),
        });
        self.conns.len() - 1
    }

    pub(crate) fn conn_silent(&mut self, conn: ConnIndex) {
        self.conns[conn].silent = true;
    }

    /// Records that a client is closed. `owed`: none of its requests may be pending.
    pub(crate) fn conn_closed(&mut self, conn: ConnIndex, owed: bool) {
        if owed && self.conns[conn].open {
            self.nothing_open(conn, "hung up on");
        }
        let state = &mut self.conns[conn];
        state.open = false;
        state.asked.clear();
        state.flight.clear();
        state.last.clear();
    }

    fn nothing_open(&mut self, conn: ConnIndex, when: &str) {
        let state = &self.conns[conn];
        let mut lost: Vec<Tag> = state.flight.values().copied().collect();
        lost.extend(state.doubled.iter().map(|(_, tag)| *tag));
        lost.sort_unstable();
        let nameless = state.nameless;
        for tag in lost {
            let asked = self
                .asked(tag)
                .map(|asked| format!("{} {:?} handed {:?}", asked.method, asked.session, asked.handed));
            self.wrong(format!("I1 lost: #{tag}# {asked:?} of connection {conn} has no answer when {when}"));
        }
        if nameless > 0 {
            self.wrong(format!(
                "F18 silence: connection {conn} lacks {nameless} errors without id when {when}"
            ));
        }
    }

    pub(crate) fn worker_started(&mut self, kind: Kind) -> WorkerIndex {
        self.workers.push(WorkerRecord {
            kind,
            alive: true,
            spent: false,
            read: 0,
            sessions: HashMap::new(),
            asked: HashMap::new(),
            asking: HashMap::new(),
            users: Vec::new(),
            identity: None,
            opened: 0,
        });
        self.workers.len() - 1
    }

    /// Records the number of bytes of its input that a worker has read.
    pub(crate) fn worker_read(&mut self, worker: WorkerIndex, read: u64) {
        self.workers[worker].read = read;
    }

    /// Records that the core retired or stopped a worker, or that the worker was reported as stuck.
    pub(crate) fn worker_given_up(&mut self, worker: WorkerIndex) {
        self.workers[worker].spent = true;
    }

    /// Records that a worker has exited and may have read `bytes_read` bytes.
    pub(crate) fn worker_exited(&mut self, worker: WorkerIndex, bytes_read: u64) {
        let state = &mut self.workers[worker];
        state.alive = false;
        state.read = bytes_read;
        state.asking.clear();
    }

    /// Checks what must have happened when the core returns.
    pub(crate) fn returned(&mut self) {
        for due in std::mem::take(&mut self.due) {
            match due {
                Due::Answered(tag) => {
                    let Some(asked) = self.asked(tag) else { continue };
                    let (conn, done) = (asked.conn, asked.answered || asked.array.is_some());
                    if !done && self.conns[conn].open {
                        self.wrong(format!(
                            "F3 kept back: the worker's answer to #{tag}# did not go to connection {conn}"
                        ));
                    }
                }
                Due::Returned(tag) => {
                    let Some(thing) = self.of_worker(tag) else { continue };
                    let (worker, answered) = (thing.worker, thing.answered || thing.about.array.is_some());
                    if !answered && self.workers[worker].alive && !self.workers[worker].spent {
                        self.wrong(format!("the client's answer to #{tag}# did not reach worker {worker}"));
                    }
                }
            }
        }
    }

    /// Checks that no request is pending after enough time.
    pub(crate) fn settle(&mut self) {
        for conn in 0..self.conns.len() {
            if self.conns[conn].open {
                self.nothing_open(conn, "all is settled");
            }
        }
        for worker in 0..self.workers.len() {
            let state = &self.workers[worker];
            if state.alive && !state.spent && !state.asking.is_empty() {
                let tags: Vec<Tag> = state.asking.values().copied().collect();
                self.wrong(format!("worker {worker} got no answer to its requests {tags:?}"));
            }
        }
    }
}
