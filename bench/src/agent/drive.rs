//! A cheap client: it starts an agent, sends prompts and counts the updates, but parses no more of them.

use std::fmt;
use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use memchr::memmem;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// A reason why an agent could not be measured.
#[derive(Debug)]
pub(super) enum Failure {
    Pipe(io::Error),
    Silent,
    Gone,
    Strange(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pipe(error) => error.fmt(f),
            Self::Silent => write!(f, "said nothing for {} s", RESPONSE_TIMEOUT.as_secs()),
            Self::Gone => write!(f, "ended"),
            Self::Strange(what) => write!(f, "answered {what}"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Pipe(error)
    }
}

/// The output of one turn, or of several concurrent ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Heard {
    pub(super) updates: usize,
    /// Bytes of text as encoded in JSON.
    pub(super) text: usize,
}

pub(super) struct Agent {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    buffer: Vec<u8>,
    unread: std::ops::Range<usize>,
    requests: u64,
}

impl Agent {
    /// Starts an agent and waits for its answer to `initialize`.
    pub(super) fn start(mut command: Command) -> Result<Self, Failure> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::Gone);
        };
        let buffer = vec![0; 256 << 10];
        let mut agent = Self { child, stdin: Some(stdin), stdout, buffer, unread: 0..0, requests: 0 };
        let client = json!({"name": "narrows-bench", "version": env!("CARGO_PKG_VERSION")});
        let params = json!({"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": client});
        agent.ask("initialize", &params)?;
        Ok(agent)
    }

    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn open(&mut self) -> Result<String, Failure> {
        let here = std::env::current_dir()?;
        let result = self.ask("session/new", &json!({"cwd": here, "mcpServers": []}))?;
        let id = result["sessionId"].as_str();
        id.map(str::to_owned).ok_or_else(|| Failure::Strange(result.to_string()))
    }

    pub(super) fn prompt(&mut self, sessions: &[String]) -> Result<Heard, Failure> {
        let prompt = json!([{"type": "text", "text": "Go"}]);
        for session in sessions {
            self.send("session/prompt", &json!({"sessionId": session, "prompt": prompt}))?;
        }
        let mut heard = Heard::default();
        for _ in sessions {
            let result = self.answer(&mut heard)?.1;
            if result["stopReason"] != "end_turn" {
                return Err(Failure::Strange(result.to_string()));
            }
        }
        Ok(heard)
    }

    fn ask(&mut self, method: &str, params: &Value) -> Result<Value, Failure> {
        let id = self.send(method, params)?;
        match self.answer(&mut Heard::default())? {
            (answered, result) if answered == id => Ok(result),
            (_, result) => Err(Failure::Strange(result.to_string())),
        }
    }

    fn send(&mut self, method: &str, params: &Value) -> Result<u64, Failure> {
        self.requests += 1;
        let id = self.requests;
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        self.stdin.as_ref().ok_or(Failure::Gone)?.write_all((line + "\n").as_bytes())?;
        Ok(id)
    }

    /// Returns the next answer and its id. Counts the updates before it.
    fn answer(&mut self, heard: &mut Heard) -> Result<(u64, Value), Failure> {
        loop {
            let line = self.line()?;
            let line = &self.buffer[line];
            if let Some(text) = text_of_update(line) {
                heard.updates += 1;
                heard.text += text;
                continue;
            }
            let strange = || Failure::Strange(String::from_utf8_lossy(line).into_owned());
            let mut message: Value = serde_json::from_slice(line).map_err(|_| strange())?;
            if message.get("method").is_none() {
                let id = message["id"].as_u64().ok_or_else(strange)?;
                let result = message.get_mut("result").ok_or_else(strange)?;
                return Ok((id, result.take()));
            }
        }
    }

    /// Returns the position of the next line in the buffer.
    fn line(&mut self) -> Result<std::ops::Range<usize>, Failure> {
        let mut looked = 0;
        loop {
            let unread = &self.buffer[self.unread.clone()];
            if let Some(end) = memchr::memchr(b'\n', &unread[looked..]) {
                let line = self.unread.start..self.unread.start + looked + end;
                self.unread.start = line.end + 1;
                return Ok(line);
            }
            looked = unread.len();
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..looked;
            if looked == self.buffer.len() {
                self.buffer.resize(2 * looked, 0);
            }
            self.wait()?;
            match self.stdout.read(&mut self.buffer[looked..])? {
                0 => return Err(Failure::Gone),
                count => self.unread.end += count,
            }
        }
    }

    fn wait(&self) -> Result<(), Failure> {
        let patience = Timespec::try_from(RESPONSE_TIMEOUT).map_err(io::Error::other)?;
        let ready = poll(&mut [PollFd::new(&self.stdout, PollFlags::IN)], Some(&patience));
        if ready.map_err(io::Error::from)? == 0 { Err(Failure::Silent) } else { Ok(()) }
    }
}

impl Drop for Agent {
    /// Closes the agent's input so that it can exit, and kills it if it does not.
    fn drop(&mut self) {
        self.stdin.take();
        let end = Instant::now() + STOP_TIMEOUT;
        while Instant::now() < end {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        // Fails if the agent has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the bytes of text in a line, if it is a message chunk.
fn text_of_update(line: &[u8]) -> Option<usize> {
    memmem::find(line, b"agent_message_chunk")?;
    let start = memmem::find(line, b"\"text\":\"")? + 8;
    let mut at = start;
    loop {
        at += memchr::memchr2(b'"', b'\\', &line[at..])?;
        if line[at] == b'"' {
            return Some(at - start);
        }
        at = (at + 2).min(line.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_update_is_counted_as_written() {
        for (line, expected) in [
            (r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a\"b"}}"#, Some(4)),
            (r#"{"sessionUpdate":"agent_message_chunk","content":{"text":"ab\\","type":"text"}}"#, Some(4)),
            (r#"{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"ab"}}"#, None),
            (r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"ab\"#, None),
        ] {
            assert_eq!(text_of_update(line.as_bytes()), expected, "{line}");
        }
    }

    #[test]
    fn an_agent_that_sends_nonsense_or_nothing_is_a_failure() {
        let start = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Agent::start(command).err().map(|failure| failure.to_string())
        };
        assert_eq!(start("exit 3").as_deref().map(|_| ()), Some(()));
        assert_eq!(start("read line; echo hello").as_deref(), Some("answered hello"));
        let other = r#"read line; echo '{"jsonrpc":"2.0","id":7,"result":{"a":1}}'"#;
        assert_eq!(start(other).as_deref(), Some(r#"answered {"a":1}"#));
    }
}
