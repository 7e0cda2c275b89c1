//! Turns that could not be stored when they ended: they wait in memory, in order, until they can be. So does the record of a session that
//! could not be stored when the session was opened.
//!
//! They are tried again when the next turn ends, every few seconds, when the history is read, when the session is closed, then every few
//! seconds again, and when the agent ends. A turn is never stored before an earlier one.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use narrows_store::{Change, NewSession, StoreError, Turn};

use crate::session::Session;

/// How many bytes of turns wait at most in a session; what ends then is not stored.
const MAX_WAITING_BYTES: usize = 16 << 20;
/// The pause between two attempts while no turn ends.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The turns of a session that are not stored yet, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Unstored {
    /// The record, if that is not stored yet.
    record: Option<NewSession>,
    turns: VecDeque<Waiting>,
    bytes: usize,
    /// A task tries again from time to time.
    is_retried: bool,
}

#[derive(Debug)]
struct Waiting {
    turn: Arc<Turn>,
    title: Option<String>,
    bytes: usize,
}

/// Why a turn is not stored, and what becomes of it.
#[derive(Debug)]
pub(crate) enum NotStored {
    /// It waits until it can be, and will have this number.
    Waits { error: StoreError, number: u64 },
    /// It is kept nowhere but in the open session.
    Lost(StoreError),
}

impl Session {
    /// Stores a turn behind all that wait, or lets it wait too; returns its number.
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
        unstored.turns.push_back(Waiting { turn, title, bytes });
        self.retry_later(&mut unstored);
        let number = self.state().last_turn + unstored.turns.len() as u64;
        Err(NotStored::Waits { error, number })
    }

    /// Stores the record with the first turn, or when there is room for it.
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

    /// Changes what is known of the session, in the store or in the record that waits.
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

    /// Returns the turns of the session, those that wait included.
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
            tracing::error!(%error, turns = unstored.turns.len(), session = %self.id, "turns could not be stored yet");
        }
        unstored.turns.iter().map(|waiting| Turn::clone(&waiting.turn)).collect()
    }

    /// Stores what waits, as far as that is possible.
    async fn store_waiting(&self, unstored: &mut Unstored) -> Result<(), StoreError> {
        if let Some(record) = &unstored.record {
            let claim = self.store.create(record.clone()).await?;
            self.hold(claim);
            unstored.record = None;
            tracing::info!(session = %self.id, "session is stored");
        }
        let mut stored = 0;
        while let Some(waiting) = unstored.turns.front() {
            match self.store_one(&waiting.turn, waiting.title.clone()).await {
                Ok(_) => stored += 1,
                Err(error) if error.may_pass() => return Err(error),
                // The session is gone, or the file is another: it will never be stored.
                Err(error) => {
                    tracing::error!(%error, session = %self.id, "a turn that waited could not be stored");
                }
            }
            unstored.bytes = unstored.bytes.saturating_sub(waiting.bytes);
            unstored.turns.pop_front();
        }
        if stored > 0 {
            tracing::info!(turns = stored, session = %self.id, "turns that waited are stored");
            let turns = if stored == 1 { "turn is" } else { "turns are" };
            self.state().troubles.push(format!("{stored} {turns} stored now that could not be before"));
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

/// Tries again until nothing waits, or the session is gone.
async fn retry(session: Weak<Session>) {
    loop {
        tokio::time::sleep(RETRY_INTERVAL).await;
        let Some(session) = session.upgrade() else { return };
        let mut unstored = session.unstored.lock().await;
        // Whoever is told when this fails has been told already.
        let is_done = session.store_waiting(&mut unstored).await.is_ok() || session.claim().is_none();
        if is_done {
            unstored.is_retried = false;
            session.give_back_if_closed();
            return;
        }
    }
}
