//! Running buses, and simple clients.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

use crate::test_dir::{MARK, TestDir};

pub(crate) const NARROWS: &str = env!("CARGO_BIN_EXE_narrows");

/// Longer than any test step, even on a loaded machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(40);

/// Returns a `narrows bus` command whose sockets are below the test directory.
pub(crate) fn command(dir: &TestDir, args: &[&str]) -> Command {
    let mut command = dir.narrows(["bus"].iter().chain(args));
    command.env("XDG_RUNTIME_DIR", dir.path().join("run"));
    command
}

/// A running bus.
pub(crate) struct Bus<'a> {
    dir: &'a TestDir,
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// The addresses of its listeners, in order.
    pub(crate) at: Vec<String>,
    pub(crate) admin: PathBuf,
    said: String,
    /// Log lines that arrived during the start. Another thread writes them, so tests may still wait for them.
    early: VecDeque<String>,
}

pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stderr: String,
}

impl<'a> Bus<'a> {
    /// Starts a bus and waits until it listens.
    pub(crate) fn start(dir: &'a TestDir, args: &[&str]) -> Self {
        Self::started(dir, command(dir, args))
    }

    /// Starts `command` and waits until the bus listens.
    pub(crate) fn started(dir: &'a TestDir, mut command: Command) -> Self {
        let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("narrows starts");
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut bus = Self {
            dir,
            child,
            stderr,
            at: Vec::new(),
            admin: PathBuf::new(),
            said: String::new(),
            early: VecDeque::new(),
        };
        let admin = bus.expect_text(" listening on unix:");
        bus.admin = admin.into();
        for line in bus.said.lines() {
            match line.strip_prefix("listening on ") {
                Some(rest) => bus.at.extend(rest.split(',').next().map(str::to_owned)),
                None if line.contains(" listening on unix:") => {}
                None => bus.early.push_back(format!("{line}\n")),
            }
        }
        bus
    }

