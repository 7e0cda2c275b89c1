//! Events on their way to whoever reads them.
//!
//! A reader that is slow slows the agent down. One that does not read at all must not: then the oldest events go, but
//! how a run ended always comes through, and how much went is told.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use narrows_base::sync::lock;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// How many events wait at most.
const ROOM: usize = 2048;

/// How many bytes wait at most; a larger event may wait alone.
const BYTES: usize = 16 << 20;

/// How long a reader may take for the next event before it counts as one that does not read.
const STALLED: Duration = Duration::from_secs(60);

/// What can be fed.
pub(crate) trait Fed {
    /// Whether it must come through.
    fn is_vital(&self) -> bool;

    /// How many bytes it holds, roughly.
    fn weight(&self) -> usize;

    /// What tells that `count` are missing, beside `next`, before which they stood.
    fn missing(count: u64, next: &Self) -> Self;
}

struct State<T> {
    waiting: VecDeque<T>,
    /// How many bytes wait.
    bytes: usize,
    /// How many went since the last that was read.
    dropped: u64,
    /// Somebody reads, or is about to.
    reads: bool,
    /// Since when nothing was taken of what fills it.
    full_since: Option<Instant>,
    ended: bool,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    /// Something has come, or nothing will any more.
    come: Notify,
    /// Something was taken, or nobody reads any more.
    taken: Notify,
}

impl<T> Shared<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        lock(&self.state)
    }
}

/// Where events go in. When it is dropped the reader comes to the end.
pub(crate) struct Feed<T> {
    shared: Arc<Shared<T>>,
}

/// Where events come out, in order.
pub(crate) struct Reader<T> {
    shared: Arc<Shared<T>>,
}

/// Both ends. Where somebody is `expected` to read, they are waited for from the beginning.
pub(crate) fn feed<T: Fed>(expected: bool) -> (Feed<T>, Reader<T>) {
    let state = State {
        waiting: VecDeque::new(),
        bytes: 0,
        dropped: 0,
        reads: expected,
        full_since: None,
        ended: false,
    };
    let shared = Arc::new(Shared { state: Mutex::new(state), come: Notify::new(), taken: Notify::new() });
    (Feed { shared: Arc::clone(&shared) }, Reader { shared })
}

impl<T: Fed> Feed<T> {
    /// Puts in what stands in `events`, however many they are; see [`Feed::room`].
    pub(crate) fn put(&self, events: &mut Vec<T>) {
        if events.is_empty() {
            return;
        }
        let mut state = self.shared.state();
        state.bytes += events.iter().map(T::weight).sum::<usize>();
        state.waiting.extend(events.drain(..));
        if !state.reads {
            state.shed();
        }
        drop(state);
        self.shared.come.notify_one();
    }

    /// Waits until there is room again. Whoever does not read in time counts as not reading, however often this is
    /// begun anew.
    pub(crate) async fn room(&self) {
        loop {
            let taken = self.shared.taken.notified();
            let until;
            {
                let mut state = self.shared.state();
                if !state.reads {
                    return state.shed();
                }
                if !state.is_full() {
                    return;
                }
                until = *state.full_since.get_or_insert_with(Instant::now) + STALLED;
            }
            if timeout_at(until, taken).await.is_err() {
                self.shared.state().reads = false;
            }
        }
    }

    /// Whether there is room.
    pub(crate) fn has_room(&self) -> bool {
        let state = self.shared.state();
        !state.reads || !state.is_full()
    }
}

impl<T: Fed> State<T> {
    fn is_full(&self) -> bool {
        self.waiting.len() >= ROOM || self.bytes >= BYTES
    }

    /// Lets the oldest go that need not come through.
    fn shed(&mut self) {
        let Self { waiting, bytes, dropped, .. } = self;
        let mut count = waiting.len();
        if count <= ROOM && *bytes <= BYTES {
            return;
        }
        waiting.retain(|event| {
            let goes = (count > ROOM || *bytes > BYTES) && !event.is_vital();
            if goes {
                count -= 1;
                *bytes -= event.weight();
                *dropped += 1;
            }
            !goes
        });
    }
}

impl<T> Drop for Feed<T> {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.come.notify_one();
    }
}

