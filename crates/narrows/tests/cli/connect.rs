//! Remote agents on the real binary: as a stdio agent, and driven.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::json;

use crate::bus_support::{Bus, NARROWS};
use crate::person::{CTRL_C, CTRL_D, Person};
use crate::support::Place;
use crate::talk::Talk;

/// A bus with an agent that says what it is told.
fn echo(place: &Place) -> Bus<'_> {
    Bus::start(place, &["--listen", "tcp://127.0.0.1:0", "--", NARROWS, "fake-agent", "echo"])
}

#[track_caller]
fn talks(place: &Place, command: Command) {
    let mut talk = Talk::initialized(place, command);
    let session = talk.session(&json!([]));
    let answer = talk.prompt(&session, "hello there");
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    assert_eq!(talk.said(), "hello there");
    let ended = talk.end();
    assert_eq!((ended.status.code(), ended.stderr.as_str()), (Some(0), ""));
}

#[test]
fn an_editor_talks_to_a_remote_agent() {
    let (place, home) = (Place::new(), Place::new());
    let bus = echo(&home);
    talks(&place, place.narrows(["connect", &bus.at[0]]));
    let mut bare = place.narrows(["acp"]);
    bare.env("NARROWS_CONNECT", &bus.at[0]);
    talks(&place, bare);
    let file = place.file("narrows.toml", &format!("[acp]\nconnect = \"{}\"\n", bus.at[0]));
    let mut bare = place.narrows(["acp"]);
    bare.env("NARROWS_CONFIG", file);
    talks(&place, bare);
    bus.stop();
}

#[test]
fn what_is_built_in_stays_so() {
    let place = Place::new();
    for args in [["acp", "--local"].as_slice(), &["acp", "--no-store"]] {
        let mut command = place.narrows(args);
        command.env("NARROWS_CONNECT", "tcp://127.0.0.1:1").env("OPENAI_BASE_URL", "builtin:demo");
        command.env("XDG_DATA_HOME", place.path());
        let talk = Talk::initialized(&place, command);
        assert_eq!(talk.end().status.code(), Some(0));
    }
}

#[test]
fn a_remote_agent_is_driven() {
    let (place, home) = (Place::new(), Place::new());
    let bus = echo(&home);
    let told = place.told_of(place.narrows(["run", "--agent", &bus.at[0], "hello there"]));
    assert!(told.contains("hello there") && told.contains("--- exit 0 ---"), "{told}");
    let told =
        place.told_of(place.narrows(["run", "--agent", &bus.at[0], "--cwd", "/not/here", "hello there"]));
    assert!(told.contains("hello there") && told.contains("--- exit 0 ---"), "{told}");
    bus.stop();
}

#[test]
fn a_signal_ends_it() {
    let (place, home) = (Place::new(), Place::new());
    let bus = echo(&home);
    let talk = Talk::initialized(&place, place.narrows(["connect", &bus.at[0]]));
    talk.signal(Signal::TERM);
    let ended = talk.end();
    assert_eq!(ended.status.code(), Some(143), "{}", ended.stderr);
    bus.stop();
}

#[test]
fn a_bus_that_goes_is_told() {
    let (place, home) = (Place::new(), Place::new());
    let bus = echo(&home);
    let talk = Talk::initialized(&place, place.narrows(["connect", &bus.at[0], "--grace", "200ms"]));
    bus.stop();
    let ended = talk.wait();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.starts_with("error: the connection to tcp://"), "{}", ended.stderr);
}

#[test]
fn a_connection_that_is_lost_in_a_turn_is_told_as_that() {
    let (place, home) = (Place::new(), Place::new());
    let bus = Bus::start(&home, &["--listen", "ws://127.0.0.1:0/acp", "--", NARROWS, "fake-agent", "slow"]);
    let args = ["run", "--agent", &bus.at[0], "--grace", "200ms", "go"];
    let running = place.start(place.narrows(args));
    bus.wait_for(|state| state["sessions"] == 1);
    bus.signal(Signal::KILL);
    bus.wait();
    let told = running.told();
    assert!(
        told.contains("error: the connection to ws://127.0.0.1:") && told.contains(" is lost\n  because: "),
        "{told}"
    );
    assert!(!told.contains("the agent answered") && told.ends_with("--- exit 1 ---\n"), "{told}");
}

