//! WebSocket clients of the event loop. The clients use another implementation of WebSocket.

use std::net::TcpListener;

use narrows_bus::{IncomingClient, WebSocketHandle};
use narrows_link::WebSocketHandoff;
use narrows_wire::websocket::{Decoder, Violation};
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocket};
use tokio_tungstenite::tungstenite::{Error, Message};

use super::*;

const LIMIT: usize = 2 << 20;

type Page = WebSocket<TcpStream>;

impl Rig {
    /// Connects a client whose `messages` have already been read.
    fn upgrade(&self, messages: &[&'static str], idle: Duration) -> (Page, WebSocketHandle) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        ours.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        ours.set_nodelay(true).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        let upgraded = WebSocketHandoff {
            socket: theirs.into(),
            decoder: Decoder::new(LIMIT),
            messages: messages.iter().map(|message| (*message).into()).collect(),
            idle,
        };
        let from = IncomingClient { is_authenticated: true, ..IncomingClient::new(0, "token:x") };
        let served = self.bus.handle().connect_upgraded(upgraded, from).unwrap();
        (WebSocket::from_raw_socket(ours, Role::Client, None), served)
    }
}

/// Returns the next message, or the close code.
#[track_caller]
fn next_message(page: &mut Page) -> Result<String, u16> {
    loop {
        match page.read().unwrap() {
            Message::Text(text) => return Ok(text.to_string()),
            Message::Close(frame) => return Err(frame.map_or(0, |frame| frame.code.into())),
            _ => {}
        }
    }
}

fn ended(mut served: WebSocketHandle) -> Option<Violation> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, served.ended()).await.unwrap() })
}

#[test]
fn messages_come_back_in_order_whatever_their_length() {
    let rig = Rig::new(Mode::Mirror, config(""));
    let (mut page, served) = rig.upgrade(&["[\"first\"]", "[\n2\r\n]"], TEST_TIMEOUT);
    assert_eq!(next_message(&mut page).unwrap(), "[\"first\"]");
    assert_eq!(next_message(&mut page).unwrap(), "[\t2\t\t]");
    let texts: Vec<String> = [2, 121, 122, 123, 124, 20_000, 65_533, 65_534, 70_000, 3, 1_000_000]
        .map(|length| format!("[{}]", "1".repeat(length)))
        .into();
    let mut writer = WebSocket::from_raw_socket(page.get_ref().try_clone().unwrap(), Role::Client, None);
    let sent = texts.clone();
    let sender = std::thread::spawn(move || {
        for text in sent {
            writer.send(Message::text(text)).unwrap();
        }
        for (part, opcode, fin) in
            [("[3", Data::Text, false), (",4", Data::Continue, false), ("]", Data::Continue, true)]
        {
            writer.send(Message::Frame(Frame::message(part, OpCode::Data(opcode), fin))).unwrap();
        }
    });
    for text in texts {
        assert!(next_message(&mut page).unwrap() == text, "a message of {} bytes", text.len());
    }
    assert_eq!(next_message(&mut page).unwrap(), "[3,4]");
    sender.join().unwrap();
    drop(page);
    assert_eq!([rig.next(), rig.next()], [Event::Open(0), Event::Gone(0)]);
    assert_eq!(ended(served), None);
    rig.finish();
}

