//! Tests the built-in agent with a third-party Chat Completions server: LiteLLM, with scripted models.
//!
//! LiteLLM is installed from PyPI below the target directory, and needs no account.

mod talk;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::Outcome;
use crate::command::{cargo, target, tool, works};
use crate::step::{Failure, Steps};
use talk::{Agent, Turn};

const START_TIMEOUT: Duration = Duration::from_secs(180);

const ANSWER: &str = "The proxy says this in several pieces, as a model would say it.";

const KEY: &str = "sk-nightly";

/// The models: one that answers, one that calls a tool, and some that fail as real ones do.
const MODELS: &str = r#"model_list:
  - model_name: plain
    litellm_params:
      model: openai/plain
      api_key: none
      mock_response: "The proxy says this in several pieces, as a model would say it."
  - model_name: caller
    litellm_params: {model: nightly/caller}
  - model_name: limited
    litellm_params:
      model: openai/limited
      api_key: none
      mock_response: "litellm.RateLimitError"
  - model_name: broken
    litellm_params:
      model: openai/broken
      api_key: none
      mock_response: "litellm.InternalServerError"
general_settings:
  master_key: sk-nightly
  custom_auth: nightly.check_key
router_settings:
  num_retries: 0
  disable_cooldowns: true
litellm_settings:
  custom_provider_map:
    - {provider: nightly, custom_handler: nightly.caller}
"#;

/// Models that configuration alone cannot express: one that streams a tool call, and one that checks the
/// key without a database.
const SCRIPT: &str = r#"from litellm import CustomLLM
from litellm.proxy._types import UserAPIKeyAuth


async def check_key(request, api_key):
    if api_key != "sk-nightly":
        raise Exception("this key is not known")
    return UserAPIKeyAuth(api_key=api_key)


class Caller(CustomLLM):
    async def astreaming(self, model, messages, *args, **kwargs):
        called = messages[-1]["role"] == "tool"
        call = {"id": "call_1", "type": "function", "index": 0,
                "function": {"name": "no_such_tool", "arguments": '{"a":1}'}}
        yield {"finish_reason": "stop" if called else "tool_calls", "index": 0, "is_finished": True,
               "text": "Back from the tool." if called else "", "tool_use": None if called else call,
               "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}


caller = Caller()
"#;

pub(super) fn run() -> Result<Outcome, Failure> {
    if !works(tool("python3", &["--version"])) {
        return Ok(Outcome::Skipped("there is no python3 to run LiteLLM with".to_owned()));
    }
    let mut steps = Steps::new("model");
    let place = target().join("litellm");
    let program = place.join("bin/litellm");
    if !works(tool(&program.to_string_lossy(), &["--version"])) {
        let python = place.join("bin/python");
        let installed = steps
            .run("environment for LiteLLM", tool("python3", &["-m", "venv", &place.to_string_lossy()]))
            .and_then(|()| {
                // Without `prisma` the proxy cannot reject a wrong key, although it does not need the
                // database.
                let words = ["-m", "pip", "install", "--quiet", "litellm[proxy]", "prisma"];
                steps.run("install LiteLLM", tool(&python.to_string_lossy(), &words))
            });
        if let Err(failure) = installed {
            return Ok(Outcome::Skipped(format!("LiteLLM cannot be installed here: {}", failure.message)));
        }
    }
    steps.run("build narrows", cargo(&["build", "--package", "narrows"]))?;
    let server = Server::start(&program, &place)?;
    steps.check("turns with LiteLLM", || turns(&server))?;
    steps.finish();
    Ok(Outcome::Passed)
}

/// Runs all turns. The first wrong result ends them.
fn turns(server: &Server) -> Result<(), String> {
    let mut agent = server.agent(KEY, "plain")?;
    let session = agent.open()?;
    for model in ["plain", "caller", "limited", "broken"] {
        wants(
            session.answer.contains(&format!("\"{model}\"")),
            "the models of the proxy on offer",
            &session.answer,
        )?;
    }
    for _ in 0..2 {
        let turn = agent.prompt(&session.id, "Say it")?;
        wants(turn.text == ANSWER, "the answer, whole", &turn)?;
        wants(turn.updates > 1, "the answer in pieces", &turn)?;
        wants(turn.stop == "end_turn" && turn.error.is_none(), "a turn without a failure", &turn)?;
    }
    agent.choose(&session.id, "broken")?;
    failed(&agent.prompt(&session.id, "Break")?, "Server error (HTTP 500) from http://")?;
    agent.choose(&session.id, "limited")?;
    failed(&agent.prompt(&session.id, "Hurry")?, "Rate limit exceeded (HTTP 429) calling http://")?;
    agent.choose(&session.id, "caller")?;
    let turn = agent.prompt(&session.id, "Call it")?;
    wants(turn.calls.len() == 1, "the call, announced once", &turn)?;
    wants(turn.text == "Back from the tool.", "the answer to the result of the call", &turn)?;
    agent.choose(&session.id, "plain")?;
    let turn = agent.prompt(&session.id, "And now?")?;
    wants(turn.text == ANSWER, "an answer in a session that had failures", &turn)?;
    agent.end()?;

    let mut agent = server.agent("sk-wrong", "plain")?;
    let session = agent.open()?.id;
    failed(&agent.prompt(&session, "Let me in")?, "Authentication error (HTTP 40")?;
    agent.end()?;

    let mut agent = server.agent(KEY, "nobody")?;
    let session = agent.open()?.id;
    let turn = agent.prompt(&session, "Who is there?")?;
    failed(&turn, "HTTP error (40")?;
    wants(turn.text.contains("nobody"), "the name of the model in the words of the proxy", &turn)?;
    agent.end()
}

/// Checks that a failure is reported once to users and once to programs.
fn failed(turn: &Turn, words: &str) -> Result<(), String> {
    wants(turn.text.starts_with(words), &format!("`{words}`"), turn)?;
    wants(turn.text.matches(words).count() == 1, "the words once", turn)?;
    wants(turn.error.is_some(), "`narrows/error` for programs", turn)?;
    wants(turn.stop == "end_turn", "an ordinary end", turn)
}

fn wants(holds: bool, what: &str, found: &impl std::fmt::Debug) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("expected {what}, found {found:?}")) }
}

