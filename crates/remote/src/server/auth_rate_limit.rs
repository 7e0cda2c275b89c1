//! Locks out addresses that send too many wrong tokens: they receive 429 for a while.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

const MAX_REMEMBERED_ADDRESSES: usize = 10_000;

const FAILURE_DECAY_INTERVAL: Duration = Duration::from_secs(6);

/// Recent authentication failures by address. A client that sends a known token is never locked out.
#[derive(Debug)]
pub(super) struct AuthRateLimit {
    max_failures: u32,
    failures: HashMap<IpAddr, Failures>,
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Failures {
    count: f64,
    at: Instant,
    logged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureLog {
    /// The first failure of this address, or the first one since all earlier failures were forgotten.
    First,
    /// This failure locks the address out. Reported once until the failures of the address are forgotten.
    Locked,
    Nothing,
}

impl AuthRateLimit {
    pub(super) fn new(max_failures: u32) -> Self {
        Self { max_failures, failures: HashMap::new(), swept: None }
    }

    /// Returns the remaining time of the lockout of `address`, or `None` if the address is not locked out.
    pub(super) fn lockout_time(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let over = self.over(self.failures.get(&network(address))?.left(now));
        (over > 0.0).then(|| FAILURE_DECAY_INTERVAL.mul_f64(over))
    }

    pub(super) fn record_failure(&mut self, address: IpAddr, now: Instant) -> FailureLog {
        // Sweeping at every failure would keep the server busy if a client has many addresses.
        let is_due = self.swept.is_none_or(|swept| now.duration_since(swept) >= FAILURE_DECAY_INTERVAL);
        if self.failures.len() >= MAX_REMEMBERED_ADDRESSES && is_due {
            self.swept = Some(now);
            self.failures.retain(|_, failures| failures.left(now) > 0.0);
        }
        // If the table is still full, addresses that are not in it are not counted.
        let network = network(address);
        if self.failures.len() >= MAX_REMEMBERED_ADDRESSES && !self.failures.contains_key(&network) {
            return FailureLog::Nothing;
        }
        let (before, logged) = self
            .failures
            .get(&network)
            .map_or((0.0, false), |failures| (failures.left(now), failures.logged));
        let count = before + 1.0;
        let (is_first, is_locked) = (before <= 0.0, self.over(count) > 0.0);
        let was_told = logged && !is_first;
        self.failures.insert(network, Failures { count, at: now, logged: was_told || is_locked });
        match (is_locked && !was_told, is_first) {
            (true, _) => FailureLog::Locked,
            (false, true) => FailureLog::First,
            (false, false) => FailureLog::Nothing,
        }
    }

    /// Returns the number of failures over the limit. The address is locked out if the number is positive.
    fn over(&self, count: f64) -> f64 {
        count - f64::from(self.max_failures) + 1.0
    }
}

impl Failures {
    /// Returns the number of failures that are not forgotten.
    fn left(&self, now: Instant) -> f64 {
        (self.count - now.duration_since(self.at).div_duration_f64(FAILURE_DECAY_INTERVAL)).max(0.0)
    }
}

/// Maps an IPv6 address to its /64 network, which belongs to one client as a whole.
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
        let mut limit = AuthRateLimit::new(3);
        let (here, there) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let now = Instant::now();
        for _ in 0..3 {
            assert_eq!(limit.lockout_time(here, now), None);
            limit.record_failure(here, now);
        }
        assert_eq!(limit.lockout_time(here, now), Some(FAILURE_DECAY_INTERVAL));
        assert_eq!(limit.lockout_time(there, now), None);
        assert_eq!(limit.lockout_time(here, now + FAILURE_DECAY_INTERVAL), None);
        limit.record_failure(here, now + FAILURE_DECAY_INTERVAL);
        assert!(limit.lockout_time(here, now + FAILURE_DECAY_INTERVAL).is_some());
    }

    #[test]
    fn the_first_failure_and_the_lockout_are_logged_once_each() {
        let mut limit = AuthRateLimit::new(3);
        let (here, now) = ("192.0.2.1".parse().unwrap(), Instant::now());
        let mut failed = |after: u32| limit.record_failure(here, now + FAILURE_DECAY_INTERVAL * after);
        assert_eq!(
            [failed(0), failed(0), failed(0)],
            [FailureLog::First, FailureLog::Nothing, FailureLog::Locked]
        );
        // A later lockout after a single failure is not logged again.
        assert_eq!([failed(1), failed(2)], [FailureLog::Nothing, FailureLog::Nothing]);
        assert_eq!(
            [failed(5), failed(5), failed(5)],
            [FailureLog::First, FailureLog::Nothing, FailureLog::Locked]
        );
    }

    #[test]
    fn an_ipv6_network_is_one_peer() {
        let mut limit = AuthRateLimit::new(1);
        let now = Instant::now();
        limit.record_failure("2001:db8::1".parse().unwrap(), now);
        assert!(limit.lockout_time("2001:db8::ffff:1".parse().unwrap(), now).is_some());
        assert!(limit.lockout_time("2001:db8:0:1::1".parse().unwrap(), now).is_none());
        limit.record_failure("::ffff:192.0.2.1".parse().unwrap(), now);
        assert!(limit.lockout_time("192.0.2.1".parse().unwrap(), now).is_some());
    }

    #[test]
    fn the_number_of_remembered_addresses_is_bounded() {
        let mut limit = AuthRateLimit::new(1);
        let now = Instant::now();
        for number in 0..2 * MAX_REMEMBERED_ADDRESSES as u32 {
            limit.record_failure(IpAddr::V4(number.into()), now);
        }
        assert_eq!(limit.failures.len(), MAX_REMEMBERED_ADDRESSES);
        limit.record_failure(IpAddr::V4(u32::MAX.into()), now + FAILURE_DECAY_INTERVAL);
        assert_eq!(limit.failures.len(), 1);
    }
}
