//! Turns that could not be stored when they ended: they wait in memory, in order, until they can be.
//!
//! They are tried again when the next turn ends, every few seconds, when the history is read and when the session is closed.
//! A turn is never stored before an earlier one.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use narrows_store::{StoreError, Turn};

use crate::session::Session;

/// How many bytes of turns wait at most in a session; what ends then is not stored.
const MAX_WAITING_BYTES: usize = 16 << 20;
/// The pause between two attempts while no turn ends.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The turns of a session that are not stored yet, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Unstored {
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
        if !std::mem::replace(&mut unstored.is_retried, true) {
            tokio::spawn(retry(Arc::downgrade(self)));
        }
        let number = self.state().last_turn + unstored.turns.len() as u64;
        Err(NotStored::Waits { error, number })
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
            return;
        }
    }
}