struct Server {
    process: Child,
    port: u16,
}

impl Server {
    fn start(program: &Path, place: &Path) -> Result<Self, Failure> {
        Self::begin(program, place)
            .map_err(|problem| Failure { code: 1, message: format!("model: {problem}") })
    }

    fn begin(program: &Path, place: &Path) -> Result<Self, String> {
        let told = |what: &str, error: std::io::Error| format!("{what}: {error}");
        let config = place.join("models.yaml");
        fs::write(&config, MODELS)
            .and_then(|()| fs::write(place.join("nightly.py"), SCRIPT))
            .map_err(|error| told("the models cannot be written", error))?;
        let log = place.join("server.log");
        let log_file = File::create(&log).map_err(|error| told("no log", error))?;
        let copy = log_file.try_clone().map_err(|error| told("no log", error))?;
        // The port was free a moment ago and is unlikely to be in use now.
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        let port = port.map_err(|error| told("no port", error))?.port();
        let mut command = Command::new(program);
        command
            .arg("--config")
            .arg(&config)
            .args(["--host", "127.0.0.1", "--port", &port.to_string()])
            // Read the price list from the package, not from the network.
            .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
            .current_dir(place)
            .stdin(Stdio::null())
            .stdout(log_file)
            .stderr(copy);
        let process = command.spawn().map_err(|error| told("LiteLLM does not start", error))?;
        let mut server = Self { process, port };
        let end = Instant::now() + START_TIMEOUT;
        while !server.is_ready() {
            let has_ended = !matches!(server.process.try_wait(), Ok(None));
            if has_ended || Instant::now() > end {
                let log = fs::read_to_string(&log).unwrap_or_default();
                let lines: Vec<&str> = log.lines().rev().take(20).collect();
                let lines: Vec<&str> = lines.into_iter().rev().collect();
                return Err(format!("LiteLLM does not answer; its last lines:\n{}", lines.join("\n")));
            }
            thread::sleep(Duration::from_millis(200));
        }
        Ok(server)
    }

    fn is_ready(&self) -> bool {
        let Ok(mut connection) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        let asked = connection.set_read_timeout(Some(Duration::from_secs(5))).and_then(|()| {
            connection.write_all(b"GET /health/liveliness HTTP/1.0\r\nhost: localhost\r\n\r\n")
        });
        let mut start = [0; 12];
        asked.is_ok() && connection.read_exact(&mut start).is_ok() && start.ends_with(b" 200")
    }

    fn agent(&self, key: &str, model: &str) -> Result<Agent, String> {
        let mut command = cargo(&["run", "--quiet", "--package", "narrows", "--", "acp", "--no-store"]);
        command
            .env("OPENAI_BASE_URL", format!("http://127.0.0.1:{}/v1", self.port))
            .env("OPENAI_API_KEY", key)
            .env("OPENAI_MODEL", model);
        Agent::start(command)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
