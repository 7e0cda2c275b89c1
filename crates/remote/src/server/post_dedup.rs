//! Deduplicates posts by number: one that is repeated, because its client did not see the response, is accepted once.

use std::collections::BTreeSet;

/// Numbers that are remembered.
const MAX_REMEMBERED_POSTS: usize = 256;

/// The state of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// Not accepted before.
    New,
    /// Accepted before.
    Taken,
    /// Too old to tell.
    Forgotten,
}

/// The accepted posts of a connection.
#[derive(Debug, Default)]
pub(super) struct PostDedup {
    taken: BTreeSet<u64>,
    /// The highest number that was forgotten.
    forgotten: u64,
}

impl PostDedup {
    /// Returns the state of a post. Numbers begin with 1.
    pub(super) fn know(&self, number: u64) -> Known {
        match number {
            _ if self.taken.contains(&number) => Known::Taken,
            _ if number <= self.forgotten => Known::Forgotten,
            _ => Known::New,
        }
    }

    /// Records an accepted post.
    pub(super) fn take(&mut self, number: u64) {
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
    fn each_is_taken_once_as_long_as_it_is_known() {
        let mut posts = PostDedup::default();
        // One is late, and one never arrives.
        for number in (1..=MAX_REMEMBERED_POSTS as u64 + 2).filter(|number| ![3, 5].contains(number)) {
            assert_eq!(posts.know(number), Known::New);
            posts.take(number);
            assert_eq!(posts.know(number), Known::Taken);
        }
        assert_eq!(posts.know(3), Known::New);
        posts.take(3);
        assert_eq!(posts.know(1), Known::Forgotten, "there was no room");
        assert_eq!([2, 3].map(|number| posts.know(number)), [Known::Taken; 2]);
        for number in 1000..1000 + MAX_REMEMBERED_POSTS as u64 {
            posts.take(number);
        }
        assert_eq!([3, 5, 258].map(|number| posts.know(number)), [Known::Forgotten; 3]);
        assert_eq!(posts.know(259), Known::New);
    }
}
