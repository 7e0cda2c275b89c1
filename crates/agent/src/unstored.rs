//! Holds turns in memory that could not be stored when they ended, in order. Also holds the record of a
//! session that could not be stored when it was opened.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use narrows_store::{Change, NewSession, StoreError, Turn};

use crate::session::Session;

/// Maximum number of bytes of waiting turns per session. A turn beyond this limit is lost.
const MAX_WAITING_BYTES: usize = 16 << 20;
/// Interval of retries while no turn ends.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The turns of a session that are not stored yet, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Unstored {
    /// The session's own record, if it is not stored yet.
    record: Option<NewSession>,
    turns: VecDeque<UnstoredTurn>,
    bytes: usize,
    /// `true` while a background task retries to store the turns.
    is_retried: bool,
}

#[derive(Debug)]
struct UnstoredTurn {
    turn: Arc<Turn>,
    title: Option<String>,
    bytes: usize,
}

#[derive(Debug)]
pub(crate) enum NotStored {
    /// The turn waits to be stored with this number.
    Pending { error: StoreError, number: u64 },
    /// The turn can no longer be stored, and exists only in the open session.
    Lost(StoreError),
}

impl Session {
    /// Stores a turn after all waiting turns, or adds it to the waiting turns. Returns the turn's number.
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

    /// Keeps `record` in memory. It is stored with the first turn or at a retry.
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

    /// Applies `change` to the session in the store, or to its waiting record.
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

    pub(crate) async fn has_unstored(&self) -> bool {
        let unstored = self.unstored.lock().await;
        unstored.record.is_some() || !unstored.turns.is_empty()
    }

    /// Returns all turns of the session, including those that are not stored yet.
    pub(crate) async fn history(&self) -> Result<Vec<Turn>, StoreError> {
        let waiting = self.store_rest().await;
        if self.unstored.lock().await.record.is_some() {
            return Ok(waiting);
        }
        let mut history = self.store.history(&self.id).await?;
        history.extend(waiting);
        Ok(history)
    }

    /// Stores the waiting turns. Returns those that could not be stored.
    pub(crate) async fn store_rest(&self) -> Vec<Turn> {
        let mut unstored = self.unstored.lock().await;
        if let Err(error) = self.store_waiting(&mut unstored).await {
            tracing::error!(%error, turns = unstored.turns.len(), session = %self.id, "turns not stored yet");
        }
        unstored.turns.iter().map(|waiting| Turn::clone(&waiting.turn)).collect()
    }

    /// Stores the waiting record and turns, up to the first error.
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
                // The session was deleted or its file replaced, so the turn can never be stored.
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

/// Retries until all turns are stored, or the session is dropped.
async fn retry(session: Weak<Session>) {
    loop {
        tokio::time::sleep(RETRY_INTERVAL).await;
        let Some(session) = session.upgrade() else { return };
        let mut unstored = session.unstored.lock().await;
        // An error is not reported again: the user was warned when the turn could not be stored.
        let is_done = session.store_waiting(&mut unstored).await.is_ok() || session.claim().is_none();
        if is_done {
            unstored.is_retried = false;
            session.release_claim_if_closed();
            return;
        }
    }
}
