//! The running gates of this process, for the admin socket.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use narrows_base::sync::lock;
use narrows_govern::GateRequest;
use tokio::sync::mpsc;

#[derive(Debug, Default)]
struct Gates {
    next: u64,
    senders: BTreeMap<u64, mpsc::Sender<GateRequest>>,
}

/// The senders of all running gates. Clones share the list.
#[derive(Clone, Debug, Default)]
pub(super) struct GateRegistry(Arc<Mutex<Gates>>);

#[derive(Debug)]
pub(super) struct Registration {
    number: u64,
    gates: GateRegistry,
}

impl GateRegistry {
    fn lock(&self) -> MutexGuard<'_, Gates> {
        lock(&self.0)
    }

    pub(super) fn register(&self, ask: mpsc::Sender<GateRequest>) -> Registration {
        let mut gates = self.lock();
        gates.next += 1;
        let number = gates.next;
        gates.senders.insert(number, ask);
        Registration { number, gates: self.clone() }
    }

    pub(super) fn senders(&self) -> Vec<mpsc::Sender<GateRequest>> {
        self.lock().senders.values().cloned().collect()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.gates.lock().senders.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_listed_until_its_registration_is_dropped() {
        let gates = GateRegistry::default();
        let (ask, _asked) = mpsc::channel(1);
        let first = gates.register(ask.clone());
        let second = gates.register(ask);
        assert_eq!(gates.senders().len(), 2);
        drop(first);
        assert_eq!(gates.senders().len(), 1);
        drop(second);
        assert!(gates.senders().is_empty());
    }
}
