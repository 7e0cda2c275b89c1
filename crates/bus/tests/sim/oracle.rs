//! A naive judge of what goes in and out of a bus: plain maps, written from the promises and not from the router.
//!
//! It is told each line before the core is, and hears each line the core lets out. Every message that somebody makes up
//! holds a number of its own, `#17#`, so that the judge knows a message again wherever it turns up.

mod clients;
mod sessions;
mod text;
mod workers;

pub(crate) use text::{entries, number_in, stripped, text_of};

use std::collections::{HashMap, VecDeque};

/// A connection, counted from the first one there ever was.
pub(crate) type ConnIndex = usize;
/// A worker, counted likewise.
pub(crate) type WorkerIndex = usize;
/// A session as it really is, whatever it is called.
pub(crate) type Truth = usize;
/// The number in a message.
pub(crate) type Tag = usize;

/// Requests that may be asked of several workers, and again.
pub(crate) const REPEATABLE: [&str; 6] =
    ["initialize", "authenticate", "session/list", "session/load", "session/resume", "session/delete"];

/// In place of the method of a request that is too long to be read.
pub(crate) const TOO_LONG: &str = "(too long)";

/// One thing a client says.
#[derive(Debug)]
pub(crate) enum ClientMessage {
    /// A request.
    Request { tag: Tag, id: Vec<u8>, method: &'static str, session: Option<String>, text: Vec<u8> },
    /// A notification; `about` is the request that it takes back.
    Notify { tag: Tag, session: Option<String>, about: Option<Tag>, text: Vec<u8> },
    /// An answer to what a worker asked, or what pretends to be one.
    Answer { id: Vec<u8>, text: Vec<u8> },
    /// What is answered by an error without an id.
    Broken,
}

/// One thing a worker says.
#[derive(Debug)]
pub(crate) enum WorkerMessage {
    /// An answer. `opens`: the session that is now here, and what it is called here.
    Answer { id: Vec<u8>, opens: Option<(Truth, String)>, closes: Option<String>, text: Vec<u8> },
    /// A session is refused for lack of room: it may be asked for again, here or elsewhere.
    Full { id: Vec<u8>, text: Vec<u8> },
    /// What has the id of an answer but is none, and what whoever asked is told then.
    Malformed { id: Vec<u8>, code: i64 },
    /// A request. `scope`: the request that it was asked and that this belongs to.
    Request { tag: Tag, id: Vec<u8>, truth: Option<Truth>, scope: Option<Vec<u8>>, text: Vec<u8> },
    /// A notification; `about` is the request of its own that it takes back.
    Notify { tag: Tag, truth: Option<Truth>, about: Option<Vec<u8>>, text: Vec<u8> },
    /// What is no message, or answers nothing.
    Noise,
    /// What is longer than may be.
    TooLong,
}

/// What the judge must know of a worker's pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// Each connection has its own worker.
    pub(crate) per_connection: bool,
    /// Each session has its own worker.
    pub(crate) per_session: bool,
    /// Sessions are whatever clients call them.
    pub(crate) plain: bool,
    /// Users may share a worker.
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
    /// Of a list: the sessions that workers have told, by what they call them.
    listed: Vec<(String, Truth)>,
    /// Of those, the ones that another user had then.
    hidden: Vec<Truth>,
    said: Option<Vec<u8>>,
    /// By a worker that was given up on: its answer may count or not.
    late: bool,
    malformed: Option<i64>,
    /// How a worker refused it for lack of room.
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

/// What else a worker's message is about; of what it names it may be that nobody knows it any more.
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
    /// It has ended its input: what it holds may be taken by another of its identity where all share the workers.
    silent: bool,
    identity: u32,
    /// Requests without an answer, by id.
    flight: HashMap<Vec<u8>, Tag>,
    /// Requests whose id was taken.
    doubled: Vec<(Vec<u8>, Tag)>,
    /// Errors without an id that are due.
    nameless: usize,
    /// It was told why it is hung up on.
    dismissed: bool,
    /// What workers asked, by the id it came with.
    asked: HashMap<Vec<u8>, Tag>,
    /// The last message of each session that came.
    last: HashMap<Truth, Tag>,
}

#[derive(Debug)]
struct WorkerRecord {
    kind: Kind,
    alive: bool,
    /// Nothing more is wanted of it.
    spent: bool,
    read: u64,
    /// Its sessions, as it calls them.
    sessions: HashMap<String, Truth>,
    /// What it was asked, by the id it was asked with.
    asked: HashMap<Vec<u8>, Tag>,
    /// What it asked, by its own id.
    asking: HashMap<Vec<u8>, Tag>,
    users: Vec<ConnIndex>,
    identity: Option<u32>,
    opened: usize,
}

#[derive(Debug)]
struct TruthState {
    identity: u32,
    owner: Option<ConnIndex>,
    /// The request by which its owner wants to take it up, while that has no answer.
    taking: Option<Tag>,
    worker: WorkerIndex,
    visible: Option<String>,
    /// Messages within a turn that its client must have before the turn's end.
    undelivered: VecDeque<Tag>,
}

/// The judge.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    /// Sessions are for their identity alone also when nobody has them open.
    strict: bool,
    things: Vec<Thing>,
    conns: Vec<ConnState>,
    workers: Vec<WorkerRecord>,
    truths: Vec<Option<TruthState>>,
    visible: HashMap<String, Truth>,
    /// Plain sessions: who used a name, and where it is.
    names: HashMap<String, (Vec<ConnIndex>, WorkerIndex)>,
    arrays: Vec<usize>,
    /// What must have happened when the core returns.
    due: Vec<Due>,
    /// What was found.
    pub(crate) wrongs: Vec<String>,
    /// How many answers of workers reached their clients.
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

    /// A client came in.
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

    /// A client has ended its input.
    pub(crate) fn conn_silent(&mut self, conn: ConnIndex) {
        self.conns[conn].silent = true;
    }

    /// A client is hung up on, or has gone. `owed`: nothing may be open any more.
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

    /// A worker is being started.
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

    /// A worker has read its input up to here.
    pub(crate) fn worker_read(&mut self, worker: WorkerIndex, read: u64) {
        self.workers[worker].read = read;
    }

    /// The core has given a worker up, or it was found stuck.
    pub(crate) fn worker_given_up(&mut self, worker: WorkerIndex) {
        self.workers[worker].spent = true;
    }

    /// A worker has ended and may have read `taken` bytes.
    pub(crate) fn worker_exited(&mut self, worker: WorkerIndex, taken: u64) {
        let state = &mut self.workers[worker];
        state.alive = false;
        state.read = taken;
        state.asking.clear();
    }

    /// The core has returned: what it had to do at once is done.
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

    /// Everybody has had time to answer everything: nothing may be open.
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
                self.wrong(format!("worker {worker} has no answer to its requests {tags:?}"));
            }
        }
    }
}
