//! Compares the framing with an independent implementation of the protocol.

use proptest::prelude::*;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Control, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{Frame, FrameHeader};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocket};
use tokio_tungstenite::tungstenite::{Error, Message};

use super::*;

const LIMIT: usize = 1 << 17;

fn frame(opcode: OpCode, fin: bool, payload: &[u8]) -> Vec<u8> {
    let header = FrameHeader { is_final: fin, opcode, mask: Some([1, 2, 0xfe, 4]), ..FrameHeader::default() };
    let mut bytes = Vec::new();
    Frame::from_payload(header, payload.to_vec().into()).format(&mut bytes).unwrap();
    bytes
}

fn read(stream: &[u8], size: usize) -> (Vec<String>, Result<(), Violation>) {
    let mut decoder = Decoder::new(LIMIT);
    let mut events = Vec::new();
    for piece in stream.chunks(size.max(1)) {
        let fed = decoder.feed(&mut piece.to_vec(), |event| {
            events.push(match event {
                Event::Message(text) => format!("message {}", text.escape_ascii()),
                Event::Ping(payload) => format!("ping {}", payload.escape_ascii()),
                Event::Pong => "pong".to_owned(),
                Event::Close(code) => format!("close {code:?}"),
            });
        });
        if fed.is_err() {
            return (events, fed);
        }
    }
    (events, Ok(()))
}

#[track_caller]
fn check(stream: &[u8], expected: &[&str], end: Result<(), Violation>) {
    for size in [1, 2, 3, 5, 7, 64, stream.len()] {
        let (events, ended) = read(stream, size);
        assert_eq!(
            (events, ended),
            (expected.iter().map(|&event| event.to_owned()).collect(), end),
            "by {size}"
        );
    }
}

fn text(fin: bool, payload: &str) -> Vec<u8> {
    frame(OpCode::Data(Data::Text), fin, payload.as_bytes())
}

fn more(fin: bool, payload: &str) -> Vec<u8> {
    frame(OpCode::Data(Data::Continue), fin, payload.as_bytes())
}

fn control(opcode: Control, payload: &[u8]) -> Vec<u8> {
    frame(OpCode::Control(opcode), true, payload)
}

#[test]
fn messages_are_decoded_across_frames_and_reads() {
    check(&text(true, "{}"), &["message {}"], Ok(()));
    check(&text(true, ""), &["message "], Ok(()));
    check(
        &[text(true, "one"), text(true, "two, which is longer")].concat(),
        &["message one", "message two, which is longer"],
        Ok(()),
    );
    check(
        &[text(false, "o"), more(false, "n"), more(true, "e"), text(true, "x")].concat(),
        &["message one", "message x"],
        Ok(()),
    );
    // Control frames may come between the fragments of a message.
    let parts =
        [text(false, "o"), control(Control::Ping, b"p"), more(true, "ne"), control(Control::Pong, b"")];
    check(&parts.concat(), &["ping p", "message one", "pong"], Ok(()));
    // A frame boundary may split a character.
    let cut =
        [frame(OpCode::Data(Data::Text), false, &[0xc3]), frame(OpCode::Data(Data::Continue), true, &[0xa9])];
    check(&cut.concat(), &["message \\xc3\\xa9"], Ok(()));
}

#[test]
fn a_close_frame_ends_the_connection() {
    check(&control(Control::Close, &[]), &["close None"], Ok(()));
    check(&control(Control::Close, &[0x03, 0xe8]), &["close Some(1000)"], Ok(()));
    check(&control(Control::Close, &[0x11, 0x31, b'x']), &["close Some(4401)"], Ok(()));
    for wrong in [&[0x03][..], &[0x03, 0xed], &[0, 0], &[0x03, 0xe8, 0xff]] {
        check(&control(Control::Close, wrong), &[], Err(Violation::Protocol));
    }
}

#[test]
fn violations_are_reported() {
    check(&frame(OpCode::Data(Data::Binary), true, b"x"), &[], Err(Violation::Binary));
    check(&frame(OpCode::Data(Data::Text), true, &[b'a', 0xff]), &[], Err(Violation::Utf8));
    check(&more(true, "x"), &[], Err(Violation::Protocol));
    check(&[text(false, "x"), text(true, "y")].concat(), &[], Err(Violation::Protocol));
    check(&frame(OpCode::Control(Control::Ping), false, b""), &[], Err(Violation::Protocol));
    check(&control(Control::Ping, &[0; 126]), &[], Err(Violation::Protocol));
    check(&frame(OpCode::Data(Data::Reserved(3)), true, b""), &[], Err(Violation::Protocol));
    check(&[0x81, 0x01, b'x'], &[], Err(Violation::Protocol));
    check(&[0xc1, 0x81, 0, 0, 0, 0, b'x'], &[], Err(Violation::Protocol));
    // Refused because of the announced length, before the payload arrives.
    let claim = |length: u64| [&[0x81, 0xff][..], &length.to_be_bytes(), &[0; 4]].concat();
    check(&claim(LIMIT as u64 + 1), &[], Err(Violation::TooLong));
    check(&claim(u64::MAX), &[], Err(Violation::TooLong));
    check(&claim(LIMIT as u64), &[], Ok(()));
    let half = "x".repeat(LIMIT / 2 + 1);
    let (_, end) = read(&[text(false, &half), more(true, &half)].concat(), 1 << 16);
    assert_eq!(end, Err(Violation::TooLong));
}

