//! The SDK's agent, version 2. Like the agent of version 1, but without files, which version 2 does not
//! have.

use agent_client_protocol::v2::{ConnectionTo, Responder, schema};
use agent_client_protocol::{Agent, Client, ConnectTo, Error};
use tokio::sync::watch;

use super::pieces;
use super::sessions::Sessions;

pub(super) fn v2() -> impl ConnectTo<Client> {
    let sessions = Sessions::default();
    let (opening, prompting, closing, cancelling) =
        (sessions.clone(), sessions.clone(), sessions.clone(), sessions);
    Agent
        .v2()
        .name("sdk-agent-v2")
        .on_receive_request(
            async |request: schema::InitializeRequest,
                   responder: Responder<schema::InitializeResponse>,
                   _connection: ConnectionTo<Client>| {
                let info = schema::Implementation::new("sdk-agent", "2.0.0");
                let can = schema::AgentCapabilities::new().session(schema::SessionCapabilities::new());
                responder.respond(
                    schema::InitializeResponse::new(request.protocol_version, info).capabilities(can),
                )
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: schema::NewSessionRequest,
                        responder: Responder<schema::NewSessionResponse>,
                        _connection: ConnectionTo<Client>| {
                responder.respond(schema::NewSessionResponse::new(opening.open(request.cwd.0)))
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: schema::CloseSessionRequest,
                        responder: Responder<schema::CloseSessionResponse>,
                        _connection: ConnectionTo<Client>| {
                closing.cancel(&request.session_id.0);
                responder.respond(schema::CloseSessionResponse::new())
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: schema::PromptRequest,
                        responder: Responder<schema::PromptResponse>,
                        connection: ConnectionTo<Client>| {
                let Some((_, cancelled)) = prompting.turn(&request.session_id.0) else {
                    return responder.respond_with_error(Error::new(-32002, "not found"));
                };
                responder.respond(schema::PromptResponse::new("sdk-prompt"))?;
                let turn = Turn { connection: connection.clone(), request, cancelled };
                connection.spawn(turn.run())
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_notification(
            async move |notification: schema::CancelSessionNotification,
                        _connection: ConnectionTo<Client>| {
                cancelling.cancel(&notification.session_id.0);
                Ok(())
            },
            agent_client_protocol::on_receive_notification!(),
        )
}

struct Turn {
    connection: ConnectionTo<Client>,
    request: schema::PromptRequest,
    cancelled: watch::Receiver<bool>,
}

impl Turn {
    async fn run(mut self) -> Result<(), Error> {
        let echo = schema::UserMessage::new("sdk-prompt").content(self.request.prompt.clone());
        self.send_update(schema::SessionUpdate::UserMessage(echo))?;
        self.send_update(schema::SessionUpdate::StateUpdate(schema::StateUpdate::Running(
            schema::RunningStateUpdate::new(),
        )))?;
        let stop = self.speak().await?;
        self.send_update(schema::SessionUpdate::StateUpdate(schema::StateUpdate::Idle(
            schema::IdleStateUpdate::new().stop_reason(stop),
        )))
    }

    async fn speak(&mut self) -> Result<schema::StopReason, Error> {
        let texts = self.request.prompt.iter().filter_map(|block| match block {
            schema::ContentBlock::Text(text) => Some(text.text.as_str()),
            _ => None,
        });
        let prompt = texts.collect::<Vec<_>>().join(" ");
        if prompt.contains("permission") && !self.permitted().await? {
            self.send_text("You said no.")?;
            return Ok(schema::StopReason::Refusal);
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

    fn send_text(&self, text: &str) -> Result<(), Error> {
        let chunk = schema::ContentChunk::new(text.into(), "sdk-answer");
        self.send_update(schema::SessionUpdate::AgentMessageChunk(chunk))
    }

    fn send_update(&self, update: schema::SessionUpdate) -> Result<(), Error> {
        let session = self.request.session_id.clone();
        self.connection.send_notification(schema::UpdateSessionNotification::new(session, update))
    }

    async fn permitted(&self) -> Result<bool, Error> {
        let options = vec![
            schema::PermissionOption::new("yes", "Yes", schema::PermissionOptionKind::AllowOnce),
            schema::PermissionOption::new("no", "No", schema::PermissionOptionKind::RejectOnce),
        ];
        let request = schema::RequestPermissionRequest::new(
            self.request.session_id.clone(),
            "Do as you asked",
            options,
        );
        let answer = self.connection.send_request(request).block_task().await?;
        Ok(matches!(
            answer.outcome,
            schema::RequestPermissionOutcome::Selected(selected) if &*selected.option_id.0 == "yes"
        ))
    }
}
