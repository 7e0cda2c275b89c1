//! Sockets on which nobody who is known has asked for anything: where there is no room for one more, the oldest of them goes.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{AcquireError, Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::refusals::{Reason, Refusals};

/// How often it is logged at most that somebody had to go.
const TOLD: Duration = Duration::from_secs(60);

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    unknown: Mutex<Unknown>,
    /// Whoever needs a place waits here for its turn: two must not wait for what one has made free.
    turn: tokio::sync::Mutex<()>,
    /// There is one more.
    came: Notify,
}

#[derive(Debug, Default)]
struct Unknown {
    next: u64,
    by_age: BTreeMap<u64, Arc<Notify>>,
    /// How many have gone since that was logged, and when it was.
    gone: u64,
    told: Option<Instant>,
}

impl Strangers {
    /// A place for one more socket. If there is none, the oldest stranger is sent away; if there is no stranger either, that is
    /// waited for.
    pub(super) async fn place(
        &self,
        places: &Arc<Semaphore>,
        refusals: &Refusals,
    ) -> Result<OwnedSemaphorePermit, AcquireError> {
        let _turn = self.turn.lock().await;
        if let Ok(place) = Arc::clone(places).try_acquire_owned() {
            return Ok(place);
        }
        let mut place = pin!(Arc::clone(places).acquire_owned());
        loop {
            let mut came = pin!(self.came.notified());
            came.as_mut().enable();
            if self.send_away() {
                refusals.add(Reason::Crowd);
                return place.await;
            }
            tokio::select! {
                biased;
                place = &mut place => return place,
                () = came => {}
            }
        }
    }

    /// One more, who is the youngest.
    pub(super) fn add(self: &Arc<Self>) -> Stranger {
        let leave = Arc::new(Notify::new());
        let number = self.with(|unknown| {
            unknown.next += 1;
            unknown.by_age.insert(unknown.next, Arc::clone(&leave));
            unknown.next
        });
        self.came.notify_waiters();
        Stranger { all: Arc::clone(self), number, leave, known: AtomicBool::new(false) }
    }

    /// Sends the oldest away, if there is any.
    fn send_away(&self) -> bool {
        let gone = self.with(|unknown| {
            let (_, leave) = unknown.by_age.pop_first()?;
            leave.notify_one();
            unknown.gone += 1;
            let now = Instant::now();
            let is_due = unknown.told.is_none_or(|told| now.duration_since(told) >= TOLD);
            Some(is_due.then(|| {
                unknown.told = Some(now);
                std::mem::take(&mut unknown.gone)
            }))
        });
        if let Some(Some(closed)) = gone {
            tracing::warn!(
                closed,
                "there are as many sockets as there may be: the oldest on which nobody has shown who they are make room"
            );
        }
        gone.is_some()
    }

    fn with<T>(&self, act: impl FnOnce(&mut Unknown) -> T) -> T {
        act(&mut self.unknown.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A socket, as long as it is there.
#[derive(Debug)]
pub(super) struct Stranger {
    all: Arc<Strangers>,
    number: u64,
    leave: Arc<Notify>,
    known: AtomicBool,
}

impl Stranger {
    /// Somebody who is known has asked for something: it stays. Not if it was sent away before.
    pub(super) fn is_known_now(&self) -> bool {
        if self.is_known() {
            return true;
        }
        let stays = self.all.with(|unknown| unknown.by_age.remove(&self.number)).is_some();
        if stays {
            self.known.store(true, Ordering::Relaxed);
        }
        // Of two requests at once the other may have been first.
        stays || self.is_known()
    }

    /// Whether somebody who is known has asked for something.
    pub(super) fn is_known(&self) -> bool {
        self.known.load(Ordering::Relaxed)
    }

    /// Ends when it has to make room.
    pub(super) async fn sent_away(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.all.with(|unknown| unknown.by_age.remove(&self.number));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_oldest_goes_and_who_is_known_stays() {
        let all = Arc::new(Strangers::default());
        let [known, oldest, youngest] = [(); 3].map(|()| all.add());
        assert!(known.is_known_now() && known.is_known_now());
        assert!(all.send_away());
        oldest.sent_away().await;
        assert!(!oldest.is_known_now(), "it is too late");
        drop(youngest);
        assert!(!all.send_away(), "nobody else is unknown");
        assert!(known.is_known() && known.is_known_now());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_place_gets_that_of_one_who_comes_to_be_unknown() {
        let all = Arc::new(Strangers::default());
        let (places, refusals) = (Arc::new(Semaphore::new(1)), Refusals::default());
        let taken = all.place(&places, &refusals).await.unwrap();
        let mut waiting = pin!(all.place(&places, &refusals));
        assert!(waiting.as_mut().now_or_never().is_none());
        let stranger = all.add();
        assert!(waiting.as_mut().now_or_never().is_none());
        stranger.sent_away().await;
        drop(taken);
        drop(waiting.await.unwrap());
        assert_eq!(refusals.all().into_iter().find(|(name, _)| *name == "crowd"), Some(("crowd", 1)));
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_told_now_and_then() {
        let all = Arc::new(Strangers::default());
        let strangers: Vec<_> = (0..100).map(|_| all.add()).collect();
        (0..50).for_each(|_| assert!(all.send_away()));
        assert_eq!(all.with(|unknown| unknown.gone), 49, "the first was told, the others wait");
        tokio::time::advance(TOLD).await;
        assert!(all.send_away());
        assert_eq!(all.with(|unknown| unknown.gone), 0);
        drop(strangers);
        assert!(!all.send_away());
    }
}
