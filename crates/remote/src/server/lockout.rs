//! Who shows wrong tokens too often is not looked at for a while.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use crate::tokens::Digest;

/// How many addresses are remembered.
const REMEMBERED: usize = 10_000;

/// How long it takes until one failure is forgotten.
const FORGETTING: Duration = Duration::from_secs(6);

/// Failures by address, which leak away.
///
/// A token that was good before is looked at also from an address that is locked out: behind a proxy everybody has the same address,
/// and whoever guesses gains nothing by it.
#[derive(Debug)]
pub(super) struct Lockout {
    most: u32,
    failures: HashMap<IpAddr, (f64, Instant)>,
    trusted: HashSet<Digest>,
    /// When those that are forgotten were last taken out.
    swept: Option<Instant>,
}

impl Lockout {
    /// After `most` failures, none of which is forgotten.
    pub(super) fn new(most: u32) -> Self {
        Self { most, failures: HashMap::new(), trusted: HashSet::new(), swept: None }
    }

    /// How long this is not looked at; `None` if it is.
    pub(super) fn locked(&self, address: IpAddr, shown: &Digest, now: Instant) -> Option<Duration> {
        if self.trusted.contains(shown) {
            return None;
        }
        let (count, at) = self.failures.get(&network(address))?;
        let over = left(*count, *at, now) - f64::from(self.most) + 1.0;
        (over > 0.0).then(|| FORGETTING.mul_f64(over))
    }

    /// A token that is none was shown.
    pub(super) fn failed(&mut self, address: IpAddr, now: Instant) {
        // Not at every failure: whoever has many addresses would have us do little else.
        let is_due = self.swept.is_none_or(|swept| now.duration_since(swept) >= FORGETTING);
        if self.failures.len() >= REMEMBERED && is_due {
            self.swept = Some(now);
            self.failures.retain(|_, (count, at)| left(*count, *at, now) > 0.0);
        }
        // Still full of failures: who is not among them is let off.
        let network = network(address);
        if self.failures.len() >= REMEMBERED && !self.failures.contains_key(&network) {
            return;
        }
        let entry = self.failures.entry(network).or_insert((0.0, now));
        *entry = (left(entry.0, entry.1, now) + 1.0, now);
    }

    /// A token was good.
    pub(super) fn passed(&mut self, shown: Digest) {
        // Bounded by the number of tokens there are; those taken back are few.
        if self.trusted.len() < REMEMBERED {
            self.trusted.insert(shown);
        }
    }
}

fn left(count: f64, at: Instant, now: Instant) -> f64 {
    (count - now.duration_since(at).div_duration_f64(FORGETTING)).max(0.0)
}

/// Whoever has an address of version 6 has a whole network of them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_failures_lock_an_address_out_until_they_are_forgotten() {
        let mut lockout = Lockout::new(3);
        let (here, there) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let now = Instant::now();
        let (good, bad) = (Digest::of("good"), Digest::of("bad"));
        lockout.passed(good);
        for _ in 0..3 {
            assert_eq!(lockout.locked(here, &bad, now), None);
            lockout.failed(here, now);
        }
        assert_eq!(lockout.locked(here, &bad, now), Some(FORGETTING));
        assert_eq!(lockout.locked(here, &Digest::of("new"), now), Some(FORGETTING));
        assert_eq!(lockout.locked(here, &good, now), None);
        assert_eq!(lockout.locked(there, &bad, now), None);
        assert_eq!(lockout.locked(here, &bad, now + FORGETTING), None);
        lockout.failed(here, now + FORGETTING);
        assert!(lockout.locked(here, &bad, now + FORGETTING).is_some());
    }

    #[test]
    fn a_network_of_version_6_is_one_peer() {
        let mut lockout = Lockout::new(1);
        let (now, bad) = (Instant::now(), Digest::of("bad"));
        lockout.failed("2001:db8::1".parse().unwrap(), now);
        assert!(lockout.locked("2001:db8::ffff:1".parse().unwrap(), &bad, now).is_some());
        assert!(lockout.locked("2001:db8:0:1::1".parse().unwrap(), &bad, now).is_none());
        lockout.failed("::ffff:192.0.2.1".parse().unwrap(), now);
        assert!(lockout.locked("192.0.2.1".parse().unwrap(), &bad, now).is_some());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut lockout = Lockout::new(1);
        let now = Instant::now();
        for number in 0..2 * REMEMBERED as u32 {
            lockout.failed(IpAddr::V4(number.into()), now);
        }
        assert_eq!(lockout.failures.len(), REMEMBERED);
        lockout.failed(IpAddr::V4(u32::MAX.into()), now + FORGETTING);
        assert_eq!(lockout.failures.len(), 1);
    }
}
