//! One connection of a client: what it has asked, what it is owed, and a check of every line that comes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use narrows_bus::config::Door;
use rustix::net::sockopt;
use serde_json::{Value, json};

use super::claims::Claim;

/// Longer than anything takes that is not lost, the longest wait of the bus included.
const PATIENCE: Duration = Duration::from_secs(30);

/// Either kind of socket.
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

/// What a request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Its answer has no tag, and it may be done twice.
    Plain,
    Echo,
    New,
    Load,
    Prompt,
    /// It is refused, and never reaches a worker.
    Giant,
    Duplicate,
}

/// A request that is not answered yet.
struct Owed {
    what: What,
    tag: String,
    session: Option<String>,
    /// What is wrong with it, and how it ends if nothing is.
    fault: &'static str,
    then: String,
    seen: u64,
    asked: bool,
}

impl Owed {
    fn new(what: What, tag: String, session: Option<String>) -> Self {
        Self { what, tag, session, fault: "", then: String::new(), seen: 0, asked: false }
    }
}

/// Whether there is more to hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Line,
    End,
}

/// A connection, and all that is remembered of it.
pub(crate) struct Conn {
    socket: BufReader<Socket>,
    client: String,
    /// The tag of everything on this connection begins with it.
    name: String,
    next: u64,
    owed: BTreeMap<u64, Vec<Owed>>,
    batches: Vec<BTreeSet<u64>>,
    /// Refusals without an id that are still to come.
    nulls: u32,
    /// It was told why it is hung up on.
    dismissed: bool,
    output: Vec<u8>,
    /// Sessions in which no turn is under way.
    pub(crate) idle: Vec<String>,
    /// Sessions that were lost, but can be loaded.
    pub(crate) lost: Vec<String>,
    loads: u32,
    /// Whether it may be hung up on.
    pub(crate) slow: bool,
    /// Whether it says nothing more, so that its turns are stopped.
    shut: bool,
    pub(crate) initialized: bool,
    pub(crate) claims: Vec<(String, Claim)>,
    /// How many answers of each kind came.
    pub(crate) tally: HashMap<i64, u64>,
    pub(crate) updates: u64,
}

