//! What handles of a bus ask of its loop.

use std::sync::{Arc, Mutex, PoisonError};

use mio::Waker;
use tokio::sync::oneshot;

use super::queues::Queues;
use crate::config::Config;

/// How many may wait for a status at once.
const ASKERS: usize = 64;

/// What is asked for.
#[derive(Debug)]
pub(super) struct Mail<S> {
    pub(super) drain: bool,
    pub(super) reload: Option<Box<Config>>,
    pub(super) status: Vec<oneshot::Sender<(S, Queues)>>,
}

impl<S> Default for Mail<S> {
    fn default() -> Self {
        Self { drain: false, reload: None, status: Vec::new() }
    }
}

/// Where it is asked.
#[derive(Debug)]
pub(crate) struct Mailbox<S> {
    mail: Mutex<Mail<S>>,
    waker: Arc<Waker>,
}

impl<S> Mailbox<S> {
    pub(crate) fn new(waker: Arc<Waker>) -> Self {
        Self { mail: Mutex::default(), waker }
    }

    /// Asks for a gentle end.
    pub(crate) fn drain(&self) {
        self.put(|mail| mail.drain = true);
    }

    /// Asks for other settings. Of several at once the last counts.
    pub(crate) fn reload(&self, config: Box<Config>) {
        self.put(|mail| mail.reload = Some(config));
    }

    /// Asks how things stand; `None` if too many ask.
    pub(crate) fn status(&self) -> Option<oneshot::Receiver<(S, Queues)>> {
        let (asker, answer) = oneshot::channel();
        self.put(|mail| {
            // Who no longer waits must not keep others from asking.
            mail.status.retain(|asker| !asker.is_closed());
            if mail.status.len() >= ASKERS {
                return None;
            }
            mail.status.push(asker);
            Some(answer)
        })
    }

    /// Nobody will be answered any more.
    pub(crate) fn close(&self) {
        drop(self.empty());
    }

    pub(super) fn empty(&self) -> Mail<S> {
        std::mem::take(&mut *self.mail.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put<R>(&self, write: impl FnOnce(&mut Mail<S>) -> R) -> R {
        let result = write(&mut self.mail.lock().unwrap_or_else(PoisonError::into_inner));
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "the loop of the bus cannot be woken");
        }
        result
    }
}
