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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// Long enough for what has happened already to be told.
    const MOMENT: Duration = Duration::from_millis(50);

    /// Asserts that `sign` comes when `act` has been done, and not before.
    async fn check(what: &str, sign: impl Future<Output = ()>, act: impl FnOnce()) {
        tokio::pin!(sign);
        assert!(timeout(MOMENT, &mut sign).await.is_err(), "{what}: nothing has happened");
        act();
        timeout(Duration::from_secs(10), sign).await.expect(what);
    }

    #[tokio::test]
    async fn a_writer_that_goes_has_hung_up_though_something_is_unread() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"unread").unwrap();
        check("a pipe", hung_up(Ok(reader.into())), || drop(writer)).await;

        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"unread").unwrap();
        check("a socket", hung_up(Ok(ours.into())), || drop(theirs)).await;

        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"unread").unwrap();
        let half = || theirs.shutdown(Shutdown::Write).unwrap();
        check("half a socket", hung_up(Ok(ours.into())), half).await;
    }

    #[tokio::test]
    async fn a_reader_that_goes_is_deaf_and_one_that_has_nothing_more_to_say_is_not() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"unread").unwrap();
        check("a pipe", deaf(Ok(writer.into())), || drop(reader)).await;

        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.shutdown(Shutdown::Write).unwrap();
        check("a socket", deaf(Ok(ours.into())), || drop(theirs)).await;
    }

    #[tokio::test]
    async fn of_files_nothing_is_told() {
        let file = || tempfile::tempfile().map(Into::into);
        assert!(timeout(MOMENT, hung_up(file())).await.is_err());
        assert!(timeout(MOMENT, deaf(file())).await.is_err());
    }
}
