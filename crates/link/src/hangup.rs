//! Events of the peer that the operating system reports beside the bytes.
//!
//! Both functions need a duplicate of the descriptor of their own. The duplicate must be dropped together
//! with the descriptor that is read or written. Otherwise the peer would not see that this side has left. For
//! files and other descriptors without such events, both functions wait forever.

use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;

use tokio::io::{Interest, Ready};
use tokio::net::unix::pipe;

/// Waits until no process can write to the pipe or socket any more. Unread data may remain.
pub(crate) async fn peer_closed(descriptor: io::Result<OwnedFd>) {
    // The unchecked constructor also accepts sockets and terminals, which report the same events as pipes.
    let Ok(descriptor) = descriptor.and_then(pipe::Receiver::from_owned_fd_unchecked) else {
        return pending().await;
    };
    // A pipe has no urgent data, so this interest reports only the end of the stream. Interest in
    // readability would complete at once while data is unread.
    while !ready_state(descriptor.ready(Interest::PRIORITY).await).await.is_read_closed() {}
}

/// Waits until no process can read from the pipe or socket any more. Without this, only the next write
/// would fail.
pub(crate) async fn reader_gone(descriptor: io::Result<OwnedFd>) {
    let Ok(descriptor) = descriptor.and_then(pipe::Sender::from_owned_fd_unchecked) else {
        return pending().await;
    };
    // A pipe without a reader reports an error; a socket closed by both sides reports a hang-up. A peer
    // that only stopped writing causes neither, because readability is not polled here.
    let gone = Interest::ERROR | Interest::PRIORITY;
    loop {
        let ready = ready_state(descriptor.ready(gone).await).await;
        if ready.is_error() || ready.is_read_closed() {
            return;
        }
    }
}

/// Returns the reported readiness. An error means that the runtime is shutting down, so the function waits
/// forever instead of polling again.
async fn ready_state(ready: io::Result<Ready>) -> Ready {
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

    /// Time that is long enough for pending events to arrive.
    const SETTLE_TIME: Duration = Duration::from_millis(50);

    /// Checks that `sign` completes after `act`, and not before.
    async fn check(what: &str, sign: impl Future<Output = ()>, act: impl FnOnce()) {
        tokio::pin!(sign);
        assert!(timeout(SETTLE_TIME, &mut sign).await.is_err(), "{what}: nothing has happened");
        act();
        timeout(Duration::from_secs(10), sign).await.expect(what);
    }

    #[tokio::test]
    async fn a_closed_writer_is_noticed_while_data_is_unread() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"unread").unwrap();
        check("a pipe", peer_closed(Ok(reader.into())), || drop(writer)).await;

        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"unread").unwrap();
        check("a socket", peer_closed(Ok(ours.into())), || drop(theirs)).await;

        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"unread").unwrap();
        let half = || theirs.shutdown(Shutdown::Write).unwrap();
        check("half a socket", peer_closed(Ok(ours.into())), half).await;
    }

    #[tokio::test]
    async fn a_closed_reader_is_noticed_and_a_half_closed_peer_is_not() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"unread").unwrap();
        check("a pipe", reader_gone(Ok(writer.into())), || drop(reader)).await;

        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.shutdown(Shutdown::Write).unwrap();
        check("a socket", reader_gone(Ok(ours.into())), || drop(theirs)).await;
    }

    #[tokio::test]
    async fn files_report_no_events() {
        let file = || tempfile::tempfile().map(Into::into);
        assert!(timeout(SETTLE_TIME, peer_closed(file())).await.is_err());
        assert!(timeout(SETTLE_TIME, reader_gone(file())).await.is_err());
    }
}
