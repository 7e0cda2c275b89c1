//! Exclusive access to sessions across all processes that share the directory.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use narrows_base::sync::lock;

use crate::StoreError;
use crate::lock::{self, Lock};

/// The exclusive right to work on a session. Ends on drop, or with the process.
pub struct Claim {
    held: Arc<Held>,
}

impl Claim {
    /// Returns the session's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.held.id
    }

    pub(crate) fn share(&self) -> Arc<Held> {
        self.held.clone()
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Claim").field(&self.id()).finish()
    }
}

/// An open session. Shared by its claim and the jobs that work for the claim.
pub(crate) struct Held {
    id: String,
    claims: Arc<Claims>,
    /// `None` in memory, where no other process has access. The lock is taken out on drop, to release it
    /// first.
    lock: Option<Lock>,
}

impl Held {
    /// Returns the session's id, or an error if the session was opened through another store.
    pub(crate) fn id_in(&self, claims: &Arc<Claims>) -> Result<&str, StoreError> {
        if Arc::ptr_eq(&self.claims, claims) { Ok(&self.id) } else { Err(StoreError::NotClaimed) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The lock is released first. Until the id is removed, this process still treats the session as open.
        drop(self.lock.take());
        self.claims.ids().remove(&self.id);
    }
}

/// The sessions that are open through one store.
pub(crate) struct Claims {
    /// The directory of the lock files; `None` in memory.
    directory: Option<PathBuf>,
    ids: Mutex<HashSet<String>>,
}

impl Claims {
    pub(crate) fn new(directory: Option<PathBuf>) -> Arc<Self> {
        Arc::new(Self { directory, ids: Mutex::default() })
    }

    /// Opens session `id`, even if no such session is stored.
    pub(crate) fn claim(self: &Arc<Self>, id: &str) -> Result<Claim, StoreError> {
        if !self.ids().insert(id.to_owned()) {
            return Err(StoreError::InUse { by_us: true });
        }
        // From here on, dropping `held` removes the id again.
        let mut held = Held { id: id.to_owned(), claims: self.clone(), lock: None };
        if let Some(directory) = &self.directory {
            let path = directory.join(lock::file_name(id));
            let lock = Lock::acquire(&path).map_err(|error| StoreError::io(&path, &error))?;
            held.lock = Some(lock.ok_or(StoreError::InUse { by_us: false })?);
        }
        Ok(Claim { held: Arc::new(held) })
    }

    fn ids(&self) -> MutexGuard<'_, HashSet<String>> {
        lock(&self.ids)
    }
}
