//! Clients: lines, limits, disconnects.

use std::os::unix::net::UnixStream;

use narrows_bus::{IncomingClient, ListenerDifference, StartError};
use narrows_process::Controller;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

#[test]
fn lines_come_back_in_order_whatever_their_length() {
    let rig = Rig::new(Mode::Mirror, config(""));
    let mut peer = rig.connect();
    let lines: Vec<String> =
        [2, 100, 70_000, 300_000, 3, 1_000_000].map(|length| format!("[{}]\n", "1".repeat(length))).into();
    let mut writer = peer.reader.get_ref().try_clone().unwrap();
    let text = lines.concat();
    let sender = std::thread::spawn(move || writer.write_all(text.as_bytes()).unwrap());
    for line in lines {
        assert!(peer.read_line() == line, "a line of {} bytes", line.len());
    }
    sender.join().unwrap();
    peer.shut();
    assert_eq!(peer.read_rest(), "");
    assert_eq!([rig.next(), rig.next(), rig.next()], [Event::Open(0), Event::Eof(0), Event::Gone(0)]);
    rig.finish();
}

#[test]
fn a_carriage_return_does_not_split_a_line() {
    let rig = Rig::new(Mode::Mirror, config(""));
    let mut peer = rig.connect();
    peer.send("[1,\r[2]\r,3]\r\n[4]\r\n");
    assert_eq!(peer.read_line(), "[1,\t[2]\t,3]\n");
    assert_eq!(peer.read_line(), "[4]\n");
    rig.finish();
}

#[test]
fn a_whole_message_at_the_end_of_the_input_needs_no_line_end() {
    #[track_caller]
    fn check(said: &str, heard: &str) {
        let rig = Rig::new(Mode::Mirror, config(""));
        let mut peer = rig.connect();
        peer.send(said);
        peer.shut();
        assert_eq!(peer.read_rest(), heard, "{said}");
        rig.until(|event| *event == Event::Gone(0));
        rig.finish();
    }
    let request = r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#;
    let line = format!("{request}\n");
    check(request, &line);
    check(&format!("{request}\r"), &line);
    check(&format!("[1]\n{request}"), &format!("[1]\n{line}"));
    check(&format!("[{request}]"), &format!("[{line}").replace('\n', "]\n"));
    check(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n");
    // An incomplete message is dropped.
    check(&request[..request.len() - 1], "");
    check(&format!("{line}{{"), &line);
    check(&format!("{line}  "), &line);
    check("{}", "");
}

#[test]
fn lines_of_many_clients_do_not_mix() {
    let rig = Rig::new(Mode::Mirror, config(""));
    let mut peers: Vec<Peer> = (0..300).map(|_| rig.connect()).collect();
    for round in 0..3 {
        for (number, peer) in peers.iter_mut().enumerate() {
            peer.send(&format!("[{number},{round}]\n[{number},\"again\"]\n"));
        }
        for (number, peer) in peers.iter_mut().enumerate() {
            assert_eq!(peer.read_line(), format!("[{number},{round}]\n"));
            assert_eq!(peer.read_line(), format!("[{number},\"again\"]\n"));
        }
    }
    drop(peers);
    for _ in 0..300 {
        rig.until(|event| matches!(event, Event::Gone(_)));
    }
    rig.finish();
}

#[test]
fn a_unix_socket_works_like_a_port_also_when_it_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let rig = Rig::new(
        Mode::Mirror,
        Config { listen: vec![ListenerSettings::new(ListenAddr::Unix(path.clone()))], ..config("") },
    );
    let mut socket = UnixStream::connect(&path).unwrap();
    socket.write_all(b"[\"flood\",3000000]\n[\"flood\",3]\n").unwrap();
    let mut reader = BufReader::new(socket);
    for length in [3_000_000, 3] {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert_eq!(line.len(), length + 1);
    }
    reader.get_mut().write_all(b"[1]\n").unwrap();
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "[1]\n");
    drop(reader);
    rig.until(|event| *event == Event::Gone(0));
    rig.finish();
    assert!(!path.exists(), "the socket file is removed with the bus");
}

