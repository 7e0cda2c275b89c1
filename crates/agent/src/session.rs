//! One open session: where it works, what was said, and what goes on in it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use narrows_base::sync::lock;
use narrows_mcp::Servers;
use narrows_model::{Message, Usage};
use narrows_store::{Claim, Store};
use tokio::time::Instant;

use crate::catalog::Choice;
use crate::stop::Stop;
use crate::unstored::Unstored;

/// One open session.
pub(crate) struct Session {
    pub(crate) id: Arc<str>,
    /// Where it is kept: with the others, or, if that cannot be, in memory.
    pub(crate) store: Store,
    /// Held while turns are stored, so that they are stored in order.
    pub(crate) unstored: tokio::sync::Mutex<Unstored>,
    state: Mutex<State>,
}

/// What changes in a session.
pub(crate) struct State {
    pub(crate) place: Place,
    /// `sessionId` at the top level of the last request that had one, as JSON.
    pub(crate) tag: Option<Vec<u8>>,
    pub(crate) choice: Option<Choice>,
    /// What was said, turn by turn, as the model gets it.
    pub(crate) past: Vec<Past>,
    /// The number of the last turn in the store; `0` if there is none.
    pub(crate) last_turn: u64,
    /// How many bytes all its turns have in the store.
    pub(crate) stored_bytes: usize,
    /// How many tokens the last request took, and its answer.
    pub(crate) used: Option<u64>,
    /// What all requests have cost in dollars since the session was opened, where the endpoint tells.
    pub(crate) cost: Option<f64>,
    /// What all turns took since the session was opened, where the endpoint tells.
    pub(crate) usage: Option<Usage>,
    pub(crate) title: Option<String>,
    /// What is known from earlier sessions.
    pub(crate) background: Option<Arc<str>>,
    /// What the user has allowed for the length of the session.
    pub(crate) grants: HashSet<String>,
    pub(crate) servers: Arc<Servers>,
    /// When they were started.
    pub(crate) servers_since: Instant,
    /// What the user is to be told before the next turn.
    pub(crate) troubles: Vec<String>,
    /// Keeps the session to this process, and gives the right to change it; gone when it is closed.
    claim: Option<Arc<Claim>>,
    /// It is held only until all of it is stored.
    pub(crate) is_closed: bool,
    turn: Option<Running>,
    /// The last turn, which is over but for its last words.
    ending: Option<Stop>,
}

/// Where a session works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) cwd: String,
    pub(crate) roots: Vec<String>,
}

/// A turn that is over, or the summary of several.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Past {
    /// Its number in the store.
    pub(crate) number: u64,
    pub(crate) messages: Vec<Message>,
}

/// A turn that goes on.
struct Running {
    stop: Stop,
    ended: Stop,
    calls: HashMap<String, Stop>,
}

/// Why a turn cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unready {
    /// Another one goes on.
    Busy,
    /// The session has been closed.
    Closed,
}

impl State {
    pub(crate) fn new(claim: Claim, place: Place, servers: Arc<Servers>, troubles: Vec<String>) -> Self {
        Self {
            claim: Some(Arc::new(claim)),
            is_closed: false,
            place,
            tag: None,
            choice: None,
            past: Vec::new(),
            last_turn: 0,
            stored_bytes: 0,
            used: None,
            cost: None,
            usage: None,
            title: None,
            background: None,
            grants: HashSet::new(),
            servers,
            servers_since: Instant::now(),
            troubles,
            turn: None,
            ending: None,
        }
    }
}

impl Session {
    pub(crate) fn new(id: &str, store: Store, state: State) -> Self {
        Self { id: id.into(), store, unstored: tokio::sync::Mutex::default(), state: Mutex::new(state) }
    }

    /// The right to change the session, as long as it is open.
    pub(crate) fn claim(&self) -> Option<Arc<Claim>> {
        self.state().claim.clone()
    }

    /// Replaces the right to change the session by that of a session which is stored.
    pub(crate) fn hold(&self, claim: Claim) {
        self.state().claim = Some(Arc::new(claim));
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock; were it so, the values would still be consistent.
        lock(&self.state)
    }

