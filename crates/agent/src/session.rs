//! An open session: its directories, its history, and the running turn.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use narrows_base::sync::lock;
use narrows_mcp::Servers;
use narrows_model::{Message, Usage};
use narrows_store::{Claim, Store};
use tokio::time::Instant;

use crate::catalog::Choice;
use crate::stop_signal::StopSignal;
use crate::unstored::Unstored;

pub(crate) struct Session {
    pub(crate) id: Arc<str>,
    /// Store of the session: the agent's store, or a store in memory if the session cannot be stored on disk.
    pub(crate) store: Store,
    /// Turns that are not stored yet. Locked while turns are stored, to keep their order.
    pub(crate) unstored: tokio::sync::Mutex<Unstored>,
    state: Mutex<State>,
}

pub(crate) struct State {
    pub(crate) dirs: SessionDirs,
    /// The `sessionId` at the top level of the last message that had one (not the one in params), as JSON
    /// text.
    pub(crate) router_tag: Option<Vec<u8>>,
    pub(crate) choice: Option<Choice>,
    /// Past turns in the form for the model.
    pub(crate) past_turns: Vec<PastTurn>,
    /// Number of the last stored turn; `0` if there is none.
    pub(crate) last_turn: u64,
    /// Bytes of all turns in the store.
    pub(crate) stored_bytes: usize,
    /// Tokens of the last request and its answer.
    pub(crate) used: Option<u64>,
    /// Cost of all requests in dollars since the session was opened, if the endpoint reports it.
    pub(crate) cost: Option<f64>,
    /// Tokens of all turns since the session was opened, if the endpoint reports them.
    pub(crate) usage: Option<Usage>,
    pub(crate) title: Option<String>,
    /// Knowledge from earlier sessions, from the agent's memory.
    pub(crate) background: Option<Arc<str>>,
    /// Keys of permissions that the user gave for the whole session.
    pub(crate) grants: HashSet<String>,
    pub(crate) servers: Arc<Servers>,
    pub(crate) servers_since: Instant,
    /// Warnings to show before the next turn.
    pub(crate) warnings: Vec<String>,
    /// Exclusive lock on the stored session. `None` once the session is closed.
    claim: Option<Arc<Claim>>,
    /// `true` if the session is closed and kept only until all its turns are stored.
    pub(crate) is_closed: bool,
    turn: Option<ActiveTurn>,
    /// Signal that is set once the last turn has sent its final messages.
    ending: Option<StopSignal>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionDirs {
    pub(crate) cwd: String,
    pub(crate) roots: Vec<String>,
}

/// A past turn, or a summary of several.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PastTurn {
    pub(crate) number: u64,
    pub(crate) messages: Vec<Message>,
}

struct ActiveTurn {
    stop: StopSignal,
    ended: StopSignal,
    calls: HashMap<String, StopSignal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BeginError {
    Busy,
    Closed,
}

impl State {
    pub(crate) fn new(claim: Claim, dirs: SessionDirs, servers: Arc<Servers>, warnings: Vec<String>) -> Self {
        Self {
            claim: Some(Arc::new(claim)),
            is_closed: false,
            dirs,
            router_tag: None,
            choice: None,
            past_turns: Vec::new(),
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
            warnings,
            turn: None,
            ending: None,
        }
    }
}

impl Session {
    pub(crate) fn new(id: &str, store: Store, state: State) -> Self {
        Self { id: id.into(), store, unstored: tokio::sync::Mutex::default(), state: Mutex::new(state) }
    }

    pub(crate) fn claim(&self) -> Option<Arc<Claim>> {
        self.state().claim.clone()
    }

    pub(crate) fn set_claim(&self, claim: Claim) {
        self.state().claim = Some(Arc::new(claim));
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds this lock. Even after a panic, the values would be consistent.
        lock(&self.state)
    }

