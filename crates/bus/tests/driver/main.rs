//! The driver with real sockets and real processes, under a minimal router.

#![expect(clippy::unwrap_used, clippy::panic, reason = "these files are all tests")]
#![expect(clippy::print_stderr, reason = "a test that cannot be run here says so")]

mod clients;
mod limits;
mod panics;
mod simple_router;
mod stdio;
mod users;
mod websocket;
mod workers;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use narrows_bus::config::{AdminConfig, BusLimits, Config, ListenAddr, ListenerSettings, Pool};
use narrows_bus::{Bus, BusOutcome};

use simple_router::{Event, Mode, SimpleRouter};

/// Generous for a loaded machine: only a failing test waits this long.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

struct Rig {
    bus: Bus<SimpleRouter>,
    events: Receiver<Event>,
}

/// Returns a configuration with a free port. Its workers run `script` in a shell.
fn config(script: &str) -> Config {
    Config {
        listen: vec![ListenerSettings::new(ListenAddr::Tcp("127.0.0.1:0".into()))],
        pools: vec![Pool::new("p", vec!["/bin/sh".into(), "-c".into(), script.into()])],
        limits: BusLimits::default(),
        admin: AdminConfig::default(),
    }
}

impl Rig {
    fn new(mode: Mode, config: Config) -> Self {
        let (tell, events) = sync_channel(1 << 16);
        let bus =
            Bus::start_with(config, Vec::new(), |config| SimpleRouter::new(mode, config, tell)).unwrap();
        Self { bus, events }
    }

    fn connect(&self) -> Peer {
        let ListenAddr::Tcp(at) = &self.bus.addresses()[0] else { panic!("a port") };
        let socket = TcpStream::connect(at).unwrap();
        socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        Peer { reader: BufReader::new(socket) }
    }

    fn next(&self) -> Event {
        self.events.recv_timeout(TEST_TIMEOUT).expect("an event within the timeout")
    }

    #[track_caller]
    fn until(&self, wanted: impl Fn(&Event) -> bool) -> Event {
        let mut seen = Vec::new();
        loop {
            let Ok(event) = self.events.recv_timeout(TEST_TIMEOUT) else { panic!("only {seen:?}") };
            if wanted(&event) {
                return event;
            }
            seen.push(event);
        }
    }

    fn finish(self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        self.bus.drain();
        let ended = runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, self.bus.finished()).await });
        assert_eq!(ended.unwrap(), BusOutcome::Done);
    }
}

struct Peer {
    reader: BufReader<TcpStream>,
}

impl Peer {
    fn send(&mut self, text: &str) {
        self.reader.get_mut().write_all(text.as_bytes()).unwrap();
    }

    /// Returns the next line with its line end. Empty at the end of the stream.
    fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        line
    }

    fn read_rest(&mut self) -> String {
        let mut rest = String::new();
        self.reader.read_to_string(&mut rest).unwrap();
        rest
    }

    fn shut(&mut self) {
        self.reader.get_mut().shutdown(Shutdown::Write).unwrap();
    }
}
