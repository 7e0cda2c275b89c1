//! Limits for the bytes of incomplete messages, of all clients together and of each identity. If a limit is
//! exceeded, the longest message is dropped.

use crate::core::{ClientId, Time, unfinished_error};

use super::websocket::ClientDecoder;
use super::{About, Driver, Router};

/// While memory is short, the memory budget divided by this number limits the incomplete messages, and also
/// the output queues.
const PRESSURE_DIVISOR: u64 = 8;

impl ClientDecoder {
    #[inline]
    fn partial(&self) -> usize {
        match self {
            Self::Lines(lines) => lines.partial(),
            Self::Frames(decoder) => decoder.partial(),
        }
    }
}

impl<B: Router> Driver<B> {
    #[inline]
    pub(super) fn count_unfinished(&mut self, now: Time, slot: u32) {
        let Some(decoder) = self.client_decoders.get(slot as usize) else { return };
        let Some(Some(conn)) = self.conns.clients.get_mut(slot as usize) else { return };
        let bytes =
            decoder.partial() + conn.first_line.as_ref().map_or(0, |first_line| first_line.read.len());
        // Usually no message is incomplete before or after the read.
        if bytes != conn.unfinished {
            self.conns.accounts.hold(conn, bytes, now);
            let account = conn.account;
            self.limit_unfinished(now, account);
        }
    }

    fn limit_unfinished(&mut self, now: Time, account: u32) {
        let (all, one) = self.limits.unfinished();
        if self.conns.accounts.unfinished_of(account) > one {
            self.drop_longest_input(now, Some(account), one);
        }
        if self.conns.accounts.unfinished > all {
            self.drop_longest_input(now, None, all);
        }
    }

    /// Frees memory when memory is short: drops incomplete messages that are old or exceed a lower limit, and
    /// disconnects slow readers.
    pub(super) fn free_memory(&mut self, now: Time) {
        let most = usize::try_from(self.limits.memory / PRESSURE_DIVISOR).unwrap_or(usize::MAX);
        if self.conns.accounts.unfinished > most {
            self.drop_longest_input(now, None, most);
        }
        if self.conns.cut_outboxes(most) {
            // Released at the next check, not only after the usual interval.
            self.checks.release_heap_at_next_check();
        }
        let timeout = self.limits.stall_timeout;
        let old: Vec<u32> = (0..)
            .zip(&self.conns.clients)
            .filter_map(|(slot, conn)| Some((slot, conn.as_ref()?)))
            .filter(|(_, conn)| conn.unfinished > 0 && now >= conn.begun + timeout)
            .map(|(slot, _)| slot)
            .collect();
        for slot in old {
            self.drop_input(now, slot);
        }
    }

    /// Drops the longest incomplete messages, of one identity or of all, until there is some room below
    /// `most`.
    fn drop_longest_input(&mut self, now: Time, account: Option<u32>, most: usize) {
        let mut each: Vec<(usize, u32)> = (0..)
            .zip(&self.conns.clients)
            .filter_map(|(slot, conn)| Some((slot, conn.as_ref()?)))
            .filter(|(_, conn)| conn.unfinished > 0 && account.is_none_or(|account| account == conn.account))
            .map(|(slot, conn)| (conn.unfinished, slot))
            .collect();
        each.sort_unstable();
        // Without the margin, the next read would exceed the limit again and search all messages again.
        let most = most - most / 8;
        while let Some((_, slot)) = each.pop() {
            let accounts = &self.conns.accounts;
            let held = account.map_or(accounts.unfinished, |account| accounts.unfinished_of(account));
            if held <= most {
                return;
            }
            self.drop_input(now, slot);
        }
    }

    /// Drops the incomplete message of a client and answers with an error. A client that sends lines can
    /// continue with the next line.
    fn drop_input(&mut self, now: Time, slot: u32) {
        let Some(conn) = self.conns.client(slot) else { return };
        let (bytes, is_fresh) = (conn.unfinished, conn.first_line.take().is_some());
        tracing::warn!(client = slot, bytes, "incomplete message over the limit refused");
        let head = match self.client_decoders.get_mut(slot as usize) {
            Some(ClientDecoder::Lines(lines)) => lines.abandon_line(),
            _ => None,
        };
        match head {
            Some(head) if !is_fresh => {
                self.call_router(About::Client(slot), |router, conns| {
                    router.refuse_unfinished(now, ClientId(slot), &head, conns);
                });
            }
            _ => {
                self.conns.disconnect(slot, &unfinished_error());
                // The rest of the client's input is discarded, whatever its decoder expects.
                let lines = self.lines();
                if let Some(decoder) = self.client_decoders.get_mut(slot as usize) {
                    *decoder = lines;
                }
            }
        }
        if let Some(Some(conn)) = self.conns.clients.get_mut(slot as usize) {
            self.conns.accounts.hold(conn, 0, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::BusLimits;

    #[test]
    fn a_memory_budget_limits_unfinished_input_too() {
        let limits = BusLimits::default();
        assert_eq!(limits.unfinished(), (256 << 20, 64 << 20));
        assert_eq!(BusLimits { memory: 128 << 20, ..limits.clone() }.unfinished(), (64 << 20, 64 << 20));
        assert_eq!(BusLimits { memory: 32 << 20, ..limits }.unfinished(), (16 << 20, 16 << 20));
    }

    #[test]
    fn a_memory_budget_limits_the_replay_memory() {
        let limits = BusLimits::default();
        assert_eq!(limits.replay_memory(), (256 << 20, 64 << 20));
        assert_eq!(BusLimits { memory: 128 << 20, ..limits.clone() }.replay_memory(), (16 << 20, 8 << 20));
        assert_eq!(BusLimits { memory: 8 << 30, ..limits }.replay_memory(), (256 << 20, 64 << 20));
    }
}
