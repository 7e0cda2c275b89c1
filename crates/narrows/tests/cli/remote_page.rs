//! Runs the commands and files of `docs/remote.md`.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::bus_support::{Bus, NARROWS, command, write};
use crate::stdio_client::StdioClient;
use crate::test_dir::{MARK, TestDir};

const PAGE: &str = include_str!("../../../../docs/remote.md");

/// The blocks of one language in the part under a heading.
#[track_caller]
fn blocks(heading: &str, language: &str) -> Vec<&'static str> {
    let rest = PAGE.split(&format!("\n### {heading}\n")).nth(1).expect("the part");
    let part = rest.split("\n### ").next().and_then(|part| part.split("\n## ").next()).expect("it ends");
    let fence = format!("```{language}\n");
    part.split(&fence).skip(1).map(|block| block.split("```").next().expect("it ends")).collect()
}

/// Whether a program is there.
fn has_program(program: &str, argument: &str) -> bool {
    Command::new(program).arg(argument).output().is_ok()
}

/// A bus with this file, which begins to listen where there is room.
fn start<'a>(dir: &'a TestDir, file: &str) -> Bus<'a> {
    let mut command = command(dir, &["--config", &write(dir, file)]);
    command.env("XDG_DATA_HOME", dir.path().join("data")).env("HOME", dir.path());
    command.env("OPENAI_BASE_URL", "builtin:demo");
    Bus::started(dir, command)
}

/// The file of "One laptop", somewhere else.
fn laptop() -> String {
    let file = blocks("One laptop", "toml")[0];
    assert!(file.contains("ws://127.0.0.1:8787/acp"), "{file}");
    file.replace("127.0.0.1:8787", "127.0.0.1:0")
}

/// Lines of a shell, with our program as `narrows`.
fn sh(dir: &TestDir, lines: &str) -> Command {
    let own = Path::new(NARROWS).parent().expect("a directory");
    let path = format!("{}:{}", own.display(), std::env::var("PATH").expect("PATH"));
    let mut shell = Command::new("sh");
    shell.arg("-euc").arg(lines).env_clear().env("PATH", path).env(MARK, dir.mark());
    shell.current_dir(dir.path()).stdin(Stdio::null());
    shell
}

