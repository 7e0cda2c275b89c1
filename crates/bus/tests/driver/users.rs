//! Access to a TCP listener: only the user of the bus, unless the settings admit every user.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use narrows_bus::config::{Config, ListenAddr, ListenerAuth, ListenerSettings};

use super::simple_router::{Event, Mode};
use super::{Rig, config};

/// A user that the tests do not run as.
const OTHER: u32 = 65_534;

/// Returns the response to another user on a port. `None` if no process can be started as another user.
fn as_other(address: &str) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can start a process of another user");
        return None;
    }
    let (host, port) = address.rsplit_once(':').unwrap();
    let host = host.trim_matches(['[', ']']);
    let script = format!("exec 3<>/dev/tcp/{host}/{port}; echo '[1]' >&3; head -n 1 <&3");
    let mut bash = Command::new("bash");
    let done =
        bash.args(["-c", &script]).current_dir("/").uid(OTHER).gid(OTHER).stderr(Stdio::null()).output();
    let Ok(done) = done else {
        eprintln!("skipped: there is no bash");
        return None;
    };
    Some(String::from_utf8(done.stdout).unwrap())
}

/// Returns a bus at this address that sends all lines back. `None` if the machine lacks the address.
fn rig(address: &str, auth: ListenerAuth) -> Option<(Rig, String)> {
    let listen = ListenerSettings { auth, ..ListenerSettings::new(ListenAddr::Tcp(address.into())) };
    // Not every machine has IPv6.
    std::net::TcpListener::bind(address).ok()?;
    let rig = Rig::new(Mode::Mirror, Config { listen: vec![listen], ..config("") });
    let ListenAddr::Tcp(at) = &rig.bus.addresses()[0] else { panic!("a port") };
    let at = at.clone();
    Some((rig, at))
}

#[test]
fn another_user_is_refused_before_its_input_is_read() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let Some((rig, at)) = rig(address, ListenerAuth::User) else { continue };
        if let Some(heard) = as_other(&at) {
            assert!(heard.contains("-32015") && heard.contains("only the user of this bus"), "{heard:?}");
        }
        let mut own = rig.connect();
        own.send("[2]\n");
        assert_eq!(own.read_line(), "[2]\n");
        // The router knows no other client.
        let opened = rig.events.try_iter().filter(|event| matches!(event, Event::Open(_))).count();
        assert_eq!(opened, 1);
        rig.finish();
    }
}

#[test]
fn every_user_is_admitted_if_the_settings_permit_it() {
    let (rig, at) = rig("127.0.0.1:0", ListenerAuth::None).unwrap();
    if let Some(heard) = as_other(&at) {
        assert_eq!(heard, "[1]\n");
    }
    rig.finish();
}
