//! Requests of the agent to the client: files, terminals, and any other method.

use std::time::Duration;

use narrows_acp::method;
use narrows_rpc::CallError;
use serde_json::{Value, json};

use crate::script::step::Speaker;
use crate::step_runner::{RunEnd, StepResult, StepRunner};

/// Time for the client to release a terminal.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

impl StepRunner {
    pub(crate) async fn read(&mut self, path: &str, line: Option<u32>, limit: Option<u32>) -> StepResult {
        if !self.agent.client().read_text_file {
            return self.report_unsupported(method::FS_READ_TEXT_FILE).await;
        }
        let mut params = json!({"sessionId": self.values.session, "path": self.values.path(path)});
        if let Some(line) = line {
            params["line"] = json!(line);
        }
        if let Some(limit) = limit {
            params["limit"] = json!(limit);
        }
        let answer = self.call(method::FS_READ_TEXT_FILE, &params).await?;
        self.values.last = text(answer, "content");
        Ok(())
    }

    pub(crate) async fn write(&mut self, path: &str, content: &str) -> StepResult {
        if !self.agent.client().write_text_file {
            return self.report_unsupported(method::FS_WRITE_TEXT_FILE).await;
        }
        let path = self.values.path(path);
        let params =
            json!({"sessionId": self.values.session, "path": path, "content": self.values.fill(content)});
        let answer = self.call(method::FS_WRITE_TEXT_FILE, &params).await?;
        self.values.last = answer.err().unwrap_or_default();
        Ok(())
    }

    pub(crate) async fn terminal(
        &mut self,
        command: &[String],
        cwd: Option<&str>,
        tool: Option<&str>,
    ) -> StepResult {
        if !self.agent.client().terminal {
            return self.report_unsupported(method::TERMINAL_CREATE).await;
        }
        let mut words = command.iter().map(|word| self.values.fill(word));
        let mut params = json!({
            "sessionId": self.values.session,
            "command": words.next(),
            "args": words.collect::<Vec<_>>(),
            "cwd": cwd.map_or_else(|| self.values.cwd.clone(), |cwd| self.values.path(cwd)),
        });
        // Waiting is not cancellable: without its id, a terminal that the client creates later could not be
        // released.
        let created = self.ask_client(method::TERMINAL_CREATE, &params).await?;
        let terminal = match created {
            Ok(created) => created["terminalId"].as_str().unwrap_or_default().to_owned(),
            Err(error) => {
                self.values.last = error;
                self.values.exit.clear();
                return Ok(());
            }
        };
        self.terminals.push(terminal.clone());
        if let Some(tool) = tool {
            let content = json!([{"type": "terminal", "terminalId": terminal}]);
            let update = json!({
                "sessionUpdate": "tool_call_update",
                "toolCallId": self.values.fill(tool),
                "content": content,
            });
            self.send_update(update).await?;
        }
        params = json!({"sessionId": self.values.session, "terminalId": terminal});
        let exit = self.call(method::TERMINAL_WAIT_FOR_EXIT, &params).await?;
        self.values.exit = match exit {
            Ok(exit) => [&exit["exitCode"], &exit["signal"]]
                .into_iter()
                .find(|how| !how.is_null())
                .map_or_else(String::new, |how| how.as_str().map_or_else(|| how.to_string(), str::to_owned)),
            Err(error) => error,
        };
        let output = self.call(method::TERMINAL_OUTPUT, &params).await?;
        self.values.last = text(output, "output");
        self.release_terminals().await;
        Ok(())
    }

    pub(crate) async fn release_terminals(&mut self) {
        for terminal in std::mem::take(&mut self.terminals) {
            let params = json!({"sessionId": self.values.session, "terminalId": terminal});
            let released: Result<Value, CallError> =
                self.agent.peer.request(method::TERMINAL_RELEASE, &params, RELEASE_TIMEOUT).await;
            if let Err(error) = released {
                tracing::debug!(%error, "terminal not released by the client");
            }
        }
    }

    pub(crate) async fn request(&mut self, method: &str, params: &Value) -> StepResult {
        let params = self.values.fill_json(params);
        let answer = self.call(method, &params).await?;
        self.values.last = answer.map_or_else(|error| error, |answer| answer.to_string());
        Ok(())
    }

    /// Sends a notice that the client lacks the capability that the step needs.
    async fn report_unsupported(&mut self, method: &str) -> StepResult {
        let text = format!("(this client does not offer {method})");
        self.values.last.clone_from(&text);
        self.values.exit.clear();
        let update = self.chunk(Speaker::Message, &format!("{text}\n"));
        self.send_update(update).await
    }

    /// Sends a request. Waits for the response, or for the end of the turn.
    pub(crate) async fn call(&self, method: &str, params: &Value) -> StepResult<Result<Value, String>> {
        self.unless_cancelled(self.ask_client(method, params)).await?
    }

    /// Sends a request and waits for the response. Returns the result, or the error as text.
    async fn ask_client(&self, method: &str, params: &Value) -> StepResult<Result<Value, String>> {
        let asking = async { self.agent.peer.call(method, params).await?.response().await?.read() };
        match asking.await {
            Ok(answer) => Ok(Ok(answer)),
            Err(CallError::Lost { .. }) => Err(RunEnd::Silent),
            Err(error) => Ok(Err(format!("error: {error}"))),
        }
    }
}

/// Returns the text in the member `field` of a response. For an error, returns the error text.
fn text(answer: Result<Value, String>, field: &str) -> String {
    match answer {
        Ok(answer) => answer[field].as_str().unwrap_or_default().to_owned(),
        Err(error) => error,
    }
}
