//! A client for one agent, with enough of the protocol for turns. Texts are compared as encoded in JSON.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

/// Time that the agent may send nothing. The agent's own retries take less.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: String,
    /// The complete answer to the request that opened the session.
    pub(super) answer: String,
}

#[derive(Debug, Default)]
pub(super) struct Turn {
    pub(super) text: String,
    pub(super) updates: usize,
    /// The update that reports a failure to programs.
    pub(super) error: Option<String>,
    pub(super) calls: Vec<String>,
    pub(super) stop: String,
}

pub(super) struct Agent {
    process: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    requests: u32,
}

impl Agent {
    /// Starts an agent and waits for its answer to `initialize`.
    pub(super) fn start(mut command: Command) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| format!("the agent does not start: {error}"))?;
        let (sender, lines) = sync_channel(64);
        if let Some(stdout) = process.stdout.take() {
            // The thread ends with the agent, or when the receiver is dropped.
            thread::spawn(move || {
                BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
            });
        }
        let stdin = process.stdin.take();
        let mut agent = Self { process, stdin, lines, requests: 0 };
        let params =
            r#"{"protocolVersion":1,"clientCapabilities":{},"clientInfo":{"name":"xtask","version":"0"}}"#;
        let answer = agent.ask("initialize", params, &mut Turn::default())?;
        if between(&answer, "\"protocolVersion\":", 1) == "1" { Ok(agent) } else { Err(answer) }
    }

    pub(super) fn open(&mut self) -> Result<Session, String> {
        let answer = self.ask("session/new", r#"{"cwd":"/","mcpServers":[]}"#, &mut Turn::default())?;
        match string(&answer, "sessionId") {
            Some(id) => Ok(Session { id: id.to_owned(), answer }),
            None => Err(answer),
        }
    }

    pub(super) fn choose(&mut self, session: &str, model: &str) -> Result<(), String> {
        let params = format!(r#"{{"sessionId":"{session}","modelId":"{model}"}}"#);
        self.ask("session/set_model", &params, &mut Turn::default()).map(drop)
    }

    pub(super) fn prompt(&mut self, session: &str, text: &str) -> Result<Turn, String> {
        let mut turn = Turn::default();
        let params = format!(r#"{{"sessionId":"{session}","prompt":[{{"type":"text","text":"{text}"}}]}}"#);
        let answer = self.ask("session/prompt", &params, &mut turn)?;
        turn.stop = string(&answer, "stopReason").unwrap_or_default().to_owned();
        Ok(turn)
    }

    /// Closes the agent's input. The agent must then exit without a failure.
    pub(super) fn end(mut self) -> Result<(), String> {
        self.stdin.take();
        match self.process.wait() {
            Ok(status) if status.success() => Ok(()),
            outcome => Err(format!("the agent failed at its end: {outcome:?}")),
        }
    }

    /// Returns the successful response to a request. Messages before it are recorded in `turn`.
    fn ask(&mut self, method: &str, params: &str, turn: &mut Turn) -> Result<String, String> {
        self.requests += 1;
        let id = self.requests;
        let line =
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n");
        let mut stdin = self.stdin.as_ref().ok_or("the agent's stdin is closed")?;
        stdin.write_all(line.as_bytes()).map_err(|error| format!("the agent does not read: {error}"))?;
        loop {
            let line = self.lines.recv_timeout(RESPONSE_TIMEOUT);
            let line = line.map_err(|_| format!("no answer to {method}"))?;
            if line.contains("\"method\":") {
                turn.record_line(line);
            } else if line.contains("\"error\":{\"code\"") {
                return Err(format!("{method} was refused: {line}"));
            } else {
                return Ok(line);
            }
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Turn {
    fn record_line(&mut self, line: String) {
        if line.contains("\"sessionUpdate\":\"tool_call\"") {
            self.calls.extend(string(&line, "toolCallId").map(str::to_owned));
        }
        if !line.contains("\"agent_message_chunk\"") {
            return;
        }
        self.updates += 1;
        self.text.push_str(string(&line, "text").unwrap_or_default());
        if line.contains("\"narrows/error\"") {
            self.error = Some(line);
        }
    }
}

/// Returns the first string member of this name, as encoded in JSON.
fn string<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let start = format!("\"{name}\":\"");
    let rest = &line[line.find(&start)? + start.len()..];
    let mut escaped = false;
    let end = rest.find(|character| {
        let is_end = character == '"' && !escaped;
        escaped = character == '\\' && !escaped;
        is_end
    })?;
    Some(&rest[..end])
}

/// Returns the `length` bytes after the first `start`.
fn between<'a>(line: &'a str, start: &str, length: usize) -> &'a str {
    let rest = line.split_once(start).map_or("", |(_, rest)| rest);
    rest.get(..length).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_found_as_written() {
        let line = r#"{"type":"text","text":"a \"b\" \\","more":"c"}"#;
        assert_eq!(string(line, "text"), Some(r#"a \"b\" \\"#));
        assert_eq!(string(line, "more"), Some("c"));
        assert_eq!(string(line, "less"), None);
    }

    #[test]
    fn a_turn_is_the_text_of_its_pieces() {
        let mut turn = Turn::default();
        for line in [
            r#"{"method":"session/update","params":{"update":{"sessionUpdate":"agent_message_chunk","content":{"text":"a"}}}}"#,
            r#"{"method":"session/update","params":{"update":{"sessionUpdate":"agent_thought_chunk","content":{"text":"b"}}}}"#,
            r#"{"method":"session/update","params":{"update":{"sessionUpdate":"agent_message_chunk","content":{"text":"c"},"_meta":{"narrows/error":{}}}}}"#,
        ] {
            turn.record_line(line.to_owned());
        }
        assert_eq!((turn.text.as_str(), turn.updates, turn.error.is_some()), ("ac", 2, true));
    }
}
