//! A simple client for an agent process on stdio.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::test_dir::TestDir;

/// A client of `narrows acp` or `narrows serve`.
pub(crate) struct StdioClient<'a> {
    dir: &'a TestDir,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    last: u64,
    /// All notifications, in order.
    pub(crate) updates: Vec<Value>,
}

pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stderr: String,
}

impl<'a> StdioClient<'a> {
    pub(crate) fn start(dir: &'a TestDir, mut command: Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("narrows starts");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { dir, child, input, output, last: 0, updates: Vec::new() }
    }

    /// Starts `command` and initializes it with version 1.
    pub(crate) fn initialized(dir: &'a TestDir, command: Command) -> Self {
        let mut stdio = Self::start(dir, command);
        let client = json!({"name": "test", "version": "1"});
        let params = json!({"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": client});
        let answer = stdio.call("initialize", &params);
        assert_eq!(answer["result"]["protocolVersion"], 1, "{answer}");
        stdio
    }

    /// Opens a session with these MCP servers and returns its id.
    pub(crate) fn session(&mut self, servers: &Value) -> String {
        let answer = self.call("session/new", &json!({"cwd": self.dir.path(), "mcpServers": servers}));
        assert!(answer["result"]["sessionId"].is_string(), "{answer}");
        answer["result"]["sessionId"].as_str().expect("a text").to_owned()
    }

    pub(crate) fn prompt(&mut self, session: &str, text: &str) -> Value {
        let prompt = json!([{"type": "text", "text": text}]);
        self.call("session/prompt", &json!({"sessionId": session, "prompt": prompt}))
    }

    /// Sends a request and waits for its response. Everything else must be a notification.
    pub(crate) fn call(&mut self, method: &str, params: &Value) -> Value {
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

    /// Sends a request, answers requests of the agent with `answer`, and waits for the response.
    pub(crate) fn call_answering(
        &mut self,
        method: &str,
        params: &Value,
        answer: impl FnMut(&Value) -> Value,
    ) -> Value {
        self.send(method, params);
        self.wait_for_response(answer)
    }

    /// Waits for the last response and answers requests of the agent.
    pub(crate) fn wait_for_response(&mut self, mut answer: impl FnMut(&Value) -> Value) -> Value {
        loop {
            let message = self.read();
            if message["method"].is_null() {
                assert_eq!(message["id"], json!(self.last), "{message}");
                return message;
            }
            if let Some(id) = message.get("id") {
                let response = json!({"jsonrpc": "2.0", "id": id, "result": answer(&message)});
                let input = self.input.as_mut().expect("its input is open");
                input.write_all(format!("{response}\n").as_bytes()).expect("the peer reads");
            } else {
                self.updates.push(message);
            }
        }
    }

    pub(crate) fn send(&mut self, method: &str, params: &Value) {
        self.last += 1;
        let request = json!({"jsonrpc": "2.0", "id": self.last, "method": method, "params": params});
        let input = self.input.as_mut().expect("its input is open");
        input.write_all(format!("{request}\n").as_bytes()).expect("the peer reads");
    }

    /// Returns the next message and keeps notifications.
    pub(crate) fn next_message(&mut self) -> Value {
        let message = self.read();
        if message.get("id").is_none() {
            self.updates.push(message.clone());
        }
        message
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the text of the agent.
    pub(crate) fn agent_text(&self) -> String {
        let chunks = self.updates.iter().map(|message| &message["params"]["update"]);
        let chunks = chunks.filter(|update| update["sessionUpdate"] == "agent_message_chunk");
        chunks.filter_map(|update| update["content"]["text"].as_str()).collect()
    }

    pub(crate) fn send_message(&mut self, message: &Value) {
        let input = self.input.as_mut().expect("its input is open");
        input.write_all(format!("{message}\n").as_bytes()).expect("the peer reads");
    }

    /// Reads a line, which must be a message.
    pub(crate) fn read(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it can be read");
        message(&line)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")).expect("not zero");
        kill_process(pid, signal).expect("the process runs");
    }

    /// Closes its input without waiting.
    pub(crate) fn close_input(&mut self) {
        drop(self.input.take());
    }

    /// Closes its input and waits until all processes have ended. Remaining output must be messages.
    pub(crate) fn end(mut self) -> Ended {
        drop(self.input.take());
        self.wait()
    }

    /// Closes its input and waits for it, while other processes are running.
    pub(crate) fn end_with_others_running(mut self) -> ExitStatus {
        drop(self.input.take());
        self.child.wait().expect("the process ends")
    }

    /// Waits until all processes have ended.
    pub(crate) fn wait(mut self) -> Ended {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("UTF-8");
        for line in rest.lines() {
            message(line);
        }
        let mut stderr = String::new();
        self.child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("UTF-8");
        let status = self.child.wait().expect("the process ends");
        self.dir.assert_no_process_left();
        Ended { status, stderr }
    }
}

/// Parses a line of stdout, which must be a message.
#[track_caller]
fn message(line: &str) -> Value {
    let message = serde_json::from_str(line).unwrap_or(Value::Null);
    assert_eq!(message["jsonrpc"], "2.0", "this is no message: {line:?}");
    message
}