impl Conn {
    pub(crate) fn open(door: &Door, client: usize, number: u64) -> Result<Self, String> {
        let socket = match door {
            Door::Tcp(at) => TcpStream::connect(at).and_then(|socket| {
                socket.set_read_timeout(Some(PATIENCE))?;
                socket.set_write_timeout(Some(PATIENCE))?;
                Ok(Socket::Tcp(socket))
            }),
            Door::Unix(at) => UnixStream::connect(at).and_then(|socket| {
                socket.set_read_timeout(Some(PATIENCE))?;
                socket.set_write_timeout(Some(PATIENCE))?;
                Ok(Socket::Unix(socket))
            }),
            Door::Stdio | Door::Web(_) => Err(ErrorKind::Unsupported.into()),
        };
        let socket = BufReader::new(socket.map_err(|error| format!("cannot connect: {error}"))?);
        Ok(Self {
            socket,
            client: format!("c{client}"),
            name: format!("c{client}.k{number}"),
            next: 0,
            owed: BTreeMap::new(),
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

    /// A tag that nothing else has.
    pub(crate) fn tag(&self) -> String {
        format!("{}.r{}", self.name, self.next)
    }

    /// The text of a request, which is owed from now on.
    fn owe(&mut self, method: &str, params: &Value, owed: Owed) -> String {
        let id = self.next;
        self.next += 1;
        self.owed.entry(id).or_default().push(owed);
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
    }

    pub(crate) fn request(&mut self, what: What, method: &str, params: &Value) {
        let (tag, session) = (self.tag(), params["sessionId"].as_str().map(str::to_owned));
        self.loads += u32::from(what == What::Load);
        let line = self.owe(method, params, Owed::new(what, tag, session));
        self.put(line.as_bytes());
    }

    pub(crate) fn echo(&mut self) {
        let params = json!({"tag": self.tag()});
        self.request(What::Echo, "_chaos/echo", &params);
    }

    /// A prompt in a session in which nothing is under way.
    pub(crate) fn prompt(&mut self, session: &str, mut order: Value, fault: &'static str) {
        let tag = self.tag();
        order["tag"] = json!(tag);
        order["fault"] = json!(fault);
        let text = json!({"type": "text", "text": order.to_string()});
        let params = json!({"sessionId": session, "prompt": [text]});
        self.idle.retain(|other| other != session);
        let session = Some(session.to_owned());
        let then = order["then"].as_str().unwrap_or_default().to_owned();
        let owed = Owed { fault, then, ..Owed::new(What::Prompt, tag, session) };
        let line = self.owe("session/prompt", &params, owed);
        self.put(line.as_bytes());
    }

    /// Several requests in one array, and something that is none.
    pub(crate) fn batch(&mut self, count: usize) {
        let mut entries = vec![r#"{"jsonrpc":"2.0","method":"_chaos/nothing"}"#.to_owned()];
        let mut ids = BTreeSet::new();
        for _ in 0..count {
            let tag = self.tag();
            ids.insert(self.next);
            let params = json!({"tag": tag});
            entries.push(self.owe("_chaos/echo", &params, Owed::new(What::Echo, tag, None)));
        }
        self.batches.push(ids);
        self.put(format!("[{}]", entries.join(",")).as_bytes());
    }

    /// A request under the id of the last one, which is not answered yet.
    pub(crate) fn duplicate(&mut self) {
        let tag = format!("{}.again", self.tag());
        let id = self.next - 1;
        self.owed.entry(id).or_default().push(Owed::new(What::Duplicate, tag.clone(), None));
        self.put(
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"_chaos/echo","params":{{"tag":"{tag}"}}}}"#)
                .as_bytes(),
        );
    }

    /// A line that is longer than may be.
    pub(crate) fn giant(&mut self, length: usize) {
        let params = json!({"tag": self.tag(), "filling": "x".repeat(length)});
        self.request(What::Giant, "_chaos/echo", &params);
    }

    /// A line that is no message.
    pub(crate) fn broken(&mut self, line: &[u8]) {
        self.nulls += 1;
        self.put(line);
    }

    pub(crate) fn notify(&mut self, method: &str, params: &Value) {
        self.put(format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#).as_bytes());
    }

    /// The id of the last request.
    pub(crate) fn last(&self) -> u64 {
        self.next - 1
    }

    fn put(&mut self, line: &[u8]) {
        self.output.extend_from_slice(line);
        self.output.push(b'\n');
    }

    /// Sends what was put; somebody who was hung up on notices when reading.
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

    /// Sends only a part of what was put: the rest is never said.
    pub(crate) fn send_part(&mut self, length: usize) -> Result<(), String> {
        self.output.truncate(length);
        self.send()
    }

    /// Ends our half.
    pub(crate) fn shut(&mut self) {
        self.shut = true;
        _ = match self.socket.get_ref() {
            Socket::Tcp(socket) => socket.shutdown(Shutdown::Write),
            Socket::Unix(socket) => socket.shutdown(Shutdown::Write),
        };
    }

    /// Makes the end of the connection a reset, if there is such a thing.
    pub(crate) fn reset(&self) {
        if let Socket::Tcp(socket) = self.socket.get_ref() {
            _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
        }
    }

    pub(crate) fn is_owed(&self) -> bool {
        !self.owed.is_empty() || self.nulls > 0
    }

    /// Hears until everything is answered.
    pub(crate) fn settle(&mut self) -> Result<Heard, String> {
        while self.is_owed() {
            if self.hear()? == Heard::End {
                return Ok(Heard::End);
            }
        }
        Ok(Heard::Line)
    }

    /// Takes one line, whatever it is.
    pub(crate) fn hear(&mut self) -> Result<Heard, String> {
        let mut line = Vec::new();
        let read = self.socket.read_until(b'\n', &mut line);
        let whole = line.ends_with(b"\n");
        match read {
            Ok(_) if whole => {}
            Err(error) if !is_gone(&error) => {
                return Err(format!("{}: nothing comes ({error}), and {}", self.name, self.list()));
            }
            _ if self.slow => return Ok(Heard::End),
            _ if self.is_owed() || !line.is_empty() => {
                let rest = String::from_utf8_lossy(&line);
                return Err(format!("{}: the connection ended ({rest:?}), and {}", self.name, self.list()));
            }
            _ => return Ok(Heard::End),
        }
        let message: Value = serde_json::from_slice(&line)
            .map_err(|_| format!("{}: no JSON: {:?}", self.name, String::from_utf8_lossy(&line)))?;
        self.take(&message).map_err(|wrong| {
            let shown: String = message.to_string().chars().take(400).collect();
            format!("{}: {wrong}: {shown}; {}", self.name, self.list())
        })?;
        Ok(Heard::Line)
    }

    /// What is owed, in words.
    fn list(&self) -> String {
        let words = |owed: &Owed| format!("{:?} {} {} seen {}", owed.what, owed.fault, owed.then, owed.seen);
        let owed: Vec<String> =
            self.owed.iter().map(|(id, all)| format!("{id} ({})", words(&all[0]))).collect();
        format!("still owed: {} and {} refusals", owed.join(", "), self.nulls)
    }

    fn take(&mut self, message: &Value) -> Result<(), String> {
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
                // Why a slow reader is hung up on, which is the last it hears.
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
        let all = self.owed.get_mut(&id).ok_or("it was answered before, or nobody has asked")?;
        let tag = message["result"]["_meta"]["tag"].as_str();
        let several = all.len() > 1;
        let place = match tag {
            _ if code == -32014 => all.iter().position(|owed| owed.what == What::Duplicate),
            Some(tag) if several => all.iter().position(|owed| owed.tag == tag),
            _ => Some(0),
        };
        let owed = all.remove(place.ok_or("it answers something else")?);
        if all.is_empty() {
            self.owed.remove(&id);
        }
        let wrong = match code {
            0 => match owed.what {
                What::Plain => false,
                What::Load => tag != Some(&self.client),
                What::Echo | What::New | What::Duplicate => tag != Some(&owed.tag),
                What::Giant => true,
                // The bus answers for a worker that is gone before it saw what is not wanted any more.
                What::Prompt if tag.is_none() => {
                    !(owed.then == "hold" || self.shut)
                        || message["result"] != json!({"stopReason": "cancelled"})
                }
                What::Prompt => {
                    tag != Some(&owed.tag)
                        || message["result"]["_meta"]["sent"].as_u64() != Some(owed.seen)
                        || matches!(owed.fault, "both" | "huge" | "exit" | "crash" | "half" | "mute")
                }
            },
            -32010 | -32011 | -32012 | -32002 => owed.what == What::Giant,
            -32602 => owed.what != What::Load || error["data"]["condition"] != "session_in_use",
            -32603 => owed.fault != "both",
            -32013 => !(owed.fault == "huge" || owed.what == What::Giant),
            -32014 => owed.what != What::Duplicate,
            // Given up on while it waited for its session.
            -32800 => owed.then != "hold" || error["data"]["effects"] != "none",
            _ => true,
        };
        if wrong {
            return Err(format!("no answer to {} ({:?} {})", owed.tag, owed.what, owed.fault));
        }
        self.settled(owed, several, message);
        Ok(())
    }

    /// Draws the conclusions of an answer.
    fn settled(&mut self, owed: Owed, several: bool, message: &Value) {
        let (result, error) = (&message["result"], &message["error"]);
        let words = error["message"].as_str().unwrap_or_default();
        let claim = match error["data"]["effects"].as_str() {
            _ if several && error.is_object() => Claim::Unknown,
            None if error.is_null() && result == &json!({"stopReason": "cancelled"}) => Claim::NotBegun,
            None if error.is_null() => Claim::Done,
            Some("none") => Claim::NotBegun,
            _ => {
                let by_itself = !words.contains("process ended: it ");
                let died = words.starts_with("the agent's process ended: ") && by_itself;
                Claim::Failed { died, seen: owed.seen }
            }
        };
        match owed.what {
            What::Plain if result["protocolVersion"] == 1 => self.initialized = true,
            What::New if error.is_null() => self.idle.extend(result["sessionId"].as_str().map(str::to_owned)),
            What::Load if error.is_null() => self.idle.extend(owed.session.clone()),
            What::Load => self.lost.extend(owed.session.clone()),
            What::Prompt if error["code"] == -32002 => self.lost.extend(owed.session.clone()),
            What::Prompt => self.idle.extend(owed.session.clone()),
            _ => {}
        }
        if matches!(owed.what, What::Echo | What::New | What::Prompt | What::Duplicate | What::Giant) {
            self.claims.push((owed.tag, claim));
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
            // A turn of an earlier connection, which goes on in a session that was taken over.
            return Ok(());
        }
        let owed = self.owed.values_mut().flatten().find(|owed| owed.tag == tag);
        let owed = owed.ok_or("an update after the end of its turn")?;
        if index == "stranger" {
            return Ok(());
        }
        if owed.session.as_deref() != Some(session) || index.parse() != Ok(owed.seen) {
            return Err(format!("not the update {} of {:?}", owed.seen, owed.session));
        }
        owed.seen += 1;
        Ok(())
    }

    fn permit(&mut self, id: &Value, params: &Value) -> Result<(), String> {
        let tag = params["toolCall"]["title"].as_str().ok_or("a permission without a tag")?.to_owned();
        if tag.split('.').next() != Some(&self.client) {
            return Err("it is somebody else's".into());
        }
        let mut outcome = json!({"outcome": "cancelled"});
        if tag.starts_with(&format!("{}.", self.name)) {
            let owed = self.owed.values_mut().flatten().find(|owed| owed.tag == tag);
            let owed = owed.ok_or("a question after the end of its turn")?;
            if std::mem::replace(&mut owed.asked, true) {
                return Err("it was asked twice".into());
            }
            outcome = json!({"outcome": "selected", "optionId": tag});
        }
        let answer = json!({"jsonrpc": "2.0", "id": id, "result": {"outcome": outcome}});
        self.put(answer.to_string().as_bytes());
        self.send()
    }

    /// What is left when nobody listens any more.
    pub(crate) fn leave(mut self) -> (Vec<(String, Claim)>, Vec<String>) {
        let mut sessions = std::mem::take(&mut self.idle);
        sessions.append(&mut self.lost);
        for owed in std::mem::take(&mut self.owed).into_values().flatten() {
            sessions.extend(owed.session.filter(|_| owed.what == What::Prompt));
            if owed.what != What::Plain && owed.what != What::Load {
                self.claims.push((owed.tag, Claim::Unknown));
            }
        }
        (self.claims, sessions)
    }
}

/// Whether the other end has hung up.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::NotConnected)
}
