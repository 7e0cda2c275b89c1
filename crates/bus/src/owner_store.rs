//! The owners of sessions on disk. A separate thread writes them, so that a slow disk delays no message.
//!
//! An entry is acknowledged once it is synced, and a client learns of its session after that. A session whose entry is lost, because a
//! disk is full or broken, has no owner: no client sees it after a restart.

mod file;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use mio::Waker;

use crate::config::Limits;
use crate::core::OwnedName;

pub(crate) use file::File;
pub use file::OwnersError;

/// Entries sent to the writer. Further ones wait in the event loop, which holds their clients.
const MAX_PENDING_ENTRIES: usize = 1024;
/// Entries per write.
const MAX_BATCH_ENTRIES: usize = 4096;
/// Sessions with a recorded owner. Beyond that, the identity with the most loses its least recently used ones.
const MAX_OWNED_SESSIONS: usize = 1 << 20;
/// Bytes of the names of all these sessions.
const MAX_NAME_BYTES: usize = 256 << 20;
/// Entries that may wait in the event loop before new sessions are refused.
const MAX_WAITING: usize = 16_384;
/// Interval of removing expired entries from an idle index.
const SWEEP_INTERVAL: Duration = Duration::from_secs(3600);
/// Pause after a failed write.
const WRITE_RETRY_DELAY: Duration = Duration::from_secs(5);

/// A change to the owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OwnerEntry {
    /// The owner of a session. Repeated for a known session, it records that the session is in use.
    Own { session: OwnedName, identity: Arc<str> },
    /// A session was deleted.
    Disown { session: OwnedName },
}

/// An event of the writer.
#[derive(Debug)]
pub(crate) enum OwnerStoreEvent {
    /// All entries up to this number are on disk, or will not be.
    Kept(u64),
    /// The owners of these sessions were removed.
    Forgotten(Vec<OwnedName>),
}

/// The owner of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owned {
    pub(crate) identity: Arc<str>,
    /// Time of the last use, in seconds since the epoch.
    pub(crate) used: u64,
}

/// The event loop's side of the writer, which never blocks.
#[derive(Debug)]
pub(crate) struct OwnerWriter {
    sender: SyncSender<(u64, OwnerEntry)>,
    waiting: VecDeque<(u64, OwnerEntry)>,
    events: Receiver<OwnerStoreEvent>,
}

impl OwnerWriter {
    /// Writes an entry under a number, which is larger than all before.
    pub(crate) fn put(&mut self, number: u64, entry: OwnerEntry) {
        self.waiting.push_back((number, entry));
        self.send();
    }

    /// Returns `true` if so many entries wait that no new ones should be caused.
    pub(crate) fn is_behind(&self) -> bool {
        self.waiting.len() > MAX_WAITING
    }

