//! Effects of clients that send incomplete messages, or none, on other clients. Uses the real core.

use std::os::unix::net::UnixStream;

use super::*;

/// A bus with the real core. Its workers never start.
struct Real {
    bus: Bus,
}

impl Real {
    fn new(limits: BusLimits) -> Self {
        Self { bus: Bus::start(Config { limits, ..config("exec cat") }, Vec::new()).unwrap() }
    }

    fn connect(&self) -> Peer {
        let ListenAddr::Tcp(at) = &self.bus.addresses()[0] else { panic!("a port") };
        let socket = TcpStream::connect(at).unwrap();
        socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        Peer { reader: BufReader::new(socket) }
    }

    fn finish(self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        self.bus.drain();
        let ended = runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, self.bus.finished()).await });
        assert_eq!(ended.unwrap(), BusOutcome::Done);
    }
}

impl Peer {
    /// Checks that lines are handled: an invalid message is answered at once.
    #[track_caller]
    fn speaks(&mut self) {
        self.send("{}\n");
        let answer = self.read_line();
        assert!(answer.contains("-32600"), "{answer}");
    }

    fn begins(&mut self, id: u32, bytes: usize) {
        let text = "x".repeat(bytes);
        self.send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m","params":["{text}"#));
    }
}

/// Returns the refusal of an incomplete message. It is shorter than `max_line`, so it may succeed later.
fn too_much(id: u32) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32012,"message":"too many bytes of incomplete messages","data":{{"condition":"backpressure","retryable":true,"effects":"none","retryAfterMs":1000}}}}}}"#
    ) + "\n"
}

#[test]
fn the_longest_unfinished_message_of_an_identity_is_refused_when_there_is_too_much() {
    let limits = BusLimits { unfinished_input_per_identity: 4 << 20, ..BusLimits::default() };
    let real = Real::new(limits);
    let mut peers: Vec<Peer> = (0..3).map(|_| real.connect()).collect();
    // Each message is within the limit. Of the two together, the longer one is refused.
    peers[0].begins(7, 3 << 20);
    peers[1].begins(8, 2 << 20);
    let answer = peers[0].read_line();
    assert_eq!(answer, too_much(7));
    // The connection continues after that message, and the others are not affected.
    peers[0].send("\"]}\n");
    peers[0].speaks();
    peers[2].speaks();
    peers[1].send("]\"\n");
    assert!(peers[1].read_line().contains("-32700"), "the rest of the message was read");
    drop(peers);
    real.finish();
}

#[test]
fn unfinished_messages_are_refused_at_once_when_memory_is_short_and_no_new_client_is_accepted() {
    let real = Real::new(BusLimits::default());
    let mut peer = real.connect();
    peer.speaks();
    peer.begins(7, 3 << 20);
    let short = BusLimits { memory: 4 << 20, ..BusLimits::default() };
    real.bus.reload(Config { limits: short, ..config("exec cat") }).unwrap();
    let answer = peer.read_line();
    assert_eq!(answer, too_much(7));
    let answer = real.connect().read_rest();
    assert!(answer.contains("-32012") && answer.contains("retryAfterMs"), "{answer}");
    // Connected clients continue.
    peer.send("\"]}\n");
    peer.speaks();
    drop(peer);
    real.finish();
}

#[test]
fn a_client_that_sends_no_message_is_disconnected_with_a_reason() {
    // Most slots are in use, so the shorter timeout applies.
    let real = Real::new(BusLimits {
        header_timeout: Duration::from_millis(200),
        max_anonymous_connections: 4,
        ..BusLimits::default()
    });
    let mut spoken = real.connect();
    spoken.speaks();
    let mut begun = real.connect();
    begun.send("{\"jsonrpc\"");
    for peer in [&mut real.connect(), &mut begun] {
        let answer = peer.read_rest();
        assert!(answer.contains("-32011") && answer.lines().count() == 1, "{answer}");
    }
    spoken.speaks();
    drop(spoken);
    real.finish();
}

#[test]
fn the_oldest_silent_connection_makes_room_for_another() {
    let real = Real::new(BusLimits { max_connections: 2, ..BusLimits::default() });
    let (mut first, mut second) = (real.connect(), real.connect());
    let mut third = real.connect();
    third.speaks();
    assert!(first.read_rest().contains("-32012"));
    second.speaks();
    // Clients that have sent a message stay connected.
    assert!(real.connect().read_rest().contains("-32012"));
    second.speaks();
    third.speaks();
    drop((second, third));
    real.finish();
}

#[test]
fn connections_without_identity_leave_room_for_users_of_this_machine() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut config = config("exec cat");
    config.limits.max_connections = 10;
    config.listen.push(ListenerSettings::new(ListenAddr::Unix(path.clone())));
    let real = Real { bus: Bus::start(config, Vec::new()).unwrap() };
    let mut peers: Vec<Peer> = (0..9).map(|_| real.connect()).collect();
    peers.iter_mut().for_each(Peer::speaks);
    assert!(real.connect().read_rest().contains("-32012"));
    let mut socket = UnixStream::connect(&path).unwrap();
    socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    socket.write_all(b"{}\n").unwrap();
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line).unwrap();
    assert!(line.contains("-32600"), "{line}");
    drop(peers);
    real.finish();
}

#[test]
fn the_number_of_connections_without_identity_can_be_set() {
    let real = Real::new(BusLimits { max_anonymous_connections: 1, ..BusLimits::default() });
    let mut first = real.connect();
    first.speaks();
    assert!(real.connect().read_rest().contains("-32012"));
    drop(first);
    real.finish();
}
