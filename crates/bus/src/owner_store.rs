//! The owners of sessions on disk. A separate thread writes them, so that a slow disk delays no message.
//!
//! An entry is acknowledged once it is synced to disk, and a client learns of its session only then. If a
//! full or broken disk loses the entry of a session, the session has no owner: no client sees it after a
//! restart.

mod file;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use mio::Waker;

use crate::config::BusLimits;
use crate::core::OwnedName;

pub(crate) use file::File;
pub use file::OwnersError;

/// Maximum number of entries in the channel to the writer thread. Further entries wait in the event loop,
/// which holds the output of their clients.
const MAX_PENDING_ENTRIES: usize = 1024;
const MAX_BATCH_ENTRIES: usize = 4096;
/// An identity with too many entries loses their number divided by this, least recently used ones first.
const FORGOTTEN_DIVISOR: usize = 16;
/// Maximum number of entries that wait in the event loop. If there are more, new sessions are refused.
const MAX_WAITING: usize = 16_384;
/// Interval at which expired entries are removed while no entries arrive.
const SWEEP_INTERVAL: Duration = Duration::from_secs(3600);
const WRITE_RETRY_DELAY: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OwnerEntry {
    /// Records the owner of a session. Repeated for a known session, to record that the session is in use.
    Record {
        session: OwnedName,
        identity: Arc<str>,
    },
    Delete {
        session: OwnedName,
    },
}

