//! A hand-written agent for the chaos test of the bus. It does what its prompts say, faults included, and
//! logs it.
//!
//! It parses JSON-RPC without a library, so that it shares no bug with the bus. Its sessions are files below
//! `CHAOS_DIR` and outlive it, as does its log. Requests are logged before they are handled, messages after
//! they were written.

#![expect(clippy::exit, reason = "it ends like programs that crash")]

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio, exit};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use rustix::stdio::{dup2_stdin, dup2_stdout};
use serde_json::{Value, json};

/// More bytes than a line may have in this test.
const OVERSIZE_BYTES: usize = 200 << 10;

struct Worker {
    dir: PathBuf,
    log: File,
    out: File,
    sessions: HashMap<String, String>,
    /// Turns that wait for the client's answer to the agent's request, or for their end. By the id of the
    /// request.
    asked_turns: HashMap<String, Turn>,
    held: Vec<Turn>,
    count: u64,
    stdout_closed: bool,
    stdin_closed: bool,
}

struct Turn {
    id: Value,
    session: String,
    tag: String,
    sent: u64,
    fault: String,
}

fn main() -> io::Result<()> {
    let dir = PathBuf::from(std::env::var_os("CHAOS_DIR").unwrap_or_default());
    let log = dir.join("log").join(std::process::id().to_string());
    let log = OpenOptions::new().create(true).append(true).open(log)?;
    let out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    // Afterwards, closing `out` closes stdout.
    dup2_stdout(OpenOptions::new().write(true).open("/dev/null")?)?;
    let mut worker = Worker {
        dir,
        log,
        out,
        sessions: HashMap::new(),
        asked_turns: HashMap::new(),
        held: Vec::new(),
        count: 0,
        stdout_closed: false,
        stdin_closed: false,
    };
    for line in io::stdin().lock().lines() {
        worker.handle(&serde_json::from_str(&line?)?)?;
    }
    if !worker.stdin_closed {
        return Ok(());
    }
    loop {
        std::thread::park();
    }
}

impl Worker {
    fn log(&mut self, what: &str) -> io::Result<()> {
        self.log.write_all(format!("{what}\n").as_bytes())
    }

    fn log_sent(&mut self, what: &str) -> io::Result<()> {
        if self.stdout_closed { Ok(()) } else { self.log(what) }
    }

    fn send(&mut self, message: &Value) -> io::Result<()> {
        let mut line = message.to_string();
        line.push('\n');
        self.out.write_all(line.as_bytes())
    }