#[test]
fn an_unfinished_message_over_the_limit_ends_the_connection_with_a_reason() {
    let limits = BusLimits { unfinished_input_per_identity: 512 << 10, ..BusLimits::default() };
    let rig = Rig::new(Mode::Mirror, Config { limits, ..config("") });
    let (mut page, _served) = rig.upgrade(&[], TEST_TIMEOUT);
    // A frame of 1 MiB that never completes.
    page.get_mut().write_all(&[0x81, 0xff, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0]).unwrap();
    page.get_mut().write_all(&vec![b'1'; 700 << 10]).unwrap();
    let reason = next_message(&mut page).unwrap();
    assert!(reason.contains("-32012") && reason.contains(r#""retryable":true"#), "{reason}");
    assert_eq!(next_message(&mut page), Err(1001));
    rig.finish();
}

#[test]
fn frames_split_at_any_byte_are_joined() {
    let rig = Rig::new(Mode::Mirror, config(""));
    let (mut page, _served) = rig.upgrade(&[], TEST_TIMEOUT);
    let mut bytes = Vec::new();
    for text in ["[1]", "[\"two\"]"] {
        Frame::message(text, OpCode::Data(Data::Text), true).format(&mut bytes).unwrap();
    }
    // Frames of the server are not masked. Frames of a client must be.
    let mut masked = Vec::new();
    for text in ["[1]", "[\"two\"]"] {
        masked.extend_from_slice(&[0x81, 0x80 | u8::try_from(text.len()).unwrap(), 0, 0, 0, 0]);
        masked.extend_from_slice(text.as_bytes());
    }
    for byte in masked {
        page.get_mut().write_all(&[byte]).unwrap();
    }
    assert_eq!(next_message(&mut page).unwrap(), "[1]");
    assert_eq!(next_message(&mut page).unwrap(), "[\"two\"]");
    page.get_mut().write_all(&bytes).unwrap();
    assert_eq!(next_message(&mut page), Err(1002));
    rig.finish();
}

#[test]
fn a_close_frame_is_answered_with_the_same_code() {
    let rig = Rig::new(Mode::Mirror, config(""));
    let (mut page, served) = rig.upgrade(&[], TEST_TIMEOUT);
    page.send(Message::Ping("are you there".into())).unwrap();
    assert_eq!(page.read().unwrap(), Message::Pong("are you there".into()));
    page.send(Message::text("[5]")).unwrap();
    page.close(None).unwrap();
    assert_eq!(next_message(&mut page), Ok("[5]".to_owned()));
    assert_eq!(next_message(&mut page), Err(1000));
    assert!(matches!(page.read(), Err(Error::ConnectionClosed)));
    rig.until(|event| *event == Event::Gone(0));
    assert_eq!(ended(served), None);
    rig.finish();
}

#[test]
fn a_protocol_violation_closes_with_its_code() {
    let rig = Rig::new(Mode::Mirror, config(""));
    let long = "1".repeat(LIMIT + 1);
    for (message, fault, code) in [
        (Message::binary("[1]"), Violation::Binary, 1003),
        (Message::text(long), Violation::TooLong, 1009),
        (
            Message::Frame(Frame::message(vec![b'"', 0xff, b'"'], OpCode::Data(Data::Text), true)),
            Violation::Utf8,
            1007,
        ),
        (Message::Frame(Frame::message("1", OpCode::Data(Data::Continue), true)), Violation::Protocol, 1002),
    ] {
        let (mut page, served) = rig.upgrade(&[], TEST_TIMEOUT);
        page.send(Message::text("[7]")).unwrap();
        assert_eq!(next_message(&mut page), Ok("[7]".to_owned()));
        page.send(message).unwrap();
        assert_eq!(next_message(&mut page), Err(code));
        drop(page);
        assert_eq!(ended(served), Some(fault));
    }
    rig.finish();
}

#[test]
fn a_closed_websocket_gets_the_reason() {
    let rig = Rig::new(Mode::Mirror, config(""));
    let (mut other, _kept) = rig.upgrade(&["[0]"], TEST_TIMEOUT);
    let (mut page, served) = rig.upgrade(&["[1]"], TEST_TIMEOUT);
    assert_eq!(next_message(&mut page), Ok("[1]".to_owned()));
    rig.bus.handle().close_websocket(&served, 4401, "not authorised");
    assert_eq!(next_message(&mut page), Err(4401));
    drop(page);
    assert_eq!(ended(served), None);
    assert_eq!(next_message(&mut other), Ok("[0]".to_owned()));
    // A client that is still connected gets a close frame.
    let handle = rig.bus.handle();
    handle.drain();
    assert_eq!(next_message(&mut other), Err(1001));
    drop(other);
    rig.finish();
}

#[test]
fn a_websocket_over_the_limit_gets_the_reason() {
    let mut config = config("");
    config.limits.max_connections = 1;
    let rig = Rig::new(Mode::Mirror, config);
    let (mut page, _served) = rig.upgrade(&["[1]"], TEST_TIMEOUT);
    assert_eq!(next_message(&mut page), Ok("[1]".to_owned()));
    let (mut late, refused) = rig.upgrade(&["[2]"], TEST_TIMEOUT);
    assert!(next_message(&mut late).unwrap().contains("too many connections"));
    assert_eq!(next_message(&mut late), Err(1013));
    assert_eq!(ended(refused), None);
    rig.finish();
}

#[test]
fn a_client_that_answers_no_ping_is_dropped() {
    let rig = Rig::new(Mode::Mirror, config(""));
    let (mut page, served) = rig.upgrade(&[], Duration::from_millis(300));
    rig.until(|event| *event == Event::Gone(0));
    assert_eq!(ended(served), None);
    // The client gets pings.
    let mut pings = 0;
    loop {
        match page.read() {
            Ok(Message::Ping(_)) => pings += 1,
            Ok(other) => panic!("{other:?}"),
            Err(_) => break,
        }
    }
    assert_eq!(pings, 2);
    rig.finish();
}

#[test]
fn a_client_that_answers_pings_stays() {
    let rig = Rig::new(Mode::Mirror, config(""));
    let (mut page, _served) = rig.upgrade(&[], Duration::from_secs(6));
    for _ in 0..2 {
        assert!(matches!(page.read().unwrap(), Message::Ping(_)));
        page.flush().unwrap();
    }
    page.send(Message::text("[8]")).unwrap();
    assert_eq!(next_message(&mut page), Ok("[8]".to_owned()));
    rig.finish();
}

#[test]
fn pings_of_a_client_that_does_not_read_get_few_answers() {
    let rig = Rig::new(Mode::Mirror, config(""));
    let (mut page, _served) = rig.upgrade(&["[\"flood\",15000000]"], Duration::from_secs(60));
    page.get_ref().set_write_timeout(Some(TEST_TIMEOUT)).unwrap();
    // More than any buffer holds. All pings are read, and only the last one is kept.
    for number in 0..60_000 {
        page.send(Message::Ping(format!("{number:120}").into())).unwrap();
    }
    assert_eq!(next_message(&mut page).unwrap().len(), 15_000_000);
    loop {
        if let Message::Pong(payload) = page.read().unwrap() {
            assert_eq!(payload, format!("{:120}", 59_999));
            break;
        }
    }
    rig.finish();
}

#[test]
fn a_panic_closes_only_the_client_that_caused_it() {
    let rig = Rig::new(Mode::Mirror, config(""));
    let (mut page, _served) = rig.upgrade(&[], TEST_TIMEOUT);
    let (mut other, _kept) = rig.upgrade(&[], TEST_TIMEOUT);
    page.send(Message::text("[\"panic\"]")).unwrap();
    assert!(next_message(&mut page).unwrap().contains("internal error, closing connection"));
    assert_eq!(next_message(&mut page), Err(1001));
    other.send(Message::text("[9]")).unwrap();
    assert_eq!(next_message(&mut other), Ok("[9]".to_owned()));
    rig.finish();
}
