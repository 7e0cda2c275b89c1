//! A bus as operators see it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::json;

use crate::bus_support::{Bus, command, http};
use crate::support::Place;

fn echo(place: &Place) -> Bus<'_> {
    let args = ["--tcp", "127.0.0.1:0", "--instances", "2", "--share", "all", "--"];
    let bus = Bus::start(place, &[&args[..], &["narrows", "fake-agent", "echo"]].concat());
    bus.wait_for_workers(2);
    bus
}

#[test]
fn its_state_is_a_table_and_an_object() {
    let place = Place::new();
    let bus = echo(&place);
    let mut peer = bus.client();
    let session = peer.session(&place);
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
    assert!(table.contains(&format!("limits of workers that can be enforced here: {named}\n")), "{table}");
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with(&format!("narrows {}, process ", env!("CARGO_PKG_VERSION"))), "{table}");
    assert!(lines[0].ends_with(&bus.at[0]), "{table}");
    assert!(lines[1].ends_with(" clients, 1 session, 0 requests under way"), "{table}");
    let pool: Vec<&str> = lines[8].split_whitespace().collect();
    assert_eq!(pool, ["default", "ready", "2", "2", "1", "0", "0", "-"], "{table}");
    assert_eq!(lines.iter().filter(|line| line.starts_with("default ")).count(), 3, "{table}");
    bus.stop();
}

#[test]
fn it_can_be_watched_until_it_ends() {
    let place = Place::new();
    let bus = echo(&place);
    let mut watching = place.start(command(&place, &["status", "--watch", "0.05", "--json"]));
    for _ in 0..2 {
        watching.says("{\"version\":");
        watching.skip_line();
    }
    bus.signal(Signal::TERM);
    let told = watching.told();
    assert!(told.ends_with("--- exit 1 ---\n"), "{told}");
    assert_eq!(bus.wait().code, Some(0));
}

