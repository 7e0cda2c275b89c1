//! The admin API of a bus.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::json;

use crate::bus_support::{Bus, command, http};
use crate::test_dir::TestDir;

fn echo(dir: &TestDir) -> Bus<'_> {
    let args = ["--tcp", "127.0.0.1:0", "--instances", "2", "--share", "all", "--"];
    let bus = Bus::start(dir, &[&args[..], &["narrows", "fake-agent", "echo"]].concat());
    bus.wait_for_workers(2);
    bus
}

#[test]
fn the_status_is_a_table_or_an_object() {
    let dir = TestDir::new();
    let bus = echo(&dir);
    let mut peer = bus.client();
    let session = peer.session(&dir);
    peer.prompt(&json!(2), &session, "one two");
    peer.answer(&json!(2));
    let state = bus.state();
    assert_eq!((&state["clients"], &state["sessions"], &state["pending"]), (&json!(1), &json!(1), &json!(0)));
    assert_eq!((&state["version"], &state["listen"]), (&json!(env!("CARGO_PKG_VERSION")), &json!(bus.at)));
    assert_eq!(state["counters"]["sessions"], 1, "{state}");
    let (can, cannot): (Vec<_>, Vec<_>) =
        narrows_bus::worker_limits().into_iter().partition(|(_, can)| can.is_ok());
    let can: Vec<String> = can.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(state["worker_limits"], json!(can), "{state}");
    for (name, why) in cannot {
        assert_eq!(state["worker_limits_missing"][name.to_string()], json!(why.unwrap_err().why), "{state}");
    }
    let table = bus.status(&[]);
    let named = if can.is_empty() { "none".to_owned() } else { can.join(", ") };
    assert!(table.contains(&format!("worker limits supported on this host: {named}\n")), "{table}");
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with(&format!("narrows {}, pid ", env!("CARGO_PKG_VERSION"))), "{table}");
    assert!(lines[0].ends_with(&bus.at[0]), "{table}");
    assert!(lines[1].ends_with(" clients, 1 session, 0 requests in flight"), "{table}");
    let pool: Vec<&str> = lines[8].split_whitespace().collect();
    assert_eq!(pool, ["default", "ready", "2", "2", "1", "0", "0", "-"], "{table}");
    assert_eq!(lines.iter().filter(|line| line.starts_with("default ")).count(), 3, "{table}");
    bus.stop();
}

#[test]
fn the_status_can_be_watched_until_the_bus_ends() {
    let dir = TestDir::new();
    let bus = echo(&dir);
    let mut watching = dir.start(command(&dir, &["status", "--watch", "0.05", "--json"]));
    for _ in 0..2 {
        watching.expect_stdout("{\"version\":");
        watching.skip_line();
    }
    bus.signal(Signal::TERM);
    let told = watching.finish();
    assert!(told.ends_with("--- exit 1 ---\n"), "{told}");
    assert_eq!(bus.wait().code, Some(0));
}