/// What the lines write on stdout, when all went well.
#[track_caller]
fn done(mut shell: Command) -> String {
    let output = shell.output().expect("a shell");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn one_laptop() {
    let dir = TestDir::new();
    let bus = start(&dir, &laptop());
    let run = blocks("One laptop", "sh")[0].lines().find(|line| line.contains("narrows run")).expect("it");
    let url = bus.at[0].replace("http://", "ws://");
    let said = done(sh(&dir, &run.replace("ws://127.0.0.1:8787/acp", &url)));
    assert!(said.contains("I am the demo model"), "{said}");
    bus.stop();
}

#[test]
fn by_hand_with_curl() {
    if !has_program("curl", "--version") {
        println!("skipped: there is no curl");
        return;
    }
    let dir = TestDir::new();
    let bus = start(&dir, &laptop());
    let lines = blocks("By hand, with curl", "sh")[0];
    let url = bus.at[0].replace("ws://", "http://");
    let said = done(sh(&dir, &lines.replace("http://127.0.0.1:8787/acp", &url)));
    assert!(said.contains("data: ") && said.contains("\"stopReason\":\"end_turn\""), "{said}");
    let streams = std::fs::read_to_string(dir.path().join("events")).expect("there were events");
    assert!(streams.contains("\"id\":2"), "{streams}");
    bus.wait_for(|state| state["clients"] == 0);
    bus.stop();
}

/// With "localhost" for the name of the server, which is the one that every machine has.
#[test]
fn a_server_with_tls_and_tokens() {
    if !has_program("openssl", "version") {
        println!("skipped: there is no openssl");
        return;
    }
    let (dir, away) = (TestDir::new(), TestDir::new());
    let here = |text: &str| text.replace("bus.example", "localhost");
    let [file] = blocks("A server with TLS and tokens", "toml")[..] else { panic!("one block") };
    let [made, used] = blocks("A server with TLS and tokens", "sh")[..] else { panic!("two blocks") };
    let (made, start_line) = made.trim_end().rsplit_once('\n').expect("several lines");
    assert_eq!(start_line, "narrows bus --config bus.toml");
    done(sh(&dir, &here(made)));
    let file = file.replace("0.0.0.0:8443", "127.0.0.1:0");
    let bus = start(&dir, &here(&file));
    let port = bus.at[0].rsplit(':').next().and_then(|rest| rest.split('/').next()).expect("a port");
    // What goes to the clients, and nothing else.
    for name in ["laptop.token", "ca.pem"] {
        std::fs::copy(dir.path().join(name), away.path().join(name)).expect("a file");
    }
    let lines: Vec<String> =
        used.lines().map(|line| here(line).replace(":8443", &format!(":{port}"))).collect();
    let stdio = |line: &str| {
        let mut stdio = StdioClient::initialized(&away, away.narrows(line.split(' ').skip(1)));
        let session = stdio.session(&json!([]));
        let answer = stdio.prompt(&session, "Hello");
        assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
        assert_eq!(stdio.end().status.code(), Some(0));
    };
    stdio(&lines[0]);
    let said = done(sh(&away, &lines[1]));
    assert!(said.contains("I am the demo model"), "{said}");
    // Without the token, and without the authority.
    for (option, expected) in [(" --token-file laptop.token", "401"), (" --ca ca.pem", "certificate")] {
        let output = sh(&away, &lines[1].replace(option, "")).output().expect("a shell");
        let told = String::from_utf8_lossy(&output.stderr).to_lowercase();
        assert!(output.status.code() == Some(5) && told.contains(expected), "{option}: {told}");
    }
    // Another certificate, by another authority, while it runs: seen without a word to it.
    done(sh(&dir, &here(made.split_once('\n').expect("several lines").1)));
    std::fs::copy(dir.path().join("ca.pem"), away.path().join("ca.pem")).expect("a file");
    away.wait_for(|| sh(&away, &lines[1]).output().expect("a shell").status.success());
    stdio(&lines[0]);
    bus.stop();
}

#[test]
fn a_server_with_tls_and_certificates() {
    if !has_program("openssl", "version") {
        println!("skipped: there is no openssl");
        return;
    }
    let (dir, away) = (TestDir::new(), TestDir::new());
    let here = |text: &str| text.replace("bus.example", "localhost");
    let [file] = blocks("A server with TLS and certificates", "toml")[..] else { panic!("one block") };
    let [made, used] = blocks("A server with TLS and certificates", "sh")[..] else { panic!("two blocks") };
    let (made, start_line) = made.trim_end().rsplit_once('\n').expect("several lines");
    assert_eq!(start_line, "narrows bus --config bus.toml");
    done(sh(&dir, &here(made)));
    let bus = start(&dir, &here(&file.replace("0.0.0.0:8443", "127.0.0.1:0")));
    let port = bus.at[0].rsplit(':').next().and_then(|rest| rest.split('/').next()).expect("a port");
    for name in ["laptop.pem", "laptop.key", "ca.pem"] {
        std::fs::copy(dir.path().join(name), away.path().join(name)).expect("a file");
    }
    let lines: Vec<String> =
        used.lines().map(|line| here(line).replace(":8443", &format!(":{port}"))).collect();
    let talks = |command: Command| {
        let mut stdio = StdioClient::initialized(&away, command);
        let session = stdio.session(&json!([]));
        assert_eq!(stdio.prompt(&session, "Hello")["result"]["stopReason"], "end_turn");
        let state = bus.state();
        assert_eq!(state["identities"]["cert:laptop"]["clients"], 1, "{state}");
        assert_eq!(stdio.end().status.code(), Some(0));
        bus.wait_for(|state| state["clients"] == 0);
    };
    talks(away.narrows(lines[0].split(' ').skip(1)));
    let said = done(sh(&away, &lines[1]));
    assert!(said.contains("I am the demo model"), "{said}");
    // The same by narrows.toml, and by variables.
    let url = lines[0].split(' ').nth(2).expect("a URL");
    let file = format!("[acp]\nconnect = \"{url}\"\nca = \"ca.pem\"\n");
    let whole = away.file("narrows.toml", &format!("{file}cert = \"laptop.pem\"\nkey = \"laptop.key\"\n"));
    let mut bare = away.narrows(["acp"]);
    bare.env("NARROWS_CONFIG", &whole);
    talks(bare);
    let rest = away.file("rest.toml", &file);
    for words in [&["acp"][..], &["connect", url, "--ca", "ca.pem"]] {
        let mut bare = away.narrows(words);
        bare.env("NARROWS_CONFIG", &rest)
            .env("NARROWS_CERT_FILE", "laptop.pem")
            .env("NARROWS_KEY_FILE", "laptop.key");
        talks(bare);
    }
    let mut half = away.narrows(["acp"]);
    half.env("NARROWS_CONFIG", &rest).env("NARROWS_CERT_FILE", "laptop.pem");
    let told = away.output_of(half);
    assert!(told.contains("of no use without its private key") && told.contains("--- exit 2 ---"), "{told}");
    // Without a certificate, and without its key.
    for (option, code, expected) in [
        (" --cert laptop.pem --key laptop.key", 5, "wants to see a certificate"),
        (" --key laptop.key", 2, "--key <file>"),
    ] {
        let output = sh(&away, &lines[1].replace(option, "")).output().expect("a shell");
        let told = String::from_utf8_lossy(&output.stderr).to_lowercase();
        assert!(output.status.code() == Some(code) && told.contains(expected), "{option}: {told}");
    }
    bus.stop();
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port of this machine that nothing uses.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port()
}

/// With and without TLS; with TLS over HTTP/2, for which nginx holds the head of a response back until some of its body comes.
#[test]
fn behind_nginx() {
    if !has_program("nginx", "-v") || !has_program("openssl", "version") {
        println!("skipped: there is no nginx, or no openssl");
        return;
    }
    let dir = TestDir::new();
    let file = laptop().replace("auth = \"user\"", "auth = \"token\"\ntokens = \"tokens.toml\"");
    let made = blocks("A server with TLS and tokens", "sh")[0].replace("bus.example", "localhost");
    let (made, _start) = made.trim_end().rsplit_once('\n').expect("several lines");
    done(sh(&dir, made));
    let bus = start(&dir, &file);
    let location = blocks("Behind nginx", "nginx")[0];
    let behind = bus.at[0].replace("ws://", "http://").replace("/acp", "");
    assert!(location.contains("http://127.0.0.1:8787;"), "{location}");
    let location = location.replace("http://127.0.0.1:8787", &behind);
    let (port, tls_port) = (free_port(), free_port());
    let at = dir.path().display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {at}/{name};\n"))
        .concat();
    let config = format!(
        "daemon off;\nmaster_process off;\npid {at}/nginx.pid;\nerror_log stderr info;\nevents {{}}\n\
         http {{\naccess_log off;\n{temporary}server {{\nlisten 127.0.0.1:{port};\n\
         listen 127.0.0.1:{tls_port} ssl http2;\nssl_certificate {at}/cert.pem;\n\
         ssl_certificate_key {at}/key.pem;\n{location}}}\n}}\n"
    );
    let config = dir.file("nginx.conf", &config);
    let mut nginx = Command::new("nginx");
    nginx.arg("-p").arg(dir.path()).arg("-c").arg(config).args(["-e", "stderr"]);
    nginx.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut nginx = Running(nginx.spawn().expect("nginx"));
    let stderr = BufReader::new(nginx.0.stderr.take().expect("piped"));
    // It is read on, so that nginx is never held up by it.
    std::thread::spawn(move || stderr.lines().map_while(Result::ok).for_each(drop));
    dir.wait_for(|| std::net::TcpStream::connect(("127.0.0.1", tls_port)).is_ok());
    for (scheme, port) in [("ws", port), ("http", port), ("wss", tls_port), ("https", tls_port)] {
        let url = format!("{scheme}://localhost:{port}/acp");
        let options = ["--token-file", "laptop.token", "--ca", "ca.pem"];
        let connect = dir.narrows(["connect", &url].into_iter().chain(options));
        let mut stdio = StdioClient::initialized(&dir, connect);
        let session = stdio.session(&json!([]));
        // Over HTTP this comes as an event while the request for it has long been answered: nothing is held back.
        let answer = stdio.prompt(&session, "Hello");
        assert_eq!(answer["result"]["stopReason"], "end_turn", "{scheme}: {answer}");
        // More than nginx takes unless it is told to.
        let long = "x ".repeat(1 << 20);
        let answer = stdio.prompt(&session, &long);
        assert_eq!(answer["result"]["stopReason"], "end_turn", "{scheme}: {answer}");
        assert_eq!(stdio.end_with_others_running().code(), Some(0));
        let run = dir.narrows(["run", "--agent", &url].into_iter().chain(options).chain(["Hello"]));
        let told = dir.output_beside_others(run);
        assert!(told.contains("I am the demo model") && told.contains("--- exit 0 ---"), "{scheme}: {told}");
        let state = bus.state();
        assert_eq!(
            state["network_connections"]["resumed"], 0,
            "{scheme}: a stream was opened twice: {state}"
        );
        // A token that is wrong is refused behind it as before it.
        dir.file("wrong.token", "nrw_wrong\n");
        let run = ["run", "--agent", &url, "--token-file", "wrong.token", "--ca", "ca.pem", "Hi"];
        let told = dir.output_beside_others(dir.narrows(run));
        assert!(told.contains("--- exit 5 ---"), "{told}");
    }
    bus.wait_for(|state| state["clients"] == 0);
    drop(nginx);
    bus.stop();
}
