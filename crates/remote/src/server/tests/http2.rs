//! Limits of HTTP/2: streams, frames, headers and unread bodies.

use std::collections::BTreeMap;

use tokio::io::AsyncWriteExt;

use super::super::HttpLimits;
use super::kit::{listener, start};
use super::refused::{DATA, RESET, SETTINGS, begin, frame, head, receive};

const GOAWAY: u8 = 7;
const FRAME_SIZE_ERROR: u32 = 6;
const REFUSED_STREAM: u32 = 7;
const INITIAL_WINDOW_SIZE: u16 = 4;

fn number_at(payload: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(payload[at..at + 4].try_into().unwrap())
}

#[tokio::test]
async fn the_server_announces_its_limits() {
    let running = start(listener(), HttpLimits::default());
    let mut socket = begin(running.address, "/acp", &[]).await;
    let settings = receive(&mut socket).await;
    assert_eq!(settings.kind, SETTINGS);
    let announced: BTreeMap<u16, u32> = settings
        .payload
        .chunks_exact(6)
        .map(|setting| (u16::from_be_bytes([setting[0], setting[1]]), number_at(setting, 2)))
        .collect();
    assert_eq!(announced.get(&3), Some(&100), "concurrent streams");
    assert_eq!(announced.get(&6), Some(&8192), "bytes of a header list");
    // The protocol permits no smaller window than its default, which need not be announced.
    assert_eq!(announced.get(&INITIAL_WINDOW_SIZE).copied().unwrap_or(65_535), 65_535);
    assert_eq!(announced.get(&5).copied().unwrap_or(16_384), 16_384, "bytes of a frame");
}

#[tokio::test]
async fn an_excess_stream_is_refused_and_the_others_continue() {
    let running = start(listener(), HttpLimits::default());
    let json = [("content-type", "application/json")];
    let mut socket = begin(running.address, "/acp", &json).await;
    for number in 1..=100 {
        socket.write_all(&head(running.address, 2 * number + 1, "/acp", &json)).await.unwrap();
    }
    let reset = loop {
        let received = receive(&mut socket).await;
        assert_ne!(received.kind, GOAWAY);
        if received.kind == RESET {
            break received;
        }
    };
    assert_eq!((reset.stream, number_at(&reset.payload, 0)), (201, REFUSED_STREAM));
}

#[tokio::test]
async fn a_frame_that_is_too_long_ends_the_socket() {
    let running = start(listener(), HttpLimits::default());
    let mut socket = begin(running.address, "/acp", &[("content-type", "application/json")]).await;
    socket.write_all(&frame(DATA, 0, 1, &vec![b' '; (16 << 10) + 1])).await.unwrap();
    let goaway = loop {
        let received = receive(&mut socket).await;
        if received.kind == GOAWAY {
            break received;
        }
    };
    assert_eq!(number_at(&goaway.payload, 4), FRAME_SIZE_ERROR);
}

#[tokio::test]
async fn too_many_headers_are_refused() {
    let running = start(listener(), HttpLimits::default());
    // Another test of this process may have installed the provider before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().http2_prior_knowledge().no_proxy().build().unwrap();
    let post = |count: usize| {
        let request = client.post(format!("http://{}/acp", running.address));
        (0..count).fold(request, |request, number| request.header(format!("x-{number:02}"), "x".repeat(120)))
    };
    assert_eq!(post(40).send().await.unwrap().status(), 415, "within the limit");
    assert_eq!(post(60).send().await.unwrap().status(), 431);
}
