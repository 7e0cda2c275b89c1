//! A bridge in a chain: a conductor has started it, and its agent is whoever stands behind it there.

use std::process::ExitCode;

use narrows_govern::{Ended, is_for_proxy, join};
use narrows_link::{Link, Options};
use tokio::sync::mpsc;

use super::stand::{self, Outcome, QUESTIONS};
use super::{Post, door};
use crate::failure::{Code, Failure};
use crate::interrupt::Interrupts;

/// Whether whoever is at the other end is a conductor. Only the first thing it says can tell.
pub(super) async fn is_wanted(client: &mut Link) -> bool {
    client.receiver.peek().await.is_some_and(is_for_proxy)
}

/// Stands in the chain until the conductor has gone.
pub(super) async fn serve(
    post: Post,
    conductor: Link,
    options: &Options,
    interrupts: &mut Interrupts,
) -> Result<ExitCode, Failure> {
    let Post { charge, log, who } = post;
    let output = conductor.sender.clone();
    let gate = stand::gate(&charge, who)?;
    let questions = mpsc::channel(QUESTIONS);
    let door = door::open(&charge, questions.0.clone())?;
    let (predecessor, successor) = join(conductor, options);
    let outcome = stand::stand(gate, predecessor, successor, log.clone(), questions, interrupts).await;
    drop(door);
    stand::drain(&output).await;
    if let Some(log) = log {
        log.close();
    }
    match outcome {
        Outcome::Ended(Ended::Client | Ended::Told | Ended::Agent) => Ok(Code::Success.exit()),
        Outcome::Ended(Ended::Unruly(why)) => Err(Failure::chain_left(&why)),
        Outcome::Left(signal) => Err(Failure::left(signal)),
    }
}
