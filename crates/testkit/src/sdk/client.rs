//! The SDK's client, version 1.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::{ConnectionTo, schema};
use agent_client_protocol::{Agent, Client, ConnectTo, Error};
use narrows_base::sync::lock;

use super::{Transcript, word};

pub(super) async fn drive(transport: impl ConnectTo<Client> + 'static, prompt: String) -> Transcript {
    let transcript = Arc::new(Mutex::new(Transcript::default()));
    let note = |change: &dyn Fn(&mut Transcript)| {
        change(&mut lock(&transcript));
    };
    let (updates, permissions) = (Arc::clone(&transcript), Arc::clone(&transcript));
    let outcome = Client
        .v1()
        .name("sdk-client")
        .on_receive_notification(
            async move |notification: schema::SessionNotification, _connection: ConnectionTo<Agent>| {
                see(&mut lock(&updates), &notification.update);
                Ok(())
            },
            agent_client_protocol::on_receive_notification!(),
        )
        .on_receive_request(
            async move |request: schema::RequestPermissionRequest, responder, _connection| {
                let mut transcript = lock(&permissions);
                transcript.permissions.push(request.tool_call.fields.title.clone().unwrap_or_default());
                drop(transcript);
                responder.respond(schema::RequestPermissionResponse::new(grant(&request)))
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: schema::ReadTextFileRequest, responder, _connection| {
                match std::fs::read_to_string(&request.path) {
                    Ok(content) => responder.respond(schema::ReadTextFileResponse::new(content)),
                    Err(_) => responder.respond_with_error(Error::new(-32002, "not found")),
                }
            },
            agent_client_protocol::on_receive_request!(),
        )
        .connect_with(transport, |connection: ConnectionTo<Agent>| turn(connection, prompt))
        .await;
    match outcome {
        Ok(stop) => note(&|transcript| transcript.stop_reason = word(&stop)),
        Err(error) => note(&|transcript| transcript.error = Some(error.to_string())),
    }
    let transcript = lock(&transcript);
    transcript.clone()
}

async fn turn(connection: ConnectionTo<Agent>, prompt: String) -> Result<schema::StopReason, Error> {
    let files = schema::FileSystemCapabilities::new().read_text_file(true);
    let request = schema::InitializeRequest::new(ProtocolVersion::V1)
        .client_capabilities(schema::ClientCapabilities::new().fs(files));
    connection.send_request(request).block_task().await?;
    let cwd = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    let session = connection.send_request(schema::NewSessionRequest::new(cwd)).block_task().await?;
    let blocks = vec![schema::ContentBlock::from(prompt)];
    let request = schema::PromptRequest::new(session.session_id, blocks);
    Ok(connection.send_request(request).block_task().await?.stop_reason)
}

fn see(transcript: &mut Transcript, update: &schema::SessionUpdate) {
    transcript.updates += 1;
    if let schema::SessionUpdate::AgentMessageChunk(chunk) = update
        && let schema::ContentBlock::Text(text) = &chunk.content
    {
        transcript.text.push_str(&text.text);
    }
}

/// Grants permission by the kind of an option, not by its position.
fn grant(request: &schema::RequestPermissionRequest) -> schema::RequestPermissionOutcome {
    let allowed =
        request.options.iter().find(|option| option.kind == schema::PermissionOptionKind::AllowOnce);
    allowed.map_or(schema::RequestPermissionOutcome::Cancelled, |option| {
        schema::RequestPermissionOutcome::Selected(schema::SelectedPermissionOutcome::new(
            option.option_id.clone(),
        ))
    })
}