#[test]
fn memory_of_finished_messages_is_freed() {
    let mut decoder = Decoder::new(LIMIT);
    let long = "x".repeat(100_000);
    let mut bytes = [text(true, &long), text(false, &long[..10]), more(true, ""), vec![0x81]].concat();
    for piece in bytes.chunks_mut(1000) {
        decoder.feed(piece, |_| {}).unwrap();
    }
    assert_eq!(decoder.held, [0x81]);
    assert!(decoder.held.capacity() <= 64, "{}", decoder.held.capacity());
    assert_eq!(decoder.message.capacity(), 0);
}

/// A stream that returns the given bytes and discards written ones.
struct Tape(std::io::Cursor<Vec<u8>>);

impl std::io::Read for Tape {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(into)
    }
}

impl std::io::Write for Tape {
    fn write(&mut self, from: &[u8]) -> std::io::Result<usize> {
        Ok(from.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn messages_do_not_depend_on_read_boundaries(
        messages in prop::collection::vec((0_usize..70_000, 1_usize..5, any::<bool>()), 1..6),
        size in 1_usize..5000,
    ) {
        let mut stream = Vec::new();
        let mut expected = Vec::new();
        for (index, (length, parts, ping)) in messages.into_iter().enumerate() {
            let content = char::from(b'a' + index as u8).to_string().repeat(length);
            let step = length / parts + 1;
            let pieces: Vec<&str> = content.as_bytes().chunks(step).map(|piece| std::str::from_utf8(piece).unwrap()).collect();
            let pieces = if pieces.is_empty() { vec![""] } else { pieces };
            let last = pieces.len() - 1;
            for (number, piece) in pieces.iter().enumerate() {
                stream.extend(if number == 0 { text(number == last, piece) } else { more(number == last, piece) });
                if ping && number != last {
                    stream.extend(control(Control::Ping, b"p"));
                    expected.push("ping p".to_owned());
                }
            }
            expected.push(format!("message {content}"));
        }
        prop_assert_eq!(read(&stream, size), (expected, Ok(())));
    }

    #[test]
    fn encoded_messages_are_understood_by_the_other_implementation(lengths in prop::collection::vec(prop_oneof![0_usize..300, 65_000_usize..66_000], 1..8), ping: bool) {
        let mut bytes = Vec::new();
        for (index, length) in lengths.iter().enumerate() {
            put_text(&mut bytes, &vec![b'a' + index as u8; *length]);
            if ping {
                put_ping(&mut bytes);
                put_pong(&mut bytes, b"p");
            }
        }
        put_close(&mut bytes, 4401, "who are you");
        let mut socket = WebSocket::from_raw_socket(Tape(std::io::Cursor::new(bytes)), Role::Client, None);
        for (index, length) in lengths.iter().enumerate() {
            let expected = char::from(b'a' + index as u8).to_string().repeat(*length);
            prop_assert_eq!(socket.read().unwrap(), Message::text(expected));
            if ping {
                prop_assert!(socket.read().unwrap().is_ping());
                prop_assert!(socket.read().unwrap().is_pong());
            }
        }
        let end = CloseFrame { code: CloseCode::Library(4401), reason: "who are you".into() };
        prop_assert_eq!(socket.read().unwrap(), Message::Close(Some(end)));
    }

    #[test]
    fn garbage_is_judged_like_in_the_other_implementation(bytes in prop::collection::vec(any::<u8>(), 0..200), masked: bool) {
        let mut bytes = bytes;
        if masked {
            // Fixes the first two bytes; otherwise almost no input would pass them.
            for (at, byte) in [(0, 0x81), (1, 0x85)] {
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
            }
        }
        let (ours, end) = read(&bytes, 7);
        let mut socket = WebSocket::from_raw_socket(Tape(std::io::Cursor::new(bytes)), Role::Server, None);
        let mut theirs = Vec::new();
        loop {
            match socket.read() {
                Ok(Message::Text(text)) => theirs.push(format!("message {}", text.as_bytes().escape_ascii())),
                Ok(Message::Ping(payload)) => theirs.push(format!("ping {}", payload.escape_ascii())),
                Ok(Message::Pong(_)) => theirs.push("pong".to_owned()),
                // Bytes after the close frame are ignored.
                Ok(Message::Close(_)) | Err(Error::ConnectionClosed) => return Ok(()),
                Ok(_) => {
                    prop_assert_eq!(end, Err(Violation::Binary));
                    return Ok(());
                }
                Err(_) => break,
            }
        }
        if end.is_ok() {
            prop_assert_eq!(ours, theirs);
        }
    }
}
