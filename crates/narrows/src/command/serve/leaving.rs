//! The wish that we stop, as everything that is under way sees it.

use std::io;

use tokio::sync::watch;

use crate::failure::Failure;
use crate::interrupt::{Interrupts, Signal};

/// Whether we are to stop, and whether at once.
#[derive(Clone, Copy, Debug)]
struct Wish {
    /// What the first was.
    signal: Signal,
    /// Stop, for another reason.
    over: bool,
    /// How often somebody has said so.
    times: u32,
}

/// Tells when we are to stop. Each clone sees the same.
#[derive(Clone, Debug)]
pub(super) struct Leaving {
    wishes: watch::Sender<Wish>,
}

impl Leaving {
    /// By SIGTERM, SIGHUP or Ctrl-C, which no longer end the program by themselves.
    pub(super) fn on_signals() -> io::Result<Self> {
        let mut interrupts = Interrupts::take()?;
        let wish = Wish { signal: Signal::Terminate, over: false, times: 0 };
        let leaving = Self { wishes: watch::Sender::new(wish) };
        let wishes = leaving.wishes.clone();
        tokio::spawn(async move {
            loop {
                let signal = interrupts.next().await;
                wishes.send_modify(|wish| {
                    if wish.times == 0 {
                        wish.signal = signal;
                    }
                    wish.times += 1;
                });
            }
        });
        Ok(leaving)
    }

    /// One that may also be wanted on its own. It learns of our wishes while [`Self::pass_on`] runs.
    pub(super) fn branch(&self) -> Self {
        Self { wishes: watch::Sender::new(*self.wishes.borrow()) }
    }

    /// Passes our wishes on to a branch. Does not end.
    pub(super) async fn pass_on(&self, branch: &Self) {
        let mut ours = self.wishes.subscribe();
        loop {
            let Wish { signal, over, times } = *ours.borrow_and_update();
            branch.wishes.send_modify(|wish| *wish = Wish { signal, over: over || wish.over, times });
            if ours.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Nothing is left to be done.
    pub(super) fn be_over(&self) {
        self.wishes.send_modify(|wish| wish.over = true);
    }

    /// Waits until we are to stop.
    pub(super) async fn wanted(&self) {
        let wanted = |wish: &Wish| wish.over || wish.times > 0;
        // It cannot close before: whoever waits has the other end.
        let _ = self.wishes.subscribe().wait_for(wanted).await;
    }

    /// Waits until somebody does not want to wait for it either.
    pub(super) async fn urgent(&self) {
        let _ = self.wishes.subscribe().wait_for(|wish| wish.times > 1).await;
    }

    /// Whether somebody does not want to wait.
    pub(super) fn is_urgent(&self) -> bool {
        self.wishes.borrow().times > 1
    }

    /// Whether we were told to stop.
    pub(super) fn is_wanted(&self) -> bool {
        self.wishes.borrow().times > 0
    }

    /// That we were told to stop, and how, for who has not done what it was started for.
    pub(super) fn failure(&self) -> Failure {
        Failure::left(self.wishes.borrow().signal)
    }

    /// What comes of `work`, unless we are to stop first.
    pub(super) async fn unless<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.wanted() => None,
            outcome = work => Some(outcome),
        }
    }
}