    /// Begins a turn. It goes on until the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<TurnGuard, Unready> {
        let mut state = self.state();
        if state.claim.is_none() {
            return Err(Unready::Closed);
        }
        if state.turn.is_some() {
            return Err(Unready::Busy);
        }
        let stop = Stop::new();
        state.turn = Some(Running { stop: stop.clone(), ended: Stop::new(), calls: HashMap::new() });
        drop(state);
        Ok(TurnGuard { session: Arc::clone(self), stop })
    }

    /// Whether a turn goes on.
    pub(crate) fn is_running(&self) -> bool {
        self.state().turn.is_some()
    }

    /// The end of the turn that goes on, if one does.
    pub(crate) fn ended(&self) -> Option<impl Future<Output = ()> + Send + 'static + use<>> {
        self.state().turn.as_ref().map(|turn| turn.ended.stopped())
    }

    /// Stops the turn that goes on, if one does.
    pub(crate) fn cancel(&self) {
        if let Some(turn) = &self.state().turn {
            turn.stop.stop();
        }
    }

    /// Stops one call of the turn that goes on; false if there is no such call.
    pub(crate) fn cancel_call(&self, call: &str) -> bool {
        let state = self.state();
        let call = state.turn.as_ref().and_then(|turn| turn.calls.get(call));
        if let Some(stop) = call {
            stop.stop();
        }
        call.is_some()
    }

    /// Notes a call that can be stopped until the guard is dropped.
    pub(crate) fn begin_call(self: &Arc<Self>, call: &str) -> CallGuard {
        let stop = Stop::new();
        if let Some(turn) = &mut self.state().turn {
            turn.calls.insert(call.to_owned(), stop.clone());
        }
        CallGuard { session: Arc::clone(self), call: call.to_owned(), stop }
    }

    /// The calls that go on.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.state().turn.as_ref().map(|turn| turn.calls.keys().cloned().collect()).unwrap_or_default()
    }

    /// Stops the turn that goes on, waits for its last words, stores what waits, and gives the session back. Returns `false` if something
    /// could not be stored: then the session is still held. The caller must have removed the session before, so that no other
    /// turn begins.
    pub(crate) async fn close(&self) -> bool {
        let ended = {
            let state = self.state();
            if let Some(turn) = &state.turn {
                turn.stop.stop();
            }
            state.turn.as_ref().map(|turn| &turn.ended).or(state.ending.as_ref()).map(Stop::stopped)
        };
        if let Some(ended) = ended {
            ended.await;
        }
        // From here on the task that stores the last record gives the session back.
        self.state().is_closed = true;
        self.store_rest().await;
        let is_stored = !self.has_unstored().await;
        if is_stored {
            self.give_back();
        }
        is_stored
    }

    /// Gives the session back.
    pub(crate) fn give_back(&self) {
        self.state().claim = None;
    }

    /// Gives the session back if it was closed before all of it could be stored.
    pub(crate) fn give_back_if_closed(&self) {
        let mut state = self.state();
        if state.is_closed {
            state.claim = None;
        }
    }
}

/// A turn goes on as long as this is held.
pub(crate) struct TurnGuard {
    session: Arc<Session>,
    /// Says that the turn is to be given up.
    pub(crate) stop: Stop,
}

impl TurnGuard {
    /// Lets the next turn begin, before the words after which a client may ask for it. Those of this turn have all
    /// been said when the returned value is dropped.
    pub(crate) fn release(self) -> LastWords {
        let mut state = self.session.state();
        let ended = state.turn.take().map(|turn| turn.ended);
        state.ending.clone_from(&ended);
        drop(state);
        LastWords { ended }
    }
}

impl Drop for TurnGuard {
    fn drop(&mut self) {
        if let Some(turn) = self.session.state().turn.take() {
            turn.ended.stop();
        }
    }
}

/// A turn that is over but for its last words, until this is dropped.
pub(crate) struct LastWords {
    ended: Option<Stop>,
}

impl Drop for LastWords {
    fn drop(&mut self) {
        if let Some(ended) = &self.ended {
            ended.stop();
        }
    }
}

/// A call goes on as long as this is held.
pub(crate) struct CallGuard {
    session: Arc<Session>,
    call: String,
    /// Says that the call is to be given up.
    pub(crate) stop: Stop,
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        if let Some(turn) = &mut self.session.state().turn {
            turn.calls.remove(&self.call);
        }
    }
}
