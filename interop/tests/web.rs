//! The official HTTP transport at the other end: its client at our bus, and our client at its server, over both profiles.
//!
//! `NARROWS` is the binary; `cargo xtask nightly interop` builds it and says so.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use agent_client_protocol::{Channel, Client, ConnectTo, TransportFrame};
use agent_client_protocol_http::HttpClient;
use futures::StreamExt as _;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use serde_json::{Value, json};
use tokio::time::timeout;

/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(40);

/// What the agent behind the bus does.
const SCRIPT: &str = r#"
session_id = "session-{n}-{pid}"

[[turn]]
when = "ask"
steps = [
  { say = "may I? " },
  { tool = { id = "d", title = "Delete", kind = "delete", path = "a.txt" } },
  { ask = { tool = "d", title = "Delete it?", options = ["allow_once", "reject_once"], on_allow = [
    { say = "allowed" },
  ], on_reject = [
    { say = "rejected" },
  ] } },
]

[[turn]]
when = "wait"
steps = [{ say = "waiting" }, { wait_cancel = true }]

[[turn]]
when = "much"
steps = [{ repeat = { times = 500, steps = [{ say = "{n} " }] } }]

[[turn]]
steps = [{ say = "{prompt}" }]
"#;

fn narrows() -> Command {
    Command::new(std::env::var_os("NARROWS").expect("run this by `cargo xtask nightly interop`"))
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Our bus with a token, and who may come in.
struct Bus {
    home: PathBuf,
    url: String,
    token: String,
    _running: Running,
    _stderr: BufReader<std::process::ChildStderr>,
}

impl Bus {
    fn start(home: &Path) -> Self {
        let file = |name: &str, text: String| {
            std::fs::write(home.join(name), text).expect("a file");
            home.join(name)
        };
        let script = file("agent.toml", SCRIPT.to_owned());
        let tokens = home.join("tokens.toml");
        let made =
            narrows().args(["token", "new", "laptop", "--file"]).arg(&tokens).output().expect("it starts");
        let token = String::from_utf8(made.stdout).expect("a token").trim().to_owned();
        let program = narrows().get_program().to_string_lossy().into_owned();
        let config = file(
            "bus.toml",
            format!(
                "[[listen]]\nurl = \"http://127.0.0.1:0/acp\"\nauth = \"token\"\ntokens = \"tokens.toml\"\n\n\
                 [[pool]]\ncommand = [{}, \"fake-agent\", {}]\n",
                json!(program),
                json!(script)
            ),
        );
        let mut command = narrows();
        command
            .arg("bus")
            .arg("--config")
            .arg(config)
            .env("XDG_RUNTIME_DIR", home)
            .env("XDG_DATA_HOME", home);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the bus starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let running = Running(child);
        let mut said = String::new();
        while !said.contains(" listening on unix:") {
            assert!(stderr.read_line(&mut said).expect("UTF-8") > 0, "it does not listen: {said}");
        }
        let mut listens = said.lines().filter_map(|line| line.strip_prefix("listening on "));
        let url = listens.next().and_then(|line| line.split(',').next()).expect("an address").to_owned();
        // Kept open, so that it can say more.
        Self { home: home.to_owned(), url, token, _running: running, _stderr: stderr }
    }

    fn client(&self, scheme: &str) -> HttpClient {
        let mut headers = HeaderMap::new();
        let proof = HeaderValue::from_str(&format!("Bearer {}", self.token)).expect("a header");
        headers.insert(AUTHORIZATION, proof);
        let url = self.url.replacen("http", scheme, 1);
        let client = HttpClient::builder_with_endpoint(url);
        client.configure_http(|http| http.no_proxy().default_headers(headers)).build().expect("a client")
    }

    /// How many clients it has.
    fn clients(&self) -> Value {
        let mut status = narrows();
        status.args(["bus", "status", "--json"]).env("XDG_RUNTIME_DIR", &self.home);
        let output = status.output().expect("it starts");
        let state: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        state["clients"].clone()
    }
}

/// The official client, message by message.
struct Peer {
    channel: Channel,
    driver: tokio::task::JoinHandle<agent_client_protocol::Result<()>>,
}

impl Peer {
    fn connect(client: HttpClient) -> Self {
        let (channel, driver) = ConnectTo::<Client>::into_channel_and_future(client);
        Self { channel, driver: tokio::spawn(driver.expect("a driver")) }
    }

    /// Says it; who has gone does not hear it, which shows in what comes, or does not.
    fn say(&self, message: &Value) {
        let _ = self.channel.tx.unbounded_send(TransportFrame::parse_json(&message.to_string()));
    }

    fn ask(&self, id: u64, method: &str, params: &Value) {
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    async fn hear(&mut self) -> Value {
        let frame = timeout(PATIENCE, self.channel.rx.next()).await.expect("in time").expect("not the end");
        serde_json::from_str(&frame.to_json().expect("a message")).expect("JSON")
    }

    async fn answer(&mut self, id: u64) -> Value {
        loop {
            let message = self.hear().await;
            if message["id"] == id && message["method"].is_null() {
                return message;
            }
        }
    }

    async fn session(&mut self, id: u64) -> String {
        self.ask(id, "session/new", &json!({"cwd": "/", "mcpServers": []}));
        let made = self.answer(id).await;
        made["result"]["sessionId"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
    }

    fn prompt(&self, id: u64, session: &str, text: &str) {
        let prompt = json!([{"type": "text", "text": text}]);
        self.ask(id, "session/prompt", &json!({"sessionId": session, "prompt": prompt}));
    }

    /// What is said in a session until the answer comes. Questions are answered with the first option.
    async fn turn(&mut self, id: u64) -> (String, Value) {
        let mut said = String::new();
        loop {
            let message = self.hear().await;
            match message["method"].as_str() {
                Some("session/request_permission") => {
                    let option = &message["params"]["options"][0]["optionId"];
                    let outcome = json!({"outcome": {"outcome": "selected", "optionId": option}});
                    self.say(&json!({"jsonrpc": "2.0", "id": message["id"], "result": outcome}));
                }
                Some(_) => {
                    let text = &message["params"]["update"]["content"]["text"];
                    said.push_str(text.as_str().unwrap_or_default());
                }
                None if message["id"] == id => return (said, message),
                None => panic!("{message}"),
            }
        }
    }
}

async fn the_official_client_at_our_bus(scheme: &str) {
    let home = tempfile::tempdir().expect("a directory");
    let bus = Bus::start(home.path());
    let mut peer = Peer::connect(bus.client(scheme));
    peer.ask(1, "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
    let answer = peer.answer(1).await;
    assert_eq!(answer["result"]["protocolVersion"], 1, "{answer}");
    let session = peer.session(2).await;
    for (id, text, expected) in [(3, "hello", "hello"), (4, "ask", "may I? allowed")] {
        peer.prompt(id, &session, text);
        let (said, answer) = peer.turn(id).await;
        assert_eq!(
            (said.as_str(), &answer["result"]["stopReason"]),
            (expected, &json!("end_turn")),
            "{answer}"
        );
    }
    // Everything in order, however fast it comes.
    peer.prompt(5, &session, "much");
    let (said, _) = peer.turn(5).await;
    assert_eq!(said, (1..=500).map(|n| format!("{n} ")).collect::<String>());
    peer.prompt(6, &session, "wait");
    while peer.hear().await["params"]["update"]["content"]["text"] != "waiting" {}
    peer.say(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}));
    let (_, answer) = peer.turn(6).await;
    assert_eq!(answer["result"]["stopReason"], "cancelled", "{answer}");
    // Another session, and what was said in the first.
    let other = peer.session(7).await;
    assert_ne!(other, session);
    peer.ask(8, "session/load", &json!({"sessionId": session, "cwd": "/", "mcpServers": []}));
    let (said, answer) = peer.turn(8).await;
    assert!(answer["result"].is_object() && said.contains("may I? allowed"), "{said} {answer}");
    peer.ask(9, "session/prompt", &json!({"sessionId": "unknown", "prompt": []}));
    let answer = peer.answer(9).await;
    assert!(answer["error"]["code"].is_number(), "{answer}");
    drop(peer.channel);
    timeout(PATIENCE, peer.driver).await.expect("in time").expect("no panic").expect("a good end");
    let gone = async {
        while bus.clients() != 0 {
            // sleep: what another process knows can only be asked for
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, gone).await.expect("it knows that the client has gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_client_talks_to_our_bus_over_web_socket() {
    the_official_client_at_our_bus("ws").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_client_talks_to_our_bus_over_http() {
    the_official_client_at_our_bus("http").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_client_is_told_that_it_is_not_known() {
    let home = tempfile::tempdir().expect("a directory");
    let mut bus = Bus::start(home.path());
    bus.token = "nrw_wrong".to_owned();
    for scheme in ["ws", "http"] {
        let peer = Peer::connect(bus.client(scheme));
        peer.ask(1, "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
        let end = timeout(PATIENCE, peer.driver).await.expect("in time").expect("no panic");
        let error = end.expect_err("nobody is let in").to_string();
        assert!(error.contains("401"), "{scheme}: {error}");
    }
}

/// The official server with an agent in it.
struct Server {
    address: String,
    _running: Running,
}

impl Server {
    fn start() -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_http-server"));
        let mut child = command.arg("0").stdout(Stdio::piped()).spawn().expect("it starts");
        let mut address = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut address).expect("UTF-8");
        Self { address: address.trim().to_owned(), _running: Running(child) }
    }

    fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}/acp", self.address)
    }
}

/// An editor before `narrows connect`.
struct Editor {
    child: Running,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Editor {
    fn start(url: &str) -> Self {
        let mut command = narrows();
        command.args(["connect", url]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("piped"));
        Self { child: Running(child), input, output: BufReader::new(output) }
    }

    fn say(&mut self, message: &Value) {
        let line = format!("{message}\n");
        self.input.as_mut().expect("it is open").write_all(line.as_bytes()).expect("it reads");
    }

    fn ask(&mut self, id: u64, method: &str, params: &Value) {
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it can be read");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    fn text(&mut self) -> String {
        let update = self.hear();
        let text = &update["params"]["update"]["content"]["text"];
        text.as_str().unwrap_or_else(|| panic!("{update}")).to_owned()
    }

    fn prompt(&mut self, id: u64, session: &str, text: &str) {
        let prompt = json!([{"type": "text", "text": text}]);
        self.ask(id, "session/prompt", &json!({"sessionId": session, "prompt": prompt}));
    }

    fn open(&mut self) -> String {
        self.ask(1, "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
        let answer = self.hear();
        assert_eq!(answer["result"]["protocolVersion"], 1, "{answer}");
        self.ask(2, "session/new", &json!({"cwd": "/", "mcpServers": []}));
        let answer = self.hear();
        answer["result"]["sessionId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }
}

fn our_client_at_the_official_server(scheme: &str) {
    let server = Server::start();
    let url = server.url(scheme);
    let mut editor = Editor::start(&url);
    let session = editor.open();
    editor.prompt(3, &session, "hello");
    assert_eq!(editor.text(), "hello");
    assert_eq!(editor.hear()["result"]["stopReason"], "end_turn");
    editor.prompt(4, &session, "ask");
    assert_eq!(editor.text(), "ask");
    let question = editor.hear();
    assert_eq!(question["method"], "session/request_permission", "{question}");
    let outcome = json!({"outcome": {"outcome": "selected", "optionId": "yes"}});
    editor.say(&json!({"jsonrpc": "2.0", "id": question["id"], "result": outcome}));
    assert_eq!(editor.text(), " yes");
    assert_eq!(editor.hear()["result"]["stopReason"], "end_turn");
    // As much as the bench asks for, in order.
    editor.prompt(5, &session, "0000000000000500");
    for number in 0..500 {
        assert_eq!(editor.text(), format!("000000000000{number:04}"));
    }
    assert_eq!(editor.hear()["id"], 5);
    editor.prompt(6, &session, "wait");
    assert_eq!(editor.text(), "wait");
    editor.say(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}));
    assert_eq!(editor.hear()["result"]["stopReason"], "cancelled");
    editor.ask(7, "no/such/method", &json!({}));
    let answer = editor.hear();
    assert_eq!(answer["error"]["code"], -32601, "{answer}");
    drop(editor.input.take());
    assert_eq!(editor.child.0.wait().expect("it ends").code(), Some(0));
    // Driven from a terminal.
    let home = tempfile::tempdir().expect("a directory");
    let mut command = narrows();
    command.args(["run", "--agent", &url, "hello there"]).current_dir(home.path());
    command.env("XDG_CONFIG_HOME", home.path()).env("XDG_DATA_HOME", home.path());
    let output = command.output().expect("it starts");
    let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("hello there"), "{said} {told}");
}

#[test]
fn our_client_talks_to_the_official_server_over_web_socket() {
    our_client_at_the_official_server("ws");
}

#[test]
fn our_client_talks_to_the_official_server_over_http() {
    our_client_at_the_official_server("http");
}

/// A server that cannot resume: the loss is told, and what may have happened with it.
#[test]
fn the_end_of_the_official_server_is_told() {
    for scheme in ["ws", "http"] {
        let server = Server::start();
        let mut editor = Editor::start(&server.url(scheme));
        let session = editor.open();
        editor.prompt(3, &session, "wait");
        assert_eq!(editor.text(), "wait");
        drop(server);
        let answer = editor.hear();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(3), &json!(-32010)), "{answer}");
        assert_eq!(answer["error"]["data"]["effects"], "possible", "{answer}");
        assert_eq!(editor.child.0.wait().expect("it ends").code(), Some(1));
    }
}
