//! A client by hand for an agent that is a real process: sends what it is told, reads line by line.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::Place;

/// A conversation with `narrows acp`.
pub(crate) struct Talk<'a> {
    place: &'a Place,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    last: u64,
    /// Every notification that came, in order.
    pub(crate) updates: Vec<Value>,
}

/// How it ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stderr: String,
}

impl<'a> Talk<'a> {
    /// Starts `command` and speaks to it.
    pub(crate) fn start(place: &'a Place, mut command: Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("narrows starts");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { place, child, input, output, last: 0, updates: Vec::new() }
    }

    /// The same, after `initialize` with version 1.
    pub(crate) fn initialized(place: &'a Place, command: Command) -> Self {
        let mut talk = Self::start(place, command);
        let client = json!({"name": "test", "version": "1"});
        let params = json!({"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": client});
        let answer = talk.ask("initialize", &params);
        assert_eq!(answer["result"]["protocolVersion"], 1, "{answer}");
        talk
    }

    /// Opens a session with these MCP servers and returns its id.
    pub(crate) fn session(&mut self, servers: &Value) -> String {
        let answer = self.ask("session/new", &json!({"cwd": self.place.path(), "mcpServers": servers}));
        assert!(answer["result"]["sessionId"].is_string(), "{answer}");
        answer["result"]["sessionId"].as_str().expect("a text").to_owned()
    }

    /// Sends a prompt and returns its answer.
    pub(crate) fn prompt(&mut self, session: &str, text: &str) -> Value {
        let prompt = json!([{"type": "text", "text": text}]);
        self.ask("session/prompt", &json!({"sessionId": session, "prompt": prompt}))
    }

    /// Sends a request and waits for its answer. Whatever else comes is kept, and must be a notification.
    pub(crate) fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.send(method, params);
        loop {
            let message = self.read();
            if message["id"] == json!(self.last) {
                return message;
            }
            assert!(message.get("id").is_none() && message["method"].is_string(), "{message}");
            self.updates.push(message);
        }
    }

    /// The same, where what is asked of us is answered with what `answer` makes of it.
    pub(crate) fn ask_and_answer(
        &mut self,
        method: &str,
        params: &Value,
        answer: impl FnMut(&Value) -> Value,
    ) -> Value {
        self.send(method, params);
        self.hear(answer)
    }

    /// Waits for the answer to the last request; what is asked of us meanwhile is answered.
    pub(crate) fn hear(&mut self, mut answer: impl FnMut(&Value) -> Value) -> Value {
        loop {
            let message = self.read();
            if message["method"].is_null() {
                assert_eq!(message["id"], json!(self.last), "{message}");
                return message;
            }
            if let Some(id) = message.get("id") {
                let response = json!({"jsonrpc": "2.0", "id": id, "result": answer(&message)});
                let input = self.input.as_mut().expect("its input is open");
                input.write_all(format!("{response}\n").as_bytes()).expect("it reads");
            } else {
                self.updates.push(message);
            }
        }
    }

    /// Sends a request and waits for nothing.
    pub(crate) fn send(&mut self, method: &str, params: &Value) {
        self.last += 1;
        let request = json!({"jsonrpc": "2.0", "id": self.last, "method": method, "params": params});
        let input = self.input.as_mut().expect("its input is open");
        input.write_all(format!("{request}\n").as_bytes()).expect("it reads");
    }

    /// The next message, whatever it is.
    pub(crate) fn hear_one(&mut self) -> Value {
        let message = self.read();
        if message.get("id").is_none() {
            self.updates.push(message.clone());
        }
        message
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The text of everything the agent has said.
    pub(crate) fn said(&self) -> String {
        let chunks = self.updates.iter().map(|message| &message["params"]["update"]);
        let chunks = chunks.filter(|update| update["sessionUpdate"] == "agent_message_chunk");
        chunks.filter_map(|update| update["content"]["text"].as_str()).collect()
    }

    /// Sends a message as it is.
    pub(crate) fn say(&mut self, message: &Value) {
        let input = self.input.as_mut().expect("its input is open");
        input.write_all(format!("{message}\n").as_bytes()).expect("it reads");
    }

    /// The next line, which must be a message.
    pub(crate) fn read(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it can be read");
        message(&line)
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")).expect("not zero");
        kill_process(pid, signal).expect("it runs");
    }

    /// Closes its input, and reads on.
    pub(crate) fn close_input(&mut self) {
        drop(self.input.take());
    }

    /// Closes its input and waits until it and all it started has ended. What it still writes must be messages.
    pub(crate) fn end(mut self) -> Ended {
        drop(self.input.take());
        self.wait()
    }

    /// The same of one beside which others run.
    pub(crate) fn end_beside(mut self) -> ExitStatus {
        drop(self.input.take());
        self.child.wait().expect("it ends")
    }

    /// Waits until it and all it started has ended.
    pub(crate) fn wait(mut self) -> Ended {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("UTF-8");
        for line in rest.lines() {
            message(line);
        }
        let mut stderr = String::new();
        self.child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("UTF-8");
        let status = self.child.wait().expect("it ends");
        self.place.nothing_is_left();
        Ended { status, stderr }
    }
}

/// A line of its stdout, on which nothing but messages may stand.
#[track_caller]
fn message(line: &str) -> Value {
    let message = serde_json::from_str(line).unwrap_or(Value::Null);
    assert_eq!(message["jsonrpc"], "2.0", "this is no message: {line:?}");
    message
}
