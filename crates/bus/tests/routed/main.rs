//! The whole bus: clients on sockets, real processes, and the core in between.

#![expect(clippy::unwrap_used, clippy::panic, reason = "these files are all tests")]

mod handed;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use narrows_bus::config::{
    AdminConfig, BusLimits, Config, ListenAddr, ListenerSettings, Pool, PoolProtocol, ShareMode,
};
use narrows_bus::core::Status;
use narrows_bus::{Bus, BusOutcome};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Generous for a loaded machine: only a failing test waits this long.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A worker that answers every request to `echo` and ignores others.
const ECHO: &str = r#"exec sed -u -n 's/"method":"echo","params":/"result":/p'"#;

fn start(instances: u32) -> Bus {
    let shell = vec!["/bin/sh".into(), "-c".into(), ECHO.into()];
    let pool =
        Pool { instances, share: ShareMode::All, protocol: PoolProtocol::JsonRpc, ..Pool::new("p", shell) };
    let config = Config {
        listen: vec![ListenerSettings::new(ListenAddr::Tcp("127.0.0.1:0".into()))],
        pools: vec![pool],
        limits: BusLimits::default(),
        admin: AdminConfig::default(),
    };
    let path = [("PATH".into(), "/usr/bin:/bin".into())];
    Bus::start(config, path.into()).unwrap()
}

fn connect(bus: &Bus) -> BufReader<TcpStream> {
    let ListenAddr::Tcp(at) = &bus.addresses()[0] else { panic!("a port") };
    let socket = TcpStream::connect(at).unwrap();
    socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    BufReader::new(socket)
}

fn request(method: &str, id: &Value, params: &Value) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n")
}

fn answer(peer: &mut BufReader<TcpStream>) -> Value {
    let mut line = String::new();
    peer.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, future).await.unwrap() })
}

fn status(bus: &Bus, wanted: impl Fn(&Status) -> bool) -> Status {
    wait(async {
        loop {
            let status = bus.status().await.unwrap();
            if wanted(&status) {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(5)).await; // sleep: all one can do is look again
        }
    })
}

fn finish(bus: &Bus) {
    bus.drain();
    assert_eq!(wait(bus.finished()), BusOutcome::Done);
}

#[test]
fn equal_ids_of_many_clients_are_never_mixed_up() {
    let bus = start(3);
    let mut peers: Vec<_> = (0..100).map(|_| connect(&bus)).collect();
    for (number, peer) in peers.iter_mut().enumerate() {
        let lines: String =
            (0..50).map(|id| request("echo", &json!(id), &json!({"tag": [number, id]}))).collect();
        peer.get_mut().write_all(lines.as_bytes()).unwrap();
    }
    for (number, peer) in peers.iter_mut().enumerate() {
        let mut answers: Vec<Value> = (0..50).map(|_| answer(peer)).collect();
        answers.sort_by_key(|answer| answer["id"].as_u64());
        for (id, answer) in answers.iter().enumerate() {
            assert_eq!(*answer, json!({"jsonrpc": "2.0", "id": id, "result": {"tag": [number, id]}}));
        }
    }
    finish(&bus);
}

#[test]
fn a_killed_worker_fails_its_requests_and_is_replaced() {
    let bus = start(1);
    let mut peer = connect(&bus);
    peer.get_mut().write_all(request("echo", &json!("a"), &json!({})).as_bytes()).unwrap();
    assert_eq!(answer(&mut peer)["id"], json!("a"));
    peer.get_mut().write_all(request("never", &json!("b"), &json!({})).as_bytes()).unwrap();
    let before = status(&bus, |status| status.pending == 1).pools[0].workers[0].pid;
    kill_process(Pid::from_raw(before.cast_signed()).unwrap(), Signal::KILL).unwrap();
    let lost = answer(&mut peer);
    assert_eq!((&lost["id"], &lost["error"]["code"]), (&json!("b"), &json!(-32010)), "{lost}");
    // The request waits for another worker and is then answered.
    peer.get_mut().write_all(request("echo", &json!(1.5), &json!({"x": 1})).as_bytes()).unwrap();
    assert_eq!(answer(&mut peer), json!({"jsonrpc": "2.0", "id": 1.5, "result": {"x": 1}}));
    let after = status(&bus, |_| true).pools[0].workers[0].pid;
    assert_ne!(before, after);
    finish(&bus);
    assert!(!std::fs::exists(format!("/proc/{after}")).unwrap());
}

#[test]
fn a_drain_closes_all_clients() {
    let bus = start(1);
    let mut peer = connect(&bus);
    peer.get_mut().write_all(request("echo", &json!(1), &json!({})).as_bytes()).unwrap();
    assert_eq!(answer(&mut peer)["id"], json!(1));
    finish(&bus);
    let mut rest = String::new();
    assert_eq!(peer.read_line(&mut rest).unwrap(), 0, "{rest}");
}
