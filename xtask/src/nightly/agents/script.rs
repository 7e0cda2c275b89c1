//! A scripted model with one answer, in three API formats: Chat Completions, Responses, Messages.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

pub(super) const ANSWER: &str = "The script says this.";

/// A prompt with this text gets the beginning of an answer that never ends.
pub(super) const WAIT: &str = "wait for ever";

/// A prompt with this text gets a tool call that writes the file.
pub(super) const WRITE: &str = "write the file";

pub(super) const CONTENT: &str = "written by the script";

/// Time for which an endless request is kept open.
const FOR_EVER: Duration = Duration::from_secs(300);

const MAX_BODY_BYTES: usize = 64 << 20;

/// The server. Its threads end with this program.
pub(super) struct Script {
    pub(super) port: u16,
}

impl Script {
    /// Listens on a free port. `file` is the file that its tool call writes.
    pub(super) fn start(file: PathBuf) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let file = file.clone();
                // Clients may disconnect in the middle of an answer.
                thread::spawn(move || drop(serve(&connection, &file)));
            }
        });
        Ok(Self { port })
    }
}

fn serve(connection: &TcpStream, file: &Path) -> io::Result<()> {
    let mut reader = BufReader::new(connection);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; std::cmp::min(length, MAX_BODY_BYTES)];
    reader.read_exact(&mut body)?;
    let reply = reply(method, path, &String::from_utf8_lossy(&body), file);
    let mut connection = connection;
    let head = format!(
        "HTTP/1.1 {}\r\ncontent-type: {}\r\nconnection: close\r\n\r\n",
        reply.status,
        if reply.streams { "text/event-stream" } else { "application/json" }
    );
    connection.write_all(head.as_bytes())?;
    if method != "HEAD" {
        connection.write_all(reply.body.as_bytes())?;
    }
    if reply.stays_open {
        connection.set_read_timeout(Some(FOR_EVER))?;
        // Waits until the client disconnects.
        let _ = connection.read(&mut [0]);
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Reply {
    status: &'static str,
    streams: bool,
    stays_open: bool,
    body: String,
}

fn reply(method: &str, path: &str, request: &str, file: &Path) -> Reply {
    let path = path.split('?').next().unwrap_or(path);
    let streams = request.contains("\"stream\":true") || request.contains("\"stream\": true");
    let waits = streams && request.contains(WAIT);
    let ok = |body: String| Reply { status: "200 OK", streams, stays_open: waits, body };
    match method {
        "GET" | "HEAD" => {
            let models = r#"{"object":"list","data":[{"id":"scripted","object":"model"}]}"#;
            Reply { streams: false, stays_open: false, ..ok(models.to_owned()) }
        }
        "POST" if path.ends_with("/chat/completions") => ok(chat(request, file, streams, waits)),
        "POST" if path.ends_with("/responses") => ok(events(&responses(waits))),
        "POST" if path.ends_with("/messages") && streams => ok(events(&messages(waits))),
        "POST" if path.ends_with("/messages") => ok(format!(
            r#"{{"id":"m","type":"message","role":"assistant","model":"scripted","content":[{{"type":"text","text":"{ANSWER}"}}],"stop_reason":"end_turn","stop_sequence":null,"usage":{{"input_tokens":1,"output_tokens":1}}}}"#
        )),
        "POST" if path.ends_with("/count_tokens") => ok(r#"{"input_tokens":1}"#.to_owned()),
        _ => Reply {
            status: "404 Not Found",
            body: r#"{"error":{"type":"not_found_error","message":"The script has no such page."}}"#
                .to_owned(),
            ..Reply::default()
        },
    }
}

/// Returns a completion, or a call of the tool that writes files if the request offers one and it was not
/// called yet.
fn chat(request: &str, file: &Path, streams: bool, waits: bool) -> String {
    let usage = r#"{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}"#;
    if !streams {
        return format!(
            r#"{{"id":"c","object":"chat.completion","created":1,"model":"scripted","choices":[{{"index":0,"message":{{"role":"assistant","content":"{ANSWER}"}},"finish_reason":"stop"}}],"usage":{usage}}}"#
        );
    }
    let chunk = |choices: String, more: String| {
        format!(
            "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"scripted\",\"choices\":[{choices}]{more}}}\n\n"
        )
    };
    let delta = |delta: String, finish: &str| {
        chunk(format!(r#"{{"index":0,"delta":{delta},"finish_reason":{finish}}}"#), String::new())
    };
    let said = |text: &str| delta(format!(r#"{{"role":"assistant","content":"{text}"}}"#), "null");
    let end = |reason: &str| {
        [
            delta("{}".to_owned(), &format!("\"{reason}\"")),
            chunk(String::new(), format!(",\"usage\":{usage}")),
            "data: [DONE]\n\n".to_owned(),
        ]
        .concat()
    };
    let (first, rest) = halves();
    if waits {
        return said(first);
    }
    match writer(request) {
        Some((tool, key)) if request.contains(WRITE) && !request.contains("\"role\":\"tool\"") => {
            let file = escaped(&escaped(&file.to_string_lossy()));
            let call = format!(
                r#"{{"role":"assistant","tool_calls":[{{"index":0,"id":"call_1","type":"function","function":{{"name":"{tool}","arguments":"{{\"{key}\":\"{file}\",\"content\":\"{CONTENT}\"}}"}}}}]}}"#
            );
            delta(call, "null") + &end("tool_calls")
        }
        _ => said(first) + &said(rest) + &end("stop"),
    }
}

/// Returns the tool of this request that writes files, and the name of its path argument.
fn writer(request: &str) -> Option<(&'static str, &'static str)> {
    [("write_file", "file_path"), ("write", "filePath")]
        .into_iter()
        .find(|(tool, _)| request.contains(&format!("\"name\":\"{tool}\"")))
}

fn responses(waits: bool) -> Vec<String> {
    let (first, rest) = halves();
    let message = |status: &str, content: String| {
        format!(
            r#"{{"type":"message","id":"m","role":"assistant","status":"{status}","content":[{content}]}}"#
        )
    };
    let said = |text: &str| {
        format!(
            r#"{{"type":"response.output_text.delta","item_id":"m","output_index":0,"content_index":0,"delta":"{text}"}}"#
        )
    };
    let item =
        message("completed", format!(r#"{{"type":"output_text","text":"{ANSWER}","annotations":[]}}"#));
    let mut events = vec![
        r#"{"type":"response.created","response":{"id":"r"}}"#.to_owned(),
        format!(
            r#"{{"type":"response.output_item.added","output_index":0,"item":{}}}"#,
            message("in_progress", String::new())
        ),
        said(first),
    ];
    if !waits {
        events.extend([
            said(rest),
            format!(r#"{{"type":"response.output_item.done","output_index":0,"item":{item}}}"#),
            format!(
                r#"{{"type":"response.completed","response":{{"id":"r","output":[{item}],"usage":{{"input_tokens":1,"output_tokens":1,"total_tokens":2}}}}}}"#
            ),
        ]);
    }
    events
}

fn messages(waits: bool) -> Vec<String> {
    let (first, rest) = halves();
    let said = |text: &str| {
        format!(
            r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"{text}"}}}}"#
        )
    };
    let mut events = vec![
        r#"{"type":"message_start","message":{"id":"m","type":"message","role":"assistant","model":"scripted","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":0}}}"#.to_owned(),
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#.to_owned(),
        said(first),
    ];
    if !waits {
        events.extend([
            said(rest),
            r#"{"type":"content_block_stop","index":0}"#.to_owned(),
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":1}}"#.to_owned(),
            r#"{"type":"message_stop"}"#.to_owned(),
        ]);
    }
    events
}

/// Returns the answer in two pieces. An endless request gets only the first.
pub(super) fn halves() -> (&'static str, &'static str) {
    ANSWER.split_at("The script".len())
}

/// Returns the payloads as events with their names.
fn events(payloads: &[String]) -> String {
    let named = |payload: &String| {
        let name = payload.split('"').nth(3).unwrap_or_default();
        format!("event: {name}\ndata: {payload}\n\n")
    };
    payloads.iter().map(named).collect()
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Asks a running server. Returns the status line and every JSON value of the answer.
    fn ask(method: &str, path: &str, body: &str) -> (String, Vec<Value>) {
        let script = Script::start(PathBuf::from("/a \"b\"/made.txt")).expect("loopback is there");
        let mut connection = TcpStream::connect(("127.0.0.1", script.port)).expect("it listens");
        let request = format!("{method} {path} HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        connection.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("it answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let lines = body.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
        let values = lines
            .filter(|line| line.starts_with('{'))
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        (head.lines().next().unwrap_or_default().to_owned(), values)
    }

    #[track_caller]
    fn check(path: &str, body: &str, pointer: &str, expected: &str) {
        let (status, values) = ask("POST", path, body);
        assert_eq!(status, "HTTP/1.1 200 OK");
        let text: String =
            values.iter().filter_map(|value| value.pointer(pointer).and_then(Value::as_str)).collect();
        assert_eq!(text, expected, "{path} {body}");
    }

    #[test]
    fn the_answer_comes_in_every_form() {
        check("/v1/chat/completions", r#"{"stream":true}"#, "/choices/0/delta/content", ANSWER);
        check("/v1/chat/completions", "{}", "/choices/0/message/content", ANSWER);
        check("/v1/responses", r#"{"stream":true}"#, "/delta", ANSWER);
        check("/v1/messages?beta=true", r#"{"stream":true}"#, "/delta/text", ANSWER);
        check("/v1/messages", "{}", "/content/0/text", ANSWER);
    }

    #[test]
    fn the_file_is_written_once_with_the_offered_tool() {
        let arguments = "/choices/0/delta/tool_calls/0/function/arguments";
        let asked = |tool: &str, role: &str| {
            format!(
                r#"{{"stream":true,"messages":[{{"role":"{role}","content":"{WRITE}"}}],"tools":[{{"name":"{tool}"}}]}}"#
            )
        };
        let call = |key: &str| format!(r#"{{"{key}":"/a \"b\"/made.txt","content":"{CONTENT}"}}"#);
        check("/v1/chat/completions", &asked("write", "user"), arguments, &call("filePath"));
        check("/v1/chat/completions", &asked("write_file", "user"), arguments, &call("file_path"));
        check("/v1/chat/completions", &asked("read", "user"), arguments, "");
        check("/v1/chat/completions", &asked("write", "tool"), "/choices/0/delta/content", ANSWER);
    }

    #[test]
    fn a_waiting_prompt_gets_only_the_beginning() {
        let body = format!(r#"{{"stream":true,"messages":[{{"role":"user","content":"{WAIT}"}}]}}"#);
        for path in ["/v1/chat/completions", "/v1/responses", "/v1/messages"] {
            let reply = reply("POST", path, &body, Path::new("x"));
            assert!(reply.stays_open, "{path}");
            assert!(reply.body.contains(halves().0) && !reply.body.contains(halves().1), "{}", reply.body);
        }
    }

    #[test]
    fn an_unknown_request_is_refused() {
        assert_eq!(ask("POST", "/v1/embeddings", "{}").0, "HTTP/1.1 404 Not Found");
        assert_eq!(ask("GET", "/v1/models", "").1[0]["data"][0]["id"], "scripted");
    }
}
