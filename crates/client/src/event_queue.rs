//! Queue of events between a session and its reader.
//!
//! A slow reader slows the agent down. A reader that has stopped reading must not block the agent for ever:
//! after a timeout, the oldest events are dropped. The result of a run is never dropped, and the number of
//! dropped events is reported.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use narrows_base::sync::lock;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

const MAX_QUEUED_EVENTS: usize = 2048;

/// Maximum size of queued events. A single larger event may be queued alone.
const MAX_QUEUED_BYTES: usize = 16 << 20;

/// Time for which a full queue may stay unread before events are dropped.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) trait QueueItem {
    /// Returns `true` if the event is never dropped.
    fn is_vital(&self) -> bool;

    fn weight(&self) -> usize;

    /// Returns an event that reports `count` dropped events, to be queued before `next`.
    fn missing(count: u64, next: &Self) -> Self;
}

struct State<T> {
    waiting: VecDeque<T>,
    bytes: usize,
    /// Number of events dropped since the last read.
    dropped: u64,
    /// `true` while a reader exists or is expected.
    reads: bool,
    /// Time since which the queue has been full without a read.
    full_since: Option<Instant>,
    ended: bool,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    /// Notified when an event was added or the queue has ended.
    come: Notify,
    /// Notified when an event was read or the reader was dropped.
    taken: Notify,
}

impl<T> Shared<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        lock(&self.state)
    }
}

/// Sending end of an event queue. Dropping it ends the reader's stream.
pub(crate) struct EventQueue<T> {
    shared: Arc<Shared<T>>,
}

pub(crate) struct Reader<T> {
    shared: Arc<Shared<T>>,
}

/// Creates both ends of a queue. If `expected` is `false`, a full queue drops its oldest events until the
/// reader is used.
pub(crate) fn event_queue<T: QueueItem>(expected: bool) -> (EventQueue<T>, Reader<T>) {
    let state = State {
        waiting: VecDeque::new(),
        bytes: 0,
        dropped: 0,
        reads: expected,
        full_since: None,
        ended: false,
    };
    let shared = Arc::new(Shared { state: Mutex::new(state), come: Notify::new(), taken: Notify::new() });
    (EventQueue { shared: Arc::clone(&shared) }, Reader { shared })
}

impl<T: QueueItem> EventQueue<T> {
    /// Adds all `events`, even if the queue exceeds its bounds. The caller must then call
    /// [`EventQueue::wait_for_room`].
    pub(crate) fn push_all(&self, events: &mut Vec<T>) {
        if events.is_empty() {
            return;
        }
        let mut state = self.shared.state();
        state.bytes += events.iter().map(T::weight).sum::<usize>();
        state.waiting.extend(events.drain(..));
        if !state.reads {
            state.drop_oldest();
        }
        drop(state);
        self.shared.come.notify_one();
    }

    /// Waits for room in the queue. If nothing is read for [`STALL_TIMEOUT`], stops waiting and drops events.
    /// Another call does not restart the timeout.
    pub(crate) async fn wait_for_room(&self) {
        loop {
            let taken = self.shared.taken.notified();
            let until;
            {
                let mut state = self.shared.state();
                if !state.reads {
                    return state.drop_oldest();
                }
                if !state.is_full() {
                    return;
                }
                until = *state.full_since.get_or_insert_with(Instant::now) + STALL_TIMEOUT;
            }
            if timeout_at(until, taken).await.is_err() {
                self.shared.state().reads = false;
            }
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        let state = self.shared.state();
        !state.reads || !state.is_full()
    }
}

impl<T: QueueItem> State<T> {
    fn is_full(&self) -> bool {
        self.waiting.len() >= MAX_QUEUED_EVENTS || self.bytes >= MAX_QUEUED_BYTES
    }