#[test]
fn without_a_bus_it_says_so() {
    let place = Place::new();
    let told = |args: &[&str]| place.told(command(&place, &[&["status"], args].concat()));
    assert_snapshot!(told(&[]), @"
    --- stderr ---
    error: no bus runs: nobody listens in [DIR]/run/narrows
    hint: start one with `narrows bus`, or say where its admin socket is: --socket PATH
    --- exit 1 ---
    ");
    assert_snapshot!(told(&["--socket", "no.sock"]), @"
    --- stderr ---
    error: no.sock: no bus listens there: No such file or directory (os error 2)
    hint: start one with `narrows bus`, which says where its socket is
    --- exit 1 ---
    ");
    // A socket that nobody listens on any more is no bus either.
    let directory = place.path().join("run/narrows");
    std::fs::create_dir_all(&directory).expect("a directory");
    drop(UnixListener::bind(directory.join("admin.sock")).expect("a socket"));
    assert!(told(&[]).contains("error: no bus runs"));
    let mut command = place.narrows(["bus", "status"]);
    command.env_remove("HOME");
    assert!(place.told(command).contains("neither XDG_RUNTIME_DIR nor HOME says where to look"));
}

#[test]
fn several_are_told_apart() {
    let place = Place::new();
    let (first, second) = (echo_second(&place), echo_second(&place));
    assert!(first.admin.ends_with("narrows/admin.sock"), "{:?}", first.admin);
    assert_ne!(first.admin, second.admin);
    let told = place.told_of(command(&place, &["status"]));
    assert!(told.contains("error: several buses run\nhint: narrows bus status --socket "), "{told}");
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
fn where_clients_come_in_is_no_place_for_operators() {
    let place = Place::new();
    let bus = Bus::start(&place, &["--unix", "in.sock", "--", "narrows", "fake-agent", "echo"]);
    let path = place.path().join("in.sock").canonicalize().expect("it is there");
    assert_eq!(bus.at[0], format!("unix:{}", path.display()), "it can be used from elsewhere");
    let told = place.told_of(command(&place, &["status", "--socket", &bus.at[0]]));
    assert!(told.contains("in.sock: clients come in there, and operators elsewhere\nhint: "), "{told}");
    assert!(told.ends_with("--- exit 1 ---\n"), "{told}");
    let told = place.told_of(command(&place, &["status", "--socket", "tcp://127.0.0.1:9"]));
    assert!(told.contains("it is asked through its unix socket"), "{told}");
    assert!(told.ends_with("--- exit 2 ---\n"), "{told}");
    bus.stop();
}

#[test]
fn without_a_place_for_an_admin_socket_it_warns() {
    let place = Place::new();
    let args = ["--stdio", "--", "narrows", "fake-agent", "echo"];
    let mut command = place.narrows(["bus"].iter().chain(&args));
    command.env_remove("HOME").env_remove("XDG_RUNTIME_DIR");
    let told = place.told(command);
    let warned =
        told.lines().any(|line| line.contains(" WARN ") && line.contains("there is no admin socket"));
    assert!(warned && told.ends_with("--- exit 0 ---\n"), "{told}");
}

fn echo_second(place: &Place) -> Bus<'_> {
    Bus::start(place, &["--tcp", "127.0.0.1:0", "--", "narrows", "fake-agent", "echo"])
}

#[test]
fn health_readiness_and_figures() {
    let place = Place::new();
    let bus = echo(&place);
    bus.client().session(&place);
    for (page, first, last) in [
        ("/health", "HTTP/1.1 200 OK", "\r\n\r\nalive\n"),
        ("/ready", "HTTP/1.1 200 OK", "\r\n\r\nready\n"),
        (
            "/none",
            "HTTP/1.1 404 Not Found",
            "\r\n\r\nthere is no such page; there are /health, /ready, /status and /metrics\n",
        ),
    ] {
        let answer = bus.page(page);
        assert!(answer.starts_with(first) && answer.ends_with(last), "{page}: {answer}");
    }
    let mut stream = std::os::unix::net::UnixStream::connect(&bus.admin).expect("it is there");
    stream.write_all(b"POST /status HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("UTF-8");
    assert!(answer.starts_with("HTTP/1.0 405 Method Not Allowed"), "{answer}");
    assert!(answer.ends_with("only be got; there are /health, /ready, /status and /metrics\n"), "{answer}");
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
    let place = Place::new();
    let file = "[[listen]]\nurl = 'tcp://127.0.0.1:0'\n\
        [[pool]]\nname = 'good'\ncommand = ['narrows', 'fake-agent', 'echo']\nshare = 'all'\npass_env = ['[MARK]']\n\
        [[pool]]\nname = 'bad'\ncommand = ['false']\nshare = 'all'\npass_env = ['[MARK]']\n\
        [limits]\nrestart_budget = 2\n[admin]\nport = 0\n";
    let mut bus = Bus::of_file(&place, file);
    let port = bus.hears("operators come in at http://");
    place.wait_for(|| {
        bus.page("/ready").ends_with("\r\n\r\npool \"bad\": tripped, its workers were lost too often\n")
    });
    assert!(bus.page("/ready").starts_with("HTTP/1.1 503 Service Unavailable"));
    assert!(bus.page("/metrics").contains("narrows_bus_pool_circuit_open{pool=\"bad\"} 1\n"));
    let loss = bus.state()["pools"][1]["last_loss"].as_str().unwrap_or_default().to_owned();
    assert!(loss.contains("exit"), "{loss}");
    assert!(bus.status(&[]).contains("bad   tripped, retry in "), "{}", bus.status(&[]));
    // The port is for this machine, under its own names.
    for (host, allowed) in [(port.as_str(), true), ("localhost", true), ("evil.example", false)] {
        let mut stream = TcpStream::connect(&port).expect("it listens");
        let answer = http(&mut stream, host, "/health");
        let expected = if allowed { "HTTP/1.1 200 OK" } else { "HTTP/1.1 403 Forbidden" };
        assert!(answer.starts_with(expected), "{host}: {answer}");
        assert_eq!(answer.contains("as 127.0.0.1, [::1] or localhost"), !allowed, "{host}: {answer}");
    }
    for (host, page) in
        [("localhost", "http://evil.example/health"), ("localhost\r\nHost: evil.example", "/health")]
    {
        let mut stream = TcpStream::connect(&port).expect("it listens");
        let answer = http(&mut stream, host, page);
        assert!(answer.starts_with("HTTP/1.1 400 Bad Request"), "{page}: {answer}");
    }
    bus.stop();
}
