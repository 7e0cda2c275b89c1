//! One request to a server, with its deadline, its progress and its cancellation.

use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CancelledNotification, CancelledNotificationParam, ClientRequest,
    ErrorData, GetExtensions, RequestId, ServerResult,
};
use rmcp::service::{PeerRequestOptions, RequestHandle};
use rmcp::{Peer, RoleClient, ServiceError};
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::bounded_transport::ProgressSender;
use crate::connection::service_error_text;
use crate::server_entry::ServerEntry;
use crate::text::one_line;
use crate::{CallError, CallOutcome, CallProgress, Options, Server, outcome};

/// Time to wait for the reason why a connection was lost.
const LOSS_REASON_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) async fn call(
    entry: &ServerEntry,
    tool: &str,
    arguments: Map<String, Value>,
    options: &Options,
    mut progress: impl FnMut(String) + Send,
) -> Result<CallOutcome, CallError> {
    let request = CallToolRequest::new(CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments));
    let request = ClientRequest::CallToolRequest(request);
    match send_request(entry, request, options, |update| progress(update.to_string())).await? {
        Ok(result) => {
            outcome::parse_result(serde_json::to_value(result).unwrap_or_default(), options.max_result_bytes)
        }
        Err(error) => {
            Err(CallError::Refused { code: error.code.0.into(), message: one_line(&error.message) })
        }
    }
}

pub(crate) async fn send_request(
    entry: &ServerEntry,
    mut request: ClientRequest,
    options: &Options,
    mut progress: impl FnMut(CallProgress) + Send,
) -> Result<Result<ServerResult, ErrorData>, CallError> {
    let deadline = Instant::now() + options.call_timeout;
    let timed_out = || CallError::Deadline(options.call_timeout);
    let peer = timeout_at(deadline, entry.peer()).await.map_err(|_| timed_out())??;
    let (sender, mut updates) = ProgressSender::new();
    request.extensions_mut().insert(sender);
    let send = peer.send_request_with_option(request, PeerRequestOptions::no_options());
    let sent = timeout_at(deadline, send).await.map_err(|_| timed_out())?;
    let mut handle = match sent {
        Ok(handle) => handle,
        Err(error) => return Err(to_call_error(entry, &error).await),
    };
    let cancel = CancelOnDrop::new(&handle);
    let mut end = pin!(sleep_until(deadline));
    let answer = loop {
        // The deadline is polled first, because a server that sends much progress must not delay it.
        tokio::select! {
            biased;
            () = &mut end => return Err(timed_out()),
            answer = &mut handle.rx => break answer,
            Some(update) = updates.recv() => progress(update),
        }
    };
    cancel.disarm();
    while let Ok(update) = updates.try_recv() {
        progress(update);
    }
    match answer.unwrap_or(Err(ServiceError::TransportClosed)) {
        Ok(result) => Ok(Ok(result)),
        Err(ServiceError::McpError(error)) => Ok(Err(error)),
        Err(error) => Err(to_call_error(entry, &error).await),
    }
}

async fn to_call_error(entry: &ServerEntry, error: &ServiceError) -> CallError {
    match entry.exit_reason(reason_timeout(&entry.server)).await {
        Some(reason) => CallError::NotRunning(reason),
        None => CallError::Lost(service_error_text(error)),
    }
}

/// Returns the time to wait for the server's exit reason. Zero over HTTP, where a lost call does not mean
/// that the server has ended.
fn reason_timeout(server: &Server) -> Duration {
    if matches!(server, Server::Http { .. }) { Duration::ZERO } else { LOSS_REASON_TIMEOUT }
}

/// A call in progress. Dropping the guard cancels the call at the server.
struct CancelOnDrop {
    peer: Peer<RoleClient>,
    id: Option<RequestId>,
}

impl CancelOnDrop {
    fn new(handle: &RequestHandle<RoleClient>) -> Self {
        Self { peer: handle.peer.clone(), id: Some(handle.id.clone()) }
    }

    fn disarm(mut self) {
        self.id = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let params = CancelledNotificationParam::new(Some(id), Some("the caller no longer waits".to_owned()));
        let notification = CancelledNotification::new(params);
        let mut send = pin!(self.peer.send_notification(notification.into()));
        // A single poll queues the cancellation in rmcp. If rmcp's queue is full, the server is not reading,
        // and would not read a cancellation either.
        _ = send.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
}