    fn answer(&mut self, id: &Value, result: &Value) -> io::Result<()> {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "result": result}))
    }

    fn refuse(&mut self, id: &Value, code: i32, words: &str) -> io::Result<()> {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": words}}))
    }

    fn handle(&mut self, message: &Value) -> io::Result<()> {
        let (id, params) = (&message["id"], &message["params"]);
        match message["method"].as_str() {
            Some("initialize") => {
                let mut can = json!({"loadSession": true, "sessionCapabilities": {"close": {}, "list": {}}});
                if std::env::var_os("CHAOS_RESUME").is_some() {
                    can["sessionCapabilities"]["resume"] = json!({});
                }
                self.answer(id, &json!({"protocolVersion": 1, "agentCapabilities": can, "authMethods": []}))
            }
            Some("session/new") => self.create(id, params),
            Some("session/load") => self.load(id, params, true),
            Some("session/resume") => self.load(id, params, false),
            Some("session/close") => {
                self.sessions.remove(params["sessionId"].as_str().unwrap_or_default());
                self.answer(id, &json!({}))
            }
            Some("session/list") => {
                let names = self.sessions.keys();
                let sessions: Vec<Value> = names.map(|name| json!({"sessionId": name, "cwd": "/"})).collect();
                self.answer(id, &json!({"sessions": sessions}))
            }
            Some("session/prompt") => self.prompt(id, params),
            Some("session/cancel") => self.cancel(params["sessionId"].as_str().unwrap_or_default()),
            Some("_chaos/echo") => {
                self.log(&format!("begin {}", params["tag"].as_str().unwrap_or_default()))?;
                self.answer(id, &json!({"_meta": {"tag": params["tag"]}}))
            }
            Some(_) if id.is_null() => Ok(()),
            Some(_) => self.refuse(id, -32601, "no such method"),
            None => self.handle_answer(message),
        }
    }

    fn create(&mut self, id: &Value, params: &Value) -> io::Result<()> {
        let tag = params["_meta"]["tag"].as_str().unwrap_or_default().to_owned();
        self.log(&format!("begin {tag}"))?;
        self.count += 1;
        let name = format!("s-{tag}-{}-{}", std::process::id(), self.count);
        let owner = owner(&tag).to_owned();
        fs::write(self.dir.join("sessions").join(&name), &owner)?;
        self.sessions.insert(name.clone(), owner);
        self.answer(id, &json!({"sessionId": name, "_meta": {"tag": tag}}))?;
        self.log_sent(&format!("answered {tag}"))
    }

    fn load(&mut self, id: &Value, params: &Value, replay: bool) -> io::Result<()> {
        let name = params["sessionId"].as_str().unwrap_or_default().to_owned();
        let Ok(owner) = fs::read_to_string(self.dir.join("sessions").join(&name)) else {
            return self.refuse(id, -32002, "no such session");
        };
        for index in 0..if replay { 2 } else { 0 } {
            self.update(&name, &format!("{owner}.history#{index}"))?;
        }
        self.sessions.insert(name, owner.clone());
        self.answer(id, &json!({"_meta": {"tag": owner}}))
    }

    fn update(&mut self, session: &str, text: &str) -> io::Result<()> {
        let content = json!({"type": "text", "text": text});
        let update = json!({"sessionUpdate": "agent_message_chunk", "content": content});
        let params = json!({"sessionId": session, "update": update});
        self.send(&json!({"jsonrpc": "2.0", "method": "session/update", "params": params}))
    }

    fn prompt(&mut self, id: &Value, params: &Value) -> io::Result<()> {
        let order: Value = serde_json::from_str(params["prompt"][0]["text"].as_str().unwrap_or_default())?;
        let text = |key: &str| order[key].as_str().unwrap_or_default().to_owned();
        let (tag, fault, session) =
            (text("tag"), text("fault"), params["sessionId"].as_str().unwrap_or_default().to_owned());
        self.log(&format!("begin {tag}"))?;
        match self.sessions.get(&session) {
            None => {
                self.log(&format!("stray {tag} {session}"))?;
                return self.refuse(id, -32002, "no such session");
            }
            Some(other) if other != owner(&tag) => self.log(&format!("crossed {tag} {session}"))?,
            Some(_) => {}
        }
        let updates = order["updates"].as_u64().unwrap_or(0);
        let filling = "x".repeat(usize::try_from(order["size"].as_u64().unwrap_or(0)).unwrap_or(0));
        let mut turn = Turn { id: id.clone(), session, tag, sent: 0, fault };
        for index in 0..updates {
            if index == updates / 2 {
                self.inject_fault(&turn)?;
            }
            let number = turn.sent;
            self.update(&turn.session, &format!("{}#{number}{filling}", turn.tag))?;
            turn.sent += 1;
            self.log_sent(&format!("sent {}", turn.tag))?;
            if order["slowly"] == true {
                std::thread::sleep(Duration::from_millis(2)); // sleep: an agent that thinks can be killed between two words
            }
        }
        if updates == 0 {
            self.inject_fault(&turn)?;
        }
        match order["then"].as_str() {
            Some("ask") => self.send_request(turn),
            Some("hold") => {
                self.held.push(turn);
                Ok(())
            }
            _ => self.end(&turn, "end_turn"),
        }
    }

    fn send_request(&mut self, turn: Turn) -> io::Result<()> {
        self.count += 1;
        let id = format!("ask-{}", self.count);
        let options = json!([{"optionId": turn.tag, "name": "Yes", "kind": "allow_once"}]);
        let call = json!({"toolCallId": turn.tag, "title": turn.tag});
        let params = json!({"sessionId": turn.session, "toolCall": call, "options": options});
        let method = "session/request_permission";
        self.asked_turns.insert(id.clone(), turn);
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
    }

    fn handle_answer(&mut self, message: &Value) -> io::Result<()> {
        let Some(turn) = message["id"].as_str().and_then(|id| self.asked_turns.remove(id)) else {
            return Ok(());
        };
        let outcome = &message["result"]["outcome"];
        match (outcome["outcome"].as_str(), outcome["optionId"].as_str()) {
            (Some("selected"), Some(option)) => {
                if option != turn.tag {
                    self.log(&format!("crossed {} {option}", turn.tag))?;
                }
                self.end(&turn, "end_turn")
            }
            _ => self.end(&turn, "cancelled"),
        }
    }

    fn cancel(&mut self, session: &str) -> io::Result<()> {
        let ids: Vec<String> = self
            .asked_turns
            .iter()
            .filter(|(_, turn)| turn.session == session)
            .map(|(id, _)| id.clone())
            .collect();
        let mut turns: Vec<Turn> = ids.iter().filter_map(|id| self.asked_turns.remove(id)).collect();
        let (held, others) =
            std::mem::take(&mut self.held).into_iter().partition(|turn| turn.session == session);
        self.held = others;
        turns.extend::<Vec<Turn>>(held);
        turns.iter().try_for_each(|turn| self.end(turn, "cancelled"))
    }

    fn end(&mut self, turn: &Turn, reason: &str) -> io::Result<()> {
        let mut result = json!({"stopReason": reason, "_meta": {"tag": turn.tag, "sent": turn.sent}});
        match turn.fault.as_str() {
            "both" => {
                let error = json!({"code": 1, "message": "both"});
                return self
                    .send(&json!({"jsonrpc": "2.0", "id": turn.id, "result": result, "error": error}));
            }
            "huge" => result["_meta"]["filling"] = json!("x".repeat(OVERSIZE_BYTES)),
            _ => {}
        }
        self.answer(&turn.id, &result)?;
        match turn.fault.as_str() {
            "huge" => return Ok(()),
            "twice" => self.answer(&turn.id, &result)?,
            _ => {}
        }
        self.log_sent(&format!("answered {}", turn.tag))?;
        if turn.fault == "last" {
            die();
        }
        Ok(())
    }

    fn inject_fault(&mut self, turn: &Turn) -> io::Result<()> {
        match turn.fault.as_str() {
            "exit" => exit(0),
            "crash" => die(),
            "half" => {
                self.out.write_all(br#"{"jsonrpc":"2.0","method":"session/update","params":{"sess"#)?;
                exit(3);
            }
            "noise" => self.out.write_all(b"debug: \xff\xfe this is no protocol\n")?,
            "stranger" => {
                self.answer(&json!(9_999_999), &json!({"_meta": {"tag": turn.tag}}))?;
                self.update(&format!("nobody-{}", turn.tag), &format!("{}#stranger", turn.tag))?;
            }
            "giant" => self.update(&turn.session, &"x".repeat(OVERSIZE_BYTES))?,
            "mute" => {
                self.stdout_closed = true;
                self.out = OpenOptions::new().write(true).open("/dev/null")?;
            }
            "deaf" => {
                self.stdin_closed = true;
                dup2_stdin(File::open("/dev/null")?)?;
            }
            "stop" => {
                _ = kill_process(getpid(), Signal::STOP);
            }
            // One child ignores SIGTERM and one has left the session. Both hold this stdout open.
            "daemon" => {
                let stdout = Stdio::from(self.out.try_clone()?);
                Command::new("/bin/sh")
                    .args(["-c", "trap '' TERM; setsid sleep 1000 & while :; do sleep 1000; done"])
                    .env("CHAOS_OF", std::process::id().to_string())
                    .stdin(Stdio::null())
                    .stdout(stdout)
                    .spawn()?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Kills this process like a signal from outside.
fn die() -> ! {
    _ = kill_process(getpid(), Signal::KILL);
    exit(9);
}

fn owner(tag: &str) -> &str {
    tag.split('.').next().unwrap_or_default()
}
