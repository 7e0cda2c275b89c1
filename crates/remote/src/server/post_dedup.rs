//! Which posts of a connection were taken: one that is posted again, because its client does not know, is taken once.

use std::collections::BTreeSet;

/// How many are remembered.
const MAX_REMEMBERED_POSTS: usize = 256;

/// What is known of a post by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It was not taken.
    New,
    /// It was.
    Taken,
    /// It is too old to tell.
    Forgotten,
}

/// The posts that were taken.
#[derive(Debug, Default)]
pub(super) struct PostDedup {
    taken: BTreeSet<u64>,
    /// The last of those that are forgotten.
    forgotten: u64,
}

impl PostDedup {
    /// What is known of the post of this number; they begin with 1.
    pub(super) fn know(&self, number: u64) -> Known {
        match number {
            _ if self.taken.contains(&number) => Known::Taken,
            _ if number <= self.forgotten => Known::Forgotten,
            _ => Known::New,
        }
    }

    /// It is taken.
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
        // One is late, and one never comes.
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
