//! The egress proxy of a sandbox. Logs denied connections.

use std::collections::HashSet;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use narrows_audit::{Event, Log};
use narrows_egress::{Denial, HostAllowList, Options, SystemResolver, serve};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

const MAX_QUEUED_DENIALS: usize = 64;
/// Maximum number of denials that are logged. An agent can cause any number.
const MAX_LOGGED_DENIALS: usize = 256;

/// A running proxy. Dropping it closes the proxy and all its connections.
#[derive(Debug)]
pub(super) struct EgressProxy {
    proxy: JoinHandle<()>,
}

impl Drop for EgressProxy {
    fn drop(&mut self) {
        self.proxy.abort();
    }
}

impl EgressProxy {
    /// Starts a proxy for the listed hosts. Each denial is logged once, as `event` with its target.
    pub(super) fn open(
        listener: TcpListener,
        list: HostAllowList,
        log: Option<Log>,
        event: Event,
    ) -> io::Result<Self> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (sender, denials) = mpsc::channel(MAX_QUEUED_DENIALS);
        let proxy = tokio::spawn(serve(listener, list, Options::default(), Arc::new(SystemResolver), sender));
        // The task ends with the proxy, which holds the only sender, after all denials are logged.
        tokio::spawn(log_denials(denials, log, event));
        Ok(Self { proxy })
    }
}

async fn log_denials(mut denials: mpsc::Receiver<Denial>, log: Option<Log>, event: Event) {
    let mut known = HashSet::new();
    while let Some(Denial { target, reason }) = denials.recv().await {
        let target = target.map(|target| target.to_string()).unwrap_or_default();
        if known.len() == MAX_LOGGED_DENIALS || !known.insert((target.clone(), reason)) {
            continue;
        }
        let Some(log) = &log else { continue };
        let mut event = event.clone();
        if let Some(about) = event.metadata.get_mut("aip44") {
            about["kind"] = json!("refusal");
            about["code"] = json!(reason.code());
            about["reason"] = json!(reason.to_string());
            about["is_last"] = json!(known.len() == MAX_LOGGED_DENIALS);
        }
        event.input = Some(json!({"target": target}));
        // The connection was denied anyway, so a missing entry does not matter.
        if let Err(error) = log.append(event).await {
            tracing::warn!(%error, "egress denial not recorded in the audit log");
        }
    }
}