#[derive(Debug)]
pub(crate) enum OwnerStoreEvent {
    /// All entries up to this number are on disk, or will never be written.
    Kept(u64),
    Forgotten(Vec<OwnedName>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owned {
    pub(crate) identity: Arc<str>,
    /// Time of the session's last use, in seconds since the epoch.
    pub(crate) used: u64,
}

/// The event loop's handle to the writer thread. No call of it blocks.
#[derive(Debug)]
pub(crate) struct OwnerWriter {
    sender: SyncSender<(u64, OwnerEntry)>,
    waiting: VecDeque<(u64, OwnerEntry)>,
    events: Receiver<OwnerStoreEvent>,
}

impl OwnerWriter {
    /// Has an entry written. The number of the entry must be larger than all numbers before.
    pub(crate) fn put(&mut self, number: u64, entry: OwnerEntry) {
        self.waiting.push_back((number, entry));
        self.send();
    }

    /// Returns `true` if so many entries wait to be written that new sessions should be refused.
    pub(crate) fn is_behind(&self) -> bool {
        self.waiting.len() > MAX_WAITING
    }

    /// Returns the events of the writer thread since the last call. Returns `None` if the thread has ended.
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
                // The writer thread has ended. The method `take_events` reports that.
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
    }
}

impl Drop for OwnerWriter {
    /// Sends the waiting entries to the writer thread, so that they are written before the thread ends.
    fn drop(&mut self) {
        while let Some(entry) = self.waiting.pop_front() {
            match self.sender.try_send(entry) {
                Ok(()) => {}
                Err(TrySendError::Full(entry)) => {
                    self.waiting.push_front(entry);
                    // The channel of events is emptied, because the writer thread would block if it were
                    // full.
                    while self.events.try_recv().is_ok() {}
                    std::thread::yield_now();
                }
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
    }
}

/// Starts the writer thread. The thread ends when the [`OwnerWriter`] is dropped and all entries are written.
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

#[derive(Debug)]
pub(crate) struct Index {
    file: File,
    known: HashMap<OwnedName, Owned>,
    /// Bytes of the entries in `known`: of all identities, and of each.
    bytes: usize,
    bytes_of: HashMap<Arc<str>, usize>,
    /// Maximum number of bytes of the entries: of all identities, and of one.
    limits: (usize, usize),
    expiry: Duration,
    /// Sessions whose entry in the file is missing or outdated.
    missing: BTreeSet<OwnedName>,
    /// The time of the last failed write. `None` if the file is up to date.
    behind: Option<std::time::Instant>,
}

impl Index {
    /// Reads the file and passes each owner to `learn`, except expired entries and those that exceed the
    /// limits.
    pub(crate) fn open(
        path: &std::path::Path,
        limits: &BusLimits,
        mut learn: impl FnMut(&OwnedName, &str),
    ) -> Result<Self, OwnersError> {
        let (file, known) = File::open(path)?;
        let mut index = Self {
            file,
            known,
            bytes: 0,
            bytes_of: HashMap::new(),
            limits: limits.owner_memory(),
            expiry: limits.owner_expiry,
            missing: BTreeSet::new(),
            behind: None,
        };
        for (session, owned) in &index.known {
            index.bytes += session.record_bytes();
            *index.bytes_of.entry(Arc::clone(&owned.identity)).or_default() += session.record_bytes();
        }
        index.expire(seconds());
        index.shrink();
        index.known.shrink_to_fit();
        index.compact();
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
            // The entries that are left are written even if the event loop has ended.
            if let Some(last) = last {
                tell(OwnerStoreEvent::Kept(last));
            }
            let mut forgotten = if last.is_none() { self.expire(now) } else { Vec::new() };
            forgotten.extend(self.shrink());
            self.compact();
            if !forgotten.is_empty() {
                tell(OwnerStoreEvent::Forgotten(forgotten));
            }
        }
    }

    /// Returns how long the thread waits for an entry. After a failed write, it tries again after that time.
    fn next_write_delay(&self) -> Duration {
        self.behind.map_or(SWEEP_INTERVAL, |since| WRITE_RETRY_DELAY.saturating_sub(since.elapsed()))
    }

    /// Writes those entries to disk that change something.
    fn write(&mut self, entries: impl Iterator<Item = OwnerEntry>, now: u64) {
        let refresh = BusLimits::owner_refresh(self.expiry).as_secs();
        for entry in entries {
            match entry {
                OwnerEntry::Record { session, identity } => {
                    // An entry cannot change the owner of a session. The owner must be deleted first.
                    let is_new = self.known.get(&session).is_none_or(|known| {
                        known.identity == identity && known.used.saturating_add(refresh) <= now
                    });
                    if is_new {
                        self.missing.insert(session.clone());
                        let bytes = session.record_bytes();
                        let owned = Owned { identity: Arc::clone(&identity), used: now };
                        if self.known.insert(session, owned).is_none() {
                            self.bytes += bytes;
                            *self.bytes_of.entry(identity).or_default() += bytes;
                        }
                    }
                }
                OwnerEntry::Delete { session } => {
                    if self.remove_entry(&session) {
                        self.missing.insert(session);
                    }
                }
            }
        }
        if self.behind.is_none_or(|since| since.elapsed() >= WRITE_RETRY_DELAY) {
            self.catch_up();
        }
    }

    /// Writes the entries that the file lacks, or as many of them as the disk has room for.
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
                // The disk may have room for fewer entries.
                Err(_) if count > 1 => count /= 2,
                // If the disk is not full, the file may be damaged, and a new file may help.
                Err(error) if is_full(&error) || self.rewrite().is_err() => return self.fall_behind(&error),
                Err(_) => {}
            }
        }
        self.behind = None;
        if was_behind {
            tracing::info!("session owner writes recovered");
        }
    }

    fn compact(&mut self) {
        if self.file.lines() > 2 * self.known.len() + MAX_BATCH_ENTRIES
            && self.behind.is_none()
            && let Err(error) = self.rewrite()
        {
            tracing::debug!(%error, "cannot compact session owners");
        }
    }

    /// Replaces the file by a new one with all known owners. The new file needs additional room on the disk.
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

    fn expire(&mut self, now: u64) -> Vec<OwnedName> {
        let since = now.saturating_sub(self.expiry.as_secs());
        self.remove(|owned| owned.used < since)
    }

    /// Removes the least recently used entries of each identity that exceeds its share, and, while there are
    /// too many in all, of the identity that has the most. No identity loses a session because another one
    /// has more.
    fn shrink(&mut self) -> Vec<OwnedName> {
        let (most, most_of_one) = self.limits;
        let mut forgotten = Vec::new();
        // Identities that have no entry that can be removed.
        let mut spared: HashSet<Arc<str>> = HashSet::new();
        loop {
            let others = self.bytes_of.iter().filter(|(identity, _)| !spared.contains(*identity));
            let largest = others.max_by_key(|(_, bytes)| **bytes);
            let Some((identity, bytes)) = largest.map(|(identity, bytes)| (Arc::clone(identity), *bytes))
            else {
                break;
            };
            let is_too_much = self.bytes > most && spared.is_empty() || bytes > most_of_one;
            if !is_too_much {
                break;
            }
            let gone = self.remove_oldest(&identity);
            if gone.is_empty() {
                spared.insert(identity);
            }
            forgotten.extend(gone);
        }
        forgotten
    }

    /// Removes some entries of an identity, the least recently used ones first.
    fn remove_oldest(&mut self, identity: &Arc<str>) -> Vec<OwnedName> {
        let own = self.known.iter().filter(|(_, owned)| owned.identity == *identity);
        let mut own: Vec<(u64, &OwnedName)> = own
            .filter(|(name, owned)| !self.guards(name, owned, |_| false))
            .map(|(name, owned)| (owned.used, name))
            .collect();
        if own.is_empty() {
            return Vec::new();
        }
        let at = own.len() / FORGOTTEN_DIVISOR;
        let (since, _) = *own.select_nth_unstable(at).1;
        let oldest = own.into_iter().filter(|(used, _)| *used <= since);
        let oldest: Vec<OwnedName> = oldest.map(|(_, name)| name.clone()).collect();
        for name in &oldest {
            self.remove_entry(name);
        }
        oldest
    }

    /// Returns `true` if an entry must not be removed. The agents' name of a session may also be the clients'
    /// name of another identity's session. If only the agents' name were removed, the owner of the other
    /// session could open this one.
    fn guards(&self, session: &OwnedName, owned: &Owned, is_removed: impl Fn(&Owned) -> bool) -> bool {
        let plain = session.pool.as_ref().and_then(|_| self.known.get(&OwnedName::from(&*session.name)));
        plain.is_some_and(|plain| plain.identity != owned.identity && !is_removed(plain))
    }

    fn remove(&mut self, is_it: impl Fn(&Owned) -> bool) -> Vec<OwnedName> {
        let names: Vec<_> = self
            .known
            .iter()
            .filter(|(name, owned)| is_it(owned) && !self.guards(name, owned, &is_it))
            .map(|(name, _)| name.clone())
            .collect();
        for name in &names {
            self.remove_entry(name);
        }
        names
    }

    fn remove_entry(&mut self, session: &OwnedName) -> bool {
        let Some(owned) = self.known.remove(session) else { return false };
        self.bytes -= session.record_bytes();
        if let Some(bytes) = self.bytes_of.get_mut(&owned.identity) {
            *bytes -= session.record_bytes();
            if *bytes == 0 {
                self.bytes_of.remove(&owned.identity);
            }
        }
        true
    }
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests;
