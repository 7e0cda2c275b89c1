//! A first-in first-out queue that is bounded in bytes.
//!
//! [`Sender::send`] waits for room, which carries backpressure from a slow reader to its source.
//! [`Sender::push`] does not wait: it is for answers and cancellations, which must get through a full queue
//! but stay in order. A task that causes pushes must wait with [`Sender::room`] before it causes more, so
//! that the queue exceeds its limit by a bounded amount.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use narrows_base::sync::lock;
use tokio::sync::Notify;

/// Number of budgets that pushed items may fill before [`Sender::room`] waits. Two peers that both wait for
/// room before they read deadlock once both queues exceed this. With one budget that happens soon; with
/// eight, both must send many requests without reading.
const MAX_PUSHED_BUDGETS: usize = 8;

/// Cost of an item in addition to its bytes.
const ITEM_OVERHEAD_BYTES: usize = 128;

/// Error: the other end of the queue is dropped or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue is closed")]
pub struct Closed;

/// Reason why [`Sender::try_send`] did not accept an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrySendError<T> {
    /// The queue is full. Contains the item.
    Full(T),
    Closed,
}

struct State<T> {
    items: VecDeque<(usize, T)>,
    bytes: usize,
    senders: usize,
    /// Set when a sender closes the queue.
    finished: bool,
    receiver_gone: bool,
}

impl<T> State<T> {
    fn is_closed_for_sending(&self) -> bool {
        self.finished || self.receiver_gone
    }

    fn is_exhausted(&self) -> bool {
        self.finished || self.senders == 0
    }
}

struct Shared<T> {
    state: Mutex<State<T>>,
    budget: usize,
    /// Notified when an item is available, or no sender is left.
    ready: Notify,
    /// Notified when there is room, or no receiver is left.
    room: Notify,
    /// Notified when nothing more will be sent.
    end: Notify,
}

impl<T> Shared<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        // No code panics while it holds the lock. Even after a panic the queue would be consistent.
        lock(&self.state)
    }
}

/// Creates a queue of up to `budget` bytes. A larger item is admitted when the queue is empty.
#[must_use]
pub fn bounded<T>(budget: usize) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            items: VecDeque::new(),
            bytes: 0,
            senders: 1,
            finished: false,
            receiver_gone: false,
        }),
        budget,
        ready: Notify::new(),
        room: Notify::new(),
        end: Notify::new(),
    });
    (Sender { shared: Arc::clone(&shared) }, Receiver { shared })
}

