//! What the agent sends outside our session.

use std::collections::VecDeque;

use narrows_rpc::{Inbox, Item, Request};
use narrows_wire::{Code, RpcError};

use super::permission::{self, Refusal};

/// How many refusals are kept to be shown once the turn has begun.
const KEPT: usize = 16;

/// Serves what belongs to no session of ours: a request for permission is refused there as well.
#[derive(Debug)]
pub(crate) struct Outside {
    inbox: Inbox,
    /// The conversation is over.
    ended: bool,
    /// What was refused and not shown yet.
    refused: VecDeque<Refusal>,
    /// How many updates name no session.
    nameless: u64,
}

impl Outside {
    pub(super) fn new(inbox: Inbox) -> Self {
        Self { inbox, ended: false, refused: VecDeque::new(), nameless: 0 }
    }

    /// How many updates came that name no session.
    pub(super) fn nameless(&self) -> u64 {
        self.nameless
    }

    /// What comes of `work`, while what comes here is served.
    pub(super) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let serve = async {
            loop {
                let refusal = self.receive(false).await;
                if self.refused.len() < KEPT {
                    self.refused.push_back(refusal);
                }
            }
        };
        tokio::select! {
            biased;
            () = serve => unreachable!("it serves forever"),
            outcome = work => outcome,
        }
    }

    /// The next request that was refused. Safe to cancel.
    pub(super) async fn next(&mut self, cancelled: bool) -> Refusal {
        match self.refused.pop_front() {
            Some(refusal) => refusal,
            None => self.receive(cancelled).await,
        }
    }

    async fn receive(&mut self, cancelled: bool) -> Refusal {
        while !self.ended {
            match self.inbox.recv().await {
                Some(Item::Request(request)) => {
                    if let Some(refusal) = refuse(request, cancelled) {
                        return refusal;
                    }
                }
                Some(Item::Notification(_)) => self.nameless += 1,
                Some(Item::Answer(_)) => {}
                None => self.ended = true,
            }
        }
        std::future::pending().await
    }
}

/// Refuses a request, or says what is wrong with it.
fn refuse(request: Request, cancelled: bool) -> Option<Refusal> {
    let Request { frame, responder } = request;
    let named = frame.session().is_some();
    match frame.params().filter(|_| named).and_then(|params| permission::try_refuse(params, cancelled)) {
        Some(refusal) => {
            responder.respond(&refusal.answer);
            Some(refusal)
        }
        None => {
            responder.fail(&RpcError::new(Code::InvalidParams, "the params are missing or cannot be read"));
            None
        }
    }
}
