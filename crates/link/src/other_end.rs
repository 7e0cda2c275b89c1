//! What the system tells of the other end of a descriptor beside the bytes.
//!
//! Both need a handle of their own, which must go with the one that is read or written: only then does the other end
//! see that we have gone. Where the system tells nothing, as of files, both wait for ever.

use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;

use tokio::io::{Interest, Ready};
use tokio::net::unix::pipe;

/// Waits until nobody can write any more to what `ear` reads from, though something unread may still be in it.
pub(crate) async fn hung_up(ear: io::Result<OwnedFd>) {
    // "Unchecked" means that it may be something else than a pipe: sockets and terminals tell the same way.
    let Ok(ear) = ear.and_then(pipe::Receiver::from_owned_fd_unchecked) else { return pending().await };
    // Nothing is urgent on a pipe. What is left of this interest is the end: to wait until it is readable would end at
    // once while there is something to read.
    while !told(ear.ready(Interest::PRIORITY).await).await.is_read_closed() {}
}

/// Waits until nobody can read any more what is written to `ear`. Otherwise that shows only at the next write.
pub(crate) async fn deaf(ear: io::Result<OwnedFd>) {
    let Ok(ear) = ear.and_then(pipe::Sender::from_owned_fd_unchecked) else { return pending().await };
    // A pipe without a reader is an error; of a socket that both sides have done with, the system says that it hung
    // up. One that its peer has only stopped writing to is neither, because what is read is not listened to here.
    let gone = Interest::ERROR | Interest::PRIORITY;
    loop {
        let ready = told(ear.ready(gone).await).await;
        if ready.is_error() || ready.is_read_closed() {
            return;
        }
    }
}

/// What was told. An error means that the runtime is ending, which no task should hold up by asking again.
async fn told(ready: io::Result<Ready>) -> Ready {
    match ready {
        Ok(ready) => ready,
        Err(_) => pending().await,
    }
}