/// The sending end of a queue. Clones share the queue.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Sender<T> {
    /// Sends `item` of `size` bytes, waiting for room.
    ///
    /// # Errors
    /// If the receiver is dropped or the queue closed.
    pub async fn send(&self, item: T, size: usize) -> Result<(), Closed> {
        let mut item = item;
        loop {
            match self.try_send(item, size) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Closed) => return Err(Closed),
                Err(TrySendError::Full(back)) => item = back,
            }
            self.wait_until(|state| Self::admits(state, self.shared.budget, size)).await;
        }
    }

    /// Sends `item` if there is room now.
    ///
    /// # Errors
    /// If the queue is full, or the receiver is dropped.
    pub fn try_send(&self, item: T, size: usize) -> Result<(), TrySendError<T>> {
        let state = self.shared.state();
        if state.is_closed_for_sending() {
            return Err(TrySendError::Closed);
        }
        if !Self::admits(&state, self.shared.budget, size) {
            return Err(TrySendError::Full(item));
        }
        self.put(state, item, size);
        Ok(())
    }

    /// Sends `item` without waiting, even over the budget.
    ///
    /// # Errors
    /// If the receiver is dropped or the queue closed.
    pub fn push(&self, item: T, size: usize) -> Result<(), Closed> {
        let state = self.shared.state();
        if state.is_closed_for_sending() {
            return Err(Closed);
        }
        self.put(state, item, size);
        Ok(())
    }

    /// Waits until pushed items are within their limit, or the queue is closed.
    pub async fn room(&self) {
        self.wait_until(|state| state.bytes <= self.shared.budget.saturating_mul(MAX_PUSHED_BUDGETS)).await;
    }

    /// Waits until nothing can be sent any more.
    pub async fn closed(&self) {
        self.wait_until(|_| false).await;
    }

    /// Waits until the receiver is dropped, after which no item is received.
    pub async fn receiver_dropped(&self) {
        loop {
            let room = self.shared.room.notified();
            tokio::pin!(room);
            // Registered before the check; otherwise a wake-up between the two would be lost.
            room.as_mut().enable();
            if self.shared.state().receiver_gone {
                return;
            }
            room.await;
        }
    }

    /// Closes the queue. The receiver still gets the queued items.
    pub fn close(&self) {
        self.shared.state().finished = true;
        self.shared.ready.notify_one();
        self.shared.room.notify_waiters();
        self.shared.end.notify_waiters();
    }

    /// Returns `true` if nothing can be sent any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.state().is_closed_for_sending()
    }

    fn admits(state: &State<T>, budget: usize, size: usize) -> bool {
        state.items.is_empty() || state.bytes + size + ITEM_OVERHEAD_BYTES <= budget
    }

    fn put(&self, mut state: MutexGuard<'_, State<T>>, item: T, size: usize) {
        state.bytes += size + ITEM_OVERHEAD_BYTES;
        state.items.push_back((size + ITEM_OVERHEAD_BYTES, item));
        let first = state.items.len() == 1;
        drop(state);
        if first {
            self.shared.ready.notify_one();
        }
    }

    async fn wait_until(&self, ready: impl Fn(&State<T>) -> bool) {
        loop {
            let room = self.shared.room.notified();
            tokio::pin!(room);
            // Registered before the check; otherwise a wake-up between the two would be lost.
            room.as_mut().enable();
            {
                let state = self.shared.state();
                if state.is_closed_for_sending() || ready(&state) {
                    return;
                }
            }
            room.await;
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.shared.state().senders += 1;
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let last = {
            let mut state = self.shared.state();
            state.senders -= 1;
            state.senders == 0
        };
        if last {
            self.shared.ready.notify_one();
            self.shared.end.notify_waiters();
        }
    }
}