/// Reads the rest slowly and returns its lines.
fn read_slowly(mut socket: impl Read) -> Vec<String> {
    let (mut text, mut part) = (Vec::new(), [0; 20_000]);
    loop {
        match socket.read(&mut part).unwrap() {
            0 => break,
            read => text.extend_from_slice(&part[..read]),
        }
        // sleep: a slow reader that still makes progress
        std::thread::sleep(Duration::from_millis(5));
    }
    String::from_utf8(text).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_slow_reader_gets_the_reason_of_its_disconnect() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    for is_unix in [false, true] {
        for pause in [Duration::ZERO, Duration::from_secs(4)] {
            let listen = match is_unix {
                true => ListenerSettings::new(ListenAddr::Unix(path.clone())),
                false => ListenerSettings::new(ListenAddr::Tcp("127.0.0.1:0".into())),
            };
            let rig = Rig::new(Mode::Mirror, Config { listen: vec![listen], ..config("") });
            // 8 MB, more than any socket buffers.
            let request = b"[\"slow\",8000]\n";
            let reading: Box<dyn Read> = if is_unix {
                let mut socket = UnixStream::connect(&path).unwrap();
                socket.write_all(request).unwrap();
                Box::new(socket)
            } else {
                let mut peer = rig.connect();
                peer.send(std::str::from_utf8(request).unwrap());
                Box::new(peer.reader.into_inner())
            };
            rig.until(|event| *event == Event::Ticked);
            // sleep: longer than the linger timeout of other disconnects
            std::thread::sleep(pause);
            let lines = read_slowly(reading);
            assert_eq!(lines.last().unwrap(), "[\"reason\"]", "unix: {is_unix}, {pause:?}");
            assert!(lines.len() < 8000, "queued lines before the reason are removed");
            assert!(lines[..lines.len() - 1].iter().all(|line| line.len() == 1000));
            rig.until(|event| *event == Event::Gone(0));
            rig.finish();
        }
    }
}

#[test]
fn a_client_that_does_not_send_json_gets_an_error_and_is_closed() {
    let rig = Rig::new(Mode::Mirror, config(""));
    let mut browser = rig.connect();
    browser.send("\r\n POST / HTTP/1.1\r\nHost: x\r\n\r\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"}\n");
    let answer = browser.read_rest();
    assert!(answer.contains("-32700") && answer.lines().count() == 1, "{answer}");
    rig.until(|event| *event == Event::Gone(0));
    let mut peer = rig.connect();
    peer.send("\n [1]\n");
    assert_eq!(peer.read_line(), " [1]\n");
    peer.send("nonsense\n");
    assert_eq!(peer.read_line(), "nonsense\n", "later lines are passed to the core unchecked");
    rig.finish();
}

#[test]
fn a_panic_costs_one_connection() {
    let rig = Rig::new(Mode::Mirror, config(""));
    let (mut one, mut other) = (rig.connect(), rig.connect());
    other.send("[1]\n");
    assert_eq!(other.read_line(), "[1]\n");
    one.send("[1]\n[\"panic\"]\n[2]\n");
    let answer = one.read_rest();
    assert!(answer.starts_with("[1]\n") && answer.contains("-32603") && !answer.contains("[2]"), "{answer}");
    rig.until(|event| matches!(event, Event::Gone(_)));
    other.send("[2]\n");
    assert_eq!(other.read_line(), "[2]\n");
    rig.finish();
}

#[test]
fn a_client_that_reads_nothing_is_disconnected() {
    let mut config = config("");
    config.limits.queue_bytes = 64 << 10;
    config.limits.stall_timeout = Duration::from_millis(300);
    let rig = Rig::new(Mode::Mirror, config);
    let mut peer = rig.connect();
    peer.send("[\"flood\",50000000]\n");
    rig.until(|event| *event == Event::Gone(0));
    let mut other = rig.connect();
    other.send("[1]\n");
    assert_eq!(other.read_line(), "[1]\n");
    rig.finish();
}

