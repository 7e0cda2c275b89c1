//! Runs variations of the commands and files in `docs/guides/remote-agents.md`.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::bus_support::{Bus, NARROWS, command, write};
use crate::stdio_client::StdioClient;
use crate::test_dir::{MARK, TestDir};

const PAGE: &str = include_str!("../../../../docs/guides/remote-agents.md");

/// Returns the blocks of one language below a heading.
#[track_caller]
fn blocks(heading: &str, language: &str) -> Vec<&'static str> {
    let rest = PAGE.split(&format!("\n## {heading}\n")).nth(1).expect("the section");
    let section = rest.split("\n## ").next().expect("a part before the end mark");
    let fence = format!("```{language}\n");
    section
        .split(&fence)
        .skip(1)
        .map(|block| block.split("```").next().expect("a part before the end mark"))
        .collect()
}

/// Returns the commands that create a CA, a server certificate for `localhost`, and a token.
fn server_commands() -> String {
    let blocks = blocks("A server with TLS and tokens", "sh");
    let (authority, token) = (blocks[0], blocks[1]);
    assert!(authority.starts_with("openssl") && token.starts_with("narrows token new"), "{authority}{token}");
    local(&format!("{authority}{token}"))
}

/// Returns `text` with a server name that resolves on every machine.
fn local(text: &str) -> String {
    text.replace("bus.example", "localhost")
}

/// Returns the port of the first listener.
fn port<'a>(bus: &'a Bus<'_>) -> &'a str {
    bus.at[0].rsplit(':').next().and_then(|rest| rest.split('/').next()).expect("a port")
}

/// Returns `true` if a program exists.
fn has_program(program: &str, argument: &str) -> bool {
    Command::new(program).arg(argument).output().is_ok()
}

/// Starts a bus with this file, on free ports.
fn start<'a>(dir: &'a TestDir, file: &str) -> Bus<'a> {
    let mut command = command(dir, &["--config", &write(dir, file)]);
    command.env("XDG_DATA_HOME", dir.path().join("data")).env("HOME", dir.path());
    command.env("OPENAI_BASE_URL", "builtin:demo");
    Bus::started(dir, command)
}

/// Returns the first file of the page, with a free port.
fn laptop() -> String {
    let file = blocks("Try it on one machine", "toml")[0];
    assert!(file.contains("ws://127.0.0.1:8787/acp"), "{file}");
    file.replace("127.0.0.1:8787", "127.0.0.1:0")
}

/// Returns a shell that runs `lines`, with the binary as `narrows`.
fn sh(dir: &TestDir, lines: &str) -> Command {
    let own = Path::new(NARROWS).parent().expect("a directory");
    let path = format!("{}:{}", own.display(), std::env::var("PATH").expect("PATH"));
    let mut shell = Command::new("sh");
    shell.arg("-euc").arg(lines).env_clear().env("PATH", path).env(MARK, dir.mark());
    shell.current_dir(dir.path()).stdin(Stdio::null());
    shell
}

