//! The sessions of the agent: nothing but memory.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use narrows_base::sync::lock;
use serde_json::Value;
use tokio::sync::watch;

use crate::answer::Owed;
use crate::history::History;

/// A prompt that is to be answered.
pub(crate) struct Prompt {
    pub(crate) owed: Owed,
    /// Its blocks, as they came.
    pub(crate) blocks: Vec<Value>,
    /// What they say in words.
    pub(crate) text: String,
}

/// One session.
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) cwd: String,
    state: Mutex<State>,
    /// Whether a turn runs.
    busy: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    closed: bool,
    mode: String,
    title: Option<String>,
    turns: u64,
    /// Turns taken in order, those with a condition not counted.
    taken: usize,
    history: History,
    /// How to cancel the turn that runs.
    cancel: Option<watch::Sender<bool>>,
    /// Prompts that wait for it to end.
    held: VecDeque<Prompt>,
}

/// What becomes of a prompt.
pub(crate) enum Begin {
    /// Its turn begins; this tells when it is cancelled.
    Now(Prompt, watch::Receiver<bool>),
    /// Another turn runs.
    Busy(Prompt),
    /// The session is closed.
    Closed(Prompt),
    /// It waits for the turn that runs.
    Held,
}

impl Session {
    pub(crate) fn new(id: String, cwd: String, mode: String) -> Self {
        let state = State { mode, ..State::default() };
        Self { id, cwd, state: Mutex::new(state), busy: watch::Sender::new(false) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock; were it so, the state would still be consistent.
        lock(&self.state)
    }

    /// Begins a turn, or holds the prompt if `hold` is set and one runs.
    pub(crate) fn begin(&self, prompt: Prompt, hold: bool) -> Begin {
        let mut state = self.state();
        if state.closed {
            return Begin::Closed(prompt);
        }
        if state.cancel.is_none() {
            return Begin::Now(prompt, self.running(&mut state));
        }
        if !hold {
            return Begin::Busy(prompt);
        }
        state.held.push_back(prompt);
        Begin::Held
    }

    /// Ends the turn that runs; if a prompt waits, its turn begins.
    pub(crate) fn next(&self) -> Option<(Prompt, watch::Receiver<bool>)> {
        let mut state = self.state();
        if let Some(prompt) = state.held.pop_front() {
            return Some((prompt, self.running(&mut state)));
        }
        state.cancel = None;
        self.busy.send_replace(false);
        None
    }

    fn running(&self, state: &mut State) -> watch::Receiver<bool> {
        let (cancel, cancelled) = watch::channel(false);
        state.cancel = Some(cancel);
        state.turns += 1;
        self.busy.send_replace(true);
        cancelled
    }

    /// Cancels the turn that runs, and returns the prompts that waited for it.
    pub(crate) fn cancel(&self) -> Vec<Prompt> {
        let mut state = self.state();
        if let Some(cancel) = &state.cancel {
            cancel.send_replace(true);
        }
        state.held.drain(..).collect()
    }

    /// Waits until no turn runs.
    pub(crate) async fn idle(&self) {
        // The sender lives as long as `self`.
        let _ = self.busy.subscribe().wait_for(|busy| !busy).await;
    }

    /// Whether a turn runs.
    pub(crate) fn is_busy(&self) -> bool {
        *self.busy.borrow()
    }

    pub(crate) fn set_closed(&self, closed: bool) {
        self.state().closed = closed;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
    }

    pub(crate) fn mode(&self) -> String {
        self.state().mode.clone()
    }

    pub(crate) fn set_mode(&self, mode: &str) {
        mode.clone_into(&mut self.state().mode);
    }

    pub(crate) fn title(&self) -> Option<String> {
        self.state().title.clone()
    }

    pub(crate) fn set_title(&self, title: &str) {
        self.state().title = Some(title.to_owned());
    }

    /// The number of the turn that runs, from 1.
    pub(crate) fn turns(&self) -> u64 {
        self.state().turns
    }

    /// How many turns have been taken in order.
    pub(crate) fn taken(&self) -> usize {
        self.state().taken
    }

    /// Takes one more turn in order.
    pub(crate) fn take_one(&self) {
        self.state().taken += 1;
    }

    pub(crate) fn record(&self, update: &Value) {
        self.state().history.record(update);
    }

    pub(crate) fn replay(&self) -> Vec<Value> {
        self.state().history.replay()
    }
}
