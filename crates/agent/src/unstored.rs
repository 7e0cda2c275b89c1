//! Turns that could not be stored when they ended: they wait in memory, in order. So does the record of a session that
//! could not be stored when it was opened.
//!
//! Storing is retried when the next turn ends, every few seconds, when the history is read, when the session is closed,
//! and when the agent ends. A turn is never stored before an earlier one.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use narrows_store::{Change, NewSession, StoreError, Turn};

use crate::session::Session;

/// Most bytes of waiting turns per session; a turn beyond that is not stored.
const MAX_WAITING_BYTES: usize = 16 << 20;
/// Time between two attempts while no turn ends.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The turns of a session that are not stored yet, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Unstored {
    /// The session's record, if it is not stored yet.
    record: Option<NewSession>,
    turns: VecDeque<UnstoredTurn>,
    bytes: usize,
    /// A task retries regularly.
    is_retried: bool,
}

#[derive(Debug)]
struct UnstoredTurn {
    turn: Arc<Turn>,
    title: Option<String>,
    bytes: usize,
}

/// Why a turn is not stored.
#[derive(Debug)]
pub(crate) enum NotStored {
    /// It waits, and will have this number.
    Pending { error: StoreError, number: u64 },
    /// It is kept in the open session only.
    Lost(StoreError),
}

impl Session {
    /// Stores a turn after all waiting ones, or queues it too. Returns its number.
    pub(crate) async fn store_turn(
        self: &Arc<Self>,
        turn: Turn,
        title: Option<String>,
    ) -> Result<u64, NotStored> {
        let (turn, mut unstored) = (Arc::new(turn), self.unstored.lock().await);
        let outcome = match self.store_waiting(&mut unstored).await {
            Ok(()) => self.store_one(&turn, title.clone()).await,
            Err(error) => Err(error),
        };
        let error = match outcome {
            Ok(number) => return Ok(number),
            Err(error) => error,
        };
        let bytes = turn.messages.iter().chain(&turn.replay).map(String::len).sum::<usize>();
        if !error.may_pass() || unstored.bytes.saturating_add(bytes) > MAX_WAITING_BYTES {
            return Err(NotStored::Lost(error));
        }
        unstored.bytes += bytes;
        unstored.turns.push_back(UnstoredTurn { turn, title, bytes });
        self.retry_later(&mut unstored);
        let number = self.state().last_turn + unstored.turns.len() as u64;
        Err(NotStored::Pending { error, number })
    }

    /// Stores the record with the first turn, or when there is space.
    pub(crate) async fn store_later(self: &Arc<Self>, record: NewSession) {
        let mut unstored = self.unstored.lock().await;
        unstored.record = Some(record);
        self.retry_later(&mut unstored);
    }

    fn retry_later(self: &Arc<Self>, unstored: &mut Unstored) {
        if !std::mem::replace(&mut unstored.is_retried, true) {
            tokio::spawn(retry(Arc::downgrade(self)));
        }
    }

    /// Changes the session in the store, or in the waiting record.
    pub(crate) async fn change(&self, change: Change) -> Result<(), StoreError> {
        let mut unstored = self.unstored.lock().await;
        let Some(record) = &mut unstored.record else {
            let claim = self.claim().ok_or(StoreError::NotFound)?;
            return self.store.set(&claim, change).await;
        };
        match change {
            Change::Settings(settings) => record.settings = settings,
            Change::Place { cwd, roots } => (record.cwd, record.roots) = (cwd, roots),
            // A title is stored with the next turn.
            _ => {}
        }
        Ok(())
    }

    /// Returns `true` if something of the session is not stored.
    pub(crate) async fn has_unstored(&self) -> bool {
        let unstored = self.unstored.lock().await;
        unstored.record.is_some() || !unstored.turns.is_empty()
    }

    /// Returns the turns of the session, waiting ones included.
    pub(crate) async fn history(&self) -> Result<Vec<Turn>, StoreError> {
        let waiting = self.store_rest().await;
        if self.unstored.lock().await.record.is_some() {
            return Ok(waiting);
        }
        let mut history = self.store.history(&self.id).await?;
        history.extend(waiting);
        Ok(history)
    }

    /// Stores what waits, and returns what still does.
    pub(crate) async fn store_rest(&self) -> Vec<Turn> {
        let mut unstored = self.unstored.lock().await;
        if let Err(error) = self.store_waiting(&mut unstored).await {
            tracing::error!(%error, turns = unstored.turns.len(), session = %self.id, "turns not stored yet");
        }
        unstored.turns.iter().map(|waiting| Turn::clone(&waiting.turn)).collect()
    }

    /// Stores what waits, as far as possible.
    async fn store_waiting(&self, unstored: &mut Unstored) -> Result<(), StoreError> {
        if let Some(record) = &unstored.record {
            let claim = self.store.create(record.clone()).await?;
            self.set_claim(claim);
            unstored.record = None;
            tracing::info!(session = %self.id, "session stored");
        }
        let mut stored = 0;
        while let Some(first) = unstored.turns.front() {
            match self.store_one(&first.turn, first.title.clone()).await {
                Ok(_) => stored += 1,
                Err(error) if error.may_pass() => return Err(error),
                // The session was deleted, or the file replaced: the turn can never be stored.
                Err(error) => {
                    tracing::error!(%error, session = %self.id, "queued turn not stored");
                }
            }
            unstored.bytes = unstored.bytes.saturating_sub(first.bytes);
            unstored.turns.pop_front();
        }
        if stored > 0 {
            tracing::info!(turns = stored, session = %self.id, "queued turns stored");
            let turns = if stored == 1 { "turn is" } else { "turns are" };
            self.state().warnings.push(format!("{stored} {turns} stored after earlier failures"));
        }
        Ok(())
    }

    async fn store_one(&self, turn: &Arc<Turn>, title: Option<String>) -> Result<u64, StoreError> {
        let claim = self.claim().ok_or(StoreError::NotFound)?;
        let number = self.store.append_called(&claim, Arc::clone(turn), title).await?;
        self.state().last_turn = number;
        Ok(number)
    }
}

/// Retries until nothing waits, or the session is gone.
async fn retry(session: Weak<Session>) {
    loop {
        tokio::time::sleep(RETRY_INTERVAL).await;
        let Some(session) = session.upgrade() else { return };
        let mut unstored = session.unstored.lock().await;
        // The user has been warned about the failure already.
        let is_done = session.store_waiting(&mut unstored).await.is_ok() || session.claim().is_none();
        if is_done {
            unstored.is_retried = false;
            session.release_claim_if_closed();
            return;
        }
    }
}
