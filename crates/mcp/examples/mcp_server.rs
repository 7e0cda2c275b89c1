//! A handwritten MCP server with selectable faults, for the tests of this crate: `mcp_server [FAULT]
//! [NOTES]`.
//!
//! The server implements JSON-RPC without a library, so that a bug of a library cannot hide on both sides.
//! What a test must check is appended to the file NOTES.

use std::fs::OpenOptions;
use std::io::{self, BufRead, Write};
use std::process::{Command, Stdio, exit};

use serde_json::{Value, json};

struct Server {
    fault: String,
    notes: Option<String>,
    changed: bool,
    /// Id of the call that waits for answers of the client; the answers so far are in `answers`.
    asking: Option<Value>,
    answers: Vec<Value>,
}

fn main() -> io::Result<()> {
    let mut args = std::env::args().skip(1);
    let fault = args.next().unwrap_or_default();
    let mut server = Server { fault, notes: args.next(), changed: false, asking: None, answers: Vec::new() };
    server.begin()?;
    for line in io::stdin().lock().lines() {
        server.handle_message(&serde_json::from_str(&line?)?)?;
    }
    server.record("end of input");
    Ok(())
}

impl Server {
    fn begin(&mut self) -> io::Result<()> {
        match self.fault.as_str() {
            "exit" => {
                _ = writeln!(io::stderr(), "cannot find my\u{1b}[31m configuration");
                exit(1);
            }
            "garbage" | "only-garbage" => {
                let mut out = io::stdout().lock();
                out.write_all(b"Welcome to the server!\n\xff\xfe\n{}\n[]\n\n{\"level\":\"info\"}\n")?;
                out.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":99,\"result\":{")?;
                out.write_all(b"\n")?;
                out.flush()?;
            }
            "flood" => self.flood()?,
            "daemon" => {
                let null = || Stdio::null();
                let marker = self.notes.clone().unwrap_or_default();
                let script = format!("setsid sh -c 'sleep 1000; : {marker}' & sleep 1000; : {marker}");
                Command::new("sh")
                    .args(["-c", &script])
                    .stdin(null())
                    .stdout(null())
                    .stderr(null())
                    .spawn()?;
            }
            _ => {}
        }
        Ok(())
    }

    fn flood(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        for id in 0_u64.. {
            writeln!(
                out,
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":0,"progress":1}}}}"#
            )?;
            writeln!(out, r#"{{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}}"#)?;
            writeln!(out, r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#)?;
        }
        Ok(())
    }

    fn handle_message(&mut self, message: &Value) -> io::Result<()> {
        let (id, params) = (&message["id"], &message["params"]);
        match message["method"].as_str() {
            _ if self.fault == "silent" || self.fault == "only-garbage" => Ok(()),
            Some("initialize") if self.fault == "modern" => refuse(id, -32601, "there is no such method"),
            Some("initialize") => answer(
                id,
                &json!({
                    "protocolVersion": params["protocolVersion"],
                    "capabilities": {"tools": {"listChanged": true}},
                    "serverInfo": {"name": "by hand", "version": "1"},
                }),
            ),
            Some("server/discover") if self.fault == "modern" => answer(
                id,
                &json!({
                    "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private",
                    "capabilities": {"tools": {"listChanged": true}},
                    "serverInfo": {"name": "by hand", "version": "1"},
                }),
            ),
            Some("tools/list") => self.list(id, params),
            Some("tools/call") => self.call(id, params),
            Some("notifications/cancelled") => {
                self.record(&format!("cancelled {}", params["requestId"]));
                Ok(())
            }
            Some("subscriptions/listen") => {
                self.record("listening");
                Ok(())
            }
            Some(_) if id.is_null() => Ok(()),
            Some(_) => refuse(id, -32601, "there is no such method"),
            None => self.handle_notification(message),
        }
    }

    fn list(&self, id: &Value, params: &Value) -> io::Result<()> {
        let tool =
            |name: &str| json!({"name": name, "description": "a tool", "inputSchema": {"type": "object"}});
        if self.fault == "forever" {
            let page = params["cursor"].as_str().and_then(|page| page.parse().ok()).unwrap_or(0_u64);
            let next = (page + 1).to_string();
            return answer(id, &json!({"tools": [tool(&format!("tool-{page}"))], "nextCursor": next}));
        }
        if params["cursor"].is_null() {
            let mut first = tool("echo");
            first["annotations"] = json!({"readOnlyHint": true});
            return answer(id, &json!({"tools": [first, {"name": 7}], "nextCursor": "second"}));
        }
        let mut tools = vec![tool("more")];
        if self.changed {
            tools.push(tool("new"));
        }
        answer(id, &json!({"tools": tools}))
    }

    fn call(&mut self, id: &Value, params: &Value) -> io::Result<()> {
        let arguments = &params["arguments"];
        match params["name"].as_str().unwrap_or_default() {
            "echo" => {
                let content = json!([{"type": "text", "text": arguments.to_string()}]);
                answer(id, &json!({"content": content, "structuredContent": arguments}))
            }
            "fail" => {
                answer(id, &json!({"content": [{"type": "text", "text": "it broke"}], "isError": true}))
            }
            "refuse" => refuse(id, -32602, "no\nsuch tool"),
            "future" => {
                let mut out = io::stdout().lock();
                let result = r#"{"content":[], "future":{"n":1.50,"b":1,"a":[ ]},"isError":false}"#;
                writeln!(out, r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)?;
                out.flush()
            }
            "params" => answer(id, params),
            "odd" => answer(id, &json!({"content": [{"type": "hologram"}]})),
            "input" => answer(id, &json!({"resultType": "input_required", "inputRequests": {}})),
            "slow" => {
                self.record(&format!("working on {id}"));
                Ok(())
            }
            "die" => {
                _ = writeln!(io::stderr(), "out of luck");
                exit(3);
            }
            "wrong-id" => answer(&json!(4711), &json!({"content": []})),
            "deaf" => loop {
                std::thread::park();
            },
            "long" => {
                let text = "x".repeat(usize::try_from(arguments["bytes"].as_u64().unwrap_or(0)).unwrap_or(0));
                answer(id, &json!({"content": [{"type": "text", "text": text}]}))
            }
            "progress" => {
                let token = &params["_meta"]["progressToken"];
                let told = |params: Value| {
                    let message =
                        json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
                    write_message(&message)
                };
                told(json!({"progressToken": token, "progress": 1, "message": "one\nstep"}))?;
                told(json!({"progressToken": token, "progress": 2, "total": 3}))?;
                told(json!({"progressToken": "another's", "progress": 9}))?;
                told(json!({"progressToken": token, "progress": 3}))?;
                answer(id, &json!({"content": []}))
            }
            "self" => {
                let environment = std::fs::read("/proc/self/environ").unwrap_or_default();
                let environment = String::from_utf8_lossy(&environment).replace('\0', "\n");
                let text = format!("{}\n{environment}", std::env::current_dir()?.display());
                answer(id, &json!({"content": [{"type": "text", "text": text}]}))
            }
            "change" => {
                self.changed = true;
                write_message(&json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}))?;
                answer(id, &json!({"content": []}))
            }
            "ask" => {
                self.asking = Some(id.clone());
                let message = json!({"role": "user", "content": {"type": "text", "text": "?"}});
                for (id, method, params) in [
                    ("1", "sampling/createMessage", json!({"messages": [message], "maxTokens": 9})),
                    ("2", "roots/list", json!({})),
                    (
                        "3",
                        "elicitation/create",
                        json!({"message": "?", "requestedSchema": {"type": "object", "properties": {}}}),
                    ),
                    ("4", "ping", json!({})),
                    ("5", "no/such", json!({})),
                ] {
                    write_message(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))?;
                }
                Ok(())
            }
            _ => refuse(id, -32602, "no such tool"),
        }
    }

    fn handle_notification(&mut self, message: &Value) -> io::Result<()> {
        self.answers.push(message.clone());
        if self.answers.len() < 5 {
            return Ok(());
        }
        let Some(id) = self.asking.take() else { return Ok(()) };
        self.answers.sort_by_key(|answer| answer["id"].to_string());
        let told = |answer: &Value| match answer["error"]["code"].as_i64() {
            Some(code) => code.to_string(),
            None => answer["result"].to_string(),
        };
        let text: Vec<String> = self.answers.drain(..).map(|answer| told(&answer)).collect();
        answer(&id, &json!({"content": [{"type": "text", "text": text.join(" ")}]}))
    }

    fn record(&self, text: &str) {
        let Some(notes) = &self.notes else { return };
        if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(notes) {
            _ = writeln!(file, "{text}");
        }
    }
}

fn answer(id: &Value, result: &Value) -> io::Result<()> {
    write_message(&json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

fn refuse(id: &Value, code: i64, message: &str) -> io::Result<()> {
    write_message(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}))
}

fn write_message(message: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{message}")?;
    out.flush()
}