    /// Returns the events since the last call; `None` if the writer has ended.
    pub(crate) fn take_events(&mut self) -> Option<Vec<OwnerStoreEvent>> {
        let mut all = Vec::new();
        loop {
            match self.events.try_recv() {
                Ok(event) => all.push(event),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) if all.is_empty() => return None,
                Err(TryRecvError::Disconnected) => break,
            }
        }
        self.send();
        Some(all)
    }

    fn send(&mut self) {
        while let Some(entry) = self.waiting.pop_front() {
            match self.sender.try_send(entry) {
                Ok(()) => {}
                Err(TrySendError::Full(entry)) => return self.waiting.push_front(entry),
                // The writer has ended, which `take_events` reports.
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
    }
}

impl Drop for OwnerWriter {
    /// Hands over the waiting entries, so that they are written before the thread ends.
    fn drop(&mut self) {
        while let Some(entry) = self.waiting.pop_front() {
            match self.sender.try_send(entry) {
                Ok(()) => {}
                Err(TrySendError::Full(entry)) => {
                    self.waiting.push_front(entry);
                    // A full event channel would block the writer.
                    while self.events.try_recv().is_ok() {}
                    std::thread::yield_now();
                }
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
    }
}

/// Starts the writer thread. It ends when the [`OwnerWriter`] is dropped and all entries are written.
pub(crate) fn start(index: Index, waker: Arc<Waker>) -> std::io::Result<(OwnerWriter, JoinHandle<()>)> {
    let (sender, entries) = sync_channel(MAX_PENDING_ENTRIES);
    let (event_sender, events) = sync_channel(MAX_PENDING_ENTRIES);
    let tell = move |event| {
        if event_sender.send(event).is_ok()
            && let Err(error) = waker.wake()
        {
            tracing::error!(%error, "cannot wake the event loop");
        }
    };
    let thread = std::thread::Builder::new()
        .name("narrows-owners".into())
        .spawn(move || index.serve(&entries, tell))?;
    Ok((OwnerWriter { sender, waiting: VecDeque::new(), events }, thread))
}

/// The known owners and their file.
#[derive(Debug)]
pub(crate) struct Index {
    file: File,
    known: HashMap<OwnedName, Owned>,
    /// Bytes of the names in `known`.
    bytes: usize,
    expiry: Duration,
    /// Sessions whose entry in the file is outdated.
    missing: BTreeSet<OwnedName>,
    /// The time of the last failed write.
    behind: Option<std::time::Instant>,
}

impl Index {
    /// Reads the file and passes each owner to `learn`. Expired entries are left out.
    pub(crate) fn open(
        path: &std::path::Path,
        expiry: Duration,
        mut learn: impl FnMut(&OwnedName, &str),
    ) -> Result<Self, OwnersError> {
        let (file, known) = File::open(path)?;
        let bytes = known.keys().map(OwnedName::bytes).sum();
        let mut index = Self { file, known, bytes, expiry, missing: BTreeSet::new(), behind: None };
        index.expire(seconds());
        index.shrink(MAX_OWNED_SESSIONS, MAX_NAME_BYTES);
        for (session, owned) in &index.known {
            learn(session, &owned.identity);
        }
        Ok(index)
    }

    fn serve(mut self, entries: &Receiver<(u64, OwnerEntry)>, tell: impl Fn(OwnerStoreEvent)) {
        loop {
            let first = match entries.recv_timeout(self.next_write_delay()) {
                Ok(first) => Some(first),
                Err(RecvTimeoutError::Timeout) if self.behind.is_some() => {
                    self.catch_up();
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    self.catch_up();
                    let sessions = self.missing.len();
                    if sessions > 0 {
                        tracing::error!(sessions, "session owners not written to disk");
                    }
                    return;
                }
            };
            let now = seconds();
            let batch: Vec<_> = first.into_iter().chain(entries.try_iter().take(MAX_BATCH_ENTRIES)).collect();
            let last = batch.last().map(|(number, _)| *number);
            self.write(batch.into_iter().map(|(_, entry)| entry), now);
            // The remaining entries are written even if the event loop has ended.
            if let Some(last) = last {
                tell(OwnerStoreEvent::Kept(last));
            }
            let mut forgotten = if last.is_none() { self.expire(now) } else { Vec::new() };
            forgotten.extend(self.shrink(MAX_OWNED_SESSIONS, MAX_NAME_BYTES));
            if self.file.lines() > 2 * self.known.len() + MAX_BATCH_ENTRIES
                && self.behind.is_none()
                && let Err(error) = self.rewrite()
            {
                tracing::debug!(%error, "cannot compact session owners");
            }
            if !forgotten.is_empty() {
                tell(OwnerStoreEvent::Forgotten(forgotten));
            }
        }
    }

    /// Returns how long to wait for an entry. After a failed write the next attempt needs none.
    fn next_write_delay(&self) -> Duration {
        self.behind.map_or(SWEEP_INTERVAL, |since| WRITE_RETRY_DELAY.saturating_sub(since.elapsed()))
    }

    /// Records entries that change something, and writes them.
    fn write(&mut self, entries: impl Iterator<Item = OwnerEntry>, now: u64) {
        let refresh = Limits::owner_refresh(self.expiry).as_secs();
        for entry in entries {
            match entry {
                OwnerEntry::Own { session, identity } => {
                    // An owner does not change without a deletion in between.
                    let is_new = self.known.get(&session).is_none_or(|known| {
                        known.identity == identity && known.used.saturating_add(refresh) <= now
                    });
                    if is_new {
                        self.missing.insert(session.clone());
                        let length = session.bytes();
                        if self.known.insert(session, Owned { identity, used: now }).is_none() {
                            self.bytes += length;
                        }
                    }
                }
                OwnerEntry::Disown { session } => {
                    if self.known.remove(&session).is_some() {
                        self.bytes -= session.bytes();
                        self.missing.insert(session);
                    }
                }
            }
        }
        if self.behind.is_none_or(|since| since.elapsed() >= WRITE_RETRY_DELAY) {
            self.catch_up();
        }
    }

    /// Writes the missing entries, or as many as the disk has room for.
    fn catch_up(&mut self) {
        let was_behind = self.behind.is_some();
        let mut count = self.missing.len();
        while !self.missing.is_empty() {
            let mut lines = Vec::new();
            for session in self.missing.iter().take(count) {
                file::write_line(&mut lines, session, self.known.get(session));
            }
            match self.file.append(&lines) {
                Ok(()) => {
                    for _ in 0..count {
                        self.missing.pop_first();
                    }
                }
                // There may be room for fewer.
                Err(_) if count > 1 => count /= 2,
                // Unless the disk is full, the file may be damaged.
                Err(error) if is_full(&error) || self.rewrite().is_err() => return self.fall_behind(&error),
                Err(_) => {}
            }
        }
        self.behind = None;
        if was_behind {
            tracing::info!("session owner writes recovered");
        }
    }

    /// Replaces the file by one with all known owners, for which the disk needs extra room.
    fn rewrite(&mut self) -> std::io::Result<()> {
        self.file.rewrite(&self.known)?;
        self.missing.clear();
        Ok(())
    }

    fn fall_behind(&mut self, error: &std::io::Error) {
        if self.behind.is_none() {
            tracing::error!(%error, "cannot write session owners");
        }
        self.behind = Some(std::time::Instant::now());
    }

    /// Removes the entries that were not used for too long.
    fn expire(&mut self, now: u64) -> Vec<OwnedName> {
        let since = now.saturating_sub(self.expiry.as_secs());
        self.remove(|owned| owned.used < since)
    }

    /// Removes the least recently used entries of the identity with the most while there are too many, so that no identity loses
    /// a session because another one has more.
    fn shrink(&mut self, most: usize, most_bytes: usize) -> Vec<OwnedName> {
        let mut forgotten = Vec::new();
        while self.known.len() > most || self.bytes > most_bytes {
            let by_bytes = self.known.len() <= most;
            let mut sizes: HashMap<&Arc<str>, usize> = HashMap::new();
            for (name, owned) in &self.known {
                *sizes.entry(&owned.identity).or_default() += if by_bytes { name.bytes() } else { 1 };
            }
            let largest = sizes.into_iter().max_by_key(|(_, size)| *size).map(|(identity, _)| identity);
            let Some(largest) = largest.cloned() else { break };
            let mut times: Vec<u64> = self
                .known
                .values()
                .filter(|owned| owned.identity == largest)
                .map(|owned| owned.used)
                .collect();
            let at = times.len() / 16;
            let since = *times.select_nth_unstable(at).1;
            let gone = self.remove(|owned| owned.identity == largest && owned.used <= since);
            if gone.is_empty() {
                break;
            }
            forgotten.extend(gone);
        }
        forgotten
    }

    fn remove(&mut self, is_it: impl Fn(&Owned) -> bool) -> Vec<OwnedName> {
        // The agents' name for a session may be the clients' name for another identity's session. If only the agents' name were
        // forgotten, the owner of the other session could open this one.
        let guards = |session: &OwnedName, owned: &Owned| {
            let plain = session.pool.as_ref().and_then(|_| self.known.get(&OwnedName::from(&*session.name)));
            plain.is_some_and(|plain| plain.identity != owned.identity && !is_it(plain))
        };
        let names: Vec<_> = self
            .known
            .iter()
            .filter(|(name, owned)| is_it(owned) && !guards(name, owned))
            .map(|(name, _)| name.clone())
            .collect();
        for name in &names {
            self.known.remove(name);
            self.bytes -= name.bytes();
        }
        names
    }
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

/// Returns the seconds since the epoch.
fn seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests;
