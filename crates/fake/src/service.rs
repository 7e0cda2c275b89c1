//! What the agent asks of the client: files, terminals, and anything else.

use std::time::Duration;

use narrows_acp::method;
use narrows_rpc::CallError;
use serde_json::{Value, json};

use crate::player::{End, Flow, Player};
use crate::script::step::Voice;

/// How long the client may take to give a terminal back.
const RELEASE: Duration = Duration::from_secs(10);

impl Player {
    /// Reads a file through the client.
    pub(crate) async fn read(&mut self, path: &str, line: Option<u32>, limit: Option<u32>) -> Flow {
        if !self.agent.client().read_text_file {
            return self.lacking(method::FS_READ_TEXT_FILE).await;
        }
        let mut params = json!({"sessionId": self.facts.session, "path": self.facts.path(path)});
        if let Some(line) = line {
            params["line"] = json!(line);
        }
        if let Some(limit) = limit {
            params["limit"] = json!(limit);
        }
        let answer = self.call(method::FS_READ_TEXT_FILE, &params).await?;
        self.facts.last = text(answer, "content");
        Ok(())
    }

    /// Writes a file through the client.
    pub(crate) async fn write(&mut self, path: &str, content: &str) -> Flow {
        if !self.agent.client().write_text_file {
            return self.lacking(method::FS_WRITE_TEXT_FILE).await;
        }
        let path = self.facts.path(path);
        let params =
            json!({"sessionId": self.facts.session, "path": path, "content": self.facts.fill(content)});
        let answer = self.call(method::FS_WRITE_TEXT_FILE, &params).await?;
        self.facts.last = answer.err().unwrap_or_default();
        Ok(())
    }

    /// Runs a command in a terminal of the client, to its end.
    pub(crate) async fn terminal(
        &mut self,
        command: &[String],
        cwd: Option<&str>,
        tool: Option<&str>,
    ) -> Flow {
        if !self.agent.client().terminal {
            return self.lacking(method::TERMINAL_CREATE).await;
        }
        let mut words = command.iter().map(|word| self.facts.fill(word));
        let mut params = json!({
            "sessionId": self.facts.session,
            "command": words.next(),
            "args": words.collect::<Vec<_>>(),
            "cwd": cwd.map_or_else(|| self.facts.cwd.clone(), |cwd| self.facts.path(cwd)),
        });
        // Not to be cancelled: a terminal whose id never arrived could not be released.
        let created = self.ask_client(method::TERMINAL_CREATE, &params).await?;
        let terminal = match created {
            Ok(created) => created["terminalId"].as_str().unwrap_or_default().to_owned(),
            Err(error) => {
                self.facts.last = error;
                self.facts.exit.clear();
                return Ok(());
            }
        };
        self.terminals.push(terminal.clone());
        if let Some(tool) = tool {
            let content = json!([{"type": "terminal", "terminalId": terminal}]);
            let update = json!({
                "sessionUpdate": "tool_call_update",
                "toolCallId": self.facts.fill(tool),
                "content": content,
            });
            self.tell(update).await?;
        }
        params = json!({"sessionId": self.facts.session, "terminalId": terminal});
        let exit = self.call(method::TERMINAL_WAIT_FOR_EXIT, &params).await?;
        self.facts.exit = match exit {
            Ok(exit) => [&exit["exitCode"], &exit["signal"]]
                .into_iter()
                .find(|how| !how.is_null())
                .map_or_else(String::new, |how| how.as_str().map_or_else(|| how.to_string(), str::to_owned)),
            Err(error) => error,
        };
        let output = self.call(method::TERMINAL_OUTPUT, &params).await?;
        self.facts.last = text(output, "output");
        self.release_terminals().await;
        Ok(())
    }

    /// Gives every terminal back that has not been.
    pub(crate) async fn release_terminals(&mut self) {
        for terminal in std::mem::take(&mut self.terminals) {
            let params = json!({"sessionId": self.facts.session, "terminalId": terminal});
            let released: Result<Value, CallError> =
                self.agent.peer.request(method::TERMINAL_RELEASE, &params, RELEASE).await;
            if let Err(error) = released {
                tracing::debug!(%error, "the client did not release a terminal");
            }
        }
    }

    /// Asks the client anything.
    pub(crate) async fn request(&mut self, method: &str, params: &Value) -> Flow {
        let params = self.facts.fill_json(params);
        let answer = self.call(method, &params).await?;
        self.facts.last = answer.map_or_else(|error| error, |answer| answer.to_string());
        Ok(())
    }

    /// Says that the client cannot do what the script wants.
    async fn lacking(&mut self, method: &str) -> Flow {
        let text = format!("(this client does not offer {method})");
        self.facts.last.clone_from(&text);
        self.facts.exit.clear();
        let update = self.chunk(Voice::Message, &format!("{text}\n"));
        self.tell(update).await
    }

    /// Asks the client and waits for its answer or the end of the turn.
    pub(crate) async fn call(&self, method: &str, params: &Value) -> Flow<Result<Value, String>> {
        self.unless_cancelled(self.ask_client(method, params)).await?
    }

    /// Asks the client and waits for its answer: a result, or an error in words.
    async fn ask_client(&self, method: &str, params: &Value) -> Flow<Result<Value, String>> {
        let asking = async { self.agent.peer.call(method, params).await?.response().await?.read() };
        match asking.await {
            Ok(answer) => Ok(Ok(answer)),
            Err(CallError::Lost { .. }) => Err(End::Silent),
            Err(error) => Ok(Err(format!("error: {error}"))),
        }
    }
}

/// A text in an answer, or why there is none.
fn text(answer: Result<Value, String>, field: &str) -> String {
    match answer {
        Ok(answer) => answer[field].as_str().unwrap_or_default().to_owned(),
        Err(error) => error,
    }
}
