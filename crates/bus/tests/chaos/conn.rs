//! One connection of a client: its pending requests, and a check of every line that arrives.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use narrows_bus::config::ListenAddr;
use rustix::net::sockopt;
use serde_json::{Value, json};

use super::claims::Claim;

/// Longer than any wait for a line that is not lost, including the longest timeout of the bus.
const LINE_TIMEOUT: Duration = Duration::from_secs(30);

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.read(buffer),
            Self::Unix(socket) => socket.read(buffer),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestType {
    /// The response has no tag, and the request may be done twice.
    Plain,
    Echo,
    New,
    Load,
    Prompt,
    /// The request is refused and never reaches a worker.
    Giant,
    Duplicate,
}

struct PendingRequest {
    what: RequestType,
    tag: String,
    session: Option<String>,
    /// The injected fault, and the ending of the turn if there is no fault.
    fault: &'static str,
    then: String,
    seen: u64,
    asked: bool,
}

impl PendingRequest {
    fn new(what: RequestType, tag: String, session: Option<String>) -> Self {
        Self { what, tag, session, fault: "", then: String::new(), seen: 0, asked: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Line,
    End,
}

pub(crate) struct Conn {
    socket: BufReader<Socket>,
    client: String,
    /// The prefix of all tags on this connection.
    name: String,
    next: u64,
    pending: BTreeMap<u64, Vec<PendingRequest>>,
    batches: Vec<BTreeSet<u64>>,
    /// Number of errors without an id that are still expected.
    nulls: u32,
    /// `true` if the client got the reason why it is closed.
    dismissed: bool,
    output: Vec<u8>,
    pub(crate) idle: Vec<String>,
    /// Sessions that were lost but can be loaded.
    pub(crate) lost: Vec<String>,
    loads: u32,
    pub(crate) slow: bool,
    /// `true` if the client has ended its input, so that its turns are cancelled.
    shut: bool,
    pub(crate) initialized: bool,
    pub(crate) claims: Vec<(String, Claim)>,
    pub(crate) tally: HashMap<i64, u64>,
    pub(crate) updates: u64,
}

impl Conn {
    pub(crate) fn open(listener: &ListenAddr, client: usize, number: u64) -> Result<Self, String> {
        let socket = match listener {
            ListenAddr::Tcp(at) => TcpStream::connect(at).and_then(|socket| {
                socket.set_read_timeout(Some(LINE_TIMEOUT))?;
                socket.set_write_timeout(Some(LINE_TIMEOUT))?;
                Ok(Socket::Tcp(socket))
            }),
            ListenAddr::Unix(at) => UnixStream::connect(at).and_then(|socket| {
                socket.set_read_timeout(Some(LINE_TIMEOUT))?;
                socket.set_write_timeout(Some(LINE_TIMEOUT))?;
                Ok(Socket::Unix(socket))
            }),
            ListenAddr::Stdio | ListenAddr::Web(_) => Err(ErrorKind::Unsupported.into()),
        };
        let socket = BufReader::new(socket.map_err(|error| format!("cannot connect: {error}"))?);
        Ok(Self {
            socket,
            client: format!("c{client}"),
            name: format!("c{client}.k{number}"),
            next: 0,
            pending: BTreeMap::new(),
            batches: Vec::new(),
            nulls: 0,
            dismissed: false,
            output: Vec::new(),
            idle: Vec::new(),
            lost: Vec::new(),
            loads: 0,
            slow: false,
            shut: false,
            initialized: false,
            claims: Vec::new(),
            tally: HashMap::new(),
            updates: 0,
        })
    }

    pub(crate) fn tag(&self) -> String {
        format!("{}.r{}", self.name, self.next)
    }

    /// Returns the text of a request and records it as pending.
    fn add_pending(&mut self, method: &str, params: &Value, pending: PendingRequest) -> String {
        let id = self.next;
        self.next += 1;
        self.pending.entry(id).or_default().push(pending);
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
    }

    pub(crate) fn request(&mut self, what: RequestType, method: &str, params: &Value) {
        let (tag, session) = (self.tag(), params["sessionId"].as_str().map(str::to_owned));
        self.loads += u32::from(what == RequestType::Load);
        let line = self.add_pending(method, params, PendingRequest::new(what, tag, session));
        self.put(line.as_bytes());
    }

    pub(crate) fn echo(&mut self) {
        let params = json!({"tag": self.tag()});
        self.request(RequestType::Echo, "_chaos/echo", &params);
    }

    pub(crate) fn prompt(&mut self, session: &str, mut order: Value, fault: &'static str) {
        let tag = self.tag();
        order["tag"] = json!(tag);
        order["fault"] = json!(fault);
        let text = json!({"type": "text", "text": order.to_string()});
        let params = json!({"sessionId": session, "prompt": [text]});
        self.idle.retain(|other| other != session);
        let session = Some(session.to_owned());
        let then = order["then"].as_str().unwrap_or_default().to_owned();
        let pending =
            PendingRequest { fault, then, ..PendingRequest::new(RequestType::Prompt, tag, session) };
        let line = self.add_pending("session/prompt", &params, pending);
        self.put(line.as_bytes());
    }

    pub(crate) fn batch(&mut self, count: usize) {
        let mut entries = vec![r#"{"jsonrpc":"2.0","method":"_chaos/nothing"}"#.to_owned()];
        let mut ids = BTreeSet::new();
        for _ in 0..count {
            let tag = self.tag();
            ids.insert(self.next);
            let params = json!({"tag": tag});
            entries.push(self.add_pending(
                "_chaos/echo",
                &params,
                PendingRequest::new(RequestType::Echo, tag, None),
            ));
        }
        self.batches.push(ids);
        self.put(format!("[{}]", entries.join(",")).as_bytes());
    }

    /// Sends a request with the id of the last one, which is still pending.
    pub(crate) fn duplicate(&mut self) {
        let tag = format!("{}.again", self.tag());
        let id = self.next - 1;
        self.pending.entry(id).or_default().push(PendingRequest::new(
            RequestType::Duplicate,
            tag.clone(),
            None,
        ));
        self.put(
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"_chaos/echo","params":{{"tag":"{tag}"}}}}"#)
                .as_bytes(),
        );
    }

    pub(crate) fn send_long_line(&mut self, length: usize) {
        let params = json!({"tag": self.tag(), "filling": "x".repeat(length)});
        self.request(RequestType::Giant, "_chaos/echo", &params);
    }

    pub(crate) fn send_invalid_line(&mut self, line: &[u8]) {
        self.nulls += 1;
        self.put(line);
    }

    pub(crate) fn notify(&mut self, method: &str, params: &Value) {
        self.put(format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#).as_bytes());
    }

    pub(crate) fn last(&self) -> u64 {
        self.next - 1
    }

    fn put(&mut self, line: &[u8]) {
        self.output.extend_from_slice(line);
        self.output.push(b'\n');
    }

    pub(crate) fn send(&mut self) -> Result<(), String> {
        let output = std::mem::take(&mut self.output);
        let sent = match self.socket.get_mut() {
            Socket::Tcp(socket) => socket.write_all(&output),
            Socket::Unix(socket) => socket.write_all(&output),
        };
        match sent {
            Err(error) if is_gone(&error) => Ok(()),
            sent => sent.map_err(|error| format!("{}: cannot send: {error}", self.name)),
        }
    }

    /// Sends only a part of the queued bytes and discards the rest.
    pub(crate) fn send_part(&mut self, length: usize) -> Result<(), String> {
        self.output.truncate(length);
        self.send()
    }

    pub(crate) fn shut(&mut self) {
        self.shut = true;
        _ = match self.socket.get_ref() {
            Socket::Tcp(socket) => socket.shutdown(Shutdown::Write),
            Socket::Unix(socket) => socket.shutdown(Shutdown::Write),
        };
    }

    /// Makes the kernel end a TCP connection with a reset.
    pub(crate) fn reset(&self) {
        if let Socket::Tcp(socket) = self.socket.get_ref() {
            _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
        }
    }

    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty() || self.nulls > 0
    }

    pub(crate) fn settle(&mut self) -> Result<Progress, String> {
        while self.has_pending() {
            if self.read_line()? == Progress::End {
                return Ok(Progress::End);
            }
        }
        Ok(Progress::Line)
    }

    pub(crate) fn read_line(&mut self) -> Result<Progress, String> {
        let mut line = Vec::new();
        let read = self.socket.read_until(b'\n', &mut line);
        let whole = line.ends_with(b"\n");
        match read {
            Ok(_) if whole => {}
            Err(error) if !is_gone(&error) => {
                return Err(format!("{}: nothing comes ({error}), and {}", self.name, self.list()));
            }
            _ if self.slow => return Ok(Progress::End),
            _ if self.has_pending() || !line.is_empty() => {
                let rest = String::from_utf8_lossy(&line);
                return Err(format!("{}: the connection ended ({rest:?}), and {}", self.name, self.list()));
            }
            _ => return Ok(Progress::End),
        }
        let message: Value = serde_json::from_slice(&line)
            .map_err(|_| format!("{}: no JSON: {:?}", self.name, String::from_utf8_lossy(&line)))?;
        self.handle_message(&message).map_err(|wrong| {
            let shown: String = message.to_string().chars().take(400).collect();
            format!("{}: {wrong}: {shown}; {}", self.name, self.list())
        })?;
        Ok(Progress::Line)
    }

    fn list(&self) -> String {
        let words = |pending: &PendingRequest| {
            format!("{:?} {} {} seen {}", pending.what, pending.fault, pending.then, pending.seen)
        };
        let pending: Vec<String> =
            self.pending.iter().map(|(id, all)| format!("{id} ({})", words(&all[0]))).collect();
        format!("still owed: {} and {} refusals", pending.join(", "), self.nulls)
    }

    fn handle_message(&mut self, message: &Value) -> Result<(), String> {
        if self.dismissed {
            return Err("it comes after the reason for hanging up".into());
        }
        if let Some(answers) = message.as_array() {
            let ids = answers.iter().filter_map(|answer| answer["id"].as_u64()).collect();
            let place = self.batches.iter().position(|batch| *batch == ids);
            self.batches.swap_remove(place.ok_or("it answers no batch")?);
            return answers.iter().try_for_each(|answer| self.answered(answer));
        }
        match (message["method"].as_str(), &message["id"]) {
            (Some("session/update"), Value::Null) => self.updated(&message["params"]),
            (Some("$/cancel_request"), Value::Null) => Ok(()),
            (Some("session/request_permission"), id) if id.is_u64() => self.permit(id, &message["params"]),
            (Some(_), _) => Err("nobody says such a thing".into()),
            (None, id) => {
                if id.as_u64().is_some_and(|id| self.batches.iter().any(|batch| batch.contains(&id))) {
                    return Err("it belongs into a batch".into());
                }
                self.answered(message)
            }
        }
    }

    fn answered(&mut self, message: &Value) -> Result<(), String> {
        let error = &message["error"];
        let code = error["code"].as_i64().unwrap_or(0);
        *self.tally.entry(code).or_default() += 1;
        if message["id"].is_null() {
            if code == -32012 {
                // This is the reason why a slow reader is closed, and its last line.
                self.dismissed = true;
                return Ok(());
            }
            if !matches!(code, -32700 | -32600) {
                return Err("this is no refusal of a line".into());
            }
            self.nulls = self.nulls.checked_sub(1).ok_or("no line was wrong")?;
            return Ok(());
        }
        let id = message["id"].as_u64().ok_or("the id is nobody's")?;
        let all = self.pending.get_mut(&id).ok_or("it was answered before, or nobody has asked")?;
        let tag = message["result"]["_meta"]["tag"].as_str();
        let several = all.len() > 1;
        let place = match tag {
            _ if code == -32014 => all.iter().position(|pending| pending.what == RequestType::Duplicate),
            Some(tag) if several => all.iter().position(|pending| pending.tag == tag),
            _ => Some(0),
        };
        let pending = all.remove(place.ok_or("it answers something else")?);
        if all.is_empty() {
            self.pending.remove(&id);
        }
        let wrong = match code {
            0 => match pending.what {
                RequestType::Plain => false,
                RequestType::Load => tag != Some(&self.client),
                RequestType::Echo | RequestType::New | RequestType::Duplicate => tag != Some(&pending.tag),
                RequestType::Giant => true,
                // The bus answers cancelled requests that a lost worker never read.
                RequestType::Prompt if tag.is_none() => {
                    !(pending.then == "hold" || self.shut)
                        || message["result"] != json!({"stopReason": "cancelled"})
                }
                RequestType::Prompt => {
                    tag != Some(&pending.tag)
                        || message["result"]["_meta"]["sent"].as_u64() != Some(pending.seen)
                        || matches!(pending.fault, "both" | "huge" | "exit" | "crash" | "half" | "mute")
                }
            },
            -32010 | -32011 | -32012 | -32002 => pending.what == RequestType::Giant,
            -32602 => pending.what != RequestType::Load || error["data"]["condition"] != "session_in_use",
            -32603 => pending.fault != "both",
            -32013 => !(pending.fault == "huge" || pending.what == RequestType::Giant),
            -32014 => pending.what != RequestType::Duplicate,
            // Cancelled while it waited for its session.
            -32800 => pending.then != "hold" || error["data"]["effects"] != "none",
            _ => true,
        };
        if wrong {
            return Err(format!("no answer to {} ({:?} {})", pending.tag, pending.what, pending.fault));
        }
        self.settled(pending, several, message);
        Ok(())
    }

    fn settled(&mut self, pending: PendingRequest, several: bool, message: &Value) {
        let (result, error) = (&message["result"], &message["error"]);
        let words = error["message"].as_str().unwrap_or_default();
        let claim = match error["data"]["effects"].as_str() {
            _ if several && error.is_object() => Claim::Unknown,
            None if error.is_null() && result == &json!({"stopReason": "cancelled"}) => Claim::NotBegun,
            None if error.is_null() => Claim::Done,
            Some("none") => Claim::NotBegun,
            _ => {
                let by_itself = !words.contains("process ended: it ");
                let died = words.starts_with("agent process exited: ") && by_itself;
                Claim::Failed { died, seen: pending.seen }
            }
        };
        match pending.what {
            RequestType::Plain if result["protocolVersion"] == 1 => self.initialized = true,
            RequestType::New if error.is_null() => {
                self.idle.extend(result["sessionId"].as_str().map(str::to_owned));
            }
            RequestType::Load if error.is_null() => self.idle.extend(pending.session.clone()),
            RequestType::Load => self.lost.extend(pending.session.clone()),
            RequestType::Prompt if error["code"] == -32002 => self.lost.extend(pending.session.clone()),
            RequestType::Prompt => self.idle.extend(pending.session.clone()),
            _ => {}
        }
        if matches!(
            pending.what,
            RequestType::Echo
                | RequestType::New
                | RequestType::Prompt
                | RequestType::Duplicate
                | RequestType::Giant
        ) {
            self.claims.push((pending.tag, claim));
        }
    }

    fn updated(&mut self, params: &Value) -> Result<(), String> {
        let text = params["update"]["content"]["text"].as_str().ok_or("an update without a text")?;
        let text = text.trim_end_matches('x');
        let (tag, index) = text.split_once('#').ok_or("an update without a tag")?;
        let session = params["sessionId"].as_str().unwrap_or_default();
        if tag.split('.').next() != Some(&self.client) {
            return Err("it is somebody else's".into());
        }
        self.updates += 1;
        if tag.ends_with(".history") {
            return if self.loads > 0 { Ok(()) } else { Err("nobody wanted the history".into()) };
        }
        if !tag.starts_with(&format!("{}.", self.name)) {
            // An update of a turn that was started on an earlier connection of the session.
            return Ok(());
        }
        let pending = self.pending.values_mut().flatten().find(|pending| pending.tag == tag);
        let pending = pending.ok_or("an update after the end of its turn")?;
        if index == "stranger" {
            return Ok(());
        }
        if pending.session.as_deref() != Some(session) || index.parse() != Ok(pending.seen) {
            return Err(format!("not the update {} of {:?}", pending.seen, pending.session));
        }
        pending.seen += 1;
        Ok(())
    }

    fn permit(&mut self, id: &Value, params: &Value) -> Result<(), String> {
        let tag = params["toolCall"]["title"].as_str().ok_or("a permission without a tag")?.to_owned();
        if tag.split('.').next() != Some(&self.client) {
            return Err("it is somebody else's".into());
        }
        let mut outcome = json!({"outcome": "cancelled"});
        if tag.starts_with(&format!("{}.", self.name)) {
            let pending = self.pending.values_mut().flatten().find(|pending| pending.tag == tag);
            let pending = pending.ok_or("a question after the end of its turn")?;
            if std::mem::replace(&mut pending.asked, true) {
                return Err("it was asked twice".into());
            }
            outcome = json!({"outcome": "selected", "optionId": tag});
        }
        let answer = json!({"jsonrpc": "2.0", "id": id, "result": {"outcome": outcome}});
        self.put(answer.to_string().as_bytes());
        self.send()
    }

    /// Returns the remaining claims and sessions when the connection ends.
    pub(crate) fn leave(mut self) -> (Vec<(String, Claim)>, Vec<String>) {
        let mut sessions = std::mem::take(&mut self.idle);
        sessions.append(&mut self.lost);
        for pending in std::mem::take(&mut self.pending).into_values().flatten() {
            sessions.extend(pending.session.filter(|_| pending.what == RequestType::Prompt));
            if pending.what != RequestType::Plain && pending.what != RequestType::Load {
                self.claims.push((pending.tag, Claim::Unknown));
            }
        }
        (self.claims, sessions)
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::NotConnected)
}