    fn drop_oldest(&mut self) {
        let Self { waiting, bytes, dropped, .. } = self;
        let mut count = waiting.len();
        if count <= MAX_QUEUED_EVENTS && *bytes <= MAX_QUEUED_BYTES {
            return;
        }
        waiting.retain(|event| {
            let goes = (count > MAX_QUEUED_EVENTS || *bytes > MAX_QUEUED_BYTES) && !event.is_vital();
            if goes {
                count -= 1;
                *bytes -= event.weight();
                *dropped += 1;
            }
            !goes
        });
    }
}

impl<T> Drop for EventQueue<T> {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.come.notify_one();
    }
}

impl<T: QueueItem> Reader<T> {
    /// Returns the next event; `None` at the end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<T> {
        loop {
            let come = self.shared.come.notified();
            {
                let mut state = self.shared.state();
                state.reads = true;
                let was_full = state.is_full();
                if let Some(next) = state.pop() {
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

    /// Moves all queued events to `events`. Returns `false` if there are none.
    pub(crate) fn take_all(&mut self, events: &mut Vec<T>) -> bool {
        let mut state = self.shared.state();
        state.reads = true;
        let before = events.len();
        while let Some(next) = state.pop() {
            events.push(next);
        }
        drop(state);
        self.shared.taken.notify_one();
        events.len() > before
    }
}

impl<T: QueueItem> State<T> {
    fn pop(&mut self) -> Option<T> {
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

    impl QueueItem for Event {
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
    async fn unread_events_are_dropped_except_vital_ones() {
        let (event_queue, mut reader) = event_queue(false);
        event_queue.push_all(&mut vec![Event::Vital(0)]);
        for number in 1..=5000 {
            event_queue.push_all(&mut vec![Event::Plain(number)]);
            event_queue.wait_for_room().await;
        }
        event_queue.push_all(&mut vec![Event::Vital(5001)]);
        drop(event_queue);
        assert_eq!(reader.next().await, Some(Event::Missing(5002 - MAX_QUEUED_EVENTS as u64)));
        assert_eq!(reader.next().await, Some(Event::Vital(0)));
        let mut last = None;
        let mut count = 0;
        while let Some(event) = reader.next().await {
            last = Some(event);
            count += 1;
        }
        assert_eq!((last, count), (Some(Event::Vital(5001)), MAX_QUEUED_EVENTS - 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_gets_everything() {
        let (event_queue, mut reader) = event_queue(true);
        let feeding = async move {
            for number in 0..10_000 {
                event_queue.push_all(&mut vec![Event::Plain(number)]);
                event_queue.wait_for_room().await;
            }
        };
        let reading = async {
            for number in 0..10_000 {
                assert_eq!(reader.next().await, Some(Event::Plain(number)));
                if number % 1000 == 0 {
                    // sleep: on a paused clock; the reader is slow but has not stopped
                    tokio::time::sleep(STALL_TIMEOUT / 2).await;
                }
            }
            assert_eq!(reader.next().await, None);
        };
        tokio::join!(feeding, reading);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_reader_blocks_only_until_the_timeout() {
        let (event_queue, mut reader) = event_queue(true);
        event_queue.push_all(&mut vec![Event::Plain(0)]);
        assert_eq!(reader.next().await, Some(Event::Plain(0)));
        event_queue.push_all(&mut (1..=MAX_QUEUED_EVENTS).map(Event::Plain).collect());
        assert!(!event_queue.has_room());
        let before = Instant::now();
        event_queue.wait_for_room().await;
        assert_eq!(before.elapsed(), STALL_TIMEOUT);
        event_queue.push_all(&mut vec![Event::Vital(1)]);
        event_queue.wait_for_room().await;
        let mut all = Vec::new();
        assert!(reader.take_all(&mut all));
        assert_eq!(all.first(), Some(&Event::Missing(1)));
        assert_eq!(all.last(), Some(&Event::Vital(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_again_does_not_extend_the_timeout() {
        let (event_queue, _reader) = event_queue(true);
        event_queue.push_all(&mut (0..MAX_QUEUED_EVENTS).map(Event::Plain).collect());
        let before = Instant::now();
        while timeout_at(Instant::now() + STALL_TIMEOUT / 7, event_queue.wait_for_room()).await.is_err() {}
        assert_eq!(before.elapsed(), STALL_TIMEOUT);
    }
}
