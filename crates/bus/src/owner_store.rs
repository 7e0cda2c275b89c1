//! The owners of sessions on disk. A thread of its own writes them, so that a slow disk delays no message.
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

/// How many entries can be under way; more wait in the loop, which holds their clients.
const MAX_PENDING_ENTRIES: usize = 1024;
/// How many are written at a time.
const MAX_BATCH_ENTRIES: usize = 4096;
/// Of how many sessions it is known at most whose they are. Beyond that, the identity that has most of them loses those that were not used
/// for the longest.
const MAX_OWNED_SESSIONS: usize = 1 << 20;
/// How long the names of all these sessions may be together.
const MAX_NAME_BYTES: usize = 256 << 20;
/// How many entries may wait in the loop before no new sessions are taken.
const MAX_WAITING: usize = 16_384;
/// How often what has expired is looked for, in an index that nothing is written to.
const SWEEP_INTERVAL: Duration = Duration::from_secs(3600);
/// How long a disk that refused is left alone.
const WRITE_RETRY_DELAY: Duration = Duration::from_secs(5);

/// What is to be written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OwnerEntry {
    /// Whose a session is; again, if it was known: it was used.
    Own { session: OwnedName, identity: Arc<str> },
    /// A session is no more.
    Disown { session: OwnedName },
}

/// What has become of it.
#[derive(Debug)]
pub(crate) enum OwnerStoreEvent {
    /// All up to this number is on the disk, or will not be.
    Kept(u64),
    /// It is no longer known whose these sessions are.
    Forgotten(Vec<OwnedName>),
}

/// What is known of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owned {
    pub(crate) identity: Arc<str>,
    /// When it was last used, in seconds of the wall clock.
    pub(crate) used: u64,
}

/// The loop's end, on which it never waits.
#[derive(Debug)]
pub(crate) struct OwnerWriter {
    sender: SyncSender<(u64, OwnerEntry)>,
    waiting: VecDeque<(u64, OwnerEntry)>,
    told: Receiver<OwnerStoreEvent>,
}

impl OwnerWriter {
    /// Has an entry written under a number, which is larger than all before.
    pub(crate) fn put(&mut self, number: u64, entry: OwnerEntry) {
        self.waiting.push_back((number, entry));
        self.send();
    }

    /// Returns `true` if so much waits to be written that no more is to be caused.
    pub(crate) fn is_behind(&self) -> bool {
        self.waiting.len() > MAX_WAITING
    }

