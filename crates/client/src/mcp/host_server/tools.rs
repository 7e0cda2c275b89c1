//! The built-in tools: their descriptions for models, and their execution.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::Offer;
use super::arguments::{Arguments, plain};
use crate::mcp::{CommandService, FileService, Ran, Run, ServiceError};

pub(super) const READ: &str = "read_text_file";
pub(super) const WRITE: &str = "write_text_file";
pub(super) const RUN: &str = "run_command";

/// Time limit of a command if the call names none.
const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_secs(120);
const MAX_COMMAND_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum number of output bytes that a model gets. The end of longer output is kept.
const MAX_OUTPUT_BYTES: usize = 128 * 1024;

pub(super) fn list(offer: Offer) -> Vec<Value> {
    let tools = [(offer.read, read_tool()), (offer.write, write_tool()), (offer.run, run_tool())];
    tools.into_iter().filter(|(offered, _)| *offered).map(|(_, tool)| tool).collect()
}

fn read_tool() -> Value {
    json!({
        "name": READ,
        "title": "Read a text file",
        "description": "Returns the text of a file, as it is on disk or in the user's editor.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Path of the file, absolute or from the session's directory."},
                "line": {"type": "integer", "minimum": 1, "description": "First line wanted; 1 is the first of the file."},
                "limit": {"type": "integer", "minimum": 1, "description": "How many lines are wanted at most."},
            },
            "required": ["path"],
            "additionalProperties": false,
        },
        "annotations": {"readOnlyHint": true, "openWorldHint": false},
    })
}

fn write_tool() -> Value {
    json!({
        "name": WRITE,
        "title": "Write a text file",
        "description": "Replaces the whole text of a file, or creates the file.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Path of the file, absolute or from the session's directory."},
                "content": {"type": "string", "description": "The new text of the whole file."},
            },
            "required": ["path", "content"],
            "additionalProperties": false,
        },
        "annotations": {
            "readOnlyHint": false, "destructiveHint": true, "idempotentHint": true, "openWorldHint": false,
        },
    })
}

fn run_tool() -> Value {
    json!({
        "name": RUN,
        "title": "Run a command",
        "description": "Runs a program to its end and returns what it wrote, stdout and stderr together. No shell is \
            involved: pipes, redirections and variables work only in a shell that you start yourself.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "The program, without arguments."},
                "args": {"type": "array", "items": {"type": "string"}, "description": "Its arguments, one per item."},
                "cwd": {"type": "string", "description": "Path of the directory to run it in, absolute or from the session's directory; that itself if absent."},
                "env": {
                    "type": "object",
                    "additionalProperties": {"type": "string"},
                    "description": "Further environment variables.",
                },
                "timeoutMs": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_COMMAND_TIMEOUT.as_millis() as u64,
                    "description": "After how many milliseconds it is killed; two minutes if absent.",
                },
            },
            "required": ["command"],
            "additionalProperties": false,
        },
        "outputSchema": {
            "type": "object",
            "properties": {
                "output": {"type": "string", "description": "The last of what it wrote."},
                "truncated": {"type": "boolean", "description": "Whether the beginning of the output is missing."},
                "exitCode": {"type": ["integer", "null"], "description": "Its exit code, unless a signal ended it."},
                "signal": {"type": ["string", "null"], "description": "The signal that ended it, if one did."},
                "timedOut": {"type": "boolean", "description": "Whether it was killed for taking too long."},
            },
            "required": ["output", "truncated", "exitCode", "signal", "timedOut"],
        },
        "annotations": {
            "readOnlyHint": false, "destructiveHint": true, "idempotentHint": false, "openWorldHint": true,
        },
    })
}

/// A valid call of one of the tools.
#[derive(Debug)]
pub(crate) enum ToolCall {
    Read { path: PathBuf, line: Option<u32>, limit: Option<u32> },
    Write { path: PathBuf, text: String },
    Run(Run),
}

impl ToolCall {
    /// Parses a call of a built-in tool. Returns `None` if the tool is not offered, and an error for invalid
    /// arguments.
    pub(crate) fn parse(
        offer: Offer,
        tool: &str,
        arguments: Map<String, Value>,
    ) -> Option<Result<Self, String>> {
        let read = match tool {
            READ if offer.read => Self::parse_read,
            WRITE if offer.write => Self::parse_write,
            RUN if offer.run => Self::parse_run,
            _ => return None,
        };
        let mut arguments = Arguments::new(arguments);
        Some(read(&mut arguments).and_then(|call| arguments.end().map(|()| call)))
    }

    fn parse_read(arguments: &mut Arguments) -> Result<Self, String> {
        let path = arguments.path("path")?;
        Ok(Self::Read { path, line: arguments.count("line")?, limit: arguments.count("limit")? })
    }

    fn parse_write(arguments: &mut Arguments) -> Result<Self, String> {
        Ok(Self::Write { path: arguments.path("path")?, text: arguments.text("content")? })
    }

    fn parse_run(arguments: &mut Arguments) -> Result<Self, String> {
        let program = plain("command", arguments.text("command")?)?;
        if program.trim().is_empty() {
            return Err("the argument command is empty".to_owned());
        }
        let time_limit = arguments
            .count("timeoutMs")?
            .map_or(DEFAULT_COMMAND_TIMEOUT, |ms| Duration::from_millis(ms.into()).min(MAX_COMMAND_TIMEOUT));
        Ok(Self::Run(Run {
            program,
            args: arguments.list("args")?,
            env: arguments.pairs("env")?,
            cwd: arguments.optional_path("cwd")?,
            time_limit,
            output_limit: MAX_OUTPUT_BYTES,
        }))
    }

    pub(super) async fn execute(
        self,
        files: &dyn FileService,
        commands: &dyn CommandService,
    ) -> Result<Value, String> {
        match self {
            Self::Read { path, line, limit } => {
                let text = files.read(path, line, limit).await.map_err(words)?;
                Ok(done(&[&text]))
            }
            Self::Write { path, text } => {
                let told = format!("{} bytes written", text.len());
                files.write(path, text).await.map_err(words)?;
                Ok(done(&[&told]))
            }
            Self::Run(run) => {
                let time_limit = run.time_limit;
                Ok(ran(&commands.run(run).await.map_err(words)?, time_limit))
            }
        }
    }
}

/// Returns the tool result for a command. Only a killed command counts as a failed tool call.
fn ran(ran: &Ran, time_limit: Duration) -> Value {
    let end = match (ran.timed_out, ran.code, &ran.signal) {
        (true, ..) => format!("killed: it had not ended after {time_limit:?}"),
        (false, Some(code), _) => format!("exit code {code}"),
        (false, None, Some(signal)) => format!("ended by {signal}"),
        (false, None, None) => "ended".to_owned(),
    };
    let end = if ran.truncated { format!("{end}; the beginning of the output is missing") } else { end };
    let mut result = done(&[&ran.output, &end]);
    result["structuredContent"] = json!({
        "output": ran.output,
        "truncated": ran.truncated,
        "exitCode": ran.code,
        "signal": ran.signal,
        "timedOut": ran.timed_out,
    });
    result["isError"] = ran.timed_out.into();
    result
}

pub(super) fn failed(words: &str) -> Value {
    json!({"content": [{"type": "text", "text": words}], "isError": true})
}

fn done(texts: &[&str]) -> Value {
    let content: Vec<Value> = texts.iter().map(|text| json!({"type": "text", "text": text})).collect();
    json!({"content": content, "isError": false})
}

fn words(error: ServiceError) -> String {
    error.0
}
