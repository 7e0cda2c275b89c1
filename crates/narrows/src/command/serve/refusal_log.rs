//! Records clients that are not admitted, at a limited rate, so that they cannot fill the log. The first
//! refusal of an identity gets an entry at once. Further ones are counted, and get at most one entry per
//! minute with their number.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use narrows_audit::{Event, Log};
use narrows_base::sync::lock;
use narrows_govern::{GateConfig, Principal, UnauthenticatedGate};
use serde_json::json;
use tokio::time::sleep;

use super::manifest::LoadedManifest;

/// The minimum interval of entries about one identity.
const RECORD_INTERVAL: Duration = Duration::from_secs(60);

/// The member of `metadata` with the number of refusals that an entry stands for. An absent member means one.
const COUNT: &str = "count";

type Key = (String, &'static str);

#[derive(Clone, Debug, Default)]
pub(super) struct ClientRefusalLog(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    recent: Mutex<Recent>,
    /// Held while counted refusals are written, so that none is pending when the log is closed.
    writing: tokio::sync::Mutex<()>,
}

/// Identities with an entry younger than [`RECORD_INTERVAL`], and their refusals since then.
#[derive(Debug, Default)]
struct Recent(HashMap<Key, Unrecorded>);

#[derive(Debug)]
struct Unrecorded {
    event: Event,
    count: u64,
}

impl Recent {
    /// Counts a refusal. Returns an entry to write now if the identity has no recent entry.
    fn count(&mut self, key: &Key, event: impl FnOnce() -> Event) -> Option<Event> {
        if let Some(unrecorded) = self.0.get_mut(key) {
            unrecorded.count += 1;
            return None;
        }
        let event = event();
        self.0.insert(key.clone(), Unrecorded { event: event.clone(), count: 0 });
        Some(event)
    }

    /// Returns the counted entry of an identity whose interval is over. `None` if there were no further
    /// refusals. In that case the next refusal is recorded at once.
    fn take_counted(&mut self, key: &Key) -> Option<(Event, u64)> {
        let counted = self.0.get_mut(key).and_then(Unrecorded::take_counted);
        if counted.is_none() {
            self.0.remove(key);
        }
        counted
    }

    /// Adds back refusals that could not be written.
    fn restore(&mut self, key: &Key, count: u64) {
        if let Some(unrecorded) = self.0.get_mut(key) {
            unrecorded.count += count;
        }
    }
}

impl Unrecorded {
    fn take_counted(&mut self) -> Option<(Event, u64)> {
        let count = std::mem::take(&mut self.count);
        let mut event = (count > 0).then(|| self.event.clone())?;
        event.metadata.insert(COUNT.to_owned(), json!(count));
        Some((event, count))
    }
}

impl ClientRefusalLog {
    /// Records a refused client: now, or later together with others of its identity. An entry that is written
    /// now is on disk when this returns.
    pub(super) async fn record(&self, manifest: &LoadedManifest, log: Option<&Log>, who: &Principal) {
        let key = (who.id.clone(), who.method.name());
        let event = || {
            UnauthenticatedGate::refused_event(&GateConfig::from_bundle(&manifest.bundle, Vec::new()), who)
        };
        let Some(event) = self.recent().count(&key, event) else { return };
        tracing::warn!(identity = who.id, "client refused");
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

    /// Writes the refusals counted since the last entry of an identity. Returns `false` if there were none.
    async fn record_counted(&self, log: Option<&Log>, key: &Key) -> bool {
        let _writing = self.0.writing.lock().await;
        let Some((event, count)) = self.recent().take_counted(key) else { return false };
        tracing::warn!(identity = key.0, count, "clients refused");
        if !append(log, event).await {
            self.recent().restore(key, count);
        }
        true
    }

    /// Writes all counted refusals, before the log is closed.
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

async fn append(log: Option<&Log>, event: Event) -> bool {
    let Some(log) = log else { return true };
    match log.append(event).await {
        Ok(_) => true,
        Err(error) => {
            tracing::error!(%error, "cannot record a refused client");
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
    fn refusals_of_an_identity_are_recorded_once_and_then_counted() {
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
        let (event, count) = recent.take_counted(&bob).expect("a counted entry");
        assert_eq!((count, &event.metadata[COUNT]), (10_000, &json!(10_000)));
        // Refusals that could not be written are in the next entry.
        recent.restore(&bob, count);
        assert_eq!(recent.count(&bob, Event::default), None);
        assert_eq!(recent.take_counted(&bob).map(|(_, count)| count), Some(10_001));
        // After an interval without refusals the identity is forgotten.
        assert_eq!(recent.take_counted(&bob), None);
        assert!(!recent.0.contains_key(&bob));
        assert!(recent.count(&bob, Event::default).is_some());
    }
}
