//! The SDK's agent, version 1.

use std::path::PathBuf;

use agent_client_protocol::v1::{ConnectionTo, Responder, schema};
use agent_client_protocol::{Agent, Client, ConnectTo, Error};
use tokio::sync::watch;

use super::pieces;
use super::sessions::Sessions;

pub(super) fn v1() -> impl ConnectTo<Client> {
    let sessions = Sessions::default();
    let (opening, prompting, cancelling) = (sessions.clone(), sessions.clone(), sessions);
    Agent
        .v1()
        .name("sdk-agent")
        .on_receive_request(
            async |request: schema::InitializeRequest, responder, _connection| {
                let info = schema::Implementation::new("sdk-agent", "1.0.0");
                responder.respond(schema::InitializeResponse::new(request.protocol_version).agent_info(info))
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: schema::NewSessionRequest, responder, _connection| {
                responder.respond(schema::NewSessionResponse::new(opening.open(request.cwd)))
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: schema::PromptRequest,
                        responder: Responder<schema::PromptResponse>,
                        connection: ConnectionTo<Client>| {
                let Some((cwd, cancelled)) = prompting.turn(&request.session_id.0) else {
                    return responder.respond_with_error(Error::new(-32002, "not found"));
                };
                let turn = Turn { connection: connection.clone(), request, cwd, cancelled };
                connection.spawn(async move {
                    let stop = turn.run().await?;
                    responder.respond(schema::PromptResponse::new(stop))
                })
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_notification(
            async move |notification: schema::CancelNotification, _connection: ConnectionTo<Client>| {
                cancelling.cancel(&notification.session_id.0);
                Ok(())
            },
            agent_client_protocol::on_receive_notification!(),
        )
}

struct Turn {
    connection: ConnectionTo<Client>,
    request: schema::PromptRequest,
    cwd: PathBuf,
    cancelled: watch::Receiver<bool>,
}

impl Turn {
    async fn run(mut self) -> Result<schema::StopReason, Error> {
        let prompt = self.text();
        if prompt.contains("permission") && !self.permitted().await? {
            self.send_text("You said no.")?;
            return Ok(schema::StopReason::Refusal);
        }
        if let Some((_, path)) = prompt.split_once("read ") {
            let path = self.cwd.join(path.split_whitespace().next().unwrap_or_default());
            let request = schema::ReadTextFileRequest::new(self.request.session_id.clone(), path);
            match self.connection.send_request(request).block_task().await {
                Ok(answer) => self.send_text(&format!("The file says: {}", answer.content))?,
                Err(error) => self.send_text(&format!("I cannot read it: {error}"))?,
            }
        }
        if prompt.contains("wait") {
            self.send_text("Waiting.")?;
            // Waiting cannot fail, because the agent holds the sender.
            let _ = self.cancelled.wait_for(|cancelled| *cancelled).await;
        }
        for piece in pieces(&format!("Hello from the SDK: {prompt}")) {
            if *self.cancelled.borrow() {
                return Ok(schema::StopReason::Cancelled);
            }
            self.send_text(piece)?;
        }
        Ok(schema::StopReason::EndTurn)
    }

    fn text(&self) -> String {
        let texts = self.request.prompt.iter().filter_map(|block| match block {
            schema::ContentBlock::Text(text) => Some(text.text.as_str()),
            _ => None,
        });
        texts.collect::<Vec<_>>().join(" ")
    }

    fn send_text(&self, text: &str) -> Result<(), Error> {
        let chunk = schema::ContentChunk::new(schema::ContentBlock::from(text));
        self.connection.send_notification(schema::SessionNotification::new(
            self.request.session_id.clone(),
            schema::SessionUpdate::AgentMessageChunk(chunk),
        ))
    }

    async fn permitted(&self) -> Result<bool, Error> {
        let options = vec![
            schema::PermissionOption::new("yes", "Yes", schema::PermissionOptionKind::AllowOnce),
            schema::PermissionOption::new("no", "No", schema::PermissionOptionKind::RejectOnce),
        ];
        let fields = schema::ToolCallUpdateFields::new().title("Do as you asked");
        let call = schema::ToolCallUpdate::new("sdk-tool", fields);
        let request = schema::RequestPermissionRequest::new(self.request.session_id.clone(), call, options);
        let answer = self.connection.send_request(request).block_task().await?;
        Ok(matches!(
            answer.outcome,
            schema::RequestPermissionOutcome::Selected(selected) if &*selected.option_id.0 == "yes"
        ))
    }
}