#[test]
fn the_status_without_a_bus_is_an_error() {
    let dir = TestDir::new();
    let output = |args: &[&str]| dir.output_of(command(&dir, &[&["status"], args].concat()));
    assert_snapshot!(output(&[]), @"
    --- stderr ---
    error: no bus is running: no admin socket in [DIR]/run/narrows accepts connections
    hint: start a bus with `narrows bus`, or set its admin socket: --socket PATH
    --- exit 1 ---
    ");
    assert_snapshot!(output(&["--socket", "no.sock"]), @"
    --- stderr ---
    error: no.sock: no bus is listening: No such file or directory (os error 2)
    hint: start a bus with `narrows bus`, which prints its admin socket
    --- exit 1 ---
    ");
    // A socket without a listener is not a running bus.
    let directory = dir.path().join("run/narrows");
    std::fs::create_dir_all(&directory).expect("a directory");
    drop(UnixListener::bind(directory.join("admin.sock")).expect("a socket"));
    assert!(output(&[]).contains("error: no bus is running"));
    let mut command = dir.narrows(["bus", "status"]);
    command.env_remove("HOME");
    assert!(dir.output_of(command).contains("neither XDG_RUNTIME_DIR nor HOME is set"));
}

#[test]
fn one_of_several_buses_must_be_named() {
    let dir = TestDir::new();
    let (first, second) = (echo_second(&dir), echo_second(&dir));
    assert!(first.admin.ends_with("narrows/admin.sock"), "{:?}", first.admin);
    assert_ne!(first.admin, second.admin);
    let told = dir.output_beside_others(command(&dir, &["status"]));
    assert!(told.contains("error: several buses are running\nhint: narrows bus status --socket "), "{told}");
    assert!(told.ends_with("--- exit 2 ---\n"), "{told}");
    let socket = second.admin.to_str().expect("UTF-8").to_owned();
    for socket in [socket.clone(), format!("unix:{socket}"), format!("unix://{socket}")] {
        assert!(second.status(&["--socket", &socket]).contains(&second.at[0]), "{socket}");
    }
    second.signal(Signal::TERM);
    first.signal(Signal::TERM);
    assert_eq!((second.wait().code, first.wait().code), (Some(0), Some(0)));
}

#[test]
fn client_listeners_do_not_serve_the_admin_api() {
    let dir = TestDir::new();
    let bus = Bus::start(&dir, &["--unix", "in.sock", "--", "narrows", "fake-agent", "echo"]);
    let path = dir.path().join("in.sock").canonicalize().expect("the file exists");
    assert_eq!(bus.at[0], format!("unix:{}", path.display()), "it can be used from elsewhere");
    let told = dir.output_beside_others(command(&dir, &["status", "--socket", &bus.at[0]]));
    assert!(told.contains("in.sock: this socket is for clients, not the admin API\nhint: "), "{told}");
    assert!(told.ends_with("--- exit 1 ---\n"), "{told}");
    let told = dir.output_beside_others(command(&dir, &["status", "--socket", "tcp://127.0.0.1:9"]));
    assert!(told.contains("the status is read from the unix socket"), "{told}");
    assert!(told.ends_with("--- exit 2 ---\n"), "{told}");
    bus.stop();
}

#[test]
fn without_a_runtime_directory_the_bus_warns() {
    let dir = TestDir::new();
    let args = ["--stdio", "--", "narrows", "fake-agent", "echo"];
    let mut command = dir.narrows(["bus"].iter().chain(&args));
    command.env_remove("HOME").env_remove("XDG_RUNTIME_DIR");
    let told = dir.output_of(command);
    let warned = told.lines().any(|line| line.contains(" WARN ") && line.contains("no admin socket: "));
    assert!(warned && told.ends_with("--- exit 0 ---\n"), "{told}");
}

fn echo_second(dir: &TestDir) -> Bus<'_> {
    Bus::start(dir, &["--tcp", "127.0.0.1:0", "--", "narrows", "fake-agent", "echo"])
}

#[test]
fn health_readiness_and_metrics() {
    let dir = TestDir::new();
    let bus = echo(&dir);
    bus.client().session(&dir);
    for (page, first, last) in [
        ("/health", "HTTP/1.1 200 OK", "\r\n\r\nalive\n"),
        ("/ready", "HTTP/1.1 200 OK", "\r\n\r\nready\n"),
        (
            "/none",
            "HTTP/1.1 404 Not Found",
            "\r\n\r\nnot found; available: /health, /ready, /status, /metrics\n",
        ),
    ] {
        let answer = bus.page(page);
        assert!(answer.starts_with(first) && answer.ends_with(last), "{page}: {answer}");
    }
    let mut stream = std::os::unix::net::UnixStream::connect(&bus.admin).expect("the file exists");
    stream.write_all(b"POST /status HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("the peer reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("UTF-8");
    assert!(answer.starts_with("HTTP/1.0 405 Method Not Allowed"), "{answer}");
    assert!(
        answer.ends_with("method not allowed; available: /health, /ready, /status, /metrics\n"),
        "{answer}"
    );
    let figures = bus.page("/metrics");
    assert!(figures.contains("content-type: text/plain; version=0.0.4"), "{figures}");
    for line in [
        "narrows_bus_connections_total 1\n",
        "narrows_bus_sessions_opened_total 1\n",
        "narrows_bus_pool_ready{pool=\"default\"} 1\n",
        "narrows_bus_workers_spawned_total 2\n",
    ] {
        assert!(figures.contains(line), "{line} is not in {figures}");
    }
    bus.stop();
}

#[test]
fn a_pool_that_cannot_work_is_not_ready() {
    let dir = TestDir::new();
    let file = "[[listen]]\nurl = 'tcp://127.0.0.1:0'\n\
        [[pool]]\nname = 'good'\ncommand = ['narrows', 'fake-agent', 'echo']\nshare = 'all'\npass_env = ['[MARK]']\n\
        [[pool]]\nname = 'bad'\ncommand = ['false']\nshare = 'all'\npass_env = ['[MARK]']\n\
        [limits]\nrestart_budget = 2\n[admin]\nport = 0\n";
    let mut bus = Bus::from_file(&dir, file);
    let port = bus.expect_text("admin API listening on http://");
    dir.wait_for(|| bus.page("/ready").ends_with("\r\n\r\npool \"bad\": tripped, circuit breaker is open\n"));
    assert!(bus.page("/ready").starts_with("HTTP/1.1 503 Service Unavailable"));
    assert!(bus.page("/metrics").contains("narrows_bus_pool_circuit_open{pool=\"bad\"} 1\n"));
    let loss = bus.state()["pools"][1]["last_loss"].as_str().unwrap_or_default().to_owned();
    assert!(loss.contains("exit"), "{loss}");
    assert!(bus.status(&[]).contains("bad   tripped, retry in "), "{}", bus.status(&[]));
    // The port accepts only loopback host names.
    for (host, allowed) in [(port.as_str(), true), ("localhost", true), ("evil.example", false)] {
        let mut stream = TcpStream::connect(&port).expect("the server listens");
        let answer = http(&mut stream, host, "/health");
        let expected = if allowed { "HTTP/1.1 200 OK" } else { "HTTP/1.1 403 Forbidden" };
        assert!(answer.starts_with(expected), "{host}: {answer}");
        assert_eq!(answer.contains("must be 127.0.0.1, [::1] or localhost"), !allowed, "{host}: {answer}");
    }
    for (host, page) in
        [("localhost", "http://evil.example/health"), ("localhost\r\nHost: evil.example", "/health")]
    {
        let mut stream = TcpStream::connect(&port).expect("the server listens");
        let answer = http(&mut stream, host, page);
        assert!(answer.starts_with("HTTP/1.1 400 Bad Request"), "{page}: {answer}");
    }
    bus.stop();
}