/// The receiving end of a queue.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Receiver<T> {
    /// Receives the next item, or `None` if the queue is empty and closed by its senders. Cancel-safe.
    pub async fn recv(&mut self) -> Option<T> {
        loop {
            {
                let mut state = self.shared.state();
                if let Some(item) = self.pop(&mut state) {
                    return Some(item);
                }
                if state.is_exhausted() {
                    return None;
                }
            }
            self.shared.ready.notified().await;
        }
    }

    /// Receives the next item if one is queued.
    pub fn try_recv(&mut self) -> Option<T> {
        self.pop(&mut self.shared.state())
    }

    /// Moves all available items to `items`, waiting for the first. Returns `false` if nothing more will
    /// come. Cancel-safe.
    pub async fn recv_all(&mut self, items: &mut Vec<T>) -> bool {
        loop {
            {
                let mut state = self.shared.state();
                if !state.items.is_empty() {
                    items.extend(state.items.drain(..).map(|(_, item)| item));
                    state.bytes = 0;
                    drop(state);
                    self.shared.room.notify_waiters();
                    return true;
                }
                if state.is_exhausted() {
                    return false;
                }
            }
            self.shared.ready.notified().await;
        }
    }

    /// Waits until nothing more will be sent. Items may still be queued.
    pub fn ended(&self) -> impl Future<Output = ()> + use<T> {
        let shared = Arc::clone(&self.shared);
        async move {
            let end = shared.end.notified();
            tokio::pin!(end);
            // Registered before the check; otherwise the end between the two would be missed.
            end.as_mut().enable();
            if !shared.state().is_exhausted() {
                end.await;
            }
        }
    }

    fn pop(&self, state: &mut State<T>) -> Option<T> {
        let (cost, item) = state.items.pop_front()?;
        let was_over = state.bytes + ITEM_OVERHEAD_BYTES > self.shared.budget / 2;
        state.bytes -= cost;
        // Senders are woken when half of the queue is free, not for each item, so they send in bursts.
        if was_over && state.bytes + ITEM_OVERHEAD_BYTES <= self.shared.budget / 2 || state.items.is_empty() {
            self.shared.room.notify_waiters();
        }
        Some(item)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let left = {
            let mut state = self.shared.state();
            state.receiver_gone = true;
            state.bytes = 0;
            std::mem::take(&mut state.items)
        };
        // Items are dropped outside the lock: an item may hold a sender of this same queue.
        drop(left);
        self.shared.room.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// A paused clock reaches this time only when nothing else can run.
    const NEVER: Duration = Duration::from_secs(3600);

    #[tokio::test(start_paused = true)]
    async fn items_are_received_in_the_order_of_sends_and_pushes() {
        let (sender, mut receiver) = bounded(10 * ITEM_OVERHEAD_BYTES);
        for number in 0..3 {
            sender.send(number, 0).await.unwrap();
        }
        sender.push(3, 0).unwrap();
        sender.try_send(4, 0).unwrap();
        let mut items = Vec::new();
        assert!(receiver.recv_all(&mut items).await);
        assert_eq!(items, [0, 1, 2, 3, 4]);
        assert_eq!(receiver.try_recv(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_makes_senders_wait_until_there_is_room() {
        let (sender, mut receiver) = bounded(2 * ITEM_OVERHEAD_BYTES + 100);
        sender.send("a", 50).await.unwrap();
        sender.send("b", 50).await.unwrap();
        assert_eq!(sender.try_send("c", 1), Err(TrySendError::Full("c")));
        assert!(timeout(NEVER, sender.send("c", 1)).await.is_err());
        let waiting = tokio::spawn(async move { sender.send("d", 1).await });
        assert_eq!(receiver.recv().await, Some("a"));
        assert_eq!(receiver.recv().await, Some("b"));
        assert_eq!(receiver.recv().await, Some("d"));
        waiting.await.unwrap().unwrap();
        assert_eq!(receiver.recv().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn one_item_larger_than_the_budget_passes_alone() {
        let (sender, mut receiver) = bounded(1000);
        sender.send(1, 5000).await.unwrap();
        assert_eq!(sender.try_send(2, 0), Err(TrySendError::Full(2)));
        assert_eq!(receiver.recv().await, Some(1));
        sender.try_send(2, 5000).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn pushes_may_exceed_the_budget_and_room_waits() {
        let (sender, mut receiver) = bounded(ITEM_OVERHEAD_BYTES);
        for number in 0..10 {
            sender.push(number, 100).unwrap();
        }
        assert!(timeout(NEVER, sender.room()).await.is_err());
        let room = tokio::spawn(async move { sender.room().await });
        for number in 0..10 {
            assert_eq!(receiver.recv().await, Some(number));
        }
        room.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn each_end_learns_that_the_other_is_dropped() {
        let (sender, receiver) = bounded(ITEM_OVERHEAD_BYTES);
        sender.push(1, 0).unwrap();
        let other = sender.clone();
        let waiting = tokio::spawn(async move { other.send(2, 0).await });
        tokio::task::yield_now().await;
        drop(receiver);
        assert_eq!(waiting.await.unwrap(), Err(Closed));
        assert_eq!(sender.push(3, 0), Err(Closed));
        assert!(sender.is_closed());

        let (sender, mut receiver) = bounded(ITEM_OVERHEAD_BYTES);
        sender.push(1, 0).unwrap();
        let keeper = sender.clone();
        sender.close();
        assert_eq!(keeper.push(2, 0), Err(Closed));
        assert_eq!(receiver.recv().await, Some(1));
        assert_eq!(receiver.recv().await, None);
    }

    #[tokio::test]
    async fn many_senders_and_a_small_queue_lose_nothing() {
        let (sender, mut receiver) = bounded(3 * ITEM_OVERHEAD_BYTES);
        let tasks: Vec<_> = (0..8)
            .map(|task| {
                let sender = sender.clone();
                tokio::spawn(async move {
                    for number in 0..500 {
                        sender.send((task, number), number % 7).await.unwrap();
                    }
                })
            })
            .collect();
        drop(sender);
        let mut next = [0; 8];
        while let Some((task, number)) = receiver.recv().await {
            assert_eq!(number, next[task], "the order of one sender is kept");
            next[task] += 1;
        }
        assert_eq!(next, [500; 8]);
        for task in tasks {
            task.await.unwrap();
        }
    }
}