/// Returns the stdout of a successful command.
#[track_caller]
fn done(mut shell: Command) -> String {
    let output = shell.output().expect("a shell");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn a_server_with_tls_and_tokens() {
    if !has_program("openssl", "version") {
        println!("skipped: there is no openssl");
        return;
    }
    let (dir, away) = (TestDir::new(), TestDir::new());
    let [file] = blocks("A server with TLS and tokens", "toml")[..] else { panic!("one block") };
    let blocks = blocks("A server with TLS and tokens", "sh");
    let used = blocks.iter().find(|block| block.contains("bus.example:8443")).expect("the client's command");
    done(sh(&dir, &server_commands()));
    let bus = start(&dir, &local(&file.replace("127.0.0.1:8443", "127.0.0.1:0")));
    let run = local(used).replace(":8443", &format!(":{}", port(&bus)));
    let connect = run.replace("run --agent", "connect").replace(" \"Hello\"", "");
    // Only these files are copied to the client.
    for name in ["laptop.token", "ca.pem"] {
        std::fs::copy(dir.path().join(name), away.path().join(name)).expect("a file");
    }
    let stdio = || {
        let mut stdio = StdioClient::initialized(&away, away.narrows(connect.split_whitespace().skip(1)));
        let session = stdio.session(&json!([]));
        let answer = stdio.prompt(&session, "Hello");
        assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
        assert_eq!(stdio.end().status.code(), Some(0));
    };
    stdio();
    let said = done(sh(&away, &run));
    assert!(said.contains("I am the demo model"), "{said}");
    // Without the token, and then without the CA.
    for (option, expected) in [(" --token-file laptop.token", "401"), (" --ca ca.pem", "certificate")] {
        let output = sh(&away, &run.replace(option, "")).output().expect("a shell");
        let told = String::from_utf8_lossy(&output.stderr).to_lowercase();
        assert!(output.status.code() == Some(5) && told.contains(expected), "{option}: {told}");
    }
    // A new certificate of another CA is used without a signal.
    done(sh(&dir, &local(blocks[0])));
    std::fs::copy(dir.path().join("ca.pem"), away.path().join("ca.pem")).expect("a file");
    away.wait_for(|| sh(&away, &run).output().expect("a shell").status.success());
    stdio();
    bus.stop();
}

#[test]
fn a_server_with_tls_and_certificates() {
    if !has_program("openssl", "version") {
        println!("skipped: there is no openssl");
        return;
    }
    let (dir, away) = (TestDir::new(), TestDir::new());
    let [file] = blocks("A server with TLS and tokens", "toml")[..] else { panic!("one block") };
    let [made, used] = blocks("A server with TLS and certificates", "sh")[..] else { panic!("two blocks") };
    dir.file("server.toml", &local(file));
    done(sh(&dir, &format!("{}{made}", server_commands())));
    let file = std::fs::read_to_string(dir.path().join("mtls.toml")).expect("it was made");
    let bus = start(&dir, &file.replace("127.0.0.1:8443", "127.0.0.1:0"));
    for name in ["laptop.pem", "laptop.key", "ca.pem"] {
        std::fs::copy(dir.path().join(name), away.path().join(name)).expect("a file");
    }
    let run = used.lines().find(|line| line.starts_with("narrows run")).expect("the client's command");
    let run = run.replace(":8443", &format!(":{}", port(&bus)));
    let connect = run.replace("run --agent", "connect").replace(" \"Hello\"", "");
    let talks = |command: Command| {
        let mut stdio = StdioClient::initialized(&away, command);
        let session = stdio.session(&json!([]));
        assert_eq!(stdio.prompt(&session, "Hello")["result"]["stopReason"], "end_turn");
        let state = bus.state();
        assert_eq!(state["identities"]["cert:laptop"]["clients"], 1, "{state}");
        assert_eq!(stdio.end().status.code(), Some(0));
        bus.wait_for(|state| state["clients"] == 0);
    };
    talks(away.narrows(connect.split(' ').skip(1)));
    let said = done(sh(&away, &run));
    assert!(said.contains("I am the demo model"), "{said}");
    // The settings may also be in narrows.toml, or in environment variables.
    let url = connect.split(' ').nth(2).expect("a URL");
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
    assert!(told.contains("needs its private key") && told.contains("--- exit 2 ---"), "{told}");
    // Without a client certificate, and then without its key.
    for (option, code, expected) in [
        (" --cert laptop.pem --key laptop.key", 5, "requires a client certificate"),
        (" --key laptop.key", 2, "--key <file>"),
    ] {
        let output = sh(&away, &run.replace(option, "")).output().expect("a shell");
        let told = String::from_utf8_lossy(&output.stderr).to_lowercase();
        assert!(output.status.code() == Some(code) && told.contains(expected), "{option}: {told}");
    }
    bus.stop();
}

/// A program that is killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a free port.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port()
}

/// With and without TLS. With TLS nginx uses HTTP/2, and delays the head of a response until part of its body
/// arrives.
#[test]
fn behind_nginx() {
    if !has_program("nginx", "-v") || !has_program("openssl", "version") {
        println!("skipped: there is no nginx, or no openssl");
        return;
    }
    let dir = TestDir::new();
    let file = laptop().replace("auth = \"user\"", "auth = \"token\"\ntokens = \"tokens.toml\"");
    done(sh(&dir, &server_commands()));
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
    // The output is drained, so that nginx never blocks on it.
    std::thread::spawn(move || stderr.lines().map_while(Result::ok).for_each(drop));
    dir.wait_for(|| std::net::TcpStream::connect(("127.0.0.1", tls_port)).is_ok());
    for (scheme, port) in [("ws", port), ("http", port), ("wss", tls_port), ("https", tls_port)] {
        let url = format!("{scheme}://localhost:{port}/acp");
        let options = ["--token-file", "laptop.token", "--ca", "ca.pem"];
        let connect = dir.narrows(["connect", &url].into_iter().chain(options));
        let mut stdio = StdioClient::initialized(&dir, connect);
        let session = stdio.session(&json!([]));
        // Over HTTP this update is an event after the response to its request, so no event was delayed.
        let answer = stdio.prompt(&session, "Hello");
        assert_eq!(answer["result"]["stopReason"], "end_turn", "{scheme}: {answer}");
        // More than the default limit of nginx.
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
        // A wrong token is refused behind the proxy, too.
        dir.file("wrong.token", "nrw_wrong\n");
        let run = ["run", "--agent", &url, "--token-file", "wrong.token", "--ca", "ca.pem", "Hi"];
        let told = dir.output_beside_others(dir.narrows(run));
        assert!(told.contains("--- exit 5 ---"), "{told}");
    }
    bus.wait_for(|state| state["clients"] == 0);
    drop(nginx);
    bus.stop();
}
