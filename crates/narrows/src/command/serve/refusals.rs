//! Records clients that are not admitted, so that they cannot fill the log: one entry for each identity at once, and
//! then at most one in a minute, with the number of further refusals.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use narrows_audit::{Event, Log};
use narrows_base::sync::lock;
use narrows_govern::{Lobby, Mandate, Principal};
use serde_json::json;
use tokio::time::sleep;

use super::charge::Charge;

/// The least time between two entries about one identity.
const RECORD_INTERVAL: Duration = Duration::from_secs(60);

/// The member of an entry's `metadata` that says how many refusals it stands for. Absent: one.
const COUNT: &str = "count";

/// The id of a client, and how it is known.
type Key = (String, &'static str);

/// The refusals of one process.
#[derive(Clone, Debug, Default)]
pub(super) struct Refusals(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    recent: Mutex<Recent>,
    /// Held while counted refusals are written, so that none is on its way when the log is closed.
    writing: tokio::sync::Mutex<()>,
}

/// Identities with an entry that is younger than [`RECORD_INTERVAL`], and what was not recorded since.
#[derive(Debug, Default)]
struct Recent(HashMap<Key, Unrecorded>);

#[derive(Debug)]
struct Unrecorded {
    /// The entry of one refusal.
    event: Event,
    count: u64,
}

impl Recent {
    /// Counts a refusal. Returns an entry to be written now if the identity has none that is recent.
    fn count(&mut self, key: &Key, event: impl FnOnce() -> Event) -> Option<Event> {
        if let Some(unrecorded) = self.0.get_mut(key) {
            unrecorded.count += 1;
            return None;
        }
        let event = event();
        self.0.insert(key.clone(), Unrecorded { event: event.clone(), count: 0 });
        Some(event)
    }

    /// Returns the entry of an identity whose interval is over. `None`: there is nothing to record, and its next refusal is
    /// recorded at once.
    fn take(&mut self, key: &Key) -> Option<(Event, u64)> {
        let counted = self.0.get_mut(key).and_then(Unrecorded::take);
        if counted.is_none() {
            self.0.remove(key);
        }
        counted
    }

    /// Counts refusals that could not be written again.
    fn restore(&mut self, key: &Key, count: u64) {
        if let Some(unrecorded) = self.0.get_mut(key) {
            unrecorded.count += count;
        }
    }
}

impl Unrecorded {
    fn take(&mut self) -> Option<(Event, u64)> {
        let count = std::mem::take(&mut self.count);
        let mut event = (count > 0).then(|| self.event.clone())?;
        event.metadata.insert(COUNT.to_owned(), json!(count));
        Some((event, count))
    }
}

impl Refusals {
    /// Records that a client is not admitted, now or later with others of its identity. Returns once an entry that is
    /// written now is on the disk.
    pub(super) async fn record(&self, charge: &Charge, log: Option<&Log>, who: &Principal) {
        let key = (who.id.clone(), who.method.name());
        let event = || Lobby::turned_away(&Mandate::of(&charge.bundle, Vec::new()), who);
        let Some(event) = self.recent().count(&key, event) else { return };
        tracing::warn!(identity = who.id, "client not admitted");
        let (this, later) = (self.clone(), log.cloned());
        tokio::spawn(async move {
            loop {
                sleep(RECORD_INTERVAL).await;
                if !this.record_counted(later.as_ref(), &key).await {
                    return;
                }
            }
        });
        append(log, event).await;
    }

    /// Writes what was counted of an identity since its last entry. Returns `false` if there was nothing.
    async fn record_counted(&self, log: Option<&Log>, key: &Key) -> bool {
        let _writing = self.0.writing.lock().await;
        let Some((event, count)) = self.recent().take(key) else { return false };
        tracing::warn!(identity = key.0, count, "clients not admitted");
        if !append(log, event).await {
            self.recent().restore(key, count);
        }
        true
    }

    /// Writes all that was counted, before the log is closed.
    pub(super) async fn finish(&self, log: Option<&Log>) {
        let keys: Vec<Key> = self.recent().0.keys().cloned().collect();
        for key in keys {
            self.record_counted(log, &key).await;
        }
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        lock(&self.0.recent)
    }
}

/// Returns `false` if the entry could not be written.
async fn append(log: Option<&Log>, event: Event) -> bool {
    let Some(log) = log else { return true };
    match log.append(event).await {
        Ok(_) => true,
        Err(error) => {
            tracing::error!(%error, "cannot record that a client was not admitted");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str) -> Key {
        (id.to_owned(), "socket-owner")
    }

    #[test]
    fn an_identity_has_one_entry_at_once_and_then_one_with_a_count() {
        let mut recent = Recent::default();
        let bob = key("user:bob");
        assert!(recent.count(&bob, Event::default).is_some());
        for _ in 0..10_000 {
            assert_eq!(recent.count(&bob, Event::default), None);
        }
        assert!(
            recent.count(&key("user:eve"), Event::default).is_some(),
            "others are recorded for themselves"
        );
        let (event, count) = recent.take(&bob).expect("counted");
        assert_eq!((count, &event.metadata[COUNT]), (10_000, &json!(10_000)));
        // What could not be written stands in the next entry.
        recent.restore(&bob, count);
        assert_eq!(recent.count(&bob, Event::default), None);
        assert_eq!(recent.take(&bob).map(|(_, count)| count), Some(10_001));
        // After an interval without a refusal the identity is forgotten.
        assert_eq!(recent.take(&bob), None);
        assert!(!recent.0.contains_key(&bob));
        assert!(recent.count(&bob, Event::default).is_some());
    }
}
