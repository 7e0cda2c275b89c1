//! Wrong tokens of one address are answered with 429 for a while once there were too many.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

/// How many addresses are remembered.
const MAX_REMEMBERED_ADDRESSES: usize = 10_000;

/// How long it takes until one failure is forgotten.
const FAILURE_DECAY_INTERVAL: Duration = Duration::from_secs(6);

/// Failures by address, which leak away.
///
/// They concern wrong tokens only: one that is known is never looked up here.
#[derive(Debug)]
pub(super) struct AuthRateLimit {
    most: u32,
    failures: HashMap<IpAddr, Failures>,
    /// When those that are forgotten were last taken out.
    swept: Option<Instant>,
}

/// Those of one address.
#[derive(Debug)]
struct Failures {
    count: f64,
    /// When they were counted.
    at: Instant,
    /// It was told that the address is locked out.
    told: bool,
}

/// What is worth telling of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    /// It is the first of its address since all others are forgotten.
    First,
    /// Its address is locked out by it, for the first time since then.
    Locked,
    /// Nothing that was not told before.
    Nothing,
}

impl AuthRateLimit {
    /// After `most` failures, none of which is forgotten.
    pub(super) fn new(most: u32) -> Self {
        Self { most, failures: HashMap::new(), swept: None }
    }

    /// How long `address` is locked out, if it is.
    pub(super) fn locked(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let over = self.over(self.failures.get(&network(address))?.left(now));
        (over > 0.0).then(|| FAILURE_DECAY_INTERVAL.mul_f64(over))
    }

    /// A token that is none was shown.
    pub(super) fn failed(&mut self, address: IpAddr, now: Instant) -> Noted {
        // Not at every failure: whoever has many addresses would have us do little else.
        let is_due = self.swept.is_none_or(|swept| now.duration_since(swept) >= FAILURE_DECAY_INTERVAL);
        if self.failures.len() >= MAX_REMEMBERED_ADDRESSES && is_due {
            self.swept = Some(now);
            self.failures.retain(|_, failures| failures.left(now) > 0.0);
        }
        // Still full of failures: who is not among them is let off.
        let network = network(address);
        if self.failures.len() >= MAX_REMEMBERED_ADDRESSES && !self.failures.contains_key(&network) {
            return Noted::Nothing;
        }
        let (before, told) =
            self.failures.get(&network).map_or((0.0, false), |failures| (failures.left(now), failures.told));
        let count = before + 1.0;
        let (is_first, is_locked) = (before <= 0.0, self.over(count) > 0.0);
        let was_told = told && !is_first;
        self.failures.insert(network, Failures { count, at: now, told: was_told || is_locked });
        match (is_locked && !was_told, is_first) {
            (true, _) => Noted::Locked,
            (false, true) => Noted::First,
            (false, false) => Noted::Nothing,
        }
    }

    /// By how much so many failures are too many.
    fn over(&self, count: f64) -> f64 {
        count - f64::from(self.most) + 1.0
    }
}

impl Failures {
    /// How many are not forgotten.
    fn left(&self, now: Instant) -> f64 {
        (self.count - now.duration_since(self.at).div_duration_f64(FAILURE_DECAY_INTERVAL)).max(0.0)
    }
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
        let mut lockout = AuthRateLimit::new(3);
        let (here, there) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let now = Instant::now();
        for _ in 0..3 {
            assert_eq!(lockout.locked(here, now), None);
            lockout.failed(here, now);
        }
        assert_eq!(lockout.locked(here, now), Some(FAILURE_DECAY_INTERVAL));
        assert_eq!(lockout.locked(there, now), None);
        assert_eq!(lockout.locked(here, now + FAILURE_DECAY_INTERVAL), None);
        lockout.failed(here, now + FAILURE_DECAY_INTERVAL);
        assert!(lockout.locked(here, now + FAILURE_DECAY_INTERVAL).is_some());
    }

    #[test]
    fn the_first_failure_and_the_lock_out_are_told_once_each() {
        let mut lockout = AuthRateLimit::new(3);
        let (here, now) = ("192.0.2.1".parse().unwrap(), Instant::now());
        let mut failed = |after: u32| lockout.failed(here, now + FAILURE_DECAY_INTERVAL * after);
        assert_eq!([failed(0), failed(0), failed(0)], [Noted::First, Noted::Nothing, Noted::Locked]);
        // It is locked out again whenever it may try once.
        assert_eq!([failed(1), failed(2)], [Noted::Nothing, Noted::Nothing]);
        assert_eq!([failed(5), failed(5), failed(5)], [Noted::First, Noted::Nothing, Noted::Locked]);
    }

    #[test]
    fn a_network_of_version_6_is_one_peer() {
        let mut lockout = AuthRateLimit::new(1);
        let now = Instant::now();
        lockout.failed("2001:db8::1".parse().unwrap(), now);
        assert!(lockout.locked("2001:db8::ffff:1".parse().unwrap(), now).is_some());
        assert!(lockout.locked("2001:db8:0:1::1".parse().unwrap(), now).is_none());
        lockout.failed("::ffff:192.0.2.1".parse().unwrap(), now);
        assert!(lockout.locked("192.0.2.1".parse().unwrap(), now).is_some());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut lockout = AuthRateLimit::new(1);
        let now = Instant::now();
        for number in 0..2 * MAX_REMEMBERED_ADDRESSES as u32 {
            lockout.failed(IpAddr::V4(number.into()), now);
        }
        assert_eq!(lockout.failures.len(), MAX_REMEMBERED_ADDRESSES);
        lockout.failed(IpAddr::V4(u32::MAX.into()), now + FAILURE_DECAY_INTERVAL);
        assert_eq!(lockout.failures.len(), 1);
    }
}