    /// Begins a turn, which runs until the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<TurnGuard, BeginError> {
        let mut state = self.state();
        if state.claim.is_none() {
            return Err(BeginError::Closed);
        }
        if state.turn.is_some() {
            return Err(BeginError::Busy);
        }
        let stop = StopSignal::new();
        state.turn = Some(ActiveTurn { stop: stop.clone(), ended: StopSignal::new(), calls: HashMap::new() });
        drop(state);
        Ok(TurnGuard { session: Arc::clone(self), stop })
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state().turn.is_some()
    }

    pub(crate) fn turn_end(&self) -> Option<impl Future<Output = ()> + Send + 'static + use<>> {
        self.state().turn.as_ref().map(|turn| turn.ended.stopped())
    }

    pub(crate) fn cancel(&self) {
        if let Some(turn) = &self.state().turn {
            turn.stop.stop();
        }
    }

    /// Cancels one call of the running turn. Returns `false` if there is no such call.
    pub(crate) fn cancel_call(&self, call: &str) -> bool {
        let state = self.state();
        let call = state.turn.as_ref().and_then(|turn| turn.calls.get(call));
        if let Some(stop) = call {
            stop.stop();
        }
        call.is_some()
    }

    /// Registers a call as cancellable until the guard is dropped.
    pub(crate) fn begin_call(self: &Arc<Self>, call: &str) -> CallGuard {
        let stop = StopSignal::new();
        if let Some(turn) = &mut self.state().turn {
            turn.calls.insert(call.to_owned(), stop.clone());
        }
        CallGuard { session: Arc::clone(self), call: call.to_owned(), stop }
    }

    pub(crate) fn active_calls(&self) -> Vec<String> {
        self.state().turn.as_ref().map(|turn| turn.calls.keys().cloned().collect()).unwrap_or_default()
    }

    /// Cancels the running turn, waits for its final messages, stores the remaining turns, and releases the
    /// claim. Returns `false` if a turn could not be stored; the claim is then still held. The caller must
    /// first remove the session from the agent, so that no other turn begins.
    pub(crate) async fn close(&self) -> bool {
        let ended = {
            let state = self.state();
            if let Some(turn) = &state.turn {
                turn.stop.stop();
            }
            state.turn.as_ref().map(|turn| &turn.ended).or(state.ending.as_ref()).map(StopSignal::stopped)
        };
        if let Some(ended) = ended {
            ended.await;
        }
        // With this mark set, a background task that stores the last turn also releases the claim.
        self.state().is_closed = true;
        self.store_rest().await;
        let is_stored = !self.has_unstored().await;
        if is_stored {
            self.release_claim();
        }
        is_stored
    }

    pub(crate) fn release_claim(&self) {
        self.state().claim = None;
    }

    /// Releases the claim if the session is closed. Must be called once all turns are stored.
    pub(crate) fn release_claim_if_closed(&self) {
        let mut state = self.state();
        if state.is_closed {
            state.claim = None;
        }
    }
}

/// A running turn. Dropping the guard ends it.
pub(crate) struct TurnGuard {
    session: Arc<Session>,
    pub(crate) stop: StopSignal,
}

impl TurnGuard {
    /// Allows the next turn to begin. Must be called before the last message of this turn is sent, because
    /// the client may react with the next prompt. The returned guard must live until all messages are sent.
    pub(crate) fn release(self) -> EndingTurn {
        let mut state = self.session.state();
        let ended = state.turn.take().map(|turn| turn.ended);
        state.ending.clone_from(&ended);
        drop(state);
        EndingTurn { ended }
    }
}

impl Drop for TurnGuard {
    fn drop(&mut self) {
        if let Some(turn) = self.session.state().turn.take() {
            turn.ended.stop();
        }
    }
}

/// A turn whose final messages are being sent. Ends on drop.
pub(crate) struct EndingTurn {
    ended: Option<StopSignal>,
}

impl Drop for EndingTurn {
    fn drop(&mut self) {
        if let Some(ended) = &self.ended {
            ended.stop();
        }
    }
}

/// A running call. Dropping the guard ends it.
pub(crate) struct CallGuard {
    session: Arc<Session>,
    call: String,
    pub(crate) stop: StopSignal,
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        if let Some(turn) = &mut self.session.state().turn {
            turn.calls.remove(&self.call);
        }
    }
}