#[test]
fn a_chat_tells_once_how_its_connection_was_lost() {
    for (script, text) in [("echo", None), ("slow", Some("go\r"))] {
        let (place, home) = (Place::new(), Place::new());
        let bus =
            Bus::start(&home, &["--listen", "ws://127.0.0.1:0/acp", "--", NARROWS, "fake-agent", script]);
        let person = Person::reaches(&place, &["chat", "--agent", &bus.at[0], "--grace", "200ms"]);
        person.sees_the_prompt();
        if let Some(text) = text {
            person.types(text);
            person.sees("One moment.");
        }
        bus.signal(Signal::KILL);
        bus.wait();
        person.sees("hint: --grace says how long it is tried");
        person.sees("/restart starts it again");
        person.sees_the_prompt();
        let screen = person.screen();
        assert_eq!(screen.matches("error: ").count(), 1, "{screen}");
        assert!(screen.contains("error: the connection to ws://127.0.0.1:"), "{screen}");
        person.leaves();
    }
}

#[test]
fn a_bus_that_is_stopping_tells_newcomers_so() {
    let (place, home) = (Place::new(), Place::new());
    let listeners = ["--listen", "ws://127.0.0.1:0/acp", "--listen", "tcp://127.0.0.1:0"];
    let bus = Bus::start(&home, &[&listeners[..], &["--", NARROWS, "fake-agent", "slow"]].concat());
    let running = place.start(place.narrows(["run", "--agent", &bus.at[0], "--grace", "200ms", "go"]));
    // Its turn, for which the bus waits.
    bus.wait_for(|state| state["sessions"] == 1 && state["pending"] == 1);
    bus.signal(Signal::TERM);
    home.wait_for(|| bus.page("/ready").contains("the bus is stopping"));
    let web = bus.at[0].clone();
    for (url, why) in [
        (web.replace("ws://", "http://"), "the server answers 503: the bus is stopping"),
        (web, "the server turns us away: the bus is stopping"),
        (bus.at[1].clone(), "the server turns us away: the bus is stopping"),
    ] {
        let told = place.told_of(place.narrows(["run", "--agent", &url, "Hi"]));
        assert!(told.contains(&format!("{url} cannot be reached\n  because: {why}\n")), "{told}");
        assert!(told.ends_with("--- exit 5 ---\n"), "{told}");
    }
    bus.signal(Signal::KILL);
    bus.wait();
    running.told();
}

#[test]
fn a_port_that_does_not_speak_tls_is_told_as_that() {
    let (place, home) = (Place::new(), Place::new());
    let bus = Bus::start(&home, &["--listen", "ws://127.0.0.1:0/acp", "--", NARROWS, "fake-agent", "echo"]);
    for scheme in ["wss://", "https://"] {
        let url = bus.at[0].replace("ws://", scheme);
        let told = place.told_of(place.narrows(["run", "--agent", &url, "Hi"]));
        assert!(
            told.contains("because: whoever listens there does not speak TLS\nhint: use ws:// or http://"),
            "{told}"
        );
        assert!(told.contains("--- exit 5 ---"), "{told}");
    }
    bus.stop();
}

#[test]
fn a_port_that_speaks_something_else_is_told_as_that() {
    let (place, home) = (Place::new(), Place::new());
    let bus = echo(&home);
    for scheme in ["ws://", "http://"] {
        let url = bus.at[0].replace("tcp://", scheme);
        let told = place.told_of(place.narrows(["run", "--agent", &url, "--grace", "1s", "Hi"]));
        assert!(told.contains("because: whoever listens there does not speak HTTP\n"), "{told}");
        assert!(told.contains("hint: use tcp:// if lines are spoken there"), "{told}");
    }
    bus.stop();
    let bus = Bus::start(&home, &["--listen", "ws://127.0.0.1:0/acp", "--", NARROWS, "fake-agent", "echo"]);
    let url = bus.at[0].replace("ws://", "tcp://").replace("http://", "tcp://").replace("/acp", "");
    let told = place.told_of(place.narrows(["run", "--agent", &url, "Hi"]));
    assert!(told.contains("cannot be reached\n  because: whoever listens there speaks HTTP\n"), "{told}");
    assert!(told.ends_with("hint: use ws:// or http:// for this port\n--- exit 5 ---\n"), "{told}");
    bus.stop();
}

#[test]
fn wrong_settings_are_told_to_the_editor_too() {
    let place = Place::new();
    let question = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{}}\n";
    let told = |text: &str| {
        let file = place.file("narrows.toml", text);
        let mut acp = place.narrows(["acp"]);
        acp.env("NARROWS_CONFIG", file);
        place.told_with_input(acp, question)
    };
    for (text, why) in [
        ("[acp]\nconnect = \"ws://127.0.0.1:1/acp\"\ntoken-file = \"none\"\n", "cannot be read"),
        ("[acp]\nconect = \"ws://127.0.0.1:1/acp\"\n", "conect"),
    ] {
        let told = told(text);
        let (answer, rest) = told.split_once("--- stderr ---").expect("both");
        assert!(answer.starts_with("{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32010,"), "{told}");
        assert!(answer.contains(why) && answer.contains("\"retryable\":false"), "{told}");
        assert!(rest.contains(why) && rest.ends_with("--- exit 2 ---\n"), "{told}");
    }
}

