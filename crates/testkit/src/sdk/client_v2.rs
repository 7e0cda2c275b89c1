//! The SDK's client, version 2, in which a turn ends with a state update instead of an answer.

use std::sync::{Arc, Mutex, MutexGuard};

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v2::{ConnectionTo, Responder, schema};
use agent_client_protocol::{Agent, Client, ConnectTo, Error};
use narrows_base::sync::lock;
use tokio::sync::watch;

use super::Transcript;

#[derive(Clone)]
struct Seen {
    transcript: Arc<Mutex<Transcript>>,
    /// Progress of the turn: begun, and ended.
    progress: watch::Sender<Progress>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Waiting,
    Running,
    Ended,
}

pub(super) async fn drive(transport: impl ConnectTo<Client> + 'static, prompt: String) -> Transcript {
    let seen = Seen { transcript: Arc::default(), progress: watch::Sender::new(Progress::Waiting) };
    let (updates, permissions) = (seen.clone(), seen.clone());
    let ended = seen.progress.subscribe();
    let outcome = Client
        .v2()
        .name("sdk-client-v2")
        .on_receive_notification(
            async move |notification: schema::UpdateSessionNotification, _connection: ConnectionTo<Agent>| {
                updates.see(&notification.update);
                Ok(())
            },
            agent_client_protocol::on_receive_notification!(),
        )
        .on_receive_request(
            async move |request: schema::RequestPermissionRequest,
                        responder: Responder<schema::RequestPermissionResponse>,
                        _connection: ConnectionTo<Agent>| {
                permissions.transcript().permissions.push(request.title.clone());
                responder.respond(schema::RequestPermissionResponse::new(grant(&request)))
            },
            agent_client_protocol::on_receive_request!(),
        )
        .connect_with(transport, async move |connection: ConnectionTo<Agent>| {
            turn(connection, &prompt, ended).await
        })
        .await;
    if let Err(error) = outcome {
        seen.transcript().error = Some(error.to_string());
    }
    seen.transcript().clone()
}

async fn turn(
    connection: ConnectionTo<Agent>,
    prompt: &str,
    mut progress: watch::Receiver<Progress>,
) -> Result<(), Error> {
    let info = schema::Implementation::new("sdk-client", "1.0.0");
    let request = schema::InitializeRequest::new(ProtocolVersion::V2, info);
    connection.send_request(request).block_task().await?;
    let opened = connection.build_session_cwd()?.start_session().block_task().await?;
    let session = opened.session;
    session.send_prompt(prompt).block_task().await?;
    progress.wait_for(|progress| *progress == Progress::Ended).await.map_err(Error::into_internal_error)?;
    session.close().block_task().await?;
    Ok(())
}

impl Seen {
    fn transcript(&self) -> MutexGuard<'_, Transcript> {
        lock(&self.transcript)
    }

    fn see(&self, update: &schema::SessionUpdate) {
        self.transcript().updates += 1;
        match update {
            schema::SessionUpdate::AgentMessageChunk(chunk) => {
                if let schema::ContentBlock::Text(text) = &chunk.content {
                    self.transcript().text.push_str(&text.text);
                }
            }
            schema::SessionUpdate::StateUpdate(schema::StateUpdate::Idle(idle)) => self.rest(idle),
            schema::SessionUpdate::StateUpdate(_) => {
                self.progress.send_replace(Progress::Running);
            }
            _ => {}
        }
    }

    /// Records that the agent is idle, which ends the turn. Ignored if the turn has not begun.
    fn rest(&self, idle: &schema::IdleStateUpdate) {
        if *self.progress.borrow() != Progress::Running {
            return;
        }
        let idle = serde_json::to_value(idle).unwrap_or_default();
        self.transcript().stop_reason = idle["stopReason"].as_str().map(str::to_owned);
        self.progress.send_replace(Progress::Ended);
    }
}

/// Grants permission by the kind of an option, not by its position.
fn grant(request: &schema::RequestPermissionRequest) -> schema::RequestPermissionOutcome {
    let allowed =
        request.options.iter().find(|option| option.kind == schema::PermissionOptionKind::AllowOnce);
    match allowed {
        Some(option) => schema::RequestPermissionOutcome::Selected(schema::SelectedPermissionOutcome::new(
            option.option_id.clone(),
        )),
        None => schema::CancelledPermissionOutcome::new().into(),
    }
}
