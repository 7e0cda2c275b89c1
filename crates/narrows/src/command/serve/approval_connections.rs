//! Connections of the admin socket. Each user has a limited number. A new connection may close the oldest one
//! that has not sent a request.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::AbortHandle;

const MAX_CONNECTIONS: usize = 64;

const MAX_PER_USER: usize = 8;

/// Becomes `true` when a complete request was read from a connection. A connection with a request is not
/// closed to make room.
pub(super) type HasAsked = Arc<AtomicBool>;

#[derive(Debug, Default)]
pub(super) struct ApprovalConnections(VecDeque<Connection>);

#[derive(Debug)]
struct Connection {
    user: u32,
    has_asked: HasAsked,
    task: AbortHandle,
}

impl ApprovalConnections {
    /// Makes room for a connection of a user. Returns `false` if every connection that could be closed has sent a
    /// request.
    pub(super) fn make_room(&mut self, user: u32) -> bool {
        self.0.retain(|connection| !connection.task.is_finished());
        let of_user = self.0.iter().filter(|connection| connection.user == user).count();
        if of_user >= MAX_PER_USER {
            return self.close_oldest(|connection| connection.user == user);
        }
        self.0.len() < MAX_CONNECTIONS || self.close_oldest(|_| true)
    }

    pub(super) fn add(&mut self, user: u32, has_asked: HasAsked, task: AbortHandle) {
        self.0.push_back(Connection { user, has_asked, task });
    }

    fn close_oldest(&mut self, is_meant: impl Fn(&Connection) -> bool) -> bool {
        let is_silent =
            |connection: &Connection| is_meant(connection) && !connection.has_asked.load(Ordering::Relaxed);
        let oldest = self.0.iter().position(is_silent).and_then(|at| self.0.remove(at));
        oldest.inspect(|connection| connection.task.abort()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(connections: &mut ApprovalConnections, user: u32, asks: bool) -> (bool, AbortHandle) {
        let task = tokio::spawn(std::future::pending::<()>()).abort_handle();
        let has_room = connections.make_room(user);
        if has_room {
            connections.add(user, Arc::new(AtomicBool::new(asks)), task.clone());
        }
        (has_room, task)
    }

    #[tokio::test]
    async fn the_oldest_silent_connection_of_a_user_makes_room_for_its_next() {
        let mut connections = ApprovalConnections::default();
        let (_, other) = connect(&mut connections, 2, false);
        let first: Vec<AbortHandle> =
            (0..MAX_PER_USER).map(|at| connect(&mut connections, 1, at == 0).1).collect();
        for _ in 0..600 {
            assert!(connect(&mut connections, 1, false).0);
        }
        tokio::task::yield_now().await;
        let ended: Vec<bool> = first.iter().map(AbortHandle::is_finished).collect();
        // The oldest connection has sent a request, so it stays.
        assert_eq!(ended, [false, true, true, true, true, true, true, true]);
        assert!(!other.is_finished(), "another user keeps its place");
        assert_eq!(connections.0.len(), MAX_PER_USER + 1);
    }

    #[tokio::test]
    async fn a_connection_that_sent_a_request_is_not_closed() {
        let mut connections = ApprovalConnections::default();
        for _ in 0..MAX_PER_USER {
            assert!(connect(&mut connections, 1, true).0);
        }
        assert!(!connect(&mut connections, 1, true).0);
        assert!(connect(&mut connections, 2, true).0, "another user has a share of its own");
    }

    #[tokio::test]
    async fn all_connections_are_bounded() {
        let mut connections = ApprovalConnections::default();
        for user in 0..200 {
            assert!(connect(&mut connections, user, false).0);
        }
        assert_eq!(connections.0.len(), MAX_CONNECTIONS);
    }
}