#[test]
fn nobody_is_told_to_the_editor_too() {
    let place = Place::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("ws://127.0.0.1:{port}/acp");
    let question = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{}}\n";
    let told = place.told_with_input(place.narrows(["connect", &url]), question);
    let told = told.replace(&port.to_string(), "[PORT]");
    assert_snapshot!(told, @r#"
    {"jsonrpc":"2.0","id":1,"error":{"code":-32010,"message":"ws://127.0.0.1:[PORT]/acp cannot be reached: nobody listens at 127.0.0.1:[PORT]","data":{"condition":"worker_lost","retryable":true,"effects":"none"}}}
    --- stderr ---
    error: ws://127.0.0.1:[PORT]/acp cannot be reached
      because: nobody listens at 127.0.0.1:[PORT]
    hint: is it running, and does it listen there?
    --- exit 5 ---
    "#);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let place = Place::new();
    let told = |args: &[&str]| place.told(place.narrows(args));
    let token = place.file("token", "t0k3n\n");
    let token = token.to_str().unwrap();
    assert_snapshot!(told(&["connect", "bus.example"]), @r#"
    --- stderr ---
    error: invalid value 'bus.example' for '<URL>': it begins with none of ws://, wss://, http://, https://, tcp:// and unix:

    For more information, try '--help'.
    --- exit 2 ---
    "#);
    assert!(told(&["connect", "127.0.0.1:9000"]).contains("; did you mean tcp://127.0.0.1:9000?\n"));
    assert_snapshot!(told(&["run", "--agent", "tcp://127.0.0.1:9000/die", "Hi"]), @r#"
    --- stderr ---
    error: --agent "tcp://127.0.0.1:9000/die": it must end with its port: the listener decides which pool serves its clients
    hint: did you mean tcp://127.0.0.1:9000?
    --- exit 2 ---
    "#);
    assert_snapshot!(told(&["run", "--agent", "127.0.0.1:9000", "Hi"]), @r#"
    --- stderr ---
    error: cannot start the agent "127.0.0.1:9000"
      because: there is no program "127.0.0.1:9000" in PATH
    hint: did you mean "tcp://127.0.0.1:9000"?
    --- exit 5 ---
    "#);
    assert_snapshot!(told(&["connect", "ws://me:secret@bus.example/acp"]), @"
    --- stderr ---
    error: invalid value 'ws://me:secret@bus.example/acp' for '<URL>': a URL must not have a name or a password in it

    For more information, try '--help'.
    --- exit 2 ---
    ");
    assert_snapshot!(told(&["connect", "tcp://127.0.0.1:9000/default"]), @r#"
    --- stderr ---
    error: invalid value 'tcp://127.0.0.1:9000/default' for '<URL>': it must end with its port: the listener decides which pool serves its clients; did you mean tcp://127.0.0.1:9000?

    For more information, try '--help'.
    --- exit 2 ---
    "#);
    assert_snapshot!(told(&["connect", "ws://bus.example/acp", "--token-file", token]), @"
    --- stderr ---
    error: ws://bus.example/acp cannot be reached
      because: the token would go over the network in clear
    hint: use wss:// or https://, or a tunnel to this machine (ssh -L)
    --- exit 2 ---
    ");
    assert_snapshot!(told(&["connect", "unix:/x", "--token-file", "none"]), @r#"
    --- stderr ---
    error: --token-file: "none" cannot be read
      because: No such file or directory (os error 2)
    --- exit 2 ---
    "#);
    assert_snapshot!(told(&["connect", "wss://bus.example/acp", "--ca", "none.pem"]), @"
    --- stderr ---
    error: --ca: the certificate authorities cannot be used
      because: none.pem: it cannot be read: No such file or directory (os error 2)
    hint: it takes certificates in PEM form, and only if the server has one of your own
    --- exit 2 ---
    ");
    assert_snapshot!(told(&["connect", "unix:/x/y"]), @"
    --- stderr ---
    error: unix:/x/y cannot be reached
      because: nobody listens at /x/y: there is no such file
    hint: is it running, and does it listen there?
    --- exit 5 ---
    ");
    assert_snapshot!(told(&["run", "--agent", "narrows acp", "--token-file", "x", "Hi"]), @r#"
    --- stderr ---
    error: --token-file is about remote agents, and "narrows acp" is started here
    hint: a remote agent is a URL: --agent wss://HOST/acp
    --- exit 2 ---
    "#);
    assert_snapshot!(told(&["run", "--agent", "ws://127.0.0.1:1/acp", "--env", "X=1", "Hi"]), @"
    --- stderr ---
    error: --env is about agents that are started here, and ws://127.0.0.1:1/acp is not
    hint: its environment is that of whoever started it
    --- exit 2 ---
    ");
    assert_snapshot!(told(&["run", "--agent", "ws://127.0.0.1:1/acp", "--cwd", "not/here", "Hi"]), @r#"
    --- stderr ---
    error: --cwd "not/here" is no directory here, and no absolute path there
    hint: a remote agent works where it is: write the path as it is there, from / on
    --- exit 2 ---
    "#);
    assert_snapshot!(told(&["run", "--agent", "ws://127.0.0.1:1/acp", "Hi"]), @"
    --- stderr ---
    error: ws://127.0.0.1:1/acp cannot be reached
      because: nobody listens at 127.0.0.1:1
    hint: is it running, and does it listen there?
    --- exit 5 ---
    ");
    assert_snapshot!(told(&["run", "--agent", "http://127.0.0.1:1/acp", "Hi"]), @"
    --- stderr ---
    error: http://127.0.0.1:1/acp cannot be reached
      because: nobody listens at 127.0.0.1:1
    hint: is it running, and does it listen there?
    --- exit 5 ---
    ");
}

/// The way to a server, which can be cut and mended.
struct Way {
    at: String,
    is_cut: Arc<AtomicBool>,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
}

impl Way {
    fn to(url: &str) -> Self {
        let server = url.trim_start_matches("ws://").trim_end_matches("/acp").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let at = format!("ws://{}/acp", listener.local_addr().expect("a socket"));
        let way = Self { at, is_cut: Arc::default(), sockets: Arc::default() };
        let (is_cut, sockets) = (Arc::clone(&way.is_cut), Arc::clone(&way.sockets));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(&server) else { continue };
                if is_cut.load(Ordering::SeqCst) {
                    continue;
                }
                for (mut from, mut to) in [
                    (client.try_clone().expect("a socket"), server.try_clone().expect("a socket")),
                    (server.try_clone().expect("a socket"), client.try_clone().expect("a socket")),
                ] {
                    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                }
                sockets.lock().expect("a socket").extend([client, server]);
            }
        });
        way
    }

    fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        for socket in self.sockets.lock().expect("a socket").drain(..) {
            // One that has ended already is cut.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    fn mend(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }
}

const LOST: &str = "the connection is lost, and is being taken up again: ";

/// Cuts the way to an agent in a turn that begins so, mends it, cuts it again and gives up. `begin` is handed the address.
fn cuts<'a>(begin: impl FnOnce(&str) -> Person<'a>) -> Person<'a> {
    let home = Place::new();
    let bus = Bus::start(&home, &["--listen", "ws://127.0.0.1:0/acp", "--", NARROWS, "fake-agent", "slow"]);
    let way = Way::to(&bus.at[0]);
    let person = begin(&way.at);
    person.sees("One moment.");
    way.cut();
    person.sees(LOST);
    way.mend();
    person.sees_no_more(LOST);
    way.cut();
    person.sees(LOST);
    person.types(CTRL_C);
    person.sees("cancelled; the connection to the agent is lost, so that it may not know");
    person
}

#[test]
fn a_lost_connection_is_on_the_screen_until_it_is_back() {
    let place = Place::new();
    let person =
        cuts(|url| Person::reaches(&place, &["run", "--agent", url, "--cancel-grace", "500ms", "go"]));
    assert_eq!(person.ends(), Some(130));
}

#[test]
fn a_lost_connection_is_seen_in_a_conversation() {
    let place = Place::new();
    let person = cuts(|url| {
        let person = Person::reaches(&place, &["chat", "--agent", url, "--cancel-grace", "500ms"]);
        person.sees_the_prompt();
        person.types("go\r");
        person
    });
    person.sees_the_prompt();
    person.types(CTRL_D);
    assert_eq!(person.ends(), Some(0));
}

#[test]
fn a_lost_connection_is_told_to_programs_in_lines() {
    let (place, home) = (Place::new(), Place::new());
    let bus = Bus::start(&home, &["--listen", "ws://127.0.0.1:0/acp", "--", NARROWS, "fake-agent", "slow"]);
    let args = ["run", "--agent", &bus.at[0], "--grace", "5s", "--output", "events", "go"];
    let running = place.start(place.narrows(args));
    bus.wait_for(|state| state["sessions"] == 1);
    bus.signal(Signal::KILL);
    bus.wait();
    let told = running.told();
    assert_eq!(told.matches(LOST).count(), 1, "{told}");
    assert!(told.ends_with("--- exit 1 ---\n"), "{told}");
}
