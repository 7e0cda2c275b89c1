//! Frees memory of clients that do not read their output.
//!
//! Counts the memory that queues occupy, not the bytes in them, and includes clients that are being disconnected: they
//! may keep most of a long message until they have read it or their time is over.

use std::collections::HashMap;

use narrows_wire::{Code, RpcError};

use super::connections::Connections;

impl Connections {
    /// Disconnects slow readers until queues occupy at most `most` bytes. The identity with the largest queues comes
    /// first, and of its clients the one with the largest. Returns `true` if any memory was freed.
    ///
    /// A client can still read the message that it has begun and the reason. If that does not suffice, these are
    /// dropped too.
    pub(super) fn cut_outboxes(&mut self, most: usize) -> bool {
        self.clients.iter_mut().flatten().for_each(|conn| conn.outflow.outbox.compact());
        let mut each: Vec<(u32, usize, u32)> = (0..)
            .zip(&self.clients)
            .filter_map(|(slot, conn)| Some((slot, conn.as_ref()?)))
            .map(|(slot, conn)| (conn.account, conn.outflow.outbox.memory(), slot))
            .filter(|(_, memory, _)| *memory > 0)
            .collect();
        // The largest of each identity comes last.
        each.sort_unstable();
        let mut sizes: HashMap<u32, usize> = HashMap::new();
        for (account, memory, _) in &each {
            *sizes.entry(*account).or_default() += memory;
        }
        let mut all: usize = sizes.values().sum();
        let before = all;
        while all > most {
            let Some((account, size)) = sizes.iter_mut().max_by_key(|(_, size)| **size) else { break };
            let Some(at) = each.iter().rposition(|(of, ..)| of == account) else { break };
            let (account, memory, slot) = each.remove(at);
            self.cut_outbox(slot);
            let rest = self.client(slot).map_or(0, |conn| conn.outflow.outbox.memory());
            *size = *size - memory + rest;
            all = all - memory + rest;
            if rest > 0 {
                let entry = (account, rest, slot);
                each.insert(each.partition_point(|other| *other < entry), entry);
            }
        }
        all < before
    }

    fn cut_outbox(&mut self, slot: u32) {
        let Some(conn) = self.client(slot) else { return };
        if conn.close_state.is_some_and(|close_state| close_state.reads_reason) {
            return self.drop_queue(slot);
        }
        self.disconnect(slot, &RpcError::new(Code::Backpressure, "bus is short of memory"));
        self.skip_to_reason(slot);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::super::connections::ClientConn;
    use super::super::stream::Stream;
    use super::*;
    use crate::core::{ClientCloseReason, ClientId, CoreOutput};

    const MIB: usize = 1 << 20;

    /// Returns connections whose clients do not read, by their account and the sizes of their messages.
    fn unread(queues: &[(u32, &[usize])]) -> (Connections, Vec<UnixStream>) {
        let mut conns = Connections::new(8 * MIB, Duration::from_secs(30));
        let mut peers = Vec::new();
        for (slot, (account, sizes)) in (0..).zip(queues) {
            let (ours, theirs) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            let mut conn = ClientConn::new(Stream::socket(OwnedFd::from(ours)), None, false, false);
            conn.account = *account;
            conns.clients.push(Some(conn));
            for size in *sizes {
                conns.to_client(ClientId(slot), &[&vec![b'x'; *size]]);
            }
            peers.push(theirs);
        }
        (conns, peers)
    }

    fn memory(conns: &Connections) -> Vec<usize> {
        conns.clients.iter().flatten().map(|conn| conn.outflow.outbox.memory()).collect()
    }

    #[test]
    fn cut_queues_occupy_no_more_than_the_limit() {
        let small = [64 << 10; 100].as_slice();
        // A client that reads nothing keeps what is left of the message that it has begun: at most 6 MiB here.
        for (queues, most) in [
            (vec![(1, small); 10], 2 * MIB),
            (vec![(1, [6 * MIB].as_slice()); 10], 2 * MIB),
            (vec![(1, small), (2, small), (1, small)], 0),
        ] {
            let (mut conns, _peers) = unread(&queues);
            assert!(conns.cut_outboxes(most));
            let left: usize = memory(&conns).iter().sum();
            assert!(left <= most, "{left} {most}");
        }
    }

    #[test]
    fn clients_that_are_being_closed_are_cut_too() {
        let (mut conns, _peers) = unread(&[(1, [64 << 10; 100].as_slice())]);
        conns.close_client(0, ClientCloseReason::Served);
        assert!(conns.cut_outboxes(MIB));
        assert!(memory(&conns)[0] <= MIB);
    }

    #[test]
    fn the_identity_with_the_largest_queues_is_cut_first_and_others_are_not() {
        let (mut conns, _peers) =
            unread(&[(1, &[MIB]), (2, &[64 << 10; 40]), (2, &[64 << 10; 80]), (1, &[])]);
        assert!(!conns.cut_outboxes(usize::MAX), "there is room");
        let before = memory(&conns);
        conns.cut_outboxes(before.iter().sum::<usize>() - MIB);
        let after = memory(&conns);
        assert_eq!((after[0], after[1], after[3]), (before[0], before[1], 0));
        assert!(after[2] < MIB, "{after:?}");
        assert!(!conns.cut_outboxes(before.iter().sum()), "enough is free");
    }
}