    /// What has become of earlier ones; `None` if nobody writes any more.
    pub(crate) fn take_events(&mut self) -> Option<Vec<OwnerStoreEvent>> {
        let mut all = Vec::new();
        loop {
            match self.told.try_recv() {
                Ok(told) => all.push(told),
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
                // Nobody writes any more, which shows when somebody asks what has become of it.
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
    }
}

impl Drop for OwnerWriter {
    /// What still waits is handed over, so that it is written before the thread ends.
    fn drop(&mut self) {
        while let Some(entry) = self.waiting.pop_front() {
            match self.sender.try_send(entry) {
                Ok(()) => {}
                Err(TrySendError::Full(entry)) => {
                    self.waiting.push_front(entry);
                    // Or it could wait for us.
                    while self.told.try_recv().is_ok() {}
                    std::thread::yield_now();
                }
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
    }
}

/// Starts the thread that writes. It ends when the ledger is dropped and everything is written.
pub(crate) fn start(index: Index, waker: Arc<Waker>) -> std::io::Result<(OwnerWriter, JoinHandle<()>)> {
    let (sender, entries) = sync_channel(MAX_PENDING_ENTRIES);
    let (teller, told) = sync_channel(MAX_PENDING_ENTRIES);
    let tell = move |news| {
        if teller.send(news).is_ok()
            && let Err(error) = waker.wake()
        {
            tracing::error!(%error, "the loop of the bus cannot be woken");
        }
    };
    let thread = std::thread::Builder::new()
        .name("narrows-owners".into())
        .spawn(move || index.serve(&entries, tell))?;
    Ok((OwnerWriter { sender, waiting: VecDeque::new(), told }, thread))
}

/// The index itself: what is known, and the file.
#[derive(Debug)]
pub(crate) struct Index {
    file: File,
    known: HashMap<OwnedName, Owned>,
    /// How long the names of these are together.
    bytes: usize,
    expiry: Duration,
    /// Sessions about which the file does not say what is known.
    missing: BTreeSet<OwnedName>,
    /// When the disk last refused to write.
    behind: Option<std::time::Instant>,
}

impl Index {
    /// Reads what was written down, and makes it known to `learn`. What has expired is left out.
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
                        tracing::error!(
                            sessions,
                            "session owners not written, nobody will see these sessions"
                        );
                    }
                    return;
                }
            };
            let now = seconds();
            let batch: Vec<_> = first.into_iter().chain(entries.try_iter().take(MAX_BATCH_ENTRIES)).collect();
            let last = batch.last().map(|(number, _)| *number);
            self.write(batch.into_iter().map(|(_, entry)| entry), now);
            // If the loop is gone, what it has left to write still is.
            if let Some(last) = last {
                tell(OwnerStoreEvent::Kept(last));
            }
            let mut forgotten = if last.is_none() { self.expire(now) } else { Vec::new() };
            forgotten.extend(self.shrink(MAX_OWNED_SESSIONS, MAX_NAME_BYTES));
            if self.file.lines() > 2 * self.known.len() + MAX_BATCH_ENTRIES
                && self.behind.is_none()
                && let Err(error) = self.rewrite()
            {
                tracing::debug!(%error, "cannot shorten the file of session owners");
            }
            if !forgotten.is_empty() {
                tell(OwnerStoreEvent::Forgotten(forgotten));
            }
        }
    }

    /// How long to wait for an entry: a disk that refused is tried again without one.
    fn next_write_delay(&self) -> Duration {
        self.behind.map_or(SWEEP_INTERVAL, |since| WRITE_RETRY_DELAY.saturating_sub(since.elapsed()))
    }

    /// Writes entries down, if they say anything new.
    fn write(&mut self, entries: impl Iterator<Item = OwnerEntry>, now: u64) {
        let refresh = Limits::owner_refresh(self.expiry).as_secs();
        for entry in entries {
            match entry {
                OwnerEntry::Own { session, identity } => {
                    // What is one's does not become another's without being disowned, whoever says so.
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

    /// Writes what is missing in the file, or as much of it as the disk has room for.
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
                // There may be room for less.
                Err(_) if count > 1 => count /= 2,
                // Unless the disk is full, the file may be at fault.
                Err(error) if is_full(&error) || self.rewrite().is_err() => return self.fall_behind(&error),
                Err(_) => {}
            }
        }
        self.behind = None;
        if was_behind {
            tracing::info!("session owners are written again");
        }
    }

    /// Puts a file with all that is known in place of the other, for which the disk needs room beside it.
    fn rewrite(&mut self) -> std::io::Result<()> {
        self.file.rewrite(&self.known)?;
        self.missing.clear();
        Ok(())
    }

    fn fall_behind(&mut self, error: &std::io::Error) {
        if self.behind.is_none() {
            tracing::error!(%error, "cannot write session owners, nobody will see new sessions after a restart");
        }
        self.behind = Some(std::time::Instant::now());
    }

    /// Takes out what nobody has used for too long.
    fn expire(&mut self, now: u64) -> Vec<OwnedName> {
        let since = now.saturating_sub(self.expiry.as_secs());
        self.take(|owned| owned.used < since)
    }

    /// Takes out what was not used for the longest of the identity that has most, if there is too much. Nobody loses a session because of
    /// another who has more.
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
            let gone = self.take(|owned| owned.identity == largest && owned.used <= since);
            if gone.is_empty() {
                break;
            }
            forgotten.extend(gone);
        }
        forgotten
    }

    fn take(&mut self, is_it: impl Fn(&Owned) -> bool) -> Vec<OwnedName> {
        // What the agents of a pool call so is somebody else's than the session that clients call so: were that forgotten, whoever
        // has the one could open the other.
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

/// The wall clock.
fn seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests;
