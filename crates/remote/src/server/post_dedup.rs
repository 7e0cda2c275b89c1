//! Deduplicates posts by number: a client repeats a post if it did not see the response, and the server
//! accepts the post only once.

use std::collections::BTreeSet;

const MAX_REMEMBERED_POSTS: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PostState {
    New,
    Taken,
    Forgotten,
}

#[derive(Debug, Default)]
pub(super) struct PostDedup {
    taken: BTreeSet<u64>,
    /// The highest number that was forgotten.
    forgotten: u64,
}

impl PostDedup {
    /// Returns the state of a post. Numbers begin with 1.
    pub(super) fn state(&self, number: u64) -> PostState {
        match number {
            _ if self.taken.contains(&number) => PostState::Taken,
            _ if number <= self.forgotten => PostState::Forgotten,
            _ => PostState::New,
        }
    }

    pub(super) fn record(&mut self, number: u64) {
        self.taken.insert(number);
        if self.taken.len() > MAX_REMEMBERED_POSTS
            && let Some(oldest) = self.taken.pop_first()
        {
            self.forgotten = oldest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_post_is_accepted_once_while_it_is_remembered() {
        let mut posts = PostDedup::default();
        // The numbers 3 and 5 are left out: one post is late, and the other never arrives.
        for number in (1..=MAX_REMEMBERED_POSTS as u64 + 2).filter(|number| ![3, 5].contains(number)) {
            assert_eq!(posts.state(number), PostState::New);
            posts.record(number);
            assert_eq!(posts.state(number), PostState::Taken);
        }
        assert_eq!(posts.state(3), PostState::New);
        posts.record(3);
        assert_eq!(posts.state(1), PostState::Forgotten, "it was dropped for another");
        assert_eq!([2, 3].map(|number| posts.state(number)), [PostState::Taken; 2]);
        for number in 1000..1000 + MAX_REMEMBERED_POSTS as u64 {
            posts.record(number);
        }
        assert_eq!([3, 5, 258].map(|number| posts.state(number)), [PostState::Forgotten; 3]);
        assert_eq!(posts.state(259), PostState::New);
    }
}
