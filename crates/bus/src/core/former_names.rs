//! Names that a worker may still use for sessions that it no longer has, with the sessions' identities.
//!
//! Messages under such a name go to no client. Each identity has its own ring of names, so an identity that
//! opens and closes many sessions cannot make the bus forget a name of another identity.

use std::collections::{HashMap, VecDeque};

use rustc_hash::FxHashMap;

use super::identity::Identity;

const MAX_NAMES: usize = 1_000;
const MAX_BYTES: usize = 512 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameUse {
    Opened,
    /// The worker did not open the session that a client asked for. Other identities may use the name.
    Asked,
}

#[derive(Debug, Default)]
struct Ring {
    names: VecDeque<Box<str>>,
    bytes: usize,
}

#[derive(Debug, Default)]
pub(super) struct FormerNames {
    // Agents choose the names, so the hashes of this map have a secret key.
    by_name: HashMap<Box<str>, (Identity, NameUse)>,
    rings: FxHashMap<Identity, Ring>,
}

impl FormerNames {
    pub(super) fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Returns the identity whose session had this name last in the worker, or was last requested under it.
    pub(super) fn owner(&self, name: &str) -> Option<Identity> {
        self.by_name.get(name).map(|(owner, _)| *owner)
    }

    /// Returns the identity of the last session that the worker has opened under this name.
    pub(super) fn opened_by(&self, name: &str) -> Option<Identity> {
        self.by_name.get(name).filter(|(_, used)| *used == NameUse::Opened).map(|(owner, _)| *owner)
    }

    /// Returns `true` if the last session of this name in the worker belonged to another identity.
    pub(super) fn is_anothers(&self, name: &str, identity: Identity) -> bool {
        self.opened_by(name).is_some_and(|owner| owner != identity)
    }

    /// Adds the name of a session that the worker no longer has or did not open. If the worker has had a
    /// session of another identity under this name, the name stays with that identity.
    pub(super) fn add(&mut self, name: Box<str>, identity: Identity, used: NameUse) {
        if let Some((owner, before)) = self.by_name.get(&name) {
            let stays = *before == NameUse::Opened && (*owner != identity || used == NameUse::Asked);
            if stays {
                return;
            }
            self.remove(&name);
        }
        let ring = self.rings.entry(identity).or_default();
        ring.bytes += name.len();
        ring.names.push_back(name.clone());
        self.by_name.insert(name, (identity, used));
        while ring.names.len() > MAX_NAMES || ring.bytes > MAX_BYTES {
            let Some(oldest) = ring.names.pop_front() else { break };
            ring.bytes -= oldest.len();
            self.by_name.remove(&oldest);
        }
    }

    pub(super) fn remove(&mut self, name: &str) {
        let Some((identity, _)) = self.by_name.remove(name) else { return };
        let Some(ring) = self.rings.get_mut(&identity) else { return };
        if let Some(at) = ring.names.iter().position(|former| **former == *name) {
            ring.names.remove(at);
            ring.bytes -= name.len();
        }
        if ring.names.is_empty() {
            self.rings.remove(&identity);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::identity::Identities;
    use super::*;

    #[test]
    fn an_identity_displaces_only_its_own_names() {
        let mut identities = Identities::default();
        let (one, two) = (identities.number("one"), identities.number("two"));
        let mut names = FormerNames::default();
        names.add("kid".into(), one, NameUse::Opened);
        for number in 0..2 * MAX_NAMES {
            names.add(format!("{number}").into(), two, NameUse::Opened);
        }
        assert!(names.contains("kid") && names.is_anothers("kid", two) && !names.is_anothers("kid", one));
        assert_eq!(names.by_name.len(), MAX_NAMES + 1);
        for length in 0..200 {
            names.add("x".repeat(4_000 + length).into(), two, NameUse::Opened);
        }
        assert!(names.rings[&two].bytes <= MAX_BYTES);
        assert!(names.contains("kid"));
    }

    #[test]
    fn a_name_keeps_its_owner_until_it_is_reused() {
        let mut identities = Identities::default();
        let (one, two) = (identities.number("one"), identities.number("two"));
        let mut names = FormerNames::default();
        names.add("a".into(), one, NameUse::Asked);
        assert!(names.contains("a") && !names.is_anothers("a", two));
        names.add("a".into(), two, NameUse::Opened);
        names.add("a".into(), one, NameUse::Opened);
        names.add("a".into(), two, NameUse::Asked);
        assert!(names.is_anothers("a", one));
        names.remove("a");
        assert!(!names.contains("a") && names.rings.is_empty());
    }
}