#[test]
fn a_client_accepted_by_the_caller_has_no_stall_timeout() {
    let mut config = config("");
    config.limits.queue_bytes = 64 << 10;
    config.limits.stall_timeout = Duration::from_millis(100);
    let rig = Rig::new(Mode::Mirror, config);
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let from = IncomingClient { is_authenticated: true, ..IncomingClient::new(0, "token:x") };
    rig.bus.handle().connect(theirs.into(), from).unwrap();
    let mut held = BufReader::new(ours);
    held.get_mut().write_all(b"[\"flood\",3000000]\n").unwrap();
    rig.until(|event| *event == Event::Open(0));
    // Of two clients that read nothing, only the one that the bus itself accepted is disconnected.
    let mut peer = rig.connect();
    peer.send("[\"flood\",50000000]\n");
    let gone = rig.until(|event| matches!(event, Event::Gone(_)));
    assert_eq!(gone, Event::Gone(1));
    held.get_mut().write_all(b"[1]\n").unwrap();
    for length in [3_000_000, 3] {
        let mut line = String::new();
        held.read_line(&mut line).unwrap();
        assert_eq!(line.len(), length + 1);
    }
    drop(held);
    rig.until(|event| *event == Event::Gone(0));
    rig.finish();
}

#[test]
fn a_client_that_reads_too_late_gets_the_reason_of_its_disconnect() {
    let mut config = config("");
    config.limits.queue_bytes = 64 << 10;
    config.limits.stall_timeout = Duration::from_millis(200);
    let rig = Rig::new(Mode::Mirror, config);
    // The linger timeout of a second may be too short on a busy machine.
    let heard = (0..10).any(|_| {
        let mut peer = rig.connect();
        peer.send("[\"flood\",12000000]\n");
        rig.until(|event| matches!(event, Event::Open(_)));
        // sleep: a slow reader
        std::thread::sleep(Duration::from_millis(500));
        peer.send("[2]\n");
        let mut said = Vec::new();
        // The line is incomplete if the client read too late.
        _ = peer.reader.read_to_end(&mut said);
        let rest = said.splitn(2, |byte| *byte == b'\n').nth(1).unwrap_or_default();
        let rest = String::from_utf8_lossy(rest);
        assert!(rest.is_empty() || rest.lines().count() == 1 && rest.ends_with('\n'), "{rest}");
        rest.contains("-32012")
    });
    assert!(heard);
    rig.finish();
}

#[test]
fn a_queue_with_room_again_is_reported() {
    let mut config = config("");
    config.limits.queue_bytes = 64 << 10;
    let rig = Rig::new(Mode::Mirror, config);
    let mut peer = rig.connect();
    peer.send("[\"flood\",50000000]\n");
    assert_eq!(peer.read_line().len(), 50_000_001);
    rig.until(|event| *event == Event::Drained(0));
    rig.finish();
}

#[test]
fn a_connection_over_the_limit_gets_the_reason() {
    let mut config = config("");
    config.limits.max_connections = 1;
    let rig = Rig::new(Mode::Mirror, config);
    let mut first = rig.connect();
    first.send("[1]\n");
    assert_eq!(first.read_line(), "[1]\n");
    let answer = rig.connect().read_rest();
    assert!(answer.contains("-32012"), "{answer}");
    rig.finish();
}

/// File descriptors are shared with this test: each connection takes two.
#[test]
fn without_descriptors_no_connection_is_accepted_until_some_are_free() {
    let rig = Rig::new(Mode::Mirror, config(""));
    let mut first = rig.connect();
    rig.until(|event| *event == Event::Open(0));
    // Without a message, the client would be evicted.
    first.send("[1]\n");
    assert_eq!(first.read_line(), "[1]\n");
    let limit = getrlimit(Resource::Nofile);
    let spare = first.reader.get_ref().try_clone().unwrap();
    let lowest = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&spare)).unwrap();
    drop(spare);
    // Leaves room for exactly one more descriptor.
    setrlimit(Resource::Nofile, Rlimit { current: Some(lowest + 1), ..limit }).unwrap();
    let mut second = rig.connect();
    rig.until(|event| *event == Event::Pressure(true));
    second.send("[1]\n");
    drop(first);
    rig.until(|event| *event == Event::Pressure(false));
    assert_eq!(second.read_line(), "[1]\n");
    setrlimit(Resource::Nofile, limit).unwrap();
    drop(second);
    rig.finish();
}

