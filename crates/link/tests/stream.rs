//! Tests of links over byte streams: limits, ends, backpressure and peers that do not speak the protocol.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use narrows_link::{CloseReason, Link, Options, memory, stream};
use narrows_wire::{Fault, Kind};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

/// So long that paused time reaches it only when nothing else can run.
const NEVER: Duration = Duration::from_secs(3600);

/// Returns a link over a pipe of `capacity` bytes, and the other end of the pipe.
fn rig(capacity: usize, options: &Options) -> (Link, DuplexStream) {
    let (ours, theirs) = tokio::io::duplex(capacity);
    let (reader, writer) = tokio::io::split(ours);
    (stream(reader, writer, options), theirs)
}

fn notification(number: usize) -> Bytes {
    format!(r#"{{"jsonrpc":"2.0","method":"n","params":{{"n":{number}}}}}"#).into()
}

#[tokio::test(start_paused = true)]
async fn lines_do_not_depend_on_read_boundaries() {
    for capacity in [1, 2, 7, 64, 4096] {
        let (mut link, mut peer) = rig(capacity, &Options::default());
        let feed = tokio::spawn(async move {
            peer.write_all(b"\r\n  \n").await.unwrap();
            for number in 0..10 {
                peer.write_all(&notification(number)).await.unwrap();
                peer.write_all(if number % 2 == 0 { b"\n" } else { b"\r\n" }).await.unwrap();
            }
            peer.write_all(b"{\"half\":").await.unwrap();
        });
        for number in 0..10 {
            assert_eq!(link.receiver.recv().await.unwrap().bytes(), &notification(number));
        }
        assert!(link.receiver.recv().await.is_none());
        assert_eq!(link.receiver.reason(), CloseReason::Eof);
        assert_eq!(link.sender.stats().partial, 1);
        assert_eq!(link.sender.stats().frames_in, 10);
        feed.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_line_over_the_limit_is_one_fault_and_the_next_is_fine() {
    let (mut link, mut peer) = rig(4096, &Options { max_line: 100, ..Options::default() });
    let feed = tokio::spawn(async move {
        peer.write_all(br#"{"jsonrpc":"2.0","id":7,"method":"n","params":{"text":""#).await.unwrap();
        for _ in 0..1000 {
            peer.write_all(&[b'x'; 1000]).await.unwrap();
        }
        peer.write_all(b"\"}}\n").await.unwrap();
        peer.write_all(&notification(1)).await.unwrap();
        peer.write_all(b"\n").await.unwrap();
        peer
    });
    let long = link.receiver.recv().await.unwrap();
    assert_eq!(long.kind(), Kind::Invalid(Fault::TooLong));
    assert_eq!(long.id(), Some(&b"7"[..]));
    assert_eq!(link.receiver.recv().await.unwrap().bytes(), &notification(1));
    assert_eq!(link.sender.stats().too_long, 1);
    feed.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_full_incoming_queue_stops_the_reading() {
    let (mut link, mut peer) = rig(1000, &Options { queue_bytes: 1000, ..Options::default() });
    let feed = async {
        for number in 0..1000 {
            peer.write_all(&notification(number)).await.unwrap();
            peer.write_all(b"\n").await.unwrap();
        }
    };
    assert!(timeout(NEVER, feed).await.is_err(), "no frame is received, so the peer must be paused");
    assert!(link.sender.stats().frames_in < 50);
    assert_eq!(link.receiver.recv().await.unwrap().bytes(), &notification(0));
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_read_makes_senders_wait_but_not_answers() {
    let (link, mut peer) = rig(1000, &Options { queue_bytes: 1000, ..Options::default() });
    let sending = async {
        for number in 0.. {
            link.sender.send(notification(number)).await.unwrap();
        }
    };
    assert!(timeout(NEVER, sending).await.is_err());
    link.sender.push(notification(7_777_777)).unwrap();
    assert!(timeout(NEVER, link.sender.flush()).await.is_err());
    link.sender.close();
    let mut written = String::new();
    peer.read_to_string(&mut written).await.unwrap();
    let lines: Vec<_> = written.lines().collect();
    let last = lines.len() - 1;
    assert_eq!(lines[last].as_bytes(), &notification(7_777_777), "after everything sent before");
    for (number, line) in lines[..last].iter().enumerate() {
        assert_eq!(line.as_bytes(), &notification(number));
    }
    assert!(link.sender.send(notification(1)).await.is_err());
    assert_eq!(link.sender.reason(), CloseReason::Local);
}

#[tokio::test(start_paused = true)]
async fn long_and_short_lines_are_written_in_order() {
    let (link, mut peer) = rig(1 << 20, &Options::default());
    let lines: Vec<Bytes> = [10, 70_000, 10, 64 << 10, 200_000, 1]
        .iter()
        .map(|length| format!(r#"{{"x":"{}"}}"#, "y".repeat(*length)).into())
        .collect();
    for line in &lines {
        link.sender.send(line.clone()).await.unwrap();
    }
    link.sender.flush().await.unwrap();
    let sizes: usize = lines.iter().map(|line| line.len() + 1).sum();
    let stats = link.sender.stats();
    assert_eq!((stats.frames_out, stats.bytes_out), (6, sizes as u64));
    drop(link);
    let mut written = Vec::new();
    peer.read_to_end(&mut written).await.unwrap();
    let expected: Vec<u8> = lines.iter().flat_map(|line| line.iter().chain(b"\n")).copied().collect();
    assert_eq!(written, expected);
}

#[tokio::test(start_paused = true)]
async fn written_bytes_are_counted_as_the_peer_reads_them() {
    let (link, mut peer) = rig(1000, &Options::default());
    let long = Bytes::from(vec![b'y'; 100_000]);
    for line in [notification(1), long.clone()] {
        link.sender.send(line).await.unwrap();
    }
    let mut taken = 1000;
    for _ in 0..50 {
        // Paused time reaches this timeout only when nothing else can run.
        let _ = timeout(NEVER, link.sender.flush()).await;
        let stats = link.sender.stats();
        assert_eq!((stats.frames_out, stats.bytes_out), (1, taken));
        taken += peer.read(&mut [0; 700]).await.unwrap() as u64;
    }
}

#[tokio::test(start_paused = true)]
async fn a_standstill_is_a_peer_that_stops_reading_not_a_slow_one() {
    const STEP_TIMEOUT: Duration = Duration::from_secs(1);
    let (link, mut peer) = rig(1000, &Options::default());
    assert!(timeout(NEVER, link.sender.standstill(STEP_TIMEOUT)).await.is_err(), "nothing waits");
    link.sender.send(vec![b'y'; 100_000].into()).await.unwrap();
    let reading = async {
        for _ in 0..50 {
            // sleep: this is the slowness
            sleep(STEP_TIMEOUT / 2).await;
            peer.read_exact(&mut [0; 700]).await.unwrap();
        }
    };
    tokio::select! {
        () = reading => {}
        () = link.sender.standstill(STEP_TIMEOUT) => panic!("it was read from"),
    }
    let since = Instant::now();
    link.sender.standstill(STEP_TIMEOUT).await;
    assert!(since.elapsed() < STEP_TIMEOUT * 2);
    // Abandoned lines are not written, and their senders receive an error.
    link.sender.abandon();
    link.sender.written().await;
    assert!(since.elapsed() < STEP_TIMEOUT * 2);
    assert_eq!(link.sender.reason(), CloseReason::NotReading);
    assert!(timeout(NEVER, link.sender.standstill(STEP_TIMEOUT)).await.is_err(), "nothing waits any more");
    drop(link);
    let mut rest = Vec::new();
    peer.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest.len(), 1000);
}

#[tokio::test(start_paused = true)]
async fn a_closed_peer_is_noticed_while_its_output_is_unread() {
    let options = Options { queue_bytes: 1000, ..Options::default() };
    let (one, other) = memory::pair(&options);
    for number in 0..100 {
        one.sender.push(notification(number)).unwrap();
    }
    assert!(timeout(NEVER, other.sender.peer_closed()).await.is_err());
    one.sender.close();
    other.sender.peer_closed().await;
    // The peer's output was not read yet, so the link is not over.
    assert!(timeout(NEVER, one.sender.written()).await.is_err());
    one.sender.abandon();
    one.sender.written().await;

    let (link, mut peer) = rig(1000, &Options::default());
    peer.write_all(&[&notification(1)[..], b"\n"].concat()).await.unwrap();
    assert!(timeout(NEVER, link.sender.peer_closed()).await.is_err());
    peer.shutdown().await.unwrap();
    link.sender.peer_closed().await;
}

#[tokio::test(start_paused = true)]
async fn lines_are_written_after_the_last_sender_is_dropped_then_the_stream_ends() {
    let (link, mut peer) = rig(16, &Options::default());
    link.sender.send(notification(1)).await.unwrap();
    drop(link.sender);
    let mut written = String::new();
    peer.read_to_string(&mut written).await.unwrap();
    assert_eq!(written.as_bytes(), [&notification(1)[..], b"\n"].concat());
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_disconnects_during_a_write_ends_the_link() {
    let (mut link, peer) = rig(16, &Options::default());
    drop(peer);
    assert!(link.receiver.recv().await.is_none());
    while link.sender.send(notification(1)).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert_eq!(link.sender.reason(), CloseReason::Eof);
    assert!(link.sender.flush().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_guarded_link_disconnects_a_peer_that_does_not_send_json() {
    let guarded = Options { guard_first_line: true, ..Options::default() };
    for hello in ["GET / HTTP/1.1\r\n", "\"text\"\n", "17\n", "\u{feff}{}\n", "{\"half\n"] {
        let (mut link, mut peer) = rig(4096, &guarded);
        peer.write_all(hello.as_bytes()).await.unwrap();
        assert!(link.receiver.recv().await.is_none(), "{hello}");
        assert_eq!(link.receiver.reason(), CloseReason::NotJson, "{hello}");
        drop(link);
        let mut answer = String::new();
        peer.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains(r#""id":null"#) && answer.ends_with("}\n"), "{answer}");
    }
    for hello in ["{}\n", "[]\n", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\"}\n"] {
        let (mut link, mut peer) = rig(4096, &guarded);
        peer.write_all(hello.as_bytes()).await.unwrap();
        peer.write_all(b"no JSON\n").await.unwrap();
        assert!(link.receiver.recv().await.is_some());
        assert_eq!(
            link.receiver.recv().await.unwrap().kind(),
            Kind::Invalid(Fault::Syntax),
            "only the first counts"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_memory_pair_behaves_like_any_other_link() {
    let options = Options { max_line: 1000, queue_bytes: 1000, ..Options::default() };
    let (mut one, mut other) = memory::pair(&options);
    one.sender.send(notification(1)).await.unwrap();
    one.sender.send(Bytes::from_static(b"no JSON")).await.unwrap();
    one.sender.flush().await.unwrap();
    assert_eq!(other.receiver.recv().await.unwrap().bytes(), &notification(1));
    assert_eq!(other.receiver.recv().await.unwrap().kind(), Kind::Invalid(Fault::Syntax));
    other.sender.send(vec![b'x'; 2000].into()).await.unwrap();
    assert_eq!(one.receiver.recv().await.unwrap().kind(), Kind::Invalid(Fault::TooLong));
    let sending = async { while one.sender.send(notification(1)).await.is_ok() {} };
    assert!(timeout(NEVER, sending).await.is_err(), "no frame is received");
    drop(one);
    while other.receiver.recv().await.is_some() {}
    assert_eq!(other.receiver.reason(), CloseReason::Eof);
    while other.sender.send(notification(1)).await.is_ok() {
        tokio::task::yield_now().await;
    }
}

/// A reader whose drop the test observes.
struct Watched<R>(R, #[expect(dead_code, reason = "its end is what is waited for")] oneshot::Sender<()>);

impl<R: AsyncRead + Unpin> AsyncRead for Watched<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_link_drops_its_peer() {
    // A silent peer, and a peer that reads nothing.
    for lines in [0, 100] {
        let (ours, mut peer) = tokio::io::duplex(64);
        let (reader, writer) = tokio::io::split(ours);
        let (alive, gone) = oneshot::channel();
        let link = stream(Watched(reader, alive), writer, &Options::default());
        for number in 0..lines {
            link.sender.send(notification(number)).await.unwrap();
        }
        drop(link);
        timeout(NEVER, gone).await.expect("nobody listens any more").unwrap_err();
        let broken = async { while peer.write_all(b"{}\n").await.is_ok() {} };
        timeout(NEVER, broken).await.expect("both halves are dropped, so the peer sees a broken pipe");
    }
}

#[tokio::test]
async fn a_peeked_frame_can_still_be_received() {
    let (one, mut other) = memory::pair(&Options::default());
    for line in ["1", "2", "3"] {
        one.sender.send(Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":{line},"result":0}}"#))).await.unwrap();
    }
    one.sender.close();
    let receiver = &mut other.receiver;
    for _ in 0..2 {
        assert_eq!(receiver.peek().await.unwrap().id(), Some(b"1".as_slice()));
    }
    assert_eq!(receiver.recv().await.unwrap().id(), Some(b"1".as_slice()));
    assert_eq!(receiver.peek().await.unwrap().id(), Some(b"2".as_slice()));
    let mut rest = Vec::new();
    while receiver.recv_all(&mut rest).await {}
    let ids: Vec<_> = rest.iter().map(|frame| frame.id().unwrap().to_vec()).collect();
    assert_eq!(ids, [b"2".to_vec(), b"3".to_vec()]);
    assert!(receiver.peek().await.is_none());
}
