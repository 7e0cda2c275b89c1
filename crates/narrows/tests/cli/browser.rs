//! Pages in a real browser: an allowed origin may connect to the bus, others may not.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::bus_support::{Bus, command, write};
use crate::test_dir::TestDir;

/// Longer than a browser takes to start on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// The names in Debian and other distributions.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

const FLAGS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];

const PAGE: &str = include_str!("browser.html");

const FILE: &str = r#"
[[listen]]
url = "http://127.0.0.1:0/acp"
auth = "token"
tokens = "tokens.toml"
origins = ["[ORIGIN]"]

[[pool]]
command = ["[NARROWS]", "fake-agent", "echo"]
"#;

/// A server of one page on its own origin. The page reports its findings to it.
struct Site {
    origin: String,
    told: Receiver<Value>,
}

impl Site {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let origin = format!("http://{}", listener.local_addr().expect("an address"));
        let (tell, told) = sync_channel(1);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let tell = tell.clone();
                std::thread::spawn(move || serve(stream, &tell));
            }
        });
        Self { origin, told }
    }
}

/// Answers one request: with the page, or with thanks for a report.
fn serve(mut stream: TcpStream, tell: &SyncSender<Value>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).ok()?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().ok()?;
            }
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (status, page) = match first.split(' ').next()? {
        "POST" => {
            tell.send(serde_json::from_slice(&body).ok()?).ok()?;
            ("200 OK", "")
        }
        _ if first.starts_with("GET /favicon") => ("404 Not Found", ""),
        _ => ("200 OK", PAGE),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        page.len()
    );
    stream.write_all(format!("{head}{page}").as_bytes()).ok()
}

/// A browser that is killed with its child processes when dropped.
struct Browser(Child);

impl Browser {
    fn open(program: &str, dir: &TestDir, name: &str, url: &str) -> Self {
        let mut command = Command::new(program);
        command.args(FLAGS).arg(format!("--user-data-dir={}", dir.path().join(name).display()));
        command.arg("--remote-debugging-port=0").arg(url).env("HOME", dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Self(command.spawn().expect("a browser"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// Returns the findings of a page of this site that tries to connect.
fn findings(program: &str, dir: &TestDir, name: &str, site: &Site, bus: &Bus<'_>, token: &str) -> Value {
    // The part after `#` is visible to the page only.
    let url = format!("{}/#{} {token}", site.origin, bus.at[0]).replace(' ', "%20");
    let _browser = Browser::open(program, dir, name, &url);
    site.told.recv_timeout(TEST_TIMEOUT).expect("the page reports its findings")
}

#[test]
#[ignore = "starts a browser: cargo xtask nightly browser"]
fn only_listed_origins_may_connect() {
    let works = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    let Some(program) = NAMES.into_iter().find(|name| works(name)) else {
        println!("skipped: there is no chromium; `apt-get install chromium` brings one");
        return;
    };
    let dir = TestDir::new();
    let (allowed, foreign) = (Site::start(), Site::start());
    let tokens = dir.path().join("tokens.toml");
    let made =
        dir.narrows(["token", "new", "page", "--file"]).arg(tokens).output().expect("the program starts");
    let token = String::from_utf8(made.stdout).expect("a token").trim().to_owned();
    let file = write(&dir, &FILE.replace("[ORIGIN]", &allowed.origin));
    let mut started = command(&dir, &["--config", &file]);
    started.env("XDG_DATA_HOME", dir.path().join("data"));
    let bus = Bus::started(&dir, started);

    let found = findings(program, &dir, "foreign", &foreign, &bus, &token);
    for way in ["socket", "no_token", "wrong_token"] {
        assert_eq!(found[way]["opened"], false, "{way}: {found:#}");
    }
    for way in ["fetched", "simple"] {
        assert!(found[way]["error"].is_string(), "{way}: {found:#}");
    }
    // Requests whose responses the page could not read have not reached the agent.
    let state = bus.state();
    assert_eq!((&state["clients"], &state["sessions"]), (&0.into(), &0.into()), "{state:#}");

    let found = findings(program, &dir, "allowed", &allowed, &bus, &token);
    assert_eq!(found["socket"]["opened"], true, "{found:#}");
    // The protocol in the response is not the one that contains the token.
    assert_eq!(found["socket"]["protocol"], "acp", "{found:#}");
    assert_eq!(found["socket"]["said"], "hello from a page", "{found:#}");
    for way in ["no_token", "wrong_token"] {
        assert_eq!(found[way]["opened"], false, "{way}: {found:#}");
    }
    assert_eq!(found["fetched"]["said"], "hello from a page", "{found:#}");
    assert_eq!(found["fetched"]["deleted"], 202, "{found:#}");
    // Without a token the page may still read the 401 of an allowed origin.
    assert_eq!(found["simple"]["status"], 401, "{found:#}");
    bus.wait_for(|state| state["clients"] == 0);
    let said = bus.stop();
    assert!(!said.contains(&token), "{said}");
}
