//! One call of a tool.

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

use crate::connection::service;
use crate::entry::Entry;
use crate::guard::Ear;
use crate::text::one_line;
use crate::{CallError, News, Options, Outcome, Server, outcome};

/// How long the reason for a lost connection may take to be known.
const REASON: Duration = Duration::from_secs(1);

/// Calls `tool` and waits for its outcome.
pub(crate) async fn call(
    entry: &Entry,
    tool: &str,
    arguments: Map<String, Value>,
    options: &Options,
    mut progress: impl FnMut(String) + Send,
) -> Result<Outcome, CallError> {
    let request = CallToolRequest::new(CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments));
    let request = ClientRequest::CallToolRequest(request);
    match ask(entry, request, options, |news| progress(news.to_string())).await? {
        Ok(result) => outcome::read(serde_json::to_value(result).unwrap_or_default(), options.max_result),
        Err(error) => {
            Err(CallError::Refused { code: error.code.0.into(), message: one_line(&error.message) })
        }
    }
}

/// Sends a request and waits for what the server answers.
pub(crate) async fn ask(
    entry: &Entry,
    mut request: ClientRequest,
    options: &Options,
    mut progress: impl FnMut(News) + Send,
) -> Result<Result<ServerResult, ErrorData>, CallError> {
    let deadline = Instant::now() + options.call_limit;
    let late = || CallError::Deadline(options.call_limit);
    let peer = timeout_at(deadline, entry.peer()).await.map_err(|_| late())??;
    let (ear, mut heard) = Ear::new();
    request.extensions_mut().insert(ear);
    let send = peer.send_request_with_option(request, PeerRequestOptions::no_options());
    let sent = timeout_at(deadline, send).await.map_err(|_| late())?;
    let mut handle = match sent {
        Ok(handle) => handle,
        Err(error) => return Err(problem(entry, &error).await),
    };
    let open = Open::new(&handle);
    let mut end = pin!(sleep_until(deadline));
    let answer = loop {
        // The end first: a server that has much to say must not put it off.
        tokio::select! {
            biased;
            () = &mut end => return Err(late()),
            answer = &mut handle.rx => break answer,
            Some(news) = heard.recv() => progress(news),
        }
    };
    open.settle();
    while let Ok(news) = heard.try_recv() {
        progress(news);
    }
    match answer.unwrap_or(Err(ServiceError::TransportClosed)) {
        Ok(result) => Ok(Ok(result)),
        Err(ServiceError::McpError(error)) => Ok(Err(error)),
        Err(error) => Err(problem(entry, &error).await),
    }
}

async fn problem(entry: &Entry, error: &ServiceError) -> CallError {
    match entry.gone(patience(&entry.server)).await {
        Some(reason) => CallError::Gone(reason),
        None => CallError::Lost(service(error)),
    }
}

/// Over HTTP a lost call says nothing about the server.
fn patience(server: &Server) -> Duration {
    if matches!(server, Server::Http { .. }) { Duration::ZERO } else { REASON }
}

/// A call that the server is working on. Dropping it cancels the call there.
struct Open {
    peer: Peer<RoleClient>,
    id: Option<RequestId>,
}

impl Open {
    fn new(handle: &RequestHandle<RoleClient>) -> Self {
        Self { peer: handle.peer.clone(), id: Some(handle.id.clone()) }
    }

    fn settle(mut self) {
        self.id = None;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let params = CancelledNotificationParam::new(Some(id), Some("the caller no longer waits".to_owned()));
        let notification = CancelledNotification::new(params);
        let mut send = pin!(self.peer.send_notification(notification.into()));
        // The first poll puts it into rmcp's queue, and that is all it takes. A queue that is full belongs to a server
        // that does not read; it would not read this either.
        _ = send.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
}
