//! Slow networks, and peers that vanish.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::Instant;

use super::super::HttpLimits;
use super::kit::{LONG, listener, receive, send, start, web};

const PIECE: usize = 16 << 10;
const PAUSE: Duration = Duration::from_millis(16);

/// Starts a proxy to `to` with small buffers. Data from `to` is passed on slowly.
async fn trickle(to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (near, _) = listener.accept().await.unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(32 << 10).unwrap();
        let far = socket.connect(to).await.unwrap();
        let (mut from_near, mut to_near) = near.into_split();
        let (mut from_far, mut to_far) = far.into_split();
        tokio::spawn(async move { tokio::io::copy(&mut from_near, &mut to_far).await });
        let mut piece = vec![0; PIECE];
        while let Ok(count @ 1..) = from_far.read(&mut piece).await {
            if to_near.write_all(&piece[..count]).await.is_err() {
                return;
            }
            // sleep: a slow network is slow.
            tokio::time::sleep(PAUSE).await;
        }
    });
    at
}

#[tokio::test]
async fn a_slow_client_stays_and_receives_everything_once() {
    // The data in flight takes longer than the idle timeout, and a ping waits behind all of it.
    let idle = Duration::from_secs(2);
    let running = start(listener(), HttpLimits { idle_timeout: idle, ..HttpLimits::default() });
    let began = Instant::now();
    let (mut socket, _) = web(trickle(running.address).await, &[]).await.unwrap();
    let text = "x".repeat(1000);
    let count = 4000;
    let prompt = json!({"sessionId": "s", "count": count, "text": text});
    send(&mut socket, &json!({"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": prompt}))
        .await;
    for number in 1..=count {
        assert_eq!(receive(&mut socket).await.unwrap()["params"]["update"]["number"], number);
    }
    assert_eq!(receive(&mut socket).await.unwrap()["id"], 1);
    assert!(began.elapsed() > idle, "{:?} is not slow", began.elapsed());
}

#[tokio::test]
async fn a_dead_client_is_detected_in_time() {
    let limits = HttpLimits::default();
    for busy in [false, true] {
        let running = start(listener(), limits.clone());
        let (mut socket, _) = web(running.address, &[]).await.unwrap();
        send(&mut socket, &json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}})).await;
        receive(&mut socket).await.unwrap();
        if busy {
            // This is more data than all buffers hold.
            let prompt = json!({"sessionId": "s", "count": 40_000, "text": "x".repeat(1000)});
            let message = json!({"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": prompt});
            send(&mut socket, &message).await;
            receive(&mut socket).await.unwrap();
        }
        // From here on the peer neither reads nor responds; the timeouts of the test are short.
        tokio::time::pause();
        let began = Instant::now();
        let mut ended = running.agent.ended.subscribe();
        ended.wait_for(|ended| *ended == 1).await.unwrap();
        let gone = began.elapsed();
        tokio::time::resume();
        // Timers have a resolution of milliseconds, so some slack is allowed.
        assert!(gone <= limits.idle_timeout + Duration::from_millis(100), "{busy}: {gone:?}");
        assert!(gone >= limits.idle_timeout / 3, "{busy}: {gone:?}");
        drop(socket);
    }
}

#[tokio::test]
async fn the_kernel_gives_a_dead_socket_up_in_time() {
    let listening = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _client = TcpStream::connect(listening.local_addr().unwrap()).await.unwrap();
    let (stream, _) = tokio::time::timeout(LONG, listening.accept()).await.unwrap().unwrap();
    let idle = Duration::from_secs(45);
    super::super::io::tune(&stream, idle).unwrap();
    let third = idle / 3;
    assert_eq!(rustix::net::sockopt::tcp_keepidle(&stream).unwrap(), third);
    assert_eq!(rustix::net::sockopt::tcp_keepintvl(&stream).unwrap(), third);
    assert_eq!(rustix::net::sockopt::tcp_keepcnt(&stream).unwrap(), 2);
    // Data sent just before the first probe may stay unacknowledged for this long. Idle time and this time
    // add up to `idle`.
    assert_eq!(rustix::net::sockopt::tcp_user_timeout(&stream).unwrap(), 30_000);
}