#[test]
fn a_memory_budget_is_watched() {
    let mut config = config("");
    config.limits.memory = 1 << 20;
    let rig = Rig::new(Mode::Mirror, config.clone());
    rig.until(|event| *event == Event::Pressure(true));
    config.limits.memory = 1 << 40;
    rig.bus.reload(config).unwrap();
    rig.until(|event| *event == Event::Pressure(false));
    rig.finish();
}

#[test]
fn a_changed_line_limit_applies_to_connected_clients() {
    let with =
        |max_line| Config { limits: BusLimits { max_line, ..BusLimits::default() }, ..config("exec cat") };
    let rig = Rig::new(Mode::Pairs, with(10));
    let mut peer = rig.connect();
    peer.send("[1]\n");
    assert_eq!(peer.read_line(), "[1]\n");
    rig.bus.reload(with(100)).unwrap();
    rig.until(|event| *event == Event::Reloaded);
    // One line for the client and one for its worker.
    let line = format!("[{}]\n", "1".repeat(90));
    peer.send(&line);
    assert_eq!(peer.read_line(), line);
    peer.send(&line[..50]);
    rig.bus.reload(with(10)).unwrap();
    rig.until(|event| *event == Event::Reloaded);
    peer.send(&line[50..]);
    let answer = peer.read_line();
    assert!(answer.contains("-32603"), "the router refuses a line that is too long: {answer}");
    drop(peer);
    rig.until(|event| *event == Event::Gone(0));
    rig.finish();
}

#[test]
fn status_and_reload_work_until_the_bus_has_ended() {
    let rig = Rig::new(Mode::Mirror, config(""));
    let mut peer = rig.connect();
    peer.send("[1]\n");
    assert_eq!(peer.read_line(), "[1]\n");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(runtime.block_on(rig.bus.status()), Ok(1));
    rig.bus
        .reload(Config { limits: BusLimits { max_line: 10, ..BusLimits::default() }, ..config("") })
        .unwrap();
    rig.until(|event| *event == Event::Reloaded);
    let limits = BusLimits { max_connections: 7, ..BusLimits::default() };
    let elsewhere = Config { listen: Vec::new(), limits, ..config("") };
    assert!(matches!(rig.bus.reload(elsewhere).unwrap()[..], [ListenerDifference::StillOpen(_)]));
    assert_eq!(rig.bus.handle().max_connections(), 7);
    let handle = rig.bus.handle();
    rig.finish();
    assert_eq!(peer.read_rest(), "");
    assert!(runtime.block_on(handle.status()).is_err());
}

#[test]
fn an_unusable_configuration_is_an_error_at_the_start() {
    let start = |config: Config| {
        let (tell, _events) = sync_channel(1);
        Bus::start_with(config, Vec::new(), |config| SimpleRouter::new(Mode::Mirror, config, tell))
            .unwrap_err()
    };
    let missing = Config { pools: vec![Pool::new("p", vec!["/no/such/program".into()])], ..config("") };
    assert!(matches!(start(missing), StartError::Program { pool, .. } if pool == "p"));
    for (controller, can) in narrows_bus::worker_limits() {
        let Err(why) = can else { continue };
        let mut limited = config("");
        match controller {
            Controller::Memory => limited.pools[0].memory = Some(1 << 30),
            Controller::Pids => limited.pools[0].pids = Some(100),
        }
        assert!(matches!(start(limited), StartError::UnenforceableLimit { source, .. } if source == why));
    }
    let everybody = ListenerSettings::new(ListenAddr::Tcp("0.0.0.0:0".into()));
    assert!(matches!(start(Config { listen: vec![everybody], ..config("") }), StartError::Listen(_)));
}