    /// Starts a bus with a configuration file, in which `[NARROWS]` is the binary.
    pub(crate) fn from_file(dir: &'a TestDir, text: &str) -> Self {
        let file = write(dir, text);
        Self::start(dir, &["--config", &file])
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits for a line that contains `words`, and returns the rest of the line.
    #[track_caller]
    pub(crate) fn expect_text(&mut self, words: &str) -> String {
        loop {
            let line = self.next_line();
            assert!(!line.is_empty(), "it never says {words:?}, but: {}", self.said);
            if let Some((_, rest)) = line.split_once(words) {
                return rest.trim_end().to_owned();
            }
        }
    }

    /// Returns the next line, which is empty at the end.
    fn next_line(&mut self) -> String {
        if let Some(line) = self.early.pop_front() {
            return line;
        }
        let mut line = String::new();
        self.stderr.read_line(&mut line).expect("UTF-8");
        self.said.push_str(&line);
        line
    }

    /// Waits for lines that contain all of `words`, in any order: the log is written concurrently.
    #[track_caller]
    pub(crate) fn expect_lines(&mut self, words: &[&str]) {
        let mut heard = String::new();
        while !words.iter().all(|words| heard.contains(words)) {
            heard.push_str(&self.expect_text(""));
            heard.push('\n');
        }
    }

    /// Connects to the first listener.
    pub(crate) fn client(&self) -> Peer {
        self.client_at(0)
    }

    pub(crate) fn client_at(&self, number: usize) -> Peer {
        Peer::connect(&self.at[number])
    }

    /// Requests a page of the admin API.
    pub(crate) fn page(&self, page: &str) -> String {
        let mut stream = UnixStream::connect(&self.admin).expect("the file exists");
        http(&mut stream, "localhost", page)
    }

    pub(crate) fn status(&self, args: &[&str]) -> String {
        let output = command(self.dir, &[&["status"], args].concat()).output().expect("narrows starts");
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    pub(crate) fn state(&self) -> Value {
        serde_json::from_str(&self.status(&["--json"])).expect("JSON")
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, so: impl Fn(&Value) -> bool) {
        self.dir.wait_for(|| so(&self.state()));
    }

    /// Waits until the first pool has `count` ready workers.
    #[track_caller]
    pub(crate) fn wait_for_workers(&self, count: usize) {
        self.wait_for(|state| {
            let workers = state["pools"][0]["workers"].as_array().cloned().unwrap_or_default();
            workers.len() == count && workers.iter().all(|worker| worker["state"] == "ready")
        });
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")).expect("not zero");
        kill_process(pid, signal).expect("the process runs");
    }

    /// Waits until the bus and all its processes have ended.
    pub(crate) fn wait(mut self) -> Ended {
        self.stderr.read_to_string(&mut self.said).expect("UTF-8");
        let status = self.child.wait().expect("the process ends");
        self.dir.assert_no_process_left();
        Ended { code: status.code(), stderr: std::mem::take(&mut self.said) }
    }

    /// Stops the bus, which must succeed.
    #[track_caller]
    pub(crate) fn stop(self) -> String {
        self.signal(Signal::TERM);
        let ended = self.wait();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended.stderr
    }
}

/// Cleans up after a failed test.
impl Drop for Bus<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes a configuration in which `[NARROWS]` is the binary, and whose workers carry the mark of the test.
pub(crate) fn write(dir: &TestDir, text: &str) -> String {
    let text = text.replace("[NARROWS]", NARROWS).replace("[MARK]", MARK);
    dir.file("bus.toml", &text).to_str().expect("UTF-8").to_owned()
}

pub(crate) fn http<S: Read + Write>(stream: &mut S, host: &str, page: &str) -> String {
    let request = format!("GET {page} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("the peer reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("UTF-8");
    answer
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Web(Box<Web>),
}

/// A WebSocket with the interface of a line-based connection.
struct Web {
    socket: WebSocket<TcpStream>,
    rest: Vec<u8>,
    closed: Option<u16>,
}

impl Read for Web {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        while self.rest.is_empty() {
            match self.socket.read() {
                Ok(Message::Text(text)) => {
                    assert!(!text.contains('\n'), "one message in a frame: {text}");
                    self.rest.extend_from_slice(text.as_bytes());
                    self.rest.push(b'\n');
                }
                Ok(Message::Close(frame)) => self.closed = frame.map(|frame| frame.code.into()),
                Ok(message) => assert!(!message.is_binary(), "{message:?}"),
                Err(tungstenite::Error::Io(error)) => return Err(error),
                Err(_) => return Ok(0),
            }
        }
        let count = into.len().min(self.rest.len());
        into[..count].copy_from_slice(&self.rest[..count]);
        self.rest.drain(..count);
        Ok(count)
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
            Self::Web(web) => web.read(into),
        }
    }
}

pub(crate) struct Peer {
    socket: BufReader<Socket>,
    /// Messages that arrived while waiting for a response.
    pub(crate) others: Vec<Value>,
}

impl Peer {
    pub(crate) fn connect(url: &str) -> Self {
        let socket = match url.strip_prefix("tcp://") {
            Some(address) => {
                let stream = TcpStream::connect(address).expect("the server listens");
                stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a timeout");
                Socket::Tcp(stream)
            }
            None => {
                let stream = UnixStream::connect(url.strip_prefix("unix:").expect("a path"))
                    .expect("the server listens");
                stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a timeout");
                Socket::Unix(stream)
            }
        };
        Self { socket: BufReader::new(socket), others: Vec::new() }
    }