impl<T: Fed> Reader<T> {
    /// What comes next; `None` at the end. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Option<T> {
        loop {
            let come = self.shared.come.notified();
            {
                let mut state = self.shared.state();
                state.reads = true;
                let was_full = state.is_full();
                if let Some(next) = state.take() {
                    let has_room = was_full && !state.is_full();
                    drop(state);
                    if has_room {
                        self.shared.taken.notify_one();
                    }
                    return Some(next);
                }
                if state.ended {
                    return None;
                }
            }
            come.await;
        }
    }

    /// Moves everything there is to `events`; `false` if there is nothing.
    pub(crate) fn take_all(&mut self, events: &mut Vec<T>) -> bool {
        let mut state = self.shared.state();
        state.reads = true;
        let before = events.len();
        while let Some(next) = state.take() {
            events.push(next);
        }
        drop(state);
        self.shared.taken.notify_one();
        events.len() > before
    }
}

impl<T: Fed> State<T> {
    fn take(&mut self) -> Option<T> {
        self.full_since = None;
        let next = self.waiting.front()?;
        if self.dropped > 0 {
            let missing = T::missing(std::mem::take(&mut self.dropped), next);
            return Some(missing);
        }
        let next = self.waiting.pop_front()?;
        self.bytes -= next.weight();
        Some(next)
    }
}

impl<T> Drop for Reader<T> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.reads = false;
        drop(state);
        self.shared.taken.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    enum Event {
        Plain(usize),
        Vital(usize),
        Missing(u64),
    }

    impl Fed for Event {
        fn is_vital(&self) -> bool {
            matches!(self, Self::Vital(_))
        }

        fn weight(&self) -> usize {
            1
        }

        fn missing(count: u64, _: &Self) -> Self {
            Self::Missing(count)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_reads_goes_but_what_is_vital_stays() {
        let (feed, mut reader) = feed(false);
        feed.put(&mut vec![Event::Vital(0)]);
        for number in 1..=5000 {
            feed.put(&mut vec![Event::Plain(number)]);
            feed.room().await;
        }
        feed.put(&mut vec![Event::Vital(5001)]);
        drop(feed);
        assert_eq!(reader.next().await, Some(Event::Missing(5002 - ROOM as u64)));
        assert_eq!(reader.next().await, Some(Event::Vital(0)));
        let mut last = None;
        let mut count = 0;
        while let Some(event) = reader.next().await {
            last = Some(event);
            count += 1;
        }
        assert_eq!((last, count), (Some(Event::Vital(5001)), ROOM - 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_gets_everything() {
        let (feed, mut reader) = feed(true);
        let feeding = async move {
            for number in 0..10_000 {
                feed.put(&mut vec![Event::Plain(number)]);
                feed.room().await;
            }
        };
        let reading = async {
            for number in 0..10_000 {
                assert_eq!(reader.next().await, Some(Event::Plain(number)));
                if number % 1000 == 0 {
                    // sleep: on a paused clock; the reader is slow, and not gone
                    tokio::time::sleep(STALLED / 2).await;
                }
            }
            assert_eq!(reader.next().await, None);
        };
        tokio::join!(feeding, reading);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stops_reading_holds_nobody_up_for_ever() {
        let (feed, mut reader) = feed(true);
        feed.put(&mut vec![Event::Plain(0)]);
        assert_eq!(reader.next().await, Some(Event::Plain(0)));
        feed.put(&mut (1..=ROOM).map(Event::Plain).collect());
        assert!(!feed.has_room());
        let before = Instant::now();
        feed.room().await;
        assert_eq!(before.elapsed(), STALLED);
        feed.put(&mut vec![Event::Vital(1)]);
        feed.room().await;
        let mut all = Vec::new();
        assert!(reader.take_all(&mut all));
        assert_eq!(all.first(), Some(&Event::Missing(1)));
        assert_eq!(all.last(), Some(&Event::Vital(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_anew_does_not_make_it_longer() {
        let (feed, _reader) = feed(true);
        feed.put(&mut (0..ROOM).map(Event::Plain).collect());
        let before = Instant::now();
        while timeout_at(Instant::now() + STALLED / 7, feed.room()).await.is_err() {}
        assert_eq!(before.elapsed(), STALLED);
    }
}
