//! The sessions of the SDK's agents.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use narrows_base::sync::lock;
use tokio::sync::watch;

/// All sessions of an agent. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Sessions(Arc<Mutex<HashMap<String, Session>>>);

struct Session {
    cwd: PathBuf,
    cancel: watch::Sender<bool>,
}

impl Sessions {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Session>> {
        lock(&self.0)
    }

    pub(super) fn open(&self, cwd: PathBuf) -> String {
        let mut sessions = self.all();
        let id = format!("sdk-{}", sessions.len() + 1);
        sessions.insert(id.clone(), Session { cwd, cancel: watch::Sender::new(false) });
        id
    }

    /// Begins a turn. Returns the session's directory, and a receiver that becomes `true` when the turn is
    /// cancelled.
    pub(super) fn turn(&self, id: &str) -> Option<(PathBuf, watch::Receiver<bool>)> {
        let sessions = self.all();
        let Session { cwd, cancel } = sessions.get(id)?;
        cancel.send_replace(false);
        Some((cwd.clone(), cancel.subscribe()))
    }

    pub(super) fn cancel(&self, id: &str) {
        if let Some(session) = self.all().get(id) {
            session.cancel.send_replace(true);
        }
    }
}
