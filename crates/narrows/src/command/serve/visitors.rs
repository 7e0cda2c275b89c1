//! The connections to the admin socket. The oldest that have asked nothing yet make room for others, and each user has a share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::AbortHandle;

/// The most connections at once.
const MAX_VISITORS: usize = 64;

/// The most connections of one user.
const MAX_PER_USER: usize = 8;

/// Set once a whole request was read: then its connection does not make room.
pub(super) type HasAsked = Arc<AtomicBool>;

/// The open connections, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Visitors(VecDeque<Visitor>);

#[derive(Debug)]
struct Visitor {
    user: u32,
    has_asked: HasAsked,
    task: AbortHandle,
}

impl Visitors {
    /// Makes room for a connection of this user. Returns `false` if every connection that could go has asked something.
    pub(super) fn make_room(&mut self, user: u32) -> bool {
        self.0.retain(|visitor| !visitor.task.is_finished());
        let of_user = self.0.iter().filter(|visitor| visitor.user == user).count();
        if of_user >= MAX_PER_USER {
            return self.close_oldest(|visitor| visitor.user == user);
        }
        self.0.len() < MAX_VISITORS || self.close_oldest(|_| true)
    }

    /// Adds a connection that [`Self::make_room`] has made room for.
    pub(super) fn add(&mut self, user: u32, has_asked: HasAsked, task: AbortHandle) {
        self.0.push_back(Visitor { user, has_asked, task });
    }

    fn close_oldest(&mut self, is_meant: impl Fn(&Visitor) -> bool) -> bool {
        let is_silent = |visitor: &Visitor| is_meant(visitor) && !visitor.has_asked.load(Ordering::Relaxed);
        let oldest = self.0.iter().position(is_silent).and_then(|at| self.0.remove(at));
        oldest.inspect(|visitor| visitor.task.abort()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(visitors: &mut Visitors, user: u32, asks: bool) -> (bool, AbortHandle) {
        let task = tokio::spawn(std::future::pending::<()>()).abort_handle();
        let has_room = visitors.make_room(user);
        if has_room {
            visitors.add(user, Arc::new(AtomicBool::new(asks)), task.clone());
        }
        (has_room, task)
    }

    #[tokio::test]
    async fn the_oldest_silent_connection_of_a_user_makes_room_for_its_next() {
        let mut visitors = Visitors::default();
        let (_, other) = enter(&mut visitors, 2, false);
        let first: Vec<AbortHandle> =
            (0..MAX_PER_USER).map(|at| enter(&mut visitors, 1, at == 0).1).collect();
        for _ in 0..600 {
            assert!(enter(&mut visitors, 1, false).0);
        }
        tokio::task::yield_now().await;
        let ended: Vec<bool> = first.iter().map(AbortHandle::is_finished).collect();
        // The first of them has asked something, and is answered.
        assert_eq!(ended, [false, true, true, true, true, true, true, true]);
        assert!(!other.is_finished(), "another user keeps its place");
        assert_eq!(visitors.0.len(), MAX_PER_USER + 1);
    }

    #[tokio::test]
    async fn who_has_asked_does_not_make_room() {
        let mut visitors = Visitors::default();
        for _ in 0..MAX_PER_USER {
            assert!(enter(&mut visitors, 1, true).0);
        }
        assert!(!enter(&mut visitors, 1, true).0);
        assert!(enter(&mut visitors, 2, true).0, "another user has a share of its own");
    }

    #[tokio::test]
    async fn all_together_have_a_bound() {
        let mut visitors = Visitors::default();
        for user in 0..200 {
            assert!(enter(&mut visitors, user, false).0);
        }
        assert_eq!(visitors.0.len(), MAX_VISITORS);
    }
}