    /// Connects over WebSocket with these headers. `Err` is the HTTP status of a refusal.
    pub(crate) fn web(url: &str, headers: &[(&'static str, &str)]) -> Result<Self, u16> {
        let address = url.split_once("://").and_then(|(_, rest)| rest.split('/').next()).expect("a place");
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a timeout");
        let mut request = url.replacen("http", "ws", 1).into_client_request().expect("a request");
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().expect("a header"));
        }
        match tungstenite::client(request, stream) {
            Ok((socket, _)) => {
                let web = Box::new(Web { socket, rest: Vec::new(), closed: None });
                Ok(Self { socket: BufReader::new(Socket::Web(web)), others: Vec::new() })
            }
            Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(answer))) => {
                Err(answer.status().as_u16())
            }
            Err(error) => unreachable!("{error}"),
        }
    }

    /// Sends a binary frame.
    pub(crate) fn send_binary(&mut self, bytes: &[u8]) {
        match self.socket.get_mut() {
            Socket::Web(web) => web.socket.send(Message::binary(bytes.to_vec())).expect("the peer reads"),
            Socket::Tcp(_) | Socket::Unix(_) => unreachable!("only a WebSocket has binary frames"),
        }
    }

    pub(crate) fn closed(&mut self) -> Option<u16> {
        while let Some(message) = self.next() {
            self.others.push(message);
        }
        match self.socket.get_ref() {
            Socket::Web(web) => web.closed,
            Socket::Tcp(_) | Socket::Unix(_) => None,
        }
    }

    pub(crate) fn send(&mut self, message: &Value) {
        self.send_line(&message.to_string());
    }

    pub(crate) fn send_line(&mut self, line: &str) {
        let line = format!("{line}\n");
        let written = match self.socket.get_mut() {
            Socket::Tcp(stream) => stream.write_all(line.as_bytes()),
            Socket::Unix(stream) => stream.write_all(line.as_bytes()),
            Socket::Web(web) => {
                web.socket.send(Message::text(line.trim_end())).map_err(std::io::Error::other)
            }
        };
        written.expect("the peer reads");
    }

    /// Closes the sending direction.
    pub(crate) fn half_close(&mut self) {
        let shut = match self.socket.get_mut() {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Write),
            Socket::Web(web) => web.socket.get_mut().shutdown(Shutdown::Write),
        };
        shut.expect("it is open");
    }

    pub(crate) fn request(&mut self, id: &Value, method: &str, params: &Value) {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    /// Returns the next message. `None` after a disconnect.
    pub(crate) fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.socket.read_line(&mut line).expect("output in time") {
            0 => None,
            _ => Some(serde_json::from_str(&line).expect("JSON")),
        }
    }

    /// Waits for a response and keeps all other messages.
    #[track_caller]
    pub(crate) fn answer(&mut self, id: &Value) -> Value {
        loop {
            let message = self.next().expect("an answer");
            if message["id"] == *id && message.get("method").is_none() {
                return message;
            }
            self.others.push(message);
        }
    }

    pub(crate) fn call(&mut self, id: &Value, method: &str, params: &Value) -> Value {
        self.request(id, method, params);
        self.answer(id)
    }

    /// Waits for a message that contains `text`.
    pub(crate) fn expect_text(&mut self, text: &str) {
        while !self.agent_text().contains(text) {
            let message = self.next().expect("another message");
            self.others.push(message);
        }
    }

    /// Waits for a request of the agent.
    pub(crate) fn expect_request(&mut self, method: &str) {
        while !self.others.iter().any(|message| message["method"] == method) {
            let message = self.next().expect("another message");
            self.others.push(message);
        }
    }

    /// Initializes and opens a session, with ids from 0 on.
    #[track_caller]
    pub(crate) fn session(&mut self, dir: &TestDir) -> String {
        let answer =
            self.call(&json!(0), "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
        assert_eq!(answer["result"]["protocolVersion"], 1, "{answer}");
        let answer = self.call(&json!(1), "session/new", &json!({"cwd": dir.path(), "mcpServers": []}));
        assert!(answer["result"]["sessionId"].is_string(), "{answer}");
        answer["result"]["sessionId"].as_str().expect("a text").to_owned()
    }

    pub(crate) fn prompt(&mut self, id: &Value, session: &str, text: &str) {
        let prompt = json!([{"type": "text", "text": text}]);
        self.request(id, "session/prompt", &json!({"sessionId": session, "prompt": prompt}));
    }

    /// Returns the text of the agent.
    pub(crate) fn agent_text(&self) -> String {
        let chunks = self.others.iter().map(|message| &message["params"]["update"]);
        let chunks = chunks.filter(|update| update["sessionUpdate"] == "agent_message_chunk");
        chunks.filter_map(|update| update["content"]["text"].as_str()).collect()
    }
}
