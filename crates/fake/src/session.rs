//! The sessions of the agent, in memory.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use narrows_base::sync::lock;
use serde_json::Value;
use tokio::sync::watch;

use crate::history::History;
use crate::scripted_response::ScriptedResponse;

pub(crate) struct Prompt {
    pub(crate) response: ScriptedResponse,
    pub(crate) blocks: Vec<Value>,
    pub(crate) text: String,
}

pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) cwd: String,
    state: Mutex<State>,
    busy: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    closed: bool,
    mode: String,
    title: Option<String>,
    turns: u64,
    /// Number of turns that were taken in order. Conditional turns do not count.
    turn_index: usize,
    history: History,
    /// Sender of `true` to cancel the running turn.
    cancel: Option<watch::Sender<bool>>,
    waiting: VecDeque<Prompt>,
}

pub(crate) enum BeginOutcome {
    /// The turn begins. The receiver becomes `true` when the turn is cancelled.
    Now(Prompt, watch::Receiver<bool>),
    Busy(Prompt),
    Closed(Prompt),
    Waiting,
}

impl Session {
    pub(crate) fn new(id: String, cwd: String, mode: String) -> Self {
        let state = State { mode, ..State::default() };
        Self { id, cwd, state: Mutex::new(state), busy: watch::Sender::new(false) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds this lock. Even after a panic, the state would be consistent.
        lock(&self.state)
    }

    /// Begins a turn. If another turn is running and `wait` is set, queues the prompt.
    pub(crate) fn begin(&self, prompt: Prompt, wait: bool) -> BeginOutcome {
        let mut state = self.state();
        if state.closed {
            return BeginOutcome::Closed(prompt);
        }
        if state.cancel.is_none() {
            return BeginOutcome::Now(prompt, self.running(&mut state));
        }
        if !wait {
            return BeginOutcome::Busy(prompt);
        }
        state.waiting.push_back(prompt);
        BeginOutcome::Waiting
    }

    /// Ends the running turn, and begins the turn of the next waiting prompt.
    pub(crate) fn next(&self) -> Option<(Prompt, watch::Receiver<bool>)> {
        let mut state = self.state();
        if let Some(prompt) = state.waiting.pop_front() {
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

    /// Cancels the running turn. Returns the waiting prompts, which are removed from the queue.
    pub(crate) fn cancel(&self) -> Vec<Prompt> {
        let mut state = self.state();
        if let Some(cancel) = &state.cancel {
            cancel.send_replace(true);
        }
        state.waiting.drain(..).collect()
    }

    pub(crate) async fn idle(&self) {
        // Waiting cannot fail, because `self` holds the sender.
        let _ = self.busy.subscribe().wait_for(|busy| !busy).await;
    }

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

    /// Returns the number of the running turn, from 1.
    pub(crate) fn turns(&self) -> u64 {
        self.state().turns
    }

    pub(crate) fn turn_index(&self) -> usize {
        self.state().turn_index
    }

    pub(crate) fn count_turn_in_order(&self) {
        self.state().turn_index += 1;
    }

    pub(crate) fn record(&self, update: &Value) {
        self.state().history.record(update);
    }

    pub(crate) fn replay(&self) -> Vec<Value> {
        self.state().history.replay()
    }
}
