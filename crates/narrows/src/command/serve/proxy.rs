//! A bridge in a chain: a conductor has started it, and its agent is whoever stands behind it there.

use narrows_govern::{Ended, Principal, is_for_proxy, join};
use narrows_link::{Link, Options};
use tokio::sync::mpsc;

use super::host::Host;
use super::leaving::Leaving;
use super::stand::{self, Outcome, QUESTIONS};
use crate::failure::Failure;

/// Whether whoever is at the other end is a conductor. Only the first thing it says can tell.
pub(super) async fn is_wanted(client: &mut Link) -> bool {
    client.receiver.peek().await.is_some_and(is_for_proxy)
}

/// Stands in the chain until the conductor has gone.
pub(super) async fn stand(
    host: &Host,
    conductor: Link,
    who: Principal,
    leaving: &Leaving,
) -> Result<(), Failure> {
    let output = conductor.sender.clone();
    let gate = host.gate(who)?;
    let questions = mpsc::channel(QUESTIONS);
    let seat = host.roster.enter(questions.0.clone());
    let (predecessor, successor) = join(conductor, &Options::default());
    let outcome = stand::stand(gate, predecessor, successor, host.log.clone(), questions, leaving).await;
    drop(seat);
    stand::drain(&output).await;
    match outcome {
        Outcome::Ended(Ended::Unruly(why) | Ended::Stuck(why)) => Err(Failure::chain_left(&why)),
        Outcome::Ended(_) | Outcome::Left => Ok(()),
    }
}
