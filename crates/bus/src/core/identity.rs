//! Identities of clients: their numbers, their limits, and how much of each limit is used.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::api::{ANYONE, CoreOutput, Time};
use super::table::ClientKey;
use super::timer::Timer;
use super::{Core, Ctx};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Identity(u32);

impl Identity {
    /// The common identity of all clients without a proof of identity.
    pub(super) const ANYONE: Self = Self(0);
    /// The owner of a name that sessions of several identities have had. No client has this identity.
    pub(super) const SEVERAL: Self = Self(u32::MAX);
}

/// The text for [`Identity::SEVERAL`] in the file of session owners. It has no colon, unlike the names of
/// authenticated identities.
const SEVERAL: &str = "several";

#[derive(Debug)]
pub(super) struct IdentityState {
    pub(super) name: Arc<str>,
    pub(super) clients: usize,
    /// Number of connections and sessions that were refused because of a limit of this identity.
    pub(super) refused: u64,
    /// Number of messages that the identity may send without a pause, as of `since`. If negative, the
    /// identity has to pause.
    allowance: f64,
    since: Time,
}

/// All identities seen so far. They are never removed, because tokens, certificates and users limit their
/// number.
#[derive(Debug)]
pub(super) struct Identities {
    known: Vec<IdentityState>,
    by_name: HashMap<Arc<str>, Identity>,
}

impl Default for Identities {
    fn default() -> Self {
        let mut identities = Self { known: Vec::new(), by_name: HashMap::new() };
        identities.number(ANYONE);
        identities
    }
}

impl Identities {
    /// Returns the number of the identity with this name. A new name gets the next free number.
    pub(super) fn number(&mut self, name: &str) -> Identity {
        if name == SEVERAL {
            return Identity::SEVERAL;
        }
        if let Some(identity) = self.by_name.get(name) {
            return *identity;
        }
        let name: Arc<str> = name.into();
        let identity = Identity(self.known.len() as u32);
        let known = IdentityState {
            name: Arc::clone(&name),
            clients: 0,
            refused: 0,
            allowance: f64::INFINITY,
            since: Time::ZERO,
        };
        self.known.push(known);
        self.by_name.insert(name, identity);
        identity
    }

    pub(super) fn name(&self, identity: Identity) -> Arc<str> {
        if identity == Identity::SEVERAL {
            return SEVERAL.into();
        }
        self.known.get(identity.0 as usize).map_or_else(|| ANYONE.into(), |known| Arc::clone(&known.name))
    }

    pub(super) fn get_mut(&mut self, identity: Identity) -> Option<&mut IdentityState> {
        self.known.get_mut(identity.0 as usize)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Identity, &IdentityState)> {
        (0..).map(Identity).zip(&self.known)
    }
}

impl IdentityState {
    /// Counts messages of an identity. Returns the pause that the identity has to make if it has sent too
    /// many. `rate` is in messages per second, and is also the size of a burst.
    fn spend(&mut self, now: Time, rate: f64, messages: f64) -> Option<Duration> {
        let earned = now.saturating_sub(self.since).as_secs_f64() * rate;
        self.since = now;
        self.allowance = (self.allowance + earned).min(rate) - messages;
        (self.allowance < 0.0).then(|| Duration::from_secs_f64(-self.allowance / rate))
    }
}

impl Core {
    /// Returns `true` if an identity may have one more session. Sessions that are being opened count too.
    pub(super) fn has_room(&self, identity: Identity) -> bool {
        let most = self.limits.max_sessions_per_identity;
        let open = self.sessions.of_identity(identity);
        let opening =
            || self.workers.iter().map(|(_, worker)| worker.pending.creating_for(identity)).sum::<usize>();
        let all = self.workers.iter().map(|(_, worker)| worker.pending.creating()).sum::<usize>();
        // Sessions being opened are counted per identity only if all of them together would exceed the limit.
        open + all < most || open + opening() < most
    }
}

impl<O: CoreOutput> Ctx<'_, O> {
    /// Counts messages of a client whose identity has a rate limit. If the limit is exceeded, reading from
    /// the client is paused, so no message is lost.
    pub(super) fn count_messages(&mut self, client: ClientKey, messages: usize) {
        let rate = self.core.limits.max_rate_per_identity;
        let Some(state) = self.core.clients.get_mut(client).filter(|_| rate > 0) else { return };
        if !state.is_authenticated {
            return;
        }
        let Some(known) = self.core.identities.get_mut(state.identity) else { return };
        #[expect(clippy::cast_precision_loss, reason = "both are far below 2^52")]
        let rest = known.spend(self.now, rate as f64, messages as f64);
        if let Some(rest) = rest
            && !std::mem::replace(&mut state.rate_limited, true)
        {
            self.core.timers.set(self.now + rest, Timer::Rested(client));
            self.pause_client(client);
        }
    }

    pub(super) fn end_rate_limit(&mut self, client: ClientKey) {
        let Some(state) = self.core.client(client) else { return };
        if std::mem::take(&mut state.rate_limited) {
            self.resume_client(client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_number() {
        let mut identities = Identities::default();
        assert_eq!(identities.number(ANYONE), Identity::ANYONE);
        let one = identities.number("token:one");
        assert_ne!(one, Identity::ANYONE);
        assert_eq!((identities.number("token:one"), &*identities.name(one)), (one, "token:one"));
        assert_ne!(identities.number("uid:1"), one);
        assert_eq!(identities.number(&identities.name(Identity::SEVERAL)), Identity::SEVERAL);
    }

    #[test]
    fn an_identity_over_its_rate_has_to_pause() {
        let mut identities = Identities::default();
        let known = identities.get_mut(Identity::ANYONE).unwrap();
        let at = Duration::from_secs(9);
        // The messages of one second are accepted at once, and then one message at a time.
        for _ in 0..10 {
            assert_eq!(known.spend(at, 10.0, 1.0), None);
        }
        assert_eq!(known.spend(at, 10.0, 1.0), Some(Duration::from_millis(100)));
        assert_eq!(known.spend(at + Duration::from_millis(200), 10.0, 1.0), None);
        assert_eq!(known.spend(at + Duration::from_secs(60), 10.0, 1.0), None);
        assert!(known.allowance <= 10.0);
    }
}
